"""Scans as kernels: one loop that carries the states, held to the reference by the interpreter, and both
emitters."""

from __future__ import annotations

import numpy as np
import pytest
from tests.ir.test_loops import STACKED, WALK

from cleave.codegen import cpp, triton
from cleave.errors import Infeasible
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom
from cleave.ir.reference import evaluate
from cleave.ir.states import states_apart
from cleave.ir.text import parse_program
from cleave.schedule.interpret import run
from cleave.schedule.machine import CPU, H200, Machine
from cleave.schedule.select import best
from cleave.schedule.text import parse_tiles, print_tiles
from cleave.schedule.tiles import Loop
from cleave.schedule.verify import verify

SIZES = {Atom("N"): 64, Atom("T"): 10}


def inputs_of(text: str, size: int, steps: int) -> dict[str, object]:
    rng = np.random.default_rng(2)
    if text is STACKED:
        return {"s": rng.normal(size=(size, 2)), "a": rng.normal(size=(steps, size))}
    return {
        "x": rng.normal(size=size),
        "v": rng.normal(size=size),
        "a": rng.normal(size=(steps, size)),
        "dt": 0.1,
    }


@pytest.mark.parametrize("machine", [CPU, H200], ids=["cpu", "cuda"])
@pytest.mark.parametrize("text", [WALK, STACKED], ids=["walk", "stacked"])
@pytest.mark.parametrize("apart", [False, True], ids=["as written", "apart"])
def test_a_scan_is_one_kernel_with_one_loop(text: str, machine: Machine, apart: bool) -> None:
    program = parse_program(text)
    candidate = Candidate(program, ())
    for ranked in best([states_apart(candidate) if apart else candidate], SIZES, machine, count=3):
        tiles = ranked.tiles
        verify(tiles)
        assert parse_tiles(print_tiles(tiles)) == tiles
        (kernel,) = tiles.kernels
        (loop,) = (s for s in kernel.body if isinstance(s, Loop))
        assert loop.tile == 1 and loop.exact and loop.updates
        for size, steps in ((5, 4), (70, 3), (3, 0), (1, 1)):
            given = inputs_of(text, size, steps)
            expected, found = evaluate(program, given), run(tiles, given, order="random")
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, atol=1e-12)
        assert cpp.emit(tiles) == cpp.emit(tiles)
        assert "for t in range(" in triton.emit(tiles).text


def test_states_read_elsewhere_are_refused() -> None:
    shifted = WALK.replace("add(x[n], dx[n])", "add(x[n + 1], dx[n])")
    with pytest.raises(Infeasible, match="other positions"):
        best([Candidate(parse_program(shifted), ())], SIZES, CPU)


def test_results_read_in_another_order_are_stored_first() -> None:
    late = WALK.replace("return last", "all[n: N]: f32 = sum[t: T](seen[t, n])\n  return sum: all[n], last")
    program = parse_program(late)
    for machine in (CPU, H200):
        for ranked in best([Candidate(program, ())], SIZES, machine, count=2):
            verify(ranked.tiles)
            given = inputs_of(WALK, 6, 5)
            expected, found = evaluate(program, given), run(ranked.tiles, given)
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, atol=1e-12)
