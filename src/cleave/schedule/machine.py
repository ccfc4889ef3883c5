"""What a device can do, in a handful of numbers (design.md, section 4, "Rank").

Rates are per core (a CPU core, a streaming multiprocessor) unless the name says otherwise. They rank
schedules; they promise nothing. `CPU` is two cores of an AVX2 server at 2.45 GHz, `H200` as measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

_WIDTH = {"f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1}


@dataclass(frozen=True, slots=True)
class Machine:
    """A device. `matrix` is the rate of tile products by operand dtype, `vector` that of pointwise
    operations, `special` that of exponentials and the like: operations per second and core. `memory` and
    `near` are bytes per second of the whole device, from memory and from the last shared cache."""

    name: str
    kind: str
    cores: int
    memory: float
    near: float
    near_bytes: int
    matrix: Mapping[str, float]
    vector: float
    special: float
    launch: float
    """Seconds one kernel takes that does nothing."""
    prologue: float
    """Seconds before a block's first useful instruction."""
    core_bytes: int
    """Fast memory of one core: shared memory, or the second-level cache."""
    register_bytes: int
    """Registers of one core (of a block, at one block per core), or the first-level cache."""
    dot_min: int
    """The smallest extent of a role in a tile product."""
    vector_bytes: int
    gather_words: int = 32
    """Bytes that one access to memory moves at least."""
    blocks_per_core: int = 1
    """Blocks that a core should have at once to be busy."""
    group: int = 1
    """Rows of blocks that run side by side, to share what they load in the last cache."""
    warps: tuple[int, ...] = (1,)
    stages: tuple[int, ...] = (1,)
    whole_limit: int = 1024
    """The largest contraction extent that a block may span in full."""
    keep_bytes: int = 65536
    """The largest row that a block may keep while it is reduced and written."""
    step: float = 0.0
    """Seconds that one iteration of a loop takes at least."""
    staged_step: float = 0.0
    """Seconds more for each operand of a product that it computes, which waits for that after the load."""
    reopening: float = 0.0
    """Seconds that a block's second loop over a dim takes to have its first tiles."""
    meeting: float = 0.0
    """Seconds that a reduction in such a loop takes where warps must exchange their shares of it."""
    short_run: float = 0.0
    """Bytes that a row's piece loses beside its own, as rows lie apart in memory."""
    latency: float = 0.0
    """Seconds from asking for a tile to having it, where that is not hidden by hardware (0 if it is)."""
    near_latency: float = 0.0
    """The same if the last cache has it."""
    base_registers: int = 0
    """Registers of a thread beside those for tiles."""
    row_registers: int = 0
    """The same where nothing is multiplied."""
    division: float = 1.0
    """What a division costs, in special functions."""
    overlap: float = 0.0
    """The share of a block's other work that is hidden behind its dearest unit."""
    staged: float = 1.0
    """The share of the matrix rate that is reached where an operand is computed on the way."""
    shallow: float = 1.0
    """The share of the matrix rate that is reached with one tile less on its way than stages allow."""
    narrow: float = 1.0
    """The share where rows with a computed operand are too few for each warp to have its own."""
    full_product: float = 48.0
    """What a product's tile has at the full matrix rate: half the harmonic mean of its sides."""
    reload_waves: float = 4.0
    """Waves of blocks after which a tensor that the last cache cannot hold is loaded again."""
    drawing: float = 0.5
    """Blocks per core that draw all of the memory's bandwidth."""
    gathering: float = 0.0
    """Seconds of a launch in which a CPU's threads wake up and meet again: what one of them does alone spares
    them."""
    kept: float = inf
    """A kernel that moves so many times less than the last cache holds finds it there."""
    unhidden: float = 0.1
    """The share of what is not the bottleneck that is paid all the same."""
    groups: tuple[int, ...] = ()
    """How many warp groups may share a block's rows (compute capability 9)."""
    turn: float = 0.0
    """Seconds that a warp group waits for its turn in each step in which it computes an operand."""
    grouped_vector: float = 1.0
    """What an ordinary operation costs where warp groups share the rows, as a share of what it costs else."""
    third_group: float = 1.0
    """What work beside products costs with three warp groups, as a share of what it costs with two."""
    grouped_shallow: float = 1.0
    """The share of the matrix rate that warp groups reach with two stages, where nothing is computed."""
    grouped_start: float = 0.0
    """Seconds that a kernel with warp groups takes to start beyond what another one takes."""
    grouped_prologue: float = 1.0
    """The same of a block's prologue."""
    grouped_park: float = 0.0
    """Seconds that a block with warp groups takes to compute an operand before a loop: what it is made of
    comes out of fast memory, and the operand goes back there."""
    following: float = 0.0
    """Seconds that a launch takes less where another one of the same program runs before it. Fitted when the
    next launch was let in by a block's first statement; it is the last one now (decision 10)."""
    dispatch: float = 0.0
    """Seconds between the starts of two blocks that merge parts."""
    full_warps: int = 1
    """Warps that keep a core busy where no products do."""
    most_warps: int = 64
    """Warps that a core holds."""
    merging: float = 0.0
    """Seconds that the blocks of a split take to count, and the last one to find that it is. Most of a launch
    and a prologue. Fitted when the second of two launches started while the first ran; now it is let in by a
    block's last statement (decision 10 has the numbers)."""

    def rate(self, dtype: str) -> float:
        """Tile-product operations per second and core for operands of a dtype."""
        return self.matrix.get(dtype, self.vector)


