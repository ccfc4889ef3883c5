"""Degenerate rows: what a Fold and a candidate give is NaN exactly where the program is.

Whole rows of each input are -inf, inf, NaN or 0, and masks are false all over a row: maxima of nothing, 0/0
and inf - inf. Values that are numbers are compared elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from benchmarks.wanted import FOLDER, load

from algebra.cascades import TEXTS
from algebra_values import computed, inputs_for
from cleave.algebra.folds import folds_of
from cleave.algebra.search import search
from cleave.ir.candidate import Candidate
from cleave.ir.dims import size_of
from cleave.ir.ops import Input, Scalar
from cleave.ir.program import Program
from cleave.ir.reference import evaluate, evaluate_fold
from cleave.ir.text import parse_program

NAMES = sorted(path.stem for path in FOLDER.glob("*.cleave"))
FILLS = (-np.inf, np.inf, np.nan, 0.0)
SEARCHED = ("attention_log_sum_exp", "softmax_and_log_sum_exp", "softmax_matmul", "merge_two")
"""Those whose candidates are looked at in the fast tests; all of them in the slow ones."""

BESIDE = {
    ("soft_cross_entropy", "p"): "inf * (x - u) is summed as inf * x - inf * u",
    ("moments_of_two", "y"): "inf * (x - u) is summed as inf * x - inf * u",
    ("group_norm_linear", "g"): "inf * (x - u) is summed as inf * x - inf * u",
    ("merge_of_attention", "v"): "a row that a guard hides is 0, not 0 * inf",
}
"""Programs and inputs whose infinities a Fold treats in another way than the program, and why: NaN stays
where the program is not finite, but an infinity may be NaN, or a NaN 0."""

REORDERED = {
    "distances", "linear_attention", "linear_rms_norm", "mixture", "quantised_columns", "scan_between",
    "scan_chunk", "merge_two", "sigmoid_linear", "two_way",
}  # fmt: skip
"""Programs with candidates that sum or divide in another order: an infinite input meets a 0 or an infinity
there that it does not meet in the user's program, or the other way round."""

Given = dict[str, np.ndarray]


def degenerate(program: Program) -> Iterator[tuple[str, Given, dict]]:
    """Inputs of a program: for each input and each axis, some of the slices are one value all over."""
    inputs, sizes = inputs_for(program, np.random.default_rng(3), least=4)
    for node in program.inputs:
        if isinstance(node.op, Scalar) and node.dtype == "i64":
            inputs[node.op.name] = np.asarray(2)
    for node in program.inputs:
        if not isinstance(node.op, Input):
            continue
        name = node.op.name
        given = inputs[name]
        for axis in range(given.ndim):
            fills = (False, True) if given.dtype == bool else FILLS if given.dtype.kind == "f" else ()
            changed = given.copy()
            for place, fill in enumerate(fills[: given.shape[axis]]):
                np.moveaxis(changed, axis, 0)[place] = fill
            if fills:
                yield f"{name}, axis {axis}", {**inputs, name: changed}, sizes


def same_nan(got: np.ndarray, expected: np.ndarray, exactly: bool = True) -> bool:
    """Is a value NaN exactly where the expected one is, or at least only where that is not finite?"""
    a, b = np.isnan(np.asarray(got, float)), np.asarray(expected, float)
    a = np.broadcast_to(a, b.shape)
    return bool((a == np.isnan(b)).all() if exactly else (a <= ~np.isfinite(b)).all())


def check_folds(candidate: Candidate, what: str, given: Given, sizes: dict) -> None:
    program = candidate.program
    for fold in candidate.folds:
        truth = computed(program, given, [v.node for v in fold.values], sizes)
        total = size_of(fold.over, sizes)
        for parts in ([total], [0, 1, total - 1, 0] if total else [0]):
            got = evaluate_fold(candidate, fold, given, parts, sizes=sizes)
            for value in fold.values:
                name = program.names.get(value.node, value.name)
                exactly = (program.name, what.split(",")[0]) not in BESIDE
                fine = same_nan(got[value.name], truth[value.node], exactly)
                assert fine, (what, str(fold.over), name, parts)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", NAMES)
def test_a_fold_is_nan_where_its_program_is(name: str) -> None:
    program = load(FOLDER / f"{name}.cleave").program
    own = Candidate(program, folds_of(program))
    for what, given, sizes in degenerate(program):
        check_folds(own, what, given, sizes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_a_cascade_is_nan_where_its_program_is(name: str) -> None:
    program = parse_program(TEXTS[name])
    own = Candidate(program, folds_of(program))
    for what, given, sizes in degenerate(program):
        check_folds(own, what, given, sizes)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "name", [n if n in SEARCHED else pytest.param(n, marks=pytest.mark.slow) for n in NAMES]
)
def test_a_candidate_is_nan_where_the_users_program_is(name: str) -> None:
    case = load(FOLDER / f"{name}.cleave")
    found = search(case.program, split=False, numerics=case.numerics)
    for what, given, sizes in degenerate(case.program):
        expected = evaluate(case.program, given, sizes)
        for candidate in found.candidates[1:]:
            check_folds(candidate, what, given, sizes)
            for key, value in evaluate(candidate.program, given, sizes).items():
                assert same_nan(value, expected[key], name not in REORDERED), (candidate.form, what, key)


def test_distances_from_an_extreme_stay_in_a_second_pass() -> None:
    """Squares around an old maximum, carried to a new one, would be inf - inf where the program has inf."""
    import torch

    import cleave

    def spread(x: torch.Tensor) -> torch.Tensor:
        return ((x - x.amax(-1, keepdim=True)) ** 2).sum(-1)

    x = torch.zeros(2, 4096)
    x[:, 0] = -torch.inf
    x[0, -1] = 1.0
    assert torch.equal(cleave.jit(spread)(x), spread(x))
