"""The laws of certificates: templates that give the new term, each with its side condition.

A law gets a term (one atom, or one product) and gives what it is equal to, or None where it does not apply or
its side condition is not known to hold. All are equalities of total functions of the inputs (see `ir.terms`).
Here are those of sums, of what exists, and of maxima; those of functions are in `ir.implications`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from cleave.ir.dims import Part, Parts, Union
from cleave.ir.terms import (
    ONE,
    ZERO,
    Atom,
    Binders,
    Mono,
    Number,
    Poly,
    Raw,
    Var,
    arg,
    close,
    const,
    entries,
    exp,
    guarded,
    integer,
    largest,
    log,
    may_be_empty,
    of,
    of_atom,
    opened,
    plus,
    power,
    relate,
    rewrite,
    shape,
    size,
    subst,
    times,
    truth,
)


class Facts(Protocol):
    """What is known of terms."""

    def positive(self, value: Poly) -> bool: ...
    def holds(self, value: Poly, rel: str) -> bool: ...
    def least(self, value: Poly) -> int: ...
    def sign(self, a: Atom, e: Number = 1) -> int: ...
    def size(self, a: Atom) -> Poly | None: ...


# ---------------------------------------------------------------- laws: each gives the new term, or None

Law = Callable[[Facts, Poly, str], "Poly | None"]
LAWS: dict[str, Law] = {}


def law(name: str) -> Callable[[Law], Law]:
    def named(f: Law) -> Law:
        LAWS[name] = f
        return f

    return named


def binding(x: Poly, *heads: str) -> tuple[str, Binders, Poly] | None:
    if x.atom is None or x.atom.head not in heads:
        return None
    b, bodies = opened(x.atom)
    return x.atom.head, b, bodies[0]


def components(m: Mono, b: Binders) -> tuple[Poly, list[tuple[Binders, Poly]]]:
    """What leaves the binders, and the factors that each group of connected variables binds."""
    own = {v for v, _ in b}
    pieces: list[tuple[frozenset[Var], Poly]] = [
        (frozenset([v]) | (o.free if o else frozenset()), ONE) for v, o in b
    ]
    for a, e in m:
        whole = [exp(Poly({n: c})) for n, c in arg(a).terms.items()] if a.head == "exp" else [of_atom(a, e)]
        pieces += [(piece.free, piece) for piece in whole]
    outer, groups = (
        [p for free, p in pieces if free.isdisjoint(own)],
        list[tuple[frozenset[Var], list[Poly]]](),
    )
    for free, piece in pieces:
        if used := free & own:
            near = [g for g in groups if g[0] & used]
            groups = [g for g in groups if not g[0] & used]
            groups.append(
                (used.union(*(g[0] for g in near)), [*itertools.chain(*(g[1] for g in near)), piece])
            )
    return times(*outer), [(tuple(v for v in b if v[0] in used), times(*ps)) for used, ps in groups]


@law("sum-part")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """sum(f + g) = sum f + sum g; sum_i,j f(i) g(j) = sum_i f sum_j g; factors without the index leave."""
    head, b, body = binding(x, "sum", "some") or ("", (), ZERO)
    if head == "some" and (not body.single or body.single[1] != 1):
        return None
    split = [(components(m, b), c) for m, c in body.terms.items()]
    return (
        plus(*(times(outer, *(close(head, own, p) for own, p in parts)) * c for (outer, parts), c in split))
        if head
        else None
    )


@law("sum-open")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """sum_i a sum_j b = sum_i,j a b."""
    head, b, body = binding(x, "sum", "some") or ("", (), ZERO)
    if not body.single or (head == "some" and body.single[1] != 1):
        return None
    own, kept = {v for v, _ in b}, [const(body.single[1])]
    for a, e in body.single[0]:
        inner = (
            [opened(a) for _ in range(int(e))]
            if a.head == head and e.denominator == 1 and 0 < e <= 4 and a.free & own
            else []
        )
        kept += [bodies[0] for _, bodies in inner] or [of_atom(a, e)]
        b = tuple(itertools.chain(b, *(more for more, _ in inner)))
    return close(head, b, times(*kept)) if head else None


@law("sum-size")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """sum_K 1 = |K|; the sum of the sizes of parts is the size of the whole."""
    found = binding(x, "sum")
    if found is None:
        return None
    _, b, body = found
    for v, owner in b:
        rest = tuple(o for o in b if o[0] != v)
        if v not in body.free.union(*(o.free for _, o in rest if o)):
            return close("sum", rest, body * size(v[0], owner))
    part = body.atom.args[0] if len(b) == 1 and body.atom and body.atom.head == "size" else None
    if body.atom is None or not isinstance(part, Part) or b[0][0][0] != Parts(part.of, part.level):
        return None
    return size(part.of) if body.atom.args[1] == of("ix", b[0][0]) else None


def united(b: Binders, bodies: Sequence[Poly]) -> Iterator[tuple[Binders, list[Poly]]]:
    """For each part of the first union that a variable runs over: the binders and the bodies there."""
    for v, _ in b:
        if isinstance(v[0], Union) and not may_be_empty(v[0]):
            rest = tuple(o for o in b if o[0] != v)
            for k, dim in enumerate(v[0].parts):
                new = (dim, "?", v[2])
                where = {v: plus(of("ix", new), *map(size, v[0].parts[:k]))}
                yield (
                    (*((w, subst(o, where) if o else o) for w, o in rest), (new, None)),
                    [subst(y, where) for y in bodies],
                )
            return


def joined(b: Binders, bodies: Sequence[Poly]) -> tuple[Binders, list[Poly]] | None:
    """A number of a part and an index in it, that occur only joined, as one index over the whole."""
    for v, owner in b:
        p = owner.atom.args[0] if owner and owner.atom and owner.atom.head == "ix" else None
        if isinstance(v[0], Part) and p in {w for w, _ in b} and not may_be_empty(v[0].of):
            new, rest = (v[0].of, "?", v[2]), tuple(o for o in b if o[0] not in (v, p))
            text = of("join", v[0], owner, of("ix", v)).text
            after = [
                rewrite(y, lambda x, t=text, n=new: of("ix", n) if x.text == t else None) for y in bodies
            ]
            if not {v, p} & frozenset[Var]().union(*(y.free for y in after), *(o.free for _, o in rest if o)):
                return (*rest, (new, None)), after
    return None


@law("sum-union")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """sum_(A|B) f = sum_A f + sum_B f."""
    head, b, body = binding(x, "sum", "some") or ("", (), ZERO)
    parts = [close(head, own, y) for own, (y,) in united(b, [body])]
    return None if not parts else plus(*parts) if head == "sum" else ONE - times(*(ONE - p for p in parts))


@law("sum-split")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """sum_p sum_(i in part p) f(p:i) = sum_K f."""
    head, b, body = binding(x, "sum", "some") or ("", (), ZERO)
    found = joined(b, [body])
    return close(head, found[0], found[1][0]) if found else None


@law("one-hot")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """sum_v [v = t] f(v) = [0 <= t < |V|] f(t), and the same for a maximum."""
    if x.atom and x.atom.head == "max":
        found = raws(x)
        for k, (b, g, value) in enumerate(found):
            for v, at in fixed(b, g):
                where, rest = {v: at}, tuple(o for o in b if o[0] != v)
                inside = relate(">=", at) * relate(">", size(v[0]) - at) * subst(g, where)
                return largest([*found[:k], (rest, inside, subst(value, where)), *found[k + 1 :]])
    head, b, body = binding(x, "sum", "some") or ("", (), ZERO)
    for v, at in fixed(b, body):
        rest = close(head, tuple(o for o in b if o[0] != v), subst(body, {v: at}))
        return relate(">=", at) * relate(">", size(v[0]) - at) * rest
    return None


def fixed(b: Binders, body: Poly) -> Iterator[tuple[Var, Poly]]:
    """Variables that a predicate in a product fixes, and their values."""
    for a, _ in body.single[0] if body.single else ():
        for (v, _o), sign in itertools.product(b, (1, -1)) if a.head == "is" and a.args[0] == "=" else ():
            at = of("ix", v) - arg(a, 1) * sign
            others = at.free.union(*(o.free for _, o in b if o))
            if v not in others and integer(at) and not may_be_empty(v[0]):
                yield v, at


# ---------------------------------------------------------------- maxima


def raws(x: Poly) -> list[Raw]:
    if x.atom is None or x.atom.head != "max":
        return []
    return [(b, g, v) for b, (g, v) in map(opened, entries(x.atom))]


def present(found: Sequence[Raw]) -> Poly:
    """Is there anything to be the largest?"""
    return ONE - times(*(ONE - close("some", b, g) for b, g, _ in found))


@law("max-flat")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """max_i (a + c max_j b) = max_i,j (a + c b) for c > 0; an entry with a predicate is two entries."""
    found = raws(x)
    for k, (b, g, v) in enumerate(found):
        for m, c in v.terms.items():
            for a, e in m if c > 0 else ():
                by = times(const(c), *(of_atom(f, p) for f, p in m if f != a))
                there = present(raws(of_atom(a)))
                if a.head != "max" or e != 1 or not known.positive(by) or (g * there).text != g.text:
                    continue
                rest = Poly({n: d for n, d in v.terms.items() if n != m})
                own = Poly({tuple(f for f in n if f[0] != there.atom): d for n, d in g.terms.items()})
                more = [((*b, *o), own * h, rest + by * w) for o, h, w in raws(of_atom(a))]
                return largest([*found[:k], *more, *found[k + 1 :]])
        if q := first_truth([v]):
            p = of_atom(q)
            two = [(b, g * p, assign(v, q, 1)), (b, g * (ONE - p), assign(v, q, 0))]
            return largest([*found[:k], *two, *found[k + 1 :]])
    return None


@law("max-union")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """max_(A|B) f = max(max_A f, max_B f)."""
    found: list[Raw] = []
    for b, g, v in raws(x):
        parts = [(own, ys[0], ys[1]) for own, ys in united(b, [g, v])]
        found += parts or [(b, g, v)]
    return largest(found) if len(found) > len(raws(x)) else None


@law("max-split")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """max_p max_(i in part p) f(p:i) = max_K f."""
    found: list[Raw] = []
    for b, g, v in raws(x):
        both = joined(b, [g, v])
        found.append((both[0], both[1][0], both[1][1]) if both else (b, g, v))
    return largest(found) if found else None


@law("max-part")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """max_i (a + b(i)) = a + max_i b, max_i,j (a(i) + b(j)) = max_i a + max_j b, where there is anything."""
    found = raws(x)
    if len(found) > 1:
        own = {v for b, _, _ in found for v, _ in b}
        same = [m for m, c in found[0][2].terms.items() if all(v.terms.get(m) == c for _, _, v in found)]
        shift = Poly({m: found[0][2].terms[m] for m in same if not own & Poly({m: 1}).free})
        return (
            present(found) * shift + largest([(b, g, v - shift) for b, g, v in found])
            if shift.terms
            else None
        )
    for b, g, v in found:
        single = (g * exp(v)).single
        if single is None or single[1] != 1 or guarded(g)[1].number != 1:
            return None
        outer, groups = components(single[0], b)
        parts = [(own, *parted(p)) for own, p in groups]
        guard, shift = parted(outer)
        total = times(shift, *(present([part]) for part in parts))
        for k, part in enumerate(parts):
            others = times(*(present([p]) for n, p in enumerate(parts) if n != k))
            total = total + (largest([part]) * others if part[2].terms else ZERO)
        return guard * total
    return None


def parted(value: Poly) -> tuple[Poly, Poly]:
    """`g exp(v)` as g and v."""
    guard, rest = guarded(value)
    return guard, log(rest) if rest.number != 1 else ZERO


@law("max-cap")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """max_i,j min(a(i, j), b(j)) = max_j min(max_i a(i, j), b(j)); a minimum is -max of what is negated."""
    found = raws(x)
    for k, (b, g, v) in enumerate(found):
        m, c = v.single or ((), 0)
        least = raws(of_atom(m[0][0])) if c < 0 and len(m) == 1 and m[0][1] == 1 else []
        if any(own or there.number != 1 for own, there, _ in least):
            continue
        for i, _o in b:
            caps = [u for _, _, u in least if i not in u.free]
            rest = tuple(o for o in b if o[0] != i)
            if not 0 < len(caps) < len(least) or any(o and i in o.free for _, o in rest):
                continue
            own = tuple(o for o in b if o[0] == i)
            inner = largest([(own, g, largest([((), ONE, u) for _, _, u in least if i in u.free]) * -1)])
            capped = largest([((), ONE, inner * -1), *(((), ONE, u) for u in caps)])
            return largest([*found[:k], (rest, close("some", own, g), capped * c), *found[k + 1 :]])
    return None


@law("max-exp")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """max c exp f = c exp max f for c > 0, where there is anything."""
    found, lead = raws(x), None
    inner: list[Raw] = []
    for b, g, v in found:
        m, c = v.single or ((), -1)
        exponent = plus(ZERO, *(arg(a) for a, _ in m if a.head == "exp"))
        by = Poly({tuple(f for f in m if f[0].head != "exp"): c})
        if (
            not known.positive(by)
            or by.free & {w for w, _ in b}
            or (lead is not None and by.text != lead.text)
        ):
            return None
        lead = by
        inner.append((b, g, exponent))
    if lead is None or not any(v.terms for _, _, v in inner):
        return None
    return lead * present(found) * exp(largest(inner))


@law("max-scale")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """max c f = c max f for c > 0."""
    found = raws(x)
    monos = [m for _, _, v in found for m in v.terms]
    if not monos:
        return None
    own = {v for b, _, _ in found for v, _ in b}
    common = [
        f for f in monos[0] if all(f in m for m in monos) and not f[0].free & own and known.sign(*f) == 2
    ]
    by = times(*(of_atom(*f) for f in common)) * max(abs(c) for _, _, v in found for c in v.terms.values())
    return None if by.number == 1 else by * largest([(b, g, v * power(by, -1)) for b, g, v in found])


@law("max-pair")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """max(a, b) = b + [a - b >= 0] (a - b), by cases; b may be the largest of several."""
    found = raws(x)
    plain = [k for k, (b, g, _) in enumerate(found) if not b and g.number == 1]
    others = [e for k, e in enumerate(found) if k != plain[0]] if plain else []
    if not others or present(others).number != 1:
        return None
    a, b = found[plain[0]][2], largest(others)
    a, b = (a, b) if relate(">=", a - b).atom else (b, a)
    return b + relate(">=", a - b) * (a - b)


def first_truth(values: Sequence[Poly]) -> Atom | None:
    """The first predicate that multiplies a term."""
    found = {a for v in values for m in v.terms for a, _ in m if truth(a)}
    return min(found, key=lambda a: (shape(((a, 1),)), a.text), default=None)


def assign(value: Poly, q: Atom, to: int) -> Poly:
    """The value with a predicate set to 0 or 1 wherever it multiplies a term."""
    has = [(m, c, any(a == q for a, _ in m)) for m, c in value.terms.items()]
    return plus(
        ZERO, *(Poly({tuple(f for f in m if f[0] != q): c}) for m, c, there in has if to or not there)
    )
