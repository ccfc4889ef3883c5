"""Builds what the Cartpole study runs ahead of it, in many processes at once.

What is compiled stays in the caches on disk, so that the study, which must time one thing after the other,
finds it there; a strategy's plan comes back as the text of its tile program, and is neither planned nor
scheduled again. Strategies that cut one program alike are found by the process that has all of them, and are
built once. The seconds that a build took are measured here: in the study it is a look-up.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures import TimeoutError as Late

import torch

from benchmarks.cartpole_env import Inputs
from benchmarks.cartpole_order import MANY, Task
from benchmarks.cartpole_ours import Ours, Variant, arguments
from benchmarks.cartpole_plans import Planned, Plans, Prepared
from benchmarks.cartpole_plans import arguments as of_plan

STARTS = 3
"""Calls at the first steps: numbers 0, 1 and others are compiled for apart."""

Built = dict[tuple[str, int], float | None]
"""Seconds that a case took to build, by its name and size; None if it failed."""
Handed = dict[tuple[str, int], Prepared]


def build_ahead(
    tasks: Sequence[Task], every: Sequence[Planned], steps: dict[int, int], target: str, seconds: float
) -> tuple[Built, Handed]:
    """Build our variants and the strategies' plans of these tasks for as long as there is time. `every` are
    all plans of the study in its order: of those with the same kernels the first is built."""
    until = time.time() + seconds
    workers = max(1, (os.cpu_count() or 2) - 2)
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    waiting = [
        pool.submit(_plans, group, wanted, size, steps[size], target, until)
        for (size, group), wanted in groups_of(tasks, every).items()
    ]
    waiting += [
        pool.submit(_variant, variant, {n: steps[n] for n in sizes}, target, until)
        for variant, sizes in _variants(tasks).items()
    ]
    built: Built = {}
    handed: Handed = {}
    with contextlib.suppress(Late):
        for done in as_completed(waiting, timeout=max(0.0, until - time.time())):
            if done.exception() is None:
                seconds_of, texts = done.result()
                built |= seconds_of
                handed |= texts
    started = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in started:
        process.kill()
    return built, handed


def _variants(tasks: Sequence[Task]) -> dict[Variant, list[int]]:
    found: dict[Variant, list[int]] = {}
    for task in tasks:
        if isinstance(task.what, Variant):
            found.setdefault(task.what, []).append(task.size)
    return found


def groups_of(
    tasks: Sequence[Task], every: Sequence[Planned]
) -> dict[tuple[int, tuple[Planned, ...]], frozenset[Planned]]:
    """Plans that one process makes together, at one size: those of one program, in the study's order, with
    those that are wanted. Groups that hold the most telling tasks come first."""
    ordered = list(dict.fromkeys(every))
    found: dict[tuple[int, tuple[Planned, ...]], set[Planned]] = {}
    for task in tasks:
        if not isinstance(task.what, Planned):
            continue
        many = task.what.strategy in MANY
        key = task.what.source
        group = tuple(p for p in ordered if p.source == key and (p.strategy in MANY) == many)
        found.setdefault((task.size, group), set()).add(task.what)
    return {key: frozenset(wanted) for key, wanted in found.items()}


def _variant(what: Variant, steps: dict[int, int], target: str, until: float) -> tuple[Built, Handed]:
    torch.set_num_threads(1)
    found: Built = {}
    ours = Ours(target)
    for size, count in steps.items():
        if time.time() > until:
            break
        start = time.perf_counter()
        found[what.name, size] = None
        with contextlib.suppress(Exception):  # the study tries it again, and reports it
            inputs = blank(size, count, target)
            chunk = what.chunk(inputs.steps)
            launcher = ours.launcher(what, inputs)
            for first in range(0, min(STARTS * chunk, inputs.steps), chunk):
                launcher(*arguments(what, inputs, first, first + chunk))
            found[what.name, size] = time.perf_counter() - start
        if target == "cuda":
            torch.cuda.empty_cache()
    return found, {}


def _plans(
    group: Sequence[Planned], wanted: frozenset[Planned], size: int, steps: int, target: str, until: float
) -> tuple[Built, Handed]:
    torch.set_num_threads(1)
    found: Built = {}
    plans = Plans(target)
    inputs = blank(size, steps, target)
    for planned in group:
        if time.time() > until:
            break
        start = time.perf_counter()
        few = inputs.cut(0, STARTS * planned.unroll)
        if planned in wanted:
            found[planned.name, size] = None
        with contextlib.suppress(Exception):  # the study tries it again, and reports it
            made = plans.prepared(planned, few)
            if planned in wanted and made.first == planned.name:
                _, launcher, _ = plans.built(planned, few)
                for first in range(0, few.steps, planned.unroll):
                    launcher(*of_plan(planned, few, first))
            if planned in wanted:
                found[planned.name, size] = time.perf_counter() - start
    return found, {key: p for key, p in plans.handed.items() if key in found}


def blank(size: int, steps: int, target: str) -> Inputs:
    """Inputs of a size, all zero."""
    action = torch.zeros(steps, size, dtype=torch.int32, device=target)
    state = tuple(torch.zeros(size, device=target) for _ in range(4))
    fresh = tuple(torch.zeros(steps, size, device=target) for _ in range(4))
    return Inputs(state, torch.zeros_like(action[0]), action, fresh)
