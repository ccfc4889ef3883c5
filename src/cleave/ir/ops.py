"""Operations and nodes: the frozen, interned expressions a program is made of (design.md, section 2).

A node defines one tensor, element by element: its `axes` are index variables, and its operation says the
value at those indices from *accesses* to other nodes. Transposes, slices, broadcasts, diagonals and
gathers are therefore accesses, not operations. Axes are positional: `axes[k].number == k`, and bound
indices are numbered after the axes, so that two nodes that differ in the names of their indices are one
object. Equality is identity; build nodes only with the functions at the end of this file.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from cleave.errors import Bug
from cleave.ir.dims import Atom, Dim, Index, Term, Union, indices_of, substitute, term_key, var
from cleave.ir.interning import Interned

if TYPE_CHECKING:
    from cleave.ir.program import Program

FLOATS = ("f64", "f32", "f16", "bf16")
INTEGERS = ("i64", "i32", "i16", "i8", "u8")
DTYPES = (*FLOATS, *INTEGERS, "bool")

Number = bool | int | float | Fraction
"""A constant: exact where it can be; `math.inf`, `-math.inf` and `math.nan` are floats."""

MAPS: dict[str, int] = {
    "id": 1, "cast": 1, "neg": 1, "exp": 1, "exp2": 1, "log": 1, "sqrt": 1, "rsqrt": 1, "reciprocal": 1,
    "abs": 1, "tanh": 1, "tanh_coarse": 1, "erf": 1, "sin": 1, "cos": 1, "floor": 1, "ceil": 1, "round": 1,
    "trunc": 1, "sign": 1, "not": 1, "isnan": 1, "add": 2, "sub": 2, "mul": 2, "div": 2, "pow": 2, "max": 2,
    "min": 2, "floordiv": 2, "mod": 2, "and": 2, "or": 2, "xor": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2, "eq":
    2, "ne": 2, "shl": 2, "shr": 2, "select": 3, "fma": 3,
}  # fmt: skip
"""Pointwise operations and how many arguments each takes. `select(p, a, b)` is `a` where `p` holds;
`fma(a, b, c)` is `a b + c`, rounded once (`fma` and `exp2` are written by the scheduler, never captured).
`tanh_coarse` is `tanh` within a relative error of `COARSE_ERROR`, odd, at most 1 in size, exact at 0 and the
infinities (written by the precision pass, never captured).
`max` and `min` pass NaN on; `round` rounds half to even; `cast` converts to the node's dtype. Integers wrap;
`shl` and `shr` shift them by 0 to the width less one, `shr` keeping the sign."""

COARSE_ERROR = 2.0**-10.9
"""The relative error that coarse functions may have. A float16 is within 2^-11 of what it rounds, a bfloat16
within 2^-9; `tanh.approx.f32` of NVIDIA's GPUs is within 2^-11 (PTX ISA)."""

REDUCTIONS = ("sum", "max", "min", "prod", "any", "all")


@dataclass(frozen=True, slots=True)
class Access:
    """A node read at one term per axis."""

    node: Node
    terms: tuple[Term, ...]

    def at(self, replacement: Mapping[Index, Term]) -> Access:
        """The same access with indices replaced by terms."""
        return Access(self.node, tuple(substitute(t, replacement) for t in self.terms))

    @property
    def indices(self) -> frozenset[Index]:
        return frozenset(i for t in self.terms for i in indices_of(t))


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor argument. `layout` has one entry per axis of the caller's tensor: the dims whose product
    that axis is, outermost first (`()` is an axis of size 1). The node's axes are these dims in order."""

    name: str
    layout: tuple[tuple[Dim, ...], ...]


@dataclass(frozen=True, slots=True)
class Scalar:
    """A Python number given at each call: never part of the program."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """A literal."""

    value: Number


@dataclass(frozen=True, slots=True)
class SizeOf:
    """The size of a dim, as a value."""

    dim: Dim


@dataclass(frozen=True, slots=True)
class Position:
    """The value of an index term, as an integer (`index(i)` in design.md)."""

    term: Term


@dataclass(frozen=True, slots=True)
class Map:
    """A pointwise operation (`MAPS`); arguments broadcast through their terms."""

    fn: str
    args: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction (`REDUCTIONS`) of one access over bound indices. Over nothing: 0 for sum, -inf for max."""

    kind: str
    bound: tuple[Index, ...]
    arg: Access


