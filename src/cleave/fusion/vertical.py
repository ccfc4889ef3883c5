"""Vertical (instruction) fusion, with and without duplication: X22 and X23 (xla-fusion.md, section 2.5).

Consumers first: each unit takes in its operands, latest in order first, one at a time, and is looked at
again. With duplication, a set of producers that must not be duplicated is computed beforehand.
"""

from __future__ import annotations

from cleave.fusion.decisions import Log, Verdict, apply
from cleave.fusion.edges import (
    Why,
    budget,
    coalescing,
    code_dup,
    duplication,
    heavy_edge,
    kinds,
    known,
    not_fusible,
    reuse,
)
from cleave.fusion.opcodes import base_fusible, is_scalar, true_rank
from cleave.fusion.rules import Rules
from cleave.fusion.state import State
from cleave.fusion.units import Unit

LASTING = frozenset({"ROOT", "NOT_FUSIBLE", "DUP_GLOBAL", "REUSE_EXPENSIVE", "UNCOALESCED", "HEAVY", "SMEM"})
"""Reasons that stay true while the consumer grows."""


def vertical(state: State, rules: Rules, log: Log, duplicate: bool) -> bool:
    """Run the pass; whether anything changed."""
    stage = "vertical-dup" if duplicate else "vertical"
    order = state.post_order()
    forbidden = _forbidden(state, rules, order) if duplicate else frozenset[int]()
    place = {u.key: n for n, u in enumerate(order)}
    changed = False
    while order:
        unit = order.pop()
        if unit.key not in state.units or not _takes(state, rules, unit):
            continue
        settled: set[int] = set()
        while True:
            producer = _step(state, rules, log, unit, place, (forbidden, settled), stage, duplicate)
            if producer is None:
                break
            place[unit.key] = len(place)
            changed = True
    return changed


def _takes(state: State, rules: Rules, unit: Unit) -> bool:
    return bool(unit.kind) or unit.root.plain or base_fusible(unit.root, state.count_users(unit))


def _step(
    state: State,
    rules: Rules,
    log: Log,
    unit: Unit,
    place: dict[int, int],
    barred: tuple[frozenset[int], set[int]],
    stage: str,
    duplicate: bool,
) -> Unit | None:
    """Fuse the first operand that may be, and return it."""
    forbidden, settled = barred
    operands = state.operands(unit)
    if len(operands) > 1:
        operands.sort(key=lambda u: -place[u.key])
    for producer in operands:
        if producer.outputs[0] in settled or producer.root.opcode == "parameter":
            continue
        why: Why = None
        if not _takes(state, rules, producer):
            why = not_fusible(f"{producer.root.opcode} is opaque")
        elif producer.key in forbidden:
            why = edge(state, rules, producer, unit, duplicate) or Verdict("DUP_GLOBAL")
        else:
            why = edge(state, rules, producer, unit, duplicate) or _late(state, rules, producer, unit)
        if why is None:
            log.accept(stage, "fuse", producer, unit)
            apply(state, "fuse", producer, unit)
            return producer
        log.refuse(stage, producer, unit, why)
        if why.code in LASTING:
            settled.add(producer.outputs[0])
    return None


def edge(state: State, rules: Rules, producer: Unit, consumer: Unit, duplicate: bool) -> Why:
    """The edge rule but for what depends on how large the consumer has become."""
    if rules.base:
        return duplication(state, rules, producer, consumer, duplicate)
    if producer.kind:
        return not_fusible(f"{producer.name} is a group")
    return (
        reuse(rules, producer, consumer)
        or coalescing(producer, consumer)
        or known(state, producer)
        or kinds(rules, producer, consumer)
        or heavy_edge(producer, consumer)
        or duplication(state, rules, producer, consumer, duplicate)
    )


def _late(state: State, rules: Rules, producer: Unit, consumer: Unit) -> Why:
    if rules.base:
        return None
    why = budget(rules, producer, consumer, vertical=True)
    if why is None and consumer.kind:
        why = code_dup(state, rules, producer, consumer)
    return why


# ---------------------------------------------------------------- what must not be duplicated


def _forbidden(state: State, rules: Rules, order: list[Unit]) -> frozenset[int]:
    """The keys of producers that cannot go into all of their users and whose copies would read more."""
    place = {u.key: n for n, u in enumerate(order)}
    above: list[int] = []
    for n, unit in enumerate(order):
        mask = 1 << n
        for operand in state.operands(unit):
            mask |= above[place[operand.key]]
        above.append(mask)
    found: set[int] = set()
    memo: dict[tuple[int, int], bool] = {}
    for unit in reversed(order):
        if unit.root.opcode in ("parameter", "constant") or _reads_little(state, unit):
            continue
        if not (_takes(state, rules, unit) and _joins_all(state, rules, unit, place, above, found, memo)):
            found.add(unit.key)
    return frozenset(found)


def _reads_little(state: State, unit: Unit) -> bool:
    """At most one operand that counts, or operands no larger than the result."""
    v = unit.root
    rank, large, total = true_rank(v), 0, 0
    for operand in state.operands(unit):
        o = operand.root
        total += o.elements
        if o.opcode in ("broadcast", "iota") or (o.opcode == "constant" and is_scalar(o)):
            continue
        large += true_rank(o) >= rank
    return large <= 1 or total <= v.elements


def _joins_all(
    state: State,
    rules: Rules,
    producer: Unit,
    place: dict[int, int],
    above: list[int],
    found: set[int],
    memo: dict[tuple[int, int], bool],
) -> bool:
    """Whether a producer can go into every user along every path between them."""
    if state.in_tuple(producer):
        return False
    mine = place[producer.key]
    waiting = state.users(producer)
    seen = {u.key for u in waiting}
    while waiting:
        consumer = waiting.pop()
        if not _takes(state, rules, consumer):
            return False
        for operand in state.operands(consumer):
            if not above[place[operand.key]] >> mine & 1:
                continue
            pair = (operand.key, consumer.key)
            if pair not in memo:
                memo[pair] = edge(state, rules, operand, consumer, True) is None
            if operand.key in found or not memo[pair]:
                return False
            if operand is not producer and operand.key not in seen:
                seen.add(operand.key)
                waiting.append(operand)
    return True
