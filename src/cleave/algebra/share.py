"""Values computed once that the user computes twice, guarded and not (design.md, section 3, Search).

`exp(s - m)` and `exp(s - select(|m| = inf, 0, m))` are one value wherever the first is defined: what masks
`s` implies that the maximum is there. Nodes that are the same operations but for such selects, and whose
normal forms are the same, are one class. One of them stands for another only if it needs nothing more and has
every guard of the other: a guard may hide what is not a number, `0/0` or `inf - inf`, that normal forms do
not see. So what the user's program defines stays defined, and nothing is rounded in another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cleave.algebra.conditions import needs_at
from cleave.algebra.forms import Poly
from cleave.algebra.frame import plain
from cleave.algebra.normal import node_form
from cleave.algebra.stability import define, spell
from cleave.ir.candidate import Step
from cleave.ir.ops import FLOATS, Access, Const, Map, Node, Reduce
from cleave.ir.program import Program
from cleave.ir.rewrite import replace_arguments

LAW = "f(where p, u) = f(u) where what f is masked by implies p"


def shared(
    program: Program, forms: dict[Node, Poly], names: Mapping[Node, str]
) -> tuple[Program, tuple[Step, ...]] | None:
    """The program with each class of values computed once, and the steps, which call values by `names`; None
    if nothing is shared."""
    classes = _Classes(forms)
    for node in program.nodes:
        classes.enter(node)
    chosen = {n: r for n, r in classes.chosen().items() if n is not r}
    if not chosen:
        return None
    made = _rebuilt(program, chosen)
    called = replace(program, names=names)
    steps: list[Step] = []
    for node, kept in chosen.items():
        if not any(a.node in chosen for a in node.reads):
            place = spell(called, node.read())
            rest = [f"{spell(called, n.read())} = {spell(called, k.read())}" for n, k in chosen.items()]
            after = define(called, kept) + "; so " + ", ".join(rest)
            steps.append(Step(LAW, place, define(called, node), after))
    kept_names: dict[Node, str] = {}
    for node, access in made.items():
        if node in program.names and node not in chosen:
            kept_names.setdefault(access.node, program.names[node])
    outputs = tuple(replace(o, node=made[o.node].node) for o in program.outputs)
    return replace(program, outputs=outputs, names=kept_names), tuple(steps)


def _rebuilt(program: Program, chosen: dict[Node, Node]) -> dict[Node, Access]:
    """Every node with those that stand for others in their places; they may come later in the program."""
    made: dict[Node, Access] = {}
    stack = [o.node for o in program.outputs]
    while stack:
        node = stack[-1]
        kept = chosen.get(node, node)
        below = [kept] if kept is not node else [a.node for a in node.reads]
        waiting = [n for n in below if n not in made]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if node not in made:
            made[node] = made[kept] if kept is not node else replace_arguments(node, made).read()
    return made


@dataclass(slots=True)
class _Classes:
    forms: dict[Node, Poly]
    bare: dict[Node, Node] = field(default_factory=dict[Node, Node])
    members: dict[tuple[Node, str], list[Node]] = field(default_factory=dict[tuple[Node, str], list[Node]])
    needs: dict[Node, frozenset[str]] = field(default_factory=dict[Node, frozenset[str]])
    guards: dict[Node, frozenset[str]] = field(default_factory=dict[Node, frozenset[str]])

    def enter(self, node: Node) -> None:
        """Put a node into its class: by its operations without selects, and by its normal form."""
        made = {a.node: self._stripped(a.node) for a in node.reads}
        self.bare[node] = replace_arguments(node, made)
        own = frozenset({_guard(node)}) - {""}
        self.guards[node] = own.union(*(self.guards[a.node] for a in node.reads))
        if node not in self.forms:
            self.forms[node] = node_form(node, self.forms)
        if node.dtype in FLOATS and not isinstance(node.op, Const) and node.reads:
            key = (self.bare[node], self.forms[node].key)
            self.members.setdefault(key, []).append(node)

    def chosen(self) -> dict[Node, Node]:
        """For each node that shares a class, the node that stands for it."""
        found: dict[Node, Node] = {}
        for nodes in self.members.values():
            if len(nodes) < 2:
                continue
            kept = min(nodes, key=lambda n: (-len(self.guards[n]), len(self._needs(n))))
            for node in nodes:
                if self._needs(kept) <= self._needs(node) and self.guards[node] <= self.guards[kept]:
                    found[node] = kept
        return found

    def _stripped(self, node: Node) -> Access:
        """A node without selects between it and a literal, over its own axes."""
        op = node.op
        bare = self.bare[node]
        if isinstance(op, Map) and op.fn == "select":
            value = _guarded(op)
            if value:
                assert isinstance(bare.op, Map)
                return bare.op.args[value]
        return bare.read()

    def _needs(self, node: Node) -> frozenset[str]:
        if node not in self.needs:
            below = [self._needs(a.node) for a in node.reads]
            self.needs[node] = needs_at(node, self.forms).union(*below)
        return self.needs[node]


def _guarded(op: Map) -> int:
    """Which argument of a select a literal is put in place of, if that is a maximum; 0 if none. Without its
    shift what was NaN is `0/0` later; a guard of another value would put a number there."""
    one, two = (isinstance(a.node.op, Const) for a in op.args[1:])
    value = 0 if one == two else (2 if one else 1)
    inner = plain(op.args[value]).node.op
    return value if isinstance(inner, Reduce) and inner.kind in ("max", "min") else 0


def _guard(node: Node) -> str:
    """What tells a select with a literal from others: its condition, the literal, and where it stands."""
    op = node.op
    if not isinstance(op, Map) or op.fn != "select" or not _guarded(op):
        return ""
    value = _guarded(op)
    return f"{op.args[0].node.digest} {value} {op.args[3 - value].node.digest}"
