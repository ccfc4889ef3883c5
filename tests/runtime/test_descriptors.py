"""Which tensors can be described, and kernels that load through descriptors, run and compiled."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

import tile_examples as te
from cleave.codegen.source import Argument
from cleave.codegen.triton import emit
from cleave.ir.dims import Atom
from cleave.knobs import scope
from cleave.runtime.descriptors import allowed, axes_of
from cleave.runtime.triton_build import compile_for
from cleave.schedule.parse import parse_tiles
from cleave.schedule.text import print_tiles
from cleave.schedule.tiles import Tensor, TileProgram

HALF = Argument("descriptor", "x_tiles", "x", dtype="f16", block=(16, 64))


def described(tiles: TileProgram, group: int = 1) -> TileProgram:
    return replace(tiles, kernels=tuple(replace(k, descriptors=True, group=group) for k in tiles.kernels))


@pytest.mark.parametrize(
    "lengths, strides, offset, fine",
    [
        ((5, 64), (64, 1), 0, True),
        ((5, 60), (64, 1), 0, True),
        ((5, 60), (60, 1), 0, False),  # rows of 120 bytes
        ((5, 64), (1, 5), 0, False),
        ((5, 64), (64, 1), 2, False),
        ((5, 64), (0, 1), 0, False),  # expanded
        ((0, 64), (64, 1), 0, False),
        ((5, 64), (1 << 40, 1), 0, False),
    ],
)
def test_what_the_copy_engine_takes(
    lengths: tuple[int, ...], strides: tuple[int, ...], offset: int, fine: bool
) -> None:
    assert allowed(HALF, lengths, strides, offset) == fine


def test_axes_of_a_caller_are_dims_of_the_descriptor() -> None:
    h, g, d = Atom("H"), Atom("G"), Atom("D")
    tensor = Tensor("q", "input", "f16", ((h, g), (d,)))
    assert axes_of(tensor, (96, 1), {h: 2, g: 3, d: 64}) == ((2, 3, 64), (288, 96, 1))


def test_text_round_trips() -> None:
    tiles = described(te.matmul().tiles, 8)
    assert parse_tiles(print_tiles(tiles)) == tiles and "group 8 descriptors" in print_tiles(tiles)


@pytest.mark.parametrize("overlapped", [False, True])
def test_they_compile_to_the_copy_engine(overlapped: bool, tmp_path: Path) -> None:
    tiles = described(te.attention_split(64, 64, 1, 128, dtype="bf16").tiles)
    source = emit(tiles, described=True, overlapped=overlapped)
    assert any(a.kind == "descriptor" for a in source.entries[0].arguments)
    assert [e.early for e in source.entries] == [False, overlapped]
    assert ("gdc_wait" in source.text) == overlapped
    with scope(cache_dir=tmp_path):
        reports = compile_for(source)
    assert reports[0].wgmma > 0 and all(r.spills == 0 for r in reports)


SCRIPT = """
    import sys
    sys.path.insert(0, {tests!r})
    import torch
    import tile_examples as te
    from dataclasses import replace
    from cleave.runtime.triton_launch import TritonLauncher

    tiles = te.matmul(16, 16, 32, dtype="f16").tiles
    tiles = replace(tiles, kernels=tuple(replace(k, descriptors=True, group=2) for k in tiles.kernels))
    matmul = TritonLauncher(tiles, "interpret")
    assert "tiles.load(" in matmul.source.text
    for n, o, k in ((37, 41, 64), (16, 16, 8), (1, 7, 40), (70, 50, 72)):
        x, w = torch.randn(n, k).half(), torch.randn(o, k).half()
        y, = matmul(x, w)
        assert torch.allclose(y.float(), x.float() @ w.float().t(), atol=0.05), (n, o, k)
    assert matmul.plain is None
    x, w = torch.randn(37, 45).half(), torch.randn(41, 45).half()  # rows of 90 bytes: through pointers
    y, = matmul(x, w)
    assert matmul.plain is not None and torch.allclose(y.float(), x.float() @ w.float().t(), atol=0.05)
    print("done")
"""


def test_calls_in_the_interpreter(tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "CLEAVE_CACHE_DIR": str(tmp_path)}
    script = textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("done\n"), done.stderr[-3000:]
