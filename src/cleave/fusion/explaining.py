"""Why two operations do not share a kernel, and the smallest change that would make them.

The answer is tried out, not guessed: each knob, pass, epoch and rewrite of the graph is planned again,
smallest change first, and the first of each sort after which the two share a kernel is reported.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from cleave.errors import Invalid
from cleave.fusion.decisions import Decision
from cleave.fusion.graph import Graph, Vertex
from cleave.fusion.planning import Group, Plan, plan_fusion
from cleave.fusion.rewrites import rewrites
from cleave.fusion.rules import EPOCHS, Rules

UNSEEN = {
    "vertical": "vertical fusion takes no producer that it has passed by",
    "vertical-dup": "vertical fusion takes no producer that it has passed by",
    "merger-bytes": "the merger takes loop groups, which vertical fusion makes",
    "merger-cost": "the merger takes loop groups, which vertical fusion makes",
    "priority": "priority fusion takes no results, arguments or opaque operations",
    "multi-output": "multi-output fusion leaves a producer with one reader to the passes before it",
    "horizontal-loop": "horizontal fusion joins what does not depend on each other",
    "horizontal-input": "horizontal fusion joins what does not depend on each other",
}
"""Why a pass may not have looked at an edge at all."""
MOST_VERTICES = 3000
"""Graphs above this are not planned again for every change, only for the knobs."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change after which the two share a kernel: a `knob`, `pass`, `epoch`, `strategy` or `rewrite`."""

    sort: str
    text: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer. `edges` are the decisions at the border between the two kernels, `walls` the borders on the
    way from one to the other if they are not neighbours, `changes` what would flip the answer. `unseen` says
    why a border may have no decision, `tried` which sorts of change were tried, in words."""

    one: Vertex
    two: Vertex
    together: tuple[Group, ...]
    edges: tuple[Decision, ...]
    walls: tuple[tuple[Vertex, Vertex, tuple[Decision, ...]], ...]
    changes: tuple[Change, ...]
    unseen: str = ""
    tried: str = ""


def unseen(plan: Plan) -> str:
    """Why no pass of the plan's strategy decided an edge."""
    passes = plan.strategy.passes
    if not passes:
        return f"strategy {plan.strategy.name} has no passes"
    reasons = dict.fromkeys(UNSEEN[p] for p in passes if p in UNSEEN)
    return "; ".join(reasons) or "no pass of the strategy came to it"


def operation(graph: Graph, text: str) -> Vertex:
    """A vertex by name, or the last operation of a source line, given as `LINE` or `FILE:LINE`."""
    if text in graph.by_name:
        return graph.by_name[text]
    number = text.rpartition(":")[2]
    if number.isdigit():
        on_line = [v for v in graph.vertices if v.line and v.line.split(":")[1:2] == [number] and not v.view]
        if on_line:
            return on_line[-1]
        lines = sorted({v.line for v in graph.vertices if v.line})
        raise Invalid(f"no operation comes from line {text!r}", hint="; ".join(lines[:5]))
    return graph.named(text)


def explain(plan: Plan, first: str, second: str) -> Explanation:
    """Explain a pair of operations of a plan, in either order."""
    one, two = operation(plan.graph, first), operation(plan.graph, second)
    if one.number > two.number:
        one, two = two, one
    together = tuple(g for g in plan.groups if one in g.members and two in g.members)
    if together or one is two:
        return Explanation(one, two, together, (), (), ())
    edges = _between(plan, _makers(plan, one), _makers(plan, two))
    walls = () if edges else _walls(plan, one, two)
    changes = tuple(_changes(plan, one, two))
    return Explanation(one, two, (), edges, walls, changes, unseen(plan), tried(plan))


def tried(plan: Plan) -> str:
    """Which sorts of change `explain` tries for a plan: all, or on a large graph knobs alone."""
    vertices = len(plan.graph.vertices)
    if vertices > MOST_VERTICES:
        return f"knobs only, since the graph has {vertices} vertices (more than {MOST_VERTICES})"
    name = plan.strategy.name
    more = [
        "rewrites",
        *(() if name in ("cleave", "xla") else ("passes",)),
        "epochs",
        *(() if name == "cleave" else ("the strategy cleave",)),
    ]
    return f"knobs, {', '.join(more[:-1])} and {more[-1]}"


def _makers(plan: Plan, v: Vertex) -> list[Group]:
    return [g for g in plan.groups if v in g.members]


