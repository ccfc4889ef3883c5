"""What a program needs to be defined: denominators that are not 0, roots and logs of what is not negative,
maxima of something where they are subtracted.

An equality of normal forms holds wherever both programs are defined. So what an element of the second
program's output needs, and neither follows from the facts nor is needed by that element of the first one's
too, is a condition of the equality. A condition is kept as a form with all indices bound but the output's,
so that the same need of two programs, on parts or on the whole of a dim, is one condition.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from cleave.algebra import laws, maxima, predicates, rewrite, sums
from cleave.algebra.arithmetic import add, assign, mul, neg, predicates_of, scale, sub
from cleave.algebra.demands import demands_of, instances, key_of
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
    Some,
    Sum,
    is_predicate,
    of_factor,
    of_mono,
    size_extent,
    terms_in,
)  # fmt: skip
from cleave.algebra.maxima import Raw
from cleave.algebra.normal import KEPT, Forms, as_truth, form_of, resolve
from cleave.algebra.parts import owner_of, pair_of
from cleave.algebra.predicates import complement
from cleave.algebra.rewrite import flatten
from cleave.algebra.show import friendly, show
from cleave.ir.dims import Dim, Index, Join, Part, Parts, Term, Union, term, term_key, var
from cleave.ir.ops import FLOATS, Access, Cat, Contract, Map, Node
from cleave.ir.program import Program

_known: dict[Node, tuple[Need, ...]] = {}


@dataclass(frozen=True)
class Need:
    """`value rel 0` for all values of its bound indices for which `guard` holds; `rel` is `!=`, `>` or `>=`,
    or `[]` for a predicate that must hold. `output` is the number of the output that reads it, whose axes
    stay free; `loose` if it may be more than what is read, or fail where the output is a number all the same.
    `key` is the same for the same need."""

    rel: str
    value: Poly
    key: str
    guard: Poly = ONE
    output: int = 0
    loose: bool = False
    parts: frozenset[int] = frozenset()
    """The parts of the output's axes, by the numbers of their indices, whose elements alone need it."""
    claim: Poly | None = None
    """For `[]` under a guard: what must hold where the guard does; `value` is then the implication."""
    signed: bool = False
    """Loose, as what is infinite may be so with either sign: an infinity is no reason not to be defined, as
    the least of it and a number is a number. Another program may have the same infinity."""

    def __str__(self) -> str:
        names = friendly(self.value.free | self.guard.free)
        text = show(self.value if self.claim is None else self.claim, names)
        where = "" if self.guard.number == 1 else f" where {show(self.guard, names)}"
        return (text if self.rel == "[]" else f"{text} {self.rel} 0") + where


def needs_of(program: Program, forms: Forms) -> dict[str, Need]:
    """All needs of a program by key, for each output what its elements need; those that always hold are left
    out."""
    own = {node: needs for node in forms if (needs := _own(node, forms))}
    found: dict[str, Need] = {}
    for number, output in enumerate(program.outputs if own else ()):
        for node, ways in demands_of(output, own, forms).items():
            for demand in ways:
                for need in own[node]:
                    loose = demand.loose or need.loose
                    for raw, parts in instances(need.value, node, demand):
                        for new in _placed(need.rel, raw, number, loose, parts):
                            new = replace(new, signed=need.signed)
                            if new.key not in found or _rank(new) > _rank(found[new.key]):
                                found[new.key] = new
    return found


def _own(node: Node, forms: Forms) -> tuple[Need, ...]:
    """The needs of one node, over its axes."""
    known = _known if laws.usual() else {}
    if len(known) > KEPT:
        known.clear()
    found = known.get(node)
    if found is None:
        found = tuple(x for rel, value in _raw(node, forms) for x in _settle(rel, value, node))
        for values, signed in ((_infinite(node, forms), False), (_either_sign(node, forms), True)):
            loose = [x for value in values for x in _settle("[]", value, node)]
            found += tuple(replace(x, loose=True, signed=signed) for x in loose)
        known[node] = found
    return found


def needs_at(node: Node, forms: Forms) -> frozenset[str]:
    """The keys of the needs of one node, not of what it reads."""
    return frozenset(need.key for need in _own(node, forms))


def missing(needed: dict[str, Need], given: dict[str, Need]) -> list[Need]:
    """The needs that are not among the given ones and do not follow from one of them."""
    known = {key for key, need in given.items() if not need.loose}
    alike = {key for key, need in given.items() if not need.loose or need.signed}
    if not laws.on("defined"):
        return []
    return [n for n in needed.values() if (alike if n.signed else known).isdisjoint(_stronger(n))]


