"""Which tilings warp groups can do: each computes a share of a block's rows beside one warp that copies.

A GPU of compute capability 9 multiplies 64 rows a warp group, with the right operand in shared memory. So
every product of the kernel must keep the same rows, 64 or a multiple for each group, from one operand, and
take the other one as it lies in memory, in 16 bits. Where sums are too wide for the registers of one group,
groups may instead share their columns (`shares_columns`). `codegen.gluon` writes such kernels and has the
last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from cleave.ir.dims import Index
from cleave.schedule.bounds import Order
from cleave.schedule.kernels import Built
from cleave.schedule.machine import Machine, width
from cleave.schedule.tiles import Compute, ContractTile, Loop, Statement
from cleave.schedule.tiling import Tiling
from cleave.schedule.values import ComputeOf, ContractOf, Graph, LoadOf, Value

GROUP_ROWS = 64
PIECE = 64
"""What the tile of an index that products only sum over is a multiple of, if it is no power of two."""
MOST_ROWS = 256
WARPS = 4
"""Warps of one group."""
LEAST_STAGES = 2
GROUP_REGISTERS = {2: 204, 3: 120}
"""Registers of a thread for tiles, by the number of groups: they share 512 for each of 128 threads."""
LEFT_OVER, STEPPED_OVER = 1.5, 2.25
"""What the largest tile takes beside the sums: in a loop whose last products run beside the next step, the
tile of a step in 32 bits and what is multiplied of the step before, in 16; and more where a function of it
takes several steps."""
STEPPED = ("tanh", "erf", "sin", "cos", "log", "pow")
WIDE_SUMS = 64
"""Registers of a thread that hold a sum, from which on code is large."""
COLUMN_REGISTERS = {2: 176}
"""The same where groups share columns. Only tiles of one step are in registers then, not those of two."""
THREADS = 32 * WARPS


def grouped(built: Built, tiling: Tiling, machine: Machine, rows: frozenset[Index]) -> list[Tiling]:
    """The tiling with warp groups, if the machine has them and the kernel is of that form. `rows` are the
    indices that products have from their left operands."""
    found: list[Tiling] = []
    lanes = [lane for lane in _lanes(tiling) if rows.issuperset(lane)] if machine.groups else []
    for count in machine.groups:
        one = replace(tiling, warps=WARPS * count, stages=machine.stages[-1], groups=count)
        if any(_shares(built.graph, one, lane) or _splits(built.graph, one, lane) for lane in lanes):
            found.append(one)
    return found


def shares_columns(tiling: Tiling) -> bool:
    """Whether the groups of a tiling share the columns of sums: there are rows for one group."""
    return prod(tiling.tiles[i] for i in tiling.grid) < GROUP_ROWS * tiling.groups


def order_of(graph: Graph, tiling: Tiling) -> Order:
    """Which loops of a tiling begin with their last border (`bounds.segments`). Without a predicate that
    means masks for a tile that is often full (1 us each at 64 columns), and pays where code would be too
    large for the instruction caches: with wide sums (128 columns: 77 KiB; 63 with the border first) beside
    what a step computes of a row. Loops of products alone have little code."""
    if not tiling.groups or shares_columns(tiling):
        return Order.FORWARDS
    sums = [prod(tiling.tiles[i] for i in slot.axes) for slot in graph.slots]
    wide = max(sums, default=0) >= WIDE_SUMS * THREADS * tiling.groups
    mixed = any(len({frozenset(slot.axes) for slot in loop.slots}) > 1 for loop in graph.loops)
    return Order.BACKWARDS if wide and mixed else Order.BACKWARDS_IF_ENDED


def has_registers(graph: Graph, tiling: Tiling, carried: int, largest: int) -> bool:
    """Whether groups have registers for the bytes of sums that a block carries and of the largest tile beside
    them."""
    count = tiling.groups
    if shares_columns(tiling):
        return carried // count + largest <= COLUMN_REGISTERS[count] * 4 * THREADS
    functions = [v for v in graph.values if isinstance(v.op, ComputeOf) and v.op.fn in STEPPED]
    stepped = any(sum(tiling.tiles.get(i, 1) > 1 for i in v.axes) > 1 for v in functions)
    over = STEPPED_OVER if stepped else LEFT_OVER
    return carried + over * largest <= GROUP_REGISTERS[count] * 4 * THREADS * count


def parks(body: Sequence[Statement]) -> bool:
    """Whether a kernel computes an operand of a loop's products before the loop."""
    made = {s.out for s in body if isinstance(s, Compute)}
    loops = [s for s in body if isinstance(s, Loop)]
    return any(isinstance(s, ContractTile) and made & set(s.args) for loop in loops for s in loop.body)


