"""The tuner: which of many tile programs is the fastest on the device at hand.

`tune(points, ...)` compiles the tile programs of each point in worker processes, measures them one at a time
in a process of their own, and times the best few again in turns. A tile program that crashes, hangs, asks
for too much or is wrong is recorded as such and never chosen. All is kept (`tune_store`): what is measured
is not measured again, so a tuner that was stopped or killed goes on where it was. Several tuners may run at
once: they take turns on the device. Whatever it waits for, it tells `watch` twice a second.
"""

from __future__ import annotations

import concurrent.futures as futures
import math
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import torch

from cleave.ir.dims import Atom
from cleave.runtime.machines import device_name
from cleave.runtime.naming import program_digest, sizes_text, tiles_digest
from cleave.runtime.tune_build import Builders, Job
from cleave.runtime.tune_measure import Measurer, Unready
from cleave.runtime.tune_point import Choice, Event, Limits, Point, Result, Tuned, Watch
from cleave.runtime.tune_process import BEAT
from cleave.runtime.tune_space import ordered, refinements, visitors
from cleave.runtime.tune_store import RIGHT, SLOW, Key, Measured, Store, versions
from cleave.runtime.turns import device_lock
from cleave.schedule.text import print_tiles

FINALISTS, NEAR = 6, 1.25
"""How many are timed again in turns, and how far behind the first they may be."""
FINAL_SECONDS, FINAL_SHARE = 3.0, 0.1
FIRST_SHARE, ROUND_SHARE, LAST_SHARE = 0.9, 0.6, 0.15
"""Of the time of all points, what goes before what won at one is tried at others; of a point's, what is for
the first round where there is a second, and what is kept for the last ones in turns."""
PLAN_SHARE = 0.25
"""On the CPU, of the time of all points: what working them out takes at most before measuring begins."""
GROWTH = 2
"""On the CPU compilers would take the cores from the kernels: one is built and measured, then so many times
more, measured while no compiler works, and so on; at most so many for each compiler at once."""
MOST_JOBS = 16
AHEAD, LATER = 24, 1000
"""So many of the next point are built when nothing of this one is left to build."""
MEASURE_SHARE = 0.2
"""Of the time that was left when a few were begun, what is kept to measure those that are built in time."""

Each = Callable[[int, Tuned], None]
Pending = Point | Future[Point]
"""A point, or one that is still being worked out."""


def tune(
    points: Sequence[Pending],
    limits: Limits | None = None,
    *,
    store: Store | None = None,
    watch: Watch | None = None,
    refine: bool = True,
    started: float | None = None,
    target: str = "",
    each: Each = lambda number, tuned: None,
) -> list[Tuned]:
    """Measure what each point offers, likeliest first, for as long as the budget lasts, from `started` on (by
    the monotonic clock). On a GPU the best few are tried with other warps and stages too (`refine`). Where
    points are still to come, `target` tells for what to get ready meanwhile. `each` gets a point's number and
    what was found as soon as it is through, and again if more was."""
    limits = limits or Limits()
    start = time.monotonic() if started is None else started
    with _Tuner(limits, store or Store(), watch or (lambda event: None), refine, start) as tuner:
        return tuner.run(points, target, each)


def jobs_here() -> int:
    """How many processes may work at once here."""
    return min(MOST_JOBS, len(os.sched_getaffinity(0)))


def key_of(point: Point) -> Key:
    """Under what a point's measurements are kept."""
    digest, sizes = program_digest(point.program), sizes_text(point.program, point.sizes)
    precision = torch.get_float32_matmul_precision()
    return Key(device_name(point.target), digest, sizes, f"{versions()} precision {precision}")


# ---------------------------------------------------------------- one run


