"""Cascaded reductions (`cascades`) on numbers: their Folds piece by piece in float32, and as tile programs.

Partitions have empty and dead parts, scores go up to 1e4; the scheduler makes the tile programs.
"""

from __future__ import annotations

import numpy as np
import pytest

from algebra.cascades import BEST, EVERY, ONE_LOOP, TWO_LOOPS, marked
from algebra_values import computed, inputs_for
from cleave.algebra.folds import folds_of
from cleave.algebra.search import search
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.dims import Dim, size_of
from cleave.ir.ops import Input
from cleave.ir.precision import assign
from cleave.ir.program import Output, Program
from cleave.ir.reference import Tree, evaluate, evaluate_fold
from cleave.schedule.interpret import run
from cleave.schedule.machine import CPU
from cleave.schedule.select import best

# ---------------------------------------------------------------- numbers


def partitions(total: int, rng: np.random.Generator) -> list[tuple[list[int | list[int]], Tree | None]]:
    """Parts, single elements, empty ones first, in the middle and last, several pieces a part, and trees."""
    a, b = total // 3, total - total // 3
    cuts = [int(n) for n in np.diff([0, *np.sort(rng.integers(0, total + 1, 3)), total])]
    ones: list[int | list[int]] = [1] * total
    return [
        ([[total]], None),
        (ones, None),
        ([0, a, 0, b, 0], ((0, 1), (2, (3, 4)))),
        ([[0, a], [b, 0]], None),
        ([*cuts], ((0, (1, 2)), 3)),
    ]


