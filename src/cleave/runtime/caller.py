"""The repeated call of a tile program on the CPU, written out: a few lines of Python made once per launcher.

What a call does is the same each time but for numbers: allocate the outputs, call the kernels with addresses.
Written out it takes a third of the time of loops over lists. `caller_maker(...)` gives a function that takes
what follows from a signature and returns the call; the text is `caller_text`. Workspaces are parts of a
`Room`, which a call borrows and gives back: as many are kept as calls ever ran at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from cleave.errors import CleaveError

Holes = Sequence[tuple[int, int]]
"""Which argument of a kernel is which value, by its place among inputs, outputs and workspaces."""
Call = Callable[..., tuple[torch.Tensor, ...]]
Empty = Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]
CPU = torch.device("cpu")
LINE = 128
"""Workspaces start on borders of so many bytes: no two share a line that processors prefetch in pairs."""
MOST_KEPT = 256 << 20
"""A larger room is given back to the system."""


def public_empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Fresh memory; filled where PyTorch is told to fill it."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=CPU)


deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
"""Whether new memory may have to be filled."""
_torch: Any = torch._C
_guards = _torch._dynamo.guards
quick_empty: Empty = getattr(_guards, "_empty_strided_cpu", public_empty)
"""What PyTorch's own compiled code makes new tensors with, half as dear as the public function."""


_threaded: list[bool] = []
"""Not empty as soon as kernels may have run on several threads."""
_left: list[bool] = []
"""Not empty in a process that was forked off then: the threads did not come along, and OpenMP would wait for
them for ever. Its kernels run on the thread that calls."""


def _forked() -> None:
    _left.extend(_threaded)


if hasattr(os, "register_at_fork"):  # where processes can be forked
    os.register_at_fork(after_in_child=_forked)


@dataclass(frozen=True, slots=True)
class Room:
    """Memory for the workspaces of one call at a time."""

    memory: torch.Tensor
    address: int
    size: int


_rooms: list[Room] = []
"""What no call uses now. Taking and adding one element of a list is atomic."""


