"""Costs are polynomials that hold for all sizes; dominance comes with its proof; classes go by growth."""

from __future__ import annotations

import itertools
from functools import reduce

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.algebra.cost import Cost, Count, bytes_of, cost_of, divides, growth_of, products_of
from cleave.algebra.search import search
from cleave.ir.text import parse_program

NAMES = ("K", "M", "N")


def count(text: str) -> Count:
    """`2*N*K + 1` as a polynomial."""
    total = Count()
    for part in text.split(" + "):
        factors = part.split("*")
        numbers = [int(f) for f in factors if f.isdigit()]
        names = tuple(sorted(f for f in factors if not f.isdigit()))
        total = total + Count(((names, reduce(lambda a, b: a * b, numbers, 1)),))
    return total


def value(of: Count, sizes: dict[str, int]) -> int:
    return sum(c * reduce(lambda a, n: a * sizes[n], m, 1) for m, c in of.terms)


polynomials = st.dictionaries(
    st.lists(st.sampled_from(NAMES), max_size=3).map(sorted).map(tuple), st.integers(1, 5), max_size=4
).map(lambda d: Count(tuple(sorted(d.items()))))


@given(polynomials, polynomials)
@settings(max_examples=200, deadline=None)
def test_at_most_means_at_all_sizes(one: Count, two: Count) -> None:
    points = [dict(zip(NAMES, p, strict=True)) for p in itertools.product((1, 2, 3, 50), repeat=3)]
    gap = one.gap(two)
    if gap is not None:
        assert all(value(one, p) <= value(two, p) for p in points)
        assert all(c > 0 for _, c in gap.terms)
    if len({m for m, _ in (*one.terms, *two.terms)}) <= 1:
        assert gap is not None or two.gap(one) is not None


@pytest.mark.parametrize(
    ("small", "large", "gap"),
    [
        ("N*K", "N*K", "0"),
        ("N*K", "2*N*K", "K*N"),
        ("N", "N*K", "(K - 1)*(N - 1) + (K - 1)"),
        ("N + K", "N*K + 1", "(K - 1)*(N - 1)"),
        ("2*N", "N*N + 1", "(N - 1)*(N - 1)"),
    ],
)
def test_the_gap_is_the_proof(small: str, large: str, gap: str) -> None:
    assert str(count(small).gap(count(large))) == gap
    assert count(small) == count(large) or count(large).gap(count(small)) is None


def test_what_depends_on_the_sizes_is_not_decided() -> None:
    for one, two in (("N", "K"), ("N*K", "N + K"), ("10*N", "N*N"), ("2", "N")):
        assert count(one).gap(count(two)) is None and count(two).gap(count(one)) is None


def test_the_text_of_a_polynomial_evaluates_to_it() -> None:
    poly = count("3*N*K*N + 2*M + 7")
    assert str(poly) == "3*K*N*N + 2*M + 7"
    assert value(poly, {"N": 2, "K": 5, "M": 4}) == 3 * 4 * 5 + 8 + 7


TWO_PRODUCTS = """
program chain(q: f16[S, D], k: f16[T, D], v: f16[T, E]) {
  s[s: S, t: T]: f32 = contract[d: D](q[s, d], k[t, d])
  out[s: S, e: E]: f32 = contract[t: T](s[s, t], v[t, e])
  return out[s, e]
}
"""


def test_the_cost_of_a_program() -> None:
    cost = cost_of(parse_program(TWO_PRODUCTS))
    assert dict(cost.texts) == {
        "operations": "2*D*S*T + 2*E*S*T",
        "elements": "D*S + D*T + E*S + E*T + S*T",
        "intermediates": "S*T",
        "depth": "2",
    }
    bytes_ = bytes_of(parse_program(TWO_PRODUCTS), {"f16": 2, "f32": 4}.__getitem__)
    assert str(bytes_) == "2*D*S + 2*D*T + 4*E*S + 2*E*T + 4*S*T"


def test_reasons_name_every_part() -> None:
    small = Cost(count("2*N*K"), count("N*K + N"), count("N"), 1)
    large = Cost(count("3*N*K"), count("N*K + N*K"), count("N*K"), 2)
    assert small.at_most(large) and not large.at_most(small)
    lines = small.reasons(large)
    assert lines[0] == "operations: 2*K*N <= 3*K*N, as the difference is K*N"
    assert lines[1].endswith("as the difference is (K - 1)*(N - 1) + (K - 1) and sizes are at least 1")
    assert lines[3] == "depth: 1 < 2" and len(lines) == 4
    assert small.reasons(small) == ("the same operations, elements, intermediates, depth",)


