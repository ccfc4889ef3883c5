"""How well the cost model ranks tile programs, from measured ones kept in the repository.

    python -m benchmarks.ranking [--data FILE] [--pointers] [--json OUT.json]

The data are tile programs as text and their microseconds on one H200 (bf16, cold L2, Triton 3.6), for several
points of the paper's subgraphs (`--json benchmarks/results/ranking-NAME.json` puts what is found into the
report): the whole space of each point (`benchmarks.sweep`), or samples. Printed for each point: the rank
correlation of modelled and measured times, how much slower than the best measured program the best of the
model's first 1, 8 and 16 is, and by how much the modelled times of good programs are off. Only right programs
have a place: those that a compiler refuses are passed over, as a compile passes them over. In samples,
programs that load through plain pointers (no descriptors) are of an earlier emitter and only count with
`--pointers`; a space is ranked as the scheduler has it.
"""

from __future__ import annotations

import argparse
import json
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.sweep import counts, read
from cleave.ir.dims import Atom, Dim
from cleave.runtime.tune_store import RIGHT
from cleave.schedule.cost import cost_of
from cleave.schedule.counting import statements
from cleave.schedule.machine import H200
from cleave.schedule.parse import parse_tiles
from cleave.schedule.select import choose_parts
from cleave.schedule.tiles import ContractTile, TileProgram

DATA = Path(__file__).parent / "results" / "tiles-h200.json.gz"
FIRSTS = (1, 8, 16)
LEAST_ROWS = 6
ABOUT = ("device", "date")
"""What a report says of a sweep."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--pointers", action="store_true", help="count programs without descriptors, too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    data = read(options.data)
    points = data if isinstance(data, list) else data["points"]
    found = [ranked(point, options.pointers) for point in points if len(known(point)) > 1]
    print(table(found))
    if options.json:
        about = {} if isinstance(data, list) else {key: data[key] for key in ABOUT}
        lacking = [f"{p['case']} {p['phase']}" for p in points if len(known(p)) < 2]
        about |= {"lacking": lacking} if lacking else {}
        made = {"of": options.data.name, **about, "points": found}
        options.json.write_text(json.dumps(made, indent=1) + "\n")


def known(point: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows of a point that are right; samples have no others."""
    return [row for row in point["rows"] if row.get("status", RIGHT) == RIGHT]


def ranked(point: Mapping[str, Any], pointers: bool) -> dict[str, Any]:
    """What the model says of one point's programs, against what was measured: in turns, where it was."""
    rows = [(parse_tiles(r["tiles"]), float(r.get("again", r["us"])), r.get("parts")) for r in known(point)]
    if "space" not in point:
        described = [row for row in rows if loads_described(row[0])]
        rows = rows if pointers or len(described) < LEAST_ROWS else described
    measured = [us for _, us, _ in rows]
    modelled = [1e6 * seconds(tiles, point["sizes"], parts) for tiles, _, parts in rows]
    order = sorted(range(len(rows)), key=lambda n: modelled[n])
    best = min(measured)
    found: dict[str, Any] = {k: point[k] for k in ("case", "phase", "sizes")}
    found |= {"programs": len(rows), "best": best, "correlation": correlation(modelled, measured)}
    if "space" in point:
        found |= {key: point[key] for key in ("space", "complete", "covered")} | counts(point)
    found["firsts"] = {str(k): min(measured[n] for n in order[:k]) / best for k in FIRSTS}
    found["off"] = off(modelled, measured)
    return found


def loads_described(tiles: TileProgram) -> bool:
    """Whether every kernel that multiplies loads through descriptors."""
    return all(
        kernel.descriptors
        for kernel in tiles.kernels
        if any(isinstance(s, ContractTile) for s in statements(kernel.body))
    )


def seconds(tiles: TileProgram, sizes: Mapping[str, int], parts: Mapping[str, int] | None = None) -> float:
    """The modelled time of a tile program; `sizes` has the dynamic ones by name, `parts` the part counts that
    it was measured with (else those that it would have today)."""
    bound = bound_sizes(tiles, sizes)
    if parts is None:
        return cost_of(tiles, bound, H200, choose_parts(tiles, bound, H200)).seconds
    return cost_of(tiles, bound, H200, {d: parts[str(d)] for d in tiles.splits}).seconds


def bound_sizes(tiles: TileProgram, sizes: Mapping[str, int]) -> dict[Dim, int]:
    """The size of every atom of a tile program."""
    bound: dict[Dim, int] = {atom: size for atom, size in tiles.sizes if isinstance(size, int)}
    for name, size in sizes.items():
        bound.setdefault(Atom(name), size)
    for atom, size in tiles.sizes:
        if not isinstance(size, int):
            bound[atom] = size.at(bound)
    return bound


def correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation; what is equal shares the mean of its places. 0 where all is equal."""
    places = [_places(one), _places(other)]
    middle = (len(one) - 1) / 2
    spreads = [sum((place - middle) ** 2 for place in own) for own in places]
    common = sum((a - middle) * (b - middle) for a, b in zip(*places, strict=True))
    return common / math.sqrt(spreads[0] * spreads[1]) if all(spreads) else 0.0


def _places(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [(bisect_left(ordered, v) + bisect_right(ordered, v) - 1) / 2 for v in values]


def off(modelled: Sequence[float], measured: Sequence[float]) -> float:
    """By which factor modelled times are off, programs near the best counting most (1 is exact)."""
    best = min(measured)
    weights = [math.exp(-2 * (us / best - 1)) for us in measured]
    errors = [math.log(a / b) ** 2 for a, b in zip(modelled, measured, strict=True)]
    return math.exp(math.sqrt(sum(w * e for w, e in zip(weights, errors, strict=True)) / sum(weights)))


def table(found: Sequence[Mapping[str, Any]]) -> str:
    """The results as text, with means at the end."""
    lines = [f"{'subgraph':16} {'phase':8} {'S':>5} {'T':>5} {'n':>3} {'best us':>8} {'corr':>5}"]
    lines[0] += "".join(f"{'top ' + str(k):>8}" for k in FIRSTS) + f"{'off by':>8}"
    for row in found:
        sizes = row["sizes"]
        line = f"{row['case']:16} {row['phase']:8} {sizes.get('S', ''):>5} {sizes.get('T', ''):>5} "
        line += f"{row['programs']:>3} {row['best']:>8.1f} {row['correlation']:>5.2f}"
        lines.append(line + "".join(f"{row['firsts'][str(k)]:>8.3f}" for k in FIRSTS) + f"{row['off']:>8.2f}")
    means = [geometric([row["firsts"][str(k)] for row in found]) for k in FIRSTS]
    line = f"{'all':16} {'':8} {'':>5} {'':>5} {sum(row['programs'] for row in found):>3} {'':>8} "
    line += f"{fmean(row['correlation'] for row in found):>5.2f}"
    lines.append(
        line + "".join(f"{m:>8.3f}" for m in means) + f"{geometric([r['off'] for r in found]):>8.2f}"
    )
    return "\n".join(lines)


def geometric(values: Sequence[float]) -> float:
    return math.exp(fmean(math.log(value) for value in values))


if __name__ == "__main__":
    main()
