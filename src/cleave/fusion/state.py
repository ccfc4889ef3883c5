"""The state of a plan in the making: all units, who makes and who reads each value.

Fusing P into C copies P's members into C, and P goes once nothing reads it, so a vertex may be a member of
several units (*duplicated*) but its value is made by one unit at most. A state changes only through `fuse`,
`absorb`, `join` and `keep_rows`, and `drop` of what nothing needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cleave.errors import Bug, Invalid
from cleave.fusion.graph import Graph, sorted_by_need
from cleave.fusion.units import INPUT, ROWS, Unit


@dataclass(slots=True)
class State:
    """All units of a graph, changed only by `fuse`, `absorb` and `join`."""

    graph: Graph
    today: bool = False
    """Whether its units count uses as today's XLA does."""
    units: dict[int, Unit] = field(default_factory=dict[int, Unit])
    maker: dict[int, Unit] = field(default_factory=dict[int, Unit])
    readers: dict[int, dict[int, None]] = field(default_factory=dict[int, "dict[int, None]"])
    results: frozenset[int] = frozenset()
    version: int = 0
    formed: int = 0
    known: dict[object, dict[int, dict[int, Any]]] = field(
        default_factory=dict[object, "dict[int, dict[int, Any]]"]
    )
    """What passes keep of edges for the next run, by what it rests on."""
    order: tuple[int, list[Unit]] = (-1, [])
    """The last post order, with the version that it is of."""
    reach: tuple[int, dict[int, int], list[int]] = (-1, {}, [])
    """What `multi_output.Reach` starts from, with the version that it is of."""
    tupled: bool = field(init=False, default=False)
    """Whether the results meet in a tuple, which no kernel makes."""

    def __post_init__(self) -> None:
        self.tupled = self.graph.root is None

    def unit_of(self, name: str) -> Unit:
        """The unit that makes the value of a name."""
        unit = self.maker.get(self.graph.named(name).number)
        if unit is None:
            raise Invalid(f"no unit makes {name} at this point: the log is of another graph or another plan")
        return unit

    def users(self, unit: Unit, most: int = 0) -> list[Unit]:
        """The units that read a result of a unit, in order; the first `most`, if it is given."""
        outputs, units = unit.outputs, self.units
        if len(outputs) == 1:
            keys = self.readers[outputs[0]]
            return [units[key] for key in (islice(keys, most) if most else keys)]
        found: dict[int, None] = {}
        for output in unit.outputs:
            found.update(self.readers[output])
        return [units[key] for key in (islice(found, most) if most else found)]

    def is_read(self, unit: Unit) -> bool:
        """Whether a unit reads it."""
        readers = self.readers
        for output in unit.outputs:  # noqa: SIM110  (called for every unit of every order)
            if readers[output]:
                return True
        return False

    def is_result(self, unit: Unit) -> bool:
        """Whether one of its values is a result of the graph."""
        if len(unit.outputs) == 1:
            return unit.outputs[0] in self.results
        return not self.results.isdisjoint(unit.outputs)

    def in_tuple(self, unit: Unit) -> bool:
        """Whether one of its values goes into the tuple of results."""
        return self.tupled and self.is_result(unit)

    def is_root(self, unit: Unit) -> bool:
        """Whether it makes the only result."""
        return not self.tupled and self.is_result(unit)

    def count_users(self, unit: Unit) -> int:
        """Units that read it, and the tuple of results."""
        if len(unit.outputs) == 1:
            output = unit.outputs[0]
            return len(self.readers[output]) + (self.tupled and output in self.results)
        found: dict[int, None] = {}
        for output in unit.outputs:
            found.update(self.readers[output])
        return len(found) + (self.tupled and not self.results.isdisjoint(unit.outputs))

    def is_used(self, unit: Unit) -> bool:
        """Whether a unit reads it, or the tuple of results."""
        return self.is_read(unit) or (self.tupled and not self.results.isdisjoint(unit.outputs))

    def real_users(self, number: int) -> int:
        """Operations that read a value, members of groups counted one by one."""
        return sum(len(self.units[k].inner[number]) for k in self.readers[number]) + (
            number in self.results and self.tupled
        )

    def operands(self, unit: Unit) -> list[Unit]:
        """The units that make what a unit reads, each once, in order of reading."""
        maker = self.maker
        if len(unit.operands) < 2:
            return [maker[o] for o in unit.operands]
        return list(dict.fromkeys([maker[o] for o in unit.operands]))

    # ------------------------------------------------------------ changes

    def wrap(self, unit: Unit) -> None:
        """Make a vertex a group of its own."""
        if not unit.kind:
            unit.kind = unit.natural_kind()
            if unit.root.opcode == "reduce":
                unit.forget()
            else:  # uses of anything else do not depend on the kind
                unit.version += 1

    def fuse(self, producer: Unit, consumer: Unit) -> None:
        """Copy the producer into the consumer, and drop it if nothing reads it any more."""
        was = consumer.kind
        self._take(producer, consumer)
        kind = consumer.natural_kind()
        if kind != was and was != ROWS:
            self._rekind(consumer, kind if not was or kind == INPUT else was)
        if not self.is_read(producer) and not self.is_result(producer):
            self.drop(producer)

    def absorb(self, producer: Unit, consumer: Unit) -> None:
        """Join a producer with one of its consumers; the values of both are results of the kernel."""
        self._take(producer, consumer)
        self._unite(producer, consumer)

    def join(self, left: Unit, right: Unit, horizontal: bool = False) -> None:
        """Join two units that do not depend on each other."""
        self._take(right, left)
        self._unite(right, left)
        if horizontal:
            left.horizontal, left.kind = True, INPUT

    def _unite(self, gone: Unit, kept: Unit) -> None:
        outputs: list[int] = []
        made = gone.outputs
        self.drop(gone)
        for output in made:
            self.readers[output].pop(kept.key, None)
            if self.readers[output] or output in self.results or output not in kept.inner:
                self.maker[output] = kept
                outputs.append(output)
        kept.outputs += outputs
        kept.forget()
        if kept.kind != ROWS:
            self._rekind(kept, kept.natural_kind())

    def _rekind(self, unit: Unit, kind: str) -> None:
        if unit.kind != kind:
            unit.kind = kind
            unit.forget()

    def keep_rows(self, producer: Unit, consumer: Unit, rows: int) -> None:
        """Join a producer with a consumer in a kernel that keeps whole rows of both."""
        consumer.kind, consumer.row_count = ROWS, rows
        self.absorb(producer, consumer)

    def _take(self, source: Unit, target: Unit) -> None:
        self.version += 1
        readers, key = self.readers, target.key
        if len(source.members) == 1 and source.outputs[0] not in target.members:
            (number,) = source.members
            target.add(number)
            readers[number].pop(key, None)
            for v in self.graph.vertices[number].operands:
                if v.number in target.operands:
                    readers[v.number][key] = None
            return
        before = dict.fromkeys(target.operands)
        new = [m for m in source.members if m not in target.members]
        for member in sorted(new, reverse=True) if len(new) > 1 else new:
            target.add(member)
        after = target.operands
        for operand in before:
            if operand not in after:
                readers[operand].pop(key, None)
        for operand in after:
            if operand not in before:
                readers[operand][key] = None

    def drop(self, unit: Unit) -> None:
        """Forget a unit whose values nothing needs."""
        for operand in unit.operands:
            self.readers[operand].pop(unit.key, None)
        for output in unit.outputs:
            self.maker.pop(output, None)
        del self.units[unit.key]

    # ------------------------------------------------------------ orders

    def post_order(self) -> list[Unit]:
        """Units, operands before users, depth first from the results and then from what nothing reads."""
        if self.order[0] != self.version:
            self.order = (self.version, self._post_order())
        return list(self.order[1])

    def _post_order(self) -> list[Unit]:
        maker = self.maker
        ends = [maker[o.number] for o in self.graph.outputs]
        ends += [u for u in self.units.values() if not self.is_read(u)]
        seen: set[int] = set()
        order: list[Unit] = []
        for end in ends:
            if end.key in seen:
                continue
            seen.add(end.key)
            unit, rest = end, iter(end.operands)
            stack: list[tuple[Unit, Iterator[int]]] = []
            while True:
                for operand in rest:
                    above = maker[operand]
                    if above.key not in seen:
                        seen.add(above.key)
                        if above.operands:
                            stack.append((unit, rest))
                            unit, rest = above, iter(above.operands)
                            break
                        order.append(above)
                else:
                    order.append(unit)
                    if not stack:
                        break
                    unit, rest = stack.pop()
        return order

    def sweep(self) -> Iterator[Unit]:
        """Units in reverse post order as it was at the start, those that are gone left out."""
        for unit in reversed(self.post_order()):
            if unit.key in self.units:
                yield unit


