"""What a cached call on the GPU must keep: little overhead, graphs, threads, any stream, and no waiting.

Run with `pytest -m gpu tests/test_gpu_calls.py` on a machine with an NVIDIA GPU.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import cleave

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU"),
]
MOST_ABOVE = 15.0
"""Microseconds of the host above an empty Triton launch."""
LONG_SLEEP = 1_000_000_000
"""Cycles of a GPU's clock: about half a second."""


def gated(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Two products in one kernel."""
    return F.silu(x @ w) * (x @ v)


def attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Few rows and many keys: split over the keys, and merged."""
    return torch.softmax((q @ k.transpose(-1, -2)).float() * 0.125, -1).to(q.dtype) @ v


def inputs_of(function: Callable[..., torch.Tensor], seed: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator("cuda").manual_seed(seed)
    shapes = {
        gated: ((16, 512), (512, 768), (512, 768)),
        attended: ((8, 4, 64), (8, 4096, 64), (8, 4096, 64)),
    }
    made = [torch.randn(s, device="cuda", generator=generator) for s in shapes[function]]
    if function is gated:
        made = [t / t.shape[0] ** 0.5 for t in made]
    return tuple(t.bfloat16() for t in made)


def compiled(function: Callable[..., torch.Tensor]) -> cleave.Jit:
    """Compiled, and called once."""
    inputs = inputs_of(function, 0)
    fast = cleave.compile(function, inputs)
    fast(*inputs)
    torch.cuda.synchronize()
    assert not fast.fallbacks
    return fast


def near(
    found: torch.Tensor, inputs: tuple[torch.Tensor, ...], function: Callable[..., torch.Tensor]
) -> bool:
    right = function(*(t.double() for t in inputs))
    return bool((found.double() - right).norm() / right.norm() < 1e-2)


FUNCTIONS = pytest.mark.parametrize("function", [gated, attended], ids=["gated", "attended"])


@FUNCTIONS
def test_a_call_costs_little_more_than_an_empty_launch(function: Callable[..., torch.Tensor]) -> None:
    from benchmarks.overhead import empty_us, host_us

    fast, inputs = compiled(function), inputs_of(function, 1)
    above = min(host_us(lambda: fast(*inputs), 20) - empty_us() for _ in range(3))
    assert above <= MOST_ABOVE, f"{above:.1f} us"


@FUNCTIONS
def test_a_call_waits_for_nothing(function: Callable[..., torch.Tensor]) -> None:
    """It returns while the device sleeps, with inputs that are not there yet."""
    fast, inputs = compiled(function), inputs_of(function, 2)
    fast(*inputs)
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_SLEEP)
    slept = torch.cuda.Event()
    slept.record()
    began = time.perf_counter()
    found = fast(*inputs)
    took = time.perf_counter() - began
    assert not slept.query(), "the device did not sleep for long enough"
    assert took < 0.1
    torch.cuda.synchronize()
    assert near(found, inputs, function)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode")
            torch.cuda.set_sync_debug_mode("error")
        fast(*inputs)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@FUNCTIONS
def test_a_graph_of_a_call_reads_new_values(function: Callable[..., torch.Tensor]) -> None:
    fast, inputs = compiled(function), inputs_of(function, 3)
    fast(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = fast(*inputs)
    for seed in (4, 5):
        for into, value in zip(inputs, inputs_of(function, seed), strict=True):
            into.copy_(value)
        graph.replay()
        torch.cuda.synchronize()
        assert near(found, inputs, function)


@FUNCTIONS
def test_a_call_runs_on_the_stream_at_hand(function: Callable[..., torch.Tensor]) -> None:
    """It reads what that stream wrote just before, while another stream sleeps."""
    fast = compiled(function)
    inputs, values = inputs_of(function, 6), inputs_of(function, 7)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        fast(*inputs)  # what it allocates there is there from now on
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG_SLEEP)
    slept = torch.cuda.Event()
    slept.record()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG_SLEEP // 20)
        for into, value in zip(inputs, values, strict=True):
            into.copy_(value)
        found = fast(*inputs)
    stream.synchronize()
    assert not slept.query(), "it waited for the default stream"
    assert near(found, inputs, function)
    torch.cuda.synchronize()


@FUNCTIONS
def test_threads_share_a_function(function: Callable[..., torch.Tensor]) -> None:
    """Each with a stream of its own and inputs of its own, all at once."""
    fast, count = compiled(function), 8
    given = [inputs_of(function, 10 + n) for n in range(count)]
    wanted = [fast(*inputs) for inputs in given]
    torch.cuda.synchronize()
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                for _ in range(100):
                    fast(*given[number])
                found = fast(*given[number])
                torch.cuda.current_stream().synchronize()
            if not torch.equal(found, wanted[number]):
                wrong.append(number)
        except Exception as error:  # noqa: BLE001  raised in the thread that waits
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
