"""Strategies: passes by name, joined with `+`, run in the order of their epoch (xla-fusion.md, 2.4).

`none`, single passes, compositions such as `vertical-dup+merger+multi-output`, and two pipelines: `xla`,
what the epoch's XLA runs, and `cleave`, ours (`ours.py`). A pass that the epoch does not have runs with the
rules of the nearest epoch that has it, and the plan says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cleave.errors import Invalid
from cleave.fusion.decisions import Log
from cleave.fusion.horizontal import horizontal_input, horizontal_loop
from cleave.fusion.merger import merger
from cleave.fusion.multi_output import multi_output
from cleave.fusion.priority import priority
from cleave.fusion.rules import Rules
from cleave.fusion.state import State
from cleave.fusion.vertical import vertical

Pass = Callable[[State, Rules, Log], bool]

PASSES: Mapping[str, tuple[Pass, tuple[str, ...]]] = {
    "vertical": (lambda s, r, log: vertical(s, r, log, duplicate=False), ("X22", "X23")),
    "vertical-dup": (lambda s, r, log: vertical(s, r, log, duplicate=True), ("X22", "X23")),
    "merger-bytes": (lambda s, r, log: merger(s, r, log, by_bytes=True), ("X22",)),
    "merger-cost": (lambda s, r, log: merger(s, r, log, by_bytes=False), ("X23",)),
    "priority": (priority, ("X26",)),
    "multi-output": (multi_output, ("X22", "X23", "X26")),
    "horizontal-loop": (horizontal_loop, ("X22", "X23")),
    "horizontal-input": (horizontal_input, ("X22", "X23")),
}
"""Each pass and the epochs that have it, in the order in which a pipeline runs them."""

SHORT: Mapping[str, tuple[str, ...]] = {
    "horizontal": ("horizontal-loop", "horizontal-input"),
    "none": (),
}
LATE = ("horizontal-loop", "horizontal-input")
MOST_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Strategy:
    """A name, its passes in order, and what to say about epochs."""

    name: str
    passes: tuple[str, ...]
    notes: tuple[str, ...] = ()


NAMES = (
    "none",
    "vertical",
    "vertical-dup",
    "merger",
    "multi-output",
    "horizontal",
    "priority",
    "xla",
    "cleave",
)


def strategy_named(name: str, epoch: str) -> Strategy:
    """The passes of a strategy in an epoch. `Invalid` for a pass that does not exist."""
    if epoch not in ("X22", "X23", "X26"):
        Rules(epoch)
    if name == "xla":
        today = ("priority", "multi-output")
        before = ("vertical", "vertical-dup", _merger(epoch), "multi-output", *LATE)
        return Strategy("xla", today if epoch == "X26" else before)
    wanted: dict[str, None] = {}
    for word in name.split("+"):
        word = word.strip()
        if word == "merger":
            word = _merger(epoch)
        if word not in PASSES and word not in SHORT:
            known = ", ".join([*NAMES, *(p for p in PASSES if p not in NAMES)])
            raise Invalid(f"unknown strategy {word!r}", hint=f"one of {known}, or several joined with +")
        wanted.update(dict.fromkeys(SHORT.get(word, (word,))))
    passes = tuple(p for p in PASSES if p in wanted)
    notes = [_foreign(p, epoch) for p in passes if epoch not in PASSES[p][1]]
    return Strategy(name, passes, tuple(notes))


def _merger(epoch: str) -> str:
    return "merger-bytes" if epoch == "X22" else "merger-cost"


def _foreign(name: str, epoch: str) -> str:
    return f"{epoch} has no pass {name}: it runs with the rules of {_nearest(name, epoch)}"


def _nearest(name: str, epoch: str) -> str:
    epochs = PASSES[name][1]
    return epoch if epoch in epochs else min(epochs, key=lambda e: abs(int(e[1:]) - int(epoch[1:])))


def run(state: State, strategy: Strategy, rules: Rules, log: Log) -> None:
    """Run the passes to their fixpoints: what shares kernels first, horizontal fusion after it."""
    log.notes += strategy.notes
    early = [p for p in strategy.passes if p not in LATE]
    for group in (early, [p for p in strategy.passes if p in LATE]):
        _fixpoint(state, group, rules, log)


def _fixpoint(state: State, passes: list[str], rules: Rules, log: Log) -> None:
    seen: dict[str, int] = {}
    once = "priority" in passes
    for _ in range(1 if once else MOST_ROUNDS):
        changed = False
        for name in passes:
            if seen.get(name) == state.version:
                continue
            own = replace(rules, epoch=_nearest(name, rules.epoch))
            changed |= PASSES[name][0](state, own, log)
            seen[name] = state.version
        if not changed:
            return
