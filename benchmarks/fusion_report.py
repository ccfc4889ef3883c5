"""Tables of the fusion suite from its raw results: `python -m benchmarks.fusion_report`.

Reads `benchmarks/results/fusion-*.json` and writes the tables between the marks `<!-- table NAME -->` and
`<!-- end -->` of docs/fusion.md. No figure in a table is typed by hand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cartpole_report import RESULTS, ROOT, filled, number, table

PAGE = ROOT / "docs" / "fusion.md"
EAGER = "PyTorch eager"

Row = dict[str, Any]


def main() -> None:
    tables: dict[str, list[str]] = {}
    for path in sorted(RESULTS.glob("fusion-*.json")):
        data = json.loads(path.read_text())
        tables[f"best {path.stem}"] = best(data["rows"])
        tables[f"all {path.stem}"] = every(data["rows"])
        tables[f"run {path.stem}"] = [about(data, path)]
    PAGE.write_text(filled(PAGE.read_text(), tables))


def about(data: Mapping[str, Any], path: Path) -> str:
    ours = [r for r in data["rows"] if "of_best" in r]
    worst = max((r["of_best"] for r in ours), default=0.0)
    ran = sum("microseconds" in r for r in data["rows"])
    where = f"{data['device'] or 'CPU'}, torch {data['torch']}, Python {data['python']}"
    return (
        f"{where} ({path.relative_to(ROOT)}): {ran} rows of {len(data['rows'])} timed; `cleave` takes at "
        f"most {worst:.3f} of the best other strategy's time."
    )


def programs(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(r["program"] for r in rows))


def best(rows: Sequence[Row]) -> list[str]:
    """Ours beside the best of the others, per program."""
    body: list[list[str]] = []
    for program in programs(rows):
        here = [r for r in rows if r["program"] == program and "microseconds" in r]
        ours = next((r for r in here if r["strategy"] == "cleave"), None)
        others = [r for r in here if r["strategy"] not in ("cleave", EAGER)]
        if ours is None or not others:
            continue
        other = min(others, key=lambda r: r["microseconds"])
        eager = next((r for r in here if r["strategy"] == EAGER), {})
        body.append([
            program, f"{other['strategy']} {other['epoch']}", str(other["launches"]), _mb(other),
            number(other["microseconds"]), str(ours["launches"]), _mb(ours), number(ours["microseconds"]),
            f"{ours['microseconds'] / other['microseconds']:.3f}", number(eager.get("microseconds")),
        ])  # fmt: skip
    head = (
        "program",
        "best other",
        "launches",
        "MB",
        "us",
        "launches of `cleave`",
        "MB",
        "us",
        "ratio",
        "eager us",
    )
    return table(head, body)


def every(rows: Sequence[Row]) -> list[str]:
    """Launches, modelled bytes and time of each strategy, per program."""
    names = list(dict.fromkeys((r["strategy"], r["epoch"]) for r in rows if r["strategy"] != EAGER))
    body: list[list[str]] = []
    for strategy, epoch in names:
        cells = [f"{strategy} {epoch}"]
        for program in programs(rows):
            key = (program, strategy, epoch)
            row = next((r for r in rows if (r["program"], r["strategy"], r["epoch"]) == key), None)
            cells.append("" if row is None else _cell(row))
        body.append(cells)
    return table(["launches / MB / us", *programs(rows)], body)


def _cell(row: Row) -> str:
    time = number(row["microseconds"]) if "microseconds" in row else row["failure"][:30]
    return f"{row.get('launches', row['planned_launches'])} / {_mb(row)} / {time}"


def _mb(row: Row) -> str:
    return number(row["modelled_bytes"] / 1e6)


if __name__ == "__main__":
    main()
