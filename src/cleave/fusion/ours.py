"""The strategy `cleave`: the best of all the others by modelled time, then improved pass by pass.

The others' plans, of every epoch, are timed with today's model on the given device. From the best ones on,
passes are tried in turn (rows, priority, multi-output, horizontal) and kept where the modelled time falls.
So the plan is never slower, by the model, than the best of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from cleave.fusion.cost import time_alone
from cleave.fusion.decisions import Log, replay
from cleave.fusion.graph import Graph
from cleave.fusion.rows import rows
from cleave.fusion.rules import Rules
from cleave.fusion.strategies import PASSES, Pass, Strategy, run, strategy_named
from cleave.fusion.units import State, Unit, start

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
"""Strategies that a plan starts from; of graphs above `LARGE` vertices only the first two."""
LARGE = 2000
BEST_SEEDS = 3
MOST_ROUNDS = 3

EXTRA: tuple[tuple[str, Pass, str], ...] = (
    ("rows", rows, "X26"),
    ("priority", PASSES["priority"][0], "X26"),
    ("multi-output", PASSES["multi-output"][0], "X26"),
    ("horizontal-input", PASSES["horizontal-input"][0], "X23"),
    ("horizontal-loop", PASSES["horizontal-loop"][0], "X23"),
)
"""What is tried on top, each under the rules of an epoch."""

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
    found: list[_Found] = []
    for name, epoch in SEEDS[:2] if len(graph.vertices) > LARGE else SEEDS:
        own = replace(rules, epoch=epoch)
        strategy = strategy_named(name, epoch)
        state, log = start(graph), Log(graph)
        run(state, strategy, own, log)
        found.append(_Found(seconds_of(state, rules, runs), (f"{name} {epoch}",), state, log))
    found.sort(key=lambda f: f.seconds)
    if len(graph.vertices) > LARGE:
        best = _improved(found[0], rules, runs)
    else:
        best = min((_improved(f, rules, runs) for f in found[:BEST_SEEDS]), key=lambda f: f.seconds)
    best.log.notes.clear()
    best.log.notes.append(f"cleave: {', then '.join(best.names)}")
    return best.state, best.log, Strategy("cleave", best.names)


def _improved(seed: _Found, rules: Rules, runs: Runs) -> _Found:
    best = seed
    for _ in range(MOST_ROUNDS):
        before = best.seconds
        for name, make, epoch in EXTRA:
            trial = _copy(best)
            if not make(trial.state, replace(rules, epoch=epoch), trial.log):
                continue
            trial.seconds = seconds_of(trial.state, rules, runs)
            if trial.seconds < best.seconds:
                trial.names = (*best.names, name)
                best = trial
        if best.seconds >= before:
            break
    return best


def _copy(found: _Found) -> _Found:
    log = Log(found.log.graph, list(found.log.entries), dict(found.log.last))
    return _Found(found.seconds, found.names, replay(log.graph, log.decisions()), log)
