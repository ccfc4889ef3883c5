"""Check first, then time: the harness that every suite runs through.

Each implementation's result is compared with a float64 reference on the same inputs before any time is
kept; one whose error is beyond the tolerance, or that raises, is a row that says so and has no time.
Timing: all implementations interleaved in one process, several input sets in rotation, medians of at least
`repeats` runs. On CUDA the L2 cache is overwritten before each run and events are read (cold L2), then a few
runs follow without that (warm); the CPU's clock is read around the call.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

Outputs = tuple[torch.Tensor, ...]
ULP = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7, torch.float32: 2.0**-23, torch.float64: 2.0**-52}
HOST_CYCLES = 600_000
"""About 0.3 ms of a GPU's clock: longer than the host needs to queue most calls."""
CYCLES, HOST_SLACK = 2.0e9, 2.0
"""A GPU's clock, and how much longer than the host's last time the device idles."""
MOST_HOST = 5e-3
"""What takes the host longer is a compile, and not what the next call will take."""
WARM_RUNS = 20


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
    a NaN or an infinity that the reference has not. Worked out where the reference is."""
    ref = reference.double()
    y = value.to(device=ref.device, dtype=ref.dtype)
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
    if math.isnan(eager):
        eager = 0.0  # eager has no result, for want of memory
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
    """Times calls on one device; on CUDA by events, with a cold L2 unless said otherwise."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")
        self.host: dict[str, float] = {}
        if self.cuda:
            size = torch.cuda.get_device_properties(0).L2_cache_size
            self.trash = torch.empty(4 * size, dtype=torch.int8, device=device)

    def once(self, call: Callable[[], object], *, cold: bool = True, name: str = "") -> float:
        """Seconds of one call. The host's time to queue a call of this name is remembered: the device idles
        for longer than that before the next one, so that what is timed is the device's time alone."""
        if not self.cuda:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        idle = HOST_SLACK * min(self.host.get(name, 0.0), MOST_HOST)
        torch.cuda._sleep(max(HOST_CYCLES, int(idle * CYCLES)))
        if cold:
            self.trash.zero_()
        begin.record()
        queued = time.perf_counter()
        call()
        self.host[name] = time.perf_counter() - queued
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3


@dataclass
class Timed:
    """Median seconds of a call, cold and (on CUDA) warm, and of how many cold runs."""

    seconds: float
    warm: float
    runs: int


def time_all(
    calls: Mapping[str, Callable[..., object]],
    sets: Sequence[Outputs],
    clock: Clock,
    budget: float,
    repeats: int,
) -> dict[str, Timed]:
    """Times of each call, interleaved, over the input sets in rotation: at least `repeats` runs each, more
    within the budget, fewer (not below 5) of what takes more than four budgets."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    spent = dict.fromkeys(calls, 0.0)
    for name, call in calls.items():
        for inputs in sets:
            clock.once(lambda call=call, inputs=inputs: call(*inputs), name=name)
    running = list(calls)
    turn = 0
    while running:
        inputs = sets[turn % len(sets)]
        for name in list(running):
            began = time.perf_counter()
            call = calls[name]
            samples[name].append(clock.once(lambda call=call, inputs=inputs: call(*inputs), name=name))
            spent[name] += time.perf_counter() - began
            runs = len(samples[name])
            enough = runs >= repeats and (spent[name] >= budget / len(calls) or runs >= 20 * repeats)
            if enough or (runs >= 5 and spent[name] > 4 * budget):
                running.remove(name)
        turn += 1
    return {
        name: Timed(statistics.median(times), _warm(calls[name], sets[0], clock, name), len(times))
        for name, times in samples.items()
    }


def _warm(call: Callable[..., object], inputs: Outputs, clock: Clock, name: str) -> float:
    """Median seconds with what the call before has left in the L2; there is no such figure for a CPU."""
    if not clock.cuda:
        return math.nan
    return statistics.median(
        clock.once(lambda: call(*inputs), cold=False, name=name) for _ in range(WARM_RUNS + 1)
    )


def quick_time(call: Callable[..., object], inputs: Outputs, clock: Clock, runs: int = 7) -> float:
    """A rough time, to choose among options of one implementation."""
    clock.once(lambda: call(*inputs), name="quick")
    return statistics.median(clock.once(lambda: call(*inputs), name="quick") for _ in range(runs))


def judge(
    name: str,
    call: Callable[..., object],
    sets: Sequence[Outputs],
    references: Sequence[Outputs],
    eager: float,
    length: int,
) -> Row:
    """Check an implementation on every input set, against the tolerance that eager's error gives (its own, if
    it is eager)."""
    row = Row(name)
    try:
        found = [
            errors(as_tuple(call(*inputs)), known)  # pyright: ignore[reportArgumentType]
            for inputs, known in zip(sets, references, strict=True)
        ]
        row.error = statistics.median(found)
        row.allowed = allowed_error(row.error if name == "eager" else eager, sets[0][0].dtype, length)
        if not row.correct:
            row.failure = f"wrong: error {row.error:.2e}, allowed {row.allowed:.2e}"
    except Exception as error:  # noqa: BLE001  a peer that fails is a row, whatever it raises
        row.failure = shown(error)
    return row


def shown(error: BaseException) -> str:
    """One line of an error."""
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text[:160]}"


def compare(
    implementations: Mapping[str, Callable[..., object]],
    judged: Callable[..., object],
    sets: Sequence[Outputs],
    *,
    device: str,
    length: int,
    budget: float = 0.5,
    repeats: int = 50,
) -> list[Row]:
    """Check each implementation on every input set, then time those that are right. The first is eager."""
    references = [reference(judged, inputs) for inputs in sets]
    rows: list[Row] = []
    for name, call in implementations.items():
        eager = rows[0].error if rows else math.nan
        rows.append(judge(name, call, sets, references, eager, length))
    right = {r.implementation: implementations[r.implementation] for r in rows if r.correct}
    for name, timed in time_all(right, sets, Clock(device), budget, repeats).items():
        next(r for r in rows if r.implementation == name).seconds = timed.seconds
    return rows
