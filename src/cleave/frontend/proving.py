"""`cleave.prove`: whether two PyTorch functions are equal for all sizes and all finite inputs;
`certificate`: the same as text that an independent checker verifies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cleave.algebra.certificate import Certified, certify
from cleave.algebra.proof import Proof
from cleave.algebra.proof import prove as prove_programs
from cleave.frontend.calls import check_dims, check_function, checked_call
from cleave.frontend.files import capture_for_proof

Dims = Mapping[str, Sequence[str | int] | str]


@checked_call("cleave.prove", 'cleave.prove(f, g, dims={"x": ("N", "T")})')
def prove(f: Callable[..., Any], g: Callable[..., Any], *, dims: Dims) -> Proof:
    """Prove or refute `f == g`. `dims` names the axes of the inputs of both: `{"x": ("N", "T")}`; inputs are
    matched by name, outputs by position. The answer is `yes`, `yes-if`, `no` or `unknown`."""
    left, right = (capture_for_proof(fn, _own(fn, dims)) for fn in (f, g))
    return prove_programs(left.program, right.program)


def certificate(f: Callable[..., Any], g: Callable[..., Any], *, dims: Dims) -> Certified:
    """A proof of `f == g` as text, checked (`ir.checker`), with its conditions; or why there is none."""
    left, right = (capture_for_proof(fn, _own(fn, dims)) for fn in (f, g))
    return certify(left.program, right.program)


def _own(fn: Callable[..., Any], dims: Dims) -> Dims:
    """The inputs that this function has."""
    check_function(fn)
    check_dims(dims)
    names = inspect.signature(fn).parameters
    return {name: given for name, given in dims.items() if name in names}
