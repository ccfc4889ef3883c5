"""In which loops a C++ kernel runs its operations.

Operations are gathered into items: a `Nest` takes every operation over one set of indices that may run at
its place, a `Product` is a contraction for the micro-kernel, a `Pass` is a loop of the tile program. What is
cheap is written where it is used; a contraction absorbs an addition to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cleave.codegen.cpp_math import COSTLY
from cleave.codegen.cpp_roles import roles_of
from cleave.codegen.cpp_rooms import Plan, place
from cleave.codegen.cpp_rows import in_rows, rows_of
from cleave.codegen.cpp_text import MEMORY_TYPES
from cleave.codegen.cpp_tiles import (
    Item,
    Nest,
    Op,
    Pass,
    Product,
    Tile,
    all_ops,
    is_bf16,
    is_linear,
    is_total,
    leaves_of,
    resolve,
)
from cleave.ir.dims import Dim, Index
from cleave.ir.ops import FLOATS
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Fill,
    Kernel,
    Load,
    Locate,
    Measure,
    Store,
)

INLINE_LIMIT = 8
"""Operations that are written again at each use rather than kept in a tile."""

SMALL_LOAD = 2048
"""Elements that a load may have and be moved to the front of its body."""


def plan(kernel: Kernel, known: Callable[[Dim], int | None]) -> Plan:
    """Gather the operations of a kernel and place its tiles. `known` gives the sizes that are fixed."""
    rows = rows_of(kernel, known)
    ops = resolve(kernel, known, rows)
    scalars = {t.name for t in kernel.tensors if t.role == "scalar"}
    written = {op.statement.tensor for op in all_ops(ops) if isinstance(op.statement, Store)}
    types = {t.name: MEMORY_TYPES[t.dtype] for t in kernel.tensors}
    gather = _Gatherer(scalars, written, types, frozenset(rows))
    gather.choose_inline(ops)
    gather.choose_products(ops)
    items = gather.run(ops, None)
    return place(in_rows(items, rows) if rows else items)


class _Body:
    """The items of one body so far, and at which of them tiles are made and tensors are touched."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._made: dict[Tile, int] = {}
        self._stored: dict[str, int] = {}
        self._loaded: dict[str, int] = {}

    def add(self, item: Item, makes: Sequence[Tile]) -> None:
        """An item of its own, after all others."""
        self._made.update(dict.fromkeys(makes, len(self.items)))
        self.items.append(item)

    def join(self, op: Op) -> None:
        """Put an operation into the last nest that can take it, or into a new one."""
        statement = op.statement
        first = statement.first if isinstance(statement, Store) else ()
        for number in range(len(self.items) - 1, self._earliest(op) - 1, -1):
            item = self.items[number]
            if isinstance(item, Nest) and item.space == op.space and item.first == first:
                item.ops.append(op)
                break
        else:
            number = len(self.items)
            self.items.append(Nest(op.space, first, [op]))
        if op.out is not None:
            self._made[op.out] = number
        if isinstance(statement, Load):
            self._loaded[statement.tensor] = max(number, self._loaded.get(statement.tensor, -1))
        elif isinstance(statement, Store):
            self._stored[statement.tensor] = number

    def _earliest(self, op: Op) -> int:
        """The first item at which an operation may run."""
        number = max((self._made.get(t, -1) + is_total(t) for t in leaves_of(op.reads)), default=0)
        if isinstance(op.statement, Load | Store):
            number = max(number, self._stored.get(op.statement.tensor, -1) + 1)
        if isinstance(op.statement, Store):
            number = max(number, self._loaded.get(op.statement.tensor, -1) + 1)
        return max(number, 0)


