"""Demand-driven instantiation: from the nodes of a candidate to the instance graph of one kernel.

Starting at the kernel's roots with kernel indices for their axes, every node is instantiated at the index
terms at which it is read, once per (node, terms). A reduction whose index the kernel spans in full becomes
a statement over it; any other runs in a loop, through its Fold (`horizontal.Source`): its states are
the closure of what the wanted value needs through `step`. Nothing here knows a tile or a model operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from cleave.errors import Infeasible
from cleave.ir.dims import Dim, Index, Part, Parts, Term, Union, var
from cleave.ir.ops import Input, Node, Reduce
from cleave.schedule.horizontal import Source, Sources, group_sources
from cleave.schedule.nodes import Env
from cleave.schedule.scans import Scans
from cleave.schedule.specs import Root, Spec, default_spans, output_of, pieces_of, root_nodes
from cleave.schedule.sums import COMBINE, identity, product, sum_up, wide_dtype
from cleave.schedule.values import FillOf, Graph, LoopPlan, Slot, StorePlan, Value, Work, drive


class Builder(Scans):
    """Builds the graph of a kernel. `visits` records, per node, at which terms it was read."""

    def __init__(self, spec: Spec, axes: Sequence[Sequence[int]], dims: Sequence[Dim]) -> None:
        super().__init__(spec, dims)
        self._axes = axes
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
            terms = root.places(indices)
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
        pieces = [] if bound or self._loaded(node) else pieces_of(node, self.spec.whole)
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

    def _loaded(self, node: Node) -> bool:
        """Whether all that a reduction reads is in memory as it is, of which a kernel before stored some."""
        stored = self.spec.stored
        loaded = all(a.node in stored or isinstance(a.node.op, Input) for a in node.args)
        return loaded and any(a.node in stored for a in node.args)

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
