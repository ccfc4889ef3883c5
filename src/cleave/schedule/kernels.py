"""Which kernels a candidate becomes: cuts, outputs that share a kernel, and what each kernel spans in full.

A `Plan` is a list of kernels to be (`Spec`), in launch order, with the workspaces between them. The choices
here are structural: where a value goes to memory instead of being computed again by its readers, which
outputs are computed together (`unify`), and for each kernel the forms it can take (`forms`): an index
that is written and also reduced may be kept in full or read twice. Tiles come later (`space.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar, cast

from cleave.errors import Infeasible
from cleave.ir.dims import (
    Atom,
    Dim,
    Extent,
    Index,
    Part,
    Parts,
    Term,
    Union,
    atoms_of,
    size_of,
    substitute,
    var,
)
from cleave.ir.loops import Loop as ScanLoop
from cleave.ir.loops import loops_in
from cleave.ir.ops import Const, Input, Node, Position, Scalar, SizeOf
from cleave.ir.program import Program, sort_nodes
from cleave.schedule.horizontal import Source, joined
from cleave.schedule.instance import Builder
from cleave.schedule.machine import Machine
from cleave.schedule.placing import Places, place
from cleave.schedule.specs import Root, Spec, Split, default_spans, root_nodes
from cleave.schedule.tiles import Tensor
from cleave.schedule.values import ContractOf, Graph, LoadOf, ReduceOf

_MADE = TypeVar("_MADE")
Visits = Mapping[tuple[str, object], Sequence[tuple[Term, ...]]]


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel's graph, where its values belong, its root indices and the index of the block's part."""

    spec: Spec
    graph: Graph
    places: Places
    roots: tuple[Index, ...]
    parts: Index | None
    states: Mapping[int, tuple[Source, str, tuple[Term, ...]]]
    kept: dict[str, object] = field(default_factory=dict[str, object], compare=False)
    """What later stages remember of this kernel: it is scheduled for several sizes."""


# ---------------------------------------------------------------- tensors


def input_tensors(program: Program) -> dict[str, Tensor]:
    """The tensors of a program's arguments, by name, in order."""
    found: dict[str, Tensor] = {}
    for node in program.inputs:
        if isinstance(node.op, Input):
            found[node.op.name] = Tensor(node.op.name, "input", node.dtype, node.op.layout)
        elif isinstance(node.op, Scalar):
            found[node.op.name] = Tensor(node.op.name, "scalar", node.dtype, ())
    return found


def output_roots(program: Program) -> tuple[Root, ...]:
    """The program's outputs as roots, in order."""
    found: list[Root] = []
    for output in program.outputs:
        layout = tuple(tuple(output.node.axes[n].dim for n in group) for group in output.layout)
        order = tuple(n for group in output.layout for n in group)
        found.append(Root(Tensor(output.name, "output", output.node.dtype, layout), order, output.node))
    return tuple(found)


def workspace(name: str, node: Node) -> Tensor:
    """A dense tensor for a node."""
    return Tensor(name, "workspace", node.dtype, tuple((dim,) for dim in node.dims))


# ---------------------------------------------------------------- roots that share a kernel


Unified = tuple[tuple[tuple[int, ...], ...], tuple[Dim, ...], list[Visits]]


def unify(spec: Spec) -> Unified:
    """Root axes that mean the same index. Two axes of two roots are one if the roots read a common node
    with these axes in the same place; the nearest common node counts. Returns, for each root, the numbers
    of its axes' indices, the indices' dims, and what each root reads (nothing for a root by itself)."""
    if len(spec.roots) == 1:
        dims = spec.roots[0].dims
        return (tuple(range(len(dims))),), dims, [{}]
    return _remembered("unify", replace(spec, split=None, spans=(), axes=None, dims=()), _unify)


def _unify(spec: Spec) -> Unified:
    counts = [len(root.dims) for root in spec.roots]
    starts = [sum(counts[:n]) for n in range(len(counts))]
    axes = [tuple(range(start, start + count)) for start, count in zip(starts, counts, strict=True)]
    dims = [dim for root in spec.roots for dim in root.dims]
    visits: list[Visits] = list(Builder(spec, axes, dims).trace())
    leader = list(range(len(dims)))
    order = sorted(range(len(axes)), key=lambda r: (-counts[r], r))
    for place_, b in enumerate(order):
        for a in order[:place_]:
            for key, theirs in visits[b].items():
                for mine in visits[a].get(key, ()):
                    pairs = _paired(mine, theirs[0], axes[a], axes[b])
                    leader = _merged(leader, pairs, axes) or leader
    numbers: dict[int, int] = {}
    for r in order:
        for n in axes[r]:
            numbers.setdefault(_lead(leader, n), len(numbers))
    classes = tuple(tuple(numbers[_lead(leader, n)] for n in own) for own in axes)
    return classes, tuple(dims[n] for n in numbers), visits


