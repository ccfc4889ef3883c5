"""Measure every tile program of the scheduler's space at a few points; how well does the model rank them?

    python -m benchmarks.sweep --json OUT.json.gz [--case NAME ...] [--seconds 60] [--limit 360] [--jobs 0]

The space of a point is all that the scheduler enumerates there, of which a compile takes what the model likes
best: for every candidate and every cut into kernels, each tiling of the dearest kernel, split and unsplit,
merged in the same launch or not, beside the best of the others. Warps, stages and block order are those that
it gives to each tiling; what the tuner tries beside (some 15 times as many) is not in it.

All of it is compiled in processes side by side, and run one at a time in a process of its own: compared with
float64 on memory that holds NaN, run again for equal bits, timed with a cold L2. A crash or a hang costs one
tile program. Those that decide how far the model's first ones are from the best are timed again in turns.
Where the time of a point ends early, the file says what is missing: the likeliest 64 by the model come first,
the rest in random order, so that what was measured of it is a sample. The file is written after every point;
`--resume` keeps the points of which nothing is missing. `benchmarks.ranking` makes figures of it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import queue
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.compiling import captured
from benchmarks.raw import alike
from benchmarks.runner import DTYPES, bound
from benchmarks.suites import PAPER, Case, Sizes
from cleave.errors import Invalid
from cleave.ir.dims import Atom
from cleave.pipeline import TARGETS, plan
from cleave.runtime.cache import library_versions
from cleave.runtime.machines import device_name
from cleave.runtime.naming import tiles_digest
from cleave.runtime.tune import jobs_here, key_of
from cleave.runtime.tune_build import Builders, Job
from cleave.runtime.tune_measure import Measurer, Unready
from cleave.runtime.tune_point import Choice, Limits, Point
from cleave.runtime.tune_process import BEAT
from cleave.runtime.tune_store import RIGHT, Measured
from cleave.runtime.turns import device_lock
from cleave.schedule.select import choose_parts
from cleave.schedule.text import print_tiles

POINTS = (
    ("mla-decode", "decode", 0),
    ("matmul+matmul", "decode", 1),
    ("matmul+rowsum", "prefill", 1),
    ("swiglu", "decode", 1),
    ("mha-d128", "prefill", 0),
    ("swiglu", "prefill", 0),
    ("gqa-d128", "decode", 0),
    ("matmul", "decode", 1),
    ("matmul", "prefill", 0),
    ("causal-gqa-lse", "prefill", 0),
    ("mha-d64", "decode", 1),
    ("rmsnorm+matmul", "decode", 0),
)
"""Case, phase, and the place among its sizes; small spaces first: a run that is cut has many points."""
EVERY = 1 << 20
"""More tile programs than any space holds."""
FIRST = 64
"""So many are measured in the model's order, before the rest in a random one."""
PATIENCE, MEASURE_SECONDS = 30.0, 10.0
"""What a compiler is given before it counts as slow, and a kernel before it counts as hanging."""
DECIDING = (1, 8, 16)
FINALISTS, FINAL_SECONDS = 6, 1.0
"""Timed again in turns: so many of the fastest, and the fastest of the model's first ones."""
UNREACHED = "unreached"
REFUSED = ("refused", "infeasible", "slow")
"""What a tile program is that no kernel is made of: the compiler's word, too much of something, too long."""

Row = dict[str, Any]


