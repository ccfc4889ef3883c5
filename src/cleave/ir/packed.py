"""Values of the IR as bytes, for a store: compact, quick to read back, and exactly what was packed.

Objects are kept by class, one column for each field, after the literals that all is made of; what occurs
twice is kept once, so that the shared nodes of many candidates are written once. `unpack(pack(x))` equals
`x`, nodes are the same objects (they are interned by their digest). All objects are made blank at first and
filled column by column, which needs no order among them and no loop of Python's own. Nothing is checked
again: only bytes whose integrity is known may be unpacked (`runtime.cache` compares their digest), and only
by the code that packed them.
"""

from __future__ import annotations

import functools
import marshal
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from itertools import repeat
from operator import attrgetter
from types import ModuleType
from typing import Any, TypeVar, cast

from cleave.errors import Bug
from cleave.ir import candidate, dims, ops, program
from cleave.ir.ops import NODES, Node

Ints = tuple[int, ...]
Packed = tuple[list[Any], list[Ints], list[tuple[int, list[Ints]]], list[Ints], list[Ints], int]
"""Literals; numerators and denominators of fractions; for each class that occurs its number and columns; keys
and values of mappings by turns; tuples, each after the tuples in it; the number of the value itself. All are
numbered in this order."""

Setter = Callable[[object, object], None]
T = TypeVar("T")


def classes_of(*modules: ModuleType, besides: tuple[type, ...] = ()) -> tuple[type, ...]:
    """The dataclasses that modules define or import, by name, without those `besides`."""
    found = {
        f"{cls.__module__}.{cls.__qualname__}": cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type) and is_dataclass(cls) and cls not in besides
    }
    return tuple(found[name] for name in sorted(found))


OWN = classes_of(dims, ops, program, candidate)


def pack(value: object, *more: type) -> bytes:
    """A value made of the IR's dataclasses, those of `more`, tuples, mappings, numbers, strings and None.
    `Bug` for anything else."""
    return marshal.dumps(_Packer((*OWN, *more)).packed(value))


def unpack(data: bytes, *more: type) -> Any:
    """What `pack` was given, with the same `more`."""
    packed = cast(Packed, marshal.loads(data))
    while True:
        value, agreed = _unpacked(packed, (*OWN, *more))
        if agreed:
            return value


def _unpacked(packed: Packed, classes: Sequence[type]) -> tuple[Any, bool]:
    """The value; False if another thread has made one of its nodes at the same time."""
    literals, ratios, objects, mappings, tuples, top = packed
    made: list[Any] = [*literals, *(Fraction(*ratio) for ratio in ratios)]
    at, digest = made.__getitem__, [f.name for f in fields(Node)].index("digest")
    todo: list[tuple[type, list[Any], list[Ints], int]] = []
    nodes: list[Node] = []
    digests: list[str] = []
    for number, columns in objects:
        cls, first, count = classes[number], len(made), len(columns[0])
        blank = list(map(_new, repeat(cls, count)))
        if cls is Node:
            digests = list(map(at, columns[digest]))
            known = NODES.known(digests)
            fresh = [k for k, node in enumerate(known) if node is None]
            made += [new if old is None else old for new, old in zip(blank, known, strict=True)]
            blank = nodes = [blank[k] for k in fresh]
            columns = [tuple([column[k] for k in fresh]) for column in columns]
            digests = [digests[k] for k in fresh]
        else:
            made += blank
        todo.append((cls, blank, columns, first))
    dicts: list[dict[Any, Any]] = [{} for _ in mappings]
    made += dicts
    add = made.append
    for refs in tuples:
        add(tuple(map(at, refs)))
    for cls, blank, columns, _ in todo:
        for put, column in zip(setters_of(cls), columns, strict=True):
            _run(map(put, blank, map(at, column)))
    for mapping, refs in zip(dicts, mappings, strict=True):
        mapping.update(zip(map(at, refs[::2]), map(at, refs[1::2]), strict=True))
    return made[top], NODES.add_all(digests, nodes)


_new = cast(Callable[[type], Any], object.__new__)


def _run(calls: Iterable[object]) -> None:
    deque(calls, maxlen=0)