def _paired(
    mine: tuple[Term, ...], theirs: tuple[Term, ...], own: Sequence[int], other: Sequence[int]
) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for a, b in zip(mine, theirs, strict=True):
        x, y = a.variable, b.variable
        if x and y and x.number in own and y.number in other and x.dim == y.dim:
            found.append((x.number, y.number))
    return found


def _lead(leader: Sequence[int], n: int) -> int:
    while leader[n] != n:
        n = leader[n]
    return n


def _merged(
    leader: Sequence[int], pairs: Sequence[tuple[int, int]], axes: Sequence[Sequence[int]]
) -> list[int] | None:
    """The axes' leaders where pairs of them are one; None if that would make two axes of any root one, as
    those of `x @ x.T` beside two results with the rows of `x`."""
    after = list(leader)
    for x, y in pairs:
        after[_lead(after, y)] = _lead(after, x)
    apart = all(len({_lead(after, n) for n in own}) == len(own) for own in axes)
    return after if pairs and apart else None


def partition(spec: Spec, apart: bool = False) -> tuple[tuple[Root, ...], ...]:
    """The roots in groups that one kernel computes together: they share work, and all that the smaller
    one runs over, the larger one runs over too. With `apart`, a smaller one also brings no reduction of its
    own: every block of the larger one would compute it again."""
    classes, _, visits = unify(spec)
    order = sorted(range(len(classes)), key=lambda r: (-len(classes[r]), r))
    hosts: list[list[int]] = []
    reach = [_ranges(root, seen) for root, seen in zip(spec.roots, visits, strict=True)]
    scans = [set(loops_in(sort_nodes(root_nodes(root)))) for root in spec.roots]
    narrow = _narrow(spec, scans)
    for r in order:
        for host in hosts:
            h = host[0]
            differ = {*spec.roots[r].dims} ^ {*spec.roots[h].dims}
            if scans[r] & scans[h] and differ <= narrow:
                host.append(r)
                break
            inside = set(classes[r]) <= set(classes[h]) and reach[r] <= reach[h]
            own = apart and len(classes[r]) < len(classes[h]) and _reductions(visits[r]) - visits[h].keys()
            if inside and not own and any(_is_work(key) for key in visits[r] if key in visits[h]):
                host.append(r)
                break
        else:
            hosts.append([r])
    groups = sorted((sorted(host) for host in hosts), key=lambda host: host[0])
    return tuple(tuple(spec.roots[r] for r in host) for host in groups)


def _narrow(spec: Spec, scans: Sequence[set[ScanLoop]]) -> set[Dim]:
    """Dims that the results of one scan may have or lack and still share its kernel: those it runs along, and
    those that a block spans in passing."""
    known = {dim for dim, size in spec.program.sizes if isinstance(size, int) and size <= 16}
    return known | {loop.over for own in scans for loop in own}


def _ranges(root: Root, seen: Visits) -> frozenset[Dim]:
    """The dims that a root runs over: its own and those it reduces."""
    bound = {i.dim for _, node in seen if isinstance(node, Node) for i in node.bound}
    return frozenset({*root.dims, *(d.of if isinstance(d, Part) else d for d in bound)})


def _reductions(seen: Visits) -> set[tuple[str, object]]:
    """What a root reduces."""
    return {key for key in seen if key[0].startswith("state") or (isinstance(key[1], Node) and key[1].bound)}


def _is_work(key: tuple[str, object]) -> bool:
    """Whether reading a node twice is work done twice."""
    kind, node = key
    if kind.startswith("state"):
        return True
    return isinstance(node, Node) and not isinstance(node.op, Const | Scalar | SizeOf | Position)


# ---------------------------------------------------------------- forms of one kernel


def bound_dims(spec: Spec) -> tuple[Dim, ...]:
    """The dims of all bound indices that a kernel's own nodes have, in order."""
    found: dict[Dim, None] = {}
    seen: set[Node] = set()
    stack = [r.node for r in spec.roots if r.node is not None]
    while stack:
        node = stack.pop()
        if node in seen or node in spec.stored:
            continue
        seen.add(node)
        found.update({index.dim: None for index in node.bound})
        stack += [a.node for a in node.reads]
    return tuple(found)


