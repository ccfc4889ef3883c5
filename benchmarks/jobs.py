"""The jobs of a run: which point comes next, and where it is measured.

Each job is a case in one dtype. It runs in this process (`local`), or in a child of its own (`remote`):
children prepare side by side while one at a time measures, so that the device is idle of others, and a crash
or a hang costs one point. Points are taken in turns over the jobs: the first of each, then the second, so
that a run that is cut has seen every case.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Sizes
from benchmarks.runner import Options, Record, Runner
from cleave.runtime.tune_process import Died, Late, Process

PREPARE_SECONDS, MEASURE_SECONDS = 420.0, {"none": 90.0, "quick": 180.0, "full": 900.0}
"""After which a child is given up; measuring takes by the effort of `Options`."""
MOST_CHILDREN = 40
"""Children alive at once: each holds a device context and compiled code."""
INDUCTOR_THREADS = {"none": 1, "quick": 1, "full": 4}
"""Processes that torch.compile may start in each child."""
MOST_THREADS = 80
"""Of all children: where few cases measure all their peers, each may start one for every core, since what
they compile there they compile one at a time."""
MOST_STARTS = 3
ROOT = Path(__file__).parents[1]


@dataclass
class Job:
    """A case in one dtype, and the points that are still to be measured, in order."""

    suite: str
    case: Case
    dtype: str
    points: list[tuple[str, Sizes]]
    reused: Callable[[str, Sizes], list[Record]]
    options: Options
    starts: int = 0
    child: Process | None = None
    runner: Runner | None = None

    @property
    def key(self) -> tuple[str, str]:
        return self.case.name, self.dtype

    def prepare(self) -> None:
        """Compile for all points, in a child where there are children."""
        self.starts += 1
        if self.child is None:
            self.child = Process("case", "benchmarks.worker")
        message = {
            "do": "prepare",
            "suite": self.suite,
            "case": self.case.name,
            "dtype": self.dtype,
            "options": asdict(self.options),
            "points": [dict(sizes) for _, sizes in self.points],
        }
        self.child.ask(message, PREPARE_SECONDS)

    def measure(self, phase: str, sizes: Sizes) -> list[Record]:
        """The records of one point; what becomes of a child that dies is a record."""
        reused = self.reused(phase, sizes)
        if self.runner is not None:
            return self.runner.measure(phase, sizes, reused)
        assert self.child is not None
        message: dict[str, Any] = {"do": "measure", "phase": phase, "sizes": dict(sizes), "reused": reused}
        return self.child.ask(message, MEASURE_SECONDS[self.options.effort])["records"]

    def failed(self, phase: str, sizes: Sizes, why: str) -> list[Record]:
        """The record of a point that could not be measured."""
        return [
            {
                "case": self.case.name,
                "row": self.case.row,
                "phase": phase,
                "sizes": dict(sizes),
                "dtype": self.dtype,
                "implementation": "cleave",
                "error": float("nan"),
                "allowed": float("nan"),
                "seconds": float("nan"),
                "failure": why,
            }
        ]

    def close(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child = None
        self.runner = None


def in_turns(jobs: Sequence[Job]) -> list[tuple[Job, str, Sizes]]:
    """All points: dtype by dtype, the first of each case, then the second."""
    order = {dtype: n for n, dtype in enumerate(dict.fromkeys(job.dtype for job in jobs))}
    places = [
        ((order[job.dtype], turn, number), (job, phase, sizes))
        for number, job in enumerate(jobs)
        for turn, (phase, sizes) in enumerate(job.points)
    ]
    return [point for _, point in sorted(places, key=lambda p: p[0])]


def local(jobs: Sequence[Job]) -> Generator[list[Record]]:
    """Measure in this process, case by case: nothing is built while something is measured."""
    for job in jobs:
        if not job.points:
            continue
        job.runner = Runner(job.case, job.dtype, job.options)
        job.runner.prepare([sizes for _, sizes in job.points])
        for phase, sizes in job.points:
            yield job.measure(phase, sizes)
        job.close()


def remote(jobs: Sequence[Job], builders: int) -> Generator[list[Record]]:
    """Prepare in children, `builders` at a time, and measure what is ready, one point at a time."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    threads = inductor_threads(jobs[0].options.effort, len(jobs)) if jobs else 1
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    waiting = in_turns(jobs)
    room = threading.Semaphore(MOST_CHILDREN)
    over = threading.Event()

    with ThreadPoolExecutor(builders) as pool:
        futures: dict[tuple[str, str], Future[str]] = {}
        try:
            for job, _, _ in waiting:
                if job.key not in futures:
                    futures[job.key] = pool.submit(prepared, job, room, over)
            while waiting:
                ready = (n for n, (job, _, _) in enumerate(waiting) if futures[job.key].done())
                place = next(ready, None)
                if place is None:
                    wait([futures[job.key] for job, _, _ in waiting], return_when=FIRST_COMPLETED)
                    continue
                job, phase, sizes = waiting.pop(place)
                records, alive = measured(job, phase, sizes, futures[job.key].result())
                left = [(p, s) for other, p, s in waiting if other is job]
                if not left:
                    job.close()
                    room.release()
                elif not alive and job.starts < MOST_STARTS:
                    job.points = left
                    futures[job.key] = pool.submit(prepared, job, room, over)
                elif not alive:
                    futures[job.key] = pool.submit(lambda: "its process died too often")
                yield records
        finally:
            over.set()
            pool.shutdown(wait=False, cancel_futures=True)
            room.release(len(jobs) + 1)  # those that wait for it find the run over
            for job in jobs:
                job.close()


def inductor_threads(effort: str, children: int) -> int:
    """Processes that torch.compile may start in each of so many children."""
    least = INDUCTOR_THREADS[effort]
    each = min(os.cpu_count() or 1, MOST_THREADS // max(1, children))
    return max(least, each) if effort == "full" else least


def prepared(job: Job, room: threading.Semaphore, over: threading.Event) -> str:
    """Start a job's child and compile in it, once there is `room`; why it is not ready, or nothing. When the
    run is `over` nothing is started."""
    if job.starts == 0:
        room.acquire()
    if over.is_set():
        return "the run was stopped"
    try:
        job.prepare()
    except Died as error:
        job.child = None
        return f"the process died while compiling: {error}"
    except Late:
        job.child = None
        return f"compiling took more than {PREPARE_SECONDS:.0f} s"
    return ""


def measured(job: Job, phase: str, sizes: Sizes, why: str) -> tuple[list[Record], bool]:
    """The records of a point of a prepared job (`why` it is not, if it is not), and whether its child is
    still fit for another."""
    if why:
        return job.failed(phase, sizes, why), True
    try:
        return job.measure(phase, sizes), True
    except Died as error:
        text = f"the process died: {error}"
    except Late:
        text = "no answer in time"
    job.child = None
    return job.failed(phase, sizes, text), False
