"""Floors of raw results anew, for files that were measured before the device's ceilings were:

    cleave calibrate --target cpu && python -m benchmarks.floors benchmarks/results/paper-avx512-f32.json ...

Times stay as they are; `floor_seconds`, `limit` and `fraction` follow from the machine that is fitted to the
device at hand, which must be the file's own.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch._subclasses import FakeTensorMode

from benchmarks.harness import as_tuple
from benchmarks.raw import earlier, read
from benchmarks.runner import DTYPES, floor_of
from benchmarks.suites import SUITES
from cleave.errors import Invalid
from cleave.runtime.machines import machine_file


def renew(path: Path) -> None:
    """Write a file with new floors."""
    target = read(path, "FILE")["target"]
    data = earlier(path, target, option="FILE")
    if not machine_file(target).exists():
        raise Invalid("there is no fitted machine", hint=f"cleave calibrate --target {target}")
    cases = {case.name: case for suite in SUITES.values() for case in suite}
    cases |= {case.name: case for case in SUITES[data["suite"]]}
    for record in data["records"]:
        case, sizes, dtype = cases[record["case"]], record["sizes"], record["dtype"]
        with FakeTensorMode():
            kinds = [(case.shape(n, sizes), case.dtype_of(n, DTYPES[dtype])) for n in case.inputs]
            inputs = tuple(torch.empty(shape, dtype=kind) for shape, kind in kinds)
            outputs = as_tuple(case.function(*inputs))
        floor, limit = floor_of(case, sizes, dtype, target, inputs, outputs)
        known = record["seconds"] == record["seconds"]
        record |= {
            "floor_seconds": floor,
            "limit": limit,
            "fraction": floor / record["seconds"] if known else None,
        }
    path.write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        renew(Path(name))
