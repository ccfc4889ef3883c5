"""The laws of certificates on functions and predicates (see `ir.identities`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from cleave.ir.dims import Part
from cleave.ir.identities import LAWS, Facts, assign, first_truth, law
from cleave.ir.terms import (
    ONE,
    ZERO,
    Atom,
    Mono,
    Poly,
    Var,
    arg,
    close,
    const,
    dim_of,
    exp,
    guarded,
    largest,
    log,
    lower,
    of,
    of_atom,
    opened,
    plus,
    power,
    relate,
    subst,
    times,
    truth,
)

__all__ = ["LAWS"]  # complete with this module


@law("case")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """f([p] a + (1 - [p]) b) = [p] f(a) + (1 - [p]) f(b)."""
    ((a, e),) = x.single[0] if x.single and len(x.single[0]) == 1 else ((Atom("", ()), 1),)
    values = [y for y in a.args if isinstance(y, Poly)] if a.head in ("exp", "log", "pow", "is", "fn") else []
    q = first_truth(values)
    if q is None:
        return None
    two: list[Poly] = []
    for to in (1, 0):
        new = [assign(y, q, to) if isinstance(y, Poly) else y for y in a.args]
        if a.head == "pow" and known.least(new[0]) != 2:  # type: ignore[arg-type]
            return None
        made = {"exp": exp, "log": log, "pow": lambda y: power(y, e), "is": lambda r, y: relate(r, y)}  # type: ignore[misc]
        two.append(made[a.head](*new) if a.head in made else of(a.head, *new))  # type: ignore[operator]
    return two[1] + of_atom(q) * (two[0] - two[1])


@law("exp-log")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """exp(b + c log a) = a^c exp(b) for a > 0."""
    for m, c in arg(x.atom).terms.items() if x.atom and x.atom.head == "exp" else ():
        if len(m) == 1 and m[0][0].head == "log" and m[0][1] == 1 and known.positive(base := arg(m[0][0])):
            return power(base, c) * exp(arg(x.atom) - Poly({m: c}))  # type: ignore[arg-type]
    return None


@law("content")
def _(known: Facts, x: Poly, detail: str) -> Poly | None:
    """(c m r)^e = c^e m^e r^e and log(c m r) = log c + log m + log r for c, m > 0 (m not 0, for whole e). The
    detail says which term of the base has m, and its factors in m, by number."""
    ((a, e),) = x.single[0] if x.single and len(x.single[0]) == 1 else ((Atom("", ()), 1),)
    if a.head not in ("pow", "log") or (a.head == "log" and e != 1):
        return None
    term, _, numbers = detail.partition(":")
    (m, c), whole = list(arg(a).terms.items())[int(term)], a.head == "pow" and e.denominator == 1
    chosen = [m[int(n)] for n in numbers.split(",") if n]
    fine = all(known.sign(*f) == 2 or (whole and known.holds(of_atom(f[0]), "!= 0")) for f in chosen)
    if a.head == "log":
        fine = known.positive(arg(a)) and all(known.sign(f) == 2 for f, _ in chosen)
    if not fine:
        return None
    lead = [const(abs(c)), *(of_atom(*f) for f in chosen)]
    rest = arg(a) * power(times(*lead), -1)
    if a.head == "pow":
        return times(*(power(f, e) for f in lead), power(rest, e))
    return plus(
        log(rest), log(lead[0]), *(arg(f) if f.head == "exp" else log(of_atom(f)) * p for f, p in chosen)
    )


@law("magnitude")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """(a^2 r)^e = |a|^(2 e) r^e; log(a^2 r) = 2 log|a| + log r."""
    ((a, e),) = x.single[0] if x.single and len(x.single[0]) == 1 else ((Atom("", ()), 1),)
    m, c = arg(a).single or ((), 0) if a.head in ("pow", "log") else ((), 0)
    even = [f for f in m if f[1].denominator == 1 and f[1].numerator % 2 == 0]
    if not even or c < 0 or (a.head == "log" and not known.positive(arg(a))):
        return None
    rest = Poly({tuple(f for f in m if f not in even): c})
    sizes = [
        (of_atom(f) if known.sign(f) else largest([((), ONE, of_atom(f)), ((), ONE, of_atom(f) * -1)]), p)
        for f, p in even
    ]
    if a.head == "log":
        return plus(log(rest), *(log(s) * p for s, p in sizes))
    return times(power(rest, e), *(power(s, p * e) for s, p in sizes))


@law("implied")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """[p] q = q where q is 0 unless p."""
    m = x.single[0] if x.single else ()
    for a, _e in m if len(m) > 1 else ():
        rest = tuple(f for f in m if f[0] != a)
        if a.head == "some" and any(supports(a, f) for f, p in rest if p > 0):
            return Poly({rest: 1})
        if a.head == "some" and any(
            subst(g, w).single and set(subst(g, w).single[0]) <= set(rest) and subst(g, w).single[1] == 1  # type: ignore[index]
            for g, w in witnesses(a, rest)
        ):
            return Poly({rest: 1})
        for f, _e in rest if a.head == "is" and a.args[0] == ">=" else ():
            for sign in {"=": (1, -1), ">=": (1,)}.get(str(f.args[0]), ()) if f.head == "is" else ():
                least = lower(arg(a, 1) - arg(f, 1) * sign)
                if least is not None and least >= 0:
                    return Poly({rest: 1})
    return None


@law("witness")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """[some i: not q(i)] f = (1 - q(t)) f + q(t) [some i: not q(i)] f."""
    m = x.single[0] if x.single else ()
    for a, _e in m:
        rest = tuple(f for f in m if f[0] != a)
        for guard, where in witnesses(a, rest) if a.head == "some" and not arg(a).single else ():
            q = ONE - subst(guard, where)
            here = {f for f, _ in q.single[0]} if q.single and q.single[1] == 1 else set[Atom]()
            if here and not here & {f for f, _ in m}:
                return (ONE - q) * Poly({rest: 1}) + q * x
    return None


def supports(a: Atom, f: Atom) -> bool:
    """Is a sum 0 unless something exists: are the guards of its terms what exists?"""
    if f.head != "sum" or not arg(f).single:
        return False
    guard = guarded(arg(f))[0]
    own = tuple(o for o in f.binders if o[0] in guard.free)
    return any(
        close("some", b, g).text == of_atom(a).text
        for b, g in [(f.binders, guard), (own, guard), *(((o,), ONE) for o in f.binders)]
    )


def witnesses(a: Atom, m: Mono) -> Iterator[tuple[Poly, dict[Var, Poly]]]:
    """A guard, and what may stand for its variables in a product."""
    b, (guard,) = opened(a)
    joins = {x.text: x for f, _ in m for x in atoms_in(of_atom(f)) if x.head == "join"}
    free = sorted({v for f, _ in m for v in f.free}, key=str)
    choices: list[list[Poly]] = []
    for v, owner in b:
        if isinstance(v[0], Part):
            choices.append(
                [
                    arg(j, 2)
                    for j in joins.values()
                    if j.args[0] == v[0] and owner and arg(j, 1).text == owner.text
                ]
            )
        else:
            choices.append(
                [
                    *(of("ix", w) for w in free if w[0] == v[0]),
                    *(of_atom(j) for j in joins.values() if getattr(dim_of(j), "of", None) == v[0]),
                ]
            )
    if any(o is not None and o.free & {v for v, _ in b} for _, o in b):
        return
    for choice in itertools.islice(itertools.product(*choices), 64):
        yield guard, {v: t for (v, _), t in zip(b, choice, strict=True)}


def atoms_in(value: Poly) -> Iterator[Atom]:
    """The atoms of a value that no binder holds."""
    for m in value.terms:
        for a, _ in m:
            yield a
            yield from (x for y in a.args if isinstance(y, Poly) and not a.binders for x in atoms_in(y))


@law("excluded")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """[p] [q] = 0 where p and q exclude each other; [a = 0] a = 0."""
    m = x.single[0] if x.single else ()
    tests = [(str(a.args[0]), arg(a, 1)) for a, _ in m if a.head == "is"]
    for rel, value in tests:
        if (
            rel == "="
            and value.single
            and all(any(f == g and 0 < p <= r for g, r in m) for f, p in value.single[0])
        ):
            return ZERO
    for (rel, p), (other, q) in itertools.permutations(tests, 2):
        signs = {">=": (1,), ">": (1,), "=": (1, -1)}
        for s, t in itertools.product(signs[rel], signs[other]):
            if (lower((p * s + q * t) * -1) or 0) > 0:
                return ZERO
    return None


@law("edge")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """[a > 0] a = [a >= 0] a."""
    m = x.single[0] if x.single else ()
    for a, _e in m:
        value = arg(a, 1) if a.head == "is" and a.args[0] == ">" else ZERO
        if value.single and all(any(f == g and 0 < p <= r for g, r in m) for f, p in value.single[0]):
            return relate(">=", value) * Poly({tuple(f for f in m if f[0] != a): 1})
    return None


@law("given")
def _(known: Facts, x: Poly, _: str) -> Poly | None:
    """What the first program needs to be defined holds, and its sizes are what it says."""
    if x.atom and truth(x.atom):
        return ONE if known.holds(x, "= 1") else ZERO if known.holds(x, "= 0") else None
    return known.size(x.atom) if x.atom and x.atom.head == "size" else None
