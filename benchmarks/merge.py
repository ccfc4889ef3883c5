"""Put the peers' rows of other runs into the raw results of a suite, in place:

    python -m benchmarks.merge benchmarks/results/paper-h200-bf16.json maxautotune.json flex.json

The other files are of `cleave bench SUITE --peer NAME ...` on such a device. At each point of the first file
a peer's row is added if there is none; it replaces one that failed, and one that was itself taken over from
an earlier run. Times are scaled by eager's there and here, and marked as taken over. Ours are not touched.

With `--points` the other files were measured later, ours with some peers in one run: their points are put in
place of the first file's, and peers that only that one has are taken over. Small kernels want this, because
what a machine adds to every launch does not scale as eager does.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.raw import alike, read
from benchmarks.reused import is_peer, is_right, key_of, merged, peers_by_point
from benchmarks.run import by_point


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("others", type=Path, nargs="+")
    parser.add_argument("--points", action="store_true", help="whole points, ours too")
    given = parser.parse_args()
    data = read(given.file, "FILE")
    put, what = (again, "points") if given.points else (merge, "rows")
    for path in given.others:
        print(f"{path}: {put(data, read(path, 'OTHERS'), str(path.name))} {what}")
    part = given.file.with_name(given.file.name + ".part")
    part.write_text(json.dumps(data, indent=1))
    part.replace(given.file)


def merge(data: dict[str, Any], other: Mapping[str, Any], name: str) -> int:
    """Put another file's peers into `data`; how many rows were. `Invalid` for one of another device or
    suite."""
    alike(other, data, name)
    known = peers_by_point(other)
    records: list[dict[str, Any]] = []
    count = 0
    for rows in by_point(data["records"]).values():
        now = merged(rows, known.get(key_of(rows[0]), []))
        count += sum(row not in rows for row in now)
        records += now
    data["records"] = records
    data["merged"] = [*data.get("merged", []), name]
    return count


def again(data: dict[str, Any], other: Mapping[str, Any], name: str) -> int:
    """Put another file's points into a file, where ours was measured, right or wrong; how many. A point whose
    eager is not known on both sides stays. `Invalid` as for `merge`."""
    alike(other, data, name)
    later = {key_of(rows[0]): rows for rows in by_point(other["records"]).values()}
    known = peers_by_point(data)
    records: list[dict[str, Any]] = []
    count = 0
    for rows in by_point(data["records"]).values():
        key = key_of(rows[0])
        new = sorted(later.get(key, ()), key=lambda row: row["implementation"] != "eager")
        if any(not is_peer(row) for row in new) and _has_eager(rows) and _has_eager(new):
            rows = [row | {"source": name} for row in merged(new, known.get(key, []))]
            count += 1
        records += rows
    data["records"] = records
    data["merged"] = [*data.get("merged", []), name]
    return count


def _has_eager(rows: Sequence[Mapping[str, Any]]) -> bool:
    return any(row["implementation"] == "eager" and is_right(row) for row in rows)


if __name__ == "__main__":
    main()
