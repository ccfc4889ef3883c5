"""The case files of tests/cases/fusion: a graph, options and what must come out, in one file.

A file is `key: value` lines, the graph, a line of dashes and the expectations (docs/fusion.md).
`check_case` gives the list of what is wrong.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from cleave.fusion.cost import time_yesterday
from cleave.fusion.edges import code_dup
from cleave.fusion.graph import Graph
from cleave.fusion.notation import parse_graph
from cleave.fusion.planning import Plan, plan_fusion
from cleave.fusion.rules import Rules
from cleave.fusion.state import State, start
from cleave.fusion.units import LOOP, Unit

FOLDER = Path(__file__).parents[1] / "cases" / "fusion"
HEADER = re.compile(r"(case|epoch|strategy|options|why):\s*(.*)")


@dataclass(frozen=True)
class Case:
    """One graph with its options and expectations. `name` may end in a letter: parts of one case."""

    name: str
    strategy: str
    epochs: tuple[str, ...]
    base: bool
    graph: Graph
    expected: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """The case's number in the specification."""
        return re.sub(r"[a-z]$", "", self.name)


def read_case(path: Path) -> Case:
    """The case of a file."""
    head, _, tail = path.read_text().partition("\n---\n")
    options: dict[str, str] = {}
    lines: list[str] = []
    for line in head.splitlines():
        found = HEADER.fullmatch(line)
        if found:
            options[found[1]] = found[2].strip()
        else:
            lines.append(line)
    expected = [
        tuple(part.strip() for part in line.split(":", 1)) for line in tail.splitlines() if line.strip()
    ]
    return Case(
        path.stem,
        options["strategy"],
        tuple(e.strip() for e in options["epoch"].split(",")),
        "base" in options.get("options", ""),
        parse_graph("\n".join(lines), path.stem),
        tuple(expected),  # type: ignore[arg-type]
    )


def all_cases() -> list[Case]:
    """Every case, by name."""
    return [read_case(path) for path in sorted(FOLDER.glob("*.cleave"))]


def check_case(case: Case, epoch: str) -> list[str]:
    """What is wrong with the plan of a case in an epoch."""
    rules = Rules(epoch, base=case.base)
    plan = plan_fusion(case.graph, case.strategy, rules)
    wrong: list[str] = []
    for key, value in case.expected:
        found = CHECKS[key](case, plan, value)
        if found:
            wrong.append(f"{key}: {value}: {found}")
    return wrong


# ---------------------------------------------------------------- checks


def texts(plan: Plan) -> list[str]:
    """The groups of a plan as sorted texts, in canonical order of members."""
    return sorted(_canonical(g.text) for g in plan.groups if g.kind)


def _canonical(text: str) -> str:
    found = re.fullmatch(r"\{([^}=]*)(?:=>([^}]*))?\}([LI]?)", text.strip())
    assert found is not None, f"{text!r} is no group"
    members, outputs = (
        sorted(n.strip() for n in (p or "").split(",") if n.strip()) for p in (found[1], found[2])
    )
    return f"{{{', '.join(members)}{' => ' + ', '.join(outputs) if outputs else ''}}}{found[3]}"


def _groups(case: Case, plan: Plan, value: str) -> str:
    """Exactly these groups; a kind may be left out."""
    if value == "unchanged":
        initial = plan_fusion(case.graph, "none", plan.rules)
        same = texts(plan) == texts(initial)
        return "" if same else f"got {'; '.join(texts(plan))}"
    wanted = sorted(_canonical(t) for t in value.split(";"))
    got = texts(plan)
    plain = [t if w[-1] in "LI" else t.rstrip("LI") for t, w in zip(got, wanted, strict=False)]
    return "" if len(got) == len(wanted) and plain == wanted else f"got {'; '.join(got)}"


def _verdict(case: Case, plan: Plan, value: str) -> str:
    """`a -> b CODE`: an edge was decided with this code, at some point."""
    edge, code = value.rsplit(None, 1)
    producer, consumer = (n.strip() for n in edge.split("->"))
    codes = [
        d.code for d in plan.decisions if consumer in ("*", d.consumer) and producer in ("*", d.producer)
    ]
    return "" if code in codes else f"got {codes}"


def _copies(case: Case, plan: Plan, value: str) -> str:
    name, count = value.split()
    got = sum(any(m.name == name for m in g.members) for g in plan.groups)
    return "" if got == int(count) else f"got {got}"


def _launches(case: Case, plan: Plan, value: str) -> str:
    return "" if plan.totals.launches == int(value) else f"got {plan.totals.launches}"


def _multi(case: Case, plan: Plan, value: str) -> str:
    got = sum(len(g.outputs) > 1 for g in plan.groups)
    return "" if got == int(value) else f"got {got}"


def _args(case: Case, plan: Plan, value: str) -> str:
    got = max(len(g.operands) + len(g.outputs) for g in plan.groups)
    return "" if got <= int(value) else f"got {got}"


def _time(case: Case, plan: Plan, value: str) -> str:
    """`unit unfused U fused F`: X23's times in microseconds."""
    name, _, before, _, after = value.split()
    state = start(case.graph)
    unit = state.unit_of(name)
    got = [t * 1e6 for t in time_yesterday(replace(plan.rules, epoch="X23"), unit, state.users(unit))]
    near = all(
        abs(g - float(w)) <= max(0.01, 2e-4 * float(w)) for g, w in zip(got, (before, after), strict=True)
    )
    return "" if near else f"got unfused {got[0]:.2f} fused {got[1]:.2f}"


def _whole(graph: Graph, without: str = "") -> tuple[State, Unit]:
    """All operations below `without` in one loop kernel."""
    state = start(graph)
    unit = Unit(graph, -1, {}, [graph.outputs[0].number], LOOP)
    for v in reversed(graph.vertices):
        if v.name == without:
            break
        if v.opcode != "parameter":
            unit.add(v.number)
    return state, unit


def _emissions(case: Case, plan: Plan, value: str) -> str:
    name, count = value.split()
    got = _whole(case.graph)[1].use(case.graph.named(name).number).emissions
    return "" if got == int(count) else f"got {got}"


def _may_join(case: Case, plan: Plan, value: str) -> str:
    """`name yes|no`: whether the limit of emissions lets an operation join what lies below it."""
    name, answer = value.split()
    state, unit = _whole(case.graph, name)
    why = code_dup(state, plan.rules, state.unit_of(name), unit)
    return "" if (why is None) == (answer == "yes") else f"got {why}"


CHECKS = {
    "groups": _groups,
    "verdict": _verdict,
    "copies": _copies,
    "launches": _launches,
    "several-results": _multi,
    "most-args": _args,
    "time": _time,
    "emissions": _emissions,
    "may-join": _may_join,
}
