"""`cleave.scan`: a plain loop in PyTorch, one loop operation when captured; random numbers by counting."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import cleave
from cleave.errors import Invalid
from cleave.ir.loops import loops_in


def roll(x: Any, v: Any, acts: Any, dt: float, m: Any) -> Any:
    half = m * 0.5

    def step(carry: Any, a: Any) -> Any:
        x, v = carry["x"], carry["v"]
        v2, x2 = v + a * dt / half, x + v * dt
        return {"x": x2, "v": v2}, torch.where(x2 > 0, x2, -v2)

    return cleave.scan(step, {"x": x, "v": v}, acts)


def arguments(size: int, steps: int) -> tuple[Any, ...]:
    torch.manual_seed(size)
    return torch.randn(size), torch.randn(size), torch.randn(steps, size), 0.1, torch.rand(size) + 1


def same(a: Any, b: Any) -> None:
    for one, two in zip(pytree.tree_leaves(a), pytree.tree_leaves(b), strict=True):
        torch.testing.assert_close(one, two)


def test_one_compile_serves_all_sizes_and_lengths() -> None:
    fast = cleave.jit(roll)
    for size, steps in ((37, 11), (5, 1), (3, 0), (1, 4), (0, 2)):
        args = arguments(size, steps)
        same(roll(*args), fast(*args))
    assert not fast.fallbacks and fast.compile_count == 1
    (program,) = fast.captures[0].programs
    (loop,) = loops_in(program.nodes)
    assert loop.states == 2 and loop.names[:2] == ("x", "v")


def test_stacked_states_stay_apart_in_one_kernel() -> None:
    def stacked(s: Any, acts: Any) -> Any:
        def step(s: Any, a: Any) -> Any:
            x, v = s[:, 0], s[:, 1]
            v2 = v + a
            return torch.stack([x + v2 * 0.1, v2], 1), x > 0

        return cleave.scan(step, s, acts)

    fast = cleave.jit(stacked)
    args = torch.randn(40, 2), torch.randn(6, 40)
    same(stacked(*args), fast(*args))
    chosen = fast.compiled[0].variants[0]
    assert chosen.candidate.form == "states apart" and len(chosen.tiles.kernels) == 1


def test_a_scan_of_one_step_needs_no_loop() -> None:
    fast = cleave.jit(roll, dynamic={"x": ("N",), "v": ("N",), "acts": (1, "N"), "m": ("N",)})
    args = arguments(9, 1)
    same(roll(*args), fast(*args))
    assert not fast.fallbacks


def test_results_may_be_used_in_any_order() -> None:
    def total(x: Any, v: Any, acts: Any, dt: float, m: Any) -> Any:
        last, seen = roll(x, v, acts, dt, m)
        return last["x"] * 2, seen.sum(0), seen[-1]

    fast = cleave.jit(total)
    args = arguments(12, 5)
    same(total(*args), fast(*args))
    assert not fast.fallbacks


def test_a_body_that_reduces_runs_in_pytorch() -> None:
    def centred(x: Any) -> Any:
        return cleave.scan(lambda c, _: (c - c.mean(), None), x, length=3)

    fast = cleave.jit(centred)
    x = torch.randn(8)
    same(centred(x), fast(x))
    assert fast.fallbacks


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (lambda c, x: (c.double(), None), "float64"),
        (lambda c, x: ((c, c), None), "begins as"),
        (lambda c, x: (c[:2], None), r"\[2\]"),
    ],
)
def test_a_carry_that_changes_is_refused(body: Any, what: str) -> None:
    with pytest.raises(Invalid, match=what):
        cleave.scan(body, torch.ones(4), torch.ones(3, 4))


def test_how_often_must_be_said_and_agree() -> None:
    with pytest.raises(Invalid, match="needs `xs` or `length`"):
        cleave.scan(lambda c, x: (c, None), torch.ones(2))
    with pytest.raises(Invalid, match="3 positions and over 4"):
        cleave.scan(lambda c, x: (c, None), torch.ones(2), (torch.ones(3), torch.ones(4)))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda x: cleave.scan(3, x, x), "body of a scan is a function"),
        (lambda x: cleave.scan(lambda c, y: c, x, x), "returns two things"),
        (lambda x: cleave.scan(lambda c, y: None, x, x), "returns two things, carry and y, not None"),
        (lambda x: cleave.scan(lambda c, y: (c, c, c), x, x), "returns two things"),
        (lambda x: cleave.scan(lambda c, y: (c, None), x, None, 3.0), "whole number, not 3.0"),
        (lambda x: cleave.scan(lambda c, y: (c, None), x, None, True), "whole number, not True"),
        (lambda x: cleave.scan(lambda c, y: (c, None), x, None, "3"), "whole number, not '3'"),
        (lambda x: cleave.scan(lambda c, y: (c, None), x, None, -3), "the size -3 is negative"),
        (lambda x: cleave.scan(lambda c, y: (c, None), x, None, 10**30), "no axis has the size"),
        (lambda x: cleave.scan(lambda c, y: (c, None), x, [1, 2]), "must be tensors .* not 1"),
        (lambda x: cleave.scan(lambda c, y: (c, 3), x, x), "outputs of a scan's body must be tensors"),
        (lambda x: cleave.scan(lambda c: (c, c)), "cleave.scan needs init"),
        (lambda x: cleave.threefry2x32((1,), (x, x)), "the key of threefry2x32 is a pair"),
        (lambda x: cleave.threefry2x32((2**32, 0), (x.int(), x.int())), "words have 32 bits"),
        (lambda x: cleave.threefry2x32((1.5, 0), (x.int(), x.int())), "a key word .* is 1.5"),
        (lambda x: cleave.threefry2x32((1, 2), (x, x)), "a counter word .* a tensor of torch.float32"),
        (lambda x: cleave.threefry2x32((1, 2), (3, 4)), "a counter word .* is 3"),
        (lambda x: cleave.uniform(x), "bits of uniform is a tensor of torch.float32"),
        (lambda x: cleave.uniform(x.int(), "a", "b"), "the bounds of uniform are numbers"),
        (lambda x: cleave.uniform(x.int(), 1.5, 1.0), "has no numbers to draw"),
    ],
)
def test_arguments_that_cannot_be_are_refused(call: Any, what: str) -> None:
    for run in (call, cleave.jit(call)):
        with pytest.raises(Invalid, match=what) as caught:
            run(torch.ones(4))
        assert "test_scan.py:" in caught.value.where


def test_what_a_body_hands_out_keeps_its_shape() -> None:
    sizes = iter((3, 4, 5))
    with pytest.raises(Invalid, match=r"hands out .*3.* at its first step and .*4.* at a later one"):
        cleave.scan(lambda c, x: (c, torch.ones(next(sizes))), torch.ones(2), torch.ones(3))


def word(value: int) -> torch.Tensor:
    return torch.tensor([value - 2**32 if value >= 2**31 else value], dtype=torch.int32)


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers(key: Any, counter: Any, expected: Any) -> None:
    """The answers published with the generator (Random123, kat_vectors)."""
    found = cleave.threefry2x32(key, (word(counter[0]), word(counter[1])))
    assert [int(w) % 2**32 for w in found] == list(expected)


def test_numbers_made_in_a_loop_have_the_bits_of_numbers_read() -> None:
    def drawn(x: Any) -> Any:
        index = torch.arange(x.shape[0], dtype=torch.int32)

        def step(s: Any, i: Any) -> Any:
            a, b = cleave.threefry2x32((0, 42), (index, torch.zeros_like(index) + i))
            u = cleave.uniform(a, -0.05, 0.05)
            return s + u, (a, b, u)

        return cleave.scan(step, x, torch.arange(5, dtype=torch.int32))

    fast = cleave.jit(drawn)
    x = torch.zeros(50)
    last, words = fast(x)
    expected, plain = drawn(x)
    assert torch.equal(last, expected) and all(map(torch.equal, words, plain))
    assert not fast.fallbacks
