"""Where the value of a form is infinite, or 0 though it is positive: as polynomials of predicates.

A maximum of nothing and the log of 0 are -inf; what is masked is, too. From there it spreads: through sums
and products, as inf through a change of sign, as 0 through exponentials and quotients. A form's value is what
it tends to as a maximum in it does: sums, products, maxima and exponentials are continuous there, so that
identities of forms still hold wherever both sides are a number. What is not a number, `inf - inf` or
`0 * inf`, is kept out by the needs of the operations (`needs`), which are made of what is said here.

Each function gives a claim that is enough for what it asks, and whether it is needed as well: whether the
value is infinite (or 0) or not a number wherever the claim does not hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from fractions import Fraction

from cleave.algebra import laws, rewrite
from cleave.algebra.arithmetic import assign, choose, is_infinite, masked_of, mul, neg, predicates_of
from cleave.algebra.facts import nonnegative_mono, positive_factor, positive_mono
from cleave.algebra.forms import (
    ONE,
    UNIT,
    ZERO,
    Apply,
    Element,
    Factor,
    Log,
    Masked,
    Max,
    Mono,
    Place,
    Poly,
    Power,
    Predicate,
    Prod,
    Size,
    Some,
    Sum,
    factors_in,
    is_predicate,
    of_factor,
    of_mono,
    terms_in,
)  # fmt: skip
from cleave.algebra.maxima import exists
from cleave.algebra.parts import owner_of
from cleave.algebra.predicates import above, complement, either, inhabited, is_zero
from cleave.algebra.rewrite import open_binder, open_entry
from cleave.ir.dims import Dim, Index, Join, Part, Term, term_key, var

Claim = tuple[Poly, bool]
"""What is enough, and whether it is needed as well."""

ALWAYS: Claim = (ONE, True)
NEVER: Claim = (ZERO, False)
"""What is said of values that are not understood."""

CASES = 3
"""How many predicates of a sum are decided."""

MOST = 8
"""A claim of more terms is taken to hold nowhere."""

LARGEST = 250
"""Of values with more factors nothing is said."""

PRODUCTS = 48
"""So many products of terms are looked at for one claim."""

KEPT = 8192
"""So many claims are kept."""

_lows: dict[Poly, Claim] = {}
_finites: dict[Poly, Claim] = {}

BOUNDED = ("tanh", "tanh_coarse", "erf", "sin", "cos", "sign", "nan")
"""Uninterpreted functions that are never infinite."""
RISING = ("floor", "ceil", "round", "trunc")


def every(claims: Iterable[Claim]) -> Claim:
    """All of some claims."""
    whole, exact = ONE, True
    for claim, own in claims:
        if len(whole.terms) * len(claim.terms) > PRODUCTS:
            return NEVER
        if claim.number != 1:
            whole = mul(whole, claim)
            exact = exact and own
        if len(whole.terms) > MOST or (not whole.terms and not exact):
            return NEVER
    return whole, exact


def either_of(one: Claim, two: Claim) -> Claim:
    """One of two claims; that neither holds must be certain for it to be needed."""
    (p, sure), (q, too) = one, two
    if p.number == 1 or q.number == 1:
        return ALWAYS
    if shows(p, q) or shows(q, p):
        return (q if shows(p, q) else p), sure and too
    if len(p.terms) * len(q.terms) > PRODUCTS:
        return NEVER
    return either(p, q), sure and too


def _small(claim: Claim) -> Claim:
    return claim if len(claim[0].terms) <= MOST else NEVER


def _kept(value: Poly, known: dict[Poly, Claim], of: Callable[[Poly], Claim]) -> Claim:
    if sum(1 for _ in itertools.islice(factors_in(value), LARGEST)) == LARGEST:
        return NEVER
    if not laws.usual():
        return of(value)
    if len(known) > KEPT:
        known.clear()
    if value not in known:
        known[value] = _small(of(value))
    return known[value]


def low(value: Poly) -> Claim:
    """Where a value is not -inf."""
    return ALWAYS if all(map(_calm, value.terms)) else _kept(value, _lows, _low)


def _low(value: Poly) -> Claim:
    guard, inner = masked_of(value)
    if is_infinite(inner):  # minus what is masked: inf where it is not there
        present, inside = masked_of(neg(inner))
        claim, exact = low(neg(inside))
        return mul(guard, either(complement(present), claim)), exact
    claim, exact = _by_cases(inner, _low_terms, CASES)
    return mul(guard, claim), exact


def _low_terms(value: Poly) -> Claim:
    return every(_low_mono(m, c > 0) for m, c in value.terms.items())


def _finite_terms(value: Poly) -> Claim:
    return every(_finite_mono(m) for m in value.terms)


def _by_cases(value: Poly, of: Callable[[Poly], Claim], depth: int) -> Claim:
    """A claim about a sum, for each case of its predicates: of `x - [p] x` nothing is left where p holds."""
    claim, exact = of(value)
    found = predicates_of(value) if claim.number != 1 and len(value.terms) > 1 else []
    if not found:
        return claim, exact
    if not depth:
        return claim, False
    (p, sure), (q, too) = (
        _by_cases(assign(value, found[0], truth), of, depth - 1) for truth in (True, False)
    )
    if len(p.terms) + len(q.terms) > MOST:
        return NEVER
    return _small((choose(of_factor(found[0]), p, q), sure and too))


def high(value: Poly) -> Claim:
    """Where a value is not inf."""
    return low(neg(value))


def finite(value: Poly) -> Claim:
    """Where a value is neither -inf nor inf."""
    return ALWAYS if all(map(_calm, value.terms)) else _kept(value, _finites, _finite)


def _finite(value: Poly) -> Claim:
    if is_infinite(value):
        return every([low(value), high(value)])
    return _by_cases(value, _finite_terms, CASES)


def presence(value: Poly) -> Poly:
    """Where a value is not -inf, as far as that is known: elsewhere it is -inf, or not a number."""
    claim, exact = low(value)
    return claim if exact else masked_of(value)[0]


def _calm(mono: Mono) -> bool:
    """Is a product never infinite, whatever is empty?"""
    return not mono.exponent.terms and all(_calm_factor(f, e) for f, e in mono.factors)


def _calm_factor(factor: Factor, e: Fraction) -> bool:
    """Is a power never infinite? What is divided by a predicate is infinite where that does not hold."""
    if is_predicate(factor):
        return e > 0
    return isinstance(factor, Element | Size | Place)


def _guarded(mono: Mono, claim: Claim) -> Claim:
    """A claim about a product: it need not hold where a predicate in it is 0, or a sum in it has no terms."""
    if claim[0].number == 1:
        return ALWAYS
    guard = tuple((f, e) for f, e in mono.factors if is_predicate(f) and e > 0)
    present = mul(
        of_mono(Mono(guard, ZERO)) if guard else ONE,
        *(_has_terms(f) for f, e in mono.factors if isinstance(f, Sum) and e > 0),
    )
    if shows(present, claim[0]):
        return ALWAYS
    if len(present.terms) * (len(claim[0].terms) + 1) > PRODUCTS:
        return NEVER
    return (complement(mul(present, complement(claim[0]))), claim[1]) if present.number != 1 else claim


def _has_terms(factor: Sum) -> Poly:
    """Where a sum has terms that predicates do not make 0."""
    bound, body = open_binder(factor)
    assert isinstance(body, Mono)
    guards = tuple((f, e) for f, e in body.factors if is_predicate(f) and e > 0)
    owners = {i: p for i in bound if isinstance(i.dim, Part) and (p := owner_of(body, i)) is not None}
    return exists(bound, of_mono(Mono(guards, ZERO)) if guards else ONE, owners)


def _low_mono(mono: Mono, plus: bool) -> Claim:
    """Where a product, with a positive number before it or (not `plus`) a negative one, is not -inf."""
    if mono is UNIT or _calm(mono):
        return ALWAYS
    if nonnegative_mono(mono) and not any(isinstance(f, Masked) for f, _ in mono.factors):
        return ALWAYS if plus else _finite_mono(mono)
    wild = [(f, e) for f, e in mono.factors if not _calm_factor(f, e)]
    if len(wild) == 1 and wild[0][1] == 1 and not mono.exponent.terms:
        others = [(f, e) for f, e in mono.factors if f != wild[0][0] and not is_predicate(f)]
        if all(positive_factor(f, e) for f, e in others):
            return _guarded(mono, (_low_factor if plus else _high_factor)(wild[0][0]))
    claim, _ = _finite_mono(mono)  # enough, but of a factor of unknown sign the infinity may be the other one
    return claim, claim.number == 1


def _finite_mono(mono: Mono) -> Claim:
    """Where a product is finite. What is divided by may be infinite; that it is not 0 is needed already."""
    if mono is UNIT or _calm(mono):
        return ALWAYS
    claims = [_finite_factor(f) for f, e in mono.factors if e > 0 and not is_predicate(f)]
    claims += [(of_factor(f), True) for f, e in mono.factors if e < 0 and is_predicate(f)]
    if mono.exponent.terms:
        claims.append(high(mono.exponent))
    claim, exact = every(claims)
    alone = sum(c.number != 1 for c, _ in claims) < 2 and all(
        _calm_factor(f, e) or e > 0 for f, e in mono.factors
    )
    return _guarded(mono, (claim, exact and alone))


def _low_factor(factor: Factor) -> Claim:
    match factor:
        case Max():
            return _seen(factor)
        case Log():
            return _above(factor.base)
        case Sum():
            return _everywhere(factor, lambda body: _low_mono(body, True))
        case Masked():
            return low(of_factor(factor))
        case Power():
            return low(factor.base)
        case Apply() if factor.fn in RISING:
            return low(factor.args[0])
        case _:
            return _finite_factor(factor)


def _high_factor(factor: Factor) -> Claim:
    match factor:
        case Max():
            return _bounded(factor)
        case Log() | Power():
            return high(factor.base)
        case Sum():
            return _everywhere(factor, lambda body: _low_mono(body, False))
        case Masked():
            return high(of_factor(factor))
        case Apply() if factor.fn in RISING:
            return high(factor.args[0])
        case _:
            return _finite_factor(factor)


def _finite_factor(factor: Factor) -> Claim:
    match factor:
        case Max() | Log() | Masked():
            return every([_low_factor(factor), _high_factor(factor)])
        case Power():
            return finite(factor.base)
        case Sum():
            return _everywhere(factor, _finite_mono)
        case Apply() if factor.fn not in BOUNDED:
            claim, _ = every(finite(a) for a in factor.args)
            return claim, claim.number == 1
        case Prod():
            _, body = open_binder(factor)
            assert isinstance(body, Poly)
            return (ONE, True) if finite(body)[0].number == 1 else (ZERO, False)
        case _:
            return ALWAYS


def _seen(factor: Max) -> Claim:
    """Where a maximum has something to be the maximum of that is not -inf."""
    nothing, exact = ONE, True
    for entry in factor.entries:
        bound, guard, value = open_entry(entry)
        claim, own = low(value)
        owners = {
            i: p
            for i in bound
            if isinstance(i.dim, Part) and (p := owner_of(guard, i) or owner_of(value, i)) is not None
        }
        nothing = mul(nothing, complement(exists(bound, mul(guard, claim), owners)))
        exact = exact and own
        if len(nothing.terms) > MOST:
            return NEVER
    return complement(nothing), exact


def _bounded(factor: Max) -> Claim:
    """Where none of a maximum's values is inf."""
    if not laws.on("bounded"):
        return ALWAYS
    claims: list[Claim] = []
    for entry in factor.entries:
        if high(entry.value)[0].number != 1:
            bound, guard, value = open_entry(entry)
            claim, exact = high(value)
            owners = {
                i: p
                for i in bound
                if isinstance(i.dim, Part) and (p := owner_of(guard, i) or owner_of(value, i)) is not None
            }
            claims.append((complement(exists(bound, mul(guard, complement(claim)), owners)), exact))
    return every(claims)


