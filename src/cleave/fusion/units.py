"""Units: kernels in the making, and how each value is used inside of one.

A *unit* is a vertex alone or a group of them with one result or several. It is a set of vertices: members
that two fusions bring in count once, which is what XLA's CSE inside of groups gives. `Facts` say how a value
is used inside of a unit. Units change only through `state.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

from cleave.fusion.graph import Graph, Vertex
from cleave.fusion.opcodes import (
    CACHE_BREAKERS,
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
MOST_PARTS = 4
"""Parts of a concatenation that XLA has a kernel of its own for."""
GROUP = -1
"""The index source that stands for the kernel's own index."""

WHOLE = frozenset({GROUP})
NOTHING = (0.0, 0)
UNTIMED = -1.0
SOMEWHERE = -1
"""In place of a number: some operands before the last are untimed."""
UNRUN = (-1, 0.0, 0.0, 0.0, 0.0, 0.0)
REUSED, EXPANDED, MIXED = 1, 2, 4
"""Flags of a use: elements are read several times, reads multiply, the way is not all elementwise."""
SAME, ROW_STEP, TILED = 1, 2, 4
"""How a vertex reads an operand: at its own index, along rows, as the loop of a tiled reduction."""


class Facts(NamedTuple):
    """How a value is used in a unit: from which index sources, how often its code is emitted, flags over all
    paths to a result, and how many elements are computed or read. An index source is a user that reads at
    other places than its own or, as today's XLA counts, what is read so."""

    sources: frozenset[int]
    emissions: int
    flags: int
    work: float


_new = tuple.__new__
"""Makes `Facts` without a Python call: there are several for every vertex."""


class Asked(NamedTuple):
    """How a unit reads an operand, for the model: the operand, its bytes, the share of its elements, whether
    at the unit's own index and nowhere else, and how much more than asked is moved."""

    number: int
    bytes: int
    share: float
    straight: bool
    waste: float