def main() -> None:
    """Sweep the points that are named, and keep all of it in a file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--json", type=Path, required=True, help="raw results; a name in .gz is compressed")
    parser.add_argument("--case", action="append", help="repeatable; the exact name")
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--seconds", type=float, default=60.0, help="most time for one point")
    parser.add_argument("--limit", type=float, default=360.0, help="most time for all of them")
    parser.add_argument(
        "--jobs", type=int, default=0, help="processes that compile; 0: one a core, 16 at most"
    )
    parser.add_argument("--resume", action="store_true", help="keep the points of which nothing is missing")
    given = parser.parse_args()
    if given.target == "cuda" and not torch.cuda.is_available():
        raise Invalid("target cuda: torch finds no GPU here", hint="target cpu")
    began = time.monotonic()
    known = _earlier(given.json, given.target) if given.resume else []
    done = {(p["case"], p["phase"], str(p["sizes"]), p["dtype"]) for p in known}
    offers: list[Offer] = []
    for name, phase, number in POINTS:
        case = next(c for c in PAPER if c.name == name)
        points = case.points.get((given.target, phase), ())
        if (given.case and name not in given.case) or number >= len(points):
            continue
        if (name, phase, str(dict(points[number])), given.dtype) not in done:
            offers.append(offered(case, phase, points[number], given.target, given.dtype))
    jobs = given.jobs or jobs_here()

    def each(found: Row) -> None:
        known.append(found)
        print(told(found), flush=True)
        write(given.json, given.target, jobs, known)

    with Sweep(offers, given.target, given.seconds, began + given.limit, jobs) as sweep:
        sweep.run(each)
    left = len(offers) + len(done) - len(known)
    print(f"{len(known)} points, {left} not begun, in {time.monotonic() - began:.0f} s")


def read(path: Path) -> Any:
    """What a file of raw results holds, compressed or not."""
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw)


def write(path: Path, target: str, jobs: int, points: Sequence[Row]) -> None:
    """Write what is known by now."""
    data = {
        "device": device_name(target),
        "machine": TARGETS[target].name,
        "versions": {name: version for name, version in library_versions().items() if version},
        "python": sys.version.split()[0],
        "jobs": jobs,
        "date": time.strftime("%Y-%m-%d"),
        "points": list(points),
    }
    raw = (json.dumps(data, indent=1) + "\n").encode()
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def _earlier(path: Path, target: str) -> list[Row]:
    """The points of an earlier run on this device of which nothing is missing."""
    if not path.exists():
        return []
    data = read(path)
    alike(data, {"device": device_name(target)}, f"--json {path}")
    return [point for point in data["points"] if point["complete"]]


# ---------------------------------------------------------------- the space


@dataclass(frozen=True, slots=True)
class Offer:
    """A point of a case: what the file calls it, and all that the scheduler offers, in the model's order."""

    title: Row
    point: Point


def offered(case: Case, phase: str, sizes: Sizes, target: str, dtype: str) -> Offer:
    """The whole space of a point."""
    program = captured(case, sizes, DTYPES[dtype])
    planned = plan(program, target=target, sizes=bound(program, sizes), count=EVERY)
    choices = tuple(Choice(r.tiles, r.cost.seconds, form=r.candidate.form) for r in planned.ranked[0])
    title = {"case": case.name, "phase": phase, "sizes": dict(sizes), "dtype": dtype}
    return Offer(title, Point(program, target, planned.representatives[0], choices))


def in_order(count: int, first: int = FIRST) -> list[int]:
    """The places of a ranking in the order of measuring: the first ones as they are, the rest at random (with
    a fixed seed)."""
    rest = list(range(first, count))
    random.Random(0).shuffle(rest)
    return [*range(min(first, count)), *rest]


def rows_of(point: Point) -> dict[str, Row]:
    """A row for each tile program of a point by its digest, in the model's order: those that differ in names
    alone are one."""
    rows: dict[str, Row] = {}
    machine = TARGETS[point.target]
    for choice in point.choices:
        digest = tiles_digest(choice.tiles, point.program)
        if digest in rows:
            continue
        row: Row = {"place": len(rows), "form": choice.form, "model": round(choice.model * 1e6, 3)}
        row["tiles"] = print_tiles(choice.tiles)
        parts = choose_parts(choice.tiles, point.sizes, machine)
        rows[digest] = row | {"parts": {str(dim): n for dim, n in parts.items()}, "status": UNREACHED}
    return rows


# ---------------------------------------------------------------- measuring


