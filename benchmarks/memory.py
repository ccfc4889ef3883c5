"""What a call takes besides time: memory beyond what was there before it, and kernels on a GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_bytes(call: Callable[..., object], inputs: Sequence[torch.Tensor], device: str) -> int | None:
    """Bytes at the peak of one call, its results included: PyTorch's allocator on CUDA, the process' resident
    memory on Linux's CPUs; None elsewhere."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call(*inputs)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        _RESET.write_text("5")  # the peak starts again from what is resident now
        before = _resident("VmRSS")
        call(*inputs)
        return max(0, _resident("VmHWM") - before)
    except OSError:
        return None


def _resident(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", _STATUS.read_text(), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def launches_of(call: Callable[..., object], inputs: Sequence[torch.Tensor]) -> int:
    """Kernels, copies and fills that one call runs on the GPU, as the profiler sees them."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as seen:
        call(*inputs)
        torch.cuda.synchronize()
    return sum(1 for event in seen.events() or () if event.device_type.name == "CUDA")