@dataclass(frozen=True, slots=True)
class Contract:
    """A sum over bound indices of a product of two or more accesses: what matrix units compute."""

    bound: tuple[Index, ...]
    args: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class Cat:
    """Concatenation along axis number `axis`, whose dim is a `Union`: piece `p` is read with that axis'
    index replaced by `Index(union.parts[p], axis)`."""

    axis: int
    pieces: tuple[Access, ...]


@dataclass(frozen=True, slots=True)
class Scan:
    """Result number `result` of a loop with carried state: `body` runs once for each position of `over`, in
    order. Its inputs are first the `states`, then what a step reads; its outputs are the next states, then
    what a step hands out. Input number k is, at first (states) or at each step, `args[k]`: an access whose
    indices are the input's own axes and, numbered behind them, the position in `over` (not in states).
    Results up to `states` are the states after the last step, the others have `over` as their first axis.

    A body has inputs without products of dims, no run-time scalars and no known sizes: those that it reads
    are inputs, sizes stand in the program around it. See `loops.py`."""

    over: Dim
    body: Program
    states: int
    args: tuple[Access, ...]
    result: int


Op = Input | Scalar | Const | SizeOf | Position | Map | Reduce | Contract | Cat | Scan


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Node:
    """One tensor of a program: interned, so equality is identity."""

    op: Op
    axes: tuple[Index, ...]
    dtype: str
    digest: str

    @property
    def dims(self) -> tuple[Dim, ...]:
        return tuple(axis.dim for axis in self.axes)

    @property
    def bound(self) -> tuple[Index, ...]:
        """The indices that the operation binds (empty for all but reductions)."""
        return self.op.bound if isinstance(self.op, Reduce | Contract) else ()

    @property
    def args(self) -> tuple[Access, ...]:
        """All accesses in order, gathers inside terms not included (see `reads`)."""
        match self.op:
            case Map(_, args) | Contract(_, args):
                return args
            case Reduce(_, _, arg):
                return (arg,)
            case Cat(_, pieces):
                return pieces
            case Scan(args=args):
                return args
            case _:
                return ()

    @property
    def reads(self) -> tuple[Access, ...]:
        """All accesses, those inside gathers too."""
        known = _READS.get(self)
        if known is not None:
            return known
        found: list[Access] = []
        stack = [*(t for a in self.args for t in a.terms)]
        found += self.args
        if isinstance(self.op, Position):
            stack.append(self.op.term)
        while stack:
            for inner in _gathers(stack.pop()):
                found.append(inner)
                stack += inner.terms
        known = _READS[self] = tuple(found)
        return known

    def __call__(self, *where: Term | Index) -> Access:
        """Read this node: one term, or an index, per axis."""
        return Access(self, tuple(var(w) if isinstance(w, Index) else w for w in where))

    def read(self) -> Access:
        """Read this node at its own axes."""
        return self(*self.axes)


NODES: Interned[Node] = Interned()
"""Every node that there is, by its digest."""
_READS: WeakKeyDictionary[Node, tuple[Access, ...]] = WeakKeyDictionary()


def input_node(name: str, layout: Sequence[Sequence[Dim]], dtype: str) -> Node:
    """A tensor argument; see `Input`."""
    groups = tuple(tuple(group) for group in layout)
    dims = [dim for group in groups for dim in group]
    axes = tuple(Index(dim, number) for number, dim in enumerate(dims))
    return _intern(Input(name, groups), axes, dtype)


def scalar_node(name: str, dtype: str) -> Node:
    """A Python number given at each call."""
    return _intern(Scalar(name), (), dtype)


def const(value: Number, dtype: str = "f32") -> Access:
    """A literal, read."""
    return _intern(Const(value), (), dtype).read()


def size(dim: Dim, dtype: str = "i64") -> Access:
    """The size of a dim, read."""
    return _intern(SizeOf(dim), (), dtype).read()


def position(axes: Sequence[Index], value: Term | Index, dtype: str = "i64") -> Node:
    """The value of an index term over the given axes."""
    return make_node(Position(var(value) if isinstance(value, Index) else value), axes, dtype)


def map_node(fn: str, axes: Sequence[Index], args: Sequence[Access], dtype: str) -> Node:
    """A pointwise operation over the given axes."""
    return make_node(Map(fn, tuple(args)), axes, dtype)


def reduce_node(kind: str, axes: Sequence[Index], bound: Sequence[Index], arg: Access, dtype: str) -> Node:
    """A reduction over `bound`, leaving `axes`."""
    return make_node(Reduce(kind, tuple(bound), arg), axes, dtype)


