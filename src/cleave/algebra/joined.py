"""Reductions over the parts of a disjoint union, joined into one over the union (design.md, section 3).

`max(max_A f, max_B g)` is one maximum over `A | B` of the concatenation of `f` and `g`, as it is for sums;
a sum over `A` whose body reads something at its place in `A | B` is a sum over `A | B` in which the rest is
masked; and nested reductions of one kind are one over both indices. So what would be a loop for each part
becomes one loop that runs over all of them in sequence. Concatenations are pushed inwards, to what nothing
can be computed of: `cat(exp(a - m), exp(b - m))` is `exp(cat(a, b) - m)`.

Nothing is believed here: the search proves the joined program equal to the one it came from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cleave.algebra.build import Builder, axes_of
from cleave.algebra.frame import at_axes, plain, stages
from cleave.ir.dims import Atom, Dim, Index, Inject, Union, var
from cleave.ir.ops import (
    FLOATS,
    Access,
    Contract,
    Map,
    Node,
    Reduce,
    cat_node,
    const,
    make_node,
    map_node,
)
from cleave.ir.program import Program
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite

_EMPTY: dict[str, bool | float] = {
    "sum": 0.0, "max": -math.inf, "min": math.inf, "any": False, "all": True,
}  # fmt: skip
_JOINS = {"add": "sum", "sub": "sum", "max": "max", "min": "min"}
_FRESH = 500_000
"""Numbers of indices that no node has."""


def joined(program: Program) -> Program | None:
    """The program with reductions over parts of unions joined, and nested ones flattened; None where that
    does not make loops fewer."""
    flat = flattened(program)
    joiner = _Joiner()
    made = joiner.program(flat)
    if not joiner.useful:
        made = flat
    return made if made.outputs != program.outputs and loops_of(made) < loops_of(program) else None


def loops_of(program: Program) -> int:
    """How many loops there are if whatever can share one does."""
    return len(stages(program, lambda _site, _running: ""))


def flattened(program: Program) -> Program:
    """The program with a reduction of nothing but a reduction of the same kind as one over both indices."""

    def visit(node: Node, replaced: Replaced) -> Access:
        node = replace_arguments(node, replaced)
        op = node.op
        while isinstance(op, Reduce):
            inner = plain(op.arg)
            below = inner.node.op
            if not isinstance(below, Reduce | Contract) or inner.node.dtype != node.dtype:
                break
            kind = below.kind if isinstance(below, Reduce) else "sum"
            if kind != op.kind:
                break
            where = at_axes(inner)
            own = tuple(Index(i.dim, _FRESH + n) for n, i in enumerate(inner.node.bound))
            where |= {i: var(o) for i, o in zip(inner.node.bound, own, strict=True)}
            args = tuple(a.at(where) for a in inner.node.args)
            bound = (*op.bound, *own)
            new = Reduce(kind, bound, args[0]) if isinstance(below, Reduce) else Contract(bound, args)
            node = make_node(new, node.axes, node.dtype)
            op = node.op
        return node.read()

    return replace_nodes(program, rewrite((o.node for o in program.outputs), visit))


@dataclass(frozen=True, slots=True)
class _Term:
    """A reduction over one index, read somewhere: its sign, and what it reduces."""

    sign: int
    node: Node
    access: Access

    @property
    def index(self) -> Index:
        return self.node.bound[0]


@dataclass(slots=True)
class _Joiner:
    unions: dict[frozenset[Dim], Union] = field(default_factory=dict[frozenset[Dim], Union])
    useful: bool = False
    """Has anything been joined that another reduction over the union, or over a part, waits for or feeds?"""
    _next: int = _FRESH + 100

    def program(self, program: Program) -> Program:
        for node in program.nodes:
            for dim in (*node.dims, *(i.dim for i in node.bound)):
                if isinstance(dim, Union) and len(set(dim.parts)) == len(dim.parts):
                    self.unions.setdefault(frozenset(dim.parts), dim)
        return replace_nodes(program, rewrite((o.node for o in program.outputs), self._visit))

    def _visit(self, node: Node, replaced: Replaced) -> Access:
        node = replace_arguments(node, replaced)
        op = node.op
        if isinstance(op, Map) and op.fn in _JOINS and node.dtype in FLOATS:
            made = self._sum(node, _JOINS[op.fn])
            return made if made is not None else node.read()
        if isinstance(op, Reduce | Contract) and len(node.bound) == 1:
            return self._widened(node) or node.read()
        return node.read()

    def fresh(self, dim: Dim) -> Index:
        self._next += 1
        return Index(dim, self._next)

    # ------------------------------------------------------------ sums of reductions over parts

    def _sum(self, node: Node, kind: str) -> Access | None:
        terms = self._terms(node.read(), kind, 1)
        parts = [t for t in terms if isinstance(t, _Term)]
        dims = [t.index.dim for t in parts]
        if len(parts) < 2 or len(set(dims)) < len(dims) or not all(isinstance(d, Atom) for d in dims):
            return None
        union = self.unions.setdefault(frozenset(dims), Union(tuple(dims)))
        parts = [next(t for t in parts if t.index.dim == d) for d in union.parts]
        build = Builder(node.dtype)
        inner = [a.node for t in parts for a in t.node.args]
        self.useful |= kind != "sum" or any(_reduces(n, d) for n in inner for d in (union, *union.parts))
        total = self._whole(build, kind, union, parts)
        for term in terms:
            if not isinstance(term, _Term):
                sign, access = term
                if kind != "sum":
                    total = build.map(kind, total, access)
                else:
                    total = build.add(total, access) if sign > 0 else build.sub(total, access)
        return _over(node, total)

    def _terms(self, access: Access, kind: str, sign: int) -> list[_Term | tuple[int, Access]]:
        access = plain(access)
        op = access.node.op
        if isinstance(op, Map) and _JOINS.get(op.fn) == kind and access.node.dtype in FLOATS:
            first, second = (a.at(at_axes(access)) for a in op.args)
            other = -sign if op.fn == "sub" else sign
            return [*self._terms(first, kind, sign), *self._terms(second, kind, other)]
        own = op.kind if isinstance(op, Reduce) else "sum" if isinstance(op, Contract) else ""
        if own == kind and len(access.node.bound) == 1:
            return [_Term(sign, access.node, access)]
        return [(sign, access)]

    def _whole(self, build: Builder, kind: str, union: Union, parts: Sequence[_Term]) -> Access:
        whole = self.fresh(union)
        own = tuple(self.fresh(t.index.dim) for t in parts)
        factors: list[list[Access]] = []
        for term, index in zip(parts, own, strict=True):
            where = {**at_axes(term.access), term.index: var(index)}
            each = [a.at(where) for a in term.node.args]
            if term.sign < 0:
                each[0] = build.map("neg", each[0])
            factors.append(each)
        unify = _Unify(self, whole, own)
        if len({len(f) for f in factors}) > 1:
            products: list[list[Access]] = []
            for each in factors:
                product = each[0]
                for factor in each[1:]:
                    product = build.mul(product, factor)
                products.append([product])
            factors = products
        args = [unify.of(list(column)) for column in zip(*factors, strict=True)]
        return build.contract((whole,), args) if len(args) > 1 else build.reduce(kind, (whole,), args[0])

    # ------------------------------------------------------------ a part of a union, as the union

    def _widened(self, node: Node) -> Access | None:
        """A reduction over a part, as one over the union, if its body reads a value that needs a reduction
        over the union at the part's place."""
        index, op = node.bound[0], node.op
        kind = op.kind if isinstance(op, Reduce) else "sum"
        union, part = next(
            ((u, n) for a in node.args for u, n in _places(a, index) if u.parts[n] == index.dim), (None, 0)
        )
        if union is None or kind not in _EMPTY or len(set(union.parts)) < len(union.parts):
            return None
        build = Builder(node.dtype)
        whole = self.fresh(union)
        own = tuple(self.fresh(d) for d in union.parts)
        where = {index: var(own[part])}
        unify = _Unify(self, whole, own, part)
        args = [unify.of([a.at(where) if n == part else None for n in range(len(own))]) for a in node.args]
        here = [const(n == part, "bool") for n in range(len(own))]
        mask = cat_node((whole,), 0, here, "bool")(whole)
        at = next(n for n, a in enumerate(node.args) if any(_places(a, index)))
        empty = const(_EMPTY[kind], node.args[at].node.dtype)
        args[at] = Builder(node.args[at].node.dtype).select(mask, args[at], empty)
        total = build.contract((whole,), args) if len(args) > 1 else build.reduce(kind, (whole,), args[0])
        self.useful = True
        return _over(node, total)


