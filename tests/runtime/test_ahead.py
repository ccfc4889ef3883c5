"""Kernels compiled ahead of the call, for a GPU that is not there, and what is read off them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import tile_examples as te
from cleave.errors import Invalid
from cleave.ir.dims import Atom
from cleave.runtime.ahead import stand_ins
from cleave.runtime.cubin import needs
from cleave.runtime.launch import Launcher
from cleave.schedule.tiles import TileProgram

SCRIPT = """
    import os, sys
    sys.path.insert(0, {tests!r})
    import torch
    import tile_examples as te
    from dataclasses import replace
    from cleave.ir.dims import Atom
    from cleave.runtime import triton_build
    from cleave.runtime.ahead import pretend, stand_ins
    from cleave.runtime.cubin import needs
    from cleave.runtime.triton_launch import TritonLauncher
    from cleave.schedule.parse import parse_tiles

    pretend(90)
    tiles = te.matmul(16, 16, 32, dtype="f16").tiles
    tiles = replace(tiles, kernels=tuple(replace(k, descriptors=True) for k in tiles.kernels))
    sizes = {{Atom("N"): 64, Atom("O"): 48, Atom("K"): 32}}
    kept = lambda: sorted(os.listdir(os.environ["TRITON_CACHE_DIR"]))
    launcher = TritonLauncher(tiles, capability=90, example=stand_ins(tiles, sizes))
    ((name, kernel),) = launcher.ahead(stand_ins(tiles, sizes))
    (report,) = launcher.reports
    assert report.kernel == name and (report.registers, report.spills) == triton_build._told(kernel)
    assert needs(kernel.asm["cubin"]) == (report.registers, report.spills) and report.registers > 16
    first = kept()
    TritonLauncher(tiles, capability=90, example=stand_ins(tiles, {{**sizes, Atom("N"): 1024}}))
    assert kept() == first, "one kernel for all sizes that are multiples of 16"

    text = open({tests!r} + "/cases/groups/gate.tiles").read()
    grouped = parse_tiles(text.replace("X1 = 4096", "X1 = 256").replace("W11 = 14336", "W11 = 256"))
    sizes = dict(grouped.sizes) | {{Atom("S"): 300}}
    launcher = TritonLauncher(grouped, capability=90, example=stand_ins(grouped, sizes))
    assert launcher.source.entries[0].persistent, "one block a core, of which nobody knows the number here"
    assert [report.kernel for report in launcher.reports] == ["main"]
    print("done")
"""


def unbuilt(tiles: TileProgram) -> Launcher:
    launcher = Launcher.__new__(Launcher)
    launcher.tiles, launcher.target = tiles, "cpu"
    return launcher


def test_stand_ins_have_shapes_and_no_memory() -> None:
    tiles = te.matmul(16, 16, 16, dtype="f16").tiles
    x, w = stand_ins(tiles, {Atom("N"): 5, Atom("O"): 7, Atom("K"): 3})
    assert isinstance(x, torch.Tensor) and isinstance(w, torch.Tensor)
    assert (x.shape, w.shape, x.dtype, x.device.type) == ((5, 3), (7, 3), torch.float16, "meta")
    with pytest.raises(Invalid, match="is on meta"):
        unbuilt(tiles).sizes_of(x, w)
    assert unbuilt(tiles).sizes_of(x, w, absent=True)[Atom("K")] == 3


def test_the_call_finds_what_was_compiled_for_its_stand_ins(tmp_path: Path) -> None:
    """It is in Triton's cache, once for sizes alike; what it needs is what NVIDIA's program tells."""
    env = {**os.environ, "CLEAVE_CACHE_DIR": str(tmp_path), "TRITON_CACHE_DIR": str(tmp_path / "triton")}
    env.pop("TRITON_INTERPRET", None)
    script = textwrap.dedent(SCRIPT).format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("done\n"), done.stderr[-3000:]


@pytest.mark.parametrize(
    "content", [b"", b"no ELF", b"\x7fELF\x02" + b"\xff" * 200, b"\x7fELF\x02" + bytes(200)]
)
def test_binaries_of_another_form_are_told_from_kernels(content: bytes) -> None:
    assert needs(content) is None
