"""Where an output reads the elements of a node: what a program needs to be defined depends on it.

A `Demand` says that a node is read at some terms, over the output's axes and indices that run freely, where
a guard holds: `select(p, a, b)` reads `a` only where `p` holds. So a division under a mask is no reason to
think that the mask is never empty, and what one row needs is no promise of another row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from cleave.algebra import laws, maxima, predicates, rewrite
from cleave.algebra.arithmetic import mul
from cleave.algebra.forms import ONE, Entry, Poly, fresh, size_extent
from cleave.algebra.maxima import Raw
from cleave.algebra.normal import Forms, as_truth, form_of, owners_of, resolve
from cleave.algebra.terms import indices, term_text
from cleave.ir.dims import Index, Term, Union, term, var
from cleave.ir.ops import Access, Cat, Map, Node
from cleave.ir.program import Output, sort_nodes

MOST = 24
"""A node that is read in more ways is taken to be read everywhere."""


@dataclass(frozen=True)
class Demand:
    """The node is read at `terms`, one for each axis, where `guard` (0 or 1) holds. `owners` are the parts
    that free indices run inside. With `loose` that may be more than what is read; with `hidden` a comparison
    reads it, and gives a truth whether it is a number or not."""

    terms: tuple[Term, ...]
    guard: Poly = ONE
    owners: tuple[tuple[Index, Term], ...] = ()
    loose: bool = False
    hidden: bool = False

    @property
    def key(self) -> str:
        used = [i for t in self.terms for i in sorted(indices(t), key=lambda i: -i.number)]
        used += sorted(self.guard.free, key=lambda i: (str(i.dim), -i.number))
        inside = [i for own, t in self.owners for i in (own, *sorted(indices(t), key=lambda i: -i.number))]
        free = dict.fromkeys(i for i in (*used, *inside) if i.number < 0)
        names = {i: f"~{n}" for n, i in enumerate(free)}
        owners = sorted(f"{term_text(var(i), names)} in {term_text(t, names)}" for i, t in self.owners)
        # What runs inside a part is there only where the part is not empty.
        kind = "hidden" if self.hidden else ""
        return ";".join([*(term_text(t, names) for t in self.terms), self.guard.text(names), *owners, kind])


def everywhere(node: Node) -> Demand:
    """The demand for all elements of a node."""
    return Demand(tuple(var(fresh(i.dim)) for i in node.axes), loose=True)


def demands_of(output: Output, needy: Collection[Node], forms: Forms) -> dict[Node, list[Demand]]:
    """How an output reads the nodes in `needy`."""
    nodes = sort_nodes([output.node])
    above: set[Node] = set()
    for node in nodes:
        if node in needy or any(a.node in above for a in node.reads):
            above.add(node)
    order = [n for group in output.layout for n in group]
    place = {axis: var(Index(output.node.axes[axis].dim, k)) for k, axis in enumerate(order)}
    found: dict[Node, dict[str, Demand]] = {n: {} for n in nodes if n in above}
    if output.node in above:
        first = Demand(tuple(place[n] for n in range(len(order))))
        found[output.node][first.key] = first
    for node in reversed(nodes):
        if node not in above:
            continue
        if len(found[node]) > MOST:
            found[node] = {"": everywhere(node)}
        for demand in found[node].values():
            for below, new in _read_by(node, demand, forms):
                if below in above:
                    found[below].setdefault(new.key, new)
    return {n: list(ways.values()) for n, ways in found.items() if n in needy}


def _read_by(node: Node, demand: Demand, forms: Forms) -> Iterator[tuple[Node, Demand]]:
    """What a node reads to give the elements that are demanded of it."""
    new = {i: fresh(i.dim) for i in node.bound}
    where: dict[Index, Term] = dict(zip(node.axes, demand.terms, strict=True))
    where |= {old: var(index) for old, index in new.items()}
    owners = {i: rewrite.move(t, where) for i, t in owners_of(node, new).items()}
    inside = (*demand.owners, *owners.items())
    op = node.op
    if isinstance(op, Cat):
        yield from _pieces(node, demand, where, forms)
        return
    guards = [demand.guard] * len(node.args)
    if isinstance(op, Map) and op.fn == "select" and laws.on("guarded-need"):
        truth = rewrite.substitute(as_truth(form_of(op.args[0], forms)), where)
        guards[1:] = [mul(demand.guard, truth), mul(demand.guard, predicates.complement(truth))]
    within = [a for a in node.reads if a not in node.args]
    hides = demand.hidden or node.dtype == "bool"
    choice = op.args[0] if isinstance(op, Map) and op.fn == "select" else None
    for access, guard in (*zip(node.args, guards, strict=True), *((a, demand.guard) for a in within)):
        if guard.terms:
            hidden = hides or access is choice
            yield access.node, Demand(_at(access, where, forms), guard, inside, demand.loose, hidden)


def _pieces(
    node: Node, demand: Demand, where: Mapping[Index, Term], forms: Forms
) -> Iterator[tuple[Node, Demand]]:
    assert isinstance(node.op, Cat)
    own = node.axes[node.op.axis]
    assert isinstance(own.dim, Union)
    for number, (part, piece) in enumerate(zip(own.dim.parts, node.op.pieces, strict=True)):
        at = demand.terms[node.op.axis]
        local = term(*at.leaves, offset=at.offset + -size_extent(own.dim.parts[:number]))
        inside = predicates.in_range(rewrite.place(local), rewrite.size(part))
        guard = mul(demand.guard, inside)
        if guard.terms:
            terms = _at(piece, {**where, Index(part, own.number): local}, forms)
            yield piece.node, Demand(terms, guard, demand.owners, demand.loose, demand.hidden)


def _at(access: Access, where: Mapping[Index, Term], forms: Forms) -> tuple[Term, ...]:
    flat = [
        resolve(rewrite.flatten(t, axis.dim), forms)
        for t, axis in zip(access.terms, access.node.axes, strict=True)
    ]
    return tuple(rewrite.move(t, where) for t in flat)


def instances(value: Poly, node: Node, demand: Demand) -> list[Placed]:
    """A value of a node where it is demanded: bound indices, guard and value, as the entries of a maximum are
    brought into normal form: unions and partitions dissolve, what only the guard is about must exist."""
    where = {i: t for i, t in zip(node.axes, demand.terms, strict=True) if t.variable != i}
    return normal(demand.guard, rewrite.substitute(value, where), dict(demand.owners))


Placed = tuple[Raw, frozenset[int]]
"""Bound indices, guard and value; and the numbers of parts of the output's axes that this is of alone, though
it does not say so itself."""


def normal(guard: Poly, value: Poly, owners: dict[Index, Term]) -> list[Placed]:
    """`value` for all values of its indices that have negative numbers, where the guard holds."""
    bound = sorted((i for i in guard.free | value.free if i.number < 0), key=lambda i: (str(i.dim), i.number))
    bound += [i for i in owners if i not in bound]
    todo: list[tuple[Raw, frozenset[int]]] = [((bound, guard, value), frozenset())]
    done: list[Placed] = []
    while todo:
        (free, guard, value), parts = todo.pop()
        kept = next((i for i in sorted(guard.free | value.free, key=str) if isinstance(i.dim, Union)), None)
        if kept is not None and kept not in free:
            todo += [(raw, parts | {number}) for number, raw in _split_kept(kept, free, guard, value)]
            continue
        step = maxima.simpler_binders(free, guard, value, owners)
        if step is not None:
            todo += [(raw, parts) for raw in step if raw[1].terms]
            continue
        idle = [i for i in free if i not in value.free]
        if idle:
            guard = maxima.exists(idle, guard, owners)
            free = [i for i in free if i not in idle]
        if guard.terms:
            told = {i.number for i in guard.free | value.free}
            done.append(((free, guard, value), parts - told))
    return done


def part_number(axis: int, part: int) -> int:
    """The number of an index that stands for one part of an axis over a union."""
    return 100 * (axis + 1) + part


def _split_kept(index: Index, free: list[Index], guard: Poly, value: Poly) -> Iterator[tuple[int, Raw]]:
    """An axis of the output over a union: each part on its own."""
    assert isinstance(index.dim, Union)
    for number, part in enumerate(index.dim.parts):
        new = Index(part, part_number(index.number, number))
        where = {index: term((new, 1), offset=size_extent(index.dim.parts[:number]))}
        yield new.number, (free, rewrite.substitute(guard, where), rewrite.substitute(value, where))


def key_of(raw: Raw) -> str:
    return Entry(*raw).key
