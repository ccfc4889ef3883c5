"""Repeated calls of Triton kernels, written out, with kernels that only note how they are started."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cleave.codegen.source import Argument
from cleave.runtime import triton_call
from cleave.runtime.descriptors import Described
from cleave.runtime.triton_call import Kernel, Maps, Start, calls, start_of, written

META = {"swizzle": 3, "elem_size": 2, "elem_type": 5, "block_size": [16, 8], "fp4_padded": False}


class Noted:
    """Notes what it is called with."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __call__(self, *args: Any) -> Any:
        self.calls.append(args)


@pytest.fixture(autouse=True)
def cpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a GPU's functions say, on a machine without one."""
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 100 + device, raising=False)
    empty = lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)  # noqa: E731
    monkeypatch.setattr(triton_call, "quick_empty", empty)
    monkeypatch.setattr(triton_call, "careful_empty", lambda device: lambda *how: empty(*how).zero_())
    yield


FRESH = [((4, 8), (8, 1), torch.float32), ((2,), (1,), torch.float16)]


def test_kernels_start_with_addresses_numbers_and_the_stream() -> None:
    first, second = Noted(), Noted()
    kernels = [
        Kernel(Start(first, (7, ("packed",), None)), 12, [None, 5, None, None], [(0, 0), (2, 1), (3, 2)], []),
        Kernel(Start(second, (8,)), 3, [None, None, True], [(0, 3), (1, 2)], []),
    ]
    call: Any = written([True, False, True, True], 2, FRESH, 1, kernels, 0, Noted())
    x = torch.zeros(4, 8)
    (out,) = call(x, 2.5)
    assert out.shape == (4, 8) and out.dtype == torch.float32
    assert first.calls == [(12, 1, 1, 100, 7, ("packed",), None, x.data_ptr(), 5, 2.5, out.data_ptr())]
    assert second.calls[0][:5] == (3, 1, 1, 100, 8) and second.calls[0][6:] == (out.data_ptr(), True)
    assert call.single(x, 1.0).shape == (4, 8) and len(second.calls) == 2


def test_workspaces_are_pieces_of_one_room(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    def empty(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
        made.append(torch.empty_strided(shape, strides, dtype=dtype))
        return made[-1]

    monkeypatch.setattr(triton_call, "quick_empty", empty)
    run, fresh = Noted(), [*FRESH, ((3, 100), (100, 1), torch.bfloat16), ((0,), (1,), torch.float32)]
    kernels = [Kernel(Start(run, ()), 1, [None] * 4, [(0, 1), (1, 2), (2, 3), (3, 4)], [])]
    call: Any = written([True] * 5, 1, fresh, 1, kernels, 0, Noted())
    (out,) = call(torch.zeros(3))
    _, room = made
    base = room.data_ptr()
    assert out is made[0] and room.dtype == torch.uint8 and room.shape == (256 + 768,)
    assert run.calls[0][4:] == (out.data_ptr(), base, base + 256, base + 1024)


def test_the_long_way_for_other_devices_and_for_who_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = pytest.importorskip("triton.knobs")
    run = Noted()
    slow: Any = lambda *args: ("slow", len(args))  # noqa: E731
    kernels = [Kernel(Start(run, ()), 1, [None], [(0, 0)], [])]
    call: Any = written([True, True, True], 1, FRESH, 1, kernels, 0, slow)
    x = torch.zeros(3)
    assert not calls(getattr(knobs.runtime, "launch_enter_hook", None))
    call(x)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 1)
    other: Any = written([True, True, True], 1, FRESH, 1, kernels, 0, slow)
    assert other(x) == ("slow", 1) and other.single(x) == "slow"
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", lambda metadata: None)
    assert call(x) == ("slow", 1) and len(run.calls) == 1


def test_memory_is_filled_from_the_moment_that_it_is_asked_for() -> None:
    call: Any = written([True, True, True], 1, FRESH, 2, [], 0, Noted())
    x = torch.zeros(3)
    call(x)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert all(bool((out == 0).all()) for out in call(x))
    finally:
        torch.use_deterministic_algorithms(False)


# ---------------------------------------------------------------- how Triton starts a kernel


class Launcher36:
    """As of Triton 3.6: `launch` encodes descriptors and calls the inner launcher."""

    launch_cooperative_grid, launch_pdl = False, True
    global_scratch_size = profile_scratch_size = 0

    def __init__(self, launcher: Any, tensordesc_meta: Any) -> None:
        def inner(*args: Any) -> Any:
            return launcher(*args, tensordesc_meta)

        self.launch = inner if tensordesc_meta else launcher


class Compiled:
    function, packed_metadata = 7, ("packed",)

    def __init__(self, run: Any) -> None:
        self.run = run


def test_the_layers_of_triton_3_6_are_left_out() -> None:
    raw = Noted()
    plain = start_of(Compiled(Launcher36(raw, None)), 0)
    after = (7, False, True, None, None, ("packed",), None, None, None)
    assert plain == Start(raw, after, True, ())
    assert start_of(Compiled(Launcher36(raw, [META])), 1) == Start(raw, after, True, (META,))


def test_other_versions_are_started_as_they_say() -> None:
    class Scratch(Launcher36):
        global_scratch_size = 8

    usual = Scratch(Noted(), None)
    found = start_of(Compiled(usual), 0)
    assert found == Start(usual, (7, ("packed",), None, None, None))
    assert start_of(object(), 0) is None


def described() -> Described:
    return Described(Argument("x", "descriptor", "x", dtype="bf16", block=(16, 8)), (32, 8), (8, 1))


def test_descriptors_are_encoded_once_for_each_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton.tools.tensor_descriptor")
    form, run, made = described(), Noted(), Noted()

    def encode(form: Described, meta: Any, address: int) -> list[Any]:
        made(address)
        return [f"map of {address}", *form.shape, *form.strides]

    monkeypatch.setattr(triton_call, "encoded", encode)
    kernels = [Kernel(Start(run, (), True, (META,)), 1, [None], [], [(0, 0, form)])]
    call: Any = written([True, True], 1, FRESH[:1], 1, kernels, 0, Noted())
    x, y = torch.zeros(32, 8), torch.zeros(32, 8)
    for tensor in (x, y, x, y):
        call(tensor)
    assert made.calls == [(x.data_ptr(),), (y.data_ptr(),)]
    assert run.calls[2] == (1, 1, 1, 100, f"map of {x.data_ptr()}", 32, 8, 8, 1)
    maps = Maps(form, META)
    for address in range(1000):
        maps.of(address)
    assert len(maps.known) <= triton_call.KEPT_MAPS


def test_threads_that_come_first_at_once_get_their_own_tensors() -> None:
    pytest.importorskip("triton.tools.tensor_descriptor")
    for _ in range(20):
        form = described()
        tensors = [torch.zeros(32, 8, dtype=torch.bfloat16) for _ in range(8)]
        wait = threading.Barrier(len(tensors))
        found: list[Any] = [None] * len(tensors)

        def take(n: int) -> None:
            wait.wait()  # noqa: B023
            found[n] = form.of(tensors[n])  # noqa: B023

        threads = [threading.Thread(target=take, args=(n,)) for n in range(len(tensors))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(made.base is tensor for made, tensor in zip(found, tensors, strict=True))
        assert form.form.base is None
