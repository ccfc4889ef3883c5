"""A kernel's body with its names resolved: tiles as objects, statements as operations on them.

`resolve` also brings contractions into the form that the micro-kernel takes: two operands of one element
type, accumulated in float or double; what is left over becomes pointwise operations of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cleave.codegen.cpp_text import TILE_TYPES
from cleave.ir.dims import Dim, Index, Inject, Join, Lookup, Term, indices_of
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
    Statement,
    Store,
)

Simple = Load | Fill | Measure | Locate | Compute | ReduceTile | ContractTile | Carry | Store


@dataclass(eq=False, slots=True)
class Tile:
    """A value of the kernel. `where` says how it is held: `inline` (an expression written at each use),
    `register` (inside one nest), `memory` (scratch, or a variable if it has no index) or `direct` (read from
    the tensor by a product). `capacity` is the largest number of its elements."""

    name: str
    axes: tuple[Index, ...]
    dtype: str
    capacity: int
    maker: Op = field(init=False)
    users: list[Op | Pass] = field(default_factory=list["Op | Pass"])
    where: str = "register"
    text: str = ""
    same: Tile | None = None
    """The tile whose room this one shares."""

    @property
    def root(self) -> Tile:
        tile = self
        while tile.same is not None:
            tile = tile.same
        return tile

    @property
    def kind(self) -> str:
        """The C++ type of an element."""
        return TILE_TYPES[self.dtype]


@dataclass(eq=False, slots=True)
class Op:
    """A statement. `args` are in the statement's order (a store's value, a carry's first value)."""

    statement: Simple
    args: tuple[Tile, ...] = ()
    lookups: dict[str, Tile] = field(default_factory=dict[str, Tile])
    out: Tile | None = None
    space: frozenset[Index] = frozenset()
    """The indices that it runs over: those of its tiles, and those of wide spans that a store ranges over."""

    @property
    def reads(self) -> tuple[Tile, ...]:
        return (*self.args, *self.lookups.values())


@dataclass(eq=False, slots=True)
class Pass:
    """A loop: its body, the items that the body becomes, its updates, those of them that need a copy, and
    the accumulators that must be held for it because another update overwrites them first."""

    statement: Loop
    ops: list[Op | Pass]
    updates: list[tuple[Tile, Tile]]
    items: list[Item] = field(default_factory=list["Item"])
    copies: list[tuple[Tile, Tile]] = field(default_factory=list[tuple[Tile, Tile]])
    held: dict[Tile, Room] = field(default_factory=dict["Tile", "Room"])


@dataclass(eq=False, slots=True)
class Nest:
    """Element loops over `space`; `first` guards its stores."""

    space: frozenset[Index]
    first: tuple[Index, ...] = ()
    ops: list[Op] = field(default_factory=list[Op])


@dataclass(eq=False, slots=True)
class Product:
    """`out = contraction`, or `out += contraction` where `start`, which then stands in the same room, is
    what `out` is before."""

    op: Op
    out: Tile
    start: Tile | None = None
    panel: Room | None = None


@dataclass(eq=False, slots=True)
class Rows:
    """The positions of a block one after the other: all items run for one position of `indices` before those
    of the next, so that what they hand on stays in the first-level cache."""

    indices: tuple[Index, ...]
    items: list[Item]


Item = Nest | Product | Pass | Rows


@dataclass(eq=False, slots=True)
class Room:
    """A range of the scratch block that lives from `first` to `last`."""

    size: int
    first: int
    last: int
    offset: int = 0


def resolve(
    kernel: Kernel, known: Callable[[Dim], int | None], rows: Sequence[Index] = ()
) -> list[Op | Pass]:
    """The body of a kernel; operations that nothing uses are left out. `known` gives sizes; of `rows` there
    is one position at a time."""

    def capped(index: Index, tile: int) -> int:
        size = known(index.dim)
        return tile if size is None else min(tile, size)

    caps = {axis.index: capped(axis.index, axis.tile) for axis in (*kernel.grid, *kernel.whole)}
    caps.update(dict.fromkeys(rows, 1))
    ops = _Resolver(caps, {}).run(kernel.body)
    while _drop_unused(ops):
        pass
    return ops


