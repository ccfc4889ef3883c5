"""Where each value of an instance graph is computed: before all loops, or in which of them.

A value belongs into a loop if it depends on the loop's index or on a state that the loop carries; all
else is invariant and stays outside (hoisted). The loops that a value depends on must be nested in each
other; a graph where two of them are not is `Infeasible`, and the scheduler cuts the program elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cleave.errors import Infeasible
from cleave.ir.dims import Index
from cleave.schedule.values import Graph, LoopPlan, ResultOf, StateOf, Value, Work, drive


@dataclass(frozen=True, slots=True)
class Places:
    """The innermost loop of each value (None: outside all), and the loop around each loop."""

    home: dict[Value, LoopPlan | None]
    around: dict[LoopPlan, LoopPlan | None]

    def chain(self, loop: LoopPlan | None) -> tuple[LoopPlan, ...]:
        """The loop and those around it, innermost first."""
        found: list[LoopPlan] = []
        while loop is not None:
            found.append(loop)
            loop = self.around[loop]
        return tuple(found)

    def deepest(self, value: Value, loops: Iterable[LoopPlan]) -> LoopPlan | None:
        """The innermost of a value's loop and other loops around it."""
        found = self.home[value]
        for loop in loops:
            if len(self.chain(loop)) > len(self.chain(found)):
                found = loop
        return found


class _Placer:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._loop_of: dict[Index, LoopPlan] = {loop.index: loop for loop in graph.loops}
        self._values: dict[Value, frozenset[Index]] = {}
        self._loops: dict[LoopPlan, frozenset[Index]] = {}
        self._open: set[LoopPlan] = set()

    def value(self, value: Value) -> Work[frozenset[Index]]:
        """The indices of the loops that a value depends on."""
        known = self._values.get(value)
        if known is not None:
            return known
        found = {i for i in value.axes if i in self._loop_of}
        if isinstance(value.op, StateOf):
            found.add(self._graph.slots[value.op.slot].loop.index)
        elif isinstance(value.op, ResultOf):
            found |= yield self.loop(self._graph.slots[value.op.slot].loop)
        else:
            # A reduction over a loop's tile depends on the loop, though its axes do not show it.
            for arg in value.args:
                found |= yield self.value(arg)
        self._values[value] = frozenset(found)
        return self._values[value]

    def loop(self, loop: LoopPlan) -> Work[frozenset[Index]]:
        """The indices of the loops that a loop runs in."""
        known = self._loops.get(loop)
        if known is not None:
            return known
        if loop in self._open:
            raise Infeasible(f"the loop over {loop.index} needs its own result")
        self._open.add(loop)
        found = set(loop.outer)
        for slot in loop.slots:
            assert slot.init is not None and slot.step is not None
            found |= yield self.value(slot.init)
            found |= yield self.value(slot.step)
        found.discard(loop.index)
        self._open.discard(loop)
        self._loops[loop] = frozenset(found)
        return self._loops[loop]


def place(graph: Graph) -> Places:
    """Find the loop of every value; `Infeasible` where loops do not nest."""
    placer = _Placer(graph)
    inside = {loop: drive(placer.loop(loop)) for loop in graph.loops}
    by_index = {loop.index: loop for loop in graph.loops}
    closed: dict[LoopPlan, frozenset[Index]] = {}

    def close(loop: LoopPlan, path: tuple[LoopPlan, ...] = ()) -> frozenset[Index]:
        if loop in path:
            raise Infeasible(f"the loops over {loop.index} and {path[-1].index} are each inside the other")
        if loop not in closed:
            total = set(inside[loop])
            for index in inside[loop]:
                total |= close(by_index[index], (*path, loop))
            closed[loop] = frozenset(total)
        return closed[loop]

    def innermost(indices: frozenset[Index], what: str) -> LoopPlan | None:
        total = set(indices)
        for index in indices:
            total |= close(by_index[index])
        if not total:
            return None
        deepest = max((by_index[i] for i in total), key=lambda loop: (len(close(loop)), loop.index.number))
        if total - close(deepest) - {deepest.index}:
            names = ", ".join(str(i) for i in sorted(total, key=lambda i: i.number))
            raise Infeasible(f"{what} needs the loops over {names}, which are not nested")
        return deepest

    around = {loop: innermost(frozenset(inside[loop]), f"the loop over {loop.index}") for loop in graph.loops}
    home = {v: innermost(drive(placer.value(v)), f"{v.label or v.key}") for v in graph.values}
    return Places(home, around)
