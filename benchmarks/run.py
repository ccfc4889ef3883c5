"""Run a suite: compile each case once per dtype, check and time every point, print a table, keep raw JSON.

The file is written after every point; a run that was cut goes on with `resume`. Peers' times may be taken
from the file of an earlier run on such a device (`peers_from`): eager is measured again beside ours, and the
peers' times are scaled by what it takes now over what it took then.
"""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.case import Case, Sizes, points_of
from benchmarks.compiling import ABLATIONS
from benchmarks.jobs import Job, local, remote
from benchmarks.peers import peers_of
from benchmarks.raw import earlier
from benchmarks.reused import Key, Record, is_peer, is_right, key_of, peers_by_point, text_of
from benchmarks.runner import DTYPES, Options
from benchmarks.suites import SUITES
from cleave.errors import Invalid
from cleave.knobs import knobs, scope
from cleave.runtime.machines import device_name

DEFAULT_DTYPES = {"cpu": ("f32", "bf16"), "cuda": ("f16", "bf16")}


@dataclass(frozen=True)
class Run:
    """What a run is asked for beside its suite: filters, files, and how (`Options`). After `limit` seconds no
    other point is begun."""

    target: str
    cases: Sequence[str] | None = None
    dtypes: Sequence[str] | None = None
    phases: Sequence[str] | None = None
    json_file: Path | None = None
    budget: float = 0.5
    peers: str = "quick"
    peers_from: Path | None = None
    sweep: float | None = None
    ablations: Sequence[str] = ()
    only: Sequence[str] = ()
    resume: bool = False
    jobs: int = 0
    cold: bool = False
    limit: float = math.inf

    @property
    def options(self) -> Options:
        for what in self.ablations:
            if what not in ABLATIONS:
                raise Invalid(f"there is no ablation {what!r}", hint=f"one of {', '.join(ABLATIONS)}")
        sweep = (20.0 if self.peers == "full" else 0.0) if self.sweep is None else self.sweep
        return Options(self.target, self.peers, self.budget, sweep, tuple(self.ablations), tuple(self.only))


def run_suite(suite: str, **asked: Any) -> int:
    """Run what the filters leave (see `Run`); returns how many of Cleave's own rows are wrong or failed."""
    if suite not in SUITES:
        raise Invalid(f"no suite {suite!r}", hint=f"there is {', '.join(SUITES)}")
    run = Run(**asked)
    check_peers(suite, run)
    console = Console(width=160)
    records = before(run, suite)
    jobs = jobs_of(suite, run, {key_of(r) for r in records})
    began = time.perf_counter()
    with _caches(run), closing(measured(run, jobs)) as points:
        for found in points:
            records += found
            console.print(line(found), highlight=False)
            if run.json_file:
                write(run.json_file, suite, run, records)
            if time.perf_counter() - began > run.limit:
                console.print(f"stopped after {run.limit:.0f} s: --resume takes the points that are left")
                break
    console.print(summary(records, run.target, run.only))
    ours = [r for r in records if r["implementation"] == "cleave"]
    wrong = [r for r in ours if r["failure"]]
    console.print(
        f"{len(ours) - len(wrong)} of {len(ours)} points correct; {time.perf_counter() - began:.0f} s"
    )
    return len(wrong)


def check_peers(suite: str, run: Run) -> None:
    """`Invalid` for the name of a peer that no case of the suite has."""
    if not run.only:
        return
    cases = [(case, next((p[0] for p in case.points.values() if p), {})) for case in SUITES[suite]]
    names = {peer.name for case, sizes in cases for peer in peers_of(case, sizes, run.target, "full")}
    for name in run.only:
        if name not in names:
            raise Invalid(f"there is no peer {name!r}", hint=f"one of {', '.join(sorted(names))}")


def measured(run: Run, jobs: Sequence[Job]) -> Generator[list[Record]]:
    """The records of each point, as they come. On a CPU what is built would take the cores from what is
    measured: there is no child but where children are asked for."""
    builders = run.jobs or (1 if run.target == "cpu" else max(1, (os.cpu_count() or 4) - 2))
    return local(jobs) if builders == 1 else remote(jobs, builders)


@contextmanager
def _caches(run: Run) -> Iterator[None]:
    """Empty caches for a cold run, of ours and of Triton's."""
    if not run.cold:
        yield
        return
    with tempfile.TemporaryDirectory() as folder, scope(cache_dir=Path(folder) / "cleave"):
        knobs().cache_dir.mkdir()
        before = os.environ.get("TRITON_CACHE_DIR")
        os.environ["TRITON_CACHE_DIR"] = str(Path(folder) / "triton")
        try:
            yield
        finally:
            os.environ.pop("TRITON_CACHE_DIR")
            if before is not None:
                os.environ["TRITON_CACHE_DIR"] = before


def jobs_of(suite: str, run: Run, done: set[Key]) -> list[Job]:
    """A job for each case and dtype that the filters leave, without the points that are done."""
    known = reused_rows(run)
    options = run.options
    jobs: list[Job] = []
    for dtype in run.dtypes or DEFAULT_DTYPES[run.target]:
        for case in SUITES[suite]:
            if run.cases and not any(name in case.name for name in run.cases):
                continue
            points = [
                (phase, sizes)
                for phase, sizes in points_of(case, run.target, run.phases)
                if (case.name, phase, dtype, text_of(sizes)) not in done
            ]
            if points:
                jobs.append(Job(suite, case, dtype, points, _lookup(known, case, dtype), options))
    return jobs


