"""What a tuner did, for people: progress while it lasts, and a table when it is over."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from cleave.frontend.tuning import Done
from cleave.runtime.tune import Event, Tuned, Watch
from cleave.runtime.tune_store import RIGHT


@contextmanager
def shown(titles: Sequence[str], quiet: bool) -> Iterator[Watch]:
    """A display of events on stderr: bars on a terminal, else a line when a point begins; nothing if
    `quiet`."""
    if quiet:
        yield lambda event: None
        return
    if not sys.stderr.isatty():
        yield _Lines(titles)
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


class _Lines:
    """A line for each point that begins."""

    def __init__(self, titles: Sequence[str]) -> None:
        self.titles, self.last = titles, -1

    def __call__(self, event: Event) -> None:
        if event.point != self.last:
            self.last = event.point
            print(
                f"[{event.point + 1}/{event.points}] {self.titles[event.point]}", file=sys.stderr, flush=True
            )


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
        if first is not None and first.measured.seconds is not None:
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
                    "us": r.measured.seconds * 1e6 if r.measured.seconds is not None else None,
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
