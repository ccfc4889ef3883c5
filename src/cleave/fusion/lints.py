"""Lints: habits of a program that no strategy can mend, with the user's line and what to write instead.

Loops are vertices with a `body` graph whose `carried` pairs lead from a state to its next value. A graph
without loops is looked at as the step of one that the caller writes: a result that has a parameter's shape is
its next state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cleave.fusion.graph import Graph, Vertex
from cleave.fusion.opcodes import KNOWN, NEVER
from cleave.fusion.planning import plan_fusion
from cleave.fusion.rules import Rules

QUIET = frozenset({"parameter", "tuple", "get-tuple-element"})
THROUGH = frozenset({"id", "copy", "bitcast", "reshape", "transpose", "convert"})
MOST_CARRIED_BYTES = 64
"""Bytes of state per element of a loop that registers hold."""


@dataclass(frozen=True, slots=True)
class Lint:
    """A finding: `code` is `CONCAT_CARRIED`, `OPAQUE_IN_LOOP` or `UNROLLABLE`."""

    code: str
    where: str
    text: str
    line: str


def lints(graph: Graph, rules: Rules | None = None) -> tuple[Lint, ...]:
    """Everything that is found in a graph and in the bodies of its loops."""
    found: list[Lint] = []
    loops = [v for v in graph.vertices if v.body is not None]
    for loop in loops:
        body = loop.body
        assert body is not None
        found += _concats(body, body.carried, loop.name)
        found += _opaque(body, loop)
        found += _unrollable(body, loop, rules or Rules())
        found += lints(body, rules)
    if not loops and not graph.carried:
        found += _concats(graph, _as_step(graph), "")
    return tuple(dict.fromkeys(found))


def _as_step(graph: Graph) -> tuple[tuple[Vertex, Vertex], ...]:
    """Parameters that are cut into pieces, with the results that could be their next values."""
    states = [v for v in graph.vertices if v.opcode == "parameter" and v.shape.dims]
    cut = [
        p
        for p in states
        if any(graph.vertices[u].opcode in ("slice", "gather") for u in graph.users[p.number])
    ]
    pairs: dict[Vertex, Vertex] = {}
    for result in graph.outputs:  # each is the next value of one parameter
        state = next((p for p in cut if p.shape == result.shape and p not in pairs), None)
        if state is not None:
            pairs[state] = result
    return tuple(pairs.items())


def _concats(graph: Graph, carried: tuple[tuple[Vertex, Vertex], ...], loop: str) -> Iterator[Lint]:
    for state, following in carried:
        v = _put_together(following)
        if v is None:
            continue
        where = f"loop {loop}" if loop else "a loop that calls this step"
        users, parts = len(graph.users[v.number]) + (v in graph.outputs), len(v.operands)
        text = (
            f"{where} carries {state.name} as one tensor that every step concatenates from {parts} "
            f"parts and cuts again ({v.bytes} bytes a step, {users} readers): carry the parts apart"
        )
        yield Lint("CONCAT_CARRIED", v.name, text, v.line or following.line)


def _put_together(v: Vertex) -> Vertex | None:
    """The concatenation that a value is, or that it may be after a choice between values."""
    while v.opcode in THROUGH and len(v.operands) == 1:
        v = v.operands[0]
    if v.opcode == "select":
        return next((c for o in v.operands[1:] if (c := _put_together(o)) is not None), None)
    return v if v.opcode == "concat" and len(v.operands) > 1 else None


def _opaque(body: Graph, loop: Vertex) -> Iterator[Lint]:
    for v in body.vertices:
        if v.opcode in QUIET or v.body is not None:
            continue
        if v.effect or v.opcode in NEVER or v.opcode not in KNOWN:
            text = (
                f"loop {loop.name} calls {v.opcode} at every step, which no kernel takes in: compute it "
                "before the loop for all steps, or write it as plain operations"
            )
            yield Lint("OPAQUE_IN_LOOP", v.name, text, v.line or loop.line)


def _unrollable(body: Graph, loop: Vertex, rules: Rules) -> Iterator[Lint]:
    trips = loop.trips
    pure = all(v.opcode in KNOWN and not v.effect and v.body is None for v in body.vertices)
    if trips is None or trips < 2 or not pure:
        return
    pure = not any(v.opcode in NEVER - QUIET for v in body.vertices)
    plan = plan_fusion(body, "xla", rules)
    launches = plan.totals.launches
    if not pure or not launches:
        return
    widest = max((s.elements for s, _ in body.carried), default=1)
    state = sum(s.bytes for s, _ in body.carried) / max(1, widest)
    whole = all(v.elements in (widest, 1) for v in body.vertices) and state <= MOST_CARRIED_BYTES
    factor = next((k for k in (20, 10, 5, 4, 2) if trips % k == 0 and launches * k <= 512), 1)
    if whole:
        text = (
            f"loop {loop.name} runs {trips} steps of {launches} kernels over {widest} elements "
            f"with {state:.0f} bytes of state each: the whole loop fits one kernel, its state in registers"
        )
    elif factor > 1:
        text = f"loop {loop.name} runs {trips} steps of {launches} kernels: unroll it by {factor}"
    else:
        return
    yield Lint("UNROLLABLE", loop.name, text, loop.line)
