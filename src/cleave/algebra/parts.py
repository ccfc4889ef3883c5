"""Partitions: which part an index runs inside, and the law that the parts of a dim make up the dim.

An index over `Part(K)` always stands together with a part number, in `Join(part, index)` or in the size of
that part. No divisibility is assumed: parts may be uneven and empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from cleave.algebra import laws
from cleave.algebra.forms import Element, Keyed, factors_in, terms_in
from cleave.errors import Unsupported
from cleave.ir.dims import Dim, Gather, Index, Inject, Join, Part, Parts, Term, indices_of, term


def joins_in(value: Term) -> Iterator[Join]:
    """Every join inside a term, outermost first."""
    for leaf, _ in value.leaves:
        match leaf:
            case Join(part, within):
                yield leaf
                yield from joins_in(part)
                yield from joins_in(within)
            case Gather(access):
                for inner in access.terms:
                    yield from joins_in(inner)
            case Inject(_, inner):
                yield from joins_in(inner)
            case _:
                pass


def owner_of(value: Keyed, index: Index) -> Term | None:
    """The part number that an index over a `Part` is joined with in a form, or that stands beside it where an
    input is read by parts; None if none or several do."""
    found: Term | None = None
    for where in terms_in(value):
        if index not in indices_of(where):
            continue
        for join in joins_in(where):
            if join.within.variable == index:
                if found is not None and found != join.part:
                    return None
                found = join.part
    found = found or _beside(value, index)
    bound_inside = found is not None and not set(indices_of(found)) <= value.free
    return None if bound_inside else found


def _beside(value: Keyed, index: Index) -> Term | None:
    """The only part number of the partition that an input is read at together with an index."""
    if not isinstance(index.dim, Part):
        return None
    parts, found = Parts(index.dim.of, index.dim.level), None
    for factor in factors_in(value):
        if not isinstance(factor, Element) or all(t.variable != index for t in factor.terms):
            continue
        numbers = [t for t, axis in zip(factor.terms, factor.node.axes, strict=True) if axis.dim == parts]
        if len(numbers) != 1 or (found is not None and found != numbers[0]):
            return None
        found = numbers[0]
    return found


def at_home(value: Keyed, index: Index, owner: Term) -> None:
    """`Unsupported` if an index that runs in one part (`owner`) is joined, or stands beside, another part's
    number in a form: what it counts there has another size than what it runs over."""
    joined = [j.part for where in terms_in(value) for j in joins_in(where) if j.within.variable == index]
    parts = Parts(index.dim.of, index.dim.level) if isinstance(index.dim, Part) else None
    for factor in factors_in(value):
        if isinstance(factor, Element) and any(t.variable == index for t in factor.terms):
            axes = zip(factor.terms, factor.node.axes, strict=True)
            joined += [t for t, axis in axes if axis.dim == parts]
    if any(part != owner for part in joined):
        what = f"an index over {index.dim} runs in one of the parts and is joined with the number of another"
        raise Unsupported(what, where="the algebra", hint="reduce it in the part that it is read in")


def part_of(index: Index, owners: Mapping[Index, Term]) -> Term:
    """The part that an index runs inside; `Unsupported` if nothing tells."""
    found = owners.get(index)
    if found is None:
        what = f"an index over {index.dim} is reduced, and nothing tells in which of the parts it runs"
        raise Unsupported(what, where="the algebra", hint="read something at join(part, index)")
    return found


def pair_of(bound: Sequence[Index], values: Sequence[Keyed]) -> tuple[Index, Index] | None:
    """A part number and an index inside it, both bound, that occur in the values only joined together."""
    for within in bound:
        if not isinstance(within.dim, Part):
            continue
        for part in bound:
            if part.dim == Parts(within.dim.of, within.dim.level) and _only_joined(part, within, values):
                return part, within
    return None


def _only_joined(part: Index, within: Index, values: Sequence[Keyed]) -> bool:
    seen = False
    for value in values:
        for where in terms_in(value):
            used = indices_of(where)
            if part in used or within in used:
                bare = indices_of(merge_term(where, part, within, None))
                if (part in bare or within in bare) and laws.on("only-joined"):
                    return False
                seen = True
    return seen


def merge_term(value: Term, part: Index, within: Index, whole: Index | None) -> Term:
    """The term with `Join(part, within)` replaced by the index `whole` (by nothing if that is None)."""
    leaves: list[tuple[object, int]] = []
    for leaf, c in value.leaves:
        match leaf:
            case Join(p, w) if p.variable == part and w.variable == within:
                if whole is not None:
                    leaves.append((whole, c))
            case Join(p, w):
                joined = Join(merge_term(p, part, within, whole), merge_term(w, part, within, whole))
                leaves.append((joined, c))
            case Gather(access):
                terms = tuple(merge_term(t, part, within, whole) for t in access.terms)
                leaves.append((Gather(type(access)(access.node, terms)), c))
            case _:
                leaves.append((leaf, c))
    return term(*leaves, offset=value.offset)  # pyright: ignore[reportArgumentType]


def whole_of(dim: Dim) -> Dim:
    """The dim that a `Part` or `Parts` partitions."""
    assert isinstance(dim, Part | Parts)
    return dim.of
