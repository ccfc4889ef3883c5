"""Scopes of the Triton emitter: sizes, strides and bounds as text, indices with their positions and masks.

`Parameters` knows every possible parameter of a kernel under its final name; which of them the kernel has is
decided by what its finished text mentions. A `Scope` is what is known at one point of a kernel; a loop's body
has a scope of its own. Positions and strides are 32 bits wide, or 64 where the launcher says so (`INDEX`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cleave.codegen.source import Argument
from cleave.codegen.triton_text import Line, Lines, Names
from cleave.codegen.triton_tiles import Lanes, Span, Tile
from cleave.errors import Bug, Infeasible
from cleave.ir.dims import Atom, Dim, Extent, Index, Part, Parts, Union, extent, join_signed
from cleave.schedule.parts import ends_with_dim, split_steps
from cleave.schedule.tiles import (
    AlignBound,
    Bound,
    Kernel,
    LimitBound,
    Loop,
    PartBound,
    SizeBound,
    SpanBound,
    Tensor,
    TileProgram,
)


class Parameters:
    """The parameters of one kernel, by what they stand for. `described`: loads of whole tiles go through
    tensor descriptors where they can. `asynchronous`: products run on while later tiles come. What other
    blocks of the same launch store to `fresh` tensors is read past the first cache, which does not see it."""

    def __init__(self, tp: TileProgram, kernel: Kernel, names: Names) -> None:
        self.sizes: Mapping[Atom, int | Extent] = dict(tp.sizes)
        self.tensors = {tensor.name: tensor for tensor in kernel.tensors}
        self.arguments: dict[str, Argument] = {}
        self._names = names
        self._of: dict[tuple[str, str, int, Dim | None, tuple[int, ...]], str] = {}
        self.described = False
        self.asynchronous = False
        self.fresh: frozenset[str] = frozenset()
        self.steps = split_steps(tp)
        for tensor in kernel.tensors:
            if tensor.role == "scalar":
                self._add(Argument("scalar", tensor.name, tensor.name, dtype=tensor.dtype))
            else:
                self._add(Argument("pointer", f"{tensor.name}_ptr", tensor.name, dtype=tensor.dtype))
        for tensor in kernel.tensors:
            for axis, group in enumerate(tensor.layout):
                if group and not (tensor.role == "workspace" and axis == len(tensor.layout) - 1):
                    self._add(Argument("stride", f"{tensor.name}_s{axis}", tensor.name, axis))

    def _add(self, wish: Argument) -> str:
        key = (wish.kind, wish.tensor, wish.axis, wish.dim, wish.block)
        if key not in self._of:
            name = self._names.take(wish.name)
            self._of[key] = name
            self.arguments[name] = replace(wish, name=name)
        return self._of[key]

    def pointer(self, tensor: str) -> str:
        return self._of["pointer", tensor, 0, None, ()]

    def descriptor(self, tensor: str, block: tuple[int, ...]) -> str:
        """The descriptor of a tensor for blocks of some extents, one per dim."""
        own = self.tensors[tensor]
        return self._add(Argument("descriptor", f"{tensor}_tiles", tensor, dtype=own.dtype, block=block))

    def counter(self) -> str:
        """The numbers on which blocks count."""
        return self._add(Argument("counter", "counts_ptr", dtype="i32"))

    def scalar(self, tensor: str) -> str:
        return self._of["scalar", tensor, 0, None, ()]

    def stride(self, tensor: str, axis: int) -> str:
        """The stride of an axis; workspaces are dense, so that their last one is 1."""
        return self._of.get(("stride", tensor, axis, None, ()), "1")

    def chunk(self, parts: Dim) -> str:
        """The length of a part."""
        if not isinstance(parts, Parts) or parts.level:
            raise Infeasible(f"{parts} does not name the parts of one partition of a dim")
        return self._add(Argument("chunk", f"chunk_{parts.of}", dim=parts.of))

    def flat(self, value: Extent) -> Extent:
        """The extent in sizes that a call tells."""
        total = Extent(value.const)
        for dim, coefficient in value.terms:
            match dim:
                case Union(parts):
                    one = self.flat(extent(0, *((part, 1) for part in parts)))
                case Atom():
                    known = self.sizes.get(dim)
                    if isinstance(known, Extent):
                        one = self.flat(known)
                    else:
                        one = Extent(known) if known is not None else extent(0, (dim, 1))
                case Parts():
                    one = extent(0, (dim, 1))
                case Part():
                    raise Bug(f"the size of {dim} differs from part to part")
            total = total + one * coefficient
        return total

    def extent(self, value: Extent) -> str:
        """A size as text: a number, a name or a sum."""
        flat = self.flat(value)
        return join_signed([(c, self._size(dim)) for dim, c in flat.terms], flat.const)

    def size(self, dim: Dim) -> str:
        return self.extent(extent(0, (dim, 1)))

    def _size(self, dim: Dim) -> str:
        if isinstance(dim, Parts):
            if dim.level:
                raise Infeasible(f"{dim} does not name the parts of one partition of a dim")
            return self._add(Argument("parts", f"parts_{dim.of}", dim=dim.of))
        return self._add(Argument("size", str(dim), dim=dim))


def is_number(text: str) -> bool:
    """Whether a text is an integer literal."""
    return text.lstrip("-").isdigit()


def bracketed(text: str) -> str:
    """The text as one operand."""
    if text.isidentifier() or is_number(text) or _closed(text):
        return text
    return f"({text})"


def _closed(text: str) -> bool:
    """Whether a text is one bracketed expression or one call."""
    head = text.split("(", 1)[0]
    if not text.endswith(")") or (head and not head.replace(".", "_").isidentifier()):
        return False
    depth = 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == ")" and depth == 0:
            return place == len(text) - 1
    return False


class Scope:
    """What is known at one point of a kernel, and the lines written there."""

    def __init__(
        self, params: Parameters, lanes: Lanes, index_names: Mapping[Index, str], names: Names
    ) -> None:
        self.params, self.lanes, self.index_names, self.names = params, lanes, index_names, names
        self.lines: Lines = []
        self.depth = 0
        self.spans: dict[Index, Span] = {}
        self.values: dict[str, Tile] = {}
        self._shared: dict[str, str] = {}

    def inner(self, names: Names | None = None) -> Scope:
        """The scope of a loop's body, where what `names` has given away is taken too."""
        scope = self.opened((names or self.names).inner())
        scope.depth = self.depth + 1
        scope.spans, scope.values, scope._shared = dict(self.spans), dict(self.values), dict(self._shared)
        return scope

    def opened(self, names: Names) -> Scope:
        """An empty scope of the same kernel."""
        return Scope(self.params, self.lanes, self.index_names, names)

    @property
    def tiles(self) -> dict[Index, int]:
        return {index: span.tile for index, span in self.spans.items()}

    def line(self, wish: str, text: str) -> str:
        """Assign an expression to a fresh name."""
        name = self.names.take(wish)
        self.lines.append(Line(f"{name} = {text}", name))
        return name

    def shared(self, wish: str, text: str) -> str:
        """A name for an expression over things that do not change in this scope, written once."""
        if is_number(text) or text.isidentifier():
            return text
        if text not in self._shared:
            self._shared[text] = self.line(wish, text)
        return self._shared[text]

    def value(self, name: str) -> Tile:
        """A value in scope; its lanes must flatten the same indices as now."""
        if name not in self.values:
            raise Bug(f"a statement reads {name}, which nothing in scope defines")
        tile = self.values[name]
        now = tuple(self.lanes.inside(lane, self.tiles) for lane in tile.lanes)
        if tile.made != now:
            raise Infeasible(
                f"{name} is used in a loop over an index that shares a lane with its own; "
                "give the loop's index a lane of its own"
            )
        return tile

    # ------------------------------------------------------------ blocks

    def shape(self, lanes: Sequence[int]) -> str:
        lengths = self.lanes.shape(lanes, self.tiles)
        return f"({', '.join(map(str, lengths))}{',' if len(lengths) == 1 else ''})"

    def spread(self, text: str, have: Sequence[int], want: Sequence[int]) -> str:
        """A block over some lanes, with axes of length 1 for the others wanted."""
        if tuple(have) == tuple(want) or not have:
            return text
        if not set(have) <= set(want):
            raise Bug(f"{text} varies along a lane that its result lacks")
        pattern = ", ".join(":" if lane in have else "None" for lane in want)
        return f"{bracketed(text)}[{pattern}]"

    def filled(self, text: str, have: Sequence[int], want: Sequence[int]) -> str:
        """A block over all lanes wanted, in full."""
        if tuple(have) == tuple(want):
            return text
        return f"tl.broadcast_to({self.spread(text, have, want)}, {self.shape(want)})"

    def mask(self, indices: Iterable[Index], want: Sequence[int]) -> list[str]:
        """The masks that say which positions lie inside the spans of some indices."""
        found: list[str] = []
        for index in dict.fromkeys(indices):
            span = self.spans[index]
            if span.mask:
                have = (self.lanes.of[index],) if span.tile > 1 else ()
                found.append(self.spread(span.mask, have, want))
        return found

    # ------------------------------------------------------------ indices

    def enter(self, spans: Mapping[Index, Span]) -> None:
        """Bring indices into scope: write their positions, ends and masks."""
        self.spans |= spans
        touched: dict[int, None] = {}
        for index, span in spans.items():
            if span.tile == 1:
                self.spans[index] = self._scalar(index, span)
            else:
                touched[self.lanes.of[index]] = None
        for lane in touched:
            self._positions(lane)

    def _scalar(self, index: Index, span: Span) -> Span:
        end = (
            "1" if is_number(span.start) else self.shared(f"{self.index_names[index]}1", f"{span.start} + 1")
        )
        mask = "" if span.full else f"({span.start} < {span.limit})"
        return replace(span, position=span.start, end=end if span.full else span.limit, mask=mask)

    def block(self, lane: int, length: int) -> str:
        """The numbers of a lane's positions."""
        return f"tl.arange(0, {length})"

    def _positions(self, lane: int) -> None:
        inside = self.lanes.inside(lane, self.tiles)
        length = self.lanes.length(lane, self.tiles)
        block = self.block(lane, length)
        if len(inside) > 1:
            block = self.line("_".join(self.index_names[i] for i in inside), block)
        after, covered, outermost = 1, 1, next(iter(inside))
        for index in inside:
            covered *= self.spans[index].tile
        for index in reversed(inside):
            span, name = self.spans[index], self.index_names[index]
            own = block if after == 1 else f"{block} // {after}"
            if index != outermost:
                own = f"{own} % {span.tile}"
            if span.position:
                name = self.names.take(name)
            self.lines.append(Line(f"{name} = {own if span.start == '0' else f'{span.start} + {own}'}", name))
            padded = index == outermost and length > covered
            self.spans[index] = self._ended(index, span, name, padded)
            after *= span.tile

    def _ended(self, index: Index, span: Span, where: str, padded: bool) -> Span:
        name = self.index_names[index]
        if span.start == "0" and not span.full:
            end = span.limit
        elif span.full:
            end = str(span.tile) if span.start == "0" else f"{span.start} + {span.tile}"
        else:
            end = f"tl.minimum({span.start} + {span.tile}, {span.limit})"
        end = self.shared(f"{name}1", end)
        limit = end if padded else "" if span.full else span.limit
        mask = self.line(f"{name}_in", f"{where} < {limit}") if limit else ""
        return replace(span, position=where, end=end, mask=mask)

    # ------------------------------------------------------------ bounds

    def bound(self, bound: Bound) -> str:
        """A bound of a loop as an expression; numbers are folded."""
        match bound:
            case SizeBound(size):
                return self.params.extent(size)
            case SpanBound(index, end, offset):
                span = self.spans[index]
                return self.plus(span.end if end else span.start, self.params.extent(offset))
            case PartBound(part, end, offset):
                chunk = self.params.chunk(part.dim)
                assert isinstance(part.dim, Parts)
                found = start = self.shared("part_start", f"{self.spans[part].position} * {chunk}")
                if end:
                    stop = f"tl.minimum({start} + {chunk}, {self.params.size(part.dim.of)})"
                    found = self.shared("part_stop", stop)
                return self.plus(found, self.params.extent(offset))
            case AlignBound(inner, tile, up, origin):
                return self._aligned(inner, tile, up, origin)
            case LimitBound(kind, bounds):
                return self._limited(kind, bounds)

    def ends(self, loop: Loop) -> tuple[str, str, bool]:
        """Where a loop starts and stops, as texts, and whether all its tiles are known to be full."""
        name = self.index_names[loop.index]
        start = self.shared(f"{name}_start", self.bound(loop.start))
        stop = self.shared(f"{name}_stop", self.bound(loop.stop))
        full = loop.exact or loop.tile == 1
        if is_number(start) and is_number(stop):
            full = full or (int(stop) - int(start)) % loop.tile == 0
        return start, stop, full

    def limit(self, loop: Loop, stop: str) -> str:
        """Where the last tile of a loop up to `stop` ends, as text. Parts of whole tiles are full but for the
        one that ends with the dim, and behind the dim's end descriptors give 0."""
        if ends_with_dim(loop, self.params.steps):
            return self.params.size(loop.index.dim)
        return stop

    def plus(self, left: str, right: str) -> str:
        """A sum of two texts, the second one a linear one."""
        if is_number(left) and is_number(right):
            return str(int(left) + int(right))
        if right == "0":
            return left
        if left == "0":
            return right
        return f"{left} - {right[1:]}" if right.startswith("-") else f"{left} + {right}"

    def _aligned(self, inner: Bound, tile: int, up: bool, origin: Bound) -> str:
        first, text = self.bound(origin), self.bound(inner)
        gap = text
        if first != "0":
            first = self.shared("origin", first)
            gap = f"{text} - {bracketed(first)}"
        if up:
            gap = self.plus(gap, str(tile - 1))
        if is_number(gap):
            done = str(int(gap) // tile * tile)
        elif isinstance(inner, SizeBound) and first == "0" and _positive(self.params.flat(inner.extent)):
            done = f"{bracketed(gap)} // {tile} * {tile}"
        else:
            done = f"align_down({gap}, {tile})"
        return self.plus(done, first) if is_number(done) and is_number(first) else self.plus(first, done)

    def _limited(self, kind: str, bounds: Sequence[Bound]) -> str:
        texts = list(dict.fromkeys(map(self.bound, bounds)))
        numbers = [int(text) for text in texts if is_number(text)]
        rest = [text for text in texts if not is_number(text)]
        if numbers:
            rest.append(str(min(numbers) if kind == "min" else max(numbers)))
        text = rest[0]
        for other in rest[1:]:
            text = f"tl.{kind}imum({text}, {other})"
        return text


def _positive(value: Extent) -> bool:
    return value.const >= 0 and all(c > 0 for _, c in value.terms)


def tensor_text(tensor: Tensor) -> str:
    """A tensor's dtype and layout, for a comment."""
    axes = ", ".join("*".join(map(str, group)) or "1" for group in tensor.layout)
    return f"{tensor.dtype}[{axes}]" if tensor.role != "scalar" else tensor.dtype
