"""What the Cartpole study runs, and in which order: the rows that say most come first, so that a run that is
cut has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.cartpole_case import Case
from benchmarks.cartpole_env import Inputs
from benchmarks.cartpole_ours import Ours, Variant, variants
from benchmarks.cartpole_peers import JAX, Compiled, by_hand, eager, jax_case
from benchmarks.cartpole_plans import STRATEGIES, Planned, Plans

LARGE = 1 << 20
TELLING = (64, 1 << 16, LARGE)
KEY = (("cleave", "X26"), ("xla", "X22"), ("priority", "X26"))
RELAXED = (("xla", "X22"), ("vertical-dup", "X23"), ("xla", "X23"), ("xla", "X26"), ("cleave", "X26"))
"""Strategies that are also run where a concatenation with several users may fuse."""
MANY = ("none", "horizontal")
"""Strategies of about a kernel an operation."""
EVERYWHERE = ("B0", "B1", "S2")
"""JAX's loops that are run at every size; it compiles for each anew, the unrolled ones for seconds."""
PLAIN_PEERS = ("by hand", "PyTorch eager", "torch.compile")
EXPECTED = {"JAX S3 20": 14.0, "JAX S3 10": 4.0, "torch.compile": 8.0, "plan none": 35.0,
            "plan horizontal": 35.0, "plan ": 5.0}  # fmt: skip
"""Seconds that a row may take, by the start of its name; else `USUAL`."""
USUAL = 3.0


@dataclass(frozen=True)
class Task:
    """A row to make: what (`cleave`, `plan`, `JAX`, or a peer by name), at which size; `rank` orders."""

    rank: int
    size: int
    name: str
    what: Any = None

    @property
    def seconds(self) -> float:
        return next((s for head, s in EXPECTED.items() if self.name.startswith(head)), USUAL)


class Makers:
    """Makes the cases of tasks; what is built is built once."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.ours, self.plans, self.compiled = Ours(target), Plans(target), Compiled()

    def case(self, task: Task, inputs: Inputs) -> Case:
        if isinstance(task.what, Variant):
            return self.ours.case(task.what, inputs)
        if isinstance(task.what, Planned):
            return self.plans.case(task.what, inputs)
        if task.name.startswith("JAX "):
            return jax_case(task.name[4:], inputs, self.target)
        if task.name == "torch.compile":
            return self.compiled.case(inputs, self.target)
        return eager(inputs) if task.name == "PyTorch eager" else by_hand(inputs, self.target)


def order(target: str, sizes: Sequence[int]) -> list[Task]:
    """All tasks at these sizes, most telling first. The first size is the main one."""
    found = list(_tasks(sizes))
    place = {size: n for n, size in enumerate(sizes)}
    return sorted(found, key=lambda t: (t.rank, place[t.size]))


def _tasks(sizes: Sequence[int]) -> Iterator[Task]:
    main = sizes[0]
    large = LARGE if LARGE in sizes else max(sizes)
    for size in sizes:
        first = size == main
        for variant in variants():
            yield Task(_rank_of_ours(variant, first), size, variant.name, variant)
        for name in PLAIN_PEERS:
            yield Task(1 if name == "by hand" else 2 if first else 7, size, name)
        for name in JAX:
            if first or name in EVERYWHERE or (name == "S3 10" and size in TELLING):
                yield Task(_rank_of_jax(name, size, first), size, f"JAX {name}")
        if first or size in TELLING or size == large:
            for planned in plans():
                if first or (planned.random == "read" and planned.unroll == 1 and not planned.special):
                    yield Task(_rank_of_plan(planned, first), size, planned.name, planned)


def _rank_of_jax(name: str, size: int, first: bool) -> int:
    if name in ("B0", "B1"):
        return 1 if first else 2 if size in TELLING else 4
    if first:
        return 2 if name in ("S2", "S3 10") else 9
    return 4 if name == "S2" else 8


def _rank_of_ours(variant: Variant, first: bool) -> int:
    if variant.kernel == "loop":
        if (variant.state, variant.random) == ("separate", "read"):
            return 0 if first else 1
        return 1 if first else 4
    if variant.kernel == "step":
        return 3 if first else 5
    return 4 if first else 5


def _rank_of_plan(planned: Planned, first: bool) -> int:
    whole = planned.strategy not in MANY
    if planned.random == "read" and planned.unroll == 1:
        key = (planned.strategy, planned.epoch) in KEY or planned.state == "early"
        return (3 if key else 4) if first and whole else 5 if first else 6 if whole else 9
    return (5 if planned.unroll == 1 else 7) if whole else 8


def plans() -> Iterator[Planned]:
    """Every strategy on every way to hold state and to make random numbers; unrolled by 2, 5 and 10 on
    separate state, but for those of hundreds of kernels; and stacked state, put together at the end or before
    the reset, where a concatenation with several users may fuse (S1)."""
    for state in ("separate", "stacked"):
        for random in ("read", "drawn"):
            for strategy, epoch in STRATEGIES:
                yield Planned(strategy, epoch, state, random)
    for unroll in (10, 2, 5):
        for strategy, epoch in STRATEGIES:
            if strategy not in MANY:
                yield Planned(strategy, epoch, "separate", "read", unroll)
    for state in ("early", "stacked"):
        for strategy, epoch in RELAXED:
            if state == "early":
                yield Planned(strategy, epoch, state, "read")
            if strategy != "cleave":
                yield Planned(strategy, epoch, state, "read", 1, True)
