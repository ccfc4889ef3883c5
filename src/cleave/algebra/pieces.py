"""A Fold's four programs, written out: init, step, merge, finish (design.md, section 3, Folds).

A state component is a maximum (or another lattice reduction), a plain sum, or a sum around running values.
At each step and merge a sum around `u` becomes `sum_j R_j(u, u') * T_j`, where `T_j` are components too and
`u'` follows from the new state. A running maximum that has seen nothing is -inf: shifts then use 0 in its
place, and what was summed before weighs 0. Any other running value that is not finite yet counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from cleave.algebra.bodies import (
    Elem,
    Exp,
    Factors,
    Gate,
    Gen,
    Poly,
    Run,
    Shift,
    Size,
    unguarded,
)
from cleave.algebra.build import Builder
from cleave.algebra.degenerate import hidden, settled
from cleave.algebra.emission import Emission, View, each_of
from cleave.algebra.frame import Site, Stage, at_axes, plain
from cleave.algebra.lattice import Apply, Free, Leaf, Lifted, frees, leaves
from cleave.algebra.members import Member, closure
from cleave.algebra.moments import LATTICE, Moment, State, reduced
from cleave.algebra.rescaling import Same
from cleave.ir.dims import Dim, Index, Join, Part, Term, indices_of, var
from cleave.ir.ops import Access, Const, Map, Node, Scalar, SizeOf, const, input_node, map_node, size


class Assembly:
    """Collects the components and elements of one stage and writes the programs."""

    def __init__(self, stage: Stage, members: Sequence[Member], dtype: str) -> None:
        self.stage = stage
        self.over: Dim = stage.over
        self.build = Builder(dtype)
        self.emit = Emission(self.build)
        self.members = {m.site.node: m for m in members}
        self.states: dict[str, State] = {}
        self.elements: dict[Access, tuple[str, Node]] = {}
        self._definitions: dict[tuple[Node, str, Factors], Access] = {}
        for member in members:
            self._register(member)

    # ------------------------------------------------------------ components

    def _register(self, member: Member) -> None:
        if member.lifted is not None:
            for leaf in leaves(member.lifted):
                self._state(member, ((Elem(leaf.access), 1),), leaf.kind)
            if any(self._measures(access) for access in frees(member.lifted)):
                self._state(member, (), "count")
        elif not member.terms:
            self._state(member, ())
        for _, outside, inside in member.terms:
            for factors in closure(inside) if member.rescaled else [inside]:
                self._state(member, factors)
            if anything := hidden(self, outside, inside):
                self._state(member, anything, "any")
            for gen in [g for g, _ in outside] + [g for f in closure(inside) for g, _ in f]:
                if self._counts(gen):
                    self._state(member, (), "count")

    def _counts(self, gen: Gen) -> bool:
        """Whether running values inside a factor divide by the size of the folded dim."""
        match gen:
            case Run(access) | Gate(access, _):
                return self._measures(access)
            case Shift(_, run):
                return any(self._counts(g) or g == Size(self.over) for _, f in run for g, _ in f)
            case Exp(arg):
                return any(self._counts(g) for _, f in arg for g, _ in f)
            case _:
                return False

    def _measures(self, access: Access) -> bool:
        op = plain(access).node.op
        if isinstance(op, SizeOf):
            return op.dim == self.over
        return isinstance(op, Map) and any(self._measures(a) for a in op.args)

    def _state(self, member: Member, inside: Factors, kind: str = "") -> State:
        site = member.site
        kind = kind or member.kind
        access = self._definition(site, kind, inside)
        found = self.states.get(access.node.digest)
        if found is None:
            stem = "count" if kind == "count" else kind
            taken = {s.name for s in self.states.values()}
            name = next(n for n in (stem, *(f"{stem}{i}" for i in range(2, 1000))) if n not in taken)
            dtype = self._state_dtype(site.node, kind)
            rescaled = any(isinstance(g, Shift | Exp) for g, _ in inside)
            found = State(name, kind, dtype, access.node, site, inside, rescaled)
            self.states[access.node.digest] = found
        return found

    def _state_dtype(self, node: Node, kind: str) -> str:
        if kind == "any":
            return "bool"
        exact = node.dtype == "bool" or node.dtype[0] in "iu"
        return node.dtype if exact and kind != "count" else self.build.dtype

    def _definition(self, site: Site, kind: str, inside: Factors) -> Access:
        """The component as a reduction of the candidate's own values, in the site's indices."""
        key = (site.node, kind, inside)
        if key not in self._definitions:
            self._definitions[key] = self._define(site, kind, inside)
        return self._definitions[key]

    def _define(self, site: Site, kind: str, inside: Factors) -> Access:
        if kind == "count" or (kind == "sum" and not inside and not _uneven(site)):
            ones = Same(site, self.build.dtype).ones()
            return self._scaled(site, self.build.reduce("sum", (site.loop,), ones), kind)
        if kind != "sum":
            dtype = "bool" if kind == "any" else site.node.dtype
            return self.build.reduce(kind, site.node.bound, reduced(site, inside), dtype)
        return self._emission(site).sum(Same(site, self.build.dtype), inside)

    def _emission(self, site: Site) -> Emission:
        return Emission(Builder(self._state_dtype(site.node, "sum")))

    def _scaled(self, site: Site, total: Access, kind: str) -> Access:
        for index in site.node.bound:
            if index != site.loop and kind != "count":
                total = self.build.mul(total, size(index.dim, self.build.dtype))
        return total

    def read(self, moment: Moment, site: Site, kind: str, inside: Factors) -> Access:
        """A component at a moment, read in the site's indices."""
        definition = self._definition(site, kind, inside)
        node = moment.state(self.states[definition.node.digest])
        return Access(node, (*map(var, moment.extra), *definition.terms))

    def view(self, site: Site, moment: Moment) -> Reading:
        """How a piece is read at a moment."""
        return Reading(self, site, moment) if moment.part is None else _Part(self, site, moment, moment.part)

    # ------------------------------------------------------------ running values

    def value(self, moment: Moment, node: Node) -> Node:
        """A member's value at a moment, over the member's own axes."""
        found = moment.values.get(node)
        if found is not None:
            return found
        member = self.members[node]
        view = self.view(member.site, moment)
        if member.lifted is not None:
            total = self._lifted(view, member, member.lifted)
            for index in member.site.node.bound:
                # Over nothing there is nothing to lift.
                empty = self._empty(member.site, index)
                nothing = self.build.number(-math.inf if member.kind == "max" else math.inf)
                total = self.build.select(empty, nothing, total)
        elif not member.terms:
            total = self.read(moment, member.site, member.kind, ())
        else:
            total = self._total(view, member)
        axes = (*moment.extra, *node.axes)
        whole = total.node.dims == tuple(a.dim for a in axes) and total.terms == tuple(map(var, axes))
        dtype = self._state_dtype(node, member.kind)
        made = total.node if whole else map_node("id", axes, [total], dtype)
        moment.values[node] = made
        return made

    def _empty(self, site: Site, index: Index) -> Access:
        """Does a bound index run over nothing?"""
        each = each_of(index, (*site.node.axes, *site.node.bound), self.build.dtype)
        if each is None:
            count = size(index.dim, self.build.dtype)
        else:
            count = self.build.reduce("sum", [i for i in site.node.bound if i in each.indices], each)
        return self.build.map("eq", count, self.build.number(0.0), dtype="bool")

    def _lifted(self, view: Reading, member: Member, lifted: Lifted) -> Access:
        match lifted:
            case Leaf(kind, access):
                return self.read(view.moment, member.site, kind, ((Elem(access), 1),))
            case Free(access):
                return view.run(access)
            case Apply(fn, args):
                return self.build.map(fn, *(self._lifted(view, member, a) for a in args))

    def _total(self, view: Reading, member: Member) -> Access:
        """A sum's value: its terms, each with what waited until the end. Handed out, it is the program's own
        over nothing, too, where what waits may be 1/0."""
        build, moment = self.build, view.moment
        total = build.number(0.0)
        bare = True
        for coefficient, outside, inside in member.terms:
            summed = self.read(moment, member.site, "sum", inside)
            part = settled(self, view, summed, outside, inside) if moment.last else summed
            part = self._finished(view, part, outside)
            if moment.last and (anything := hidden(self, outside, inside)):
                part = build.select(self.read(moment, member.site, "any", anything), part, build.number(0.0))
            bare = bare and part is summed
            total = build.add(total, build.mul(part, build.number(coefficient)))
        if moment.last and not bare:
            for index in member.site.node.bound:
                empty = self._empty(member.site, index)
                total = build.select(empty, build.number(0.0), total)
        return total

    def _finished(self, view: Reading, part: Access, outside: Factors) -> Access:
        """A sum times what waited until the end; conditions come last, they may hide a quotient 0/0. On the
        way a sum of nothing stays 0 whatever waits: what waits may be 1/0 then."""
        build, summed, waits = self.build, part, False
        for gen, power in outside:
            if isinstance(gen, Gate):
                continue
            assert isinstance(gen, Run | Size)
            waits = True
            value = size(gen.dim, build.dtype) if isinstance(gen, Size) else view.run(gen.access)
            joined = build.power(value, abs(power))
            part = build.div(part, joined) if power < 0 else build.mul(part, joined)
        if waits and view.moment.part is None and not (view.moment.final or view.moment.last):
            nothing = build.map("eq", summed, build.number(0.0), dtype="bool")
            part = build.select(nothing, build.number(0.0), part)
        for gen, _ in outside:
            if isinstance(gen, Gate):
                zero, condition = build.number(0.0), view.run(gen.access)
                part = build.select(condition, *((part, zero) if gen.positive else (zero, part)))
        return part

    def run(self, moment: Moment, site: Site, access: Access) -> Access:
        """A value made of running values, at a moment, in the site's indices."""
        access = plain(access)
        op = access.node.op
        if access.node in self.members:
            return Access(self.value(moment, access.node), (*map(var, moment.extra), *access.terms))
        if isinstance(op, SizeOf):
            if op.dim != self.over:
                return size(op.dim, self.build.dtype)
            if moment.final:
                return size(op.dim, self.build.dtype)
            # What has been seen so far; 1 before that, so that a mean of nothing is 0.
            seen = self.read(moment, site, "count", ())
            return self.build.map("max", seen, self.build.number(1.0))
        if isinstance(op, Const):
            return access if isinstance(op.value, bool) else self.build.number(float(op.value))
        if isinstance(op, Scalar):
            return access
        if not isinstance(op, Map) or not self._follows(access.node):
            return access if moment.final or moment.part is not None else self.element(site, access)
        args = [self.run(moment, site, a.at(at_axes(access))) for a in op.args]
        if op.fn in ("cast", "id"):
            return args[0]
        return self.build.map(op.fn, *args, dtype="bool" if access.node.dtype == "bool" else "")

    def _follows(self, node: Node) -> bool:
        """Does a value change with what has been seen: is it made of members, or of the folded dim's size?"""
        op = node.op
        if node in self.members or (isinstance(op, SizeOf) and op.dim == self.over):
            return True
        return isinstance(op, Map) and any(self._follows(plain(a).node) for a in op.args)

    def lattice_run(self, run: Poly) -> tuple[Fraction, Access, str, bool] | None:
        """Coefficient, read, kind, and whether inf of either sign is guarded against, if running values are
        one running maximum or minimum."""
        if len(run) != 1 or len(run[0][1]) != 1:
            return None
        gen, power = run[0][1][0]
        if not isinstance(gen, Run) or power != 1:
            return None
        access, guard = unguarded(plain(gen.access))
        member = self.members.get(access.node)
        if member is None or member.kind not in ("max", "min"):
            return None
        if guard in ("low", "high") and (guard == "low") != (member.kind == "max"):
            return None  # A guard against the other end, which a Fold has no use for.
        return run[0][0], access, member.kind, guard == "both"

    def shift_value(self, moment: Moment, site: Site, run: Poly, *, raw: bool = False) -> Access:
        """The shift at a moment; 0 where it is not finite because nothing has been seen."""
        build = self.build
        single = self.lattice_run(run)
        if single is not None:
            coefficient, access, kind, both = single
            value = self.run(moment, site, access)
            if not raw:
                nothing = build.number(-math.inf if kind == "max" and not both else math.inf)
                tested = build.map("abs", value) if both else value
                unseen = build.map("eq", tested, nothing, dtype="bool")
                value = build.select(unseen, build.number(0.0), value)
            return build.mul(value, build.number(coefficient))
        value = self.emit.poly(self.view(site, moment), run)
        if self.is_mean(run):
            return value
        if moment.part is not None:
            # The form that is proved, over finite values: what a part has is finite if the part has anything.
            view = self.view(site, moment)
            seen = build.reduce("sum", (view.loop,), view.ones())
            finite = build.map("gt", seen, build.number(0.0), dtype="bool")
        else:
            finite = build.map("lt", build.map("abs", value), build.number(math.inf), dtype="bool")
        return build.select(finite, value, build.number(0.0))

    def is_mean(self, run: Poly) -> bool:
        """Are running values plain sums divided by how many have been seen? They are finite but for none."""
        return all(self._is_mean(gen) for _, factors in run for gen, _ in factors)

    def _is_mean(self, gen: Gen) -> bool:
        access = plain(gen.access) if isinstance(gen, Run) else None
        if access is None or not isinstance(access.node.op, Map) or access.node.op.fn != "div":
            return False
        above, below = (plain(a) for a in access.node.op.args)
        member = self.members.get(above.node)
        return member is not None and member.kind == "sum" and self._measures(below)

    # ------------------------------------------------------------ elements

    def element(self, site: Site, access: Access) -> Access:
        """The step input that stands for an access, read in the site's indices over the piece."""
        order = list(dict.fromkeys(i for t in access.terms for i in _ordered(t)))
        axes = [Index(Part(self.over) if i == site.loop else i.dim, n) for n, i in enumerate(order)]
        canonical = access.at({i: var(a) for i, a in zip(order, axes, strict=True)})
        if canonical not in self.elements:
            name = f"x{len(self.elements)}"
            node = input_node(name, [(a.dim,) for a in axes], access.node.dtype)
            self.elements[canonical] = (name, node)
        node = self.elements[canonical][1]
        return node(*(piece_of(site) if i == site.loop else i for i in order))

    # ------------------------------------------------------------ pieces

    def piece(self, state: State, moment: Moment) -> Access:
        """What one piece contributes to a component, around the running values of a moment."""
        view = self.view(state.site, moment)
        build = Builder(state.dtype)
        if state.kind in LATTICE:
            return build.reduce(state.kind, view.bound, view.elem(state.reduced))
        if state.kind == "count" or not (state.inside or _uneven(state.site)):
            return self._scaled(state.site, build.reduce("sum", (view.loop,), view.ones()), state.kind)
        return Emission(build).sum(view, state.inside)

    def own(self, state: State, moment: Moment) -> Access:
        """A component at a moment, in its site's indices."""
        return self.read(moment, state.site, state.kind, state.inside)

    def node(self, state: State, access: Access, extra: tuple[Index, ...] = ()) -> Node:
        """The access as a node over the component's own axes, behind some extra ones."""
        terms = (*map(var, extra), *self._definition(state.site, state.kind, state.inside).terms)
        dims = (*(i.dim for i in extra), *state.definition.dims)
        if access.terms == terms and access.node.dims == dims:
            return access.node
        axes = [t.variable for t in terms]
        return map_node("id", [i for i in axes if i is not None], [access], state.dtype)


