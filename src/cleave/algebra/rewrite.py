"""Renaming, substitution and replacement in forms. None of them can capture a variable.

`rename` exchanges indices by others over the same dims and keeps the structure. `substitute` puts index
terms for indices and `replace` puts polynomials for factors; both build the form anew, by the laws. Binders
on the way are given fresh numbers before their bodies are touched.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar, cast

from cleave.algebra import arithmetic, laws, powers
from cleave.algebra.forms import (
    NOTHING,
    ONE,
    Apply,
    Binder,
    Element,
    Entry,
    Factor,
    Held,
    Keyed,
    Log,
    Masked,
    Max,
    Mono,
    Place,
    Poly,
    Power,
    Predicate,
    Prod,
    Size,
    Some,
    Sum,
    constant,
    factors_in,
    fresh,
    is_predicate,
    of_factor,
    of_mono,
    union_parts,
)  # fmt: skip
from cleave.algebra.parts import merge_term, whole_of
from cleave.ir.dims import (
    Atom,
    Dim,
    Extent,
    Gather,
    Index,
    Inject,
    Join,
    Leaf,
    Part,
    Parts,
    Term,
    Union,
    extent,
    term,
    var,
)  # fmt: skip
from cleave.ir.dims import (
    substitute as substitute_term,
)
from cleave.ir.ops import Access

K = TypeVar("K", bound=Keyed)


def move(value: Term, terms: Mapping[Index, Term]) -> Term:
    """The term with indices replaced."""
    index = value.variable
    return substitute_term(value, terms) if index is None else terms.get(index, value)


def rename(value: K, mapping: Mapping[Index, Index]) -> K:
    """The value with free indices renamed, one to one, to indices over the same dims."""
    if value.free.isdisjoint(mapping):
        return value
    terms = {old: var(new) for old, new in mapping.items()}
    return cast(K, _rename(value, mapping, terms))


def _rename(value: Keyed, names: Mapping[Index, Index], terms: Mapping[Index, Term]) -> Keyed:
    if value.free.isdisjoint(names):
        return value
    if isinstance(value, Binder | Entry) and not set(value.binders).isdisjoint(names.values()):
        value = _refreshed(value)

    def go(part: Keyed) -> Keyed:
        return _rename(part, names, terms)

    match value:
        case Poly():
            return Poly({cast(Mono, go(m)): c for m, c in value.terms.items()})
        case Mono():
            factors = [(cast(Factor, go(f)), e) for f, e in value.factors]
            factors.sort(key=lambda item: item[0].key)
            return Mono(tuple(factors), cast(Poly, go(value.exponent)))
        case Element():
            return Element(value.node, tuple(move(t, terms) for t in value.terms))
        case Size() if value.part is not None:
            return Size(value.dim, move(value.part, terms))
        case Place():
            leaf = move(value.term, terms).leaf
            assert isinstance(leaf, Index | Join)
            return Place(leaf)
        case Sum():
            return Sum(value.binders, cast(Mono, go(value.body)))
        case Prod():
            return Prod(value.binders, cast(Poly, go(value.body)))
        case Entry():
            return Entry(value.binders, cast(Poly, go(value.guard)), cast(Poly, go(value.value)))
        case Max() | Some():
            return type(value)(cast(Entry, go(e)) for e in value.entries)
        case Masked():
            return Masked(cast(Poly, go(value.guard)), cast(Poly, go(value.value)))
        case Power() | Log():
            return type(value)(cast(Poly, go(value.base)))
        case Apply():
            return Apply(value.fn, tuple(cast(Poly, go(a)) for a in value.args))
        case Predicate():
            return Predicate(value.rel, cast(Poly, go(value.value)))
        case _:
            return value


def _refreshed(value: Binder | Entry) -> Binder | Entry:
    """The same value with fresh numbers for its binders."""
    if isinstance(value, Entry):
        return Entry(*open_entry(value))
    bound, body = open_binder(value)
    return Prod(bound, body) if isinstance(body, Poly) else Sum(bound, body)


def open_binder(factor: Binder) -> tuple[list[Index], Mono | Poly]:
    """Fresh indices for the binders, and the body with them."""
    if not laws.on("fresh-binders"):
        return list(factor.binders), factor.body
    new = {old: fresh(old.dim) for old in factor.binders}
    return list(new.values()), rename(factor.body, new)


def open_entry(entry: Entry) -> tuple[list[Index], Poly, Poly]:
    """Fresh indices for the binders of an entry, its guard and its value with them."""
    new = {old: fresh(old.dim) for old in entry.binders}
    return list(new.values()), rename(entry.guard, new), rename(entry.value, new)


def substitute(value: Poly, terms: Mapping[Index, Term]) -> Poly:
    """The value with free indices replaced by terms, all at once."""
    if value.free.isdisjoint(terms):
        return value
    targets = [t.variable for i, t in terms.items() if i in value.free]
    if all(t is not None for t in targets):
        names = {i: t.variable for i, t in terms.items() if i in value.free}
        one_to_one = len(set(names.values())) == len(names)
        others = value.free.difference(names)
        if not laws.on("one-to-one"):
            one_to_one, others = True, NOTHING
        if one_to_one and not any(n in others or n is None or n.dim != i.dim for i, n in names.items()):
            return rename(value, {i: n for i, n in names.items() if n is not None and n != i})
    return _Rewrite(terms, {}).poly(value)


def replace(value: Poly, factors: Mapping[Factor, Poly]) -> Poly:
    """The value with factors replaced by polynomials wherever they occur (factors that a binder of the
    value binds an index of are not found)."""
    return _Rewrite({}, factors).poly(value) if factors else value


MOST_AXES = 5
"""Axes that what is known of a predicate may stand at."""


def closure(factor: Factor, kept: Collection[Index] = ()) -> str:
    """A key of a factor for all values of its indices, those in `kept` left as they are."""
    free = sorted((i for i in factor.free if i not in kept), key=lambda i: (str(i.dim), i.number))
    return Entry(free, ONE, of_factor(factor)).key


@dataclass(frozen=True, slots=True)
class Known:
    """Truths of predicates by their `closure`: each for all values of its indices but some of `axes`."""

    truths: Mapping[str, Poly]
    axes: frozenset[Index] = frozenset()

    def of(self, factor: Factor) -> Poly | None:
        """The truth of a predicate, if it is known."""
        own = sorted(factor.free & self.axes, key=lambda i: (str(i.dim), i.number))[:MOST_AXES]
        for count in range(len(own), -1, -1):
            for kept in itertools.combinations(own, count):
                found = self.truths.get(closure(factor, kept))
                if found is not None:
                    return found
        return None


def assume(value: Poly, known: Known) -> Poly:
    """The value with 1 or 0 for predicates that are known."""
    found = {f for f in factors_in(value) if is_predicate(f)} if known.truths else set[Factor]()
    if all(known.of(factor) is None for factor in found):
        return value
    return _Rewrite({}, {}, known=known).poly(value)


def merge_part(value: Poly, part: Index, within: Index) -> tuple[Poly, Index]:
    """The value with `Join(part, within)` replaced by a fresh index over the whole dim."""
    whole = fresh(whole_of(within.dim))
    return _Rewrite({}, {}, (part, within, whole)).poly(value), whole


class _Rewrite:
    def __init__(
        self,
        terms: Mapping[Index, Term],
        factors: Mapping[Factor, Poly],
        merge: tuple[Index, Index, Index] | None = None,
        known: Known | None = None,
    ) -> None:
        self.known = known
        self.everywhere = bool(factors) or known is not None
        self.terms = terms
        self.factors = factors
        self.merge = merge
        self.touched = frozenset(terms) | frozenset(merge[:2] if merge else ())

    def poly(self, value: Poly) -> Poly:
        if not self.everywhere and value.free.isdisjoint(self.touched):
            return value
        return arithmetic.add(*(arithmetic.scale(self.mono(m), c) for m, c in value.terms.items()))

    def mono(self, mono: Mono) -> Poly:
        if not self.everywhere and mono.free.isdisjoint(self.touched):
            return of_mono(mono)
        parts = [powers.power(self.factor(f), e) for f, e in mono.factors]
        if mono.exponent.terms:
            parts.append(powers.exp(self.poly(mono.exponent)))
        return arithmetic.mul(*parts) if parts else ONE

    def term(self, value: Term) -> Term:
        if self.merge:
            merged = merge_term(value, *self.merge)
            if not laws.on("only-joined"):  # what a bare use would have to become
                merged = substitute_term(merged, dict.fromkeys(self.merge[:2], Term()))
            return merged
        return move(value, self.terms)

    def factor(self, factor: Factor) -> Poly:
        if self.everywhere:
            found = self.factors.get(factor)
            if found is not None:
                return found
            if self.known is not None and is_predicate(factor):
                truth = self.known.of(factor)
                if truth is not None:
                    return truth
        elif factor.free.isdisjoint(self.touched):
            return of_factor(factor)
        from cleave.algebra import maxima, predicates, sums

        match factor:
            case Element():
                return of_factor(Element(factor.node, tuple(map(self.term, factor.terms))))
            case Size() if factor.part is not None:
                return of_factor(Size(factor.dim, self.term(factor.part)))
            case Place():
                return place(self.term(factor.term))
            case Sum():
                bound, body = open_binder(factor)
                return sums.total(self.mono(cast(Mono, body)), bound)
            case Prod():
                bound, body = open_binder(factor)
                return of_factor(Prod(bound, self.poly(cast(Poly, body))))
            case Max():
                return maxima.largest(self.entry(e) for e in factor.entries)
            case Some():
                return maxima.exists(*self.entry(factor.entries[0])[:2])
            case Masked():
                return arithmetic.mask(self.poly(factor.guard), self.poly(factor.value))
            case Held():
                return arithmetic.hold(self.poly(factor.base))
            case Power():
                return self.poly(factor.base)
            case Log():
                return powers.log(self.poly(factor.base))
            case Apply():
                return powers.apply(factor.fn, *map(self.poly, factor.args))
            case Predicate():
                return predicates.relate(factor.rel, self.poly(factor.value))
            case _:
                return of_factor(factor)

    def entry(self, entry: Entry) -> tuple[list[Index], Poly, Poly]:
        bound, guard, value = open_entry(entry)
        return bound, self.poly(guard), self.poly(value)


def size(dim: Dim) -> Poly:
    """`|dim|`, a union's as the sum of its parts' (a single part's size needs its number: see `Size`)."""
    sizes = [of_factor(Size(leaf)) for leaf in union_parts(dim) if isinstance(leaf, Atom | Parts)]
    return arithmetic.add(*sizes)


def of_extent(value: Extent) -> Poly:
    """A linear expression of sizes as a polynomial."""
    parts = [constant(value.const), *(arithmetic.scale(size(d), c) for d, c in value.terms)]
    return arithmetic.add(*parts)


def place(value: Term) -> Poly:
    """The value of an index term, as an integer."""
    parts = [of_extent(value.offset)]
    for leaf, c in value.leaves:
        match leaf:
            case Index() | Join():
                parts.append(of_mono(next(iter(of_factor(Place(leaf)).terms)), c))
            case Gather(access):
                parts.append(arithmetic.scale(of_factor(Element(access.node, access.terms)), c))
            case _:
                parts.append(arithmetic.scale(of_factor(Apply(f"leaf {leaf}", ())), c))
    return arithmetic.add(*parts)


def to_term(value: Poly) -> Term | None:
    """The index term with this value, if it is affine in places, sizes and integer elements."""
    leaves: list[tuple[Leaf, int]] = []
    const, sizes = 0, list[tuple[Dim, int]]()
    for mono, c in value.terms.items():
        if c.denominator != 1 or mono.exponent.terms or len(mono.factors) > 1:
            return None
        if not mono.factors:
            const += int(c)
            continue
        factor, e = mono.factors[0]
        if e != Fraction(1):
            return None
        match factor:
            case Place():
                leaves.append((factor.leaf, int(c)))
            case Size() if factor.part is None:
                sizes.append((factor.dim, int(c)))
            case Element() if factor.integer:
                leaves.append((Gather(Access(factor.node, factor.terms)), int(c)))
            case _:
                return None
    return term(*leaves, offset=extent(const, *sizes))


def flatten(value: Term, dim: Dim) -> Term:
    """A term that reads an axis over `dim`, with injections into unions as offsets and sizes of unions
    taken apart."""
    if value.variable is not None:
        return value
    leaves: list[tuple[Leaf, int]] = []
    offset = Extent(value.offset.const)
    for d, c in value.offset.terms:
        offset = offset + extent(0, *((leaf, c) for leaf in union_parts(d)))
    for leaf, c in value.leaves:
        match leaf:
            case Inject(part, inner) if isinstance(dim, Union):
                before = [d for p in dim.parts[:part] for d in union_parts(p)]
                flat = flatten(inner, dim.parts[part])
                leaves += [(x, k * c) for x, k in flat.leaves]
                offset = offset + (flat.offset + extent(0, *((d, 1) for d in before))) * c
            case Gather(access):
                leaves.append((Gather(flatten_access(access)), c))
            case Join(part, within):
                whole = within.variable.dim if within.variable else dim
                inner_dim = whole if isinstance(whole, Part) else dim
                leaves.append((Join(part, flatten(within, inner_dim)), c))
            case _:
                leaves.append((leaf, c))
    return term(*leaves, offset=offset)


def flatten_access(access: Access) -> Access:
    """An access whose terms have no injections left."""
    pairs: Sequence[tuple[Term, Index]] = list(zip(access.terms, access.node.axes, strict=True))
    return Access(access.node, tuple(flatten(t, axis.dim) for t, axis in pairs))
