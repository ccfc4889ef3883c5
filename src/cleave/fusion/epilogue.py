"""Our own pass: a contraction writes what follows from each of its results.

XLA leaves products to libraries; our scheduler writes them, and can go on with each result before it is
stored. A contraction joins its only reader if all of that reader is elementwise in the result.
"""

from __future__ import annotations

from cleave.fusion.decisions import Log, Verdict, apply
from cleave.fusion.edges import Why, budget
from cleave.fusion.multi_output import Reach
from cleave.fusion.rules import Rules
from cleave.fusion.state import State
from cleave.fusion.units import MIXED, REUSED, WHOLE, Unit

STAGE = "epilogue"


def epilogue(state: State, rules: Rules, log: Log) -> bool:
    """Run the pass; whether anything changed."""
    changed = False
    reach: Reach | None = None
    for producer in state.sweep():
        if producer.root.opcode != "dot" or producer.is_group:
            continue
        users = state.users(producer)
        if not users:
            continue
        reach = reach or Reach(state)
        why = _edge(state, rules, reach, producer, users)
        if why is not None:
            log.refuse(STAGE, producer, users[0], why)
            continue
        reach.settle()
        log.accept(STAGE, "rows", producer, users[0])
        reach.merge(users[0], producer)
        apply(state, "rows", producer, users[0])
        changed = True
    return changed


def _edge(state: State, rules: Rules, reach: Reach, producer: Unit, users: list[Unit]) -> Why:
    (consumer, *others) = users
    if others or state.is_result(producer):
        return Verdict("DUP_FORBIDDEN", "a contraction is computed once, for one reader")
    use = consumer.use(producer.outputs[0])
    plain = use.sources == WHOLE and not use.flags & (MIXED | REUSED)
    if not plain or consumer.specials or consumer.reduced or consumer.root.opcode == "dot":
        return Verdict("SHAPE", "the reader is not elementwise in each result")
    if any(consumer.graph.vertices[m].opcode == "dot" for m in consumer.members):
        return Verdict("SHAPE", "the reader has a contraction already")
    if any(reach.depends(o, producer) for o in state.operands(consumer) if o is not producer):
        return Verdict("CYCLE", f"{consumer.name} also needs a value made from {producer.name}")
    return budget(rules, producer, consumer, vertical=False)


__all__ = ["epilogue"]
