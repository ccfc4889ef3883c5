"""From an instance graph and tiles to a kernel of the tile program.

Each value is written once in the loop where it belongs, on demand, so nothing dead is emitted; a loop with
borders is written once per segment, with the masks that the segment's facts decide left out
(design.md, section 4, steps 3 to 5). Names come from the program; output is deterministic.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cleave.errors import Bug, Infeasible
from cleave.ir.dims import Atom, Dim, Index, Part, Parts, Term
from cleave.schedule.affine import Affine, known
from cleave.schedule.bounds import Order, segments
from cleave.schedule.placing import Places, place
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Fill,
    GridAxis,
    Kernel,
    Load,
    Locate,
    Loop,
    Measure,
    ReduceTile,
    Statement,
    Store,
    Tensor,
    Whole,
)
from cleave.schedule.values import (
    ComputeOf,
    ContractOf,
    FillOf,
    Graph,
    LoadOf,
    LocateOf,
    LoopPlan,
    MeasureOf,
    ReduceOf,
    ResultOf,
    StateOf,
    StorePlan,
    Value,
    Work,
    drive,
    renamed,
)


@dataclass(frozen=True, slots=True)
class Tiling:
    """The numbers of one schedule: the grid's indices in order, a tile for every index of the kernel, the
    indices that every block spans, those that play one role together, wishes for a GPU, and the order of the
    stretches of loops."""

    grid: tuple[Index, ...]
    tiles: Mapping[Index, int]
    whole: tuple[Index, ...] = ()
    lanes: tuple[tuple[Index, ...], ...] = ()
    warps: int = 4
    stages: int = 2
    groups: int = 0
    order: Order = Order.FORWARDS


@dataclass(eq=False, slots=True)
class _Scope:
    """A body under construction: one segment of a loop, or the kernel's own."""

    loop: LoopPlan | None
    facts: tuple[Affine, ...]
    body: list[Statement] = field(default_factory=list[Statement])
    names: dict[Value, str] = field(default_factory=dict[Value, str])
    done: set[LoopPlan] = field(default_factory=set[LoopPlan])
    carried: dict[int, str] = field(default_factory=dict[int, str])


