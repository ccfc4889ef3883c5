"""Statements of a tile program as one warp group's lines of Gluon.

Products run asynchronously: `start` starts one, `finish` waits for it and frees what it read; `gluon_loops`
says when.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from cleave.codegen.gluon_chain import Chain, chain_at, write_chain
from cleave.codegen.gluon_divided import by_reciprocal
from cleave.codegen.gluon_loops import write_loop
from cleave.codegen.gluon_memory import GroupMemory, Held
from cleave.codegen.gluon_plan import (
    FLUSHING,
    PIECE,
    Copies,
    Groups,
    RowScope,
)
from cleave.codegen.gluon_stores import lender_of, store_rows, widened
from cleave.codegen.gluon_text import LEAN_OF
from cleave.codegen.triton_body import Body, fused_dots
from cleave.codegen.triton_maps import HALVES, TYPES, convert, number
from cleave.codegen.triton_scope import Scope
from cleave.codegen.triton_text import Line, Nested
from cleave.codegen.triton_tiles import Roles, Tile, roles_of, uses_of
from cleave.errors import Infeasible
from cleave.ir.dims import Index
from cleave.knobs import knobs
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Load,
    Loop,
    ReduceTile,
    Statement,
    Store,
)


@dataclass(slots=True)
class Running:
    """A product that was started: the name of its accumulator and what it reads from shared memory."""

    name: str
    reads: list[str] = field(default_factory=list[str])


class Rows(Body):
    """Writes the statements of one kernel for a warp group."""

    def __init__(self, groups: Groups, copies: Copies) -> None:
        super().__init__("")
        self.groups, self.copies = groups, copies
        self.memory = GroupMemory(groups, copies)
        self.places: dict[tuple[tuple[int, ...], str], list[str]] = {}
        """Of the scratch: where groups give each other blocks, by shape and dtype."""
        self.wide: dict[str, Tile] = {}
        """By values of 16 bits that were cast from 32: what they were cast from."""
        self.gives = False
        self.stored = False
        self.depth = 0
        self.stages = 0
        self.turns = False
        self.uses: dict[str, int] = {}
        """How often the kernel reads each value."""

    # ------------------------------------------------------------ values

    def write(self, scope: Scope, body: Sequence[Statement]) -> None:
        assert isinstance(scope, RowScope)
        counts = uses_of(body)
        if self.depth == 0:
            self.uses = counts
        fused = fused_dots(body)
        waiting: dict[str, ContractTile] = {}
        ends = {name: n for n, s in enumerate(body) for name in uses_of([s])}
        chained: Chain | None = None
        for place, statement in enumerate(body):
            match statement:
                case Loop() if chained is not None and statement is chained.second:
                    pass
                case Loop():
                    chained = chain_at(self, scope, body[place:])
                    if chained is None:
                        self.loop(scope, statement)
                    else:
                        write_chain(self, scope, chained)
                case Store():
                    self.store(scope, statement)
                case Carry():
                    self.read(scope, statement.init)
                    self.carry(scope, statement)
                case Load():
                    self.memory.fetch(scope, statement, counts.get(statement.out, 0), once=self.depth == 0)
                case ContractTile() if statement.out in fused and self.roles(scope, statement):
                    waiting[statement.out] = statement
                case Compute(out, _, _, _, args) if any(a in waiting for a in args):
                    name = next(a for a in args if a in waiting)
                    other = args[0] if args[1] == name else args[1]
                    self.read(scope, other)
                    scope.values[out] = self.contract(scope, waiting.pop(name), out, scope.value(other))
                case _:
                    scope.values[statement.out] = self.tile(scope, statement)
            if self.depth == 0 and not waiting:
                self.memory.idle = {name for name in self.memory.last if ends[name] <= place}
                kept = self.lenders(scope, body[place + 1 :])
                over = self.memory.idle - kept
                self.memory.release(scope, [name for name in self.memory.last if name in over])

    def lenders(self, scope: RowScope, rest: Sequence[Statement]) -> set[str]:
        """The tiles in whose place results of what is left to be written leave."""
        if any(isinstance(s, Loop) for s in rest):
            return set()
        return {lender_of(self, scope, s) for s in rest if isinstance(s, Store)}

    def read(self, scope: Scope, *names: str) -> None:
        """Bring values that lie in shared memory into registers."""
        assert isinstance(scope, RowScope)
        for name in names:
            held = self.memory.held.get(name)
            if held is None or scope.values[name].text:
                continue
            rows = self.groups.rows
            if PIECE in held.text:
                raise Infeasible(f"{name} lies in pieces and is used outside of products")
            if rows not in held.order:
                raise Infeasible(f"{name} has no rows and is used outside of products")
            self.memory.await_tile(scope, name)
            other = next(lane for lane in held.order if lane != rows)
            text = scope.matrix(held.text, held.order, rows, other)
            own = scope.line(name, f"{text}.load({scope.layout(held.tile.lanes)})")
            scope.values[name] = replace(held.tile, text=own)
            self.memory.used(scope, name, max(1, held.uses - held.products), loaded=True)

    def tile(self, scope: Scope, statement: Statement) -> Tile:  # pyright: ignore[reportIncompatibleMethodOverride]
        match statement:
            case Compute():
                self.read(scope, *statement.args)
            case ReduceTile():
                self.read(scope, statement.arg)
            case _:
                pass
        return super().tile(scope, statement)  # pyright: ignore[reportArgumentType]

    def compute(self, scope: Scope, statement: Compute) -> Tile:
        divided = by_reciprocal(self, scope, statement)
        if divided is not None:
            return divided
        name, dtype = LEAN_OF.get(statement.fn), statement.dtype
        arg = scope.value(statement.args[0])
        if statement.fn == "cast" and arg.dtype == "f32" and dtype in HALVES and arg.literal is None:
            self.wide[statement.out] = arg
        single = dtype == "f32" or dtype in HALVES
        few = self.groups.count <= FLUSHING or statement.fn == "tanh"
        if name is None or not (single and few and arg.lanes) or knobs().numerics == "strict":
            return super().compute(scope, statement)
        text = f"{name}({convert(arg, arg.text, 'f32')})"
        if dtype != "f32":
            text += f".to({TYPES[dtype]})"
        return self.made(scope, statement.out, text, dtype, statement.axes, arg.lanes)

    def reduce(self, scope: Scope, statement: ReduceTile) -> Tile:
        if self.groups.shares & set(scope.lanes.over(statement.over, scope.tiles)):
            raise Infeasible(f"{statement.out} reduces what warp groups share")
        return super().reduce(scope, statement)

    def collapse(self, scope, wish, text, have, dtype, kind, over, axes, tile):  # pyright: ignore
        assert isinstance(scope, RowScope)
        gone = scope.lanes.over(over, scope.tiles)
        if self.groups.shares & set(gone) or self.groups.rows in gone or not set(gone) <= set(have):
            raise Infeasible(f"{wish} reduces what its argument lacks, the rows, or what warp groups share")
        columns = [scope.lengths([lane])[0] for lane in have if lane != self.groups.rows]
        done, lanes = super().collapse(scope, wish, text, have, dtype, kind, over, axes, tile)
        if lanes == (self.groups.rows,) and have != lanes and columns != [self.groups.columns]:
            done = f"gl.convert_layout({done}, ROWS_{self.groups.columns})"
        return done, lanes

    def fold_part(self, scope, text, want, lane, over, kind, dtype):  # pyright: ignore
        raise Infeasible("a reduction over part of a lane")

    def zero(self, text: str, dtype: str) -> str:
        return text if dtype in ("f32", "bool", "i64", "i32") else f"gl.cast({text}, {TYPES[dtype]})"

    def carry(self, scope: Scope, statement: Carry) -> None:
        assert isinstance(scope, RowScope)
        tile = scope.value(statement.init)
        lanes = scope.lanes.over(statement.axes, scope.tiles)
        if tile.literal is None or not lanes:
            super().carry(scope, statement)
            return
        text = self.full(scope, number(tile.literal, statement.dtype), statement.dtype, lanes)
        inside = tuple(scope.lanes.inside(lane, scope.tiles) for lane in lanes)
        name = scope.line(statement.out, text)
        scope.values[statement.out] = Tile(name, statement.dtype, statement.axes, lanes, inside)

    def full(self, scope: RowScope, text: str, dtype: str, lanes: Sequence[int]) -> str:
        """A block of one value."""
        return f"gl.full({scope.shape(lanes)}, {text}, {TYPES[dtype]}, {scope.layout(lanes)})"

    # ------------------------------------------------------------ products

    def roles(self, scope: Scope, statement: ContractTile) -> Roles | None:
        args = [scope.values[name] for name in statement.args]
        return roles_of(statement, [(a.axes, a.dtype) for a in args], scope.lanes, scope.tiles)

    def contract(self, scope: Scope, statement: ContractTile, out: str, onto: Tile | None) -> Tile:
        roles = self.roles(scope, statement)
        if roles is None:
            self.read(scope, *statement.args)
            return super().contract(scope, statement, out, onto)
        running, tile = self.start(scope, statement, roles, out, onto)
        self.finish(scope, [running], 0)
        if statement.dtype != "f32":
            return replace(
                tile, text=scope.line(out, f"{tile.text}.to({TYPES[statement.dtype]})"), dtype=statement.dtype
            )
        return tile

    def start(
        self, scope: Scope, statement: ContractTile, roles: Roles, out: str, onto: Tile | None, into: str = ""
    ) -> tuple[Running, Tile]:
        """Start a product, added to `onto` if there is one, under a fresh name or `into`."""
        assert isinstance(scope, RowScope)
        left, right, reads = self.operands(scope, statement, roles)
        return self.launch(scope, statement, roles, (left, right, reads), onto, into or scope.names.take(out))

    def launch(
        self,
        scope: RowScope,
        statement: ContractTile,
        roles: Roles,
        operands: tuple[str, str, list[str]],
        onto: Tile | None,
        name: str,
    ) -> tuple[Running, Tile]:
        lanes = (roles.m, roles.n)
        left, right, reads = operands
        extra = ""
        if onto is None:
            base, extra = self.full(scope, "0.0", "f32", lanes), ", use_acc=False"
        elif onto.literal is not None:
            base = self.full(scope, number(onto.literal, "f32"), "f32", lanes)
        else:
            base = scope.filled(convert(onto, onto.text, "f32"), onto.lanes, lanes)
        pieces = self.groups.pieces.get(roles.k)
        total = scope.lanes.length(roles.k, scope.tiles)
        for piece in range(1 if pieces is None else total // pieces):
            a, b = (side.replace(PIECE, str(piece)) for side in (left, right))
            if pieces is not None and (a == left or b == right):
                raise Infeasible(f"{statement.out} sums {total} columns, which registers hold no pieces of")
            text = f"{name} = warpgroup_mma({a}, {b}, {base}{extra}, is_async=True)"
            scope.lines.append(Line(text, name, kept=True))
            base, extra = name, ""
        made = tuple(scope.lanes.inside(lane, scope.tiles) for lane in lanes)
        return Running(name, reads), Tile(name, "f32", statement.axes, lanes, made)

    def finish(self, scope: Scope, running: Sequence[Running], behind: int) -> None:
        """Wait for products behind which `behind` others were started, and free what they read."""
        names = ", ".join(r.name for r in running)
        text = f"{names} = warpgroup_mma_wait({behind}, deps=[{names}])"
        scope.lines.append(Line(text))
        for name in [name for r in running for name in r.reads]:
            self.memory.used(scope, name, 1)

    def operands(self, scope: RowScope, statement: ContractTile, roles: Roles) -> tuple[str, str, list[str]]:
        """Both operands of a product as text, and the names of those in shared memory."""
        names = statement.args
        left, right = names[roles.left], names[1 - roles.left]
        kinds = {scope.values[n].dtype for n in names}
        if len(kinds) > 1 or not kinds <= set(HALVES):
            raise Infeasible(
                f"{statement.out} multiplies {', '.join(sorted(kinds))}; warp groups want 16 bits"
            )
        if roles.m != self.groups.rows or roles.batch:
            raise Infeasible(f"{statement.out} has other rows than the warp groups")
        reads = [right]
        b = self.right(scope, statement, roles, right)
        columns = scope.lengths([roles.n])[0]
        masks = [i for i in statement.over if i not in scope.values[left].zero]
        held = self.memory.held.get(left)
        if held and not scope.values[left].text and not scope.mask(masks, (roles.m, roles.k)):
            self.memory.await_tile(scope, left)
            a = scope.matrix(held.text, held.order, roles.m)
            return a, b, [left, right]
        if roles.k in self.groups.split:
            raise Infeasible(f"{statement.out} sums columns of which a group has a part in its registers")
        self.read(scope, left)
        a = self.in_registers(scope, statement, roles, left)
        return f"gl.convert_layout({a}, LEFT_{columns})", b, reads

    def in_registers(self, scope: RowScope, statement: ContractTile, roles: Roles, name: str) -> str:
        """A left operand in registers. It is masked before it is narrowed: a compiler moves a select of
        halves behind the start of the next product, and then lets no two of them overlap."""
        value = scope.value(name)
        source = None if name in self.memory.held else self.wide.get(name)
        masks = scope.mask((i for i in statement.over if i not in value.zero), (roles.m, roles.k))
        if masks and source is not None and source.lanes == value.lanes:
            wide = self.operand(scope, statement, source, (roles.m, roles.k), "f32")
            return f"{wide}.to({TYPES[value.dtype]})"
        return self.operand(scope, statement, value, (roles.m, roles.k), value.dtype)

    def right(self, scope: RowScope, statement: ContractTile, roles: Roles, name: str) -> str:
        """The right operand of a product, once it is there."""
        held = self.memory.held.get(name)
        if held is None:
            raise Infeasible(f"{statement.out} has a computed right operand")
        self.memory.await_tile(scope, name)
        open_ = [i for i in statement.over if i not in scope.values[name].zero and scope.spans[i].mask]
        if open_:
            self.clear(scope, statement, held, open_, roles)
        return scope.matrix(held.text, held.order, roles.k, roles.n)

    def clear(
        self, scope: RowScope, statement: ContractTile, held: Held, indices: Sequence[Index], roles: Roles
    ) -> None:
        """Make 0 what a tile in shared memory holds beyond the span of a product's index."""
        inside = scope.lanes.inside(roles.k, scope.tiles)
        if held.order[0] != roles.k or len(indices) > 1 or inside != tuple(indices) or PIECE in held.text:
            raise Infeasible(f"{statement.out} sums a part of a tile in shared memory")
        span = scope.spans[indices[0]]
        rows, columns = scope.lengths(held.order)
        start = span.start if span.tile > 1 else span.position
        per_row = min(32, max(1, columns // 8))
        if rows % 16 or columns < 8:
            raise Infeasible(f"{statement.out} sums a part of a tile of {rows} by {columns}")
        own = scope.matrix(held.text, held.order, roles.k, roles.n)
        call = f"clear_rows({own}, {span.limit} - {start}, {rows}, {per_row})"
        scope.lines.append(Nested(f"if {span.limit} < {start} + {span.tile}:", [Line(call)]))

    # ------------------------------------------------------------ loops

    def loop(self, scope: Scope, statement: Loop) -> None:
        assert isinstance(scope, RowScope)
        write_loop(self, scope, statement)

    def trial(self) -> Rows:
        """A writer whose lines nobody reads, to find out what a loop's values are."""
        found = Rows(self.groups, self.copies)
        found.depth = self.depth
        found.memory.products, found.memory.held = self.memory.products, dict(self.memory.held)
        return found

    def counters(self) -> tuple[str, ...]:
        own = [*(["turn_at"] if self.turns else []), *(["given_at"] if self.gives else [])]
        return (*own, *(f"{ring.name}_at" for ring in self.copies.rings.values()))

    def take_turn(self, scope: Scope) -> None:
        """Wait until the group before has started its products, so that groups do not start them together and
        then compute together."""
        self.turns = True
        scope.lines.append(Line("mbarrier.wait(turns.index(group), turn_at & 1)"))
        scope.lines.append(Line("turn_at += 1"))

    def pass_turn(self, scope: Scope) -> None:
        """Let the next group start its products."""
        scope.lines.append(Line(f"mbarrier.arrive(turns.index((group + 1) % {self.groups.count}), count=1)"))

    # ------------------------------------------------------------ stores

    def store(self, scope: Scope, statement: Store) -> None:
        assert isinstance(scope, RowScope)
        self.read(scope, statement.value)
        if store_rows(self, scope, statement):
            return
        wide = widened(self.memory, scope, statement)
        super().store(wide or scope, statement)
        scope.lines += wide.lines if wide else []
