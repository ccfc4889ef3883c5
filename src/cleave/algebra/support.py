"""Where a Fold's step leaves the state unchanged: masks read off the bodies (design.md, section 3).

A body that is 0 (in a sum) or -inf (in a maximum) wherever a predicate is false contributes nothing there.
The predicate that all components of a Fold share is its support.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from cleave.algebra.bodies import Elem, Exp, Factors, Gen, Indicator, Shift, is_constant
from cleave.algebra.frame import at_axes, plain
from cleave.ir.dims import Index, Part, Term, indices_of, var
from cleave.ir.ops import Access, Const, Map, Node, map_node
from cleave.ir.program import sort_nodes

if TYPE_CHECKING:
    from cleave.algebra.moments import State
    from cleave.algebra.pieces import Assembly

Mask = tuple[Access, bool]
"""A boolean access, and the value that it has where something is contributed."""


class Zeros:
    """Finds the predicates outside which a value is 0, -inf or false. Where they are a loop's support,
    `along` are its indices: what is masked is then NaN where the same mask makes what it is multiplied with,
    divided by or less by endless or 0 too, as in a row of a softmax that is masked as a whole."""

    def __init__(self, along: frozenset[Index] = frozenset()) -> None:
        self.along = along

    def _beside(self, masks: list[Mask], others: Sequence[Access]) -> list[Mask]:
        """The masks of an operand that its other operands leave in force."""
        return [m for m in masks if all(self._steady(other, m) for other in others)]

    def _steady(self, other: Access, mask: Mask) -> bool:
        """Whether a value is finite wherever it is known to be by itself, also where a predicate fails."""
        if not self.along & other.indices:
            return True
        return not _has_infinity(other.node) and mask[0].node not in _upstream(other.node)

    def zero(self, access: Access) -> list[Mask]:
        """Predicates whose failure makes a value 0."""
        access = plain(access)
        op = access.node.op
        if not isinstance(op, Map):
            return []
        args = [a.at(at_axes(access)) for a in op.args]
        match op.fn:
            case "select":
                return self._select(args, 0.0, self.zero)
            case "mul":
                return [m for a, b in _both(args) for m in self._beside(self.zero(a), [b])]
            case "div":
                return self._beside(self.zero(args[0]), args[1:])
            case "neg" | "sqrt" | "abs":
                return self.zero(args[0])
            case "cast":
                return self.false(args[0]) if args[0].node.dtype == "bool" else self.zero(args[0])
            case "exp":
                return self.low(args[0])
            case _:
                return []

    def low(self, access: Access) -> list[Mask]:
        """Predicates whose failure makes a value -inf."""
        access = plain(access)
        op = access.node.op
        if not isinstance(op, Map):
            return []
        args = [a.at(at_axes(access)) for a in op.args]
        match op.fn:
            case "select":
                return self._select(args, -math.inf, self.low)
            case "add":
                return [m for a, b in _both(args) for m in self._beside(self.low(a), [b])]
            case "sub":
                return self._beside(self.low(args[0]), args[1:])
            case "cast":
                return self.low(args[0])
            case "mul":
                positive = [_positive(a) for a in args]
                return [m for n in (0, 1) if positive[1 - n] for m in self.low(args[n])]
            case "log":
                return self.zero(args[0])
            case _:
                return []

    def false(self, access: Access) -> list[Mask]:
        """Predicates whose failure makes a boolean false: it and what it is a conjunction of."""
        access = plain(access)
        op = access.node.op
        found: list[Mask] = [(access, True)]
        if isinstance(op, Map) and op.fn == "and":
            for a in op.args:
                found += self.false(a.at(at_axes(access)))
        return found

    def _select(self, args: list[Access], empty: float, inner: Callable[[Access], list[Mask]]) -> list[Mask]:
        if is_constant(args[2], empty):
            return [*self.false(args[0]), *inner(args[1])]
        return [(args[0], False)] if is_constant(args[1], empty) else []

    def monomial(self, factors: Factors) -> list[Mask]:
        """Predicates whose failure makes a monomial 0."""
        found: list[Mask] = []
        for gen, _ in factors:
            others = [a for other, _ in factors if other is not gen for a in _read(other)]
            found += self._beside(self._gen(gen), others)
        return found

    def _gen(self, gen: Gen) -> list[Mask]:
        """Predicates whose failure makes a factor of a monomial 0."""
        match gen:
            case Elem(access):
                return self.zero(access)
            case Indicator(access, positive):
                return self.false(access) if positive else [(access, False)]
            case Exp(arg):
                found: list[Mask] = []
                for coefficient, factors in arg:
                    if coefficient > 0 and len(factors) == 1 and factors[0][1] == 1:
                        own = factors[0][0]
                        beside = [a for _, f in arg for g, _ in f if g is not own for a in _read(g)]
                        found += self._beside(self._exponent(own), beside)
                return found
            case _:
                return []

    def _exponent(self, gen: Gen) -> list[Mask]:
        if isinstance(gen, Elem):
            return self.low(gen.access)
        found: list[Mask] = []
        if isinstance(gen, Shift):
            for coefficient, factors in gen.base:
                if coefficient > 0 and len(factors) == 1 and factors[0][1] == 1:
                    found += self._exponent(factors[0][0])
        return found


def _both(args: Sequence[Access]) -> list[tuple[Access, Access]]:
    return [(args[0], args[1]), (args[1], args[0])]


def _read(gen: Gen) -> list[Access]:
    """What a factor of a monomial reads that varies with the loop."""
    match gen:
        case Elem(access):
            return [access]
        case Exp(arg):
            return [a for _, factors in arg for g, _ in factors for a in _read(g)]
        case Shift(base, _):
            return [a for _, factors in base for g, _ in factors for a in _read(g)]
        case _:
            return []


@functools.lru_cache(maxsize=1024)
def _upstream(node: Node) -> frozenset[Node]:
    return frozenset(sort_nodes((node,)))


@functools.lru_cache(maxsize=1024)
def _has_infinity(node: Node) -> bool:
    consts = (n.op.value for n in _upstream(node) if isinstance(n.op, Const))
    return any(isinstance(value, float) and math.isinf(value) for value in consts)


def _positive(access: Access) -> bool:
    op = plain(access).node.op
    return isinstance(op, Const) and not isinstance(op.value, bool) and op.value > 0


def support_of(assembly: Assembly, states: Sequence[State]) -> tuple[Access | None, str]:
    """The predicate that all components share, over the axes of one of the elements, and that element."""
    shared: dict[tuple[Access, bool], None] | None = None
    for state in states:
        own: dict[tuple[Access, bool], None] = {}
        for access, positive in _masks(assembly, state):
            own[(_canonical(assembly, state, access), positive)] = None
        shared = own if shared is None else {m: None for m in shared if m in own}
    for state in states:
        for access, positive in _masks(assembly, state):
            if (_canonical(assembly, state, access), positive) in (shared or {}):
                found = _over_element(assembly, state, access)
                if found is not None:
                    return (found[0] if positive else _negated(found[0])), found[1]
    return None, ""


def _masks(assembly: Assembly, state: State) -> list[Mask]:
    zeros = Zeros(frozenset({state.site.loop}))
    if state.kind in ("max", "any"):
        masks = zeros.low(state.reduced) if state.kind == "max" else zeros.false(state.reduced)
    elif state.kind == "sum":
        masks = zeros.monomial(state.inside)
    else:
        masks = []
    return [m for m in masks if state.site.loop in m[0].indices]


def _canonical(assembly: Assembly, state: State, access: Access) -> Access:
    order = sorted(access.indices, key=lambda i: i.number)
    new = [Index(Part(assembly.over) if i == state.site.loop else i.dim, n) for n, i in enumerate(order)]
    return access.at({i: var(a) for i, a in zip(order, new, strict=True)})


def _over_element(assembly: Assembly, state: State, access: Access) -> tuple[Access, str] | None:
    """The access over the axes of an element that has all its indices, and the element's name."""
    reads = [g.access for g, _ in state.inside if isinstance(g, Elem | Indicator)]
    reads += [e for g, _ in state.inside if isinstance(g, Exp) for e in _read(g)]
    reads += [state.reduced] if state.kind not in ("sum", "count") else []
    for read in map(plain, reads):
        order = list(dict.fromkeys(i for t in read.terms for i in _indices(t)))
        if not access.indices <= set(order):
            continue
        axes = [Index(Part(assembly.over) if i == state.site.loop else i.dim, n) for n, i in enumerate(order)]
        where = {i: var(a) for i, a in zip(order, axes, strict=True)}
        known = assembly.elements.get(read.at(where))
        if known is not None:
            return access.at(where), known[0]
    return None


def _indices(term: Term) -> list[Index]:
    return sorted(indices_of(term), key=lambda i: i.number)


def _negated(access: Access) -> Access:
    axes = sorted(access.indices, key=lambda i: i.number)
    node = map_node("not", axes, [access], "bool")
    return node(*axes)
