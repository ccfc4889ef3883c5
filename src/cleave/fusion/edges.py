"""The predicates that passes share (xla-fusion.md, section 2.3): each gives a reason against, or `None`.

All take the producer's and the consumer's unit. Nothing here changes a state.
"""

from __future__ import annotations

from cleave.fusion.decisions import Verdict
from cleave.fusion.graph import Shape, Vertex
from cleave.fusion.opcodes import (
    CACHE_BREAKERS,
    arity,
    fusible_consumer,
    fusible_producer,
    input_fusible,
    is_expensive,
    is_pointwise,
    is_scalar,
    same_dims,
    tiled_reduction,
    tiled_transpose,
)
from cleave.fusion.rules import Rules
from cleave.fusion.state import State
from cleave.fusion.units import EXPANDED, LOOP, MIXED, REUSED, Unit

Why = Verdict | None


def not_fusible(detail: str) -> Verdict:
    """Neither a loop nor an input operation."""
    return Verdict("NOT_FUSIBLE", detail)


def known(state: State, unit: Unit) -> Why:
    """Whether any pass may touch a unit: no side effects, no opaque operation, no random numbers for two."""
    v = unit.root
    if unit.kind or v.plain:
        return None
    if v.effect:
        return not_fusible(f"{v.name} has side effects")
    if v.opcode == "rng" and state.count_users(unit) > 1:
        return not_fusible(f"{v.name} draws random numbers for several users")
    return None


def would_duplicate(state: State, producer: Unit, consumer: Unit) -> bool:
    """Whether the producer has users other than the consumer."""
    if state.in_tuple(producer):
        return True
    for output in producer.outputs:
        readers = state.readers[output]
        if len(readers) > 1 or (readers and consumer.key not in readers):
            return True
    return False


def is_costly(unit: Unit, gpu: bool) -> bool:
    """Whether a producer is expensive; a group is."""
    return bool(unit.kind) or is_expensive(unit.root, gpu)


def duplication(state: State, rules: Rules, producer: Unit, consumer: Unit, allowed: bool) -> Why:
    """`ROOT`, `DUP_*` and `IN_PLACE`: the base rule."""
    if state.is_root(producer):
        return Verdict("ROOT")
    if would_duplicate(state, producer, consumer) and not producer.duplicable():
        users = state.count_users(producer)
        if not allowed:
            return Verdict("DUP_FORBIDDEN", f"it has {users} users", (("users", users),))
        if is_costly(producer, not rules.base):
            return Verdict("DUP_EXPENSIVE", f"it has {users} users", (("users", users),))
    return in_place(producer, consumer)


def in_place(producer: Unit, consumer: Unit) -> Why:
    """`IN_PLACE`: an update must not overwrite what the producer still reads."""
    if consumer.root.opcode not in ("dynamic-update-slice", "scatter"):
        return None
    found = consumer.buffer()
    if found is None:
        return None
    root, target = found
    if not consumer.is_group and sum(o is target for o in root.operands) > 1:
        return Verdict("IN_PLACE", f"{root.name} reads its buffer {target.name} twice")
    if target.number not in producer.operands or not producer.use(target.number).flags & MIXED:
        return None
    if _same_window(producer, consumer, root):
        return None
    return Verdict("IN_PLACE", f"{producer.name} reads other elements of {target.name} than are written")


def _same_window(producer: Unit, consumer: Unit, root: Vertex) -> bool:
    """A lone slice of the buffer that provably covers what the update writes, elementwise from there on."""
    v = producer.root
    if len(producer.members) > 1 or root.opcode != "dynamic-update-slice":
        return False
    if v.opcode not in ("slice", "dynamic-slice") or any(s != 1 for s in v.strides):
        return False
    if v.shape.dims != root.operands[1].shape.dims or not _same_start(v, root):
        return False
    waiting, seen = [v.number], {v.number}
    while waiting:
        for user in consumer.inner.get(waiting.pop(), ()):
            u = consumer.graph.vertices[user]
            if u is root or user in seen:
                continue
            if not is_pointwise(u):
                return False
            seen.add(user)
            waiting.append(user)
    return True