class _Gatherer:
    def __init__(
        self, scalars: set[str], written: set[str], types: dict[str, str], rows: frozenset[Index]
    ) -> None:
        self.scalars, self.written, self.types, self.rows = scalars, written, types, rows
        self.starts: dict[Op, tuple[Op, Tile]] = {}
        """An addition that a contraction absorbs: the contraction and the other summand."""
        self.products: dict[Op, Tile] = {}
        """A contraction for the micro-kernel, and the tile that it makes."""

    # ------------------------------------------------------------ decisions

    def choose_inline(self, ops: Sequence[Op | Pass]) -> None:
        """Literals, sizes, positions and what is cheap to make of them are written where they are used."""
        weight: dict[Tile, int] = {}
        for op in all_ops(ops):
            tile = op.out
            if tile is None or any(_wants_memory(user) for user in tile.users):
                continue
            match op.statement:
                case Fill() | Measure():
                    weight[tile] = 0
                case Locate() if not op.lookups:
                    weight[tile] = 1
                case Load(tensor=tensor) if tensor in self.scalars:
                    weight[tile] = 0
                case Load() if self._rereads(op, tile):
                    weight[tile] = 1
                case Compute(fn=fn) if tile.axes and fn not in COSTLY:
                    for a in op.args:  # a number of the row, there when the rest of the row is made
                        of_row = bool(self.rows) and set(a.axes) <= self.rows < set(tile.axes)
                        if of_row and not isinstance(a.maker.statement, Carry):
                            weight.setdefault(a, 0)
                    if not all(a in weight for a in op.args):
                        continue
                    total = 1 + sum(weight[a] for a in op.args)
                    if total > INLINE_LIMIT:
                        continue
                    weight[tile] = total
                case _:
                    continue
            tile.where = "inline"

    def _rereads(self, op: Op, tile: Tile) -> bool:
        """Is a row read from memory again where it is used again? It is in the cache then, and a copy of it
        would take room there."""
        statement = op.statement
        if not isinstance(statement, Load) or not self.rows or not self.rows < set(tile.axes):
            return False
        return not (statement.guarded or op.lookups)

    def choose_products(self, ops: Sequence[Op | Pass]) -> None:
        for op in ops:
            if isinstance(op, Pass):
                self.choose_products(op.ops)
            elif isinstance(op.statement, ContractTile) and op.out is not None:
                self._choose_product(op, op.out, ops)
        for op in ops:
            if isinstance(op, Op) and op.out is not None and self._reads_directly(op, op.out, ops):
                op.out.where = "direct"

    def _choose_product(self, op: Op, out: Tile, ops: Sequence[Op | Pass]) -> None:
        statement = op.statement
        assert isinstance(statement, ContractTile)
        if statement.dtype not in FLOATS:
            return
        first, second = op.args
        user = out.users[0]
        between = ops[ops.index(op) : ops.index(user)] if user in ops else ()
        settled = user in ops and not any(isinstance(other, Pass) for other in between)
        alone = len(out.users) == 1 and user not in self.starts
        if alone and isinstance(user, Op) and settled and _adds(user, out):
            target = user.out
            assert target is not None
            if roles_of(target.axes, first.axes, second.axes, statement.over):
                other = user.args[1] if user.args[0] is out else user.args[0]
                self.products[op] = target
                self.starts[user] = (op, other)
                return
        if roles_of(out.axes, first.axes, second.axes, statement.over):
            self.products[op] = out

    def _reads_directly(self, op: Op, tile: Tile, ops: Sequence[Op | Pass]) -> bool:
        """May the products that use a load read the tensor themselves?"""
        statement = op.statement
        if not isinstance(statement, Load) or statement.guarded or not all(map(is_linear, statement.terms)):
            return False
        if statement.tensor in self.scalars | self.written or tile.where != "register":
            return False
        for user in tile.users:
            if not isinstance(user, Op) or user not in self.products or user not in ops:
                return False
            contract = user.statement
            assert isinstance(contract, ContractTile)
            target = self.products[user]
            roles = roles_of(target.axes, user.args[0].axes, user.args[1].axes, contract.over)
            assert roles is not None
            # Rows of several indices lie behind each other in a copy alone.
            as_it_lies = self.types[statement.tensor] == target.kind or (
                is_bf16(user) and len(roles.rows) < 2
            )
            if user.args[roles.left] is tile and not as_it_lies:
                return False
        return True

    # ------------------------------------------------------------ items

    def run(self, ops: Sequence[Op | Pass], around: Pass | None) -> list[Item]:
        """The items of a body."""
        body = _Body()
        inside = set(all_ops(ops))
        for op in self._loads_first(ops):
            if isinstance(op, Pass):
                op.items = self.run(op.ops, op)
                body.add(op, _carried(op))
            elif op in self.products:
                if op.out is not None and self.products[op] is op.out:
                    body.add(Product(op, op.out), [op.out])
            elif op in self.starts:
                contract, start = self.starts[op]
                assert op.out is not None
                if not self._same_room(op, op.out, start, around, inside):
                    start = _copy(start, op, op.out)
                    body.join(start.maker)
                body.add(Product(contract, op.out, start), [op.out])
            elif op.out is None or op.out.where not in ("inline", "direct"):
                body.join(op)
        return body.items

    def _loads_first(self, ops: Sequence[Op | Pass]) -> list[Op | Pass]:
        """Small loads that depend on nothing go to the front: they then part no nests that could be one."""

        def is_free(op: Op | Pass) -> bool:
            if isinstance(op, Pass) or not isinstance(op.statement, Load) or op.out is None:
                return False
            return (
                not op.lookups and op.statement.tensor not in self.written and op.out.capacity <= SMALL_LOAD
            )

        free = [op for op in ops if is_free(op)]
        single = _single(ops)
        return [*single, *free, *(op for op in ops if op not in single and not is_free(op))]

    def _same_room(self, op: Op, out: Tile, start: Tile, around: Pass | None, inside: set[Op]) -> bool:
        """May a product add into the very tile that it starts from?"""
        if start.axes != out.axes or start.dtype != out.dtype or start.where in ("inline", "direct"):
            return False
        readers = [user for user in start.users if user in inside or isinstance(user, Pass)]
        if isinstance(start.maker.statement, Carry):
            updates = around is not None and (start, out) in around.updates
            in_here = [r for r in readers if isinstance(r, Op)]
            return updates and in_here == [op] and not _read_in_passes(start, around)
        return start.maker in inside and start.users == [op]


