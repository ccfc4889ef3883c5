"""Kernels on the GPU at hand: right at awkward sizes, strides and offsets, and the same every time.

Run with `pytest -m gpu tests/test_gpu.py` on a machine with an NVIDIA GPU.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import cleave
import tile_examples as te
from cleave.ir.dims import Atom
from cleave.runtime.triton_launch import TritonLauncher
from cleave.schedule.interpret import run
from cleave.schedule.parse import parse_tiles
from cleave.schedule.tiles import TileProgram

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]
FOLDER = Path(__file__).parent / "cases" / "groups"
SIZES = [
    {"S": 1, "T": 1},
    {"S": 77, "T": 33},
    {"S": 130, "T": 257},
    {"S": 256, "T": 128},
    {"S": 300, "T": 1000},
]


def arguments(tiles: TileProgram, sizes: dict[str, int], seed: int) -> list[torch.Tensor]:
    """Random inputs of a tile program; products keep the magnitude of one."""
    known = {str(atom): size for atom, size in tiles.sizes if isinstance(size, int)} | sizes
    generator = torch.Generator().manual_seed(seed)
    made: list[torch.Tensor] = []
    for tensor in tiles.inputs:
        shape = [int(np.prod([known[str(d)] for d in group])) for group in tensor.layout]
        made.append(torch.randn(shape, generator=generator).to("cuda", torch.bfloat16))
    return made


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.tiles")))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_warp_groups_equal_the_tile_interpreter(name: str, sizes: dict[str, int]) -> None:
    tiles = parse_tiles((FOLDER / f"{name}.tiles").read_text())
    if name == "gate":
        sizes = {"S": sizes["S"]}
    given = arguments(tiles, sizes, 1)
    launcher = TritonLauncher(tiles, "cuda")
    assert any(entry.groups for entry in launcher.source.entries)
    found = launcher(*given)
    if name == "gate":  # too large for the interpreter
        x, w1, w2 = (a.double() for a in given)
        wanted = [torch.nn.functional.silu(x @ w1) * (x @ w2)]
    else:
        inputs = {t.name: a.double().cpu().numpy() for t, a in zip(tiles.inputs, given, strict=True)}
        values = run(tiles, inputs, dtype=np.float64)
        wanted = [torch.from_numpy(values[t.name]).cuda() for t in tiles.outputs]
    for own, right in zip(found, wanted, strict=True):
        clean = torch.isfinite(right)
        assert torch.equal(torch.isfinite(own), clean)
        off = (own.double() - right)[clean].norm() / right[clean].norm().clamp_min(1e-9)
        assert off < 1e-2, off
    for _ in range(5):
        again = launcher(*given)
        assert all(torch.equal(a.isnan(), b.isnan()) for a, b in zip(again, found, strict=True))
        assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(again, found, strict=True))


@pytest.mark.parametrize("parts", [1, 3, 8])
@pytest.mark.parametrize("keys", [128, 300, 4096])
def test_parts_of_warp_groups_are_merged(parts: int, keys: int) -> None:
    """Each part's last tile comes first; the dim's end may be inside of one."""
    tiles = parse_tiles((FOLDER.parent / "split" / "grouped.tiles").read_text())
    q, k, v = arguments(tiles, {"S": 70, "T": keys}, 3)
    launcher = TritonLauncher(tiles, "cuda", choose=lambda tiles, sizes: {Atom("T"): parts})
    assert launcher.source.entries[0].groups == 2
    (found,) = launcher(q, k, v)
    wide = [x.double().reshape(8, -1, *x.shape[1:]) for x in (q, k, v)]
    right = torch.softmax(wide[0] @ wide[1].transpose(-1, -2) / 128**0.5, -1) @ wide[2]
    assert (found.double() - right.reshape(found.shape)).norm() / right.norm() < 1e-2


def test_strides_that_descriptors_refuse_take_the_plain_kernel() -> None:
    tiles = parse_tiles((FOLDER / "attention.tiles").read_text())
    given = arguments(tiles, {"S": 65, "T": 129}, 2)
    launcher = TritonLauncher(tiles, "cuda")
    dense = launcher(*given)[0]
    shifted = [torch.empty(a.numel() + 1, dtype=a.dtype, device="cuda")[1:].view(a.shape) for a in given]
    for into, value in zip(shifted, given, strict=True):
        into.copy_(value)
    assert launcher.plain is None
    odd = launcher(*shifted)[0]
    assert launcher.plain is not None
    assert ((odd - dense).double().norm() / dense.double().norm()) < 1e-2
    assert Atom("S") not in dict(tiles.sizes)


@pytest.mark.parametrize("shape", [(1, 1, 1), (21, 19, 300), (64, 300, 4300), (130, 70, 0)], ids=str)
def test_split_and_merge_in_one_launch(shape: tuple[int, int, int]) -> None:
    """Right, the same 200 times, on two streams at once, and in a replayed graph."""
    tiles = te.matmul_split(16, 16, 32).tiles
    first, last = tiles.kernels
    tiles = replace(tiles, kernels=(first, replace(last, merged=True)))
    launcher = TritonLauncher(tiles, "cuda", choose=lambda tiles, sizes: {Atom("K"): 7})
    rows, columns, size = shape
    x, w = torch.randn(rows, size, device="cuda"), torch.randn(columns, size, device="cuda")
    (y,) = launcher(x, w)
    wanted = (x.double() @ w.double().t()).float()
    torch.testing.assert_close(y, wanted, atol=1e-3, rtol=1e-3)
    assert all(torch.equal(launcher(x, w)[0], y) for _ in range(200))
    streams, found = [torch.cuda.Stream() for _ in range(2)], []
    torch.cuda.synchronize()
    for _ in range(50):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(launcher(x, w)[0])
    torch.cuda.synchronize()
    assert all(torch.equal(other, y) for other in found)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        replayed = [launcher(x, w)[0] for _ in range(3)]
    for _ in range(20):
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(other, y) for other in replayed)


def test_a_graph_of_a_study_keeps_what_its_run_reads():
    from benchmarks.cartpole_case import graphed

    def made():
        x = torch.arange(64.0, device="cuda")
        return graphed(lambda: x + 1.0)

    call = made()
    others = [torch.full((64,), 7.0, device="cuda") for _ in range(1000)]
    assert torch.equal(call(), torch.arange(1.0, 65.0, device="cuda"))
    del others  # alive until here: it takes what a graph might have freed


def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ((x @ w.T).float() / ((x.float() ** 2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


@pytest.mark.parametrize("groups", [0, 2])
@pytest.mark.parametrize("stages", [2, 3])
def test_a_tile_that_a_product_and_a_sum_read(groups: int, stages: int) -> None:
    """No later tile overwrites it, and the sum is not lost."""
    tiles = parse_tiles((FOLDER / "normed.tiles").read_text())
    tiles = replace(tiles, kernels=tuple(replace(k, groups=groups, stages=stages) for k in tiles.kernels))
    x, w = arguments(tiles, {"S": 2048, "T": 4096}, 3)
    (found,) = TritonLauncher(tiles, "cuda")(x, w)
    right = (x.double() @ w.double().T) / ((x.double() ** 2).mean(-1, keepdim=True) + 1e-5)
    assert (found.double() - right).norm() / right.norm() < 1e-2


@pytest.mark.parametrize("rows", [1, 64, 300, 4096])
def test_a_row_that_is_multiplied_and_summed(rows: int) -> None:
    """What a user writes, in the forms that the cost model likes best."""
    generator = torch.Generator("cuda").manual_seed(rows)
    x = torch.randn(rows, 2048, device="cuda", generator=generator).bfloat16()
    w = torch.randn(3072, 2048, device="cuda", generator=generator).bfloat16()
    compiled = cleave.compile(normed, (x, w), dynamic={"x": ("S", None)})
    right = (x.double() @ w.double().T) / ((x.double() ** 2).mean(-1, keepdim=True) + 1e-5)
    assert not compiled.fallbacks
    assert (compiled(x, w).double() - right).norm() / right.norm() < 1e-2