def _same_start(v: Vertex, root: Vertex) -> bool:
    places = root.operands[2:]
    if v.opcode == "slice":
        return all(p.opcode == "constant" and p.value == s for p, s in zip(places, v.starts, strict=True))
    pairs = zip(v.operands[1:], places, strict=True)
    return all(a is b or (a.opcode == b.opcode == "constant" and a.value == b.value) for a, b in pairs)


def kinds(rules: Rules, producer: Unit, consumer: Unit) -> Why:
    """Loop and input fusibility of both sides, `CONST` and `IN_PLACE`."""
    p, c = producer.root, consumer.root
    if len(producer.outputs) > 1:
        return not_fusible(f"{p.name} has several results")
    if producer.kind:
        if producer.kind != LOOP and not rules.today:
            return not_fusible(f"the group of {p.name} follows its input")
    elif not fusible_producer(p, rules.today) and not (rules.today and input_fusible(p)):
        return not_fusible(f"{p.opcode} is no loop operation")
    if not consumer.kind and not fusible_consumer(c):
        return not_fusible(f"{c.opcode} takes nothing in")
    if p.opcode == "constant" and not (is_scalar(p) and consumer.kind):
        return Verdict("CONST")
    return in_place(producer, consumer)


def reuse(rules: Rules, producer: Unit, consumer: Unit) -> Why:
    """`REUSE_EXPENSIVE`."""
    if is_costly(producer, not rules.base) and consumer.use(producer.outputs[0]).flags & REUSED:
        return Verdict("REUSE_EXPENSIVE", f"{producer.root.opcode} read through {consumer.root.opcode}")
    return None


def coalescing(producer: Unit, consumer: Unit, share: float = 0.0) -> Why:
    """`UNCOALESCED`, if more than a share of the producer's elements changes its order in memory."""
    if not is_reduction(consumer) or not producer.transposed:
        return None
    moved = producer.transposed / max(1, producer.root.elements)
    return Verdict("UNCOALESCED", "", (("share moved", moved),)) if moved >= share else None


def is_reduction(unit: Unit) -> bool:
    """Whether a tiled reduction leads the unit."""
    return unit.kind != LOOP and bool(tiled_reduction(unit.leading()))


def heavy_edge(producer: Unit, consumer: Unit) -> Why:
    """`HEAVY`."""
    if producer.heavy and consumer.use(producer.outputs[0]).flags & EXPANDED:
        return Verdict("HEAVY")
    return None


def budget(rules: Rules, one: Unit, two: Unit, vertical: bool) -> Why:
    """`SMEM`, `TOO_MANY_REDUCTIONS` and `TOO_MANY_ARGS`; `two` is the consumer if `vertical`."""
    shared = (one.shared_today + two.shared_today) if rules.today else (one.shared + two.shared)
    if shared > rules.shared:
        return Verdict("SMEM", "", (("bytes", shared), ("limit", rules.shared)))
    reductions = one.reductions + two.reductions
    if reductions > rules.reductions:
        return Verdict("TOO_MANY_REDUCTIONS", "", (("reductions", reductions), ("limit", rules.reductions)))
    made_by_one, made_by_two = len(one.outputs), len(two.outputs)
    outputs = made_by_one + (made_by_one > 1) + made_by_two + (made_by_two > 1)
    if len(one.operands) + len(two.operands) - 1 + outputs <= rules.most_args:
        return None
    made = {*one.outputs, *two.outputs}
    operands = sum(o not in made for o in one.operands)
    operands += sum(o not in made and o not in one.operands for o in two.operands)
    if vertical and operands <= len(two.operands):
        return None
    if operands + outputs > rules.most_args:
        return Verdict("TOO_MANY_ARGS", "", (("arguments", operands + outputs), ("limit", rules.most_args)))
    return None


