"""Our own pass: a reduction and what follows it row by row share a kernel that keeps the rows.

XLA's emitters cannot hold a row while it is reduced and used again; our scheduler can (design.md, 4). A
producer that ends in a reduction over the minor axes joins a consumer whose every operation stays within
the same rows: elementwise, broadcasts along the row, reductions over it. So a chain of reductions over one
row becomes one kernel.
"""

from __future__ import annotations

from cleave.fusion.decisions import Log, Verdict
from cleave.fusion.edges import Why, budget, known
from cleave.fusion.graph import Vertex
from cleave.fusion.multi_output import Reach
from cleave.fusion.opcodes import POINTWISE
from cleave.fusion.rules import Rules
from cleave.fusion.state import State
from cleave.fusion.units import ROWS, Unit

STAGE = "rows"
KEPT_BYTES = 64 << 10
"""The longest row that a kernel keeps."""


def rows(state: State, rules: Rules, log: Log) -> bool:
    """Run the pass; whether anything changed."""
    reach = Reach(state)
    changed = False
    for producer in state.sweep():
        if not _reduces(producer) or producer.root.opcode == "parameter":
            continue
        for consumer in state.users(producer):
            if producer.key not in state.units:
                break
            why = _edge(state, rules, reach, producer, consumer)
            if why is not None:
                log.refuse(STAGE, producer, consumer, why)
                continue
            reach.settle()
            log.accept(STAGE, "rows", producer, consumer)
            reach.merge(consumer, producer)
            state.wrap(consumer)
            state.keep_rows(producer, consumer, _count(_axes(producer)))
            changed = True
    return changed


def _reduces(unit: Unit) -> bool:
    return unit.kind == ROWS or (bool(unit.odd) and _has_reduction(unit))


def _has_reduction(unit: Unit) -> bool:
    vertices = unit.graph.vertices
    return any(vertices[m].opcode == "reduce" for m in unit.members)


def _axes(unit: Unit) -> tuple[int, ...]:
    """The extents of the rows' own axes: what a reduction of the unit leaves."""
    left = [v.shape.dims for v in unit.vertices() if v.opcode == "reduce" and len(v.operands) <= 2]
    return min(left, key=len) if left else ()


def _count(extents: tuple[int, ...]) -> int:
    total = 1
    for extent in extents:
        total *= extent
    return total


def _edge(state: State, rules: Rules, reach: Reach, producer: Unit, consumer: Unit) -> Why:
    axes = _axes(producer)
    own = _axes(consumer) if _reduces(consumer) else axes
    why = known(state, producer) or known(state, consumer)
    if why is not None:
        return why
    if not axes or axes != own or any(not _row_wise(u, axes) for u in (producer, consumer)):
        return Verdict("SHAPE", "not all of it stays within rows")
    count = _count(axes)
    widest = max((v.bytes for u in (producer, consumer) for v in u.vertices()), default=0)
    if count and widest / count > KEPT_BYTES:
        return Verdict("LARGE", "a row is too long to keep", (("bytes", widest / count),))
    others = [o for o in state.operands(consumer) if o is not producer]
    if any(reach.depends(o, producer) for o in others):
        return Verdict("CYCLE", f"{consumer.name} also needs a value made from {producer.name}")
    return budget(rules, producer, consumer, vertical=False)


def _row_wise(unit: Unit, axes: tuple[int, ...]) -> bool:
    """Whether each member is computed within rows, or belongs to all rows alike."""
    return all(_stays(unit, v, axes) for v in unit.vertices())


def _stays(unit: Unit, v: Vertex, axes: tuple[int, ...]) -> bool:
    rank = len(axes)
    inside = v.shape.dims[:rank] == axes
    if v.opcode in POINTWISE:
        return inside or not v.shape.dims
    match v.opcode:
        case "constant":
            return v.elements <= 1
        case "reduce":
            return inside and len(v.operands) <= 2 and len(v.shape.dims) == rank and min(v.dims) >= rank
        case "broadcast":
            along = v.dims[:rank] == tuple(range(rank)) and v.operands[0].shape.dims[:rank] == axes
            return inside and (
                along or v.operands[0].number not in unit.members or not v.operands[0].shape.dims
            )
        case _:
            return False


__all__ = ["rows"]
