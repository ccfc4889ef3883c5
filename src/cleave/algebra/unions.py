"""Concatenations taken apart: `sum over A | B` is `sum over A` plus `sum over B`, and so for maxima.

A reduction over a union becomes one for each part, and whatever is read inside a part is computed from that
part alone; a part of size 1 needs no reduction. So `[a, b] @ w` becomes `a @ w1 + b @ w2`, and a column that
is appended to scores a term of the denominator.
"""

from __future__ import annotations

from cleave.algebra.build import Builder
from cleave.algebra.frame import at_axes
from cleave.algebra.read import whole
from cleave.ir.dims import Dim, Index, Inject, Term, Union, var
from cleave.ir.ops import Access, Cat, Contract, Map, Node, Reduce
from cleave.ir.program import Program
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite

LAW = "a reduction over A | B is one over A and one over B"
BINARY = {"sum": "add", "max": "max", "min": "min", "prod": "mul", "any": "or", "all": "and"}
MOST_NODES = 400
"""Values that are built; a program that needs more is left as it is."""


def apart(program: Program) -> Program | None:
    """The program with unions taken apart; None if it has none, or too many."""
    if not any(isinstance(i.dim, Union) for n in program.nodes for i in (*n.axes, *n.bound)):
        return None
    parts = _Apart(program)
    replaced = rewrite((o.node for o in program.outputs), parts.visit)
    new = replace_nodes(program, replaced)
    if parts.built > MOST_NODES or [o.node for o in new.outputs] == [o.node for o in program.outputs]:
        return None
    return new


class _Apart:
    def __init__(self, program: Program) -> None:
        self.single: set[Dim] = {atom for atom, size in program.sizes if size == 1}
        self.built = 0
        self._next = 5000

    def visit(self, node: Node, replaced: Replaced) -> Access:
        new = replace_arguments(node, replaced)
        if isinstance(new.op, Reduce | Contract) or any(_injects(a) for a in new.args):
            made = self.rebuilt(new, new.read())
            if made is not None:
                return whole(made, new).read()
        return new.read()

    def inside(self, access: Access) -> Access:
        """The value of an access, computed from the parts that it reads."""
        self.built += 1
        op = access.node.op
        if not _injects(access) or self.built > MOST_NODES:
            return access
        if isinstance(op, Cat):
            leaf = access.terms[op.axis].leaf
            if not isinstance(leaf, Inject):
                return access
            union = access.node.axes[op.axis].dim
            assert isinstance(union, Union)
            where = at_axes(access)
            del where[access.node.axes[op.axis]]
            where[Index(union.parts[leaf.part], op.axis)] = leaf.term
            return self.inside(op.pieces[leaf.part].at(where))
        made = self.rebuilt(access.node, access)
        return access if made is None else made

    def rebuilt(self, node: Node, access: Access) -> Access | None:
        """An operation at the access' indices, its arguments computed from the parts that they read."""
        where = at_axes(access)
        match node.op:
            case Map(fn, args):
                inner = [self.inside(a.at(where)) for a in args]
                return Builder(node.dtype).map(fn, *inner, dtype=node.dtype)
            case Reduce() | Contract():
                return self._reduced(node, where, node.bound, ())
            case _:
                return None

    def _reduced(
        self, node: Node, where: dict[Index, Term], bound: tuple[Index, ...], made: tuple[Index, ...]
    ) -> Access:
        """The reduction with the indices `made` already chosen for some of its bound ones."""
        op, build = node.op, Builder(node.dtype)
        if bound:
            index, rest = bound[0], bound[1:]
            if not isinstance(index.dim, Union):
                fresh = self._fresh(index.dim)
                return self._reduced(node, {**where, index: var(fresh)}, rest, (*made, fresh))
            kind = op.kind if isinstance(op, Reduce) else "sum"
            pieces: list[Access] = []
            for number, part in enumerate(index.dim.parts):
                fresh = self._fresh(part)
                at = Term() if part in self.single else var(fresh)
                inner = (*made, *(() if part in self.single else (fresh,)))
                term = var(Inject(number, at))
                pieces.append(self._reduced(node, {**where, index: term}, rest, inner))
            total = pieces[0]
            for piece in pieces[1:]:
                total = build.map(BINARY[kind], total, piece, dtype=node.dtype)
            return total
        args = [self.inside(a.at(where)) for a in node.args]
        if isinstance(op, Reduce):
            return build.reduce(op.kind, made, args[0], node.dtype) if made else args[0]
        if made:
            return build.contract(made, args)
        total = args[0]
        for arg in args[1:]:
            total = build.mul(total, arg)
        return total

    def _fresh(self, dim: Dim) -> Index:
        self._next += 1
        return Index(dim, self._next)


def _injects(access: Access) -> bool:
    return any(isinstance(leaf, Inject) for term in access.terms for leaf, _ in term.leaves)
