"""What a tile program costs on a machine, by counting (design.md, section 4, step 6).

`time = max(bytes/bandwidth, flops/matrix rate, specials/special rate, issue) * ceil(waves)/waves + prologue +
launches`, per kernel. Everything is counted by walking the statements with the spans of a few
representative blocks, so loops that follow a predicate's bounds cost what they visit. Numbers rank schedules.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, prod

from cleave.ir.dims import Dim, Index, Lookup, Parts, Term, size_of
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
    Measure,
    PartBound,
    ReduceTile,
    SizeBound,
    SpanBound,
    Statement,
    Store,
    TileProgram,
)

SPECIAL = frozenset(
    {
        "exp",
        "exp2",
        "log",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "tanh",
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

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds and what they are made of, for all blocks of all kernels together. `memory` counts bytes that
    cross the memory bus (a tensor once if the last cache holds it), `loaded` those that blocks ask for."""

    seconds: float
    memory: float = 0.0
    loaded: float = 0.0
    flops: float = 0.0
    specials: float = 0.0
    vectors: float = 0.0
    blocks: int = 0
    launches: int = 1

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds,
            self.memory + other.memory,
            self.loaded + other.loaded,
            self.flops + other.flops,
            self.specials + other.specials,
            self.vectors + other.vectors,
            max(self.blocks, other.blocks),
            self.launches + other.launches,
        )


def cost_of(tiles: TileProgram, sizes: Mapping[Dim, int], machine: Machine, parts: Mapping[Dim, int]) -> Cost:
    """The cost of a tile program at the given sizes and part counts."""
    total = Cost(0.0, launches=0)
    for kernel in tiles.kernels:
        total += kernel_cost(kernel, sizes, machine, parts)
    return total


def kernel_cost(kernel: Kernel, sizes: Mapping[Dim, int], machine: Machine, parts: Mapping[Dim, int]) -> Cost:
    """The cost of one kernel."""
    counted: dict[Dim, int] = {Parts(dim): number for dim, number in parts.items()}
    count = _Count(kernel, {**sizes, **counted}, machine, parts)
    blocks = count.blocks
    if blocks == 0:
        return Cost(machine.launch)
    samples = count.samples()
    for spans in samples:
        count.spans = dict(spans)
        count.walk(kernel.body, 1.0)
        count.spans = {}
    share = blocks / len(samples)
    return _timed(count, share, sizes, machine)


