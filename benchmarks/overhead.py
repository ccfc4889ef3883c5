"""What a cached call costs the host, beside an empty Triton launch: `python -m benchmarks.overhead OUT.json`.

Calls of small cases are queued in a row, without waiting for the device, and the host's time for each is
taken: the median over rounds, in microseconds. Every case is one compiled function as a user has it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton

import cleave
from benchmarks.case import Sizes
from benchmarks.runner import DTYPES
from benchmarks.suites import SUITES
from cleave.pipeline import Compiled
from cleave.runtime.machines import device_name

ROUNDS, CALLS = 40, 50
"""Rounds of so many calls each: fewer than what the queue of a device holds."""
POINTS: tuple[tuple[str, str, Sizes], ...] = (
    ("static", "softmax", {"S": 64, "N": 1024}),
    ("paper", "swiglu", {"S": 16, "K": 4096, "N": 14336}),
    ("paper", "matmul", {"S": 16, "K": 4096, "N": 4096}),
    ("paper", "gqa-d128", {"H": 32, "KV": 8, "T": 4096, "D": 128, "S": 16}),
)
"""A row kernel, two products in one kernel, and kernels that are split and merged."""


@triton.jit
def nothing(x_ptr):
    pass


def host_us(call: Callable[[], object], rounds: int = ROUNDS, calls: int = CALLS) -> float:
    """Microseconds of the host for a call."""
    for _ in range(10):
        call()
    times: list[float] = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - began) / calls)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def empty_us() -> float:
    """Microseconds of the host for an empty launch of Triton."""
    x = torch.empty(1, device="cuda")
    return host_us(lambda: nothing[(1,)](x))


def measured(suite: str, name: str, sizes: Sizes, dtype: str) -> dict[str, Any]:
    """One case: ours, eager and an empty launch right after each other."""
    case = next(c for c in SUITES[suite] if c.name == name)
    inputs = case.make(sizes, DTYPES[dtype], "cuda", 0)
    ours = cleave.compile(case.function, inputs, dynamic=case.marks)
    ours(*inputs)
    if ours.fallbacks:
        raise RuntimeError(f"{name} runs in PyTorch: {ours.fallbacks[0]}")
    [program] = ours.compiled
    assert isinstance(program, Compiled)
    return {
        "case": name,
        "sizes": dict(sizes),
        "dtype": dtype,
        "launches": program.footprint(*inputs)[0],
        "ours_us": host_us(lambda: ours(*inputs)),
        "empty_us": empty_us(),
        "eager_us": host_us(lambda: case.function(*inputs)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for suite, name, sizes in POINTS:
            rows.append(measured(suite, name, sizes, "bf16"))
            above = rows[-1]["ours_us"] - rows[-1]["empty_us"]
            print(f"{name}: {rows[-1]['ours_us']:.1f} us, {above:.1f} above an empty launch", flush=True)
    data = {"device": device_name("cuda"), "date": time.strftime("%Y-%m-%d"), "rows": rows}
    given.out.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
