"""The tile program: kernels as grids, loops and statements over tiles (design.md, section 4).

A `TileProgram` is what the scheduler hands to the emitters. It is an immutable tree, not interned: two
equal stores are two stores. In a kernel every index has a number of its own, and at every point a *span*:
the range of positions that its current tile covers, clipped to its size. A value is a tile over some
indices; a statement says how one tile follows from others over the current spans. Which indices have
which span:

- a `GridAxis` gives each block one tile of its index (blocks run in any order, in parallel),
- `whole` indices span their full size in every block (`tile` is an upper bound of the size),
- inside a `Loop`, its index spans one tile after the other from `start` to `stop`.

Broadcasting is by index: an operand that lacks an index of the result is the same for all of it.
`interpret.py` is the meaning; `text.py` prints and parses.
"""

from __future__ import annotations

from dataclasses import dataclass

from cleave.ir.dims import Atom, Dim, Extent, Index, Term
from cleave.ir.ops import Number

NO_EXTENT = Extent()

# ---------------------------------------------------------------- bounds of loops


@dataclass(frozen=True, slots=True)
class SizeBound:
    """A linear expression in sizes."""

    extent: Extent


ZERO = SizeBound(NO_EXTENT)


@dataclass(frozen=True, slots=True)
class SpanBound:
    """Where the current tile of an index starts, or ends (exclusive, clipped), plus an extent."""

    index: Index
    end: bool
    offset: Extent = NO_EXTENT


@dataclass(frozen=True, slots=True)
class PartBound:
    """Where the block's part of a split dim starts, or ends, plus an extent: part `p` is
    `[min(|K|, p * chunk), min(|K|, (p + 1) * chunk))`, with the chunk length an argument of the kernel."""

    part: Index
    end: bool
    offset: Extent = NO_EXTENT


@dataclass(frozen=True, slots=True)
class AlignBound:
    """`bound` rounded down (or up) to a multiple of `tile` counted from `origin`."""

    bound: Bound
    tile: int
    up: bool
    origin: Bound = ZERO


@dataclass(frozen=True, slots=True)
class LimitBound:
    """The least (`min`) or greatest (`max`) of some bounds."""

    kind: str
    bounds: tuple[Bound, ...]


Bound = SizeBound | SpanBound | PartBound | AlignBound | LimitBound

# ---------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Load:
    """`out[axes] = tensor[terms]`, one term per dim of the tensor's layout. Where a term leaves its axis the
    value is `other` (only where `guarded`; unguarded loads stay inside for every index in its span)."""

    out: str
    axes: tuple[Index, ...]
    dtype: str
    tensor: str
    terms: tuple[Term, ...]
    guarded: bool = False
    other: Number = 0


@dataclass(frozen=True, slots=True)
class Fill:
    """`out[axes] = value`: a literal."""

    out: str
    axes: tuple[Index, ...]
    dtype: str
    value: Number


@dataclass(frozen=True, slots=True)
class Measure:
    """`out = extent`: a size, as a value without indices."""

    out: str
    dtype: str
    extent: Extent


@dataclass(frozen=True, slots=True)
class Locate:
    """`out[axes] = term`: the position of indices, as an integer."""

    out: str
    axes: tuple[Index, ...]
    dtype: str
    term: Term


@dataclass(frozen=True, slots=True)
class Compute:
    """`out[axes] = fn(args...)`, pointwise (`cleave.ir.ops.MAPS`)."""

    out: str
    axes: tuple[Index, ...]
    dtype: str
    fn: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReduceTile:
    """`out[axes] = reduce(kind, arg)` over the current spans of `over`."""

    out: str
    axes: tuple[Index, ...]
    dtype: str
    kind: str
    over: tuple[Index, ...]
    arg: str


@dataclass(frozen=True, slots=True)
class ContractTile:
    """`out[axes] = sum(product of args)` over the current spans of `over`, accumulated in `dtype`."""

    out: str
    axes: tuple[Index, ...]
    dtype: str
    over: tuple[Index, ...]
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Carry:
    """Declare an accumulator: a tile that loops update. Its first value is the value `init`."""

    out: str
    axes: tuple[Index, ...]
    dtype: str
    init: str


