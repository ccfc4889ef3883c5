"""Demand-driven instantiation: from the nodes of a candidate to the instance graph of one kernel.

Starting at the kernel's roots with kernel indices for their axes, every node is instantiated at the index
terms at which it is read, once per (node, terms). A reduction whose index the kernel spans in full becomes
a statement over it; any other runs in a loop, through its Fold (`horizontal.Source`): its states are
the closure of what the wanted value needs through `step`. Nothing here knows a tile or a model operation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cleave.errors import Bug, Infeasible
from cleave.ir.dims import (
    Dim,
    Gather,
    Index,
    Inject,
    Join,
    Leaf,
    Lookup,
    Part,
    Parts,
    Term,
    Union,
    extent,
    term,
    var,
)
from cleave.ir.loops import Loop as ScanLoop
from cleave.ir.loops import loop_of as scan_of
from cleave.ir.ops import (
    Access,
    Cat,
    Const,
    Contract,
    Input,
    Map,
    Node,
    Position,
    Reduce,
    Scalar,
    Scan,
    SizeOf,
)
from cleave.schedule.horizontal import Source, Sources, group_sources
from cleave.schedule.specs import Root, Spec, default_spans, output_of, pieces_of, root_nodes
from cleave.schedule.sums import COMBINE, identity, narrowed, product, sum_up, wide_dtype
from cleave.schedule.terms import inside, lower
from cleave.schedule.tiles import Tensor
from cleave.schedule.values import (
    FillOf,
    Graph,
    LoadOf,
    LocateOf,
    LoopPlan,
    MeasureOf,
    ReduceOf,
    Slot,
    StorePlan,
    Value,
    Work,
    drive,
)

_LIMIT = 4000


@dataclass(eq=False, slots=True)
class Env:
    """Where the inputs of a program come from. `kind` tells environments of one sort apart by text."""

    kind: str
    serial: int
    phase: str
    loop: LoopPlan | None = None
    source: Source | None = None
    pieces: dict[Dim, Index] = field(default_factory=dict[Dim, Index])
    scan: ScanLoop | None = None
    outer: Env | None = None
    """For the body of a scan: the scan, and where its arguments are read."""


class Builder:
    """Builds the graph of a kernel. `visits` records, per node, at which terms it was read."""

    def __init__(self, spec: Spec, axes: Sequence[Sequence[int]], dims: Sequence[Dim]) -> None:
        self.spec = spec
        self.graph = Graph()
        self.roots: tuple[Index, ...] = tuple(self.graph.fresh(dim) for dim in dims)
        self.parts: Index | None = None
        self.visits: dict[tuple[str, object], list[tuple[Term, ...]]] = {}
        self.slot_source: dict[int, tuple[Source, str, tuple[Term, ...]]] = {}
        self._axes = axes
        self._sizes: dict[Dim, int] = {a: s for a, s in spec.program.sizes if isinstance(s, int)}
        self._memo: dict[tuple[int, Node, tuple[Term, ...]], Value] = {}
        self._envs: dict[tuple[str, int, str], Env] = {}
        self._loops: dict[tuple[str, frozenset[Index]], LoopPlan] = {}
        self._slots: dict[tuple[int, str, str, tuple[Term, ...]], Slot] = {}
        self._main = self._env("main", "main", None, None)
        self._whole: dict[Dim, list[Index]] = {}
        self.sources = self._plan_loops()

    # ------------------------------------------------------------ roots

    def _plan_loops(self) -> Sources:
        spec = self.spec
        spans = spec.spans or default_spans(spec, [index.dim for index in self.roots])
        mapped: list[tuple[Dim, list[Node]]] = []
        for number, (index, span) in enumerate(zip(self.roots, spans, strict=True)):
            if span == "whole":
                self.graph.whole[index] = None
                self._whole.setdefault(index.dim, []).append(index)
            if span == "loop":
                writes = [
                    r.node for r, a in zip(spec.roots, self._axes, strict=True) if r.node and number in a
                ]
                mapped.append((index.dim, writes))
                loop = LoopPlan(index, "map", supports=[None])
                self.graph.loops.append(loop)
        nodes = [n for root in spec.roots for n in root_nodes(root)]
        sources = group_sources(nodes, spec.folds, spec.whole, spec.stored, mapped)
        loops = [loop for loop in self.graph.loops if loop.mode == "map"]
        for number, loop in enumerate(loops):
            self._loops[f"group {sources.group[f'map {number}']}", frozenset()] = loop
        if spec.split and spec.split.phase == "part":
            over = next(s.over for s in self._split_sources(sources))
            self.parts = self.graph.fresh(Parts(over))
        return sources

    def _split_sources(self, sources: Sources) -> list[Source]:
        assert self.spec.split is not None
        members = self.spec.split.members
        found = {s.key: s for s in sources.of.values() if s.key in members}
        for root in self.spec.roots:
            if root.state:
                found[root.state[0].key] = root.state[0]
        if not found:
            raise Infeasible("the reduction to be split is not in this kernel")
        return [found[key] for key in sorted(found)]

    def trace(self) -> list[dict[tuple[str, object], list[tuple[Term, ...]]]]:
        """Instantiate every root; for each, what it reads at which terms, nearest first."""
        found: list[dict[tuple[str, object], list[tuple[Term, ...]]]] = []
        for root, axes in zip(self.spec.roots, self._axes, strict=True):
            self.visits = {}
            drive(self._root(root, tuple(var(self.roots[n]) for n in axes)))
            found.append(self.visits)
        return found

    def build(self) -> Graph:
        """Instantiate every root and note where it is stored."""
        for root, axes in zip(self.spec.roots, self._axes, strict=True):
            indices = tuple(self.roots[n] for n in axes)
            value: Value = drive(self._root(root, tuple(var(i) for i in indices)))
            terms = tuple(var(indices[n]) for n in root.order)
            if root.state and self.parts is not None:
                terms = (var(self.parts), *terms)
            self.graph.stores.append(StorePlan(root.tensor, terms, value, indices))
        return self.graph

    def _root(self, root: Root, terms: tuple[Term, ...]) -> Work[Value]:
        if root.node is not None:
            return self._node(self._main, root.node, terms)
        assert root.state is not None
        source, name = root.state
        return self._after(source, name, terms)

    def _after(self, source: Source, name: str, terms: tuple[Term, ...]) -> Work[Value]:
        loop = self._loop(source, terms)
        if source.fold is not None:
            slot: Slot = yield self._state(loop, source, name, terms)
        else:
            assert source.node is not None
            slot = yield self._plain_state(self._main, loop, source, terms, {})
        return slot.result

    # ------------------------------------------------------------ nodes

    def _env(self, kind: str, phase: str, loop: LoopPlan | None, source: Source | None) -> Env:
        key = (kind, loop.index.number if loop else -1, phase)
        env = self._envs.get(key)
        if env is None:
            env = Env(kind, len(self._envs), phase, loop, source)
            if loop is not None and source is not None and loop.mode != "merge":
                env.pieces[Part(source.over)] = loop.index
            self._envs[key] = env
        return env

    def _node(self, env: Env, node: Node, terms: tuple[Term, ...]) -> Work[Value]:
        read = self.visits.setdefault((env.kind, node), [])
        if terms not in read:
            read.append(terms)
        key = (env.serial, node, terms)
        found = self._memo.get(key)
        if found is not None:
            return found
        if len(self._memo) > _LIMIT:
            raise Infeasible(f"more than {_LIMIT} instances in kernel {self.spec.name}")
        value: Value = yield self._make(env, node, terms)
        if not value.label:
            value.label = self._called(env, node)
        self._memo[key] = value
        return value

    def _called(self, env: Env, node: Node) -> str:
        """What the program that a node belongs to calls it."""
        if env.scan is not None:
            return env.scan.body.names.get(node, "")
        if env.source is None or env.source.fold is None:
            return self.spec.program.names.get(node, "")
        fold = env.source.fold
        programs = {"init": fold.init, "step": fold.step, "merge": fold.merge, "finish": fold.finish}
        return programs[env.phase].names.get(node, "")

    def _make(self, env: Env, node: Node, terms: tuple[Term, ...]) -> Work[Value]:
        graph = self.graph
        if env.phase == "main" and node in self.spec.stored:
            return self._load(self.spec.stored[node], tuple(range(len(terms))), node, terms)
        source = self.sources.of.get(node) if env.phase == "main" else None
        if source is not None and source.fold is not None:
            return (yield self._folded(source, node, terms))
        replacement = dict(zip(node.axes, terms, strict=True))
        match node.op:
            case Input(name, _) | Scalar(name):
                return (yield self._input(env, node, name, terms))
            case Const(number):
                return graph.value(FillOf(number), (), node.dtype)
            case SizeOf(dim):
                if dim in env.pieces:
                    ones = graph.value(FillOf(1), (env.pieces[dim],), node.dtype)
                    return graph.value(ReduceOf("sum", (env.pieces[dim],)), (), node.dtype, (ones,))
                return graph.value(MeasureOf(extent(0, (dim, 1))), (), node.dtype)
            case Position(inner):
                lowered = {a: lower(t, a.dim) for a, t in replacement.items()}
                where: Term = yield self._term(env, inner, lowered)
                args = graph.lookups(where)
                return graph.value(LocateOf(where), graph.term_indices(where), node.dtype, args)
            case Map(fn, accesses):
                values: list[Value] = []
                for access in accesses:
                    values.append((yield self._read(env, access, replacement)))
                if fn == "id" and values[0].dtype == node.dtype:
                    return values[0]
                return graph.compute(fn, node.dtype, tuple(values))
            case Cat(axis, pieces):
                return (yield self._cat(env, node, axis, pieces, replacement))
            case Scan(result=result):
                return (yield self._scanned(env, scan_of(node.op), result, terms))
            case Reduce() | Contract():
                if env.scan is not None:
                    raise Infeasible(
                        f"the body {env.scan.body.name} of a scan reduces in kernel {self.spec.name}"
                    )
                value: Value = yield self._reduction(env, node, terms, {})
                return narrowed(self.graph, value, node.dtype)

    def _read(self, env: Env, access: Access, replacement: Mapping[Index, Term]) -> Work[Value]:
        terms: list[Term] = []
        for inner in access.terms:
            terms.append((yield self._term(env, inner, replacement)))
        return (yield self._node(env, access.node, tuple(terms)))

    def _term(self, env: Env, value: Term, replacement: Mapping[Index, Term]) -> Work[Term]:
        """The term over kernel indices; gathers become looked-up values."""
        leaves: list[tuple[Leaf, int]] = []
        offset = value.offset
        for leaf, factor in value.leaves:
            match leaf:
                case Index():
                    new = replacement[leaf]
                    leaves += [(x, c * factor) for x, c in new.leaves]
                    offset = offset + new.offset * factor
                case Gather(access):
                    looked: Value = yield self._read(env, access, replacement)
                    leaves.append((Lookup(looked.key), factor))
                case Inject(part, inner):
                    within: Term = yield self._term(env, inner, replacement)
                    leaves.append((Inject(part, within), factor))
                case Lookup():
                    leaves.append((leaf, factor))
                case Join():
                    raise Infeasible(f"an access into a partitioned axis in kernel {self.spec.name}")
        return term(*leaves, offset=offset)

    # ------------------------------------------------------------ leaves

    def _input(self, env: Env, node: Node, name: str, terms: tuple[Term, ...]) -> Work[Value]:
        if env.scan is not None:
            return (yield self._scan_input(env, env.scan, node, terms))
        if env.phase == "main" or isinstance(node.op, Scalar):
            return self._load(self.spec.tensors[name], tuple(range(len(terms))), node, terms)
        source, loop = env.source, env.loop
        assert source is not None and source.fold is not None and loop is not None
        fold = source.fold
        if env.phase == "merge" and all(e.name != name for e in fold.elements):
            state = name[2:]
            slot: Slot = yield self._state(loop, source, state, terms)
            if name.startswith("a_"):
                return slot.old
            return self._partial(source, state, node, loop, terms)
        if name in fold.state:
            slot = yield self._state(loop, source, name, terms)
            return slot.result if env.phase == "finish" else slot.old
        element = next((e for e in fold.elements if e.name == name), None)
        if element is None:
            raise Bug(f"step of the fold over {fold.over} reads {name}, neither state nor element")
        replacement = dict(zip(node.axes, terms, strict=True))
        if fold.support is not None and fold.support_of == name:
            where: Value = yield self._read(self._main, fold.support, replacement)
            if where not in loop.supports:
                loop.supports.append(where)
        return (yield self._read(self._main, element.access, replacement))

    def _load(self, tensor: Tensor, order: Sequence[int], node: Node, terms: tuple[Term, ...]) -> Value:
        safe = all(inside(t, a.dim, self._sizes) for t, a in zip(terms, node.axes, strict=True))
        placed = tuple(lower(terms[n], node.axes[n].dim) for n in order)
        axes = tuple(dict.fromkeys(i for t in placed for i in self.graph.term_indices(t)))
        args = tuple(dict.fromkeys(v for t in placed for v in self.graph.lookups(t)))
        return self.graph.value(LoadOf(tensor, placed, not safe), axes, tensor.dtype, args, tensor.name)

    def _partial(
        self, source: Source, state: str, node: Node | None, loop: LoopPlan, terms: tuple[Term, ...]
    ) -> Value:
        """The state of the part that a merging loop looks at."""
        assert self.spec.split is not None
        tensor = self.spec.split.tensors.get((source.key, state))
        if tensor is None:
            raise Infeasible(f"the state {state} of the split over {source.over} is not stored")
        placed = (var(loop.index), *terms)
        axes = tuple(dict.fromkeys(i for t in placed for i in self.graph.term_indices(t)))
        return self.graph.value(LoadOf(tensor, placed, False), axes, tensor.dtype, (), f"part_{state}")

    def _cat(
        self, env: Env, node: Node, axis: int, pieces: Sequence[Access], replacement: Mapping[Index, Term]
    ) -> Work[Value]:
        own = node.axes[axis]
        dim = own.dim
        assert isinstance(dim, Union)
        where = replacement[own]
        leaf = where.leaf
        if isinstance(leaf, Inject):
            inner = {**replacement, Index(dim.parts[leaf.part], axis): leaf.term}
            return (yield self._read(env, pieces[leaf.part], inner))
        if any(isinstance(x, Inject) for x, _ in where.leaves):
            where = lower(where, dim)
        graph = self.graph
        place = graph.value(LocateOf(where), graph.term_indices(where), "i64", graph.lookups(where))
        result: Value | None = None
        for number in reversed(range(len(pieces))):
            part = dim.parts[number]
            before = extent(0, *((p, 1) for p in dim.parts[:number]))
            shifted = term(*where.leaves, offset=where.offset - before)
            piece: Value = yield self._read(env, pieces[number], {**replacement, Index(part, axis): shifted})
            if result is None:
                result = piece
                continue
            border = graph.value(MeasureOf(before + extent(0, (part, 1))), (), "i64")
            here = graph.compute("lt", "bool", (place, border))
            result = graph.compute("select", node.dtype, (here, piece, result))
        if result is None:
            raise Bug("a concatenation of nothing")
        return result

    # ------------------------------------------------------------ scans

    def _scanned(self, env: Env, scan: ScanLoop, result: int, terms: tuple[Term, ...]) -> Work[Value]:
        """A result of a scan: its state after the loop, or what the step at the loop's position hands out."""
        own = terms if result < scan.states else terms[1:]
        if self._sizes.get(scan.over) == 1:  # one step: no loop, no state
            self.visits.setdefault((f"state scan {scan.key}", "step"), []).append(own)
            return (yield self._node(self._scan_env(env, scan, None), scan.body.outputs[result].node, own))
        time = None if result < scan.states else terms[0].variable
        loop = self._scan_loop(env, scan, own, time)
        if time is not None or result >= scan.states:
            self.visits.setdefault((f"state scan {scan.key}", "time"), []).append((terms[0],))
            if time != loop.index:
                raise Infeasible(
                    f"steps of a scan over {scan.over} are read out of order in kernel {self.spec.name}"
                )
            inner = self._scan_env(env, scan, loop)
            return (yield self._node(inner, scan.body.outputs[result].node, own))
        slot: Slot = yield self._scan_state(self._scan_env(env, scan, loop), scan, result, own)
        return slot.result

    def _scan_loop(self, env: Env, scan: ScanLoop, terms: Sequence[Term], time: Index | None) -> LoopPlan:
        """The loop of a scan: the one over the index at which its steps are read, else the one that writes
        along the same dim, else one of its own."""
        loop = self.graph.loop_of(time) if time is not None else None
        if loop is None and env.scan is None:
            loop = next((x for x in self.graph.loops if x.mode == "map" and x.index.dim == scan.over), None)
        if loop is None:
            indices = {i for t in terms for i in self.graph.term_indices(t)}
            inner = {env.loop.index} if env.loop is not None else set[Index]()
            outer = frozenset(i for i in {*indices, *inner} if self.graph.loop_of(i) is not None)
            key = (f"scan {env.serial} {scan.key}", outer)
            loop = self._loops.get(key)
            if loop is None:
                loop = LoopPlan(self.graph.fresh(scan.over), "whole", None, outer)
                self.graph.loops.append(loop)
                self._loops[key] = loop
        loop.sequential = True
        if None not in loop.supports:
            loop.supports.append(None)
        return loop

    def _scan_env(self, env: Env, scan: ScanLoop, loop: LoopPlan | None) -> Env:
        key = (f"scan {env.serial} {scan.key}", loop.index.number if loop else -1, "scan")
        if key not in self._envs:
            self._envs[key] = Env(f"scan {scan.key}", len(self._envs), "scan", loop, scan=scan, outer=env)
        return self._envs[key]

    def _scan_state(self, env: Env, scan: ScanLoop, number: int, terms: tuple[Term, ...]) -> Work[Slot]:
        """The carried tile of a state; what its next value needs is carried too. States are read where they
        are written: an element of one follows from the same element of the others."""
        loop, outer = env.loop, env.outer
        assert loop is not None and outer is not None
        if any(t.leaves and t.variable is None for t in terms) or var(loop.index) in terms:
            raise Infeasible(f"a state of the scan over {scan.over} is read at other positions than its own")
        name = scan.names[number]
        key = (loop.index.number, f"scan {env.serial}", name, terms)
        slot = self._slots.get(key)
        if slot is not None:
            return slot
        self.visits.setdefault((f"state scan {scan.key}", name), []).append(terms)
        node = scan.body.inputs[number]
        axes = tuple(dict.fromkeys(i for t in terms for i in self.graph.term_indices(t)))
        slot = self.graph.slot(loop, name, axes, node.dtype)
        self._slots[key] = slot
        replacement = dict(zip(node.axes, terms, strict=True))
        init: Value = yield self._read(outer, scan.args[number], replacement)
        slot.init = self._as_dtype(init, node.dtype)
        slot.step = yield self._node(env, scan.body.outputs[number].node, terms)
        return slot

    def _scan_input(self, env: Env, scan: ScanLoop, node: Node, terms: tuple[Term, ...]) -> Work[Value]:
        """What a body's input is: the state as it stands, or what the step reads."""
        number = next(n for n, given in enumerate(scan.body.inputs) if given is node)
        replacement = dict(zip(node.axes, terms, strict=True))
        if env.loop is not None and number < scan.states:
            slot: Slot = yield self._scan_state(env, scan, number, terms)
            return slot.old
        assert env.outer is not None
        replacement[scan.time(number)] = var(env.loop.index) if env.loop is not None else term()
        value: Value = yield self._read(env.outer, scan.args[number], replacement)
        return self._as_dtype(value, node.dtype)

    def _as_dtype(self, value: Value, dtype: str) -> Value:
        return value if value.dtype == dtype else self.graph.compute("cast", dtype, (value,))

    # ------------------------------------------------------------ reductions

    def _folded(self, source: Source, node: Node, terms: tuple[Term, ...]) -> Work[Value]:
        fold = source.fold
        assert fold is not None
        loop = self._loop(source, terms)
        name = next(value.name for value in fold.values if value.node is node)
        env = self._env(f"finish {source.key}", "finish", loop, source)
        return (yield self._node(env, output_of(fold.finish, name), terms))

    def _loop(
        self, source: Source, terms: Sequence[Term], extra: Sequence[Index] = (), env: Env | None = None
    ) -> LoopPlan:
        """The loop of a source, read at terms: one per group and set of enclosing loops."""
        indices = {*extra, *(i for t in terms for i in self.graph.term_indices(t))}
        outer = frozenset(i for i in indices if self.graph.loop_of(i) is not None)
        group = self.sources.group.get(source.key)
        inner = f"{env.serial} " if env is not None and env.phase != "main" else ""
        key = f"group {group}" if group is not None and not inner else inner + source.key
        split = self.spec.split
        mode = "whole"
        if split is not None and source.key in split.members:
            key, mode = "split", split.phase
        loop = self._loops.get((key, outer))
        if loop is None:
            over = Parts(source.over) if mode == "merge" else source.over
            loop = LoopPlan(self.graph.fresh(over), mode, self.parts if mode == "part" else None, outer)
            self.graph.loops.append(loop)
            self._loops[key, outer] = loop
        return loop

    def _state(self, loop: LoopPlan, source: Source, name: str, terms: tuple[Term, ...]) -> Work[Slot]:
        key = (loop.index.number, source.key, name, terms)
        slot = self._slots.get(key)
        if slot is not None:
            return slot
        fold = source.fold
        assert fold is not None
        self.visits.setdefault((f"state {source.key}", name), []).append(terms)
        axes = tuple(dict.fromkeys(i for t in terms for i in self.graph.term_indices(t)))
        if loop.index in axes:
            raise Infeasible(f"the state {name} of the fold over {fold.over} is read at its own index")
        begin = output_of(fold.init, name)
        slot = self.graph.slot(loop, name, axes, begin.dtype)
        self._slots[key] = slot
        self.slot_source[slot.number] = (source, name, terms)
        slot.init = yield self._node(self._env(f"init {source.key}", "init", loop, source), begin, terms)
        if loop.mode == "merge":
            env, program = self._env(f"merge {source.key}", "merge", loop, source), fold.merge
        else:
            env, program = self._env(f"step {source.key}", "step", loop, source), fold.step
        slot.step = yield self._node(env, output_of(program, name), terms)
        if fold.support is None and None not in loop.supports:
            loop.supports.append(None)
        return slot

    def _reduction(
        self, env: Env, node: Node, terms: tuple[Term, ...], bound: dict[Index, Index]
    ) -> Work[Value]:
        """A reduction whose bound indices in `bound` run in loops already, in its accumulating dtype."""
        pieces = [] if bound else pieces_of(node, self.spec.whole)
        if pieces:
            kind = node.op.kind if isinstance(node.op, Reduce) else "sum"
            total: Value | None = None
            for piece in pieces:
                value: Value = yield self._reduction(env, piece, terms, bound)
                total = (
                    value if total is None else self.graph.compute(COMBINE[kind], value.dtype, (total, value))
                )
            assert total is not None
            return total
        for index in node.bound:
            if index not in bound and index.dim in env.pieces and env.pieces[index.dim] not in bound.values():
                bound = {**bound, index: env.pieces[index.dim]}
        rest = [n for n, i in enumerate(node.bound) if i not in bound and not self._spanned(i.dim)]
        if not rest:
            return (yield self._direct(env, node, terms, bound))
        if isinstance(node.bound[rest[0]].dim, Part):
            raise Infeasible(
                f"two indices over one piece of {node.bound[rest[0]].dim} in kernel {self.spec.name}"
            )
        source = self.sources.of.get(node) if env.phase == "main" else None
        if source is None or source.fold is not None or source.bound not in rest:
            source = Source(node.bound[rest[0]].dim, len(self.spec.folds), node=node, bound=rest[0])
        loop = self._loop(source, terms, tuple(bound.values()), env)
        slot: Slot = yield self._plain_state(env, loop, source, terms, bound)
        return slot.result

    def _spanned(self, dim: Dim) -> bool:
        """Whether the kernel spans a dim in full; the parts of a union that it spans, too."""
        whole = self.spec.whole
        return dim in whole or any(isinstance(d, Union) and dim in d.parts for d in whole)

    def _plain_state(
        self, env: Env, loop: LoopPlan, source: Source, terms: tuple[Term, ...], bound: dict[Index, Index]
    ) -> Work[Slot]:
        node = source.node
        assert node is not None
        key = (loop.index.number, f"{env.serial} {source.key}", "acc", terms)
        slot = self._slots.get(key)
        if slot is not None:
            return slot
        kind = node.op.kind if isinstance(node.op, Reduce) else "sum"
        axes = tuple(dict.fromkeys(i for t in terms for i in self.graph.term_indices(t)))
        label = self.spec.program.names.get(node, "") or "acc"
        slot = self.graph.slot(loop, label, axes, wide_dtype(node.dtype))
        self._slots[key] = slot
        self.slot_source[slot.number] = (source, "acc", terms)
        self.visits.setdefault((f"state {source.key}", "acc"), []).append(terms)
        slot.init = self.graph.value(FillOf(identity(kind, slot.dtype)), (), slot.dtype)
        if loop.mode == "merge":
            piece = self._partial(source, "acc", None, loop, terms)
        else:
            piece = yield self._reduction(env, node, terms, {**bound, node.bound[source.bound]: loop.index})
        slot.step = self.graph.compute(COMBINE[kind], slot.dtype, (slot.old, piece))
        if None not in loop.supports:
            loop.supports.append(None)
        return slot

    def _direct(
        self, env: Env, node: Node, terms: tuple[Term, ...], bound: dict[Index, Index]
    ) -> Work[Value]:
        """A reduction over indices that have a span here: loops' tiles and whole indices."""
        used = {i for t in terms for i in self.graph.term_indices(t)} | set(bound.values())
        over: list[Index] = []
        replacement = dict(zip(node.axes, terms, strict=True))
        for index in node.bound:
            at = bound.get(index)
            if at is None:
                at = self._whole_index(index.dim, used)
                used.add(at)
            over.append(at)
            replacement[index] = var(at)
        args: list[Value] = []
        for access in node.args:
            args.append((yield self._read(env, access, replacement)))
        if isinstance(node.op, Reduce):
            value = sum_up(self.graph, node.op.kind, tuple(over), args[0], node.dtype)
        else:
            value = product(self.graph, tuple(over), args, node.dtype)
        return value

    def _whole_index(self, dim: Dim, used: set[Index]) -> Index:
        pool = self._whole.setdefault(dim, [])
        free = next((i for i in pool if i not in used), None)
        if free is None:
            free = self.graph.fresh(dim)
            pool.append(free)
            self.graph.whole[free] = None
        return free