# ---------------------------------------------------------------- classes of operation counts


def forms(program, **settings) -> dict[str, bool]:
    return {c.form: c.reassociated for c in search(program, **settings).candidates if not c.splits}


ROWSUM = """
program rowsum(x: f32[S, K], w: f32[K, N]) {
  y[s: S, n: N]: f32 = contract[k: K](x[s, k], w[k, n])
  out[s: S]: f32 = sum[n: N](y[s, n])
  return out[s]
}
"""
LORA = """
program lora(x: f32[S, K], a: f32[K, R], b: f32[R, N]) {
  ab[k: K, n: N]: f32 = contract[r: R](a[k, r], b[r, n])
  out[s: S, n: N]: f32 = contract[k: K](x[s, k], ab[k, n])
  return out[s, n]
}
"""
SCALED = """
program scaled(x: f32[S, K], r: f32[S], w: f32[K, N]) {
  y[s: S, k: K]: f32 = mul(x[s, k], r[s])
  out[s: S, n: N]: f32 = contract[k: K](y[s, k], w[k, n])
  return out[s, n]
}
"""


@pytest.mark.parametrize("text", [TWO_PRODUCTS, ROWSUM, LORA])
def test_another_growth_of_operations_is_marked_and_can_be_switched_off(text: str) -> None:
    program = parse_program(text)
    found = search(program)
    user = products_of(program).leading
    marked = [c for c in found.candidates if c.reassociated]
    assert marked
    for candidate in found.candidates:
        assert candidate.reassociated == (products_of(candidate.program).leading != user)
    off = search(program, reassociate=False)
    assert not any(c.reassociated for c in off.candidates)
    assert {c.form for c in off.candidates} == {c.form for c in found.candidates if not c.reassociated}
    why = [d for d in off.dropped if d.reason == "another operation count class"]
    assert {d.form for d in why} == {c.form for c in marked if not c.splits}
    assert all(len(d.proof) == 2 and d.proof[0] != d.proof[1] for d in why)


def test_moving_a_factor_is_no_other_class() -> None:
    assert not any(forms(parse_program(SCALED)).values())
    assert len(forms(parse_program(SCALED))) > 1


def test_sizes_do_not_change_what_is_marked() -> None:
    for where in ("", " where S = 4, T = 4, D = 4, E = 4", " where T = 2", " where D = 2, E = 4096"):
        program = parse_program(TWO_PRODUCTS.replace(") {", f"){where} {{"))
        assert forms(program) == forms(parse_program(TWO_PRODUCTS))


def test_a_size_that_is_written_as_1_is_no_factor() -> None:
    """`S*D*E` outgrows `S*D + S*E`, which is what the user's program takes if T is 1."""
    single = parse_program(TWO_PRODUCTS.replace(") {", ") where T = 1 {"))
    assert forms(single) == {"as written": False}
    assert products_of(single).leading == {("D", "S"), ("E", "S")}
    assert forms(parse_program(TWO_PRODUCTS.replace(") {", ") where D = 1 {")))["T before D"]


def test_growth_is_told_in_words() -> None:
    one, two = parse_program(ROWSUM), parse_program(LORA)
    assert growth_of(one, two) == (
        "its products and sums grow as K*N*S",
        "the user's grow as K*N*R, K*N*S",
    )
    assert divides(("K",), ("K", "N")) and not divides(("K", "K"), ("K", "N"))


def test_what_another_candidate_dominates_is_dropped_with_the_proof() -> None:
    twice = parse_program(
        """
        program twice(x: f32[N, K]) {
          a[n: N]: f32 = sum[k: K](x[n, k])
          y[n: N, k: K]: f32 = mul(x[n, k], a[n])
          b[n: N]: f32 = sum[k: K](y[n, k])
          return b[n]
        }
        """
    )
    found = search(twice)
    assert any(c.reassociated is False for c in found.candidates)
    better = [d for d in found.dropped if d.reason.endswith("costs no more")]
    assert len(better) == found.counts.get("dropped: another one costs no more for all sizes", 0)
    for dropped in better:
        told = " ".join(dropped.proof)
        assert all(name in told for name in ("operations", "elements", "intermediates", "depth"))
