"""Maxima and minima with everything taken out that may leave them (design.md, section 3, Search).

Terms and factors without the bound index leave, a falling function turns a maximum into a minimum, `|f|` is
the larger of `f` and `-f`, and a maximum of a maximum is one of two maxima. A positive factor leaves
`max(f, 0)` in the same way. That `max_K c = c` is true for every size of K but 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from cleave.algebra.build import Builder, literal
from cleave.algebra.exponents import factors_of, is_map, summed, terms_of
from cleave.algebra.frame import at_axes, plain
from cleave.algebra.lattice import never_negative
from cleave.algebra.ranges import range_of
from cleave.algebra.read import whole
from cleave.ir.dims import Index
from cleave.ir.ops import FLOATS, Access, Map, Node, Reduce
from cleave.ir.program import Program
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite

LAW = "max(f(x)) = f(max x) if f grows, f(min x) if it falls"
FLIPPED = {"max": "min", "min": "max"}


def lifted(program: Program) -> Program | None:
    """The program with what may leave maxima and minima outside of them; None if there is nothing."""

    def visit(node: Node, replaced: Replaced) -> Access:
        new = replace_arguments(node, replaced)
        made = _made(new) if new.dtype in FLOATS else None
        return new.read() if made is None else whole(made, new).read()

    replaced = rewrite((o.node for o in program.outputs), visit)
    new = replace_nodes(program, replaced)
    return None if [o.node for o in new.outputs] == [o.node for o in program.outputs] else new


def _made(node: Node) -> Access | None:
    op, build = node.op, Builder(node.dtype)
    if isinstance(op, Reduce) and op.kind in FLIPPED and all(i in op.arg.indices for i in op.bound):
        return _Lift(build, op.bound).of(op.kind, op.arg)
    if isinstance(op, Map) and op.fn in FLIPPED:
        for value, zero in (op.args, op.args[::-1]):
            if literal(zero) == 0 and not is_map(plain(value), "neg"):
                return _rectified(build, op.fn, plain(value), zero)
    return None


def _rectified(build: Builder, fn: str, value: Access, zero: Access) -> Access | None:
    """`max(f * c, 0)` with `c` positive, over fewer indices, and finite whatever the inputs hold: an infinite
    factor would meet the 0 outside, and the user gets 0 where we would give NaN."""
    factors = factors_of(value)
    leave = [f for f in factors if f.indices < value.indices and never_negative(f) and range_of(f).bounded]
    if not leave:
        return None
    inner = [f for f in factors if f not in leave]
    total = build.map(fn, _product(build, inner), zero)
    return build.mul(total, _product(build, leave))


def _product(build: Builder, factors: Sequence[Access]) -> Access:
    total = build.number(1.0)
    for factor in factors:
        total = build.mul(total, factor)
    return total


class _Lift:
    def __init__(self, build: Builder, bound: Sequence[Index]) -> None:
        self.build = build
        self.bound = frozenset(bound)

    def free(self, access: Access) -> bool:
        return not access.indices & self.bound

    def of(self, kind: str, value: Access) -> Access:
        """The maximum or minimum of a value over the bound indices."""
        build, value = self.build, plain(value)
        if self.free(value):
            return value
        op = value.node.op
        if not isinstance(op, Map):
            return self._plain(kind, value)
        args = [plain(a.at(at_axes(value))) for a in op.args]
        match op.fn:
            case "add" | "sub" | "neg":
                return self._total(kind, value)
            case "mul" | "div":
                return self._scaled(kind, op.fn, args, value)
            case "abs" if kind == "max":
                low = build.map("neg", self.of("min", args[0]))
                return build.map("max", self.of("max", args[0]), low)
            case "max" | "min" if op.fn == kind or any(map(self.free, args)):
                return build.map(op.fn, *(self.of(kind, a) for a in args))
            case _:
                return self._plain(kind, value)

    def _plain(self, kind: str, value: Access) -> Access:
        kept = [i for i in value.indices if i in self.bound]
        return self.build.reduce(kind, sorted(kept, key=lambda i: i.number), value, value.node.dtype)

    def _total(self, kind: str, value: Access) -> Access:
        terms = terms_of(value)
        moving = [t for t in terms if not self.free(t[1])]
        if all(s < 0 for s, _ in moving):
            turned = self._inside(FLIPPED[kind], [(-s, a) for s, a in moving], value)
            inner = self.build.map("neg", turned)
            outer = summed(self.build, [t for t in terms if self.free(t[1])])
            return inner if outer is None else self.build.sub(outer, turned)
        inner = self._inside(kind, moving, value)
        outer = summed(self.build, [t for t in terms if self.free(t[1])])
        return inner if outer is None else self.build.add(outer, inner)

    def _inside(self, kind: str, terms: list[tuple[int, Access]], value: Access) -> Access:
        if len(terms) == 1:
            return self.of(kind, terms[0][1])
        if len(terms) == len(terms_of(value)) and all(s > 0 for s, _ in terms):
            return self._plain(kind, value)
        rest = summed(self.build, terms)
        assert rest is not None
        return self._plain(kind, rest)

    def _scaled(self, kind: str, fn: str, args: list[Access], value: Access) -> Access:
        for n in (1,) if fn == "div" else (0, 1):
            other = 1 - n
            if not self.free(args[n]):
                continue
            number = literal(args[n])
            falls = number is not None and not isinstance(number, bool) and number < 0
            if not falls and not never_negative(args[n]):
                continue
            inner = self.of(FLIPPED[kind] if falls else kind, args[other])
            return self.build.mul(inner, args[n]) if fn == "mul" else self.build.div(inner, args[n])
        return self._plain(kind, value)
