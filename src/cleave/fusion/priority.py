"""Priority fusion: the edge that saves the most time first (xla-fusion.md, section 2.10; X26).

A producer goes into all of its users that are no bitcasts, or into none. Its key is the time that this saves
by today's model; after each step the keys of what changed are computed afresh. Ties go to the later vertex.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from cleave.fusion.cost import is_reduction_epilogue, ticks, time_alone, time_with
from cleave.fusion.decisions import Log, Numbers, Verdict, apply
from cleave.fusion.edges import Why, budget, ir_size, kinds, known, not_fusible
from cleave.fusion.opcodes import (
    fusible_consumer,
    fusible_producer,
    input_fusible,
    keeps_width,
    loop_fusible,
    tiled_reduction,
)
from cleave.fusion.repeats import bring_again, merge_repeats
from cleave.fusion.rules import Rules
from cleave.fusion.state import State
from cleave.fusion.units import INPUT, LOOP, Unit

STAGE = "priority"
SMALL_REDUCTION = 16
EMPTY = Verdict("DUP_FORBIDDEN", "it has no elements and many users, which would gain nothing from copies")
MOST_READERS = 4
"""Users that a value without elements goes into, at most. XLA has dropped such values before this pass; here,
where their copies cost nothing and each seems to save a launch, kernels would grow without end."""
_UPDATES = frozenset({"scatter", "dynamic-update-slice"})
"""What takes a producer in only if that does not touch what they overwrite."""


def priority(state: State, rules: Rules, log: Log) -> bool:
    """Run the pass; whether anything changed."""
    queue = _Queue(state, rules, log)
    changed = False
    while (unit := queue.pop()) is not None:
        users = targets(state, unit)
        numbers: Numbers = (("saved us", queue.saved[unit.key] * 1e6),)
        groups = {user.key for user in users if user.kind}
        for user in users:
            log.accept(STAGE, "fuse", unit, user, numbers)
            bring_again(user, unit, rules)
            apply(state, "fuse", unit, user)
        changed = True
        queue.renew(unit, users, groups)
    for unit in state.units.values():
        merge_repeats(unit)
    return _constants(state, rules, log) or changed


def fusible_bitcast(unit: Unit) -> bool:
    """A lone bitcast that keeps the width of elements: it costs nothing where it is read."""
    return not unit.is_group and unit.root.opcode == "bitcast" and keeps_width(unit.root)


def targets(state: State, unit: Unit) -> list[Unit]:
    """The users that a producer would go into."""
    return [u for u in state.users(unit) if u.root.opcode != "bitcast" or not fusible_bitcast(u)]


_Edge = list[Any]
"""What is known of an edge for one state (two versions) of its two units: both versions, a reason against
(`Why`), and the seconds that it saves, once they are asked for."""
_Edges = dict[int, dict[int, _Edge]]
"""By the keys of producers and of their users."""


@dataclass(slots=True)
class _Key:
    """What a producer's key was made of: seconds saved, its own time, and what each user was counted with.
    XLA renews of a queued key only what a step touched, and so does `_Queue.renew`."""

    saved: float
    alone: float
    users: dict[int, float]


class _Queue:
    """Producers by key. Entries that a later change made stale are skipped."""

    def __init__(self, state: State, rules: Rules, log: Log) -> None:
        self.state, self.rules, self.log = state, rules, log
        self.made = state.graph.made
        self.heap: list[tuple[float, int, int, int]] = []
        self.stamp: dict[int, int] = {}
        self.saved: dict[int, float] = {}
        self.queued: dict[int, _Key] = {}
        """Those that stand in the queue."""
        self.bitcasts = any(v.opcode == "bitcast" for v in state.graph.vertices)
        # How much goes side by side plays no part here, nor what several results need.
        basis = replace(rules, batch=0, batch_bytes=0, batch_elements=0, batch_members=0, concat_kernel=True)
        self.edges: _Edges = state.known.setdefault(basis, {})
        for unit in list(state.units.values()):
            self.put(unit)

    def pop(self) -> Unit | None:
        heap, stamps, units = self.heap, self.stamp, self.state.units
        while heap:
            _, _, key, stamp = heapq.heappop(heap)
            if stamps[key] == stamp and key in units:
                stamps[key] += 1
                self.queued.pop(key, None)
                return units[key]
        return None

    def put(self, unit: Unit, touched: list[Unit] | None = None, gone: Sequence[int] = ()) -> None:
        """Key a producer afresh; of a key that is queued, only what the users touched in a step add, instead
        of those that are gone."""
        key, state = unit.key, self.state
        self.stamp[key] = stamp = self.stamp.get(key, 0) + 1
        before = self.queued.pop(key, None)
        if not unit.kind and unit.root.opcode in ("parameter", "constant"):
            return
        result = state.is_result(unit)
        if result and not state.tupled:
            return
        if self.bitcasts:
            users = targets(state, unit)
        else:
            users = state.users(unit, most=1 if result else 0)
        if not users:
            return
        if result:
            if not self.log.says(STAGE, unit, users[0], "NOT_FUSIBLE"):
                self.log.refuse(STAGE, unit, users[0], not_fusible(f"{unit.name} is a result"))
            return
        if len(users) > MOST_READERS and not unit.root.elements:
            self.log.refuse(STAGE, unit, users[0], EMPTY)
            return
        if not self._allowed(unit, users):
            return
        found = self._renewed(unit, before, touched, gone) if before and touched else self._gain(unit, users)
        gain = inf if self.bitcasts and fusible_bitcast(unit) else found.saved
        self.saved[key] = gain
        if gain < 0:
            self.log.refuse(STAGE, unit, users[0], Verdict("SLOWER", "", (("saved us", gain * 1e6),)))
            return
        self.queued[key] = found
        number = self.made.get(unit.root.number, unit.root.number)
        heapq.heappush(self.heap, (-gain, -number, key, stamp))

    def _allowed(self, unit: Unit, users: list[Unit]) -> bool:
        """Whether all users take a producer in."""
        version = unit.version
        known = self.edges.get(unit.key)
        if known is None:
            known = self.edges[unit.key] = {}
        for user in users:
            key = user.key
            found = known.get(key)
            if found is None or found[0] != version or found[1] != user.version:
                found = known[key] = [version, user.version, edge(self.state, self.rules, unit, user), None]
            if found[2] is not None:
                self.log.refuse(STAGE, unit, user, found[2])
                return False
        return True

    def _gain(self, unit: Unit, users: list[Unit]) -> _Key:
        """Seconds saved by taking a producer into its users. XLA counts the bitcasts that read it, too,
        though nothing goes into them."""
        rules = self.rules
        alone, gain, each = time_alone(unit, rules), 0.0, dict[int, float]()
        if self.bitcasts:
            users = self.state.users(unit)
        known = self.edges[unit.key]
        for user in users:
            key = user.key
            found = known.get(key)
            saved = found[3] if found is not None else None
            each[key] = saved = self._saves(unit, user) if saved is None else saved
            gain += saved
        return _Key(ticks(gain + (rules.device.launch + alone)), alone, each)

    def _saves(self, unit: Unit, user: Unit) -> float:
        """Seconds that one user saves, the launch of the producer aside."""
        found = self.edges[unit.key].get(user.key)
        if found is None:  # a bitcast, which nothing goes into
            return time_alone(user, self.rules) - time_with(unit, user, self.rules)
        if found[3] is None:
            found[3] = time_alone(user, self.rules) - time_with(unit, user, self.rules)
        return found[3]

    def _renewed(self, unit: Unit, key: _Key, touched: list[Unit], gone: Sequence[int]) -> _Key:
        """A queued key, with what has changed of its users in a step."""
        alone = time_alone(unit, self.rules)
        gain = key.saved + (alone - key.alone)
        for number in gone:
            gain -= key.users.pop(number, 0.0)
        known, each = self.edges[unit.key], key.users
        for user in touched:
            found = known.get(user.key)
            saved = found[3] if found is not None else None
            each[user.key] = saved = self._saves(unit, user) if saved is None else saved
            gain += saved
        key.saved, key.alone = ticks(gain), alone
        return key

    def renew(self, producer: Unit, users: list[Unit], groups: set[int]) -> None:
        """Key what a step changed: the new groups, what they read, and the producer if it is still there.
        `groups` are the users that were groups before."""
        changed: dict[Unit, list[Unit]] = {}
        maker, queued = self.state.maker, self.queued
        for user in users:
            if user not in changed:
                changed[user] = []
            if user.key not in groups:
                queued.pop(user.key, None)
            for operand in user.operands:
                unit = maker[operand]
                touched = changed.get(unit)
                if touched is None:
                    changed[unit] = [user]
                elif not touched or touched[-1] is not user:
                    touched.append(user)
        if producer.key in self.state.units:
            changed.setdefault(producer, [])
        gone = [user.key for user in users] + [producer.key]
        for user in users:
            if (key := queued.get(user.key)) is not None:
                # What it was counted with is of its older self, and all that XLA forgets.
                key.users = {n: saved for n, saved in key.users.items() if n in gone}
        for unit, touched in changed.items():
            self.put(unit, touched, gone)


def fusible(unit: Unit) -> bool:
    """What today's pass takes: groups, loops, and what roots an input kernel."""
    v = unit.root
    return (
        unit.is_group
        or loop_fusible(v)
        or input_fusible(v)
        or v.opcode in ("iota", "constant")
        or (v.opcode == "reduce" and len(v.operands) == 2)
    )


