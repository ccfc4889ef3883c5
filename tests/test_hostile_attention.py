"""Attention as users write it, through the whole CPU path: masks, lengths, head counts, scales, extremes.

Each function is compiled once and called at many sizes; `slow` marks variations of what a faster test covers.
"""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import cleave
from hostile_judge import HALF, INF, all_compiled, judged, randn


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def places(q, k):
    return torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])


def three(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [randn(shape).to(dtype) for _ in range(3)]


def causal(q, k, v):
    i, j = places(q, k)
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(j > i, -INF).softmax(-1) @ v


# ---------------------------------------------------------------- lengths and sizes


def test_every_length_with_one_compile():  # U02 U16
    f = cleave.jit(causal)
    for n in (5, 17, 64, 65, 127, 128, 129, 500, 1, 0, 4097):
        judged(f, *three(1, 2 if n < 4000 else 1, n, 16))
    all_compiled(f)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALF)
def test_every_length_in_half_precision(dtype):
    f = cleave.jit(causal)
    for n in (129, 17, 1, 127):
        judged(f, *three(1, 2, n, 16, dtype=dtype))
    all_compiled(f)


def test_ragged_keys_with_scores_far_below_the_padding():  # U02 U13
    """A padded key of score 0 would take all the weight; no keys at all give 0, as eager's empty product."""
    f = cleave.jit(lambda q, k, v: (q @ k.mT * 0.125).softmax(-1) @ v)
    for n in (200, 129, 100, 5, 1, 0):
        k = randn(2, 2, n, 16)
        q = -9 * k[:, :, :1].expand(2, 2, 33, 16) if n else randn(2, 2, 33, 16)
        out = judged(f, q, k, randn(2, 2, n, 16), nan=True)
        assert n or (out == 0).all()
    all_compiled(f)


