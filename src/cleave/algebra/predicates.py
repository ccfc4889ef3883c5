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
    Factor,
    Log,
    Max,
    Mono,
    Poly,
    Power,
    Predicate,
    Size,
    Sum,
    constant,
    is_predicate,
    of_factor,
    of_mono,
)  # fmt: skip
from cleave.algebra.parts import owner_of
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
            return _compare_places(fn, presence(a), presence(b), None, down=True)
        if not masked_of(neg(two))[0].terms and is_infinite(two):
            return _compare_places(fn, presence(neg(a)), presence(neg(b)), None, down=False)
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


def _compare_places(fn: str, ga: Poly, gb: Poly, both: Poly | None, *, down: bool) -> Poly:
    """A comparison of values that are there where `ga` and `gb` hold, else -inf (`down`) or inf. `both` is
    the comparison where both are there; None if one is nowhere."""
    alike = ONE if fn in ("le", "ge", "eq") else ZERO
    first_only = ONE if (fn in ("gt", "ge") if down else fn in ("lt", "le")) or fn == "ne" else ZERO
    second_only = ONE if (fn in ("lt", "le") if down else fn in ("gt", "ge")) or fn == "ne" else ZERO
    na, nb = complement(ga), complement(gb)
    parts = [mul(ga, nb, first_only), mul(na, gb, second_only), mul(na, nb, alike)]
    return add(*parts, mul(ga, gb, both)) if both is not None else add(*parts)


def presence(value: Poly) -> Poly:
    """Where a value is not -inf: its guard, and every maximum in it has something to be the maximum of."""
    guard, value = masked_of(value)
    lone = [(f, c) for m, c in value.terms.items() if (f := _lone(m)) is not None]
    return mul(guard, *(_seen(f) if c > 0 else _bounded(f) for f, c in lone))


def finite(value: Poly) -> Poly:
    """Where a value is neither -inf nor inf, as far as its maxima and logs are concerned."""
    if is_infinite(value):
        found = [masked_of(value)[0], masked_of(neg(value))[0]]
        inside = masked_of(value)[1] if found[0].number != 1 else masked_of(neg(value))[1]
        return mul(*found, finite(inside))
    return mul(*(_finite_mono(m) for m in value.terms))


def _finite_mono(mono: Mono) -> Poly:
    """Where the maxima in a monomial are there, or one of its predicates is 0."""
    there = mul(*(_finite_factor(f) for f, _ in mono.factors))
    if there.number == 1:
        return there
    guard = of_mono(Mono(tuple((f, e) for f, e in mono.factors if is_predicate(f) and e > 0), ZERO))
    return complement(sub(guard, mul(guard, there)))


def _lone(mono: Mono) -> Factor | None:
    plain = len(mono.factors) == 1 and mono.factors[0][1] == 1 and not mono.exponent.terms
    return mono.factors[0][0] if plain else None


def _seen(factor: Factor) -> Poly:
    from cleave.algebra.maxima import seen

    if isinstance(factor, Log):
        return _positive_base(factor.base)
    return seen(factor)


def _bounded(factor: Factor) -> Poly:
    from cleave.algebra.maxima import bounded

    return bounded(factor)


def _finite_factor(factor: Factor) -> Poly:
    """Where a factor is finite: a sum where all its terms are."""
    from cleave.algebra.maxima import exists
    from cleave.algebra.rewrite import open_binder

    match factor:
        case Max() | Log():
            return mul(_seen(factor), _bounded(factor))
        case Power():
            return finite(factor.base)
        case Sum() if laws.on("bounded"):
            bound, body = open_binder(factor)
            assert isinstance(body, Mono)
            missing = complement(_finite_mono(body))
            if not missing.terms:
                return ONE
            owners = {i: p for i in bound if isinstance(i.dim, Part) and (p := owner_of(body, i)) is not None}
            return complement(exists(bound, missing, owners))
        case _:
            return ONE


def _positive_base(base: Poly) -> Poly:
    """Where the argument of a log is not 0, if that is a matter of predicates alone; else 1."""
    from cleave.algebra.conditions import guards_of

    factor = base.factor
    return guards_of(factor) if isinstance(factor, Sum) else ONE


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
