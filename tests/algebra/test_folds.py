"""Folds against the reference, over partitions of every kind, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

import algebra_programs
from algebra.cascades import TWO_LOOPS
from algebra_values import computed, inputs_for
from cleave.algebra.folds import folds_of
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.dims import Dim, size_of
from cleave.ir.program import Program
from cleave.ir.reference import evaluate_fold
from cleave.ir.text import parse_program, print_program
from programs import PROGRAMS, program

TEXTS = {
    "variance": """
program variance(x: f32[N, K]) {
  s[n: N]: f32 = sum[k: K](x[n, k])
  mu[n: N]: f32 = div(s[n], size(K))
  c[n: N, k: K]: f32 = sub(x[n, k], mu[n])
  q[n: N, k: K]: f32 = mul(c[n, k], c[n, k])
  ss[n: N]: f32 = sum[k: K](q[n, k])
  y[n: N]: f32 = div(ss[n], size(K))
  return y[n]
}
""",
    "layer_norm_linear": algebra_programs.TEXTS["layer_norm_linear"],
    "entropy": """
program entropy(x: f32[N, K]) {
  m[n: N]: f32 = max[k: K](x[n, k])
  c[n: N, k: K]: f32 = sub(x[n, k], m[n])
  e[n: N, k: K]: f32 = exp(c[n, k])
  l[n: N]: f32 = sum[k: K](e[n, k])
  p[n: N, k: K]: f32 = div(e[n, k], l[n])
  lp[n: N, k: K]: f32 = log(p[n, k])
  h[n: N, k: K]: f32 = mul(p[n, k], lp[n, k])
  s[n: N]: f32 = sum[k: K](h[n, k])
  return s[n]
}
""",
    "softmax_of_lse": """
program softmax_of_lse(x: f32[N, K], v: f32[K, O]) {
  m[n: N]: f32 = max[k: K](x[n, k])
  c[n: N, k: K]: f32 = sub(x[n, k], m[n])
  e[n: N, k: K]: f32 = exp(c[n, k])
  l[n: N]: f32 = sum[k: K](e[n, k])
  ll[n: N]: f32 = log(l[n])
  lse[n: N]: f32 = add(m[n], ll[n])
  d[n: N, k: K]: f32 = sub(x[n, k], lse[n])
  p[n: N, k: K]: f32 = exp(d[n, k])
  y[n: N, o: O]: f32 = contract[k: K](p[n, k], v[k, o])
  return y[n, o]
}
""",
    "two_masks": """
program two_masks(x: f32[N, K], seen: bool[N, K]) {
  z[n: N, k: K]: f32 = select(seen[n, k], x[n, k], -inf)
  m[n: N]: f32 = max[k: K](z[n, k])
  c[n: N, k: K]: f32 = sub(x[n, k], m[n])
  e[n: N, k: K]: f32 = exp(c[n, k])
  p[n: N, k: K]: f32 = select(seen[n, k], e[n, k], 0.0)
  l[n: N]: f32 = sum[k: K](p[n, k])
  return l[n]
}
""",
    "min_shift": """
program min_shift(x: f32[N, K]) {
  m[n: N]: f32 = min[k: K](x[n, k])
  c[n: N, k: K]: f32 = sub(m[n], x[n, k])
  e[n: N, k: K]: f32 = exp(c[n, k])
  l[n: N]: f32 = sum[k: K](e[n, k])
  return l[n]
}
""",
    "quantised": """
program quantised(x: f32[N, K], w: f32[K, O]) {
  a[n: N, k: K]: f32 = abs(x[n, k])
  m[n: N]: f32 = max[k: K](a[n, k])
  s[n: N, k: K]: f32 = div(x[n, k], m[n])
  r[n: N, k: K]: f32 = round(s[n, k])
  y[n: N, o: O]: f32 = contract[k: K](r[n, k], w[k, o])
  return y[n, o]
}
""",
    "scaled_after_the_mask": """
