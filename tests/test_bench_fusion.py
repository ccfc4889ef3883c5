"""The fusion suite's harness: rows that share kernels, what is wrong has no time, data after each row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from benchmarks.fusion_suite import SUBJECTS, Run, Subject, planned_rows, run_fusion

from cleave.frontend.capture import capture


def wide(target: str, draw) -> tuple[torch.Tensor, ...]:  # type: ignore[no-untyped-def]
    return (draw(17, 32),)


def test_every_strategy_has_a_row_with_launches_and_bytes() -> None:
    x = torch.randn(64, 32)
    program = capture(lambda x: torch.softmax(x, -1), (x,), dynamic={}).program
    rows = [b.row for b in planned_rows(SUBJECTS[0], "cpu", program)]
    by_name = {(r["strategy"], r["epoch"]): r for r in rows}
    assert by_name["none", "X26"]["planned_launches"] == 5
    assert by_name["cleave", "X26"]["planned_launches"] == 1
    assert by_name["cleave", "X26"]["modelled_bytes"] < by_name["none", "X26"]["modelled_bytes"]


@pytest.mark.slow
def test_a_run_checks_times_and_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "benchmarks.fusion_suite.SUBJECTS", (Subject("small", lambda x: torch.softmax(x, -1), wide, 32),)
    )
    path = tmp_path / "rows.json"
    run_fusion("cpu", json_file=path, budget=60.0)
    data = json.loads(path.read_text())
    rows = {(r["strategy"], r["epoch"]): r for r in data["rows"]}
    assert all("microseconds" in r and not r["failure"] for r in data["rows"])
    assert rows["cleave", "X26"]["launches"] <= 2 and "of_best" in rows["cleave", "X26"]
    assert rows["horizontal", "X23"]["same_as"] == "none X26"


def test_no_time_is_a_row_that_says_so(tmp_path: Path) -> None:
    run = Run("cpu", tmp_path / "rows.json", 0.0)
    run.subject(Subject("small", lambda x: torch.softmax(x, -1), wide, 32), 1.0)
    ours = [r for r in run.rows if r["epoch"]]
    assert ours and all(r["failure"] == "no time left" and "microseconds" not in r for r in ours)
