"""Builds what the Cartpole study runs ahead of it, in many processes at once.

What is compiled stays in the caches on disk, so that the study, which must time one thing after the other,
finds it there. The seconds that a build took are measured here: in the study it is a look-up.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures import TimeoutError as Late
from typing import Any

import torch

from benchmarks.cartpole_env import Inputs
from benchmarks.cartpole_order import Task
from benchmarks.cartpole_ours import Ours, Variant, arguments
from benchmarks.cartpole_plans import Plans

STARTS = 3
"""Calls at the first steps: numbers 0, 1 and others are compiled for apart."""

Built = dict[tuple[str, int], float]
"""Seconds that a case took to build, by its name and size."""


def build_ahead(tasks: Sequence[Task], steps: dict[int, int], target: str, seconds: float) -> Built:
    """Build our variants and the strategies' plans of these tasks for as long as there is time."""
    items: dict[Any, list[int]] = {}
    for task in tasks:
        if task.what is not None:
            items.setdefault(task.what, []).append(task.size)
    deadline = time.perf_counter() + seconds
    found: Built = {}
    workers = max(1, (os.cpu_count() or 2) - 2)
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    waiting = [
        pool.submit(_built, what, {n: steps[n] for n in sizes}, target) for what, sizes in items.items()
    ]
    with contextlib.suppress(Late):
        for done in as_completed(waiting, timeout=max(0.0, deadline - time.perf_counter())):
            if done.exception() is None:
                found |= done.result()
    started = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in started:
        process.kill()
    return found


def _built(what: Any, steps: dict[int, int], target: str) -> Built:
    torch.set_num_threads(1)
    found: Built = {}
    makers = Ours(target) if isinstance(what, Variant) else Plans(target)
    for size, count in steps.items():
        start = time.perf_counter()
        with contextlib.suppress(Exception):  # what fails, fails again in the study, which reports it
            _call(makers, what, blank(size, count, target))
            found[what.name, size] = time.perf_counter() - start
        if target == "cuda":
            torch.cuda.empty_cache()
    return found


def _call(makers: Ours | Plans, what: Any, inputs: Inputs) -> None:
    if isinstance(makers, Ours):
        chunk = what.chunk(inputs.steps)
        launcher = makers.launcher(what, inputs)
        for first in range(0, min(STARTS * chunk, inputs.steps), chunk):
            launcher(*arguments(what, inputs, first, first + chunk))
        return
    few = inputs.cut(0, STARTS * what.unroll)
    from benchmarks.cartpole_plans import arguments as of_plan

    _, launcher, _ = makers.built(what, few)
    for first in range(0, few.steps, what.unroll):
        launcher(*of_plan(what, few, first))


def blank(size: int, steps: int, target: str) -> Inputs:
    """Inputs of a size, all zero."""
    action = torch.zeros(steps, size, dtype=torch.int32, device=target)
    state = tuple(torch.zeros(size, device=target) for _ in range(4))
    fresh = tuple(torch.zeros(steps, size, device=target) for _ in range(4))
    return Inputs(state, torch.zeros_like(action[0]), action, fresh)
