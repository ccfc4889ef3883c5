"""Comparisons as predicates: 0-or-1 factors over polynomials in one canonical form (design.md, section 3).

`[P >= 0]` over integers has coprime coefficients and a rounded constant, so `i < j + 1` and `i <= j` are one
predicate; over reals `[P > 0]` and `[P >= 0]` lose positive content. The sign of a predicate is fixed, the
other one is its complement, `1 - [p]`. Ranges of indices decide what they can.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

from cleave.algebra.arithmetic import add, cases, extract, masked_of, mul, neg, scale, sub
from cleave.algebra.content import common_number
from cleave.algebra.facts import is_integer, lower, nonnegative, orientation, positive, upper
from cleave.algebra.forms import (
    ONE,
    UNIT,
    ZERO,
    Masked,
    Poly,
    Predicate,
    Size,
    constant,
    is_predicate,
    of_factor,
)  # fmt: skip
from cleave.ir.dims import Part, Term


def complement(p: Poly) -> Poly:
    """Not `p`."""
    return sub(ONE, p)


def either(p: Poly, q: Poly) -> Poly:
    """`p` or `q`."""
    return sub(add(p, q), mul(p, q))


def is_truth(value: Poly) -> bool:
    """Is a value 0 or 1 by construction (a polynomial of predicates)?"""
    return all(
        not m.exponent.terms and all(is_predicate(f) and e > 0 for f, e in m.factors) for m in value.terms
    )


def compare(fn: str, a: Poly, b: Poly) -> Poly:
    """`lt`, `le`, `gt`, `ge`, `eq` or `ne` of two values, as 0 or 1."""
    infinite = _compare_absent(fn, a, b)
    if infinite is not None:
        return infinite
    match fn:
        case "lt":
            return above(sub(b, a))
        case "le":
            return at_least(sub(b, a))
        case "gt":
            return above(sub(a, b))
        case "ge":
            return at_least(sub(a, b))
        case "eq":
            return is_zero(sub(a, b))
        case _:
            return complement(is_zero(sub(a, b)))


def _compare_absent(fn: str, a: Poly, b: Poly) -> Poly | None:
    """Comparisons with -inf and inf: true or false by whether the other side is there."""
    for one, two, flip in ((a, b, False), (b, a, True)):
        absent = masked_of(two)[0]
        if not absent.terms:
            there = presence(one)
            match fn:
                case "eq":
                    return complement(there)
                case "ne":
                    return there
                case "gt" | "lt":
                    return there if (fn == "gt") != flip else ZERO
                case _:
                    return ONE if (fn == "ge") != flip else complement(there)
        if not masked_of(neg(two))[0].terms:
            there = presence(neg(one))
            match fn:
                case "eq":
                    return complement(there)
                case "ne":
                    return there
                case "lt" | "gt":
                    return there if (fn == "lt") != flip else ZERO
                case _:
                    return ONE if (fn == "le") != flip else complement(there)
    return None


def presence(value: Poly) -> Poly:
    """Where a value is not -inf: its guard, and every maximum in it has something to be the maximum of."""
    from cleave.algebra.maxima import seen

    guard, value = masked_of(value)
    for mono, c in value.terms.items():
        if len(mono.factors) == 1 and mono.factors[0][1] == 1 and c > 0:
            guard = mul(guard, seen(mono.factors[0][0]))
    return guard


def at_least(value: Poly) -> Poly:
    """`[value >= 0]`."""
    return relate(">=", value)


def above(value: Poly) -> Poly:
    """`[value > 0]`."""
    return relate(">", value)


def is_zero(value: Poly) -> Poly:
    """`[value = 0]`."""
    return relate("=", value)


def relate(rel: str, value: Poly) -> Poly:
    """`[value rel 0]` in canonical form; `rel` is `>=`, `>` or `=`."""
    number = value.number
    if number is not None:
        holds = {">=": number >= 0, ">": number > 0, "=": number == 0}[rel]
        return ONE if holds else ZERO
    if not isinstance(value.factor, Masked):
        split = cases((value,), partial(relate, rel))
        if split is not None:
            return split
    if is_integer(value):
        return _relate_integer(rel, value)
    whole, lone = scale(value, 1 / common_number(value.terms.values())), value.single is not None
    if is_integer(whole):
        return _relate_integer(rel, whole)
    return _relate_real(rel, value, lone)


def _relate_integer(rel: str, value: Poly) -> Poly:
    if rel == ">":
        rel, value = ">=", sub(value, ONE)
    offset = value.terms.get(UNIT, Fraction(0))
    rest = {m: c for m, c in value.terms.items() if m != UNIT}
    if not rest:
        return relate(rel, value)
    divisor = common_number(rest.values())
    if rel == "=":
        if (offset / divisor).denominator != 1:
            return ZERO
        value = scale(value, 1 / divisor)
        low, high = lower(value), upper(value)
        if (low is not None and low > 0) or (high is not None and high < 0):
            return ZERO
        return of_factor(Predicate("=", value if orientation(value) >= 0 else neg(value)))
    value = add(scale(Poly(rest), 1 / divisor), constant(math.floor(offset / divisor)))
    low, high = lower(value), upper(value)
    if low is not None and low >= 0:
        return ONE
    if high is not None and high < 0:
        return ZERO
    sign = orientation(value)
    if sign < 0 or (sign == 0 and value.terms.get(UNIT, Fraction(0)) < 0):
        return complement(of_factor(Predicate(">=", sub(neg(value), ONE))))
    return of_factor(Predicate(">=", value))


def _relate_real(rel: str, value: Poly, lone: bool) -> Poly:
    _, _, value = extract(value, positive_only=True)
    if positive(value):
        return ZERO if rel == "=" else ONE
    if positive(neg(value)):
        return ZERO
    if rel == ">=" and nonnegative(value):
        return ONE
    if rel == ">" and nonnegative(neg(value)):
        return ZERO
    sign = orientation(value) or (1 if value.terms.get(UNIT, Fraction(0)) > 0 else -1)
    if UNIT not in value.terms and not orientation(value):
        sign = -1 if rel == ">" else 1  # balanced: one of `>` and `>=` is written as the other's complement
    if rel == "=":
        return of_factor(Predicate(rel, value if sign > 0 else neg(value)))
    if sign > 0:
        return of_factor(Predicate(rel, value))
    return complement(of_factor(Predicate(">" if rel == ">=" else ">=", neg(value))))


def in_range(value: Poly, size: Poly) -> Poly:
    """`[0 <= value < size]`."""
    return mul(at_least(value), above(sub(size, value)))


def inhabited(dim: Part, part: Term) -> Poly:
    """Is there something in this part?"""
    return at_least(sub(of_factor(Size(dim, part)), ONE))
