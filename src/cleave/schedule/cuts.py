"""Where a candidate is cut into kernels: values that are cheaper to store than to compute again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from cleave.errors import Infeasible
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Dim, size_of
from cleave.ir.loops import Loop, loop_of
from cleave.ir.ops import Contract, Map, Node, Reduce, Scan
from cleave.ir.program import Program
from cleave.schedule.horizontal import group_sources
from cleave.schedule.kernels import input_tensors, output_roots, partition, workspace
from cleave.schedule.machine import Machine
from cleave.schedule.specs import Root, Spec
from cleave.schedule.tiles import Tensor

_OFTEN = 1024
"""Positions of a result that its operand lacks, beyond which several blocks would compute the operand."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Kernels in launch order and the workspaces between them. `form` says in a word how it was cut."""

    form: str
    specs: tuple[Spec, ...]
    workspaces: tuple[Tensor, ...]


def _tops(program: Program) -> dict[Node, Node]:
    """For each reduction, the last node of the pointwise chain behind it that only it feeds."""
    readers: dict[Node, list[Node]] = {}
    for node in program.nodes:
        for access in node.reads:
            readers.setdefault(access.node, []).append(node)
    kept = {output.node for output in program.outputs}
    found: dict[Node, Node] = {}
    for node in program.nodes:
        if not isinstance(node.op, Reduce | Contract):
            continue
        top = node
        while top not in kept and len(set(readers.get(top, []))) == 1:
            reader = readers[top][0]
            if not isinstance(reader.op, Map) or sorted(map(str, reader.dims)) != sorted(map(str, top.dims)):
                break
            top = reader
        found[node] = top
    return found


def plans(candidate: Candidate, sizes: Mapping[Dim, int], machine: Machine) -> tuple[Plan, ...]:
    """Ways to cut the candidate into kernels: not at all, where a large contraction would be computed
    again for each tile of its reader, where an operand would be, with outputs apart that bring reductions of
    their own, and (the way that always works) behind every reduction."""
    program = candidate.program
    small = frozenset(
        index.dim
        for node in program.nodes
        for index in node.bound
        if size_of(index.dim, sizes) <= machine.whole_limit
    )
    tops = _tops(program)
    nested = [tops[node] for node in _nested(candidate, small) if node in tops]
    scans = _scans_to_store(program)
    every = [*tops.values(), *scans]
    outputs = {root.node: root.tensor for root in reversed(output_roots(program)) if root.node is not None}
    found: list[Plan] = []
    refused: Infeasible | None = None
    seen: set[tuple[Node, ...]] = set()
    read = {access.node for node in program.nodes for access in node.reads}
    shared = [node for node in every if node in outputs and node in read]
    ways: list[tuple[str, list[Node]]] = [("one pass", []), ("outputs", shared)]
    # A CPU multiplies what is in its cache; a GPU's matrix units want operands that are loaded as they are.
    operands = _operands(program, sizes) if machine.kind == "cuda" else []
    ways += [("operands", operands), ("cut", nested)]
    ways += [("loops apart", scans), ("step by step", every)]
    for form, nodes in ways:
        cut = tuple(n for n in program.nodes if n in nodes)
        if cut in seen or (form == "outputs" and len(outputs) < 2):
            continue
        seen.add(cut)
        try:
            found.append(_cut(form, candidate, cut, outputs))
        except Infeasible as error:  # the results of a loop are read in another order: they must be stored
            refused = error
            continue
        if form == "one pass" and len(outputs) > 1:
            apart = _cut("apart", candidate, cut, outputs)
            found += [apart] if len(apart.specs) > len(found[0].specs) else []
    if not found and refused is not None:
        raise refused
    return tuple(found)


