"""The judge on torch tensors against the reference in NumPy, and what it says of wrong results."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from cleave.errors import Infeasible
from cleave.ir.dims import Parts, atoms_of
from cleave.ir.program import Program
from cleave.ir.reference import evaluate as reference
from cleave.runtime import judge
from cleave.runtime.judge import allowed, error_of, evaluate, make_inputs
from programs import PROGRAMS


def is_plain(program: Program) -> bool:
    """Whether nothing is written over parts: users' programs are not."""
    dims = [i.dim for n in program.nodes for i in (*n.axes, *n.bound)]
    return not any(isinstance(d, Parts) or "part(" in str(d) for d in dims)


PLAIN = [name for name, program in PROGRAMS.items() if is_plain(program)]


def arrays(program: Program, args: list[object]) -> dict[str, object]:
    names = [n.op.name for n in program.inputs]  # pyright: ignore[reportAttributeAccessIssue]
    wide = [
        (a.double() if a.is_floating_point() else a).numpy() if isinstance(a, torch.Tensor) else a
        for a in args
    ]
    return dict(zip(names, wide, strict=True))


@pytest.mark.parametrize("name", PLAIN)
def test_it_means_what_the_reference_means(name: str) -> None:
    program = PROGRAMS[name]
    primes = iter((3, 5, 4, 6, 2, 7, 8, 3, 5, 4, 6, 2, 7, 9))
    sizes = program.bind({atom: next(primes) for atom in program.dynamic})
    args = make_inputs(program, sizes, "cpu", seed=1)
    wanted = reference(program, arrays(program, args), sizes)
    found = evaluate(program, args, sizes)
    for output, value in zip(program.outputs, found, strict=True):
        np.testing.assert_allclose(
            value.double().numpy(), wanted[output.name].astype(np.float64), rtol=1e-9, atol=1e-12
        )


def test_most_programs_are_plain() -> None:
    assert len(PLAIN) > 10
    assert all(atoms_of(d) for name in PLAIN for n in PROGRAMS[name].nodes for d in n.dims)


def test_errors_of_results() -> None:
    wanted = torch.tensor([[1.0, 2.0], [0.0, math.nan]]).double()
    assert error_of([wanted.clone()], [wanted]) == 0
    assert error_of([wanted + 1e-3], [wanted]) > 1e-4
    assert error_of([torch.full((2, 2), math.nan)], [wanted]) == math.inf
    assert error_of([wanted[:1]], [wanted]) == math.inf
    assert error_of([torch.empty(0)], [torch.empty(0)]) == 0


def test_the_error_that_is_allowed_follows_the_dtype() -> None:
    program = PROGRAMS[PLAIN[0]]
    assert allowed(0.0, program, 64) > 0
    assert allowed(1.0, program, 64) == 1.5
    assert Fraction(1, 2)  # constants may be fractions: see the programs above


def test_what_is_too_large_at_once_is_computed_in_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers, whatever is cut; programs where nothing can be cut say so."""
    cut: list[str] = []
    for name in PLAIN:
        program = PROGRAMS[name]
        sizes = program.bind({atom: 5 + n for n, atom in enumerate(program.dynamic)})
        args = make_inputs(program, sizes, "cpu", seed=1)
        whole = evaluate(program, args, sizes)
        order = judge.sort_nodes(o.node for o in program.outputs)
        peak = judge._peak_bytes(order, judge._over_after(program, order), sizes)
        with monkeypatch.context() as now:
            now.setattr(judge, "MOST_BYTES", {"cpu": peak - 1})
            try:
                parts = evaluate(program, args, sizes)
            except Infeasible:
                continue
        cut.append(name)
        for one, other in zip(parts, whole, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12, equal_nan=True)
    assert len(cut) >= 8, cut


def test_too_large_to_check() -> None:
    program = PROGRAMS[PLAIN[0]]
    sizes = program.bind(dict.fromkeys(program.dynamic, 1 << 20))
    sizes = {d: max(n, 1 << 14) for d, n in sizes.items()}
    with pytest.raises(Infeasible, match="too many to check against"):
        evaluate(program, [1.0 for _ in program.inputs], sizes)
