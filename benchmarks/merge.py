"""Put the peers' rows of other runs into the raw results of a suite, in place:

    python -m benchmarks.merge benchmarks/results/paper-h200-bf16.json maxautotune.json flex.json

The other files are of `cleave bench SUITE --peer NAME ...` on such a device. At each point of the first file
a peer's row is added if there is none; it replaces one that failed, and one that was itself taken over from
an earlier run. Times are scaled by eager's there and here, and marked as taken over. Ours are never touched.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.raw import alike, read
from benchmarks.reused import key_of, merged, peers_by_point
from benchmarks.run import by_point


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("others", type=Path, nargs="+")
    given = parser.parse_args()
    data = read(given.file, "FILE")
    for path in given.others:
        print(f"{path}: {merge(data, read(path, 'OTHERS'), str(path.name))} rows")
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


if __name__ == "__main__":
    main()
