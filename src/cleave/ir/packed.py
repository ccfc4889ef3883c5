"""Values of the IR as bytes, for a store: compact, quick to read back, and exactly what was packed.

Every object is one record, after what it is made of; what occurs twice is one record, so that the shared
nodes of many candidates are written once. `unpack(pack(x))` equals `x`, nodes are the same objects (they are
interned by their digest). A node of a pointwise operation, by far the most there is, is one record with its
operation and what it reads. Records are not checked again: only bytes whose integrity is known may be
unpacked (`runtime.cache` compares their digest), and only by the code that packed them.
"""

from __future__ import annotations

import functools
import marshal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from fractions import Fraction
from types import ModuleType
from typing import Any, TypeVar, cast

from cleave.errors import Bug
from cleave.ir import candidate, dims, ops, program
from cleave.ir.ops import Access, Map, Node, intern_trusted

TUPLE, MAPPING, RATIO, MAPPED, FIRST = range(5)
"""What a record is; from `FIRST` on, an object of a class. It names its parts by number: first the literals,
then the records in order."""

Record = tuple[int, Any]
Packed = tuple[list[Any], list[Record], int]
"""Literals, records, and the number of the value itself."""
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
    made, records, top = cast(Packed, marshal.loads(data))
    add, at = made.append, made.__getitem__
    blank = cast(Callable[[type], Any], object.__new__)
    setters: dict[int, tuple[type, list[Setter]]] = {
        FIRST + n: (cls, setters_of(cls)) for n, cls in enumerate((*OWN, *more))
    }
    of_node = FIRST + OWN.index(Node)
    (put_node, put_terms), (put_fn, put_args) = setters_of(Access), setters_of(Map)
    for kind, payload in records:
        if kind == MAPPED:
            fn, axes, dtype, digest, *reads = map(at, payload)
            args: list[Access] = []
            for node, terms in zip(reads[::2], reads[1::2], strict=True):
                access = blank(Access)
                put_node(access, node)
                put_terms(access, terms)
                args.append(access)
            op = blank(Map)
            put_fn(op, fn)
            put_args(op, tuple(args))
            add(intern_trusted(op, axes, dtype, digest))
        elif kind == TUPLE:
            add(tuple(map(at, payload)))
        elif kind == of_node:
            add(intern_trusted(*map(at, payload)))
        elif kind >= FIRST:
            cls, put = setters[kind]
            built = blank(cls)
            if len(put) == 2:  # by far the most: accesses, maps, terms
                put[0](built, made[payload[0]])
                put[1](built, made[payload[1]])
            else:
                for n, one in enumerate(put):
                    one(built, made[payload[n]])
            add(built)
        elif kind == MAPPING:
            add({made[k]: made[v] for k, v in payload})
        else:
            add(Fraction(*payload))
    return made[top]


def changed(value: T, **changes: object) -> T:
    """A copy of a frozen dataclass with other fields, without the checks that making one anew costs."""
    made = object.__new__(type(value))
    for field, put in zip(fields(type(value)), setters_of(type(value)), strict=True):  # pyright: ignore[reportArgumentType]
        put(made, changes.get(field.name, getattr(value, field.name)))
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
    """Objects in an order in which each comes after its parts; parts are found without recursion, since
    programs may be deep."""

    def __init__(self, classes: Sequence[type]) -> None:
        self.codes = {cls: FIRST + number for number, cls in enumerate(classes)}
        self.names = {cls: [f.name for f in fields(cls)] for cls in classes}
        self.literals: list[Any] = []
        self.records: list[Record] = []
        self.numbers: dict[object, int] = {}
        """Numbers by content: two objects with the same content are one record."""

    def packed(self, top: object) -> Packed:
        order = self._ordered(top)
        numbers: dict[int, int] = {}
        for value, _ in order:
            if value is None or isinstance(value, bool | int | str | float):
                key = (type(value), repr(value))
                if key not in self.numbers:
                    self.literals.append(value)
                numbers[id(value)] = self.numbers.setdefault(key, len(self.literals) - 1)
        for value, parts in order:
            if id(value) not in numbers:
                record = self._record(value, tuple(numbers[id(part)] for part in parts))
                if record not in self.numbers:
                    self.numbers[record] = len(self.literals) + len(self.records)
                    self.records.append(record)
                numbers[id(value)] = self.numbers[record]
        return self.literals, self.records, numbers[id(top)]

    def _ordered(self, top: object) -> list[tuple[object, list[object]]]:
        """Every object with its parts, after them; all are kept alive, as numbers go by identity."""
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
        if isinstance(value, Node) and isinstance(value.op, Map):
            reads = [part for a in value.op.args for part in (a.node, a.terms)]
            return [value.op.fn, value.axes, value.dtype, value.digest, *reads]
        names = self.names.get(type(value))
        return [] if names is None else [getattr(value, name) for name in names]

    def _record(self, value: object, refs: tuple[int, ...]) -> Record:
        match value:
            case Fraction():
                return RATIO, (value.numerator, value.denominator)
            case tuple():
                return TUPLE, refs
            case Node(op=Map()):
                return MAPPED, refs
            case Mapping():
                return MAPPING, tuple(zip(refs[::2], refs[1::2], strict=True))
            case _:
                code = self.codes.get(type(value))
                if code is None:
                    raise Bug(f"an object of class {type(value).__name__} cannot be stored")
                return code, refs
