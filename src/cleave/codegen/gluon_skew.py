"""Steps of loops whose last products only add to accumulators: what comes before, between and behind them.

`Skew` writes a step in two ways: with the late products of the step before beside what is computed, or with
its own at its end (`level`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from cleave.codegen.gluon_plan import Ring, RowScope
from cleave.codegen.triton_maps import HALVES, TYPES, convert, number
from cleave.codegen.triton_text import Line, Lines
from cleave.codegen.triton_tiles import Roles, Tile, uses_of
from cleave.errors import Infeasible
from cleave.ir.dims import Index
from cleave.schedule.tiles import Carry, Compute, ContractTile, Load, Loop, Statement, Store

if TYPE_CHECKING:
    from cleave.codegen.gluon_body import Rows, Running
    from cleave.codegen.gluon_memory import Held

TURN = 256
"""Operations of products that take as long as one special function does."""
SPECIAL = ("exp", "exp2", "log", "sin", "cos", "tanh", "tanh_coarse", "erf", "sqrt", "rsqrt", "pow", "div")


def in_turn(rows: Rows, scope: RowScope, loop: Loop) -> bool:
    """Whether the groups take turns to start a loop's products: where special functions take as long as
    those, a group computes them while another multiplies."""
    special = products = 0
    for s in loop.body:
        if isinstance(s, Compute) and s.fn in SPECIAL:
            special += prod(scope.lengths(scope.lanes.over(s.axes, scope.tiles)))
        elif isinstance(s, ContractTile):
            lanes = scope.lanes.over((*s.axes, *s.over), scope.tiles)
            products += 2 * prod(scope.lengths(lanes))
    return rows.groups.count > 1 and special * TURN >= products


def names_read(statement: Statement) -> set[str]:
    """The values that a statement reads, itself."""
    return set(uses_of([statement]))


def depending(body: Sequence[Statement], seeds: set[str]) -> set[str]:
    """The values of a body that follow from some others."""
    found = set(seeds)
    for s in body:
        if not isinstance(s, Loop | Store) and names_read(s) & found:
            found.add(s.out)
    return found - seeds


def needed(body: Sequence[Statement], names: set[str]) -> set[str]:
    """The values of a body that some names follow from, themselves included."""
    found = set(names)
    for s in reversed(body):
        if not isinstance(s, Loop | Store) and s.out in found:
            found |= names_read(s)
    return found


def summed(products: Sequence[ContractTile], body: Sequence[Statement]) -> dict[str, Compute]:
    """By the products that are only added to one started before, these sums: one accumulator takes both."""
    uses = uses_of(body)
    adds = {
        a: s for s in body if isinstance(s, Compute) and s.fn == "add" and s.dtype == "f32" for a in s.args
    }
    found: dict[str, Compute] = {}
    started = dict[str, frozenset[Index]]()
    for product in products:
        name, axes = product.out, frozenset(product.axes)
        if product.dtype != "f32" or uses.get(name) != 1:
            continue
        started[name] = axes
        other = next((a for a in adds[name].args if a != name), "") if name in adds else ""
        if started.get(other) == axes and uses[other] == 1:
            found[name] = adds[name]
            started[adds[name].out] = axes
    return found


@dataclass(slots=True)
class Late:
    """A product that waits for the next step: its statement and roles, the accumulator, the left operand's
    variable (or none) and `nothing`, a text for it while there is none, and the tiles in shared memory
    that it reads, with their slots' variables."""

    statement: ContractTile
    roles: Roles
    target: str
    left: str
    nothing: str
    reads: list[str]


