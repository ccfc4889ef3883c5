"""Seconds of a call: on a GPU with a cold L2 and without the host, on a CPU by the wall clock.

On CUDA a buffer larger than the L2 cache is overwritten before each run, and the device idles until the host
has queued the run, so that events around it see the device's time alone.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch

Call = Callable[[], object]
HOST_CYCLES = 600_000
"""About 0.3 ms of a GPU's clock: longer than the host needs to queue a call."""
CALM, MOST_TRIES = 1.5, 3


class Clock:
    """Times calls on one device."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")
        if self.cuda:
            size = torch.cuda.get_device_properties(0).L2_cache_size
            self.trash = torch.empty(4 * max(size, 1 << 20), dtype=torch.int8, device=device)

    def once(self, call: Call) -> float:
        """Seconds of one call."""
        if not self.cuda:
            start = time.perf_counter()
            call()
            return time.perf_counter() - start
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(HOST_CYCLES)
        self.trash.zero_()
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3

    def median(self, call: Call, seconds: float, least: int = 5, most: int = 51) -> float:
        """The median of as many runs as fit in some seconds, after one that is not counted. Where it is far
        from the least run somebody else was busy: then once or twice again, and the lowest counts."""
        found: list[float] = []
        for _ in range(1 if self.cuda else MOST_TRIES):
            times = self._times({"": call}, seconds, least, most)[""]
            found.append(statistics.median(times))
            if found[-1] <= CALM * min(times):
                break
        return min(found)

    def least(self, call: Call, seconds: float, least: int = 5, most: int = 51) -> float:
        """The least of as many runs as fit in some seconds: what the device can do, whoever else is there."""
        return min(self._times({"": call}, seconds, least, most)[""])

    def medians(
        self, calls: Mapping[str, Call], seconds: float, least: int = 5, most: int = 51
    ) -> dict[str, float]:
        """The same for several calls in turns, so that a change of the clock's rate meets all of them."""
        found = self._times(calls, seconds, least, most)
        return {name: statistics.median(times) for name, times in found.items()}

    def _times(
        self, calls: Mapping[str, Call], seconds: float, least: int, most: int
    ) -> dict[str, list[float]]:
        for call in calls.values():
            self.once(call)
        found: dict[str, list[float]] = {name: [] for name in calls}
        start = time.perf_counter()
        for turn in range(most):
            if turn >= least and time.perf_counter() - start > seconds:
                break
            for name, call in calls.items():
                found[name].append(self.once(call))
        return found