def edge(state: State, rules: Rules, producer: Unit, consumer: Unit) -> Why:
    """The checks of an edge, in order."""
    gives, takes = producer.gate, consumer.gate
    if gives[0] != producer.version:
        gives = _gate(producer)
    if takes[0] != consumer.version:
        takes = _gate(consumer)
    if gives[1] and takes[2]:  # most edges of most graphs
        if not producer.kind and not consumer.kind and not producer.odd and not consumer.odd:
            return None
        return budget(rules, producer, consumer, vertical=True) or ir_size(rules, producer, consumer)
    for unit in (producer, consumer):
        if unit.kind or unit.root.plain:
            continue
        if (why := known(state, unit)) is not None:
            return why
        if not fusible(unit) and not (unit is consumer and unit.root.opcode == "reduce"):
            return not_fusible(f"{unit.root.opcode} is no loop or input operation")
    if not consumer.kind and consumer.root.opcode == "bitcast":
        return Verdict("BITCAST", consumer.name)
    return (
        _scatter(producer, consumer)
        or _reductions(producer, consumer)
        or kinds(rules, producer, consumer)
        or budget(rules, producer, consumer, vertical=True)
        or ir_size(rules, producer, consumer)
    )


def _gate(unit: Unit) -> tuple[int, bool, bool]:
    """Whether nothing but size can stand against a unit as a producer, and as a consumer, whatever the other
    side is."""
    v = unit.root
    gives = takes = bool(unit.kind) or v.plain
    if not takes and not v.effect and v.opcode not in ("rng", "constant", "bitcast"):
        gives = fusible(unit) and (fusible_producer(v, True) or input_fusible(v))
        takes = (fusible(unit) or v.opcode == "reduce") and fusible_consumer(v)
    if unit.reduced >= SMALL_REDUCTION or unit.reductions or unit.scatters or len(unit.outputs) > 1:
        gives = False
    unit.gate = (unit.version, gives and v.opcode != "constant", takes and v.opcode not in _UPDATES)
    return unit.gate


