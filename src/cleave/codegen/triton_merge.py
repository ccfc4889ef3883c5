"""Two kernels in one launch: a split's parts, and the merge that the last of them goes on with.

The blocks whose states one block of the merge reads count up a number in memory when they have stored them.
Whichever finds that it is the last one sets the number back to 0, reads all states, and does what the merging
kernel's block would do; nobody waits. The order of memory:

- `tl.debug_barrier()` (`bar.sync`): all stores of the block come before the count, which one thread does.
- The count is `atom.acq_rel.gpu`. Release is cumulative: with the barrier it covers what the other threads
  have stored. Acquire: what the last one reads afterwards is what was stored before any of the counts that
  its own has seen; all of them, by its ticket. Triton hands the ticket to the other threads through shared
  memory behind a barrier, so that theirs come after, too.
- The states are read with `.cg`, past the first cache, which may hold what it had before; never through
  descriptors, whose copies follow another order.
- The number is set back when all that count on it have counted. The next kernel on the stream finds 0.

What several tiles have in common (`Store.first`) is stored by all of them: a block of the merge waits for its
own tile only, and the same value twice is the same value.
"""

from __future__ import annotations

from dataclasses import replace

from cleave.codegen.triton_body import Body
from cleave.codegen.triton_grid import count_of, enter, index_names_of
from cleave.codegen.triton_scope import Scope, bracketed, is_number
from cleave.codegen.triton_text import Line, Nested
from cleave.codegen.triton_tiles import plan_lanes
from cleave.ir.dims import Index
from cleave.schedule.merging import Joint, joint_of
from cleave.schedule.tiles import GridAxis, Kernel, Loop, Statement, Store
from cleave.schedule.walks import firsts_of


def joined(kernel: Kernel, closing: Kernel | None) -> Kernel:
    """A kernel with the tensors of the one that is merged into it."""
    if closing is None:
        return kernel
    tensors = {tensor.name: tensor for tensor in (*kernel.tensors, *closing.tensors)}
    return replace(kernel, tensors=tuple(tensors.values()))


def kept_of(kernel: Kernel, closing: Kernel | None) -> frozenset[Index]:
    """The indices of a kernel's grid that have a block even if they are empty: its own, or the merged one's
    would have one."""
    kept = firsts_of(kernel)
    if closing is None:
        return kept
    theirs = firsts_of(closing)
    return kept | {a.index for b, a in joint_of(kernel, closing).pairs if b.index in theirs}


def close(scope: Scope, kernel: Kernel, closing: Kernel, precision: str) -> None:
    """Write a kernel's statements, and those of the one that is merged into it for the block that is last."""
    joint, kept = joint_of(kernel, closing), kept_of(kernel, closing)
    open_ = frozenset(axis.index for _, axis in joint.pairs)
    Body(precision, kernel.stages - 1, open_).write(scope, kernel.body)
    starts, place, count = _counted(scope, joint, kept)
    counter = f"{scope.params.counter()} + {place}" if place != "0" else scope.params.counter()
    scope.lines.append(Line("tl.debug_barrier()  # all that the block stores comes before its count"))
    ticket = scope.line("ticket", f'tl.atomic_add({counter}, 1, sem="acq_rel", scope="gpu")')
    inner = Scope(scope.params, plan_lanes(closing), index_names_of(closing, scope.names), scope.names)
    inner.lines.append(Line(f"tl.store({counter}, 0)  # as the next launch wants it"))
    scope.params.described = False
    scope.params.fresh = frozenset(stored(kernel.body))
    own = frozenset(b.index for b, a in joint.pairs if a.index in kept)
    enter(inner, closing, starts, own)
    Body(precision, closing.stages - 1, threads=32 * kernel.warps).write(inner, closing.body)
    last = str(int(count) - 1) if is_number(count) else f"{count} - 1"
    scope.lines.append(Nested(f"if ticket == {last}:".replace("ticket", ticket), inner.lines))


def _counted(scope: Scope, joint: Joint, kept: frozenset[Index]) -> tuple[dict[Index, str], str, str]:
    """Where the tiles of the merging block start, the place of its number, how many blocks count on it."""
    starts: dict[Index, str] = {}
    place, counts = "0", [count_of(scope, axis, axis.index in kept) for axis in joint.rest]
    for axis, below in joint.pairs:
        start = scope.spans[below.index].start
        if axis.tile > below.tile:
            name = f"{scope.index_names[below.index]}_all"
            start = scope.line(name, f"{start} // {axis.tile} * {axis.tile}")
            counts.append(_covered(scope, axis, below, start))
        starts[axis.index] = start
        tiles = count_of(scope, axis, below.index in kept)
        number = f"{bracketed(start)} // {axis.tile}" if axis.tile > 1 else start
        place = number if place == "0" else f"({place}) * {bracketed(tiles)} + {number}"
    known = 1
    for text in counts:
        known *= int(text) if is_number(text) else 1
    texts = [bracketed(text) for text in counts if not is_number(text)]
    return starts, place, " * ".join([*texts, *([str(known)] if known > 1 or not texts else [])])


def _covered(scope: Scope, axis: GridAxis, below: GridAxis, start: str) -> str:
    """How many tiles of the first kernel one of the merging one covers."""
    size = scope.params.size(axis.index.dim)
    if is_number(size) and int(size) and int(size) % axis.tile == 0:
        return str(axis.tile // below.tile)
    # A dim that is empty has a block all the same.
    return f"tl.maximum(tl.cdiv(tl.minimum({size} - {start}, {axis.tile}), {below.tile}), 1)"


def stored(body: tuple[Statement, ...]) -> list[str]:
    """The tensors that statements store to."""
    found: list[str] = []
    for statement in body:
        if isinstance(statement, Loop):
            found += stored(statement.body)
        elif isinstance(statement, Store):
            found.append(statement.tensor)
    return found


__all__ = ["close", "joined", "kept_of", "stored"]