def changed(values: Sequence[T], **changes: Sequence[object]) -> list[T]:
    """Copies of frozen dataclass objects of one class, each with its own values of the fields that are named,
    without the checks that making them anew costs."""
    if not values:
        return []
    cls = type(values[0])
    made = list(map(_new, repeat(cls, len(values))))
    for field, put in zip(fields(cls), setters_of(cls), strict=True):  # pyright: ignore[reportArgumentType]
        column = changes.get(field.name)
        _run(map(put, made, map(attrgetter(field.name), values) if column is None else column))
    return made


@functools.cache
def setters_of(cls: type) -> list[Setter]:
    """How to set each field of a frozen dataclass."""

    def setter(name: str) -> Setter:
        slot = getattr(cls, name, None)
        if hasattr(slot, "__set__"):
            return cast(Setter, slot.__set__)  # pyright: ignore[reportOptionalMemberAccess]
        return lambda built, value: object.__setattr__(built, name, value)

    return [setter(f.name) for f in fields(cls)]


class _Packer:
    """Objects with their parts before them; found without recursion, since programs may be deep."""

    def __init__(self, classes: Sequence[type]) -> None:
        self.classes = classes
        self.names = {cls: [f.name for f in fields(cls)] for cls in classes}

    def packed(self, top: object) -> Packed:
        """What is equal is one entry: entries are numbered by kind, in the order in which they are found."""
        order = self._ordered(top)
        kinds: dict[object, dict[object, tuple[object, list[int]]]] = {}
        entry: dict[int, tuple[object, object]] = {}
        serial: dict[tuple[object, object], int] = {}
        for value, parts in order:
            refs = [serial[entry[id(part)]] for part in parts]
            kind, key = self._kind(value), self._key(value, refs)
            kinds.setdefault(kind, {}).setdefault(key, (value, refs))
            entry[id(value)] = kind, key
            serial.setdefault((kind, key), len(serial))
        classes = [cls for cls in self.classes if cls in kinds]
        order_of_kinds = ["literal", "ratio", *classes, "mapping", "tuple"]
        found = [list(kinds.get(kind, {}).items()) for kind in order_of_kinds]
        keys = [(kind, key) for kind, rows in zip(order_of_kinds, found, strict=True) for key, _ in rows]
        number = {serial[entered]: n for n, entered in enumerate(keys)}
        rows = {
            kind: [tuple(number[r] for r in refs) for _, (_, refs) in rows]
            for kind, rows in zip(order_of_kinds, found, strict=True)
        }
        ratios = [cast(Fraction, value) for _, (value, _) in found[1]]
        return (
            [value for _, (value, _) in found[0]],
            [(r.numerator, r.denominator) for r in ratios],
            [(self.classes.index(cls), list(zip(*rows[cls], strict=True))) for cls in classes],
            rows["mapping"],
            rows["tuple"],
            number[serial[entry[id(top)]]],
        )

    def _kind(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | str | float):
            return "literal"
        if isinstance(value, Fraction):
            return "ratio"
        if isinstance(value, tuple | Mapping):
            return "tuple" if isinstance(value, tuple) else "mapping"
        if type(value) not in self.names:
            raise Bug(f"an object of class {type(value).__name__} cannot be stored")
        return type(value)

    def _key(self, value: object, refs: Sequence[int]) -> object:
        if value is None or isinstance(value, bool | int | str | float | Fraction):
            return type(value), repr(value)
        return tuple(refs)

    def _ordered(self, top: object) -> list[tuple[object, list[object]]]:
        """Every object with its parts, after them; all are kept alive, as entries go by identity."""
        seen: dict[int, None] = {}
        order: list[tuple[object, list[object]]] = []
        stack: list[tuple[object, list[object] | None]] = [(top, None)]
        while stack:
            value, parts = stack.pop()
            if parts is not None:
                order.append((value, parts))
            elif id(value) not in seen:
                seen[id(value)] = None
                parts = self._parts(value)
                stack.append((value, parts))
                stack += [(part, None) for part in reversed(parts)]
        return order

    def _parts(self, value: object) -> list[object]:
        if isinstance(value, tuple):
            return list(cast(tuple[object, ...], value))
        if isinstance(value, Mapping):
            pairs = cast(Mapping[object, object], value)
            return [part for pair in pairs.items() for part in pair]
        names = self.names.get(type(value))
        return [] if names is None else [getattr(value, name) for name in names]
