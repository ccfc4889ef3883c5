"""Plots and tables of the Cartpole study from its raw results: `python -m benchmarks.cartpole_report`.

Reads `benchmarks/results/cartpole-*.json`; writes `docs/plots/cartpole-*.svg` and, between the marks
`<!-- table NAME -->` and `<!-- end -->` of docs/cartpole.md, the tables. No figure in a table is typed by
hand.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import cartpole_code, cartpole_goals, cartpole_study
from benchmarks.cartpole_goals import times_at

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "cartpole.md"
PLOTS = ROOT / "docs" / "plots"

Row = dict[str, Any]
Rows = Sequence[Row]

TIME = "microseconds_per_step"
QUIET = 0.5
"""The most load (processes waiting) at which a CPU's clock is believed."""
LINES = (
    "cleave separate read loop",
    "cleave stacked read loop",
    "cleave separate drawn loop",
    "cleave stacked drawn loop",
    "cleave stacked read step",
    "cleave separate read unroll 10",
    "by hand",
    "JAX B0",
    "JAX B1",
    "JAX S2",
    "JAX S3 10",
    "torch.compile",
    "PyTorch eager",
)
"""What is drawn over the number of environments."""
PEERS = ("JAX B0", "JAX B1", "JAX S2", "JAX S3 10", "torch.compile", "PyTorch eager", "by hand")


def main() -> None:
    every = {path.stem: read(path) for path in sorted(RESULTS.glob("cartpole-*.json"))}
    found = {name: data for name, data in every.items() if data.get("study") == "cartpole"}
    tables: dict[str, list[str]] = {}
    for name, data in every.items():
        tables |= experiment(name, data)
    for name, data in found.items():
        rows = data["rows"]
        draw(name, rows)
        main_size = 2048
        tables[f"sizes {name}"] = by_size(rows)
        tables[f"plans {name}"] = plans(rows, main_size)
        tables[f"variants {name}"] = variants(rows, main_size)
        tables[f"run {name}"] = [about(data)]
        tables[f"goals {name}"] = table(cartpole_goals.GOALS, cartpole_goals.goals(rows, data["target"]))
        tables[f"by hand {name}"] = table(cartpole_goals.HANDS, cartpole_goals.hands(rows))
        tables[f"missing {name}"] = cartpole_goals.missing(rows, data["target"])
        tables[f"of bound {name}"] = [cartpole_study.of_bound(rows)]
        for head in ("cleave", "plan"):
            tables[f"{head} over sizes {name}"] = table(*cartpole_study.over_sizes(rows, head))
    if {"cartpole-cpu", "cartpole-h200"} <= found.keys():
        cpu, gpu = found["cartpole-cpu"]["rows"], found["cartpole-h200"]["rows"]
        draw_both(cpu, gpu)
        tables["crossover"] = crossover(cpu, gpu)
        tables["paper"] = table(cartpole_study.PAPER, cartpole_study.paper(gpu, cpu))
        code = every.get("cartpole-code-sm90", {"rows": []})["rows"]
        for state in ("separate", "stacked"):
            made = cartpole_study.decisions(gpu, code, state)
            tables[f"decisions {state}"] = table(cartpole_study.DECISIONS, made)
    PAGE.write_text(filled(PAGE.read_text(), tables))


def experiment(name: str, data: Mapping[str, Any]) -> dict[str, list[str]]:
    """The tables of a raw file that is not of the study itself."""
    if data.get("experiment") == "jax":
        return {name: table(cartpole_goals.JAX, cartpole_goals.jax_loops(data["rows"]))}
    if data.get("experiment") == "ahead":
        made = table(cartpole_goals.BLOCKS, cartpole_goals.blocks(data["rows"]))
        return {name: table(*cartpole_goals.ahead(data["rows"])), f"blocks {name}": made}
    if data.get("experiment") == "drift":
        return {name: table(*cartpole_study.drift(data)), f"step {name}": [cartpole_study.one_step(data)]}
    if data.get("experiment") == "code":
        about = f"Compiled with Triton {data['triton']} for capability {data['capability'] / 10}."
        count = f"One step is {data['operations']} pointwise operations."
        tables = {name: table(*cartpole_code.table(dict(data))), f"about {name}": [about]}
        return {**tables, f"operations {name}": [count]}
    return {}


