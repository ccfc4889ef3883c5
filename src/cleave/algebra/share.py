"""Values computed once that the user computes twice, guarded and not (design.md, section 3, Search).

`exp(s - m)` and `exp(s - select(|m| = inf, 0, m))` are one value wherever the first is defined: what masks
`s` implies that the maximum is there. Nodes that are the same operations but for such selects, and whose
normal forms are the same, are one class. One of them stands for another only if it needs nothing more and has
every guard of the other. A guard hides what is not a number, `inf - inf`, which normal forms do not see: the
sum of the unguarded ones is then the guarded sum plus `m - m`, and their quotient by it is what it was. So
the program is NaN where the user's is, nothing else, and nothing is rounded in another way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cleave.algebra.build import Builder
from cleave.algebra.clusters import is_sum
from cleave.algebra.conditions import needs_at
from cleave.algebra.degenerate import SPREADING
from cleave.algebra.forms import Poly
from cleave.algebra.frame import at_axes, plain
from cleave.algebra.normal import node_form
from cleave.ir.dims import var
from cleave.ir.ops import FLOATS, Access, Const, Map, Node, Reduce, map_node
from cleave.ir.program import Program
from cleave.ir.rewrite import replace_arguments

LAW = "what is computed twice, with a guard against infinities and without, is computed once"


@dataclass(frozen=True, slots=True)
class Once:
    """The program with values computed once, which value stands for which, and the guards and maxima
    that tell where they are not the same."""

    program: Program
    stands: tuple[tuple[Node, Node], ...]
    guards: tuple[Node, ...]
    tops: tuple[Node, ...]

    def given(self, names: Mapping[Node, str]) -> str:
        """Why the values are the same, in the names of the program that they were in."""
        pairs = ", ".join(f"{names[old]} = {names[kept]}" for old, kept in self.stands)
        if not self.tops:
            return f"{pairs}; what the guard hides is NaN in the user's program, and stays so"
        guards, tops = (", ".join(names[n] for n in nodes) for nodes in (self.guards, self.tops))
        nan = ", ".join(f"{names[top]} - {names[top]}" for top in self.tops)
        same = f"{guards} is {tops} where that is finite, so {pairs}"
        return f"{same}; {nan} is 0 there, else NaN, as the user's value is"


def shared(program: Program, forms: dict[Node, Poly]) -> Once | None:
    """The program with each class of values computed once; None if nothing is shared."""
    classes = _Classes(forms)
    for node in program.nodes:
        classes.enter(node)
    chosen = {n: r for n, r in classes.chosen().items() if n is not r}
    told = _Told(program, classes, chosen)
    chosen = told.settled()
    if not chosen:
        return None
    made = _rebuilt(program, chosen, told.poison)
    kept_names: dict[Node, str] = {}
    for node, access in made.items():
        if node in program.names and node not in chosen:
            kept_names.setdefault(access.node, program.names[node])
    outputs = tuple(replace(o, node=made[o.node].node) for o in program.outputs)
    tops = tuple(dict.fromkeys(top.node for node in program.nodes for top in told.poison.get(node, ())))
    guards = tuple(n for n in program.nodes if _guard(n) and plain(_shown(n)).node in tops)
    stands = tuple((node, chosen[node]) for node in program.nodes if node in chosen)
    return Once(replace(program, outputs=outputs, names=kept_names), stands, guards, tops)


def _rebuilt(
    program: Program, chosen: dict[Node, Node], poison: Mapping[Node, tuple[Access, ...]]
) -> dict[Node, Access]:
    """Every node with those that stand for others in their places, which may come later in the program; plus
    what makes a sum NaN where it was."""
    made: dict[Node, Access] = {}
    stack = [o.node for o in program.outputs]
    while stack:
        node = stack[-1]
        kept = chosen.get(node, node)
        tops = poison.get(node, ())
        below = [kept, *(t.node for t in tops)] if kept is not node else [a.node for a in node.reads]
        waiting = [n for n in below if n not in made]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        if node in made:
            continue
        if kept is node:
            made[node] = replace_arguments(node, made).read()
            continue
        value, build = made[kept], Builder(node.dtype)
        for top in tops:
            moved = made[top.node].at(dict(zip(top.node.axes, top.terms, strict=True)))
            value = build.add(value, build.sub(moved, moved))
        own = tuple(map(var, node.axes))
        made[node] = value if value.terms == own else map_node("id", node.axes, [value], node.dtype).read()
    return made


@dataclass(slots=True)
class _Told:
    """Which values may stand for others, and what is added to sums, so that what is not a number stays so."""

    program: Program
    classes: _Classes
    chosen: dict[Node, Node]
    poison: dict[Node, tuple[Access, ...]] = field(default_factory=dict[Node, tuple[Access, ...]])
    """For a sum, the maxima whose guards the value that stands for it has and it has not."""
    readers: dict[Node, list[Node]] = field(default_factory=dict[Node, list[Node]])

    def settled(self) -> dict[Node, Node]:
        """The choices that keep every NaN: a value with fewer guards is a sum of what a maximum of its own is
        taken off, or every value that reads it is NaN where it is told to be."""
        for node in self.chosen:
            tops = self._tops(node)
            if tops and is_sum(node) and all(_taken_off(node, top) for top in tops):
                self.poison[node] = tuple(tops)
        for node in self.program.nodes:
            for access in node.reads:
                self.readers.setdefault(access.node, []).append(node)
        outputs = {o.node for o in self.program.outputs}
        found = dict(self.chosen)
        for node in reversed(self.program.nodes):
            if node in found and node not in self.poison and self._open(node):
                tops = self._tops(node)
                if not isinstance(node.op, Map) or tops is None or not self._read(node, tops, found, outputs):
                    del found[node]
        return found

    def _read(self, node: Node, tops: list[Access], found: Mapping[Node, Node], outputs: set[Node]) -> bool:
        """Is all that is made of a node NaN wherever one of the maxima is not finite, because of what else
        it is made of?"""
        if node in outputs:
            return False
        for reader in self.readers[node]:
            if reader in found:
                continue
            spreads = isinstance(reader.op, Map) and reader.op.fn in SPREADING
            if not spreads and not is_sum(reader):
                return False
            told = {t for a in reader.args if a.node is not node for t in self._telling(a)}
            moved = [plain(t.at(at_axes(a))) for a in reader.args if a.node is node for t in tops]
            left = [t for t in moved if t not in told]
            within = all(t.indices <= set(reader.axes) for t in left)
            if left and not (within and self._read(reader, left, found, outputs)):
                return False
        return True

    def _open(self, node: Node) -> bool:
        return self.classes.guards[node] != self.classes.guards[self.chosen[node]]

    def _tops(self, node: Node) -> list[Access] | None:
        """The guarded maxima in the value that stands for a node, in its indices; None if they are not found
        without looking into a reduction."""
        if not self._open(node):
            return []
        wanted = set(self.classes.guards[self.chosen[node]] - self.classes.guards[node])
        found: dict[Access, None] = {}
        stack = list(self.chosen[node].args) if is_sum(node) else [self.chosen[node].read()]
        while stack:
            access = plain(stack.pop())
            op = access.node.op
            if not isinstance(op, Map):
                continue
            if (name := _guard(access.node)) in wanted:
                found[plain(op.args[_guarded(op)].at(at_axes(access)))] = None
                wanted.discard(name)
            stack += [a.at(at_axes(access)) for a in op.args]
        inside = all(top.indices <= set(node.axes) for top in found)
        return list(found) if inside and not wanted else None

    def _telling(self, access: Access) -> list[Access]:
        where = at_axes(access)
        if access.node in self.poison:
            return [plain(t.at(where)) for t in self.poison[access.node]]
        op = access.node.op
        if not isinstance(op, Map) or op.fn not in SPREADING:
            return []
        return [t for a in op.args for t in self._telling(a.at(where))]


def _taken_off(node: Node, top: Access) -> bool:
    """Is a factor of a sum an exponential of what its own maximum is taken off, over all that is summed?"""
    for argument in node.args:
        access = plain(argument)
        while isinstance(access.node.op, Map) and access.node.op.fn in ("mul", "neg"):
            access = plain(access.node.op.args[0].at(at_axes(access)))
        op = access.node.op
        shift = plain(op.args[0].at(at_axes(access))) if isinstance(op, Map) and op.fn == "exp" else access
        inner = shift.node.op
        if not isinstance(inner, Map) or inner.fn != "sub":
            continue
        value, taken = (plain(a.at(at_axes(shift))) for a in inner.args)
        reduced = top.node.op
        if taken != top or not isinstance(reduced, Reduce) or reduced.kind != "max":
            continue
        if len(reduced.bound) != len(node.bound):
            continue
        where = at_axes(top) | {b: var(i) for b, i in zip(reduced.bound, node.bound, strict=True)}
        if plain(reduced.arg.at(where)) == value:
            return True
    return False


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


def _shown(node: Node) -> Access:
    """What a select with a literal lets through."""
    op = node.op
    assert isinstance(op, Map)
    return op.args[_guarded(op)]


def _guard(node: Node) -> str:
    """What tells a select with a literal from others: its condition, the literal, and where it stands."""
    op = node.op
    if not isinstance(op, Map) or op.fn != "select" or not _guarded(op):
        return ""
    value = _guarded(op)
    return f"{op.args[0].node.digest} {value} {op.args[3 - value].node.digest}"
