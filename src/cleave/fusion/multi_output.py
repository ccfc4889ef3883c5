"""Multi-output fusion: siblings, then a producer with one of its consumers (xla-fusion.md, section 2.7).

One sweep in reverse post order. `Reach` answers whether two units depend on each other while they are merged.
"""

from __future__ import annotations

from cleave.fusion.cost import time_yesterday
from cleave.fusion.decisions import Log, Verdict, apply
from cleave.fusion.edges import (
    Why,
    budget,
    code_dup,
    concatenates,
    heavy_edge,
    ir_size,
    kinds,
    known,
    loop_shape,
    may_root,
    not_fusible,
    shapes,
)
from cleave.fusion.graph import Shape
from cleave.fusion.opcodes import is_scalar
from cleave.fusion.rules import Rules
from cleave.fusion.state import State
from cleave.fusion.units import INPUT, LOOP, Unit

STAGE = "multi-output"
CONCATENATES = not_fusible("a concatenation of few parts has a kernel of its own, with one result")
MOST_MERGES = 500
"""Merges after which reachability is computed afresh."""
SMALL_BYTES = 1024
"""Values below this are shared even if each side reads another part of them."""
MOST_PAIRS = 64
"""Siblings of one value that are compared with each other, at most."""


class Reach:
    """Which units lie below which. Bits are those of the last full computation; merges since then are
    followed one by one: `partner` is what a merged unit reaches as well."""

    def __init__(self, state: State) -> None:
        self.state = state
        self.refresh()

    def refresh(self) -> None:
        """Compute everything."""
        state = self.state
        self.partner: dict[int, int] = {}
        self.touched = self.merges = 0
        if state.reach[0] != state.version:
            state.reach = (state.version, *_computed(state))
        self.place = state.reach[1]
        self.above = list(state.reach[2])

    def depends(self, unit: Unit, on: Unit) -> bool:
        """Whether a unit needs another's value, directly or not."""
        target = self.place[on.key]
        mask = self.above[self.place[unit.key]]
        return bool(mask >> target & 1) or self._through(mask, target)

    def _through(self, mask: int, target: int) -> bool:
        """Whether merges lead from some units, given as bits, to another that is not among them."""
        touched, partner = self.touched, self.partner
        pending = mask & touched
        while pending:
            lowest = pending.bit_length() - 1
            more = partner[lowest]
            if more >> target & 1:
                return True
            new = more & ~mask
            mask |= more
            pending = (pending ^ 1 << lowest) | (new & touched) if new else pending ^ 1 << lowest
        return False

    def any_depends(self, units: list[Unit], on: Unit) -> bool:
        """Whether one of the units needs another's value."""
        place, above = self.place, self.above
        target = place[on.key]
        masks = [above[place[u.key]] for u in units]
        if any(mask >> target & 1 for mask in masks):
            return True
        return bool(self.touched) and any(self._through(m, target) for m in masks)

    def merge(self, kept: Unit, gone: Unit) -> None:
        """Note that two units are one from now on. Called before the change."""
        a, b = self.place[kept.key], self.place[gone.key]
        both = self.above[a] | self.above[b]
        for place in (a, b):
            self.partner[place] = self.partner.get(place, 0) | both
        self.touched |= 1 << a | 1 << b
        self.merges += 1
        self.above[a] = both

    def settle(self) -> None:
        """Compute everything, if many merges have gathered."""
        if self.merges >= MOST_MERGES:
            self.refresh()


def _computed(state: State) -> tuple[dict[int, int], list[int]]:
    """The place of each unit in post order, and for each place the places that its unit needs."""
    order, maker = state.post_order(), state.maker
    place = {u.key: n for n, u in enumerate(order)}
    above: list[int] = []
    for n, unit in enumerate(order):
        mask = 1 << n
        for operand in unit.operands:
            mask |= above[place[maker[operand].key]]
        above.append(mask)
    return place, above


def multi_output(state: State, rules: Rules, log: Log) -> bool:
    """Run the pass; whether anything changed."""
    reach = Reach(state)
    changed = False
    for unit in state.sweep():
        if unit.root.opcode == "constant":
            continue
        reach.settle()
        changed |= _siblings(state, rules, log, reach, unit)
        changed |= _with_consumer(state, rules, log, reach, unit)
    return changed


def _rank(unit: Unit) -> int:
    return -2 if unit.is_multi else -1 if unit.is_group else 0


# ---------------------------------------------------------------- siblings


def _siblings(state: State, rules: Rules, log: Log, reach: Reach, parent: Unit) -> bool:
    if is_scalar(parent.root) and (rules.today or parent.root.opcode == "constant"):
        return False
    users = state.users(parent)
    if len(users) < 2:
        return False
    changed = False
    classes: dict[tuple[object, ...], list[Unit]] = {}
    for unit in sorted(users, key=_rank):
        if concatenates(rules, unit):
            if unit is not users[0]:
                log.refuse(STAGE, users[0], unit, CONCATENATES)
        elif may_root(state, rules, unit):
            classes.setdefault(_loop_class(rules, unit), []).append(unit)
    if len(classes) > 1:
        a, b, *_ = [c[0] for c in classes.values()]
        log.refuse(STAGE, a, b, shapes(rules, a, b) or Verdict("SHAPE", "other siblings' loops"))
    for units in classes.values():
        changed |= _pairs(state, rules, log, reach, parent, units[:MOST_PAIRS])
    return changed


