"""Numbers on which the blocks of a kernel count: 0 before a kernel and 0 after it, so that nothing sets them.

Kernels of one stream run one after the other and share what they count on; each stream has its own. A launch
that is captured in a CUDA graph may be replayed beside anything else: it gets numbers of its own, for good,
from an array that was made before (inside a capture, making one would be a node of the graph that runs at
each replay; that is done only where the array is used up). Streams are told apart by their handles.
"""

from __future__ import annotations

import threading

import torch

LEAST = 4096
"""Numbers that a stream has at least: more than the blocks that a GPU holds at once."""
RESERVED = 1 << 18
"""Numbers for captured launches of a device: a MiB."""
STEP = 32
"""What is handed out starts at multiples of this, which kernels are compiled for."""

_of: dict[int, Counters] = {}


class Counters:
    """The numbers of one device. Threads may ask at once."""

    def __init__(self, device: int) -> None:
        self.device = torch.device("cuda", device)
        self._known: dict[int, tuple[torch.Tensor, int, int]] = {}
        self._reserve: torch.Tensor | None = None
        self._used = 0
        self._lock = threading.Lock()

    @staticmethod
    def on(device: int) -> Counters:
        """Those of a device, by its number."""
        return _of.setdefault(device, Counters(device))

    def address(self, stream: int, count: int) -> int:
        """Where so many numbers lie that are 0, for a launch on this stream, which is the current one."""
        if torch.cuda.is_current_stream_capturing():
            return self._own(count).data_ptr()
        known = self._known.get(stream)
        if known is None or known[2] < count:
            known = self._made(stream, count)
        return known[1]

    def tensor(self, stream: int, count: int) -> torch.Tensor:
        """The same as a tensor."""
        if torch.cuda.is_current_stream_capturing():
            return self._own(count)
        known = self._known.get(stream)
        return (known if known is not None and known[2] >= count else self._made(stream, count))[0]

    def _made(self, stream: int, count: int) -> tuple[torch.Tensor, int, int]:
        """The first numbers of a stream, or more of them: set to 0 on that stream. Those before go back to
        PyTorch, which gives them to later work of the same stream."""
        with self._lock:
            if self._reserve is None:
                self._reserve = self._zeros(RESERVED)
                # Once a process: a graph is replayed on streams that know nothing of this one.
                torch.cuda.current_stream(self.device).synchronize()
        room = max(LEAST, 1 << (count - 1).bit_length())
        zeros = self._zeros(room)
        made = self._known[stream] = zeros, zeros.data_ptr(), room
        return made

    def _own(self, count: int) -> torch.Tensor:
        """Numbers for one captured launch."""
        with self._lock:
            begin = self._used
            if self._reserve is not None and begin + count <= RESERVED:
                self._used = begin + -(-count // STEP) * STEP
                return self._reserve[begin : begin + count]
        return self._zeros(count)

    def _zeros(self, count: int) -> torch.Tensor:
        return torch.zeros(count, dtype=torch.int32, device=self.device)


def counters_of(device: torch.device, count: int) -> torch.Tensor:
    """Numbers for a launch on the current stream of a device; on a CPU, and without memory, new ones."""
    if device.type != "cuda":
        return torch.zeros(count, dtype=torch.int32, device=device)
    number = torch.cuda.current_device() if device.index is None else device.index
    stream = torch.cuda.current_stream(number).cuda_stream
    return Counters.on(number).tensor(stream, count)
