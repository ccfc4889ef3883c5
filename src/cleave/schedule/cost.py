"""What a tile program costs on a machine, by counting (design.md, section 4, step 6).

`time = max(bytes/bandwidth, flops/matrix rate, specials/special rate, issue) * ceil(waves)/waves + prologue +
launches`, per kernel. `counting.py` counts what blocks do, for many tilings at once; here it becomes seconds.
Numbers rank schedules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from cleave.ir.dims import Dim, Index, Parts, size_of
from cleave.schedule.counting import SPECIAL, Count, Counts, Reals, Sheet, sheet_of, statements
from cleave.schedule.groups import parks
from cleave.schedule.machine import Machine, width
from cleave.schedule.tiles import (
    Carry,
    ContractTile,
    Kernel,
    Load,
    Loop,
    Measure,
    Statement,
    Store,
    TileProgram,
)

_MOST_RESIDENT = 8
"""Blocks beside each other on a core, at most, that are reckoned with."""


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


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of the rows of a sheet."""

    seconds: Sequence[float]
    memory: Sequence[float]
    loaded: Sequence[float]
    flops: Sequence[float]
    specials: Sequence[float]
    vectors: Sequence[float]
    blocks: Sequence[int]
    launch: float

    def row(self, n: int) -> Cost:
        """The cost of one row."""
        if not self.blocks[n]:
            return Cost(self.launch)
        return Cost(
            self.seconds[n],
            self.memory[n],
            self.loaded[n],
            self.flops[n],
            self.specials[n],
            self.vectors[n],
            self.blocks[n],
        )


def cost_of(tiles: TileProgram, sizes: Mapping[Dim, int], machine: Machine, parts: Mapping[Dim, int]) -> Cost:
    """The cost of a tile program at the given sizes and part counts."""
    total = before = Cost(0.0, launches=0)
    for kernel in tiles.kernels:
        own = kernel_cost(kernel, sizes, machine, parts)
        if kernel.merged and machine.kind == "cuda":
            own = merged_cost(before, own, machine)
        total, before = total + own, own
    return in_turn(total, machine)


def in_turn(cost: Cost, machine: Machine) -> Cost:
    """The cost of several launches: all but the first are under way while the one before runs."""
    spared = min(machine.following, machine.launch)  # no cost is negative, whatever a machine's file says
    return replace(cost, seconds=cost.seconds - spared * max(0, cost.launches - 1))


def merged_cost(before: Cost, cost: Cost, machine: Machine) -> Cost:
    """The cost of a kernel that runs as the end of the one before: the count of its blocks instead of a
    launch and a prologue, and one core at a time reads the states of a block. Where the one before leaves
    cores idle, the next launch waits on those already, and nothing is spared."""
    spared = machine.launch + machine.prologue - machine.merging if before.blocks >= machine.cores else 0.0
    tail = cost.loaded / max(1, cost.blocks) * machine.cores / machine.near
    return replace(cost, seconds=max(machine.merging, cost.seconds + tail - spared), launches=0)


def kernel_cost(kernel: Kernel, sizes: Mapping[Dim, int], machine: Machine, parts: Mapping[Dim, int]) -> Cost:
    """The cost of one kernel."""
    return costs(sheet_of(kernel), sizes, machine, parts).row(0)


def costs(
    sheet: Sheet, sizes: Mapping[Dim, int], machine: Machine, parts: Mapping[Dim, int | Counts]
) -> Costs:
    """The cost of every row of a sheet. Part counts may differ by row."""
    with np.errstate(divide="ignore", invalid="ignore"):  # rows without blocks
        count = Count(sheet, sizes, machine, parts)
        return _timed(count, sizes, machine)


