"""Numerical standing: the conditions of a candidate against those of the user's program (design.md, 3).

For each exponential an upper bound of its exponent, for each quotient, root and logarithm a lower bound, for
each operand of a product its range, for each difference of two sums whether it may cancel. A condition holds
if it is met by construction, or follows from one of the user's: the same value (by normal form) stands under
the same operation in the user's program. All are symbolic; dtypes' limits are the pipeline's business.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cleave.algebra.clusters import is_sum
from cleave.algebra.exponents import terms_of
from cleave.algebra.forms import Poly
from cleave.algebra.frame import at_axes, plain
from cleave.algebra.lattice import never_negative
from cleave.algebra.normal import form_of, node_form
from cleave.algebra.ranges import range_of
from cleave.ir.candidate import Condition
from cleave.ir.dims import Index, var
from cleave.ir.ops import FLOATS, Access, Const, Input, Map, Node, Reduce, SizeOf
from cleave.ir.program import Program


@dataclass(frozen=True, slots=True)
class Standing:
    """What the user's program already asks for: forms of exponents, of divisors, and of operands."""

    exponents: frozenset[Poly]
    divisors: frozenset[Poly]
    operands: frozenset[Poly]


def standing_of(program: Program, forms: dict[Node, Poly]) -> Standing:
    """The user's own conditions, by normal form; `forms` remembers the forms of nodes."""
    _extend(forms, program)
    exponents: set[Poly] = set()
    divisors: set[Poly] = set()
    operands: set[Poly] = set()
    for node in program.nodes:
        for kind, access in _places(node):
            form = _canonical(access, forms)
            {"exponent": exponents, "denominator": divisors, "range": operands}[kind].add(form)
    return Standing(frozenset(exponents), frozenset(divisors), frozenset(operands))


def conditions_of(
    program: Program,
    user: Standing,
    forms: dict[Node, Poly],
    *,
    cancels: Iterable[str] = (),
    own: bool = False,
) -> tuple[Condition, ...]:
    """The conditions of a program, each with why it holds or does not."""
    _extend(forms, program)
    found: dict[Condition, None] = {}
    below = saturated(program)
    for node in program.nodes:
        for kind, access in _places(node):
            if kind == "exponent" and node in below and not own:
                why = "where it overflows, the quotient that it divides is 0"
                found[Condition(kind, spell(program, plain(access)), "no bound", True, why)] = None
                continue
            made = _condition(program, kind, access, forms, user, own)
            if made is not None:
                found[made] = None
    for place in cancels:
        why = "terms that were subtracted element by element are subtracted after they are summed"
        found[Condition("difference", place, "may cancel", False, why)] = None
    return tuple(found)


def saturated(program: Program) -> frozenset[Node]:
    """The exponentials that are only ever added to what is not negative, the sum being divided by."""
    readers: dict[Node, list[tuple[Node, int]]] = {n: [] for n in program.nodes}
    for node in program.nodes:
        for number, access in enumerate(node.args):
            readers[access.node].append((node, number))
    outputs = {o.node for o in program.outputs}
    below: dict[Node, bool] = {}
    for node in reversed(program.nodes):
        below[node] = node not in outputs and bool(readers[node]) and all(
            isinstance(r.op, Map)
            and (
                (r.op.fn == "div" and n == 1 and r.op.args[0].node is not node)
                or r.op.fn == "reciprocal"
                or (r.op.fn == "add" and below[r] and never_negative(r.op.args[1 - n]))
            )
            for r, n in readers[node]
        )  # fmt: skip
    return frozenset(n for n in program.nodes if below[n] and isinstance(n.op, Map) and n.op.fn == "exp")


def _extend(forms: dict[Node, Poly], program: Program) -> None:
    for node in program.nodes:
        if node not in forms:
            forms[node] = node_form(node, forms)


def _places(node: Node) -> list[tuple[str, Access]]:
    """What a node asks of its arguments: kind of condition and argument."""
    op = node.op
    if isinstance(op, Map) and node.dtype in FLOATS:
        match op.fn:
            case "exp":
                return [("exponent", op.args[0])]
            case "div":
                return [("denominator", op.args[1])]
            case "reciprocal" | "rsqrt" | "log":
                return [("denominator", op.args[0])]
            case _:
                return []
    if is_sum(node) and len(node.args) > 1:
        return [("range", a) for a in node.args]
    return []


