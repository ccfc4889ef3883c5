"""What a page says of a compile: the time of its phases, what each part of it brings, and its cost model."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report_text import Rows, folded, is_known, mean, named, score, sizes_text, table
from benchmarks.reused import is_peer, is_right, key_of
from benchmarks.run import by_point, ratio_of
from benchmarks.targets import COMPILE_SECONDS, MODEL_SHARE, TUNING_SECONDS

UNTUNED = "untuned"
NOTICED = 1.05
"""A loss that is counted: clocks differ by less."""
STAGES = ("capture", "search", "plan", "emit", "build")


# ---------------------------------------------------------------- time of a compile


def whole(phases: Mapping[str, float]) -> float:
    """Seconds of all stages of a compile."""
    return sum(phases.get(stage, 0.0) for stage in STAGES)


def marked(seconds: float, target: str) -> str:
    """Seconds of a compile, marked where they are too many."""
    late = target == "cuda" and seconds > COMPILE_SECONDS
    return f"**{seconds:.2f} miss**" if late else f"{seconds:.2f}"


def compile_times(points: Sequence[Rows], cold: bool, target: str) -> list[str]:
    """Seconds of each stage, once a case and dtype."""
    seen: dict[tuple[str, str], dict[str, float]] = {}
    first: dict[tuple[str, str], str] = {}
    for rows in points:
        ours = named(rows, "cleave")
        if ours is not None and ours.get("phases"):
            seen.setdefault((ours["case"], ours["dtype"]), ours["phases"])
            if is_known(ours.get("first_call_seconds")):
                first.setdefault((ours["case"], ours["dtype"]), f"{ours['first_call_seconds']:.3f}")
    if not seen:
        return []
    body = [
        [
            case,
            dtype,
            *(f"{phases.get(stage, 0.0):.2f}" for stage in STAGES),
            marked(whole(phases), target),
            f"{phases.get('further', 0.0):.2f}",
            first.get((case, dtype), "not measured"),
        ]
        for (case, dtype), phases in seen.items()
    ]
    middle = [f"{statistics.median(p.get(stage, 0.0) for p in seen.values()):.2f}" for stage in STAGES]
    total = statistics.median(map(whole, seen.values()))
    rest = statistics.median(p.get("further", 0.0) for p in seen.values())
    slow = sum(whole(p) > COMPILE_SECONDS for p in seen.values())
    columns = "| capture | search | planning | emit | compile | sum | variants for other sizes"
    state = "caches empty before the run" if cold else "caches may have held something"
    return [
        f"Compile time, seconds, without tuning ({state}); medians of {len(seen)} compiles, "
        f"{slow} of them above {COMPILE_SECONDS:.0f} s:",
        "",
        *table(columns[2:], [[*middle, f"{total:.2f}", f"{rest:.2f}"]]),
        *folded("Compile time of each case", table(f"case | dtype {columns} | first call", body)),
    ]


# ---------------------------------------------------------------- parts left out


class Losses:
    """What points with ablations lose: seconds of each over the seconds of what it is held to, the cost
    model's own choice where that was timed (`untuned`, without a recipe as the others are), else ours."""

    def __init__(self, points: Iterable[Rows]) -> None:
        self.of: dict[str, dict[str, list[tuple[float, Rows]]]] = {}
        self.gone: dict[str, int] = {}
        self.untuned: list[tuple[float, Rows]] = []
        for rows in points:
            ours, base = named(rows, "cleave"), named(rows, f"cleave {UNTUNED}")
            if ours is not None and base is not None and is_right(ours) and is_right(base):
                self.untuned.append((ours["seconds"] / base["seconds"], rows))
            held = base if base is not None and is_right(base) else ours
            if held is not None and is_right(held):
                self._add(rows, held["seconds"])

    def _add(self, rows: Rows, seconds: float) -> None:
        for row in rows:
            what = row["implementation"].removeprefix("cleave ")
            if is_peer(row) or what in ("cleave", UNTUNED):
                continue
            if not is_right(row):
                self.gone[what] = self.gone.get(what, 0) + 1
                continue
            case = self.of.setdefault(what, {}).setdefault(row["case"], [])
            case.append((row["seconds"] / seconds, rows))