def read(path: Path) -> dict[str, Any]:
    """A raw file. Of a CPU that others used too, times are what the processor says, not the clock."""
    data: dict[str, Any] = json.loads(path.read_text())
    for row in data["rows"] if not quiet(data) else ():
        if "cpu_" + TIME in row:
            row["clock_" + TIME], row[TIME] = row[TIME], row["cpu_" + TIME]
            row["steps_per_second"] = 1e6 / row[TIME] * row["environments"] if row[TIME] else 0.0
    return data


def quiet(data: Mapping[str, Any]) -> bool:
    """Whether hardly anything else ran when a study began."""
    return data.get("load", math.inf) <= QUIET


def filled(page: str, tables: Mapping[str, Sequence[str]]) -> str:
    """The page with each marked table made anew."""

    def made(match: re.Match[str]) -> str:
        lines = tables.get(match[1])
        return (
            match[0] if lines is None else "\n".join([f"<!-- table {match[1]} -->", *lines, "<!-- end -->"])
        )

    return re.sub(r"<!-- table ([^>]+?) -->\n.*?<!-- end -->", made, page, flags=re.S)


def about(data: Mapping[str, Any]) -> str:
    jax = f", JAX {data['jax']}" if "jax" in data else ""
    rows: Rows = data["rows"]
    wrong = sum(bool(r["failure"]) for r in rows)
    times = ""
    if data["target"] == "cpu":
        load = f"load {data['load']:.2f} at the start" if "load" in data else "the machine was loaded"
        times = f" Times are {'by the clock' if quiet(data) else 'processor time'} ({load})."
    return (
        f"{data['device']}, torch {data['torch']}{jax}, Python {data['python']}, {data['threads']} threads: "
        f"{len(rows)} rows, {wrong} failed.{times}"
    )


# ---------------------------------------------------------------- tables


def table(head: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(cells)} |" for cells in body]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines]


def sizes_of(rows: Rows) -> list[int]:
    return sorted({r["environments"] for r in rows if TIME in r})


def number(value: float | None, digits: int = 3) -> str:
    return "" if value is None else f"{value:.{digits}g}" if value < 1000 else f"{value:.0f}"


def by_size(rows: Rows) -> list[str]:
    """Our whole-loop kernel and the peers, microseconds per step, and what that is over each."""
    body: list[list[str]] = []
    for size in sizes_of(rows):
        times = times_at(rows, size)
        own = {k: t for k, t in times.items() if k.startswith("cleave")}
        if not own:
            continue
        read = min((t for k, t in own.items() if " read " in k), default=None)
        best = min(own, key=lambda k: own[k])
        cells = [str(size), number(read), f"{number(own[best])} ({best[7:]})"]
        for name in PEERS:
            base = read if name == "by hand" else own[best]
            cells.append(
                f"{number(times[name])} ({times[name] / base:.2f}x)" if name in times and base else ""
            )
        body.append(cells)
    return table(["N", "best that reads", "best of all", *PEERS], body)


def _list(values: Sequence[Any] | None, most: int = 3) -> str:
    if not values:
        return ""
    known = sorted({v for v in values if v is not None}, reverse=True)
    return ", ".join(map(str, known[:most])) + (" ..." if len(known) > most else "")


def _cells(row: Row) -> list[str]:
    if row["failure"]:
        return [row["implementation"], row["failure"][:80].replace("|", "/"), *[""] * 8]
    return [
        row["implementation"],
        number(row.get(TIME)),
        number(row.get("steps_per_second", 0) / 1e6),
        number(row.get("launches_per_step")),
        number(row.get("touched_bytes_per_step")),
        number(row.get("modelled_bytes_per_step")),
        _list(row.get("registers")),
        _list(row.get("spills")),
        number(row.get("compile_seconds"), 2),
        row.get("agrees", ""),
    ]


