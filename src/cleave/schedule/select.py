"""The scheduler's front: candidates and sizes in, ranked tile programs out.

`best` builds every form of every kernel of every plan, tries its tilings, and keeps the cheapest by the
cost model. Deterministic: ties go to what was found first. `choose_parts` is the rule by which a launcher
splits a dim over blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from cleave.errors import Infeasible
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim, Part, Parts, size_of
from cleave.ir.ops import Node
from cleave.ir.program import Program
from cleave.schedule.choices import Choice, choices, kernel_parts
from cleave.schedule.cost import Cost, cost_of, in_turn
from cleave.schedule.cuts import Plan, plans
from cleave.schedule.kernels import input_tensors, output_roots
from cleave.schedule.machine import Machine
from cleave.schedule.tiles import Loop, Statement, TileProgram


@dataclass(frozen=True, slots=True)
class Ranked:
    """A tile program, what it costs, and the candidate it computes."""

    tiles: TileProgram
    cost: Cost
    candidate: Candidate


def best(
    candidates: Sequence[Candidate], sizes: Mapping[Dim, int], machine: Machine, count: int = 8
) -> tuple[Ranked, ...]:
    """The cheapest `count` tile programs of all candidates at the given sizes, cheapest first; one without
    limits on dynamic sizes is always among them. `Infeasible` if no candidate can be scheduled."""
    found: list[Ranked] = []
    reasons: list[str] = []
    whole = {(c.program, frozenset(c.folds)) for c in candidates if not c.splits}
    for candidate in candidates:
        if (
            candidate.splits
            and _apart(candidate)
            and (candidate.program, frozenset(candidate.folds)) in whole
        ):
            continue  # the same program unsplit is split as well, wherever its blocks are few
        try:
            found += programs(candidate, sizes, machine, count)
        except Infeasible as error:
            reasons.append(str(error))
    if not found:
        raise Infeasible(
            f"no candidate can be scheduled: {'; '.join(dict.fromkeys(reasons)) or 'none given'}"
        )
    unique: dict[TileProgram, Ranked] = {}
    for item in sorted(found, key=lambda r: r.cost.seconds):
        unique.setdefault(item.tiles, item)
    return tuple(_varied(list(unique.values()), count))


def _apart(candidate: Candidate) -> bool:
    """Whether no value has two Folds, of which the first one would be taken."""
    values = [value for fold in candidate.folds for value in fold.values]
    return len(set(values)) == len(values)


def _varied(ranked: Sequence[Ranked], count: int) -> list[Ranked]:
    """The cheapest of each shape that is not far behind, and one without limits, and one without warp groups
    (some calls allow none), then the next in line: the model ranks tiles of one shape better than shapes, and
    what is returned gets measured."""
    first: dict[object, Ranked] = {}
    for item in ranked:
        first.setdefault(_shape(item.tiles), item)
    near = [r for r in first.values() if r.cost.seconds <= 2 * ranked[0].cost.seconds]
    free = [r for r in ranked if not r.tiles.limits][:1]
    alone = [r for r in ranked if not any(k.groups for k in r.tiles.kernels)][:1]
    wanted = [ranked[0], *free, *alone, *near, *ranked]
    kept = list({r.tiles: r for r in wanted}.values())[:count]
    return sorted(kept, key=lambda r: r.cost.seconds)


def _shape(tiles: TileProgram) -> object:
    """What is left of a tile program without its tile sizes: kernels, grids, loops, and what is split."""
    kernels = tuple(
        (
            k.name,
            k.merged,
            len(k.grid),
            tuple(w.index for w in k.whole),
            tuple(x.index for x in _loops(k.body)),
        )
        for k in tiles.kernels
    )
    return kernels, tiles.splits, bool(tiles.limits)


def programs(
    candidate: Candidate, sizes: Mapping[Dim, int], machine: Machine, count: int = 8
) -> tuple[Ranked, ...]:
    """The cheapest tile programs of one candidate."""
    for dim in (d for n in candidate.program.nodes for d in (*n.dims, *(i.dim for i in n.bound))):
        if isinstance(dim, Parts | Part):
            raise Infeasible(
                f"{candidate.program.name} is written over {dim}; a split is asked for by Candidate.splits"
            )
    bound = candidate.program.bind(sizes)
    found: list[Ranked] = []
    reasons: list[str] = []
    for plan in plans(candidate, bound, machine):
        if plan.form == "step by step" and found and not _repeats(candidate.program, bound, machine):
            break
        try:
            found += _assembled(candidate, plan, bound, machine, count)
        except Infeasible as error:
            reasons.append(str(error))
    if not found:
        raise Infeasible(f"{candidate.program.name}: {'; '.join(reasons)}")
    return tuple(_varied(sorted(found, key=lambda r: r.cost.seconds), count))


def _repeats(program: Program, sizes: Mapping[Dim, int], machine: Machine) -> bool:
    """Whether an output is written along the dims of a reduction that it reads, at more positions than a
    block spans: without a cut every block would compute the reduction again."""
    reductions = [node for node in program.nodes if node.bound]
    for output in program.outputs:
        dims = output.node.dims
        for node in reductions:
            others = prod(size_of(dim, sizes) for dim in dims if dim not in node.dims)
            along = all(index.dim in dims for index in node.bound)
            if along and others > machine.whole_limit and node in _below(output.node):
                return True
    return False


def _below(top: Node) -> set[Node]:
    """All nodes that a node reads, directly or not."""
    found: set[Node] = set()
    stack = [top]
    while stack:
        for access in stack.pop().reads:
            if access.node not in found:
                found.add(access.node)
                stack.append(access.node)
    return found


def _assembled(
    candidate: Candidate, plan: Plan, sizes: Mapping[Dim, int], machine: Machine, count: int
) -> list[Ranked]:
    """Tile programs of a plan: the best choice for each kernel, and the next ones of the dearest."""
    order = [*input_tensors(candidate.program), *(r.tensor.name for r in output_roots(candidate.program))]
    order += [space.name for space in plan.workspaces]
    options = [choices(candidate, spec, sizes, machine, order, count) for spec in plan.specs]
    dearest = max(range(len(options)), key=lambda n: (options[n][0].cost, -n))
    found: list[Ranked] = []
    for choice in options[dearest]:
        chosen = [choice if n == dearest else option[0] for n, option in enumerate(options)]
        tiles = _program(candidate, plan, chosen)
        splits = [dim for c in chosen for dim in c.splits]
        if len(set(splits)) == len(splits):  # each kernel was costed at the part count that it will have
            total = sum((draft.cost for c in chosen for draft in c.drafts), start=Cost(0.0, launches=0))
            cost = in_turn(total, machine)
        else:
            cost = cost_of(tiles, sizes, machine, choose_parts(tiles, sizes, machine))
        found.append(Ranked(tiles, cost, candidate))
    return found


def _program(candidate: Candidate, plan: Plan, chosen: Sequence[Choice]) -> TileProgram:
    program = candidate.program
    limits: dict[Atom, int] = {}
    for atom, limit in (item for choice in chosen for item in choice.limits):
        limits[atom] = min(limit, limits.get(atom, limit))
    spaces = (*plan.workspaces, *(space for choice in chosen for space in choice.spaces))
    return TileProgram(
        program.name,
        tuple(input_tensors(program).values()),
        tuple(root.tensor for root in output_roots(program)),
        spaces,
        tuple(kernel for choice in chosen for kernel in choice.kernels),
        program.sizes,
        tuple(limits.items()),
        tuple(dict.fromkeys(dim for choice in chosen for dim in choice.splits)),
    )


def _loops(body: Sequence[Statement]) -> list[Loop]:
    found: list[Loop] = []
    for statement in body:
        if isinstance(statement, Loop):
            found += [statement, *_loops(statement.body)]
    return found


def choose_parts(tiles: TileProgram, sizes: Mapping[Dim, int], machine: Machine) -> dict[Dim, int]:
    """The part count of each split dim at a launch: enough blocks to fill the machine, each part at least
    two tiles long, never less than 1. A few divisions; made to run at every call."""
    found: dict[Dim, int] = {}
    for over in tiles.splits:
        for kernel in tiles.kernels:
            if any(axis.index.dim == Parts(over) for axis in kernel.grid):
                found[over] = kernel_parts(kernel, over, sizes, machine)
                break
    return found


__all__ = ["Ranked", "best", "choose_parts", "programs"]
