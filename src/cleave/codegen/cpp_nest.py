"""Element loops: the text of a `Nest`.

All operations of a nest run in one set of loops, each value in a register. Values with fewer indices are
read where all their loops are open (`cpp_order`). A reduction over the innermost loops sums up in a register,
otherwise in the tile's memory. How loops are written is in `cpp_levels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cleave.codegen import cpp_math
from cleave.codegen.cpp_frame import Frame, Place
from cleave.codegen.cpp_levels import Level, Loops, Running, combine, identity
from cleave.codegen.cpp_lines import line_for
from cleave.codegen.cpp_order import loops_of
from cleave.codegen.cpp_text import Namer, Text, indent, literal, loop_head, plus, times
from cleave.codegen.cpp_tiles import Nest, Op, Tile
from cleave.errors import Bug
from cleave.ir.dims import Index, Term, indices_of
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Fill,
    Load,
    Locate,
    Measure,
    ReduceTile,
    Store,
)


def write_nest(frame: Frame, nest: Nest) -> list[str]:
    """The text of a nest."""
    return _Writer(frame, nest).run()


class _Writer:
    def __init__(self, frame: Frame, nest: Nest) -> None:
        self.frame, self.nest = frame, nest
        self.names = Namer(frame.names) if nest.space else frame.names
        self.declared: list[str] = []
        self.before: list[str] = []
        self.root = Level((), "", 1)
        self.levels: list[Level] = [self.root]
        self.known: dict[Tile, str] = {}
        self.writes: list[tuple[int, str]] = []
        self.units: list[str] = []
        self.sums: list[str] = []
        self.lines = 0
        for group in loops_of(frame, nest):
            count = times(*(frame.count(i) for i in group))
            if count == 1:
                for index in group:
                    self.root.indices += (index,)
                continue
            together = "_".join(frame.name_of(i) for i in group)
            variable = together if len(group) == 1 else self.names.name(together)
            self.levels.append(Level(tuple(group), variable, count))
        self.level_of = {i: n for n, level in enumerate(self.levels) for i in level.indices}

    # ------------------------------------------------------------ values

    def _depth(self, indices: Sequence[Index]) -> int:
        return max((self.level_of[i] for i in indices), default=0)

    def _variable(self, index: Index) -> Text:
        """The offset of an index in its tile; 0 for one that the nest does not run over."""
        level = self.levels[self.level_of.get(index, 0)]
        return level.variable or 0

    def element(self, tile: Tile) -> str:
        """A tile in memory at the loops' position."""
        name = tile.root.text
        if not tile.axes:
            return name
        offset: Text = 0
        position = 0
        while position < len(tile.axes):
            index = tile.axes[position]
            level = self.levels[self.level_of[index]]
            width = len(level.indices) if level.variable else 1
            count = times(*(self.frame.count(i) for i in tile.axes[position : position + width]))
            offset = plus(times(offset, count), self._variable(index))
            position += width
        return f"{name}[{offset}]"

    def _define(self, tile: Tile, depth: int, kind: str, text: str) -> str:
        name = self._local(tile)
        self.levels[depth].lines.append(f"const {kind} {name} = {text};")
        self.known[tile] = name
        return name

    def _local(self, tile: Tile) -> str:
        return self.names.name(f"{tile.name}_at" if self.names.taken(tile.name) else tile.name)

    def value(self, tile: Tile) -> str:
        """The text of a tile's element, made at its level if it is not there yet."""
        if tile in self.known:
            return self.known[tile]
        if tile.where == "inline":
            return self._inline(tile)
        if tile.where != "memory":
            raise Bug(f"{tile.name} is read before it is made")
        if not tile.axes:
            return tile.root.text
        depth = self._depth(tile.axes)
        return self._define(tile, depth, tile.kind, self.element(tile))

    def _inline(self, tile: Tile) -> str:
        statement = tile.maker.statement
        match statement:
            case Fill(value=number, dtype=dtype):
                return literal(number, dtype)
            case Compute():
                return self._define(tile, self._depth(tile.axes), tile.kind, self._computed(tile.maker))
            case Load() if tile.axes:
                return self._define(tile, self._depth(tile.axes), tile.kind, self._source(tile.maker))
            case _:
                return self._source(tile.maker)

    def _source(self, op: Op) -> str:
        """The value of an operation without arguments."""
        statement = op.statement
        match statement:
            case Fill(value=number, dtype=dtype):
                return literal(number, dtype)
            case Measure(dtype=dtype, extent=extent):
                return self._number(self.frame.extent(extent), dtype)
            case Locate(dtype=dtype, term=term):
                lookup = self._lookup(op)
                return self._number(self.frame.position(term, None, self._variable, lookup), dtype)
            case Load():
                return self._load(op, statement)
            case _:
                raise Bug(f"no value in {type(statement).__name__}")

    def _number(self, text: Text, dtype: str) -> str:
        if isinstance(text, int):
            return literal(text, dtype)
        if dtype == "i64":
            return f"({text})" if " " in text else text
        return cpp_math.convert(f"i64({text})" if "(" not in text and " " in text else text, "i64", dtype)

    def _lookup(self, op: Op) -> Callable[[str], str]:
        def lookup(name: str) -> str:
            return self.value(op.lookups[name])

        return lookup

    def _place(self, op: Op, tensor: str, terms: tuple[Term, ...]) -> Place:
        place = self.frame.place(tensor, terms, self._variable, self._lookup(op))
        if isinstance(op.statement, Store):
            return place
        inner = self.levels[-1].indices
        strides = self.frame.strides(tensor)
        for term, stride in zip(terms, strides, strict=True):
            if not isinstance(stride, str) or not stride.isidentifier() or stride in self.units:
                continue
            if any(i in inner for i in indices_of(term)):
                self.units.append(stride)
        return place

    def _guard(self, place: Place) -> str:
        tests = [f"inside({position}, {size})" for position, size in place.limits]
        return " && ".join(tests)

    def _load(self, op: Op, statement: Load) -> str:
        pointer = self.frame.pointer(statement.tensor)
        source = self.frame.tensors[statement.tensor]
        if source.role == "scalar":
            return cpp_math.convert(pointer, source.dtype, statement.dtype)
        place = self._place(op, statement.tensor, statement.terms)
        text = cpp_math.convert(f"{pointer}[{place.offset}]", source.dtype, statement.dtype)
        if source.dtype in ("f16", "bf16"):
            text = f"float({text})" if text.startswith(pointer) else text
        if place.limits and (statement.guarded or op.lookups):
            return f"{self._guard(place)} ? {text} : {literal(statement.other, statement.dtype)}"
        return text

    def _computed(self, op: Op) -> str:
        statement = op.statement
        assert isinstance(statement, Compute)
        args = [(self.value(a), a.dtype) for a in op.args]
        return cpp_math.expression(statement.fn, statement.dtype, args)

    # ------------------------------------------------------------ operations

    def run(self) -> list[str]:
        for op in self.nest.ops:
            match op.statement:
                case ReduceTile(kind=kind, over=over):
                    (arg,) = op.args
                    text = cpp_math.convert(self.value(arg), arg.dtype, op.statement.dtype)
                    self._reduce(op, kind, over, text)
                case ContractTile(over=over, dtype=dtype):
                    values = [cpp_math.convert(self.value(a), a.dtype, dtype) for a in op.args]
                    self._reduce(op, "sum", over, " * ".join(values))
                case Store():
                    self._store(op, op.statement)
                case _:
                    self._make(op)
        for depth, line in self.writes:
            self.levels[depth].lines.append(line)
        lines = [*self.before, *Loops(self.levels, self.units, self.sums, self.names).text()]
        if self.nest.space and (self.root.lines or self.units):
            lines = ["{", *indent(lines), "}"]
        return [*self.declared, *lines]

    def _make(self, op: Op) -> None:
        tile = op.out
        assert tile is not None
        statement = op.statement
        if isinstance(statement, Carry):
            text = cpp_math.convert(self.value(op.args[0]), op.args[0].dtype, tile.dtype)
        elif isinstance(statement, Compute):
            text = self._computed(op)
        else:
            text = self._source(op)
        depth = len(self.levels) - 1 if tile.axes else 0
        if tile.where == "memory" and tile.root is tile and not tile.axes:
            tile.text = self.frame.names.name(tile.name)
            words = tile.kind if isinstance(statement, Carry) else f"const {tile.kind}"
            self.root.lines.append(f"{words} {tile.text} = {text};")
            return
        if tile.where != "memory" or any(user in self.nest.ops for user in tile.users):
            text = self._define(tile, depth, tile.kind, text)
        if tile.where == "memory":
            self.writes.append((depth, f"{self.element(tile)} = {text};"))

    def _store(self, op: Op, statement: Store) -> None:
        (tile,) = op.args
        target = self.frame.tensors[statement.tensor]
        place = self._place(op, statement.tensor, statement.terms)
        text = cpp_math.convert(self.value(tile), tile.dtype, target.dtype)
        text = f".raw = cut_bf16({text})" if tile.dtype == target.dtype == "bf16" else f" = {text}"
        line = f"{self._target(op, statement, place)}{text};"
        if op.lookups and place.limits:
            line = f"if ({self._guard(place)}) {line}"
        self.writes.append((len(self.levels) - 1, line))

    def _target(self, op: Op, statement: Store, place: Place) -> str:
        """Where an element is written: its place, or the same in a line that goes there after the loop."""
        inner = self.levels[-1]
        if inner.variable and len(inner.indices) == 1 and not op.lookups:
            place_of = (inner.indices[0], self._variable, inner.count)
            found = line_for(self.frame, statement, place.offset, *place_of, self.names, self.lines)
            if found is not None:
                self.lines += 1
                line, before, after = found
                self.levels[-2].lines.append(before)
                self.levels[-2].after.append(after)
                return f"{line}[{inner.variable}]"
        return f"{self.frame.pointer(statement.tensor)}[{place.offset}]"

    def _reduce(self, op: Op, kind: str, over: tuple[Index, ...], text: str) -> None:
        tile = op.out
        assert tile is not None
        depth = len(self.levels)
        while depth > 1 and set(self.levels[depth - 1].indices) <= set(over):
            depth -= 1
        outside = [i for i in over if 0 < self.level_of[i] < depth]
        innermost = self.levels[-1]
        start = identity(kind, tile.dtype)
        if depth == len(self.levels) and not outside:
            self._single(tile, text)
            return
        if outside:
            self._clear(tile, start)
        if depth == len(self.levels):
            innermost.lines.append(combine(kind, tile.dtype, self.element(tile), text))
            return
        self._declare(tile)
        name = self._local(tile)
        self.levels[depth - 1].lines.append(f"{tile.kind} {name} = {start};")
        if depth == 1:
            self.sums.append(name)
        innermost.lines.append(combine(kind, tile.dtype, name, text))
        innermost.sums.append(Running(kind, tile.dtype, name, start))
        done = f"round_{tile.dtype}({name})" if tile.dtype in ("f16", "bf16") else name
        if outside:
            self.levels[depth - 1].after.append(combine(kind, tile.dtype, self.element(tile), name))
        else:
            self.levels[depth - 1].after.append(f"{self.element(tile)} = {done};")

    def _declare(self, tile: Tile) -> None:
        """Declare the variable of a result without indices, outside the nest."""
        if not tile.axes and tile.root is tile:
            tile.text = self.frame.names.name(tile.name)
            self.declared.append(f"{tile.kind} {tile.text};")

    def _single(self, tile: Tile, text: str) -> None:
        """A reduction over one position."""
        self._declare(tile)
        self.writes.append((len(self.levels) - 1, f"{self.element(tile)} = {text};"))

    def _clear(self, tile: Tile, start: str) -> None:
        count = times(*(self.frame.count(i) for i in tile.axes))
        variable = self.names.name("e")
        self.before.append(f"{loop_head(variable, count)} {tile.root.text}[{variable}] = {start};")