class Skew:
    """Writes the steps of a skewed loop. With `waits`, late products wait for their tiles also where the step
    before has surely done so: their lines are for steps of another loop, too."""

    def __init__(self, rows: Rows, loop: Loop, late: Sequence[ContractTile], waits: bool = False) -> None:
        self.rows, self.loop, self.late, self.waits = rows, loop, list(late), waits
        body = loop.body
        adds = {a: s for s in body if isinstance(s, Compute) and s.fn == "add" for a in s.args}
        ends = {value: target for target, value in loop.updates}
        self.adds = {p.out: adds[p.out] for p in late}
        self.targets = {p.out: ends[self.adds[p.out].out] for p in late}
        tails = {s.out for s in self.adds.values()}
        lates = {p.out for p in late}
        rest = [s for s in body if not isinstance(s, Loop | Store) and s.out not in tails | lates]
        early = [s for s in rest if isinstance(s, ContractTile)]
        before = needed(rest, {a for p in early for a in p.args})
        leaning = depending(rest, set(self.targets.values()))
        self.heads: Sequence[Statement] = [s for s in rest if s.out in before and s not in early]
        self.early = early
        self.onto = summed(early, body)
        onto = list(self.onto.values())
        rest = [s for s in rest if s.out not in before and s not in early and s not in onto]
        self.middle = [s for s in rest if s.out not in leaning]
        self.after = [s for s in rest if s.out in leaning]
        self.pending: list[Late] = []
        self.slots: dict[str, tuple[str, str]] = {}
        self.counts = uses_of(body)

    def take_over(self, other: Skew) -> None:
        """Go on with what the last step of another loop has left: the same accumulators and slots."""
        self.pending, self.slots = other.pending, dict(other.slots)
        for own, former in zip(self.late, other.late, strict=True):
            names = [[a for a in p.args if self.ring(a) is not None] for p in (own, former)]
            self.slots |= {a: other.slots[b] for a, b in zip(*names, strict=True)}

    def befores(self) -> tuple[str, ...]:
        """The variables of the slots of the step before."""
        return tuple(dict.fromkeys(name for slots in self.slots.values() for name in slots))

    def write(self, scope: RowScope, statements: Sequence[Statement]) -> None:
        for s in statements:
            if isinstance(s, Load):
                self.rows.memory.fetch(scope, s, self.counts.get(s.out, 0), once=self.rows.depth == 0)
            else:
                assert not isinstance(s, Loop | Store | Carry)
                scope.values[s.out] = self.rows.tile(scope, s)

    def step(self, scope: RowScope, lefts: dict[str, str], pending: Sequence[Late] | None) -> None:
        """One step; `pending` are the late products of the one before."""
        old = {name: self.rows.memory.held[name] for p in pending or () for name in p.reads}
        turns = in_turn(self.rows, scope, self.loop)
        running = self.start_early(scope, turns)
        started = self.start_late(scope, pending or (), old)
        self.finish_early(scope, running, len(started), turns)
        self.write(scope, self.middle)
        if started:
            self.finish_late(scope, started, old)
        self.write(scope, self.after)
        self.pend(scope, lefts)

    def level(self, scope: RowScope, alone: bool = False) -> None:
        """A step that ends its own late products, in turn with other groups unless it is `alone`."""
        rows = self.rows
        turns = not alone and rows.groups.count > 1 and bool(self.middle or self.after)
        self.finish_early(scope, self.start_early(scope, turns), 0, turns)
        self.write(scope, [*self.middle, *self.after])
        running: list[Running] = []
        for product in self.late:
            roles = rows.roles(scope, product)
            assert roles is not None
            onto, target = self.base(scope, product), scope.value(self.targets[product.out])
            run, _ = rows.start(scope, product, roles, product.out, onto, target.text)
            running.append(run)
        scope.lines += self.others(scope)
        rows.finish(scope, running, 0)

    def start_early(self, scope: RowScope, turns: bool) -> list[Running]:
        """Start the products that a step begins with, in turn with other groups."""
        rows = self.rows
        self.write(scope, self.heads)
        lates = {name for p in self.late for name in p.args}
        rows.memory.look_again(scope, dict.fromkeys(a for p in self.early for a in p.args if a not in lates))
        if turns:
            rows.take_turn(scope)
        running: list[Running] = []
        for product in self.early:
            roles = rows.roles(scope, product)
            if roles is None:  # no product of matrices
                scope.values[product.out] = rows.contract(scope, product, product.out, None)
                continue
            add = self.onto.get(product.out)
            other = None if add is None else next(a for a in add.args if a != product.out)
            former = next((r for r in running if other and r.name == scope.values[other].text), None)
            assert add is None or former is not None
            if add is None or other is None or former is None:
                run, tile = rows.start(scope, product, roles, product.out, None)
                scope.values[product.out] = tile
            else:  # one accumulator for both
                run, tile = rows.start(scope, product, roles, add.out, scope.values[other], former.name)
                scope.values[add.out] = tile
                former.reads += run.reads
                continue
            running.append(run)
        return running

    def finish_early(self, scope: RowScope, running: Sequence[Running], behind: int, turns: bool) -> None:
        """Wait for these products, behind which others were started."""
        if turns:
            self.rows.pass_turn(scope)
        if running:
            self.rows.finish(scope, running, behind)
        for product in self.early:
            kind = product.dtype
            if kind != "f32" and any(r.name == scope.values[product.out].text for r in running):
                text = scope.line(product.out, f"{scope.values[product.out].text}.to({TYPES[kind]})")
                scope.values[product.out] = replace(scope.values[product.out], text=text, dtype=kind)

    def base(self, scope: RowScope, product: ContractTile) -> Tile:
        """What a late product is added to."""
        add = self.adds[product.out]
        onto = add.args[0] if add.args[1] == product.out else add.args[1]
        if onto in {t for t, _ in self.loop.updates} - {self.targets[product.out]}:
            raise Infeasible(f"{product.out} is added to another accumulator's old value")
        self.rows.read(scope, onto)
        return scope.value(onto)

    def others(self, scope: RowScope) -> Lines:
        """The new values of what the loop carries beside the late products' accumulators."""
        tails = {s.out for s in self.adds.values()}
        others = [(t, v) for t, v in self.loop.updates if v not in tails]
        self.rows.read(scope, *(v for _, v in others))
        return self.rows.updates(scope, others)

    def start_late(
        self, scope: RowScope, pending: Sequence[Late], old: dict[str, Held]
    ) -> list[tuple[Late, Running]]:
        """Start the products that the step before has left."""
        started: list[tuple[Late, Running]] = []
        for p in pending:
            right = old[p.reads[-1]]
            for name in p.reads:
                if old[name].wait or self.waits:
                    scope.lines.append(Line(self.waiting(name)))
            b = scope.matrix(self.former(right, p.reads[-1]), right.order, p.roles.k, p.roles.n)
            a = p.left
            if not a:
                left = old[p.reads[0]]
                a = scope.matrix(self.former(left, p.reads[0]), left.order, p.roles.m)
            target = scope.values[p.target]
            run, _ = self.rows.launch(scope, p.statement, p.roles, (a, b, []), target, target.text)
            started.append((p, run))
        return started

    def ring(self, name: str) -> Ring | None:
        ring = self.rows.copies.loads.get(name)
        return None if ring is None or ring.once else ring

    def former(self, held: Held, name: str) -> str:
        """The matrix of a tile that the step before has loaded."""
        ring = self.ring(name)
        return held.text if ring is None else ring.buffer(self.slots[name][0], self.rows.groups.count)

    def waiting(self, name: str) -> str:
        ring = self.ring(name)
        assert ring is not None
        slot, phase = self.slots[name]
        return f"mbarrier.wait({ring.name}_full.index({slot}), {phase})"

    def finish_late(
        self, scope: RowScope, started: Sequence[tuple[Late, Running]], old: dict[str, Held]
    ) -> None:
        names = ", ".join(run.name for _, run in started)
        scope.lines.append(Line(f"{names} = warpgroup_mma_wait(0, deps=[{names}])"))
        for name in dict.fromkeys(name for p, _ in started for name in p.reads):
            ring = self.ring(name)
            if ring is not None and old[name].free:
                scope.lines.append(
                    Line(f"mbarrier.arrive({ring.name}_free.index({self.slots[name][0]}), count=1)")
                )

    def pend(self, scope: RowScope, lefts: dict[str, str]) -> None:
        """Leave the late products to the next step: their left operands, slots and accumulators."""
        rows = self.rows
        lines: Lines = []
        self.pending = []
        for product in self.late:
            roles = rows.roles(scope, product)
            assert roles is not None
            names = product.args
            left, right = names[roles.left], names[1 - roles.left]
            base, target = self.base(scope, product), scope.value(self.targets[product.out])
            own, reads = self.left(scope, product, roles, left, lefts[product.out])
            self.check_right(scope, product, roles, right)
            reads.append(right)
            lanes = (roles.m, roles.n)
            if base.literal is not None:
                text = rows.full(scope, number(base.literal, "f32"), "f32", lanes)
            else:
                text = scope.filled(convert(base, base.text, "f32"), base.lanes, lanes)
            if text != target.text:
                lines.append(Line(f"{target.text} = {text}", target.text, kept=True))
            height, columns, over = scope.lengths([roles.m, roles.n, roles.k])
            kind = TYPES[scope.values[left].dtype]
            nothing = f"gl.full(({height}, {over}), 0.0, {kind}, LEFT_{columns})"
            self.pending.append(Late(product, roles, self.targets[product.out], own, nothing, reads))
        names = dict.fromkeys(name for p in self.pending for name in p.reads)
        for name in names:
            ring = self.ring(name)
            if ring is not None:
                if name not in self.slots:
                    taken = rows.copies.names
                    self.slots[name] = taken.take(f"{name}_before"), taken.take(f"{name}_before_phase")
                slot, phase = self.slots[name]
                lines.append(Line(f"{slot} = {ring.name}_slot", slot, kept=True))
                if rows.memory.held[name].wait or self.waits:
                    lines.append(Line(f"{phase} = {ring.name}_phase", phase, kept=True))
        scope.lines += [*self.others(scope), *lines]
        rest = [s for s in self.loop.body if isinstance(s, Load) and s.out not in names]
        rows.memory.free_rest(scope, rest)

    def left(
        self, scope: RowScope, product: ContractTile, roles: Roles, name: str, variable: str
    ) -> tuple[str, list[str]]:
        """The left operand of a late product: kept in registers, or a tile of shared memory."""
        rows = self.rows
        value = scope.values[name]
        masks = [i for i in product.over if i not in value.zero]
        if name in rows.memory.held and not value.text and not scope.mask(masks, (roles.m, roles.k)):
            return "", [name]
        rows.read(scope, name)
        if value.dtype not in HALVES:
            raise Infeasible(f"{product.out} multiplies {value.dtype}; warp groups want 16 bits")
        a = rows.in_registers(scope, product, roles, name)
        columns = scope.lengths([roles.n])[0]
        text = f"{variable} = gl.convert_layout({a}, LEFT_{columns})"
        scope.lines.append(Line(text, variable, kept=True))
        return variable, []

    def check_right(self, scope: RowScope, product: ContractTile, roles: Roles, name: str) -> None:
        rows = self.rows
        if name not in rows.memory.held or scope.values[name].dtype not in HALVES:
            raise Infeasible(f"{product.out} has a computed right operand, or one of another dtype")
        if roles.m != rows.groups.rows:
            raise Infeasible(f"{product.out} has other rows than the warp groups")
        zero = scope.values[name].zero
        open_ = [i for i in product.over if i not in zero and scope.spans[i].mask]
        if open_:
            rows.memory.await_tile(scope, name)
            rows.clear(scope, product, rows.memory.held[name], open_, roles)

    def drain(self, scope: RowScope) -> None:
        """Do what the last step has left."""
        old = {name: self.rows.memory.held[name] for p in self.pending for name in p.reads}
        started = self.start_late(scope, self.pending, old)
        self.finish_late(scope, started, old)
