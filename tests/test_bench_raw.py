"""Rows of one device are not put beside those of another."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks.raw import earlier

from cleave.errors import Invalid
from cleave.runtime.machines import device_name


def test_a_run_goes_on_with_its_own_device_only(tmp_path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"device": device_name("cpu"), "rows": [1]}))
    assert earlier(file, "cpu")["rows"] == [1]
    file.write_text(json.dumps({"device": "another", "rows": [1]}))
    with pytest.raises(Invalid, match="measured on another, not on "):
        earlier(file, "cpu")


def test_a_file_of_another_suite_or_of_nothing_is_told_with_its_option(tmp_path) -> None:
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"device": device_name("cpu"), "suite": "paper"}))
    assert earlier(file, "cpu", suite="paper")["suite"] == "paper"
    with pytest.raises(Invalid, match=r"rows\.json is of suite paper, not of static"):
        earlier(file, "cpu", suite="static")
    for text, why in (("{", "cannot be read"), ("[]", "names no device"), ("{}", "names no device")):
        file.write_text(text)
        with pytest.raises(Invalid, match=f"--peers-from .*rows.json .*{why}"):
            earlier(file, "cpu", option="--peers-from")
    with pytest.raises(Invalid, match=r"--json .*none\.json cannot be read"):
        earlier(tmp_path / "none.json", "cpu")


def test_files_are_compared_in_one_way() -> None:
    """Nobody beside `benchmarks.raw` asks by itself whether a file is of another device."""
    folder = Path(__file__).parents[1] / "benchmarks"
    asking = [p.name for p in sorted(folder.glob("*.py")) if re.search(r'\["device"\] [!=]= ', p.read_text())]
    assert asking == ["raw.py"]
