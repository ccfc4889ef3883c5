"""A value that is made when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar, cast

T = TypeVar("T")


class Later(Generic[T]):
    """What `make` returns, called at most once; equal to what it holds. Two threads that ask at once may both
    call `make`, which must not matter."""

    __slots__ = ("_make", "_value")

    def __init__(self, make: Callable[[], T]) -> None:
        self._make: Callable[[], T] | None = make
        self._value: T

    def __call__(self) -> T:
        make = self._make
        if make is not None:
            self._value = make()
            self._make = None
        return self._value

    def __eq__(self, other: object) -> bool:
        held: object = cast(Later[object], other)() if isinstance(other, Later) else other
        return self() == held

    def __hash__(self) -> int:
        return hash(self())
