"""`cleave.prove`: whether two PyTorch functions are equal for all sizes and all finite inputs;
`certificate`: the same as text that an independent checker verifies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cleave.algebra.certificate import Certified, certify
from cleave.algebra.proof import Proof
from cleave.algebra.proof import prove as prove_programs
from cleave.errors import Invalid
from cleave.frontend.calls import check_dims, check_function, checked_call, parameters_of
from cleave.frontend.captured import Captured
from cleave.frontend.files import capture_for_proof
from cleave.frontend.trace import users_line

Dims = Mapping[str, Sequence[str | int] | str]


@checked_call("cleave.prove", 'cleave.prove(f, g, dims={"x": ("N", "T")})')
def prove(f: Callable[..., Any], g: Callable[..., Any], *, dims: Dims) -> Proof:
    """Prove or refute `f == g`. `dims` names the axes of the inputs of both: `{"x": ("N", "T")}`; inputs are
    matched by name, outputs by position. The answer is `yes`, `yes-if`, `no` or `unknown`.

    `Invalid` for dims that neither function has, for sizes that contradict each other, and where a function
    raises with such inputs; `Unsupported` for one that is not one program."""
    left, right = _captured(f, g, dims)
    return prove_programs(left.program, right.program)


def certificate(f: Callable[..., Any], g: Callable[..., Any], *, dims: Dims) -> Certified:
    """A proof of `f == g` as text, checked (`ir.checker`), with its conditions; or why there is none."""
    left, right = _captured(f, g, dims)
    return certify(left.program, right.program)


def _captured(f: Callable[..., Any], g: Callable[..., Any], dims: Dims) -> tuple[Captured, Captured]:
    """Both functions, each captured with the inputs that it has."""
    for fn in (f, g):
        check_function(fn)
    check_dims(dims)
    known = dict.fromkeys([*parameters_of(f), *parameters_of(g)])
    unknown = [name for name in dims if name not in known]
    if unknown:
        what = f"dims names {unknown[0]!r}, which is an input of neither function"
        raise Invalid(what, where=users_line(), hint=f"their inputs: {', '.join(known) or 'none'}")
    left, right = (
        capture_for_proof(fn, {name: given for name, given in dims.items() if name in parameters_of(fn)})
        for fn in (f, g)
    )
    return left, right