def code_dup(state: State, rules: Rules, producer: Unit, consumer: Unit) -> Why:
    """`CODE_DUP`: X22's limit of how often code is emitted, X23's in vertical fusion."""
    v = producer.root
    if v.opcode == "broadcast" and not producer.is_group:
        return None
    count = consumer.use(v.number).emissions
    if count > rules.emissions:
        return Verdict("CODE_DUP", "", (("emissions", count), ("limit", rules.emissions)))
    if v.opcode in CACHE_BREAKERS:
        if count > 1:
            return Verdict("CODE_DUP", f"{v.opcode} is emitted more than once", (("emissions", count),))
        users = state.real_users(v.number)
        if users > 1 and not rules.allow_multi_user_cache_breakers:
            return Verdict("CODE_DUP", f"{v.opcode} has several users", (("users", users),))
    return None


def ir_size(rules: Rules, producer: Unit, consumer: Unit) -> Why:
    """`IR_TOO_LARGE`."""
    made = producer.outputs[0]
    times = (consumer.facts.get(made) or consumer.use(made)).emissions
    (size, splits), (own, own_splits) = producer.code(), consumer.code()
    total, cuts = size * times + own, splits * times + own_splits
    if total <= rules.ir_size and (rules.today or (cuts <= 10 and total * 2**cuts <= rules.ir_size)):
        return None
    return Verdict("IR_TOO_LARGE", "", (("size", total), ("splits", cuts), ("limit", rules.ir_size)))


# ---------------------------------------------------------------- several results


def concatenates(rules: Rules, unit: Unit) -> bool:
    """Whether a group is made by XLA's kernel for concatenations, which has one result."""
    return bool(unit.kind) and rules.today and rules.concat_kernel and unit.concatenation() is not None


def may_root(state: State, rules: Rules, unit: Unit) -> bool:
    """Whether a unit may be part of a kernel with several results."""
    if concatenates(rules, unit):
        return False
    if not unit.kind and not unit.root.plain and known(state, unit) is not None:
        return False
    if not state.is_used(unit):
        return False
    if not unit.odd and unit.kind in ("", LOOP):
        return True  # elementwise, alone or in a loop
    hero = unit.leading()
    if (
        hero.opcode == "reduce"
        and len(hero.operands) > 2
        and not (unit.kind != LOOP and tiled_reduction(hero))
    ):
        return False
    if unit.kind:
        if unit.kind == LOOP or not unit.specials:
            return unit.kind == LOOP
        return any(tiled_reduction(h) or tiled_transpose(h) for h in unit.heroes())
    v = unit.root
    return (is_pointwise(v) and bool(v.operands)) or bool(tiled_reduction(v)) or tiled_transpose(v)


def loop_shape(unit: Unit) -> Shape:
    """The shape that a kernel's loops run over: what its tiled hero reads, else what its root makes."""
    hero = unit.leading()
    if unit.kind != LOOP and (tiled_reduction(hero) or tiled_transpose(hero)):
        return hero.operands[0].shape
    return hero.shape


def shapes(rules: Rules, one: Unit, two: Unit) -> Why:
    """`SHAPE`: whether two units may share their loops."""
    if not one.specials and not two.specials and same_dims(one.root.shape, two.root.shape):
        return None  # nothing tiled on either side
    a, b = one.leading(), two.leading()
    tiles = [u.kind != LOOP and bool(tiled_reduction(h)) for u, h in ((one, a), (two, b))]
    moves = [u.kind != LOOP and tiled_transpose(h) for u, h in ((one, a), (two, b))]
    left, right = loop_shape(one), loop_shape(two)
    if any(tiles) and any(moves):
        return Verdict("SHAPE", "a tiled transpose beside a tiled reduction")
    if all(tiles):
        same = same_dims(left, right) and same_dims(a.shape, b.shape) and a.dims == b.dims
        inits = [h.operands[arity(h) :] for h in (a, b)]
        same = same and [o.shape.dims for o in inits[0]] == [o.shape.dims for o in inits[1]]
        return None if same else Verdict("SHAPE", f"reductions of {left} and {right}")
    if all(moves) and not same_dims(a.shape, b.shape):
        return Verdict("SHAPE", f"transposes of {left} and {right}")
    if same_dims(left, right):
        return None
    plain = all(s.order == tuple(range(len(s.dims) - 1, -1, -1)) for s in (left, right))
    if (rules.today or any(tiles) or any(moves)) and plain and left.elements == right.elements:
        return None
    return Verdict("SHAPE", f"{left} and {right}")
