"""Launching Triton modules: arguments are checked, calls are kept, and compiling needs no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from triton.runtime.errors import PTXASError

import tile_examples as te
from cleave.codegen.source import Source
from cleave.codegen.triton import emit
from cleave.errors import BuildError, Infeasible, Invalid
from cleave.knobs import scope
from cleave.runtime import triton_launch
from cleave.runtime.triton_build import compile_for, load_module, refusing
from cleave.runtime.triton_launch import TritonLauncher, dense
from cleave.schedule.parse import parse_tiles

TESTS = Path(__file__).parents[1]

SCRIPT = """
    import sys
    sys.path.insert(0, {tests!r})
    import torch, pytest
    import tile_examples as te
    from cleave.errors import Invalid
    from cleave.ir.dims import Atom
    from cleave.runtime.triton_launch import TritonLauncher

    matmul = TritonLauncher(te.matmul(dtype="f16").tiles, "interpret")
    x, w = torch.randn(5, 9).half(), torch.randn(7, 9).half()

    y, = matmul(x, w)
    kept = y.clone()
    z, = matmul(2 * x, w)
    assert torch.equal(y, kept) and y.data_ptr() != z.data_ptr()
    assert len(matmul._calls) == 1

    e, = matmul(x[:0], w)
    assert e.shape == (0, 7)
    e, = matmul(x[:, :0], w[:, :0])
    assert torch.equal(e, torch.zeros(5, 7).half())
    t, = matmul(x.t().contiguous().t(), w)
    assert torch.equal(t, y)
    one, = matmul(x[:1].expand(5, 9), w)
    assert torch.equal(one[0], y[0]) and torch.equal(one[4], y[0])

    def refused(match, *args):
        with pytest.raises(Invalid, match=match):
            matmul(*args)

    refused("1 arguments, expected 2: x, w", x)
    refused("argument w has dtype torch.float32, expected torch.float16", x, w.float())
    refused("argument x is a float, expected a tensor", 1.0, w)
    refused("argument x is on meta, expected cpu", x.to("meta"), w)
    refused(r"argument w has size 4 on axis 1 \\(K\\), expected 9", x, w[:, :4])

    attention = TritonLauncher(te.attention().tiles, "interpret")
    q, k = torch.randn(10, 3, 16), torch.randn(2, 3, 16)
    with pytest.raises(Invalid, match="G"):
        attention(q, k, k, 1.0)
    with pytest.raises(Invalid, match="argument scale is a str"):
        attention(q[:4], k, k, "1")

    asked = []
    def choose(tiles, sizes):
        asked.append(sizes[Atom("K")])
        return {{Atom("K"): 4}}
    split = TritonLauncher(te.matmul_split().tiles, "interpret", choose=choose)
    x, w = torch.randn(5, 37), torch.randn(7, 37)
    y, = split(x, w)
    assert asked == [37] and torch.allclose(y, x @ w.t(), atol=1e-5)

    a = torch.full((1, 64), 133120.0)
    s, = TritonLauncher(te.softmax_keep().tiles, "interpret")(a)
    assert torch.equal(s, torch.full((1, 64), 1 / 64))
    print("done")
