"""The repeated call of a tile program on the CPU, written out: a few lines of Python made once per launcher.

What a call does is the same each time but for numbers: allocate the outputs and workspaces, call the kernels
with addresses. Written out it takes a third of the time of loops over lists. `caller_maker(...)` gives a
function that takes what follows from a signature and returns the call; the text is `caller_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cleave.errors import CleaveError

Holes = Sequence[tuple[int, int]]
"""Which argument of a kernel is which value, by its place among inputs, outputs and workspaces."""
Call = Callable[..., tuple[torch.Tensor, ...]]
Empty = Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]
CPU = torch.device("cpu")


def public_empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Fresh memory; filled where PyTorch is told to fill it."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=CPU)


deterministic: Callable[[], bool] = torch._C._get_deterministic_algorithms
"""Whether new memory may have to be filled."""
_torch: Any = torch._C
_guards = _torch._dynamo.guards
quick_empty: Empty = getattr(_guards, "_empty_strided_cpu", public_empty)
"""What PyTorch's own compiled code makes new tensors with, half as dear as the public function."""


def caller_text(
    tensors: Sequence[bool], inputs: int, outputs: int, kernels: Sequence[tuple[int, Holes]]
) -> str:
    """The text. `tensors` says which values are tensors (the others are numbers); the first `inputs` are
    given, the next `outputs` returned (by `call.single` the only one as it is); a kernel has so many
    arguments and holes, and takes the number of threads last."""
    names = [f"{'t' if tensor else 'n'}{place}" for place, tensor in enumerate(tensors)]
    fresh = range(inputs, len(tensors))
    lines = ["def make(functions, shapes, numbers, quick, careful, filled, threads, failed):"]
    lines += [f"    f{k} = functions[{k}]" for k in range(len(kernels))]
    lines += [f"    s{v}, d{v}, k{v} = shapes[{n}]" for n, v in enumerate(fresh)]
    for k, (count, holes) in enumerate(kernels):
        filled = {place for place, _ in holes}
        lines += [f"    c{k}_{a} = numbers[{k}][{a}]" for a in range(count - 1) if a not in filled]
    lines.append(f"    def call({', '.join(names[:inputs])}):")
    if fresh:
        lines.append("        empty = careful if filled() else quick")
    lines += [f"        t{v} = empty(s{v}, d{v}, k{v})" for v in fresh]
    used = sorted({value for _, holes in kernels for _, value in holes if tensors[value]})
    lines += [f"        p{v} = t{v}.data_ptr()" for v in used]
    for k, (count, holes) in enumerate(kernels):
        where = dict(holes)
        given = [_argument(a, k, where, tensors) for a in range(count - 1)]
        lines += [f"        if f{k}({', '.join([*given, 'threads()'])}):", "            failed()"]
    results = [f"t{inputs + n}," for n in range(outputs)]
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
    return f"{'p' if tensors[where[place]] else 'n'}{where[place]}"


def caller_maker(
    name: str, tensors: Sequence[bool], inputs: int, outputs: int, kernels: Sequence[tuple[int, Holes]]
) -> Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Call]:
    """A function from kernels' functions, shapes of fresh tensors (shape, strides, dtype) and constant
    arguments to the call."""
    scope: dict[str, Any] = {}
    exec(caller_text(tensors, inputs, outputs, kernels), scope)

    def failed() -> None:
        raise CleaveError(f"program {name}: no memory for the scratch of its kernels")

    def make(functions: Sequence[Any], shapes: Sequence[Any], numbers: Sequence[Any]) -> Call:
        how = (quick_empty, public_empty, deterministic)
        return scope["make"](functions, shapes, numbers, *how, torch.get_num_threads, failed)

    return make
