"""Split and combine in one launch: a kernel whose blocks are the ends of the blocks of the kernel before.

A split leaves the states of each part in workspaces, and a second kernel merges them. Where a block of the
second reads only what a known set of blocks of the first has written, whichever of these comes last can go
on as that block: they count up a number in memory, and the last one sees it from its ticket. `joint_of` says
which blocks belong together, or why there are none (`Infeasible`); `verify_merged` holds a program's marks to
it. Which parts are merged in which order is the second kernel's loop, whoever runs it: results do not depend
on the race.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cleave.errors import Bug, Infeasible
from cleave.ir.dims import Index, Parts, Term
from cleave.schedule.counting import statements
from cleave.schedule.tiles import GridAxis, Kernel, Load, Store, TileProgram


@dataclass(frozen=True, slots=True)
class Joint:
    """How blocks of two kernels belong together. `pairs` has, for each axis of the second one's grid in
    order, that axis and the one of the first which runs along the same dim in tiles that divide its own.
    Along the axes `rest` every block of the first belongs to the same block of the second."""

    pairs: tuple[tuple[GridAxis, GridAxis], ...]
    rest: tuple[GridAxis, ...]


def joint_of(first: Kernel, last: Kernel) -> Joint:
    """How the blocks of `last` follow from those of `first`; `Infeasible` where a block of `last` reads what
    others than the blocks of one set have written."""
    axes = {axis.index: axis for axis in first.grid}
    own = {axis.index: axis for axis in last.grid}
    ties = _ties(first, last, axes, own)
    pairs: list[tuple[GridAxis, GridAxis]] = []
    for axis in last.grid:
        match = ties.get(axis.index)
        if match is None:
            raise _refused(
                first, last, f"its grid runs along {axis.index.dim}, that of {first.name} does not"
            )
        if axis.tile % axes[match].tile:
            tiles = f"{axis.tile} of {axis.index.dim}, no multiple of the {axes[match].tile} of {first.name}"
            raise _refused(first, last, f"a block of it has {tiles}")
        pairs.append((axis, axes[match]))
    met = {axis.index for _, axis in pairs}
    if len(met) < len(pairs):
        raise _refused(first, last, f"two axes of its grid belong to one of {first.name}")
    return Joint(tuple(pairs), tuple(axis for axis in first.grid if axis.index not in met))


def _ties(
    first: Kernel, last: Kernel, axes: Mapping[Index, GridAxis], own: Mapping[Index, GridAxis]
) -> dict[Index, Index]:
    """The index of the first one's grid that each index of the last one's grid goes with, by what the one
    stores and the other loads."""
    stores: dict[str, Store] = {}
    for store in (s for s in statements(first.body) if isinstance(s, Store)):
        if stores.setdefault(store.tensor, store).terms != store.terms:
            raise _refused(first, last, f"{store.tensor} is stored in several places")
    ties: dict[Index, Index] = {}
    spanned: set[Index] = set()
    reads = [s for s in statements(last.body) if isinstance(s, Load) and s.tensor in stores]
    if not reads:
        raise _refused(first, last, f"it reads nothing that {first.name} stores")
    for load in reads:
        for theirs, mine in zip(stores[load.tensor].terms, load.terms, strict=True):
            a, b = theirs.variable, mine.variable
            if a is None or b is None or a.dim != b.dim:
                raise _refused(first, last, f"{load.tensor} is stored or read at other than plain indices")
            if a not in axes:
                if b in own:
                    # A block of the first has all of this dim, blocks of the last have some of it each.
                    raise _refused(first, last, f"several of its blocks read one block's {load.tensor}")
            elif b not in own:
                spanned.add(a)
            elif ties.setdefault(b, a) != a:
                raise _refused(first, last, f"its index over {b.dim} belongs to two of {first.name}")
    torn = [index for index in ties.values() if index in spanned]
    if torn:
        raise _refused(first, last, f"it reads some tiles along {torn[0].dim} and all of them, too")
    return ties


def _refused(first: Kernel, last: Kernel, why: str) -> Infeasible:
    return Infeasible(f"kernel {last.name} cannot be merged into {first.name}: {why}")


def mergeable(first: Kernel, last: Kernel) -> bool:
    """Whether blocks of `last` may be the ends of those of `first`."""
    try:
        joint_of(first, last)
    except Infeasible:
        return False
    return True


def verify_merged(tp: TileProgram) -> None:
    """Raise `Bug` where a kernel is marked as merged into the one before and cannot be."""
    for number, kernel in enumerate(tp.kernels):
        if not kernel.merged:
            continue
        if not number or tp.kernels[number - 1].merged:
            before = "there is none before it" if not number else "that one is merged itself"
            raise Bug(f"{tp.name}: kernel {kernel.name} is merged into the kernel before, but {before}")
        try:
            joint_of(tp.kernels[number - 1], kernel)
        except Infeasible as error:
            raise Bug(f"{tp.name}: {error}") from error


def apart(tp: TileProgram) -> TileProgram:
    """The tile program with a launch for every kernel."""
    return replace(tp, kernels=tuple(replace(k, merged=False) for k in tp.kernels))


def tied(stores: Mapping[str, Sequence[Term]], loads: Mapping[str, Sequence[Term]]) -> dict[Index, Index]:
    """For each index of loads from some tensors, the index along which the tensor's dim was stored; parts of
    splits aside, and those left out that would go with two."""
    found: dict[Index, Index] = {}
    torn: set[Index] = set()
    for name, terms in loads.items():
        for theirs, mine in zip(stores.get(name, ()), terms, strict=False):
            a, b = theirs.variable, mine.variable
            if a is None or b is None or isinstance(a.dim, Parts):
                continue
            if found.setdefault(b, a) != a:
                torn.add(b)
    return {b: a for b, a in found.items() if b not in torn}


__all__ = ["Joint", "apart", "joint_of", "mergeable", "tied", "verify_merged"]