def _lookup(
    known: Mapping[Key, list[Record]], case: Case, dtype: str
) -> Callable[[str, Sizes], list[Record]]:
    return lambda phase, sizes: known.get((case.name, phase, dtype, text_of(sizes)), [])


def before(run: Run, suite: str) -> list[Record]:
    """What the file has already, if the run resumes one; points at which ours failed are tried again."""
    if not run.resume:
        return []
    if run.json_file is None:
        raise Invalid("--resume goes on with a file", hint="--json FILE")
    if not run.json_file.exists():
        return []
    data = earlier(run.json_file, run.target, suite=suite)
    _same_ablations(run, data)
    # Its points count as done: a peer that they lack would be left out without a word.
    if set(data.get("only", ())) != set(run.only):
        then, now = (" ".join(f"--peer {n}" for n in names) for names in (data.get("only", ()), run.only))
        raise Invalid(
            f"--resume: {run.json_file} was measured with {then or 'no --peer'}, not with {now or 'none'}",
            hint=f"another --json, and --peers-from {run.json_file}",
        )
    points = by_point(data["records"]).values()
    return [r for rows in points for r in rows if not any(_failed(each) for each in rows)]


def _same_ablations(run: Run, data: Mapping[str, Any]) -> None:
    """`Invalid` where a file's points lack what the run is to leave out."""
    missing = [what for what in run.ablations if what not in data.get("ablations", run.ablations)]
    if missing:
        raise Invalid(
            f"--resume: {run.json_file} was measured without --ablation {' --ablation '.join(missing)}",
            hint="another --json",
        )


def _failed(record: Record) -> bool:
    return record["implementation"] == "cleave" and bool(record["failure"])


def reused_rows(run: Run) -> dict[Key, list[Record]]:
    """Peers' rows of an earlier run by point, with eager's seconds of that run."""
    if run.peers_from is None:
        return {}
    return peers_by_point(earlier(run.peers_from, run.target, option="--peers-from"))


# ---------------------------------------------------------------- what is shown


def best_peer(rows: Sequence[Record]) -> Record | None:
    """The fastest correct implementation that is not ours."""
    right = [r for r in rows if is_peer(r) and is_right(r)]
    return min(right, key=lambda r: r["seconds"], default=None)


def line(rows: Sequence[Record]) -> str:
    """One point as a line."""
    first, last = rows[0], rows[-1]
    texts: list[str] = []
    for r in rows:
        mark = "†" if "reused" in r else ""
        good = f"{r['seconds'] * 1e6:.1f}us{mark}" + (f" ({r['setting']})" if r.get("setting") else "")
        texts.append(f"{r['implementation']} {r['failure'] or good}")
    if last.get("fraction"):
        texts.append(f"{last['fraction']:.2f} of the roofline, {last.get('launches')} launches")
    peer = best_peer(rows)
    if peer is not None and not last["failure"]:
        texts.append(f"[bold]{peer['seconds'] / last['seconds']:.2f}x[/bold]")
    shape = " ".join(f"{k}{v}" for k, v in first["sizes"].items())
    return f"[bold]{first['case']}[/bold] {first['phase']} {first['dtype']} {shape}: " + "; ".join(texts)


def by_point(records: Sequence[Record]) -> dict[Key, list[Record]]:
    """The records of each point, in order."""
    points: dict[Key, list[Record]] = {}
    for r in records:
        points.setdefault(key_of(r), []).append(r)
    return points


def ratio_of(rows: Sequence[Record]) -> float | None:
    """The time of the best correct peer over ours."""
    ours = next((r for r in rows if r["implementation"] == "cleave"), None)
    peer = best_peer(rows)
    if ours is None or peer is None or ours["failure"] or ours["seconds"] != ours["seconds"]:
        return None
    return peer["seconds"] / ours["seconds"]


def summary(records: Sequence[Record], target: str, only: Sequence[str] = ()) -> Table:
    """One line a case and phase: the ratios of its points, and their geometric mean. `only`: the peers that
    were asked for by name."""
    title = f"{target}: time of the best correct peer over ours (above 1: we are faster)"
    if only:
        title += f"; beside eager, only {', '.join(only)} measured"
    table = Table(title=title)
    for column in ("case", "phase", "dtype", "points", "lowest", "mean", "highest", "missing"):
        table.add_column(column)
    groups: dict[tuple[str, str, str], list[float | None]] = {}
    for (case, phase, dtype, _), rows in by_point(records).items():
        groups.setdefault((dtype, phase, case), []).append(ratio_of(rows))
    for (dtype, phase, case), ratios in sorted(groups.items()):
        known = [r for r in ratios if r is not None]
        missing = str(len(ratios) - len(known)) if len(known) < len(ratios) else ""
        if known:
            mean = math.exp(sum(map(math.log, known)) / len(known))
            cells = [f"{min(known):.2f}", f"{mean:.2f}", f"{max(known):.2f}"]
        else:
            cells = ["", "", ""]
        table.add_row(case, phase, dtype, str(len(ratios)), *cells, missing)
    return table


def write(path: Path, suite: str, run: Run, records: Sequence[Record]) -> None:
    """Write the file; whole or not at all."""
    data = {
        "suite": suite,
        "target": run.target,
        "device": device_name(run.target),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        "peers": run.peers,
        "only": list(run.only),
        "sweep": run.options.sweep,
        "ablations": list(run.ablations),
        "cold": run.cold,
        "timing": "median; cold L2 on cuda (overwritten before each run), events; wall clock on cpu",
        "records": list(records),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(json.dumps(data, indent=1))
    part.replace(path)


__all__ = ["DEFAULT_DTYPES", "DTYPES", "is_peer", "key_of", "run_suite", "text_of"]