def forms(spec: Spec, sizes: Mapping[Dim, int], machine: Machine) -> tuple[Spec, ...]:
    """The forms a kernel can take: which bound dims it spans in full, and whether an index that is
    written and reduced is one of them, is looped over again, or is spread over blocks."""
    fixed = fixed_atoms(spec.program)
    bound = bound_dims(spec)
    outer = _outer_dims(spec)
    small = [d for d in bound if size_of(d, sizes) <= machine.whole_limit and _fixed(d, fixed)]
    inner = frozenset(d for d in small if d not in outer or size_of(d, sizes) <= 64)
    spaces = list(dict.fromkeys((frozenset(small), inner)))
    classes, dims, _ = unify(replace(spec, whole=inner))
    spec = replace(spec, axes=classes, dims=dims)
    plain = default_spans(spec, dims)
    found = [replace(spec, whole=whole, spans=plain) for whole in spaces]
    found = [sharing(form) for form in found]
    twice = [n for n, dim in enumerate(dims) if dim in bound and dim not in inner]
    if twice:
        n = twice[-1]
        for whole in spaces:
            if dims[n] not in whole:
                spans = tuple("loop" if k == n else "grid" for k in range(len(dims)))
                found.append(replace(spec, whole=whole, spans=spans))
        bounded = isinstance(dims[n], Atom) or _fixed(dims[n], fixed)
        if bounded and size_of(dims[n], sizes) * 4 <= machine.keep_bytes:
            spans = tuple("whole" if k == n else "grid" for k in range(len(dims)))
            found.append(replace(spec, whole=inner | {dims[n]}, spans=spans))
    return tuple(found)


def sharing(spec: Spec) -> Spec:
    """The kernel with one index where a tensor is read along a root's index and, else alike, along one
    that is reduced in full: both then share a load, and every block spans the root's index, too."""
    parts = {part for dim in spec.whole if isinstance(dim, Union) for part in dim.parts}
    axes, dims = _axes(spec)
    candidates = [n for n, dim in enumerate(dims) if dim in spec.whole or dim in parts]
    if not candidates:
        return spec
    spec = replace(spec, axes=axes, dims=dims)
    built = build(spec)
    shared = [n for n in candidates if _read_twice(built, n)]
    plain = default_spans(spec, dims)
    spans = tuple("whole" if n in shared else span for n, span in enumerate(plain))
    return replace(spec, spans=spans) if shared else spec


def _read_twice(built: Built, root: int) -> bool:
    """Whether a tensor is read along a root's index and, else alike, along one that is reduced in full."""
    own = built.roots[root]
    loads = [v.op for v in built.graph.values if isinstance(v.op, LoadOf)]
    mine = {(load.tensor.name, load.terms) for load in loads if any(t.variable == own for t in load.terms)}
    for load in loads:
        for other in built.graph.whole:
            if other.dim == own.dim and other != own:
                renamed = tuple(substitute(t, {other: var(own)}) for t in load.terms)
                if renamed != load.terms and (load.tensor.name, renamed) in mine:
                    return True
    return False


def fixed_atoms(program: Program) -> set[Atom]:
    """The atoms whose size is known at compile time, by itself or from others that are."""
    found = {atom for atom, size in program.sizes if isinstance(size, int)}
    for _ in program.sizes:
        for atom, size in program.sizes:
            if isinstance(size, Extent) and all(a in found for d, _ in size.terms for a in atoms_of(d)):
                found.add(atom)
    return found


def _fixed(dim: Dim, fixed: set[Atom]) -> bool:
    return all(atom in fixed for atom in atoms_of(dim))


def _outer_dims(spec: Spec) -> frozenset[Dim]:
    """The dims of reductions that are not inside another one."""
    found: set[Dim] = set()
    seen: set[Node] = set()
    stack = [r.node for r in spec.roots if r.node is not None]
    while stack:
        node = stack.pop()
        if node in seen or node in spec.stored:
            continue
        seen.add(node)
        if node.bound:
            found |= {index.dim for index in node.bound}
        else:
            stack += [a.node for a in node.reads]
    return frozenset(found)


def _axes(spec: Spec) -> tuple[tuple[tuple[int, ...], ...], tuple[Dim, ...]]:
    if spec.axes is not None:
        return spec.axes, spec.dims
    classes, dims, _ = unify(spec)
    return classes, dims


def build(spec: Spec) -> Built:
    """The graph of a kernel, placed."""
    return _remembered("build", spec, _build)


def _build(spec: Spec) -> Built:
    builder = Builder(spec, *_axes(spec))
    graph = builder.build()
    return Built(spec, graph, place(graph), builder.roots, builder.parts, builder.slot_source)


# ---------------------------------------------------------------- memory

_MOST_REMEMBERED = 1024
_memory: dict[object, tuple[Spec, object]] = {}