def ablations(points: Sequence[Rows], suite: Sequence[Rows] = ()) -> list[str]:
    """What is lost without a part: the geometric mean of its time over the whole's, over the points of an op,
    then over ops; and the score that the points of `suite`, with their peers, would have with it."""
    losses = Losses(points)
    body: list[list[str]] = []
    for what, cases in losses.of.items():
        values = [value for found in cases.values() for value, _ in found]
        highest, where = max((found for each in cases.values() for found in each), key=lambda f: f[0])
        slower = sum(value > NOTICED for value in values)
        cells = [what, str(len(values)), f"{mean([mean([v for v, _ in c]) for c in cases.values()]):.2f}"]
        cells += [f"{highest:.2f} ({where[0]['case']} {sizes_text(where[0]['sizes'])})", str(slower)]
        cells += [f"{min(values):.2f}", str(losses.gone.get(what, 0))]
        body.append([*cells, *scores_with(cases, suite)] if suite else cells)
    if not body:
        return []
    columns = (
        "left out (reassociation: let in) | points | time over ours, mean | highest | 5% slower | lowest"
    )
    columns += " | no schedule" + (" | score so: prefill | decode" if suite else "")
    held = "the cost model's choice with all parts, no recipe" if losses.untuned else "ours"
    lines = [
        f"Ablations, each the cost model's choice without a part, over {held}:",
        "",
        *table(columns, body),
    ]
    return [*lines, *by_op(losses), *model_share(losses)]


def scores_with(cases: Mapping[str, Sequence[tuple[float, Rows]]], suite: Sequence[Rows]) -> list[str]:
    """The scores of both phases if ours took as much longer as an ablation does."""
    factors = {key_of(rows[0]): value for found in cases.values() for value, rows in found}
    changed: list[Rows] = []
    for rows in suite:
        factor = factors.get(key_of(rows[0]))
        if factor is not None and ratio_of(rows) is not None:
            own = named(rows, "cleave") or {}
            slower = {**own, "seconds": own["seconds"] * factor}
            changed.append([slower if row is own else row for row in rows])
    return [score([r for r in changed if r[0]["phase"] == phase]) for phase in ("prefill", "decode")]


def by_op(losses: Losses) -> list[str]:
    """The mean loss of each op."""
    names = list(losses.of)
    ops = list(dict.fromkeys(case for cases in losses.of.values() for case in cases))
    body = [
        [op, *(f"{mean([v for v, _ in losses.of[n][op]]):.2f}" if op in losses.of[n] else "" for n in names)]
        for op in ops
    ]
    return folded("Ablations of each op: time over the whole's", table(" | ".join(["op", *names]), body))


def model_share(losses: Losses) -> list[str]:
    """What share of our tuned speed the cost model's first choice reaches."""
    if not losses.untuned:
        return []
    cases: dict[str, list[float]] = {}
    for value, rows in losses.untuned:
        cases.setdefault(rows[0]["case"], []).append(value)
    values = [value for value, _ in losses.untuned]
    lowest, where = min(losses.untuned, key=lambda f: f[0])
    enough = sum(value >= MODEL_SHARE for value in values)
    body = [[op, str(len(own)), f"{mean(own):.2f}", f"{min(own):.2f}"] for op, own in cases.items()]
    return [
        f"The cost model alone reaches {mean([mean(v) for v in cases.values()]):.2f} of the speed with "
        f"recipes (geometric mean over the points of an op, then over ops); {enough} of {len(values)} points "
        f"reach {MODEL_SHARE}, the lowest {lowest:.2f} ({where[0]['case']} {sizes_text(where[0]['sizes'])}).",
        "",
        *folded("The cost model alone, of each op", table("op | points | mean | lowest", body)),
    ]


