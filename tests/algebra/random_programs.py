"""Random small programs from a grammar with masks, unions, maxima, powers, partitions, gathers, shifts,
one-hot sums, cascades of reductions and square arrays."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

from cleave.ir.dims import Atom, Dim, Gather, Index, Join, Part, Parts, Term, Union, extent, term, var
from cleave.ir.ops import (
    Access,
    Node,
    cat_node,
    const,
    contract_node,
    input_node,
    map_node,
    position,
    reduce_node,
    scalar_node,
    size,
)  # fmt: skip
from cleave.ir.program import Output, Program

A, B = Atom("A"), Atom("B")
AB = Union((A, B))
INPUTS = (
    input_node("x", [[A], [B]], "f32"),
    input_node("a", [[A], [A]], "f32"),
    input_node("y", [[B]], "f32"),
    input_node("u", [[AB]], "f32"),
    input_node("g", [[A], [B]], "bool"),
    scalar_node("c", "f32"),
    input_node("t", [[B]], "i64"),
)
WHERE = INPUTS[-1]
"""Positions in `A`, one for each `B`."""
DIMS: tuple[Dim, ...] = (A, A, B, B, AB)
KINDS = ("map",) * 8 + ("reduce",) * 5 + (
    "contract", "contract", "select", "select", "mask", "mask", "cat", "part", "gather", "shift", "hot",
    "cascade", "cascade", "causal", "mean",
)  # fmt: skip
INFINITE = ("map",) * 8 + ("part",) * 6 + ("mask",) * 2 + ("select",) * 4 + ("reduce",) * 3 + (
    "contract", "cascade", "hot", "mean", "log", "log",
)  # fmt: skip
"""Kinds of values among which many are infinite: maxima of parts that may be empty, masks, logs of 0."""


class Drawn:
    """A program that grows one random value at a time."""

    def __init__(self, seed: int | str, kinds: Sequence[str] = KINDS) -> None:
        self.rng = random.Random(seed)
        self.kinds = kinds
        self.nodes: list[Node] = [n for n in INPUTS if n.dtype == "f32"]
        self.truths: list[Node] = [INPUTS[4]]

    def program(self, length: int) -> Program:
        for _ in range(length):
            self.grow()
        nodes = [self.nodes[-1]]
        if self.rng.random() < 0.2:
            nodes.append(self._pick())
        outputs = [Output(f"z{k}", n, tuple((i,) for i in range(len(n.axes)))) for k, n in enumerate(nodes)]
        return Program("p", INPUTS, tuple(outputs))

    def grow(self) -> None:
        node = getattr(self, "_" + self.rng.choice(self.kinds))()
        (self.truths if node.dtype == "bool" else self.nodes).append(node)

    def _axes(self, count: int) -> tuple[Index, ...]:
        dims = [self.rng.choice(DIMS) for _ in range(count)]
        return tuple(Index(d, n) for n, d in enumerate(dims))

    def _pick(self) -> Node:
        return self.rng.choice(self.nodes[-6:] + self.nodes)

    def _read(self, node: Node, scope: Sequence[Index]) -> Access:
        return Access(node, tuple(self._term(axis.dim, scope) for axis in node.axes))

    def _term(self, dim: Dim, scope: Sequence[Index]) -> Term:
        found = [var(i) for i in scope if i.dim == dim]
        if dim == AB:
            found += [var(i) for i in scope if i.dim == A]
            found += [term((i, 1), offset=extent(0, (A, 1))) for i in scope if i.dim == B]
        return self.rng.choice(found) if found else term()

    def _const(self) -> Access:
        return const(self.rng.choice((0.0, 1.0, 2.0, -1.0, 0.5, -3.0)))

    def _argument(self, scope: Sequence[Index]) -> Access:
        if self.rng.random() < 0.12:
            return self._const()
        if self.rng.random() < 0.06:
            return size(self.rng.choice((A, B, AB)))
        return self._read(self._pick(), scope)

    def _map(self) -> Node:
        axes = self._axes(self.rng.choice((0, 1, 1, 2, 2)))
        one = ("neg", "exp", "exp", "log", "sqrt", "rsqrt", "reciprocal", "abs", "tanh")
        two = ("add", "sub", "mul", "mul", "div", "div", "max", "min")
        if self.rng.random() < 0.1:
            power = self.rng.choice((2.0, 0.5, -1.0, -2.0, 3.0, 1.5, Fraction(1, 3)))
            return map_node("pow", axes, [self._read(self._pick(), axes), const(float(power))], "f32")
        fn = self.rng.choice(one + two + two)
        return map_node(fn, axes, [self._argument(axes) for _ in range(2 if fn in two else 1)], "f32")

    def _reduce(self) -> Node:
        axes = self._axes(self.rng.choice((0, 1, 1, 2)))
        bound = self._bound(axes, self.rng.choice((1, 1, 2)))
        kind = self.rng.choice(("sum", "sum", "max", "min"))
        return reduce_node(kind, axes, bound, self._read(self._pick(), (*bound, *axes)), "f32")

    def _bound(self, axes: Sequence[Index], count: int) -> tuple[Index, ...]:
        return tuple(Index(self.rng.choice(DIMS), len(axes) + n) for n in range(count))

    def _contract(self) -> Node:
        axes = self._axes(self.rng.choice((0, 1, 2)))
        bound = self._bound(axes, 1)
        args = [self._read(self._pick(), (*bound, *axes)) for _ in range(2)]
        return contract_node(axes, bound, args, "f32")

    def _mask(self) -> Node:
        axes = self._axes(2)
        fn = self.rng.choice(("lt", "le", "gt", "ge", "eq", "ne"))
        if self.rng.random() < 0.6:
            shift = self.rng.choice((-1, 0, 0, 1))
            args = [position(axes, term((axes[0], 1), offset=shift)).read(), position(axes, axes[1]).read()]
            return map_node(fn, axes, args, "bool")
        if self.rng.random() < 0.3:
            reads = [self._read(self.rng.choice(self.truths), axes) for _ in range(2)]
            return map_node(self.rng.choice(("and", "or", "xor")), axes, reads, "bool")
        if self.rng.random() < 0.3:
            bound = self._bound(axes, 1)
            read = self._read(self.rng.choice(self.truths), (*bound, *axes))
            return reduce_node(self.rng.choice(("any", "all")), axes, bound, read, "bool")
        return map_node(fn, axes, [self._argument(axes), self._argument(axes)], "bool")

    def _select(self) -> Node:
        axes = self._axes(2)
        where = self._read(self.rng.choice(self.truths), axes)
        other = const(float("-inf")) if self.rng.random() < 0.4 else self._argument(axes)
        return map_node("select", axes, [where, self._argument(axes), other], "f32")

    def _log(self) -> Node:
        """The log of a sum of what a mask may leave nothing of."""
        axes = self._axes(1)
        bound = self._bound(axes, 1)
        where = self._read(self.rng.choice(self.truths), (*bound, *axes))
        value = map_node("exp", (*axes, *bound), [self._argument((*bound, *axes))], "f32")
        kept = map_node("select", (*axes, *bound), [where, value.read(), const(0.0)], "f32")
        total = reduce_node("sum", axes, bound, kept.read(), "f32")
        return map_node("log", axes, [total.read()], "f32")

    def _cat(self) -> Node:
        other = self._axes(self.rng.choice((0, 1)))
        axes = (Index(AB, 0), *(Index(i.dim, n + 1) for n, i in enumerate(other)))
        pieces = [self._read(self._pick(), (Index(part, 0), *axes[1:])) for part in (A, B)]
        return cat_node(axes, 0, pieces, "f32")

    def _part(self) -> Node:
        """A reduction over the parts of `A` or `B`, then over their number."""
        axes = self._axes(self.rng.choice((0, 1)))
        whole, level = self.rng.choice((A, B, B)), self.rng.choice((0, 0, 1))
        p, i = Index(Parts(whole, level), len(axes)), Index(Part(whole, level), len(axes) + 1)
        node = self._pick()
        terms = [
            Term(((Join(var(p), var(i)), 1),)) if axis.dim == whole else self._term(axis.dim, axes)
            for axis in node.axes
        ]
        kind, then = self.rng.choice((("sum", "sum"), ("max", "max"), ("sum", "max"), ("max", "sum")))
        inner = reduce_node(kind, (*axes, p), (i,), Access(node, tuple(terms)), "f32")
        fn = self.rng.choice(("exp", "id", "neg"))
        moved = map_node(fn, inner.axes, [inner.read()], "f32")
        return reduce_node(then, axes, (p,), moved(*axes, p), "f32")

    def _gather(self) -> Node:
        """A value at the positions that an input of integers says."""
        own = Index(B, 0)
        node = self._pick()
        at = Term(((Gather(Access(WHERE, (var(own),))), 1),))
        terms = [at if axis.dim == A else self._term(axis.dim, (own,)) for axis in node.axes]
        return map_node("id", (own,), [Access(node, tuple(terms))], "f32")

    def _shift(self) -> Node:
        """The neighbour on one side, and something else where there is none."""
        dim = self.rng.choice((A, B))
        i = Index(dim, 0)
        step = self.rng.choice((-1, 1))
        node = self._pick()
        moved = term((i, 1), offset=step)
        terms = [moved if axis.dim == dim else self._term(axis.dim, (i,)) for axis in node.axes]
        end = const(0, "i64") if step < 0 else map_node("sub", (), [size(dim), const(1, "i64")], "i64").read()
        last = map_node("eq", (i,), [position((i,), i).read(), end], "bool")
        return map_node(
            "select", (i,), [last.read(), self._argument((i,)), Access(node, tuple(terms))], "f32"
        )

    def _hot(self) -> Node:
        """A sum, or a maximum, over where a position is the one that an input of integers says."""
        j, v = Index(B, 0), Index(A, 1)
        hit = map_node("eq", (j, v), [position((j, v), v).read(), Access(WHERE, (var(j),))], "bool")
        kind, other = self.rng.choice((("sum", 0.0), ("sum", 0.0), ("max", float("-inf"))))
        picked = map_node("select", (j, v), [hit.read(), self._argument((j, v)), const(other)], "f32")
        return reduce_node(kind, (j,), (v,), picked.read(), "f32")

    def _cascade(self) -> Node:
        """Exponentials shifted by their maximum, their sum, and one of the values made of them."""
        node = self._pick()
        k = Index(self.rng.choice((A, B, AB)), 1)
        axes = (Index(self.rng.choice((A, B)), 0), k)
        value = map_node("id", axes, [self._read(node, axes)], "f32")
        if self.rng.random() < 0.4:
            where = self._read(self.rng.choice(self.truths), axes)
            value = map_node("select", axes, [where, value.read(), const(float("-inf"))], "f32")
        top = reduce_node("max", axes[:1], (k,), value.read(), "f32")
        less = map_node("sub", axes, [value.read(), top(axes[0])], "f32")
        weight = map_node("exp", axes, [less.read()], "f32")
        total = reduce_node("sum", axes[:1], (k,), weight.read(), "f32")
        self.nodes += [top, weight, total]
        match self.rng.randrange(4):
            case 0:
                low = map_node("log", axes[:1], [total.read()], "f32")
                return map_node("add", axes[:1], [low.read(), top.read()], "f32")
            case 1:
                return map_node("div", axes, [weight.read(), total(axes[0])], "f32")
            case 2:
                args = [weight.read(), self._read(self._pick(), axes)]
                mean = contract_node(axes[:1], (k,), args, "f32")
                return map_node("div", axes[:1], [mean.read(), total.read()], "f32")
            case _:
                return total

    def _mean(self) -> Node:
        """A mean, or what is left of a value without it, squared and summed."""
        node = self._pick()
        k = Index(self.rng.choice((A, B)), 1)
        axes = (Index(self.rng.choice((A, B)), 0), k)
        value = map_node("id", axes, [self._read(node, axes)], "f32")
        total = reduce_node("sum", axes[:1], (k,), value.read(), "f32")
        mean = map_node("div", axes[:1], [total.read(), size(k.dim)], "f32")
        if self.rng.random() < 0.4:
            return mean
        less = map_node("sub", axes, [value.read(), mean(axes[0])], "f32")
        square = map_node("mul", axes, [less.read(), less.read()], "f32")
        return reduce_node("sum", axes[:1], (k,), square.read(), "f32")

    def _causal(self) -> Node:
        """A value where one position is not after another, shifted a little; -inf or a number elsewhere."""
        axes = (Index(A, 0), Index(self.rng.choice((A, B)), 1))
        shift = term((axes[0], 1), offset=self.rng.choice((0, 0, 1, -1)))
        args = [position(axes, axes[1]).read(), position(axes, shift).read()]
        seen = map_node(self.rng.choice(("le", "lt")), axes, args, "bool")
        self.truths.append(seen)
        other = const(self.rng.choice((float("-inf"), float("-inf"), 0.0, -100.0)))
        return map_node("select", axes, [seen.read(), self._argument(axes), other], "f32")
