"""Loads of sequential loops ahead of their step: what is early, what is not, and the values in Triton's
interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from tests.ir.test_loops import STACKED, WALK

from cleave.codegen.triton import emit
from cleave.codegen.triton_ahead import Counter, run_ahead
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom
from cleave.ir.states import states_apart
from cleave.ir.text import parse_program
from cleave.schedule.machine import H200
from cleave.schedule.select import best
from cleave.schedule.tiles import TileProgram
from cleave.schedule.verify import verify

ROOT = Path(__file__).parents[2]


def scheduled(text: str, size: int = 64) -> TileProgram:
    candidate = states_apart(Candidate(parse_program(text), ()))
    return best([candidate], {Atom("N"): size, Atom("T"): 10}, H200, count=1)[0].tiles


def with_stages(tiles: TileProgram, stages: int) -> TileProgram:
    return replace(tiles, kernels=tuple(replace(k, stages=stages) for k in tiles.kernels))


@pytest.mark.parametrize("text", [WALK, STACKED], ids=["walk", "stacked"])
def test_what_a_step_reads_is_loaded_as_many_steps_early_as_there_are_stages(text: str) -> None:
    tiles = scheduled(text)
    loads = {s: emit(with_stages(tiles, s)).text.count("tl.load(a_ptr") for s in (1, 2, 3)}
    assert loads == {1: 1, 2: 2, 3: 3}
    two = emit(with_stages(tiles, 3)).text
    assert "t_ahead = tl.minimum(t + 2, T - 1)" in two
    head, body = two.split("for t in range(T)")
    assert "mask=(T > 0) & n_in" in head and "mask=n_in" in body and "(T > 0)" not in body
    assert emit(with_stages(tiles, 3)) == emit(with_stages(tiles, 3))


def test_a_load_at_a_position_that_the_state_gives_is_not_early() -> None:
    chase = """
    program chase(p: i64[N], next: i64[T, M]) {
      scan walk[t: T](p[n: N] = p[n]; row[m: M] = next[t, m])
      body step(p: i64[N], row: i64[M]) {
        q[n: N]: i64 = id(row[p[n]])
        return p: q[n], seen: p[n]
      }
      last[n: N]: i64 = scan(walk, p)
      return last: last[n]
    }
    """
    tiles = best([Candidate(parse_program(chase), ())], {Atom("N"): 8, Atom("T"): 4, Atom("M"): 8}, H200)
    text = emit(with_stages(tiles[0].tiles, 4)).text
    assert "for t in range(T)" in text and "_ahead" not in text


def test_a_block_is_a_warp_while_there_are_few_and_has_two_elements_a_thread_where_there_are_many() -> None:
    found = {}
    for size in (64, 2048, 1 << 17, 1 << 20):
        tiles = scheduled(WALK, size)
        verify(tiles)
        (kernel,) = tiles.kernels
        found[size] = kernel.grid[0].tile, kernel.warps, kernel.stages
    assert found[64] == found[2048] == (32, 1, 3)
    assert found[1 << 17] == (128, 4, 3) and found[1 << 20] == (256, 4, 2)


def test_loads_ahead_of_known_lengths_need_no_mask_of_their_own() -> None:
    from cleave.codegen.triton_text import Line, Names

    class Scope:
        names = Names()

    body = [Line("v = tl.load(v_ptr + t * v_s0)", "v"), Line("tl.store(o_ptr + t, v)")]
    counter = Counter("t", "0", "3")
    before, after, carried = run_ahead(Scope(), body, counter, 4, frozenset({"o_ptr"}))  # type: ignore[arg-type]
    assert [line.text.split(" = ")[1] for line in before] == [
        f"tl.load(v_ptr + {n} * v_s0)" for n in (0, 1, 2, 2)
    ]
    assert len(carried) == 4 and len(after) == 1 + 5 + 1
    same = run_ahead(Scope(), body, counter, 4, frozenset({"v_ptr", "o_ptr"}))  # type: ignore[arg-type]
    assert same == ([], body, ())


SCRIPT = """
    import sys
    sys.path[:0] = [{root!r}, {tests!r}]
    import numpy as np, torch
    from tests.codegen.test_triton_ahead import WALK, STACKED, scheduled, with_stages
    from tests.schedule.test_scans import inputs_of
    from cleave.ir.reference import evaluate
    from cleave.ir.text import parse_program
    from cleave.runtime.triton_launch import TritonLauncher
    for text in (WALK, STACKED):
        program = parse_program(text)
        for stages in (2, 4):
            launcher = TritonLauncher(with_stages(scheduled(text), stages), "interpret")
            for size, steps in ((5, 0), (40, 1), (40, 2), (33, 7)):
                given = inputs_of(text, size, steps)
                expected = evaluate(program, given)
                args = [torch.tensor(v, dtype=torch.float32) if isinstance(v, np.ndarray) else v
                        for v in given.values()]
                for one, two in zip(launcher(*args), expected.values(), strict=True):
                    np.testing.assert_allclose(one.numpy(), two, rtol=1e-4, atol=1e-5)
    print("fine")
"""


@pytest.mark.slow
def test_values_in_the_interpreter(tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "CLEAVE_CACHE_DIR": str(tmp_path)}
    script = textwrap.dedent(SCRIPT).format(root=str(ROOT), tests=str(ROOT / "tests"))
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "fine" in done.stdout, done.stderr
