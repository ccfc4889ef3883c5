"""Units: kernels in the making, and how each value is used inside of one.

A *unit* is a vertex alone or a group of them with one result or several. It is a set of vertices: members
that two fusions bring in count once, which is what XLA's CSE inside of groups gives. `Facts` say how a value
is used inside of a unit. Units change only through `state.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cleave.fusion.graph import Graph, Vertex
from cleave.fusion.opcodes import (
    CACHE_BREAKERS,
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


class Facts(NamedTuple):
    """How a value is used in a unit: from which index sources, how often its code is emitted, flags over all
    paths to a result, and how many elements are computed or read."""

    sources: frozenset[int]
    emissions: int
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
    odd: int = 0
    """Members that are not simply elementwise."""
    specials: int = 0
    """Members that could make the kernel follow its input."""
    horizontal: bool = False
    row_count: int = 0
    version: int = 0
    root: Vertex = field(init=False)
    memo: dict[str, tuple[int, object]] = field(default_factory=dict[str, "tuple[int, object]"])
    """What is computed once per version."""
    times: tuple[int, float] = (-1, 0.0)
    reads: tuple[int, float] = (-1, 0.0)
    """Seconds to run alone and to read all operands, each with the version that it was computed for."""

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
            if v.opcode not in POINTWISE or v.opcode == "copy" or v.effect or not v.operands:
                self.odd += 1
            if v.opcode in COUNTED:
                self.shared += shared_memory(v, False)
                self.shared_today += shared_memory(v, True)
                self.reductions += bool(tiled_reduction(v))
                self.heavy |= heavy(v)
                if v.opcode == "reduce":
                    self.reduced = max(self.reduced, reduced_extent(v))
                self.transposed += v.elements if transposes(v) else 0
                self.specials += is_special(v)
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
        self.ends.clear()
        if self.facts:
            self.facts.clear()
            self.demand.clear()
        if len(self.uncounted) < len(self.members):
            self.uncounted = list(self.members)
            self.size = self.splits = 0
        if self.sums:
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
                return Facts(use.sources, use.emissions, use.flags, float(v.elements))
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
        count = sum(1 if s == GROUP else self.facts[s].emissions for s in sources)
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
            count = self.use(n).emissions
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
        heroes = self.heroes()
        return next((h for h in heroes if tiled_reduction(h) or tiled_transpose(h)), heroes[0])

    def natural_kind(self) -> str:
        """`I` if a result's hero follows its input, else `L`."""
        if not self.specials:
            return LOOP
        return INPUT if any(is_special(h) for h in self.heroes()) else LOOP

    def buffer(self) -> tuple[Vertex, Vertex] | None:
        """For a unit that updates an operand in place: the updating vertex and the operand."""
        root = self.root
        if root.opcode not in ("dynamic-update-slice", "scatter") or self.is_multi:
            return None
        target = root.operands[0]
        return None if target.number in self.members else (root, target)

    def is_loop(self) -> bool:
        """A loop group, or a vertex that could be one."""
        return self.kind == LOOP or (not self.kind and loop_fusible(self.root))

    def duplicable(self) -> bool:
        return not self.kind and always_duplicable(self.root)


def is_special(v: Vertex) -> bool:
    """What makes a kernel follow its input: a tiled reduction or transpose, a scatter."""
    return v.opcode in SPECIAL and input_fusible(v)
