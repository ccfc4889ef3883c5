"""Which operands of contractions are worth storing once: those that every tile of the reader computes again.

A GPU's matrix units want operands that are loaded as they are, and blocks that share rows or columns of a
product each compute their own copy of an operand that is computed on the way. Whether a kernel of its own
pays for such an operand is for the cost model to say; here is only which ones are considered.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod

from cleave.ir.dims import Dim, size_of
from cleave.ir.ops import Cat, Contract, Input, Map, Node, Reduce, Scan
from cleave.ir.program import Program
from cleave.schedule.machine import Machine

_TILE = 128
"""Positions of a result that a tile has along an index, about."""

_OFTEN = 4
"""Tiles of a result that read one tile of an operand, beyond which several blocks would compute it."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Computed operands to store, in order: those without contractions (`plain`), and those that are made of
    other contractions (`products`)."""

    plain: tuple[Node, ...]
    products: tuple[Node, ...]


def operands(
    program: Program, sizes: Mapping[Dim, int], machine: Machine, stored: Iterable[Node] = ()
) -> Operands:
    """The operands of a program that are worth considering, where the nodes `stored` and the outputs go to
    memory: those that many blocks would compute again. An operand is computed once for all tiles of a dim
    that none of these has, if a block can hold it: then the dim is looped over in the block, after the
    operand. Such an operand is stored where the other one of its product is, unless it is easily made: a
    product then finds both as it wants them. One that is made of contractions must take more time to compute
    again than a launch."""
    below = _below(program)
    work = _work(program, sizes)
    outer = {dim for output in program.outputs for dim in output.node.dims}
    outer |= {dim for node in stored for dim in node.dims}
    plain: dict[Node, None] = {}
    products: dict[Node, None] = {}
    for node in (node for node in program.nodes if isinstance(node.op, Contract)):
        held = all(size_of(index.dim, sizes) <= machine.whole_limit for index in node.bound)
        made = [a for a in node.args if _is_made(a.node, below[a.node])]
        again: list[Node] = []
        for access in made:
            lacking = [i.dim for i in node.axes if i not in access.indices and (i.dim in outer or not held)]
            tiles = prod(size_of(d, sizes) for d in lacking) / _TILE
            if tiles > _OFTEN:
                again.append(access.node)
            seconds = tiles * work[access.node] / (machine.rate(access.node.dtype) * machine.cores)
            if tiles > _OFTEN and seconds > machine.launch:
                products[access.node] = None
        own = [a.node for a in made if "contract" not in below[a.node]]
        if any(n in again for n in own):
            plain.update(dict.fromkeys(n for n in own if n in again or not _is_easy(below[n])))
    return Operands(tuple(plain), tuple(products))


def _work(program: Program, sizes: Mapping[Dim, int]) -> dict[Node, int]:
    """Operations of the contractions at or below each node."""
    own: dict[Node, int] = {}
    below: dict[Node, set[Node]] = {}
    for node in program.nodes:
        below[node] = set[Node]().union(*(below[access.node] for access in node.reads))
        if isinstance(node.op, Contract):
            below[node].add(node)
            every = (*node.dims, *(index.dim for index in node.bound))
            own[node] = 2 * prod(size_of(dim, sizes) for dim in every)
    return {node: sum(own[n] for n in below[node]) for node in program.nodes}


def _is_made(operand: Node, below: Collection[str]) -> bool:
    """Whether an operand is computed from tensors, and not read as it is."""
    computed = isinstance(operand.op, Map | Cat | Reduce | Contract)
    return computed and "scan" not in below and any(kind.startswith("input") for kind in below)


def _is_easy(below: Collection[str]) -> bool:
    """Whether an operand is nothing but pointwise operations of one tensor."""
    return len(below) == 1


def _below(program: Program) -> dict[Node, set[str]]:
    """What each node takes to compute: which inputs, and whether reductions, contractions and such, at or
    below it."""
    found: dict[Node, set[str]] = {}
    for node in program.nodes:
        found[node] = set[str]().union(*(found[access.node] for access in node.reads))
        match node.op:
            case Input(name=name):
                found[node].add(f"input {name}")
            case Reduce():
                found[node].add("reduce")
            case Contract():
                found[node].add("contract")
            case Cat():
                found[node].add("cat")
            case Scan():
                found[node].add("scan")
            case _:
                pass
    return found


__all__ = ["Operands", "operands"]
