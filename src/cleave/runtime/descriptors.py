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

    def __init__(self, argument: Argument, lengths: Sequence[int], strides: Sequence[int]) -> None:
        self.shape, self.strides, self.block = list(lengths), list(strides), list(argument.block)
        self.form: Any = None

    def of(self, tensor: Any) -> Any:
        """The descriptor of a torch tensor."""
        if self.form is None:
            from triton.tools.tensor_descriptor import TensorDescriptor

            self.form = TensorDescriptor(tensor, self.shape, self.strides, self.block)
            made, self.form = self.form, copy.copy(self.form)
            self.form.base = None  # the form must not keep the tensor's memory
            return made
        made = copy.copy(self.form)
        made.base = tensor
        return made
