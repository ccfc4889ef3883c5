"""What a program needs to be defined: denominators that are not 0, roots and logs of what is not negative,
maxima of something where they are subtracted.

An equality of normal forms holds wherever both programs are defined. So what the second program needs, and
neither follows from the facts nor is needed by the first one too, is a condition of the equality. A
condition is kept as a form with all its indices bound, so that the same need of two programs, at different
axes and on parts or on the whole of a dim, is one condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from cleave.algebra import maxima, predicates, rewrite, sums
from cleave.algebra.arithmetic import assign, neg, predicates_of, sub
from cleave.algebra.facts import nonnegative, nonnegative_factor, positive, positive_mono
from cleave.algebra.forms import (
    ONE,
    ZERO,
    Entry,
    Factor,
    Mono,
    Poly,
    Power,
    Size,
    Sum,
    is_predicate,
    of_factor,
    of_mono,
)  # fmt: skip
from cleave.algebra.normal import Forms, form_of, resolve
from cleave.algebra.parts import owner_of, pair_of
from cleave.algebra.rewrite import flatten
from cleave.algebra.show import friendly, show
from cleave.ir.dims import Gather, Part, Parts, Union, var
from cleave.ir.ops import Access, Contract, Map, Node
from cleave.ir.program import Program


@dataclass(frozen=True)
class Need:
    """`value rel 0` for all values of its indices; `rel` is `!=`, `>` or `>=`, or `[]` for a predicate that
    must hold. `key` is the same for the same need."""

    rel: str
    value: Poly
    key: str

    def __str__(self) -> str:
        text = show(self.value, friendly(self.value.free))
        return text if self.rel == "[]" else f"{text} {self.rel} 0"


def needs_of(program: Program, forms: Forms) -> dict[str, Need]:
    """All needs of a program by key; those that always hold are left out."""
    found: dict[str, Need] = {}
    for node in program.nodes:
        for rel, value in _raw(node, forms):
            for need in _settle(rel, value, node):
                found.setdefault(need.key, need)
    return found


def needs_at(node: Node, forms: Forms) -> frozenset[str]:
    """The keys of the needs of one node, not of what it reads."""
    return frozenset(need.key for rel, value in _raw(node, forms) for need in _settle(rel, value, node))


def missing(needed: dict[str, Need], given: dict[str, Need]) -> list[Need]:
    """The needs that are not among the given ones and do not follow from one of them."""
    positives = {need.value: need for need in given.values() if need.rel == ">"}
    known = {_closed(value, "!=") for value in positives} | {_closed(value, ">=") for value in positives}
    return [need for key, need in needed.items() if key not in given and key not in known]


def _raw(node: Node, forms: Forms) -> list[tuple[str, Poly]]:
    """The needs of one node, as forms over its axes."""
    found: list[tuple[str, Poly]] = []
    if isinstance(node.op, Map):
        args = node.op.args
        values = [form_of(a, forms) for a in args]
        match node.op.fn:
            case "div":
                found.append(("!=", values[1]))
                found += [("[]", predicates.finite(v)) for v in values]
            case "reciprocal":
                found.append(("!=", values[0]))
            case "rsqrt":
                found.append((">", values[0]))
            case "sqrt" | "log":
                found.append((">=", values[0]))
            case "pow":
                found += _power(values[0], values[1].number)
            case "sub":
                found.append(("[]", predicates.finite(values[1])))
            case "mul":
                found += [("[]", _scaled(v, w)) for v, w in (values, values[::-1])]
            case _:
                pass
    if isinstance(node.op, Contract):
        found += [("[]", predicates.finite(form_of(a, forms))) for a in node.op.args]
    for access in node.reads:
        found += _ranges(access, forms)
    return found


def _scaled(value: Poly, other: Poly) -> Poly:
    """A factor that may be infinite needs to be there, unless the other one is positive."""
    return ONE if positive(other) else predicates.finite(value)


def _power(base: Poly, exponent: Fraction | None) -> list[tuple[str, Poly]]:
    if exponent is None:
        return [(">", base)]
    if exponent.denominator != 1:
        return [(">" if exponent < 0 else ">=", base)]
    return [("!=", base)] if exponent < 0 else []


def _ranges(access: Access, forms: Forms) -> list[tuple[str, Poly]]:
    """Gathered positions must be in range."""
    found: list[tuple[str, Poly]] = []
    for where, axis in zip(access.terms, access.node.axes, strict=True):
        at = resolve(flatten(where, axis.dim), forms)
        if any(isinstance(leaf, Gather) for leaf, _ in at.leaves) and not isinstance(axis.dim, Part):
            place = rewrite.place(at)
            found.append(("[]", predicates.at_least(place)))
            found.append(("[]", predicates.above(sub(rewrite.size(axis.dim), place))))
    return found


def _settle(rel: str, value: Poly, node: Node) -> list[Need]:
    """A need in its simplest parts; none if it always holds."""
    if rel == "[]":
        return _truths(value, node)
    single = value.single
    if rel == ">=":
        return [] if nonnegative(value) else [_need(">=", value)]
    if rel == ">" and (single is None or single[1] < 0 or not _nonnegative(single[0])):
        return [] if positive(value) else [_need(">", value)]
    if single is None:
        return [] if positive(value) or positive(neg(value)) else [_need("!=", value)]
    return [need for f, _ in single[0].factors for need in _nonzero(f, node)]


def _nonnegative(mono: Mono) -> bool:
    return all(nonnegative_factor(f, e) for f, e in mono.factors)


def _nonzero(factor: Factor, node: Node) -> list[Need]:
    value = of_factor(factor)
    if positive(value):
        return []
    if is_predicate(factor):
        return _truths(value, node)
    if isinstance(factor, Power):
        return _settle("!=", factor.base, node)
    if isinstance(factor, Size) and isinstance(factor.dim, Part) and factor.part is not None:
        return _truths(predicates.inhabited(factor.dim, factor.part), node)
    if isinstance(factor, Sum):
        guard = guards_of(factor)
        if guard.number != 1:
            return _truths(guard, node)
    return [_need("!=", value)]


def guards_of(factor: Sum) -> Poly:
    """Where a sum of positive terms that predicates guard is not 0: where a guard holds. 1 for other sums."""
    rest = tuple((f, e) for f, e in factor.body.factors if not is_predicate(f))
    if not positive_mono(Mono(rest, factor.body.exponent)):
        return ONE
    bound, body = rewrite.open_binder(factor)
    assert isinstance(body, Mono)
    guards = tuple((f, e) for f, e in body.factors if is_predicate(f))
    owners = {i: p for i in bound if isinstance(i.dim, Part) and (p := owner_of(body, i))}
    return maxima.exists(bound, of_mono(Mono(guards, ZERO)) if guards else ONE, owners)


def _truths(value: Poly, node: Node) -> list[Need]:
    """A predicate as the predicates that it is the conjunction of."""
    if value.number == 1:
        return []
    literals: list[Poly] = []
    for f in predicates_of(value):
        if not assign(value, f, False).terms:
            literals.append(of_factor(f))
            value = assign(value, f, True)
        elif not assign(value, f, True).terms:
            literals.append(predicates.complement(of_factor(f)))
            value = assign(value, f, False)
    if value.number != 1:
        literals.append(value)
    return [_need("[]", literal) for literal in literals if not _implied(literal, node)]


def _implied(claim: Poly, node: Node) -> bool:
    """Is a part certainly not empty, because an index of the node runs inside it?"""
    for part in claim.free:
        if isinstance(part.dim, Parts):
            within = Part(part.dim.of, part.dim.level)
            if any(i.dim == within for i in node.axes) and predicates.inhabited(within, var(part)) == claim:
                return True
    return False


def _need(rel: str, value: Poly) -> Need:
    return Need(rel, value, _closed(value, rel))


def _closed(value: Poly, rel: str) -> str:
    """A key of `for all indices: value rel 0`."""
    free = sorted(value.free, key=lambda i: (str(i.dim), i.number))
    union = next((i for i in free if isinstance(i.dim, Union)), None)
    if union is not None:
        return "&".join(sorted(_closed(piece, rel) for _, piece in sums.split_union(value, union)))
    pair = pair_of(free, (value,))
    if pair is not None:
        return _closed(rewrite.merge_part(value, *pair)[0], rel)
    return rel + Entry(free, ONE, value).key
