"""What priority fusion brings into a kernel more than once.

XLA copies a producer into each user, and copies of one operation that meet in a kernel stay apart until the
CSE behind the pass: until then they count as code, as operations and as reads. Here members are sets, so what
would be there again is noted beside them (`Unit.repeated`, `Unit.read_again`) and forgotten with the pass.
"""

from __future__ import annotations

from cleave.fusion.clocks import flops_of
from cleave.fusion.graph import Vertex
from cleave.fusion.opcodes import same_dims
from cleave.fusion.rules import Rules
from cleave.fusion.units import GROUP, SOMEWHERE, UNTIMED, Unit, link


def bring_again(unit: Unit, producer: Unit, rules: Rules) -> None:
    """Note what a producer that is about to be taken into a unit would bring in once more."""
    if not producer.repeated[1] and unit.members.keys().isdisjoint(producer.members):
        return
    use, root = unit.use(producer.root.number), producer.root
    share = unit.read_work(root.number) / root.elements if root.elements else 0.0
    flops, code = producer.repeated[0] * share, producer.repeated[1] * use.emissions
    for m in producer.members:
        if m not in unit.members:
            continue
        found = producer.use(m)
        flops += flops_of(unit.graph.vertices[m], rules, True) * found.work * share
        code += found.emissions * use.emissions
        for operand in unit.graph.vertices[m].operands:
            if operand.number not in producer.members:
                _read(unit, operand.number, _reads(producer, m, operand) * share)
    if code:
        unit.repeated = (unit.repeated[0] + flops, unit.repeated[1] + code)
    for number, work in producer.read_again.items():
        _read(unit, number, work * share)


def merge_repeats(unit: Unit) -> None:
    """What was brought in again is one with what was there."""
    if unit.repeated[1]:
        unit.repeated = (0.0, 0)
        unit.read_again.clear()
        unit.operands = dict.fromkeys(unit.operands, UNTIMED)
        unit.fresh = [SOMEWHERE]
        unit.version += 1


def _read(unit: Unit, number: int, work: float) -> None:
    if work:
        unit.read_again[number] = unit.read_again.get(number, 0.0) + work
        if number in unit.operands:
            unit.operands[number] = UNTIMED
            unit.fresh.append(SOMEWHERE)


def _reads(unit: Unit, member: int, operand: Vertex) -> float:
    """Elements of an operand that a member reads other than at the kernel's own index: what is read there is
    read once, however many copies read it."""
    user, use = unit.graph.vertices[member], unit.use(member)
    if user.pointwise and same_dims(user.shape, operand.shape):
        return use.work - user.elements if GROUP in use.sources else use.work
    how, _, each, times = link(unit.graph, operand.number, member)
    return 0.0 if how & unit.inherits() else use.work * each * times
