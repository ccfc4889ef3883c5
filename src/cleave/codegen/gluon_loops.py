"""Loops of a warp group: which products run beside what, and the lines for it.

A loop is written in one of three ways, by what its products need:

- `accumulate`: every product only adds tiles of shared memory to an accumulator. One step's products are
  still running while the next one's start.
- `skewed`: some products come last, and only add to an accumulator (`late`). They are started in the next
  step, behind that step's first products, and run while what is between is computed.
- `plain`: every product is waited for where it stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from cleave.codegen.gluon_plan import Ring, RowScope
from cleave.codegen.gluon_text import DEPTH
from cleave.codegen.triton_body import fused_dots
from cleave.codegen.triton_maps import HALVES, TYPES, convert, number
from cleave.codegen.triton_text import Line, Lines, Nested
from cleave.codegen.triton_tiles import Roles, Span, Tile, uses_of
from cleave.errors import Infeasible
from cleave.schedule.tiles import Carry, Compute, ContractTile, Load, Loop, Statement, Store

if TYPE_CHECKING:
    from cleave.codegen.gluon_body import Held, Rows, Running

TURN = 256
"""Operations of products that take as long as one special function does."""
SPECIAL = ("exp", "exp2", "log", "sin", "cos", "tanh", "erf", "sqrt", "rsqrt", "pow", "div")


def write_loop(rows: Rows, scope: RowScope, statement: Loop) -> None:
    """A loop, in the way that its products allow."""
    index, tile = statement.index, statement.tile
    loads = {s.out for s in statement.body if isinstance(s, Load)}
    if any(value in loads for _, value in statement.updates):
        raise Infeasible(f"a loop over {index.dim} carries a tile as it was loaded")
    kept = [name for name in names_read(statement) if name in rows.held and rows.held[name].free]
    if kept:
        raise Infeasible(f"{', '.join(sorted(kept))} of an outer loop is used in an inner one")
    name = scope.index_names[index]
    start, stop, full = scope.ends(statement)
    rows.keep_operands(scope, statement)
    rows.depth += 1
    inner = scope.inner()
    at = name if tile == 1 else inner.names.take(f"{name}0")
    span = Span(tile, at, stop, full)
    kind, late = kind_of(rows, scope, statement, span)
    step = f", {tile}" if tile > 1 else ""
    how = f"  # {index.dim}" + (", every tile full" if statement.exact and tile > 1 else "")
    if kind == "skewed":
        skewed(rows, scope, statement, span, (start, stop, step, how), late)
    else:
        assert isinstance(inner, RowScope)
        inner.enter({index: span})
        if kind == "accumulate":
            accumulate(rows, scope, inner, statement, (at, start, stop, step, how), late)
        else:
            rows.write(inner, statement.body)
            rows.read(inner, *(v for _, v in statement.updates))
            inner.lines += rows.updates(inner, statement.updates)
            rows.free_rest(inner, statement.body)
            carried = tuple(scope.values[target].text for target, _ in statement.updates)
            head = f"for {at} in range({start}, {stop}{step}):{how}"
            scope.lines.append(Nested(head, inner.lines, (*carried, *rows.counters())))
    rows.depth -= 1


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
    return special * TURN >= products


def kind_of(rows: Rows, scope: RowScope, statement: Loop, span: Span) -> tuple[str, list[ContractTile]]:
    """How a loop is written, and its late products."""
    body = statement.body
    if any(isinstance(s, Loop | Store | Carry) for s in body):
        return "plain", []
    trial = rows.trial()
    known = scope.inner()
    assert isinstance(known, RowScope)
    known.enter({statement.index: span})
    counts = uses_of(body)
    for s in body:  # what is known of each value, its text aside
        if isinstance(s, Load):
            trial.fetch(known, s, counts.get(s.out, 0))
        elif not isinstance(s, Loop | Store | Carry):
            axes = () if not hasattr(s, "axes") else s.axes  # pyright: ignore
            known.values[s.out] = Tile("known", s.dtype, axes)
    products = [s for s in body if isinstance(s, ContractTile) and trial.roles(known, s)]
    if not products:
        return "plain", []
    fused = fused_dots(body)
    adds = {a: s for s in body if isinstance(s, Compute) and s.fn == "add" for a in s.args if a in fused}
    ends = {value: target for target, value in statement.updates}
    late = [p for p in products if p.out in fused and adds[p.out].out in ends]
    late = [p for p in late if adds[p.out].out not in counts]
    tails = {adds[p.out].out for p in late}
    targets = {ends[name] for name in tails}
    carried = {target for target, _ in statement.updates}
    leaning = depending(body, carried)
    early = [p for p in products if p not in late]
    in_memory = all(a in trial.held for p in late for a in p.args)
    plain_sum = all(set(adds[p.out].args) == {p.out, ends[adds[p.out].out]} for p in late)
    alone = all(counts[t] == 1 for t in targets)
    if not early and late and in_memory and plain_sum and alone and not masked(rows, known, trial, late):
        return "accumulate", late
    if late and not any(a in leaning for p in early for a in p.args):
        return "skewed", late
    return "plain", []


def masked(rows: Rows, scope: RowScope, trial: Rows, products: Sequence[ContractTile]) -> bool:
    """Whether an operand in shared memory holds more than its span."""
    return any(
        i not in trial.held[a].tile.zero and bool(scope.spans[i].mask)
        for p in products
        for a in p.args
        for i in p.over
    )


def accumulate(
    rows: Rows,
    scope: RowScope,
    inner: RowScope,
    statement: Loop,
    head: tuple[str, str, str, str, str],
    late: Sequence[ContractTile],
) -> None:
    """A loop whose products run on into the next step."""
    at, start, stop, step, how = head
    ends = {value: target for target, value in statement.updates}
    running: list[Running] = []
    adds = {a: s.out for s in statement.body if isinstance(s, Compute) for a in s.args}
    counts = uses_of(statement.body)
    others = [s for s in statement.body if isinstance(s, Compute) and s.out in ends]
    for s in statement.body:
        if isinstance(s, Load):
            rows.fetch(inner, s, counts.get(s.out, 0))
        elif isinstance(s, ContractTile) and s in late:
            roles = rows.roles(inner, s)
            assert roles is not None
            target = inner.value(ends[adds[s.out]])
            run, _ = rows.start(inner, s, roles, s.out, target, target.text)
            running.append(run)
        elif s not in others and not isinstance(s, Loop | Store | Carry):
            inner.values[s.out] = rows.tile(inner, s)
    rings = list(
        dict.fromkeys(rows.copies.loads[n].name for r in running for n in r.reads if rows.held[n].free)
    )
    names = ", ".join(r.name for r in running)
    inner.lines.append(Line(f"{names} = warpgroup_mma_wait({len(running)}, deps=[{names}])"))
    for ring in rings:
        before = f"({ring}_at - 2) % {DEPTH}"
        inner.lines.append(
            Line(f"mbarrier.arrive({ring}_free.index({before}), count=1, pred={at} > {start})")
        )
    carried = tuple(scope.values[target].text for target, _ in statement.updates)
    loop = f"for {at} in range({start}, {stop}{step}):{how}"
    scope.lines.append(Nested(loop, inner.lines, (*carried, *rows.counters())))
    scope.lines.append(Line(f"{names} = warpgroup_mma_wait(0, deps=[{names}])"))
    for ring in rings:
        before = f"({ring}_at - 1) % {DEPTH}"
        scope.lines.append(
            Line(f"mbarrier.arrive({ring}_free.index({before}), count=1, pred={start} < {stop})")
        )


def skewed(
    rows: Rows,
    scope: RowScope,
    statement: Loop,
    span: Span,
    head: tuple[str, str, str, str],
    late: Sequence[ContractTile],
) -> None:
    """A loop whose late products run beside the next step."""
    start, stop, step, how = head
    parts = Skew(rows, statement, late)
    first = scope.inner()
    assert isinstance(first, RowScope)
    lefts = {p.out: first.names.take(f"{p.out}_left") for p in late}
    where = first.names.take(span.start)
    first.lines.append(Line(f"{where} = {start}", where))
    first.enter({statement.index: replace(span, start=where)})
    parts.step(first, lefts, None)
    inner = scope.inner(first.names)
    assert isinstance(inner, RowScope)
    at = inner.names.take(span.start)
    inner.enter({statement.index: replace(span, start=at)})
    parts.step(inner, lefts, parts.pending)
    carried = tuple(scope.values[target].text for target, _ in statement.updates)
    befores = tuple(n for slots in parts.slots.values() for n in slots)
    names = (*carried, *lefts.values(), *befores, *rows.counters())
    begin = f"{start} + {span.tile}" if start != "0" else str(span.tile)
    first.lines.append(Nested(f"for {at} in range({begin}, {stop}{step}):{how}", inner.lines, names))
    parts.drain(first)
    scope.lines.append(Nested(f"if {start} < {stop}:", first.lines, (*carried, *rows.counters())))


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


@dataclass(slots=True)
class Late:
    """A product that waits for the next step: its statement and roles, the accumulator, the left operand's
    variable (or none), and the tiles in shared memory that it reads, with their slots' variables."""

    statement: ContractTile
    roles: Roles
    target: str
    left: str
    reads: list[str]