@dataclass(slots=True)
class _Run:
    """A point while it is swept: its rows by digest, and what is built and waits to be measured."""

    offer: Offer
    rows: dict[str, Row]
    order: dict[str, int]
    """When each is wanted."""
    built: list[Job] = field(default_factory=list[Job])
    wanted: int = 0
    """How many the compilers have not answered for."""
    over: bool = False
    """Whether it is through: what the compilers still answer comes too late."""


class Sweep:
    """Compilers for all points, in their order, and one process that measures: the compilers go on with the
    next point while one is measured. `end` is by the monotonic clock."""

    def __init__(self, offers: Sequence[Offer], target: str, seconds: float, end: float, jobs: int) -> None:
        self.offers, self.target, self.seconds, self.end = offers, target, seconds, end
        self.builders = Builders(jobs)
        limits = Limits(measure_seconds=MEASURE_SECONDS, build_seconds=PATIENCE)
        self.measurer = Measurer(limits, end, _ignored, _nothing, lambda: "the time of all points was over")
        self.runs: list[_Run] = []
        self.twice: set[tuple[int, str]] = set()

    def __enter__(self) -> Sweep:
        return self

    def __exit__(self, *_: object) -> None:
        self.builders.stop()
        self.measurer.stop()

    def run(self, each: Callable[[Row], None]) -> None:
        """Sweep all points; `each` gets what was found at one as soon as it is through."""
        if not self.offers:
            return
        if self.target != "cpu":  # there compilers are processes of their own, which import nothing
            self.builders.start(self.target)
        self.measurer.warm(self.target)
        for number, offer in enumerate(self.offers):
            self.runs.append(self._begun(number, offer))
        for number in range(len(self.offers)):
            if time.monotonic() >= self.end:
                return
            each(self._swept(number))

    def _begun(self, number: int, offer: Offer) -> _Run:
        """Have the compilers begin with a point, after those before."""
        rows = rows_of(offer.point)
        digests = list(rows)
        order = {digests[place]: n for n, place in enumerate(in_order(len(rows)))}
        sizes = {d.name: n for d, n in offer.point.sizes.items() if isinstance(d, Atom)}
        for digest, n in order.items():
            job = Job(None, digest, rows[digest]["tiles"], self.target, number, PATIENCE, sizes)
            self.builders.submit(job, number * EVERY + n)
        return _Run(offer, rows, order, wanted=len(rows))

    def _swept(self, number: int) -> Row:
        """Measure a point until all of it is known or its time is over."""
        run, began, note = self.runs[number], time.monotonic(), ""
        point, key = run.offer.point, key_of(run.offer.point)
        until = min(self.end, began + self.seconds)
        try:
            with device_lock(key.device):
                self.measurer.at(point, key)  # while the compilers work
            while (run.wanted or run.built) and time.monotonic() < until:
                self._arrived(wait=not run.built)
                if run.built:
                    job = run.built.pop(min(range(len(run.built)), key=lambda n: self._when(run, n)))
                    self._take(run.rows[job.digest], self._measured(run, job))
            self._again(run)
        except Unready as error:
            note = str(error)
        run.over = True
        self.builders.drop(number)
        rows = list(run.rows.values())
        left = [row["place"] for row in rows if row["status"] == UNREACHED]
        return {
            **run.offer.title,
            "space": len(rows),
            "complete": not left,
            "covered": min(left, default=len(rows)),
            "seconds": round(time.monotonic() - began, 1),
            "note": note,
            "rows": rows,
        }

    @staticmethod
    def _when(run: _Run, place: int) -> int:
        return run.order[run.built[place].digest]

    def _arrived(self, wait: bool) -> None:
        """Take up what the compilers have answered, of any point, after a moment if there is nothing else to
        do. One that took its compiler along is compiled once more: it may have been the compiler's fault."""
        while True:
            try:
                job = self.builders.done.get(timeout=BEAT) if wait else self.builders.done.get_nowait()
            except queue.Empty:
                return
            wait = False
            assert job.outcome is not None
            run, status, detail = self.runs[job.place], job.outcome["status"], job.outcome.get("detail", "")
            if run.over:
                continue
            if status == "crash" and (job.place, job.digest) not in self.twice:
                self.twice.add((job.place, job.digest))
                self.builders.submit(replace(job, outcome=None), job.place * EVERY + run.order[job.digest])
                continue
            run.wanted -= 1
            if status == "built":
                run.rows[job.digest] |= {"built": True, "detail": detail}
                run.built.append(job)
            else:
                self._take(run.rows[job.digest], Measured(status, detail=detail))

    def _measured(self, run: _Run, job: Job) -> Measured:
        """Check and time one tile program while no other process uses the device."""
        key = key_of(run.offer.point)
        with self.builders.quiet(self.target), device_lock(key.device):
            return self.measurer.asked(run.offer.point, key, job)

    @staticmethod
    def _take(row: Row, measured: Measured) -> None:
        """Note what became of a tile program; one that the end of all time cut short was not reached."""
        if measured.status == "waiting":
            return
        row["status"] = measured.status
        row["detail"] = measured.detail or row.get("detail", "")
        if measured.error is not None:
            row["error"] = measured.error
        if measured.status == RIGHT and measured.seconds is not None:
            row["us"] = round(measured.seconds * 1e6, 3)

    def _again(self, run: _Run) -> None:
        """Time those that decide in turns: alone, the clock's rate of the moment would."""
        chosen = deciding([row for row in run.rows.values() if row["status"] == RIGHT])
        left = self.end - time.monotonic()
        if len(chosen) < 2 or left <= 0:
            return
        texts = {digest: row["tiles"] for digest, row in run.rows.items() if row["place"] in chosen}
        key = key_of(run.offer.point)
        with self.builders.quiet(self.target), device_lock(key.device):
            found = self.measurer.compared(run.offer.point, key, texts, FINAL_SECONDS, left)
        for digest, seconds in found.items():
            run.rows[digest]["again"] = round(seconds * 1e6, 3)


