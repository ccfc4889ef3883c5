"""The members of a Fold: reductions whose sums can follow the running values of the others.

A sum's body is cut into terms `coefficient * F(u) * sum_k M(k, u)`; `F` waits until the end. The monomials
`M` that rescaling leads to are finitely many, and everything that rescaling and finishing need is computed
from the Fold's own state, from literals and from sizes, or the member is refused with a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from cleave.algebra.bodies import Body, Elem, Exp, Factors, Gate, Poly, Run, Shift, rebase, separate
from cleave.algebra.frame import Site, at_axes, plain
from cleave.algebra.lattice import FLIPPED, Lifted, frees, lift
from cleave.algebra.rescaling import decomposition_holds, rescaling_holds
from cleave.errors import Unsupported
from cleave.ir.ops import FLOATS, Access, Contract, Map, Node, Reduce

MOST_STATES = 24
"""The most sums that one value may need."""

Part3 = tuple[Fraction, Factors, Factors]


@dataclass(frozen=True, slots=True)
class Member:
    """One reduction of a Fold: coefficient, what waits until the end, and what is summed, for each term of a
    sum. For reductions other than sums `terms` is empty; of a maximum or minimum of values around running
    values `lifted` says how it follows from those of other values."""

    site: Site
    kind: str
    terms: tuple[Part3, ...] = ()
    rescaled: bool = False
    lifted: Lifted | None = None


def member_of(site: Site, running: frozenset[Node]) -> Member:
    """The member for a site; `Unsupported` if its body cannot follow the running values."""
    op = site.node.op
    assert isinstance(op, Reduce | Contract)
    kind = op.kind if isinstance(op, Reduce) else "sum"
    body = Body(site, running)
    if not any(body.uses(plain(a).node) for a in site.node.args):
        if kind != "sum":
            return Member(site, kind)
        args = tuple((Elem(a), 1) for a in site.node.args)
        return Member(site, kind, ((Fraction(1), (), args),))
    if kind in FLIPPED and site.node.dtype in FLOATS and isinstance(op, Reduce):
        lifted = lift(body, kind, op.arg)
        for access in frees(lifted):
            _check_access(access, running)
        return Member(site, kind, lifted=lifted)
    if kind != "sum" or site.node.dtype not in FLOATS:
        raise Unsupported(f"a {kind} of values that depend on a running value cannot be rescaled")
    terms = tuple(separate(body.poly()))
    if not decomposition_holds(site, terms):
        raise Unsupported("the body's terms around running values could not be proved")
    for _, outside, inside in terms:
        if len(closure(inside)) > MOST_STATES:
            raise Unsupported(f"rescaling needs more than {MOST_STATES} sums")
        _check_known(outside, running)
        for factors in closure(inside):
            if not rescaling_holds(site, factors):
                raise Unsupported("the rescaling could not be proved")
        for gen, _ in inside:
            for run in runs_in(gen):
                _check_known(run, running)
    return Member(site, kind, terms, True)


def closure(inside: Factors) -> list[Factors]:
    """The monomials that rescaling one of them needs, itself first."""
    found = [inside]
    seen = {frozenset(inside)}
    for factors in found:
        for _, _, _, other in rebase(factors):
            if frozenset(other) not in seen:
                seen.add(frozenset(other))
                found.append(other)
    return found


def runs_in(gen: object) -> list[Factors]:
    """The monomials of running values inside a factor."""
    if isinstance(gen, Shift):
        return [f for _, f in gen.run]
    if isinstance(gen, Exp):
        return [r for _, f in gen.arg for g, _ in f for r in runs_in(g)]
    return []


def _check_known(factors: Factors, running: frozenset[Node]) -> None:
    for gen, _ in factors:
        if isinstance(gen, Run | Gate):
            _check_access(gen.access, running)


def _check_access(access: Access, running: frozenset[Node]) -> None:
    """A value from outside the loop is read by every one of a Fold's programs; a running one is computed."""
    access = plain(access)
    op = access.node.op
    if access.node in running or not isinstance(op, Map) or not _follows(access.node, running):
        return
    if op.fn == "cast" and access.node.dtype not in FLOATS:
        raise Unsupported("a running value is cast to an integer")
    for arg in op.args:
        _check_access(arg.at(at_axes(access)), running)


def _follows(node: Node, running: frozenset[Node]) -> bool:
    op = node.op
    return node in running or (isinstance(op, Map) and any(_follows(a.node, running) for a in op.args))


__all__ = ["Member", "Poly", "closure", "member_of", "runs_in"]
