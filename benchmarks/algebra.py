"""The recall suite: does the search find what experts found, how fast, and what did it drop? (`cleave bench
algebra`; the cases and their notation: `tests/cases/algebra/README.md`.)

One row a program: found or not (and which forms are not), processor seconds, programs built, dropped for
which reason and kept, whether a candidate computes several values in one loop, whether one is split.
"""

from __future__ import annotations

import json
import platform
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.wanted import Case, cases
from cleave.algebra.search import Found, search
from cleave.errors import Invalid
from cleave.ir.candidate import Candidate

REASON = "dropped: "


@dataclass(frozen=True, slots=True)
class Row:
    """What one search found: `lost` names the forms that are not among the candidates, `dropped` counts
    programs by reason, `streaming` says if one loop of a candidate computes several values that need each
    other or share what they read, `split` if a candidate is split over blocks."""

    name: str
    about: str
    found: bool
    lost: tuple[str, ...]
    seconds: float
    built: int
    dropped: dict[str, int]
    kept: int
    streaming: bool
    split: bool


def row_of(case: Case) -> Row:
    """Search once, from nothing, and compare."""
    started = time.process_time()
    found = search(case.program, numerics=case.numerics)
    seconds = time.process_time() - started
    return judged(case, found, seconds)


def judged(case: Case, found: Found, seconds: float) -> Row:
    """The row of a finished search."""
    lost = tuple(form.name for form in case.lost(found))
    dropped = {r.removeprefix(REASON): n for r, n in found.counts.items() if r.startswith(REASON)}
    return Row(
        name=case.name,
        about=case.about,
        found=not lost,
        lost=lost,
        seconds=round(seconds, 4),
        built=found.counts["built"],
        dropped=dropped,
        kept=found.counts["kept"],
        streaming=any(map(streams, found.candidates)),
        split=any(c.splits for c in found.candidates),
    )


def streams(candidate: Candidate) -> bool:
    """Does one loop compute several values?"""
    return any(len(fold.values) > 1 for fold in candidate.folds)


def run_algebra(names: Sequence[str] | None, json_file: Path | None) -> int:
    """Run the cases whose names have one of `names` in them (all without), print a table and the totals, and
    keep the rows as JSON; returns how many programs were not found."""
    every = cases()
    chosen = [c for c in every if not names or any(name in c.name for name in names)]
    if not chosen:
        raise Invalid(f"no case of {len(every)} has {names} in its name")
    rows = [row_of(case) for case in chosen]
    # Rows are one line each, wherever they are printed.
    console = Console(width=150)
    console.print(table(rows))
    for line in totals(rows):
        console.print(line, highlight=False)
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        json_file.write_text(json.dumps(data(rows), indent=1))
    return sum(not row.found for row in rows)


def table(rows: Sequence[Row]) -> Table:
    """The rows, for people."""
    made = Table("program", "found", "ms", "built", "kept", "dropped", "one loop", "split")
    for row in rows:
        dropped = ", ".join(f"{n} {_short(reason)}" for reason, n in row.dropped.items())
        made.add_row(
            row.name,
            "yes" if row.found else "NO: " + "; ".join(row.lost),
            f"{row.seconds * 1e3:.0f}",
            str(row.built),
            str(row.kept),
            dropped,
            "yes" if row.streaming else "no",
            "yes" if row.split else "no",
        )
    return made


def totals(rows: Sequence[Row]) -> list[str]:
    """The closing lines; the last one says how many of how many were found."""
    seconds = [row.seconds for row in rows]
    worst = max(rows, key=lambda row: row.seconds)
    median = statistics.median(seconds)
    slowest = f"worst {worst.seconds:.2f} s ({worst.name})"
    return [
        f"median {median:.3f} s, {slowest}, peak memory {peak_mib():.0f} MiB",
        f"{sum(row.found for row in rows)} of {len(rows)} found",
    ]


def peak_mib() -> float:
    """The most memory that this process has had, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if platform.system() == "Darwin" else 1024)


def data(rows: Sequence[Row]) -> dict[str, object]:
    """The rows, for machines."""
    return {
        "suite": "algebra",
        "python": platform.python_version(),
        "machine": platform.machine(),
        "timing": "processor seconds of one search, nothing cached",
        "peak_mib": round(peak_mib(), 1),
        "found": sum(row.found for row in rows),
        "programs": len(rows),
        "rows": [asdict(row) for row in rows],
    }


def _short(reason: str) -> str:
    words = {
        "another one costs no more for all sizes": "dominated",
        "built before": "twice",
        "stands worse than the user's program": "unstable",
        "more than the limit": "over the limit",
        "its operations grow faster than the user's": "outgrown",
    }
    return words.get(reason, reason)