def _condition(
    program: Program, kind: str, access: Access, forms: Mapping[Node, Poly], user: Standing, own: bool
) -> Condition | None:
    access = plain(access)
    if isinstance(access.node.op, Const | SizeOf | Input):
        return None
    subject = spell(program, access)
    if kind == "exponent" and below_zero(access):
        return Condition(kind, subject, "<= 0", True, "a maximum over the same values is taken off")
    if kind == "denominator" and at_least_one(access):
        return Condition(kind, subject, ">= 1", True, "the largest term of the sum is exp(0)")
    known = {"exponent": user.exponents, "denominator": user.divisors, "range": user.operands}[kind]
    if own or _canonical(access, forms) in known:
        bound = {"exponent": "no bound", "denominator": "not 0", "range": "as in the user's program"}[kind]
        return Condition(kind, subject, bound, True, "the user's program has it too")
    ranged = _by_range(kind, subject, access)
    if ranged is not None:
        return ranged
    if kind == "range":
        if at_most_one(access):
            return Condition(kind, subject, "between 0 and 1", True, "an exponential of what is at most 0")
        smaller = _no_larger(access)
        if smaller is not None and (
            isinstance(smaller.node.op, Input) or _canonical(smaller, forms) in known
        ):
            bound = "no larger than in the user's program"
            return Condition(kind, subject, bound, True, "an operand of the user's program, scaled down")
        why = "an operand that the user's program does not have; used where its dtype holds it"
        return Condition(kind, defined(program, access.node), f"|{subject}|", True, why)
    bound = "no bound" if kind == "exponent" else "may be 0"
    return Condition(kind, subject, bound, False, "the user's program does not ask for it")


def _by_range(kind: str, subject: str, access: Access) -> Condition | None:
    """A condition that interval arithmetic shows to hold: tanh and constants bound what is made of them."""
    known = range_of(access)
    why = f"its range: {known}"
    if kind == "exponent" and known.high < math.inf:
        return Condition(kind, subject, f"<= {known.high:g}", True, why)
    if kind == "denominator" and known.low > 0:
        return Condition(kind, subject, f">= {known.low:g}", True, why)
    if kind == "range" and known.bounded and max(-known.low, known.high) > 1:
        return Condition(kind, subject, f"|{subject}| <= {max(-known.low, known.high):g}", True, why)
    return None


def _canonical(access: Access, forms: Mapping[Node, Poly]) -> Poly:
    """The form of an argument with its indices numbered by order of use."""
    order = list(dict.fromkeys(i for t in access.terms for i, _ in t.leaves if isinstance(i, Index)))
    return form_of(access.at({i: var(Index(i.dim, n)) for n, i in enumerate(order)}), forms)


def below_zero(access: Access) -> bool:
    """Is a value at most 0 because a maximum over it is taken off?"""
    access = plain(access)
    op = access.node.op
    if not isinstance(op, Map):
        return False
    args = [plain(a.at(at_axes(access))) for a in op.args]
    if op.fn == "select":
        return below_zero(args[1]) and (below_zero(args[2]) or _is_low(args[2]))
    if op.fn != "sub":
        return False
    return _at_most(args[0], args[1])


def _at_most(value: Access, top: Access) -> bool:
    """Is a value at most a maximum, because it is one of what the maximum is over?"""
    top = _unguarded(plain(top))
    op = top.node.op
    if isinstance(op, Map) and op.fn == "max":
        return any(plain(a) == value or _at_most(value, a) for a in (b.at(at_axes(top)) for b in op.args))
    return isinstance(op, Reduce) and op.kind == "max" and _is_entry(value, top, op)


def _is_entry(value: Access, top: Access, reduced: Reduce) -> bool:
    """Is `value` one of the entries that the maximum `top` is over?"""
    body = plain(reduced.arg.at(at_axes(top)))
    if value.node is not body.node:
        return False
    where: dict[Index, object] = {}
    for mine, entry in zip(value.terms, body.terms, strict=True):
        variable = entry.variable
        if variable is not None and variable in reduced.bound:
            if where.setdefault(variable, mine) != mine:
                return False
        elif mine != entry:
            return False
    return True


def _unguarded(access: Access) -> Access:
    from cleave.algebra.bodies import unguarded

    return unguarded(access)[0]


def _is_low(access: Access) -> bool:
    op = access.node.op
    return isinstance(op, Const) and not isinstance(op.value, bool) and op.value <= 0


def at_most_one(access: Access) -> bool:
    """Is a value between 0 and 1: an exponential of what is at most 0, or one masked by zeros?"""
    access = plain(access)
    op = access.node.op
    if not isinstance(op, Map):
        return False
    args = [plain(a.at(at_axes(access))) for a in op.args]
    if op.fn == "exp":
        return below_zero(args[0])
    return op.fn == "select" and all(at_most_one(a) or _is_low(a) for a in args[1:])