def deciding(right: Sequence[Row]) -> set[int]:
    """The places of the fastest few, and of the fastest of the model's first ones; rows are in its order."""
    fastest = sorted(right, key=lambda row: row["us"])[:FINALISTS]
    firsts = [min(right[:k], key=lambda row: row["us"]) for k in DECIDING if right]
    return {row["place"] for row in (*fastest, *firsts)}


def _ignored(_: str) -> None:
    """Nobody is told."""


def _nothing() -> None:
    """Nobody waits for a sign."""


# ---------------------------------------------------------------- what is told


def counts(point: Mapping[str, Any]) -> dict[str, int]:
    """How many tile programs of a point's space were compiled, refused (by a compiler, or for what they ask
    of the device), right, bad (wrong, or anything else that went amiss), and not reached."""
    found = Counter(row["status"] for row in point["rows"])
    refused = sum(found[status] for status in REFUSED)
    right, left = found[RIGHT], found[UNREACHED]
    return {
        "compiled": sum("built" in row and row["status"] not in REFUSED for row in point["rows"]),
        "refused": refused,
        "right": right,
        "bad": len(point["rows"]) - refused - right - left,
        "unreached": left,
    }


def told(point: Mapping[str, Any]) -> str:
    """One line for a point."""
    known = counts(point)
    best = min((row["us"] for row in point["rows"] if "us" in row), default=None)
    sizes = " ".join(f"{name}{size}" for name, size in point["sizes"].items())
    text = f"{point['case']} {point['phase']} {sizes}: space {point['space']}, "
    text += ", ".join(f"{count} {what}" for what, count in known.items())
    text += f"; best {best:.1f} us" if best is not None else ""
    if not point["complete"]:
        text += f"; cut: the model's first {point['covered']}, and of the others those that were reached"
    return f"{text}; {point['seconds']:.0f} s{'; ' + point['note'] if point['note'] else ''}"


if __name__ == "__main__":
    main()