def _between(plan: Plan, left: list[Group], right: list[Group]) -> tuple[Decision, ...]:
    """The last refusal of each pass between members of the two sides."""
    a, b = ({m.name for g in groups for m in g.members} for groups in (left, right))
    found: dict[tuple[str, str], Decision] = {}
    for d in plan.decisions:
        if not d.verdict and ((d.producer in a and d.consumer in b) or (d.producer in b and d.consumer in a)):
            found.pop((d.stage, d.code), None)
            found[(d.stage, d.code)] = d
    return tuple(found.values())


def _walls(plan: Plan, one: Vertex, two: Vertex) -> tuple[tuple[Vertex, Vertex, tuple[Decision, ...]], ...]:
    """The borders that the shortest way from one to the other crosses; empty if there is no way."""
    before: dict[int, int] = {one.number: -1}
    queue = deque([one.number])
    while queue and two.number not in before:
        n = queue.popleft()
        for user in plan.graph.users[n]:
            if user not in before:
                before[user] = n
                queue.append(user)
    if two.number not in before:
        return ()
    way = [two.number]
    while before[way[-1]] >= 0:
        way.append(before[way[-1]])
    steps = [plan.graph.vertices[n] for n in reversed(way)]
    found: list[tuple[Vertex, Vertex, tuple[Decision, ...]]] = []
    for a, b in pairwise(steps):
        if not plan.together(a, b):
            found.append((a, b, _between(plan, _makers(plan, a), _makers(plan, b))))
    return tuple(found)


# ---------------------------------------------------------------- what would flip it


def knob_changes(rules: Rules) -> Iterator[tuple[str, Rules]]:
    """Single knobs, turned as far as makes sense, with their names."""
    if not rules.allow_multi_user_cache_breakers:
        yield "allow_multi_user_cache_breakers=True", replace(rules, allow_multi_user_cache_breakers=True)
    yield f"args={4 * rules.most_args}", replace(rules, args=4 * rules.most_args)
    yield f"reductions={4 * rules.reductions}", replace(rules, reductions=4 * rules.reductions)
    yield f"emissions={4 * rules.emissions}", replace(rules, emissions=4 * rules.emissions)
    yield f"bytes_ratio={2 * rules.bytes_ratio:g}", replace(rules, bytes_ratio=2 * rules.bytes_ratio)
    yield "concat_penalty=6", replace(rules, concat_penalty=6)
    if rules.concat_kernel:
        yield "concat_kernel=False", replace(rules, concat_kernel=False)
    yield f"ir_size={4 * rules.ir_size}", replace(rules, ir_size=4 * rules.ir_size)
    yield (
        f"batch_elements={64 * rules.batch_elements}",
        replace(rules, batch_elements=64 * rules.batch_elements),
    )


ADDED = ("vertical-dup", "merger", "multi-output", "horizontal", "priority")


def _changes(plan: Plan, one: Vertex, two: Vertex) -> Iterator[Change]:
    graph, rules, name = plan.graph, plan.rules, plan.strategy.name
    for text, other in knob_changes(rules):
        if plan_fusion(graph, name, other).together(one, two):
            yield Change("knob", text)
            break
    if len(graph.vertices) > MOST_VERTICES:
        return
    for text, edited in rewrites(graph, one, two):
        if _joined(plan_fusion(edited, name, rules), one, two):
            yield Change("rewrite", text)
            break
    if name not in ("cleave", "xla"):
        for word in ADDED:
            wider = word if name == "none" else f"{name}+{word}"
            if word not in name and plan_fusion(graph, wider, rules).together(one, two):
                yield Change("pass", f"--strategy {wider}")
                break
    for epoch in EPOCHS:
        if epoch != rules.epoch and plan_fusion(graph, "xla", replace(rules, epoch=epoch)).together(one, two):
            yield Change("epoch", f"--strategy xla --epoch {epoch}")
            break
    if name != "cleave" and plan_fusion(graph, "cleave", rules).together(one, two):
        yield Change("strategy", "--strategy cleave")


def _joined(plan: Plan, one: Vertex, two: Vertex) -> bool:
    """The same question in an edited graph, where a copy of an operation counts as the operation."""
    names = [{one.name, f"{one.name}~copy"}, {two.name, f"{two.name}~copy"}]
    return any(all(wanted & {m.name for m in g.members} for wanted in names) for g in plan.groups)
