"""What a tuner did, for people: progress while it lasts, and a table when it is over."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cleave.frontend.tuning import Done
from cleave.runtime.tune_point import Event, Tuned, Watch
from cleave.runtime.tune_store import RIGHT

EVERY = 1.5
"""Seconds after which a line is due where lines are shown."""


@contextmanager
def shown(titles: Sequence[str], quiet: bool) -> Iterator[Watch]:
    """A display of events on stderr: bars on a terminal, else a line when a point begins; nothing if
    `quiet`."""
    if quiet:
        yield lambda event: None
        return
    if not sys.stderr.isatty():
        yield Lines(titles)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        whole = bars.add_task("points", total=len(titles))
        point = bars.add_task("")

        def watch(event: Event) -> None:
            text = f"{titles[event.point]}: {event.what}"
            bars.update(whole, completed=event.point)
            bars.update(point, description=text[:70], completed=event.done, total=event.total)

        yield watch


class Lines:
    """A line when a point begins and when one is faster than all before, and every two seconds."""

    def __init__(self, titles: Sequence[str]) -> None:
        self.titles, self.point, self.best = titles, -1, math.inf
        self.begun = time.monotonic()
        self.last = -math.inf

    def __call__(self, event: Event) -> None:
        now = time.monotonic()
        best = event.best if event.best is not None else math.inf
        if event.point != self.point:
            self.point, self.best = event.point, math.inf
        elif best >= self.best and now - self.last < EVERY:
            return
        self.last, self.best = now, min(best, self.best)
        told = f"{event.done} of {event.total}"
        if event.best is not None:
            told += f", best {event.best * 1e6:.1f} us"
        head = f"[{event.point + 1}/{event.points}] {self.titles[event.point]} at {now - self.begun:.1f} s"
        print(f"{head}: {told}; {event.what}; {event.left:.0f} s left", file=sys.stderr, flush=True)


def title_of(tuned: Tuned) -> str:
    """A point in a line."""
    program = tuned.point.program
    sizes = " ".join(f"{atom.name}={tuned.point.sizes[atom]}" for atom in program.dynamic)
    return f"{program.name} {sizes}".rstrip()


def lines_of(done: Sequence[Done]) -> list[str]:
    """What was found, a line or two for each point, and where the recipes are."""
    lines: list[str] = []
    for one in done:
        lines += [_line(tuned) for tuned in one.tuned]
        if one.recipe is None:
            lines.append(f"  no recipe: {one.why}")
        else:
            lines.append(f"  recipe: {one.path or 'kept in this process only'}")
    return lines


def _line(tuned: Tuned) -> str:
    counts: dict[str, int] = {}
    for result in tuned.results:
        counts[result.measured.status] = counts.get(result.measured.status, 0) + 1
    told = ", ".join(f"{number} {status}" for status, number in counts.items())
    now = sum(r.now for r in tuned.results)
    text = f"{title_of(tuned)}: {told or 'nothing measured'} ({now} now, {tuned.seconds:.1f} s)"
    best, first = tuned.best, tuned.first
    if best is not None and best.measured.seconds is not None:
        text += f"; best {best.measured.seconds * 1e6:.1f} us from '{best.choice.form}'"
        if first is None:
            text += ", which is left out: there was no time to measure the cost model's first"
        elif first.measured.seconds is not None:
            text += (
                f", the cost model's first {first.measured.seconds / best.measured.seconds:.2f} times that"
            )
    return f"{text}; {tuned.note}" if tuned.note else text


def as_data(done: Sequence[Done]) -> list[dict[str, object]]:
    """The same for `--json`."""
    return [
        {
            "program": tuned.point.program.name,
            "sizes": {a.name: tuned.point.sizes[a] for a in tuned.point.program.dynamic},
            "seconds": tuned.seconds,
            "note": tuned.note,
            "recipe": str(one.path) if one.path else None,
            "results": [
                {
                    "status": r.measured.status,
                    "us": r.measured.seconds * 1e6
                    if r.measured.status == RIGHT and r.measured.seconds
                    else None,
                    "model_us": r.choice.model * 1e6,
                    "error": r.measured.error,
                    "detail": r.measured.detail,
                    "form": r.choice.form,
                    "now": r.now,
                    "right": r.measured.status == RIGHT,
                }
                for r in tuned.results
            ],
        }
        for one in done
        for tuned in one.tuned
    ]
