"""Frames: which reductions of a program run in one loop (design.md, section 3, Folds).

A *site* is a reduction together with one of its bound indices, the one that a loop would run over. Two sites
over one dim stand in one frame if they read a common upstream value at the same loop index, or if the body
of one reads the result of the other at free indices. Inside a frame sites are *staged*: a site that needs
the finished value of another one stands in a later stage, that is in a loop of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cleave.ir.dims import Dim, Index, Term, term_key, var
from cleave.ir.ops import FLOATS, Access, Const, Map, Node, Position, Scalar, SizeOf
from cleave.ir.program import Program

LIMIT = 4000
"""Accesses visited upstream of one site; beyond it the rest counts as not shared (sound: fewer frames)."""

Key = tuple[str, tuple[bool, ...]]


@dataclass(frozen=True, slots=True)
class Site:
    """A reduction node and the bound index that the loop runs over."""

    node: Node
    loop: Index

    @property
    def over(self) -> Dim:
        return self.loop.dim


@dataclass(slots=True)
class Upstream:
    """What a site's body reads: `shared` keys of values that vary with the loop, `running` reductions over
    the same dim read through pointwise operations at free indices, `finished` ones read in any other way."""

    shared: set[Key] = field(default_factory=set[Key])
    running: dict[Node, None] = field(default_factory=dict[Node, None])
    finished: dict[Node, None] = field(default_factory=dict[Node, None])


@dataclass(frozen=True, slots=True)
class Apart:
    """A site that stands in a later loop: the reductions that it needs finished, and why."""

    site: Site
    needs: tuple[Node, ...]
    why: str


@dataclass(slots=True)
class Stage:
    """Sites that one loop computes, in program order, and why others of their frame stand apart."""

    over: Dim
    sites: list[Site] = field(default_factory=list[Site])
    reads: list[frozenset[Node]] = field(default_factory=list[frozenset[Node]])
    """For each site, the reductions whose running values its body reads."""
    apart: list[Apart] = field(default_factory=list[Apart])

    @property
    def reasons(self) -> list[str]:
        """Why sites of this loop are not in an earlier one, each reason once."""
        return list(dict.fromkeys(a.why for a in self.apart))


def plain(access: Access) -> Access:
    """The access behind identities and casts among floats, which are notes on precision."""
    while isinstance(access.node.op, Map) and access.node.op.fn in ("id", "cast"):
        source = access.node.op.args[0]
        both = access.node.dtype in FLOATS and source.node.dtype in FLOATS
        if not both and not (access.node.op.fn == "id" and access.node.dtype == source.node.dtype):
            break
        access = source.at(at_axes(access))
    return access


def at_axes(access: Access) -> dict[Index, Term]:
    """The replacement that carries the node's axes to the access' terms."""
    return dict(zip(access.node.axes, access.terms, strict=True))


def sites_of(program: Program) -> tuple[Site, ...]:
    """Every reduction of the program with each of its bound indices, in program order."""
    return tuple(Site(node, index) for node in program.nodes for index in node.bound)


def upstream(site: Site) -> Upstream:
    """Walk everything below a site, in the site's own indices."""
    found = Upstream()
    fresh = 1_000_000
    seen: set[tuple[str, tuple[str, ...], bool]] = set()
    stack = [(a, True) for a in reversed(site.node.reads)]
    while stack and len(seen) < LIMIT:
        access, direct = stack.pop()
        node = access.node
        mark = (node.digest, tuple(map(term_key, access.terms)), direct)
        if mark in seen:
            continue
        seen.add(mark)
        at_loop = tuple(t.variable == site.loop for t in access.terms)
        if any(at_loop) and not isinstance(node.op, Const | SizeOf | Position | Scalar):
            found.shared.add((node.digest, at_loop))
        if any(b.dim == site.over for b in node.bound):
            if direct and _at_free_axes(access, site):
                found.running[node] = None
                continue
            found.finished[node] = None
        replacement = at_axes(access)
        for index in node.bound:
            fresh += 1
            replacement[index] = var(Index(index.dim, fresh))
        inner = direct and isinstance(node.op, Map)
        arguments = len(node.args)
        for number, read in reversed(list(enumerate(node.reads))):
            # What a gather reads says where, not what: its value is never a running one.
            stack.append((read.at(replacement), inner and number < arguments))
    return found


