"""Split and merge in one launch: text, refusals, order of memory in PTX, values in Triton's interpreter, and
parts that start beyond the end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tile_examples as te
from cleave.codegen.triton import emit
from cleave.errors import Bug
from cleave.ir.dims import Atom, Parts
from cleave.knobs import scope
from cleave.runtime import triton_build
from cleave.runtime.launch import Launcher
from cleave.schedule.cost import Cost, merged_cost
from cleave.schedule.interpret import run
from cleave.schedule.machine import H200
from cleave.schedule.merging import apart
from cleave.schedule.text import parse_tiles, print_tiles
from cleave.schedule.tiles import TileProgram
from cleave.schedule.verify import verify

TESTS = Path(__file__).parents[1]
K = Atom("K")

SCRIPT = """
    import sys
    sys.path[:0] = [{tests!r}, {tests!r} + "/codegen"]
    import torch
    from test_triton_merge import one_launch
    import tile_examples as te
    from cleave.ir.dims import Atom
    from cleave.runtime.triton_launch import TritonLauncher

    for k, tile, parts in ((300, 128, 4), (4300, 192, 33), (37, 16, 4), (0, 16, 2), (5, 16, 1)):
        tiles = one_launch(te.matmul_split(16, 16, 64 if tile == 192 else tile).tiles)
        x, w = torch.randn(21, k), torch.randn(19, k)
        launcher = TritonLauncher(tiles, "interpret", choose=lambda t, s: {{Atom("K"): parts}})
        for _ in range(2):
            y, = launcher(x, w)
            assert torch.allclose(y, x @ w.t(), atol=1e-3), (k, tile, parts)
    print("done")
"""


def one_launch(tiles: TileProgram) -> TileProgram:
    """The second kernel merged into the first."""
    first, last = tiles.kernels
    return replace(tiles, kernels=(first, replace(last, merged=True)))


def test_the_mark_is_text_and_is_verified() -> None:
    tiles = one_launch(te.matmul_split().tiles)
    verify(tiles)
    assert parse_tiles(print_tiles(tiles)) == tiles and "merged" in print_tiles(tiles)
    assert apart(tiles) == te.matmul_split().tiles
    assert len(emit(tiles).entries) == 1 and len(emit(apart(tiles)).entries) == 2


def test_wrong_marks_are_refused() -> None:
    first, last = te.matmul_split().tiles.kernels
    tiles = te.matmul_split().tiles
    with pytest.raises(Bug, match="there is none before it"):
        verify(replace(tiles, kernels=(replace(first, merged=True), last)))
    grid = tuple(replace(axis, tile=8) for axis in last.grid)
    with pytest.raises(Bug, match="no multiple of the 16"):
        verify(replace(tiles, kernels=(first, replace(last, grid=grid, merged=True))))


@pytest.mark.parametrize("size, parts, chunk", [(300, 4, 128), (4300, 33, 192)])
def test_parts_that_start_beyond_the_end_add_nothing(size: int, parts: int, chunk: int) -> None:
    tiles = one_launch(te.matmul_split(16, 16, 64).tiles)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, size)), rng.standard_normal((5, size))
    found = run(tiles, {"x": x, "w": w}, parts={Parts(K): parts}, chunks={Parts(K): chunk})["y"]
    np.testing.assert_allclose(found, x @ w.T, atol=1e-9)
    a, b = torch.from_numpy(x).float(), torch.from_numpy(w).float()
    (y,) = Launcher(tiles, choose=lambda tiles, sizes: {K: parts})(a, b)
    torch.testing.assert_close(y, a @ b.t(), atol=1e-3, rtol=1e-3)


def test_values_in_the_interpreter(tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "CLEAVE_CACHE_DIR": str(tmp_path)}
    script = textwrap.dedent(SCRIPT.format(tests=str(TESTS)))
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "done" in done.stdout, done.stderr[-3000:]


def test_stores_come_before_the_count_and_states_are_read_past_the_first_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts: list[str] = []
    report = triton_build.report_of
    monkeypatch.setattr(
        triton_build,
        "report_of",
        lambda name, kernel: texts.append(kernel.asm["ptx"]) or report(name, kernel),
    )
    with scope(cache_dir=tmp_path):
        triton_build.compile_for(emit(one_launch(te.matmul_split(64, 64, 32).tiles)))
    (ptx,) = texts
    atomic = re.search(r"atom\.\S*acq_rel\S*", ptx)
    assert atomic is not None and "gpu" in atomic.group()
    before, after = ptx[: atomic.start()], ptx[atomic.end() :]
    assert "bar.sync" in before[before.rindex("st.global") :]
    loads = re.findall(r"ld\.global\S*", after)
    assert loads and all(".cg" in load for load in loads)


def test_one_launch_spares_something_where_few_states_follow_many_blocks() -> None:
    end = Cost(6e-6, loaded=128 * 16e3, blocks=128)
    many, few = Cost(1e-5, blocks=256), Cost(1e-5, blocks=16)
    assert merged_cost(many, end, H200).seconds < end.seconds < merged_cost(few, end, H200).seconds
    assert merged_cost(many, replace(end, loaded=128 * 128e3), H200).seconds > end.seconds
    assert merged_cost(many, end, H200).launches == 0
