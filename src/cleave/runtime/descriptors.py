"""Tensor descriptors for calls of Triton kernels: which tensors allow them, and how one is made.

A descriptor tells the GPU's copy engine where a tensor's tiles lie: it has one axis per dim of the layout.
The engine wants the last one dense, and the address and all other strides in multiples of 16 bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from cleave.codegen.source import Argument
from cleave.ir.dims import Dim, size_of
from cleave.schedule.machine import width
from cleave.schedule.tiles import Tensor

ALIGNMENT = 16
"""Bytes."""
LARGEST_STRIDE = 1 << 40
"""Bytes."""


def axes_of(
    tensor: Tensor, strides: Sequence[int], sizes: Mapping[Dim, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and stride of each dim of a tensor's layout, from the strides of the caller's axes."""
    lengths: list[int] = []
    steps: list[int] = []
    for group, stride in zip(tensor.layout, strides, strict=True):
        step = stride
        own: list[tuple[int, int]] = []
        for dim in reversed(group):
            own.append((size_of(dim, sizes), step))
            step *= own[-1][0]
        for length, each in reversed(own):
            lengths.append(length)
            steps.append(each)
    return tuple(lengths), tuple(steps)


def allowed(argument: Argument, lengths: Sequence[int], strides: Sequence[int], offset: int) -> bool:
    """Whether a tensor whose address is `offset` bytes past a multiple of 16 can be described."""
    *outer, last = strides
    bytes_ = [stride * width(argument.dtype) for stride in outer]
    fine = all(b % ALIGNMENT == 0 and 0 < b < LARGEST_STRIDE for b in bytes_)
    return fine and last == 1 and offset % ALIGNMENT == 0 and min(lengths) > 0 and max(lengths) < 1 << 31


class Described:
    """Makes the descriptors of one argument: everything but the address is fixed."""

    def __init__(
        self, argument: Argument, lengths: Sequence[int], strides: Sequence[int], layout: Any = None
    ) -> None:
        """`layout` is that of the tiles in shared memory, which kernels with warp groups choose."""
        self.shape, self.strides, self.block = list(lengths), list(strides), list(argument.block)
        self.layout = layout
        self.form: Any = None

    def of(self, tensor: Any) -> Any:
        """The descriptor of a torch tensor. Threads may ask at once."""
        form = self.form
        if form is None:
            form = copy.copy(self._made(tensor))
            form.base = None  # the form must not keep the tensor's memory
            self.form = form
        made = copy.copy(form)
        made.base = tensor
        return made

    def bare(self, base: Any) -> Any:
        """A descriptor with another base than a tensor."""
        made = copy.copy(self.form)
        made.base = base
        return made

    def _made(self, tensor: Any) -> Any:
        form = (tensor, self.shape, self.strides, self.block)
        if self.layout is None:
            from triton.tools.tensor_descriptor import TensorDescriptor

            return TensorDescriptor(*form)
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as Grouped

        return Grouped(*form, self.layout)
