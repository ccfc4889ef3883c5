"""The body of a reduction as a polynomial around running values (design.md, section 3, Folds).

A body that depends on running values `u` of other reductions is written as a sum of monomials
`F(u) * M(k, u)`: `F` does not depend on the loop and waits until the end; `M` is a product of *elements*
(free of `u`), *shifted* terms `base(k) + c(u)`, exponentials of terms linear in shifted ones, and
indicators. Then `M(k, u')` is a combination of finitely many `M_j(k, u)` with factors free of the loop:
`(base + c')^n` by the binomial law, `exp(a * (base + c'))` by `exp(a * (c' - c))`. Anything else raises
`Unsupported`, whose text is the reason that the Fold reports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from cleave.algebra.frame import Site, at_axes, plain
from cleave.errors import Unsupported
from cleave.ir.dims import Dim, Index
from cleave.ir.ops import Access, Const, Contract, Map, Node, Reduce, Scalar, SizeOf, map_node

HIGHEST = 4
"""The highest power of a shifted term that is expanded."""

MOST = 24
"""The most monomials of a body."""


@dataclass(frozen=True, slots=True)
class Elem:
    """A value that does not depend on running values."""

    access: Access


@dataclass(frozen=True, slots=True)
class Run:
    """A value computed from running values only, the same for every loop index."""

    access: Access


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a dim."""

    dim: Dim


@dataclass(frozen=True, slots=True)
class Shift:
    """`base + run`: `base` varies with the loop, `run` is made of running values."""

    base: Poly
    run: Poly


@dataclass(frozen=True, slots=True)
class Exp:
    """The exponential of a polynomial that is linear in shifted terms."""

    arg: Poly


@dataclass(frozen=True, slots=True)
class Indicator:
    """1 where a boolean element equals `positive`, else 0."""

    access: Access
    positive: bool


@dataclass(frozen=True, slots=True)
class Gate:
    """1 where a boolean made of running values equals `positive`, else 0."""

    access: Access
    positive: bool


Gen = Elem | Run | Size | Shift | Exp | Indicator | Gate
Factors = tuple[tuple[Gen, int], ...]
Poly = tuple[tuple[Fraction, Factors], ...]
"""Coefficients and factors, in order of first occurrence (never sorted by names)."""

ONE: Poly = ((Fraction(1), ()),)


def add(a: Poly, b: Poly) -> Poly:
    """The sum, like terms collected."""
    total: dict[frozenset[tuple[Gen, int]], tuple[Fraction, Factors]] = {}
    for coefficient, factors in (*a, *b):
        key = frozenset(factors)
        before = total.get(key)
        total[key] = (coefficient + (before[0] if before else 0), before[1] if before else factors)
    return tuple(item for item in total.values() if item[0])


def scale(a: Poly, by: Fraction | int) -> Poly:
    """Every coefficient times a number."""
    return tuple((c * by, f) for c, f in a) if by else ()


def mul(a: Poly, b: Poly) -> Poly:
    """The product, distributed."""
    total: Poly = ()
    for c, f in a:
        total = add(total, tuple((c * d, join(f, g)) for d, g in b))
    if len(total) > MOST:
        raise Unsupported(f"the body has more than {MOST} terms")
    return total


def join(a: Factors, b: Factors) -> Factors:
    """The product of two monomials; two exponentials become one."""
    total: dict[Gen, int] = dict(a)
    for gen, power in b:
        if isinstance(gen, Exp):
            other = next((g for g in total if isinstance(g, Exp)), None)
            if other is not None:
                del total[other]
                gen = Exp(add(other.arg, gen.arg))
        total[gen] = total.get(gen, 0) + power
    # An exponential is kept once, to the power one; [p] * [p] = [p].
    return tuple((g, 1 if isinstance(g, Exp | Indicator | Gate) else p) for g, p in total.items() if p)


def gen(value: Gen) -> Poly:
    """The polynomial of one generator."""
    return ((Fraction(1), ((value, 1),)),)


