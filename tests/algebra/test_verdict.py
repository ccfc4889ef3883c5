"""The numerical verdict: strict, stable or fast, why, and that no setting overflows where eager does not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from algebra_programs import EVERY, EXPANDED
from cleave.algebra.search import Found, search
from cleave.algebra.verdict import LEVELS, is_plain, keeps_rounding, order_bounds, verdict
from cleave.ir.dims import Atom
from cleave.ir.ops import Input, Scalar
from cleave.ir.program import Program
from cleave.ir.reference import evaluate, evaluate_fold
from cleave.ir.text import parse_program

MATMUL = """
program matmul(x: f32[S, K], w: f32[K, N]) {
  y[s: S, n: N]: f32 = contract[k: K](x[s, k], w[k, n])
  return y[s, n]
}
"""
FOLDER = Path(__file__).parents[1] / "cases" / "algebra"


def test_strict_allows_another_order_of_sums_and_says_how_much_it_changes() -> None:
    program = parse_program(MATMUL)
    found = search(program, numerics="strict")
    assert [c.form for c in found.candidates] == ["as written", "split K"]
    for candidate in found.candidates:
        told = verdict(program, candidate)
        assert told.level == "strict"
        assert told.bounds == ("y: changes by at most 2(|K| - 1)u times the sum of its terms' magnitudes",)


def test_the_stated_bound_holds() -> None:
    """Sums in random orders, in float32, against each other."""
    rng = np.random.default_rng(0)
    u = 2.0**-24
    for n in (2, 17, 1000):
        terms = (rng.normal(size=(50, n)) * 10.0 ** rng.integers(-3, 4, (50, n))).astype(np.float32)
        orders = [np.add.accumulate(terms[:, rng.permutation(n)], axis=1)[:, -1] for _ in range(8)]
        halves = [terms[:, : n // 2], terms[:, n // 2 :]]
        orders.append(sum(np.add.accumulate(h, axis=1)[:, -1] for h in halves if h.shape[1]))
        spread = np.max(orders, axis=0).astype(np.float64) - np.min(orders, axis=0)
        assert (spread <= 2 * (n - 1) * u * np.abs(terms.astype(np.float64)).sum(1)).all()


def test_strict_does_not_split_through_a_fold_that_rescales() -> None:
    program = EVERY["attention"]
    found = search(program, numerics="strict")
    assert [c.form for c in found.candidates] == ["as written"]
    split = [c for c in search(program).candidates if c.splits]
    assert split and all(verdict(program, c).level == "stable" for c in split)
    assert not any(is_plain(f) for c in split for f in c.folds if f.over in c.splits)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_levels_and_settings_agree(name: str) -> None:
    program = EVERY[name]
    strict, stable = (search(program, split=False, numerics=n) for n in ("strict", "stable"))
    assert all(keeps_rounding(program, c) for c in strict.candidates)
    for candidate in stable.candidates:
        told = verdict(program, candidate)
        assert told.level in LEVELS[:2] and told.why and str(told).startswith(told.level)
    assert verdict(program, stable.candidates[0]).level == "strict"


def test_fast_says_which_condition_is_not_met() -> None:
    program = parse_program(EXPANDED)
    told = [verdict(program, c) for c in search(program, split=False, numerics="fast").candidates]
    fast = [t for t in told if t.level == "fast"]
    assert fast and all(any("difference" in bound for bound in t.bounds) for t in fast)


def test_bounds_name_each_sum_once() -> None:
    assert len(order_bounds(EVERY["attention"])) == 3


# ---------------------------------------------------------------- large inputs


def inputs_of(program: Program, scale: float, seed: int = 0) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    sizes = {atom: 3 + n % 4 for n, atom in enumerate(program.dims)}
    sizes |= {atom: value for atom, value in program.sizes if isinstance(value, int)}
    bound = program.bind(dict(sizes))
    made: dict[str, object] = {}
    for node in program.inputs:
        op = node.op
        if isinstance(op, Scalar):
            made[op.name] = 0.5 if node.dtype.startswith("f") else 1
        elif isinstance(op, Input):
            shape = [int(np.prod([_size(d, bound) for d in group], dtype=int)) for group in op.layout]
            if node.dtype == "bool":
                made[op.name] = rng.random(shape) < 0.7
            elif node.dtype.startswith(("f", "bf")):
                made[op.name] = (rng.normal(size=shape) * scale).astype(np.float32)
            else:
                made[op.name] = rng.integers(0, 3, shape)
    return made


def _size(dim, bound) -> int:
    return bound[dim] if isinstance(dim, Atom) else sum(_size(part, bound) for part in dim.parts)


def check_no_new_overflow(name: str, program: Program, found: Found) -> int:
    """Every candidate, and every Fold of it in uneven parts, in float32 at x1, x16 and x256: finite wherever
    the user's program is."""
    checked = 0
    for scale in (1.0, 16.0, 256.0):
        inputs = inputs_of(program, scale)
        eager = evaluate(program, inputs, dtype=np.float32)
        for candidate in found.candidates:
            got = evaluate(candidate.program, inputs, dtype=np.float32)
            for output, value in eager.items():
                worse = np.isfinite(value) & ~np.isfinite(got[output])
                assert not worse.any(), f"{name}: {candidate.form} x{scale:g}, output {output}"
            if all(np.isfinite(value).all() for value in eager.values()):
                checked += _check_folds(name, candidate, inputs, scale)
    return checked + len(found.candidates)


def _check_folds(name: str, candidate, inputs, scale: float) -> int:
    from cleave.ir.reference import infer_sizes

    shapes = {n: v.shape for n, v in inputs.items() if isinstance(v, np.ndarray)}
    sizes = infer_sizes(candidate.program, shapes)
    for fold in candidate.folds:
        if not isinstance(fold.over, Atom):
            continue
        total = sizes[fold.over]
        for partition in ([total], [1, 0, total - 1], [0] + [1] * total):
            values = evaluate_fold(candidate, fold, inputs, partition, np.float32)
            bad = [v for v, array in values.items() if np.isnan(array).any()]
            assert not bad, f"{name}: {candidate.form} x{scale:g}, fold over {fold.over}: {bad}"
    return len(candidate.folds)


LARGE = [
    "softmax", "log_sum_exp", "attention_causal_top", "cross_entropy", "rms_norm_linear", "variance",
    "sigmoid_linear", "attention_softcap", "log_softmax", "silu_other", "merge_two",
]  # fmt: skip


def case(name: str) -> Program:
    text = (FOLDER / f"{name}.cleave").read_text()
    start = f"\n{text}".index("\nprogram ")  # at the start of a line: comments above have the word too
    return parse_program(text[start : text.index("\n}\n", start) + 3])


@pytest.mark.parametrize("name", LARGE)
def test_large_inputs_overflow_only_where_eager_does(name: str) -> None:
    program = case(name)
    assert check_no_new_overflow(name, program, search(program)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.cleave")), ids=lambda p: p.stem)
@pytest.mark.parametrize("numerics", ["strict", "stable"])
def test_no_case_overflows_where_eager_does_not(path: Path, numerics: str) -> None:
    program = case(path.stem)
    check_no_new_overflow(path.stem, program, search(program, numerics=numerics))
