"""Small programs as formulas: what a Fold does with its state, one line for each entry.

Indices are left out: within a Fold every value has its own axes and is read at them. A state after a piece is
written with a prime, so that what several entries share is written once.
"""

from __future__ import annotations

from collections.abc import Mapping

from cleave.algebra.stability import spell
from cleave.ir.candidate import Fold
from cleave.ir.dims import Index
from cleave.ir.lexis import number_text
from cleave.ir.ops import Const, Contract, Input, Map, Node, Reduce, Scalar, SizeOf
from cleave.ir.program import Program

INFIX = {
    "eq": ("==", 1), "ne": ("!=", 1), "lt": ("<", 1), "le": ("<=", 1), "gt": (">", 1), "ge": (">=", 1),
    "add": ("+", 2), "sub": ("-", 2), "mul": ("*", 3), "div": ("/", 3),
}  # fmt: skip
"""Operators and how tightly they bind."""
SUM, ATOM = 2, 9
MOST = 400
"""Characters of a formula; a longer one becomes `(...)`."""


def step_formulas(fold: Fold) -> list[str]:
    """`max' = max(max, max[T] x0)`: the state after one more piece."""
    names = {output.node: f"{output.name}'" for output in fold.step.outputs if _is_new(output.node)}
    return [f"{o.name}' = {_defined(o.node, names)}" for o in fold.step.outputs]


def finish_formulas(fold: Fold, names: Mapping[Node, str]) -> list[str]:
    """`out0 = sum2 / sum`: the values from the state; `names` says what the values are called."""
    called = {value.name: names.get(value.node, value.name) for value in fold.values}
    return [f"{called.get(o.name, o.name)} = {_defined(o.node, {})}" for o in fold.finish.outputs]


def element_texts(fold: Fold, program: Program) -> list[str]:
    """`x0 is select1`: what each element that a step reads is in the candidate's program."""
    return [f"{e.name} is {spell(program, e.access)}" for e in fold.elements]


def _is_new(node: Node) -> bool:
    return not isinstance(node.op, Input | Scalar | Const)


def _defined(node: Node, names: Mapping[Node, str]) -> str:
    """The formula of a node, itself not by name."""
    return _Formula({n: text for n, text in names.items() if n is not node}).text(node)[0]


def _is_minus(node: Node) -> bool:
    return isinstance(node.op, Map) and node.op.fn in ("sub", "div")


class _Formula:
    """Texts of nodes, and how tightly their outermost operators bind. `names` are not looked into."""

    def __init__(self, names: Mapping[Node, str]) -> None:
        self.known = {node: (name, ATOM) for node, name in names.items()}

    def text(self, node: Node) -> tuple[str, int]:
        if node not in self.known:
            text, level = self._made(node)
            self.known[node] = (text, level) if len(text) <= MOST else ("(...)", ATOM)
        return self.known[node]

    def _made(self, node: Node) -> tuple[str, int]:
        match node.op:
            case Input(name) | Scalar(name):
                return name, ATOM
            case Const(value):
                return number_text(value), ATOM
            case SizeOf(dim):
                return f"|{dim}|", ATOM
            case Map("id", args):
                return self.text(args[0].node)
            case Map(fn, args) if fn in INFIX:
                sign, level = INFIX[fn]
                # Rounding knows no associativity: a + (b - c) is not (a + b) - c.
                tighter = level + (fn in ("sub", "div") or _is_minus(args[1].node))
                return (
                    f"{self._wrapped(args[0].node, level)} {sign} {self._wrapped(args[1].node, tighter)}",
                    level,
                )
            case Map(fn, args):
                return f"{fn}({', '.join(self.text(a.node)[0] for a in args)})", ATOM
            case Reduce(kind, bound, arg):
                return f"{kind}[{_names(bound)}] {self._wrapped(arg.node, SUM + 1)}", SUM
            case Contract(bound, args):
                product = " * ".join(self._wrapped(a.node, SUM + 1) for a in args)
                return f"sum[{_names(bound)}] {product}", SUM
            case op:
                word = type(op).__name__.lower()
                return f"{word}({', '.join(self.text(a.node)[0] for a in node.args)})", ATOM

    def _wrapped(self, node: Node, level: int) -> str:
        text, own = self.text(node)
        return f"({text})" if own < level else text


def _names(bound: tuple[Index, ...]) -> str:
    return ", ".join(str(i.dim) for i in bound)
