"""Sums and products of forms, in normal form again (design.md, section 3); powers are in `powers`.

The laws: a monomial is a group element (`a/b` is `a * b**-1`), `exp(a) * exp(b)` merges, predicates are
idempotent and imply or exclude each other, `-inf` is `Masked` and never a number, the square of a magnitude
is a square. All identities hold wherever both sides are defined; what must hold for a program to be defined
is `algebra.conditions`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from cleave.algebra import laws
from cleave.algebra.content import content
from cleave.algebra.exists import witnessed
from cleave.algebra.facts import lower, magnitude, positive, positive_factor, shape, upper
from cleave.algebra.forms import (
    ONE,
    UNIT,
    ZERO,
    Apply,
    Entry,
    Factor,
    Held,
    Masked,
    Max,
    Mono,
    Poly,
    Power,
    Predicate,
    Size,
    Some,
    Sum,
    constant,
    is_predicate,
    of_factor,
    of_mono,
)  # fmt: skip

LIMIT = 256
"""A product with more monomials becomes a factor named by itself."""

CASES = 5
"""How many predicates may leave an exponential, a power or a log as cases."""

ABSENT = of_factor(Masked(ZERO, ZERO))
"""-inf: absent everywhere."""

_0 = Fraction(0)
_1 = Fraction(1)


def add(*values: Poly) -> Poly:
    """The sum of polynomials."""
    total: dict[Mono, Fraction] = dict(values[0].terms) if values else {}
    for value in values[1:]:
        for mono, c in value.terms.items():
            new = total.get(mono, _0) + c
            if new:
                total[mono] = new
            else:
                del total[mono]
    return _absorb(total) if len(total) > 1 else Poly(total)


def scale(value: Poly, c: int | Fraction) -> Poly:
    """The polynomial times a number."""
    if c == 1:
        return value
    if not c:
        return ZERO
    return _absorb({m: x * c for m, x in value.terms.items()})


def neg(value: Poly) -> Poly:
    return scale(value, -1)


def sub(a: Poly, b: Poly) -> Poly:
    return add(a, neg(b))


def mul(*values: Poly) -> Poly:
    """The product of polynomials, multiplied out up to `LIMIT` monomials."""
    total = ONE
    for value in values:
        total = _mul(total, value)
    return total


def _mul(a: Poly, b: Poly) -> Poly:
    if a is ONE or not b.terms:
        return b
    if b is ONE or not a.terms:
        return a
    if is_infinite(a) or is_infinite(b):
        return _mul_infinite(a, b)
    if len(a.terms) * len(b.terms) > LIMIT:
        return _mul(hold(a), hold(b))
    total: dict[Mono, Fraction] = {}
    for m, c in a.terms.items():
        for n, d in b.terms.items():
            product = _mul_mono(m, n)
            for mono, x in product.terms.items():
                new = total.get(mono, _0) + (c * d if x == 1 else c * d * x)
                if new:
                    total[mono] = new
                else:
                    del total[mono]
    return _absorb(total)


def _mul_infinite(a: Poly, b: Poly) -> Poly:
    """A product with what may be -inf: understood if the other factor has a known sign."""
    if not is_infinite(a):
        a, b = b, a
    if not is_infinite(b):
        for sign, other in ((1, b), (-1, neg(b))):
            if positive(other):
                guard, value = masked_of(scale(a, sign))
                if guard.number != 1:
                    return mask(guard, mul(value, other))
                guard, value = masked_of(scale(a, -sign))
                return neg(mask(guard, mul(value, other)))
    return of_factor(Apply("times", sorted((a, b), key=lambda p: p.key)))


def hold(value: Poly) -> Poly:
    """A polynomial as a factor that is not multiplied out (its content leaves)."""
    if len(value.terms) < 2:
        return value
    number = max(abs(c) for c in value.terms.values())
    return scale(of_factor(Held(scale(value, 1 / number))), number)


def extract(value: Poly, *, positive_only: bool = False) -> tuple[Fraction, Mono, Poly]:
    """Number, monomial and rest: `value = number * monomial * rest` (see `content`). With `positive_only`
    the number is positive; else the rest's deciding term is. The rest is 0 if the value is, its denominators
    multiplied out."""
    below = _denominators(value, positive_only)
    value = mul(value, of_mono(_inverse(below))) if below is not UNIT else value
    if not value.terms:
        return _1, UNIT, ZERO
    mono, first = content(value, positive_only=positive_only)
    inverse = of_mono(_inverse(mono))
    rest = mul(value, inverse)
    leader = mul(of_mono(first), inverse).single
    number = rest.terms.get(leader[0], _1) if leader is not None else _1
    if positive_only:
        number = abs(number)
    both = _mul_mono(below, mono).single
    if both is None or both[1] != 1:
        return number, mono, scale(mul(rest, of_mono(below)), 1 / number)
    return number, both[0], scale(rest, 1 / number)


def _inverse(mono: Mono) -> Mono:
    return Mono(tuple((f, -e) for f, e in mono.factors), scale(mono.exponent, -1))


def _denominators(value: Poly, positive_only: bool) -> Mono:
    """Powers of polynomials with negative exponents, the smallest exponent of each."""
    least: dict[Factor, Fraction] = {}
    for mono in value.terms:
        for f, e in mono.factors:
            if e < 0 and isinstance(f, Power) and (not positive_only or positive_factor(f)):
                least[f] = min(e, least.get(f, _0))
    return product(least, ZERO)


def _absorb(total: dict[Mono, Fraction]) -> Poly:
    """Absent plus anything is absent: `Masked` terms take the others in, and positive numbers."""
    found = [m for m in total if is_masked(m)]
    if not found:
        return Poly(total)
    if len(total) == 1 and abs(total[found[0]]) == 1:
        return Poly(total)
    if all(total[m] < 0 for m in found):
        return Poly({m: -c for m, c in _absorb({m: -c for m, c in total.items()}).terms.items()})
    found = [m for m in found if total[m] > 0]
    guard = ONE
    inner = [Poly({m: c for m, c in total.items() if m not in found})]
    for mono in found:
        masked = mono.factors[0][0]
        assert isinstance(masked, Masked)
        guard = mul(guard, masked.guard)
        inner.append(scale(masked.value, total[mono]))
    return mask(guard, add(*inner))


def is_infinite(value: Poly) -> bool:
    """Is a value, or its negative, -inf somewhere (`Masked` is always a whole value, never a part of one)?"""
    return len(value.terms) == 1 and is_masked(next(iter(value.terms)))


def is_masked(mono: Mono) -> bool:
    return len(mono.factors) == 1 and isinstance(mono.factors[0][0], Masked) and mono.factors[0][1] == 1


def masked_of(value: Poly) -> tuple[Poly, Poly]:
    """Guard and value: where a value is not -inf, and what it is there."""
    factor = value.factor
    return (factor.guard, factor.value) if isinstance(factor, Masked) else (ONE, value)


def mask(guard: Poly, value: Poly) -> Poly:
    """`value` where the guard is 1, else -inf."""
    inner, value = masked_of(value)
    guard = mul(guard, inner)
    if guard.number == 1:
        return value
    if not guard.terms:
        return ABSENT
    return of_factor(Masked(guard, under(guard, value)))


def under(guard: Poly, value: Poly) -> Poly:
    """The value, simplified by what the guard says of the predicates that occur in it."""
    for q in predicates_of(value):
        if mul(guard, of_factor(q)) == guard:
            value = assign(value, q, True)
        elif not mul(guard, of_factor(q)).terms:
            value = assign(value, q, False)
    return value


def choose(p: Poly, a: Poly, b: Poly) -> Poly:
    """`a` where the predicate `p` is 1, else `b`; -inf and inf are understood."""
    if p.number is not None:
        return a if p.number else b
    (ga, va), (gb, vb) = masked_of(a), masked_of(b)
    if ga.number == 1 and gb.number == 1:
        if is_infinite(a) or is_infinite(b):
            (ga, va), (gb, vb) = masked_of(neg(a)), masked_of(neg(b))
            return neg(_choose_masked(p, ga, va, gb, vb))
        return _blend(p, a, b)
    return _choose_masked(p, ga, va, gb, vb)


def _choose_masked(p: Poly, ga: Poly, va: Poly, gb: Poly, vb: Poly) -> Poly:
    guard = _blend(p, ga, gb)
    if not gb.terms:
        return mask(guard, va)
    if not ga.terms:
        return mask(guard, vb)
    return mask(guard, _blend(p, va, vb))


def _blend(p: Poly, a: Poly, b: Poly) -> Poly:
    if is_infinite(a) or is_infinite(b):
        return of_factor(Apply("select", (p, a, b)))
    return add(mul(p, sub(a, b)), b)


def predicates_of(value: Poly) -> list[Factor]:
    """The predicates that multiply monomials of a value, in an order that names of indices hardly touch."""
    found = {f for m in value.terms for f, e in m.factors if e > 0 and is_predicate(f)}
    return sorted(found, key=by_shape) if len(found) > 1 else list(found)


def by_shape(factor: Factor) -> tuple[str, str]:
    """A sorting key: the shape, and the key only where shapes are the same."""
    return shape(factor), factor.key


def assign(value: Poly, predicate: Factor, truth: bool) -> Poly:
    """The value with a predicate that multiplies some of its monomials set to 1 or 0."""
    parts: list[Poly] = []
    for mono, c in value.terms.items():
        if mono.power_of(predicate) > 0:
            if truth:
                rest = tuple((f, e) for f, e in mono.factors if f != predicate)
                parts.append(of_mono(Mono(rest, mono.exponent), c))
        else:
            parts.append(of_mono(mono, c))
    return add(*parts) if parts else ZERO


def cases(values: tuple[Poly, ...], function: Callable[..., Poly]) -> Poly | None:
    """`function(*values)` where predicates in the values are decided first; None if there are none, or
    more than `CASES`."""
    found = sorted({q for v in values for q in predicates_of(v)}, key=by_shape)
    if not found or len(found) > CASES or not laws.on("case"):
        return None
    q = found[0]
    yes = function(*(assign(v, q, True) for v in values))
    no = function(*(assign(v, q, False) for v in values))
    return choose(of_factor(q), yes, no)


def _mul_mono(m: Mono, n: Mono) -> Poly:
    if m is UNIT:
        return of_mono(n)
    if n is UNIT:
        return of_mono(m)
    powers = dict(m.factors)
    for f, e in n.factors:
        powers[f] = powers.get(f, _0) + e
    if not m.exponent.terms:
        exponent = n.exponent
    else:
        exponent = add(m.exponent, n.exponent) if n.exponent.terms else m.exponent
    return settle(powers, exponent)


def product(powers: Mapping[Factor, Fraction], exponent: Poly) -> Mono:
    """A monomial of factors that need no further law."""
    kept = [(f, e) for f, e in powers.items() if e]
    kept.sort(key=lambda item: item[0].key)
    return Mono(tuple(kept), exponent) if kept or exponent.terms else UNIT


def settle(powers: dict[Factor, Fraction], exponent: Poly) -> Poly:
    """A product of powers of factors: predicates are idempotent, whole powers of polynomials open."""
    from cleave.algebra.powers import power

    outside: list[Poly] = []
    truths = False
    for f, e in list(powers.items()):
        if not e:
            del powers[f]
        elif is_predicate(f):
            truths = True
            powers[f] = _1 if e > 0 else -_1
        elif isinstance(f, Power):
            _settle_power(f, e, powers, outside)
        elif isinstance(f, Max):
            base = magnitude(f)
            if base is not None and e.denominator == 1 and e != 1:
                del powers[f]
                half = e.numerator // 2
                outside.append(power(base, Fraction(2 * half)))
                if e.numerator % 2:
                    outside.append(of_factor(f))
    if truths:
        if not _settle_predicates(powers):
            return ZERO
        outside += witnessed(powers)
    inner = of_mono(product(powers, exponent))
    return mul(inner, *outside) if outside else inner


def _settle_power(f: Power, e: Fraction, powers: dict[Factor, Fraction], outside: list[Poly]) -> None:
    number = f.base.number
    if number:
        whole = math.floor(e)
        if whole:
            outside.append(constant(number**whole))
            powers[f] = e - whole
        if not powers[f]:
            del powers[f]
    elif e >= 1 and not isinstance(f, Held):
        whole = math.floor(e)
        if whole <= 4:
            outside += [f.base] * whole
            powers[f] = e - whole
            if not powers[f]:
                del powers[f]


def _settle_predicates(powers: dict[Factor, Fraction]) -> bool:
    """Drop predicates that others imply; False if two exclude each other."""
    truths = sorted((f for f, e in powers.items() if e > 0 and is_predicate(f)), key=lambda f: f.key)
    for f in truths if laws.on("implied") else ():
        if isinstance(f, Some) or (isinstance(f, Predicate) and f.rel == ">="):
            for other, e in powers.items():
                if e > 0 and _inhabits(other, f):
                    powers[f] = _0
                    break
    compared = [f for f in truths if isinstance(f, Predicate) and powers[f]]
    if any(f.rel == "=" and _vanishes(f.value, powers) for f in compared) and laws.on("excluded"):
        return False
    for p in compared:
        for q in compared:
            if p is q or not powers[p] or not powers[q]:
                continue
            verdict = _relate(p, q)
            if verdict is False and laws.on("excluded"):
                return False
            if verdict and laws.on("implied"):
                powers[q] = _0
    return True


def _vanishes(value: Poly, powers: Mapping[Factor, Fraction]) -> bool:
    """Has a monomial all factors of one that is 0?"""
    single = value.single
    return (
        single is not None
        and not single[0].exponent.terms
        and all(e > 0 and powers.get(f, _0) >= e for f, e in single[0].factors)
    )


def _relate(p: Predicate, q: Predicate) -> bool | None:
    """True if `p` implies `q`, False if they exclude each other, None if neither is seen."""
    if p.value.free.isdisjoint(q.value.free) and p.value.free:
        return None
    if q.rel == "=":
        if p.rel == "=":
            for gap in (sub(p.value, q.value), add(p.value, q.value)):
                low, high = lower(gap), upper(gap)
                if (low is not None and low > 0) or (high is not None and high < 0):
                    return False
        return None
    strict = q.rel == ">" and laws.on("strictness")
    for value in (p.value, neg(p.value)) if p.rel == "=" else (p.value,):
        low = lower(sub(q.value, value))
        if low is not None and (low > 0 or (low == 0 and (not strict or p.rel == ">"))):
            return True
        high = upper(add(q.value, value))
        if high is not None and (
            high < 0 or (high == 0 and (strict or p.rel == ">" or not laws.on("strictness")))
        ):
            return False
    return None


MOST_GUARDS = 4
"""Guards of a sum that are looked at."""


def _inhabits(factor: Factor, claim: Some | Predicate) -> bool:
    """Is `factor` 0 wherever the claim, that something exists, is false?"""
    if isinstance(claim, Predicate):
        place = claim.value
        if len(place.terms) != 2 or place.terms.get(UNIT) != -1:
            return False
        size = next(m for m in place.terms if m != UNIT)
        if place.terms[size] != 1 or len(size.factors) != 1 or not isinstance(size.factors[0][0], Size):
            return False
        part = size.factors[0][0]
        return factor == part or (isinstance(factor, Sum) and part in map(_part_of, _owners(factor)))
    if not isinstance(factor, Sum) or len(claim.entries) != 1:
        return False
    if not laws.on("same-witness"):
        return any(e > 0 and is_predicate(f) for f, e in factor.body.factors)
    guards = [f for f, e in factor.body.factors if e > 0 and is_predicate(f)][:MOST_GUARDS]
    # What all guards make, or some of them: a witness of more is one of less.
    return any(
        _claimed(factor, chosen) == claim.entries[0]
        for count in range(len(guards), 0, -1)
        for chosen in itertools.combinations(guards, count)
    )


def _claimed(factor: Sum, guards: Sequence[Factor]) -> Entry:
    """The claim that something is there for what a sum runs over to be guarded by."""
    guard = of_mono(Mono(tuple((f, _1) for f in guards), ZERO))
    return Entry([i for i in factor.binders if i in guard.free], guard, ZERO)


def _owners(factor: Sum) -> list[tuple[object, object]]:
    from cleave.algebra.parts import owner_of

    return [(i.dim, owner_of(factor.body, i)) for i in factor.binders]


def _part_of(pair: tuple[object, object]) -> Factor | None:
    from cleave.ir.dims import Part, Term

    dim, owner = pair
    return Size(dim, owner) if isinstance(dim, Part) and isinstance(owner, Term) else None


__all__ = [
    "ABSENT", "LIMIT", "add", "assign", "cases", "choose", "extract", "hold", "is_infinite", "is_masked",
    "mask",
    "masked_of", "mul", "neg", "predicates_of", "product", "scale", "settle", "sub", "under",
]  # fmt: skip