def contract_node(axes: Sequence[Index], bound: Sequence[Index], args: Sequence[Access], dtype: str) -> Node:
    """A sum over `bound` of the product of `args`, leaving `axes`."""
    return make_node(Contract(tuple(bound), tuple(args)), axes, dtype)


def cat_node(axes: Sequence[Index], axis: int, pieces: Sequence[Access], dtype: str) -> Node:
    """A concatenation; `pieces[p]` reads `Index(axes[axis].dim.parts[p], axes[axis].number)`."""
    return make_node(Cat(axis, tuple(pieces)), axes, dtype)


def rebuild(node: Node, args: Sequence[Access]) -> Node:
    """The same operation over other arguments (same axes, bound indices and dtype)."""
    match node.op:
        case Map(fn, _):
            op: Op = Map(fn, tuple(args))
        case Reduce(kind, bound, _):
            op = Reduce(kind, bound, args[0])
        case Contract(bound, _):
            op = Contract(bound, tuple(args))
        case Cat(axis, _):
            op = Cat(axis, tuple(args))
        case Scan(over, body, states, _, result):
            op = Scan(over, body, states, tuple(args), result)
        case _:
            return node
    return make_node(op, node.axes, node.dtype)


def make_node(op: Op, axes: Sequence[Index], dtype: str) -> Node:
    """The node of an operation over any distinct indices: axes and bound indices are renumbered canonically,
    the node is checked and interned. `Bug` if it is not well formed."""
    old = (*axes, *(op.bound if isinstance(op, Reduce | Contract) else ()))
    if len(set(old)) != len(old):
        raise Bug(f"an index is used for two axes of one node: {', '.join(map(str, old))}")
    new = tuple(Index(index.dim, number) for number, index in enumerate(old))
    replacement = {o: var(n) for o, n in zip(old, new, strict=True)}
    bound = new[len(axes) :]
    match op:
        case Position(value):
            op = Position(substitute(value, replacement))
        case Map(fn, args):
            op = Map(fn, tuple(a.at(replacement) for a in args))
        case Reduce(kind, _, arg):
            op = Reduce(kind, bound, arg.at(replacement))
        case Contract(_, args):
            op = Contract(bound, tuple(a.at(replacement) for a in args))
        case Cat(axis, pieces):
            op = Cat(axis, tuple(_cat_piece(old, axis, p, a, replacement) for p, a in enumerate(pieces)))
        case _:
            pass
    return _intern(op, new[: len(axes)], dtype)


def _cat_piece(
    old: Sequence[Index], axis: int, number: int, piece: Access, replacement: Mapping[Index, Term]
) -> Access:
    dim = old[axis].dim
    if not isinstance(dim, Union) or number >= len(dim.parts):
        raise Bug(f"concatenation along {dim} with a piece number {number}")
    own = Index(dim.parts[number], old[axis].number)
    return piece.at({**replacement, own: var(Index(own.dim, axis))})


def _intern(op: Op, axes: tuple[Index, ...], dtype: str) -> Node:
    text = f"{_op_key(op)}@{','.join(str(a.dim) for a in axes)}:{dtype}"
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    node = NODES.get(digest)
    if node is None:
        node = Node(op, axes, dtype, digest)
        _verify(node)
        node = NODES.add(digest, node)
    return node


def _op_key(op: Op) -> str:
    match op:
        case Input(name, layout):
            return f"input {name} {[[str(d) for d in group] for group in layout]}"
        case Scalar(name):
            return f"scalar {name}"
        case Const(value):
            return f"const {number_key(value)}"
        case SizeOf(dim):
            return f"size {dim}"
        case Position(value):
            return f"position {term_key(value)}"
        case Map(fn, args):
            return f"map {fn} {_accesses_key(args)}"
        case Reduce(kind, bound, arg):
            return f"reduce {kind} {[str(i) for i in bound]} {_accesses_key((arg,))}"
        case Contract(bound, args):
            return f"contract {[str(i) for i in bound]} {_accesses_key(args)}"
        case Cat(axis, pieces):
            return f"cat {axis} {_accesses_key(pieces)}"
        case Scan(over, body, states, args, result):
            return f"scan {over} {_body_key(body)} {states} {_accesses_key(args)} {result}"


def _body_key(body: Program) -> str:
    inputs = ",".join(node.digest for node in body.inputs)
    outputs = ",".join(f"{o.name!r} {o.node.digest} {o.layout}" for o in body.outputs)
    return f"{body.name!r} ({inputs}) ({outputs})"


