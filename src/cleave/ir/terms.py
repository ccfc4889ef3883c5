"""Terms: what the elements of a program are, as polynomials over atoms with bound variables.

The language of certificates (`ir.checker`), shared with no part of algebra. Every term is a total function
of the inputs: `0^-1` is 0, a maximum of nothing is 0. Arithmetic is done by the constructors: terms that are
equal by the laws of a commutative ring, of exponents and of bound names have equal texts. Bound variables are
numbered by height; a binder is opened with names that occur nowhere else, so nothing is captured.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache

from cleave.errors import Unsupported
from cleave.ir.dims import Dim, Part, Union

Var = tuple[Dim, str, int]  # a dim, a mark (`.` an axis, `'` bound, `~` and `?` opened) and a number
Binders = tuple[
    tuple[Var, "Poly | None"], ...
]  # a variable over `Part(K)` stands with the number of its part
Number = int | Fraction
Mono = tuple[tuple["Atom", Number], ...]
Raw = tuple[Binders, "Poly", "Poly"]
BINDING = ("sum", "some", "prod", "entry")
counter = itertools.count()


class Atom:
    """What polynomials are made of; `x(..)` with a name in quotes is an element of an input."""

    def __init__(self, head: str, args: Sequence[object], binders: Binders = ()) -> None:
        self.head, self.args, self.binders = head, tuple(args), binders
        inside = [a for a in (*args, *(o for _, o in binders)) if isinstance(a, Atom | Poly)]
        own = {v for v, _ in binders}
        self.free: frozenset[Var] = (
            frozenset(args if head == "ix" else ()).union(*(e.free for e in inside)) - own
        )  # type: ignore[arg-type]
        self.height: int = max([e.height for e in inside] + [v[2] for v in own], default=0)
        bound = ", ".join(spell(v) + (f" in {o.text}" if o else "") for v, o in binders)
        body = ", ".join(a.text if isinstance(a, Atom | Poly) else str(a) for a in args)
        self.text = f"{head}({bound}{': ' if binders or head in BINDING else ''}{body})"
        if head == "ix":  # a variable
            self.text = spell(args[0])  # type: ignore[arg-type]
        elif head == "in":  # an element of an input: its name, its kind, its places
            self.text = f"{args[0]}[{', '.join(a.text for a in inside)}]"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Atom) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


class Poly:
    """A sum of products of powers of atoms, with rational coefficients."""

    def __init__(self, terms: Mapping[Mono, Number]) -> None:
        said = sorted((spell_mono(m), m) for m, c in terms.items() if c)
        self.terms = {m: tidy(terms[m]) for _, m in said}
        texts = [
            (f"{c} * {t}" if c != 1 else t) if m else str(c)
            for (t, m), c in zip(said, self.terms.values(), strict=True)
        ]
        self.text = f"({' + '.join(texts)})" if len(texts) > 1 else texts[0] if texts else "0"
        self.free: frozenset[Var] = frozenset[Var]().union(*(a.free for m in self.terms for a, _ in m))
        self.height: int = max((a.height for m in self.terms for a, _ in m), default=0)
        self.number = self.terms.get((), 0) if not any(self.terms) else None
        self.single = next(iter(self.terms.items())) if len(self.terms) == 1 else None
        mono, c = self.single or ((), 0)
        self.atom = mono[0][0] if c == 1 and len(mono) == 1 and mono[0][1] == 1 else None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Poly) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __add__(self, other: Poly) -> Poly:
        return plus(self, other)

    def __sub__(self, other: Poly) -> Poly:
        return plus(self, other * -1)

    def __mul__(self, other: Poly | Number) -> Poly:
        if not isinstance(other, Poly):
            return self if other == 1 else Poly({m: c * other for m, c in self.terms.items()})
        if self.number == 1 or other.number == 1:
            return self if other.number == 1 else other
        if len(self.terms) * len(other.terms) > 400:
            raise Unsupported("a product of too many terms")
        return plus(
            *(product((*m, *n)) * (c * d) for m, c in self.terms.items() for n, d in other.terms.items())
        )


def tidy(number: Number) -> Number:
    """Whole numbers as `int`, which is faster."""
    return int(number) if number.denominator == 1 else number


@lru_cache(maxsize=1 << 16)
def spell_mono(m: Mono) -> str:
    return " * ".join(a.text + (f"^({e})" if e != 1 else "") for a, e in m)


def spell(v: Var) -> str:
    return f"{v[0]}{v[1]}{v[2]}"


def const(value: int | Fraction) -> Poly:
    return Poly({(): value})


ZERO, ONE = const(0), const(1)


def of(head: str, *args: object) -> Poly:
    return of_atom(Atom(head, args))


def plus(*values: Poly) -> Poly:
    if len(values) == 1:
        return values[0]
    total: dict[Mono, Number] = {}
    for value in values:
        for m, c in value.terms.items():
            total[m] = total.get(m, 0) + c
    return Poly(total)


def times(*values: Poly) -> Poly:
    total = ONE
    for value in values:
        total = total * value
    return total


def truth(a: Atom) -> bool:
    """Is the atom 0 or 1?"""
    return a.head in ("is", "some") or (a.head == "in" and a.args[1] == "bool")


@lru_cache(maxsize=1 << 14)
def product(factors: Mono) -> Poly:
    """A monomial: exponents of equal atoms add up, exponentials merge, predicates are idempotent."""
    powers: dict[Atom, Number] = {}
    exponent, more = ZERO, ONE
    for a, e in factors:
        if a.head == "exp":
            exponent = exponent + arg(a) * e
        else:
            powers[a] = 1 if truth(a) else powers.get(a, 0) + e
    for a, e in list(powers.items()):
        whole, number = math.floor(e), arg(a).number if a.head == "pow" else None
        if a.head == "pow" and (whole >= 1 or number):
            more = more * (const(Fraction(number) ** whole) if number else times(*[arg(a)] * whole))
            powers[a] = e - whole
    if exponent.terms:
        powers[Atom("exp", (exponent,))] = 1
    mono = tuple(sorted(((a, tidy(e)) for a, e in powers.items() if e), key=lambda f: f[0].text))
    alone = Poly({mono: 1})
    return alone if more is ONE else alone * more


def arg(a: Atom, number: int = 0) -> Poly:
    found = a.args[number]
    assert isinstance(found, Poly)
    return found


def power(base: Poly, e: Fraction | int) -> Poly:
    """A power. Whole powers of products are products of powers; others stay together (see `content`)."""
    e = Fraction(e)
    if e == 1 or not e:
        return base if e else ONE
    if base.number is not None:
        n = base.number
        root = math.isqrt(abs(n.numerator * n.denominator))
        if e.denominator == 1 and (n or e > 0):
            return const(Fraction(n) ** e.numerator)
        if n > 0 and e.denominator == 2 and root * root == n.numerator * n.denominator:
            return const(Fraction(root, n.denominator) ** e.numerator)
        if n <= 0:
            raise Unsupported(f"{n} to the power {e}")
    if base.single and base.number is None:
        m, c = base.single
        if e.denominator == 1:
            return product(tuple((a, x * e) for a, x in m)) * Fraction(c) ** e.numerator
        if c == 1 and len(m) == 1 and (m[0][1] == 1 or m[0][0].head == "exp"):
            return product(((m[0][0], m[0][1] * e),))
    if e.denominator == 1 and 0 < e <= 4:
        return times(*[base] * e.numerator)
    return product(((Atom("pow", (base,)), e),))


def exp(value: Poly) -> Poly:
    return of("exp", value) if value.terms else ONE


def log(value: Poly) -> Poly:
    if value.atom and value.atom.head == "exp":
        return arg(value.atom)
    return ZERO if value.number == 1 else of("log", value)


@lru_cache(maxsize=1 << 14)
def of_atom(a: Atom, e: int | Fraction = 1) -> Poly:
    return Poly({((a, tidy(e)),): 1})


def opened(a: Atom) -> tuple[Binders, list[Poly]]:
    """The binders and bodies of an atom, under names that occur nowhere else."""
    return _opened(a, "?", -1)


@lru_cache(maxsize=1 << 14)
def opened_at(a: Atom, depth: int) -> tuple[Binders, list[Poly]]:
    """The same, under names by depth."""
    return _opened(a, "~", depth)


def _opened(a: Atom, mark: str, start: int) -> tuple[Binders, list[Poly]]:
    fresh = {v: (v[0], mark, next(counter) if start < 0 else start + k) for k, (v, _) in enumerate(a.binders)}
    where = {old: of("ix", new) for old, new in fresh.items()}
    bodies = [subst(x, where) for x in a.args if isinstance(x, Poly)]
    return tuple((fresh[v], subst(o, where) if o else o) for v, o in a.binders), bodies


def bind(head: str, binders: Binders, *bodies: Poly) -> Atom:
    """An atom that binds variables, which get numbers by height, in the order that gives the least text."""
    first = 1 + max(e.height for e in (*bodies, *(o for _, o in binders if o)))
    groups = [
        list(g)
        for _, g in itertools.groupby(sorted(binders, key=lambda b: str(b[0][0])), lambda b: str(b[0][0]))
    ]
    if math.prod(math.factorial(len(g)) for g in groups) > 24:
        raise Unsupported("too many bound variables over one dim")
    found: list[Atom] = []
    for choice in itertools.product(*(itertools.permutations(g) for g in groups)):
        order = [b for group in choice for b in group]
        names: dict[Var, Var] = {v: (v[0], "'", first + k) for k, (v, _) in enumerate(order)}
        where = {old: of("ix", new) for old, new in names.items()}
        own = tuple((names[v], subst(o, where) if o else o) for v, o in order)
        found.append(Atom(head, [subst(b, where) for b in bodies], own))
    return min(found, key=lambda a: a.text)


def subst(value: Poly, where: Mapping[Var, Poly]) -> Poly:
    """Capture-avoiding: what is put in has no bound variable but one that `bind` numbers above all inside."""
    if value.free.isdisjoint(where):
        return value
    return _subst(value, tuple((v, x) for v, x in where.items() if v in value.free))


@lru_cache(maxsize=1 << 14)
def _subst(value: Poly, pairs: tuple[tuple[Var, Poly], ...]) -> Poly:
    where, parts = dict(pairs), list[Poly]()
    for m, c in value.terms.items():
        kept = tuple(f for f in m if f[0].free.isdisjoint(where))
        moved = [power(_subst_atom(a, where), e) for a, e in m if not a.free.isdisjoint(where)]
        parts.append(times(Poly({kept: c}), *moved))
    return plus(*parts)


def _subst_atom(a: Atom, where: Mapping[Var, Poly]) -> Poly:
    if a.head == "ix":
        return where[a.args[0]]  # type: ignore[index]
    inner = {v: x for v, x in where.items() if v in a.free}
    return over(a, lambda x: subst(x, inner))


def over(a: Atom, f: Callable[[Poly], Poly], depth: int = -1) -> Poly:
    """The atom with `f` applied to its arguments; with a depth, binders are opened under names by depth."""
    members = entries(a) if a.head == "max" else [a]
    old = [
        opened_at(e, depth)
        if depth >= 0 and e.binders
        else (e.binders, [x for x in e.args if isinstance(x, Poly)])
        for e in members
    ]
    new = [(tuple((v, f(o) if o else o) for v, o in b), [f(x) for x in xs]) for b, xs in old]
    if new == old:
        return of_atom(a)
    b, values = new[0]
    match a.head:
        case "max":
            return largest([(b, g, v) for b, (g, v) in new])
        case "exp" | "log":
            return (exp if a.head == "exp" else log)(values[0])
        case "is":
            return relate(str(a.args[0]), values[0])
        case "pow":
            return values[0]
        case _ if a.head in BINDING:
            return close(a.head, b, *values)
        case _:
            return of(a.head, *(values.pop(0) if isinstance(x, Poly) else x for x in a.args))


def close(head: str, binders: Binders, body: Poly) -> Poly:
    """A sum, a product, or whether a guard holds somewhere."""
    if not binders or (not body.terms and head != "prod"):
        return body
    if head == "some" and body.number == 1 and not any(may_be_empty(v[0]) for v, _ in binders):
        return ONE
    return of_atom(bind(head, binders, body))


def largest(entries: Sequence[Raw]) -> Poly:
    """The largest value of all entries whose guard is 1."""
    kept: dict[str, Atom] = {}
    for b, g, v in entries:
        used = g.free.union(v.free, *(o.free for _, o in b if o))
        b = tuple(x for x in b if x[0] in used or may_be_empty(x[0][0]))  # no other dim is empty
        e = bind("entry", b, g, v)
        kept.update({e.text: e} if g.terms else {})
    if len(kept) <= 1:
        (only,) = kept.values() or [bind("entry", (), ZERO, ZERO)]
        if not only.binders:
            return arg(only, 0) * arg(only, 1)
    return of("max", *(kept[t] for t in sorted(kept)))


# ---------------------------------------------------------------- sizes, ranges, predicates


def size(dim: Dim, part: Poly | None = None) -> Poly:
    if isinstance(dim, Union):
        return plus(*map(size, dim.parts))
    if isinstance(dim, Part) and part is None:
        raise Unsupported(f"the size of {dim} without the number of the part")
    return of("size", dim, part) if isinstance(dim, Part) else of("size", dim)


def whole(a: Atom) -> bool:
    """Is the atom an integer?"""
    return a.head in ("ix", "size", "join") or truth(a) or (a.head == "in" and a.args[1] != "float")


def integer(value: Poly) -> bool:
    return all(
        c.denominator == 1 and all(whole(a) and e.denominator == 1 and e > 0 for a, e in m)
        for m, c in value.terms.items()
    )


def dim_of(a: Atom) -> Dim | None:
    """The dim of an index, of a position joined from a part, or of a size."""
    first = a.args[0] if a.args else None
    if a.head == "ix":
        return first[0]  # type: ignore[index, return-value]
    return first if a.head in ("join", "size") else None  # type: ignore[return-value]


def may_be_empty(dim: Dim) -> bool:
    """Parts of a partition may be; no other dim is."""
    return isinstance(dim, Part) or (isinstance(dim, Union) and any(map(may_be_empty, dim.parts)))


def lower(value: Poly) -> Fraction | None:
    """A number that the value is never below, if one is found."""
    ends: list[Poly] = []
    for m, c in value.terms.items():
        a = m[0][0] if len(m) == 1 and m[0][1] == 1 else None
        dim = dim_of(a) if a else None
        if a is None or dim is None or (a.head == "size" and (c > 0 or not isinstance(dim, Part))):
            ends.append(Poly({m: c}))
        elif c < 0:
            last = dim.of if isinstance(dim, Part) else dim
            ends.append((size(last) - const(0 if a.head == "size" else 1)) * c)
    total = Fraction(0)
    for m, c in plus(*ends).terms.items():
        if c < 0 and m:
            return None
        if m and not all(truth(a) or a.head == "size" for a, _ in m):
            return None
        total += c if all(a.head == "size" and not isinstance(a.args[0], Part) and e > 0 for a, e in m) else 0
    return total


@lru_cache(maxsize=1 << 14)
def shape(m: Mono) -> str:
    """Text that does not depend on how variables are called."""
    return "".join(sorted(re.sub(r"[.'~?]\d+", "", " ".join(a.text + str(e) for a, e in m))))


def relate(rel: str, value: Poly) -> Poly:
    """`[value rel 0]`, `rel` one of `>=`, `>` and `=`; of a predicate and its complement one is an atom."""
    if value.number is not None:
        return const(int({">=": value.number >= 0, ">": value.number > 0, "=": value.number == 0}[rel]))
    rest = [c for m, c in value.terms.items() if m]
    value = value * (
        1 / Fraction(math.gcd(*(c.numerator for c in rest)), math.lcm(*(c.denominator for c in rest)))
    )
    offset = value.terms.get((), 0)
    if integer(value - const(offset)):
        value, rel = (value - ONE, ">=") if rel == ">" and offset.denominator == 1 else (value, rel)
        if rel == "=" and offset.denominator != 1:
            return ZERO
        rel = ">=" if rel == ">" else rel
        value = value - const(offset - math.floor(offset)) if rel == ">=" else value
        low, high = lower(value), lower(value * -1)
        if (low is not None and (low > 0 or (low == 0 and rel == ">="))) or (high is not None and high > 0):
            return ONE if rel == ">=" and low is not None and low >= 0 else ZERO
    total: dict[str, Number] = {}
    for m, c in value.terms.items():
        total[shape(m)] = total.get(shape(m), 0) + (c if m else 0)
    signs = [total[s] > 0 for s in sorted(total) if total[s]]
    offset = value.terms.get((), 0)
    positive = (
        signs[0] if signs else offset > 0 or (not offset and (rel == ">" or (rel == ">=" and integer(value))))
    )
    if rel == "=":
        return of(
            "is",
            rel,
            value
            if signs and positive
            else min(value, value * -1, key=lambda p: p.text)
            if not signs
            else value * -1,
        )
    if positive:
        return of("is", rel, value)
    if integer(value):
        return ONE - of("is", ">=", value * -1 - ONE)
    return ONE - of("is", ">" if rel == ">=" else ">=", value * -1)


def rewrite(value: Poly, change: Callable[[Poly], Poly | None], depth: int = 1) -> Poly:
    """The value with monomials and atoms changed, outermost first; bound variables are named by depth."""
    parts: list[Poly] = []
    for m, c in value.terms.items():
        alone = Poly({m: 1})
        found = change(alone) if len(m) > 1 else None if m else alone
        if found is None:
            inner = [_rewrite(a, e, change, depth) for a, e in m]
            found = (
                alone
                if all(x is None for x in inner)
                else times(*(of_atom(a, e) if x is None else x for (a, e), x in zip(m, inner, strict=True)))
            )
        parts.append(found * c)
    return plus(*parts)


def _rewrite(a: Atom, e: Number, change: Callable[[Poly], Poly | None], depth: int) -> Poly | None:
    found = change(of_atom(a, e)) if a.head == "pow" else None
    if found is not None:
        return found
    found = change(of_atom(a)) if a.head != "pow" else None
    if found is None:
        inside = depth + max((len(x.binders) for x in (a, *entries(a))), default=0)
        found = over(a, lambda x: rewrite(x, change, inside), depth)
        if found.atom == a:
            return None
    return power(found, e)


def entries(a: Atom) -> list[Atom]:
    return [x for x in a.args if isinstance(x, Atom)]


def guarded(value: Poly) -> tuple[Poly, Poly]:
    """A monomial as a product of predicates and the rest."""
    (m, c) = value.single or ((), 0)
    return Poly({tuple(f for f in m if truth(f[0])): 1}), Poly({tuple(f for f in m if not truth(f[0])): c})


def occupied(a: Atom, positive: Callable[[Poly], bool]) -> Poly | None:
    """Where a sum of what is positive under a guard is not 0: where there is something to be summed."""
    guard, rest = guarded(arg(a)) if a.head == "sum" else (ONE, ZERO)
    return close("some", a.binders, guard) if rest.terms and positive(rest) else None
