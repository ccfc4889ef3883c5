"""What is known of a form's sign, its integrality and its range, for every size and every finite input.

Facts used (design.md, section 3): `exp > 0`; sizes and numbers of parts are at least 1, sizes of parts at
least 0; even powers and real roots are not negative; a sum of positives is positive only if nothing guards
it and no bound dim can be empty. An index over a dim lies in `0 .. |dim| - 1`.
"""

from __future__ import annotations

from fractions import Fraction

from cleave.algebra import laws
from cleave.algebra.forms import (
    UNIT,
    Element,
    Factor,
    Max,
    Mono,
    Place,
    Poly,
    Power,
    Size,
    Sum,
    is_predicate,
    of_factor,
    union_parts,
)  # fmt: skip
from cleave.ir.dims import Dim, Index, Part


def nonempty(dim: Dim) -> bool:
    """Is a dim never empty? All but the ranges of single parts."""
    return not any(isinstance(leaf, Part) for leaf in union_parts(dim))


def positive(value: Poly) -> bool:
    """Is the value greater than 0 wherever it is defined?"""
    return _all_nonnegative(value) and any(positive_mono(m) for m in value.terms)


def nonnegative(value: Poly) -> bool:
    """Is the value at least 0 wherever it is defined?"""
    return _all_nonnegative(value)


def _all_nonnegative(value: Poly) -> bool:
    return all(c > 0 and nonnegative_mono(m) for m, c in value.terms.items())


def positive_mono(mono: Mono) -> bool:
    return all(positive_factor(f, e) for f, e in mono.factors)


def nonnegative_mono(mono: Mono) -> bool:
    return all(nonnegative_factor(f, e) for f, e in mono.factors)


def positive_factor(factor: Factor, power: Fraction = Fraction(1)) -> bool:
    """Is `factor ** power` greater than 0 wherever it is defined?"""
    if power < 0 and nonnegative_factor(factor, power):
        return not is_predicate(factor)
    match factor:
        case Size():
            return not isinstance(factor.dim, Part)
        case Sum():
            never_empty = all(nonempty(i.dim) for i in factor.binders) or not laws.on("positive-sum")
            return never_empty and positive_mono(factor.body)
        case Power():
            return positive(factor.base)
        case Max():
            return any(
                e.guard.number == 1 and positive(e.value) and all(nonempty(i.dim) for i in e.binders)
                for e in factor.entries
            )
        case _:
            return False


def nonnegative_factor(factor: Factor, power: Fraction = Fraction(1)) -> bool:
    """Is `factor ** power` at least 0 wherever it is defined?"""
    if power.denominator != 1 or power.numerator % 2 == 0 or is_predicate(factor):
        return True
    match factor:
        case Size():
            return True
        case Place():
            return True
        case Sum():
            return nonnegative_mono(factor.body)
        case Power():
            return nonnegative(factor.base)
        case Max():
            return magnitude(factor) is not None or any(
                e.guard.number == 1 and nonnegative(e.value) and all(nonempty(i.dim) for i in e.binders)
                for e in factor.entries
            )
        case _:
            return False


def magnitude(factor: Factor) -> Poly | None:
    """`P` if the factor is the maximum of `P` and `-P`, its absolute value (one fixed sign of the two)."""
    if not isinstance(factor, Max) or len(factor.entries) != 2:
        return None
    one, two = factor.entries
    if one.binders or two.binders or one.guard.number != 1 or two.guard.number != 1:
        return None
    for mono, c in one.value.terms.items():
        if two.value.terms.get(mono) != -c:
            return None
    if len(one.value.terms) != len(two.value.terms):
        return None
    sign = orientation(one.value)
    if sign:
        return one.value if sign > 0 else two.value
    return max(one.value, two.value, key=lambda p: p.key)


def shape(value: Factor | Mono) -> str:
    """Structural text in which indices are known by their dims only: what order may depend on."""
    if not value.free:
        return value.key
    return value.text({index: f"~{index.dim}" for index in value.free})


