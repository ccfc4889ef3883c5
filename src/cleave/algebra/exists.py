"""Existence and its witnesses: `[g(t)] [exists i: g(i)] = [g(t)]` (design.md, section 3).

A guard is a polynomial of predicates; `M`, its monomial with all of them, decides: `g(t) some = g(t)` says
what `M(t) some` is. So `[p(t)] some{i: [p(i)]}` is `[p(t)]`, and with `g = 1 - [q]` the product
`[q(t)] some` is `some + [q(t)] - 1`. A witness is an index, or a position joined from a part, that the other
predicates of the monomial are about; both are always inside their dim.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

from cleave.algebra import laws
from cleave.algebra.forms import UNIT, Factor, Mono, Poly, Some, is_predicate, of_factor, terms_in
from cleave.algebra.parts import joins_in, owner_of
from cleave.ir.dims import Index, Part, Term, indices_of, var

MOST = 16
"""Choices of witnesses that are tried."""


def witnessed(powers: dict[Factor, Fraction]) -> list[Poly]:
    """Take a claim that something exists, and the predicates about a witness, out of a monomial; what stands
    for their product. Nothing if there is no witness."""
    claims = [f for f, e in powers.items() if e > 0 and isinstance(f, Some) and len(f.entries) == 1]
    if not claims or not laws.on("implied"):
        return []
    truths = [f for f, e in powers.items() if e > 0 and is_predicate(f)]
    for claim in sorted(claims, key=lambda f: f.key):
        assert isinstance(claim, Some)
        for guard in _instances(claim, [f for f in truths if f is not claim]):
            top = _top(guard)
            if top is None or any(powers.get(f, 0) <= 0 for f, _ in top.factors):
                continue
            for f, _ in top.factors:
                del powers[f]
            del powers[claim]
            return [_product(claim, guard, top)]
    return []


def _instances(claim: Some, truths: list[Factor]) -> Iterator[Poly]:
    """The claim's guard at choices of witnesses for its binders."""
    from cleave.algebra import rewrite

    bound, guard, _ = rewrite.open_entry(claim.entries[0])
    places = [_witnesses(index, truths, guard) for index in bound]
    for choice in itertools.islice(itertools.product(*places), MOST):
        yield rewrite.substitute(guard, dict(zip(bound, choice, strict=True)))


def _witnesses(index: Index, truths: list[Factor], guard: Poly) -> list[Term]:
    # What runs inside a part is a witness only for the part that the guard names.
    named = not isinstance(index.dim, Part) or owner_of(guard, index) is not None
    found: dict[Term, None] = {}
    for truth in sorted(truths, key=lambda f: f.key):
        for where in terms_in(truth):
            for other in sorted(indices_of(where), key=lambda i: i.number):
                if other.dim == index.dim and named:
                    found[var(other)] = None
            for join in joins_in(where):
                within = join.within.variable
                if within is not None and isinstance(within.dim, Part) and within.dim.of == index.dim:
                    found[Term(((join, 1),))] = None
    return list(found)


def _top(guard: Poly) -> Mono | None:
    """The monomial of a guard that has all its predicates, if its coefficient is 1 or -1."""
    if not guard.terms:
        return None
    top = max(guard.terms, key=lambda m: len(m.factors))
    among = {f for f, _ in top.factors}
    inside = all(not m.exponent.terms and among.issuperset(f for f, _ in m.factors) for m in guard.terms)
    return top if inside and top != UNIT and abs(guard.terms[top]) == 1 else None


def _product(claim: Some, guard: Poly, top: Mono) -> Poly:
    """`top * claim`, from `guard * claim = guard`."""
    from cleave.algebra.arithmetic import add, mul, neg, scale

    c = guard.terms[top]
    rest = Poly({m: x for m, x in guard.terms.items() if m != top})
    result = scale(add(guard, neg(mul(rest, of_factor(claim)))), 1 / c)
    laws.note("implied", _as_product(top, claim), result)
    return result


def _as_product(top: Mono, claim: Some) -> Mono:
    """The product as it stood, for the record."""
    factors = sorted([*top.factors, (claim, Fraction(1))], key=lambda item: item[0].key)
    return Mono(tuple(factors), top.exponent)
