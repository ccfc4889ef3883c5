"""Raw results that a run goes on with, or takes rows from: of the same device and suite only, since rows are
compared with each other. Every command that reads an earlier file does it here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cleave.errors import Invalid
from cleave.runtime.machines import device_name


def read(path: Path, option: str = "--json") -> dict[str, Any]:
    """What a file of raw results holds; `Invalid`, naming the option that it was given by, if it cannot be
    read or is no such file."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Invalid(f"{option} {path} cannot be read: {error}", hint="a file that a run wrote") from error
    if not isinstance(data, dict) or "device" not in data:
        raise Invalid(
            f"{option} {path} has no raw results: it names no device", hint="a file that a run wrote"
        )
    return data


def earlier(path: Path, target: str, *, option: str = "--json", suite: str | None = None) -> dict[str, Any]:
    """What a file holds that goes on or gives rows here; `Invalid` if it cannot be read, was measured on
    another device than that of `target`, or is of another suite than `suite`, where one is named."""
    data = read(path, option)
    wanted = {"device": device_name(target), **({"suite": suite} if suite is not None else {})}
    alike(data, wanted, f"{option} {path}")
    return data


def alike(data: Mapping[str, Any], wanted: Mapping[str, Any], name: str) -> None:
    """`Invalid` where rows of a file may not stand beside others: another device, or another suite where
    `wanted` names one. `name` is the file's, for the message."""
    if data["device"] != wanted["device"]:
        what = f"{name} was measured on {data['device']}, not on {wanted['device']}"
        raise Invalid(what, hint="another file, or the same command on that device")
    if "suite" in wanted and data.get("suite") != wanted["suite"]:
        what = f"{name} is of suite {data.get('suite', '(none)')}, not of {wanted['suite']}"
        raise Invalid(what, hint="another file, or that suite")