class _Writer:
    def __init__(self, graph: Graph, places: Places, tiling: Tiling, sizes: Mapping[Dim, int]) -> None:
        self._graph = graph
        self._places = places
        self._tiling = tiling
        self._sizes = sizes
        self._scopes: list[_Scope] = [_Scope(None, ())]
        self._used: dict[str, int] = {}
        merged = (x.index for x in graph.loops if x.mode == "merge" or x.sequential)
        self._single = {i for i in (*tiling.grid, *merged) if tiling.tiles[i] == 1}
        self.tensors: dict[str, Tensor] = {}
        for _, text in names_of(sorted(tiling.tiles, key=lambda i: i.number)):
            self._used[text] = 0

    def write(self) -> tuple[Statement, ...]:
        """The kernel's body."""
        mapped = [loop for loop in self._graph.loops if loop.mode == "map"]
        for store in self._graph.stores:
            if not any(loop.index in store.axes for loop in mapped):
                drive(self._store(store))
        for loop in mapped:
            if loop not in self._scopes[0].done:
                drive(self._loop(loop, self._scopes[0]))
        return tuple(self._scopes[0].body)

    # ------------------------------------------------------------ names and scopes

    def _name(self, value: Value) -> str:
        match value.op:
            case ComputeOf(fn):
                wish = value.label or fn
            case ContractOf() | ReduceOf():
                wish = value.label or ("dot" if isinstance(value.op, ContractOf) else value.op.kind)
            case FillOf():
                wish = "c"
            case MeasureOf():
                wish = "size"
            case LocateOf():
                wish = "at"
            case _:
                wish = value.label or "x"
        return self._unique(wish)

    def _unique(self, wish: str) -> str:
        base = "".join(ch if ch.isalnum() or ch == "_" else "_" for ch in wish)
        base = base if base and not base[0].isdigit() else f"v_{base}"
        while True:
            count = self._used.get(base)
            self._used[base] = (count or 0) + 1
            name = base if count is None else f"{base}_{count + 1}"
            if name == base or name not in self._used:
                self._used.setdefault(name, 0)
                return name

    def _scope_of(self, loop: LoopPlan | None) -> _Scope:
        for scope in reversed(self._scopes):
            if scope.loop is loop:
                return scope
        raise Bug(f"a value of the loop over {loop.index if loop else None} is used outside of it")

    def _axes(self, axes: Sequence[Index]) -> tuple[Index, ...]:
        return tuple(i for i in axes if i not in self._single)

    # ------------------------------------------------------------ values

    def _simplified(self, value: Value) -> Value:
        """The value with selects and conjunctions that the segment's facts decide left out."""
        facts = tuple(f for scope in self._scopes for f in scope.facts)
        while facts and isinstance(value.op, ComputeOf):
            if value.op.fn == "select":
                holds = known(value.args[0], facts)
                chosen = None if holds is None else value.args[1 if holds else 2]
            elif value.op.fn in ("and", "or"):
                neutral = value.op.fn == "and"
                sides = [known(a, facts) for a in value.args]
                chosen = next((b for a, b in zip(sides, value.args[::-1], strict=True) if a is neutral), None)
            else:
                chosen = None
            if chosen is None or chosen.dtype != value.dtype:
                break
            value = chosen
        return value

    def need(self, value: Value) -> Work[str]:
        """The name of a value, writing it first where it belongs if that has not been done."""
        value = self._simplified(value)
        home = self._scope_of(self._places.home[value])
        name = home.names.get(value)
        if name is not None:
            return name
        if isinstance(value.op, StateOf):
            return self._carried(value.op.slot)
        if isinstance(value.op, ResultOf):
            loop = self._graph.slots[value.op.slot].loop
            if loop not in home.done:
                yield self._loop(loop, home)
            return home.carried[value.op.slot]
        args: dict[Value, str] = {}
        for arg in value.args:
            args[arg] = yield self.need(arg)
        name = self._name(value)
        home.names[value] = name
        home.body.append(self._statement(value, name, args))
        return name

    def _carried(self, slot: int) -> str:
        return next(s.carried[slot] for s in reversed(self._scopes) if slot in s.carried)

    def _statement(self, value: Value, name: str, args: Mapping[Value, str]) -> Statement:
        axes, dtype = self._axes(value.axes), value.dtype
        names = tuple(args[a] for a in value.args)
        match value.op:
            case LoadOf(tensor, terms, guarded):
                self.tensors[tensor.name] = tensor
                placed = tuple(self._named(t, args) for t in terms)
                return Load(name, axes, dtype, tensor.name, placed, guarded)
            case FillOf(number):
                return Fill(name, axes, dtype, number)
            case MeasureOf(size):
                return Measure(name, dtype, size)
            case LocateOf(where):
                return Locate(name, axes, dtype, self._named(where, args))
            case ComputeOf(fn):
                return Compute(name, axes, dtype, fn, names)
            case ReduceOf(kind, over):
                return ReduceTile(name, axes, dtype, kind, over, names[0])
            case ContractOf(over):
                return ContractTile(name, axes, dtype, over, names)
            case StateOf() | ResultOf():
                raise Bug("a carried value is no statement")

    def _named(self, value: Term, args: Mapping[Value, str]) -> Term:
        return renamed(value, {v.key: name for v, name in args.items()}.__getitem__)

    # ------------------------------------------------------------ loops and stores

    def _loop(self, loop: LoopPlan, home: _Scope) -> Work[None]:
        home.done.add(loop)
        tile = self._tiling.tiles[loop.index]
        for slot in loop.slots:
            assert slot.init is not None
            init = yield self._spread(slot.init, slot.axes)
            name = self._unique(slot.label)
            home.carried[slot.number] = name
            home.body.append(Carry(name, self._axes(slot.axes), slot.dtype, init))
        depth = self._scopes.index(home) + 1
        inner, self._scopes = self._scopes[depth:], self._scopes[:depth]
        for segment in segments(loop, tile, self._sizes, self._tiling.order):
            scope = _Scope(loop, segment.facts)
            self._scopes.append(scope)
            updates: list[tuple[str, str]] = []
            for slot in loop.slots:
                assert slot.step is not None
                if slot.step is not slot.old:
                    updates.append((home.carried[slot.number], (yield self.need(slot.step))))
            if loop.mode == "map":
                for store in self._graph.stores:
                    if loop.index in store.axes:
                        yield self._store(store)
            self._scopes.pop()
            body = Loop(
                loop.index,
                tile,
                segment.start,
                segment.stop,
                segment.exact,
                tuple(scope.body),
                tuple(updates),
                segment.closed,
            )
            home.body.append(body)
        self._scopes += inner

    def _spread(self, value: Value, axes: tuple[Index, ...]) -> Work[str]:
        """A value over all of `axes`; literals are written out at that size."""
        if set(self._axes(value.axes)) == set(self._axes(axes)):
            return (yield self.need(value))
        if isinstance(value.op, FillOf):
            wide = self._graph.value(value.op, axes, value.dtype)
        else:
            wide = self._graph.value(ComputeOf("id"), axes, value.dtype, (value,), value.label)
        if wide not in self._places.home:
            loops = [loop for loop in self._graph.loops if loop.index in axes]
            self._places.home[wide] = self._places.deepest(value, loops)
        return (yield self.need(wide))

    def _store(self, store: StorePlan) -> Work[None]:
        home = self._scopes[-1]
        self.tensors[store.tensor.name] = store.tensor
        name = yield self._spread(store.value, store.axes)
        inside = {i for t in store.terms for i in self._graph.term_indices(t)}
        first = tuple(i for i in self._tiling.grid if i not in inside)
        home.body.append(Store(store.tensor.name, store.terms, name, first))


