"""Peers' records of an earlier run beside those of a point that is measured now, or merged into them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Record = dict[str, Any]
Key = tuple[str, str, str, str]


def text_of(sizes: Mapping[str, int]) -> str:
    """Sizes as a text, whatever their order."""
    return " ".join(f"{name}{size}" for name, size in sorted(sizes.items()))


def key_of(record: Record) -> Key:
    """The point of a record."""
    return record["case"], record["phase"], record["dtype"], text_of(record["sizes"])


def is_peer(record: Record) -> bool:
    """Whether a row is of somebody else."""
    return not record["implementation"].startswith("cleave")


def peers_by_point(data: Mapping[str, Any]) -> dict[Key, list[Record]]:
    """The peers' rows of a file by point, each with eager's seconds of that run."""
    found: dict[Key, list[Record]] = {}
    eager: dict[Key, float] = {}
    for record in data["records"]:
        if record["implementation"] == "eager":
            eager[key_of(record)] = record["seconds"]
    for record in data["records"]:
        if is_peer(record) and record["implementation"] != "eager":
            key = key_of(record)
            old = record.get("reused", {})  # a file that was itself scaled gives what was measured
            seconds = old.get("seconds", record["seconds"])
            anchor = eager.get(key, math.nan) / (old.get("scale") or 1.0)
            found.setdefault(key, []).append(
                {"date": data.get("date", ""), **record, "seconds": seconds, "eager_seconds": anchor}
            )
    return found


def merged(records: Sequence[Record], others: Iterable[Record]) -> list[Record]:
    """A point's records, eager's first, with peers' rows of another run (`peers_by_point`): what it lacks,
    what is right there and not here, and what was measured there and only taken over here."""
    eager = records[0]
    rows = {record["implementation"]: record for record in records}
    for other in others:
        own = rows.get(other["implementation"])
        newer = own is not None and "reused" in own and "reused" not in other
        if own is None or (is_right(other) and (newer or not is_right(own))):
            rows[other["implementation"]] = rescaled(other, eager)
    peers = [row for row in rows.values() if is_peer(row)]
    return [*peers, *(row for row in rows.values() if not is_peer(row))]


def is_right(record: Mapping[str, Any]) -> bool:
    """Whether a row has a result that may be compared."""
    return not record["failure"] and record["seconds"] == record["seconds"]


def with_reused(records: Sequence[Record], reused: Sequence[Record]) -> list[Record]:
    """A point's records, eager's first, with those of an earlier run behind eager's. Where both have an
    implementation, the new record stands if it is right or the earlier one was not; else the earlier one
    stands and says under `reused` why there is no newer (`again`): a peer that fails today is not gone."""
    eager, *others = records
    new = {r["implementation"]: r for r in others}
    taken: list[Record] = []
    for old in reused:
        name = old["implementation"]
        if name not in new:
            taken.append(rescaled(old, eager))
        elif is_right(old) and not is_right(new[name]):
            kept = rescaled(old, eager)
            kept["reused"]["again"] = new.pop(name)["failure"] or "no time"
            taken.append(kept)
    return [eager, *taken, *new.values()]


def rescaled(record: Record, eager: Record) -> Record:
    """A peer's record of an earlier run, its time scaled by eager's of now over eager's of then."""
    then, now = record["eager_seconds"], eager["seconds"]
    known = then == then and now == now and then > 0
    scale = now / then if known else 1.0
    seconds = record["seconds"]
    taken = {
        **record,
        "seconds": seconds * scale,
        "floor_seconds": eager["floor_seconds"],
        "fraction": eager["floor_seconds"] / (seconds * scale) if seconds == seconds else None,
        "reused": {"date": record.get("date", ""), "seconds": seconds, "scale": scale if known else None},
    }
    del taken["eager_seconds"]
    return taken