def _remembered(what: str, spec: Spec, make: Callable[[Spec], _MADE]) -> _MADE:
    """What was made of an equal spec before: a candidate is scheduled for several sizes, and most of its
    kernels are the same for all of them. Programs and folds count by identity, and are kept alive."""
    key = (
        what,
        spec.name,
        id(spec.program),
        tuple(map(id, spec.folds)),
        tuple(
            (r.tensor, r.order, r.node, r.part, r.state and (id(r.state[0]), r.state[1])) for r in spec.roots
        ),
        tuple(spec.stored.items()),
        spec.whole,
        spec.spans,
        spec.split and (spec.split.members, spec.split.phase, tuple(spec.split.tensors.items())),
        spec.axes,
        spec.dims,
        joined(),
    )
    found = _memory.get(key)
    if found is None:
        if len(_memory) >= _MOST_REMEMBERED:
            _memory.clear()
        found = _memory[key] = (spec, make(spec))
    return cast("_MADE", found[1])


# ---------------------------------------------------------------- split


def splittable(built: Built) -> tuple[frozenset[str], ...]:
    """The loops of a kernel that may be split over blocks, each as the keys of its sources: outermost
    loops that only accumulate."""
    found: dict[frozenset[str], None] = {}
    for loop in built.graph.loops:
        if loop.mode == "whole" and not loop.sequential and built.places.around[loop] is None and loop.slots:
            found[frozenset(built.states[slot.number][0].key for slot in loop.slots)] = None
    return tuple(found)


def split(spec: Spec, members: frozenset[str], taken: Sequence[str]) -> tuple[Spec, Spec, tuple[Tensor, ...]]:
    """The two kernels of a split loop: one that leaves the states of each part in workspaces, one that
    merges them and goes on. `taken` names tensors that exist already."""
    states = _states(spec, members)
    tensors: dict[tuple[str, str], Tensor] = {}
    roots: list[Root] = []
    names = set(taken)
    for source, name in states:
        probe = Root(Tensor("", "workspace", "f32", ()), (), state=(source, name))
        wish = f"part_{name}" if spec.name == "main" else f"part_{spec.name}_{name}"
        while wish in names:
            wish += "_"
        names.add(wish)
        dtype = _state_dtype(source, name)
        space = Tensor(wish, "workspace", dtype, ((Parts(source.over),), *((d,) for d in probe.dims)))
        tensors[source.key, name] = space
        roots.append(Root(space, tuple(range(len(probe.dims))), state=(source, name)))
    part = replace(
        spec,
        name=f"{spec.name}_part",
        roots=tuple(roots),
        spans=(),
        split=Split(members, "part", tensors),
        axes=None,
        dims=(),
    )
    merge = replace(spec, name=f"{spec.name}_merge", split=Split(members, "merge", tensors))
    return sharing(part), _spread(merge), tuple(tensors.values())


def _spread(merge: Spec) -> Spec:
    """A merging kernel that does nothing but merge, with all its indices spread over blocks: what a block of
    the parts spans to share a load, one that merges has no reason to."""
    axes, dims = _axes(merge)
    plain = default_spans(merge, dims)
    if "whole" not in merge.spans or "loop" in (*merge.spans, *plain):
        return merge
    free = replace(merge, axes=axes, dims=dims, spans=plain)
    graph = build(free).graph
    reduces = any(isinstance(v.op, ReduceOf | ContractOf) for v in graph.values)
    return merge if reduces or any(loop.mode != "merge" for loop in graph.loops) else free


def _states(spec: Spec, members: frozenset[str]) -> list[tuple[Source, str]]:
    """The states that a merging kernel reads, in order."""
    probe = replace(spec, split=Split(members, "merge", _Anything()))
    builder = Builder(probe, *_axes(spec))
    graph = builder.build()
    wanted = {v.op.tensor.name for v in graph.values if isinstance(v.op, LoadOf)}
    found: dict[tuple[str, str], tuple[Source, str]] = {}
    for number, (source, name, terms) in builder.slot_source.items():
        if source.key not in members or graph.slots[number].loop.mode != "merge":
            continue
        if any(t.variable is None for t in terms):
            raise Infeasible(f"the state {name} of a split is read at {terms}")
        if f"{source.key} {name}" in wanted:
            found.setdefault((source.key, name), (source, name))
    return list(found.values())


class _Anything(dict[tuple[str, str], Tensor]):
    """A workspace for every state, to find out which ones are read."""

    def get(self, key: tuple[str, str], default: object = None) -> Tensor:  # pyright: ignore
        return Tensor(" ".join(key), "workspace", "f32", ())


def _state_dtype(source: Source, name: str) -> str:
    if source.fold is not None:
        return next(o.node.dtype for o in source.fold.init.outputs if o.name == name)
    assert source.node is not None
    return "f32" if source.node.dtype in ("f16", "bf16") else source.node.dtype


__all__ = ["Built", "build", "forms", "partition", "split", "splittable", "unify"]