class Reading(View):
    """How a piece is read at a moment."""

    def __init__(self, assembly: Assembly, site: Site, moment: Moment) -> None:
        super().__init__(site, assembly.build.dtype)
        self.assembly = assembly
        self.moment = moment
        self.loop = piece_of(site)
        self.bound = tuple(self.loop if i == site.loop else i for i in site.node.bound)

    def elem(self, access: Access) -> Access:
        access = plain(access)
        return access if isinstance(access.node.op, Scalar) else self.assembly.element(self.site, access)

    def run(self, access: Access) -> Access:
        return self.assembly.run(self.moment, self.site, access)

    def shift(self, run: Poly) -> Access:
        return self.assembly.shift_value(self.moment, self.site, run)


class _Part(Reading):
    def __init__(self, assembly: Assembly, site: Site, moment: Moment, part: Index) -> None:
        super().__init__(assembly, site, moment)
        self.part = part

    def elem(self, access: Access) -> Access:
        joined = var(Join(var(self.part), var(self.loop)))
        return plain(access).at({self.site.loop: joined})

    def ones(self) -> Access:
        axes = (self.part, self.loop)
        return map_node("id", axes, (const(1.0, self.dtype),), self.dtype)(*axes)


def _uneven(site: Site) -> bool:
    """Does another index than the loop's run inside a part? How often differs from part to part."""
    return any(isinstance(i.dim, Part) for i in site.node.bound if i != site.loop)


def piece_of(site: Site) -> Index:
    """The index over one piece that stands for the site's loop index."""
    return Index(Part(site.over), site.loop.number)


def _ordered(value: Term) -> list[Index]:
    return sorted(indices_of(value), key=lambda i: i.number)
