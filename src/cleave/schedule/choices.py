"""The ways to do one kernel of a plan, cheapest first: its forms, split or not, and their tilings.

All tilings of a form are costed together; kernels are written out only for the choices that are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, prod

from cleave.errors import Infeasible
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim, Parts, size_of
from cleave.schedule.cost import Cost, costs, held_bytes, in_turn, merged_cost, streams
from cleave.schedule.counting import column, statements
from cleave.schedule.family import Families, Family
from cleave.schedule.kernels import Built, build, forms, split, splittable
from cleave.schedule.machine import Machine
from cleave.schedule.merging import mergeable
from cleave.schedule.room import only_loads, shared_bytes
from cleave.schedule.space import limits_of, merged_tiling, tilings
from cleave.schedule.specs import Spec
from cleave.schedule.tiles import Kernel, Loop, Tensor
from cleave.schedule.tiling import Tiling

_LEAST_TILES = {"cpu": 1, "cuda": 2}
"""Tiles that a part of a split has at least: fewer don't pay for the merge. Those of a CPU are long."""

_ROUNDING = 1e-9
MOST_LOOPS = 12
"""Loops of a kernel. Chains of products that are not cut have more, since each computes its operands anew;
there are cuts of the same program."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A kernel that is not written out, and what it costs. `merged`: as the end of the one before."""

    family: Family
    tiling: Tiling
    cost: Cost
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to do one kernel of a plan: a kernel, or the two of a split."""

    drafts: tuple[Draft, ...]
    spaces: tuple[Tensor, ...]
    limits: tuple[tuple[Atom, int], ...]
    splits: tuple[Dim, ...]
    cost: float

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels, written out; what turns out not to be mergeable then keeps its launch."""
        made: list[Kernel] = []
        for draft in self.drafts:
            kernel = draft.family.kernel(draft.tiling)
            made.append(replace(kernel, merged=draft.merged and mergeable(made[-1], kernel)))
        return tuple(made)


def choices(
    candidate: Candidate,
    spec: Spec,
    sizes: Mapping[Dim, int],
    machine: Machine,
    order: Sequence[str],
    count: int,
) -> list[Choice]:
    """The cheapest ways to do one kernel, split or not, cheapest first."""
    found: list[Choice] = []
    reasons: list[str] = []
    for form in forms(spec, sizes, machine):
        try:
            built = build(form)
            if len(built.graph.loops) > MOST_LOOPS:
                raise Infeasible(f"{len(built.graph.loops)} loops, which compute the same again and again")
            single = tiled(built, sizes, machine, order)
        except Infeasible as error:
            reasons.append(str(error))
            continue
        blocks = min((_blocks(c.drafts[0].tiling, sizes) for c in single[:1]), default=0)
        split_choices: list[Choice] = []
        for members in splittable(built):
            over = _over(built, members)
            # As many blocks as there are places may still read twice what the parts of larger ones read once.
            few = blocks <= machine.cores * machine.blocks_per_core - (machine.kind == "cuda")
            if over in candidate.splits or (not candidate.splits and few):
                split_choices += _split(built, members, over, sizes, machine, order, over in candidate.splits)
        found += [*single, *split_choices]
    if not found:
        raise Infeasible(f"kernel {spec.name}: {'; '.join(dict.fromkeys(reasons))}")
    if any(c.splits for c in found) and candidate.splits:
        found = [c for c in found if c.splits]
    return _kept(sorted(found, key=lambda c: c.cost), count)


def _kept(ranked: Sequence[Choice], count: int) -> list[Choice]:
    """The cheapest of each structure and the next in line, each kernel once."""
    firsts: dict[object, Choice] = {}
    for choice in ranked:
        first = choice.drafts[0]
        key = (len(choice.drafts), bool(choice.limits), first.family.loops, first.tiling.groups)
        key = (*key, choice.drafts[-1].merged)
        firsts.setdefault(key, choice)
    kept: list[Choice] = []
    for choice in (ranked[0], *firsts.values(), *ranked):
        if len(kept) == count + len(firsts):
            break
        # What is the same costs the same, up to rounding: little is written out to be compared.
        beside = [k for k in kept if abs(k.cost - choice.cost) <= _ROUNDING * k.cost]
        if all(k is not choice and k.kernels != choice.kernels for k in beside):
            kept.append(choice)
    return sorted(kept, key=lambda c: c.cost)


