"""Patterns: partial programs that a value of a candidate may match, written as formulas.

    sum[T](_ * v) / sum[T](_)      max[K](x) + log(sum[K](exp(_)))      sum[K](x * (w + sum[R](a * b)))

- a name is that input, `{a, b}` a value that is made from exactly these inputs, `_` anything; as a factor
  or a term `_` is all the others,
- `sum[K](..)`, `max[K](..)`, `min[K](..)` bind exactly these dims; `exp(..)` and the like are operations,
- factors and terms may stand in any order and are flattened; `x * rsqrt(y)` is `x / sqrt(y)`,
- identities, casts among floats and selects with a literal (masks, guards) are looked through,
- numbers (literals, sizes, scalars) among the factors do not count, among the terms only if one is written.

Where an input is read, and at which indices, is not compared: candidates are proved equal anyway.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from cleave.errors import Invalid
from cleave.ir.ops import FLOATS, Const, Contract, Input, Map, Node, Position, Reduce, Scalar, SizeOf

COMMUTATIVE = ("max", "min", "and", "or", "eq", "ne")


@dataclass(frozen=True, slots=True)
class Anything:
    """`_`"""


@dataclass(frozen=True, slots=True)
class Literal:
    value: float


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class From:
    names: frozenset[str]


@dataclass(frozen=True, slots=True)
class Call:
    fn: str
    args: tuple[Pattern, ...]


@dataclass(frozen=True, slots=True)
class Over:
    """A reduction over exactly these dims."""

    kind: str
    dims: frozenset[str]
    body: Pattern


@dataclass(frozen=True, slots=True)
class Product:
    """Factors with the power 1 or -1."""

    factors: tuple[tuple[Pattern, int], ...]


@dataclass(frozen=True, slots=True)
class Total:
    """Terms with their signs."""

    terms: tuple[tuple[Pattern, int], ...]


Pattern = Anything | Literal | Name | From | Call | Over | Product | Total
ANYTHING = Anything()

# ---------------------------------------------------------------- reading

_TOKEN = re.compile(r"\s*(?:(\d+\.?\d*)|(\w+)|(.))")


def parse(text: str) -> Pattern:
    """A pattern from its text; `Invalid` says where it is wrong."""
    parser = _Parser(text)
    pattern = parser.total()
    parser.take("")
    return pattern


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = [next(t for t in m.groups() if t is not None) for m in _TOKEN.finditer(text.strip())]
        self.at = 0

    @property
    def next(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self, wanted: str | None = None) -> str:
        token = self.next
        if wanted is not None and token != wanted:
            raise Invalid(f"pattern {self.text!r}: expected {wanted or 'its end'!r}, found {token!r}")
        self.at += 1
        return token

    def total(self) -> Pattern:
        terms: list[tuple[Pattern, int]] = []
        sign = -1 if self.next == "-" else 1
        if sign < 0:
            self.take()
        while True:
            term = self.product()
            inner = term.terms if isinstance(term, Total) else ((term, 1),)
            terms += [(t, s * sign) for t, s in inner]
            if self.next not in ("+", "-"):
                return terms[0][0] if len(terms) == 1 and terms[0][1] > 0 else Total(tuple(terms))
            sign = 1 if self.take() == "+" else -1

    def product(self) -> Pattern:
        factors: list[tuple[Pattern, int]] = []
        power = 1
        while True:
            factor = self.single()
            inner = factor.factors if isinstance(factor, Product) else ((factor, 1),)
            factors += [(f, p * power) for f, p in inner]
            if self.next not in ("*", "/"):
                return factors[0][0] if len(factors) == 1 else Product(tuple(factors))
            power = 1 if self.take() == "*" else -1

    def single(self) -> Pattern:
        token = self.take()
        if token == "(":
            inner = self.total()
            self.take(")")
            return inner
        if token == "{":
            return From(frozenset(self.words("}")))
        if token == "_":
            return ANYTHING
        if token[:1].isdigit():
            return Literal(float(token))
        if not re.fullmatch(r"\w+", token):
            raise Invalid(f"pattern {self.text!r}: unexpected {token!r}")
        if self.next == "[":
            self.take()
            dims = frozenset(self.words("]"))
            self.take("(")
            body = self.total()
            self.take(")")
            return Over(token, dims, body)
        if self.next != "(":
            return Name(token)
        self.take()
        args = [self.total()]
        while self.next == ",":
            self.take()
            args.append(self.total())
        self.take(")")
        return Call(token, tuple(args))

    def words(self, end: str) -> list[str]:
        """Names separated by commas, up to the closing bracket."""
        words, depth = [""], 0
        while self.next and (self.next != end or depth):
            token = self.take()
            depth += (token == "(") - (token == ")")
            if token == "," and not depth:
                words.append("")
            else:
                words[-1] += f" {token} " if token == "|" else token
        self.take(end)
        return words


# ---------------------------------------------------------------- matching


def matches(pattern: Pattern, node: Node) -> bool:
    """Does a value match a pattern?"""
    node = seen(node)
    match pattern:
        case Anything():
            return True
        case Literal(value):
            return isinstance(node.op, Const) and node.op.value == value
        case Name(name):
            node = bare(node)
            return isinstance(node.op, Input | Scalar) and node.op.name == name
        case From(names):
            return sources(node) == names
        case Call(fn, args):
            return _called(fn, args, node) or (node is not bare(node) and matches(pattern, bare(node)))
        case Over():
            return _reduced(pattern, bare(node))
        case Product(wanted):
            _, factors = factors_of(node)
            return _product(wanted, factors)
        case Total(wanted):
            return _total(wanted, terms_of(node))


def seen(node: Node) -> Node:
    """The value behind identities, casts among floats, masks and guards."""
    while isinstance(node.op, Map):
        args = [a.node for a in node.op.args]
        same = node.op.fn == "id" or (node.op.fn == "cast" and {node.dtype, args[0].dtype} <= {*FLOATS})
        if same:
            node = args[0]
        elif node.op.fn == "select" and isinstance(args[1].op, Const) != isinstance(args[2].op, Const):
            node = args[2] if isinstance(args[1].op, Const) else args[1]
        else:
            break
    return node


def bare(node: Node) -> Node:
    """The value without numbers that it is multiplied with, divided by or that are added to it."""
    while True:
        node = seen(node)
        op = node.op
        if not isinstance(op, Map) or op.fn not in ("mul", "div", "add", "sub"):
            return node
        one, two = (a.node for a in op.args)
        if is_number(two):
            node = one
        elif is_number(one) and op.fn in ("mul", "add"):
            node = two
        else:
            return node


@cache
def sources(node: Node) -> frozenset[str]:
    """The names of the tensors that a value is made from."""
    if isinstance(node.op, Input):
        return frozenset({node.op.name})
    return frozenset[str]().union(*(sources(a.node) for a in node.reads))


@cache
def is_number(node: Node) -> bool:
    """Is a value made from literals, sizes and scalars alone? `u - u` is 0 where `u` is finite."""
    if isinstance(node.op, Input | Position):
        return False
    if isinstance(node.op, Map) and node.op.fn == "sub" and node.op.args[0] == node.op.args[1]:
        return True
    return isinstance(node.op, Const | SizeOf | Scalar) or all(is_number(a.node) for a in node.reads)


Factors = list[tuple[Node, int, bool]]
"""Values with the power 1 or -1, and whether their square root stands there."""


def factors_of(node: Node) -> tuple[int, Factors]:
    """A value as a sign and factors, numbers left out."""
    node = seen(node)
    op = node.op
    if isinstance(op, Const):
        return (-1 if op.value < 0 else 1), []
    if is_number(node):
        return 1, []
    if not isinstance(op, Map):
        return 1, [(node, 1, False)]
    args = [a.node for a in op.args]
    if op.fn in ("mul", "div", "neg", "reciprocal"):
        parts = [factors_of(a) for a in args]
        sign = -1 if op.fn == "neg" else 1
        found: Factors = []
        for n, (s, factors) in enumerate(parts):
            sign *= s
            turn = -1 if op.fn == "reciprocal" or (op.fn == "div" and n) else 1
            found += [(f, p * turn, r) for f, p, r in factors]
        return sign, found
    if op.fn == "rsqrt":
        return 1, [(args[0], -1, True)]
    if op.fn == "pow" and isinstance(args[1].op, Const) and args[1].op.value in (2, 3):
        sign, found = factors_of(args[0])
        times = int(args[1].op.value)
        return sign**times, found * times
    return 1, [(node, 1, False)]


def terms_of(node: Node) -> list[tuple[Node, int]]:
    """A value as terms with signs."""
    node = seen(node)
    op = node.op
    if isinstance(op, Map) and op.fn in ("add", "sub", "neg"):
        found: list[tuple[Node, int]] = []
        for n, access in enumerate(op.args):
            turn = -1 if op.fn == "neg" or (op.fn == "sub" and n) else 1
            found += [(t, s * turn) for t, s in terms_of(access.node)]
        return found
    sign, _ = factors_of(node)
    return [(node, sign)]


def _called(fn: str, args: Sequence[Pattern], node: Node) -> bool:
    op = node.op
    if not isinstance(op, Map) or op.fn != fn or len(op.args) != len(args):
        return False
    given = [a.node for a in op.args]
    orders = [given, given[::-1]] if fn in COMMUTATIVE else [given]
    return any(all(matches(p, n) for p, n in zip(args, order, strict=True)) for order in orders)


def _reduced(pattern: Over, node: Node) -> bool:
    op = node.op
    if not isinstance(op, Reduce | Contract) or {str(i.dim) for i in op.bound} != pattern.dims:
        return False
    if isinstance(op, Reduce):
        return op.kind == pattern.kind and matches(pattern.body, op.arg.node)
    if pattern.kind != "sum":
        return False
    factors = [f for a in op.args for f in factors_of(a.node)[1]]
    body = pattern.body
    if isinstance(body, Anything):
        return True
    wanted = body.factors if isinstance(body, Product) else ((body, 1),)
    return _product(wanted, factors)


def _product(wanted: Sequence[tuple[Pattern, int]], factors: Factors) -> bool:
    open_powers = {p for f, p in wanted if isinstance(f, Anything)}
    exact = [(f, p) for f, p in wanted if not isinstance(f, Anything | Literal)]

    def rest_fits(rest: Factors) -> bool:
        # What is below the line belongs to `/ _` if there is one, else to `_`.
        powers = {p for _, p, _ in rest}
        return powers >= open_powers and (1 in open_powers or powers <= open_powers)

    def place(n: int, rest: Factors) -> bool:
        if n == len(exact):
            return rest_fits(rest)
        pattern, power = exact[n]
        return any(
            p == power and _factor(pattern, f, root) and place(n + 1, rest[:k] + rest[k + 1 :])
            for k, (f, p, root) in enumerate(rest)
        )

    return place(0, factors)


def _factor(pattern: Pattern, node: Node, root: bool) -> bool:
    if root:
        return isinstance(pattern, Call) and pattern.fn == "sqrt" and matches(pattern.args[0], node)
    return matches(pattern, node)


def _total(wanted: Sequence[tuple[Pattern, int]], terms: list[tuple[Node, int]]) -> bool:
    numbers = [t for t, _ in terms if is_number(t)]
    values = [(t, s) for t, s in terms if not is_number(t)]
    literals = [t for t, _ in wanted if isinstance(t, Literal)]
    if literals and not numbers:
        return False
    exact = [(t, s) for t, s in wanted if not isinstance(t, Anything | Literal)]
    rest_signs = {s for t, s in wanted if isinstance(t, Anything)}

    def place(n: int, rest: list[tuple[Node, int]]) -> bool:
        if n == len(exact):
            return bool(rest) == bool(rest_signs) and {s for _, s in rest} >= rest_signs
        pattern, sign = exact[n]
        return any(
            s == sign and matches(pattern, t) and place(n + 1, rest[:k] + rest[k + 1 :])
            for k, (t, s) in enumerate(rest)
        )

    return place(0, values)
