"""Tile programs to C++: one function per kernel, OpenMP over its blocks (design.md, section 7).

`emit` gives a self-contained source but for `cpp_runtime.h` and what that includes, beside this file. Each
function is `extern "C"`, takes the arguments of its `Entry`, and returns 0, or 1 if there was no memory. It
may be called from several threads at once: scratch memory belongs to the thread that works on a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from cleave.codegen.cpp_contract import write_product
from cleave.codegen.cpp_frame import Frame, Span, memory_type
from cleave.codegen.cpp_lines import elements, may_have
from cleave.codegen.cpp_nest import write_nest
from cleave.codegen.cpp_plan import plan
from cleave.codegen.cpp_rooms import Plan
from cleave.codegen.cpp_text import (
    TILE_TYPES,
    Namer,
    Text,
    indent,
    least,
    loop_head,
    minus,
    plus,
    times,
)
from cleave.codegen.cpp_tiles import Item, Nest, Pass, Product, Rows, Tile
from cleave.codegen.source import Argument, Entry, Source
from cleave.ir.dims import NO_EXTENT, Index, extent
from cleave.schedule.tiles import (
    GridAxis,
    Kernel,
    LimitBound,
    Loop,
    PartBound,
    ReduceTile,
    SizeBound,
    Statement,
    Store,
    TileProgram,
)

LARGE = 8 << 20
"""Bytes of a tensor for which large pages are asked (`fresh` of cpp_memory.h)."""


def emit(tiles: TileProgram) -> Source:
    """The C++ source of a tile program."""
    functions = Namer()
    texts: list[str] = []
    entries: list[Entry] = []
    for kernel in tiles.kernels:
        function = functions.name(f"{tiles.name}_{kernel.name}")
        text, arguments = _Function(tiles, kernel).run(function)
        texts.append(text)
        entries.append(Entry(kernel.name, function, arguments, kernel.grid, kernel.warps, kernel.stages))
    body = "\n\n".join(texts)
    head = f'// {tiles.name}\n#include "cpp_runtime.h"\n\nnamespace cleave {{'
    return Source("c++", f"{head}\n\n{body}\n\n}}  // namespace cleave\n", tuple(entries))


@dataclass(frozen=True, slots=True)
class _Blocks:
    """A grid axis: its tile, how many blocks it has, where a block's tile starts, and the lines that follow
    from it."""

    axis: GridAxis
    tile: Text
    number: Text
    start: Text
    lines: list[str]


class _Function:
    """Writes the function of one kernel."""

    def __init__(self, tiles: TileProgram, kernel: Kernel) -> None:
        self.kernel = kernel
        self.frame = Frame(tiles, kernel)
        self.plan: Plan = plan(kernel, self.frame.fixed)

    def run(self, function: str) -> tuple[str, tuple[Argument, ...]]:
        self.shares: list[str] = []
        grid = self._grid()
        for whole in self.kernel.whole:
            self.frame.spans[whole.index] = Span(0, self.frame.size(whole.index.dim))
        self._name_tiles()
        body = self._items(self.plan.items)
        rooms = self._rooms()
        arguments = self.frame.arguments()
        parameters = ", ".join(self._parameter(a) for a in arguments)
        head = [
            *self._comment(),
            f'extern "C" int {function}({parameters}) {{',
        ]
        lines = [*head, *indent([*self._blocks(grid, [*rooms, *body])]), "}"]
        return "\n".join(lines), arguments

    # ------------------------------------------------------------ the frame of the function

    def _comment(self) -> list[str]:
        names = self.frame.index_names
        lines = [
            f"// {tensor.name}: {tensor.dtype}[{', '.join(_group(g) for g in tensor.layout)}] {tensor.role}"
            for tensor in self.kernel.tensors
        ]
        grid = ", ".join(f"{names[a.index]} by {a.tile}" for a in self.kernel.grid)
        if grid:
            lines.append(f"// blocks: {grid}")
        if self.frame.mentioned:
            known = sorted((atom.name, value) for atom, value in self.frame.mentioned.items())
            lines.append(f"// sizes: {', '.join(f'{name} = {value}' for name, value in known)}")
        return lines

    def _parameter(self, argument: Argument) -> str:
        match argument.kind:
            case "pointer":
                tensor = self.frame.tensors[argument.tensor]
                written = any(s.tensor == tensor.name for s in _stores(self.kernel.body))
                return f"{'' if written else 'const '}{memory_type(tensor)}* {argument.name}"
            case "scalar":
                return f"{TILE_TYPES[argument.dtype]} {argument.name}"
            case _:
                return f"i64 {argument.name}"

    def _grid(self) -> list[_Blocks]:
        """The grid axes; their spans hold from here on."""
        first = {i for s in _stores(self.kernel.body) for i in s.first}
        found: list[_Blocks] = []
        for axis in self.kernel.grid:
            index = axis.index
            tile: Text = axis.tile
            size = self.frame.size(index.dim)
            name = self.frame.name_of(index)
            if self._rows() == (index,):
                tile = self._share(index, axis.tile, size)
            number: Text = f"ceil_div({size}, {tile})" if tile != 1 else size
            if isinstance(size, int) and isinstance(tile, int):
                number = -(-size // tile)
            if index in first:  # its block 0 stores even if the dim is empty
                number = least([number, 1], "greatest")
            start: Text = 0
            count: Text = size
            lines: list[str] = []
            if number != 1:
                start = self.frame.names.name(f"{name}0")
                whole = isinstance(size, int) and isinstance(tile, int) and size % tile == 0
                if whole or (tile == 1 and index not in first):
                    count = tile
                else:
                    count = self.frame.names.name(f"n_{name}")
                    lines.append(f"const i64 {count} = least({tile}, {minus(size, start)});")
            self.frame.spans[index] = Span(start, count)
            found.append(_Blocks(axis, tile, number, start, lines))
        return found

    def _rows(self) -> tuple[Index, ...]:
        """The indices whose positions run one after the other."""
        return next((item.indices for item in self.plan.items if isinstance(item, Rows)), ())

    def _share(self, index: Index, most: int, size: Text) -> str:
        """How many rows a block has is decided at the call: all threads want some, if there is enough."""
        share = self.frame.names.name(f"{self.frame.name_of(index)}_tile")
        spans = [
            {*s.axes, *s.over} - {a.index for a in self.kernel.grid} for s in _reductions(self.kernel.body)
        ]
        widest = sorted(max(spans, key=len, default=set[Index]()), key=lambda i: i.number)
        work = times(*(self.frame.size(i.dim) for i in widest))
        self.shares.append(f"const i64 {share} = rows_each({size}, {work}, threads, {most});")
        return share

    def _blocks(self, grid: Sequence[_Blocks], body: list[str]) -> list[str]:
        """The loop over the blocks around a body."""
        lines = [
            *self._fresh(),
            *self.shares,
            f"const i64 blocks = {times(*(axis.number for axis in grid))};",
            "#pragma omp parallel for num_threads(threads) schedule(dynamic) if (blocks > 1 && threads > 1)",
            "for (i64 block = 0; block < blocks; ++block) {",
            *indent([*self._scratch(), *self._positions(grid), *body]),
            "}",
        ]
        if not self.plan.scratch:
            return [*lines, "return 0;"]
        return ["int failed = 0;", *lines, "return failed;"]

    def _fresh(self) -> list[str]:
        """What is written for the first time and may be large."""
        lines: list[str] = []
        written = {s.tensor for s in _stores(self.kernel.body)}
        for tensor in self.kernel.tensors:
            if tensor.name not in written or tensor.role not in ("output", "workspace"):
                continue
            if may_have(self.frame, tensor.name, LARGE):
                pointer = self.frame.pointer(tensor.name)
                size = elements(self.frame, tensor.name)
                lines.append(f"fresh({pointer}, {size} * i64(sizeof *{pointer}));")
        return lines

    def _scratch(self) -> list[str]:
        if not self.plan.scratch:
            return []
        return [
            f"char* const memory = scratch.room({self.plan.scratch});",
            "if (!memory) {",
            "#pragma omp atomic write",
            "  failed = 1;",
            "  continue;",
            "}",
        ]

    def _positions(self, grid: Sequence[_Blocks]) -> list[str]:
        """From a block's number to where its tiles start, innermost grid axis first."""
        varying = [axis for axis in grid if axis.number != 1]
        number = "rest" if len(varying) > 1 else "block"
        lines = ["i64 rest = block;"] if len(varying) > 1 else []
        for axis in reversed(varying):
            tile = axis.tile
            outermost = axis is varying[0]
            blocks = f"({axis.number})" if " " in str(axis.number) else str(axis.number)
            own = number if outermost else f"{number} % {blocks}"
            if tile != 1:
                own = f"({own}) * {tile}" if " " in own else f"{own} * {tile}"
            lines.append(f"const i64 {axis.start} = {own};")
            if not outermost:
                lines.append(f"rest /= {blocks};")
            lines += axis.lines
        return lines

    def _name_tiles(self) -> None:
        for tile in self.plan.kept:
            if tile.root is tile and tile.axes:
                tile.text = self.frame.names.name(tile.name)

    def _rooms(self) -> list[str]:
        """A pointer for each room, with the tiles that stand in it."""
        lines: list[str] = []
        for tile, room in self.plan.rooms.items():
            shared = [t for t in self.plan.kept if t.root is tile and t.name != tile.name]
            names = ", ".join(dict.fromkeys(t.name for t in shared))
            also = f", then {names}" if names else ""
            axes = ", ".join(self.frame.name_of(i) for i in tile.axes)
            pointer = f"{tile.kind}* const {tile.text} = tile<{tile.kind}>(memory, {room.offset});"
            lines.append(f"{pointer}  // [{axes}]{also}")
        return lines

    # ------------------------------------------------------------ items

    def _items(self, items: Iterable[Item]) -> list[str]:
        lines: list[str] = []
        for item in items:
            match item:
                case Nest():
                    lines += self._nest(item)
                case Product():
                    lines += [self._product_comment(item), *write_product(self.frame, item)]
                case Pass():
                    lines += self._pass(item)
                case Rows():
                    lines += self._row_loops(item)
        return lines

    def _row_loops(self, item: Rows) -> list[str]:
        """Loops over the rows of a block; of each row's index there is one position inside."""
        heads: list[str] = []
        with ExitStack() as stack:
            for index in item.indices:
                span, name = self.frame.spans[index], self.frame.name_of(index)
                if span.count != 1:
                    heads.append(f"{loop_head(name, span.count)} {{")
                    stack.enter_context(self.frame.within(index, Span(plus(span.start, name), 1)))
            lines = self._items(item.items)
        for head in reversed(heads):
            lines = [head, *indent(lines), "}"]
        return lines

    def _nest(self, nest: Nest) -> list[str]:
        lines = write_nest(self.frame, nest)
        conditions = [
            f"{self.frame.spans[i].start} == 0" for i in nest.first if self.frame.spans[i].start != 0
        ]
        if conditions:
            return [f"if ({' && '.join(conditions)}) {{", *indent(lines), "}"]
        return lines

    def _product_comment(self, product: Product) -> str:
        names = [self._described(tile) for tile in product.op.args]
        over = getattr(product.op.statement, "over", ())
        sign = "=" if product.start is None else "+="
        bound = ", ".join(self.frame.name_of(i) for i in over)
        return f"// {self._described(product.out)} {sign} sum over {bound} of {' * '.join(names)}"

    def _described(self, tile: Tile) -> str:
        return f"{tile.name}[{', '.join(self.frame.name_of(i) for i in tile.axes)}]"

    def _pass(self, item: Pass) -> list[str]:
        loop = item.statement
        name = self.frame.name_of(loop.index)
        start, stop = self._range(loop)
        lines: list[str] = []
        start_of, stop_of = (self.frame.names.name(f"{name}{word}") for word in ("0", "_stop"))
        if not isinstance(stop, int) and not stop.isidentifier():
            lines.append(f"const i64 {stop_of} = {stop};")
            stop = stop_of
        count = self._count(loop, start, stop, start_of)
        inner: list[str] = []
        if isinstance(count, str):
            n = self.frame.names.name(f"n_{name}")
            inner.append(f"const i64 {n} = {count};")
            count = n
        with self.frame.within(loop.index, Span(start_of, count)):
            inner += self._items(item.items)
            inner += self._copies(item)
        lines.append(f"for (i64 {start_of} = {start}; {start_of} < {stop}; {start_of} += {loop.tile}) {{")
        return [*lines, *indent(inner), "}"]

    def _range(self, loop: Loop) -> tuple[Text, Text]:
        start, stop = self.frame.bound(loop.start), self.frame.bound(loop.stop)
        return start, stop if _stays_inside(loop) else least([stop, self.frame.size(loop.index.dim)])

    def _count(self, loop: Loop, start: Text, stop: Text, start_of: str) -> Text:
        if loop.exact or loop.tile == 1:
            return loop.tile
        if isinstance(start, int) and isinstance(stop, int) and (stop - start) % loop.tile == 0:
            return loop.tile
        return f"least({loop.tile}, {minus(stop, start_of)})"

    def _copies(self, item: Pass) -> list[str]:
        """The updates whose value does not stand where the accumulator does. An accumulator that another
        update reads is copied first."""
        lines: list[str] = []
        held: dict[Tile, str] = {}
        for tile, room in item.held.items():
            name = held[tile] = self.frame.names.name(f"{tile.text}_before")
            count = times(*(self.frame.count(i) for i in tile.axes))
            if tile.axes:
                lines.append(f"{tile.kind}* const {name} = tile<{tile.kind}>(memory, {room.offset});")
                lines.append(f"{loop_head('e', count)} {name}[e] = {tile.text}[e];")
            else:
                lines.append(f"const {tile.kind} {name} = {tile.text};")
        for carried, value in item.copies:
            lines += self._copy(carried, value, held.get(value.root, value.root.text))
        return lines

    def _copy(self, carried: Tile, value: Tile, source: str) -> list[str]:
        target = carried.root.text
        if not carried.axes:
            return [f"{target} = {source};"]
        names = [self.frame.name_of(i) for i in carried.axes]
        lines: list[str] = []
        for depth, index in enumerate(carried.axes):
            lines.append("  " * depth + loop_head(names[depth], self.frame.count(index)))
        left = self._offset(carried.axes)
        right = self._offset(value.axes)
        at = f"{source}[{right}]" if value.axes else source
        lines.append("  " * len(names) + f"{target}[{left}] = {at};")
        return lines

    def _offset(self, axes: tuple[Index, ...]) -> Text:
        offset: Text = 0
        for index in axes:
            offset = plus(times(offset, self.frame.count(index)), self.frame.name_of(index))
        return offset


def _stays_inside(loop: Loop) -> bool:
    """Is it plain that a loop stops at the size of its dim?"""
    size = SizeBound(extent(0, (loop.index.dim, 1)))
    match loop.stop:
        case PartBound(_, _, offset):
            return offset == NO_EXTENT
        case LimitBound(kind="min", bounds=bounds):
            ends = (b for b in bounds if isinstance(b, PartBound) and b.end)
            return size in bounds or any(b.offset == NO_EXTENT for b in ends)
        case _:
            return loop.exact


def _reductions(body: Iterable[Statement]) -> list[ReduceTile]:
    found: list[ReduceTile] = []
    for statement in body:
        if isinstance(statement, ReduceTile):
            found.append(statement)
        elif isinstance(statement, Loop):
            found += _reductions(statement.body)
    return found


def _group(dims: Sequence[object]) -> str:
    return " * ".join(map(str, dims)) or "1"


def _stores(body: Iterable[Statement]) -> list[Store]:
    found: list[Store] = []
    for statement in body:
        if isinstance(statement, Store):
            found.append(statement)
        elif isinstance(statement, Loop):
            found += _stores(statement.body)
    return found
