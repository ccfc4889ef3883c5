"""Sizes during capture: variables that unify, factor and concatenate while operations are recorded.

A `Var` is a dim that is still being found out: two of them become one when an operation demands it (`unify`),
one becomes a product when a view splits it (`refine`) or a disjoint union when a concatenation meets it. An
`Ix` is an index variable over a `Var`; its `leaves` are read off lazily, so a factoring found late also holds
for everything recorded early. Nothing is decided by two sizes being equal in the first call: concrete sizes
(`hint`) only say which reading of an ambiguous demand is meant, and each use of one becomes a check.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

from cleave.errors import Bug, Unsupported

Expr = Any
"""A sympy expression (its stubs are too coarse to be of use)."""


class Var:
    """A dim variable. `hint` is its size in the captured call, `value` its size if an operation fixes it,
    `user` its size in the symbols of the arguments, `length` the same where it follows from other dims."""

    __slots__ = (
        "declared", "factors", "hint", "label", "late", "length", "number", "parent", "parts", "scaled",
        "slices", "symbol", "user", "value",
    )  # fmt: skip

    def __init__(self, number: int, hint: int, user: Expr, label: str) -> None:
        self.number, self.hint, self.user, self.label = number, hint, user, label
        self.symbol = sympy.Symbol(f"d{number}", integer=True, nonnegative=True)
        self.declared = ""
        self.value: int | None = None
        self.length: Expr | None = None
        self.factors: tuple[Var, ...] | None = None
        self.parts: tuple[Var, ...] | None = None
        self.parent: Var | None = None
        self.slices: list[tuple[Expr, Var]] = []
        self.scaled = False
        self.late = False

    def __repr__(self) -> str:
        return f"{self.label or 'd'}{self.number}({self.hint})"


class Ix:
    """An index variable over a `Var`."""

    __slots__ = ("kids", "var")

    def __init__(self, var: Var) -> None:
        self.var = var
        self.kids: tuple[Ix, ...] | None = None


def root(var: Var) -> Var:
    """The variable that stands for a unified class."""
    while var.parent is not None:
        var = var.parent
    return var


def leaves_of(ixs: Iterable[Ix]) -> tuple[Ix, ...]:
    """The indices below, as factored so far; indices over a size that is known to be 1 vanish."""
    found: list[Ix] = []
    for ix in ixs:
        var = root(ix.var)
        if var.value == 1:
            continue
        if var.factors is None:
            found.append(ix)
            continue
        if ix.kids is None:
            ix.kids = tuple(Ix(factor) for factor in var.factors)
        found += leaves_of(ix.kids)
    return tuple(found)


def leaf_vars(var: Var) -> tuple[Var, ...]:
    """The factors of a variable, outermost first."""
    top = root(var)
    if top.value == 1:
        return ()
    if top.factors is None:
        return (top,)
    return tuple(leaf for factor in top.factors for leaf in leaf_vars(factor))


def hint_of(ixs: Iterable[Ix]) -> int:
    """The size of a product of indices in the captured call."""
    return math.prod(root(ix.var).hint for ix in leaves_of(ixs))


class Space:
    """All size variables of one capture, and what operations demanded of them."""

    def __init__(self) -> None:
        self.vars: list[Var] = []
        self.of_symbol: dict[sympy.Symbol, Var] = {}
        self.checks: dict[sympy.Basic, None] = {}
        self.call = -1

    # ------------------------------------------------------------ making

    def fresh(self, hint: int, user: Expr | int, label: str = "") -> Var:
        """A size of its own."""
        var = Var(len(self.vars), hint, sympy.sympify(user), label)
        self.vars.append(var)
        return var

    def known(self, value: int) -> Var:
        """A size that is a literal."""
        var = self.fresh(value, value)
        var.value = value
        return var

    def sized(self, user: Expr | int, hint: int, label: str = "") -> Var:
        """The variable for a size that the program states (`torch.arange(S)`, `expand(n)`)."""
        exact = self.canon(user)
        if isinstance(exact, sympy.Integer):
            return self.known(int(exact))
        if isinstance(exact, sympy.Symbol):
            for var in self.vars:
                if var.parent is None and var.symbol == exact:
                    return var
        var = self.fresh(hint, user, label)
        var.length = sympy.sympify(user)
        return var

    # ------------------------------------------------------------ sizes as polynomials

    def poly(self, var: Var) -> Expr:
        """The size in the symbols of leaves."""
        top = root(var)
        if top.value is not None:
            return sympy.Integer(top.value)
        if top.factors is not None:
            return sympy.expand(sympy.Mul(*(self.poly(f) for f in top.factors)))
        if top.parts is not None:
            return sympy.expand(sympy.Add(*(self.poly(p) for p in top.parts)))
        if top.length is not None:
            return self.canon(top.length)
        return top.symbol

    def canon(self, user: Expr | int) -> Expr:
        """A size in arguments' symbols, rewritten to leaves: equal sizes become identical expressions."""
        expr: Any = sympy.sympify(user)
        known = {s: self.poly(self.of_symbol[s]) for s in expr.free_symbols if s in self.of_symbol}
        return sympy.expand(expr.xreplace(known)) if known else sympy.expand(expr)

    def quotient(self, a: Expr, b: Expr) -> Expr | None:
        """`a / b` if it is a polynomial with whole coefficients."""
        if a == b:
            return sympy.Integer(1)
        if b == 0 or not b.free_symbols <= a.free_symbols or b.has(FloorDiv) or a.has(FloorDiv):
            return None
        result = sympy.cancel(a / b)
        top, bottom = sympy.fraction(sympy.together(result))
        if bottom != 1:
            return None
        coefficients = sympy.expand(top).as_coefficients_dict().values()
        return sympy.expand(result) if all(c.is_integer for c in coefficients) else None

    def user_of(self, ixs: Iterable[Ix]) -> Expr:
        """The size of a product of indices in the arguments' symbols."""
        return sympy.Mul(*(self.user(ix.var) for ix in leaves_of(ixs)))

    def user(self, var: Var) -> Expr:
        """The size in the arguments' symbols."""
        top = root(var)
        return sympy.Integer(top.value) if top.value is not None else top.user

    def demand(self, a: Expr, b: Expr) -> None:
        """Both sizes are equal in every call this capture serves."""
        check = sympy.Eq(a, b)
        if check is not sympy.true:
            self.checks[check] = None

    # ------------------------------------------------------------ unify and refine

    def fix(self, var: Var, value: int) -> None:
        """An operation demands this very size."""
        top = root(var)
        if top.value == value:
            return
        if top.value is not None or top.hint != value:
            raise Unsupported(f"a size of {top.hint} where {value} is demanded")
        self.demand(top.user, sympy.Integer(value))
        if value == 1:
            for leaf in (*(top.factors or ()),):
                self.fix(leaf, 1)
        elif top.factors is not None:
            for leaf in top.factors:
                self.fix(leaf, root(leaf).hint)
        elif top.parts is not None:
            for part in top.parts:
                self.fix(part, root(part).hint)
        top.value = value

    def unify(self, a: Var, b: Var) -> None:
        """Both variables are one dim."""
        a, b = root(a), root(b)
        if a is b:
            return
        if a.hint != b.hint:
            raise Unsupported(f"sizes {a.hint} and {b.hint} where equal ones are demanded")
        if (b.late, b.number) < (a.late, a.number):
            a, b = b, a
        for one, two in ((a, b), (b, a)):
            if one.value is not None and two.value is None:
                self.fix(two, one.value)
        if a.value is None:
            self.demand(a.user, b.user)
        if a.factors is not None and b.factors is not None:
            self.zip(leaf_vars(a), leaf_vars(b))
        elif (a.factors and b.parts) or (a.parts and b.factors):
            raise Unsupported("a dim that is split by a reshape here and concatenated there")
        elif a.parts is not None and b.parts is not None:
            if len(a.parts) != len(b.parts):
                raise Unsupported("two different concatenations along one dim")
            for p, q in zip(a.parts, b.parts, strict=True):
                self.unify(p, q)
        a, b = root(a), root(b)
        if a is b:
            return
        factors, parts = a.factors or b.factors, a.parts or b.parts
        length = b.length if b.length is not None and a.length is None else a.length
        if factors is not None and (a.slices or b.slices):
            raise Unsupported("a dim that is sliced here and split by a reshape there")
        if length is not None and self.canon(length).has(a.symbol, b.symbol):
            length = None
        for top in (a, b):
            self._release(top, (*(factors or ()), *(parts or ())))
        b.parent = a
        a.factors, a.parts, a.length = factors, parts, length
        a.declared = a.declared or b.declared
        a.label = a.label or b.label
        a.slices = a.slices + b.slices
        a.scaled = a.scaled or b.scaled
        self._settle(a)

    def _release(self, top: Var, made: Sequence[Var]) -> None:
        """What `top` is made of is no longer computed from it."""
        for item in map(root, made):
            if item.length is not None and self.canon(item.length).has(top.symbol):
                item.length = None

    def refine(self, var: Var, factors: Sequence[Var]) -> None:
        """The dim is a product: outermost first."""
        top = root(var)
        below = [leaf for factor in factors for leaf in leaf_vars(factor)]
        if top in below:
            for other in below:
                if other is not top:
                    self.fix(other, 1)
            return
        if top.factors is not None:
            self.zip(leaf_vars(top), tuple(below))
            return
        if len(below) == 1:
            self.unify(top, below[0])
            return
        if top.parts is not None or top.slices:
            raise Unsupported("a dim that is sliced or concatenated here and split by a reshape there")
        if top.scaled and any(root(f).value is None for f in below[1:]):
            raise Unsupported("a strided slice of a dim that a reshape splits at a dynamic size")
        if top.value is not None:
            for factor in below:
                self.fix(factor, factor.hint)
        self._release(top, below)
        self.demand(self.user(top), sympy.Mul(*(self.user(f) for f in below)))
        top.factors = tuple(below)

    def concatenate(self, var: Var, parts: Sequence[Var]) -> None:
        """The dim is a disjoint union of others."""
        top = root(var)
        if top.factors is not None:
            raise Unsupported("a dim that is split by a reshape here and concatenated there")
        if top.parts is not None:
            raise Unsupported("two different concatenations along one dim")
        if top.value is not None:
            for part in parts:
                self.fix(part, root(part).hint)
        self._release(top, parts)
        self.demand(self.user(top), sympy.Add(*(self.user(p) for p in parts)))
        top.parts = tuple(parts)
        self._settle(top)

    def sliced(self, var: Var, start: Expr, width: Var) -> None:
        """A slice of the dim, from `start` on, as long as `width`."""
        top = root(var)
        if top.factors is not None:
            raise Unsupported("a slice of a dim that a reshape splits")
        top.slices.append((start, width))
        self._settle(top)

    def _settle(self, var: Var) -> None:
        """Slices that select exactly one part of a union range over that part."""
        var = root(var)
        if var.parts is None:
            return
        for start, width in tuple(var.slices):
            at: Expr = sympy.Integer(0)
            for part in var.parts:
                if self.canon(start) == sympy.expand(at) and self.poly(width) == self.poly(part):
                    self.unify(width, part)
                    break
                at = at + self.poly(part)

    def zip(self, left: Sequence[Var], right: Sequence[Var]) -> None:
        """Two products are one: factor both until they agree, factor by factor."""
        a, b = list(left), list(right)
        while True:
            a = [leaf for v in a for leaf in leaf_vars(v)]
            b = [leaf for v in b for leaf in leaf_vars(v)]
            if not a or not b:
                for rest in (*a, *b):
                    self.fix(rest, 1)
                return
            if a[0] is b[0]:
                del a[0], b[0]
            elif len(a) == 1 or len(b) == 1:
                one, many = (a, b) if len(a) == 1 else (b, a)
                self.refine(one[0], many)
                return
            else:
                self._zip_first(a, b)

    def _zip_first(self, a: list[Var], b: list[Var]) -> None:
        x, y = a[0], b[0]
        if self.poly(x) == self.poly(y) or x.hint == y.hint:
            self.unify(x, y)
            return
        big, small = (x, y) if x.hint > y.hint else (y, x)
        ratio = self.quotient(self.poly(big), self.poly(small))
        if ratio is not None:
            self.refine(
                big, (small, self.part_of(big, ratio, big.hint // max(small.hint, 1), self.user(small)))
            )
        elif small.hint and big.hint % small.hint == 0:
            self.refine(big, (small, self.share(big, small)))
        elif x.value is not None and y.value is not None and math.gcd(x.value, y.value) > 1:
            common = math.gcd(x.value, y.value)
            for v in (x, y):
                self.refine(v, (self.known(common), self.known((v.value or 0) // common)))
        else:
            raise Unsupported(f"one dim split as {x.hint} x ... here and as {y.hint} x ... there")

    def share(self, var: Var, by: Var) -> Var:
        """A new variable for `var / by`."""
        top = root(var)
        hint = top.hint // max(root(by).hint, 1)
        return self.fresh(hint, FloorDiv(self.user(top), self.user(by)), top.label)

    def part_of(self, var: Var, exact: Expr, hint: int, by: Expr) -> Var:
        """The variable for `var / by`, where the quotient is known in leaves."""
        if isinstance(exact, sympy.Integer):
            return self.known(int(exact))
        for other in self.vars:
            if other.parent is None and other.symbol == exact:
                return other
        return self.fresh(hint, FloorDiv(self.user(var), by), root(var).label)

    def match(self, a: Sequence[Ix], b: Sequence[Ix]) -> None:
        """Two axes meet in an operation: sizes are equal, or one of them is 1 and broadcasts."""
        first, second = leaves_of(a), leaves_of(b)
        if not first or not second:
            return
        one, two = hint_of(first), hint_of(second)
        if one != two and 1 in (one, two):
            for ix in first if one == 1 else second:
                self.fix(ix.var, 1)
            return
        if one != two:
            raise Bug(f"axes of sizes {one} and {two} meet")
        self.zip([ix.var for ix in first], [ix.var for ix in second])
        left, right = leaves_of(a), leaves_of(b)
        if [root(i.var) for i in left] != [root(i.var) for i in right]:
            raise Bug("axes do not agree after factoring")