@dataclass(slots=True)
class _Count:
    kernel: Kernel
    sizes: Mapping[Dim, int]
    machine: Machine
    parts: Mapping[Dim, int]
    spans: dict[Index, Span] = field(default_factory=dict[Index, Span])
    loaded: dict[str, float] = field(default_factory=dict[str, float])
    stored: float = 0.0
    matrix: float = 0.0
    flops: float = 0.0
    specials: float = 0.0
    vectors: float = 0.0
    steps: float = 0.0
    tiles: dict[Index, int] = field(default_factory=dict[Index, int])
    computed: set[str] = field(default_factory=set[str])
    """Values of the innermost loop that are not loaded: as operands they come out of registers."""

    def __post_init__(self) -> None:
        if self.machine.kind == "cuda":
            self.tiles = {x.index: x.tile for x in (*self.kernel.grid, *self.kernel.whole)}

    # ------------------------------------------------------------ blocks

    def size(self, index: Index) -> int:
        if isinstance(index.dim, Parts):
            return self.parts.get(index.dim.of, 1)
        return size_of(index.dim, self.sizes)

    @property
    def blocks(self) -> int:
        """How many blocks the kernel has."""
        return prod(ceil(self.size(a.index) / a.tile) for a in self.kernel.grid)

    def samples(self) -> list[dict[Index, Span]]:
        """The spans of some blocks: three along each index that a loop's bounds follow, else the middle."""
        followed = set(_followed(self.kernel.body))
        choices: list[list[tuple[Index, Span]]] = []
        for axis in self.kernel.grid:
            size = self.size(axis.index)
            count = ceil(size / axis.tile)
            places = {count // 2}
            if axis.index in followed:
                places = {count // 6, count // 2, 5 * count // 6}
            choices.append(
                [(axis.index, (p * axis.tile, min(size, (p + 1) * axis.tile))) for p in sorted(places)]
            )
        whole = {w.index: (0, self.size(w.index)) for w in self.kernel.whole}
        return [{**whole, **dict(choice)} for choice in itertools.product(*choices)]

    # ------------------------------------------------------------ statements

    def extent(self, axes: Sequence[Index], padded: bool) -> float:
        """Elements of a tile over indices. A GPU computes the padded tile, a CPU what is there."""
        spans, tiles = self.spans, self.tiles if padded else {}
        total = 1.0
        for i in axes:
            total *= tiles[i] if i in tiles else spans[i][1] - spans[i][0]
        return total

    def walk(self, body: Sequence[Statement], times: float) -> None:
        fused = _fused(body) if self.machine.kind == "cuda" else frozenset[str]()
        for statement in body:
            match statement:
                case Compute(out=out) if out in fused:
                    pass
                case Loop():
                    self._loop(statement, times)
                case Load():
                    self._load(statement, times)
                case Store():
                    if not any(self.spans[i][0] for i in statement.first):
                        indices = _indices(statement.terms)
                        self.stored += times * self.extent(indices, False) * self._store_width(statement)
                case Compute(out, axes, _, fn, _):
                    self.computed.add(out)
                    amount = times * self.extent(axes, True)
                    if fn in SPECIAL:
                        self.specials += amount * (self.machine.division if fn in DIVISION else 1.0)
                    else:
                        self.vectors += amount
                case ReduceTile(_, axes, _, _, over, _):
                    self.vectors += times * self.extent((*axes, *over), True)
                case ContractTile():
                    self._contract(statement, times)
                case _:
                    pass

    def _store_width(self, store: Store) -> int:
        return next(width(t.dtype) for t in self.kernel.tensors if t.name == store.tensor)

    def _loop(self, loop: Loop, times: float) -> None:
        start, stop = self._bound(loop.start), self._bound(loop.stop)
        trips = max(0, ceil((stop - start) / loop.tile))
        if not trips:
            return
        self.spans[loop.index] = (start, min(start + loop.tile, stop))
        # A merge's loads do not wait for the step before.
        self.steps += times * trips * (0.3 if isinstance(loop.index.dim, Parts) else 1.0)
        if not loop.exact:
            self.vectors += times * trips * loop.tile
        before, self.computed = self.computed, set()
        self.walk(loop.body, times * trips)
        self.computed = before
        del self.spans[loop.index]

    def _load(self, load: Load, times: float) -> None:
        count = self.extent(load.axes, False)
        one = width(load.dtype)
        run = one * self._run(load.terms)
        waste = max(1.0, min(self.machine.gather_words, count * one) / run)
        self.loaded[load.tensor] = self.loaded.get(load.tensor, 0.0) + times * count * one * waste

    def _run(self, terms: Sequence[Term]) -> int:
        """Elements that lie side by side in memory."""
        if not terms:
            return 1
        last = terms[-1]
        if any(isinstance(leaf, Lookup) for leaf, _ in last.leaves):
            return 1
        spans = [self.spans[leaf] for leaf, c in last.leaves if isinstance(leaf, Index) and abs(c) == 1]
        return max([1, *(b - a for a, b in spans)])

    def _contract(self, statement: ContractTile, times: float) -> None:
        axes = dict.fromkeys((*statement.axes, *statement.over))
        flops = times * 2 * self.extent(list(axes), True)
        self.flops += flops
        staged = self.machine.staged if any(a in self.computed for a in statement.args) else 1.0
        self.matrix += flops / self._efficiency(statement) / staged

    def _efficiency(self, statement: ContractTile) -> float:
        """The share of the matrix rate that a product of this shape reaches."""
        sides = [self.extent([i for i in statement.axes if i in own], True) for own in self._sides(statement)]
        rows, columns = max(1.0, sides[0]), max(1.0, sides[1])
        if self.machine.kind == "cuda":
            return max(0.05, min(1.0, rows * columns / (rows + columns) / 48))
        # A register block of the CPU is about six rows by sixteen columns; short sides leave it empty.
        return max(0.05, min(1.0, rows / 6) * min(1.0, columns / 16))

    def _sides(self, statement: ContractTile) -> tuple[set[Index], set[Index]]:
        half = {i: n for n, i in enumerate(statement.axes)}
        last = statement.axes[-1:] if statement.axes else ()
        for lane in self.kernel.lanes:
            if last and last[0] in lane:
                last = lane
        columns = {i for i in half if i in last}
        return {i for i in half if i not in columns}, columns

    # ------------------------------------------------------------ bounds

    def _bound(self, bound: Bound) -> int:
        match bound:
            case SizeBound(extent):
                return extent.at(self.sizes)
            case SpanBound(index, end, offset):
                return self.spans[index][1 if end else 0] + offset.at(self.sizes)
            case PartBound(part, end):
                assert isinstance(part.dim, Parts)
                size = size_of(part.dim.of, self.sizes)
                chunk = ceil(size / max(1, self.size(part)))
                first = self.spans[part][0]
                return min(size, (first + 1) * chunk) if end else first * chunk
            case AlignBound(inner, tile, up, origin):
                base = self._bound(origin)
                gap = self._bound(inner) - base
                return base + (-(-gap // tile) if up else gap // tile) * tile
            case LimitBound(kind, bounds):
                return (min if kind == "min" else max)(self._bound(b) for b in bounds)


def _timed(count: _Count, share: float, sizes: Mapping[Dim, int], machine: Machine) -> Cost:
    """Seconds from what was counted in the samples, each of which stands for `share` blocks."""
    blocks = count.blocks
    waves = blocks / machine.cores
    idle = ceil(waves) / waves
    memory = count.stored * share
    loaded = 0.0
    for tensor in count.kernel.tensors:
        asked = count.loaded.get(tensor.name, 0.0) * share
        if not asked:
            continue
        sized = [size_of(d, sizes) for group in tensor.layout for d in group if not isinstance(d, Parts)]
        once = min(asked, prod(sized) * width(tensor.dtype) * _copies(count, tensor.layout))
        again = 1.0 if once <= machine.near_bytes else min(asked / once, max(1.0, waves / 4))
        memory += once * again
        loaded += asked
    loaded += count.stored * share
    busy = min(1.0, blocks / (machine.cores * 0.5))
    resident = _resident(count.kernel, machine)
    moving = max(memory / machine.memory, loaded / machine.near) / busy
    moving = max(moving, _waiting(count, share, loaded, resident, machine))
    rate = machine.rate(_operand_dtype(count.kernel))
    compute = [
        count.matrix * share / (rate * machine.cores),
        count.specials * share / (machine.special * machine.cores),
        count.vectors * share / (machine.vector * machine.cores),
    ]
    ahead = (count.kernel.stages - 1) * resident
    compute[0] /= machine.shallow ** max(0, machine.stages[-1] - 1 - ahead)
    # Within a block one thing follows the other; a GPU hides part of it behind other blocks.
    alone = (1 - machine.overlap) / resident
    working = ((1 - alone) * max(compute) + alone * sum(compute)) * idle
    serial = count.steps * share / blocks * machine.step * ceil(waves / resident)
    prologue = machine.prologue * ceil(waves / resident)
    seconds = max(moving, working, serial) + prologue + machine.launch
    # The units do not overlap perfectly: of two schedules with one bottleneck the lighter one wins.
    seconds += 0.1 * (moving + working + serial - max(moving, working, serial))
    return Cost(
        seconds,
        memory,
        loaded,
        count.flops * share,
        count.specials * share,
        count.vectors * share,
        blocks,
    )


def _waiting(count: _Count, share: float, loaded: float, resident: float, machine: Machine) -> float:
    """Seconds that loads take for want of others on the way: no more bytes are in flight at once than the
    resident blocks have asked for, a loop's next stages at a time, and each takes the memory's latency."""
    if not loaded or not machine.latency:
        return 0.0
    steps = max(count.steps * share, float(count.blocks))
    ahead = max(1, count.kernel.stages - 1) if count.steps else 1
    flying = min(float(count.blocks), machine.cores * resident) * (loaded / steps) * ahead
    return machine.latency * loaded / flying


def _resident(kernel: Kernel, machine: Machine) -> int:
    """How many blocks a core holds at once: their loaded tiles share its fast memory, those of a loop once
    per stage, and their accumulators and largest values its registers."""
    if machine.kind == "cpu":
        return 1
    tiles = {x.index: x.tile for x in (*kernel.grid, *kernel.whole)}
    shared = carried = largest = 0
    for depth, statement in _deep(kernel.body):
        if isinstance(statement, Loop):
            tiles[statement.index] = statement.tile
            continue
        if isinstance(statement, Store | Measure):
            continue
        count = prod(tiles.get(i, 1) for i in statement.axes)
        if isinstance(statement, Load):
            shared += count * width(statement.dtype) * (kernel.stages if depth else 1)
        elif isinstance(statement, Carry):
            carried += count
        else:
            largest = max(largest, count)
    threads = 32 * kernel.warps
    registers = min(255, machine.base_registers + (carried + largest // 2) // threads) * threads
    return max(1, min(8, machine.core_bytes // max(1, shared), machine.register_bytes // (4 * registers)))


def _deep(body: Sequence[Statement], depth: int = 0) -> Iterator[tuple[int, Statement]]:
    """All statements with the number of loops around them; of loops over one index after the first, none."""
    seen: set[object] = set()
    for statement in body:
        if isinstance(statement, Loop):
            if statement.index.dim in seen:
                continue
            seen.add(statement.index.dim)
            yield depth, statement
            yield from _deep(statement.body, depth + 1)
        else:
            yield depth, statement


def _copies(count: _Count, layout: Sequence[Sequence[Dim]]) -> int:
    parts = [d for group in layout for d in group if isinstance(d, Parts)]
    return prod(count.parts.get(d.of, 1) for d in parts)


def _operand_dtype(kernel: Kernel) -> str:
    """The dtype of the operands of the kernel's contractions: the widest of them."""
    dtypes: dict[str, str] = {}
    found: list[str] = []
    for statement in _all(kernel.body):
        if isinstance(statement, ContractTile):
            found += [dtypes.get(name, "f32") for name in statement.args]
        elif not isinstance(statement, Loop | Store):
            dtypes[statement.out] = statement.dtype
    return max(found, key=lambda d: (width(d), d), default="f32")


def _all(body: Sequence[Statement]) -> Iterator[Statement]:
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from _all(statement.body)


def _fused(body: Sequence[Statement]) -> frozenset[str]:
    """Pointwise operations that take no instruction of their own: a product with the only sum or difference
    that reads it, and the sum that adds a contraction to its accumulator."""
    reads: dict[str, list[str]] = {}
    for statement in _all(body):
        if isinstance(statement, Compute | ContractTile):
            kind = statement.fn if isinstance(statement, Compute) else "contract"
            for name in statement.args:
                reads.setdefault(name, []).append(kind)
        elif isinstance(statement, ReduceTile):
            reads.setdefault(statement.arg, []).append("reduce")
        elif isinstance(statement, Store | Carry):
            reads.setdefault(statement.value if isinstance(statement, Store) else statement.init, []).append(
                "kept"
            )
        elif isinstance(statement, Loop):
            for _, name in statement.updates:
                reads.setdefault(name, []).append("kept")
    products = [s.out for s in body if isinstance(s, Compute) and s.fn == "mul" and s.dtype == "f32"]
    found = {name for name in products if reads.get(name) in (["add"], ["sub"])}
    dots = {s.out for s in body if isinstance(s, ContractTile) and reads.get(s.out) == ["add"]}
    found |= {s.out for s in body if isinstance(s, Compute) and s.fn == "add" and dots & set(s.args)}
    return frozenset(found)


def _followed(body: Sequence[Statement]) -> Iterator[Index]:
    """The indices whose spans the bounds of loops follow."""
    for statement in _all(body):
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
