"""Where a candidate is cut into kernels: values that are cheaper to store than to compute again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cleave.errors import Infeasible
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.dims import Dim, Index, Inject, Union, size_of, var
from cleave.ir.loops import Loop, loop_of
from cleave.ir.ops import Cat, Contract, Map, Node, Reduce, Scan, map_node
from cleave.ir.program import Program
from cleave.schedule.horizontal import group_sources
from cleave.schedule.kernels import input_tensors, output_roots, partition, workspace
from cleave.schedule.machine import Machine
from cleave.schedule.operands import operands
from cleave.schedule.specs import Root, Spec
from cleave.schedule.tiles import Tensor


@dataclass(frozen=True, slots=True)
class Plan:
    """Kernels in launch order and the workspaces between them. `form` says in a word how it was cut."""

    form: str
    specs: tuple[Spec, ...]
    workspaces: tuple[Tensor, ...]


def _tops(program: Program) -> dict[Node, Node]:
    """For each reduction, the last of the pointwise operations behind it that only it feeds: what all uses of
    it go through."""
    place = {node: n for n, node in enumerate(program.nodes)}
    readers: dict[Node, list[Node]] = {}
    for node in program.nodes:
        for access in node.reads:
            readers.setdefault(access.node, []).append(node)
    kept = {output.node for output in program.outputs}
    found: dict[Node, Node] = {}
    for node in program.nodes:
        if isinstance(node.op, Reduce | Contract):
            top = node
            while (behind := _behind(top, readers, kept, place)) is not None:
                top = behind
            found[node] = top
    return found


def _behind(
    top: Node, readers: Mapping[Node, Sequence[Node]], kept: Collection[Node], place: Mapping[Node, int]
) -> Node | None:
    """The nearest operation that all uses of a node go through, if only pointwise operations over its dims
    lie between: `x` of `x * sigmoid(x)` is read twice, and what is worth storing is the product."""
    dims = sorted(map(str, top.dims))
    last, ahead = top, set(readers.get(top, ()))
    while ahead and last not in kept:
        node = min(ahead, key=place.__getitem__)
        if not isinstance(node.op, Map) or sorted(map(str, node.dims)) != dims:
            return None
        ahead.remove(node)
        if not ahead:
            return node
        last = node
        ahead.update(readers.get(node, ()))
    return None


def plans(candidate: Candidate, sizes: Mapping[Dim, int], machine: Machine) -> tuple[Plan, ...]:
    """Ways to cut the candidate into kernels: not at all, where a large contraction would be computed
    again for each tile of its reader, where an operand would be, at both, with outputs apart that bring
    reductions of their own, and (the way that always works) behind every reduction."""
    program = candidate.program
    outputs = {root.node: root.tensor for root in reversed(output_roots(program)) if root.node is not None}
    found: list[Plan] = []
    refused: Infeasible | None = None
    seen: set[tuple[Node, ...]] = set()
    for form, nodes, beside in _ways(candidate, sizes, machine, outputs):
        cut = tuple(n for n in program.nodes if n in nodes)
        if cut in seen or (form == "outputs" and len(outputs) < 2):
            continue
        seen.add(cut)
        try:
            found.append(_cut(form, candidate, cut, beside))
        except Infeasible as error:  # the results of a loop are read in another order: they must be stored
            refused = error
            continue
        if form == "one pass" and len(outputs) > 1:
            apart = _cut("apart", candidate, cut)
            found += [apart] if len(apart.specs) > len(found[0].specs) else []
    if not found and refused is not None:
        raise refused
    return tuple(found)


def _ways(
    candidate: Candidate, sizes: Mapping[Dim, int], machine: Machine, outputs: Mapping[Node, Tensor]
) -> list[tuple[str, Sequence[Node], Sequence[Node]]]:
    """The cuts to try: for each its form, the nodes to store, and which of these are plain operands."""
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
    read = {access.node for node in program.nodes for access in node.reads}
    shared = [node for node in every if node in outputs and node in read]
    ways: list[tuple[str, Sequence[Node], Sequence[Node]]] = [("one pass", (), ()), ("outputs", shared, ())]
    made = operands(program, sizes, machine)
    ways += [("operands", made.plain, made.plain), ("cut", nested, ())]
    nested = [*nested, *made.products]
    if machine.kind == "cpu":  # which multiplies what is in its cache as fast as what is loaded as it is
        ways.append(("products", nested, ()))
    made = operands(program, sizes, machine, nested)
    ways += [("operands and cut", (*made.plain, *nested), made.plain)]
    ways += [("loops apart", scans, ()), ("step by step", every, ())]
    return ways


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


def _cut(
    form: str,
    candidate: Candidate,
    cut: tuple[Node, ...],
    beside: Collection[Node] = (),
) -> Plan:
    """The kernels that store the nodes of `cut`, then one or more for what is left of the outputs. First come
    the nodes of `cut` that are `beside`: plain operands, of which those that share work share a kernel. What
    `form`, the word for the cut, changes: `step by step` uses no Folds, `apart` lets no output bring
    reductions of its own into another's kernel, `operands...` keeps Folds that compute nothing stored again.
    `Infeasible` where results of a loop are read in another order than it makes them."""
    program = candidate.program
    folds = () if form == "step by step" else candidate.folds
    tensors = input_tensors(program)
    every, spaces = _roots(program, cut)
    first = tuple(every[node] for node in cut if node in beside)
    specs: list[Spec] = []
    whole = Spec("main", program, folds, first, {}, tensors)
    for group in _together(whole):
        specs.append(replace(whole, name=f"k{len(specs) + 1}", roots=group))
    stored = {node: every[node].tensor for node in cut if node in beside}
    for node in (n for n in cut if n not in beside):
        own = _unbroken(folds, stored) if beside else folds
        specs.append(Spec(f"k{len(specs) + 1}", program, own, (every[node],), dict(stored), tensors))
        stored[node] = every[node].tensor
    specs = _with_siblings(specs)
    rest = tuple(r for r in output_roots(program) if r.node not in stored or stored[r.node] != r.tensor)
    if rest:
        folds = _unbroken(folds, stored) if form.startswith("operands") else folds
        whole = Spec("main", program, folds, rest, stored, tensors)
        groups = partition(whole, form == "apart")
        for number, group in enumerate(groups):
            name = "main" if len(groups) == 1 else f"main{number + 1}"
            specs.append(replace(whole, name=name, roots=group))
    return Plan(form, tuple(specs), tuple(spaces))


def _together(spec: Spec) -> list[tuple[Root, ...]]:
    """The roots in groups that share a kernel. A concatenation is stored part by part where its parts do: a
    block then computes no part at the places of the other ones."""
    if not spec.roots:
        return []
    groups: list[tuple[Root, ...]] = []
    for group in partition(spec, apart=True):
        parts = tuple(part for root in group for part in _parts(root))
        whole = len(parts) > len(group) and len(partition(replace(spec, roots=parts), apart=True)) > 1
        groups.append(group if whole else parts)
    return groups


def _parts(root: Root) -> list[Root]:
    """A root that is pointwise operations of a concatenation as one root for each part, else itself."""
    node = root.node
    axis = _joined(node) if node is not None else None
    if node is None or axis is None:
        return [root]
    dim = node.axes[axis].dim
    assert isinstance(dim, Union)
    found: list[Root] = []
    for number, part in enumerate(dim.parts):
        own = Index(part, axis)
        axes = [*node.axes[:axis], own, *node.axes[axis + 1 :]]
        here = node.read().at({node.axes[axis]: var(Inject(number, var(own)))})
        found.append(replace(root, node=map_node("id", axes, [here], node.dtype), part=(axis, number)))
    return found


def _joined(node: Node) -> int | None:
    """The axis along which a node is pointwise operations of a concatenation; none if it is nothing such."""
    stack, seen = [node], {node}
    while stack:
        top = stack.pop()
        if isinstance(top.op, Cat):
            return top.op.axis
        inner = [a.node for a in top.args if a.node.dims == node.dims and a == a.node.read()]
        stack += [n for n in inner if isinstance(n.op, Map | Cat) and n not in seen]
        seen.update(inner)
    return None


def _roots(program: Program, cut: Sequence[Node]) -> tuple[dict[Node, Root], list[Tensor]]:
    """Where each node of a cut is stored, an output in its place, and the workspaces of the others."""
    roots = output_roots(program)
    taken = {*input_tensors(program), *(r.tensor.name for r in roots)}
    found: dict[Node, Root] = {}
    spaces: list[Tensor] = []
    for number, node in enumerate(cut):
        mine = [r for r in roots if r.node is node]
        if not mine:
            wish = f"ws_{program.names.get(node, number + 1)}"
            while wish in taken:
                wish += "_"
            taken.add(wish)
            spaces.append(workspace(wish, node))
            mine = [Root(spaces[-1], tuple(range(len(node.axes))), node)]
        found[node] = mine[0]
    return found, spaces


def _unbroken(folds: Sequence[Fold], stored: Collection[Node]) -> tuple[Fold, ...]:
    """The Folds that read stored nodes as elements if at all: another one would compute what is stored again,
    from the elements below it."""
    found: list[Fold] = []
    for fold in folds:
        elements = {element.access.node for element in fold.elements}
        seen = {value.node for value in fold.values}
        stack = [access.node for node in seen for access in node.reads]
        broken = False
        while stack and not broken:
            node = stack.pop()
            if node not in elements and node not in seen:
                seen.add(node)
                broken = node in stored
                stack += [access.node for access in node.reads]
        found += [] if broken else [fold]
    return tuple(found)
