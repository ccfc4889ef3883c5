"""Floors of a file anew, with the ceilings of a machine that was fitted later."""

from __future__ import annotations

import json

import pytest
import torch
from benchmarks.floors import renew
from benchmarks.runner import floor_of
from benchmarks.suites import SUITES

from cleave.errors import Invalid
from cleave.knobs import scope
from cleave.pipeline import TARGETS
from cleave.runtime.machines import device_name, machine_file


def test_floors_follow_from_the_fitted_machine_and_times_stay(tmp_path) -> None:
    case = next(c for c in SUITES["paper"] if c.name == "matmul")
    sizes = {"K": 32, "N": 16, "S": 8}
    record = {
        "case": "matmul",
        "sizes": sizes,
        "dtype": "f32",
        "seconds": 2.0,
        "floor_seconds": 1.0,
        "fraction": 0.5,
    }
    file = tmp_path / "paper.json"
    file.write_text(
        json.dumps({"suite": "paper", "target": "cpu", "device": device_name("cpu"), "records": [record]})
    )
    with scope(data_dir=tmp_path):
        with pytest.raises(Invalid, match="no fitted machine"):
            renew(file)
        fitted = machine_file("cpu")
        fitted.parent.mkdir(parents=True)
        fitted.write_text(f"cleave machine 1\ndevice = {device_name('cpu')}\nmemory = 1e10\n")
        assert TARGETS["cpu"].memory == 1e10
        renew(file)
        inputs = (torch.empty(8, 32), torch.empty(32, 16))
        floor, limit = floor_of(case, sizes, "f32", "cpu", inputs, (torch.empty(8, 16),))
    (new,) = json.loads(file.read_text())["records"]
    assert limit == "memory" and floor == 4 * (8 * 32 + 32 * 16 + 8 * 16) / 1e10
    assert new == {**record, "floor_seconds": floor, "limit": limit, "fraction": floor / 2.0}
