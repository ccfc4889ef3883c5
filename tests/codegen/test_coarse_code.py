"""Coarse functions in generated code: one instruction on a GPU, the whole function on a CPU."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_gluon_model import changed, worst

import cleave.runtime.triton_build as building
from cleave.codegen.source import Source
from cleave.codegen.triton import emit
from cleave.ir.ops import COARSE_ERROR
from cleave.runtime.launch import Launcher
from cleave.schedule.counting import SPECIAL
from cleave.schedule.groups import STEPPED
from cleave.schedule.interpret import run
from cleave.schedule.parse import parse_tiles
from cleave.schedule.tiles import TileProgram

COARSE = ("= tanh(", "= tanh_coarse(")
ROW = """
tiles row(x: f32[N]) -> (y: f32[N]) {
  kernel main(x, y)
      indices(n: N = 0)
      grid(n: N by 4096)
      warps 4 stages 1 {
    x[n]: f32 = load x[n]
    t[n]: f32 = tanh_coarse(x)
    store y[n] = t
  }
}
"""
EDGES = (0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 1.2e-38, 0.625, 9.0, -88.0, 3.4e38)


def every(step: int) -> np.ndarray:
    """Float32 numbers of every sign and magnitude, subnormal ones, infinities and NaN among them."""
    some = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([some, np.array(EDGES, np.float32)])


@pytest.mark.parametrize("backend", ["tiles", "cpu"])
def test_the_value_is_within_the_bound_everywhere(backend: str) -> None:
    tiles, x = parse_tiles(ROW), every(40009)
    if backend == "cpu":
        y = Launcher(tiles)(torch.from_numpy(x))[0].numpy()
        minus = Launcher(tiles)(torch.from_numpy(-x))[0].numpy()
    else:
        y, minus = (np.asarray(run(tiles, {"x": v}, dtype=np.float32)["y"]) for v in (x, -x))
    with np.errstate(invalid="ignore"):  # signalling NaN
        right = np.tanh(x.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    normal = np.abs(right) >= 2.0**-126
    np.testing.assert_allclose(y[normal], right[normal], rtol=COARSE_ERROR, atol=0)
    np.testing.assert_allclose(y, right, rtol=COARSE_ERROR, atol=2.0**-149)
    np.testing.assert_array_equal(minus, -y)
    exact = (x == 0) | np.isinf(x)
    np.testing.assert_array_equal(y[exact], right[exact])
    assert not (np.abs(y) > 1).any()


def test_the_model_counts_one_special_function() -> None:
    assert "tanh_coarse" in SPECIAL and "tanh_coarse" not in STEPPED


@pytest.mark.parametrize(("rows", "keys"), [(300, 300), (200, 520)])
def test_a_kernel_with_warp_groups_computes_what_the_interpreter_does(rows: int, keys: int) -> None:
    assert worst(changed("softcap", ("K1 = 16", "K1 = 1"), COARSE), {"S": rows, "T": keys}) < 4e-3


def compiled(
    tiles: TileProgram, monkeypatch: pytest.MonkeyPatch
) -> tuple[Source, building.Report, Sequence[str]]:
    """The source of a kernel with warp groups, what it compiles to for capability 9, and its instructions."""
    import triton

    kernels: list[Any] = []
    report_of = building.report_of

    def kept(name: str, kernel: Any) -> building.Report:
        kernels.append(kernel)
        return report_of(name, kernel)

    monkeypatch.setattr(building, "report_of", kept)
    source = emit(tiles, described=True, grouped=True)
    (report,) = building.compile_for(source)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    return source, report, disassembled(kernels[0].asm["cubin"], tool)


def disassembled(cubin: bytes, tool: Path) -> Sequence[str]:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([str(tool), "-c", str(path)], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_on_a_gpu_it_is_one_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    source, report, code = compiled(changed("softcap", COARSE), monkeypatch)
    assert "def tanh_coarse_in_group(" in source.text and "tanh_flushed" not in source.text
    assert report.spills == 0
    with monkeypatch.context() as other:
        _, _, whole = compiled(changed("softcap"), other)
    counts = [{w: sum(w in line for line in c) for w in ("MUFU.TANH", "FFMA")} for c in (code, whole)]
    assert counts[0]["MUFU.TANH"] > 0 == counts[1]["MUFU.TANH"]
    assert counts[0]["FFMA"] < counts[1]["FFMA"] / 4, "no polynomial is left"
    assert len(code) < 0.8 * len(whole)
