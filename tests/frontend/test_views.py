"""Views are accesses: every one against eager, alone and composed, known and dynamic."""

from __future__ import annotations

import pytest
import torch
from doubles import check, run, same
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.frontend.capture import capture

randn = torch.randn


def rotate_half(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def rotate_half_by_size(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


@pytest.mark.parametrize("rotate", [rotate_half, rotate_half_by_size])
@pytest.mark.parametrize("static", ["parameters", "none"])
def test_rotary_embedding(rotate, static):
    def f(q, k, cos, sin):
        q = q * cos + rotate(q) * sin
        k = k * cos + rotate(k) * sin
        return q @ k.mT

    check(f, randn(2, 3, 5, 8), randn(2, 3, 5, 8), randn(5, 8), randn(5, 8), static=static)


def test_interleaved_rotary_embedding():
    def f(x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    check(f, randn(2, 3, 5, 8), randn(5, 4), randn(5, 4))


def test_slices():
    check(
        lambda x: (x[1:] - x[:-1], x[:, 0], x[:, -1], x[1:3, None, ..., 2], x[-2:], x[:100]), randn(6, 5, 4)
    )
    check(lambda x: x[::2] + x[1::2], randn(6, 5))
    check(lambda x: x[:, ::3].sum(-1), randn(6, 7), dynamic={"x": ("N", None)})
    check(lambda x: x.narrow(0, 1, 3) * x.select(1, 2)[0], randn(6, 5))


def test_a_sink_is_a_disjoint_union():
    def f(s, z, v):
        w = torch.softmax(torch.cat([s, z.expand(s.shape[0], 1)], -1), -1)[..., :-1]
        return w @ v

    captured = check(f, randn(4, 6), randn(1, 1), randn(6, 3))
    args = randn(3, 9), randn(1, 1), randn(9, 2)
    same(run(captured, *args), f(*args))


def test_past_keys_are_a_disjoint_union():
    def f(q, past, new):
        k = torch.cat([past, new], -2)
        i = torch.arange(q.shape[-2])[:, None] + past.shape[-2]
        keep = torch.arange(k.shape[-2]) <= i
        return torch.where(keep, q @ k.mT, float("-inf")).softmax(-1) @ k

    captured = check(f, randn(2, 3, 8), randn(2, 4, 8), randn(2, 3, 8))
    args = randn(1, 1, 8), randn(1, 9, 8), randn(1, 1, 8)
    same(run(captured, *args), f(*args))


def test_split_selects_parts():
    check(lambda x: torch.add(*(p.sum(-1) for p in x.split([128, 64], -1))), randn(3, 192))
    check(lambda x: x.split(2), randn(6, 3))
    check(lambda x: x.split(4), randn(6, 3))
    check(lambda x: x.unbind(1), randn(6, 3))


@pytest.mark.parametrize("n", [2, 3])
def test_key_is_stored_transposed(n):  # U68
    def f(q, k):
        return ((q @ k.permute(0, 2, 3, 1)) * 0.3).softmax(-1)

    sizes = {2: (2, 3, 5, 4), 3: (3, 3, 3, 4)}[n]
    b, h, t, d = sizes
    check(f, randn(b, h, 5, d), randn(b, t, h, d))


def test_packed_heads():
    def f(x, w):
        q, k, v = (x @ w).reshape(x.shape[0], x.shape[1], 3, 4, -1).permute(2, 0, 3, 1, 4)
        return q @ k.mT @ v

    def g(x, w):
        q, k, v = (x @ w).chunk(3, -1)
        return q @ k.mT + v.sum(-1, keepdim=True)

    check(f, randn(2, 5, 16) / 4, randn(16, 48) / 4)
    check(g, randn(2, 5, 16) / 4, randn(16, 48) / 4)


def test_flips_diagonals_rolls_repeats():
    check(lambda x: x.flip(0) + x.flip((0, 1)), randn(4, 5))
    check(lambda x: x.diagonal(dim1=-2, dim2=-1).sum(-1), randn(3, 4, 4))
    check(lambda x: x.roll(1, 0) * 2, randn(4, 5))
    check(lambda x: x.roll(1, 0) - x, randn(4, 5), fallbacks=("roll",))
    check(lambda x: x.repeat(2, 1, 3) * 2, randn(4, 5))
    check(lambda x: x.repeat_interleave(3, 1), randn(4, 5))


def test_size_one_axes():  # U74
    check(lambda x, y: x + y, randn(3, 1), randn(1, 4))
    check(lambda x: x.squeeze(1).unsqueeze(0), randn(3, 1, 4))
    check(lambda x: x.squeeze(), randn(1, 3, 1))
    check(lambda x: x.expand(4, -1, 3), randn(1, 2, 1))


def test_rank_zero():  # U14
    scalar = torch.tensor(3.14)
    check(lambda x: (x.softmax(0), x.sum(), x.amax(-1), x.rsqrt(), x.reshape(1), x.flatten()), scalar)
    check(lambda x, y: x * y, randn(3), scalar)


@given(
    st.permutations([0, 1, 2]),
    st.lists(st.sampled_from(["merge", "split", "slice", "turn", "cat", "flip"]), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=25)
def test_chains_of_views(order, steps):
    def f(x):
        x = x.permute(order)
        for step in steps:
            if step == "merge":
                x = x.flatten(0, 1) if x.dim() > 1 else x
            elif step == "split":
                x = x.unsqueeze(1) if x.shape[0] % 2 else x.reshape(2, x.shape[0] // 2, *x.shape[1:])
            elif step == "slice":
                x = x[..., 1:] * 2 if x.shape[-1] > 1 else x
            elif step == "turn":
                x = x.transpose(0, -1)
            elif step == "cat":
                x = torch.cat([x, -x], -1)
            else:
                x = x.flip(-1)
        return x * 3

    x = randn(2, 6, 4)
    captured = capture(f, (x,))
    if captured.whole is not None:  # the chain asks for a size behind a view that PyTorch had to make
        assert "a size that PyTorch computes" in captured.whole.reason
        return
    same(run(captured, x), f(x))
