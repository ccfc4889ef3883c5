"""Compiling for the tuner: worker processes for a GPU, compilers of their own for the CPU.

`Builders` takes jobs, the most urgent first, and hands them back in any order with the worker's answer; one
that crashes its compiler, or keeps it busy for too long, is answered for. `start` makes the workers import
what they need before there is work.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from cleave.runtime.compilers import compilers_halted
from cleave.runtime.machines import device_name
from cleave.runtime.triton_build import capability_here
from cleave.runtime.tune_process import Died, Late, Message, Process
from cleave.runtime.tune_store import SLOW
from cleave.runtime.tune_worker import build

START_SECONDS = 60.0
"""What a worker is given beside its patience to import what it needs, once."""
STAGGER = 4.0
"""So many seconds later half of the workers start: importing all at once takes them twice as long."""
STOP_SECONDS = 2.0
"""A compiler that can't be ended (on the CPU it is a process of its own) is waited for no longer."""


@dataclass(slots=True)
class Job:
    """A tile program on its way: to be built, then measured; `choice` is what it is to the tuner, `place` the
    number of its point, `patience` the seconds that its compiler is given, `sizes` those of all atoms;
    `outcome` is the compiler's answer, for which it took `seconds`."""

    choice: Any
    digest: str
    text: str
    target: str
    place: int = 0
    patience: float = 30.0
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    outcome: Message | None = None
    seconds: float = 0.0


@dataclass(slots=True, eq=False)
class _Worker:
    """What one thread is at."""

    process: Process | None = None
    warm: bool = False
    since: float = 0.0
    """When its compiler was asked; 0 while it is idle."""


@dataclass(slots=True)
class Builders:
    """Worker processes that compile; a thread each. Answers arrive in `done` as they come."""

    count: int
    done: queue.SimpleQueue[Job] = field(default_factory=lambda: queue.SimpleQueue[Job]())
    waiting: queue.PriorityQueue[tuple[int, int, Job | None]] = field(
        default_factory=lambda: queue.PriorityQueue[tuple[int, int, Job | None]]()
    )
    stopped: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list[threading.Thread])
    workers: list[_Worker] = field(default_factory=list[_Worker])
    order: itertools.count[int] = field(default_factory=itertools.count)
    halted: bool = False

    def start(self, target: str) -> None:
        """Start all workers: they import what they need meanwhile."""
        while len(self.threads) < self.count:
            self._another(target)

    def submit(self, job: Job, urgency: int = 0) -> None:
        """Have something built; lower numbers first."""
        self.waiting.put((urgency, next(self.order), job))
        if len(self.threads) < self.count:
            self._another(job.target)

    def _another(self, target: str) -> None:
        worker = _Worker()
        self.workers.append(worker)
        self.threads.append(threading.Thread(target=self._work, args=(worker, target), daemon=True))
        self.threads[-1].start()

    def _work(self, worker: _Worker, target: str) -> None:
        if target != "cpu" and not self.stopped.wait(STAGGER * (worker in self.workers[self.count // 2 :])):
            worker.process = Process("build")
        while (job := self.waiting.get()[2]) is not None:
            if self.stopped.is_set():
                break
            worker.since = time.monotonic()
            job.outcome = _outcome(worker, job)
            job.seconds = time.monotonic() - worker.since
            worker.since = 0.0
            if not self.stopped.is_set():
                self.done.put(job)

    @property
    def told(self) -> str:
        """How many compilers are at work, and for how long the longest."""
        now = time.monotonic()
        busy = [now - w.since for w in self.workers if w.since]
        if busy and self.halted:
            return f"no compiler at work, {len(busy)} halted"
        return f"{len(busy)} compiling, the longest for {max(busy):.1f} s" if busy else "no compiler at work"

    @contextmanager
    def quiet(self, target: str) -> Iterator[None]:
        """Something is measured: on the CPU no compiler takes a core meanwhile."""
        if target != "cpu":
            yield
            return
        with compilers_halted():
            self.halted = True
            try:
                yield
            finally:
                self.halted = False

    def drop(self, place: int | None = None) -> None:
        """Forget what no worker has begun, of one point or of all."""
        kept: list[tuple[int, int, Job | None]] = []
        while True:
            try:
                item = self.waiting.get_nowait()
            except queue.Empty:
                break
            if place is not None and item[2] is not None and item[2].place != place:
                kept.append(item)
        for item in kept:
            self.waiting.put(item)

    def stop(self) -> None:
        """End all of it."""
        self.stopped.set()
        self.drop()
        for _ in self.threads:
            self.waiting.put((-1, next(self.order), None))
        until = time.monotonic() + STOP_SECONDS
        while any(thread.is_alive() for thread in self.threads) and time.monotonic() < until:
            for worker in self.workers:
                if worker.process is not None:
                    worker.process.kill()
            time.sleep(0.02)


def _outcome(worker: _Worker, job: Job) -> Message:
    if job.target == "cpu":  # its compiler is a process of its own
        return built_here(build_message(job.text, job.target, job.sizes))
    try:
        if worker.process is None:
            worker.process, worker.warm = Process("build"), False
        patience = job.patience + (0.0 if worker.warm else START_SECONDS)
        answer = worker.process.ask(build_message(job.text, job.target, job.sizes), patience)
        worker.warm = True
        return answer
    except Died as death:
        worker.process = None
        return {"status": "crash", "detail": f"while compiling: {death}"}
    except Late:
        worker.process = None
        return {
            "status": SLOW,
            "seconds": job.patience,
            "detail": f"compiled for {job.patience:.0f} s and more",
        }


def build_message(text: str, target: str, sizes: Mapping[str, int]) -> Message:
    """What a building worker is asked."""
    precision = torch.get_float32_matmul_precision()
    message: Message = {"tiles": text, "target": target, "precision": precision, "sizes": {**sizes}}
    if target == "cuda":
        message |= {"capability": capability_here(), "device": device_name(target)}
    return message


def built_here(message: Message) -> Message:
    """The answer of a building worker, in this process; whatever goes wrong in the emitter is a crash."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(build, message)
        error = future.exception()
    if error is not None:
        return {"status": "crash", "detail": f"while emitting: {type(error).__name__}: {error}"[:300]}
    return future.result()
