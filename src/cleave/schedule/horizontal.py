"""Which reductions share a loop: horizontal fusion (design.md, section 4, step 3).

A `Source` is a way to run over one dim piece by piece: a Fold of the candidate, or, for a reduction that
no Fold covers, its own associative operation. `group_sources` puts sources over one dim into one loop if
they read a common upstream node and neither needs the finished value of the other; otherwise the second
gets a loop of its own that runs after the first.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from cleave.ir.candidate import Fold
from cleave.ir.dims import Dim, Gather, Index, Inject, Join, Term
from cleave.ir.ops import Access, Const, Contract, Node, Position, Reduce, Scalar, SizeOf

_shared: ContextVar[bool] = ContextVar("_shared", default=True)


@contextmanager
def apart() -> Generator[None]:
    """Within, each source and each map has a loop of its own: what horizontal fusion is measured against."""
    token = _shared.set(False)
    try:
        yield
    finally:
        _shared.reset(token)


def joined() -> bool:
    """Whether sources may share a loop; what is remembered of a schedule depends on it."""
    return _shared.get()


@dataclass(frozen=True, slots=True)
class Source:
    """A Fold (`fold` and its number), or the plain reduction `node` over its bound index `bound`."""

    over: Dim
    number: int
    fold: Fold | None = None
    node: Node | None = None
    bound: int = 0

    @property
    def key(self) -> str:
        """A text that tells sources of one candidate apart."""
        if self.node is not None:
            return f"plain {self.node.digest} {self.bound}"
        return f"fold {self.number}"

    @property
    def elements(self) -> tuple[Access, ...]:
        """What one piece reads of the program."""
        if self.fold is not None:
            return tuple(element.access for element in self.fold.elements)
        return self.node.args if self.node is not None else ()


@dataclass(frozen=True, slots=True)
class Sources:
    """How each looped reduction of a kernel is run (`of`), and the loop (a number) of each source."""

    of: Mapping[Node, Source]
    group: Mapping[str, int]
    after: Mapping[int, frozenset[int]]
    """The loops whose finished values each loop needs, transitively."""


def looped(node: Node, whole: frozenset[Dim]) -> tuple[int, ...]:
    """The bound indices of a node, by position, that its kernel does not span in full."""
    return tuple(n for n, index in enumerate(node.bound) if index.dim not in whole)


def group_sources(
    roots: Sequence[Node],
    folds: Sequence[Fold],
    whole: frozenset[Dim],
    stored: Mapping[Node, object],
    mapped: Sequence[tuple[Dim, Sequence[Node]]] = (),
) -> Sources:
    """Choose a source for each reduction that the roots need, and group sources into loops.

    `stored` nodes are read from memory. Each entry of `mapped` is a loop that writes tiles of roots over
    a dim; it takes part in the grouping under the key `map <number>`."""
    sources = _choose(roots, folds, whole, stored)
    below = _Reach(sources, stored)
    group: dict[str, int] = {}
    members: list[tuple[Dim, list[int]]] = []
    needs: list[set[int]] = []

    def place(key: str, over: Dim, nodes: int, upstream: set[int]) -> None:
        total = set(upstream)
        for g in upstream:
            total |= needs[g]
        for g, (dim, masks) in enumerate(members if joined() else ()):
            if dim == over and g not in total and any(mask & nodes for mask in masks):
                masks.append(nodes)
                group[key] = g
                needs[g] |= total
                for other in needs:
                    if g in other:
                        other |= total
                return
        group[key] = len(members)
        members.append((over, [nodes]))
        needs.append(total)

    for source in _in_order(roots, sources, stored):
        reach = [below.of(a) for a in source.elements]
        upstream = {group[key] for _, keys in reach for key in keys if key in group}
        place(source.key, source.over, _any(nodes for nodes, _ in reach), upstream)
    for number, (dim, writes) in enumerate(mapped):
        reach = [below.of(node.read()) for node in writes]
        upstream = {group[key] for _, keys in reach for key in keys if key in group}
        place(f"map {number}", dim, _any(nodes for nodes, _ in reach), upstream)
    return Sources(sources, group, {g: frozenset(n) for g, n in enumerate(needs)})


def _any(masks: Iterable[int]) -> int:
    total = 0
    for mask in masks:
        total |= mask
    return total


def _choose(
    roots: Sequence[Node], folds: Sequence[Fold], whole: frozenset[Dim], stored: Mapping[Node, object]
) -> dict[Node, Source]:
    """The source of every looped reduction: the Fold with most values of the program, else a plain one."""
    chosen: dict[Node, Source] = {}
    ways: dict[Node, list[int]] = {}
    for number, fold in enumerate(folds):
        for value in fold.values:
            ways.setdefault(value.node, []).append(number)
    stack = list(reversed(roots))
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in seen or node in stored:
            continue
        seen.add(node)
        source: Source | None = None
        open_dims = {node.bound[n].dim for n in looped(node, whole)}
        usable = [n for n in ways.get(node, []) if folds[n].over in open_dims]
        if usable:
            best = max(usable, key=lambda n: (len(folds[n].values), -n))
            source = Source(folds[best].over, best, fold=folds[best])
        elif open_dims and isinstance(node.op, Reduce | Contract):
            first = looped(node, whole)[0]
            source = Source(node.bound[first].dim, len(folds), node=node, bound=first)
        if source is not None:
            chosen[node] = source
        reads = source.elements if source is not None else node.reads
        stack += [n for access in reads for n in _nodes_read(access)]
    return chosen


def _nodes_read(access: Access) -> list[Node]:
    """The node an access reads, and those that its terms look up."""
    probe: list[Node] = [access.node]
    stack = [term for term in access.terms if not isinstance(term.leaf, Index)]
    while stack:
        for inner in gathers_in(stack.pop()):
            probe.append(inner.node)
            stack += inner.terms
    return probe


def gathers_in(value: Term) -> list[Access]:
    """The accesses that a term looks up directly."""
    found: list[Access] = []
    for leaf, _ in value.leaves:
        match leaf:
            case Gather(access):
                found.append(access)
            case Inject(_, inner):
                found += gathers_in(inner)
            case Join(part, within):
                found += gathers_in(part) + gathers_in(within)
            case _:
                pass
    return found


class _Reach:
    """For each node, a bit mask of the nodes and the set of sources at and below it."""

    def __init__(self, sources: Mapping[Node, Source], stored: Mapping[Node, object]) -> None:
        self._sources = sources
        self._stored = stored
        self._bits: dict[Node, int] = {}
        self._known: dict[Node, tuple[int, frozenset[str]]] = {}

    def of(self, access: Access) -> tuple[int, frozenset[str]]:
        parts = [self._node(node) for node in _nodes_read(access)]
        return _any(mask for mask, _ in parts), frozenset(k for _, keys in parts for k in keys)

    def _node(self, root: Node) -> tuple[int, frozenset[str]]:
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self._known:
                stack.pop()
                continue
            below = [] if node in self._stored else self._below(node)
            missing = [n for n in below if n not in self._known]
            if missing:
                stack += missing
                continue
            stack.pop()
            self._known[node] = self._combine(node, below)
        return self._known[root]

    def _below(self, node: Node) -> list[Node]:
        source = self._sources.get(node)
        reads = source.elements if source is not None else node.reads
        return [n for access in reads for n in _nodes_read(access)]

    def _combine(self, node: Node, below: list[Node]) -> tuple[int, frozenset[str]]:
        trivial = isinstance(node.op, Const | Scalar | SizeOf | Position)
        bit = 0 if trivial else 1 << self._bits.setdefault(node, len(self._bits))
        keys = {k for n in below for k in self._known[n][1]}
        source = self._sources.get(node)
        if source is not None and node not in self._stored:
            keys.add(source.key)
        return bit | _any(self._known[n][0] for n in below), frozenset(keys)


def _in_order(
    roots: Sequence[Node], sources: Mapping[Node, Source], stored: Mapping[Node, object]
) -> list[Source]:
    """The sources, each after those whose values its elements need."""
    order: dict[str, Source] = {}
    done: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False) for root in reversed(roots)]
    while stack:
        node, ready = stack.pop()
        if node in stored or (node in done and not ready):
            continue
        source = sources.get(node)
        if ready:
            if source is not None:
                order.setdefault(source.key, source)
            continue
        done.add(node)
        stack.append((node, True))
        reads = source.elements if source is not None else node.reads
        stack += [(n, False) for a in reversed(reads) for n in _nodes_read(a) if n not in done]
    return list(order.values())
