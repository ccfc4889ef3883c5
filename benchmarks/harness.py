"""Check first, then time: the harness that every suite runs through.

Each implementation's result is compared with a float64 reference on the same inputs before any time is
kept; one whose error is beyond the tolerance, or that raises, is a row that says so and has no time.
Timing: all implementations interleaved in one process, several input sets in rotation, medians of at least
`repeats` runs. On CUDA the L2 cache is overwritten before each run and events are read (cold L2); the
CPU's clock is read around the call.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

Outputs = tuple[torch.Tensor, ...]
ULP = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-23, torch.float64: 2.0**-52}
HOST_CYCLES = 600_000
"""About 0.3 ms of a GPU's clock: longer than the host needs to queue any call."""


@dataclass
class Row:
    """One implementation at one point: its error against float64, eager's own, and the median time."""

    implementation: str
    error: float = math.nan
    allowed: float = math.nan
    seconds: float = math.nan
    failure: str = ""
    notes: dict[str, object] = field(default_factory=dict)

    @property
    def correct(self) -> bool:
        return not self.failure and self.error <= self.allowed


def as_tuple(value: torch.Tensor | Sequence[torch.Tensor]) -> Outputs:
    return (value,) if isinstance(value, torch.Tensor) else tuple(value)


def row_error(value: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest relative error of a row (absolute where the reference row is tiny); inf where the value has
    a NaN or an infinity that the reference has not."""
    y, ref = value.double().cpu(), reference.double().cpu()
    if y.shape != ref.shape:
        return math.inf
    same = (y == ref) | (torch.isnan(y) & torch.isnan(ref))
    if bool((~torch.isfinite(y) & ~same).any()):
        return math.inf
    gap = torch.where(same, torch.zeros_like(y), y - ref)
    ref = torch.where(torch.isfinite(ref), ref, torch.zeros_like(ref))
    rows = (gap, ref) if gap.ndim else (gap[None], ref[None])
    top, bottom = (r.reshape(-1, r.shape[-1]).norm(dim=-1) for r in rows)
    if not top.numel():
        return 0.0
    return float((top / bottom.clamp_min(1e-6 * math.sqrt(max(1, rows[0].shape[-1])))).max())


def errors(outputs: Outputs, references: Outputs) -> float:
    return max((row_error(o, r) for o, r in zip(outputs, references, strict=True)), default=0.0)


def allowed_error(eager: float, dtype: torch.dtype, length: int) -> float:
    """design.md, "Numerical standing": 1.5 times eager's own, or 2 ulp (in float32, sqrt(length) ulp)."""
    floor = 2 * ULP[dtype]
    if dtype == torch.float32:
        floor = max(floor, math.sqrt(length) * ULP[dtype])
    return max(1.5 * eager, floor)


def reference(function: Callable[..., object], inputs: Outputs) -> Outputs:
    """The function in float64, on the same values. Intermediate `.float()` calls are widened too."""
    wide = [t.double() if t.is_floating_point() else t for t in inputs]
    narrow = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double  # the judge must not round where the program does
    try:
        return as_tuple(function(*wide))  # pyright: ignore[reportArgumentType]
    finally:
        torch.Tensor.float = narrow


class Clock:
    """Times calls on one device; on CUDA with a cold L2."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")
        if self.cuda:
            size = torch.cuda.get_device_properties(0).L2_cache_size
            self.trash = torch.empty(4 * size, dtype=torch.int8, device=device)

    def once(self, call: Callable[[], object]) -> float:
        """Seconds of one call."""
        if not self.cuda:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The device idles until the host has queued the call: what is timed is the device's time alone.
        torch.cuda._sleep(HOST_CYCLES)
        self.trash.zero_()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3


def time_all(
    calls: dict[str, Callable[..., object]], sets: Sequence[Outputs], device: str, budget: float, repeats: int
) -> dict[str, float]:
    """Median seconds of each call, interleaved, over the input sets in rotation."""
    clock = Clock(device)
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        for inputs in sets:
            clock.once(lambda call=call, inputs=inputs: call(*inputs))
        del name
    start = time.perf_counter()
    turn = 0
    while turn < repeats or (time.perf_counter() - start < budget and turn < 20 * repeats):
        inputs = sets[turn % len(sets)]
        for name, call in calls.items():
            samples[name].append(clock.once(lambda call=call, inputs=inputs: call(*inputs)))
        turn += 1
        if time.perf_counter() - start > 4 * budget and turn >= 5:
            break
    return {name: statistics.median(times) for name, times in samples.items()}


def compare(
    implementations: dict[str, Callable[..., object]],
    judge: Callable[..., object],
    sets: Sequence[Outputs],
    *,
    device: str,
    length: int,
    budget: float = 0.5,
    repeats: int = 50,
) -> list[Row]:
    """Check each implementation on every input set, then time those that are right. The first one is eager:
    its own error sets the tolerance."""
    references = [reference(judge, inputs) for inputs in sets]
    rows: list[Row] = []
    right: dict[str, Callable[..., object]] = {}
    eager = math.nan
    for name, call in implementations.items():
        row = Row(name)
        try:
            found = [as_tuple(call(*inputs)) for inputs in sets]  # pyright: ignore[reportArgumentType]
            row.error = statistics.median(errors(o, r) for o, r in zip(found, references, strict=True))
            if math.isnan(eager):
                eager = row.error
            row.allowed = allowed_error(eager, sets[0][0].dtype, length)
            if row.correct:
                right[name] = call
            else:
                row.failure = f"wrong: error {row.error:.2e}, allowed {row.allowed:.2e}"
        except Exception as error:  # noqa: BLE001  a peer that fails is a row, whatever it raises
            row.failure = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
        rows.append(row)
    for name, seconds in time_all(right, sets, device, budget, repeats).items():
        next(r for r in rows if r.implementation == name).seconds = seconds
    return rows
