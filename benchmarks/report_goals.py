"""The goals of issue 4 as the raw results have them: what is reached, what is missed, and by how much."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.report_misses import missed
from benchmarks.report_parts import whole
from benchmarks.report_text import Record, Rows, labels, micro, named, score_of, table
from benchmarks.reused import is_right
from benchmarks.targets import COMPILE_SECONDS, MEMORY_SHARE, OVER_CUDNN, OVER_FA3, SCORES

PHASES = {"prefill": ("prefill",), "decode": ("decode",), "all": ("prefill", "decode")}
LARGE = 20e-6
"""Seconds at the bandwidth beside which a launch counts little."""
LONG, LONGEST, DEPTH = 2048, 16384, 128
PLAIN_ATTENTION = ("attention", "causal-attention", "mha-d128", "gqa-d128", "mqa-d128")
File = tuple[str, Mapping[str, Any], Sequence[Rows]]


def goals(files: Iterable[File]) -> list[str]:
    """A table of the goals of each file of a GPU, and one of long prefill attention."""
    body: list[list[str]] = []
    for name, data, points in files:
        if data["target"] != "cuda":
            continue
        for dtype in dict.fromkeys(rows[0]["dtype"] for rows in points):
            own = [rows for rows in points if rows[0]["dtype"] == dtype]
            for what, wanted, found, reached in of_file(data, own):
                mark = "yes" if reached else "**no**"
                body.append([f"[{data['suite']} {dtype}](#{name})", what, wanted, found, mark])
    if not body:
        return []
    return ["## Goals on a GPU", "", *table("suite | goal | wanted | reached | there", body)]


def of_file(data: Mapping[str, Any], points: Sequence[Rows]) -> list[tuple[str, str, str, bool]]:
    """Each goal of a suite: what it is, what is wanted, what was found, whether it is reached."""
    ours = [row for rows in points if (row := named(rows, "cleave")) is not None]
    right = sum(map(is_right, ours))
    found = [("all points correct", str(len(points)), str(right), right == len(points))]
    for phases, least in SCORES.get(data["suite"], {}).items():
        value = score_of([rows for rows in points if rows[0]["phase"] in PHASES[phases]])
        if value is not None:
            found.append((f"score, {phases}", f"{least:.2f}", f"{value:.3f}", value >= least))
    below = missed(points, data["target"])
    count = sum(map(len, below.values()))
    lowest = min((values[0] for values in below.values()), default=None)
    told = f"{len(points) - count} of {len(points)}"
    told += f"; lowest {lowest[0]:.2f}" if lowest else ""
    found.append(("points at 0.95 of the best peer (plain products 0.90)", "all", told, not count))
    if data["suite"] == "static":
        found += [*_of_memory(ours), *_of_long(points)]
    return [*found, *_of_compiles(ours)]


def _of_memory(ours: Sequence[Record]) -> list[tuple[str, str, str, bool]]:
    """Large ones are told apart: no kernel of a few microseconds can reach it."""
    bound = [r for r in ours if r.get("limit") == "memory" and r.get("fraction")]
    if not bound:
        return []
    enough = [r for r in bound if r["fraction"] >= MEMORY_SHARE]
    large, good = ([r for r in rows if r["floor_seconds"] >= LARGE] for rows in (bound, enough))
    what = f"memory-bound points at {MEMORY_SHARE} of the bandwidth"
    told = f"{len(enough)} of {len(bound)}; of those above {LARGE * 1e6:.0f} µs {len(good)} of {len(large)}"
    return [(what, "all", told, len(enough) == len(bound))]


def _of_compiles(ours: Sequence[Record]) -> list[tuple[str, str, str, bool]]:
    seconds = {(r["case"], r["dtype"]): whole(r["phases"]) for r in reversed(ours) if r.get("phases")}
    if not seconds:
        return []
    quick = sum(value <= COMPILE_SECONDS for value in seconds.values())
    told = f"{quick} of {len(seconds)}; longest {max(seconds.values()):.1f} s"
    return [(f"compiles in {COMPILE_SECONDS:.0f} s without tuning", "all", told, quick == len(seconds))]


# ---------------------------------------------------------------- long prefill attention


def is_long(rows: Rows) -> bool:
    """Whether a point is prefill attention of 2048 to 16384 rows at head size 128, causal or not."""
    first, sizes = rows[0], rows[0]["sizes"]
    long = LONG <= sizes.get("S", 0) <= LONGEST and sizes.get("D") == DEPTH
    return long and first["case"] in PLAIN_ATTENTION and first["phase"] == "prefill"


def over(rows: Rows, name: str) -> float | None:
    """The time of a library, at its defaults or tuned, over ours."""
    ours = named(rows, "cleave")
    times = [r["seconds"] for r in rows if r["implementation"] in (name, f"{name} tuned") and is_right(r)]
    if ours is None or not is_right(ours) or not times:
        return None
    return min(times) / ours["seconds"]


def _of_long(points: Sequence[Rows]) -> list[tuple[str, str, str, bool]]:
    found: list[tuple[str, str, str, bool]] = []
    for name, least in (("sdpa-cudnn", OVER_CUDNN), ("fa3", OVER_FA3)):
        ratios = [r for rows in points if is_long(rows) and (r := over(rows, name)) is not None]
        if ratios:
            enough = sum(round(ratio, 2) >= least for ratio in ratios)
            told = f"{enough} of {len(ratios)}; lowest {min(ratios):.2f}"
            what = f"prefill attention at head size {DEPTH}, {LONG} to {LONGEST}: {least:.2f} of {name}"
            found.append((what, "all", told, enough == len(ratios)))
    return found


def long_attention(points: Sequence[Rows]) -> list[str]:
    """Each point of long prefill attention, beside cuDNN and FA3."""
    body: list[list[str]] = []
    for rows in filter(is_long, points):
        ours = named(rows, "cleave")
        if ours is None or not is_right(ours):
            continue
        rates = [f"{ours['tflops']:.0f}" if ours.get("tflops") else ""]
        ratios = [_cell(over(rows, n), least) for n, least in (("sdpa-cudnn", OVER_CUDNN), ("fa3", OVER_FA3))]
        case, _, dtype, sizes = labels(rows)
        body.append([case, dtype, sizes, micro(ours), *rates, *ratios])
    if not body:
        return []
    columns = "case | dtype | sizes | ours, µs | TFLOP/s | over cuDNN | over FA3"
    what = f"Prefill attention at head size {DEPTH}, {LONG} to {LONGEST} rows; wanted:"
    return [f"{what} {OVER_CUDNN:.2f} of cuDNN, {OVER_FA3:.2f} of FA3.", "", *table(columns, body)]


def _cell(ratio: float | None, least: float) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.2f}" if round(ratio, 2) >= least else f"**{ratio:.2f} miss**"


# ---------------------------------------------------------------- the best peer of a point


def peer_text(rows: Rows, best: Record | None) -> str:
    """The best correct peer, tuned with its setting and beside its defaults, or at its defaults and beside
    what its knobs gave."""
    if best is None:
        return "none is correct"
    name = best["implementation"]
    tuned = name.endswith(" tuned")
    library = name.removesuffix(" tuned")
    pair = {"torch.compile": "max-autotune", "max-autotune": "torch.compile"}.get(library)
    other = named(rows, library if tuned else f"{library} tuned")
    notes = [best["setting"]] if best.get("setting") else []
    if pair is not None and (beside := named(rows, pair)) is not None:
        notes.append(f"{pair} {micro(beside)}")
    elif other is not None:
        notes.append(f"{'at its defaults' if tuned else 'tuned'} {micro(other)}")
    elif best.get("swept"):
        notes.append(f"none of {best['swept']} settings is faster")
    return f"{name} {micro(best)}" + (f" ({'; '.join(notes)})" if notes else "")
