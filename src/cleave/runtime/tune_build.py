"""Compiling for the tuner: worker processes for a GPU, compilers of their own for the CPU.

`Builders` takes jobs and hands them back, in any order, with the worker's answer; one that crashes or hangs
its compiler is answered for.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from cleave.runtime.tune_process import Died, Late, Message, Process
from cleave.runtime.tune_worker import build


@dataclass(slots=True)
class Job:
    """A tile program on its way: to be built, then measured; `choice` is what it is to the tuner."""

    choice: Any
    digest: str
    text: str
    target: str
    outcome: Message | None = None


class Builders:
    """Worker processes that compile; a thread each. Answers arrive in `done` as they come."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds
        self.waiting: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.stopped = threading.Event()
        self.threads: list[threading.Thread] = []
        self.processes: dict[int, Process] = {}

    def submit(self, job: Job) -> None:
        self.waiting.put(job)
        if len(self.threads) < self.count:
            self.threads.append(threading.Thread(target=self._work, args=(len(self.threads),), daemon=True))
            self.threads[-1].start()

    def _work(self, number: int) -> None:
        process: Process | None = None
        while (job := self.waiting.get()) is not None:
            if self.stopped.is_set():
                break
            if job.target == "cpu":  # its compiler is a process of its own
                job.outcome = built_here(build_message(job.text, job.target))
                self.done.put(job)
                continue
            try:
                process = process or Process("build")
                self.processes[number] = process
                job.outcome = process.ask(build_message(job.text, job.target), self.seconds)
            except Died as death:
                process, job.outcome = None, {"status": "crash", "detail": f"while compiling: {death}"}
            except Late:
                job.outcome = {"status": "hang", "detail": f"compiled for more than {self.seconds:.0f} s"}
                process = None
            self.done.put(job)

    def drop(self) -> None:
        """Forget what no worker has begun."""
        while True:
            try:
                self.waiting.get_nowait()
            except queue.Empty:
                return

    def stop(self) -> None:
        self.stopped.set()
        self.drop()
        for _ in self.threads:
            self.waiting.put(None)
        for process in list(self.processes.values()):
            process.kill()
        for thread in self.threads:
            thread.join(timeout=5)
        for process in list(self.processes.values()):
            process.kill()


def build_message(text: str, target: str) -> Message:
    """What a building worker is asked."""
    major, minor = torch.cuda.get_device_capability() if target == "cuda" else (0, 0)
    precision = torch.get_float32_matmul_precision()
    return {"tiles": text, "target": target, "capability": 10 * major + minor, "precision": precision}


def built_here(message: Message) -> Message:
    """The answer of a building worker, in this process; whatever goes wrong in the emitter is a crash."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(build, message)
        error = future.exception()
    if error is not None:
        return {"status": "crash", "detail": f"while emitting: {type(error).__name__}: {error}"[:300]}
    return future.result()
