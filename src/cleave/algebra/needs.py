"""What one node needs to be a number: denominators that are not 0, roots and logs of what is not negative,
and no `inf - inf`, `0 * inf` or `inf / inf` (design.md, section 3).

An infinity is no reason not to be a number: `exp(-inf)` is 0, `1 / inf` is 0, and the least of inf and a
number is a number. So an operation needs only that it does not make NaN of what it is given; `infinite` says
where what it is given may be infinite. What a comparison makes of two infinities is no limit of what it makes
of numbers, so it needs that they are not both infinite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from cleave.algebra import laws, predicates, rewrite, sums
from cleave.algebra.arithmetic import add, assign, masked_of, mul, neg, predicates_of, sub
from cleave.algebra.demands import Demand
from cleave.algebra.facts import nonnegative, nonnegative_factor, positive, positive_factor
from cleave.algebra.forms import (
    ONE,
    Entry,
    Factor,
    Mono,
    Poly,
    Power,
    Size,
    Sum,
    fresh,
    is_predicate,
    of_factor,
    size_extent,
)  # fmt: skip
from cleave.algebra.infinite import (
    ALWAYS,
    Claim,
    either_of,
    finite,
    guards_of,
    high,
    is_position,
    low,
    somewhere,
    there,
)
from cleave.algebra.maxima import exists
from cleave.algebra.normal import KEPT, Forms, as_truth, form_of, owners_of, resolve
from cleave.algebra.numbers import always_finite
from cleave.algebra.parts import pair_of
from cleave.algebra.predicates import complement
from cleave.algebra.rewrite import flatten
from cleave.algebra.show import friendly, show
from cleave.ir.dims import Index, Part, Parts, Union, term, var
from cleave.ir.ops import FLOATS, Access, Cat, Contract, Map, Node, Reduce

_known: dict[Node, tuple[Need, ...]] = {}

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")


@dataclass(frozen=True)
class Need:
    """`value rel 0` for all values of its bound indices for which `guard` holds; `rel` is `!=`, `>` or `>=`,
    or `[]` for a predicate that must hold. `output` is the number of the output that reads it, whose axes
    stay free; `loose` if it may be more than what is read, or fail where the output is a number all the same.
    `key` is the same for the same need of a program; a node's own needs have none."""

    rel: str
    value: Poly
    key: str = ""
    guard: Poly = ONE
    output: int = 0
    loose: bool = False
    parts: frozenset[int] = frozenset()
    """The parts of the output's axes, by the numbers of their indices, whose elements alone need it."""
    claim: Poly | None = None
    """For `[]` under a guard: what must hold where the guard does; `value` is then the implication."""
    discrete: bool = False
    """A comparison of infinities, or hidden by a comparison: a condition whichever program has it."""
    made: bool = True
    """The operation makes NaN of what it is given; else what it is given is not there."""
    sources: tuple[tuple[Node, Demand], ...] = ()
    """The nodes that have the need, and how the output reads them."""

    def __str__(self) -> str:
        names = friendly(self.value.free | self.guard.free)
        text = show(self.value if self.claim is None else self.claim, names)
        where = "" if self.guard.number == 1 else f" where {show(self.guard, names)}"
        return (text if self.rel == "[]" else f"{text} {self.rel} 0") + where


def needs_at(node: Node, forms: Forms) -> frozenset[str]:
    """The keys of the needs of one node, not of what it reads."""
    return frozenset(_closed(need.value, need.rel) for need in needs_of_node(node, forms))


def needs_of_node(node: Node, forms: Forms) -> tuple[Need, ...]:
    """The needs of one node, over its axes."""
    known = _known if laws.usual() else {}
    if len(known) > KEPT:
        known.clear()
    found = known.get(node)
    if found is None:
        made = [need for rel, value in _signs(node, forms) for need in _settle(rel, value, node)]
        for claim in _no_nan(node, forms):
            made += _truths(claim, node)
        for claim in _comparable(node, forms):
            made += [replace(need, discrete=True) for need in _truths(claim, node)]
        read = [need for value in _inside_of(node, forms) for need in _truths((value, True), node)]
        found = known[node] = (*made, *(replace(need, made=False) for need in read))
    return found


# What an operation needs.


def _signs(node: Node, forms: Forms) -> Iterator[tuple[str, Poly]]:
    """What must not be 0, or must be positive, or not negative."""
    if not isinstance(node.op, Map):
        return
    args = node.op.args
    match node.op.fn:
        case "div" | "floordiv" | "mod":
            yield "!=", _value(args[1], forms)
        case "reciprocal":
            yield "!=", _value(args[0], forms)
        case "rsqrt":
            yield ">", _value(args[0], forms)
        case "sqrt" | "log":
            yield ">=", _value(args[0], forms)
        case "pow":
            yield from _power(_value(args[0], forms), form_of(args[1], forms).number)
        case _:
            pass


