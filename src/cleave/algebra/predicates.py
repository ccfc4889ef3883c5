"""Comparisons as predicates: 0-or-1 factors over polynomials in one canonical form (design.md, section 3).

`[P >= 0]` over integers has coprime coefficients and a rounded constant, so `i < j + 1` and `i <= j` are one
predicate; over reals `[P > 0]` and `[P >= 0]` lose positive content. The sign of a predicate is fixed, the
other one is its complement, `1 - [p]`. Ranges of indices decide what they can.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import partial

from cleave.algebra import laws
from cleave.algebra.arithmetic import add, cases, extract, is_infinite, masked_of, mul, neg, scale, sub
from cleave.algebra.content import common_number
from cleave.algebra.facts import is_integer, lower, nonnegative, orientation, positive, upper
from cleave.algebra.forms import (
    ONE,
    UNIT,
    ZERO,
    Apply,
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
    for two in (a, b):
        if not masked_of(two)[0].terms:
            return _compare_absent(fn, a, b, down=True)
        if not masked_of(neg(two))[0].terms and is_infinite(two):
            return _compare_absent(fn, a, b, down=False)
    if is_infinite(a) or is_infinite(b):
        (ga, va), (gb, vb) = masked_of(a), masked_of(b)
        if not is_infinite(va) and not is_infinite(vb):
            return _compare_places(fn, ga, gb, compare(fn, va, vb), down=True)
        (ga, va), (gb, vb) = masked_of(neg(a)), masked_of(neg(b))
        if not is_infinite(va) and not is_infinite(vb):
            return _compare_places(fn, ga, gb, compare(fn, neg(va), neg(vb)), down=False)
        return of_factor(Apply(f"compare {fn}", (a, b)))
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


def _compare_absent(fn: str, a: Poly, b: Poly, *, down: bool) -> Poly:
    """A comparison of two values, one of which is -inf (`down`) or inf."""
    from cleave.algebra.infinite import low

    (ga, sure), (gb, too) = (low(v if down else neg(v)) for v in (a, b))
    if not (sure and too):
        return of_factor(Apply(f"compare {fn}", (a, b)))
    return _compare_places(fn, ga, gb, None, down=down)


def _compare_places(fn: str, ga: Poly, gb: Poly, both: Poly | None, *, down: bool) -> Poly:
    """A comparison of values that are there where `ga` and `gb` hold, else -inf (`down`) or inf. `both` is
    the comparison where both are there; None if one is nowhere."""
    alike = ONE if fn in ("le", "ge", "eq") else ZERO
    first_only = ONE if (fn in ("gt", "ge") if down else fn in ("lt", "le")) or fn == "ne" else ZERO
    second_only = ONE if (fn in ("lt", "le") if down else fn in ("gt", "ge")) or fn == "ne" else ZERO
    na, nb = complement(ga), complement(gb)
    parts = [mul(ga, nb, first_only), mul(na, gb, second_only), mul(na, nb, alike)]
    return add(*parts, mul(ga, gb, both)) if both is not None else add(*parts)


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
    split = cases((value,), partial(relate, rel))
    if split is not None:
        return split
    if is_integer(value) or not laws.on("whole-numbers"):
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
    if not value.terms:
        return ZERO if rel == ">" else ONE
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
