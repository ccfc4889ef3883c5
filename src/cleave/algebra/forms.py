"""The normal form's data: polynomials over monomials over factors (design.md, section 3).

A `Poly` is a sum of monomials with rational coefficients. A `Mono` is a product of *factors* (the design's
"atoms"; the word is taken by sizes) with rational exponents, times `exp(exponent)`. A `Factor` is an input
element, a size, a sum, a maximum, a power or log of a polynomial, a predicate or an uninterpreted function.

All are immutable. Equality is equality of `key`, a digest of the structure in which bound indices have no
names, so two sums that differ in the names of their bound indices are equal. Order is by `key` too: never by
`id`, `hash` or `repr`. Build values with `algebra.arithmetic`, `sums`, `maxima` and `predicates`; the
constructors here check nothing. Binders inside a form have numbers that occur nowhere else; whoever opens a
binder renames it first (`fresh`), so nothing can be captured.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from cleave.algebra import label
from cleave.algebra.terms import Env, digest, indices, leaf_text, size_extent, term_text, union_parts
from cleave.ir.dims import Atom, Dim, Index, Join, Part, Parts, Term
from cleave.ir.ops import Input, Node, Scalar

NOTHING: frozenset[Index] = frozenset()
_counter = itertools.count(1)
_1 = Fraction(1)


MOST_TEXTS = 64
"""Texts under other names that a form remembers."""


def fresh(dim: Dim) -> Index:
    """An index over `dim` that occurs nowhere else."""
    return Index(dim, -next(_counter))


class Keyed:
    """A value with a structural key: what equality, hashing and order go by."""

    __slots__ = ("_free", "_key", "_texts")

    def __init__(self) -> None:
        self._key: str | None = None
        self._texts: dict[object, str] | None = None
        self._free: frozenset[Index] | None = None

    @property
    def key(self) -> str:
        """A digest of the structure, the same for every naming of bound indices."""
        if self._key is None:
            self._key = digest(self._spell({}))
        return self._key

    @property
    def free(self) -> frozenset[Index]:
        """The indices that occur and are not bound inside."""
        if self._free is None:
            self._free = self._indices()
        return self._free

    def text(self, env: Env) -> str:
        """The key, under names for some of the free indices."""
        if not env or self.free.isdisjoint(env):
            return self.key
        # Names of other indices say nothing here; how many there are tells what is bound inside is called.
        names = len(env), frozenset((i, env[i]) for i in self.free if i in env)
        if self._texts is None:
            self._texts = {}
        found = self._texts.get(names)
        if found is None:
            if len(self._texts) >= MOST_TEXTS:
                self._texts.clear()
            found = self._texts[names] = digest(self._spell(env))
        return found

    def _spell(self, env: Env) -> str:
        raise NotImplementedError

    def _indices(self) -> frozenset[Index]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        if self is other or type(other) is not type(self):
            return self is other
        return (self._key or self.key) == (other._key or other.key)  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self._key or self.key)

    def __lt__(self, other: Keyed) -> bool:
        return self.key < other.key


class Poly(Keyed):
    """A sum of monomials with rational coefficients; `terms` has no zero coefficient. 0 has no terms."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[Mono, Fraction]) -> None:
        super().__init__()
        self.terms = terms

    def _spell(self, env: Env) -> str:
        return "P" + "+".join(sorted(f"{m.text(env)}*{c}" for m, c in self.terms.items()))

    def _indices(self) -> frozenset[Index]:
        return NOTHING.union(*(m.free for m in self.terms))

    @property
    def number(self) -> Fraction | None:
        """The value, if it is a number."""
        if not self.terms:
            return Fraction(0)
        return self.terms.get(UNIT) if len(self.terms) == 1 else None

    @property
    def single(self) -> tuple[Mono, Fraction] | None:
        """The monomial and its coefficient, if there is exactly one."""
        return next(iter(self.terms.items())) if len(self.terms) == 1 else None

    @property
    def factor(self) -> Factor | None:
        """The factor, if the polynomial is nothing but one factor."""
        mono, c = self.single or (UNIT, 0)
        if c != 1 or len(mono.factors) != 1 or mono.exponent.terms or mono.factors[0][1] != 1:
            return None
        return mono.factors[0][0]

    @property
    def ordered(self) -> list[tuple[Mono, Fraction]]:
        """The terms, in structural order."""
        return sorted(self.terms.items(), key=lambda item: item[0].key)

    def __str__(self) -> str:
        from cleave.algebra.show import show

        return show(self)

    __repr__ = __str__