def _at_free_axes(access: Access, site: Site) -> bool:
    variables = [t.variable for t in access.terms]
    return all(v in site.node.axes for v in variables) and len(set(variables)) == len(variables)


def stages(program: Program, rescales: Callable[[Site, frozenset[Node]], str]) -> tuple[Stage, ...]:
    """Group the sites of a program into loops. `rescales(site, running)` is empty if the site can be
    computed with running values of the given reductions, else the reason why not."""
    sites = sites_of(program)
    above = {site: upstream(site) for site in sites}
    root = _components(sites, above)
    level: dict[Site, int] = {}
    groups: dict[tuple[Site, int], Stage] = {}
    order = _Order()
    for site in sites:
        mates = [s for s in level if root[s] == root[site]]
        least, needs, why = _level(site, above[site], mates, level, rescales)
        while not order.place(site, (root[site], least)):
            needs = tuple(above[site].running)
            least, why = least + 1, "needs a value from outside its loop that needs the loop's own first"
        level[site] = least
        group = groups.setdefault((root[site], least), Stage(site.over))
        group.sites.append(site)
        group.reads.append(frozenset(above[site].running))
        if why:
            group.apart.append(Apart(site, needs, why))
    return tuple(groups.values())


class _Order:
    """Which loops need finished values of which others, so that none needs its own."""

    def __init__(self) -> None:
        self.of: dict[Node, list[tuple[Site, int]]] = {}
        self.needs: dict[tuple[Site, int], set[tuple[Site, int]]] = {}

    def place(self, site: Site, loop: tuple[Site, int]) -> bool:
        """Put a site into a loop, unless the loop would need its own values first."""
        needed = self._outside(site, loop)
        reached, stack = set(needed), list(needed)
        while stack:
            more = self.needs[stack.pop()] - reached
            reached |= more
            stack += more
        if loop in reached:
            return False
        self.needs.setdefault(loop, set()).update(needed)
        self.of.setdefault(site.node, []).append(loop)
        return True

    def _outside(self, site: Site, loop: tuple[Site, int]) -> set[tuple[Site, int]]:
        """The loops of the reductions that a site reads, those that its own loop computes left out."""
        found: set[tuple[Site, int]] = set()
        seen: set[Node] = set()
        stack = [a.node for a in site.node.reads]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            loops = self.of.get(node, [])
            if loop not in loops:
                found |= set(loops)
                stack += [] if loops else [a.node for a in node.reads]
        return found


def _level(
    site: Site,
    reads: Upstream,
    mates: list[Site],
    level: dict[Site, int],
    rescales: Callable[[Site, frozenset[Node]], str],
) -> tuple[int, tuple[Node, ...], str]:
    """The first loop that can compute a site; if it is not the first of all, what it waits for and why."""
    own = {s.node: level[s] for s in mates}
    finished = tuple(n for n in reads.finished if n in own)
    running = {n: own[n] for n in reads.running if n in own}
    after = max((own[n] + 1 for n in finished), default=0)
    least = max([after, *running.values()])
    now = tuple(n for n, at in running.items() if at == least)
    failure = rescales(site, frozenset(now)) if now else ""
    while any(s.node is site.node and level[s] == least + bool(failure) for s in mates):
        least += 1
    if failure:
        return least + 1, now, failure
    needs = tuple(n for n in finished if own[n] + 1 == least)
    return least, needs, "needs the finished value of a reduction over the same dim" if needs else ""


def _components(sites: tuple[Site, ...], above: dict[Site, Upstream]) -> dict[Site, Site]:
    parent = {site: site for site in sites}

    def find(site: Site) -> Site:
        while parent[site] != site:
            site = parent[site]
        return site

    owner: dict[tuple[Dim, Key], Site] = {}
    by_node: dict[tuple[Node, Dim], Site] = {}
    for site in sites:
        by_node.setdefault((site.node, site.over), site)
        joined = [owner.setdefault((site.over, key), site) for key in sorted(above[site].shared)]
        joined += [by_node[(n, site.over)] for n in above[site].running if (n, site.over) in by_node]
        for other in joined:
            parent[find(site)] = find(other)
    return {site: find(site) for site in sites}
