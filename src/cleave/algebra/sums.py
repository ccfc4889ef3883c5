"""Sums over bound indices (design.md, section 3).

Linear; factors without a bound index leave; nested sums open into one, which falls apart into connected
components; `sum 1 = |K|`; a sum over a union is the sum over its parts; parts of a partition make up the
whole; `sum_v [v = t] f(v) = f(t)` where `t` is in range; a small power of a sum opens when it meets a binder
that it depends on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from cleave.algebra import laws, rewrite
from cleave.algebra.arithmetic import add, by_shape, is_infinite, mask, masked_of, mul, neg, scale, sub
from cleave.algebra.forms import (
    NOTHING,
    ONE,
    UNIT,
    ZERO,
    Factor,
    Keyed,
    Mono,
    Place,
    Poly,
    Predicate,
    Prod,
    Size,
    Sum,
    fresh,
    of_factor,
    of_mono,
    size_extent,
)  # fmt: skip
from cleave.algebra.parts import owner_of, pair_of, part_of
from cleave.algebra.predicates import in_range
from cleave.ir.dims import Atom, Index, Part, Parts, Term, Union, substitute, term, var

OPENED = 4
"""The largest power of a sum that opens under a binder."""


def total(value: Poly, bound: Sequence[Index], owners: dict[Index, Term] | None = None) -> Poly:
    """The sum of a value over indices, which must be fresh. `owners` gives the part number of bound indices
    over a `Part` that the value need not mention."""
    if is_infinite(value):
        return _total_masked(value, bound, owners or {})
    for index in bound:
        if isinstance(index.dim, Union) and laws.on("sum-union"):
            rest = [i for i in bound if i != index]
            pieces = [total(piece, [*rest, new], owners) for new, piece in split_union(value, index)]
            result = add(*pieces)
            laws.note("sum-union", value, result)
            return result
    known = dict(owners or {})
    for index in bound:
        if isinstance(index.dim, Part) and index not in known:
            found = owner_of(value, index)
            if found is not None:
                known[index] = found
    return add(*(scale(_total_mono(m, list(bound), known), c) for m, c in value.terms.items()))


def _total_masked(value: Poly, bound: Sequence[Index], owners: dict[Index, Term]) -> Poly:
    """A sum of what may be -inf is -inf unless nothing is."""
    from cleave.algebra.maxima import exists

    guard, inside = masked_of(value)
    if guard.number == 1:
        return neg(_total_masked(neg(value), bound, owners))
    copies = {i: fresh(i.dim) for i in bound}
    known = {i: owner for i in bound if isinstance(i.dim, Part) and (owner := owner_of(value, i))}
    moved = {copies[i]: substitute(owner, {j: var(n) for j, n in copies.items()})
             for i, owner in {**known, **owners}.items() if i in copies}  # fmt: skip
    missing = exists(list(copies.values()), rewrite.rename(sub(ONE, guard), copies), moved)
    return mask(sub(ONE, missing), total(inside, bound, {**known, **owners}))


def split_union(value: Poly, index: Index) -> Iterable[tuple[Index, Poly]]:
    """For each part of a union: an index over the part, and the value there."""
    assert isinstance(index.dim, Union)
    for number, part in enumerate(index.dim.parts):
        new = fresh(part)
        where = term((new, 1), offset=size_extent(index.dim.parts[:number]))
        yield new, rewrite.substitute(value, {index: where})


def _total_mono(mono: Mono, bound: list[Index], owners: dict[Index, Term]) -> Poly:
    if not bound:
        return of_mono(mono)
    opened = _open_sums(mono, bound)
    if opened is not None and laws.on("sum-open"):
        value, more = opened
        inner = value.single
        if inner is not None:
            laws.note("sum-open", of_factor(Sum(bound, mono)), of_factor(Sum([*bound, *more], inner[0])))
        return total(value, [*bound, *more], owners)
    hit = _one_hot(mono, bound) if laws.on("one-hot") else None
    if hit is not None:
        value, index = hit
        laws.note("one-hot", mono, value)
        return total(value, [i for i in bound if i != index], owners)
    idle = [i for i in bound if i not in mono.free]
    sizes = [_size(i, owners) for i in idle if not _is_owner(i, idle, owners)]
    if idle:
        later = [i for i in idle if _is_owner(i, idle, owners)]
        rest = [i for i in bound if i not in idle]
        return total(mul(of_mono(mono), *sizes), [*rest, *later], owners)
    if not laws.on("free-factor"):  # what a factor that leaves with its index would have to become
        return rewrite.substitute(of_mono(mono), dict.fromkeys(bound, Term()))
    if not laws.on("sum-part"):
        return of_factor(Sum(bound, mono))
    outer, components = split(mono, bound)
    result = mul(outer, *(_component(body, used) for body, used in components))
    if outer != ONE or len(components) > 1:
        laws.note("sum-part", of_factor(Sum(bound, mono)), result)
    return result


def _is_owner(index: Index, idle: list[Index], owners: dict[Index, Term]) -> bool:
    return any(owners.get(i) == var(index) for i in idle)


def _size(index: Index, owners: dict[Index, Term]) -> Poly:
    """How many values an index takes that nothing depends on."""
    if isinstance(index.dim, Part):
        return of_factor(Size(index.dim, part_of(index, owners)))
    assert isinstance(index.dim, Atom | Parts)
    return of_factor(Size(index.dim)) if laws.on("sum-size") else of_factor(Sum([index], UNIT))


def _open_sums(mono: Mono, bound: list[Index]) -> tuple[Poly, list[Index]] | None:
    """The monomial with sums that depend on bound indices opened, and their indices; None if none do."""
    among = frozenset(bound)
    kept: list[tuple[Factor, Fraction]] = []
    bodies: list[Poly] = []
    more: list[Index] = []
    for f, e in mono.factors:
        if isinstance(f, Sum) and e.denominator == 1 and 0 < e <= OPENED and not among.isdisjoint(f.free):
            for _ in range(int(e)):
                indices, body = rewrite.open_binder(f)
                assert isinstance(body, Mono)
                more += [i for i in indices if i not in more]
                bodies.append(of_mono(body))
        else:
            kept.append((f, e))
    if not bodies:
        return None
    return mul(of_mono(Mono(tuple(kept), mono.exponent)), *bodies), more


def _one_hot(mono: Mono, bound: list[Index]) -> tuple[Poly, Index] | None:
    """The monomial without a predicate that fixes a bound index, and that index."""
    fixing = [f for f, e in mono.factors if e > 0 and isinstance(f, Predicate) and f.rel == "="]
    for f in sorted(fixing, key=by_shape) if len(fixing) > 1 else fixing:
        solved = solve(f, bound)
        if solved is not None:
            index, value, where = solved
            rest = of_mono(Mono(tuple(x for x in mono.factors if x[0] != f), mono.exponent))
            fixed = rewrite.substitute(rest, {index: where})
            range_ = in_range(value, rewrite.size(index.dim)) if laws.on("in-range") else ONE
            return mul(range_, fixed), index
    return None


def solve(predicate: Predicate, bound: Sequence[Index]) -> tuple[Index, Poly, Term] | None:
    """A bound index that `[P = 0]` fixes: the index, its value and the term for it."""
    for index in sorted(bound, key=lambda i: (str(i.dim), -i.number)):
        if isinstance(index.dim, Part):
            continue
        own = next(iter(of_factor(Place(index)).terms))
        c = predicate.value.terms.get(own)
        if c is None or abs(c) != 1:
            continue
        rest = Poly({m: x for m, x in predicate.value.terms.items() if m != own})
        value = scale(rest, -1 / c)
        where = rewrite.to_term(value)
        if index not in value.free and where is not None:
            return index, value, where
    return None


def split(mono: Mono, bound: Sequence[Index]) -> tuple[Poly, list[tuple[Mono, list[Index]]]]:
    """What leaves the binders, and the components: monomials with the indices that connect each."""
    pieces: list[tuple[Keyed, Mono]] = [(f, Mono(((f, e),), ZERO)) for f, e in mono.factors]
    pieces += [(m, Mono((), Poly({m: c}))) for m, c in mono.exponent.terms.items()]
    outer: list[Mono] = []
    groups: list[tuple[frozenset[Index], list[Mono]]] = []
    among = frozenset(bound)
    for piece, own in pieces:
        used = piece.free & among
        if not used:
            outer.append(own)
            continue
        members = [own]
        apart: list[tuple[frozenset[Index], list[Mono]]] = []
        for indices, monos in groups:
            if indices.isdisjoint(used):
                apart.append((indices, monos))
            else:
                used |= indices
                members = monos + members
        groups = [*apart, (used, members)]
    return of_mono(_join(outer)), [
        (_join(monos), [i for i in bound if i in indices]) for indices, monos in groups
    ]


def _join(monos: list[Mono]) -> Mono:
    """The product of monomials that are pieces of one."""
    factors = sorted((x for m in monos for x in m.factors), key=lambda item: item[0].key)
    exponent = Poly({m: c for mono in monos for m, c in mono.exponent.terms.items()})
    return Mono(tuple(factors), exponent if exponent.terms else ZERO) if monos else UNIT


def _component(body: Mono, bound: list[Index]) -> Poly:
    """The sum of one component, all of whose indices are connected."""
    pair = pair_of(bound, (body,))
    if pair is not None and laws.on("sum-split"):
        value, whole = rewrite.merge_part(of_mono(body), *pair)
        merged = [*(i for i in bound if i not in pair), whole]
        inner = value.single
        if inner is not None:
            laws.note("sum-split", of_factor(Sum(bound, body)), of_factor(Sum(merged, inner[0])))
        return total(value, merged)
    if len(bound) == 1 and len(body.factors) == 1 and not body.exponent.terms:
        f, e = body.factors[0]
        index = bound[0]
        if (
            e == 1
            and isinstance(f, Size)
            and isinstance(f.dim, Part)
            and f.part == var(index)
            and index.dim == Parts(f.dim.of, f.dim.level)
        ):
            return rewrite.size(f.dim.of)
    return of_factor(Sum(bound, body))


def outcome(value: Poly, bound: Sequence[Index]) -> Poly:
    """The product of a value over indices (uninterpreted)."""
    used = [i for i in bound if i in value.free]
    if len(used) != len(bound):
        return of_factor(Prod(bound, value))
    return ONE if value.number == 1 else of_factor(Prod(used, value))


__all__ = ["NOTHING", "outcome", "solve", "split", "split_union", "total"]