class Body:
    """Turns the body of a site into a polynomial around the running values of `running`."""

    def __init__(self, site: Site, running: frozenset[Node]) -> None:
        self.site = site
        self.running = running
        self.bound: frozenset[Index] = frozenset(site.node.bound)
        self._uses: dict[Node, bool] = {}

    def poly(self) -> Poly:
        """The body: the product of a contraction's operands, or a reduction's argument."""
        op = self.site.node.op
        if isinstance(op, Contract):
            product = ONE
            for access in op.args:
                product = mul(product, self.of(access))
        else:
            assert isinstance(op, Reduce)
            product = self.of(op.arg)
        check_rescales(product)
        return product

    def uses(self, node: Node) -> bool:
        """Whether a node depends on a running value through pointwise operations."""
        if node not in self._uses:
            self._uses[node] = node in self.running or (
                isinstance(node.op, Map) and any(self.uses(a.node) for a in node.op.args)
            )
        return self._uses[node]

    def of(self, access: Access) -> Poly:
        """The polynomial of a value in the site's indices."""
        access = plain(access)
        op = access.node.op
        if isinstance(op, Const) and not isinstance(op.value, bool) and math.isfinite(op.value):
            return scale(ONE, Fraction(op.value))
        if isinstance(op, SizeOf):
            return gen(Size(op.dim))
        if not self.uses(access.node):
            return gen(Elem(access))
        if not access.indices & self.bound:
            return _opened(self, access)
        if not isinstance(op, Map):
            raise Unsupported("a running value is read at a bound index")
        rule = _RULES.get(op.fn)
        if rule is None:
            raise Unsupported(f"{op.fn} of a running value cannot be rescaled")
        return rule(self, [a.at(at_axes(access)) for a in op.args])


def _opened(body: Body, access: Access) -> Poly:
    """A value made of running values; a sum with logs in it as its terms, since logs wait (see `shift`)."""
    op = access.node.op
    if isinstance(op, Map) and op.fn in ("add", "sub", "neg") and _has_log(access.node):
        args = [body.of(a.at(at_axes(access))) for a in op.args]
        if op.fn == "neg":
            return scale(args[0], -1)
        return add(args[0], args[1] if op.fn == "add" else scale(args[1], -1))
    return gen(Run(access))


def _has_log(node: Node) -> bool:
    op = node.op
    if not isinstance(op, Map) or op.fn not in ("add", "sub", "neg", "log"):
        return False
    return op.fn == "log" or any(_has_log(plain(a).node) for a in op.args)


def _sum(body: Body, args: list[Access], sign: int) -> Poly:
    return shift(add(body.of(args[0]), scale(body.of(args[1]), sign)))


def shift(total: Poly) -> Poly:
    """`base + run` becomes one shifted term, where the base itself does not depend on running values. A log
    is not large: it stays a term of its own, and waits until the end."""
    late = tuple(t for t in total if is_late(t[1]))
    if late:
        return add(shift(tuple(t for t in total if t not in late)), late)
    run = tuple(t for t in total if is_run(t[1]))
    rest = tuple(t for t in total if not is_run(t[1]))
    if not run or not rest:
        return total
    gens = [g for _, f in rest for g, _ in f]
    if not any(isinstance(g, Run | Exp | Shift) for g in gens):
        return gen(Shift(rest, run))
    if len(rest) == 1 and len(gens) == 1 and isinstance(gens[0], Shift) and rest[0][1][0][1] == 1:
        factor, old = rest[0][0], gens[0]
        return scale(gen(Shift(old.base, add(old.run, scale(run, 1 / factor)))), factor)
    return total


def is_run(factors: Factors) -> bool:
    """Whether a monomial is made of running values (and sizes) only, at least one."""
    gens = [g for g, _ in factors]
    return any(isinstance(g, Run) for g in gens) and all(isinstance(g, Run | Size | Gate) for g in gens)


def is_late(factors: Factors) -> bool:
    """Whether a monomial is the log of a running value, times sizes and the like."""
    logs = [g for g, _ in factors if isinstance(g, Run) and _is_log(plain(g.access).node.op)]
    return bool(logs) and is_run(factors)


def _is_log(op: object) -> bool:
    return isinstance(op, Map) and op.fn == "log"


def invert(total: Poly) -> Poly:
    """The reciprocal of a single monomial."""
    if len(total) != 1:
        raise Unsupported("a quotient by a sum with a running value cannot be rescaled")
    coefficient, factors = total[0]
    turned: list[tuple[Gen, int]] = []
    for g, power in factors:
        if isinstance(g, Shift | Indicator | Gate):
            raise Unsupported("a quotient by a difference from a running value cannot be rescaled")
        turned.append((Exp(scale(g.arg, -1)), 1) if isinstance(g, Exp) else (g, -power))
    return ((1 / coefficient, tuple(turned)),)