class Skew:
    """Writes the steps of a skewed loop."""

    def __init__(self, rows: Rows, loop: Loop, late: Sequence[ContractTile]) -> None:
        self.rows, self.loop, self.late = rows, loop, list(late)
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
        waits = depending(rest, set(self.targets.values()))
        self.heads = [s for s in rest if s.out in before and s not in early]
        self.early = early
        self.middle = [s for s in rest if s.out not in before and s.out not in waits and s not in early]
        self.after = [s for s in rest if s.out in waits]
        self.pending: list[Late] = []
        self.slots: dict[str, tuple[str, str]] = {}
        self.counts = uses_of(body)

    def write(self, scope: RowScope, statements: Sequence[Statement]) -> None:
        for s in statements:
            if isinstance(s, Load):
                self.rows.fetch(scope, s, self.counts.get(s.out, 0))
            else:
                assert not isinstance(s, Loop | Store | Carry)
                scope.values[s.out] = self.rows.tile(scope, s)

    def step(self, scope: RowScope, lefts: dict[str, str], pending: Sequence[Late] | None) -> None:
        """One step; `pending` are the late products of the one before."""
        rows = self.rows
        old = {name: rows.held[name] for p in pending or () for name in p.reads}
        self.write(scope, self.heads)
        turns = in_turn(rows, scope, self.loop)
        if turns:
            rows.take_turn(scope)
        running: list[Running] = []
        for product in self.early:
            roles = rows.roles(scope, product)
            if roles is None:  # no product of matrices
                scope.values[product.out] = rows.contract(scope, product, product.out, None)
                continue
            run, tile = rows.start(scope, product, roles, product.out, None)
            scope.values[product.out] = tile
            running.append(run)
        started = self.start_late(scope, pending or (), old)
        if turns:
            rows.pass_turn(scope)
        if running:
            rows.finish(scope, running, len(started))
        for product in self.early:
            kind = product.dtype
            if kind != "f32" and any(r.name == scope.values[product.out].text for r in running):
                text = scope.line(product.out, f"{scope.values[product.out].text}.to({TYPES[kind]})")
                scope.values[product.out] = replace(scope.values[product.out], text=text, dtype=kind)
        self.write(scope, self.middle)
        if started:
            self.finish_late(scope, started, old)
        self.write(scope, self.after)
        self.pend(scope, lefts)

    def start_late(
        self, scope: RowScope, pending: Sequence[Late], old: dict[str, Held]
    ) -> list[tuple[Late, Running]]:
        """Start the products that the step before has left."""
        started: list[tuple[Late, Running]] = []
        for p in pending:
            right = old[p.reads[-1]]
            for name in p.reads:
                if old[name].wait:
                    scope.lines.append(Line(self.waiting(name)))
            b = self.former(right, p.reads[-1])
            if right.order[0] != p.roles.k:
                b += ".permute((1, 0))"
            a = p.left
            if not a:
                left = old[p.reads[0]]
                a = self.former(left, p.reads[0])
                if left.order[0] != p.roles.m:
                    a += ".permute((1, 0))"
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
            add = self.adds[product.out]
            onto = add.args[0] if add.args[1] == product.out else add.args[1]
            if onto in {t for t, _ in self.loop.updates} - {self.targets[product.out]}:
                raise Infeasible(f"{product.out} is added to another accumulator's old value")
            rows.read(scope, onto)
            base, target = scope.value(onto), scope.value(self.targets[product.out])
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
            self.pending.append(Late(product, roles, self.targets[product.out], own, reads))
        names = dict.fromkeys(name for p in self.pending for name in p.reads)
        for name in names:
            ring = self.ring(name)
            if ring is not None:
                if name not in self.slots:
                    taken = rows.copies.names
                    self.slots[name] = taken.take(f"{name}_before"), taken.take(f"{name}_before_phase")
                slot, phase = self.slots[name]
                lines.append(Line(f"{slot} = {ring.name}_slot", slot, kept=True))
                if rows.held[name].wait:
                    lines.append(Line(f"{phase} = {ring.name}_phase", phase, kept=True))
        tails = {s.out for s in self.adds.values()}
        others = [(t, v) for t, v in self.loop.updates if v not in tails]
        rows.read(scope, *(v for _, v in others))
        scope.lines += rows.updates(scope, others)
        scope.lines += lines
        rows.free_rest(scope, [s for s in self.loop.body if isinstance(s, Load) and s.out not in names])

    def left(
        self, scope: RowScope, product: ContractTile, roles: Roles, name: str, variable: str
    ) -> tuple[str, list[str]]:
        """The left operand of a late product: kept in registers, or a tile of shared memory."""
        rows = self.rows
        value = scope.values[name]
        masks = [i for i in product.over if i not in value.zero]
        if name in rows.held and not value.text and not scope.mask(masks, (roles.m, roles.k)):
            return "", [name]
        rows.read(scope, name)
        if value.dtype not in HALVES:
            raise Infeasible(f"{product.out} multiplies {value.dtype}; warp groups want 16 bits")
        a = rows.operand(scope, product, scope.value(name), (roles.m, roles.k), value.dtype)
        columns = scope.lengths([roles.n])[0]
        text = f"{variable} = gl.convert_layout({a}, LEFT_{columns})"
        scope.lines.append(Line(text, variable, kept=True))
        return variable, []

    def check_right(self, scope: RowScope, product: ContractTile, roles: Roles, name: str) -> None:
        rows = self.rows
        if name not in rows.held or scope.values[name].dtype not in HALVES:
            raise Infeasible(f"{product.out} has a computed right operand, or one of another dtype")
        if roles.m != rows.groups.rows:
            raise Infeasible(f"{product.out} has other rows than the warp groups")
        zero = scope.values[name].zero
        open_ = [i for i in product.over if i not in zero and scope.spans[i].mask]
        if open_:
            rows.await_tile(scope, name)
            rows.clear(scope, product, rows.held[name], open_, roles)

    def drain(self, scope: RowScope) -> None:
        """Do what the last step has left."""
        old = {name: self.rows.held[name] for p in self.pending for name in p.reads}
        started = self.start_late(scope, self.pending, old)
        self.finish_late(scope, started, old)