def _power(base: Poly, exponent: Fraction | None) -> list[tuple[str, Poly]]:
    if exponent is None:
        return [(">", base)]
    if exponent.denominator != 1:
        return [(">" if exponent < 0 else ">=", base)]
    return [("!=", base)] if exponent < 0 else []


def _no_nan(node: Node, forms: Forms) -> Iterator[Claim]:
    """What keeps infinities from making NaN."""
    match node.op:
        case Map("add" | "sub" as fn, (one, two)):
            yield from _apart(one, two, 1 if fn == "add" else -1, forms)
        case Map("mul", args):
            yield from _scaled(args, forms)
        case Map("div", (above, below)):
            yield either_of(_finite(above, forms), _finite(below, forms))
        case Map("sin" | "cos", (arg,)):
            yield _finite(arg, forms)
        case Map("floordiv" | "mod", args):
            yield from ((_finite(a, forms)[0], False) for a in args)
        case Map("pow", args) if form_of(args[1], forms).number is None:
            yield from ((_finite(a, forms)[0], False) for a in args)
        case Map("cast", (arg,)) if node.dtype not in FLOATS and node.dtype != "bool":
            yield _finite(arg, forms)
        case Contract(_, args):
            if any(_finite(a, forms)[0].number != 1 for a in args):
                yield from (_everywhere(claim, node) for claim in _scaled(args, forms))
                yield from _alike(node, mul(*(form_of(a, forms) for a in args)), forms)
        case Reduce("sum", _, arg) if node.dtype in FLOATS:
            yield from _alike(node, form_of(arg, forms), forms)
        case Reduce("prod", _, arg):
            yield _everywhere((_finite(arg, forms)[0], False), node)
        case _:
            pass


def _apart(one: Access, two: Access, sign: int, forms: Forms) -> Iterator[Claim]:
    """Two values that are added are not infinities of unlike signs."""
    if always_finite(one.node) or always_finite(two.node):
        return
    for up in (True, False):
        first, second = (high, low) if up else (low, high)
        if sign < 0:
            second = first
        if first(forms[one.node])[0].number != 1 and second(forms[two.node])[0].number != 1:
            (p, sure), (q, too) = first(form_of(one, forms)), second(form_of(two, forms))
            yield either_of((p, sure), (q, too))


def _scaled(args: tuple[Access, ...], forms: Forms) -> Iterator[Claim]:
    """What is infinite is not multiplied with 0."""
    for n, access in enumerate(args):
        bounded = _finite(access, forms)
        if bounded[0].number != 1:
            for other in args[:n] + args[n + 1 :]:
                value = forms[other.node]
                sign = 1 if positive(value) else -1 if positive(neg(value)) else 0
                if not sign:
                    yield bounded[0], False
                elif somewhere(value if sign > 0 else neg(value))[0].number != 1:
                    moved = form_of(other, forms)
                    yield either_of(bounded, somewhere(moved if sign > 0 else neg(moved)))


def _alike(node: Node, value: Poly, forms: Forms) -> Iterator[Claim]:
    """The terms of a sum are not infinities of unlike signs."""
    if all(always_finite(access.node) for access in node.args):
        return
    sides = low(value), high(value)
    if all(claim.number != 1 for claim, _ in sides):
        (p, sure), (q, too) = (_everywhere(side, node) for side in sides)
        yield either_of((p, sure), (q, too))


def _everywhere(claim: Claim, node: Node) -> Claim:
    """A claim for all values of a reduction's indices; where there are none it holds."""
    if claim[0].number == 1:
        return claim
    new = {i: fresh(i.dim) for i in node.bound}
    nowhere = rewrite.rename(complement(claim[0]), new)
    return complement(exists(list(new.values()), nowhere, owners_of(node, new))), claim[1]


def _comparable(node: Node, forms: Forms) -> Iterator[Claim]:
    """Where two values that are compared are not both -inf, nor both inf."""
    if not isinstance(node.op, Map) or node.op.fn not in COMPARISONS:
        return
    if any(a.node.dtype not in FLOATS or always_finite(a.node) for a in node.op.args):
        return
    for sign in (1, -1):
        own = [forms[a.node] if sign > 0 else neg(forms[a.node]) for a in node.op.args]
        if all(low(masked_of(value)[1])[0].number != 1 and masked_of(value)[0].terms for value in own):
            values = [form_of(a, forms) if sign > 0 else neg(form_of(a, forms)) for a in node.op.args]
            p, q = (low(masked_of(value)[1])[0] for value in values)
            yield either_of((p, False), (q, False))[0], False


def _value(access: Access, forms: Forms) -> Poly:
    """What is read; 1 if it is positive everywhere, however it is read."""
    own = forms[access.node]
    return ONE if positive(own) and somewhere(own)[0].number == 1 else form_of(access, forms)


