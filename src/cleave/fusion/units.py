"""The state of a plan in the making: units, who makes and who reads each value, what each unit computes.

A *unit* is a vertex alone or a group of them with one result or several. It is a set of vertices: fusing P
into C copies P's members into C, and P goes once nothing reads it, so a vertex may be a member of several
units (*duplicated*) but its value is made by one unit at most. Members that two fusions bring in count once,
which is what XLA's CSE inside of groups gives. `Facts` say how a value is used inside of a unit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from cleave.errors import Bug, Invalid
from cleave.fusion.graph import Graph, Vertex, sorted_by_need
from cleave.fusion.opcodes import (
    CACHE_BREAKERS,
    COLUMN,
    POINTWISE,
    always_duplicable,
    expands,
    heavy,
    input_fusible,
    is_bitcast,
    is_pointwise,
    loop_fusible,
    pointwise_in,
    reads_each,
    reduced_extent,
    reuses,
    same_dims,
    shared_memory,
    tiled_reduction,
    tiled_transpose,
    transposes,
)

SPECIAL = frozenset({"reduce", "copy", "transpose", "scatter"})
ROW_STEPS = frozenset({"reduce", "broadcast"})
COUNTED = SPECIAL | {"reduce-window"}
LOOP, INPUT, ROWS = "L", "I", "R"
"""Kinds: a loop over the result, a kernel that follows its input, and ours, which keeps whole rows."""
GROUP = -1
"""The index source that stands for the kernel's own index."""

WHOLE = frozenset({GROUP})
REUSED, EXPANDED, MIXED = 1, 2, 4
"""Flags of a use: elements are read several times, reads multiply, the way is not all elementwise."""


@dataclass(frozen=True, slots=True)
class Facts:
    """How a value is used in a unit: from which index sources, how often its code is emitted, flags over all
    paths to a result, and how many elements are computed or read."""

    sources: frozenset[int]
    count: int
    flags: int
    work: float