def index_name(index: Index) -> str:
    """A short name for an index, from its dim."""
    dim = index.dim
    while isinstance(dim, Parts | Part):
        dim = dim.of
    text = dim.name.lower() if isinstance(dim, Atom) else "u"
    base = "".join(ch for ch in text if ch.isalnum() or ch == "_")
    return f"{'p_' if isinstance(index.dim, Parts) else ''}{base}"


def names_of(indices: Sequence[Index]) -> tuple[tuple[Index, str], ...]:
    """A name for each index; the second one over a dim gets a number."""
    taken: dict[str, int] = {}
    found: list[tuple[Index, str]] = []
    for index in indices:
        base = index_name(index)
        count = taken.get(base, 0)
        taken[base] = count + 1
        found.append((index, base if not count else f"{base}{count + 1}"))
    return tuple(found)


def write_kernel(
    name: str,
    graph: Graph,
    places: Places,
    tiling: Tiling,
    sizes: Mapping[Dim, int],
    order: Sequence[str],
) -> Kernel:
    """The kernel of a graph under a tiling. `sizes` are those known at compile time; `order` lists the
    names of all tensors of the tile program, in which order the kernel lists those it uses."""
    for index in (*tiling.grid, *tiling.whole, *(x.index for x in graph.loops)):
        if index not in tiling.tiles:
            raise Infeasible(f"no tile for {index} in kernel {name}")
    writer = _Writer(graph, places, tiling, sizes)
    body = writer.write()
    rank = {tensor: number for number, tensor in enumerate(order)}
    tensors = tuple(sorted(writer.tensors.values(), key=lambda t: rank[t.name]))
    grid = tuple(GridAxis(i, tiling.tiles[i]) for i in tiling.grid)
    whole = tuple(Whole(i, tiling.tiles[i]) for i in tiling.whole)
    every = sorted({*tiling.grid, *tiling.whole, *(x.index for x in graph.loops)}, key=lambda i: i.number)
    wishes = (tiling.warps, tiling.stages)
    return Kernel(
        name, tensors, grid, whole, tiling.lanes, body, names_of(every), *wishes, groups=tiling.groups
    )


__all__ = ["Tiling", "names_of", "place", "write_kernel"]
