"""Horizontal fusion: kernels that share nothing, in one launch (xla-fusion.md, section 2.8; X22 and X23).

For each consumer, users first, its operands that only it reads are candidates. Loops of any size are
flattened, laid side by side and cut apart again; reductions of one shape become one kernel.
"""

from __future__ import annotations

from collections.abc import Callable

from cleave.fusion.decisions import Log, Verdict, apply
from cleave.fusion.edges import Why, budget, known, not_fusible, shapes
from cleave.fusion.graph import row_major
from cleave.fusion.opcodes import is_pointwise, tiled_reduction
from cleave.fusion.rules import Rules
from cleave.fusion.state import State
from cleave.fusion.units import LOOP, Unit


def horizontal_loop(state: State, rules: Rules, log: Log) -> bool:
    """Run the pass to its fixpoint; whether anything changed."""
    changed = False
    while _sweep(state, rules, log, _loops):
        changed = True
    return changed


def horizontal_input(state: State, rules: Rules, log: Log) -> bool:
    """Run the pass to its fixpoint; whether anything changed."""
    changed = False
    while _sweep(state, rules, log, _inputs):
        changed = True
    return changed


Batches = Callable[[State, Rules, Log, "list[Unit]", Unit | None], bool]


def _sweep(state: State, rules: Rules, log: Log, batches: Batches) -> bool:
    changed = False
    results: dict[int, Unit] = {}
    for output in state.graph.outputs if state.graph.root is None else ():
        unit = state.maker[output.number]
        results.setdefault(unit.key, unit)
    changed |= batches(state, rules, log, list(results.values()), None)
    for consumer in state.sweep():
        if len(consumer.operands) > 1:
            changed |= batches(state, rules, log, state.operands(consumer), consumer)
    return changed


def _only_user(state: State, unit: Unit, consumer: Unit | None) -> bool:
    """Whether the consumer (`None` is the tuple of results) is all that reads a unit."""
    users = state.users(unit)
    if consumer is None:
        return not users
    return not state.is_result(unit) and all(u is consumer for u in users)


# ---------------------------------------------------------------- loops


def _loops(state: State, rules: Rules, log: Log, operands: list[Unit], consumer: Unit | None) -> bool:
    if len(operands) < 2:
        return False
    stage = "horizontal-loop"
    found: list[Unit] = []
    for unit in operands:
        why = _loop_candidate(state, rules, unit, consumer)
        if why is None:
            found.append(unit)
        elif unit.root.opcode not in ("parameter", "constant") and consumer is not None:
            log.refuse(stage, unit, consumer, why)
    shared = _shared_parameters(state, found)
    for unit in found:
        if unit.key in shared:
            log.refuse(stage, unit, shared[unit.key], Verdict("SHARED_PARAMETER"))
    kept = [u for u in found if u.key not in shared]
    order = sorted(kept, key=_batch_key)
    changed = False
    start = 0
    while start < len(order):
        end = start + 1
        while end < len(order) and _batch_key(order[end]) == _batch_key(order[start]):
            end += 1
        if end - start == 1 and end < len(order):
            log.refuse(stage, order[start], order[end], _differ(order[start], order[end]))
        changed |= _batches(state, rules, log, order[start:end])
        start = end
    return changed


def _batch_key(unit: Unit) -> tuple[str, int, int]:
    return unit.root.shape.dtype, len(unit.outputs), len(unit.members)


def _differ(one: Unit, two: Unit) -> Verdict:
    if one.root.shape.dtype != two.root.shape.dtype:
        return Verdict("DTYPE", f"{one.root.shape.dtype} and {two.root.shape.dtype}")
    return Verdict("SHAPE", "different numbers of results or of operations")


def _loop_candidate(state: State, rules: Rules, unit: Unit, consumer: Unit | None) -> Why:
    v = unit.root
    if not (unit.kind == LOOP or (not unit.kind and is_pointwise(v) and v.operands)):
        return not_fusible("no loop")
    if known(state, unit) is not None or any(
        m.opcode == "reduce" and len(m.operands) > 2 for m in unit.vertices()
    ):
        return not_fusible("it cannot be flattened")
    outputs = [unit.graph.vertices[o] for o in unit.outputs]
    if len({o.shape.dtype for o in outputs}) > 1:
        return Verdict("DTYPE", "its results have different types")
    if not _only_user(state, unit, consumer):
        return Verdict("CYCLE", f"{unit.name} has other users")
    if any(o.elements > rules.batch_elements for o in outputs):
        return Verdict("LARGE", "", (("elements", max(o.elements for o in outputs)),))
    if len(unit.members) > rules.batch_members:
        return Verdict("LARGE", "", (("operations", len(unit.members)),))
    if any(o.shape.order != row_major(len(o.shape.dims)) for o in outputs):
        return not_fusible("its result is not row-major")
    return None


def _shared_parameters(state: State, units: list[Unit]) -> dict[int, Unit]:
    """Units that share a parameter with another, with that one."""
    first: dict[int, Unit] = {}
    found: dict[int, Unit] = {}
    for unit in units:
        for operand in unit.operands:
            if state.graph.vertices[operand].opcode != "parameter":
                continue
            other = first.setdefault(operand, unit)
            if other is not unit:
                found.setdefault(other.key, unit)
                found.setdefault(unit.key, other)
    return found


def _batches(state: State, rules: Rules, log: Log, units: list[Unit]) -> bool:
    changed = False
    head: Unit | None = None
    count = pointers = 0
    for unit in units:
        mine = 8 * (len(unit.operands) + len(unit.outputs))
        if head is None or count >= rules.batch or pointers + mine >= rules.batch_bytes:
            head, count, pointers = unit, 1, mine
            continue
        log.accept("horizontal-loop", "batch", head, unit)
        apply(state, "batch", head, unit)
        count, pointers, changed = count + 1, pointers + mine, True
    return changed


# ---------------------------------------------------------------- reductions


def _inputs(state: State, rules: Rules, log: Log, operands: list[Unit], consumer: Unit | None) -> bool:
    if len(operands) < 2:
        return False
    found = [
        u
        for u in operands
        if u.kind != LOOP
        and tiled_reduction(u.leading())
        and known(state, u) is None
        and _only_user(state, u, consumer)
    ]
    found.sort(key=lambda u: (u.leading().operands[0].shape.dims, len(u.members)))
    changed = False
    head: Unit | None = None
    for unit in found:
        if head is None:
            head = unit
            continue
        why = shapes(rules, head, unit) or budget(rules, head, unit, vertical=False)
        if why is not None:
            log.refuse("horizontal-input", head, unit, why)
            head = unit
            continue
        log.accept("horizontal-input", "join", head, unit)
        apply(state, "join", head, unit)
        changed = True
    return changed