program scaled_after_the_mask(x: f32[N, K], seen: bool[N, K], v: f32[K, O], scale: scalar f32) {
  z[n: N, k: K]: f32 = select(seen[n, k], x[n, k], -inf)
  m[n: N]: f32 = max[k: K](z[n, k])
  d[n: N, k: K]: f32 = sub(z[n, k], m[n])
  c[n: N, k: K]: f32 = mul(d[n, k], scale)
  e[n: N, k: K]: f32 = exp(c[n, k])
  l[n: N]: f32 = sum[k: K](e[n, k])
  p[n: N, k: K]: f32 = div(e[n, k], l[n])
  y[n: N, o: O]: f32 = contract[k: K](p[n, k], v[k, o])
  return y[n, o]
}
""",
    "norm_with_eps": """
program norm_with_eps(x: f32[N, K], w: f32[K, O], eps: scalar f32) {
  q[n: N, k: K]: f32 = mul(x[n, k], x[n, k])
  s[n: N]: f32 = sum[k: K](q[n, k])
  a[n: N]: f32 = div(s[n], size(K))
  b[n: N]: f32 = add(a[n], eps)
  r[n: N]: f32 = rsqrt(b[n])
  xr[n: N, k: K]: f32 = mul(x[n, k], r[n])
  y[n: N, o: O]: f32 = contract[k: K](xr[n, k], w[k, o])
  return y[n, o]
}
""",
    "scaled_by_max": """
