"""The proof of a rescaling: `M(k, u') = sum_j R_j(u, u') * M_j(k, u)` with `u` and `u'` free and finite.

Both sides are written as programs whose elements and shifts are inputs, and compared by normal form. Because
the identity holds for every element and every `u`, summing it over any part is valid whatever `u` came to be:
for every partition, uneven and empty parts included (design.md, section 3, Folds).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from cleave.algebra.bodies import Elem, Factors, Gate, Poly, Run, Shift, Size, rebase
from cleave.algebra.build import Builder, axes_of
from cleave.algebra.emission import Emission, View, mask, signed
from cleave.algebra.frame import Site, plain
from cleave.algebra.normal import normal_forms
from cleave.algebra.read import whole
from cleave.errors import CleaveError
from cleave.ir.dims import Index, var
from cleave.ir.ops import Access, Node, input_node, size

_proved: dict[tuple[str, str], bool] = {}
MOST_REMEMBERED = 4096


def rescaling_holds(site: Site, inside: Factors) -> bool:
    """Is the rescaling of a monomial proved?"""
    return _same(*sides(site, inside))


def decomposition_holds(site: Site, terms: Sequence[tuple[Fraction, Factors, Factors]]) -> bool:
    """Is the site's body proved to be the sum of `coefficient * F * M`?"""
    build = Builder("f64")
    emit = Emission(build)
    view = Same(site, "f64")
    left = _times(build, [plain(a) for a in site.node.args])
    right = build.number(0.0)
    for coefficient, outside, inside in terms:
        factors = emit.factors(view, (*inside, *outside))
        for gen, _ in outside:
            if isinstance(gen, Gate):
                mask(build, factors, gen.access, gen.positive)
        right = build.add(right, build.mul(_times(build, factors), build.number(coefficient)))
    return _same(*_aligned(left, right))


def same_value(left: Access, right: Access) -> bool:
    """Are two values over the same indices proved equal?"""
    return _same(*_aligned(left, right))


def _same(one: Node, two: Node) -> bool:
    key = (one.digest, two.digest)
    if key not in _proved:
        if len(_proved) >= MOST_REMEMBERED:
            _proved.clear()
        try:
            forms = normal_forms([one, two])
            _proved[key] = forms[one] == forms[two]
        except CleaveError:
            _proved[key] = False
    return _proved[key]


def _aligned(left: Access, right: Access) -> tuple[Node, Node]:
    """Two values as nodes over the same axes."""
    axes = axes_of([left, right])
    like = input_node("like", [(i.dim,) for i in axes], "f64")
    where = {i: var(Index(i.dim, n)) for n, i in enumerate(axes)}
    return whole(left.at(where), like), whole(right.at(where), like)


def sides(site: Site, inside: Factors) -> tuple[Node, Node]:
    """The monomial at the new running values, and the combination of monomials at the old ones."""
    names: dict[object, str] = {}
    build = Builder("f64")
    emit = Emission(build)
    new, old = _Free(site, names, "new"), _Free(site, names, "old")
    left = _times(build, emit.factors(new, inside))
    right = build.number(0.0)
    for coefficient, deltas, weight, factors in rebase(inside):
        part = _times(build, emit.factors(old, factors))
        for run, power in deltas:
            part = build.mul(part, build.power(_delta(build, old, new, run), power))
        if weight:
            part = build.mul(part, build.map("exp", _weight(build, old, new, weight)))
        right = build.add(right, build.mul(part, build.number(coefficient)))
    return _aligned(left, right)


def _times(build: Builder, factors: list[Access]) -> Access:
    total = build.number(Fraction(1))
    for factor in factors:
        total = build.mul(total, factor)
    return total


def _delta(build: Builder, old: View, new: View, run: Poly) -> Access:
    sign, run = signed(run)
    before, after = old.shift(run), new.shift(run)
    return build.sub(before, after) if sign < 0 else build.sub(after, before)


def _weight(build: Builder, old: View, new: View, exponent: Poly) -> Access:
    total = build.number(0.0)
    for coefficient, factors in exponent:
        part = build.number(coefficient)
        for gen, power in factors:
            if isinstance(gen, Shift):
                part = build.mul(part, _delta(build, old, new, gen.run))
            elif isinstance(gen, Elem):
                part = build.mul(part, build.power(old.elem(gen.access), power))
            else:
                assert isinstance(gen, Size)
                part = build.mul(part, build.power(size(gen.dim, build.dtype), power))
        total = build.add(total, part)
    return total


class _Free(View):
    """Elements are inputs named by what they read, shifts inputs named by their moment."""

    def __init__(self, site: Site, names: dict[object, str], moment: str) -> None:
        super().__init__(site, "f64")
        self.names = names
        self.moment = moment

    def _input(self, key: object, stem: str, indices: tuple[Index, ...], dtype: str) -> Access:
        name = self.names.setdefault(key, f"{stem}{len(self.names)}")
        return input_node(name, [(i.dim,) for i in indices], dtype)(*indices)

    def elem(self, access: Access) -> Access:
        access = plain(access)
        dtype = "bool" if access.node.dtype == "bool" else "f64"
        return self._input(access, "x", axes_of([access]), dtype)

    def shift(self, run: Poly) -> Access:
        reads = [g.access for _, f in run for g, _ in f if isinstance(g, Run)]
        return self._input((self.moment, run), self.moment, axes_of(reads), "f64")

    def run(self, access: Access) -> Access:
        return self._input(plain(access), "r", axes_of([access]), "f64")


class Same(View):
    """Everything as the candidate itself has it."""

    def elem(self, access: Access) -> Access:
        return plain(access)

    def run(self, access: Access) -> Access:
        return plain(access)

    def shift(self, run: Poly) -> Access:
        return Emission(Builder(self.dtype)).poly(self, run)