def _everywhere(factor: Sum, of: Callable[[Mono], Claim]) -> Claim:
    """A claim about all terms of a sum."""
    if not laws.on("bounded") or of(factor.body)[0].number == 1:
        return ONE, True
    bound, body = open_binder(factor)
    assert isinstance(body, Mono)
    claim, exact = of(body)
    owners = {i: p for i in bound if isinstance(i.dim, Part) and (p := owner_of(body, i)) is not None}
    return complement(exists(bound, complement(claim), owners)), exact


def _above(base: Poly) -> Claim:
    """Where the argument of a log, which is not negative, is not 0."""
    if all(c > 0 and nonnegative_mono(m) for m, c in base.terms.items()):
        return somewhere(base)
    return above(base), True


def somewhere(value: Poly) -> Claim:
    """Where a sum of what is not negative is not 0 after all, as far as what may be empty is concerned."""
    nowhere, exact = ONE, True
    for mono in value.terms:
        claim, own = there(mono)
        if not positive_mono(mono):
            claim, own = _nonzero_mono(mono, claim)
        nowhere = mul(nowhere, complement(claim))
        exact = exact and own
        if not nowhere.terms:
            return ALWAYS
        if len(nowhere.terms) > MOST:
            return NEVER
    return complement(nowhere), exact


