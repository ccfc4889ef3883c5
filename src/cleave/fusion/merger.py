"""Fusion merger: X22 by bytes, X23 by time (xla-fusion.md, section 2.6).

Operands first: each loop group goes into all of its users, or into none.
"""

from __future__ import annotations

from cleave.fusion.cost import time_yesterday
from cleave.fusion.decisions import Log, Numbers, Verdict, apply
from cleave.fusion.edges import (
    Why,
    budget,
    coalescing,
    code_dup,
    heavy_edge,
    ir_size,
    is_reduction,
    kinds,
    known,
    not_fusible,
)
from cleave.fusion.graph import WIDTHS
from cleave.fusion.opcodes import is_expensive
from cleave.fusion.rules import Rules
from cleave.fusion.state import State
from cleave.fusion.units import LOOP, REUSED, Unit


def merger(state: State, rules: Rules, log: Log, by_bytes: bool) -> bool:
    """Run the pass; whether anything changed."""
    stage = "merger-bytes" if by_bytes else "merger-cost"
    changed = False
    for unit in state.post_order():
        if unit.key not in state.units or unit.kind != LOOP:
            continue
        users = state.users(unit)
        why, at, numbers = (_bytes if by_bytes else _cost)(state, rules, unit, users)
        if why is not None:
            log.refuse(stage, unit, at, why)
            continue
        for user in users:
            log.accept(stage, "fuse", unit, user, numbers)
            apply(state, "fuse", unit, user)
        changed = True
    return changed


Answer = tuple[Why, Unit, Numbers]


def _users(state: State, rules: Rules, unit: Unit, users: list[Unit]) -> tuple[Why, Unit]:
    """What stands against any user, but for cost, code and budget."""
    if state.is_root(unit) or not users:
        return Verdict("ROOT" if state.is_root(unit) else "NO_USERS"), unit
    if unit.is_multi:
        return not_fusible(f"{unit.name} has several results"), unit
    if state.in_tuple(unit):
        return not_fusible(f"{unit.name} is a result, and the tuple of results is no kernel"), unit
    for user in users:
        if not user.is_group and user.root.opcode == "bitcast":
            return Verdict("BITCAST", user.name), user
        why = known(state, user) or kinds(rules, unit, user)
        if why is not None:
            return why, user
        if rules.epoch == "X22" and (why := heavy_edge(unit, user)) is not None:
            return why, user
    return None, unit


def _moves(unit: Unit, users: list[Unit]) -> tuple[Why, Unit]:
    for user in users:
        if is_reduction(user) and (why := coalescing(unit, user, 0.5)) is not None:
            return why, user
    return None, unit


def _cost(state: State, rules: Rules, unit: Unit, users: list[Unit]) -> Answer:
    why, at = _users(state, rules, unit, users)
    if why is None:
        why, at = _moves(unit, users)
    if why is not None:
        return why, at, ()
    for test in (lambda u: budget(rules, unit, u, True), lambda u: ir_size(rules, unit, u)):
        for user in users:
            if (why := test(user)) is not None:
                return why, user, ()
    before, after = time_yesterday(rules, unit, users)
    numbers = (("unfused us", before * 1e6), ("fused us", after * 1e6))
    return (Verdict("SLOWER", "", numbers) if after > before else None), users[0], numbers


def _bytes(state: State, rules: Rules, unit: Unit, users: list[Unit]) -> Answer:
    why, at = _users(state, rules, unit, users)
    if why is None:
        why, at = _moves(unit, users)
    if why is not None:
        return why, at, ()
    read, written, count = bytes_read(unit), unit.root.bytes, len(users)
    now, merged = read + written * (count + 1), read * count
    ratio = merged / now if now else 0.0
    numbers = (("bytes now", float(now)), ("bytes merged", float(merged)), ("ratio", ratio))
    if ratio > rules.bytes_ratio:
        return Verdict("BYTES", "", numbers), users[0], numbers
    light = (count == 1 or (ratio < 0.3 and now > 1024)) and not any(
        u.use(unit.outputs[0]).flags & REUSED for u in users
    )
    if not light:
        dear = next((v for v in unit.vertices() if is_expensive(v, not rules.base)), None)
        if dear is not None:
            return Verdict("EXPENSIVE", dear.name, numbers), users[0], numbers
    for test in (lambda u: code_dup(state, rules, unit, u), lambda u: budget(rules, unit, u, True)):
        for user in users:
            if (why := test(user)) is not None:
                return why, user, numbers
    return None, users[0], numbers


def bytes_read(unit: Unit) -> int:
    """Bytes that a unit reads; of an operand that only slices read, the slices."""
    total = 0
    for operand in unit.operands:
        v = unit.graph.vertices[operand]
        readers = [unit.graph.vertices[n] for n in unit.inner[operand]]
        if all(r.opcode in ("slice", "dynamic-slice") and r.operands[0] is v for r in readers):
            total += sum(r.elements for r in readers) * WIDTHS[v.shape.dtype]
        else:
            total += v.bytes
    return total
