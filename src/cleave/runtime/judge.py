"""Is a kernel's result right? A program's meaning on torch tensors, on any device, in float64.

`evaluate` does each operation as it is written, as `cleave.ir.reference` does in NumPy (which tests hold it
to), but fast enough on a GPU for the sizes that are tuned. With `floats=None` every node is rounded to its
own dtype, which shows the error that PyTorch itself would make. `make_inputs` draws arguments for a program,
`error_of` and `allowed` compare.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from cleave.errors import Bug, Infeasible
from cleave.ir.dims import Atom, Dim, Gather, Index, Inject, Join, Lookup, Term, Union, size_of
from cleave.ir.ops import (
    FLOATS,
    Access,
    Cat,
    Const,
    Contract,
    Input,
    Map,
    Node,
    Position,
    Reduce,
    Scalar,
    SizeOf,
)
from cleave.ir.parse import COMPARISONS
from cleave.ir.program import Program, sort_nodes
from cleave.runtime.launch import DTYPES

Value = torch.Tensor | float | int | bool
Outputs = tuple[torch.Tensor, ...]

MOST_BYTES = {"cpu": 1 << 30, "cuda": 40 << 30}
"""What values may take in float64, those that are held at once together."""
MOST_WINDOWS = 64
"""Into so many parts the values are cut at most, if they are more than that."""
ULP = {"f16": 2.0**-10, "bf16": 2.0**-7, "f32": 2.0**-23, "f64": 2.0**-52}
NUMBERS: Mapping[str, Value] = {"f32": 0.7310585786300049, "f64": 0.7310585786300049, "bool": True}


# ---------------------------------------------------------------- arguments


def make_inputs(program: Program, sizes: Mapping[Dim, int], device: str, seed: int = 0) -> list[Value]:
    """Random arguments: normal floats, scaled so that products stay near 1; integers inside what they index;
    scalars a number between 0 and 1 or 2."""
    generator = torch.Generator().manual_seed(seed)
    made: list[Value] = []
    for node in program.inputs:
        if isinstance(node.op, Scalar):
            made.append(NUMBERS.get(node.dtype, 2))
            continue
        assert isinstance(node.op, Input)
        shape = [math.prod(size_of(d, sizes) for d in group) for group in node.op.layout]
        if node.dtype in FLOATS:
            value = _normal(shape, device, generator) * _scale(program, node, sizes)
        elif node.dtype == "bool":
            value = torch.rand(shape, generator=generator) < 0.75
        else:
            low, high = _range(program, node, sizes)
            value = torch.randint(low, max(low + 1, high), shape, generator=generator)
        made.append(value.to(device=device, dtype=DTYPES[node.dtype]))
    return made


def _normal(shape: Sequence[int], device: str, generator: torch.Generator) -> torch.Tensor:
    if device == "cpu" or math.prod(shape) < 1 << 22:
        return torch.randn(shape, generator=generator)
    seed = int(torch.randint(1 << 31, (1,), generator=generator))
    return torch.randn(shape, device=device, generator=torch.Generator(device).manual_seed(seed))


def _scale(program: Program, node: Node, sizes: Mapping[Dim, int]) -> float:
    """The fourth root of the length that an input is contracted over: the product of two has size 1."""
    for user in program.nodes:
        if isinstance(user.op, Contract) and any(_source(a.node) is node for a in user.op.args):
            return max(1, math.prod(size_of(i.dim, sizes) for i in user.bound)) ** -0.25
    return 1.0


def _source(node: Node) -> Node:
    while isinstance(node.op, Map) and node.op.fn in ("cast", "id"):
        node = node.op.args[0].node
    return node


def _range(program: Program, node: Node, sizes: Mapping[Dim, int]) -> tuple[int, int]:
    """What an integer input may hold: positions of the axes that it indexes, or, if it is compared with
    positions, lengths from half of that on; else 0 to 3."""
    highest: list[int] = []
    compared: list[int] = []
    for user in program.nodes:
        for access in user.reads:
            for place, axis in zip(access.terms, access.node.axes, strict=True):
                highest += _gathered(place, node, size_of(axis.dim, sizes))
        if isinstance(user.op, Map) and user.op.fn in COMPARISONS:
            sides = [_source(a.node) for a in user.op.args]
            if node in sides:
                compared += [
                    size_of(i.dim, sizes) for s in sides for i in s.axes if isinstance(s.op, Position)
                ]
    if highest:
        return 0, min(highest)
    return (min(compared) // 2, min(compared) + 1) if compared else (0, 4)


def _gathered(place: Term, node: Node, size: int) -> list[int]:
    """The bound that a term puts on an input it gathers through; 1 where more is added to it."""
    found: list[int] = []
    for leaf, _ in place.leaves:
        if isinstance(leaf, Gather) and _source(leaf.access.node) is node:
            found.append(size if place.leaf is leaf else 1)
    return found


# ---------------------------------------------------------------- meaning


def evaluate(
    program: Program,
    args: Sequence[Value],
    sizes: Mapping[Dim, int],
    floats: torch.dtype | None = torch.float64,
) -> Outputs:
    """The outputs in the caller's layout. `Infeasible` if the values are too many to hold, or if
    there is an operation that is not known here."""
    device = next((a.device for a in args if isinstance(a, torch.Tensor)), torch.device("cpu"))
    order = sort_nodes(o.node for o in program.outputs)
    over = _over_after(program, order)
    windows = _windows(program, order, over, sizes, MOST_BYTES.get(device.type, 1 << 30))
    parts = [_part(program, args, order, over, _Meaning(sizes, floats, device, w)) for w in windows]
    found: list[torch.Tensor] = []
    for place, output in enumerate(program.outputs):
        pieces = [part[place] for part in parts]
        along = windows[0].along(output.node)
        value = pieces[0] if along is None or len(pieces) == 1 else torch.cat(pieces, along)
        shape = [math.prod(value.shape[n] for n in group) for group in output.layout]
        found.append(value.permute([n for group in output.layout for n in group]).reshape(shape))
    return tuple(found)


def _part(
    program: Program,
    args: Sequence[Value],
    order: Sequence[Node],
    over: Mapping[int, Sequence[Node]],
    meaning: _Meaning,
) -> list[torch.Tensor]:
    """The outputs in a window, with the axes of their nodes."""
    for node, value in zip(program.inputs, args, strict=True):
        given = value if isinstance(value, torch.Tensor) else number_tensor(value, meaning.device)
        whole = given.reshape([size_of(d, meaning.sizes) for d in node.dims])
        meaning.values[node] = meaning.window.of(whole, node).to(meaning.dtype(node.dtype))
    with torch.no_grad():
        for place, node in enumerate(order):
            if node not in meaning.values:
                made = meaning.operation(node)
                meaning.values[node] = made.expand([size_of(d, meaning.local) for d in node.dims])
            for old in over.get(place, ()):
                del meaning.values[old]
    return [meaning.values[output.node] for output in program.outputs]


@dataclass(frozen=True, slots=True)
class _Window:
    """Positions `start` to `stop` of a dim; all of all dims without one."""

    dim: Dim | None = None
    start: int = 0
    stop: int = 0

    def along(self, node: Node) -> int | None:
        """The axis of a node that the window cuts."""
        return node.dims.index(self.dim) if self.dim in node.dims else None

    def of(self, value: torch.Tensor, node: Node) -> torch.Tensor:
        """What of a whole value is in the window."""
        along = self.along(node)
        return value if along is None else value.narrow(along, self.start, self.stop - self.start)

    def local(self, sizes: Mapping[Dim, int]) -> Mapping[Dim, int]:
        """Sizes inside the window."""
        return sizes if self.dim is None else {**sizes, self.dim: self.stop - self.start}


def _windows(
    program: Program,
    order: Sequence[Node],
    over: Mapping[int, Sequence[Node]],
    sizes: Mapping[Dim, int],
    limit: int,
) -> list[_Window]:
    """The whole, or as few windows over one dim as it takes for what is held at once to fit."""
    needed = _peak_bytes(order, over, sizes)
    if needed <= limit:
        return [_Window()]
    for share in range(1, MOST_WINDOWS.bit_length()):
        for dim in _cuttable(program):
            step = -(-sizes[dim] // (1 << share))
            if step and _peak_bytes(order, over, {**sizes, dim: step}) <= limit:
                starts = range(0, sizes[dim], step)
                return [_Window(dim, start, min(start + step, sizes[dim])) for start in starts]
    raise Infeasible(f"{needed >> 20} MiB of float64 values are too many to check against")


def _cuttable(program: Program) -> list[Atom]:
    """Dims of which each part of the outputs needs the same part alone: nothing is reduced over them or read
    at other positions than its own."""
    nodes = sort_nodes([*program.inputs, *(o.node for o in program.outputs)])
    barred: set[Dim] = {index.dim for node in nodes for index in node.bound}
    for node in nodes:
        barred |= {dim for dim in node.dims if node.dims.count(dim) > 1}
        barred |= {part for dim in node.dims if isinstance(dim, Union) for part in dim.parts}
        for access in node.reads:
            for place, axis in zip(access.terms, access.node.axes, strict=True):
                if place.variable is None or place.variable.dim != axis.dim:
                    barred.add(axis.dim)
    own = [dim for dim in program.outputs[0].node.dims if isinstance(dim, Atom) and dim not in barred]
    return [dim for dim in own if all(dim in o.node.dims for o in program.outputs)]


def _over_after(program: Program, order: Sequence[Node]) -> dict[int, list[Node]]:
    """Which values nobody reads any more after the node at a place."""
    last: dict[Node, int] = {}
    for place, node in enumerate(order):
        last[node] = place
        last.update((access.node, place) for access in node.reads)
    for output in program.outputs:
        last.pop(output.node, None)
    found: dict[int, list[Node]] = {}
    for node, place in last.items():
        found.setdefault(place, []).append(node)
    return found


def _peak_bytes(order: Sequence[Node], over: Mapping[int, Sequence[Node]], sizes: Mapping[Dim, int]) -> int:
    """The most bytes of values in float64 that are held at once."""
    peak = held = 0
    for place, node in enumerate(order):
        held += 8 * math.prod(size_of(d, sizes) for d in node.dims)
        peak = max(peak, held)
        held -= sum(8 * math.prod(size_of(d, sizes) for d in old.dims) for old in over.get(place, ()))
    return peak


def number_tensor(value: float, device: torch.device) -> torch.Tensor:
    """A number without loss."""
    return torch.tensor(value, device=device, dtype=torch.float64 if isinstance(value, float) else None)


class _Meaning:
    """Values in a window: `sizes` are those of the whole, `local` those of what is held."""

    def __init__(
        self,
        sizes: Mapping[Dim, int],
        floats: torch.dtype | None,
        device: torch.device,
        window: _Window = _Window(),
    ) -> None:
        self.sizes, self.floats, self.device, self.window = sizes, floats, device, window
        self.local = window.local(sizes)
        self.values: dict[Node, torch.Tensor] = {}

    def dtype(self, name: str) -> torch.dtype:
        return self.floats if self.floats is not None and name in FLOATS else DTYPES[name]

    # ------------------------------------------------------------ reading

    def read(self, access: Access, space: Sequence[Index]) -> torch.Tensor:
        """An access for all values of the indices: one axis per index, of size 1 where it is not used."""
        value = self.values[access.node]
        order = [t.variable for t in access.terms]
        plain = [i for i in order if i is not None]
        fits = all(
            i is not None and size_of(i.dim, self.local) == n for i, n in zip(order, value.shape, strict=True)
        )
        if fits and len(set(plain)) == len(order):
            places = [space.index(i) for i in plain]
            inner = value.permute(sorted(range(len(places)), key=places.__getitem__))
            for place in range(len(space)):
                if place not in places:
                    inner = inner.unsqueeze(place)
            return inner
        where = [
            (self.position(t, space, axis.dim) - self.before(axis.dim)).clamp(0, max(0, n - 1))
            for t, axis, n in zip(access.terms, access.node.axes, value.shape, strict=True)
        ]
        if 0 in value.shape:
            shape = torch.broadcast_shapes(*(w.shape for w in where))
            return torch.zeros(shape, dtype=value.dtype, device=self.device)
        return value[tuple(where)] if where else value.reshape([1] * len(space))

    def before(self, dim: Dim | None) -> int:
        """Positions of a dim that come before those that are held."""
        return self.window.start if dim is not None and dim == self.window.dim else 0

    def position(self, term: Term, space: Sequence[Index], dim: Dim | None) -> torch.Tensor:
        total = torch.full(
            [1] * len(space), term.offset.at(self.sizes), dtype=torch.int64, device=self.device
        )
        for leaf, factor in term.leaves:
            match leaf:
                case Index():
                    size, first = size_of(leaf.dim, self.local), self.before(leaf.dim)
                    shape = [size if i == leaf else 1 for i in space]
                    value = torch.arange(first, first + size, device=self.device).reshape(shape)
                case Gather(access):
                    value = self.read(access, space).long()
                case Inject(part, inner):
                    assert isinstance(dim, Union)
                    before = sum(size_of(d, self.sizes) for d in dim.parts[:part])
                    value = before + self.position(inner, space, dim.parts[part])
                case Join() | Lookup():
                    raise Bug(f"a user's program reads at {leaf}")
            total = total + factor * value
        return total

    # ------------------------------------------------------------ operations

    def operation(self, node: Node) -> torch.Tensor:
        target = self.dtype(node.dtype)
        space = (*node.axes, *node.bound)
        match node.op:
            case Const(value):
                exact = float(value) if isinstance(value, Fraction) else value
                return number_tensor(exact, self.device).to(target).reshape([1] * len(space))
            case SizeOf(dim):
                return torch.tensor(size_of(dim, self.sizes), device=self.device).to(target)
            case Position(term):
                return self.position(term, space, None).to(target)
            case Map(fn, args):
                return self._map(fn, [self.read(a, space) for a in args], node, target)
            case Reduce(kind, bound, arg):
                value = self.read(arg, space)
                shape = [*value.shape[: len(node.axes)], *(size_of(i.dim, self.local) for i in bound)]
                return _reduce(kind, value.expand(shape), len(node.axes), target)
            case Contract(_, args):
                return self._contract([self.read(a, space).to(target) for a in args], node)
            case Cat(axis, pieces):
                return self._cat(node, axis, pieces, target)
            case _:
                raise Infeasible(f"{type(node.op).__name__} is not computed here")

    def _map(self, fn: str, args: list[torch.Tensor], node: Node, target: torch.dtype) -> torch.Tensor:
        if fn == "select":
            return torch.where(args[0] != 0, args[1].to(target), args[2].to(target))
        if fn in ("cast", "id"):
            return args[0].to(target)
        if fn == "isnan":
            return torch.isnan(args[0]).to(target)
        if fn in COMPARISONS:
            return getattr(torch, fn)(*args).to(target)
        if fn not in _POINTWISE:
            raise Infeasible(f"{fn} is not computed here")
        floating = fn in _FLOATING and not target.is_floating_point
        work = torch.float64 if floating else target
        return _POINTWISE[fn](*(a.to(work) for a in args)).to(target)

    def _contract(self, values: list[torch.Tensor], node: Node) -> torch.Tensor:
        count = len(node.axes)
        for number, index in enumerate(node.bound):  # an operand that lacks it is summed with it all the same
            if all(v.shape[count + number] == 1 for v in values):
                shape = list(values[0].shape)
                shape[count + number] = size_of(index.dim, self.local)
                values[0] = values[0].expand(shape)
        operands: list[Any] = []
        used: set[int] = set()
        for value in values:
            mine = [d for d in range(value.dim()) if value.shape[d] != 1]
            used.update(mine)
            operands += [value.reshape([value.shape[d] for d in mine]), mine]
        left = [d for d in range(count) if d in used]
        result = torch.einsum(*operands, left)
        return result.reshape(
            [size_of(node.axes[d].dim, self.local) if d in used else 1 for d in range(count)]
        )

    def _cat(self, node: Node, axis: int, pieces: Sequence[Access], target: torch.dtype) -> torch.Tensor:
        dim = node.axes[axis].dim
        assert isinstance(dim, Union)
        found: list[torch.Tensor] = []
        for part, piece in zip(dim.parts, pieces, strict=True):
            space = [Index(part, axis) if n == axis else i for n, i in enumerate(node.axes)]
            shape = [size_of(i.dim, self.local) for i in space]
            found.append(self.read(piece, space).to(target).expand(shape))
        return torch.cat(found, axis)


def _reduce(kind: str, value: torch.Tensor, first: int, target: torch.dtype) -> torch.Tensor:
    value = value.bool() if kind in ("any", "all") else value.to(target)
    shape = value.shape[:first]
    flat = value.reshape(*shape, math.prod(value.shape[first:]))
    if kind == "sum":
        return flat.sum(-1).to(target)
    if kind == "prod":
        return flat.prod(-1).to(target)
    if kind in ("any", "all"):
        return getattr(flat, kind)(-1).to(target)
    if flat.shape[-1]:
        return (flat.amax(-1) if kind == "max" else flat.amin(-1)).to(target)
    empty = math.inf if target.is_floating_point else torch.iinfo(target).max
    return torch.full(shape, -empty if kind == "max" else empty, device=value.device).to(target)


def _sign(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.isnan(x), 0, torch.sign(x)) if x.is_floating_point() else torch.sign(x)


def _not(x: torch.Tensor) -> torch.Tensor:
    return torch.logical_not(x).to(x.dtype) if x.dtype == torch.bool or x.is_floating_point() else ~x


_FLOATING = (
    "exp", "exp2", "log", "sqrt", "rsqrt", "reciprocal", "tanh", "tanh_coarse", "erf", "sin", "cos", "div",
)  # fmt: skip
_POINTWISE: Mapping[str, Callable[..., torch.Tensor]] = {
    "neg": torch.neg, "exp": torch.exp, "exp2": torch.exp2, "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal, "abs": torch.abs, "tanh": torch.tanh, "tanh_coarse": torch.tanh,
    "erf": torch.erf, "sin": torch.sin,
    "cos": torch.cos, "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc,
    "sign": _sign, "not": _not, "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "pow": torch.pow, "max": torch.maximum, "min": torch.minimum, "floordiv": torch.floor_divide,
    "mod": torch.remainder, "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor,
}  # fmt: skip


# ---------------------------------------------------------------- comparing


def error_of(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> float:
    """The largest relative error of a row over all outputs (absolute where the row is tiny); inf where a
    result is NaN or infinite and the wanted one is not, or has another shape."""
    return max((_row_error(y, ref) for y, ref in zip(found, wanted, strict=True)), default=0.0)


def _row_error(value: torch.Tensor, wanted: torch.Tensor) -> float:
    if value.shape != wanted.shape:
        return math.inf
    if not value.numel():
        return 0.0
    y, ref = value.double(), wanted.to(value.device).double()
    same = (y == ref) | (torch.isnan(y) & torch.isnan(ref))
    if bool((~torch.isfinite(y) & ~same).any()):
        return math.inf
    gap = torch.where(same, 0.0, y - ref)
    ref = torch.where(torch.isfinite(ref), ref, 0.0)
    gap, ref = (t.reshape(-1, t.shape[-1]) if t.dim() else t.reshape(1, 1) for t in (gap, ref))
    least = 1e-6 * math.sqrt(ref.shape[-1])
    return float((gap.norm(dim=-1) / ref.norm(dim=-1).clamp_min(least)).max())


def allowed(own: float, program: Program, length: int) -> float:
    """The error that is still right: one and a half times that of doing each step in its own dtype, or some
    units in the last place of the widest-rounded output."""
    last = max((ULP.get(o.node.dtype, 0.0) for o in program.outputs), default=0.0)
    floor = 2 * last if last > ULP["f32"] else 4 * last * math.sqrt(max(1, length))
    return max(1.5 * own, floor)


__all__ = ["NUMBERS", "allowed", "error_of", "evaluate", "make_inputs"]