def _finite(access: Access, forms: Forms) -> Claim:
    """Where what is read is finite."""
    if always_finite(access.node):
        return ALWAYS
    own = finite(forms[access.node])
    return own if own[0].number is not None else finite(form_of(access, forms))


# What is read must be there.


def _inside_of(node: Node, forms: Forms) -> Iterator[Poly]:
    """Positions in range, where a node reads at them."""
    for access, guard in _guarded(node, forms):
        for claim in _ranges(access, forms):
            yield claim if guard.number == 1 else add(complement(guard), mul(guard, claim))


def _guarded(node: Node, forms: Forms) -> list[tuple[Access, Poly]]:
    """What a node reads, and where."""
    op = node.op
    if isinstance(op, Map) and op.fn == "select" and laws.on("guarded-need"):
        if not any(t.variable is None for a in node.args for t in a.terms):
            return []
        truth = as_truth(form_of(op.args[0], forms))
        guards = (ONE, truth, complement(truth))
        return [*zip(op.args, guards, strict=True), *((a, ONE) for a in node.reads if a not in op.args)]
    if isinstance(op, Cat):
        own = node.axes[op.axis]
        assert isinstance(own.dim, Union)
        found: list[tuple[Access, Poly]] = []
        for number, (part, piece) in enumerate(zip(own.dim.parts, op.pieces, strict=True)):
            local = term((own, 1), offset=-size_extent(own.dim.parts[:number]))
            guard = predicates.in_range(rewrite.place(local), rewrite.size(part))
            found.append((piece.at({Index(part, own.number): local}), guard))
        return found
    return [(a, ONE) for a in node.reads]


def _ranges(access: Access, forms: Forms) -> Iterator[Poly]:
    """Positions must be in range: gathered ones, and those that the ranges of indices do not bound."""
    for where, axis in zip(access.terms, access.node.axes, strict=True):
        at = resolve(flatten(where, axis.dim), forms)
        if not is_position(at, axis.dim) and laws.on("reads-inside"):
            place = rewrite.place(at)
            yield predicates.at_least(place)
            yield predicates.above(sub(rewrite.size(axis.dim), place))


# Needs in their simplest parts.


def _settle(rel: str, value: Poly, node: Node) -> list[Need]:
    """A need in its simplest parts; none if it always holds."""
    single = value.single
    if rel == ">=":
        return [] if nonnegative(value) else [_need(">=", value)]
    if positive(value):
        return _truths(somewhere(value), node)
    if rel == ">" and (single is None or single[1] < 0 or not _nonnegative(single[0])):
        return [_need(">", value)]
    if positive(neg(value)):
        return _truths(somewhere(neg(value)), node)
    if single is None:
        return [_need("!=", value)]
    own = Mono(tuple((f, e) for f, e in single[0].factors if e < 0), single[0].exponent)
    return [
        *_truths(there(own), node),
        *(
            need
            for f, e in single[0].factors
            if e > 0 or not positive_factor(f, e)
            for need in _nonzero(f, node)
        ),
    ]


def _nonnegative(mono: Mono) -> bool:
    return all(nonnegative_factor(f, e) for f, e in mono.factors)


def _nonzero(factor: Factor, node: Node) -> list[Need]:
    value = of_factor(factor)
    if positive(value):
        return _truths(somewhere(value), node)
    if is_predicate(factor):
        return _truths((value, True), node)
    if isinstance(factor, Power):
        return _settle("!=", factor.base, node)
    if isinstance(factor, Size) and isinstance(factor.dim, Part) and factor.part is not None:
        return _truths((predicates.inhabited(factor.dim, factor.part), True), node)
    if isinstance(factor, Sum):
        guard = guards_of(factor)
        if guard.number != 1:
            return _truths((guard, True), node)
    return [_need("!=", value)]


def _truths(claim: Claim, node: Node) -> list[Need]:
    """A predicate as the predicates that it is the conjunction of."""
    value, exact = claim
    if value.number == 1:
        return []
    literals: list[Poly] = []
    for f in predicates_of(value):
        if not assign(value, f, False).terms:
            literals.append(of_factor(f))
            value = assign(value, f, True)
        elif not assign(value, f, True).terms:
            literals.append(complement(of_factor(f)))
            value = assign(value, f, False)
    if value.number != 1:
        literals.append(value)
    found = [_need("[]", literal) for literal in literals if not _implied(literal, node)]
    return found if exact else [replace(need, loose=True) for need in found]


def _implied(claim: Poly, node: Node) -> bool:
    """Is a part certainly not empty, because an index of the node runs inside it?"""
    for part in claim.free:
        if isinstance(part.dim, Parts):
            within = Part(part.dim.of, part.dim.level)
            if any(i.dim == within for i in node.axes) and predicates.inhabited(within, var(part)) == claim:
                return True
    return False


def _need(rel: str, value: Poly) -> Need:
    return Need(rel, value)


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


__all__ = ["Need", "needs_at", "needs_of_node"]