@dataclass(frozen=True, slots=True)
class Loop:
    """Run `body` for each tile of `index` in `[start, stop)`, then `updates` (all at once): each pair sets
    a carried accumulator to a value of the body. `exact`: every tile is full, so nothing is masked on this
    index. `closed`: from `stop` on a select by a predicate makes nothing of all that the body accumulates,
    so what does not leave its tensors need not be masked on this index (`schedule.closing`)."""

    index: Index
    tile: int
    start: Bound
    stop: Bound
    exact: bool
    body: tuple[Statement, ...]
    updates: tuple[tuple[str, str], ...]
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """`tensor[terms] = value`. `first` lists grid indices: only blocks in whose tile they are 0 store."""

    tensor: str
    terms: tuple[Term, ...]
    value: str
    first: tuple[Index, ...] = ()


Statement = Load | Fill | Measure | Locate | Compute | ReduceTile | ContractTile | Carry | Loop | Store

# ---------------------------------------------------------------- kernels


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in memory. `role` is `input`, `output`, `scalar` or `workspace`; `layout` as in
    `cleave.ir.ops.Input` (for a workspace, one dim per axis, dense; `Parts(K)` may be one of them)."""

    name: str
    role: str
    dtype: str
    layout: tuple[tuple[Dim, ...], ...]


@dataclass(frozen=True, slots=True)
class GridAxis:
    """One tile of `index` per block. For an index over `Parts(K)` the tile is 1 and the number of parts a
    run-time argument."""

    index: Index
    tile: int


@dataclass(frozen=True, slots=True)
class Whole:
    """An index that every block spans in full; its size is at most `tile`."""

    index: Index
    tile: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One launch. `grid` is outermost first. `lanes` groups indices that play one role together (several
    indices in one M, say); indices not listed are lanes of their own. `names` gives each index its
    name in text. `warps` and `stages` are wishes for a GPU. Where `group` is above 1, blocks are numbered so
    that those that run together cover that many tiles of the grid's axis before the last, and
    share what they load in the last cache. `descriptors`: tiles are loaded through tensor descriptors
    where the caller's strides allow it. `groups`: that many warp groups each compute a share of a block's
    rows, while one more warp copies tiles (0: all warps do the same). `merged`: a GPU may run each block of
    this kernel as the end of whichever block of the kernel before comes last among those that it reads from
    (`cleave.schedule.merging`); it means what it means by itself."""

    name: str
    tensors: tuple[Tensor, ...]
    grid: tuple[GridAxis, ...]
    whole: tuple[Whole, ...]
    lanes: tuple[tuple[Index, ...], ...]
    body: tuple[Statement, ...]
    names: tuple[tuple[Index, str], ...]
    warps: int = 4
    stages: int = 2
    group: int = 1
    descriptors: bool = False
    groups: int = 0
    merged: bool = False

    def __hash__(self) -> int:
        """Of what differs between kernels of one program; a body is long, and equal ones are rare."""
        return hash((self.name, tuple(a.tile for a in self.grid), self.warps, self.stages, len(self.body)))


@dataclass(frozen=True, slots=True)
class TileProgram:
    """Kernels in launch order. `inputs` lists the program's arguments in the caller's order and `outputs` its
    results; workspaces are allocated for the call. `sizes` fixes atoms as in `cleave.ir.program.Program`;
    `limits` are upper bounds of dynamic atoms that the kernels rely on (checked at launch).
    `splits` lists the dims whose part count the launcher chooses."""

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    workspaces: tuple[Tensor, ...]
    kernels: tuple[Kernel, ...]
    sizes: tuple[tuple[Atom, int | Extent], ...] = ()
    limits: tuple[tuple[Atom, int], ...] = ()
    splits: tuple[Dim, ...] = ()

    def __hash__(self) -> int:
        """Of names and tiles, see `Kernel`."""
        return hash((self.name, self.kernels))