def orientation(value: Poly) -> int:
    """1 or -1, whichever sign the first unbalanced shape has (numbers not looked at); 0 if every shape is
    balanced, as in `x[i] - x[j]`. Does not depend on what indices are called."""
    total: dict[str, Fraction] = {}
    for mono, c in value.terms.items():
        if mono != UNIT:
            name = shape(mono)
            total[name] = total.get(name, Fraction(0)) + c
    for name in sorted(total):
        if total[name]:
            return 1 if total[name] > 0 else -1
    return 0


def is_integer(value: Poly) -> bool:
    """Is the value an integer by construction?"""
    return all(c.denominator == 1 and _integer_mono(m) for m, c in value.terms.items())


def _integer_mono(mono: Mono) -> bool:
    return not mono.exponent.terms and all(
        e.denominator == 1
        and e > 0
        and (
            isinstance(f, Place | Size)
            or is_predicate(f)
            or (isinstance(f, Element) and f.integer)
            or (isinstance(f, Sum) and _integer_mono(f.body))
        )
        for f, e in mono.factors
    )


def lower(value: Poly) -> Fraction | None:
    """A number that the value is never below, if one is found."""
    total: dict[Mono, Fraction] = {}
    for mono, c in value.terms.items():
        replaced = _extreme(mono, c)
        if replaced is None:
            return None
        for m, x in replaced:
            total[m] = total.get(m, Fraction(0)) + x
    bound = Fraction(0)
    for mono, c in total.items():
        low = _least(mono)
        if c > 0:
            if low is None:
                return None
            bound += c * low
        elif c < 0:
            if mono != UNIT:
                return None
            bound += c
    return bound


def upper(value: Poly) -> Fraction | None:
    """A number that the value is never above, if one is found."""
    found = lower(Poly({m: -c for m, c in value.terms.items()}))
    return None if found is None else -found


def _extreme(mono: Mono, c: Fraction) -> list[tuple[Mono, Fraction]] | None:
    """The least value of `c * mono`, places replaced by the ends of their ranges."""
    if len(mono.factors) == 1 and not mono.exponent.terms:
        factor, power = mono.factors[0]
        if power == 1 and isinstance(factor, Place):
            if c > 0:
                return []
            sizes = [of_factor(Size(leaf)) for leaf in _sizes_of(factor)]  # pyright: ignore[reportArgumentType]
            if not sizes:
                return None
            return [*((next(iter(p.terms)), c) for p in sizes), (UNIT, -c)]
        if power == 1 and isinstance(factor, Size) and factor.part is not None and c < 0:
            assert isinstance(factor.dim, Part)
            whole = union_parts(factor.dim.of)
            if any(isinstance(leaf, Part) for leaf in whole):
                return None
            return [(next(iter(of_factor(Size(leaf)).terms)), c) for leaf in whole]  # pyright: ignore[reportArgumentType]
    return [(mono, c)]


def _sizes_of(place: Place) -> tuple[Dim, ...]:
    """The dims whose sizes add up to the number of values of a place (none if that is not known)."""
    leaf = place.leaf
    if isinstance(leaf, Index):
        dims = union_parts(leaf.dim)
    else:
        within = leaf.within.variable
        dims = union_parts(within.dim.of) if within and isinstance(within.dim, Part) else ()
    return () if any(isinstance(d, Part) for d in dims) else dims


def _least(mono: Mono) -> int | None:
    """The least value of a product of sizes and predicates."""
    if mono.exponent.terms:
        return None
    least = 1
    for factor, power in mono.factors:
        part = isinstance(factor, Size) and isinstance(factor.dim, Part) and laws.on("empty-part")
        if part or is_predicate(factor):
            least = 0
        elif not isinstance(factor, Size):
            return 0 if nonnegative_mono(mono) else None
        if power < 0:
            return 0
    return least


__all__ = [
    "is_integer", "lower", "magnitude", "nonempty", "nonnegative", "nonnegative_mono", "orientation",
    "positive", "positive_factor", "positive_mono", "shape", "upper",
]  # fmt: skip