def _power(body: Body, args: list[Access]) -> Poly:
    op = plain(args[1]).node.op
    if not isinstance(op, Const) or op.value not in range(1, HIGHEST + 1):
        raise Unsupported("a power of a running value cannot be rescaled")
    base, total = body.of(args[0]), ONE
    for _ in range(int(op.value)):
        total = mul(total, base)
    return total


def _select(body: Body, args: list[Access]) -> Poly:
    condition, yes, no = args
    if not body.uses(condition.node):
        kind: type[Indicator | Gate] = Indicator
    elif condition.indices & body.bound:
        raise Unsupported("a predicate of a running value cannot be rescaled")
    else:
        kind = Gate
    return add(mul(gen(kind(condition, True)), body.of(yes)), mul(gen(kind(condition, False)), body.of(no)))


def _exp(body: Body, args: list[Access]) -> Poly:
    access = plain(args[0])
    op = access.node.op
    if isinstance(op, Map) and op.fn == "select" and body.uses(access.node):
        condition, *branches = (a.at(at_axes(access)) for a in op.args)
        parts: Poly = ()
        for branch, positive in zip(branches, (True, False), strict=True):
            if not is_constant(branch, -math.inf):
                parts = add(parts, mul(gen(Indicator(condition, positive)), _exp(body, [branch])))
        return parts
    total = body.of(access)
    result = gen(Exp(tuple(t for t in total if not is_late(t[1]))))
    for coefficient, factors in total:
        if is_late(factors):
            result = mul(result, _exp_of_log(coefficient, factors))
    return result


def _exp_of_log(coefficient: Fraction, factors: Factors) -> Poly:
    """`exp(n * log a)` is `a ** n`."""
    (log, power), *others = factors
    assert isinstance(log, Run)
    op = plain(log.access).node.op
    if others or power != 1 or coefficient.denominator != 1 or not isinstance(op, Map):
        raise Unsupported("an exponent has the log of a running value times another value")
    inner = plain(op.args[0].at(at_axes(plain(log.access))))
    return ((Fraction(1), ((Run(inner), int(coefficient)),)),)


def _log(body: Body, args: list[Access]) -> Poly:
    total = body.of(args[0])
    if len(total) != 1:
        raise Unsupported("the log of a sum with a running value cannot be rescaled")
    coefficient, factors = total[0]
    if coefficient != 1 or not all(isinstance(g, Exp | Run | Elem) for g, _ in factors):
        raise Unsupported("the log of a product with a running value cannot be rescaled")
    result: Poly = ()
    for g, power in factors:
        if isinstance(g, Exp):
            result = add(result, g.arg)
        else:
            # Whether each factor is positive, as the law asks, is for the proof of the decomposition to say.
            assert isinstance(g, Run | Elem)
            axes = tuple(sorted(g.access.indices, key=lambda i: i.number))
            node = map_node("log", axes, [g.access], g.access.node.dtype)
            result = add(result, scale(gen(type(g)(node(*axes))), power))
    return shift(result)


def is_constant(access: Access, value: float) -> bool:
    """Whether an access reads the literal `value`."""
    op = plain(access).node.op
    return isinstance(op, Const) and not isinstance(op.value, bool) and op.value == value


def unguarded(access: Access) -> tuple[Access, str]:
    """The value behind `select(value = -inf, 0, value)`, since shifts are guarded anyway, and what the guard
    is against: `low`, `high`, or for `select(|value| = inf, 0, value)` `both`; empty if there is none."""
    op = access.node.op
    if not isinstance(op, Map) or op.fn != "select":
        return access, ""
    condition, zero, value = (plain(a.at(at_axes(access))) for a in op.args)
    test = condition.node.op
    if not isinstance(test, Map) or test.fn != "eq" or not is_constant(zero, 0.0):
        return access, ""
    one, two = (plain(a.at(at_axes(condition))) for a in test.args)
    side = "low" if is_constant(two, -math.inf) else "high" if is_constant(two, math.inf) else ""
    if side == "high" and isinstance(one.node.op, Map) and one.node.op.fn == "abs":
        one, side = plain(one.node.op.args[0].at(at_axes(one))), "both"
    return (value, side) if side and one == value else (access, "")