def stored_bytes(graph: Graph, tiling: Tiling) -> int:
    """What a block stores in matrices, which go through shared memory."""
    total = 0
    for store in graph.stores:
        tiles = [tiling.tiles[i] for i in store.value.axes if tiling.tiles.get(i, 1) > 1]
        total += prod(tiles) * width(store.tensor.dtype) if len(tiles) > 1 else 0
    return total


def _lanes(tiling: Tiling) -> list[tuple[Index, ...]]:
    """The lanes of the grid's tiled indices."""
    tiled = [i for i in tiling.grid if tiling.tiles[i] > 1]
    listed = [lane for lane in tiling.lanes if any(i in tiled for i in lane)]
    alone = [(i,) for i in tiled if all(i not in lane for lane in listed)]
    return [*listed, *alone]


def _shares(graph: Graph, tiling: Tiling, rows: Sequence[Index]) -> bool:
    """Whether groups can share these rows in every product."""
    total = prod(tiling.tiles[i] for i in rows)
    if any(i not in tiling.grid for i in rows) or total % (GROUP_ROWS * tiling.groups) or total > MOST_ROWS:
        return False
    products = [v for v in graph.values if isinstance(v.op, ContractOf) and _is_product(v, tiling)]
    return bool(products) and all(_keeps(v, frozenset(rows)) for v in products)


def _splits(graph: Graph, tiling: Tiling, rows: Sequence[Index]) -> bool:
    """Whether groups can share the columns of sums that are too wide for the registers of one group, which
    has all the rows. The columns are of no loop, and each block spans them."""
    if any(i not in tiling.grid for i in rows) or tiling.groups not in COLUMN_REGISTERS:
        return False
    if not prod(tiling.tiles[i] for i in tiling.grid) == prod(tiling.tiles[i] for i in rows) == GROUP_ROWS:
        return False
    sums = [prod(tiling.tiles[i] for i in slot.axes) for slot in graph.slots if set(rows) & set(slot.axes)]
    if sum(sums) <= GROUP_REGISTERS[tiling.groups] * THREADS:
        return False
    products = [v for v in graph.values if isinstance(v.op, ContractOf) and _is_product(v, tiling)]
    looped = {loop.index for loop in graph.loops}
    sharing = [v for v in products if not looped & set(v.axes)]
    return bool(sharing) and all(_keeps(v, frozenset(rows)) for v in products)


def _is_product(value: Value, tiling: Tiling) -> bool:
    """Whether a contraction multiplies two matrices."""
    if len(value.args) != 2:
        return False
    a, b = ({i for i in arg.axes if tiling.tiles.get(i, 1) > 1} for arg in value.args)
    out = set(value.axes)
    return bool((a & out) - b) and bool((b & out) - a)


def _keeps(value: Value, rows: frozenset[Index]) -> bool:
    """Whether a product has the rows from one operand, and the other one comes from memory in 16 bits."""
    left = [arg for arg in value.args if rows & set(arg.axes)]
    right = [arg for arg in value.args if not rows & set(arg.axes)]
    if len(left) != 1 or len(right) != 1 or not isinstance(right[0].op, LoadOf):
        return False
    return all(width(arg.dtype) == 2 for arg in value.args) and right[0].dtype in ("f16", "bf16")