def start(graph: Graph, today: bool = False) -> State:
    """The state before any pass: every vertex alone, except for groups that the graph comes with. Uses are
    counted as today's XLA does, or as it did before."""
    state = State(graph, today, results=frozenset(o.number for o in graph.outputs))
    state.readers = {v.number: {} for v in graph.vertices}
    inside: set[int] = set()
    for formed in graph.formed:
        made = {o.number for o in formed.outputs}
        inside |= {m.number for m in formed.members} - made
        _new(state, [m.number for m in formed.members], [o.number for o in formed.outputs], formed.kind)
    grouped = {o.number for f in graph.formed for o in f.outputs}
    for v in graph.vertices:
        if v.number in grouped:
            continue
        outside = any(u not in inside and u not in grouped for u in graph.users[v.number])
        if v.number in inside and not outside and v not in graph.outputs and not _read(state, v.number):
            continue
        _new(state, [v.number], [v.number], "")
    for unit in state.units.values():
        for operand in unit.operands:
            state.readers[operand][unit.key] = None
    _verify(state)
    return state


def _read(state: State, number: int) -> bool:
    return any(number in unit.operands for unit in state.units.values())


def _new(state: State, members: Iterable[int], outputs: list[int], kind: str) -> None:
    unit = Unit(state.graph, state.formed, {}, outputs, kind, state.today)
    state.formed += 1
    for member in sorted(members, reverse=True):
        unit.add(member)
    state.units[unit.key] = unit
    for output in outputs:
        if output in state.maker:
            raise Invalid(f"two groups make {state.graph.vertices[output].name}")
        state.maker[output] = unit


def _verify(state: State) -> None:
    if not state.graph.formed:
        return
    wanted: dict[str, list[str]] = {}
    for unit in state.units.values():
        for operand in unit.operands:
            if operand not in state.maker:
                name = state.graph.vertices[operand].name
                raise Invalid(f"group {unit.name} reads {name}, which is inside of another group")
        wanted[unit.name] = [state.maker[o].name for o in unit.operands]
    sorted_by_need(wanted, wanted, f"graph {state.graph.name}, with its groups,")


def check(state: State) -> None:
    """Raise `Bug` unless every value that is read is made, and no two units wait for each other."""
    wanted: dict[str, list[str]] = {}
    for unit in state.units.values():
        missing = [o for o in unit.operands if o not in state.maker]
        if missing:
            raise Bug(f"unit {unit.name} reads {state.graph.vertices[missing[0]].name}, which no unit makes")
        wanted[unit.name] = [state.maker[o].name for o in unit.operands]
    missing = [o for o in state.results if o not in state.maker]
    if missing:
        raise Bug(f"no unit makes the result {state.graph.vertices[missing[0]].name}")
    try:
        sorted_by_need(wanted, wanted, "the plan")
    except Invalid as error:
        raise Bug(str(error)) from error
