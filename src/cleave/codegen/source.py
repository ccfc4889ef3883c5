"""What an emitter hands to the run time: source text, and how each of its functions is called.

One `Entry` per kernel, in launch order, one `Argument` per parameter, in the order of the parameters. The
launcher fills the arguments from the caller's tensors and from the sizes of the call; it never looks into the
text. Equal tile programs give byte-identical text.
"""

from __future__ import annotations

from dataclasses import dataclass

from cleave.ir.dims import Dim
from cleave.schedule.tiles import GridAxis

KINDS = ("pointer", "descriptor", "counter", "stride", "size", "chunk", "parts", "scalar", "threads")


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of a function.

    - `pointer`: the address of element 0 of `tensor` (its storage offset included); `dtype` is its elements',
    - `descriptor`: a tensor descriptor of `tensor`, one axis per dim, for blocks of the extents `block`,
    - `counter`: the address of numbers (i32) that are 0 before and after, for each stream its own,
    - `stride`: the stride, in elements, of the caller's axis number `axis` of `tensor` (i64),
    - `size`: the size of `dim` (i64),
    - `chunk`: the length of a part of `dim`, the split dim (i64),
    - `parts`: the number of parts of `dim`, the split dim (i64),
    - `scalar`: the Python number given for the program's scalar `tensor`; `dtype` says how it is passed,
    - `threads`: how many threads may work (i64; C++ only)."""

    kind: str
    name: str
    tensor: str = ""
    axis: int = 0
    dim: Dim | None = None
    dtype: str = "i64"
    block: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """How one kernel is launched: `kernel` is its name in the tile program, `function` its name in the text.
    There is one block per tile of each grid axis (outermost first); C++ functions loop over the blocks
    themselves. `warps` and `stages` are wishes for a GPU. `early`: the kernel may start while the one before
    it still runs, and waits by itself for what that one wrote. `groups`: warp groups that compute beside a
    warp that copies, of four warps each (written in Gluon), or 0. `persistent`: a block does one tile of the
    grid after another, so that one block per core is enough; `uneven` are the axes whose later tiles take
    longer (with many, blocks that start when another ends balance better). `beside`: how many further kernels
    of the tile program, the next ones, run in the same launch (`codegen.together`). `merged`: the next
    kernel's blocks run as ends of this one's (`codegen.triton_merge`)."""

    kernel: str
    function: str
    arguments: tuple[Argument, ...]
    grid: tuple[GridAxis, ...]
    warps: int = 4
    stages: int = 2
    early: bool = False
    groups: int = 0
    persistent: bool = False
    uneven: tuple[GridAxis, ...] = ()
    beside: int = 0
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """Generated source in `language` (`"c++"` or `"triton"`)."""

    language: str
    text: str
    entries: tuple[Entry, ...]