def of_ablation(folder: Path, files: Iterable[tuple[str, Mapping[str, Any], Sequence[Rows]]]) -> list[str]:
    """The tables of the files that only measure what is left out (`ablation-*.json`), beside the points with
    peers of the same suite, device and dtype."""
    known = list(files)
    lines: list[str] = []
    for path in sorted(folder.glob("ablation-*.json")):
        data = json.loads(path.read_text())
        points = list(by_point(data["records"]).values())
        dtypes = {rows[0]["dtype"] for rows in points}
        suite = [
            rows
            for _, other, found in known
            for rows in found
            if (other["suite"], other["device"]) == (data["suite"], data["device"])
            and rows[0]["dtype"] in dtypes
        ]
        found = ablations(points, suite)
        if found:
            when = f", {data['date']}" if data.get("date") else ""
            what = f"Suite `{data['suite']}` on {data['device']}{when}, {len(points)} of {len(suite)} points."
            lines += [f"## {path.stem}", "", what, "", *found]
    return lines


# ---------------------------------------------------------------- the cost model, tuning, calls


def of_model(folder: Path) -> list[str]:
    """How well the cost model ranks measured tile programs (`ranking-*.json` of `benchmarks.ranking`): whole
    spaces first, then samples."""
    files = [json.loads(path.read_text()) for path in sorted(folder.glob("ranking-*.json"))]
    files = [data for data in files if data["points"]]
    lines: list[str] = []
    for data in sorted(files, key=lambda data: "space" not in data["points"][0]):
        lines += _of_space(data) if "space" in data["points"][0] else _of_sample(data)
    head = "Tile programs that were measured on an H200, ranked by today's cost model (`benchmarks.ranking`)."
    return ["## Cost model", "", head, "", *lines] if lines else []


def _of_space(data: Mapping[str, Any]) -> list[str]:
    """A sweep of all that the scheduler offers at some points (`benchmarks.sweep`)."""
    rows: list[dict[str, Any]] = data["points"]
    total = {k: sum(row[k] for row in rows) for k in ("space", "refused", "right", "bad", "unreached")}
    whole = sum(row["complete"] for row in rows)
    ops = len({row["case"] for row in rows})
    bad = f"{total['bad']} wrong or worse" if total["bad"] else "none wrong"
    told = (
        f"{data['of']}, {data['device']}, {data['date']}: every tile program that the scheduler offers, at "
        f"{whole} of {len(rows)} points of {ops} subgraphs. Of {total['space']}, {total['right']} are "
        f"measured and right, {bad}, {total['refused']} refused by a compiler or the device"
    )
    told += f", {total['unreached']} not reached in time. " if total["unreached"] else ". "
    body = [
        [
            *_named(row), str(row["space"]), *(str(row[k]) for k in ("compiled", "refused", "right")),
            "yes" if row["complete"] else f"no: the model's first {row['covered']}, others at random",
            *_figures(row),
        ]
        for row in rows
    ]  # fmt: skip
    last = ["all", "", "", str(total["space"]), str(sum(row["compiled"] for row in rows))]
    last += [str(total["refused"]), str(total["right"]), f"{whole} of {len(rows)}", *_means(rows)]
    columns = (
        "subgraph | phase | sizes | space | compiled | refused | right | exhaustive | best, µs | "
        "rank correlation | first 1 | first 8 | first 16"
    )
    lacking = f" Nothing to rank: {', '.join(data['lacking'])}." if data.get("lacking") else ""
    return [told + _judged_model(rows) + lacking, "", *table(columns, [*body, last])]