@dataclass(slots=True, eq=False)
class Unit:
    """A kernel in the making. `members`, `operands` and `outputs` are vertex numbers; `inner` says which
    members read a vertex. `kind` is empty for a vertex that is no group yet."""

    graph: Graph
    key: int
    members: dict[int, None]
    outputs: list[int]
    kind: str = ""
    today: bool = False
    """Whether uses are counted as today's XLA does: what is not read elementwise is an index source of its
    own, with the sum of its uses. Before, its user was one, with the largest."""
    operands: dict[int, float] = field(default_factory=dict[int, float])
    """What is read, in order, with the seconds that it takes (`cost.py`) or `UNTIMED`."""
    fresh: list[int] = field(default_factory=list[int])
    """Operands that became untimed since all were timed, in order."""
    inner: dict[int, list[int]] = field(default_factory=dict[int, "list[int]"])
    facts: dict[int, Facts] = field(default_factory=dict[int, Facts])
    demand: dict[int, float] = field(default_factory=dict[int, float])
    emitted: dict[int, int] = field(default_factory=dict[int, int])
    """How often an index source is emitted, as today's XLA counts."""
    ends: dict[int, Vertex] = field(default_factory=dict[int, Vertex])
    counted: int = 0
    """The first members, whose code is counted in `size` and `splits`."""
    size: int = 0
    splits: int = 0
    shared: int = 0
    shared_today: int = 0
    reductions: int = 0
    flops: tuple[float, int] = NOTHING
    flops_before: tuple[float, int] = NOTHING
    """The operations of the first members by today's tables and by X23's, as counted by `cost.py`."""
    blocks: float = 0.0
    """The blocks that the times of `operands` were computed for."""
    repeated: tuple[float, int] = (0.0, 0)
    """Operations and code of members that were brought in again (`repeats.py`)."""
    read_again: dict[int, float] = field(default_factory=dict[int, float])
    """Elements of operands that such members read."""
    heavy: bool = False
    scatters: bool = False
    reduced: int = 0
    """Elements that go into one result of its largest reduction."""
    transposed: int = 0
    """Elements of members that change the order in memory."""
    odd: int = 0
    """Members that are not simply elementwise."""
    specials: int = 0
    """Members that could make the kernel follow its input."""
    concats: int = 0
    """Members that concatenate."""
    horizontal: bool = False
    row_count: int = 0
    version: int = 0
    root: Vertex = field(init=False)
    memo: dict[str, tuple[int, object]] = field(default_factory=dict[str, "tuple[int, object]"])
    """What is computed once per version."""
    grid: tuple[int, tuple[float, float]] = (0, (0.0, 0.0))
    """Blocks and threads, with what they were computed for (`cost.py`)."""
    run: tuple[int, float, float, float, float, float] = UNRUN
    """By today's model, for a version: seconds to run alone, seconds of traffic, blocks, threads of each
    and operations (`cost.py`)."""
    reads: tuple[int, float] = (-1, 0.0)
    """Seconds to read all operands, with the version that they were computed for."""
    asked: tuple[int, list[Asked]] = (-1, [])
    """The operands as the model sees them, with the version that they were computed for."""
    gate: tuple[int, bool, bool] = (-1, False, False)
    """Whether it is a simple producer and a simple consumer to `priority.py`, with the version."""

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
        members, operands, inner = self.members, self.operands, self.inner
        if number not in members:
            members[number] = None
            if not v.plain:
                self._count(v)
        operands.pop(number, None)
        for operand in v.operands:
            o = operand.number
            readers = inner.get(o)
            if readers is None:
                inner[o] = [number]
            elif number in readers:
                continue
            else:
                readers.append(number)
            if o in members:
                self.forget()
                operands = self.operands
                continue
            self.fresh.append(SOMEWHERE if o in operands else o)
            operands[o] = UNTIMED
            self.facts.pop(o, None)

    def _count(self, v: Vertex) -> None:
        """What the limits of kernels count of a member that is not simply elementwise."""
        self.odd += 1
        self.concats += v.opcode == "concat"
        if v.opcode not in COUNTED:
            return
        found = self.graph.counts.get(v.number) or counts(self.graph, v)
        shared, today, tiled, long, scatters, reduced, moved, special = found
        self.shared += shared
        self.shared_today += today
        self.reductions += tiled
        self.heavy |= long
        self.scatters |= scatters
        self.reduced = max(self.reduced, reduced)
        self.transposed += moved
        self.specials += special

    def forget(self) -> None:
        """Facts are computed afresh: a use was added in the middle, or the kind has changed."""
        self.version += 1
        self.ends.clear()
        if self.facts:
            self.facts.clear()
            self.demand.clear()
            self.emitted.clear()
            self.operands = dict.fromkeys(self.operands, UNTIMED)
            self.fresh = [SOMEWHERE]
        self.counted = self.size = self.splits = 0
        self.flops = self.flops_before = NOTHING

    def use(self, number: int) -> Facts:
        """The facts of a member or an operand."""
        facts = self.facts
        found = facts.get(number)
        if found is not None:
            return found
        users = self.inner.get(number, ())
        for user in users:
            if user not in facts:
                self._from_below(number, users)
                break
        found = facts[number] = self._computed(number, users)
        return found

    def _from_below(self, number: int, users: Sequence[int]) -> None:
        """The facts of what uses a value, without recursion: chains may be long."""
        facts, inner = self.facts, self.inner
        stack = [number, *[u for u in users if u not in facts]]
        while len(stack) > 1:
            n = stack[-1]
            if n in facts:
                stack.pop()
                continue
            below = inner.get(n, ())
            waiting = [u for u in below if u not in facts]
            if waiting:
                stack += waiting
            else:
                stack.pop()
                facts[n] = self._computed(n, below)

    def _computed(self, number: int, users: Sequence[int]) -> Facts:
        vertices, facts = self.graph.vertices, self.facts
        v = vertices[number]
        if not users:
            return _new(Facts, (WHOLE, 1, 0, float(v.elements)))
        if len(users) > 1 or number in self.outputs:
            return self._of_many(v, users)
        (user,) = users
        u, use = vertices[user], facts[user]
        sources, emissions, flags, work = use
        if u.pointwise and (u.shape is v.shape or same_dims(u.shape, v.shape)):
            if work == v.elements or sources != WHOLE:
                return use
            return _new(Facts, (sources, emissions, flags, float(v.elements)))
        how, more, each, times = self.graph.links.get((number, user)) or link(self.graph, number, user)
        if how & self.inherits():
            if len(sources) > 1:
                return self._of_many(v, users)
            (source,) = sources
            amount = float(v.elements) if source == GROUP else self.amount(source, v)
            return _new(Facts, (sources, emissions, flags | more, float(-(-amount // 1))))
        if self.today:
            amount = self.demand[number] = float(-(-(work * each) // 1)) * times
            self.emitted[number] = emissions = emissions * times
            return _new(Facts, (frozenset((number,)), emissions, flags | more, amount))
        amount = self._demanded(user, work * each)
        return _new(Facts, (frozenset((user,)), emissions, flags | more, float(-(-amount // 1))))

    def _of_many(self, v: Vertex, users: Sequence[int]) -> Facts:
        number, shape, today = v.number, v.shape, self.today
        vertices, facts, links = self.graph.vertices, self.facts, self.graph.links
        sources: set[int] = {GROUP} if number in self.outputs else set()
        flags, inherits = 0, self.inherits()
        own, emitted = 0.0, 0
        for user in users:
            use, u = facts[user], vertices[user]
            flags |= use.flags
            if u.pointwise and (u.shape is shape or same_dims(u.shape, shape)):
                sources |= use.sources
                continue
            how, more, each, times = links.get((number, user)) or link(self.graph, number, user)
            flags |= more
            if how & inherits:
                sources |= use.sources
            elif today:
                own += -(-(use.work * each) // 1) * times
                emitted += use.emissions * times
            else:
                sources.add(user)
                self._demanded(user, use.work * each)
        if emitted:
            sources.add(number)
            self.demand[number], self.emitted[number] = own, emitted
        if len(sources) == 1 and GROUP in sources:
            return _new(Facts, (WHOLE, 1, flags, float(v.elements)))
        work = sum([v.elements if s == GROUP else self.amount(s, v) for s in sources])
        if today:
            count = sum([1 if s == GROUP else self.emitted[s] for s in sources])
        else:
            count = sum([1 if s == GROUP else facts[s].emissions for s in sources])
        return _new(Facts, (frozenset(sources), count, flags, float(-(-work // 1))))

    def amount(self, source: int, v: Vertex) -> float:
        """How many elements of a vertex an index source asks for."""
        found = self.demand.get(source, 0.0)
        if self.today:
            elements = self.graph.vertices[source].elements
            if elements != v.elements:
                return found * v.elements / elements if elements else 0.0
        return found

    def common(self, one: int, two: int) -> float:
        """How much of a value is read for another one already: the share of its elements that both are needed
        for from the same index sources."""
        first, second = self.use(one).sources, self.use(two).sources
        v = self.graph.vertices[one]
        if first == WHOLE or second == WHOLE or not v.elements:
            return 1.0 if GROUP in first and GROUP in second else 0.0
        return sum([1.0 if s == GROUP else self.amount(s, v) / v.elements for s in first & second])

    def _demanded(self, user: int, amount: float) -> float:
        """The most elements that any operand of a user has to give for it."""
        before = self.demand.get(user, 0.0)
        found = self.demand[user] = amount if amount > before else before
        return found

    def inherits(self) -> int:
        """Which users of a value hand their index on to it, in a kernel of this kind."""
        if self.kind == ROWS:
            return SAME | ROW_STEP | TILED
        same = 0 if self.today else SAME
        return same if self.kind == LOOP else same | TILED

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
        if self.counted < len(self.members):
            vertices, facts = self.graph.vertices, self.facts
            for n in islice(self.members, self.counted, None):
                count = (facts.get(n) or self.use(n)).emissions
                self.size += count
                if vertices[n].opcode in CACHE_BREAKERS:
                    self.splits += count
            self.counted = len(self.members)
        return self.size + self.repeated[1], self.splits

    def read_work(self, number: int) -> float:
        """Elements of a value that it reads."""
        work = (self.facts.get(number) or self.use(number)).work
        return work + self.read_again.get(number, 0.0) if self.read_again else work

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
        if not self.specials:
            return [self.graph.vertices[o] for o in self.outputs]
        found = self.once("heroes")
        if found is None:
            found = self.keep("heroes", [self._special(o) or self.graph.vertices[o] for o in self.outputs])
        return found

    def _special(self, output: int) -> Vertex | None:
        hero = self.hero(output)
        return hero if hero.number in self.members and is_special(hero) else None

    def leading(self) -> Vertex:
        """The hero that fixes the kernel's loops: a tiled one if there is one and the kernel is no loop."""
        if self.kind == LOOP or not self.specials:
            return self.root
        found = self.once("leading")
        if found is None:
            heroes = self.heroes()
            tiled = [h for h in heroes if tiled_reduction(h) or tiled_transpose(h)]
            found = self.keep("leading", tiled[0] if tiled else heroes[0])
        return found

    def may_concatenate(self) -> bool:
        """Whether a concatenation may lead it: cheaper to tell than which one does."""
        root = self.root
        light = root.opcode == "concat" or len(root.operands) == 1
        return bool(self.concats) and light and len(self.outputs) == 1

    def concatenation(self) -> Vertex | None:
        """The concatenation that a kernel with one result is made for: today's XLA has a kernel of its own
        for few parts, which goes over the largest."""
        if not self.may_concatenate():
            return None
        hero = self.hero(self.outputs[0])
        fits = hero.opcode == "concat" and hero.number in self.members and len(hero.operands) <= MOST_PARTS
        return hero if fits else None

    def natural_kind(self) -> str:
        """`I` if a result's hero follows its input, else `L`."""
        if not self.specials:
            return LOOP
        for hero in self.heroes():
            if is_special(hero):
                return INPUT
        return LOOP

    def buffer(self) -> tuple[Vertex, Vertex] | None:
        """For a unit that updates an operand in place: the updating vertex and the operand."""
        root = self.root
        if root.opcode not in ("dynamic-update-slice", "scatter") or len(self.outputs) > 1:
            return None
        target = root.operands[0]
        return None if target.number in self.members else (root, target)

    def is_loop(self) -> bool:
        """A loop group, or a vertex that could be one."""
        return self.kind == LOOP or (not self.kind and loop_fusible(self.root))

    def duplicable(self) -> bool:
        return not self.kind and always_duplicable(self.root)


def link(graph: Graph, number: int, user: int) -> tuple[int, int, float, int]:
    """How a vertex reads an operand: `SAME`, `ROW_STEP` and `TILED`, the flags of the use, the elements of
    the operand for each of its own, and as how many of its operands. Kept with the graph."""
    found = graph.links.get((number, user))
    if found is None:
        v, u = graph.vertices[number], graph.vertices[user]
        how = SAME if u.opcode == "transpose" or same_dims(u.shape, v.shape) else 0
        how |= ROW_STEP if u.opcode in ROW_STEPS else 0
        how |= TILED if tiled_reduction(u) else 0
        flags = 0
        if not u.pointwise:
            flags = MIXED * (not pointwise_in(u, v)) | REUSED * reuses(u, v) | EXPANDED * expands(u, v)
        found = graph.links[number, user] = (how, flags, reads_each(u, v), sum(o is v for o in u.operands))
    return found


def counts(graph: Graph, v: Vertex) -> tuple[int, int, bool, bool, bool, int, int, bool]:
    """What a vertex adds to a kernel: shared memory by X23's estimate and by today's, whether it is a tiled
    reduction, heavy, a scatter, its reduced extent, elements that change their order, whether it is special.
    Kept with the graph."""
    found = graph.counts[v.number] = (
        shared_memory(v, False),
        shared_memory(v, True),
        bool(tiled_reduction(v)),
        heavy(v),
        v.opcode == "scatter",
        reduced_extent(v) if v.opcode == "reduce" else 0,
        v.elements if transposes(v) else 0,
        is_special(v),
    )
    return found


def is_special(v: Vertex) -> bool:
    """What makes a kernel follow its input: a tiled reduction or transpose, a scatter."""
    return v.opcode in SPECIAL and input_fusible(v)