def _over(built: Built, members: frozenset[str]) -> Dim:
    return next(s.over for s, _, _ in built.states.values() if s.key in members)


def tiled(built: Built, sizes: Mapping[Dim, int], machine: Machine, order: Sequence[str]) -> list[Choice]:
    """All tilings of a kernel that is not split."""
    every = tilings(built, sizes, machine)
    parts: list[dict[Dim, int]] = [{} for _ in every]
    drafts = _drafts(built, every, parts, sizes, machine, order)
    found = [Choice((d,), (), tuple(limits_of(d.tiling, built).items()), (), d.cost.seconds) for d in drafts]
    return sorted(found, key=lambda c: c.cost)


def _drafts(
    built: Built,
    every: Sequence[Tiling],
    parts: Sequence[Mapping[Dim, int]],
    sizes: Mapping[Dim, int],
    machine: Machine,
    order: Sequence[str],
) -> list[Draft]:
    """The kernels of some tilings, costed at the part counts that each comes with (of the same dims)."""
    families = _families_of(built)
    members: dict[Family, list[int]] = {}
    for number, tiling in enumerate(every):
        members.setdefault(families.of(tiling, machine, order), []).append(number)
    found: dict[int, Draft] = {}
    for family, numbers in members.items():
        counts = {dim: column([parts[n][dim] for n in numbers]) for dim in parts[numbers[0]]}
        own = costs(family.sheet([every[n] for n in numbers]), sizes, machine, counts)
        found.update({n: Draft(family, every[n], own.row(row)) for row, n in enumerate(numbers)})
    return [found[n] for n in range(len(every))]


def _families_of(built: Built) -> Families:
    families = built.kept.get("families")
    if not isinstance(families, Families):
        families = built.kept["families"] = Families(built)
    return families


def _split(
    built: Built,
    members: frozenset[str],
    over: Dim,
    sizes: Mapping[Dim, int],
    machine: Machine,
    order: Sequence[str],
    asked: bool,
) -> list[Choice]:
    """Two kernels: parts, and their merge. The merge's tiling is chosen for the best tiling of the parts."""
    try:
        first, second, spaces = split(built.spec, members, order)
        part, merge = build(first), build(second)
    except Infeasible:
        return []
    names = [*order, *(space.name for space in spaces)]
    every = [(t, _parts_of(part, t, over, sizes, machine)) for t in tilings(part, sizes, machine)]
    every = [(tiling, count) for tiling, count in every if count > 1 or asked]
    numbers = list(dict.fromkeys(count for _, count in every))
    ends = tilings(merge, sizes, machine)
    pairs = [(tiling, {over: count}) for count in numbers for tiling in ends]
    merges = _drafts(merge, [t for t, _ in pairs], [p for _, p in pairs], sizes, machine, names)
    closing: dict[int, Draft] = {}
    for n, count in enumerate(numbers):
        closing[count] = min(merges[n * len(ends) : (n + 1) * len(ends)], key=lambda d: d.cost.seconds)
    drafts = _drafts(part, [t for t, _ in every], [{over: c} for _, c in every], sizes, machine, names)
    found: list[Choice] = []
    for draft, (tiling, count) in zip(drafts, every, strict=True):
        end = closing[count]
        limits = {**limits_of(tiling, part), **limits_of(end.tiling, merge)}
        seconds = in_turn(draft.cost + end.cost, machine).seconds
        found.append(Choice((draft, end), spaces, tuple(limits.items()), (over,), seconds))
    if machine.kind == "cuda":
        found += _merged(
            part, merge, list(zip(drafts, every, strict=True)), over, spaces, sizes, machine, names
        )
    return sorted(found, key=lambda c: c.cost)