def _over(node: Node, total: Access) -> Access:
    """A value in a node's indices, over the node's axes in order."""
    if total.terms == tuple(map(var, node.axes)):
        return total
    return map_node("id", node.axes, [total], node.dtype).read()


def _places(access: Access, index: Index) -> list[tuple[Union, int]]:
    """The unions, and numbers of parts, where a value that needs a reduction over the union is read at
    `index`'s place in it."""
    found: list[tuple[Union, int]] = []
    stack = [access]
    while stack:
        access = plain(stack.pop())
        for term, axis in zip(access.terms, access.node.axes, strict=True):
            leaf = term.leaf
            if not isinstance(leaf, Inject) or not isinstance(axis.dim, Union):
                continue
            if leaf.term.variable == index and _reduces(access.node, axis.dim):
                found.append((axis.dim, leaf.part))
        if isinstance(access.node.op, Map):
            stack += [a.at(at_axes(access)) for a in access.node.op.args]
    return found


def _reduces(node: Node, dim: Dim) -> bool:
    """Does a value depend, through pointwise operations, on a reduction over a dim?"""
    if any(i.dim == dim for i in node.bound):
        return True
    return isinstance(node.op, Map) and any(_reduces(a.node, dim) for a in node.op.args)


@dataclass(frozen=True, slots=True)
class _Unify:
    """Values over the parts of a union as one over the union, at index `whole`; None where a part has none
    (there anything may stand)."""

    joiner: _Joiner
    whole: Index
    own: tuple[Index, ...]
    part: int = 0

    def of(self, parts: list[Access | None]) -> Access:
        given = [(n, plain(a)) for n, a in enumerate(parts) if a is not None]
        first = given[0][1]
        if all(a == first and self.own[n] not in a.indices for n, a in given):
            return first
        placed = [self._placed(n, a) for n, a in given]
        if placed[0] is not None and all(p == placed[0] for p in placed):
            return placed[0]
        ops = [a.node.op for _, a in given]
        if all(isinstance(op, Map) for op in ops) and self._alike(given):
            args = [self.of(list(column)) for column in self._columns(parts, {})]
            op = first.node.op
            assert isinstance(op, Map)
            return map_node(op.fn, axes_of(args), args, first.node.dtype)(*axes_of(args))
        if len(given) > 1 and all(isinstance(op, Reduce | Contract) for op in ops) and self._alike(given):
            bound = tuple(self.joiner.fresh(i.dim) for i in first.node.bound)
            args = [self.of(list(column)) for column in self._columns(parts, dict(enumerate(bound)))]
            op = first.node.op
            axes = tuple(i for i in axes_of(args) if i not in bound)
            if isinstance(op, Reduce):
                return make_node(Reduce(op.kind, bound, args[0]), axes, first.node.dtype)(*axes)
            return make_node(Contract(bound, tuple(args)), axes, first.node.dtype)(*axes)
        return self._cat(parts, first.node.dtype)

    def _placed(self, number: int, access: Access) -> Access | None:
        """The value at the whole union's index, if it is read at the part's place in it."""
        terms = list(access.terms)
        hits = 0
        for n, (term, axis) in enumerate(zip(access.terms, access.node.axes, strict=True)):
            leaf = term.leaf
            here = isinstance(leaf, Inject) and (leaf.part, leaf.term.variable) == (number, self.own[number])
            if here and axis.dim == self.whole.dim:
                terms[n] = var(self.whole)
                hits += 1
        made = Access(access.node, tuple(terms))
        return made if hits and self.own[number] not in made.indices else None

    def _alike(self, given: Sequence[tuple[int, Access]]) -> bool:
        """The same operation on values of the same dtypes?"""
        first = given[0][1].node

        def shape(node: Node) -> object:
            op = node.op
            name = op.fn if isinstance(op, Map) else op.kind if isinstance(op, Reduce) else "contract"
            dtypes = tuple(a.node.dtype for a in node.args)
            return name, node.dtype, dtypes, tuple(i.dim for i in node.bound)

        return all(shape(a.node) == shape(first) for _, a in given)

    def _columns(self, parts: list[Access | None], bound: dict[int, Index]) -> list[list[Access | None]]:
        rows: list[list[Access] | None] = []
        for access in parts:
            if access is None:
                rows.append(None)
                continue
            access = plain(access)
            where = at_axes(access)
            where |= {i: var(bound[n]) for n, i in enumerate(access.node.bound)}
            rows.append([a.at(where) for a in access.node.args])
        count = next(len(r) for r in rows if r is not None)
        return [[None if r is None else r[n] for r in rows] for n in range(count)]

    def _cat(self, parts: list[Access | None], dtype: str) -> Access:
        given = [a for a in parts if a is not None]
        axes = [i for i in axes_of(given) if i not in self.own]
        nothing: bool | int | float = False if dtype == "bool" else 0 if dtype[0] in "iu" else 0.0
        pieces: list[Access] = []
        for number, access in enumerate(parts):
            piece = access if access is not None else const(nothing, dtype)
            pieces.append(piece.at({self.own[number]: var(Index(self.own[number].dim, self.whole.number))}))
        place = len(axes)
        node = cat_node((*axes, self.whole), place, pieces, dtype)
        return node(*axes, self.whole)