def _scatter(producer: Unit, consumer: Unit) -> Why:
    scatters = producer.root.opcode == "scatter"
    if scatters or (producer.kind == INPUT and producer.leading().opcode == "scatter"):
        return Verdict("SCATTER", f"{producer.name} scatters")
    root = consumer.root
    if root.opcode == "scatter":
        target = root.operands[0]
        if target.number in producer.outputs or target.number in producer.operands:
            return Verdict("SCATTER", f"{producer.name} is or reads the buffer of {root.name}")
    return None


def _reductions(producer: Unit, consumer: Unit) -> Why:
    if not producer.reduced and not producer.reductions:
        return None
    size = min(producer.reduced, consumer.reduced)
    if size >= SMALL_REDUCTION:
        return Verdict("TWO_REDUCTIONS", "", (("elements", size), ("limit", SMALL_REDUCTION)))
    if (
        producer.reductions
        and producer.kind != LOOP
        and tiled_reduction(producer.leading())
        and not is_reduction_epilogue(producer, consumer)
    ):
        return Verdict("EPILOGUE", f"{consumer.name} is more than a chain behind {producer.name}")
    return None


def _constants(state: State, rules: Rules, log: Log) -> bool:
    """Constants of one element go into the groups that read them."""
    changed = False
    for unit in list(state.units.values()):
        if unit.root.opcode != "constant" or unit.is_group or unit.root.elements > 1:
            continue
        for user in state.users(unit):
            why = (
                not_fusible(f"{user.root.opcode} is opaque")
                if not fusible(user)
                else edge_constant(unit, user)
            )
            if why is None:
                log.accept(STAGE, "fuse", unit, user)
                apply(state, "fuse", unit, user)
                changed = True
    return changed


def edge_constant(unit: Unit, user: Unit) -> Why:
    """A constant may go into a group, but not into the buffer of a scatter."""
    return (None if user.is_group else Verdict("CONST")) or _scatter(unit, user)
