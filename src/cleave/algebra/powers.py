"""Powers, roots, exponentials, logarithms and uninterpreted functions of forms (design.md, section 3).

Content leaves powers and logs: whole powers release the whole monomial, fractional powers and logs only
exponentials and proved-positive factors; what is left stays together in one factor. The root of an even
power is a magnitude. Predicates leave as cases. `exp(c log a) = a^c`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import partial

from cleave.algebra import laws
from cleave.algebra.arithmetic import (
    ABSENT,
    add,
    cases,
    extract,
    is_infinite,
    is_masked,
    mask,
    mul,
    neg,
    product,
    scale,
    settle,
)  # fmt: skip
from cleave.algebra.facts import magnitude, orientation, positive_factor
from cleave.algebra.forms import (
    ONE,
    UNIT,
    ZERO,
    Apply,
    Entry,
    Factor,
    Log,
    Masked,
    Max,
    Mono,
    Poly,
    Power,
    constant,
    is_predicate,
    of_factor,
    of_mono,
)  # fmt: skip

_1 = Fraction(1)


def power(value: Poly, e: Fraction | int) -> Poly:
    """A polynomial to a rational power. Whole powers up to 4 are multiplied out."""
    e = Fraction(e)
    if e == 0:
        return ONE
    if e == 1:
        return value
    if not value.terms:
        return ZERO if e > 0 else of_factor(Power(ZERO), e)
    if is_infinite(value):
        return of_factor(Apply(f"power {e}", (value,)))
    single = value.single
    if single is not None:
        return _power_single(*single, e)
    if e.denominator == 1 and 0 < e <= 4:
        half = power(value, e.numerator // 2)
        return mul(half, half) if e.numerator % 2 == 0 else mul(half, half, value)
    split = cases((value,), partial(_power_of, e))
    if split is not None:
        return split
    whole = e.denominator == 1
    c, mono, rest = extract(value, positive_only=not whole) if laws.on("content") else (_1, UNIT, value)
    if not rest.terms:
        return power(ZERO, e)
    lead = _power_single(mono, c, e)
    if whole and e.numerator % 2 == 0 and not orientation(rest):
        return mul(lead, power(mul(rest, rest), e / 2))
    inner = _power_single(*rest.single, e) if rest.single is not None else settle({Power(rest): e}, ZERO)
    result = mul(lead, inner)
    if mono is not UNIT:
        laws.note("content", of_mono(Mono(((Power(value), e),), ZERO)), result)
    return result


def _power_of(e: Fraction, value: Poly) -> Poly:
    return power(value, e)


def _power_single(mono: Mono, c: Fraction, e: Fraction) -> Poly:
    exponent = scale(mono.exponent, e)
    if e.denominator == 1:
        powers = {f: x * e for f, x in mono.factors}
        return scale(settle(powers, exponent), c**e.numerator)
    powers: dict[Factor, Fraction] = {}
    outside = [root(abs(c), e)]
    odd: dict[Factor, Fraction] = {}
    for f, x in mono.factors:
        if is_predicate(f) or x.denominator != 1 or positive_factor(f) or not laws.on("positive-base"):
            powers[f] = x * e
        elif x.numerator % 2:
            odd[f] = x
        elif laws.on("magnitude"):
            outside.append(power(absolute_factor(f), x * e))
        else:
            outside.append(of_factor(Power(of_factor(f, x)), e))
    if len(odd) == 1 and c > 0:
        powers |= {f: x * e for f, x in odd.items()}
    elif odd or c < 0:
        outside += [power(absolute_factor(f), (x - 1) * e) for f, x in odd.items()]
        powers[Power(of_mono(product(dict.fromkeys(odd, _1), ZERO), 1 if c > 0 else -1))] = e
    return mul(settle(powers, exponent), *outside)


def absolute_factor(factor: Factor) -> Poly:
    """The magnitude of a factor."""
    if positive_factor(factor):
        return of_factor(factor)
    base = of_factor(factor)
    if magnitude(factor) is not None:
        return base
    return of_factor(Max((Entry((), ONE, base), Entry((), ONE, neg(base)))))


def root(number: Fraction, e: Fraction) -> Poly:
    """A positive number to a fractional power: primes with exponents between 0 and 1."""
    coefficient, powers = _1, dict[Factor, Fraction]()
    for whole, sign in ((number.numerator, 1), (number.denominator, -1)):
        for prime, times in _primes(whole):
            exponent = sign * times * e
            floor = math.floor(exponent)
            coefficient *= Fraction(prime) ** floor
            if exponent != floor:
                powers[Power(constant(prime))] = exponent - floor
    return scale(of_mono(product(powers, ZERO)), coefficient)


def _primes(number: int) -> Iterable[tuple[int, int]]:
    """Prime factors below 1000 with their multiplicities, and what is left."""
    for prime in (2, *range(3, 1000, 2)):
        times = 0
        while number % prime == 0:
            number //= prime
            times += 1
        if times:
            yield prime, times
        if prime * prime > number:
            break
    if number > 1:
        whole = math.isqrt(number)
        yield (whole, 2) if whole * whole == number else (number, 1)


def div(a: Poly, b: Poly) -> Poly:
    """`a / b`."""
    return mul(a, power(b, -1))


def exp(value: Poly) -> Poly:
    """The exponential: absent becomes 0, predicates become cases, logs become powers."""
    for mono, c in value.terms.items():
        if is_masked(mono) and laws.on("absent"):
            masked = mono.factors[0][0]
            assert isinstance(masked, Masked)
            rest = Poly({m: x for m, x in value.terms.items() if m is not mono})
            inside = exp(add(rest, scale(masked.value, c)))
            if c > 0:
                result = mul(masked.guard, inside)
                laws.note("absent", of_mono(Mono((), value)), result)
                return result
            # What is infinite in the mask, too, may be 0 times inf outside of it.
            if masked.guard.single is not None and not is_infinite(masked.value):
                return mul(power(masked.guard, -1), inside)
    split = cases((value,), exp)
    if split is not None:
        laws.note("case", Mono((), value), split)
        return split
    exponent: dict[Mono, Fraction] = {}
    outside: list[Poly] = []
    for mono, c in value.terms.items():
        if len(mono.factors) == 1 and not mono.exponent.terms:
            f, e = mono.factors[0]
            if e == 1 and isinstance(f, Log) and laws.on("exp-log"):
                outside.append(power(f.base, c))
                continue
        exponent[mono] = c
    result = mul(of_mono(Mono((), Poly(exponent)) if exponent else UNIT), *outside)
    if outside:
        laws.note("exp-log", Mono((), value), result)
    return result


def log(value: Poly) -> Poly:
    """The logarithm: exponentials and positive factors leave."""
    if not value.terms:
        return ABSENT
    if is_infinite(value):
        return of_factor(Apply("log", (value,)))
    single = value.single
    if single is not None and any(is_predicate(f) for f, e in single[0].factors if e > 0):
        guard = [(f, e) for f, e in single[0].factors if is_predicate(f) and e > 0]
        rest = tuple(x for x in single[0].factors if x not in guard)
        return mask(
            of_mono(Mono(tuple(guard), ZERO)), log(of_mono(Mono(rest, single[0].exponent), single[1]))
        )
    split = cases((value,), log) if single is None else None
    if split is not None:
        return split
    c, mono, rest = extract(value, positive_only=True) if laws.on("content") else (_1, UNIT, value)
    if not rest.terms:
        return ABSENT
    parts = [mono.exponent, _log_number(c)]
    parts += [scale(_log_factor(f), e) for f, e in mono.factors]
    single = rest.single
    parts.append(of_factor(Log(rest)) if single is None else _log_single(*single))
    result = add(*parts)
    if mono is not UNIT:
        laws.note("content", of_mono(Mono(((Log(value), _1),), ZERO)), result)
    return result


def _log_single(mono: Mono, c: Fraction) -> Poly:
    """Log of a product of factors of unknown sign: even powers leave as magnitudes."""
    parts = [ZERO]
    odd: dict[Factor, Fraction] = {}
    for f, x in mono.factors:
        if x.denominator != 1:
            parts.append(scale(_log_factor(f), x))
        elif x.numerator % 2:
            odd[f] = x
        else:
            parts.append(scale(log(absolute_factor(f)), x))
    if len(odd) == 1 and c > 0:
        parts += [scale(_log_factor(f), x) for f, x in odd.items()]
    elif odd or c < 0:
        parts += [scale(log(absolute_factor(f)), x - 1) for f, x in odd.items() if x != 1]
        parts.append(of_factor(Log(of_mono(product(dict.fromkeys(odd, _1), ZERO), 1 if c > 0 else -1))))
    return add(*parts)


def _log_factor(factor: Factor) -> Poly:
    if isinstance(factor, Power) and factor.base.number:
        return _log_number(factor.base.number)
    return of_factor(Log(of_factor(factor)))


def _log_number(number: Fraction) -> Poly:
    parts = [ZERO]
    for whole, sign in ((number.numerator, 1), (number.denominator, -1)):
        parts += [of_mono(next(iter(of_factor(Log(constant(p))).terms)), sign * t) for p, t in _primes(whole)]
    return add(*parts)


def apply(fn: str, *args: Poly) -> Poly:
    """An uninterpreted function; predicates in its arguments become cases."""
    split = cases(args, partial(apply, fn))
    return split if split is not None else of_factor(Apply(fn, args))


__all__ = ["absolute_factor", "apply", "div", "exp", "log", "power", "root"]
