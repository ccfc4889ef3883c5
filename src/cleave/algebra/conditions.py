"""What a program needs to be defined: the needs of its nodes (`needs`), for what each output reads of them.

An equality of normal forms holds wherever both programs are defined. So what an element of the second
program's output needs, and neither follows from the facts nor is needed by that element of the first one's
too, is a condition of the equality. A condition is kept as a form with all indices bound but the output's,
so that the same need of two programs, on parts or on the whole of a dim, is one condition.

A need may also be met because the first program does the same to the same values (a *twin*): then either both
make NaN of them, or neither does.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from cleave.algebra import laws, sums
from cleave.algebra.arithmetic import add, assign, mul, neg, predicates_of
from cleave.algebra.demands import Demand, demands_of, instances, key_of
from cleave.algebra.forms import ONE, Apply, Poly, fresh, of_factor
from cleave.algebra.maxima import Raw
from cleave.algebra.needs import Need, needs_at, needs_of_node
from cleave.algebra.normal import Forms, form_of, owners_of
from cleave.algebra.predicates import complement
from cleave.algebra.rewrite import rename
from cleave.ir.dims import Index, Term
from cleave.ir.ops import Contract, Map, Node, Reduce
from cleave.ir.program import Program

TWIN = "twin"
"""The relation of what says that a node does something to certain values."""


@dataclass
class Needs:
    """All needs of a program by key, for each output what its elements need; those that always hold are left
    out."""

    forms: Forms
    found: dict[str, Need] = field(default_factory=dict[str, Need])
    reads: list[tuple[int, Node, Demand]] = field(default_factory=list[tuple[int, Node, Demand]])
    """What each output certainly reads, by its number, of the nodes that need something."""
    _twins: Held | None = None

    def sure(self) -> Held:
        """The needs that hold wherever the output is a number."""
        return Held([need for need in self.found.values() if not need.loose])

    def twins(self) -> Held:
        """What is done to which values, wherever the output is a number."""
        if self._twins is None:
            found = [_twins(node, demand, self.forms, output) for output, node, demand in self.reads]
            self._twins = Held([twin for twins in found for twin in twins or ()])
        return self._twins


class Held:
    """Needs that are known to hold."""

    def __init__(self, needs: Collection[Need]) -> None:
        self.keys = frozenset(need.key for need in needs)
        self.heads = frozenset(_head(need.rel, need.output, need.parts) for need in needs)

    def imply(self, need: Need) -> bool:
        """Does a need follow from one of them?"""
        return any(
            _need_of(rel, raw, need.output, parts).key in self.keys
            for rel, raw, parts in _stronger(need)
            if _head(rel, need.output, parts) in self.heads  # keys are long: they are not written for nothing
        )


def needs_of(program: Program, forms: Forms) -> Needs:
    """All needs of a program."""
    own = {node: needs for node in forms if (needs := needs_of_node(node, forms))}
    whole = Needs(forms)
    for number, output in enumerate(program.outputs if own else ()):
        for node, ways in demands_of(output, own, forms).items():
            for demand in ways:
                if not demand.loose and not demand.hidden:
                    whole.reads.append((number, node, demand))
                for need in own[node]:
                    for raw, parts in instances(need.value, node, demand):
                        for new in _placed(need.rel, raw, number, parts):
                            _enter(whole.found, _told(new, need, node, demand))
    return whole


def _told(new: Need, need: Need, node: Node, demand: Demand) -> Need:
    return replace(
        new,
        loose=need.loose or demand.loose or demand.hidden,
        discrete=need.discrete or demand.hidden,
        made=need.made,
        sources=((node, demand),),
    )


def _enter(found: dict[str, Need], new: Need) -> None:
    """Add a need; the same one of several nodes is one."""
    old = found.get(new.key)
    if old is not None:
        new = replace(
            new,
            loose=old.loose and new.loose,
            discrete=old.discrete or new.discrete,
            made=old.made and new.made,
            sources=(*old.sources, *new.sources),
        )
    found[new.key] = new


def missing(needed: Needs, given: Needs, same: Collection[int] = ()) -> list[Need]:
    """The needs that are not among the given ones, do not follow from one of them, and are not met by twins.
    Needs of the outputs in `same` are not looked at."""
    if not laws.on("defined"):
        return []
    known = given.sure()
    found: dict[str, Need] = {}
    for need in needed.found.values():
        if need.output in same or known.imply(need):
            continue
        if need.discrete or not need.made or not _has_twins(need, needed.forms, given):
            found[need.key] = need
    for need in given.found.values():
        if need.discrete and need.output not in same and not known.imply(need):
            found.setdefault(need.key, need)
    return list(found.values())


def _placed(rel: str, raw: Raw, output: int, parts: frozenset[int]) -> list[Need]:
    """A need of an output; none if it holds wherever its guard does."""
    bound, guard, value = raw
    if rel != "[]" or guard.number == 1:
        return [_need_of(rel, raw, output, parts)]
    implied = add(complement(guard), mul(guard, value))
    if implied.number == 1:
        return []
    whole = _need_of(rel, (bound, ONE, implied), output, parts)
    return [replace(whole, guard=guard, claim=value)]


def _need_of(rel: str, raw: Raw, output: int, parts: frozenset[int] = frozenset()) -> Need:
    return Need(rel, raw[2], _head(rel, output, parts) + key_of(raw), raw[1], output, parts=parts)


def _head(rel: str, output: int, parts: frozenset[int]) -> str:
    """What the keys of needs of one kind begin with."""
    where = "".join(f" {n}" for n in sorted(parts))
    return f"{output}{where} {rel}"


_ANY: frozenset[int] = frozenset()
_STRONGER = {"!=": ("!=", ">"), ">=": (">=", ">"), ">": (">",), "[]": ("[]",), TWIN: (TWIN,)}


def _stronger(need: Need) -> Iterator[tuple[str, Raw, frozenset[int]]]:
    """The needs that this one follows from: without its guard, of a stronger relation, for all
    elements of the output; for one that is a choice, of one that it lets choose."""
    ways = [(need.guard, need.value), (ONE, need.value)]
    if need.claim is not None:
        ways = [(ONE, need.value), (ONE, need.claim)]
    if need.rel == "[]":
        for f in predicates_of(need.value):
            for truth, literal in ((True, of_factor(f)), (False, complement(of_factor(f)))):
                if assign(need.value, f, truth).number == 1:
                    ways.append((ONE, literal))
    for guard, value in ways:
        free = sorted(guard.free | value.free, key=lambda i: (str(i.dim), i.number))
        bound = [i for i in free if i.number < 0]
        axes = [i for i in free if i.number >= 0][:5]
        for count in range(len(axes) + 1):
            for some in itertools.combinations(axes, count):
                for rel, parts in itertools.product(_STRONGER[need.rel], dict.fromkeys((need.parts, _ANY))):
                    yield rel, ([*bound, *some], guard, value), parts


# Twins.


def _has_twins(need: Need, forms: Forms, given: Needs) -> bool:
    """Does the first program certainly do the same to the same values as each node that has the need?"""
    for node, demand in need.sources:
        twins = _twins(node, demand, forms, need.output)
        if twins is None:
            return False
        if not all(map(given.twins().imply, twins)):
            return False
    return True


def _twins(node: Node, demand: Demand, forms: Forms, output: int) -> list[Need] | None:
    """What a node does to which values, as it is read; None if that is not known."""
    values = _deeds(node, forms)
    if values is None:
        return None
    found: list[Need] = []
    for value, owners in values:
        inner = replace(demand, owners=(*demand.owners, *owners.items()))
        found += [_need_of(TWIN, raw, output, parts) for raw, parts in instances(value, node, inner)]
    return found


def _deeds(node: Node, forms: Forms) -> list[tuple[Poly, dict[Index, Term]]] | None:
    """Forms that say what a node makes of which values, and in which parts their indices run."""
    match node.op:
        case Map(fn, args):
            values = [form_of(a, forms) for a in args]
            if fn == "sub":
                fn, values = "add", [values[0], neg(values[1])]
            return [(_deed(fn, values), {})]
        case Reduce("sum" | "prod" as kind, bound, arg):
            new = {i: fresh(i.dim) for i in bound}
            body = rename(form_of(arg, forms), new)
            return [(_deed(kind, [sums.outcome(body, list(new.values()))]), {})]
        case Contract(bound, args):
            new = {i: fresh(i.dim) for i in bound}
            values = [rename(form_of(a, forms), new) for a in args]
            whole = sums.outcome(mul(*values), list(new.values()))
            return [(_deed("mul", values), owners_of(node, new)), (_deed("sum", [whole]), {})]
        case _:
            return None


def _deed(fn: str, values: list[Poly]) -> Poly:
    if fn in ("add", "mul"):
        values = sorted(values, key=lambda v: v.key)
    return of_factor(Apply(f"deed {fn}", values))


__all__ = ["Need", "Needs", "missing", "needs_at", "needs_of"]