def _nonzero_mono(mono: Mono, claim: Poly) -> Claim:
    """Where a product that is not negative is not 0: where it is positive."""
    guards = tuple((f, e) for f, e in mono.factors if is_predicate(f) and e > 0)
    rest = Mono(tuple(x for x in mono.factors if x not in guards), mono.exponent)
    whole = of_mono(Mono(guards, ZERO)) if guards else ONE
    for f, e in rest.factors:
        if not positive_factor(f, e):
            whole = mul(
                whole,
                guards_of(f) if isinstance(f, Sum) and _guards_only(f) else complement(is_zero(of_factor(f))),
            )
    return mul(whole, claim), True


def _guards_only(factor: Sum) -> bool:
    """Is a sum one of what is positive where predicates in it hold?"""
    rest = tuple((f, e) for f, e in factor.body.factors if not is_predicate(f))
    return positive_mono(Mono(rest, factor.body.exponent))


def there(mono: Mono) -> Claim:
    """Where a positive product is not 0: no exponent in it is -inf, and nothing that it is divided by inf."""
    claims: list[Claim] = [low(mono.exponent)] if mono.exponent.terms else []
    for f, e in mono.factors:
        if e < 0:
            claims.append(_finite_factor(f))
        elif isinstance(f, Sum):
            claims.append((guards_of(f), True))
        elif isinstance(f, Power):
            claims.append(somewhere(f.base))
        elif isinstance(f, Max) and positive_factor(f):
            claims.append(_largest_there(f))
    return every(claims)