def _scans_to_store(program: Program) -> list[Node]:
    """The results of loops, if any is read by other than pointwise operations at its own positions."""
    scans = [node for node in program.nodes if isinstance(node.op, Scan)]
    reads = [(n, access) for n in program.nodes for access in n.reads if isinstance(access.node.op, Scan)]
    plain = all(isinstance(n.op, Map) and all(t.variable for t in a.terms) for n, a in reads)
    return [] if plain else scans


def _with_siblings(specs: list[Spec]) -> list[Spec]:
    """Kernels that store the results of one loop become one; results of a loop read nothing of each other."""
    found: list[Spec] = []
    of: dict[Loop, int] = {}
    for spec in specs:
        node = spec.roots[0].node
        loop = loop_of(node.op) if node is not None and isinstance(node.op, Scan) else None
        if loop is not None and loop in of:
            first = found[of[loop]]
            found[of[loop]] = replace(first, roots=(*first.roots, *spec.roots))
            continue
        if loop is not None:
            of[loop] = len(found)
        found.append(spec)
    return found


def _operands(program: Program, sizes: Mapping[Dim, int]) -> list[Node]:
    """Operands of contractions that take a reduction to compute, but no contraction, and that many blocks
    would compute again, each for its own tile of the result."""
    below: dict[Node, set[str]] = {}
    for node in program.nodes:
        below[node] = set[str]().union(*(below[access.node] for access in node.reads))
        if isinstance(node.op, Reduce | Contract):
            below[node].add("reduce" if isinstance(node.op, Reduce) else "contract")
    found: dict[Node, None] = {}
    for node in program.nodes:
        for operand in (a.node for a in node.reads) if isinstance(node.op, Contract) else ():
            others = prod(size_of(d, sizes) for d in node.dims if d not in operand.dims)
            if isinstance(operand.op, Map) and below[operand] == {"reduce"} and others > _OFTEN:
                found[operand] = None
    return list(found)


def _nested(candidate: Candidate, small: frozenset[Dim]) -> list[Node]:
    """Reductions that run in a loop of their own inside the loop of a reader."""
    program = candidate.program
    sources = group_sources([o.node for o in program.outputs], candidate.folds, small, {})
    found: dict[Node, None] = {}
    for reader in dict.fromkeys(sources.of.values()):
        stack = [a.node for a in reader.elements]
        seen: set[Node] = set()
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            own = sources.of.get(node)
            if own is not None:
                if any(axis.dim == reader.over for axis in node.axes):
                    found[node] = None
                stack += [a.node for a in own.elements]
            else:
                stack += [a.node for a in node.reads]
    return list(found)


def _cut(form: str, candidate: Candidate, cut: tuple[Node, ...], outputs: Mapping[Node, Tensor]) -> Plan:
    program = candidate.program
    folds = () if form in ("operands", "step by step") else candidate.folds
    tensors = input_tensors(program)
    stored: dict[Node, Tensor] = {}
    specs: list[Spec] = []
    spaces: list[Tensor] = []
    roots = output_roots(program)
    taken = {*tensors, *(r.tensor.name for r in roots)}
    for number, node in enumerate(cut):
        mine = [r for r in roots if r.node is node]
        name = f"k{number + 1}"
        if not mine:
            wish = f"ws_{program.names.get(node, number + 1)}"
            while wish in taken:
                wish += "_"
            taken.add(wish)
            space = workspace(wish, node)
            spaces.append(space)
            mine = [Root(space, tuple(range(len(node.axes))), node)]
        specs.append(Spec(name, program, folds, tuple(mine[:1]), dict(stored), tensors))
        stored[node] = mine[0].tensor
    specs = _with_siblings(specs)
    rest = tuple(r for r in roots if r.node not in stored or stored[r.node] != r.tensor)
    if rest:
        whole = Spec("main", program, folds, rest, dict(stored), tensors)
        groups = partition(whole, form == "apart")
        for number, group in enumerate(groups):
            name = "main" if len(groups) == 1 else f"main{number + 1}"
            specs.append(replace(whole, name=name, roots=group))
    return Plan(form, tuple(specs), tuple(spaces))