def deaden(inputs: dict[str, np.ndarray], rng: np.random.Generator) -> None:
    """Rows of every mask with a dead first, middle or last part, and rows that are dead altogether."""
    for name, array in inputs.items():
        if array.dtype == bool and array.ndim == 2:
            rows, columns = array.shape
            for row in range(rows):
                third = max(1, columns // 3)
                dead = [slice(0, third), slice(third, 2 * third), slice(2 * third, None), slice(None)][
                    row % 4
                ]
                array[row, dead] = False
                if row % 4 != 3 and not array[row].any():
                    array[row, (dead.start + third) % columns] = True
            inputs[name] = array


def rounding(
    own: Program, inputs: dict[str, np.ndarray], sizes: dict[Dim, int], fold: Fold
) -> list[np.ndarray]:
    """What float32 makes of each value, done as the program says."""
    outputs = tuple(Output(v.name, v.node, tuple((k,) for k in range(len(v.node.axes)))) for v in fold.values)
    probe = Program("probe", own.inputs, outputs, own.sizes)
    with np.errstate(all="ignore"):
        found = evaluate(probe, inputs, sizes, dtype=np.float32)
    return [np.asarray(found[v.name], np.float64) for v in fold.values]


@pytest.mark.parametrize("spread", [1.0, 1e4])
@pytest.mark.parametrize("name", marked())
def test_folds_in_float32(name: str, spread: float) -> None:
    if name == "linear_weights":
        pytest.skip("exponentials that nothing keeps from overflowing")
    own = EVERY[name]
    rng = np.random.default_rng(len(name))
    inputs, sizes = inputs_for(own, rng, spread=spread, least=3)
    deaden(inputs, rng)
    for fold in folds_of(own):
        truth = computed(own, inputs, [v.node for v in fold.values], sizes)
        with np.errstate(all="ignore"):
            plain = rounding(own, inputs, sizes, fold)
        # A running value that is itself large is rounded before it is taken off.
        loose = 2e-5 + (1.2e-7 * spread if name == "centred_shares" else 0)
        for partition, tree in partitions(size_of(fold.over, sizes), rng):
            got = evaluate_fold(
                Candidate(own, ()),
                fold,
                inputs,
                partition,
                np.float32,
                tree=tree,
                sizes=sizes,  # pyright: ignore
            )
            for value, eager in zip(fold.values, plain, strict=True):
                expected, actual = truth[value.node], np.asarray(got[value.name], np.float64)
                where = (name, own.names.get(value.node), partition)
                known = np.isfinite(expected)
                assert np.all(np.isfinite(actual[known]) | ~np.isfinite(eager[known])), where
                scale = np.max(np.abs(expected[known]), initial=1e-30)
                error = np.abs(actual[known] - expected[known])
                allowed = 4 * np.abs(eager[known] - expected[known]) + loose * scale
                assert np.all((error <= allowed) | ~np.isfinite(eager[known])), (*where, actual, expected)


def test_dims_of_size_zero() -> None:
    for name in ("sink_apart", "largest_deviation", "largest_share", "over_two_dims", "entropy"):
        own = BEST[name]
        sizes: dict[Dim, int] = own.bind(dict.fromkeys(own.dynamic, 3))
        for fold in folds_of(own):
            empty = {**sizes, fold.over: 0}
            inputs = {
                n.op.name: np.zeros([size_of(d, empty) for d in n.dims], np.float32)
                for n in own.inputs
                if isinstance(n.op, Input)
            }
            truth = computed(own, inputs, [v.node for v in fold.values], empty)
            for partition in ([], [0], [0, 0]):
                got = evaluate_fold(Candidate(own, ()), fold, inputs, partition, np.float32, sizes=empty)
                for value in fold.values:
                    np.testing.assert_array_equal(got[value.name], truth[value.node])


# ---------------------------------------------------------------- the scheduler takes them

SIZES = {"N": 3, "K": 37, "T": 41, "J": 5, "D": 4, "O": 3, "A": 5, "B": 7, "G": 2, "C": 6, "P": 5, "E": 3}


def tried(own: Program, candidates: list[Candidate], count: int) -> set[tuple[str, ...]]:
    """Run the best tile programs of each candidate against the reference; the dims that were split."""
    sizes = own.bind({a: SIZES[a.name] for a in own.dynamic})
    rng = np.random.default_rng(4)
    inputs: dict[str, np.ndarray] = {}
    for node in own.inputs:
        if not isinstance(node.op, Input):
            inputs[node.op.name] = np.asarray(0.25)  # pyright: ignore[reportAttributeAccessIssue]
            continue
        dims = [int(np.prod([size_of(d, sizes) for d in g])) for g in node.op.layout]
        drawn = {"bool": rng.random(dims) < 0.6, "i64": rng.integers(0, 37, dims)}
        inputs[node.op.name] = drawn.get(node.dtype, rng.normal(size=dims))
    expected = evaluate(own, inputs, sizes)
    split: set[tuple[str, ...]] = set()
    for candidate in candidates:
        for ranked in best([assign(candidate, own)], sizes, CPU, count):
            split.add(tuple(map(str, ranked.tiles.splits)))
            got = run(ranked.tiles, inputs, dict.fromkeys(ranked.tiles.splits, 3))
            for name, value in expected.items():
                np.testing.assert_allclose(
                    got[name], value, rtol=1e-9, atol=1e-9 * np.abs(value).max(initial=0)
                )
    return split


@pytest.mark.parametrize("name", marked())
def test_the_scheduler_runs_the_folds(name: str) -> None:
    tried(EVERY[name], [Candidate(EVERY[name], folds_of(EVERY[name]))], 1)


@pytest.mark.parametrize("name", ["entropy", "sink_apart", "past_and_new_apart", "variance"])
def test_the_scheduler_splits_the_folds(name: str) -> None:
    own = BEST[name]
    folds = folds_of(own)
    over = max(folds, key=lambda f: len(f.values)).over
    assert (str(over),) in tried(own, [Candidate(own, folds, splits=(over,))], 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ONE_LOOP, *TWO_LOOPS])
def test_the_scheduler_runs_every_candidate(name: str) -> None:
    own = {**ONE_LOOP, **TWO_LOOPS}[name]
    tried(own, list(search(own).candidates), 3)
