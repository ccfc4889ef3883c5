"""Rows of one device are not put beside those of another."""

from __future__ import annotations

import json

import pytest
from benchmarks.raw import earlier

from cleave.errors import Invalid
from cleave.runtime.machines import device_name


def test_a_run_goes_on_with_its_own_device_only(tmp_path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"device": device_name("cpu"), "rows": [1]}))
    assert earlier(file, "cpu")["rows"] == [1]
    file.write_text(json.dumps({"device": "another", "rows": [1]}))
    with pytest.raises(Invalid, match="measured on another"):
        earlier(file, "cpu")