"""


def test_calls_in_the_interpreter(tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "CLEAVE_CACHE_DIR": str(tmp_path)}
    script = textwrap.dedent(SCRIPT).format(tests=str(TESTS))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("done\n"), done.stderr[-3000:]


def test_interpreter_must_be_chosen_before_triton_is_imported(tmp_path: Path) -> None:
    with scope(cache_dir=tmp_path), pytest.raises(Invalid, match="without TRITON_INTERPRET=1"):
        TritonLauncher(te.softmax_keep().tiles, "interpret")


def test_unknown_target_is_named(tmp_path: Path) -> None:
    with scope(cache_dir=tmp_path), pytest.raises(Invalid, match="target 'tpu'"):
        TritonLauncher(te.softmax_keep().tiles, "tpu")


def test_modules_are_loaded_once_from_the_cache(tmp_path: Path) -> None:
    with scope(cache_dir=tmp_path):
        source = emit(te.softmax_loops(2, 32).tiles)
        module = load_module(source)
        assert load_module(emit(te.softmax_loops(2, 32).tiles)) is module
        other = load_module(emit(te.softmax_loops(2, 64).tiles))
    assert other is not module
    assert len(list(tmp_path.rglob("*.py"))) == 2


def test_reports_say_what_a_kernel_needs(tmp_path: Path) -> None:
    with scope(cache_dir=tmp_path):
        (small,) = compile_for(emit(te.matmul(16, 16, 16, "f16").tiles))
        (large,) = compile_for(emit(te.matmul(128, 128, 32, "f16").tiles))
    assert small.wgmma == 0 < large.wgmma
    assert small.shared < large.shared and small.registers < large.registers
    assert small.spills == large.spills == 0


def test_source_that_triton_refuses_is_a_build_error(tmp_path: Path) -> None:
    source = emit(te.matmul(16, 16, 16, "f16").tiles)
    broken = Source("triton", source.text.replace("tl.dot(", "tl.dot_product("), source.entries)
    with scope(cache_dir=tmp_path), pytest.raises(BuildError, match="refuses kernel main"):
        compile_for(broken)


def test_what_threads_have_no_registers_for_is_infeasible() -> None:
    (entry,) = emit(te.matmul(16, 16, 16, "f16").tiles).entries
    said = "ptxas fatal : (C7602) Insufficient registers (128) to compile instruction at line 410"
    with pytest.raises(Infeasible, match="kernel main needs more registers"), refusing(entry):
        raise PTXASError(said)
    with pytest.raises(BuildError, match="refuses kernel main"), refusing(entry):
        raise PTXASError("ptxas fatal : another thing")


def test_spills_are_seen(tmp_path: Path) -> None:
    example = te.softmax_keep(4, 2048)
    kernels = tuple(replace(kernel, warps=1) for kernel in example.tiles.kernels)
    with scope(cache_dir=tmp_path):
        (report,) = compile_for(emit(replace(example.tiles, kernels=kernels)))
    assert report.spills > 0 and report.registers == 255


def test_what_warp_groups_cannot_take_goes_to_the_next_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles for groups are not those that a kernel without them would have."""
    monkeypatch.setattr(triton_launch, "compile_for", lambda *_: ())
    monkeypatch.setattr(triton_launch, "cores_of", lambda _: 132)
    tiles = parse_tiles((TESTS / "cases" / "groups" / "attention.tiles").read_text())
    alone = replace(tiles, kernels=tuple(replace(k, groups=0, stages=2) for k in tiles.kernels))
    launcher, other = (TritonLauncher(x, capability=90) for x in (tiles, alone))
    asked: list[object] = []

    def stand_in(args: object) -> TritonLauncher:
        asked.append(args)
        return other

    def groups_of(*args: torch.Tensor) -> tuple[int, int]:
        (launch,) = launcher._plan(args, ahead=True).launches
        return launch.entry.groups, launch.entry.stages

    q, k, v = (torch.empty(32, n, 64, dtype=torch.bfloat16, device="meta") for n in (256, 384, 384))
    odd = torch.empty(32, 384, 65, dtype=torch.bfloat16, device="meta")[..., :64]
    assert groups_of(q, k, v) == (2, 4)
    assert groups_of(q, odd, v) == (0, 4), "without another choice the same tiles do"
    launcher.stand_in = stand_in
    assert groups_of(q, odd, v) == groups_of(q, k, odd) == (0, 2)
    assert groups_of(q, k, v) == (2, 4)
    assert len(asked) == 1, "it is made once"


def test_dense_strides() -> None:
    assert dense((2, 3, 4)) == (12, 4, 1)
    assert dense((2, 0, 4)) == (4, 4, 1)
    assert dense(()) == ()