class _Tuner:
    def __init__(self, limits: Limits, store: Store, watch: Watch, refine: bool, start: float) -> None:
        self.limits, self.store, self.watch, self.refine = limits, store, watch, refine
        self.builders = Builders(limits.jobs or jobs_here())
        self.place, self.total = 0, 0
        self.end = start + limits.budget
        self.measurer = Measurer(limits, self.end, self._note, self._beat, self._ended)
        self.at: _Run | None = None
        self.coming: list[tuple[int, Pending]] = []
        self.sent: set[tuple[int, str]] = set()
        self.early: dict[tuple[int, str], Job] = {}
        self.phase = "starting"

    def __enter__(self) -> _Tuner:
        return self

    def __exit__(self, *_: object) -> None:
        self.builders.stop()
        self.measurer.stop()

    def run(self, points: Sequence[Pending], target: str, each: Each) -> list[Tuned]:
        self.total = len(points)
        if target and time.monotonic() < self.end:
            self._get_ready(target)
        if target == "cpu":
            self._all_worked_out(points)
        known: dict[int, Point] = {}
        found: dict[int, Tuned] = {}
        while len(found) < len(points):
            number, point = self._next(points, set(found))
            known[number] = point
            self.place = number
            now = time.monotonic()
            share = max(0.0, self.end - now) / (len(points) - len(found))
            self.coming = [(n, p) for n, p in enumerate(points) if n not in known]
            # What wins elsewhere is tried at each point of a program when all are through.
            found[number] = self._point(point, now + share * (1.0 if len(points) == 1 else FIRST_SHARE))
            each(number, found[number])
        tuned = [found[n] for n in range(len(points))]
        for number, others in enumerate(visitors(tuned)):
            if others and time.monotonic() < self.end:
                self.place = number
                again = replace(known[number], choices=others)
                tuned[number] = self._point(again, self.end, tuned[number])
                each(number, tuned[number])
        return tuned

    def _get_ready(self, target: str) -> None:
        """Have all processes import what they need and the device begin, while points are worked out. On the
        CPU compilers are processes of their own, which have nothing to import."""
        if target != "cpu":
            self.builders.start(target)
        self.measurer.warm(target)

    def _all_worked_out(self, points: Sequence[Pending]) -> None:
        """Wait until no process works out points any more, which would take the cores from the kernels; but
        for no more than a part of the time."""
        until = time.monotonic() + PLAN_SHARE * (self.end - time.monotonic())
        left = [p for p in points if isinstance(p, Future)]
        while (left := [p for p in left if not p.done()]) and time.monotonic() < until:
            self._say(f"working out what there is to measure at {len(left)} points")
            futures.wait(left, BEAT, futures.ALL_COMPLETED)

    def _next(self, points: Sequence[Pending], over: set[int]) -> tuple[int, Point]:
        """The first point that is worked out, of those that are not over."""
        left = {n: p for n, p in enumerate(points) if n not in over}
        self.place = min(left)
        while True:
            for number, point in left.items():
                if isinstance(point, Point):
                    return number, point
                if point.done():
                    return number, point.result()
            self._say("working out what there is to measure")
            futures.wait([p for p in left.values() if isinstance(p, Future)], BEAT, futures.FIRST_COMPLETED)

    # ------------------------------------------------------------ a point

    def _point(self, point: Point, deadline: float, before: Tuned | None = None) -> Tuned:
        """Measure a point's choices; with what was found `before`, they are visitors and add to it."""
        start = time.monotonic()
        run = self.at = _Run(point, key_of(point))
        note = point.note
        if before is not None:
            start -= before.seconds
            run.results = {tiles_digest(r.choice.tiles, point.program): r for r in before.results}
            point = before.point
        left = max(0.0, deadline - time.monotonic())
        last = deadline - LAST_SHARE * left
        refine = before is None and self.refine and point.target == "cuda"
        try:
            first = last - (1 - ROUND_SHARE) * (1 - LAST_SHARE) * left if refine else last
            self._round(run, ordered(run.point.choices, point.target), first)
            if refine and time.monotonic() < last:
                self._round(run, ordered(refinements(run.ranked()), point.target), last)
            self._finals(run)
        except Unready as error:
            note = str(error)
        note = note or ("" if run.ranked() or not run.total else self._ended())
        self.builders.drop(self.place)
        self.sent = {(place, digest) for place, digest in self.sent if place != self.place}
        self.at = None
        return Tuned(point, run.ranked(), time.monotonic() - start, note)

    def _round(self, run: _Run, choices: Sequence[Choice], until: float) -> None:
        """Build and measure what is not known yet, until it is late; but something should be known of every
        point: the first may take longer."""
        jobs = list(self._jobs(run, choices))
        run.total += len(jobs)
        self._say(f"{len(choices) - len(jobs)} known, {len(jobs)} to build")
        if not jobs or time.monotonic() > until:
            return  # what is known is told all the same
        if run.point.target == "cpu":
            self._in_turns(run, jobs, until)
        else:
            self._side_by_side(run, jobs, until)
        self.builders.drop(self.place)

    def _side_by_side(self, run: _Run, jobs: Sequence[Job], until: float) -> None:
        """Measure what is built while the compilers go on with the rest, and with the next point's."""
        places = {job.digest: n for n, job in enumerate(jobs)}
        for job in jobs:
            self._send(job, places[job.digest])
        self._send_next()
        with device_lock(run.key.device, self._beat):
            self.measurer.at(run.point, run.key)  # while the compilers work
        built = [self.early.pop((self.place, d)) for d in places if (self.place, d) in self.early]
        wanted = set(places) - {job.digest for job in built}
        while (wanted or built) and not self._late(run, until):
            wanted -= {job.digest for job in self._arrived(wanted, built, wait=not built)}
            if built:
                self._measured(run, built.pop(min(range(len(built)), key=lambda n: places[built[n].digest])))

    def _in_turns(self, run: _Run, jobs: Sequence[Job], until: float) -> None:
        """Build a few, measure them while no compiler works, then more, until what is left is not enough for
        that. At the first point the likeliest is built alone, while the measuring process gets ready:
        something is known as soon as can be."""
        begun, size, each = 0, self.builders.count if self.measurer.has_begun else 1, 0.0
        while begun < len(jobs) and not self._late(run, until - (each if run.right else 0.0)):
            batch = jobs[begun : begun + size]
            built = self._built(run, batch, begun, until)
            each = max([each, *(job.seconds for job in built)])
            for job in built:
                if not self._late(run, until):
                    self._measured(run, job)
            begun += len(batch)
            most = self.builders.count * (GROWTH if time.monotonic() + GROWTH * each < until else 1)
            size = min(GROWTH * size, most)

    def _built(self, run: _Run, batch: Sequence[Job], urgency: int, until: float) -> list[Job]:
        """What of a few is built before the time is over, less what it takes to measure them."""
        places = {job.digest: n for n, job in enumerate(batch)}
        built, wanted = list[Job](), set(places)
        for job in batch:
            self._send(job, urgency + places[job.digest])
        with device_lock(run.key.device, self._beat):
            self.measurer.at(run.point, run.key)  # while the compilers work
        start = time.monotonic()
        while wanted and not self._late(run, until):
            if built and time.monotonic() > until - MEASURE_SHARE * (until - start):
                break
            wanted -= {job.digest for job in self._arrived(wanted, built, wait=True)}
        self.builders.drop(self.place)
        return sorted(built, key=lambda job: places[job.digest])

    def _late(self, run: _Run, until: float) -> bool:
        """Whether a point's time is over: where nothing is known yet, that of all points."""
        return time.monotonic() > (until if run.right else max(until, self.end))

    def _send(self, job: Job, urgency: int) -> None:
        """Have something built, once."""
        if (job.place, job.digest) not in self.sent:
            self.sent.add((job.place, job.digest))
            self.builders.submit(job, urgency)

    def _send_next(self) -> None:
        """Have the compilers go on with the next point when they are through with this one."""
        for place, pending in self.coming:
            if isinstance(pending, Future) and not pending.done():
                continue
            point = pending if isinstance(pending, Point) else pending.result()
            for n, job in enumerate(
                self._jobs(_Run(point, key_of(point)), ordered(point.choices, point.target)[:AHEAD], place)
            ):
                self._send(job, LATER + n)
            return

    def _jobs(self, run: _Run, choices: Sequence[Choice], place: int | None = None) -> Iterator[Job]:
        """What is to be built; the others' results are in the run."""
        place = self.place if place is None else place
        known = self.store.rows(run.key)
        patience = self.limits.patience
        sizes = {d.name: n for d, n in run.point.sizes.items() if isinstance(d, Atom)}
        for choice in choices:
            self._beat()
            digest = tiles_digest(choice.tiles, run.point.program)
            if digest in run.results:
                continue
            if digest in known and known[digest].known(patience):
                run.known(digest, Result(choice, known[digest]))
            else:
                run.results[digest] = Result(choice, Measured("waiting"))
                text = print_tiles(choice.tiles)
                yield Job(choice, digest, text, run.point.target, place, patience, sizes)

    def _arrived(self, wanted: set[str], built: list[Job], wait: bool) -> list[Job]:
        """Jobs that came from the compilers, after a moment if there is nothing else to do; those of a round
        that is over are passed by."""
        found: list[Job] = []
        while True:
            try:
                job = self.builders.done.get(timeout=BEAT) if wait else self.builders.done.get_nowait()
            except queue.Empty:
                if wait:
                    self._say("building")
                break
            wait = False
            if job.place != self.place:
                self.early[job.place, job.digest] = job
            elif job.digest in wanted:
                found.append(job)
        built += found
        return found

    def _measured(self, run: _Run, job: Job) -> None:
        assert job.outcome is not None
        status = job.outcome["status"]
        if status != "built":
            seconds = job.outcome.get("seconds") if status == SLOW else None
            result = Measured(status, seconds, detail=job.outcome.get("detail", ""))
            self.store.end(run.key, job.digest, result)
            self._found(run, job, result)
        else:
            with self.builders.quiet(run.point.target):
                self._found(run, job, self._alone(run, job))

    def _found(self, run: _Run, job: Job, result: Measured) -> None:
        run.done += 1
        run.known(job.digest, Result(job.choice, result, result.status != "waiting"))
        if result.status == RIGHT and result.seconds is not None:
            self._say(f"measured {result.seconds * 1e6:.1f} us")
        else:
            self._say(f"measured: {result.status}")

    def _alone(self, run: _Run, job: Job) -> Measured:
        """Check and time one tile program while no other tuner uses the device."""
        self.phase = "measuring"
        with device_lock(run.key.device, self._beat):
            self.measurer.at(run.point, run.key)
            before = self.store.rows(run.key).get(job.digest)
            if before is not None and before.known(job.patience):
                return before  # another tuner was faster
            self.store.begin(run.key, job.digest, job.text)
            measured = self.measurer.asked(run.point, run.key, job)
            if measured.status == "waiting":
                self.store.forget(run.key, job.digest)
                return measured
            detail = measured.detail or str((job.outcome or {}).get("detail", ""))
            measured = replace(measured, detail=detail)
            self.store.end(run.key, job.digest, measured)
        return measured

    def _finals(self, run: _Run) -> None:
        """Time the best few once more, in turns: alone, the clock's rate of the moment decides."""
        right = [r for r in run.ranked() if r.measured.status == RIGHT]
        left = self.end - time.monotonic()
        if len(right) < 2 or left <= 0 or not any(r.now for r in right[:FINALISTS]):
            return
        limit = NEAR * (right[0].measured.seconds or math.inf)
        last = [r for r in right[:FINALISTS] if (r.measured.seconds or math.inf) <= limit]
        texts = {tiles_digest(r.choice.tiles, run.point.program): print_tiles(r.choice.tiles) for r in last}
        seconds = min(FINAL_SECONDS, max(0.3, FINAL_SHARE * self.limits.budget / max(1, self.total)))
        self._say(f"the best {len(last)} in turns")
        with self.builders.quiet(run.point.target), device_lock(run.key.device, self._beat):
            found = self.measurer.compared(run.point, run.key, texts, seconds, left)
        run.finals = frozenset(found)
        for digest, median in found.items():
            old = run.results[digest]
            new = replace(old.measured, seconds=median)
            self.store.end(run.key, digest, new)
            run.results[digest] = Result(old.choice, new, old.now)

    def _ended(self) -> str:
        """Why there is nothing, where the time was too short."""
        return f"the budget of {self.limits.budget:g} s ended while {self.phase}; {self.builders.told}"

    def _note(self, what: str) -> None:
        self.phase = what

    def _say(self, what: str) -> None:
        self.phase = what
        self._beat()

    def _beat(self) -> None:
        """Tell the watcher where this is."""
        run = self.at
        done, total, best = (run.done, run.total, run.right or None) if run is not None else (0, 0, None)
        what = f"{self.phase}; {self.builders.told}" if self.builders.threads else self.phase
        left = max(0.0, self.end - time.monotonic())
        self.watch(Event(self.place, self.total, done, total, what, best, left))


@dataclass(slots=True)
class _Run:
    """A point while it is tuned; `results` by the digest of the tile program, `right` the least seconds of a
    right one in this run (0: none yet)."""

    point: Point
    key: Key
    results: dict[str, Result] = field(default_factory=dict[str, Result])
    right: float = 0.0
    done: int = 0
    total: int = 0
    finals: frozenset[str] = frozenset()
    """Those that were timed again in turns, if any: their times compare with each other alone."""

    def known(self, digest: str, result: Result) -> None:
        """Take up what is known of a tile program."""
        self.results[digest] = result
        if result.measured.status == RIGHT and result.measured.seconds is not None:
            self.right = min(result.measured.seconds, self.right or math.inf)

    def ranked(self) -> list[Result]:
        """Right ones by time, the finalists before all others, then what is not right; what was not reached
        is left out. A machine that is busy while the finalists are timed would let others win."""
        done = {d: r for d, r in self.results.items() if r.measured.status not in ("waiting", "started")}
        return [r for d, r in sorted(done.items(), key=lambda x: (x[0] not in self.finals, _time(x[1])))]


def _time(result: Result) -> float:
    seconds = result.measured.seconds
    return math.inf if seconds is None or result.measured.status != RIGHT else seconds
