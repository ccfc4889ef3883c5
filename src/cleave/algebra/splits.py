"""Which loops of a candidate may be split over blocks (design.md, section 3, Search).

A dim may be split if what its parts hand over is no larger than the outputs, or reduced no further, or had by
a loop in which one value follows another; Folds over one dim are split together if they run one after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cleave.algebra.cost import Count, size_count
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.dims import Part, Parts
from cleave.ir.ops import Node
from cleave.ir.program import Output, Program


def splittable(candidate: Candidate) -> list[tuple[Fold, ...]]:
    """The Folds over each dim that may be split over blocks: the dim is no partition, and what the parts
    of a Fold hand over is no larger than the outputs, or reduced no further, or had by a loop in which one
    value follows another."""
    program = candidate.program
    reduced_later = _feeding(program)

    def able(fold: Fold) -> bool:
        mine = {v.node for v in fold.values}
        last = all(not (reduced_later[v] - mine) for v in mine)
        follows = any(reduced_later[v] & mine for v in mine)
        return last or follows or _small(program, fold)

    dims = dict.fromkeys(f.over for f in candidate.folds if not isinstance(f.over, Parts | Part))
    groups = [tuple(f for f in candidate.folds if f.over == over) for over in dims]
    return [folds for folds in groups if all(map(able, folds)) and _linked(folds, reduced_later)]


def _linked(folds: tuple[Fold, ...], reduced_later: dict[Node, set[Node]]) -> bool:
    """Does each Fold but the first need values of those before? Then they run one after the other."""
    for number, fold in enumerate(folds[1:], 1):
        before = {v.node for f in folds[:number] for v in f.values}
        if not all(any(v.node in reduced_later[b] for b in before) for v in fold.values):
            return False
    return True


def values_of(program: Program, nodes: Sequence[Node]) -> Program:
    """The program up to some values, which are its outputs."""
    outputs = [
        Output(f"v{n}", node, tuple((k,) for k in range(len(node.axes)))) for n, node in enumerate(nodes)
    ]
    return replace(program, outputs=tuple(outputs))


def _small(program: Program, fold: Fold) -> bool:
    def elements(node: Node) -> Count:
        total = Count((((), 1),))
        for dim in node.dims:
            total = total * size_count(dim)
        return total

    available = Count()
    for output in program.outputs:
        available = available + elements(output.node)
    return all(elements(v.node).at_most(available) for v in fold.values)


def _feeding(program: Program) -> dict[Node, set[Node]]:
    """For each node, the reductions that depend on it."""
    above: dict[Node, set[Node]] = {n: set() for n in program.nodes}
    for node in reversed(program.nodes):
        own = above[node] | ({node} if node.bound else set[Node]())
        for access in node.reads:
            above[access.node] |= own
    return above