def width(dtype: str) -> int:
    """Bytes of one element."""
    return _WIDTH[dtype]


CPU = Machine(
    name="cpu-avx2-2",
    kind="cpu",
    cores=2,
    memory=20e9,
    near=60e9,
    near_bytes=16 << 20,
    matrix={"f32": 60e9, "f64": 30e9, "f16": 40e9, "bf16": 40e9},
    vector=8e9,
    special=1.2e9,
    launch=8e-6,
    prologue=0.4e-6,
    core_bytes=512 << 10,
    register_bytes=32 << 10,
    dot_min=1,
    vector_bytes=32,
    gather_words=64,
    whole_limit=1024,
    keep_bytes=1 << 20,
    step=0.05e-6,
    short_run=1200.0,
    drawing=0.75,
    gathering=6e-6,
    kept=8.0,
)

H200 = Machine(
    name="h200",
    kind="cuda",
    cores=132,
    memory=4.3e12,
    near=12e12,
    near_bytes=50 << 20,
    matrix={"f16": 6.1e12, "bf16": 6.1e12, "f32": 0.25e12, "f64": 0.2e12},
    vector=0.12e12,
    special=29e9,
    launch=1.7e-6,
    prologue=2.4e-6,
    core_bytes=227 << 10,
    register_bytes=256 << 10,
    dot_min=16,
    vector_bytes=16,
    gather_words=32,
    blocks_per_core=2,
    group=8,
    warps=(4, 8),
    stages=(2, 3, 4),
    whole_limit=1024,
    keep_bytes=128 << 10,
    step=0.45e-6,
    staged_step=0.3e-6,
    reopening=1.5e-6,
    meeting=0.15e-6,
    short_run=300.0,
    latency=1.6e-6,
    near_latency=0.9e-6,
    base_registers=30,
    row_registers=16,
    division=2.8,
    overlap=0.61,
    staged=0.53,
    shallow=0.94,
    narrow=0.66,
    full_product=33.0,
    reload_waves=2.3,
    unhidden=0.05,
    groups=(2, 3),
    turn=0.2e-6,
    grouped_vector=0.6,
    grouped_start=3.5e-6,
    third_group=0.85,
    grouped_shallow=0.65,
    grouped_prologue=0.5,
    grouped_park=0.6e-6,
    following=1e-6,
    dispatch=1e-9,
    full_warps=24,
    merging=3.5e-6,
)
