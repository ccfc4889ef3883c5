"""What a plan costs by the scheduler's model: each of its kernels is scheduled, with what the algebra finds.

Only for graphs that come from a program, on devices that the scheduler knows. Costs seconds of work, so ours
asks only about few plans of small graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf

from cleave.algebra.search import search
from cleave.errors import CleaveError
from cleave.fusion.rules import DEVICES, Device
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Dim
from cleave.ir.ops import Contract, Map, Reduce
from cleave.ir.precision import assign
from cleave.ir.program import Program
from cleave.schedule.beside import joined_seconds
from cleave.schedule.machine import CPU, H200, Machine
from cleave.schedule.select import best

LATE, SPECIAL = 4.0, 30.0
"""What follows on a contraction runs that much longer than elsewhere, and a special function is so many
operations. Measured on an H200: tanh behind a product of 2048x1024x4096 made 28 us 88."""
MACHINES: Mapping[str, Machine] = {DEVICES["h200"].name: H200, DEVICES["cpu"].name: CPU}


def machine_for(device: Device) -> Machine | None:
    """The scheduler's machine of a device, if it knows it."""
    return MACHINES.get(device.name)


def candidates_of(program: Program) -> list[Candidate]:
    """The program and what the algebra finds equal to it, stable forms only."""
    found = search(program, numerics="stable").candidates
    return [assign(c, program) for c in found]


def scheduled_seconds(programs: Sequence[Program], sizes: Mapping[Dim, int], device: Device) -> float:
    """Seconds of some kernels' programs one after the other; infinite if one cannot be scheduled."""
    total = 0.0
    for program in programs:
        own = tuple((a, sizes[a]) for a in program.dynamic)
        total += _seconds(program, own, device.name)
        if total == inf:
            break
    return total


@lru_cache(maxsize=512)
def _seconds(program: Program, sizes: tuple[tuple[Dim, int], ...], device: str) -> float:
    machine = MACHINES[device]
    try:
        found = best(candidates_of(program), program.bind(dict(sizes)), machine, count=4)
    except CleaveError:
        return inf
    late = LATE if machine.kind == "cuda" and _ends_elementwise(program) else 0.0
    return min(
        joined_seconds(r.tiles, r.cost, machine)
        + late * (r.cost.vectors + SPECIAL * r.cost.specials) / machine.vector
        for r in found
    )


def _ends_elementwise(program: Program) -> bool:
    """Whether something follows elementwise on contractions, and no other reduction: a block computes it when
    its products are done, with few warps and nothing beside."""
    ops = [node.op for node in program.nodes]
    contracts = any(isinstance(op, Contract) for op in ops)
    return (
        contracts and any(isinstance(op, Map) for op in ops) and not any(isinstance(op, Reduce) for op in ops)
    )
