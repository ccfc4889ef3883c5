"""Comparisons in canonical form, decided by ranges where they can be."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import pytest

from cleave.algebra.arithmetic import ABSENT, add, choose, mask, mul, neg, scale, sub
from cleave.algebra.forms import ONE, ZERO, Element, Place, Poly, Size, constant, of_factor
from cleave.algebra.maxima import exists, greatest, maximum
from cleave.algebra.powers import exp
from cleave.algebra.predicates import above, at_least, compare, complement, either, is_truth, is_zero
from cleave.ir.dims import Atom, Index, Part, Parts, var
from cleave.ir.ops import input_node

S, T = Atom("S"), Atom("T")
I_, J = Index(S, 0), Index(T, 1)
X = of_factor(Element(input_node("x", [[S], [T]], "f32"), (var(I_), var(J))))
Y = of_factor(Element(input_node("y", [[S]], "f32"), (var(I_),)))
B = of_factor(Element(input_node("b", [[S], [T]], "bool"), (var(I_), var(J))))
C = of_factor(Element(input_node("c", [[S]], "bool"), (var(I_),)))


def place(index: Index) -> Poly:
    return of_factor(Place(index))


i, j = place(I_), place(J)


def test_integers_have_one_form() -> None:
    assert compare("lt", j, add(i, ONE)) == compare("le", j, i) == compare("ge", i, j)
    assert compare("gt", j, i) == complement(compare("le", j, i))
    assert compare("le", scale(j, 2), add(scale(i, 2), ONE)) == compare("le", j, i)
    assert is_zero(sub(scale(i, 2), add(scale(j, 2), ONE))) == ZERO
    assert compare("eq", i, j) == compare("eq", j, i)
    assert compare("ne", i, j) == complement(compare("eq", i, j))


def test_reals_lose_positive_content() -> None:
    half = scale(X, Fraction(1, 2))
    assert compare("lt", half, scale(Y, Fraction(1, 2))) == compare("lt", X, Y)
    assert compare("lt", mul(X, exp(Y)), ZERO) == compare("lt", X, ZERO)
    assert compare("lt", X, Y) == complement(compare("ge", X, Y)) == compare("gt", Y, X)
    assert compare("le", X, Y) != compare("lt", X, Y)
    assert above(exp(X)) == ONE and above(neg(exp(X))) == ZERO


def test_ranges_decide() -> None:
    size = of_factor(Size(S))
    assert at_least(i) == ONE and compare("lt", i, size) == ONE
    assert compare("lt", i, ZERO) == ZERO
    assert compare("lt", i, sub(size, ONE)) not in (ONE, ZERO)
    assert compare("lt", j, size) not in (ONE, ZERO)


@pytest.mark.parametrize("shift", (-2, -1, 0, 1, 2))
def test_products_follow_implications(shift: int) -> None:
    weak, strong = at_least(sub(i, j)), at_least(sub(sub(i, j), constant(shift)))
    expected = strong if shift >= 0 else weak
    assert mul(weak, strong) == expected


def test_truths_are_boolean_algebra() -> None:
    for p, q in product((B, C, at_least(sub(i, j))), repeat=2):
        assert mul(p, p) == p and mul(p, complement(p)) == ZERO
        assert complement(either(p, q)) == mul(complement(p), complement(q))
        assert either(p, complement(p)) == ONE
        assert is_truth(either(p, q))
    assert not is_truth(X) and not is_truth(add(X, B))


def test_absence() -> None:
    score = mask(B, X)
    assert exp(score) == mul(B, exp(X)) and exp(ABSENT) == ZERO
    assert add(score, Y) == mask(B, add(X, Y))
    assert mask(C, score) == mask(mul(B, C), X)
    assert choose(B, X, ABSENT) == score and choose(B, ABSENT, X) == mask(complement(B), X)
    assert maximum(score, ABSENT) == score
    assert mask(B, choose(B, X, Y)) == score


def test_products_with_absence_need_a_sign() -> None:
    score = mask(B, X)
    assert mul(score, exp(Y)) == mask(B, mul(X, exp(Y)))
    assert mul(score, neg(exp(Y))) == neg(mask(B, mul(X, exp(Y))))
    unknown = mul(score, Y)
    assert unknown == mul(Y, score) and unknown.factor is not None
    assert unknown not in (mask(B, mul(X, Y)), mul(B, X, Y))


@pytest.mark.parametrize("fn", ("lt", "le", "gt", "ge", "eq", "ne"))
def test_comparisons_with_what_may_be_absent(fn: str) -> None:
    """At every truth of the guards, as Python compares."""
    operation = {
        "lt": "__lt__",
        "le": "__le__",
        "gt": "__gt__",
        "ge": "__ge__",
        "eq": "__eq__",
        "ne": "__ne__",
    }[fn]
    absent = float("-inf")
    for p, q in product((0, 1), repeat=2):
        a = constant(2) if p else ABSENT
        b = constant(3) if q else ABSENT
        expected = getattr(2.0 if p else absent, operation)(3.0 if q else absent)
        assert compare(fn, a, b).number == expected
        flipped = getattr(-2.0 if p else -absent, operation)(-3.0 if q else -absent)
        assert compare(fn, neg(a), neg(b)).number == flipped
    general = compare(fn, mask(B, constant(2)), mask(C, constant(3)))
    assert is_truth(general)


def test_maxima_may_be_absent() -> None:
    k = Index(T, -901)
    moved = of_factor(Element(input_node("x", [[S], [T]], "f32"), (var(I_), var(k))))
    seen = of_factor(Element(input_node("b", [[S], [T]], "bool"), (var(I_), var(k))))
    whole = greatest(moved, [k])
    assert compare("eq", whole, ABSENT) == ZERO
    k2 = Index(T, -902)
    guarded = greatest(mask(seen, moved), [k])
    nowhere = compare("eq", guarded, ABSENT)
    again = of_factor(Element(input_node("b", [[S], [T]], "bool"), (var(I_), var(k2))))
    assert nowhere == complement(exists([k2], again))


def test_a_part_may_be_empty() -> None:
    p, k = Index(Parts(T), 3), Index(Part(T), -903)
    constant_over_part = greatest(Y, [k], {k: var(p)})
    count = of_factor(Size(Part(T), var(p)))
    assert constant_over_part == mask(at_least(sub(count, ONE)), Y)