_RULES: dict[str, Callable[[Body, list[Access]], Poly]] = {
    "add": lambda b, x: _sum(b, x, 1),
    "sub": lambda b, x: _sum(b, x, -1),
    "neg": lambda b, x: scale(b.of(x[0]), -1),
    "mul": lambda b, x: mul(b.of(x[0]), b.of(x[1])),
    "div": lambda b, x: mul(b.of(x[0]), invert(b.of(x[1]))),
    "reciprocal": lambda b, x: invert(b.of(x[0])),
    "pow": _power,
    "select": _select,
    "exp": _exp,
    "log": _log,
}


def is_scalar(factor: Gen) -> bool:
    """Whether a factor is a run-time scalar, which every one of a Fold's programs may read."""
    return isinstance(factor, Elem) and isinstance(plain(factor.access).node.op, Scalar)


def check_rescales(total: Poly) -> None:
    """Raise `Unsupported` unless every monomial can follow a change of the running values."""
    for _, factors in total:
        alone = not any(isinstance(g, Exp) for g, _ in factors)
        for g, power in factors:
            if isinstance(g, Shift) and alone and power > 1 and _around_extreme(g):
                raise Unsupported("a power of the distance from a maximum, which may be infinite, is summed")
            if isinstance(g, Shift) and not 1 <= power <= HIGHEST:
                raise Unsupported("a negative or high power of a shifted term cannot be rescaled")
            if isinstance(g, Exp):
                _check_exponent(g.arg)


def _around_extreme(shift: Shift) -> bool:
    """Whether a shift's running value is a maximum or minimum. Where an element is infinite, a sum of
    squares around an old one cannot be carried to a new one: inf would become inf - inf."""
    runs = [g for _, factors in shift.run for g, _ in factors if isinstance(g, Run)]
    ops = [plain(g.access).node.op for g in runs]
    return any(isinstance(op, Reduce) and op.kind in ("max", "min") for op in ops)


def _check_exponent(arg: Poly) -> None:
    for _, factors in arg:
        gens = [g for g, _ in factors]
        if any(isinstance(g, Run | Exp | Gate) for g in gens):
            raise Unsupported("an exponent has a product with a running value")
        if any(isinstance(g, Shift) for g in gens) and (
            len([g for g in gens if not isinstance(g, Size) and not is_scalar(g)]) != 1
            or any(isinstance(g, Shift) and p != 1 for g, p in factors)
        ):
            raise Unsupported("an exponent is not linear in a shifted term")


# ---------------------------------------------------------------- change of the running values

Rebase = tuple[tuple[Fraction, tuple[tuple[Poly, int], ...], Poly, Factors], ...]
"""Terms `coefficient * prod(delta(run)^n) * exp(weight)` of monomials at the old running values; in
`weight` a shifted term stands for its change."""


def rebase(factors: Factors) -> Rebase:
    """`M(k, u')` as a combination of monomials `M_j(k, u)` (the proved matrix R of design.md)."""
    weight: Poly = ()
    terms: list[tuple[Fraction, tuple[tuple[Poly, int], ...], Factors]] = [(Fraction(1), (), ())]
    for g, power in factors:
        if isinstance(g, Shift):
            choices = [(Fraction(math.comb(power, n)), n) for n in range(power + 1)]
            terms = [
                (c * b, (*d, (g.run, n)) if n else d, (*f, (g, power - n)) if power > n else f)
                for c, d, f in terms
                for b, n in choices
            ]
            continue
        if isinstance(g, Exp):
            weight = tuple(t for t in g.arg if any(isinstance(x, Shift) for x, _ in t[1]))
        terms = [(c, d, (*f, (g, power))) for c, d, f in terms]
    return tuple((c, d, weight, f) for c, d, f in terms)


def separate(total: Poly) -> list[tuple[Fraction, Factors, Factors]]:
    """Each monomial as coefficient, the part that waits (`F`), the part inside the sum (`M`)."""
    result: list[tuple[Fraction, Factors, Factors]] = []
    for c, factors in total:
        outside = tuple((g, p) for g, p in factors if isinstance(g, Run | Size | Gate))
        inside = tuple((g, p) for g, p in factors if not isinstance(g, Run | Size | Gate))
        result.append((c, outside, inside))
    return result
