"""What a tracing finds beside operations: inputs, calls left to PyTorch, and why something fell back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch

from cleave.errors import Unsupported
from cleave.frontend.values import Pre

TENSORS = frozenset({torch.Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""The classes whose operations are PyTorch's own."""


def foreign(tensor: torch.Tensor) -> str:
    """What makes a tensor other than plain strided memory; empty if nothing does. A subclass may give
    operations a meaning of its own, other layouts have no strides."""
    if type(tensor) not in TENSORS:
        return f"a tensor of class {type(tensor).__name__}"
    return "" if tensor.layout is torch.strided else f"a tensor with layout {tensor.layout}"


class Whole(Unsupported):
    """The function as a whole cannot be captured: it runs in PyTorch."""


class Retry(Exception):
    """Capture again, with one recorded call run in PyTorch."""

    def __init__(self, call: int, reason: str) -> None:
        super().__init__(reason)
        self.call, self.reason = call, reason


@dataclass(frozen=True, slots=True)
class Fallback:
    """What runs in PyTorch: the operation, the user's line, and why."""

    op: str
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.op} at {self.where}: {self.reason}" if self.where else f"{self.op}: {self.reason}"


@dataclass(eq=False, slots=True)
class Poison:
    """A result that has no value here (the indices of `max`): using it sends its call to PyTorch."""

    call: int


@dataclass(eq=False, slots=True)
class EagerCall:
    """A torch call that PyTorch runs: in `args`, `Value`s stand for tensors and expressions for sizes."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Pre | None, ...]
    level: int
    where: str
    name: str


@dataclass(eq=False, slots=True)
class TensorInput:
    """A tensor the capture reads: an argument (`place` is its number) or one found outside the function."""

    name: str
    node: Pre
    fake: torch.Tensor
    place: int = -1
    outside: torch.Tensor | None = None
    symbols: tuple[sympy.Symbol, ...] = ()


@dataclass(eq=False, slots=True)
class NumberInput:
    """A Python number given at each call."""

    name: str
    node: Pre
    symbol: sympy.Symbol
    place: int


@dataclass(slots=True)
class Wishes:
    """What earlier attempts at this capture taught: calls (by number) to leave to PyTorch, and why."""

    eager: dict[int, str] = field(default_factory=dict[int, str])
