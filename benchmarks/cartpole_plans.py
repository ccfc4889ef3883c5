"""Cartpole under a fusion strategy, run: the plan's kernels, one launch each, in the order of the plan.

`steps` steps are one program without a loop (the user's loop unrolled), which a strategy of `cleave.fusion`
cuts into groups; each group becomes a program (`cleave.fusion.pieces`), is scheduled and emitted like any
other, and all of them run as one tile program whose intermediates are workspaces. Two strategies that cut
alike are one case: it is built and timed once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.cartpole_case import Case, graphed
from benchmarks.cartpole_env import Inputs, draw, early_stacked_step, stacked_step, step
from benchmarks.cartpole_facts import facts_of, sizes_of
from cleave.errors import Infeasible
from cleave.frontend.capture import capture
from cleave.fusion.from_program import graph_of
from cleave.fusion.pieces import Piece, pieces_of
from cleave.fusion.planning import Plan, plan_fusion
from cleave.fusion.rules import Rules, device_named
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim
from cleave.ir.ops import Input, Scalar
from cleave.ir.precision import assign
from cleave.ir.program import Program
from cleave.ir.sizes import infer_sizes
from cleave.pipeline import TARGETS, launcher_for, shapes_of
from cleave.schedule.parse import parse_tiles
from cleave.schedule.select import best
from cleave.schedule.text import print_tiles
from cleave.schedule.tiles import Kernel, Tensor, TileProgram
from cleave.schedule.verify import verify

STRATEGIES: tuple[tuple[str, str], ...] = (
    ("cleave", "X26"),
    ("xla", "X22"),
    ("priority", "X26"),
    ("vertical", "X23"),
    ("vertical-dup", "X23"),
    ("vertical-dup+merger", "X22"),
    ("vertical-dup+merger", "X23"),
    ("multi-output", "X23"),
    ("horizontal", "X23"),
    ("xla", "X23"),
    ("xla", "X26"),
    ("none", "X26"),
)
"""Strategies and their epochs, the most telling ones first."""

MOST_KERNELS = 120
"""Plans with more kernels are not built."""
MOST_STEPS = 100
"""Steps of a timed run: some plans take hundreds of launches a step."""


@dataclass(frozen=True)
class Planned:
    """A strategy on `unroll` steps; `state` and `random` as in `cartpole_ours.Variant`, and
    `early` stacks before the reset (only read). `relaxed` lets a
    concatenation with several users fuse (variant S1 of the study)."""

    strategy: str
    epoch: str
    state: str
    random: str
    unroll: int = 1
    relaxed: bool = False

    @property
    def name(self) -> str:
        more = " relaxed" if self.relaxed else ""
        return f"plan {self.strategy}@{self.epoch}{more} {self.state} {self.random} x{self.unroll}"

    @property
    def special(self) -> bool:
        """Whether it asks about a concatenation with several users, and not about a strategy."""
        return self.relaxed or self.state == "early"

    @property
    def source(self) -> tuple[str, str, int]:
        """What is planned, whatever the strategy."""
        return self.state, self.random, self.unroll


@dataclass(frozen=True)
class Prepared:
    """A plan whose kernels are scheduled: the first case with the same kernels (`first`), their tile program
    as text, what the plan says of itself, and the seconds that it took. Another process can hand it over."""

    first: str
    tiles: str
    account: dict[str, Any]
    seconds: float


class Plans:
    """Plans, builds and keeps; makes cases. What is in `handed`, by name and size, is not planned again."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.handed: dict[tuple[str, int], Prepared] = {}
        self._programs: dict[tuple[str, str, int], Program] = {}
        self._scheduled: dict[object, tuple[str, str]] = {}
        self._built: dict[tuple[str, int], tuple[Any, TileProgram, float]] = {}

    def case(self, planned: Planned, inputs: Inputs) -> Case:
        """A strategy's kernels on inputs. The fact `same_as` names the case with the same kernels."""
        few = inputs.cut(0, min(MOST_STEPS, inputs.steps) // planned.unroll * planned.unroll)
        name, launcher, facts = self.built(planned, few)
        if name != planned.name:
            facts["same_as"] = name
        calls = few.steps // planned.unroll
        parts = [arguments(planned, few, n * planned.unroll) for n in range(calls)]
        states = 5 if planned.state == "separate" else 2

        def run() -> list[Sequence[torch.Tensor]]:
            found: list[Sequence[torch.Tensor]] = []
            state: Sequence[torch.Tensor] = parts[0][:states]
            for part in parts:
                found.append(launcher(*state, *part[states:]))
                state = found[-1][:states]
            return found

        call = graphed(run) if self.target == "cuda" else run
        facts["results"] = lambda: [_result(out, states) for out in call()]
        return Case(planned.name, call, few.steps, facts)

    def built(self, planned: Planned, inputs: Inputs) -> tuple[str, Any, dict[str, Any]]:
        """The first case with these kernels, their launcher, and what is known of the plan."""
        args = arguments(planned, inputs, 0)
        made = self.prepared(planned, inputs)
        key = (made.first, inputs.size)
        if key not in self._built:
            start = time.perf_counter()
            tiles = parse_tiles(made.tiles)
            launcher = launcher_for(tiles, self.target, args)
            self._built[key] = (launcher, tiles, made.seconds + time.perf_counter() - start)
        launcher, tiles, seconds = self._built[key]
        reports = getattr(launcher, "reports", ())
        facts = facts_of(tiles, sizes_of(tiles, args), self.target, reports, planned.unroll)
        return made.first, launcher, {**facts, "compile_seconds": seconds, **made.account}

    def prepared(self, planned: Planned, inputs: Inputs) -> Prepared:
        """A plan with its kernels scheduled for a size, or what was handed over."""
        found = self.handed.get((planned.name, inputs.size))
        if found is None:
            found = self.handed[planned.name, inputs.size] = self._prepared(planned, inputs)
        return found

    def _prepared(self, planned: Planned, inputs: Inputs) -> Prepared:
        args = arguments(planned, inputs, 0)
        program = self.program(planned, args)
        sizes = infer_sizes(program, shapes_of(program, args))
        start = time.perf_counter()
        plan = self.plan(planned, program, sizes)
        pieces = pieces_of(plan, program)
        if len(pieces) > MOST_KERNELS:
            raise Infeasible(f"{len(pieces)} kernels: not built")
        key = (planned.source, tuple(p.program for p in pieces), tuple(sizes.items()))
        if key not in self._scheduled:
            text = print_tiles(joined(program, pieces, sizes, self.target))
            self._scheduled[key] = planned.name, text
        first, text = self._scheduled[key]
        account = _account(plan, planned.unroll)
        return Prepared(first, text, account, time.perf_counter() - start)

    def program(self, planned: Planned, args: Sequence[Any]) -> Program:
        if planned.source not in self._programs:
            self._programs[planned.source] = captured(planned, args)
        return self._programs[planned.source]

    def plan(self, planned: Planned, program: Program, sizes: Mapping[Dim, int]) -> Plan:
        rules = Rules(planned.epoch, device_named("h200" if self.target == "cuda" else "cpu"))
        if planned.relaxed:
            rules = replace(rules, allow_multi_user_cache_breakers=True)
        known: dict[Dim, int] = {a: s for a, s in sizes.items() if isinstance(a, Atom)}
        return plan_fusion(graph_of(program, known), planned.strategy, rules)


def _account(plan: Plan, steps: int) -> dict[str, Any]:
    """Launches, bytes and time of a plan by its own account."""
    totals = plan.totals
    return {
        "planned_launches_per_step": totals.launches / steps,
        "planned_bytes_per_step": totals.bytes / steps,
        "planned_us_per_step": totals.seconds * 1e6 / steps,
        "duplicated": totals.duplicated,
    }


def _result(out: Sequence[torch.Tensor], states: int) -> tuple[torch.Tensor, ...]:
    """The state, and reward and done [steps, N]."""
    return (*out[:states], torch.stack(tuple(out[states::2])), torch.stack(tuple(out[states + 1 :: 2])))


# ---------------------------------------------------------------- programs


def unrolled(planned: Planned) -> Callable[..., Any]:
    """Some steps after each other, as a function of tensors."""
    steps = planned.unroll

    def out_of(state: Any, handed: Sequence[Any]) -> tuple[Any, ...]:
        return (*state, *(x for pair in handed for x in pair))

    def separate_read(
        x: Any, v: Any, a: Any, w: Any, n: Any, action: Any, f0: Any, f1: Any, f2: Any, f3: Any
    ) -> Any:
        state, handed = (x, v, a, w, n), []
        for j in range(steps):
            state, out = step(state, action[j], (f0[j], f1[j], f2[j], f3[j]))
            handed.append(out)
        return out_of(state, handed)

    def stacked_read(both: Any, n: Any, action: Any, fresh: Any) -> Any:
        state, handed = (both, n), []
        one = early_stacked_step if planned.state == "early" else stacked_step
        for j in range(steps):
            state, out = one(state, action[j], fresh[j])
            handed.append(out)
        return out_of(state, handed)

    def separate_drawn(x: Any, v: Any, a: Any, w: Any, n: Any, first: int) -> Any:
        index = torch.arange(x.shape[0], dtype=torch.int32, device=x.device)
        state, handed = (x, v, a, w, n), []
        for j in range(steps):
            action, fresh = draw(index, torch.zeros_like(index) + (first + j))
            state, out = step(state, action, fresh)
            handed.append(out)
        return out_of(state, handed)

    def stacked_drawn(both: Any, n: Any, first: int) -> Any:
        index = torch.arange(both.shape[0], dtype=torch.int32, device=both.device)
        state, handed = (both, n), []
        for j in range(steps):
            action, fresh = draw(index, torch.zeros_like(index) + (first + j))
            state, out = stacked_step(state, action, torch.stack(fresh, -1))
            handed.append(out)
        return out_of(state, handed)

    every = {("separate", "read"): separate_read, ("stacked", "read"): stacked_read,
             ("separate", "drawn"): separate_drawn, ("stacked", "drawn"): stacked_drawn,
             ("early", "read"): stacked_read}  # fmt: skip
    return every[planned.state, planned.random]


def arguments(planned: Planned, inputs: Inputs, start: int) -> tuple[Any, ...]:
    """The arguments of a call for the steps from `start` on."""
    both = planned.state != "separate"
    state = (torch.stack(inputs.state, -1),) if both else inputs.state
    if planned.random == "drawn":
        return (*state, inputs.count, start)
    cut = inputs.cut(start, start + planned.unroll)
    return (*state, inputs.count, cut.action, *((torch.stack(cut.fresh, -1),) if both else cut.fresh))


def captured(planned: Planned, args: Sequence[Any]) -> Program:
    names: dict[str, tuple[str | int, ...]] = dict.fromkeys(("x", "v", "a", "w", "n"), ("N",))
    given = ("action", "f0", "f1", "f2", "f3")
    reads: dict[str, tuple[str | int, ...]] = dict.fromkeys(given, (planned.unroll, "N"))
    if planned.state != "separate":
        names = {"both": ("N", 4), "n": ("N",)}
        reads = {"action": (planned.unroll, "N"), "fresh": (planned.unroll, "N", 4)}
    if planned.random == "read":
        names |= reads
    return capture(unrolled(planned), args, dynamic=names).program


# ---------------------------------------------------------------- one tile program


def joined(program: Program, pieces: Sequence[Piece], sizes: Mapping[Dim, int], target: str) -> TileProgram:
    """The kernels of all pieces as one tile program; what one hands to another is a workspace."""
    inputs: dict[str, Tensor] = {}
    for node in program.inputs:
        assert isinstance(node.op, Input | Scalar)
        layout = node.op.layout if isinstance(node.op, Input) else ()
        role = "input" if isinstance(node.op, Input) else "scalar"
        inputs[node.op.name] = Tensor(node.op.name, role, node.dtype, layout)
    results = {o.name for o in program.outputs}
    outputs: dict[str, Tensor] = {}
    spaces: dict[str, Tensor] = {}
    kernels: list[Kernel] = []
    for number, piece in enumerate(pieces):
        candidate = assign(Candidate(piece.program, ()), piece.program)
        bound: dict[Dim, int] = {a: sizes[a] for a in piece.program.dynamic}
        point = piece.program.bind(bound)
        tiles = best([candidate], point, TARGETS[target], count=1)[0].tiles
        own = {t.name: replace(t, name=f"{t.name}_{number}") for t in tiles.workspaces}
        spaces |= {t.name: t for t in own.values()}
        for place, tensor in zip(piece.writes, tiles.outputs, strict=True):
            if place in results:
                outputs[place] = replace(tensor, name=place)
                own[tensor.name] = outputs[place]
            else:
                spaces[place] = replace(tensor, name=place, role="workspace")
                own[tensor.name] = spaces[place]
        for tensor in tiles.inputs:
            own[tensor.name] = inputs.get(tensor.name) or spaces[tensor.name]
        kernels += [_renamed(k, own, f"{k.name}_{number}") for k in tiles.kernels]
    tiles = TileProgram(
        program.name,
        tuple(inputs.values()),
        tuple(outputs[o.name] for o in program.outputs),
        tuple(spaces.values()),
        tuple(kernels),
        program.sizes,
    )
    verify(tiles)
    return tiles


def _renamed(kernel: Kernel, own: Mapping[str, Tensor], name: str) -> Kernel:
    """A kernel on the tensors of the whole program."""

    def body(statements: Sequence[Any]) -> tuple[Any, ...]:
        found: list[Any] = []
        for statement in statements:
            if hasattr(statement, "body"):
                found.append(replace(statement, body=body(statement.body)))
            elif hasattr(statement, "tensor"):
                found.append(replace(statement, tensor=own[statement.tensor].name))
            else:
                found.append(statement)
        return tuple(found)

    tensors = tuple(own[t.name] for t in kernel.tensors)
    return replace(kernel, name=name, tensors=tensors, body=body(kernel.body))


__all__ = ["MOST_STEPS", "STRATEGIES", "Planned", "Plans", "Prepared", "joined"]
