"""The suites as data, and every case of the static suite through the compiler on the CPU at small sizes."""

from __future__ import annotations

import math

import pytest
import torch
from benchmarks.case import Case, Sizes, pieces, points_of
from benchmarks.compiling import captured
from benchmarks.harness import allowed_error, as_tuple, errors, reference
from benchmarks.suites import PAPER, STATIC, SUITES

import cleave
from cleave.errors import CleaveError

SMALL = {
    "B": 2,
    "H": 4,
    "KV": 2,
    "S": 5,
    "T": 37,
    "D": 16,
    "E": 8,
    "K": 48,
    "N": 40,
    "R": 4,
    "V": 50,
    "C": 32,
}
"""Odd sizes that no tile divides, several requests, grouped heads."""
FAST = ("softmax", "add+rmsnorm")
"""Cases for every run of the tests; the rest take minutes."""
OUR_LIST = {"softmax", "layernorm", "rmsnorm", "cross-entropy", "ntrans", "add+rmsnorm", "lora", "swiglu"}
OUR_LIST |= {"linear+cross-entropy", "attention", "causal-attention"}


def small(case: Case) -> Sizes:
    sizes = {d: SMALL[d] for dims in case.inputs.values() for d in dims}
    return {**sizes, "KV": sizes["H"]} if case.name.startswith("mha") else sizes


def compare(case: Case, dtype: torch.dtype) -> None:
    """One program, right, and one launch's worth of workspace figures."""
    sizes = small(case)
    inputs = case.make(sizes, dtype, "cpu", 0)
    ours = cleave.compile(case.function, inputs, dynamic=case.marks)
    assert not ours.fallbacks and len(ours.compiled) == 1
    judge = reference(case.function, inputs)
    eager = errors(as_tuple(case.function(*inputs)), judge)
    error = errors(as_tuple(ours(*inputs)), judge)
    assert error <= allowed_error(eager, dtype, max(sizes.values())), (error, eager)


@pytest.mark.parametrize("name", FAST)
def test_is_compiled_whole_and_right(name):
    compare(next(c for c in STATIC if c.name == name), torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
@pytest.mark.parametrize("case", STATIC, ids=lambda c: c.name)
def test_every_case_is_compiled_whole_and_right(case, dtype):
    compare(case, dtype)


def test_the_static_suite_has_the_rows_of_the_list():
    rows = {case.row for case in STATIC}
    assert rows == {f"B{n}" for n in (*range(1, 20), 22, 23)}
    assert {case.name for case in STATIC} >= OUR_LIST
    lengths = {s["S"] for c in STATIC if c.name == "attention" for s in c.points[("cpu", "prefill")]}
    assert lengths == {512, 2048, 4096}


@pytest.mark.parametrize("suite", SUITES)
def test_every_point_names_every_dim(suite):
    cases = SUITES[suite]
    assert len({case.name for case in cases}) == len(cases)
    for case in cases:
        for target in ("cpu", "cuda"):
            points = points_of(case, target)
            assert points and len(points) == len({str(sorted(s.items())) for _, s in points})
            for phase, sizes in points:
                assert phase in ("prefill", "decode")
                assert all(d in sizes for dims in case.inputs.values() for d in dims)
                assert case.flops(sizes) >= 0 and (case.bytes is None or case.bytes(sizes, 2) > 0)


def test_captures_take_no_memory():
    """Shapes of the GPU's suite, the largest inputs of gigabytes."""
    case = next(c for c in PAPER if c.name == "mla-decode")
    program = captured(case, case.points[("cuda", "decode")][-1], torch.bfloat16)
    assert {atom.name for atom in program.dynamic} == {"S", "T"}


def test_what_is_not_one_program_says_so():
    case = Case("odd", lambda x: torch.fft.rfft(x).abs(), {"x": ("S", "K")}, ("S",), {})
    with pytest.raises(CleaveError, match="odd is not one program"):
        captured(case, {"S": 4, "K": 8}, torch.float32)


@pytest.mark.parametrize("name", ["causal-gqa-lse2", "mla-decode-shared", "gqa-d128"])
def test_a_reference_in_pieces_is_the_whole(name):
    case = next(c for c in STATIC if c.name == name)
    sizes = small(case)
    inputs = case.make(sizes, torch.float32, "cpu", 1)
    whole = reference(case.function, inputs)
    parts = [reference(case.function, piece) for piece in pieces(case, sizes, inputs)]
    assert len(parts) == 2
    for one, several in zip(whole, zip(*parts, strict=True), strict=True):
        torch.testing.assert_close(torch.cat(several, case.joined), one)


def test_inputs_depend_on_their_own_shape_alone():
    """So that what a point needs again need not be made again."""
    case = next(c for c in STATIC if c.name == "lora")
    sizes = small(case)
    one, other = (case.make({**sizes, "S": s}, torch.bfloat16, "cpu", 3) for s in (5, 9))
    assert all(torch.equal(a, b) for a, b in zip(one[1:], other[1:], strict=True))
    assert one[0].shape != other[0].shape
    labels = next(c for c in STATIC if c.name == "cross-entropy").make(sizes, torch.bfloat16, "cpu", 0)[1]
    assert labels.dtype == torch.int64 and 0 <= int(labels.min()) <= int(labels.max()) < sizes["N"]


def test_a_run_begins_at_the_ends():
    points = {
        ("cpu", "decode"): [{"S": s} for s in (1, 2, 3)],
        ("cpu", "prefill"): [{"S": s} for s in (10, 20)],
    }
    case = Case("x", lambda x: x, {"x": ("S",)}, ("S",), points)
    assert [s["S"] for _, s in points_of(case, "cpu")] == [3, 20, 1, 10, 2]
    assert [s["S"] for _, s in points_of(case, "cpu", ["prefill"])] == [20, 10]
    assert points_of(case, "cuda") == []


def test_causal_flops_are_of_the_pairs_seen():
    case = next(c for c in STATIC if c.name == "sinks-window")
    sizes = {"B": 1, "H": 1, "KV": 1, "S": 300, "T": 400, "D": 1}
    seen = sum(min(i + 101, 128) for i in range(300))
    assert math.isclose(case.flops(sizes), 4.0 * seen)
