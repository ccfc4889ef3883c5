"""Plans: what a strategy makes of a graph, with its decisions and totals.

    plan = plan_fusion(graph, "vertical-dup+merger+multi-output", Rules("X23"))
    plan.groups, plan.decisions, plan.totals, plan.before

Pure and deterministic: the same graph, strategy and rules give the same plan, and so does the replay of its
log.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

from cleave.errors import Bug, Invalid
from cleave.fusion.cost import time_alone, unit_flops
from cleave.fusion.decisions import Decision, Log, from_data, replay
from cleave.fusion.graph import Graph, Vertex
from cleave.fusion.notation import unknown_in
from cleave.fusion.opcodes import is_bitcast
from cleave.fusion.ours import best_plan
from cleave.fusion.rules import DEVICES, Rules
from cleave.fusion.state import State, check, start
from cleave.fusion.strategies import Strategy, run, strategy_named
from cleave.fusion.units import Unit
from cleave.ir.ops import Position

OLDER = frozenset({"X22", "X23"})
SILENT = frozenset({"parameter", "constant", "get-tuple-element", "tuple"})
"""Top-level vertices that no kernel computes."""


@dataclass(frozen=True, slots=True)
class Group:
    """One kernel of a plan: `kind` is `L`, `I` or empty for a vertex alone. `launches` is false where nothing
    runs: parameters, constants, bitcasts, and views, which whoever reads them reads through."""

    kind: str
    members: tuple[Vertex, ...]
    outputs: tuple[Vertex, ...]
    operands: tuple[Vertex, ...]
    horizontal: bool
    launches: bool
    unit: Unit = field(repr=False, compare=False)

    @property
    def name(self) -> str:
        return self.outputs[0].name

    @property
    def text(self) -> str:
        """`{a, b}L`, or `{a, b => a, b}I` with several results; members that are views left out."""
        inside = ", ".join(m.name for m in self.members if not m.view)
        results = " => " + ", ".join(o.name for o in self.outputs) if len(self.outputs) > 1 else ""
        return f"{{{inside}{results}}}{self.kind}"


@dataclass(frozen=True, slots=True)
class Totals:
    """What a plan costs: kernels and calls launched, bytes that cross memory, seconds by the model, peak
    bytes of values alive at once, operations computed, and operations computed again elsewhere."""

    launches: int
    bytes: int
    seconds: float
    peak: int
    flops: float
    duplicated: int
    duplicated_flops: float


@dataclass(frozen=True, slots=True)
class Plan:
    """A finished plan. `notes` say what a reader must know: foreign passes, unknown operations."""

    graph: Graph
    strategy: Strategy
    rules: Rules
    groups: tuple[Group, ...]
    log: Log = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()
    state: State = field(repr=False, compare=False, default_factory=lambda: start(Graph("", (), ())))

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every considered edge, in order."""
        return self.log.decisions()

    @property
    def totals(self) -> Totals:
        """What the plan costs."""
        return totals_of(self.state, self.rules)

    @property
    def before(self) -> Totals:
        """What the graph costs with every operation alone, or in the groups that it came with."""
        return totals_of(start(self.graph, self.state.today), self.rules)

    def seconds(self, group: Group) -> float:
        """Modelled time of one kernel, launch included."""
        return time_alone(group.unit, self.rules) + self.rules.device.launch if group.launches else 0.0

    @property
    def kernels(self) -> tuple[Group, ...]:
        """The groups that launch, in order."""
        return tuple(g for g in self.groups if g.launches)

    @property
    def duplicates(self) -> tuple[tuple[Vertex, int], ...]:
        """Operations that several kernels compute, with how many, the most first."""
        copies = Counter(m for g in self.groups for m in g.members if not m.view and not is_free(m))
        found = [(v, n) for v, n in copies.items() if n > 1]
        return tuple(sorted(found, key=lambda item: (-item[1], item[0].number)))

    def together(self, one: Vertex, two: Vertex) -> bool:
        """Whether some kernel computes both."""
        return any(one in g.members and two in g.members for g in self.groups)