def _loop_class(rules: Rules, unit: Unit) -> tuple[object, ...]:
    """Siblings in different classes never agree; those in one may."""
    shape: Shape = loop_shape(unit)
    return (shape.elements,)


def _pairs(state: State, rules: Rules, log: Log, reach: Reach, parent: Unit, units: list[Unit]) -> bool:
    changed = False
    gone: set[int] = set()
    for i, left in enumerate(units):
        if left.key in gone:
            continue
        for right in units[i + 1 :]:
            if right.key in gone:
                continue
            why = _sibling(state, rules, reach, parent, left, right)
            if why is not None:
                log.refuse(STAGE, left, right, why)
                continue
            log.accept(STAGE, "join", left, right)
            reach.merge(left, right)
            gone.add(right.key)
            apply(state, "join", left, right)
            changed = True
    return changed


def _sibling(state: State, rules: Rules, reach: Reach, parent: Unit, left: Unit, right: Unit) -> Why:
    if not may_root(state, rules, left) or not may_root(state, rules, right):
        return not_fusible("no root of a kernel with several results")
    if reach.depends(left, right) or reach.depends(right, left):
        return Verdict("CYCLE", "one depends on the other")
    why = shapes(rules, left, right)
    if why is not None:
        return why
    if "dynamic-update-slice" in (left.root.opcode, right.root.opcode):
        return Verdict("IN_PLACE", "an update in place shares no kernel")
    if rules.epoch == "X22":
        kinds_of = [u.kind or (INPUT if u.natural_kind() == INPUT else LOOP) for u in (left, right)]
        if kinds_of[0] != kinds_of[1]:
            return not_fusible("a loop kernel beside one that follows its input")
    if rules.today and (why := _slices_apart(parent, left, right)) is not None:
        return why
    return budget(rules, left, right, vertical=False)


def _slices_apart(parent: Unit, left: Unit, right: Unit) -> Why:
    """Each side reads one slice of the shared value, which is no small one, and the slices have nothing in
    common."""
    if sum(parent.graph.vertices[o].bytes for o in parent.outputs) < SMALL_BYTES:
        return None
    ranges: list[list[tuple[int, int]]] = []
    for unit in (left, right):
        readers = [unit.graph.vertices[n] for o in parent.outputs for n in unit.inner.get(o, ())]
        if len(readers) != 1 or readers[0].opcode != "slice" or not readers[0].starts:
            return None
        s = readers[0]
        strides = s.strides or (1,) * len(s.starts)
        ends = [b + (d - 1) * k + 1 for b, d, k in zip(s.starts, s.shape.dims, strides, strict=True)]
        ranges.append(list(zip(s.starts, ends, strict=True)))
    apart = any(a[1] <= b[0] or b[1] <= a[0] for a, b in zip(*ranges, strict=True))
    return Verdict("OVERLAP") if apart else None


# ---------------------------------------------------------------- a producer with a consumer


def _with_consumer(state: State, rules: Rules, log: Log, reach: Reach, producer: Unit) -> bool:
    users = state.users(producer)
    if not users or (state.count_users(producer) == 1 and not users[0].is_multi):
        return False
    if producer.root.opcode == "parameter":
        return False
    why = _may_produce(state, rules, producer)
    fitting: list[Unit] = []
    for user in users:
        refusal = why or _consumer(state, rules, reach, producer, user)
        if refusal is None:
            fitting.append(user)
        else:
            log.refuse(STAGE, producer, user, refusal)
    if not fitting:
        return False
    consumer = min(fitting, key=_rank)
    log.accept(STAGE, "absorb", producer, consumer)
    reach.merge(consumer, producer)
    apply(state, "absorb", producer, consumer)
    return True


def _may_produce(state: State, rules: Rules, producer: Unit) -> Why:
    if producer.is_multi:
        return not_fusible(f"{producer.name} has several results already")
    if state.is_root(producer):
        return Verdict("ROOT")
    if producer.buffer() is not None:
        return Verdict("IN_PLACE", f"{producer.name} updates its operand in place")
    if producer.transposed:
        return Verdict("UNCOALESCED", f"{producer.name} changes the order in memory")
    if concatenates(rules, producer):
        return CONCATENATES
    return known(state, producer)


def _consumer(state: State, rules: Rules, reach: Reach, producer: Unit, consumer: Unit) -> Why:
    if not may_root(state, rules, consumer):
        return not_fusible(f"{consumer.name} is no root of a kernel with several results")
    why = kinds(rules, producer, consumer) or shapes(rules, producer, consumer)
    if why is not None:
        return why
    others = [o for o in state.operands(consumer) if o is not producer]
    if reach.any_depends(others, producer):
        return Verdict("CYCLE", f"{consumer.name} also needs a value made from {producer.name}")
    why = budget(rules, producer, consumer, vertical=False)
    if why is None and rules.epoch == "X22":
        why = heavy_edge(producer, consumer) or code_dup(state, rules, producer, consumer)
    if why is not None or rules.epoch == "X22":
        return why
    why = ir_size(rules, producer, consumer)
    if why is None:
        before, after = time_yesterday(rules, producer, [consumer], keeps=True)
        if after > before:
            why = Verdict("SLOWER", "", (("unfused us", before * 1e6), ("fused us", after * 1e6)))
    return why
