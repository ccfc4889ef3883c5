"""Capture from declarations alone: fake tensors and numbers stand for the inputs, so no data is needed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cleave.errors import CleaveError, Invalid
from cleave.frontend.axis_text import Factor, known_sizes, shown
from cleave.frontend.calls import parameters_of
from cleave.frontend.capture import capture
from cleave.frontend.captured import Captured
from cleave.frontend.raised import is_users, told

NUMBERS: Mapping[str, float] = {"float": 0.7310585786300049, "int": 2}
"""The declarations of run-time numbers, and what they are while a function is captured."""
MOST_BYTES = 2**62
"""PyTorch counts the bytes of a tensor, a fake one too, in 63 bits."""


@dataclass(frozen=True, slots=True)
class DeclaredTensor:
    """The declaration of a tensor."""

    dtype: torch.dtype
    axes: tuple[tuple[Factor, ...], ...]


@dataclass(frozen=True, slots=True)
class Declared:
    """What is said of a function: its inputs by name (a text of `NUMBERS`, or a tensor), typical sizes of
    dynamic dims, and the user's line that says so."""

    inputs: Mapping[str, str | DeclaredTensor]
    typical: Mapping[str, int]
    where: str = field(default="", compare=False)

    @property
    def axes(self) -> list[tuple[str, tuple[Factor, ...]]]:
        """All axes, each with the parameter that it is of."""
        tensors = ((name, given) for name, given in self.inputs.items() if isinstance(given, DeclaredTensor))
        return [(f"parameter {name}", axis) for name, tensor in tensors for axis in tensor.axes]

    @property
    def names(self) -> list[str]:
        """The names of dims in the declarations of inputs."""
        return [factor.name for _, axis in self.axes for factor in axis if factor.name]

    def check(self) -> None:
        """`Invalid` for sizes that contradict each other or do not follow, with the user's line."""
        try:
            known = known_sizes(self.axes)
        except Invalid as error:
            raise Invalid(error.what, where=self.where, hint=error.hint) from None
        for name, size in self.typical.items():
            if name in known:
                what = f"{name}={size} is a typical size of a dynamic dim, and {name} is known: {known[name]}"
                raise Invalid(
                    what, where=self.where, hint=f"leave out one of them: {name}={size}, or the size"
                )


def capture_declared(
    fn: Callable[..., Any], declared: Declared, name: str, *, computed: bool = False
) -> Captured:
    """Capture a function on fakes of its declared inputs; what is not declared takes its default, or is a
    float. `computed`: see `capture`. `Invalid` if a declared tensor is too large, or the function raises."""
    sizes = _Sizes(declared)
    places: list[Any] = []
    arguments: dict[str, Any] = {}
    named: dict[str, Sequence[str]] = {}
    with FakeTensorMode():
        for parameter in parameters_of(fn).values():
            given = declared.inputs.get(parameter.name)
            if isinstance(given, DeclaredTensor):
                value = _fake(given, sizes, parameter.name, declared.where)
                named[parameter.name] = [shown(axis) for axis in given.axes]
            else:
                value = _number(parameter, given)
            if parameter.kind is Parameter.POSITIONAL_ONLY:
                places.append(value)
            else:
                arguments[parameter.name] = value
    try:
        return capture(fn, places, arguments, dynamic=named, name=name, computed=computed)
    except Invalid as error:
        if error.where:
            raise
        raise type(error)(error.what, where=declared.where, hint=error.hint) from error
    except CleaveError:
        raise
    except Exception as error:  # a user's function may raise anything
        if not is_users(error):
            raise
        raise told(error, name, declared.where, _standing_for(fn, declared, sizes)) from error


def _fake(given: DeclaredTensor, sizes: _Sizes, name: str, where: str) -> torch.Tensor:
    shape = [sizes.of(axis) for axis in given.axes]
    if math.prod(shape) * given.dtype.itemsize >= MOST_BYTES:
        what = f"parameter {name}: no tensor has {' x '.join(map(str, shape))} elements of {given.dtype}"
        made = ", ".join(f"{n}={size}" for n, size in sizes.made.items())
        raise Invalid(
            what,
            where=where,
            hint=f"smaller sizes, or fewer axes{f' (made up to tell names apart: {made})' if made else ''}",
        )
    return torch.empty(shape, dtype=given.dtype)


def _number(parameter: Parameter, given: str | DeclaredTensor | None) -> Any:
    """What stands for an input that is no tensor: its default, else a number."""
    default = parameter.default
    if given is None:
        return NUMBERS["float"] if default is Parameter.empty else default
    assert isinstance(given, str)
    usable = isinstance(default, int | float) and not isinstance(default, bool)
    return default if usable else NUMBERS[given]


def _standing_for(fn: Callable[..., Any], declared: Declared, sizes: _Sizes) -> str:
    """What the numbers in an error's text stand for, and which inputs were taken for numbers."""
    lines: list[str] = []
    if sizes.made:
        lines.append("sizes in it stand for names: " + ", ".join(f"{n}={s}" for n, s in sizes.made.items()))
    plain = [p.name for p in parameters_of(fn).values() if p.name not in declared.inputs]
    plain = [name for name in plain if parameters_of(fn)[name].default is Parameter.empty]
    if plain:
        lines.append(f"not declared, so taken for a number: {', '.join(plain)}")
    return "; ".join(lines)


def _odd_primes() -> Iterator[int]:
    return (n for n in itertools.count(3, 2) if all(n % d for d in range(3, math.isqrt(n) + 1, 2)))


class _Sizes:
    """A size for every name: known, typical, or a prime of its own, so that no two names look equal."""

    def __init__(self, declared: Declared) -> None:
        declared.check()
        self.known = {**declared.typical, **known_sizes(declared.axes)}
        self.made: dict[str, int] = {}
        self.primes = _odd_primes()

    def of(self, axis: Sequence[Factor]) -> int:
        """The number of elements along an axis."""
        total = 1
        for name, size in axis:
            if name and name not in self.known:
                self.made[name] = self.known[name] = next(
                    p for p in self.primes if p not in self.known.values()
                )
            total *= self.known[name] if name else (size or 0)
        return total
