"""The tuner: which of many tile programs is the fastest on the device at hand.

`tune(points, ...)` compiles the tile programs of each point in worker processes, measures them one at a time
in a process of their own, and times the best few again in turns. A tile program that crashes, hangs, asks
for too much or is wrong is recorded as such and never chosen. All is kept (`tune_store`): what is measured
is not measured again, so a tuner that was stopped or killed goes on where it was. Several tuners may run at
once: they take turns on the device.
"""

from __future__ import annotations

import fcntl
import math
import os
import queue
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from cleave.ir.dims import Dim
from cleave.ir.program import Program
from cleave.ir.text import print_program
from cleave.knobs import knobs
from cleave.runtime.machines import device_name
from cleave.runtime.naming import program_digest, sizes_text, tiles_digest
from cleave.runtime.tune_build import Builders, Job
from cleave.runtime.tune_process import Died, Late, Process
from cleave.runtime.tune_store import RIGHT, Key, Measured, Store, versions
from cleave.schedule.text import print_kernel, print_tiles
from cleave.schedule.tiles import TileProgram

BUILD_SECONDS, MEASURE_SECONDS, TASK_SECONDS = 180.0, 30.0, 300.0
"""After this long a compiler, a kernel, the making of a point's arguments and standard hangs."""
FINALISTS, NEAR = 6, 1.25
"""How many are timed again in turns, and how far behind the first they may be."""
FINAL_SECONDS, FINAL_SHARE = 3.0, 0.1
FIRST_SHARE = 0.9
MOST_JOBS = 16
WARPS, STAGES, GROUPS = (2, 4, 8), (1, 2, 3, 4, 5), (1, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Choice:
    """A tile program that may be measured; `model` is what the cost model says, in seconds, `candidate` the
    digest of the candidate that it computes, `form` what that is called."""

    tiles: TileProgram
    model: float
    candidate: str = ""
    form: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """A program at sizes (of its dynamic atoms at least), and what may be chosen for it, likeliest first."""

    program: Program
    target: str
    sizes: Mapping[Dim, int]
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A choice and what was measured; `now` says that it was in this run and not an earlier one."""

    choice: Choice
    measured: Measured
    now: bool = False


@dataclass(slots=True)
class Tuned:
    """What is known of a point: right ones first, the fastest first."""

    point: Point
    results: list[Result] = field(default_factory=list[Result])
    seconds: float = 0.0
    """How long this took."""
    note: str = ""
    """Why nothing could be measured here."""

    @property
    def best(self) -> Result | None:
        """The fastest right one."""
        return next((r for r in self.results if r.measured.status == RIGHT), None)

    @property
    def first(self) -> Result | None:
        """What the cost model would have taken, if it was measured."""
        firsts = self.point.choices[:1]
        return next((r for r in self.results if r.choice in firsts), None)


@dataclass(frozen=True, slots=True)
class Event:
    """Something for a progress display: `point` of `points`, `done` of `total` there."""

    point: int
    points: int
    done: int
    total: int
    what: str


Watch = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a tuner may take: seconds for all points, processes that compile, and how long one kernel may
    take to be checked and timed before it counts as hanging."""

    budget: float = 60.0
    jobs: int = 0
    measure_seconds: float = MEASURE_SECONDS
    build_seconds: float = BUILD_SECONDS


def tune(
    points: Sequence[Point],
    limits: Limits | None = None,
    *,
    store: Store | None = None,
    watch: Watch | None = None,
    refine: bool = True,
) -> list[Tuned]:
    """Measure what each point offers, likeliest first, for as long as the budget lasts. On a GPU the best few
    are tried with other warps and stages too (`refine`)."""
    limits = limits or Limits()
    with _Tuner(limits, store or Store(), watch or (lambda event: None), refine) as tuner:
        return tuner.run(points)


def jobs_here() -> int:
    """How many processes may work at once here."""
    return min(MOST_JOBS, len(os.sched_getaffinity(0)))


def key_of(point: Point) -> Key:
    """Under what a point's measurements are kept."""
    digest, sizes = program_digest(point.program), sizes_text(point.program, point.sizes)
    precision = torch.get_float32_matmul_precision()
    return Key(device_name(point.target), digest, sizes, f"{versions()} precision {precision}")


# ---------------------------------------------------------------- one run


class _Unready(Exception):
    """The measuring process dies or hangs before it has measured anything."""


class _Tuner:
    def __init__(self, limits: Limits, store: Store, watch: Watch, refine: bool) -> None:
        self.limits, self.store, self.watch, self.refine = limits, store, watch, refine
        jobs = limits.jobs or jobs_here()
        self.builders = Builders(jobs, limits.build_seconds)
        self.measurer: Process | None = None
        self.begun: tuple[int, str] = (0, "")
        self.place, self.total = 0, 0
        self.end = 0.0

    def __enter__(self) -> _Tuner:
        return self

    def __exit__(self, *_: object) -> None:
        self.builders.stop()
        if self.measurer is not None:
            self.measurer.kill()

    def run(self, points: Sequence[Point]) -> list[Tuned]:
        self.end = end = time.monotonic() + self.limits.budget
        self.total = len(points)
        found: list[Tuned] = []
        for number, point in enumerate(points):
            self.place = number
            now = time.monotonic()
            share = max(0.0, end - now) / (len(points) - number)
            # What wins elsewhere is tried at each point of a program when all are through.
            found.append(self._point(point, now + share * (1.0 if len(points) == 1 else FIRST_SHARE)))
        for number, visitors in enumerate(_visitors(found)):
            if visitors and time.monotonic() < end:
                self.place = number
                found[number] = self._point(replace(points[number], choices=visitors), end, found[number])
        return found

    # ------------------------------------------------------------ a point

    def _point(self, point: Point, deadline: float, before: Tuned | None = None) -> Tuned:
        """Measure a point's choices; with what was found `before`, they are visitors and add to it."""
        start = time.monotonic()
        run = _Run(point, key_of(point), deadline)
        note = ""
        if before is not None:
            start -= before.seconds
            run.results = {tiles_digest(r.choice.tiles, point.program): r for r in before.results}
            point = before.point
        try:
            self._round(run, run.point.choices)
            if before is None and self.refine and point.target == "cuda" and time.monotonic() < deadline:
                self._round(run, refinements(run.ranked()))
            self._finals(run)
        except _Unready as error:
            note = str(error)
            self.builders.drop()
        return Tuned(point, run.ranked(), time.monotonic() - start, note)

    def _round(self, run: _Run, choices: Sequence[Choice]) -> None:
        """Build and measure what is not known yet. On the CPU all is built first: compilers would take the
        cores from the kernels that are timed."""
        known = self.store.rows(run.key)
        jobs: list[Job] = []
        for choice in choices:
            digest = tiles_digest(choice.tiles, run.point.program)
            if digest in run.results:
                continue
            if digest in known and known[digest].done:
                run.results[digest] = Result(choice, known[digest])
            else:
                run.results[digest] = Result(choice, Measured("waiting"))
                jobs.append(Job(choice, digest, print_tiles(choice.tiles), run.point.target))
        run.total += len(jobs)
        self._tell(run, f"{len(choices) - len(jobs)} known")
        if not jobs or time.monotonic() > run.deadline:
            return
        for job in jobs:
            self.builders.submit(job)
        apart = run.point.target == "cpu"
        if not apart:
            self._ready(run)  # while the compilers work
        ready: list[Job] = []
        until = run.deadline if not apart else (time.monotonic() + run.deadline) / 2
        for job in self._built(run, {job.digest for job in jobs}, until):
            if apart:
                ready.append(job)
            else:
                self._measured(run, job)
        self.builders.drop()
        for number, job in enumerate(sorted(ready, key=lambda j: j.choice.model)):
            if number == 0 or time.monotonic() < run.deadline:
                self._measured(run, job)

    def _built(self, run: _Run, wanted: set[str], until: float) -> Iterator[Job]:
        """Jobs as they come from the compilers; those of a point that is over are passed by."""
        right = any(r.measured.status == RIGHT for r in run.results.values())
        last = until if right else max(until, self.end)
        while wanted:
            try:
                job = self.builders.done.get(timeout=max(0.01, last - time.monotonic()))
            except queue.Empty:
                return
            last = until  # something should be known of every point: the first may come late
            if job.digest in wanted:
                wanted.discard(job.digest)
                yield job

    def _measured(self, run: _Run, job: Job) -> None:
        assert job.outcome is not None
        run.done += 1
        self._tell(run, job.outcome["status"])
        if job.outcome["status"] != "built":
            result = Measured(job.outcome["status"], detail=job.outcome.get("detail", ""))
            self.store.end(run.key, job.digest, result)
        else:
            result = self._alone(run, job)
        run.results[job.digest] = Result(job.choice, result, True)
        if result.status == RIGHT and result.seconds is not None:
            run.anchor = run.anchor or ("" if run.exact else job.text)
            self._tell(run, f"{result.seconds * 1e6:.1f} us")

    def _alone(self, run: _Run, job: Job) -> Measured:
        """Check and time one tile program while no other tuner uses the device."""
        self._ready(run)
        with device_lock(run.key.device):
            before = self.store.rows(run.key).get(job.digest)
            if before is not None and before.done:
                return before  # another tuner was faster
            self.store.begin(run.key, job.digest, job.text)
            measured = self._asked(run, job)
            detail = measured.detail or str((job.outcome or {}).get("detail", ""))
            measured = replace(measured, detail=detail)
            self.store.end(run.key, job.digest, measured)
        return measured

    def _asked(self, run: _Run, job: Job) -> Measured:
        process = self._ready(run)
        try:
            load = {"ask": "load", "digest": job.digest, "tiles": job.text}
            answer = process.ask(load, self.limits.build_seconds)
            if answer["status"] == "loaded":
                answer = process.ask({"ask": "measure", "digest": job.digest}, self.limits.measure_seconds)
        except Died as death:
            self.measurer = None
            return Measured("crash", detail=str(death))
        except Late:
            self.measurer = None
            return Measured("hang", detail=f"no answer within {self.limits.measure_seconds:g} s")
        return Measured(
            answer["status"], answer.get("seconds"), answer.get("error"), answer.get("detail", "")
        )

    def _ready(self, run: _Run) -> Process:
        """The measuring process, at this point."""
        if self.measurer is None:
            self.measurer = Process("measure")
        here = (self.measurer.pid, f"{run.key}")
        if self.begun != here:
            program = run.point.program
            message: dict[str, Any] = {
                "ask": "task",
                "target": run.point.target,
                "program": print_program(program),
                "sizes": {atom.name: run.point.sizes[atom] for atom in program.dynamic},
                "precision": torch.get_float32_matmul_precision(),
                "threads": torch.get_num_threads() if run.point.target == "cpu" else 0,
                "anchor": run.anchor,
            }
            try:
                run.exact = self.measurer.ask(message, TASK_SECONDS)["exact"]
            except (Died, Late) as error:
                self.measurer = None
                raise _Unready(
                    f"the measuring process could not take up the point: {error or 'too slow'}"
                ) from error
            self.begun = here
        return self.measurer

    def _finals(self, run: _Run) -> None:
        """Time the best few once more, in turns: alone, the clock's rate of the moment decides."""
        right = [r for r in run.ranked() if r.measured.status == RIGHT]
        if len(right) < 2 or not any(r.now for r in right[:FINALISTS]):
            return
        limit = NEAR * (right[0].measured.seconds or math.inf)
        last = [r for r in right[:FINALISTS] if (r.measured.seconds or math.inf) <= limit]
        texts = {tiles_digest(r.choice.tiles, run.point.program): print_tiles(r.choice.tiles) for r in last}
        seconds = min(FINAL_SECONDS, max(0.3, FINAL_SHARE * self.limits.budget / max(1, self.total)))
        self._tell(run, f"the best {len(last)} in turns")
        try:
            with device_lock(run.key.device):
                process = self._ready(run)
                for digest, text in texts.items():
                    process.ask({"ask": "load", "digest": digest, "tiles": text}, self.limits.build_seconds)
                message = {"ask": "compare", "digests": list(texts), "seconds": seconds}
                longest = seconds + self.limits.measure_seconds * len(last)
                answer = process.ask(message, longest)
        except (Died, Late):
            self.measurer = None  # what was measured alone stands
            return
        for digest, median in answer["seconds"].items():
            old = run.results[digest]
            new = replace(old.measured, seconds=median)
            self.store.end(run.key, digest, new)
            run.results[digest] = replace(old, measured=new)

    def _tell(self, run: _Run, what: str) -> None:
        self.watch(Event(self.place, self.total, run.done, run.total, what))


def _visitors(tuned: Sequence[Tuned]) -> list[tuple[Choice, ...]]:
    """For each point, what won at other points of its program and was not measured here."""
    winners: dict[tuple[str, str], dict[TileProgram, Choice]] = {}
    for one in tuned:
        if one.best is not None:
            own = winners.setdefault((program_digest(one.point.program), one.point.target), {})
            own.setdefault(one.best.choice.tiles, one.best.choice)
    found: list[tuple[Choice, ...]] = []
    for one in tuned:
        own = winners.get((program_digest(one.point.program), one.point.target), {})
        here = {r.choice.tiles for r in one.results}
        limits = [c for t, c in own.items() if t not in here]
        found.append(tuple(c for c in limits if all(one.point.sizes[a] <= n for a, n in c.tiles.limits)))
    return found


@dataclass(slots=True)
class _Run:
    """A point while it is tuned; `results` by the digest of the tile program."""

    point: Point
    key: Key
    deadline: float
    results: dict[str, Result] = field(default_factory=dict[str, Result])
    exact: bool = True
    anchor: str = ""
    """The first right tile program, where others are compared with it and not with float64."""
    done: int = 0
    total: int = 0

    def ranked(self) -> list[Result]:
        """Right ones by time, then the others; what was not reached is left out."""
        known = [r for r in self.results.values() if r.measured.status not in ("waiting", "started")]
        return sorted(known, key=_time)


def _time(result: Result) -> float:
    seconds = result.measured.seconds
    return math.inf if seconds is None or result.measured.status != RIGHT else seconds


def refinements(ranked: Sequence[Result], count: int = 3) -> list[Choice]:
    """The best few with other warps and stages, block orders and ways to load: of these the scheduler makes
    one choice per tiling. Changed is the kernel with the longest text, which does most of the work."""
    found: list[Choice] = []
    for result in ranked[:count]:
        if result.measured.status != RIGHT:
            continue
        kernels = result.choice.tiles.kernels
        dearest = max(range(len(kernels)), key=lambda n: len(print_kernel(kernels[n])))
        old = kernels[dearest]
        changed = [replace(old, warps=warps, stages=stages) for warps in WARPS for stages in STAGES]
        changed += [replace(old, descriptors=not old.descriptors)]
        changed += [replace(old, group=group) for group in GROUPS if len(old.grid) > 1]
        for kernel in dict.fromkeys(changed):
            made = (*kernels[:dearest], kernel, *kernels[dearest + 1 :])
            found.append(replace(result.choice, tiles=replace(result.choice.tiles, kernels=made)))
    return found


@contextmanager
def device_lock(device: str) -> Iterator[None]:
    """One measurement at a time on a device, over all processes that keep their data in one folder."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", device)
    try:
        knobs().data_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(knobs().data_dir / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        yield  # nothing can be written: nobody to take turns with
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