def _merged(
    part: Built,
    merge: Built,
    drafts: Sequence[tuple[Draft, tuple[Tiling, int]]],
    over: Dim,
    spaces: tuple[Tensor, ...],
    sizes: Mapping[Dim, int],
    machine: Machine,
    names: Sequence[str],
) -> list[Choice]:
    """The same in one launch: the last of a tile's parts merges them, in the tiles of the parts."""
    pairs: list[tuple[Draft, Tiling, int]] = []
    for draft, (tiling, count) in drafts:
        end = merged_tiling(part, merge, tiling, sizes, machine)
        if end is not None:
            pairs.append((draft, end, count))
    if not pairs:
        return []
    ends = _drafts(merge, [e for _, e, _ in pairs], [{over: c} for _, _, c in pairs], sizes, machine, names)
    found: list[Choice] = []
    for (draft, tiling, _), end in zip(pairs, ends, strict=True):
        limits = {**limits_of(draft.tiling, part), **limits_of(tiling, merge)}
        end = replace(end, merged=True, cost=merged_cost(draft.cost, end.cost, machine))
        seconds = draft.cost.seconds + end.cost.seconds
        found.append(Choice((draft, end), spaces, tuple(limits.items()), (over,), seconds))
    return found


# ---------------------------------------------------------------- parts


def _blocks(tiling: Tiling, sizes: Mapping[Dim, int]) -> int:
    """Blocks of a kernel, the parts of a split not counted."""
    return prod(
        ceil(size_of(i.dim, sizes) / tiling.tiles[i]) for i in tiling.grid if not isinstance(i.dim, Parts)
    )


def _parts_of(built: Built, tiling: Tiling, over: Dim, sizes: Mapping[Dim, int], machine: Machine) -> int:
    """How many parts a tiling is split into."""
    outer = {*tiling.grid, *tiling.whole}
    tile = max((t for i, t in tiling.tiles.items() if i.dim == over and i not in outer), default=1)
    held = shared_bytes(built, tiling) if only_loads(built.graph) else 0
    held = machine.core_bytes if tiling.groups else held
    return parts_for(_blocks(tiling, sizes), tile, held, over, sizes, machine)


def parts_for(
    blocks: int, tile: int, held: int, over: Dim, sizes: Mapping[Dim, int], machine: Machine
) -> int:
    """How many parts fill the machine: as many as there are free places for blocks, but each part with
    some tiles; a grid that fills the machine by itself is not split. `held` are the bytes of a core's fast
    memory that limit how many blocks are beside each other (0: nothing does): where a block computes
    between its products, one that only waits for its place is still worth having. Warp groups take all
    registers of a core."""
    beside = machine.blocks_per_core
    if machine.kind == "cuda" and held:
        beside = max(1, min(beside, machine.core_bytes // held))
    most = max(1, ceil(size_of(over, sizes) / (tile * _LEAST_TILES[machine.kind])))
    return max(1, min(machine.cores * beside // max(1, blocks), most))


def kernel_parts(kernel: Kernel, over: Dim, sizes: Mapping[Dim, int], machine: Machine) -> int:
    """How many parts the loop over a dim is split into for a kernel."""
    blocks = prod(
        ceil(size_of(a.index.dim, sizes) / a.tile) for a in kernel.grid if not isinstance(a.index.dim, Parts)
    )
    loops = (s for s in statements(kernel.body) if isinstance(s, Loop))
    tile = max((loop.tile for loop in loops if loop.index.dim == over), default=1)
    held = held_bytes(kernel) if streams(kernel) else 0
    held = machine.core_bytes if kernel.groups else held
    return parts_for(blocks, tile, held, over, sizes, machine)


__all__ = ["Choice", "Draft", "choices", "kernel_parts", "tiled"]
