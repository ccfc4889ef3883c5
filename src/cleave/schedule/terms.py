"""Index terms over kernel indices: as plain positions, and whether they stay inside an axis."""

from __future__ import annotations

from collections.abc import Mapping

from cleave.errors import Infeasible
from cleave.ir.dims import Atom, Dim, Extent, Index, Inject, Leaf, Parts, Term, Union, extent, term


def lower(value: Term, dim: Dim) -> Term:
    """The term as a plain position on an axis over `dim`: elements of parts become offsets."""
    leaves: list[tuple[Leaf, int]] = []
    offset = value.offset
    for leaf, factor in value.leaves:
        if isinstance(leaf, Inject):
            if not isinstance(dim, Union):
                raise Infeasible(f"an element of a part of {dim}, which is not a union")
            inner = lower(leaf.term, dim.parts[leaf.part])
            leaves += [(x, c * factor) for x, c in inner.leaves]
            before = extent(0, *((part, 1) for part in dim.parts[: leaf.part]))
            offset = offset + (inner.offset + before) * factor
        else:
            leaves.append((leaf, factor))
    return term(*leaves, offset=offset)


def inside(value: Term, dim: Dim, sizes: Mapping[Dim, int]) -> bool:
    """Whether a term stays inside an axis over `dim` whatever its indices are, knowing some sizes."""
    leaf = value.leaf
    if isinstance(leaf, Index):
        return leaf.dim == dim
    if isinstance(leaf, Inject) and isinstance(dim, Union):
        return inside(leaf.term, dim.parts[leaf.part], sizes)
    low = high = value.offset
    for x, c in value.leaves:
        if not isinstance(x, Index):
            return False
        last = extent(-1, (x.dim, 1)) * c
        high, low = (high + last, low) if c > 0 else (high, low + last)
    return at_least_zero(low, sizes) and at_least_zero(extent(-1, (dim, 1)) - high, sizes)


def at_least_zero(value: Extent, sizes: Mapping[Dim, int]) -> bool:
    """Whether an extent is never negative, knowing some sizes (all sizes are 0 or more)."""
    const = value.const
    for dim, factor in value.terms:
        if dim in sizes:
            const += sizes[dim] * factor
        elif isinstance(dim, Atom | Union | Parts) and factor > 0:
            continue
        else:
            return False
    return const >= 0
