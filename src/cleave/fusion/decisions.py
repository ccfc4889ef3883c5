"""Decisions as data: every considered edge with its pass, verdict, reason code and numbers.

Passes append to a `Log`; `decisions()` turns it into records with names and source lines. An accepted
decision carries the change that it made, so a log replays without any rule (`replay`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from cleave.errors import Invalid
from cleave.fusion.graph import Graph
from cleave.fusion.rules import REASONS
from cleave.fusion.state import State, start
from cleave.fusion.units import Unit

Numbers = tuple[tuple[str, float], ...]


class Verdict(NamedTuple):
    """Why not: a reason code, details in words, and the numbers that were compared."""

    code: str
    detail: str = ""
    numbers: Numbers = ()


ALLOWED = Verdict("OK")
BLOCK = 128
"""Results of a contraction that a block computes, for the model."""


@dataclass(frozen=True, slots=True)
class Decision:
    """One considered edge. `action` is what an accepted edge did: `fuse` (copy the producer into the
    consumer), `absorb` (both results stay), `join` (siblings), `batch` (a horizontal join), `rows` (both keep
    whole rows), and empty for what was refused. `line` is the user's source line of the producer, or of the
    consumer."""

    stage: str
    producer: str
    consumer: str
    verdict: bool
    code: str
    detail: str
    numbers: Numbers
    line: str
    action: str

    @property
    def reason(self) -> str:
        """The reason in words."""
        text = REASONS[self.code]
        return f"{text} ({self.detail})" if self.detail else text


Entry = tuple[str, int, int, Verdict, str]


@dataclass(slots=True)
class Log:
    """What the passes considered, in order; of equal refusals of one edge in a row only the first."""

    graph: Graph
    entries: list[Entry] = field(default_factory=list[Entry])
    last: dict[tuple[str, int, int], str] = field(default_factory=dict[tuple[str, int, int], str])
    notes: list[str] = field(default_factory=list[str])
    made: tuple[Decision, ...] = ()

    def says(self, stage: str, producer: Unit, consumer: Unit, code: str) -> bool:
        """Whether the last entry of an edge refused it for this reason: `refuse` would add nothing."""
        return self.last.get((stage, producer.outputs[0], consumer.outputs[0])) == code

    def refuse(self, stage: str, producer: Unit, consumer: Unit, verdict: Verdict) -> None:
        """A refused edge."""
        edge = (stage, producer.outputs[0], consumer.outputs[0])
        if self.last.get(edge) != verdict.code:
            self.last[edge] = verdict.code
            self.entries.append((*edge, verdict, ""))

    def accept(self, stage: str, action: str, producer: Unit, consumer: Unit, numbers: Numbers = ()) -> None:
        """An accepted edge, before the change is made."""
        edge = (stage, producer.outputs[0], consumer.outputs[0])
        self.last.pop(edge, None)
        verdict = tuple.__new__(Verdict, ("OK", "", numbers)) if numbers else ALLOWED
        self.entries.append((*edge, verdict, action))

    def rewind(self, count: int, last: dict[tuple[str, int, int], str]) -> None:
        """Forget all entries but the first; `last` is what it was then."""
        del self.entries[count:]
        self.last, self.made = last, ()

    def take(self, decisions: Iterable[Decision]) -> None:
        """Add finished records, as a file holds them. `Invalid` for an operation that is not there."""
        for d in decisions:
            if d.code not in REASONS:
                raise Invalid(f"a log has the unknown reason {d.code!r}", hint=f"one of {', '.join(REASONS)}")
            p, c = self.graph.named(d.producer).number, self.graph.named(d.consumer).number
            self.entries.append((d.stage, p, c, Verdict(d.code, d.detail, d.numbers), d.action))

    def decisions(self) -> tuple[Decision, ...]:
        """The records."""
        if len(self.made) != len(self.entries):
            self.made = tuple(_decision(self.graph, e) for e in self.entries)
        return self.made


def _decision(graph: Graph, entry: Entry) -> Decision:
    stage, p, c, verdict, action = entry
    producer, consumer = graph.vertices[p], graph.vertices[c]
    line = producer.line or consumer.line
    names = (producer.name, consumer.name)
    return Decision(stage, *names, bool(action), verdict.code, verdict.detail, verdict.numbers, line, action)


def apply(state: State, action: str, producer: Unit, consumer: Unit) -> None:
    """Make the change of an accepted decision."""
    match action:
        case "fuse":
            state.wrap(consumer)
            state.fuse(producer, consumer)
        case "absorb":
            state.wrap(consumer)
            state.absorb(producer, consumer)
        case "rows":
            state.wrap(consumer)
            state.keep_rows(producer, consumer, rows_of(producer, consumer))
        case "join" | "batch":
            state.wrap(producer)
            state.join(producer, consumer, horizontal=action == "batch")
        case _:
            raise Invalid(f"a log has the unknown action {action!r}")


def rows_of(producer: Unit, consumer: Unit) -> int:
    """How many rows a producer and a consumer have in common: the results of the smaller."""
    known = max(producer.row_count, consumer.row_count)
    if not known and producer.root.opcode == "dot":
        known = max(1, producer.root.elements // BLOCK)
    return known or min(producer.root.elements, consumer.root.elements)


def replay(graph: Graph, decisions: Iterable[Decision], today: bool = False) -> State:
    """The state that the accepted decisions of a log lead to, no rule asked. `Invalid` if the log is of
    another graph."""
    state = start(graph, today)
    for d in decisions:
        if d.verdict:
            producer, consumer = state.unit_of(d.producer), state.unit_of(d.consumer)
            beside = d.action in ("join", "batch")
            if producer is consumer or (not beside and consumer not in state.users(producer)):
                raise Invalid(
                    f"{d.consumer} does not read {d.producer} at this point: the log is of another graph"
                )
            apply(state, d.action, producer, consumer)
    return state


def repeated(log: Log, count: int, today: bool) -> State:
    """The state that the first entries of a log lead to."""
    state = start(log.graph, today)
    for _, producer, consumer, _, action in log.entries[:count]:
        if action:
            apply(state, action, state.maker[producer], state.maker[consumer])
    return state


def counts(decisions: Sequence[Decision]) -> dict[str, int]:
    """How often each pass gave each reason."""
    found = Counter(f"{d.stage} {d.code}" for d in decisions)
    return dict(sorted(found.items()))


def as_data(decision: Decision) -> dict[str, object]:
    """A decision for JSON; `from_data` reads it back."""
    data: dict[str, object] = {
        "pass": decision.stage,
        "producer": decision.producer,
        "consumer": decision.consumer,
        "verdict": "fused" if decision.verdict else "refused",
        "code": decision.code,
    }
    extra = {
        "detail": decision.detail,
        "numbers": {name: round(value, 4) for name, value in decision.numbers},
        "line": decision.line,
        "action": decision.action,
    }
    return data | {name: value for name, value in extra.items() if value}


def from_data(data: Mapping[str, object]) -> Decision:
    """The decision that `as_data` wrote."""
    numbers = data.get("numbers", {})
    try:
        return Decision(
            str(data["pass"]),
            str(data["producer"]),
            str(data["consumer"]),
            data["verdict"] == "fused",
            str(data["code"]),
            str(data.get("detail", "")),
            tuple((str(k), float(v)) for k, v in dict(numbers).items()),  # type: ignore[call-overload]
            str(data.get("line", "")),
            str(data.get("action", "")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Invalid(f"this is no decision of a fusion log: {json.dumps(data)[:200]}") from error