class _Resolver:
    def __init__(self, caps: Mapping[Index, int], names: Mapping[str, Tile]) -> None:
        self.caps = dict(caps)
        self.names = dict(names)
        self.ops: list[Op | Pass] = []

    def run(self, body: Sequence[Statement]) -> list[Op | Pass]:
        for statement in body:
            if isinstance(statement, Loop):
                self._loop(statement)
            elif isinstance(statement, ContractTile):
                self._contract(statement)
            elif isinstance(statement, Store):
                self._add(statement, [self.names[statement.value]], statement.terms)
            else:
                self._value(statement)
        return self.ops

    def _value(self, statement: Load | Fill | Measure | Locate | Compute | ReduceTile | Carry) -> None:
        match statement:
            case Load(terms=terms):
                self._add(statement, [], terms)
            case Locate(term=term):
                self._add(statement, [], (term,))
            case Compute(args=args):
                self._add(statement, [self.names[a] for a in args])
            case ReduceTile(arg=arg):
                self._add(statement, [self.names[arg]])
            case Carry(init=init):
                self._add(statement, [self.names[init]])
            case _:
                self._add(statement, [])

    def _add(self, statement: Simple, args: Sequence[Tile], terms: Sequence[Term] = ()) -> Tile | None:
        op = Op(statement, tuple(args), {n: self.names[n] for t in terms for n in lookups_of(t)})
        for tile in op.reads:
            tile.users.append(op)
        self.ops.append(op)
        axes = () if isinstance(statement, Measure | Store) else statement.axes
        over = statement.over if isinstance(statement, ReduceTile | ContractTile) else ()
        space = {*axes, *over, *(i for tile in op.reads for i in tile.axes)}
        if isinstance(statement, Store):
            space |= {i for t in terms for i in indices_of(t) if self.caps[i] > 1}
            op.space = frozenset(space)
            return None
        op.space = frozenset(space)
        capacity = 1
        for index in axes:
            capacity *= self.caps[index]
        tile = Tile(statement.out, axes, statement.dtype, capacity)
        tile.maker, op.out = op, tile
        self.names[statement.out] = tile
        return tile

    def _compute(self, out: str, axes: tuple[Index, ...], dtype: str, fn: str, args: Sequence[Tile]) -> Tile:
        statement = Compute(out, axes, dtype, fn, tuple(a.name for a in args))
        tile = self._add(statement, args)
        assert tile is not None
        return tile

    def _contract(self, statement: ContractTile) -> None:
        """Operands of one element type, two of them; narrow results are rounded at the end."""
        out, dtype = statement.out, statement.dtype
        wide = "f32" if dtype in ("f16", "bf16") else dtype
        operands = [self.names[a] for a in statement.args]
        for number, tile in enumerate(operands):
            if tile.kind != TILE_TYPES[wide]:
                operands[number] = self._compute(f"{tile.name}_{wide}", tile.axes, wide, "cast", [tile])
        while len(operands) > 2:
            a, b = min(
                ((a, b) for b in range(len(operands)) for a in range(b)),
                key=lambda pair: len({*operands[pair[0]].axes, *operands[pair[1]].axes}),
            )
            x, y = operands[a], operands[b]
            axes = (*x.axes, *(i for i in y.axes if i not in x.axes))
            if set(axes) == set(y.axes):
                axes = y.axes
            del operands[b]
            operands[a] = self._compute(f"{x.name}_{y.name}", axes, wide, "mul", [x, y])
        names = tuple(tile.name for tile in operands)
        made = self._add(ContractTile(out, statement.axes, wide, statement.over, names), operands)
        assert made is not None
        if wide != dtype:
            self._compute(out, statement.axes, dtype, "cast", [made])

    def _loop(self, statement: Loop) -> None:
        size = self.caps.get(statement.index, statement.tile)
        inner = _Resolver({**self.caps, statement.index: min(size, statement.tile)}, self.names)
        ops = inner.run(statement.body)
        updates = [(self.names[carried], inner.names[value]) for carried, value in statement.updates]
        done = Pass(statement, ops, updates)
        for carried, value in updates:
            carried.users.append(done)
            value.users.append(done)
        self.ops.append(done)


def lookups_of(term: Term) -> list[str]:
    """The names of the integer tiles that a term reads."""
    found: list[str] = []
    for leaf, _ in term.leaves:
        match leaf:
            case Lookup(value):
                found.append(value)
            case Inject(_, inner):
                found += lookups_of(inner)
            case Join(part, within):
                found += lookups_of(part) + lookups_of(within)
            case _:
                pass
    return found


def is_linear(term: Term) -> bool:
    """Is a term a linear expression in indices (elements of parts of unions included)?"""
    return all(
        isinstance(leaf, Index) or (isinstance(leaf, Inject) and is_linear(leaf.term))
        for leaf, _ in term.leaves
    )


def factor_of(term: Term, index: Index) -> int:
    """What a linear term grows by when an index grows by 1."""
    total = 0
    for leaf, factor in term.leaves:
        if leaf == index:
            total += factor
        elif isinstance(leaf, Inject):
            total += factor * factor_of(leaf.term, index)
    return total


def all_ops(ops: Iterable[Op | Pass]) -> Iterable[Op]:
    """Operations, and those inside loops."""
    for op in ops:
        if isinstance(op, Pass):
            yield from all_ops(op.ops)
        else:
            yield op


def is_bf16(product: Op) -> bool:
    """Is a product one of bfloat16 values alone?"""
    return all(tile.dtype == "bf16" for tile in product.args)


def is_total(tile: Tile) -> bool:
    """Is a tile complete only after the nest that makes it?"""
    return isinstance(tile.maker.statement, ReduceTile | ContractTile)


def leaves_of(tiles: Iterable[Tile]) -> Iterable[Tile]:
    """Tiles, and those below inline ones."""
    for tile in tiles:
        if tile.where == "inline":
            yield from leaves_of(tile.maker.reads)
        else:
            yield tile


def _drop_unused(ops: list[Op | Pass]) -> bool:
    """Remove operations without users, last first; was anything removed?"""
    changed = False
    for op in reversed(list(ops)):
        if isinstance(op, Pass):
            changed |= _drop_unused(op.ops)
        elif op.out is not None and not op.out.users:
            for tile in op.reads:
                tile.users.remove(op)
            ops.remove(op)
            changed = True
    return changed
