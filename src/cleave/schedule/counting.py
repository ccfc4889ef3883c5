"""What blocks do, counted for many tilings of one kernel at once (design.md, section 4, step 6).

The statements are walked once with the spans of a few representative blocks, so loops that follow a
predicate's bounds count what they visit. Every number is an array: a row for each tiling, a column for each
sample. Kernels whose statements differ in numbers only (`family.py`) are counted in one walk.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cleave.ir.dims import Dim, Extent, Index, Lookup, Parts, Term, size_of
from cleave.schedule.machine import Machine, width
from cleave.schedule.tiles import (
    AlignBound,
    Bound,
    Carry,
    Compute,
    ContractTile,
    Kernel,
    LimitBound,
    Load,
    Loop,
    PartBound,
    ReduceTile,
    SizeBound,
    SpanBound,
    Statement,
    Store,
)

Reals = NDArray[np.float64]
Counts = NDArray[np.int64]
Span = tuple[Counts, Counts]

SPECIAL = frozenset(
    {
        "exp",
        "exp2",
        "log",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "tanh",
        "tanh_coarse",
        "erf",
        "sin",
        "cos",
        "pow",
        "div",
        "mod",
        "floordiv",
    }
)
DIVISION = frozenset({"div", "pow", "mod", "floordiv"})
"""Correctly rounded division takes several instructions beside the special function."""


MOST_PARTS, PARTS_REGISTERS = 8, 64
"""Parts whose states a GPU's merge has on their way at once, and registers of a thread that they may take."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """One loop of a kernel, in order of text: for each tile that a tiling gives its index, where it runs."""

    tiles: Counts
    ends: tuple[tuple[int, Bound, Bound], ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A kernel with a row of numbers for each of its tilings: tiles of the grid, of what every block spans,
    and of its loops. `kernel` is any one of them."""

    kernel: Kernel
    rows: int
    tiles: Mapping[Index, Counts]
    loops: tuple[Stretch, ...]
    warps: Counts
    stages: Counts
    groups: Counts
    tallies: dict[int, Tally] = field(default_factory=dict[int, "Tally"])
    """What each body does, by the number of its loop: the same for all rows, so that a family keeps it."""


@dataclass(slots=True)
class Tally:
    """What one run through a body does, loops inside it aside: how often something of some extent is computed
    by ordinary and by special functions, and the statements that are looked at one by one."""

    vectors: dict[tuple[Index, ...], float] = field(default_factory=dict[tuple[Index, ...], float])
    specials: dict[tuple[Index, ...], float] = field(default_factory=dict[tuple[Index, ...], float])
    others: list[Loop | Load | Store] = field(default_factory=list[Loop | Load | Store])
    reduces: list[tuple[tuple[Index, ...], bool]] = field(
        default_factory=list[tuple[tuple[Index, ...], bool]]
    )
    """What is kept of each reduction, and whether it goes over the first index of its tile: warps divide
    that one."""
    products: list[tuple[ContractTile, bool]] = field(default_factory=list[tuple[ContractTile, bool]])
    """With whether an operand is computed in this body: it comes out of registers."""
    staged: set[str] = field(default_factory=set[str])
    """These operands."""


def column(values: Sequence[int]) -> Counts:
    """A number for each row."""
    return np.array(values, np.int64).reshape(-1, 1)


def sheet_of(kernel: Kernel) -> Sheet:
    """The sheet of one kernel as it is."""
    tiles = {x.index: column([x.tile]) for x in (*kernel.grid, *kernel.whole)}
    loops = [s for s in statements(kernel.body) if isinstance(s, Loop)]
    stretches = tuple(Stretch(column([x.tile]), ((x.tile, x.start, x.stop),)) for x in loops)
    return Sheet(
        kernel, 1, tiles, stretches, column([kernel.warps]), column([kernel.stages]), column([kernel.groups])
    )


@dataclass(slots=True)
class Count:
    """The work of all blocks of a kernel, for each row of a sheet. `parts` are the part counts of splits, by
    row where they are arrays."""

    sheet: Sheet
    sizes: Mapping[Dim, int]
    machine: Machine
    parts: Mapping[Dim, int | Counts]
    loaded: dict[str, Reals] = field(default_factory=dict[str, Reals])
    stored: Reals | float = 0.0
    matrix: Reals | float = 0.0
    flops: Reals | float = 0.0
    specials: Reals | float = 0.0
    vectors: Reals | float = 0.0
    steps: Reals | float = 0.0
    staged: Reals | float = 0.0
    """Operands of products that are computed in a step, other than by warp groups beside it."""
    turns: Reals | float = 0.0
    reopened: Reals | float = 0.0
    """Loops with products that go on where another one ended (the edge of a mask), with loads of their own on
    the way: warp groups have one pipeline for both."""
    meetings: Reals | float = 0.0
    """Reductions beside a product, in a loop, for which warps must exchange what they have."""
    passes: dict[str, int] = field(default_factory=dict[str, int])
    """How often a block goes over what it loads of a tensor."""
    pieces: dict[str, Reals] = field(default_factory=dict[str, Reals])
    """In how many pieces of memory, each by itself, lies what is loaded of a tensor."""
    blocks: Counts = field(default_factory=lambda: column([1]))
    filled: Reals = field(default_factory=lambda: np.ones((1, 1)))
    """Blocks, of those at an edge only the part that is there."""
    weights: Reals = field(default_factory=lambda: np.ones((1, 1)))
    _spans: dict[Index, Span] = field(default_factory=dict[Index, Span])
    _tiles: dict[Index, Counts] = field(default_factory=dict[Index, Counts])
    _next: int = 0
    _depth: int = 0
    _starts: dict[Dim, tuple[Bound, int]] = field(default_factory=dict[Dim, "tuple[Bound, int]"])
    _pass: int = 1

    def __post_init__(self) -> None:
        if self.machine.kind == "cuda":
            self._tiles = dict(self.sheet.tiles)
        kernel = self.sheet.kernel
        for axis in kernel.grid:
            size, tile = self.size(axis.index), self.sheet.tiles[axis.index]
            self.blocks, self.filled = self.blocks * -(-size // tile), self.filled * (size / tile)
        self._sample()
        self._walk(kernel.body, np.ones((1, 1)))

    # ------------------------------------------------------------ blocks

    def size(self, index: Index) -> int | Counts:
        """The size of an index; that of the parts of a split by row."""
        if isinstance(index.dim, Parts):
            return self.parts.get(index.dim.of, 1)
        return size_of(index.dim, self.sizes)

    def _sample(self) -> None:
        """The spans of some blocks: three along each index that a loop's bounds follow, else the middle. A
        sample that repeats another weighs nothing."""
        kernel = self.sheet.kernel
        spread = set(followed(kernel.body))
        axes = [axis.index for axis in kernel.grid]
        inner = 3 ** sum(index in spread for index in axes)
        samples = inner
        for index in axes:
            size, tile = self.size(index), self.sheet.tiles[index]
            count = -(-size // tile)
            if index in spread:
                inner //= 3
                which: Counts = np.arange(samples, dtype=np.int64) // inner % 3
                places = np.concatenate([count // 6, count // 2, 5 * count // 6], 1)
                new = np.concatenate([np.ones_like(count), places[:, 1:] != places[:, :-1]], 1)
                place = places[:, which]
                self.weights = self.weights * new[:, which]
            else:
                place = (count - 1) // 2  # never the last of several, which may be short
            self._spans[index] = (place * tile, np.minimum(size, (place + 1) * tile))
        for whole in kernel.whole:
            self._spans[whole.index] = (column([0]), column([size_of(whole.index.dim, self.sizes)]))

    def total(self, value: Reals | float) -> Reals:
        """What all blocks of each row do, from what the samples do."""
        weights = np.broadcast_to(self.weights, np.broadcast_shapes(self.weights.shape, np.shape(value)))
        mean = (weights * value).sum(1, keepdims=True) / weights.sum(1, keepdims=True)
        return mean * self.blocks

    # ------------------------------------------------------------ statements

    def _extent(self, axes: Sequence[Index], padded: bool) -> Reals:
        """Elements of a tile over indices. A GPU computes the padded tile, a CPU what is there."""
        total = np.ones((1, 1))
        for index in axes:
            tile = self._tiles.get(index) if padded else None
            if tile is None:
                start, stop = self._spans[index]
                tile = stop - start
            total = total * tile
        return total

    def _walk(self, body: Sequence[Statement], times: Reals) -> None:
        tally = self.sheet.tallies.get(self._next)
        if tally is None:
            tally = self.sheet.tallies[self._next] = _tally(body, self.machine)
        for axes, often in tally.vectors.items():
            self.vectors = self.vectors + times * self._extent(axes, True) * often
        for axes, often in tally.specials.items():
            self.specials = self.specials + times * self._extent(axes, True) * often
        if tally.staged:
            self.staged = self.staged + times * len(tally.staged) * (self.sheet.groups == 0)
        for product, staged in tally.products:
            self._contract(product, staged, times)
        if self._depth and tally.products:
            for axes, crosses in tally.reduces:
                self._meet(axes, crosses, times)
        for statement in tally.others:
            match statement:
                case Loop():
                    self._loop(statement, times)
                case Load():
                    self._load(statement, times)
                case Store():
                    self._store(statement, times)

    def _loop(self, loop: Loop, times: Reals) -> None:
        stretch = self.sheet.loops[self._next]
        self._next += 1
        start, stop = self._ends(stretch)
        trips = np.maximum(0, -((start - stop) // stretch.tiles))
        stop_first = np.minimum(start + stretch.tiles, stop)
        self._spans[loop.index] = (start, stop_first)
        together = self._together(loop) if isinstance(loop.index.dim, Parts) else 1.0
        self.steps = self.steps + times * trips / together
        if not loop.exact:
            self.vectors = self.vectors + times * trips * stretch.tiles
        if not self._depth:
            start_of, number = self._starts.get(loop.index.dim, (loop.start, 0))
            if loop.start != start_of and any(isinstance(s, ContractTile) for s in loop.body):
                self.reopened = self.reopened + times * np.minimum(1, trips) * (self.sheet.groups == 0)
            number += loop.start == start_of  # a loop that goes on where another ends is of the same pass
            self._starts[loop.index.dim], self._pass = (start_of, number), max(1, number)
        self._depth += 1
        self._walk(loop.body, times * trips)
        self._depth -= 1
        self._pass = self._pass if self._depth else 1
        del self._spans[loop.index]

    def _together(self, merge: Loop) -> Reals:
        """How many parts a GPU's merge has on their way at once, as registers allow; a CPU's hardly waits."""
        if self.machine.kind != "cuda":
            return np.full((1, 1), 1 / 0.3)
        held = sum(self._extent(s.axes, True) for s in merge.body if isinstance(s, Load))
        room = PARTS_REGISTERS * 32 * self.sheet.warps
        return np.maximum(1.0, np.minimum(MOST_PARTS, room // np.maximum(1.0, held)))

    def _meet(self, axes: tuple[Index, ...], crosses: bool, times: Reals) -> None:
        few = self._extent(axes, True) < 16 * self.sheet.warps
        self.meetings = self.meetings + times * (few | crosses) * (self.sheet.groups == 0)

    def _store(self, store: Store, times: Reals) -> None:
        amount = times * self._extent(_indices(store.terms), False) * self._store_width(store)
        for index in store.first:
            amount = amount * (self._spans[index][0] == 0)
        self.stored = self.stored + amount

    def _store_width(self, store: Store) -> int:
        return next(width(t.dtype) for t in self.sheet.kernel.tensors if t.name == store.tensor)

    def _load(self, load: Load, times: Reals) -> None:
        one = width(load.dtype)
        asked = self._extent(load.axes, False) * one
        run = one * self._run(load.terms)
        waste = np.maximum(1.0, np.minimum(self.machine.gather_words, asked) / run)
        whole = run if self.machine.kind == "cuda" else np.maximum(run, one * self._stretch(load))
        self.pieces[load.tensor] = self.pieces.get(load.tensor, 0.0) + times * asked / np.maximum(1, whole)
        self.passes[load.tensor] = max(self.passes.get(load.tensor, 1), self._pass)
        self.loaded[load.tensor] = self.loaded.get(load.tensor, 0.0) + times * asked * waste

    def _run(self, terms: Sequence[Term]) -> Counts:
        """Elements that lie side by side in memory."""
        run = column([1])
        for leaf, c in terms[-1].leaves if terms else ():
            if isinstance(leaf, Lookup):
                return column([1])
            if isinstance(leaf, Index) and abs(c) == 1:
                start, stop = self._spans[leaf]
                run = np.maximum(run, stop - start)
        return run

    def _stretch(self, load: Load) -> Counts:
        """Elements in a row, where whole rows lie one behind the other (a dense layout is assumed)."""
        stretch, whole = column([1]), np.full((1, 1), True)  # whether all dims behind are read whole, by row
        dims = [d for t in self.sheet.kernel.tensors if t.name == load.tensor for g in t.layout for d in g]
        for term, dim in zip(reversed(load.terms), reversed(dims), strict=True):
            (leaf, factor), *others = term.leaves or ((None, 0),)
            if others or not isinstance(leaf, Index) or factor != 1:
                break
            start, stop = self._spans[leaf]
            stretch = np.where(whole, stretch * (stop - start), stretch)
            if isinstance(dim, Parts):
                break
            whole = whole & (stop - start == size_of(dim, self.sizes))
        return stretch

    def _contract(self, statement: ContractTile, staged: bool, times: Reals) -> None:
        axes = dict.fromkeys((*statement.axes, *statement.over))
        flops = times * 2 * self._extent(list(axes), True)
        self.flops = self.flops + flops
        # Warp groups compute an operand while another group's product runs, at the price of taking turns.
        groups = self.sheet.groups > 0
        share = np.where(groups, 1.0, self.machine.staged) if staged else 1.0
        rows, efficiency = self._efficiency(statement)
        if staged and self.machine.kind == "cuda":
            few = (rows < 16 * self.sheet.warps) & ~groups
            share = share * np.where(few, self.machine.narrow, 1.0)
        self.matrix = self.matrix + flops / efficiency / share
        self.turns = self.turns + times * (groups & staged)

    def _efficiency(self, statement: ContractTile) -> tuple[Reals, Reals]:
        """The rows of a product, and the share of the matrix rate that one of its shape reaches."""
        sides = [
            self._extent([i for i in statement.axes if i in own], True) for own in self._sides(statement)
        ]
        rows, columns = np.maximum(1.0, sides[0]), np.maximum(1.0, sides[1])
        if self.machine.kind == "cuda":
            reached = rows * columns / (rows + columns) / self.machine.full_product
            return rows, np.maximum(0.05, np.minimum(1.0, reached))
        # A register block of the CPU is about six rows by sixteen columns; short sides leave it empty. To put
        # operands in the order of reading takes as long as some rows and columns more; few rows do without,
        # and wait for the second-level cache (measured: 27 GFLOP/s with one row, 42 with two or four, of 85).
        few = rows <= 4
        ordering = np.where(few, 0.0, 10 / rows + 8 / columns)
        full = np.where(few, np.minimum(0.5, 0.32 * rows), np.minimum(1.0, rows / 6))
        filled = full * np.minimum(1.0, columns / 16) / (1.0 + ordering)
        return rows, np.maximum(0.05, filled)

    def _sides(self, statement: ContractTile) -> tuple[set[Index], set[Index]]:
        last = statement.axes[-1:] if statement.axes else ()
        for lane in self.sheet.kernel.lanes:
            if last and last[0] in lane:
                last = lane
        columns = {i for i in statement.axes if i in last}
        return {i for i in statement.axes if i not in columns}, columns

    # ------------------------------------------------------------ bounds

    def _ends(self, stretch: Stretch) -> Span:
        """Where a loop starts and stops, each row by the bounds for its tile."""
        start, stop = self._bound(stretch.ends[0][1]), self._bound(stretch.ends[0][2])
        for tile, first, last in stretch.ends[1:]:
            here = stretch.tiles == tile
            start = np.where(here, self._bound(first), start)
            stop = np.where(here, self._bound(last), stop)
        return start, stop

    def _bound(self, bound: Bound) -> Counts:
        match bound:
            case SizeBound(extent):
                return self._at(extent)
            case SpanBound(index, end, offset):
                return self._spans[index][1 if end else 0] + self._at(offset)
            case PartBound(part, end, offset):
                assert isinstance(part.dim, Parts)
                size = size_of(part.dim.of, self.sizes)
                chunk = -(-size // np.maximum(1, self.size(part)))
                first = self._spans[part][0]
                limit = np.minimum(size, (first + 1) * chunk) if end else first * chunk
                return limit + self._at(offset)
            case AlignBound(inner, tile, up, origin):
                base = self._bound(origin)
                gap = self._bound(inner) - base
                return base + (-(-gap // tile) if up else gap // tile) * tile
            case LimitBound(kind, bounds):
                limit = np.minimum if kind == "min" else np.maximum
                found = self._bound(bounds[0])
                for inner in bounds[1:]:
                    found = limit(found, self._bound(inner))
                return found

    def _at(self, value: Extent) -> Counts:
        total = column([value.const])
        for dim, factor in value.terms:
            parts = self.parts.get(dim.of, 1) if isinstance(dim, Parts) else size_of(dim, self.sizes)
            total = total + factor * parts
        return total


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """All statements in order of text, those inside loops too."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)


def _tally(body: Sequence[Statement], machine: Machine) -> Tally:
    fused = _fused(body) if machine.kind == "cuda" else frozenset[str]()
    found = Tally()
    computed: set[str] = set()
    first = {
        s.out: s.axes[0] for s in body if isinstance(s, Compute | Load | ReduceTile | ContractTile) and s.axes
    }
    for statement in body:
        match statement:
            case Compute(out, axes, _, fn, _) if out not in fused:
                computed.add(out)
                if fn in SPECIAL:
                    often = machine.division if fn in DIVISION else 1.0
                    found.specials[axes] = found.specials.get(axes, 0.0) + often
                else:
                    found.vectors[axes] = found.vectors.get(axes, 0.0) + 1
            case ReduceTile(_, axes, _, _, over, _):
                found.reduces.append((axes, first.get(statement.arg) not in axes))
                every = (*axes, *over)
                found.vectors[every] = found.vectors.get(every, 0.0) + 1
            case ContractTile():
                own = computed & set(statement.args)
                found.products.append((statement, bool(own)))
                found.staged |= own
            case Loop() | Load() | Store():
                found.others.append(statement)
            case _:
                pass
    return found


def _fused(body: Sequence[Statement]) -> frozenset[str]:
    """Pointwise operations that take no instruction of their own: a product with the only sum or difference
    that reads it, and the sum that adds a contraction to its accumulator."""
    reads: dict[str, list[str]] = {}
    for statement in statements(body):
        if isinstance(statement, Compute | ContractTile):
            kind = statement.fn if isinstance(statement, Compute) else "contract"
            for name in statement.args:
                reads.setdefault(name, []).append(kind)
        elif isinstance(statement, ReduceTile):
            reads.setdefault(statement.arg, []).append("reduce")
        elif isinstance(statement, Store | Carry):
            name = statement.value if isinstance(statement, Store) else statement.init
            reads.setdefault(name, []).append("kept")
        elif isinstance(statement, Loop):
            for _, name in statement.updates:
                reads.setdefault(name, []).append("kept")
    products = [s.out for s in body if isinstance(s, Compute) and s.fn == "mul" and s.dtype == "f32"]
    found = {name for name in products if reads.get(name) in (["add"], ["sub"])}
    dots = {s.out for s in body if isinstance(s, ContractTile) and reads.get(s.out) == ["add"]}
    found |= {s.out for s in body if isinstance(s, Compute) and s.fn == "add" and dots & set(s.args)}
    return frozenset(found)


def followed(body: Sequence[Statement]) -> Iterator[Index]:
    """The indices whose spans the bounds of loops follow."""
    for statement in statements(body):
        if isinstance(statement, Loop):
            yield from _in_bound(statement.start)
            yield from _in_bound(statement.stop)


def _in_bound(bound: Bound) -> Iterator[Index]:
    match bound:
        case SpanBound(index) | PartBound(index):
            yield index
        case AlignBound(inner, _, _, origin):
            yield from _in_bound(inner)
            yield from _in_bound(origin)
        case LimitBound(_, bounds):
            for inner in bounds:
                yield from _in_bound(inner)
        case SizeBound():
            pass


def _indices(terms: Sequence[Term]) -> list[Index]:
    found = (leaf for term in terms for leaf, _ in term.leaves if isinstance(leaf, Index))
    return list(dict.fromkeys(found))