def _accesses_key(accesses: Sequence[Access]) -> str:
    return ";".join(f"{a.node.digest}[{','.join(map(term_key, a.terms))}]" for a in accesses)


def number_key(value: Number) -> str:
    """What makes two constants the same constant: 1, 1.0 and True differ, 0.0 and -0.0 too."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else f"float {struct.pack('>d', value).hex()}"
    return f"{type(value).__name__} {value}"


def _verify(node: Node) -> None:
    """Raise `Bug` unless the node is well formed."""
    if node.dtype not in DTYPES:
        raise Bug(f"unknown dtype {node.dtype!r}")
    op = node.op
    known = {*node.axes, *node.bound}
    if isinstance(op, Map) and MAPS.get(op.fn) != len(op.args):
        raise Bug(f"{op.fn} with {len(op.args)} arguments")
    if isinstance(op, Reduce) and op.kind not in REDUCTIONS:
        raise Bug(f"unknown reduction {op.kind!r}")
    if isinstance(op, Contract) and len(op.args) < 2:
        raise Bug("a contraction needs two operands or more")
    if isinstance(op, Cat):
        axis = node.axes[op.axis]
        assert isinstance(axis.dim, Union)
        known |= {Index(part, op.axis) for part in axis.dim.parts}
    for access in node.reads:
        if len(access.terms) != len(access.node.axes):
            raise Bug(f"{len(access.terms)} terms for {len(access.node.axes)} axes")
    if isinstance(op, Scan):
        _verify_scan(node, op)
        return
    used = {i for a in node.args for i in a.indices}
    if isinstance(op, Position):
        used |= indices_of(op.term)
    if not used <= known:
        raise Bug(f"indices that nothing binds: {sorted(map(str, used - known))}")


def _verify_scan(node: Node, op: Scan) -> None:
    """A loop's arguments use the axes of the body's inputs, and hand the states on as they came in."""
    inputs, outputs = op.body.inputs, op.body.outputs
    if op.body.sizes or not all(
        isinstance(i.op, Input) and all(len(g) == 1 for g in i.op.layout) for i in inputs
    ):
        raise Bug(f"the body {op.body.name} of a scan has run-time scalars, products of dims or known sizes")
    if len(op.args) != len(inputs) or not 0 <= op.states <= min(len(inputs), len(outputs)):
        raise Bug(
            f"{op.states} states and {len(op.args)} arguments for {len(inputs)} inputs of a scan's body"
        )
    for number, (given, access) in enumerate(zip(inputs, op.args, strict=True)):
        known = {*given.axes} if number < op.states else {*given.axes, Index(op.over, len(given.axes))}
        if not access.indices <= known:
            raise Bug(f"input {number} of a scan's body is read at indices that it lacks")
    for given, output in zip(inputs[: op.states], outputs, strict=False):
        if (output.node.dims, output.node.dtype) != (given.dims, given.dtype):
            before, after = f"{given.dtype} over {given.dims}", f"{output.node.dtype} over {output.node.dims}"
            raise Bug(f"the state {output.name} of a scan is {before} before a step, and {after} after it")
    if not 0 <= op.result < len(outputs):
        raise Bug(f"result {op.result} of a scan whose body has {len(outputs)} outputs")
    own = outputs[op.result].node
    dims = own.dims if op.result < op.states else (op.over, *own.dims)
    if (node.dims, node.dtype) != (dims, own.dtype):
        raise Bug(f"result {op.result} of a scan is {own.dtype} over {dims}")


def _gathers(value: Term) -> list[Access]:
    from cleave.ir.dims import Gather, Inject, Join

    found: list[Access] = []
    for leaf, _ in value.leaves:
        match leaf:
            case Gather(access):
                found.append(access)
            case Inject(_, inner):
                found += _gathers(inner)
            case Join(part, within):
                found += _gathers(part) + _gathers(within)
            case _:
                pass
    return found


__all__ = [
    "COARSE_ERROR", "DTYPES", "FLOATS", "INTEGERS", "MAPS", "REDUCTIONS", "Access", "Atom", "Cat", "Const",
    "Contract", "Input", "Map", "Node", "Number", "Op", "Position", "Reduce", "Scalar", "Scan", "SizeOf",
    "cat_node", "const", "contract_node", "input_node", "make_node", "map_node", "number_key", "position",
    "rebuild", "reduce_node", "scalar_node", "size",
]  # fmt: skip