@dataclass(slots=True, eq=False)
class Unit:
    """A kernel in the making. `members`, `operands` and `outputs` are vertex numbers; `inner` says which
    members read a vertex. `kind` is empty for a vertex that is no group yet."""

    graph: Graph
    key: int
    members: dict[int, None]
    outputs: list[int]
    kind: str = ""
    operands: dict[int, None] = field(default_factory=dict[int, None])
    inner: dict[int, list[int]] = field(default_factory=dict[int, "list[int]"])
    facts: dict[int, Facts] = field(default_factory=dict[int, Facts])
    demand: dict[int, float] = field(default_factory=dict[int, float])
    ends: dict[int, Vertex] = field(default_factory=dict[int, Vertex])
    uncounted: list[int] = field(default_factory=list[int])
    size: int = 0
    splits: int = 0
    shared: int = 0
    shared_today: int = 0
    reductions: int = 0
    sums: dict[bool, tuple[float, int]] = field(default_factory=dict[bool, "tuple[float, int]"])
    """The operations of the first members, as counted by `cost.py`."""
    reading: dict[int, tuple[Facts, float, float]] = field(
        default_factory=dict[int, tuple[Facts, float, float]]
    )
    """Seconds to read an operand, with the use and the blocks that they were computed for (`cost.py`)."""
    heavy: bool = False
    reduced: int = 0
    """Elements that go into one result of its largest reduction."""
    transposed: int = 0
    """Elements of members that change the order in memory."""
    horizontal: bool = False
    row_count: int = 0
    version: int = 0
    root: Vertex = field(init=False)
    memo: dict[str, tuple[int, object]] = field(default_factory=dict[str, "tuple[int, object]"])
    """What is computed once per version."""

    def __post_init__(self) -> None:
        self.root = self.graph.vertices[self.outputs[0]]

    @property
    def is_group(self) -> bool:
        return bool(self.kind)

    @property
    def is_multi(self) -> bool:
        return len(self.outputs) > 1

    @property
    def name(self) -> str:
        return self.root.name

    def vertices(self) -> list[Vertex]:
        """The members, operands before users."""
        return [self.graph.vertices[n] for n in sorted(self.members)]

    # ------------------------------------------------------------ membership

    def add(self, number: int) -> None:
        """Take a vertex in, after all of its users that are members."""
        self.version += 1
        v = self.graph.vertices[number]
        if number not in self.members:
            self.members[number] = None
            self.uncounted.append(number)
            if v.opcode in COUNTED:
                self.shared += shared_memory(v, False)
                self.shared_today += shared_memory(v, True)
                self.reductions += bool(tiled_reduction(v))
                self.heavy |= heavy(v)
                if v.opcode == "reduce":
                    self.reduced = max(self.reduced, reduced_extent(v))
                self.transposed += v.elements if transposes(v) else 0
        self.operands.pop(number, None)
        for operand in v.operands:
            o = operand.number
            readers = self.inner.setdefault(o, [])
            if number in readers:
                continue
            readers.append(number)
            if o in self.members:
                self.forget()
            else:
                self.operands[o] = None
                self.facts.pop(o, None)

    def forget(self) -> None:
        """Facts are computed afresh: a use was added in the middle, or the kind has changed."""
        self.version += 1
        self.facts.clear()
        self.demand.clear()
        self.ends.clear()
        self.uncounted = list(self.members)
        self.size = self.splits = 0
        self.sums.clear()

    def use(self, number: int) -> Facts:
        """The facts of a member or an operand."""
        facts = self.facts
        if number in facts:
            return facts[number]
        stack = [number]
        while stack:  # users first, without recursion: chains may be long
            waiting = [u for u in self.inner.get(stack[-1], ()) if u not in facts]
            if waiting:
                stack += waiting
            else:
                n = stack.pop()
                if n not in facts:
                    facts[n] = self._computed(n)
        return facts[number]

    def _computed(self, number: int) -> Facts:
        vertices, v = self.graph.vertices, self.graph.vertices[number]
        users = self.inner.get(number, ())
        if not users:
            return Facts(WHOLE, 1, 0, float(v.elements))
        if len(users) == 1 and number not in self.outputs:
            u, use = vertices[users[0]], self.facts[users[0]]
            if u.opcode in POINTWISE and same_dims(u.shape, v.shape):
                if use.work == v.elements or use.sources != WHOLE:
                    return use
                return Facts(use.sources, use.count, use.flags, float(v.elements))
        sources: set[int] = {GROUP} if number in self.outputs else set()
        flags = 0
        for user in users:
            u, use = vertices[user], self.facts[user]
            rows = self.kind == ROWS and u.opcode in ROW_STEPS
            if same_dims(u.shape, v.shape) or u.opcode == "transpose" or rows or self._tiles(u):
                sources |= use.sources
            else:
                sources.add(user)
                amount = use.work * reads_each(u, v)
                self.demand[user] = max(self.demand.get(user, 0.0), amount)
            flags |= use.flags
            if u.opcode not in POINTWISE:
                flags |= MIXED * (not pointwise_in(u, v))
                flags |= REUSED * reuses(u, v) | EXPANDED * expands(u, v)
        work = sum(self.demand.get(s, 0.0) for s in sources if s != GROUP)
        if GROUP in sources:
            work += v.elements
        count = sum(1 if s == GROUP else self.facts[s].count for s in sources)
        return Facts(frozenset(sources), count, flags, float(-(-work // 1)))

    def _tiles(self, v: Vertex) -> bool:
        """Whether the kernel's loop runs over this reduction's input."""
        return v.opcode == "reduce" and self.kind != LOOP and bool(tiled_reduction(v))

    # ------------------------------------------------------------ what follows from the members

    def once(self, what: str) -> Any:
        """A remembered value of the current version, or `None`."""
        found = self.memo.get(what)
        return found[1] if found is not None and found[0] == self.version else None

    def keep(self, what: str, value: Any) -> Any:
        """Remember a value for the current version."""
        self.memo[what] = (self.version, value)
        return value

    def code(self) -> tuple[int, int]:
        """The size of the emitted code, and how often a cache-breaking operation is emitted."""
        for n in self.uncounted:
            count = self.use(n).count
            self.size += count
            if self.graph.vertices[n].opcode in CACHE_BREAKERS:
                self.splits += count
        self.uncounted.clear()
        return self.size, self.splits

    def hero(self, output: int) -> Vertex:
        """The operation that decides how a result's kernel is made: up from the root through light operations
        with one operand that only they read. It may be an operand of the unit, if all of it is light."""
        v = self.ends.get(output) or self.graph.vertices[output]
        while v.number in self.members and not is_special(v) and len(v.operands) == 1:
            above = v.operands[0]
            if not (is_pointwise(v) or is_bitcast(v)) or len(self.inner[above.number]) > 1:
                break
            v = above
        self.ends[output] = v
        return v

    def heroes(self) -> list[Vertex]:
        """For each result its special hero (a tiled reduction or transpose, a scatter) or else itself."""
        found = self.once("heroes")
        if found is None:
            found = self.keep("heroes", [self._special(o) or self.graph.vertices[o] for o in self.outputs])
        return found

    def _special(self, output: int) -> Vertex | None:
        hero = self.hero(output)
        return hero if hero.number in self.members and is_special(hero) else None

    def leading(self) -> Vertex:
        """The hero that fixes the kernel's loops: a tiled one if there is one and the kernel is no loop."""
        if self.kind == LOOP or (not self.kind and self.root.opcode not in COUNTED):
            return self.root
        heroes = self.heroes()
        return next((h for h in heroes if tiled_reduction(h) or tiled_transpose(h)), heroes[0])

    def natural_kind(self) -> str:
        """`I` if a result's hero follows its input, else `L`."""
        return INPUT if any(is_special(h) for h in self.heroes()) else LOOP

    def buffer(self) -> tuple[Vertex, Vertex] | None:
        """For a unit that updates an operand in place: the updating vertex and the operand."""
        root = self.root
        if root.opcode not in ("dynamic-update-slice", "scatter") or self.is_multi:
            return None
        target = root.operands[0]
        return None if target.number in self.members else (root, target)

    def has_column(self) -> bool:
        """Whether a tiled column reduction leads."""
        return tiled_reduction(self.leading()) == COLUMN

    def is_loop(self) -> bool:
        """A loop group, or a vertex that could be one."""
        return self.kind == LOOP or (not self.kind and loop_fusible(self.root))

    def duplicable(self) -> bool:
        return not self.kind and always_duplicable(self.root)


@dataclass(slots=True)
class State:
    """All units of a graph, changed only by `fuse`, `absorb` and `join`."""

    graph: Graph
    units: dict[int, Unit] = field(default_factory=dict[int, Unit])
    maker: dict[int, Unit] = field(default_factory=dict[int, Unit])
    readers: dict[int, dict[int, None]] = field(default_factory=dict[int, "dict[int, None]"])
    results: frozenset[int] = frozenset()
    version: int = 0
    formed: int = 0

    def unit_of(self, name: str) -> Unit:
        """The unit that makes the value of a name."""
        unit = self.maker.get(self.graph.named(name).number)
        if unit is None:
            raise Invalid(f"no unit makes {name} at this point: the log is of another graph or another plan")
        return unit

    def users(self, unit: Unit) -> list[Unit]:
        """The units that read a result of a unit, in order."""
        if len(unit.outputs) == 1:
            return [self.units[key] for key in self.readers[unit.outputs[0]]]
        found: dict[int, None] = {}
        for output in unit.outputs:
            found.update(self.readers[output])
        return [self.units[key] for key in found]

    def is_read(self, unit: Unit) -> bool:
        """Whether a unit reads it."""
        return any(self.readers[output] for output in unit.outputs)

    def is_result(self, unit: Unit) -> bool:
        """Whether one of its values is a result of the graph."""
        return any(o in self.results for o in unit.outputs)

    def in_tuple(self, unit: Unit) -> bool:
        """Whether one of its values goes into the tuple of results."""
        return self.graph.root is None and self.is_result(unit)

    def is_root(self, unit: Unit) -> bool:
        """Whether it makes the only result."""
        return self.graph.root is not None and self.is_result(unit)

    def count_users(self, unit: Unit) -> int:
        """Units that read it, and the tuple of results."""
        if len(unit.outputs) == 1:
            return len(self.readers[unit.outputs[0]]) + self.in_tuple(unit)
        return len(self.users(unit)) + self.in_tuple(unit)

    def real_users(self, number: int) -> int:
        """Operations that read a value, members of groups counted one by one."""
        return sum(len(self.units[k].inner[number]) for k in self.readers[number]) + (
            number in self.results and self.graph.root is None
        )

    def operands(self, unit: Unit) -> list[Unit]:
        """The units that make what a unit reads, each once, in order of reading."""
        maker = self.maker
        if len(unit.operands) < 2:
            return [maker[o] for o in unit.operands]
        return list(dict.fromkeys(maker[o] for o in unit.operands))

    # ------------------------------------------------------------ changes

    def wrap(self, unit: Unit) -> None:
        """Make a vertex a group of its own."""
        if not unit.kind:
            unit.kind = unit.natural_kind()
            unit.forget()

    def fuse(self, producer: Unit, consumer: Unit) -> None:
        """Copy the producer into the consumer, and drop it if nothing reads it any more."""
        was = consumer.kind
        self._take(producer, consumer)
        kind = consumer.natural_kind()
        if kind != was and was != ROWS:
            self._rekind(consumer, kind if not was or kind == INPUT else was)
        if not self.is_read(producer) and not self.is_result(producer):
            self.drop(producer)

    def absorb(self, producer: Unit, consumer: Unit) -> None:
        """Join a producer with one of its consumers; the values of both are results of the kernel."""
        self._take(producer, consumer)
        self._unite(producer, consumer)

    def join(self, left: Unit, right: Unit, horizontal: bool = False) -> None:
        """Join two units that do not depend on each other."""
        self._take(right, left)
        self._unite(right, left)
        if horizontal:
            left.horizontal, left.kind = True, INPUT

    def _unite(self, gone: Unit, kept: Unit) -> None:
        outputs: list[int] = []
        made = gone.outputs
        self.drop(gone)
        for output in made:
            self.readers[output].pop(kept.key, None)
            if self.readers[output] or output in self.results or output not in kept.inner:
                self.maker[output] = kept
                outputs.append(output)
        kept.outputs += outputs
        kept.forget()
        if kept.kind != ROWS:
            self._rekind(kept, kept.natural_kind())

    def _rekind(self, unit: Unit, kind: str) -> None:
        if unit.kind != kind:
            unit.kind = kind
            unit.forget()

    def keep_rows(self, producer: Unit, consumer: Unit, rows: int) -> None:
        """Join a producer with a consumer in a kernel that keeps whole rows of both."""
        consumer.kind, consumer.row_count = ROWS, rows
        self.absorb(producer, consumer)

    def _take(self, source: Unit, target: Unit) -> None:
        before = dict(target.operands)
        new = [m for m in source.members if m not in target.members]
        for member in sorted(new, reverse=True) if len(new) > 1 else new:
            target.add(member)
        for operand in before:
            if operand not in target.operands:
                self.readers[operand].pop(target.key, None)
        for operand in target.operands:
            if operand not in before:
                self.readers[operand][target.key] = None
        self.version += 1

    def drop(self, unit: Unit) -> None:
        """Forget a unit whose values nothing needs."""
        for operand in unit.operands:
            self.readers[operand].pop(unit.key, None)
        for output in unit.outputs:
            self.maker.pop(output, None)
        del self.units[unit.key]

    # ------------------------------------------------------------ orders

    def post_order(self) -> list[Unit]:
        """Units, operands before users, depth first from the results and then from what nothing reads."""
        done: dict[int, Unit] = {}
        ends = [self.maker[o.number] for o in self.graph.outputs]
        ends += [u for u in self.units.values() if not self.is_read(u)]
        for end in ends:
            stack: list[tuple[Unit, bool]] = [(end, False)]
            while stack:
                unit, ready = stack.pop()
                if unit.key in done:
                    continue
                if ready:
                    done[unit.key] = unit
                    continue
                stack.append((unit, True))
                stack += [(o, False) for o in reversed(self.operands(unit)) if o.key not in done]
        return list(done.values())

    def sweep(self) -> Iterator[Unit]:
        """Units in reverse post order as it was at the start, those that are gone left out."""
        for unit in reversed(self.post_order()):
            if unit.key in self.units:
                yield unit


def is_special(v: Vertex) -> bool:
    """What makes a kernel follow its input: a tiled reduction or transpose, a scatter."""
    return v.opcode in SPECIAL and input_fusible(v)


def start(graph: Graph) -> State:
    """The state before any pass: every vertex alone, except for groups that the graph comes with."""
    state = State(graph, results=frozenset(o.number for o in graph.outputs))
    state.readers = {v.number: {} for v in graph.vertices}
    inside: set[int] = set()
    for formed in graph.formed:
        made = {o.number for o in formed.outputs}
        inside |= {m.number for m in formed.members} - made
        _new(state, [m.number for m in formed.members], [o.number for o in formed.outputs], formed.kind)
    grouped = {o.number for f in graph.formed for o in f.outputs}
    for v in graph.vertices:
        if v.number in grouped:
            continue
        outside = any(u not in inside and u not in grouped for u in graph.users[v.number])
        if v.number in inside and not outside and v not in graph.outputs and not _read(state, v.number):
            continue
        _new(state, [v.number], [v.number], "")
    for unit in state.units.values():
        for operand in unit.operands:
            state.readers[operand][unit.key] = None
    _verify(state)
    return state


def _read(state: State, number: int) -> bool:
    return any(number in unit.operands for unit in state.units.values())


def _new(state: State, members: Iterable[int], outputs: list[int], kind: str) -> None:
    unit = Unit(state.graph, state.formed, {}, outputs, kind)
    state.formed += 1
    for member in sorted(members, reverse=True):
        unit.add(member)
    state.units[unit.key] = unit
    for output in outputs:
        if output in state.maker:
            raise Invalid(f"two groups make {state.graph.vertices[output].name}")
        state.maker[output] = unit


def _verify(state: State) -> None:
    if not state.graph.formed:
        return
    wanted: dict[str, list[str]] = {}
    for unit in state.units.values():
        for operand in unit.operands:
            if operand not in state.maker:
                name = state.graph.vertices[operand].name
                raise Invalid(f"group {unit.name} reads {name}, which is inside of another group")
        wanted[unit.name] = [state.maker[o].name for o in unit.operands]
    sorted_by_need(wanted, wanted, f"graph {state.graph.name}, with its groups,")


def check(state: State) -> None:
    """Raise `Bug` unless every value that is read is made, and no two units wait for each other."""
    wanted: dict[str, list[str]] = {}
    for unit in state.units.values():
        missing = [o for o in unit.operands if o not in state.maker]
        if missing:
            raise Bug(f"unit {unit.name} reads {state.graph.vertices[missing[0]].name}, which no unit makes")
        wanted[unit.name] = [state.maker[o].name for o in unit.operands]
    missing = [o for o in state.results if o not in state.maker]
    if missing:
        raise Bug(f"no unit makes the result {state.graph.vertices[missing[0]].name}")
    try:
        sorted_by_need(wanted, wanted, "the plan")
    except Invalid as error:
        raise Bug(str(error)) from error