def _largest_there(factor: Max) -> Claim:
    nothing, exact = ONE, True
    for entry in factor.entries:
        bound, guard, value = open_entry(entry)
        if all(positive_mono(m) and c > 0 for m, c in value.terms.items()):
            claim, own = somewhere(value)
            nothing = mul(nothing, complement(exists(bound, mul(guard, claim))))
            exact = exact and own
    return complement(nothing), exact


def guards_of(factor: Sum) -> Poly:
    """Where a sum of positive terms that predicates guard is not 0: where a guard holds. 1 for other sums."""
    if not _guards_only(factor):
        return ONE
    bound, body = open_binder(factor)
    assert isinstance(body, Mono)
    guards = tuple((f, e) for f, e in body.factors if is_predicate(f) and e > 0)
    owners = {i: p for i in bound if isinstance(i.dim, Part) and (p := owner_of(body, i))}
    inner, _ = there(Mono(tuple((f, e) for f, e in body.factors if not is_predicate(f)), body.exponent))
    guard = mul(of_mono(Mono(guards, ZERO)) if guards else ONE, inner)
    return exists(bound, guard, owners)


def shows(p: Poly, q: Poly) -> bool:
    """Does `q` say that something exists, of which `p` shows one?"""
    single = p.single
    inside = [
        open_entry(f.entries[0])[1]
        for f, e in (single[0].factors if single is not None and single[1] == 1 else ())
        if isinstance(f, Some) and e > 0 and len(f.entries) == 1
    ]
    return any(_shows(one, q) for one in (p, *inside))


def _shows(p: Poly, q: Poly) -> bool:
    if isinstance(q.factor, Predicate):
        # What runs inside a part shows that the part is not empty.
        return any(
            isinstance(i.dim, Part) and (part := owner_of(p, i)) is not None and inhabited(i.dim, part) == q
            for i in p.free
        )
    if not isinstance(q.factor, Some) or len(q.factor.entries) != 1:
        return False
    bound, guard, _ = open_entry(q.factor.entries[0])
    if len(bound) != 1 or (isinstance(bound[0].dim, Part) and owner_of(guard, bound[0]) is None):
        return False
    choices = {term_key(t): t for t in (*map(var, sorted(p.free, key=str)), *terms_in(p))}
    kind = Index if isinstance(bound[0].dim, Part) else Index | Join
    fits = [t for t in choices.values() if isinstance(t.leaf, kind) and is_position(t, bound[0].dim)]
    return any(mul(p, rewrite.substitute(guard, {bound[0]: t})) == p for t in fits)


def is_position(at: Term, dim: Dim) -> bool:
    """Is a term always a position in a dim?"""
    match at.leaf:
        case Index(own):
            return own == dim
        case Join(_, within):
            own = within.variable
            return own is not None and isinstance(own.dim, Part) and own.dim.of == dim
        case _:
            return isinstance(dim, Part)  # what is joined is looked at as a whole
