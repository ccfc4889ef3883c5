"""What the Triton emitter knows of a kernel before it writes: lanes, their order, and which meet in a dot.

A *lane* is one block axis. Indices that play one role together share a lane, flattened with the first
outermost; an index whose tile is 1 is a scalar and takes no part. Lanes are numbered in the order in which
every block lists its axes, chosen so that a dot's operands come as (M, K) and (K, N) where possible. A `Tile`
is an emitted value, a `Span` an index in scope.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from cleave.errors import Infeasible
from cleave.ir.dims import Index
from cleave.ir.ops import Number
from cleave.schedule.tiles import ContractTile, Fill, Kernel, Load, Loop, Measure, Statement, Store
from cleave.schedule.walks import loops_of

DOT_LEAST = 16
"""The least length of a lane that a dot multiplies."""

LARGEST = 1 << 20
"""Triton refuses blocks of more elements."""


@dataclass(frozen=True, slots=True)
class Tile:
    """An emitted value: `text` is a variable, or a literal where `literal` is not None. `axes` are its
    indices as declared, `lanes` its block axes in order (fewer where it is the same along a lane), and `made`
    the indices that each flattens. Along the indices of `zero` whatever lies outside the span is 0. `weight`
    is not 0 for an integer held in the type of indices: how many sizes its magnitude may add up to."""

    text: str
    dtype: str
    axes: tuple[Index, ...] = ()
    lanes: tuple[int, ...] = ()
    made: tuple[tuple[Index, ...], ...] = ()
    zero: frozenset[Index] = frozenset()
    weight: int = 0
    literal: Number | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """An index in scope: texts of its first position, of the limit that its positions stay below, and, once
    they are written, of its positions (a block of rank 1, or a scalar where `tile` is 1), of its end and of
    the mask of positions inside (`""` if all are). `full`: no tile reaches beyond the limit."""

    tile: int
    start: str
    limit: str
    full: bool
    position: str = ""
    end: str = ""
    mask: str = ""


@dataclass(frozen=True, slots=True)
class Roles:
    """A contraction as a dot: the lanes of each role, and the number of the argument that holds M."""

    batch: tuple[int, ...]
    m: int
    k: int
    n: int
    left: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """The lanes of a kernel: `members[number]` in order, `of` the lane of each index."""

    members: tuple[tuple[Index, ...], ...]
    of: Mapping[Index, int]
    dots: frozenset[int]
    exact: frozenset[int] = frozenset()
    """Lanes whose length is what it is, because no block has all of it."""

    def over(self, indices: Iterable[Index], tiles: Mapping[Index, int]) -> tuple[int, ...]:
        """The lanes of some indices, in order; scalars have none."""
        return tuple(sorted({self.of[i] for i in indices if tiles[i] > 1}))

    def inside(self, lane: int, tiles: Mapping[Index, int]) -> tuple[Index, ...]:
        """The indices in scope that a lane flattens."""
        return tuple(i for i in self.members[lane] if tiles.get(i, 1) > 1)

    def length(self, lane: int, tiles: Mapping[Index, int]) -> int:
        """The block length of a lane: a power of two, 16 or more where a dot wants it."""
        total = 1
        for index in self.inside(lane, tiles):
            total *= tiles[index]
        if lane in self.exact:
            return total
        return max(power_of_two(total), DOT_LEAST if lane in self.dots else 1)

    def shape(self, lanes: Sequence[int], tiles: Mapping[Index, int]) -> tuple[int, ...]:
        """The block shape over some lanes."""
        shape = tuple(self.length(lane, tiles) for lane in lanes)
        total = 1
        for length in shape:
            total *= length
        if total > LARGEST:
            raise Infeasible(f"a block of {total} elements; Triton allows {LARGEST}; use smaller tiles")
        return shape


def power_of_two(value: int) -> int:
    """The least power of two that is not below a positive number."""
    return 1 << (value - 1).bit_length()


# ---------------------------------------------------------------- planning


def plan_lanes(kernel: Kernel) -> Lanes:
    """Number the lanes of a kernel and find those that dots multiply."""
    members = list(kernel.lanes)
    listed = {index for lane in members for index in lane}
    for index in indices_of_kernel(kernel):
        if index not in listed:
            listed.add(index)
            members.append((index,))
    of = {index: number for number, lane in enumerate(members) for index in lane}
    plain = Lanes(tuple(members), of, frozenset())
    dots = [roles for _, roles in _dots(kernel, plain)]
    order = _order(len(members), dots)
    place = {old: new for new, old in enumerate(order)}
    wide = frozenset(place[lane] for r in dots for lane in (r.m, r.k, r.n))
    return Lanes(tuple(members[old] for old in order), {i: place[old] for i, old in of.items()}, wide)


def indices_of_kernel(kernel: Kernel) -> tuple[Index, ...]:
    """All indices: of the grid, whole ones, then of loops, in order."""
    found = dict.fromkeys((*(a.index for a in kernel.grid), *(w.index for w in kernel.whole)))
    found.update(dict.fromkeys(loop.index for loop in loops_of(kernel.body)))
    return tuple(found)


def first_tiles(kernel: Kernel) -> dict[Index, int]:
    """The tiles of the indices that are in scope in the whole kernel."""
    return {a.index: a.tile for a in kernel.grid} | {w.index: w.tile for w in kernel.whole}


Known = dict[str, tuple[tuple[Index, ...], str]]


def lanes_of_dots(kernel: Kernel, lanes: Lanes) -> Iterator[Roles]:
    """The roles of lanes in all contractions that dots do."""
    return (roles for _, roles in _dots(kernel, lanes))


def _dots(kernel: Kernel, lanes: Lanes) -> Iterator[tuple[ContractTile, Roles]]:
    yield from _dots_of(kernel.body, first_tiles(kernel), {}, lanes)


def _dots_of(
    body: Sequence[Statement], tiles: dict[Index, int], known: Known, lanes: Lanes
) -> Iterator[tuple[ContractTile, Roles]]:
    for statement in body:
        match statement:
            case Loop():
                inner = {**tiles, statement.index: statement.tile}
                yield from _dots_of(statement.body, inner, dict(known), lanes)
            case Store():
                pass
            case Measure():
                known[statement.out] = ((), statement.dtype)
            case _:
                if isinstance(statement, ContractTile):
                    roles = roles_of(statement, [known[a] for a in statement.args], lanes, tiles)
                    if roles:
                        yield statement, roles
                known[statement.out] = (statement.axes, statement.dtype)


def roles_of(
    contract: ContractTile,
    args: Sequence[tuple[Sequence[Index], str]],
    lanes: Lanes,
    tiles: Mapping[Index, int],
) -> Roles | None:
    """How a contraction of arguments with these axes and dtypes is a dot, or None if it is not one."""
    if len(args) != 2 or contract.dtype not in ("f32", "f16", "bf16"):
        return None
    if any(dtype not in ("f32", "f16", "bf16") for _, dtype in args):
        return None
    a, b = (set(lanes.over(axes, tiles)) for axes, _ in args)
    over, out = set(lanes.over(contract.over, tiles)), set(lanes.over(contract.axes, tiles))
    batch, shared = tuple(sorted(a & b & out)), sorted(a & b & over)
    left, right = sorted(a & out - b), sorted(b & out - a)
    if over & out or over != set(shared) or (a | b) - out - over:
        return None
    if not (len(shared) == len(left) == len(right) == 1) or len(batch) > 1:
        return None
    if not set(lanes.inside(shared[0], tiles)) <= set(contract.over):
        return None
    m, n = left[0], right[0]
    return Roles(batch, min(m, n), shared[0], max(m, n), 0 if m < n else 1)


def _order(count: int, dots: Sequence[Roles]) -> list[int]:
    """An order of lanes with K between M and N for as many dots as possible, the earlier dots first."""
    after: dict[int, set[int]] = {lane: set() for lane in range(count)}

    def reaches(start: int, goal: int) -> bool:
        stack, seen = [start], {start}
        while stack:
            lane = stack.pop()
            if lane == goal:
                return True
            stack += [x for x in sorted(after[lane]) if x not in seen]
            seen |= after[lane]
        return False

    def add(edges: Sequence[tuple[int, int]]) -> bool:
        added: list[tuple[int, int]] = []
        for before, then in edges:
            if reaches(then, before):
                for x, y in added:
                    after[x].discard(y)
                return False
            if then not in after[before]:
                after[before].add(then)
                added.append((before, then))
        return True

    for r in dots:
        first, last = (r.m, r.n) if r.left == 0 else (r.n, r.m)
        heads = [(b, lane) for b in r.batch for lane in (r.m, r.k, r.n)]
        if not add([*heads, (first, r.k), (r.k, last)]):
            add([*heads, (last, r.k), (r.k, first)])
    order: list[int] = []
    while len(order) < count:
        left = [lane for lane in range(count) if lane not in order]
        order.append(next(x for x in left if not any(x in after[y] for y in left)))
    return order


def loaded_twice(body: Sequence[Statement], updates: Sequence[tuple[str, str]]) -> frozenset[str]:
    """The loads of a loop that a product and something else read. Two of the same are one to Triton."""
    loads = {s.out: replace(s, out="") for s in body if isinstance(s, Load)}
    others = set(uses_of([s for s in body if not isinstance(s, ContractTile)])) | {v for _, v in updates}
    multiplied = {loads[a] for s in body if isinstance(s, ContractTile) for a in s.args if a in loads}
    both = multiplied & {load for name, load in loads.items() if name in others}
    return frozenset(name for name, load in loads.items() if load in both)


def uses_of(body: Sequence[Statement]) -> dict[str, int]:
    """How often each name is read in a body, loops inside it included."""
    counts: dict[str, int] = {}

    def note(name: str) -> None:
        counts[name] = counts.get(name, 0) + 1

    for statement in body:
        match statement:
            case Loop():
                for name, count in uses_of(statement.body).items():
                    counts[name] = counts.get(name, 0) + count
                for target, value in statement.updates:
                    note(target)
                    note(value)
            case Load() | Fill() | Measure():
                pass
            case Store():
                note(statement.value)
            case _:
                for name in (
                    *getattr(statement, "args", ()),
                    *(getattr(statement, key) for key in ("arg", "init") if hasattr(statement, key)),
                ):
                    note(name)
    return counts