def _of_sample(data: Mapping[str, Any]) -> list[str]:
    """Tile programs that were chosen from those that the scheduler or the tuner had."""
    rows: list[dict[str, Any]] = data["points"]
    body = [[*_named(row), str(row["programs"]), *_figures(row)] for row in rows]
    body.append(["all", "", "", str(sum(row["programs"] for row in rows)), *_means(rows)])
    columns = (
        "subgraph | phase | sizes | programs | best, µs | rank correlation | first 1 | first 8 | first 16"
    )
    ops = len({row["case"] for row in rows})
    return [
        f"{data['of']}: {len(rows)} points of {ops} subgraphs. {_judged_model(rows)}",
        "",
        *folded(f"Each point of {data['of']}", table(columns, body)),
    ]


def _judged_model(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a table of the model says, in a sentence."""
    _, ranks, *means = _means(rows)
    enough = sum(1 / row["firsts"]["1"] >= MODEL_SHARE for row in rows)
    return (
        f"The best of the model's first 1, 8 and 16 takes {means[0]}, {means[1]} and {means[2]} times the "
        f"best that was measured, rank correlation {ranks}; at {enough} of {len(rows)} points the model's "
        f"first reaches {MODEL_SHARE} of the best."
    )


def _named(row: Mapping[str, Any]) -> list[str]:
    return [row["case"], row["phase"], sizes_text(row["sizes"])]


def _figures(row: Mapping[str, Any]) -> list[str]:
    firsts = (f"{row['firsts'][k]:.2f}" for k in ("1", "8", "16"))
    return [f"{row['best']:.1f}", f"{row['correlation']:.2f}", *firsts]


def _means(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The same figures over all points: no best, the mean correlation, geometric means."""
    ranks = sum(row["correlation"] for row in rows) / len(rows)
    return [
        "",
        f"{ranks:.2f}",
        *(f"{mean([row['firsts'][k] for row in rows]):.2f}" for k in ("1", "8", "16")),
    ]


def of_tuning(folder: Path) -> list[str]:
    """Seconds of compiles from empty caches with tuning (`tuning-*.json` of `benchmarks.tuning_time`)."""
    lines: list[str] = []
    for path in sorted(folder.glob("tuning-*.json")):
        data = json.loads(path.read_text())
        body: list[list[str]] = []
        for row in data["rows"]:
            own = row["phases"]
            total = sum(own.values())
            late = "" if total <= TUNING_SECONDS else " **miss**"
            shares = [p["best"] / p["first"] for p in row["points"] if p["best"] and p["first"]]
            body.append(
                [
                    row["case"],
                    row["dtype"],
                    str(len(row["points"])),
                    *(f"{own.get(stage, 0.0):.2f}" for stage in (*STAGES, "tune")),
                    f"{total:.1f}{late}",
                    str(sum(p["measured"] for p in row["points"])),
                    f"{mean(shares):.2f}" if shares else "",
                ]
            )
        columns = (
            f"case | dtype | sizes | {' | '.join(STAGES)} | tune | all | tile programs | first over best"
        )
        what = f"Caches and measurements empty, {data['device']}, {data['cores']} cores, {data['date']}"
        what += f", the tuner's budget {data['budget']:.0f} s"
        target = (
            f"target: {TUNING_SECONDS:.0f} s with tuning. *First over best*: the speed of the model's choice."
        )
        lines += [f"## {path.stem}", "", f"{what}; seconds; {target}", "", *table(columns, body)]
    return lines


def of_calls(folder: Path) -> list[str]:
    """What a call costs the host (`overhead-*.json` of `benchmarks.overhead`)."""
    lines: list[str] = []
    for path in sorted(folder.glob("overhead-*.json")):
        data = json.loads(path.read_text())
        body = [
            [
                row["case"], str(row["launches"]), f"{row['ours_us']:.1f}", f"{row['empty_us']:.1f}",
                f"{row['ours_us'] - row['empty_us']:.1f}", f"{row['eager_us']:.1f}",
            ]
            for row in data["rows"]
        ]  # fmt: skip
        columns = "call | launches | ours | an empty Triton launch | above | eager"
        what = f"Host time of a cached call, µs, {data['device']}, {data['date']}; target: at most 15 above."
        lines += [f"## {path.stem}", "", what, "", *table(columns, body)]
    return lines