def test_sizes_that_were_equal_at_first():  # U59: the default scale is of this call's size
    f = cleave.jit(lambda q, k, v: (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v)
    for shape in ((4, 4, 16, 16), (2, 4, 20, 16), (4, 2, 16, 8), (2, 1, 17, 1), (1, 1, 1, 1), (1, 1, 1, 16)):
        judged(f, *three(*shape), length=shape[2] if shape[3] > 1 else 10**4)  # one value alone can cancel
    all_compiled(f, 2)


def test_any_head_dim():  # U07 U08
    f = cleave.jit(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    for d in (40, 8, 72, 96, 192, 512, 3, 1):
        judged(f, *three(1, 2, 66, d), length=66 if d > 3 else 10**4)  # a row of so few values can cancel
    all_compiled(f, 2)


def test_grouped_heads_with_their_log_sum_exp():
    def grouped(q, k, v):
        b, h, s, d = q.shape
        q = q.view(b, k.shape[1], h // k.shape[1], s, d)
        i, j = torch.arange(s)[:, None], torch.arange(k.shape[-2])
        scores = torch.einsum("bghsd,bgtd->bghst", q, k) / math.sqrt(d)
        scores = scores.masked_fill(j > i + k.shape[-2] - s, -INF)
        lse = scores.logsumexp(-1)
        out = torch.einsum("bghst,bgtd->bghsd", (scores - lse[..., None]).exp(), v)
        return out.reshape(b, h, s, d), lse.reshape(b, h, s)

    f = cleave.jit(grouped)
    for b, h, kv, s, t in ((2, 6, 2, 17, 17), (1, 8, 8, 1, 129), (1, 3, 1, 129, 129), (2, 4, 2, 1, 1)):
        judged(f, randn(b, h, s, 16), randn(b, kv, t, 16), randn(b, kv, t, 16))
    all_compiled(f)


@pytest.mark.slow
def test_repeated_heads():
    def repeated(q, k, v):
        times = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(times, 1), v.repeat_interleave(times, 1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    f = cleave.jit(repeated)
    for b, h, kv, s, t in ((2, 6, 2, 17, 17), (1, 8, 8, 1, 129), (1, 3, 1, 129, 129), (2, 4, 2, 1, 1)):
        judged(f, randn(b, h, s, 16), randn(b, kv, t, 16), randn(b, kv, t, 16))
    assert not f.fallbacks


def test_rotary_with_past_keys():
    def rotated(x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat([-b, a], -1) * sin

    def step(q, k, v, past_k, past_v, cos, sin):
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        k, v = torch.cat([past_k, k], -2), torch.cat([past_v, v], -2)
        i, j = places(q, k)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        return scores.masked_fill(j > i + past_k.shape[-2], -INF).softmax(-1) @ v

    f = cleave.jit(step)
    for past, n in ((5, 3), (0, 4), (129, 1), (0, 1), (127, 2)):
        angles = torch.arange(past, past + n)[:, None] * 10000 ** (-torch.arange(8) / 8)
        angles = torch.cat([angles, angles], -1)
        pasts = [randn(1, 2, past, 16) for _ in range(2)]
        judged(f, *three(1, 2, n, 16), *pasts, angles.cos(), angles.sin())
    all_compiled(f)


# ---------------------------------------------------------------- masks


def masked_weights(q, k, mask):
    return (q @ k.mT * 0.3).masked_fill(~mask, -INF).softmax(-1)


def guarded_weights(q, k, mask):
    return torch.where(mask.any(-1, True), masked_weights(q, k, mask), 0)


MASKED = {
    "nan": lambda q, k, v, mask: (masked_weights(q, k, mask) @ v,),
    "zero": lambda q, k, v, mask: (guarded_weights(q, k, mask) @ v,),
    "both": lambda q, k, v, mask: (masked_weights(q, k, mask) @ v, guarded_weights(q, k, mask) @ v),
}


@pytest.mark.parametrize("way", [pytest.param("nan", marks=pytest.mark.slow), "zero", "both"])
def test_fully_masked_rows(way):  # U04: NaN or zero, as the program says
    f = cleave.jit(MASKED[way])
    for n, m in ((5, 7), (1, 1), (130, 129)):
        mask = torch.rand(2, n, m) > 0.4
        dead = min(3, n - 1)
        mask[:, dead] = False
        found = judged(f, *[randn(2, s, 8) for s in (n, m, m)], mask, nan=True)
        for out, what in zip(found, ("nan", "zero") if way == "both" else (way,), strict=True):
            row = out[:, dead]
            assert row.isnan().all() if what == "nan" else (row == 0).all()
    all_compiled(f)


@pytest.mark.slow
def test_masks_given_to_pytorchs_own_attention():  # U04 U05
    f = cleave.jit(lambda q, k, v, mask: F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
    for n, m in ((5, 7), (130, 129), (1, 1)):
        mask = torch.rand(2, n, m) > 0.4
        mask[:, min(3, n - 1)] = False
        qkv = [randn(2, s, 8) for s in (n, m, m)]
        judged(f, *qkv, mask, nan=True)
        judged(f, *qkv, torch.zeros(2, n, m).masked_fill(~mask, -INF), nan=True)
    all_compiled(f, 2)


@pytest.mark.parametrize(
    "dtype",
    [torch.bfloat16, *(pytest.param(d, marks=pytest.mark.slow) for d in (torch.float16, torch.float32))],
)
def test_a_row_of_the_lowest_number(dtype):  # U05
    f = cleave.jit(lambda q, k, v, bias: (q @ k.mT * 0.3 + bias).softmax(-1) @ v)
    for n, m in ((5, 7), (3, 129)):
        bias = torch.zeros(2, n, m, dtype=dtype)
        bias[:, 2] = torch.finfo(dtype).min
        judged(f, *[randn(2, s, 8).to(dtype) for s in (n, m, m)], bias)
    all_compiled(f)


@pytest.mark.parametrize("lower", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_both_causal_corners(lower):  # U10
    def corner(q, k, v):
        i, j = places(q, k)
        first = i + (k.shape[-2] - q.shape[-2]) if lower else i
        return (q @ k.mT).masked_fill(~(j <= first), -INF).softmax(-1) @ v

    f = cleave.jit(corner)
    for n, m in ((2, 5), (5, 2), (100, 37), (1, 64), (64, 1), (0, 3), (3, 0)):
        judged(f, *[randn(2, s, 8) for s in (n, m, m)], nan=True)
    all_compiled(f)


def test_windows_of_every_width():  # U29
    def window(q, k, v, width):
        i, j = places(q, k)
        return (q @ k.mT * 0.3).masked_fill(~((j <= i) & (i - j < width)), -INF).softmax(-1) @ v

    f = cleave.jit(window)
    qkv = three(1, 2, 200, 16)
    for width in (1, 2, 63, 64, 65, 128, 199, 200, 205, 0, -3):
        judged(f, *qkv, width, nan=True)
    assert torch.equal(f(*qkv, 200), f(*qkv, 10**9))
    all_compiled(f)


def test_softcap_before_the_mask():  # U31
    def capped(q, k, v, cap):
        i, j = places(q, k)
        scores = cap * torch.tanh(0.3 * (q @ k.mT) / cap)
        return torch.where(j <= i, scores, -INF).softmax(-1) @ v

    f = cleave.jit(capped)
    for n in (33, 129):
        for cap in (1.0, 5.0, 50.0):
            judged(f, *three(1, 2, n, 16), cap)
    all_compiled(f)


def test_a_learned_sink():  # U32
    def sunk(q, k, v, sink):
        i, j = places(q, k)
        scores = (0.3 * (q @ k.mT)).masked_fill(j > i, -INF)
        extra = sink[None, :, None, None].expand(*scores.shape[:3], 1)
        return torch.cat([scores, extra], -1).softmax(-1)[..., :-1] @ v

    f = cleave.jit(sunk)
    for n in (1, 130):
        for middle in (0, 30, -30):
            judged(f, *three(2, 3, n, 16), randn(3) * 0.1 + middle)
    all_compiled(f)


@pytest.mark.slow
def test_a_bias_of_distances():  # U01 U56
    def biased(q, k, v, slope):
        i, j = places(q, k)
        far = (i + (k.shape[-2] - q.shape[-2]) - j).abs()
        return (q @ k.mT * 0.3 - slope[:, None, None] * far).softmax(-1) @ v

    f = cleave.jit(biased)
    slopes = 2.0 ** -torch.arange(1, 13).float()
    for n, m in ((1, 100), (77, 77), (33, 100)):
        judged(f, *[randn(1, 12, s, 16) for s in (n, m, m)], slopes)
    all_compiled(f)


@pytest.mark.slow
def test_merged_parts():  # U82
    def two_parts(q, k, v, width):
        i, j = places(q, k)
        scores = q @ k.mT * 0.3

        def part(keep):
            inside = scores.masked_fill(~keep, -INF)
            lse = inside.logsumexp(-1, True)
            return torch.where(lse == -INF, 0, (inside - lse).exp()) @ v, lse

        near, near_lse = part((j <= i) & (i - j < width))
        far, far_lse = part(i - j >= width)
        lse = torch.logaddexp(near_lse, far_lse)
        return near * (near_lse - lse).exp() + far * (far_lse - lse).exp()

    f = cleave.jit(two_parts)
    for n in (300, 17):
        judged(f, *three(1, 1, n, 16), 64)
    all_compiled(f)


@pytest.mark.slow
def test_a_band_with_empty_rows():  # U82
    def band(q, k, v):
        i, j = places(q, k)
        scores = (q @ k.mT * 0.3).masked_fill(~(i - j > 200), -INF)
        return scores.softmax(-1) @ v, scores.logsumexp(-1)

    f = cleave.jit(band)
    for n in (500, 129, 202):
        judged(f, *three(1, 1, n, 16), nan=True)
    all_compiled(f)


def test_lengths_and_documents():  # U85
    def packed(q, k, v, length, doc):
        i, j = places(q, k)
        keep = (j <= i) & (j < length[:, None, None]) & (doc[:, :, None] == doc[:, None, :])
        return (q @ k.mT).masked_fill(~keep, -INF).softmax(-1) @ v

    f = cleave.jit(packed)
    for n in (33, 64, 200):
        doc = torch.randint(0, 3, (2, n)).sort(-1).values
        judged(f, *three(2, n, 8), torch.tensor([n, max(1, n // 2)]), doc, nan=True)
    all_compiled(f)


# ---------------------------------------------------------------- scales and extremes

SCALED = {
    "times": lambda q, k, v, c: (q @ k.mT * c).softmax(-1) @ v,
    "over": lambda q, k, v, c: (q @ k.mT / (1 / c)).softmax(-1) @ v,
    "before": lambda q, k, v, c: ((q * c) @ k.mT).softmax(-1) @ v,
    "given": lambda q, k, v, c: F.scaled_dot_product_attention(q, k, v, scale=c),
    "literal": lambda q, k, v, c: (q @ k.mT / 3.0).softmax(-1) @ v + c,
}


@pytest.mark.slow
@pytest.mark.parametrize("way", SCALED)
def test_the_scale_of_the_user(way):  # U67
    f = cleave.jit(SCALED[way])
    for scale in (1.0, 0.37, -0.5, 1 / 16):
        judged(f, *three(1, 2, 37, 16), scale)
    all_compiled(f)


@pytest.mark.slow
def test_keys_that_lie_transposed():  # U68
    f = cleave.jit(lambda q, k, v: (q @ k.permute(0, 2, 3, 1) * 0.3).softmax(-1) @ v)
    for b, h, t, d in ((2, 3, 21, 8), (8, 8, 8, 8)):
        judged(f, randn(b, h, 5, d), randn(b, t, h, d), randn(b, h, t, d))
    all_compiled(f)


@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float32, marks=pytest.mark.slow)])
def test_equal_huge_scores_are_uniform(dtype):  # U26 U71
    f = cleave.jit(lambda q, k, v: (q @ k.mT * 0.125).softmax(-1) @ v)
    for n in (1, 17):
        q = torch.full([1, 1, n, 64], 133120.0).to(dtype)
        assert torch.allclose(judged(f, q, q.clone(), q.clone()).float(), q.float(), rtol=1e-2)
        judged(f, q, q.clone(), randn(1, 1, n, 64).to(dtype))
    all_compiled(f)


def test_half_precision_scores_beyond_its_range():  # U28: float32 inside
    f = cleave.jit(lambda q, k, v, c: ((q * c) @ k.mT).softmax(-1) @ v)
    for n in (5, 130):
        q, k, v = 40 * randn(2, n, 128), 40 * randn(2, n, 128), randn(2, n, 128)
        q, k, v = q.half(), k.half(), v.half()
        out = judged(f, q, k, v, 128**-0.5)
        ref = f.fn(q.double(), k.double(), v.double(), 128**-0.5)
        assert out.isfinite().all() and (out - ref).norm() <= 2e-2 * ref.norm()
    all_compiled(f)