program scaled_by_max(x: f32[N, K], w: f32[K, O]) {
  a[n: N, k: K]: f32 = abs(x[n, k])
  m[n: N]: f32 = max[k: K](a[n, k])
  s[n: N, k: K]: f32 = div(x[n, k], m[n])
  y[n: N, o: O]: f32 = contract[k: K](s[n, k], w[k, o])
  return y[n, o]
}
""",
}
ALL: dict[str, Program] = {**PROGRAMS, **{name: parse_program(text) for name, text in TEXTS.items()}}
FOLDED = sorted(n for n, p in ALL.items() if folds_of(p) and not n.startswith("split"))


def partitions(total: int) -> list[list[int]]:
    """One part, single elements, uneven ones, and empty ones first, in the middle and last."""
    a, b = total // 3, total - total // 3
    return [[total], [1] * total, [0, a, 0, b, 0], [b, a], [a, 1, b - 1] if b else [a, b]]


def over_size(fold: Fold, sizes: dict[Dim, int]) -> int:
    return size_of(fold.over, sizes)


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("spread", [1.0, 1e4])
def test_every_fold_computes_its_values_in_float32(name: str, spread: float) -> None:
    own = ALL[name]
    rng = np.random.default_rng(len(name))
    inputs, sizes = inputs_for(own, rng, spread=spread)
    for fold in folds_of(own):
        truth = computed(own, inputs, [v.node for v in fold.values], sizes)
        for partition in partitions(over_size(fold, sizes)):
            got = evaluate_fold(Candidate(own, ()), fold, inputs, partition, np.float32, sizes=sizes)
            for value in fold.values:
                expected = truth[value.node]
                actual = np.asarray(got[value.name], np.float64)
                nan = np.isnan(expected)
                assert not np.any(np.isnan(actual) & ~nan), (name, value.name, partition)
                scale = np.max(np.abs(expected[np.isfinite(expected)]), initial=1e-30)
                close = np.isclose(actual, expected, rtol=2e-3, atol=1e-4 * scale)
                assert np.all(close | nan), (name, own.names.get(value.node), partition, actual, expected)


def test_every_reduction_is_a_value_of_a_fold() -> None:
    for name, own in ALL.items():
        reduced = {(node, index.dim) for node in own.nodes for index in node.bound}
        assert {(v.node, f.over) for f in folds_of(own) for v in f.values} == reduced, name


def shape(name: str) -> list[tuple[str, list[str], tuple[str, ...]]]:
    own = ALL[name]
    return [(str(f.over), [own.names.get(v.node, "") for v in f.values], f.state) for f in folds_of(own)]


def test_attention_is_one_fold_of_three_components() -> None:
    assert shape("attention") == [
        ("D", ["qk"], ("sum",)),
        ("T", ["m", "l", "o"], ("max", "sum", "sum2")),
    ]
    fold = folds_of(program("attention"))[1]
    assert fold.support is not None and fold.support.node is not None
    assert fold.support_of == "x0"


def test_a_condition_that_is_itself_reduced_waits_until_the_end() -> None:
    assert ("T", ["seen", "m", "l", "o"], ("any", "max", "sum", "sum2")) in shape("masked_attention")


def test_variance_keeps_centred_sums_and_a_count() -> None:
    assert shape("variance") == [("K", ["s", "ss"], ("sum", "sum2", "sum3", "sum4"))]


def test_variance_of_values_far_from_zero() -> None:
    own = ALL["variance"]
    rng = np.random.default_rng(3)
    x = (1e4 + rng.normal(size=(4, 300))).astype(np.float32)
    fold = folds_of(own)[0]
    got = evaluate_fold(Candidate(own, ()), fold, {"x": x}, [7, 0, 193, 100], np.float32)
    expected = x.astype(np.float64).var(axis=1) * 300
    assert np.allclose(got["v1"], expected, rtol=1e-4)


def test_what_cannot_be_rescaled_stands_apart_and_says_why() -> None:
    folds = folds_of(ALL["quantised"])
    assert [len(f.values) for f in folds] == [1, 1]
    assert "round" in folds[1].reason
    # What is finished goes into the second loop as an element.
    assert next(e.access.node for e in folds[1].elements) in ALL["quantised"].nodes


def test_a_factor_free_of_the_loop_waits_until_the_end() -> None:
    assert shape("scaled_by_max") == [("K", ["m", "y"], ("max", "sum"))]


def test_run_time_scalars_are_read_by_the_programs_of_a_fold() -> None:
    assert shape("norm_with_eps") == [("K", ["s", "y"], ("sum", "sum2", "count"))]
    assert shape("scaled_after_the_mask") == [("K", ["m", "l", "y"], ("max", "sum", "sum2"))]
    for name, scalar, readers in (("norm_with_eps", "eps", 1), ("scaled_after_the_mask", "scale", 2)):
        fold = folds_of(ALL[name])[0]
        texts = [print_program(p) for p in (fold.init, fold.step, fold.merge, fold.finish)]
        assert sum(f"{scalar}: scalar f32" in text for text in texts) == readers, name


def test_a_finished_value_of_the_same_dim_needs_a_second_loop() -> None:
    own = TWO_LOOPS["two_matmuls"]
    folds = folds_of(own)
    assert [[own.names.get(v.node) for v in f.values] for f in folds] == [["y"], ["z"]]


def test_rows_and_columns_of_one_matrix_are_two_loops() -> None:
    own = parse_program("""
program both(a: f32[K, K]) {
  r[i: K]: f32 = sum[j: K](a[i, j])
  c[i: K]: f32 = sum[j: K](a[j, i])
  return r[i], c[i]
}
""")
    assert len(folds_of(own)) == 2


def test_state_is_float64_where_the_program_is() -> None:
    own = parse_program("program s(x: f64[N, K]) {\n  y[n: N]: f64 = sum[k: K](x[n, k])\n  return y[n]\n}")
    assert folds_of(own)[0].init.outputs[0].node.dtype == "f64"


def test_dead_parts_weigh_nothing() -> None:
    own = ALL["two_masks"]
    x = np.array([[1e4, -1e4, 3.0, 1e4, 5.0, -1e4]], np.float32)
    for dead in ([0, 1], [2, 3], [4, 5], [0, 1, 2, 3], [0, 1, 2, 3, 4, 5]):
        seen = np.ones((1, 6), bool)
        seen[0, dead] = False
        for fold in folds_of(own):
            got = evaluate_fold(Candidate(own, ()), fold, {"x": x, "seen": seen}, [2, 2, 2], np.float32)
            kept = x[seen].astype(np.float64)
            expected = np.exp(kept - kept.max()).sum() if kept.size else 0.0
            assert np.allclose(got["v1"], expected), dead