def _timed(count: Count, sizes: Mapping[Dim, int], machine: Machine) -> Costs:
    """Seconds from what was counted."""
    sheet, blocks = count.sheet, count.blocks
    kernel = sheet.kernel
    waves = blocks / machine.cores
    idle = np.ceil(waves) / waves
    steps = count.total(count.steps)
    resident, product = _resident(sheet, machine), _multiplies(kernel)
    memory, loaded = _traffic(count, sizes, machine, resident, product)
    moving = np.maximum(memory / machine.memory, loaded / machine.near) * _drawing(count, machine)
    waiting = _waiting(count, steps, memory, loaded, resident, machine, product)
    # With one tile on its way and no block beside, memory idles from its coming until the next is asked for.
    lone = (steps > 0) & (sheet.groups == 0) & ((sheet.stages - 1) * np.minimum(resident, waves) <= 1)
    moving = np.where(lone & streams(kernel), moving + waiting, np.maximum(moving, waiting))
    rate = machine.rate(_operand_dtype(kernel))
    specials, vectors = count.total(count.specials), count.total(count.vectors)
    ahead = (sheet.stages - 1) * resident
    groups = sheet.groups > 0
    deep = np.where(
        groups,
        machine.grouped_shallow ** ((sheet.stages < 3) & (count.total(count.turns) == 0)),
        machine.shallow ** np.maximum(0, machine.stages[-1] - ahead),
    )
    compute = [
        count.total(count.matrix) / (rate * machine.cores) / deep,
        specials / (machine.special * machine.cores),
        vectors / (machine.vector * machine.cores),
    ]
    # Within a block one thing follows the other; a GPU hides part of it behind other warps.
    beside = resident * sheet.warps / 4 if machine.kind == "cuda" else resident
    alone = np.minimum(1.0, (1 - machine.overlap) / beside)
    dearest = np.maximum(np.maximum(compute[0], compute[1]), compute[2])
    working = ((1 - alone) * dearest + alone * (compute[0] + compute[1] + compute[2])) * idle
    working = np.where(groups, _shared(compute, count, machine) * idle, working)
    if machine.kind == "cuda" and not product:
        at_work = np.minimum(sheet.warps, np.maximum(1, _widest(sheet) // 32))
        beside = at_work * np.minimum(resident, np.ceil(waves))
        working = working * np.maximum(1.0, machine.full_warps / beside)
    waited = steps * machine.step + count.total(count.staged) * machine.staged_step
    waited = waited + count.total(count.meetings) * machine.meeting
    rounds = np.ceil(waves / resident)
    serial = waited / blocks * rounds
    longest = np.maximum(np.maximum(moving, working), serial)
    if machine.kind == "cuda" and not product:  # the last block of a core has nothing beside it
        longest = longest + np.minimum(moving, working) / np.maximum(1.0, waves)
    prologue = machine.prologue * rounds * np.where(groups, machine.grouped_prologue, 1.0)
    prologue = prologue + machine.reopening * count.total(count.reopened) / blocks * rounds
    if machine.kind == "cuda" and not product:
        # One block's loads are under way while another computes: only the first wait is seen.
        prologue = machine.prologue + np.maximum(0.0, prologue - machine.prologue - longest)
    seconds = longest + prologue + machine.launch + np.where(groups, machine.grouped_start, 0.0)
    if parks(kernel.body):  # by each block in turn, before its loops
        seconds = seconds + np.where(groups, machine.grouped_park * np.ceil(waves), 0.0)
    if machine.kind == "cuda" and not product and _merges(kernel):  # short blocks start one after the other
        seconds = seconds + machine.dispatch * np.minimum(blocks, machine.cores * _MOST_RESIDENT)
    # The units do not overlap perfectly: of two schedules with one bottleneck the lighter one wins.
    seconds = seconds + machine.unhidden * (moving + working + serial - longest)
    if machine.kind == "cpu":  # the calling thread may be through before the others are awake
        others = np.minimum(machine.cores, np.maximum(1, blocks)) - 1
        gathering = min(machine.gathering, machine.launch)  # part of it; files may give one alone
        seconds = seconds + np.minimum(0.0, others * longest - gathering)
    seconds = np.where(blocks == 0, machine.launch, seconds)
    amounts = (seconds, memory, loaded, count.total(count.flops), specials, vectors)
    listed = [np.broadcast_to(amount, (sheet.rows, 1)).ravel().tolist() for amount in (*amounts, blocks)]
    counted = [int(n) for n in listed[6]]
    return Costs(listed[0], listed[1], listed[2], listed[3], listed[4], listed[5], counted, machine.launch)


def _drawing(count: Count, machine: Machine) -> Reals:
    """How much longer than at the full rate the blocks take to draw what they load: few cores draw less. Of
    the last blocks of a CPU one may be shorter than the others, which then go on without it."""
    full = machine.cores * machine.drawing  # cores that draw at the full rate
    if machine.kind != "cpu":
        return 1 / np.minimum(1.0, count.blocks / full)
    blocks = np.ceil(count.filled)
    before = (np.ceil(blocks / machine.cores) - 1) * machine.cores
    last, short = blocks - before, count.filled - (blocks - 1)
    others = np.maximum(0.0, (last - 1) * (1 - short) / np.minimum(1.0, np.maximum(1, last - 1) / full))
    return (before + last * short / np.minimum(1.0, last / full) + others) / count.filled


def _traffic(
    count: Count, sizes: Mapping[Dim, int], machine: Machine, resident: Counts, product: bool
) -> tuple[Reals, Reals]:
    """Bytes that cross the memory bus, and bytes that blocks ask for and store."""
    blocks, waves = count.blocks, count.blocks / machine.cores
    stored = count.total(count.stored)
    memory, loaded = stored, np.zeros((1, 1))
    for tensor in count.sheet.kernel.tensors:
        if tensor.name not in count.loaded:
            continue
        asked = count.total(count.loaded[tensor.name])
        sized = [size_of(d, sizes) for group in tensor.layout for d in group if not isinstance(d, Parts)]
        once = np.minimum(asked, prod(sized) * width(tensor.dtype) * _copies(count, tensor.layout))
        turns = np.minimum(asked / once, np.maximum(1.0, waves / machine.reload_waves))
        again = np.where(once <= machine.near_bytes, 1.0, turns)
        passes = count.passes[tensor.name]
        if passes > 1 and machine.kind == "cuda":  # what blocks go over again must stay in the last cache
            held = asked / passes / blocks * np.minimum(blocks, machine.cores * resident)
            again = np.where(held > 0.6 * machine.near_bytes, np.maximum(again, passes), again)
        if machine.kind == "cpu" or not product:
            lost = machine.short_run * count.total(count.pieces[tensor.name]) / np.maximum(1, asked)
            again = again * (1 + np.minimum(0.5, lost))
        memory = memory + once * again
        loaded = loaded + asked
    # Few bytes are still where the program before left them.
    memory = np.where(memory * machine.kept < machine.near_bytes, stored, memory)
    return memory, loaded + stored


def _shared(compute: Sequence[Reals], count: Count, machine: Machine) -> Reals:
    """Seconds that warp groups work: the products of one run beside what another computes, which several
    warps keep busier than one block's could; each turn costs some waiting."""
    products, beside = compute[0], compute[1] + machine.grouped_vector * compute[2]
    beside = beside * np.where(count.sheet.groups > 2, machine.third_group, 1.0)
    turns = count.total(count.turns) * machine.turn / machine.cores
    return np.maximum(products, beside) + 0.1 * np.minimum(products, beside) + turns


def _waiting(
    count: Count,
    steps: Reals,
    memory: Reals,
    loaded: Reals,
    resident: Counts,
    machine: Machine,
    product: bool,
) -> Reals:
    """Seconds that loads take for want of others on the way: no more bytes are in flight at once than the
    resident blocks have asked for, a loop's next stages at a time, and each takes the latency of the memory
    or of the last cache."""
    if not machine.latency:
        return np.zeros((1, 1))
    # Loads run ahead in loops that multiply; other loops wait for each step's.
    ahead = np.where((steps > 0) & product, np.maximum(1, count.sheet.stages - 1), 1)
    turns = np.maximum(steps, count.blocks)
    if not product and any(isinstance(s, Load) for s in count.sheet.kernel.body):
        turns = steps + count.blocks
    flying = np.minimum(count.blocks, machine.cores * resident) * (loaded / turns) * ahead
    far = np.minimum(1.0, memory / loaded)
    if not product:  # what all blocks ask for first is in no cache yet
        far = np.maximum(far, np.minimum(count.blocks, machine.cores * resident) / turns)
    latency = machine.near_latency + (machine.latency - machine.near_latency) * far
    return np.where(loaded > 0, latency * loaded / flying, 0.0)


def _tiles(sheet: Sheet) -> dict[Index, Counts]:
    """The tile of every index of a kernel."""
    tiles = dict(sheet.tiles)
    stretches = iter(sheet.loops)
    for loop in (s for s in statements(sheet.kernel.body) if isinstance(s, Loop)):
        tiles[loop.index] = next(stretches).tiles
    return tiles


def _widest(sheet: Sheet) -> Counts:
    """Elements of the largest tile of a block."""
    tiles, one = _tiles(sheet), np.ones((1, 1), np.int64)
    found = one
    for statement in statements(sheet.kernel.body):
        if not isinstance(statement, Store | Measure | Loop):
            found = np.maximum(found, prod((tiles[index] for index in statement.axes), start=one))
    return found


def _resident(sheet: Sheet, machine: Machine) -> Counts:
    """How many blocks a core holds at once: their loaded tiles share its fast memory, those of a loop once
    per stage, and their accumulators and largest values its registers."""
    one = np.ones((1, 1), np.int64)
    if machine.kind == "cpu":
        return one
    tiles = _tiles(sheet)
    shared = carried = largest = 0 * one
    # A tile with an accumulator's indices is on its way into it and takes no room of its own.
    accumulated = {frozenset(s.axes) for s in statements(sheet.kernel.body) if isinstance(s, Carry)}
    for depth, statement in _deep(sheet.kernel.body):
        if isinstance(statement, Store | Measure | Loop):
            continue
        count = one
        for index in statement.axes:
            count = count * tiles[index]
        if isinstance(statement, Load):
            shared = shared + count * width(statement.dtype) * (sheet.stages if depth else 1)
        elif isinstance(statement, Carry):
            carried = carried + count
        elif frozenset(statement.axes) not in accumulated:
            largest = np.maximum(largest, count)
    one = np.where(sheet.groups > 0, machine.core_bytes, 1) * one  # they take all registers of a core
    shared = np.maximum(shared, one)
    threads = 32 * sheet.warps
    if _multiplies(sheet.kernel):
        each = machine.base_registers + (carried + 2 * largest) // threads
    else:
        each = machine.row_registers + (carried + largest) // threads
    registers = np.minimum(255, each) * threads
    registers = np.where(threads > 512, np.minimum(registers, 64 * threads), registers)
    room = np.minimum(machine.core_bytes // np.maximum(1, shared), machine.register_bytes // (4 * registers))
    room = np.minimum(room, machine.most_warps // sheet.warps)
    return np.maximum(1, np.minimum(_MOST_RESIDENT, room))


def streams(kernel: Kernel) -> bool:
    """Whether a kernel multiplies what it loads as it is: then loads of one block keep running ahead."""
    loaded = {s.out for s in statements(kernel.body) if isinstance(s, Load)}
    products = [s for s in statements(kernel.body) if isinstance(s, ContractTile)]
    return bool(products) and all(name in loaded for s in products for name in s.args)


def held_bytes(kernel: Kernel) -> int:
    """Bytes of a core's fast memory that a block's operands of products take, those loaded in loops once for
    each stage (what `room.shared_bytes` says of a tiling)."""
    tiles = {x.index: x.tile for x in (*kernel.grid, *kernel.whole)}
    sizes: dict[str, int] = {}
    operands: dict[str, None] = {}
    for depth, statement in _deep(kernel.body):
        if isinstance(statement, Loop):
            tiles[statement.index] = statement.tile
        elif not isinstance(statement, Store | Measure):
            each = width(statement.dtype) * prod(tiles[i] for i in statement.axes)
            staged = depth and isinstance(statement, Load)
            sizes[statement.out] = each * (kernel.stages if staged else 1)
            if isinstance(statement, ContractTile):
                operands.update(dict.fromkeys(statement.args))
    return sum(sizes.get(name, 0) for name in operands)


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


def _copies(count: Count, layout: Sequence[Sequence[Dim]]) -> int | Counts:
    copies: int | Counts = 1
    for dim in (d for group in layout for d in group if isinstance(d, Parts)):
        copies = copies * count.parts.get(dim.of, 1)
    return copies


def _merges(kernel: Kernel) -> bool:
    return any(isinstance(s, Loop) and isinstance(s.index.dim, Parts) for s in kernel.body)


def _multiplies(kernel: Kernel) -> bool:
    return any(isinstance(s, ContractTile) for s in statements(kernel.body))


def _operand_dtype(kernel: Kernel) -> str:
    """The dtype of the operands of the kernel's contractions: the widest of them."""
    dtypes: dict[str, str] = {}
    found: list[str] = []
    for statement in statements(kernel.body):
        if isinstance(statement, ContractTile):
            found += [dtypes.get(name, "f32") for name in statement.args]
        elif not isinstance(statement, Loop | Store):
            dtypes[statement.out] = statement.dtype
    return max(found, key=lambda d: (width(d), d), default="f32")


__all__ = ["SPECIAL", "Cost", "Costs", "cost_of", "costs", "held_bytes", "in_turn", "kernel_cost", "streams"]
