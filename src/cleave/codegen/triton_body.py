"""Statements of a tile program as lines of Triton.

Padded positions hold anything: reductions replace them by the neutral element, contractions by 0 in every
operand (NaN * 0), stores leave them out. A product that is only added to another tile becomes the dot's
accumulator. A contraction that no dot can do is a sum of a product.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from cleave.codegen.triton_ahead import Counter, may_run_ahead, run_ahead
from cleave.codegen.triton_maps import (
    NARROW_LIMIT,
    NARROW_WEIGHT,
    TYPES,
    convert,
    literal_tile,
    neutral,
    number,
    pointwise,
    reduced,
    typed,
)
from cleave.codegen.triton_memory import load, locate, store
from cleave.codegen.triton_parts import GROUP, may_be_several, merges, several
from cleave.codegen.triton_scope import Scope, is_number
from cleave.codegen.triton_text import Line, Lines, Nested, assigned
from cleave.codegen.triton_tiles import Roles, Span, Tile, loaded_twice, power_of_two, roles_of, uses_of
from cleave.errors import Bug, Infeasible
from cleave.ir.dims import Extent, Index
from cleave.schedule.counting import MOST_PARTS, PARTS_REGISTERS
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Fill,
    Load,
    Locate,
    Loop,
    Measure,
    ReduceTile,
    Statement,
    Store,
)


class Body:
    """Writes the statements of one kernel. `precision` is Triton's `input_precision` for float32 dots; loads
    of loops that carry state are `ahead` steps early. What is the same for all tiles of an index that is
    `shared` is stored by each of its blocks, and not by the first one alone. A block has `threads`."""

    def __init__(
        self, precision: str, ahead: int = 0, shared: frozenset[Index] = frozenset(), threads: int = 128
    ) -> None:
        self.precision = precision
        self.ahead = ahead
        self.shared = shared
        self.threads = threads
        self.twice = frozenset[str]()
        """Loads of the loop being written that a product and something else read."""
        self.multiplied: dict[str, Tile] = {}
        """What products read instead of these. Triton 3.6 to 3.9 count the buffers of a loop's tile for the
        one or the other; of one that an asynchronous product reads there must be one more."""

    def write(self, scope: Scope, body: Sequence[Statement]) -> None:
        """Write statements in order."""
        fused = fused_dots(body)
        waiting: dict[str, ContractTile] = {}
        for statement in body:
            match statement:
                case Loop():
                    self.loop(scope, statement)
                case Store():
                    self.store(scope, statement)
                case Carry():
                    self.carry(scope, statement)
                case ContractTile() if statement.out in fused and self.roles(scope, statement):
                    waiting[statement.out] = statement
                case Compute(out, _, _, _, args) if any(a in waiting for a in args):
                    name = next(a for a in args if a in waiting)
                    onto = scope.value(args[0] if args[1] == name else args[1])
                    scope.values[out] = self.contract(scope, waiting[name], out, onto)
                case Load() if statement.out in self.twice and scope.params.asynchronous:
                    self.multiplied[statement.out] = load(scope, statement)
                    scope.values[statement.out] = load(scope, statement, again=True)
                case Load():
                    self.multiplied.pop(statement.out, None)
                    scope.values[statement.out] = load(scope, statement)
                case _:
                    scope.values[statement.out] = self.tile(scope, statement)

    def tile(
        self, scope: Scope, statement: Load | Fill | Measure | Locate | Compute | ReduceTile | ContractTile
    ) -> Tile:
        """Write one value."""
        match statement:
            case Load():
                return load(scope, statement)
            case Locate():
                return locate(scope, statement)
            case Fill(_, _, dtype, value):
                return literal_tile(value, dtype)
            case Measure(out, dtype, size):
                text = scope.params.extent(size)
                if is_number(text):
                    return literal_tile(int(text), dtype)
                weight = weight_of(scope.params.flat(size))
                if dtype == "i64" and weight <= NARROW_WEIGHT:
                    return Tile(text if text.isidentifier() else scope.line(out, text), dtype, weight=weight)
                return Tile(scope.line(out, f"tl.cast({text}, {TYPES[dtype]})"), dtype)
            case Compute():
                return self.compute(scope, statement)
            case ReduceTile():
                return self.reduce(scope, statement)
            case ContractTile():
                return self.contract(scope, statement, statement.out, None)

    def made(
        self,
        scope: Scope,
        out: str,
        text: str,
        dtype: str,
        axes: tuple[Index, ...],
        lanes: tuple[int, ...],
        zero: frozenset[Index] = frozenset(),
        weight: int = 0,
    ) -> Tile:
        """Assign an expression and say what it is."""
        inside = tuple(scope.lanes.inside(lane, scope.tiles) for lane in lanes)
        name = text if text.isidentifier() else scope.line(out, text)
        return Tile(name, dtype, axes, lanes, inside, zero, weight)

    # ------------------------------------------------------------ pointwise

    def compute(self, scope: Scope, statement: Compute) -> Tile:
        args = [scope.value(name) for name in statement.args]
        dtype = statement.dtype
        if statement.fn in ("id", "cast") and args[0].literal is not None:
            return Tile(convert(args[0], "", dtype), dtype, literal=args[0].literal)
        lanes = tuple(sorted({lane for a in args for lane in a.lanes}))
        texts = [scope.spread(a.text, a.lanes, lanes) for a in args]
        text, weight = pointwise(statement.fn, dtype, args, texts)
        zero = args[0].zero if statement.fn in ("id", "cast", "neg") else frozenset[Index]()
        return self.made(scope, statement.out, text, dtype, statement.axes, lanes, zero, weight)

    # ------------------------------------------------------------ reductions

    def reduce(self, scope: Scope, statement: ReduceTile) -> Tile:
        tile = scope.value(statement.arg)
        kind, dtype = statement.kind, statement.dtype
        works = "bool" if kind in ("any", "all") else dtype
        text = convert(tile, tile.text, works)
        done, lanes = self.collapse(
            scope, statement.out, text, tile.lanes, works, kind, statement.over, statement.axes, tile
        )
        if works != dtype:
            done = f"({done}).to({TYPES[dtype]})"
        return self.made(scope, statement.out, done, dtype, statement.axes, lanes)

    def collapse(
        self,
        scope: Scope,
        wish: str,
        text: str,
        have: tuple[int, ...],
        dtype: str,
        kind: str,
        over: Sequence[Index],
        axes: Sequence[Index],
        tile: Tile,
    ) -> tuple[str, tuple[int, ...]]:
        """Reduce a block over indices: the expression and the lanes that are left."""
        gone = scope.lanes.over(over, scope.tiles)
        want = tuple(sorted({*have, *gone}))
        if want != have:
            text = (
                typed(tile.literal, dtype, scope.shape(want))
                if tile.literal is not None
                else (scope.filled(text, have, want))
            )
        start = neutral(kind, dtype)
        known = tile.zero if start == 0 and not isinstance(start, bool) else frozenset[Index]()
        masks = scope.mask((i for i in over if i not in known), want)
        masks += self.once(scope, gone, over, axes, want)
        if masks:
            text = f"tl.where({' & '.join(masks)}, {text}, {self.zero(number(start, dtype), dtype)})"
        for lane in reversed(gone):
            axis = want.index(lane)
            kept = [i for i in scope.lanes.inside(lane, scope.tiles) if i not in over and i in axes]
            if kept:
                text = self.fold_part(scope, text, want, lane, over, kind, dtype)
            else:
                text = reduced(kind, dtype, text, axis)
                want = (*want[:axis], *want[axis + 1 :])
        return text, want

    def once(
        self,
        scope: Scope,
        gone: Iterable[int],
        over: Sequence[Index],
        axes: Sequence[Index],
        want: Sequence[int],
    ) -> list[str]:
        """Masks that keep one copy of what a lane repeats for indices that are neither reduced nor left."""
        found: list[str] = []
        for lane in gone:
            for index in scope.lanes.inside(lane, scope.tiles):
                if index not in over and index not in axes:
                    span = scope.spans[index]
                    found.append(scope.spread(f"({span.position} == {span.start})", (lane,), want))
        return found

    def fold_part(
        self,
        scope: Scope,
        text: str,
        want: Sequence[int],
        lane: int,
        over: Sequence[Index],
        kind: str,
        dtype: str,
    ) -> str:
        """Reduce some indices of a lane and spread the result over the lane again."""
        inside = scope.lanes.inside(lane, scope.tiles)
        tiles = [scope.spans[i].tile for i in inside]
        lengths = scope.lanes.shape(want, scope.tiles)
        axis = list(want).index(lane)
        total = 1
        for tile in tiles:
            total *= tile
        if total != lengths[axis] or any(tile != power_of_two(tile) for tile in tiles):
            raise Infeasible(
                f"a reduction over part of a lane of tiles {tiles}; use powers of two, 16 in all or more"
            )
        split = (*lengths[:axis], *tiles, *lengths[axis + 1 :])
        text = f"tl.reshape({text}, {split})"
        for place in reversed(range(len(inside))):
            if inside[place] in over:
                text = f"tl.expand_dims({reduced(kind, dtype, text, axis + place)}, {axis + place})"
        return f"tl.reshape(tl.broadcast_to({text}, {split}), {scope.shape(want)})"

    def zero(self, text: str, dtype: str) -> str:
        """A literal beside a block of a dtype that literals do not take by themselves."""
        return text if dtype in ("f32", "bool", "i64", "i32") else f"tl.full((), {text}, {TYPES[dtype]})"

    # ------------------------------------------------------------ contractions

    def roles(self, scope: Scope, statement: ContractTile) -> Roles | None:
        args = [scope.value(name) for name in statement.args]
        return roles_of(statement, [(a.axes, a.dtype) for a in args], scope.lanes, scope.tiles)

    def contract(self, scope: Scope, statement: ContractTile, out: str, onto: Tile | None) -> Tile:
        """A contraction, added to `onto` if there is one."""
        roles = self.roles(scope, statement)
        if roles:
            args = [self.multiplied.get(name) or scope.value(name) for name in statement.args]
            return self.dot(scope, statement, args, roles, out, onto)
        args = [scope.value(name) for name in statement.args]
        assert onto is None
        dtype = statement.dtype
        works = "f32" if dtype in ("f16", "bf16") else dtype
        have = tuple(sorted({lane for a in args for lane in a.lanes}))
        text = " * ".join(convert(a, scope.spread(a.text, a.lanes, have), works) for a in args)
        if all(a.literal is not None for a in args):
            text = f"tl.cast({text}, {TYPES[works]})"
        zero = frozenset.intersection(*(a.zero for a in args))
        product = Tile(text, works, statement.axes, have, zero=zero)
        if works == "bool":
            raise Bug(f"{statement.out} contracts booleans")
        done, lanes = self.collapse(
            scope, out, text, have, works, "sum", statement.over, statement.axes, product
        )
        if works != dtype:
            done = f"({done}).to({TYPES[dtype]})"
        return self.made(scope, out, done, dtype, statement.axes, lanes)

    def dot(
        self,
        scope: Scope,
        statement: ContractTile,
        args: Sequence[Tile],
        roles: Roles,
        out: str,
        onto: Tile | None,
    ) -> Tile:
        kinds = {a.dtype for a in args}
        works = kinds.pop() if len(kinds) == 1 else "f32"
        left, right = args[roles.left], args[1 - roles.left]
        a = self.operand(scope, statement, left, (*roles.batch, roles.m, roles.k), works)
        b = self.operand(scope, statement, right, (*roles.batch, roles.k, roles.n), works)
        lanes = tuple(sorted((*roles.batch, roles.m, roles.n)))
        parts = [a, b]
        if onto is not None:
            own = convert(onto, onto.text, "f32")
            if onto.literal is not None:
                own = typed(onto.literal, "f32", scope.shape(lanes))
            else:
                own = scope.filled(own, onto.lanes, lanes)
            parts.append(own)
        if works == "f32":
            parts.append(f'input_precision="{self.precision}"')
        text = f"tl.dot({', '.join(parts)})"
        if statement.dtype != "f32":
            text = f"{text}.to({TYPES[statement.dtype]})"
        return self.made(scope, out, text, statement.dtype, statement.axes, lanes)

    def operand(
        self, scope: Scope, statement: ContractTile, tile: Tile, order: tuple[int, ...], works: str
    ) -> str:
        """An operand of a dot: in full, 0 outside the spans, its lanes in the given order."""
        lanes = tuple(sorted(order))
        text = convert(tile, tile.text, works)
        if tile.literal is not None:
            text = typed(tile.literal, works, scope.shape(lanes))
        else:
            text = scope.filled(text, tile.lanes, lanes)
        masks = scope.mask((i for i in statement.over if i not in tile.zero), lanes)
        if masks:
            text = f"tl.where({' & '.join(masks)}, {text}, {self.zero('0.0', works)})"
        if order != lanes:
            text = f"tl.permute({text}, {tuple(lanes.index(lane) for lane in order)})"
        return text

    # ------------------------------------------------------------ loops and stores

    def carry(self, scope: Scope, statement: Carry) -> None:
        tile = scope.value(statement.init)
        lanes = scope.lanes.over(statement.axes, scope.tiles)
        if tile.literal is not None:
            text = typed(tile.literal, statement.dtype, scope.shape(lanes) if lanes else "()")
        else:
            text = scope.filled(convert(tile, tile.text, statement.dtype), tile.lanes, lanes)
        inside = tuple(scope.lanes.inside(lane, scope.tiles) for lane in lanes)
        name = scope.line(statement.out, text)
        scope.values[statement.out] = Tile(name, statement.dtype, statement.axes, lanes, inside)

    def loop(self, scope: Scope, statement: Loop) -> None:
        index, tile = statement.index, statement.tile
        name = scope.index_names[index]
        start, stop, full = scope.ends(statement)
        inner = scope.inner()
        at = name if tile == 1 else inner.names.take(f"{name}0")
        inner.enter({index: Span(tile, at, scope.limit(statement, stop), full)})
        outer, self.twice = self.twice, loaded_twice(statement.body, statement.updates)
        self.write(inner, statement.body)
        self.twice = outer
        step = f", {tile}" if tile > 1 else ""
        head = (
            f"for {at} in range({start}, {stop}{step}):"
            if start != "0" or step
            else (f"for {at} in range({stop}):")
        )
        how = f"  # {index.dim}" + (", every tile full" if statement.exact and tile > 1 else "")
        carried = tuple(scope.values[target].text for target, _ in statement.updates)
        count = self.together(inner, statement) if merges(statement) else 1
        if count > 1 and may_be_several(inner.lines, Counter(at, start, stop)):
            pairs = self.new_values(inner, statement.updates)
            words = {
                inner.values[s.out].text for s in statement.body if isinstance(s, Load) and s.dtype == "f32"
            }
            lines = several(inner, inner.lines, pairs, Counter(at, start, stop), count, words)
            scope.lines.append(Nested(f"for {at} in range({start}, {stop}, {count}):{how}", lines, carried))
            return
        inner.lines += self.updates(inner, statement.updates)
        lines = inner.lines
        if self.ahead and may_run_ahead(statement):
            outputs = (t for t in scope.params.tensors.values() if t.role != "input")
            written = frozenset(scope.params.pointer(t.name) for t in outputs if t.role != "scalar")
            before, lines, more = run_ahead(inner, lines, Counter(at, start, stop), self.ahead, written)
            scope.lines += before
            carried += more
        scope.lines.append(Nested(head + how, lines, carried))

    def together(self, inner: Scope, statement: Loop) -> int:
        """How many parts' states are asked for at once in a merge, as registers have room."""
        loads = [s for s in statement.body if isinstance(s, Load)]
        held = sum(prod(inner.lanes.shape(inner.values[s.out].lanes, inner.tiles)) for s in loads)
        count = max(1, min(MOST_PARTS, PARTS_REGISTERS * self.threads // max(1, held)))
        return count if count < GROUP else count // GROUP * GROUP

    def updates(self, scope: Scope, updates: Sequence[tuple[str, str]]) -> Lines:
        """Assignments to accumulators, all at once."""
        return assigned(self.new_values(scope, updates))

    def new_values(self, scope: Scope, updates: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        """What changes: accumulators and their new values as text."""
        pairs: list[tuple[str, str]] = []
        for target, value in updates:
            into, tile = scope.value(target), scope.value(value)
            if tile.literal is not None:
                text = typed(tile.literal, into.dtype, scope.shape(into.lanes) if into.lanes else "()")
            else:
                text = scope.filled(convert(tile, tile.text, into.dtype), tile.lanes, into.lanes)
            if text != into.text:
                pairs.append((into.text, text))
        return pairs

    def store(self, scope: Scope, statement: Store) -> None:
        call = Line(store(scope, statement))
        first = [index for index in statement.first if index not in self.shared]
        if not first:
            scope.lines.append(call)
            return
        tests = [f"{scope.spans[index].start} == 0" for index in first]
        test = tests[0] if len(tests) == 1 else " & ".join(f"({t})" for t in tests)
        scope.lines.append(Nested(f"if {test}:", [call]))


def weight_of(size: Extent) -> int:
    """How many sizes the magnitude of a size may add up to."""
    const = 1 if 0 < abs(size.const) < NARROW_LIMIT else 0 if size.const == 0 else NARROW_WEIGHT + 1
    return sum(abs(c) for _, c in size.terms) + const


def fused_dots(body: Sequence[Statement]) -> frozenset[str]:
    """The contractions of a body whose only use is to be added to something in the same body."""
    uses = uses_of(body)
    products = {s.out: s for s in body if isinstance(s, ContractTile) and s.dtype == "f32"}
    found: set[str] = set()
    for statement in body:
        if not (isinstance(statement, Compute) and statement.fn == "add" and statement.dtype == "f32"):
            continue
        for name in reversed(statement.args):
            product = products.get(name)
            if product and uses[name] == 1 and set(product.axes) == set(statement.axes):
                found.add(name)
                break
    return frozenset(found)
