"""The strategy `cleave`: the best of all the others by modelled time, then improved pass by pass.

The others' plans, of every epoch, are timed with today's model on the given device. From the best ones on,
passes are tried in turn (rows, priority, multi-output, horizontal) and kept where the modelled time falls.
So the plan is never slower, by the model, than the best of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from cleave.fusion.cost import time_alone
from cleave.fusion.decisions import Log, apply, repeated
from cleave.fusion.epilogue import epilogue
from cleave.fusion.graph import Graph
from cleave.fusion.opcodes import NEVER
from cleave.fusion.rows import rows
from cleave.fusion.rules import Rules
from cleave.fusion.scheduled import machine_for, scheduled_seconds
from cleave.fusion.state import State, start
from cleave.fusion.strategies import PASSES, Pass, Strategy, run, strategy_named
from cleave.fusion.units import Unit

SEEDS = (
    ("xla", "X26"),
    ("xla", "X23"),
    ("xla", "X22"),
    ("vertical-dup+multi-output", "X23"),
    ("none", "X26"),
    ("vertical", "X23"),
    ("vertical-dup", "X23"),
    ("priority", "X26"),
    ("multi-output", "X26"),
    ("horizontal", "X23"),
    ("merger", "X22"),
    ("merger", "X23"),
)
"""Strategies that a plan starts from; of graphs above `LARGE` vertices only the first, and each of the passes
below is tried once."""
LARGE = 2000
BEST_SEEDS = 3
MOST_ROUNDS = 3

LAUNCHED = Rules(batch=128, batch_elements=1 << 40, batch_members=1 << 20)
"""How much our launches take in side by side: their blocks stay their own, so size is no obstacle."""


def _wide(rules: Rules, epoch: str) -> Rules:
    """Rules of an epoch without what only XLA's kernels need."""
    return replace(
        rules,
        epoch=epoch,
        batch=LAUNCHED.batch,
        batch_elements=LAUNCHED.batch_elements,
        batch_members=LAUNCHED.batch_members,
        concat_kernel=False,
    )


EXTRA: tuple[tuple[str, Pass, str], ...] = (
    ("rows", rows, "X26"),
    ("epilogue", epilogue, "X26"),
    ("priority", PASSES["priority"][0], "X26"),
    ("multi-output", PASSES["multi-output"][0], "X26"),
    ("horizontal-input", PASSES["horizontal-input"][0], "X23"),
    ("horizontal-loop", PASSES["horizontal-loop"][0], "X23"),
)
"""What is tried on top, each under the rules of an epoch."""
SMALL = 100
"""Operations up to which the scheduler is asked about the best plans, and about all in one kernel."""

Runs = Callable[[Unit], bool]


@dataclass(slots=True)
class _Found:
    seconds: float
    names: tuple[str, ...]
    state: State
    log: Log


def seconds_of(state: State, rules: Rules, runs: Runs) -> float:
    """Modelled time of a state: its kernels one after the other."""
    launch = rules.device.launch
    return sum(time_alone(u, rules) + launch for u in state.units.values() if runs(u))


def best_plan(graph: Graph, rules: Rules, runs: Runs) -> tuple[State, Log, Strategy]:
    """The state, log and description of our plan; `runs` says which units are launches."""
    if len(graph.vertices) > LARGE:
        best = _seed(graph, *SEEDS[0], rules, runs)
        for name, make, epoch in EXTRA:
            if name not in SEEDS[0][0]:
                _tried(best, name, make, _wide(rules, epoch), rules, runs)
    else:
        found = [_seed(graph, name, epoch, rules, runs) for name, epoch in SEEDS]
        found.sort(key=lambda f: f.seconds)
        seeds = [f.names[0].rsplit(" ", 1) for f in found[:BEST_SEEDS]]
        tried = sorted((_improved(f, rules, runs) for f in found[:BEST_SEEDS]), key=lambda f: f.seconds)
        best = _scheduled(tried, seeds, rules, runs) or tried[0]
    best.log.notes.clear()
    best.log.notes.append(f"cleave: {', then '.join(best.names)}")
    return best.state, best.log, Strategy("cleave", best.names)


def _scheduled(tried: list[_Found], seeds: list[list[str]], rules: Rules, runs: Runs) -> _Found | None:
    """The best of some plans, of those that they were made from, and of all in one kernel, by the scheduler's
    model, if it can be asked."""
    from cleave.fusion.pieces import pieces_of_groups
    from cleave.fusion.planning import group_of  # it plans with this module

    graph = tried[0].log.graph
    work = sum(not v.view and v.node is not None for v in graph.vertices)
    if graph.source is None or machine_for(rules.device) is None or work > SMALL:
        return None
    program, sizes = graph.source
    plain = [_seed(graph, name, epoch, rules, runs) for name, epoch in seeds]
    whole = _whole(graph)
    best: _Found | None = None
    for found in [*tried, *plain, *([whole] if whole is not None else [])]:
        groups = tuple(group_of(u) for u in found.state.post_order())
        pieces = pieces_of_groups(groups, graph, program)
        found.seconds = scheduled_seconds([p.program for p in pieces], sizes, rules.device)
        if best is None or found.seconds < best.seconds:
            best = found
    return best


def _whole(graph: Graph) -> _Found | None:
    """Everything in one kernel, which the algebra and the scheduler make the best of; `None` where something
    can be in no kernel."""
    if any(v.effect or (v.opcode in NEVER and v.opcode != "parameter") for v in graph.vertices):
        return None
    state, log = start(graph, today=True), Log(graph)
    order = [u for u in state.post_order() if u.root.opcode not in ("parameter", "constant")]
    if not order:
        return None
    last = order.pop()
    while order:
        unit = order.pop()
        action = "rows" if last in state.users(unit) else "join"
        producer, consumer = (unit, last) if action == "rows" else (last, unit)
        log.accept("whole", action, producer, consumer)
        apply(state, action, producer, consumer)
    return _Found(inf, ("all in one",), state, log)


def _seed(graph: Graph, name: str, epoch: str, rules: Rules, runs: Runs) -> _Found:
    own = replace(rules, epoch=epoch)
    state, log = start(graph, own.today), Log(graph)
    run(state, strategy_named(name, epoch), own, log)
    return _Found(seconds_of(state, rules, runs), (f"{name} {epoch}",), state, log)


def _improved(seed: _Found, rules: Rules, runs: Runs) -> _Found:
    for _ in range(MOST_ROUNDS):
        before = seed.seconds
        for name, make, epoch in EXTRA:
            _tried(seed, name, make, _wide(rules, epoch), rules, runs)
        if seed.seconds >= before:
            break
    return seed


def _tried(best: _Found, name: str, make: Pass, own: Rules, rules: Rules, runs: Runs) -> None:
    """Run a pass on top, and take it back unless the modelled time falls."""
    entries, last = len(best.log.entries), dict(best.log.last)
    if not make(best.state, own, best.log):
        return
    seconds = seconds_of(best.state, rules, runs)
    if seconds < best.seconds:
        best.seconds, best.names = seconds, (*best.names, name)
        return
    best.log.rewind(entries, last)
    best.state = repeated(best.log, entries, best.state.today)