class Mono(Keyed):
    """A product of factors with non-zero rational exponents, in key order, times `exp(exponent)`."""

    __slots__ = ("exponent", "factors")

    def __init__(self, factors: tuple[tuple[Factor, Fraction], ...], exponent: Poly) -> None:
        super().__init__()
        self.factors = factors
        self.exponent = exponent

    def _spell(self, env: Env) -> str:
        if not self.factors and not self.exponent.terms:
            return "1"
        return "*".join(sorted(f"{f.text(env)}^{e}" for f, e in self.factors)) + "e" + self.exponent.text(env)

    def _indices(self) -> frozenset[Index]:
        return self.exponent.free.union(*(f.free for f, _ in self.factors))

    def power_of(self, factor: Factor) -> Fraction:
        """The exponent of a factor, 0 if it does not occur."""
        return next((e for f, e in self.factors if f == factor), Fraction(0))


class Factor(Keyed):
    """What a monomial is a product of."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(of_factor(self))

    __repr__ = __str__


class Element(Factor):
    """An element of an input, a run-time scalar (no terms) or a node treated as a leaf. Inputs and scalars
    are the same if their names are, other nodes if they are one node."""

    __slots__ = ("node", "terms")

    def __init__(self, node: Node, terms: tuple[Term, ...]) -> None:
        super().__init__()
        self.node = node
        self.terms = terms

    @property
    def name(self) -> str:
        """The input's name; a made-up one for other nodes."""
        op = self.node.op
        return op.name if isinstance(op, Input | Scalar) else "@" + self.node.digest[:6]

    @property
    def integer(self) -> bool:
        return self.node.dtype[0] in "iu"

    def _spell(self, env: Env) -> str:
        op = self.node.op
        source = f"in {op.name}" if isinstance(op, Input | Scalar) else f"node {self.node.digest}"
        return f"{source}[{','.join(term_text(t, env) for t in self.terms)}]"

    def _indices(self) -> frozenset[Index]:
        return NOTHING.union(*map(indices, self.terms))


class Size(Factor):
    """The size of an atom, or the number of parts of a partition (at least 1); with `part`, the size of that
    part of the partition that the dim `Part` belongs to (at least 0)."""

    __slots__ = ("dim", "part")

    def __init__(self, dim: Atom | Parts | Part, part: Term | None = None) -> None:
        super().__init__()
        self.dim = dim
        self.part = part

    def _spell(self, env: Env) -> str:
        return f"size {self.dim}" + (f"[{term_text(self.part, env)}]" if self.part is not None else "")

    def _indices(self) -> frozenset[Index]:
        return NOTHING if self.part is None else indices(self.part)


class Place(Factor):
    """The value, as an integer, of a leaf of an index term: an index, or a position joined from a part."""

    __slots__ = ("leaf",)

    def __init__(self, leaf: Index | Join) -> None:
        super().__init__()
        self.leaf = leaf

    @property
    def term(self) -> Term:
        """The leaf as a term."""
        return Term(((self.leaf, 1),))

    def _spell(self, env: Env) -> str:
        return f"place {leaf_text(self.leaf, env)}"

    def _indices(self) -> frozenset[Index]:
        return indices(self.term)