@contextmanager
def _uncollected() -> Iterator[None]:
    """Planning allocates much and frees nothing; Python's cycle collector would take a third of its time, and
    would go through all of it once afterwards. What is left then counts as old."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():  # else somebody froze objects, which must stay so
                gc.freeze()
                gc.unfreeze()
            gc.enable()


def plan_fusion(graph: Graph, strategy: str = "xla", rules: Rules | None = None) -> Plan:
    """Plan a graph. `Invalid` for an unknown strategy or epoch."""
    with _uncollected():
        return _planned(graph, strategy, rules or Rules())


def _planned(graph: Graph, strategy: str, rules: Rules) -> Plan:
    if strategy.strip() == "cleave":
        state, log, chosen = best_plan(graph, rules, runs)
    else:
        chosen = strategy_named(strategy, rules.epoch)
        state, log = start(graph, rules.today), Log(graph)
        run(state, chosen, rules, log)
    return finished(state, log, chosen, rules)


def plan_again(graph: Graph, data: Mapping[str, object]) -> Plan:
    """The plan that the data of a report holds (`cleave fuse --json`), made from its log, no rule asked.
    `Invalid` if the log was cut, or is of another graph."""
    try:
        named = {str(key): str(data[key]) for key in ("strategy", "epoch", "device")}
        passes = tuple(str(p) for p in cast("list[object]", data["passes"]))
        notes = [str(n) for n in cast("list[object]", data.get("notes", []))]
        logged = [from_data(d) for d in cast("list[Mapping[str, object]]", data["decisions"])]
        left_out = int(cast("int", data.get("decisions_left_out", 0)))
        device = next(d for d in DEVICES.values() if d.name == named["device"])
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        raise Invalid(f"this is no plan that cleave fuse wrote: {error!r}"[:200]) from error
    if left_out:
        raise Invalid(f"the log was cut: {left_out} decisions are missing", hint="write it with --limit 0")
    rules, log = Rules(named["epoch"], device), Log(graph)
    log.take(logged)
    log.notes += notes
    try:
        # Ours counts uses as the epoch of its start does (`xla X23`).
        today = (
            rules.today if named["strategy"] != "cleave" else not passes[:1] or passes[0][-3:] not in OLDER
        )
        plan = finished(replay(graph, logged, today), log, Strategy(named["strategy"], passes), rules)
    except Bug as error:
        raise Invalid(f"the log is of another graph: {error}") from error
    before, after = cast("Mapping[str, object]", data.get("after", {})), plan.totals
    for name, found in (("launches", after.launches), ("bytes", after.bytes)):
        if before.get(name, found) != found:
            raise Invalid(
                f"the log is of another graph: it says {before[name]} {name}, and replayed it has {found}"
            )
    return plan


def finished(state: State, log: Log, strategy: Strategy, rules: Rules) -> Plan:
    """The plan of a state that its passes are done with."""
    check(state)
    graph = state.graph
    unknown = unknown_in(graph)
    notes = list(log.notes)
    if unknown:
        names = sorted({v.opcode for v in unknown})
        notes.append(f"operations that no rule knows are left alone: {', '.join(names[:10])}")
    groups = tuple(group_of(u) for u in state.post_order())
    return Plan(graph, strategy, rules, groups, log, tuple(dict.fromkeys(notes)), state)


def group_of(unit: Unit) -> Group:
    """A unit as a finished group."""
    vertices = unit.graph.vertices
    return Group(
        unit.kind,
        tuple(unit.vertices()),
        tuple(vertices[o] for o in unit.outputs),
        tuple(vertices[o] for o in unit.operands),
        unit.horizontal,
        runs(unit),
        unit,
    )


def is_free(v: Vertex) -> bool:
    """What costs nothing alone: no kernel computes it."""
    if v.plain and not v.view:
        return False
    if v.node is not None and isinstance(v.node.op, Position):
        return True  # whoever reads it computes it
    return v.opcode in SILENT or is_bitcast(v) or (v.view and v.opcode != "gather")


def runs(unit: Unit) -> bool:
    """Whether a unit is a launch."""
    vertices = unit.graph.vertices
    for member in unit.members:  # noqa: SIM110  (called for every unit after every pass)
        if not is_free(vertices[member]):
            return True
    return False


def _origin(state: State, number: int) -> int:
    """The value that is read where this one is: through views and bitcasts that no kernel computes."""
    v = state.graph.vertices[number]
    while v.operands and number in state.maker and not runs(state.maker[number]):
        v = v.operands[0]
        number = v.number
    return number


def totals_of(state: State, rules: Rules) -> Totals:
    """The totals of a state."""
    vertices = state.graph.vertices
    order = [u for u in state.post_order() if runs(u)]
    moved, seconds, flops = 0, 0.0, 0.0
    last: dict[int, int] = {}
    for place, unit in enumerate(order):
        for operand in unit.operands:
            v, origin = vertices[operand], _origin(state, operand)
            moved += min(v.bytes, vertices[origin].bytes)
            last[origin] = place
        moved += sum(vertices[o].bytes for o in unit.outputs)
        seconds += time_alone(unit, rules) + rules.device.launch
        flops += unit_flops(unit, rules)
    copies = Counter(m for u in order for m in u.members if not vertices[m].view and not is_free(vertices[m]))
    again = {m: n - 1 for m, n in copies.items() if n > 1}
    return Totals(
        len(order),
        moved,
        seconds,
        _peak(state, order, last),
        flops,
        sum(again.values()),
        float(sum(n * vertices[m].elements for m, n in again.items())),
    )


def _peak(state: State, order: list[Unit], last: dict[int, int]) -> int:
    """Bytes alive at once while kernels run in order: arguments and results all the time."""
    vertices = state.graph.vertices
    held = sum(v.bytes for v in vertices if v.opcode in ("parameter", "constant"))
    kept = {_origin(state, o.number) for o in state.graph.outputs}
    peak = alive = held
    ends: dict[int, list[int]] = {}
    for value, place in last.items():
        ends.setdefault(place, []).append(value)
    for place, unit in enumerate(order):
        alive += sum(vertices[o].bytes for o in unit.outputs)
        peak = max(peak, alive)
        for value in (*ends.get(place, ()), *(o for o in unit.outputs if o not in last)):
            if value not in kept and vertices[value].opcode not in ("parameter", "constant"):
                alive -= vertices[value].bytes
    return peak


__all__ = [
    "Group", "Plan", "Totals", "finished", "group_of", "is_free", "plan_again", "plan_fusion", "runs",
    "totals_of",
]  # fmt: skip