HEAD = (
    "implementation",
    "us/step",
    "M env steps/s",
    "launches/step",
    "bytes touched/step",
    "bytes modelled/step",
    "registers",
    "stack",
    "built in s",
    "agrees",
)
PLANNED = ("planned_launches_per_step", "planned_bytes_per_step", "planned_us_per_step")
PLANS = (
    "strategy@epoch, state, random numbers, steps",
    "planned launches",
    "planned bytes",
    "planned us",
    "us/step",
    "launches/step",
    "bytes touched/step",
    "registers",
    "stack",
    "built in s",
    "same kernels as",
)


def variants(rows: Rows, size: int) -> list[str]:
    """Everything at one size but the plans, fastest first."""
    here = [r for r in rows if r["environments"] == size and not r["implementation"].startswith("plan")]
    return table(HEAD, (_cells(r) for r in sorted(here, key=lambda r: r.get(TIME, 1e9))))


def plans(rows: Rows, size: int) -> list[str]:
    """The strategies at one size: what they plan, and what their kernels do."""
    here = [r for r in rows if r["environments"] == size and r["implementation"].startswith("plan")]
    body: list[list[str]] = []
    for r in here:
        twin = r.get("same_as", "").removeprefix("plan ")
        cells = _cells(r)
        known = [number(r.get(key)) for key in PLANNED]
        body.append([cells[0].removeprefix("plan "), *known, cells[1], *cells[3:5], *cells[6:9], twin])
    return table(PLANS, body)


def crossover(cpu: Rows, gpu: Rows) -> list[str]:
    """Ours on one CPU thread and on the GPU, per number of environments."""
    body: list[list[str]] = []
    for size in sorted(set(sizes_of(cpu)) & set(sizes_of(gpu))):
        one, two = times_at(cpu, size), times_at(gpu, size)
        cells = [str(size)]
        for words in ("cleave", "JAX"):
            a = min((t for k, t in one.items() if k.startswith(words)), default=None)
            b = min((t for k, t in two.items() if k.startswith(words)), default=None)
            cells += [number(a), number(b), f"{a / b:.2f}" if a and b else ""]
        body.append(cells)
    return table(["N", "best of ours, CPU", "GPU", "CPU / GPU", "best of JAX, CPU", "GPU", "CPU / GPU"], body)


# ---------------------------------------------------------------- plots


def _pyplot(name: str) -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = name  # the same input gives the same bytes
    from matplotlib import pyplot

    return pyplot


def _curve(rows: Rows, name: str) -> tuple[list[int], list[float]]:
    mine = [r for r in rows if r["implementation"] == name and TIME in r and not r["failure"]]
    known = sorted((r["environments"], r["steps_per_second"]) for r in mine)
    return [n for n, _ in known], [s for _, s in known]


def draw(name: str, rows: Rows) -> None:
    """Environment steps per second over the number of environments, ours in full lines."""
    pyplot = _pyplot(name)
    figure, axes = pyplot.subplots(figsize=(9, 6))
    for line in LINES:
        sizes, speeds = _curve(rows, line)
        if sizes:
            own = line.startswith("cleave")
            axes.plot(
                sizes, speeds, "o-" if own else "x--", label=line, markersize=4, linewidth=1.4 if own else 1
            )
    _finish(pyplot, figure, axes, name)


def draw_both(cpu: Rows, gpu: Rows) -> None:
    """Where the GPU overtakes the CPU, for us and for JAX."""
    name = "cartpole-crossover"
    pyplot = _pyplot(name)
    figure, axes = pyplot.subplots(figsize=(9, 6))
    for rows, where, mark in ((cpu, "CPU", "o--"), (gpu, "GPU", "o-")):
        for line in ("cleave separate read loop", "by hand", "JAX B1", "JAX S2"):
            sizes, speeds = _curve(rows, line)
            if sizes:
                axes.plot(sizes, speeds, mark, label=f"{where}: {line}", markersize=4, linewidth=1.2)
    _finish(pyplot, figure, axes, name)


def _finish(pyplot: Any, figure: Any, axes: Any, name: str) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("environments")
    axes.set_ylabel("environment steps per second")
    axes.grid(True, which="major", linewidth=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    PLOTS.mkdir(exist_ok=True)
    figure.savefig(PLOTS / f"{name}.svg", metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    main()
