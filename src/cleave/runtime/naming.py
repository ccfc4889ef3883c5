"""Programs and tile programs under other names: what they are called must not matter to what was measured.

`canonical` renames a program's atoms, inputs and outputs by their place; two programs that differ only in
names have the same canonical text, and so the same `program_digest`. `renaming` leads from one such program
to the other, and `renamed` takes a tile program along. `tiles_digest` ignores the names of values and
indices too.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, TypeVar

from cleave.ir.dims import Atom, Extent, Index, Lookup, Term, extent, term
from cleave.ir.ops import Input, Node, Scalar, make_node
from cleave.ir.program import Program, sort_nodes
from cleave.ir.text import print_program
from cleave.schedule.text import print_tiles
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Fill,
    Kernel,
    Load,
    Locate,
    Loop,
    Measure,
    ReduceTile,
    Store,
    Tensor,
    TileProgram,
)

_T = TypeVar("_T")

_TENSORS: Mapping[type, tuple[str, ...]] = {
    Tensor: ("name",), Load: ("tensor",), Store: ("tensor",), Input: ("name",), Scalar: ("name",),
}  # fmt: skip
"""Which texts of which types are names of tensors."""
_VALUES: Mapping[type, tuple[str, ...]] = {
    Load: ("out",), Fill: ("out",), Measure: ("out",), Locate: ("out",), Compute: ("out", "args"),
    ReduceTile: ("out", "arg"), ContractTile: ("out", "args"), Carry: ("out", "init"), Loop: ("updates",),
    Store: ("value",), Lookup: ("value",),
}  # fmt: skip
"""Which texts of which types are names of values."""
_DEFINED = (Load, Fill, Measure, Locate, Compute, ReduceTile, ContractTile, Carry)


@dataclass(slots=True)
class Renaming:
    """New names for atoms, tensors and (inside kernels) values; what is not listed keeps its name."""

    atoms: dict[Atom, Atom]
    tensors: dict[str, str]
    values: dict[str, str] = field(default_factory=dict[str, str])
    nodes: dict[Node, Node] = field(default_factory=dict[Node, Node])
    known: dict[Any, Any] = field(default_factory=dict[Any, Any])
    """Small things that occur again and again."""

    def __call__(self, value: _T) -> _T:
        """The same thing under the new names."""
        return self._renamed(value)

    def _renamed(self, value: Any) -> Any:
        match value:
            case str() | int() | float() | None:
                return value
            case Atom():
                return self.atoms.get(value, value)
            case Node():
                if value not in self.nodes:
                    self.nodes[value] = make_node(
                        self._renamed(value.op), self._renamed(value.axes), value.dtype
                    )
                return self.nodes[value]
            case Program():  # the body of a loop: its tensors are its own
                inner = Renaming(self.atoms, {})
                for node in sort_nodes([*value.inputs, *(o.node for o in value.outputs)]):
                    inner(node)
                made = tuple(replace(o, node=inner(o.node)) for o in value.outputs)
                return replace(value, inputs=inner(value.inputs), outputs=made, names={}, lines={})
            case tuple():
                return tuple([self._renamed(item) for item in value])
            case Index() | Extent() | Term():
                if value not in self.known:
                    self.known[value] = self._small(value)
                return self.known[value]
            case _:
                return self._fields(value) if is_dataclass(value) else value

    def _small(self, value: Any) -> Any:
        match value:
            case Term():  # its leaves are sorted by their text
                leaves = [(self._renamed(leaf), c) for leaf, c in value.leaves]
                return term(*leaves, offset=self._renamed(value.offset))
            case Extent():
                return extent(value.const, *((self._renamed(d), c) for d, c in value.terms))
            case _:
                return self._fields(value)

    def _fields(self, value: Any) -> Any:
        kind = type(value)
        changed: dict[str, Any] = {}
        tensors, values = _TENSORS.get(kind, ()), _VALUES.get(kind, ())
        for name in _field_names(kind):
            old = getattr(value, name)
            if name in tensors:
                changed[name] = self.tensors.get(old, old)
            elif name in values:
                changed[name] = self._value(old)
            else:
                changed[name] = self._renamed(old)
        return kind(**changed)

    def _value(self, old: Any) -> Any:
        if isinstance(old, tuple):
            return tuple(self._value(item) for item in old)
        return self.values.get(old, old)


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    return tuple(item.name for item in fields(kind))


@functools.lru_cache(maxsize=64)
def canonical(program: Program) -> Program:
    """The program with names made of places: atoms `d0, d1...` in order of first use, inputs `a0...`, outputs
    `o0...`, no names of nodes."""
    atoms = {atom: Atom(f"d{n}") for n, atom in enumerate(program.dims)}
    tensors = {name: f"a{n}" for n, name in enumerate(_arguments(program))}
    return _program(
        program, Renaming(atoms, tensors), "canonical", [f"o{n}" for n in range(len(program.outputs))]
    )


def _program(program: Program, to: Renaming, name: str, outputs: list[str]) -> Program:
    for node in sort_nodes([*program.inputs, *(o.node for o in program.outputs)]):
        to(node)  # in order, so that none is deep
    sizes = sorted(
        ((to(a), to(v)) for a, v in program.sizes), key=lambda item: (len(item[0].name), item[0].name)
    )
    made = [replace(o, node=to(o.node), name=n) for o, n in zip(program.outputs, outputs, strict=True)]
    return Program(name, to(program.inputs), tuple(made), tuple(sizes))


def _arguments(program: Program) -> list[str]:
    return [node.op.name for node in program.inputs if isinstance(node.op, Input | Scalar)]


def program_digest(program: Program) -> str:
    """A digest of the canonical text."""
    return digest_of(print_program(canonical(program)))


def digest_of(text: str) -> str:
    """The digest of a text, short enough for the name of a file."""
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def renaming(source: Program, target: Program) -> Renaming:
    """From the names of one program to those of another with the same canonical text."""
    atoms = dict(zip(source.dims, target.dims, strict=True))
    tensors = dict(zip(_arguments(source), _arguments(target), strict=True))
    ends = zip(source.outputs, target.outputs, strict=True)
    return Renaming(atoms, {**{a.name: b.name for a, b in ends}, **tensors})


def renamed(tiles: TileProgram, to: Renaming, name: str) -> TileProgram:
    """A tile program under other names. A workspace whose name is taken then gets another one."""
    taken = {to.tensors.get(t.name, t.name) for t in (*tiles.inputs, *tiles.outputs)}
    spaces: dict[str, str] = {}
    for space in tiles.workspaces:
        fresh, number = space.name, 1
        while fresh in taken:
            number += 1
            fresh = f"{space.name}_{number}"
        taken.add(fresh)
        spaces[space.name] = fresh
    own = Renaming(to.atoms, {**to.tensors, **spaces}, to.values)
    return replace(own(tiles), name=name)


def tiles_digest(tiles: TileProgram, program: Program) -> str:
    """A digest of a tile program that ignores every name; `program` is what it computes."""
    to = renaming(program, canonical(program))
    spaces = {t.name: f"w{n}" for n, t in enumerate(tiles.workspaces)}
    kernels = tuple(_plain_kernel(k, n) for n, k in enumerate(tiles.kernels))
    own = Renaming(to.atoms, {**to.tensors, **spaces})
    return digest_of(print_tiles(replace(own(replace(tiles, kernels=kernels)), name="program")))


def _plain_kernel(kernel: Kernel, number: int) -> Kernel:
    """A kernel whose values and indices are named by their place."""
    values: dict[str, str] = {}
    _define(kernel.body, values)
    names = tuple((index, f"i{n}") for n, (index, _) in enumerate(kernel.names))
    return replace(Renaming({}, {}, values)(kernel), name=f"k{number}", names=names)


def _define(body: tuple[Any, ...], values: dict[str, str]) -> None:
    for statement in body:
        if isinstance(statement, Loop):
            _define(statement.body, values)
        elif isinstance(statement, _DEFINED):
            values.setdefault(statement.out, f"v{len(values)}")


def sizes_text(program: Program, sizes: Mapping[Any, int]) -> str:
    """The sizes of the dynamic dims by place, for keys."""
    return " ".join(str(sizes[atom]) for atom in program.dynamic)


__all__ = [
    "Renaming", "canonical", "digest_of", "program_digest", "renamed", "renaming", "sizes_text",
    "tiles_digest",
]  # fmt: skip
