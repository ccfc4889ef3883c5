"""Raw results that a run goes on with: of the same device only, since rows are compared with each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cleave.errors import Invalid
from cleave.runtime.machines import device_name


def earlier(path: Path, target: str) -> dict[str, Any]:
    """What a file holds; `Invalid` if it was measured on another device."""
    data = json.loads(path.read_text())
    here = device_name(target)
    if data["device"] != here:
        raise Invalid(f"{path} was measured on {data['device']}", hint=f"another --json: this is {here}")
    return data
