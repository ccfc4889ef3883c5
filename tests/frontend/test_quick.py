"""The short way of repeated calls: when it is taken, when it must not be, and what it costs."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

import cleave
from cleave.frontend.jit import Jit
from cleave.runtime.caller import caller_text


def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y + x


@pytest.fixture(scope="module")
def compiled() -> Jit:
    return cleave.jit(scaled, target="cpu")


def warm(fn: Jit, *args: torch.Tensor) -> None:
    """Two calls: the first compiles, the second finds its variant and is remembered."""
    for _ in range(2):
        fn(*args)


def test_it_is_taken_and_right(compiled: Jit) -> None:
    x, y = torch.randn(5), torch.randn(5)
    warm(compiled, x, y)
    known = len(compiled.quick.runs)
    assert known
    for _ in range(3):
        x, y = torch.randn(5), torch.randn(5)
        torch.testing.assert_close(compiled(x, y), scaled(x, y))
    assert len(compiled.quick.runs) == known


def test_other_shapes_strides_dtypes_take_the_long_way(compiled: Jit) -> None:
    x, y = torch.randn(6), torch.randn(6)
    warm(compiled, x, y)
    for a, b in (
        (torch.randn(7), torch.randn(7)),
        (torch.randn(12)[::2], torch.randn(6)),
        (torch.randn(7)[1:], torch.randn(6)),
        (torch.randn(6).double(), torch.randn(6).double()),
        (torch.randn(2, 3), torch.randn(2, 3)),
        (torch.complex(torch.randn(6), torch.randn(6)).conj().imag, torch.randn(6)),
        (torch.nn.Parameter(torch.randn(6), requires_grad=False), torch.randn(6)),
    ):
        torch.testing.assert_close(compiled(a, b), scaled(a, b))
        torch.testing.assert_close(compiled(a, b), scaled(a, b))


def test_gradients_modes_and_transforms_still_reach_pytorch(compiled: Jit) -> None:
    x, y = torch.randn(8), torch.randn(8)
    warm(compiled, x, y)
    leaf = x.clone().requires_grad_()
    assert compiled(leaf, y).requires_grad
    with torch.no_grad():
        warm(compiled, leaf, y)
        assert not compiled(leaf, y).requires_grad
    assert compiled(leaf, y).requires_grad
    batched = torch.vmap(compiled)(torch.stack([x, x]), torch.stack([y, y]))
    torch.testing.assert_close(batched, torch.stack([scaled(x, y)] * 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(compiled(x, y), scaled(x, y))
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x, y), scaled(x, y))


def test_arguments_that_are_no_tensors(compiled: Jit) -> None:
    x, y = torch.randn(8), torch.randn(8)
    warm(compiled, x, y)
    with pytest.raises(Exception):  # noqa: B017  whatever PyTorch itself raises
        compiled(x, None)
    assert compiled(x, 2.0).equal(scaled(x, 2.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        compiled(x)
    torch.testing.assert_close(compiled(x, y=y), scaled(x, y))
    assert isinstance(np.asarray(compiled(x, y)), np.ndarray)


def test_constants_in_sight_are_looked_at() -> None:
    factor = 2.0

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    ours = cleave.jit(fn, target="cpu")
    x = torch.randn(4)
    for factor in (2.0, 3.0, 2.0):
        for _ in range(3):
            torch.testing.assert_close(ours(x), x * factor)


def test_parameters_are_read_at_each_call() -> None:
    layer = torch.nn.Linear(4, 3).requires_grad_(False)
    ours = cleave.jit(layer, target="cpu")
    x = torch.randn(2, 4)
    warm(ours, x)
    assert ours.quick.runs
    for _ in range(2):
        torch.testing.assert_close(ours(x), layer(x))
        layer.weight.mul_(2)
        layer.bias = torch.nn.Parameter(torch.randn(3), requires_grad=False)
    layer.bias.requires_grad_(True)
    assert ours(x).requires_grad


@pytest.mark.parametrize("make", [lambda a, b: (a, b), lambda a, b: [b, a], lambda a, b: {"a": a, "b": (b,)}])
def test_results_come_back_in_the_users_containers(make: Callable[..., Any]) -> None:
    def fn(x: torch.Tensor) -> Any:
        return make(x + 1, x * 2)

    ours = cleave.jit(fn, target="cpu")
    x = torch.randn(4)
    for _ in range(3):
        found = ours(x)
        assert type(found) is type(fn(x))
        torch.testing.assert_close(found, fn(x))


def test_an_argument_handed_back_is_the_argument() -> None:
    ours = cleave.jit(lambda x: (x, x + 1), target="cpu")
    x = torch.randn(4)
    for _ in range(3):
        assert ours(x)[0] is x


def test_no_tensor_is_kept(compiled: Jit) -> None:
    x, y = torch.randn(9), torch.randn(9)
    warm(compiled, x, y)
    result = weakref.ref(compiled(x, y)), weakref.ref(x)
    del x, y
    gc.collect()
    assert result[0]() is None and result[1]() is None


def test_many_threads(compiled: Jit) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for n in range(1, 40):
            x, y = torch.randn(n, generator=generator), torch.randn(n, generator=generator)
            if not torch.allclose(compiled(x, y), scaled(x, y)):
                wrong.append(n)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_written_call_reads_like_one() -> None:
    kernels = [(4, [(0, 0), (1, 1), (2, 2)]), (3, [(0, 3), (1, 2)])]
    text = caller_text([True, False, True, True], 2, 1, kernels, [False, True])
    fresh = "        empty = careful if filled() else quick\n        t2 = empty(s2, d2, k2)\n"
    assert f"    def call(t0, n1):\n{fresh}" in text
    several = "one if left else word(threads())"
    assert f"        if f0(p0, r0_1(n1), p2, {several}):\n            failed()\n" in text
    assert "        if f1(p3, p2, one):\n" in text and "        return (t2,)\n" in text
    assert "        room = take(size)\n" in text and "        p3 = address(start + o3)\n" in text


def test_settings_that_change_after_a_call_are_seen(compiled: Jit) -> None:
    """What the guards of the latest call do not know by themselves, or know only for some versions."""
    x, y = torch.randn(8), torch.randn(8)
    warm(compiled, x, y)
    compiled(x, y)
    latest = compiled.quick.latest
    assert latest is not None and latest.serves((x, y), ())
    with cleave.knobs.scope(reassociate=True):
        assert not latest.serves((x, y), ())
    with forward_ad.dual_level():
        assert not latest.serves((x, y), ())
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        tangent = forward_ad.unpack_dual(compiled(dual, y)).tangent
        assert tangent is not None
        torch.testing.assert_close(tangent, y + 1)
    with FakeTensorMode() as mode:
        assert not latest.serves((x, y), ())
        assert type(compiled(mode.from_tensor(x), mode.from_tensor(y))) is FakeTensor
    for change, back in (
        (lambda: torch.set_default_dtype(torch.float64), lambda: torch.set_default_dtype(torch.float32)),
        (
            lambda: torch.set_float32_matmul_precision("medium"),
            lambda: torch.set_float32_matmul_precision("highest"),
        ),
    ):
        change()
        try:
            assert not latest.serves((x, y), ())
            torch.testing.assert_close(compiled(x, y), scaled(x, y))
        finally:
            back()
    with torch.no_grad():
        assert not latest.serves((x, y), ())
    assert latest.serves((x, y), ())


def test_the_latest_call_follows_what_is_called(compiled: Jit) -> None:
    """Calls of two shapes in turns, each told from the other; and in inference mode."""
    pairs = [(torch.randn(n), torch.randn(n)) for n in (3, 4)]
    for x, y in pairs:
        warm(compiled, x, y)
    for turn in range(6):
        x, y = pairs[turn % 2]
        torch.testing.assert_close(compiled(x, y), scaled(x, y))
        assert compiled.quick.latest is not None and compiled.quick.latest.serves((x, y), ())
    x, y = pairs[0]
    with torch.inference_mode():
        for _ in range(3):
            compiled(x, y)
        assert compiled.quick.latest is not None and compiled.quick.latest.serves((x, y), ())


def test_without_the_guards_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")  # pyright: ignore
    ours = cleave.jit(scaled, target="cpu")
    x, y = torch.randn(5), torch.randn(5)
    for _ in range(4):
        torch.testing.assert_close(ours(x, y), scaled(x, y))
    assert ours.quick.latest is None and ours.quick.runs
