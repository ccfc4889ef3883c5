"""Content: the monomial that is divided out of a polynomial before a power or a log (design.md, section 3).

The order on monomials is a group order (multiplying both sides by a monomial changes nothing) that sees
indices by their dims only. Monomials it cannot tell apart are all largest; then the content is what they
have in common. So content does not depend on how indices are called.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction

from cleave.algebra.facts import positive_factor, shape
from cleave.algebra.forms import UNIT, ZERO, Factor, Masked, Mono, Poly, is_predicate

_0 = Fraction(0)
Weights = tuple[dict[str, Fraction], dict[str, Fraction]]


def content(value: Poly, *, positive_only: bool = False) -> tuple[Mono, Mono]:
    """The monomial to divide a polynomial (not 0) by, and the term that then decides the sign.

    With `positive_only` it has proved-positive factors only, so that it leaves fractional powers and logs."""
    parts = {m: _part(m, positive_only) for m in value.terms}
    top = _largest(parts)
    return _common([parts[m] for m in top]), _first(_of_one_kind(parts) if positive_only else top, value)


def common(value: Poly) -> Mono:
    """The largest monomial that divides every term of a polynomial (not 0), with negative powers where one
    has them; predicates stay."""
    return _common([_part(m, False) for m in value.terms])


def _of_one_kind(parts: dict[Mono, Mono]) -> list[Mono]:
    """Of the terms with the same factors that stay, the largest. Plain numbers come last: they are often
    small constants with no simple root."""
    kinds: dict[tuple[bool, str], dict[Mono, Mono]] = {}
    for mono, part in parts.items():
        stays = Mono(tuple(x for x in mono.factors if x not in part.factors), ZERO)
        kind = (not stays.factors, shape(stays))
        kinds.setdefault(kind, {})[mono] = part
    return _largest(kinds[min(kinds)])


def _first(top: list[Mono], value: Poly) -> Mono:
    """Of the largest monomials the one with the largest coefficient, then by shape and key."""
    if len(top) == 1:
        return top[0]
    return min(top, key=lambda m: (-abs(value.terms[m]), shape(m), m.key))


def _part(mono: Mono, positive_only: bool) -> Mono:
    """The part of a monomial that may leave."""
    kept = tuple(
        (f, e)
        for f, e in mono.factors
        if not isinstance(f, Masked)
        and (positive_factor(f, Fraction(1)) or (not positive_only and not is_predicate(f)))
    )
    return mono if len(kept) == len(mono.factors) else Mono(kept, mono.exponent)


def _weights(mono: Mono) -> Weights:
    return _by_shape(mono.exponent.terms.items()), _by_shape(mono.factors)


def _by_shape(items: Iterable[tuple[Factor | Mono, Fraction]]) -> dict[str, Fraction]:
    total: dict[str, Fraction] = {}
    for value, amount in items:
        name = "" if value is UNIT else shape(value)
        total[name] = total.get(name, _0) + amount
    return total


def _largest(parts: dict[Mono, Mono]) -> list[Mono]:
    best: list[Mono] = []
    weight: Weights | None = None
    for mono, part in parts.items():
        own = _weights(part)
        sign = 1 if weight is None else _compare(own, weight)
        if sign > 0:
            best, weight = [mono], own
        elif sign == 0:
            best.append(mono)
    return best


def _compare(a: Weights, b: Weights) -> int:
    for one, two in zip(a, b, strict=True):
        for name in sorted({*one, *two}):
            gap = one.get(name, _0) - two.get(name, _0)
            if gap:
                return 1 if gap > 0 else -1
    return 0


def _common(monos: list[Mono]) -> Mono:
    """The smallest exponent of each factor, and of each monomial in the exponents."""
    if len(monos) == 1:
        return monos[0]
    powers = [dict(m.factors) for m in monos]
    factors = sorted({f for p in powers for f in p}, key=lambda f: f.key)
    kept = [(f, min(p.get(f, _0) for p in powers)) for f in factors]
    inner = {m for mono in monos for m in mono.exponent.terms}
    least = {m: min(mono.exponent.terms.get(m, _0) for mono in monos) for m in inner}
    exponent = Poly({m: c for m, c in least.items() if c}) if inner else ZERO
    kept = [(f, e) for f, e in kept if e]
    return Mono(tuple(kept), exponent) if kept or exponent.terms else UNIT


def common_number(values: Iterable[Fraction]) -> Fraction:
    """The positive rational that makes the coefficients whole and without a common divisor."""
    top, bottom = 0, 1
    for value in values:
        top = math.gcd(top, value.numerator)
        bottom = bottom * value.denominator // math.gcd(bottom, value.denominator)
    return Fraction(top, bottom)