class Binder(Factor):
    """A factor that binds indices: `binders` are in canonical order, their numbers occur nowhere else."""

    __slots__ = ("binders", "body")
    head = ""

    def __init__(self, binders: Sequence[Index], body: Mono | Poly) -> None:
        super().__init__()
        self.body = body
        self.binders = label.order(tuple(binders), lambda env: body.text(env))

    def _spell(self, env: Env) -> str:
        return f"{self.head} {spell_bound(self.binders, (self.body,), env)}"

    def _indices(self) -> frozenset[Index]:
        return self.body.free.difference(self.binders)


class Sum(Binder):
    """The sum of a monomial over bound indices that are connected through it."""

    __slots__ = ()
    head = "sum"
    body: Mono


class Prod(Binder):
    """The product of a polynomial over bound indices (uninterpreted)."""

    __slots__ = ()
    head = "prod"
    body: Poly


class Entry(Keyed):
    """A member of a maximum: `value` for all values of the binders for which `guard` (0 or 1) is 1."""

    __slots__ = ("binders", "guard", "value")

    def __init__(self, binders: Sequence[Index], guard: Poly, value: Poly) -> None:
        super().__init__()
        self.guard = guard
        self.value = value
        self.binders = label.order(tuple(binders), self._bodies)

    def _bodies(self, env: Env) -> str:
        return self.guard.text(env) + self.value.text(env)

    def _spell(self, env: Env) -> str:
        return "entry " + spell_bound(self.binders, (self.guard, self.value), env)

    def _indices(self) -> frozenset[Index]:
        return (self.guard.free | self.value.free).difference(self.binders)


class Max(Factor):
    """The largest of a set of entries, in key order; -inf if no entry's guard holds anywhere."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Entry]) -> None:
        super().__init__()
        self.entries = tuple(sorted(set(entries), key=lambda e: e.key))

    def _spell(self, env: Env) -> str:
        return "max " + ",".join(sorted(e.text(env) for e in self.entries))

    def _indices(self) -> frozenset[Index]:
        return NOTHING.union(*(e.free for e in self.entries))


class Masked(Factor):
    """`value` where `guard` (0 or 1) is 1, else absent: -inf."""

    __slots__ = ("guard", "value")

    def __init__(self, guard: Poly, value: Poly) -> None:
        super().__init__()
        self.guard = guard
        self.value = value

    def _spell(self, env: Env) -> str:
        return f"masked {self.guard.text(env)} {self.value.text(env)}"

    def _indices(self) -> frozenset[Index]:
        return self.guard.free | self.value.free


class Based(Factor):
    """A factor that is a function of one polynomial."""

    __slots__ = ("base",)
    head = ""

    def __init__(self, base: Poly) -> None:
        super().__init__()
        self.base = base

    def _spell(self, env: Env) -> str:
        return f"{self.head} {self.base.text(env)}"

    def _indices(self) -> frozenset[Index]:
        return self.base.free


class Power(Based):
    """A polynomial whose content has left, as the base of a power (the exponent stands in the monomial)."""

    __slots__ = ()
    head = "power"


class Held(Power):
    """A polynomial that was too large to multiply out: a factor named by itself."""

    __slots__ = ()
    head = "held"


class Log(Based):
    """The logarithm of a polynomial without positive content."""

    __slots__ = ()
    head = "log"


class Apply(Factor):
    """An uninterpreted function (`fn` with a dtype where it matters) of polynomials."""

    __slots__ = ("args", "fn")

    def __init__(self, fn: str, args: Sequence[Poly]) -> None:
        super().__init__()
        self.fn = fn
        self.args = tuple(args)

    def _spell(self, env: Env) -> str:
        return f"apply {self.fn}({','.join(a.text(env) for a in self.args)})"

    def _indices(self) -> frozenset[Index]:
        return NOTHING.union(*(a.free for a in self.args))


class Predicate(Factor):
    """`[value rel 0]` as 0 or 1; `rel` is `>=`, `>` or `=`, canonical (see `algebra.predicates`)."""

    __slots__ = ("rel", "value")

    def __init__(self, rel: str, value: Poly) -> None:
        super().__init__()
        self.rel = rel
        self.value = value

    def _spell(self, env: Env) -> str:
        text = self.value.text(env)
        if self.rel == "=":  # `P = 0` and `-P = 0` are one predicate
            text = min(text, Poly({m: -c for m, c in self.value.terms.items()}).text(env))
        return f"pred {self.rel} {text}"

    def _indices(self) -> frozenset[Index]:
        return self.value.free


class Some(Factor):
    """A predicate: some entry's guard holds somewhere (values of entries are 0)."""

    __slots__ = ("entries",)

    def __init__(self, entries: Iterable[Entry]) -> None:
        super().__init__()
        self.entries = tuple(sorted(set(entries), key=lambda e: e.key))

    def _spell(self, env: Env) -> str:
        return "some " + ",".join(sorted(e.text(env) for e in self.entries))

    def _indices(self) -> frozenset[Index]:
        return NOTHING.union(*(e.free for e in self.entries))


