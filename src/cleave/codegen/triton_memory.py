"""Loads and stores of tiles: index terms as addresses and masks.

An address is the tensor's pointer, plus a scalar, plus one block per lane. The stride of a dim inside an
axis of the caller's tensor is the axis' stride times the sizes of the dims after it. A mask holds what the
term's indices need: their spans where a tile can reach beyond, and the tensor's own bounds where the
load is guarded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from cleave.codegen.triton_maps import TYPES, convert, number
from cleave.codegen.triton_scope import Scope, bracketed, is_number
from cleave.codegen.triton_tiles import Tile
from cleave.errors import Bug, Infeasible
from cleave.ir.dims import Dim, Extent, Gather, Index, Inject, Join, Lookup, Parts, Term, Union, extent
from cleave.schedule.machine import width
from cleave.schedule.tiles import Load, Locate, Store, Tensor


@dataclass(frozen=True, slots=True)
class Addend:
    """`coefficient * text * symbols`, over some lanes; `text` may be `""` for 1."""

    coefficient: int
    text: str
    lanes: tuple[int, ...] = ()
    symbols: tuple[str, ...] = ()

    def times(self, coefficient: int, symbols: Sequence[str] = ()) -> Addend:
        return Addend(self.coefficient * coefficient, self.text, self.lanes, (*self.symbols, *symbols))

    @property
    def product(self) -> str:
        """The text without a leading sign."""
        size = abs(self.coefficient)
        factors = [f for f in (self.text, *self.symbols) if f and f != "1"]
        if size != 1 or not factors:
            factors.append(str(size))
        return " * ".join(factors)


def addends_of(scope: Scope, value: Term, dim: Dim) -> list[Addend]:
    """A term over an axis of `dim` as a sum."""
    found = _extent_addends(scope, value.offset)
    for leaf, coefficient in value.leaves:
        match leaf:
            case Index():
                span = scope.spans[leaf]
                lanes = (scope.lanes.of[leaf],) if span.tile > 1 else ()
                inner = [Addend(1, span.position, lanes)]
            case Lookup(name):
                tile = scope.value(name)
                inner = [Addend(1, tile.text, tile.lanes)]
            case Inject(part, within):
                if not isinstance(dim, Union) or part >= len(dim.parts):
                    raise Bug(f"part {part} of {dim}")
                before = extent(0, *((p, 1) for p in dim.parts[:part]))
                inner = [*_extent_addends(scope, before), *addends_of(scope, within, dim.parts[part])]
            case Join(part, within):
                chunk = scope.params.chunk(Parts(dim))
                inner = [a.times(1, (chunk,)) for a in addends_of(scope, part, Parts(dim))]
                inner += addends_of(scope, within, dim)
            case Gather():
                raise Bug("a term gathers from a node; a tile program looks values up by name")
        found += [a.times(coefficient) for a in inner]
    return _folded(found)


def _extent_addends(scope: Scope, value: Extent) -> list[Addend]:
    flat = scope.params.flat(value)
    found = [Addend(c, scope.params.extent(extent(0, (dim, 1)))) for dim, c in flat.terms]
    return [*found, Addend(flat.const, "")] if flat.const else found


def _folded(addends: Sequence[Addend]) -> list[Addend]:
    """Numbers collected in one addend at the end, zeros dropped."""
    rest: list[Addend] = []
    total = 0
    for addend in addends:
        if not addend.symbols and (not addend.text or is_number(addend.text)):
            total += addend.coefficient * (int(addend.text) if addend.text else 1)
        elif addend.coefficient and addend.text != "0":
            rest.append(addend)
    return [*rest, Addend(total, "")] if total else rest


def sum_of(scope: Scope, addends: Sequence[Addend], want: Sequence[int]) -> str:
    """The sum over some lanes as text."""
    text = ""
    for addend in sorted(addends, key=lambda a: a.coefficient < 0):
        part = scope.spread(addend.product, addend.lanes, want)
        if addend.coefficient < 0:
            text = f"{text} - {part}" if text else f"-{part}"
        else:
            text = f"{text} + {part}" if text else part
    return text or "0"


def lanes_of(addends: Sequence[Addend]) -> tuple[int, ...]:
    return tuple(sorted({lane for a in addends for lane in a.lanes}))


def indices_of_term(scope: Scope, value: Term) -> tuple[Index, ...]:
    """The indices a term depends on, those of looked-up values too, in order."""
    found: dict[Index, None] = {}
    for leaf, _ in value.leaves:
        match leaf:
            case Index():
                found[leaf] = None
            case Lookup(name):
                found.update(dict.fromkeys(scope.value(name).axes))
            case Inject(_, inner):
                found.update(dict.fromkeys(indices_of_term(scope, inner)))
            case Join(part, within):
                both = (*indices_of_term(scope, part), *indices_of_term(scope, within))
                found.update(dict.fromkeys(both))
            case Gather():
                pass
    return tuple(found)


# ---------------------------------------------------------------- addresses


@dataclass(frozen=True, slots=True)
class Place:
    """Where a statement reads or writes: the lanes, the address, and the masks over these lanes."""

    lanes: tuple[int, ...]
    address: str
    masks: list[str]
    indices: tuple[Index, ...]


def place_of(scope: Scope, tensor: Tensor, terms: Sequence[Term], *, guarded: bool) -> Place:
    """The address and the masks of `tensor[terms]`."""
    dims = [(axis, number, dim) for axis, g in enumerate(tensor.layout) for number, dim in enumerate(g)]
    if len(dims) != len(terms):
        raise Bug(f"{len(terms)} terms for the {len(dims)} dims of {tensor.name}")
    total: list[Addend] = []
    checks: list[tuple[list[Addend], Dim, bool]] = []
    indices: dict[Index, None] = {}
    for (axis, number_, dim), value in zip(dims, terms, strict=True):
        addends = addends_of(scope, value, dim)
        indices.update(dict.fromkeys(indices_of_term(scope, value)))
        if guarded and (value.variable is None or value.variable.dim != dim):
            below = any(a.coefficient < 0 for a in addends) or _looks_up(value)
            checks.append((addends, dim, below))
        inner = [scope.params.size(d) for d in tensor.layout[axis][number_ + 1 :]]
        factor = 1
        for size in inner:
            factor *= int(size) if is_number(size) else 1
        symbols = [bracketed(size) for size in inner if not is_number(size)]
        stride = scope.params.stride(tensor.name, axis)
        total += [a.times(factor, (*symbols, stride)) for a in addends]
    lanes = lanes_of(total)
    masks = scope.mask(indices, lanes)
    for addends, dim, below in checks:
        have = lanes_of(addends)
        at = scope.shared(f"{tensor.name}_at", sum_of(scope, addends, have))
        tests = [f"({at} >= 0)"] * below + [f"({at} < {scope.params.size(dim)})"]
        masks += [scope.spread(text, have, lanes) for text in tests]
    return Place(lanes, _address(scope, tensor, total, lanes), masks, tuple(indices))


def _address(scope: Scope, tensor: Tensor, total: Sequence[Addend], lanes: Sequence[int]) -> str:
    text = scope.params.pointer(tensor.name)
    groups: dict[tuple[int, ...], list[Addend]] = {}
    for addend in sorted(total, key=lambda a: (len(a.lanes), a.lanes)):
        groups.setdefault(addend.lanes, []).append(addend)
    for have, group in groups.items():
        part = sum_of(scope, group, have)
        if len(lanes) > 1 and have:
            part = scope.spread(part, have, lanes)
        text += f" - {part[1:]}" if part.startswith("-") and len(group) == 1 else f" + {part}"
    return text


def _looks_up(value: Term) -> bool:
    """Whether a term reads positions from a tensor: nothing is known of their sign."""
    for leaf, _ in value.leaves:
        match leaf:
            case Lookup():
                return True
            case Inject(_, inner) if _looks_up(inner):
                return True
            case Join(part, within) if _looks_up(part) or _looks_up(within):
                return True
            case _:
                pass
    return False


# ---------------------------------------------------------------- statements


def load(scope: Scope, statement: Load, *, again: bool = False) -> Tile:
    """Write a load: one of its own where the same is loaded `again`, which Triton would take for one."""
    tensor = scope.params.tensors[statement.tensor]
    if tensor.role == "scalar":
        kind = "tl.cast({}, {})" if tensor.dtype != "bool" else "{} != 0"
        text = kind.format(scope.params.scalar(tensor.name), TYPES[statement.dtype])
        return Tile(scope.line(statement.out, text), statement.dtype, statement.axes)
    fresh = statement.tensor in scope.params.fresh
    if scope.params.described and not fresh and not again:
        tile = described(scope, statement, tensor)
        if tile is not None:
            return tile
    if fresh and again:
        raise Infeasible(f"{tensor.name} is multiplied and read otherwise in the launch that stores it")
    how = ', cache_modifier=".cg"' if fresh else ', eviction_policy="evict_last"' if again else ""
    return by_pointers(scope, statement, how)


def by_pointers(scope: Scope, statement: Load, how: str = "") -> Tile:
    """Write a load of addresses, with some further arguments as text."""
    tensor = scope.params.tensors[statement.tensor]
    place = place_of(scope, tensor, statement.terms, guarded=statement.guarded)
    text = place.address
    if place.masks:
        other = number(statement.other, statement.dtype)
        text += f", mask={' & '.join(place.masks)}, other={other}"
    made = tuple(scope.lanes.inside(lane, scope.tiles) for lane in place.lanes)
    zero = frozenset(place.indices) if statement.other == 0 else frozenset[Index]()
    name = scope.line(statement.out, f"tl.load({text}{how})")
    return Tile(name, statement.dtype, statement.axes, place.lanes, made, zero)


MOST_IN_BOX, LONGEST_ROW, LEAST_BYTES, MOST_DIMS = 256, 512, 32, 5
"""Limits of a descriptor's block: elements along a dim, and along the last one (which Triton copies in
several pieces), bytes along that, dims."""


def described(scope: Scope, statement: Load, tensor: Tensor) -> Tile | None:
    """Write a load through a tensor descriptor, which copies a whole tile, gives 0 outside the tensor, and
    takes no registers for addresses; None where the tile is not a box of the tensor."""
    # What stays for a whole loop Triton keeps in registers if a descriptor loads it: nothing wide then.
    box = box_of(scope, statement, tensor, LONGEST_ROW if scope.depth else MOST_IN_BOX)
    if box is None:
        return None
    spans = [scope.spans[i] for i in box]
    lanes = list(dict.fromkeys(scope.lanes.of[i] for i, s in zip(box, spans, strict=True) if s.tile > 1))
    block = tuple(span.tile for span in spans)
    starts = ", ".join(span.start if span.tile > 1 else span.position for span in spans)
    text = f"{scope.params.descriptor(tensor.name, block)}.load([{starts}])"
    lengths = tuple(scope.lanes.length(lane, scope.tiles) for lane in lanes)
    if lengths != block:
        text = f"{text}.reshape({lengths})"
    order = tuple(sorted(lanes))
    if tuple(lanes) != order:
        text = f"tl.permute({text}, {tuple(lanes.index(lane) for lane in order)})"
    made = tuple(scope.lanes.inside(lane, scope.tiles) for lane in order)
    # Beyond a span that ends inside the tensor stand the tensor's own values.
    ends = ((i, s, scope.params.size(i.dim)) for i, s in zip(box, spans, strict=True))
    zero = frozenset(i for i, span, size in ends if span.full or span.limit == size)
    return Tile(scope.line(statement.out, text), statement.dtype, statement.axes, order, made, zero)


def box_of(
    scope: Scope, statement: Load, tensor: Tensor, longest: int = MOST_IN_BOX
) -> tuple[Index, ...] | None:
    """The indices of a load, one per dim of the tensor, if it reads a box that a descriptor can copy: plain
    indices, of which those of a lane follow each other and fill it, the last one of at most `longest`
    elements."""
    if statement.other != 0 or tensor.dtype in ("bool", "f64", "i64"):
        return None
    dims = [dim for group in tensor.layout for dim in group]
    found = tuple(term.variable for term in statement.terms)
    if not 2 <= len(dims) <= MOST_DIMS or len(set(found)) < len(found):
        return None
    box = tuple(i for i, dim in zip(found, dims, strict=True) if i is not None and i.dim == dim)
    if len(box) < len(dims):
        return None
    spans = [scope.spans[i] for i in box]
    tiled = [i for i, s in zip(box, spans, strict=True) if s.tile > 1]
    lanes = list(dict.fromkeys(scope.lanes.of[i] for i in tiled))
    whole = [i for lane in lanes for i in scope.lanes.inside(lane, scope.tiles)]
    if len(lanes) < 2 or whole != tiled or box[-1] not in tiled:
        return None
    lengths = [scope.lanes.length(lane, scope.tiles) for lane in lanes]
    if prod(lengths) != prod(s.tile for s in spans) or spans[-1].tile > longest:
        return None
    if any(s.tile > MOST_IN_BOX for s in spans[:-1]):
        return None
    return box if spans[-1].tile * width(tensor.dtype) >= LEAST_BYTES else None


def store(scope: Scope, statement: Store) -> str:
    """The call that stores; the caller puts it where it belongs."""
    tensor = scope.params.tensors[statement.tensor]
    place = place_of(scope, tensor, statement.terms, guarded=False)
    tile = scope.value(statement.value)
    value = convert(tile, scope.spread(tile.text, tile.lanes, place.lanes), tensor.dtype)
    mask = f", mask={' & '.join(place.masks)}" if place.masks else ""
    return f"tl.store({place.address}, {value}{mask})"


def locate(scope: Scope, statement: Locate) -> Tile:
    """Write the position of a term: 64-bit integers stay in the type of indices while they fit."""
    leaf = next((leaf for leaf, _ in statement.term.leaves if isinstance(leaf, Index)), None)
    addends = addends_of(scope, statement.term, leaf.dim if leaf else Union(()))
    lanes = lanes_of(addends)
    text = sum_of(scope, addends, lanes)
    weight = sum(abs(a.coefficient) if a.text and not a.symbols else 1 for a in addends)
    made = tuple(scope.lanes.inside(lane, scope.tiles) for lane in lanes)
    plain = all(isinstance(leaf, Index) for leaf, _ in statement.term.leaves)
    if not (statement.dtype == "i64" and lanes and plain and weight <= 7):
        # A product may pass 2^31 where no position does.
        large = [replace(a, text=f"tl.cast({a.text}, tl.int64)") if a.lanes else a for a in addends]
        text = sum_of(scope, large if weight > 7 else addends, lanes)
        text, weight = f"tl.cast({text}, {TYPES[statement.dtype]})", 0
    elif text.isidentifier():
        return Tile(text, "i64", statement.axes, lanes, made, weight=weight)
    return Tile(scope.line(statement.out, text), statement.dtype, statement.axes, lanes, made, weight=weight)
