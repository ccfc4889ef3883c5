"""A table of objects that exist once: equal things are one object for as long as anybody holds it.

References are weak. What dies is noted (by a call into C, whatever thread it happens in, a collection of
garbage included) and taken out by the next one to add something, so that the table changes only under its
lock; until then a dead reference reads as nothing. The standard library's `WeakValueDictionary` does the same
in Python code for each object, which is most of the time that many nodes take to come back from a store.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import Any, Generic, TypeVar, cast
from weakref import ref

T = TypeVar("T")


class _Kept(ref[Any]):
    """A weak reference that knows its key."""

    __slots__ = ("key",)
    key: str


_set_key = cast(Callable[[object, str], None], cast(Any, _Kept.key).__set__)


class Interned(Generic[T]):
    """Objects by a text that says all of what they are."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._dead: deque[_Kept] = deque()
        self._lock = threading.Lock()

    def get(self, key: str) -> T | None:
        """The object, if it is there."""
        kept = self._kept.get(key)
        return None if kept is None else kept()

    def add(self, key: str, made: T) -> T:
        """The object with this key: the one that is there, or else `made`, which then is. Two threads get one
        object."""
        with self._lock:
            self._sweep()
            known = self.get(key)
            if known is not None:
                return known
            kept = _Kept(made, self._dead.append)
            kept.key = key
            self._kept[key] = kept
            return made

    def known(self, keys: Iterable[str]) -> list[T | None]:
        """The objects with these keys, None where there is none."""
        return [None if kept is None else kept() for kept in map(self._kept.get, keys)]

    def add_all(self, keys: Sequence[str], made: Sequence[T]) -> bool:
        """Add objects whose keys are not there. False, and nothing is added, if one of them is by now."""
        with self._lock:
            self._sweep()
            if not self._kept.keys().isdisjoint(keys) and any(
                known is not None for known in self.known(keys)
            ):
                return False
            kept = list(map(_Kept, made, repeat(self._dead.append)))
            deque(map(_set_key, kept, keys), maxlen=0)
            self._kept.update(zip(keys, kept, strict=True))
            return True

    def _sweep(self) -> None:
        """Take out what died. Another object may have its key by now."""
        while self._dead:
            kept = self._dead.popleft()
            if self._kept.get(kept.key) is kept:
                del self._kept[kept.key]
