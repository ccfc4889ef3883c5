"""Rows of other runs put into the raw results of a suite."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.merge import again, merge

from cleave.errors import Invalid


def row(name: str, seconds: float, size: int = 16, failure: str = "", **more: Any) -> dict[str, Any]:
    about = {"case": "a", "phase": "decode", "dtype": "bf16", "sizes": {"S": size}, "floor_seconds": 1e-6}
    return {**about, "implementation": name, "seconds": seconds, "failure": failure, **more}


def file(*records: dict[str, Any], device: str = "GPU") -> dict[str, Any]:
    return {"device": device, "suite": "paper", "date": "2026-01-02", "records": list(records)}


def times(data: dict[str, Any], size: int = 16) -> dict[str, float]:
    return {r["implementation"]: r["seconds"] for r in data["records"] if r["sizes"] == {"S": size}}


def test_a_peer_is_added_scaled_by_eager_and_ours_stay() -> None:
    data = file(row("eager", 20.0), row("cleave", 5.0))
    assert merge(data, file(row("eager", 10.0), row("jax", 6.0), row("cleave", 1.0)), "x.json") == 1
    assert times(data) == {"eager": 20.0, "jax": 12.0, "cleave": 5.0} and data["merged"] == ["x.json"]


def test_whole_points_take_the_place_of_earlier_ones_which_lend_their_peers() -> None:
    data = file(
        *(row("eager", 10.0), row("fa3", 4.0), row("torch.compile", 9.0), row("cleave", 5.0)),
        *(row("eager", 10.0, 64), row("cleave", 5.0, 64)),
    )
    later = file(
        *(row("eager", 12.0), row("torch.compile", 8.0), row("cleave", 6.0)),
        *(row("eager", 12.0, 64), row("cleave", float("nan"), 64, "wrong")),
    )
    assert again(data, later, "later.json") == 2
    assert times(data) == {"eager": 12.0, "torch.compile": 8.0, "fa3": 4.8, "cleave": 6.0}
    failures = [r["failure"] for r in data["records"] if r["sizes"] == {"S": 64}]
    assert failures == ["", "wrong"], "what is wrong now takes the place of what was right"
    assert {r["source"] for r in data["records"]} == {"later.json"}


def test_without_eager_nothing_can_be_scaled() -> None:
    data = file(row("eager", 10.0), row("fa3", 5.0), row("cleave", 5.0))
    assert again(data, file(row("cleave", 4.0)), "later.json") == 0
    assert again(data, file(row("cleave", 4.0), row("eager", 20.0)), "later.json") == 1
    assert times(data) == {"eager": 20.0, "fa3": 10.0, "cleave": 4.0}


def test_another_device_is_refused() -> None:
    for put in (merge, again):
        with pytest.raises(Invalid, match="was measured on other, not on GPU"):
            put(file(row("eager", 1.0)), file(row("eager", 1.0), device="other"), "x.json")