def _rank(need: Need) -> int:
    """How much a need says."""
    return 2 * (not need.loose) + (not need.signed)


def _placed(rel: str, raw: Raw, output: int, loose: bool, parts: frozenset[int]) -> list[Need]:
    """A need of an output; none if it holds wherever its guard does."""
    bound, guard, value = raw
    if rel != "[]" or guard.number == 1:
        return [_need_of(rel, raw, output, loose, parts)]
    implied = add(complement(guard), mul(guard, value))
    if implied.number == 1:
        return []
    whole = _need_of(rel, (bound, ONE, implied), output, loose, parts)
    return [replace(whole, guard=guard, claim=value)]


def _need_of(
    rel: str, raw: Raw, output: int, loose: bool = False, parts: frozenset[int] = frozenset()
) -> Need:
    where = "".join(f" {n}" for n in sorted(parts))
    return Need(rel, raw[2], f"{output}{where} {rel}{key_of(raw)}", raw[1], output, loose, parts)


_ANY: frozenset[int] = frozenset()
_STRONGER = {"!=": ("!=", ">"), ">=": (">=", ">"), ">": (">",), "[]": ("[]",)}


def _stronger(need: Need) -> Iterator[str]:
    """The keys of needs that this one follows from: without its guard, of a stronger relation, for all
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
                    yield _need_of(rel, ([*bound, *some], guard, value), need.output, parts=parts).key


def _raw(node: Node, forms: Forms) -> list[tuple[str, Poly]]:
    """The needs of one node, as forms over its axes."""
    found: list[tuple[str, Poly]] = []
    if isinstance(node.op, Map):
        args = node.op.args
        match node.op.fn:
            case "div":
                found.append(("!=", _value(args[1], forms)))
            case "reciprocal":
                found.append(("!=", _value(args[0], forms)))
            case "rsqrt":
                found.append((">", _value(args[0], forms)))
            case "sqrt" | "log":
                found.append((">=", _value(args[0], forms)))
            case "pow":
                found += _power(_value(args[0], forms), form_of(args[1], forms).number)
            case "sub":
                found += [("[]", value) for value in _apart(args[0], args[1], forms)]
            case _:
                pass
    for access, guard in _guarded(node, forms):
        for rel, claim in _ranges(access, forms):
            whole = claim if guard.number == 1 else add(complement(guard), mul(guard, claim))
            found.append((rel, whole))
    return found


def _infinite(node: Node, forms: Forms) -> list[Poly]:
    """What has a normal form only where it is finite, and may be a number later where it is not: exp(inf) is
    inf, 1 / inf is 0, and an infinity is some integer or other."""
    op = node.op
    if isinstance(op, Map) and op.fn == "div":
        return [_finite(op.args[1], forms)]
    if isinstance(op, Map) and op.fn == "exp" and laws.on("bounded"):
        return [predicates.presence(neg(form_of(op.args[0], forms)))]
    if isinstance(op, Map) and op.fn == "cast" and node.dtype not in FLOATS and node.dtype != "bool":
        return [_finite(op.args[0], forms)]
    return []


def _either_sign(node: Node, forms: Forms) -> list[Poly]:
    """What has a normal form only where it is finite, else is an infinity of one sign or the other."""
    op = node.op
    if isinstance(op, Contract):
        return [_finite(a, forms) for a in op.args]
    match op:
        case Map("div", (above, _)):
            return [_finite(above, forms)]
        case Map("sub", (_, off)):
            return [_finite(off, forms)]
        case Map("mul", args):
            return [_scaled(a, b, forms) for a, b in (args, args[::-1])]
        case _:
            return []


def _apart(access: Access, off: Access, forms: Forms) -> list[Poly]:
    """What is taken off and what it is taken off from are not both infinite."""
    found: list[Poly] = []
    for value, other in (
        (forms[access.node], forms[off.node]),
        (neg(forms[access.node]), neg(forms[off.node])),
    ):
        if predicates.presence(other).number != 1 and predicates.presence(value).number != 1:
            sign = 1 if value is forms[access.node] else -1
            one, two = (predicates.presence(scale(form_of(a, forms), sign)) for a in (access, off))
            found.append(two if _shows(one, two) else predicates.either(one, two))
    return found


def _shows(p: Poly, q: Poly) -> bool:
    """Does `q` say that something exists, of which `p` shows one?"""
    if not isinstance(q.factor, Some) or len(q.factor.entries) != 1:
        return False
    bound, guard, _ = rewrite.open_entry(q.factor.entries[0])
    if len(bound) != 1 or (isinstance(bound[0].dim, Part) and owner_of(guard, bound[0]) is None):
        return False
    if isinstance(p.factor, Some) and len(p.factor.entries) == 1:
        p = rewrite.open_entry(p.factor.entries[0])[1]
    choices = {term_key(t): t for t in (*map(var, sorted(p.free, key=str)), *terms_in(p))}
    kind = Index if isinstance(bound[0].dim, Part) else Index | Join
    fits = [t for t in choices.values() if isinstance(t.leaf, kind) and _inside(t, bound[0].dim)]
    return any(mul(p, rewrite.substitute(guard, {bound[0]: t})) == p for t in fits)


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


def _value(access: Access, forms: Forms) -> Poly:
    """What is read; 1 if it is positive everywhere, however it is read."""
    own = forms[access.node]
    return ONE if positive(own) and _somewhere(own).number == 1 else form_of(access, forms)


def _finite(access: Access, forms: Forms) -> Poly:
    """Where what is read is finite."""
    own = predicates.finite(forms[access.node])
    return own if own.number is not None else predicates.finite(form_of(access, forms))


def _scaled(access: Access, other: Access, forms: Forms) -> Poly:
    """A factor that may be infinite needs to be there, unless the other one is positive."""
    return ONE if positive(forms[other.node]) else _finite(access, forms)


def _power(base: Poly, exponent: Fraction | None) -> list[tuple[str, Poly]]:
    if exponent is None:
        return [(">", base)]
    if exponent.denominator != 1:
        return [(">" if exponent < 0 else ">=", base)]
    return [("!=", base)] if exponent < 0 else []


def _ranges(access: Access, forms: Forms) -> list[tuple[str, Poly]]:
    """Positions must be in range: gathered ones, and those that the ranges of indices do not bound."""
    found: list[tuple[str, Poly]] = []
    for where, axis in zip(access.terms, access.node.axes, strict=True):
        at = resolve(flatten(where, axis.dim), forms)
        if not _inside(at, axis.dim) and laws.on("reads-inside"):
            place = rewrite.place(at)
            found.append(("[]", predicates.at_least(place)))
            found.append(("[]", predicates.above(sub(rewrite.size(axis.dim), place))))
    return found


def _inside(at: Term, dim: Dim) -> bool:
    """Is a term always a position in a dim?"""
    match at.leaf:
        case Index(own):
            return own == dim
        case Join(_, within):
            own = within.variable
            return own is not None and isinstance(own.dim, Part) and own.dim.of == dim
        case _:
            return isinstance(dim, Part)  # what is joined is looked at as a whole


def _settle(rel: str, value: Poly, node: Node) -> list[Need]:
    """A need in its simplest parts; none if it always holds."""
    if rel == "[]":
        return _truths(value, node)
    single = value.single
    if rel == ">=":
        return [] if nonnegative(value) else [_need(">=", value)]
    if positive(value):
        return _truths(_somewhere(value), node)
    if rel == ">" and (single is None or single[1] < 0 or not _nonnegative(single[0])):
        return [_need(">", value)]
    if positive(neg(value)):
        return _truths(_somewhere(neg(value)), node)
    if single is None:
        return [_need("!=", value)]
    there = _truths(predicates.presence(single[0].exponent), node)
    return [*there, *(need for f, _ in single[0].factors for need in _nonzero(f, node))]


def _somewhere(value: Poly) -> Poly:
    """Where a positive value is not 0 after all: where an exponent of it is not -inf."""
    nowhere = [complement(_there(m)) for m in value.terms if positive_mono(m)]
    return complement(mul(*nowhere)) if all(n.number != 0 for n in nowhere) else ONE


def _there(mono: Mono) -> Poly:
    """Where the exponentials in a positive product are not 0."""
    inner = [guards_of(f) for f, _ in mono.factors if isinstance(f, Sum)]
    inner += [_somewhere(f.base) for f, _ in mono.factors if isinstance(f, Power)]
    return mul(predicates.presence(mono.exponent), *inner)


def _nonnegative(mono: Mono) -> bool:
    return all(nonnegative_factor(f, e) for f, e in mono.factors)


def _nonzero(factor: Factor, node: Node) -> list[Need]:
    value = of_factor(factor)
    if positive(value):
        return _truths(_somewhere(value), node)
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
    guards = tuple((f, e) for f, e in body.factors if is_predicate(f) and e > 0)
    owners = {i: p for i in bound if isinstance(i.dim, Part) and (p := owner_of(body, i))}
    there = _there(Mono(tuple((f, e) for f, e in body.factors if not is_predicate(f)), body.exponent))
    guard = mul(of_mono(Mono(guards, ZERO)) if guards else ONE, there)
    return maxima.exists(bound, guard, owners)


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
