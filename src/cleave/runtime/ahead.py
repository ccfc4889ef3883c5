"""Compiling kernels before the call that they are for, on a machine that need not have the GPU.

`pretend` gives Triton a driver that knows what to compile for and touches no device; `stand_ins` are
arguments without memory. What is compiled for them is found in Triton's cache by the call itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from cleave.ir.dims import Dim, size_of
from cleave.runtime.launch import DTYPES, Value
from cleave.schedule.tiles import TileProgram

NUMBERS: Mapping[str, float | int | bool] = {"f32": 0.5, "f64": 0.5, "bool": True}


class Absent:
    """A GPU that is not touched, as Triton's compiler asks for it."""

    def __init__(self, capability: int) -> None:
        from triton.backends.compiler import GPUTarget

        self.target = GPUTarget("cuda", capability, 32)

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def pretend(capability: int) -> None:
    """From now on this process compiles for such a GPU, and starts no kernels."""
    from triton.runtime import driver

    driver.set_active(Absent(capability))  # pyright: ignore[reportArgumentType]


def stand_ins(tiles: TileProgram, sizes: Mapping[Dim, int]) -> list[Value]:
    """Arguments at some sizes, dense and without memory; numbers are any."""
    found: list[Value] = []
    for tensor in tiles.inputs:
        if tensor.role == "scalar":
            found.append(NUMBERS.get(tensor.dtype, 3))
            continue
        shape: list[int] = []
        for group in tensor.layout:
            shape.append(1)
            for dim in group:
                shape[-1] *= size_of(dim, sizes)
        found.append(torch.empty(shape, dtype=DTYPES[tensor.dtype], device="meta"))
    return found
