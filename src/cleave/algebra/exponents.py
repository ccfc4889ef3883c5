"""Exponentials of logarithms and quotients of exponentials (design.md, section 3, Search).

`exp(a - log b)` is `exp(a) / b`: then the quotient can leave sums. Only where `b` is built so that it cannot
be negative: else the user gets NaN where we would give a number. A product with `exp(a)`, divided by a sum
that has `exp(a)` as a term, is the product without it, divided by the sum of the others' `exp(t - a)` and 1:
one exponential less, and nothing is divided by what overflows.
"""

from __future__ import annotations

from collections.abc import Callable

from cleave.algebra.build import Builder, literal
from cleave.algebra.frame import at_axes, plain
from cleave.algebra.lattice import never_negative
from cleave.algebra.read import whole
from cleave.ir.ops import FLOATS, Access, Map, Node
from cleave.ir.program import Program
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite

LOGS = "exp(a - log b) = exp(a) / b"
QUOTIENTS = "exp(a) * f / (exp(a) + exp(b)) = f / (1 + exp(b - a))"

Terms = list[tuple[int, Access]]
"""A sum as terms with signs."""

Rule = Callable[[Builder, Map], Access | None]
"""What an operation becomes, if anything."""


def without_logs(program: Program) -> Program | None:
    """The program with logarithms taken out of exponents; None if there are none."""
    return _rewritten(program, _divided)


def without_quotients(program: Program) -> Program | None:
    """The program with exponentials taken out of quotients that have them above and below; None if there are
    none."""
    return _rewritten(program, _reduced)


def _rewritten(program: Program, rule: Rule) -> Program | None:
    def visit(node: Node, replaced: Replaced) -> Access:
        new = replace_arguments(node, replaced)
        if node.dtype not in FLOATS or not isinstance(new.op, Map):
            return new.read()
        made = rule(Builder(new.dtype), new.op)
        return new.read() if made is None else whole(made, new).read()

    replaced = rewrite((o.node for o in program.outputs), visit)
    new = replace_nodes(program, replaced)
    return None if [o.node for o in new.outputs] == [o.node for o in program.outputs] else new


def _divided(build: Builder, op: Map) -> Access | None:
    if op.fn != "exp":
        return None
    terms = terms_of(op.args[0])
    logs = [(s, a) for s, a in terms if s < 0 and is_map(a, "log") and never_negative(argument(a))]
    if not logs:
        return None
    rest = summed(build, [t for t in terms if t not in logs])
    value = build.number(1.0) if rest is None else build.map("exp", rest)
    for _, access in logs:
        value = build.div(value, argument(access))
    return value


def _reduced(build: Builder, op: Map) -> Access | None:
    if op.fn != "div":
        return None
    above, below = factors_of(op.args[0]), terms_of(op.args[1])
    if len(below) < 2 or any(s < 0 for s, _ in below):
        return None
    shared = next((a for a in above if is_map(a, "exp") and (1, a) in below), None)
    if shared is None or not all(is_map(a, "exp") or literal(a) is not None for _, a in below):
        return None
    taken = argument(shared)
    total = build.number(0.0)
    for _, access in below:
        if access == shared:
            part = build.number(1.0)
        elif is_map(access, "exp"):
            part = build.map("exp", build.sub(argument(access), taken))
        else:
            part = build.mul(access, build.map("exp", build.map("neg", taken)))
        total = build.add(total, part)
    value = build.number(1.0)
    at = above.index(shared)
    for access in above[:at] + above[at + 1 :]:
        value = build.mul(value, access)
    return build.div(value, total)


def is_map(access: Access, fn: str) -> bool:
    """Does an access read a pointwise operation of this name?"""
    return isinstance(access.node.op, Map) and access.node.op.fn == fn


def argument(access: Access) -> Access:
    """The only argument of a pointwise operation, at the access' indices."""
    return plain(access.node.args[0].at(at_axes(access)))


def terms_of(access: Access, sign: int = 1) -> Terms:
    """A value as terms of a sum."""
    access = plain(access)
    op = access.node.op
    if not isinstance(op, Map) or op.fn not in ("add", "sub", "neg"):
        return [(sign, access)]
    args = [a.at(at_axes(access)) for a in op.args]
    turned = -sign if op.fn != "add" else sign
    if op.fn == "neg":
        return terms_of(args[0], turned)
    return [*terms_of(args[0], sign), *terms_of(args[1], turned)]


def factors_of(access: Access) -> list[Access]:
    """A value as factors of a product."""
    access = plain(access)
    if not is_map(access, "mul"):
        return [access]
    return [f for a in access.node.args for f in factors_of(a.at(at_axes(access)))]


def summed(build: Builder, terms: Terms) -> Access | None:
    """The sum of some terms, a positive one first if there is one."""
    first = next((n for n, (s, _) in enumerate(terms) if s > 0), 0)
    total: Access | None = None
    for sign, access in [*terms[first : first + 1], *terms[:first], *terms[first + 1 :]]:
        if total is None:
            total = access if sign > 0 else build.map("neg", access)
        else:
            total = build.add(total, access) if sign > 0 else build.sub(total, access)
    return total
