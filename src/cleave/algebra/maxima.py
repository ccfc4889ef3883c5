"""Maxima as sets of (guard, binder, polynomial), and existence (design.md, section 3).

The tropical twin of `sums`: sums push into entries, sets flatten, predicates in values become guards, unions
and partitions dissolve; then, for one entry, components fall apart, and free terms and proved-positive
factors leave. Two plain values `a`, `b` are `(a + b) / 2 + |a - b| / 2`. `max exp f = exp max f`. A maximum
over nothing is -inf, absent; `exists` says whether there is anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from cleave.algebra import laws, rewrite, sums
from cleave.algebra.arithmetic import (
    ABSENT,
    add,
    assign,
    by_shape,
    is_infinite,
    mask,
    masked_of,
    mul,
    neg,
    predicates_of,
    scale,
    sub,
)  # fmt: skip
from cleave.algebra.content import common, common_number
from cleave.algebra.facts import (
    magnitude,
    nonempty,
    nonnegative,
    nonnegative_factor,
    positive_factor,
    positive_mono,
)  # fmt: skip
from cleave.algebra.forms import (
    ONE,
    UNIT,
    ZERO,
    Entry,
    Factor,
    Max,
    Mono,
    Poly,
    Predicate,
    Some,
    constant,
    fresh,
    of_factor,
    of_mono,
    size_extent,
)  # fmt: skip
from cleave.algebra.parts import owner_of, pair_of, part_of
from cleave.algebra.powers import absolute_factor, exp, power
from cleave.algebra.predicates import complement, either, in_range, inhabited
from cleave.ir.dims import Index, Part, Parts, Term, Union, term, var

Raw = tuple[list[Index], Poly, Poly]
"""Bound indices (fresh), guard and value."""

LIMIT = 64
"""A set with more entries is not flattened further."""


def greatest(value: Poly, bound: Sequence[Index], owners: dict[Index, Term] | None = None) -> Poly:
    """The maximum of a value over indices, which must be fresh."""
    return _capped(value, bound, owners) or largest([(list(bound), ONE, value)], owners)


def _capped(value: Poly, bound: Sequence[Index], owners: dict[Index, Term] | None) -> Poly | None:
    """`max_K min(f, c) = min(max_K f, c)` for a value `h - |d|`, the smaller of `h - d` and `h + d`, one of
    which is free of some of the indices; None if there is no such cap. Over nothing both sides are -inf."""
    if not bound or not laws.on("max-cap"):
        return None
    guard, inner = masked_of(value)
    if is_infinite(inner):
        return None
    for mono, c in inner.ordered:
        sizes = [
            (gap, e) for f, e in mono.factors if (gap := magnitude(f)) is not None and e.denominator == 1
        ]
        others = tuple(x for x in mono.factors if magnitude(x[0]) is None or x[1].denominator != 1)
        if sizes and c < 0 and all(nonnegative_factor(*x) for x in others):
            gaps = [power(gap, e) for gap, e in sizes]
            part = mul(of_mono(Mono(others, mono.exponent), c), *gaps)
            rest = Poly({m: x for m, x in inner.terms.items() if m != mono})
            sides = [add(rest, part), sub(rest, part)]
            cap, body = sorted(sides, key=lambda p: len(p.free.intersection(bound)))
            freed = [i for i in bound if i not in cap.free]
            if not freed or is_infinite(cap) or is_infinite(body):
                continue
            seen_at, top = masked_of(greatest(mask(guard, body), freed, owners))
            made = mask(seen_at, neg(maximum(neg(top), neg(cap))))
            left = [i for i in bound if i in cap.free]
            result = greatest(made, left, owners) if left else made
            laws.note("max-cap", _as_max(list(bound), guard, inner), result)
            return result
    return None


def maximum(*values: Poly) -> Poly:
    """The largest of some values."""
    return largest([([], ONE, v) for v in values])


def absolute(value: Poly) -> Poly:
    """The magnitude of a value."""
    return maximum(value, neg(value))


def largest(entries: Iterable[Raw], owners: dict[Index, Term] | None = None) -> Poly:
    """The maximum of a set of raw entries, in normal form."""
    flat = _flatten(list(entries), owners or {})
    unique: dict[Entry, Raw] = {}
    for raw in flat:
        unique.setdefault(Entry(*raw), raw)
    flat = _merge_guards([unique[e] for e in sorted(unique, key=lambda e: e.key)])
    if not flat:
        return ABSENT
    common, flat = _common_guard(flat)
    return mask(common, _single(flat[0]) if len(flat) == 1 else _several(flat))


def _flatten(todo: list[Raw], owners: dict[Index, Term]) -> list[Raw]:
    """Entries whose values have no -inf, maximum or predicate in them, over binders that are needed."""
    done: list[Raw] = []
    todo = todo[::-1]
    while todo:
        bound, guard, value = todo.pop()
        inner, value = masked_of(value)
        guard = mul(guard, inner)
        if not guard.terms:
            continue
        step = simpler_binders(bound, guard, value, owners)
        if step is None and len(done) + len(todo) < LIMIT and laws.on("max-flat"):
            step = _simpler_value(bound, guard, value)
        if step is None:
            done.append((bound, guard, value))
        else:
            todo += reversed(step)
    return done


def simpler_binders(
    bound: list[Index], guard: Poly, value: Poly, owners: dict[Index, Term]
) -> list[Raw] | None:
    """An entry with a bound index less, or with a whole dim for its parts; None if nothing is left to do."""
    for index in bound:
        rest = [i for i in bound if i != index]
        if isinstance(index.dim, Union) and laws.on("max-union"):
            pieces = _split_union(index, rest, guard, value)
            laws.note(
                "max-union", _as_max(bound, guard, value), of_factor(Max(Entry(*raw) for raw in pieces))
            )
            return pieces
        if index not in guard.free and index not in value.free:
            if isinstance(index.dim, Part) and laws.on("nonempty"):
                guard = mul(guard, inhabited(index.dim, part_of(index, owners)))
            return [(rest, guard, value)]
        needless = _some_part(index, guard, value)
        if needless is not None:
            return [(rest, needless, value)]
    pair = pair_of(bound, (guard, value))
    if pair is not None and laws.on("max-split"):
        part, within = pair
        both, whole = _merge(guard, value, part, within)
        merged = [*(i for i in bound if i not in pair), whole]
        laws.note("max-split", _as_max(bound, guard, value), _as_max(merged, *both))
        return [(merged, *both)]
    return _one_hot(bound, guard, value)


def _as_max(bound: list[Index], guard: Poly, value: Poly) -> Poly:
    return of_factor(Max([Entry(bound, guard, value)]))


def _split_union(index: Index, rest: list[Index], guard: Poly, value: Poly) -> list[Raw]:
    assert isinstance(index.dim, Union)
    found: list[Raw] = []
    for number, part in enumerate(index.dim.parts):
        new = fresh(part)
        where = {index: term((new, 1), offset=size_extent(index.dim.parts[:number]))}
        found.append(([*rest, new], rewrite.substitute(guard, where), rewrite.substitute(value, where)))
    return found


def _some_part(index: Index, guard: Poly, value: Poly) -> Poly | None:
    """The guard without the claim that part number `index` is not empty, if that is all the index is for:
    some part of what is not empty is not empty."""
    if not isinstance(index.dim, Parts) or index in value.free or not nonempty(index.dim.of):
        return None
    claim = inhabited(Part(index.dim.of, index.dim.level), var(index)).factor
    if claim is None or assign(guard, claim, False).terms:
        return None
    rest = assign(guard, claim, True)
    return None if index in rest.free else rest


def _merge(guard: Poly, value: Poly, part: Index, within: Index) -> tuple[tuple[Poly, Poly], Index]:
    merged, whole = rewrite.merge_part(guard, part, within)
    other, second = rewrite.merge_part(value, part, within)
    return (merged, rewrite.rename(other, {second: whole})), whole


def _one_hot(bound: list[Index], guard: Poly, value: Poly) -> list[Raw] | None:
    single = guard.single
    if single is None:
        return None
    for f in sorted((f for f, _ in single[0].factors), key=by_shape):
        if isinstance(f, Predicate) and f.rel == "=":
            solved = sums.solve(f, bound)
            if solved is not None:
                index, at, where = solved
                rest = assign(guard, f, True)
                inside = in_range(at, rewrite.size(index.dim)) if laws.on("in-range") else ONE
                fixed = mul(inside, rewrite.substitute(rest, {index: where}))
                return [([i for i in bound if i != index], fixed, rewrite.substitute(value, {index: where}))]
    return None


def _simpler_value(bound: list[Index], guard: Poly, value: Poly) -> list[Raw] | None:
    truths = predicates_of(value)
    for mono, c in value.ordered:
        for f, e in mono.factors:
            sure = not laws.on("positive-outer")
            if not isinstance(f, Max) or e != 1 or (c < 0 and not sure) or mono.exponent.terms:
                continue
            if truths and any(is_infinite(entry.value) for entry in f.entries):
                continue  # of `f - [p] f` nothing is left where `p` holds, not inf - inf
            others = [x for x in mono.factors if x[0] != f]
            if sure or all(positive_factor(*x) for x in others):
                by = of_mono(Mono(tuple(others), ZERO), c) if others else constant(c)
                rest = Poly({m: x for m, x in value.terms.items() if m != mono})
                found: list[Raw] = []
                for entry in f.entries:
                    more, own, inner = rewrite.open_entry(entry)
                    found.append(([*bound, *more], mul(guard, own), add(rest, mul(by, inner))))
                laws.note("max-flat", _as_max(bound, guard, value), of_factor(Max(Entry(*x) for x in found)))
                return found
    if truths:
        q = truths[0]
        p = of_factor(q)
        return [
            (bound, mul(guard, p), assign(value, q, True)),
            _renamed(bound, mul(guard, complement(p)), assign(value, q, False)),
        ]
    return None


def _renamed(bound: list[Index], guard: Poly, value: Poly) -> Raw:
    new = {i: fresh(i.dim) for i in bound}
    return list(new.values()), rewrite.rename(guard, new), rewrite.rename(value, new)


def _merge_guards(entries: list[Raw]) -> list[Raw]:
    """Entries of the same value under several guards are one."""
    merged: dict[Entry, Raw] = {}
    for bound, guard, value in entries:
        bare = Entry(bound, ONE, value)
        before = merged.get(bare)
        if before is None:
            merged[bare] = (list(bare.binders), guard, value)
        else:
            names = dict(zip(bare.binders, before[0], strict=True))
            merged[bare] = (before[0], either(before[1], rewrite.rename(guard, names)), before[2])
    return list(merged.values())


def _common_guard(entries: list[Raw]) -> tuple[Poly, list[Raw]]:
    """Predicates that every entry needs and that depend on no binder leave."""
    shared: list[Factor] | None = None
    for bound, guard, _ in entries:
        among = frozenset(bound)
        own = [
            f
            for f in predicates_of(guard)
            if f.free.isdisjoint(among) and all(m.power_of(f) > 0 for m in guard.terms)
        ]
        if shared is None or not laws.on("every-entry"):
            shared = [*(shared or ()), *own]
        else:
            shared = [f for f in shared if f in own]
    common = ONE
    for f in shared or ():
        common = mul(common, of_factor(f))
        entries = [(bound, assign(guard, f, True), value) for bound, guard, value in entries]
    return common, entries


def _single(entry: Raw) -> Poly:
    """The maximum over one entry: components, then free terms, then positive factors leave."""
    bound, guard, value = entry
    if not bound:
        return mask(guard, value)
    guards = guard.single
    if guards is None or guards[1] != 1 or not laws.on("max-part"):
        return _close([entry])
    # The components of `guard * exp(value)` are those of the maximum.
    outer, components = sums.split(Mono(guards[0].factors, value), bound)
    lone, _ = next(iter(outer.terms.items()))
    result = mask(of_mono(Mono(lone.factors, ZERO)), lone.exponent)
    for body, used in components:
        own = of_mono(Mono(body.factors, ZERO)) if body.factors else ONE
        if body.exponent.terms:
            result = add(result, _close([(used, own, body.exponent)]))
        else:
            result = mask(exists(used, own), result)
    if lone != UNIT or len(components) > 1:
        laws.note("max-part", _as_max(bound, guard, value), result)
    return result


def _either(entries: list[Raw]) -> Poly | None:
    """`max{a where p; b where not p}` is one of the two; None if the entries are no such cases."""
    if len(entries) != 2 or any(bound or is_infinite(value) for bound, _, value in entries):
        return None
    (_, p, a), (_, q, b) = entries
    return add(mul(p, a), mul(q, b)) if add(p, q) == ONE else None


def _several(entries: list[Raw]) -> Poly:
    either = _either(entries)
    if either is not None:
        return either
    if all(not bound and guard.number == 1 and not is_infinite(v) for bound, guard, v in entries):
        numbers = [v for _, _, v in entries if v.number is not None]
        if len(numbers) > 1:
            best = max(numbers, key=lambda v: v.number or Fraction(0))
            entries = [e for e in entries if e[2].number is None or e[2] == best]
        if len(entries) == 1:
            return entries[0][2]
        if len(entries) == 2 and laws.on("max-pair"):
            result = _pair(entries[0][2], entries[1][2])
            laws.note("max-pair", of_factor(Max(Entry(*raw) for raw in entries)), result)
            return result
    shift = _free_terms(entries)
    return add(shift, _close([(bound, guard, sub(value, shift)) for bound, guard, value in entries]))


def _pair(a: Poly, b: Poly) -> Poly:
    """The larger of two plain values."""
    gap = sub(a, b)
    if nonnegative(gap):
        return a
    if nonnegative(neg(gap)):
        return b
    half = Fraction(1, 2)
    return add(scale(add(a, b), half), scale(_magnitude(gap), half))


def _magnitude(value: Poly) -> Poly:
    """The magnitude of a value that is not 0: what all its terms have leaves, factor by factor."""
    mono = common(value)
    rest = mul(value, power(of_mono(mono), -1))
    if not rest.terms:
        return ZERO
    c = common_number(rest.terms.values())
    rest = scale(rest, 1 / c)
    parts = [of_mono(Mono((), mono.exponent) if mono.exponent.terms else UNIT, c)]
    parts += [power(absolute_factor(f), e) for f, e in mono.factors]
    single = rest.single
    if single is not None:
        return mul(*parts, *(power(absolute_factor(f), e) for f, e in single[0].factors))
    if nonnegative(rest):
        return mul(*parts, rest)
    if nonnegative(neg(rest)):
        return mul(*parts, neg(rest))
    both = Max((Entry((), ONE, rest), Entry((), ONE, neg(rest))))
    return mul(*parts, of_factor(both))


def _free_terms(entries: list[Raw]) -> Poly:
    """What every entry may give up: for each monomial without bound indices its smallest coefficient."""
    least: dict[Mono, Fraction] = {}
    bound = frozenset(i for b, _, _ in entries for i in b)
    for _, _, value in entries:
        for mono in value.terms:
            if mono.free.isdisjoint(bound):
                least[mono] = min(v.terms.get(mono, Fraction(0)) for _, _, v in entries)
    return Poly({m: c for m, c in least.items() if c})


def _close(entries: list[Raw]) -> Poly:
    """The maximum as a factor, after exponentials and positive factors have left."""
    pulled = _exponentials(entries) if laws.on("max-exp") else None
    if pulled is not None:
        laws.note("max-exp", of_factor(Max(Entry(*raw) for raw in entries)), pulled)
        return pulled
    values = [value for _, _, value in entries]
    monos = [m for v in values for m in v.terms]
    if not monos:
        return mask(_any_of(entries), ZERO)
    number = max(abs(c) for v in values for c in v.terms.values())
    bound = frozenset(i for b, _, _ in entries for i in b)
    common = _common_positive(monos, bound)
    if not laws.on("max-scale"):
        number, common = Fraction(1), UNIT
    inverse = power(of_mono(common, number), -1)
    inner = [(b, g, mul(v, inverse)) for b, g, v in entries]
    return mul(of_mono(common, number), of_factor(Max(Entry(*raw) for raw in inner)))


def _common_positive(monos: list[Mono], bound: frozenset[Index]) -> Mono:
    """The product of positive powers that every monomial has, free of bound indices."""
    kept: list[tuple[Factor, Fraction]] = []
    for f in sorted({f for m in monos for f, _ in m.factors}, key=lambda f: f.key):
        if f.free.isdisjoint(bound) and (positive_factor(f) or not laws.on("positive-scale")):
            e = min(m.power_of(f) for m in monos)
            if e:
                kept.append((f, e))
    inner = {m for mono in monos for m in mono.exponent.terms if m.free.isdisjoint(bound)}
    least = {m: min(mono.exponent.terms.get(m, Fraction(0)) for mono in monos) for m in inner}
    exponent = Poly({m: c for m, c in least.items() if c})
    return Mono(tuple(kept), exponent if exponent.terms else ZERO) if kept or exponent.terms else UNIT


def _exponentials(entries: list[Raw]) -> Poly | None:
    """`max c F exp(f) = c F exp(max f)` for one positive `c F`, if there is something to be largest."""
    found: list[Raw] = []
    lead: tuple[tuple[tuple[Factor, Fraction], ...], Fraction] | None = None
    for bound, guard, value in entries:
        single = value.single
        if single is None:
            return None
        if (single[1] < 0 or not positive_mono(single[0])) and laws.on("positive-lead"):
            return None
        mono, c = single
        if lead is not None and lead != (mono.factors, c):
            return None
        lead = (mono.factors, c)
        if any(not f.free.isdisjoint(bound) for f, _ in mono.factors):
            return None
        found.append((bound, guard, mono.exponent))
    if lead is None or not any(v.terms for _, _, v in found):
        return None
    something = any(g.number == 1 and all(nonempty(i.dim) for i in b) for b, g, _ in found)
    if not something and laws.on("something-largest"):
        return None
    return mul(of_mono(Mono(lead[0], ZERO) if lead[0] else UNIT, lead[1]), exp(largest(found)))


def exists(bound: Sequence[Index], guard: Poly, owners: dict[Index, Term] | None = None) -> Poly:
    """Does a 0-or-1 value hold anywhere? As a polynomial of predicates."""
    nothing = ONE
    for own, inner, _ in _flatten([(list(bound), guard, ZERO)], owners or {}):
        nothing = mul(nothing, complement(_exists_one(own, inner)))
    return complement(nothing)


def _exists_one(bound: list[Index], guard: Poly) -> Poly:
    if not bound:
        return guard
    single = guard.single
    if single is None or single[1] != 1:
        return of_factor(Some([Entry(bound, guard, ZERO)]))
    outer, components = sums.split(single[0], bound)
    found = outer
    for body, used in components:
        nested = next((f for f, e in body.factors if isinstance(f, Some) and e > 0), None)
        own = of_mono(body)
        if nested is not None:
            more, inner, _ = rewrite.open_entry(nested.entries[0])
            found = mul(found, exists([*used, *more], mul(assign(own, nested, True), inner)))
        else:
            found = mul(found, of_factor(Some([Entry(used, own, ZERO)])))
    return found


def _any_of(entries: list[Raw]) -> Poly:
    nothing = ONE
    for bound, guard, value in entries:
        pairs = [(i, owner_of(guard, i) or owner_of(value, i)) for i in bound if isinstance(i.dim, Part)]
        owners = {i: owner for i, owner in pairs if owner is not None}
        nothing = mul(nothing, complement(exists(bound, guard, owners)))
    return complement(nothing)


__all__ = [
    "absolute", "exists", "greatest", "largest", "maximum", "simpler_binders",
]  # fmt: skip