def _single(ops: Sequence[Op | Pass]) -> list[Op | Pass]:
    """Operations on numbers that follow from nothing else of the body: they, too, go to the front."""
    found: list[Op | Pass] = []
    for op in ops:
        if isinstance(op, Pass) or op.space or not isinstance(op.statement, Locate | Compute):
            continue
        if op.lookups or op.out is None or op.out.axes:
            continue
        if all(a.where == "inline" or a.maker in found or a.maker not in ops for a in op.args) and not any(
            isinstance(leaf.maker.statement, Carry) and leaf.maker in ops for leaf in leaves_of(op.args)
        ):
            found.append(op)
    return found


def _read_in_passes(tile: Tile, around: Pass | None) -> bool:
    """Does a loop inside this one use the tile, or another update of this one?"""
    assert around is not None
    if any(value is tile for _, value in around.updates):
        return True
    return any(isinstance(op, Pass) and (op in tile.users or _uses(op, tile)) for op in around.ops)


def _uses(loop: Pass, tile: Tile) -> bool:
    return any(
        tile in op.reads if isinstance(op, Op) else op in tile.users or _uses(op, tile) for op in loop.ops
    )


def _adds(op: Op, summand: Tile) -> bool:
    statement = op.statement
    if not isinstance(statement, Compute) or statement.fn != "add" or statement.dtype != summand.dtype:
        return False
    other = op.args[1] if op.args[0] is summand else op.args[0]
    return other is not summand and other.dtype == summand.dtype and set(statement.axes) == set(summand.axes)


def _copy(tile: Tile, user: Op, out: Tile) -> Tile:
    """A tile with the axes of `out` that holds what `tile` does."""
    statement = Compute(f"{out.name}_start", out.axes, out.dtype, "id", (tile.name,))
    copy = Tile(statement.out, out.axes, out.dtype, out.capacity, users=[user])
    copy.maker = Op(statement, (tile,), out=copy, space=frozenset(out.axes))
    tile.users[tile.users.index(user)] = copy.maker
    return copy


def _wants_memory(user: Op | Pass) -> bool:
    return isinstance(user, Pass) or isinstance(user.statement, ContractTile)


def _carried(loop: Pass) -> list[Tile]:
    """All accumulators that a loop, and the loops inside it, change."""
    inner = [tile for op in loop.ops if isinstance(op, Pass) for tile in _carried(op)]
    return [*(carried for carried, _ in loop.updates), *inner]