def take(size: int) -> Room:
    """A room of at least so many bytes."""
    try:
        room = _rooms.pop()
        if room.size >= size:
            return room
    except IndexError:
        pass
    memory = public_empty((size + LINE,), (1,), torch.uint8)
    return Room(memory, -(-memory.data_ptr() // LINE) * LINE, size)


def give(room: Room) -> None:
    """Give a room back."""
    if room.size <= MOST_KEPT:
        _rooms.append(room)


def caller_text(
    tensors: Sequence[bool],
    inputs: int,
    outputs: int,
    kernels: Sequence[tuple[int, Holes]],
    alone: Sequence[bool] = (),
) -> str:
    """The text. `tensors` says which values are tensors (the others are numbers); the first `inputs` are
    given, the next `outputs` returned (by `call.single` the only one as it is), the rest are workspaces; a
    kernel has so many arguments and holes, and takes the number of threads last, which is 1 where it is
    `alone`, and everywhere in a forked process that `left` its threads behind. Numbers are made ready for the
    kernel (`ready`) as they are put into the text."""
    names = [f"{'t' if tensor else 'n'}{place}" for place, tensor in enumerate(tensors)]
    made, spaces = range(inputs, inputs + outputs), range(inputs + outputs, len(tensors))
    alone = [*alone, *[False] * (len(kernels) - len(alone))]
    lines = [
        "def make(functions, shapes, places, size, numbers, ready, quick, careful, filled, threads, failed,",
        "         address, word, take, give, left):",
        "    one = word(1)",
    ]
    lines += [f"    f{k} = functions[{k}]" for k in range(len(kernels))]
    lines += [f"    s{v}, d{v}, k{v} = shapes[{n}]" for n, v in enumerate(made)]
    lines += [f"    o{v} = places[{n}]" for n, v in enumerate(spaces)]
    for k, (count, holes) in enumerate(kernels):
        where = dict(holes)
        lines += [f"    c{k}_{a} = numbers[{k}][{a}]" for a in range(count - 1) if a not in where]
        lines += [f"    r{k}_{a} = ready[{k}][{a}]" for a, v in holes if not tensors[v]]
    lines.append(f"    def call({', '.join(names[:inputs])}):")
    if made:
        lines.append("        empty = careful if filled() else quick")
    lines += [f"        t{v} = empty(s{v}, d{v}, k{v})" for v in made]
    if spaces:
        lines += ["        room = take(size)", "        start = room.address"]
    used = sorted({value for _, holes in kernels for _, value in holes if tensors[value]})
    for v in used:
        lines.append(f"        p{v} = address({f'start + o{v}' if v in spaces else f't{v}.data_ptr()'})")
    for k, (count, holes) in enumerate(kernels):
        where = dict(holes)
        given = [_argument(a, k, where, tensors) for a in range(count - 1)]
        given.append("one" if alone[k] else "one if left else word(threads())")
        lines += [f"        if f{k}({', '.join(given)}):", "            failed()"]
    if spaces:
        lines.append("        give(room)")
    results = [f"t{v}," for v in made]
    lines.append(f"        return ({' '.join(results)})")
    if outputs == 1:  # the same with the only result itself
        start = lines.index(f"    def call({', '.join(names[:inputs])}):")
        lines += [f"    def single({', '.join(names[:inputs])}):", *lines[start + 1 : -1]]
        lines += [f"        return t{inputs}", "    call.single = single"]
    lines.append("    return call")
    return "\n".join(lines) + "\n"


def _argument(place: int, kernel: int, where: dict[int, int], tensors: Sequence[bool]) -> str:
    if place not in where:
        return f"c{kernel}_{place}"
    value = where[place]
    return f"p{value}" if tensors[value] else f"r{kernel}_{place}(n{value})"


def spread(sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Where workspaces of so many bytes start in a room, and how large it is."""
    places: list[int] = []
    end = 0
    for size in sizes:
        places.append(end)
        end += -(-size // LINE) * LINE
    return tuple(places), end


Ready = Callable[[float], Any]
"""Makes a value ready to be passed to a kernel."""


class Maker:
    """Makes the calls of one program. `ready` holds, for each argument of each kernel, what makes it ready;
    `address` and `word` do that for pointers and for the number of threads."""

    def __init__(
        self,
        name: str,
        tensors: Sequence[bool],
        inputs: int,
        outputs: int,
        kernels: Sequence[tuple[int, Holes]],
        ready: Sequence[Sequence[Ready]],
        address: Ready,
        word: Ready,
    ) -> None:
        self.name, self.tensors, self.count, self.kernels = name, tensors, (inputs, outputs), kernels
        self.ready, self.address, self.word = ready, address, word
        self.written: dict[tuple[bool, ...], Callable[..., Call]] = {}

    def _failed(self) -> None:
        raise CleaveError(f"program {self.name}: no memory for the scratch of its kernels")

    def __call__(
        self,
        functions: Sequence[Any],
        shapes: Sequence[Any],
        bytes_: Sequence[int],
        numbers: Sequence[Sequence[int]],
        alone: tuple[bool, ...],
    ) -> Call:
        """The call. `shapes`: shape, strides and dtype of the outputs; `bytes_`: of the workspaces;
        `numbers`: what is constant among the arguments; `alone`: the kernels that one thread runs."""
        if alone not in self.written:
            scope: dict[str, Any] = {}
            exec(caller_text(self.tensors, *self.count, self.kernels, alone), scope)
            self.written[alone] = scope["make"]
        constants = [[ready(n) for ready, n in zip(r, ns, strict=True)]
                     for r, ns in zip(self.ready, numbers, strict=True)]  # fmt: skip
        places, size = spread(bytes_)
        how = (quick_empty, public_empty, deterministic, torch.get_num_threads, self._failed)
        more = (self.address, self.word, take, give, _left)
        if not all(alone) and torch.get_num_threads() > 1 and not _threaded:
            _threaded.append(True)
        return self.written[alone](
            functions, shapes, places, size, constants, self.ready, *how, *more
        )  # fmt: skip