def _no_larger(access: Access) -> Access | None:
    """The value that another one is a product with a number from -1 to 1 of, or a quotient by 1 or more."""
    op = access.node.op
    if not isinstance(op, Map) or op.fn not in ("mul", "div"):
        return None
    one, two = (plain(a.at(at_axes(access))) for a in op.args)
    by = two.node.op
    if not isinstance(by, Const) or isinstance(by.value, bool):
        return None
    fine = abs(by.value) <= 1 if op.fn == "mul" else abs(by.value) >= 1
    return one if fine else None


def _is_one(access: Access) -> bool:
    op = access.node.op
    return isinstance(op, Const) and not isinstance(op.value, bool) and op.value >= 1


def at_least_one(access: Access) -> bool:
    """Is a value at least 1: a sum of all `exp(f - u)`, `u` the largest `f` (unless all of it is masked), or
    1 or more and what is not negative?"""
    terms = [plain(a) for _, a in terms_of(access)]
    if len(terms) != sum(s > 0 for s, _ in terms_of(access)) or not all(map(never_negative, terms)):
        return False
    if any(map(_is_one, terms)):
        return True
    found = [t for t in map(_shifted, terms) if t is not None]
    return any(all(any(_is_term(f, v) for f in found) for v in _entries(top)) for _, top, _ in found)


Term = tuple[Access, Access, tuple[Index, ...]]
"""`f`, `u` and the bound indices of a sum of `exp(f - u)`, or of one such exponential."""


def _shifted(access: Access) -> Term | None:
    op = access.node.op
    bound: tuple[Index, ...] = ()
    if isinstance(op, Reduce) and op.kind == "sum":
        fresh = {i: Index(i.dim, 7000 + n) for n, i in enumerate(op.bound)}
        bound = tuple(fresh.values())
        access = plain(op.arg.at({**at_axes(access), **{i: var(f) for i, f in fresh.items()}}))
        op = access.node.op
    if not isinstance(op, Map) or op.fn != "exp":
        return None
    exponent = plain(op.args[0].at(at_axes(access)))
    inner = exponent.node.op
    if not isinstance(inner, Map) or inner.fn != "sub":
        return None
    value, top = (plain(a.at(at_axes(exponent))) for a in inner.args)
    top = _unguarded(top)
    return None if top.indices & set(bound) else (value, top, bound)


def _entries(top: Access) -> list[Access]:
    """What a maximum is the largest of: values and maxima over indices."""
    top = _unguarded(plain(top))
    op = top.node.op
    if isinstance(op, Map) and op.fn == "max":
        return [e for a in op.args for e in _entries(a.at(at_axes(top)))]
    return [top]


def _is_term(term: Term, entry: Access) -> bool:
    """Does a term have the exponential of what an entry of its maximum is, for all of the entry's indices?"""
    value, top, bound = term
    if not any(e == entry for e in _entries(top)):
        return False
    op = entry.node.op
    if isinstance(op, Reduce) and op.kind == "max":
        same = sorted(str(i.dim) for i in op.bound) == sorted(str(i.dim) for i in bound)
        return same and _is_entry(value, entry, op)
    return value == entry and not bound


def spell(program: Program, access: Access) -> str:
    """A short name for a value: as in the user's source, else by what it is made of."""
    return _spell(program, access.node, 3)


def defined(program: Program, node: Node) -> str:
    """A value's name, if it has one, and the operation that gives it."""
    name = program.names.get(node, "")
    text = _spell(replace(program, names={n: w for n, w in program.names.items() if n is not node}), node, 2)
    return f"{name} = {text}" if name else text


def _spell(program: Program, node: Node, depth: int) -> str:
    name = getattr(node.op, "name", "") or program.names.get(node, "")
    if name:
        return str(name)
    op = node.op
    if isinstance(op, Const):
        return f"{float(op.value):g}"
    if isinstance(op, SizeOf):
        return f"|{op.dim}|"
    if not depth:
        return "..."
    args = ", ".join(_spell(program, a.node, depth - 1) for a in node.args)
    if isinstance(op, Map):
        return f"{op.fn}({args})"
    bound = ", ".join(str(i.dim) for i in node.bound)
    kind = op.kind if isinstance(op, Reduce) else "sum"
    joined = " * ".join(_spell(program, a.node, depth - 1) for a in node.args)
    return f"{kind}[{bound}]({joined})"
