"""Instantiating nodes: the part of `instance.Builder` that follows operations and their reads.

Every node becomes a value of the kernel's graph, once for the index terms at which it is read. What runs in a
loop (reductions, scans) is asked of the classes derived from this one.
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
from cleave.schedule.horizontal import Source, Sources
from cleave.schedule.specs import Spec
from cleave.schedule.sums import narrowed
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
    Value,
    Work,
)

_LIMIT, _ROOTS = 4000, 4
"""Instances that a kernel may have for every so many results: each is first followed by itself."""


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


class Nodes:
    """The graph of a kernel under construction. `visits` records, per node, at which terms it was read."""

    sources: Sources

    def __init__(self, spec: Spec, dims: Sequence[Dim]) -> None:
        self.spec = spec
        self.graph = Graph()
        self.roots: tuple[Index, ...] = tuple(self.graph.fresh(dim) for dim in dims)
        self.parts: Index | None = None
        self.visits: dict[tuple[str, object], list[tuple[Term, ...]]] = {}
        self.slot_source: dict[int, tuple[Source, str, tuple[Term, ...]]] = {}
        self._sizes: dict[Dim, int] = {a: s for a, s in spec.program.sizes if isinstance(s, int)}
        self._memo: dict[tuple[int, Node, tuple[Term, ...]], Value] = {}
        self._envs: dict[tuple[str, int, str], Env] = {}
        self._loops: dict[tuple[str, frozenset[Index]], LoopPlan] = {}
        self._slots: dict[tuple[int, str, str, tuple[Term, ...]], Slot] = {}
        self._main = self._env("main", "main", None, None)
        self._whole: dict[Dim, list[Index]] = {}

    # ------------------------------------------------------------ what runs in loops

    def _folded(self, source: Source, node: Node, terms: tuple[Term, ...]) -> Work[Value]:
        raise NotImplementedError

    def _state(self, loop: LoopPlan, source: Source, name: str, terms: tuple[Term, ...]) -> Work[Slot]:
        raise NotImplementedError

    def _reduction(
        self, env: Env, node: Node, terms: tuple[Term, ...], bound: dict[Index, Index]
    ) -> Work[Value]:
        raise NotImplementedError

    def _scanned(self, env: Env, scan: ScanLoop, result: int, terms: tuple[Term, ...]) -> Work[Value]:
        raise NotImplementedError

    def _scan_input(self, env: Env, scan: ScanLoop, node: Node, terms: tuple[Term, ...]) -> Work[Value]:
        raise NotImplementedError

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
        limit = _LIMIT * max(1, len(self.spec.roots) // _ROOTS)
        if len(self._memo) > limit:
            raise Infeasible(f"more than {limit} instances in kernel {self.spec.name}")
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
            known = replacement.get(inner.leaf) if isinstance(inner.leaf, Index) else None
            terms.append(known if known is not None else (yield self._term(env, inner, replacement)))
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
            loops = {i for i in where.axes if self.graph.loop_of(i) is not None}
            known = where if loops <= {loop.index, *loop.outer} else None  # where it is says nothing yet
            if known not in loop.supports:
                loop.supports.append(known)
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

    def _as_dtype(self, value: Value, dtype: str) -> Value:
        return value if value.dtype == dtype else self.graph.compute("cast", dtype, (value,))