ZERO = Poly({})
UNIT = Mono((), ZERO)
ONE = Poly({UNIT: Fraction(1)})


def is_predicate(factor: Factor) -> bool:
    """Is the factor's value always 0 or 1?"""
    return (
        factor.node.dtype == "bool" if isinstance(factor, Element) else isinstance(factor, Predicate | Some)
    )


def constant(value: int | Fraction) -> Poly:
    """The polynomial that is a number."""
    return Poly({UNIT: Fraction(value)}) if value else ZERO


def of_factor(factor: Factor, power: int | Fraction = 1) -> Poly:
    """The polynomial that is one factor."""
    return Poly({Mono(((factor, _1 if power == 1 else Fraction(power)),), ZERO): _1})


def of_mono(mono: Mono, coefficient: int | Fraction = 1) -> Poly:
    """The polynomial that is one monomial."""
    return Poly({mono: coefficient if type(coefficient) is Fraction else Fraction(coefficient)})


def children(value: Keyed) -> tuple[Keyed, ...]:
    """The parts a value is made of, binders not opened."""
    match value:
        case Poly():
            return tuple(value.terms)
        case Mono():
            return (*(f for f, _ in value.factors), value.exponent)
        case Binder():
            return (value.body,)
        case Entry() | Masked():
            return (value.guard, value.value)
        case Max() | Some():
            return value.entries
        case Based():
            return (value.base,)
        case Apply():
            return value.args
        case Predicate():
            return (value.value,)
        case _:
            return ()


def factors_in(value: Keyed) -> Iterable[Factor]:
    """Every factor inside a value, outermost first, those under binders too."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, Factor):
            yield item
        stack += reversed(children(item))


def terms_in(value: Keyed) -> Iterable[Term]:
    """Every index term inside a value, those under binders too."""
    for factor in factors_in(value):
        match factor:
            case Element():
                yield from factor.terms
            case Size() if factor.part is not None:
                yield factor.part
            case Place():
                yield factor.term
            case _:
                pass


def spell_bound(binders: Sequence[Index], bodies: Sequence[Keyed], env: Env) -> str:
    """Text of bodies under binders. Under names for free indices the canonical order may be another one."""
    if env and len(binders) > 1:
        binders = label.order(binders, lambda own: "".join(b.text({**env, **own}) for b in bodies))
    own = {**env, **{index: f"@{len(env) + slot}" for slot, index in enumerate(binders)}}
    dims = ",".join(str(index.dim) for index in binders)
    return f"[{dims}@{len(env)}]" + ";".join(b.text(own) for b in bodies)


__all__ = [
    "NOTHING", "ONE", "UNIT", "ZERO", "Apply", "Binder", "Element", "Entry", "Env", "Factor", "Held", "Keyed",
    "Log", "Masked", "Max", "Mono", "Place", "Poly", "Power", "Predicate", "Prod", "Size", "Some", "Sum",
    "constant", "factors_in", "fresh", "is_predicate", "of_factor", "of_mono", "size_extent", "terms_in",
    "union_parts",
]  # fmt: skip
