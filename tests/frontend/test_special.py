"""Functions and losses that are compositions of others: their forms against eager, and their kernels against
float64 where a careless form would lose everything."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from doubles import check

import cleave

randn = torch.randn
INF, NAN = float("inf"), float("nan")

POINTWISE = {
    "log1p": lambda x: x.abs().log1p(),
    "expm1": torch.expm1,
    "special": lambda x: torch.special.expm1(x) + torch.special.log1p(x * x) + torch.special.exp2(x),
    "log1p_": lambda x: (x * x).log1p_(),
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "tan": torch.tan,
    "rad2deg": lambda x: torch.rad2deg(x) - torch.deg2rad(x),
    "logit": lambda x: torch.logit(x.sigmoid()),
    "logit_eps": lambda x: torch.logit(x, 0.125),
    "xlogy": lambda x: torch.xlogy(x.floor(), x.abs()),
    "xlogy_number": lambda x: torch.xlogy(x, 3) + torch.special.xlogy(2, x.abs()),
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "fix": lambda x: (x.fix(), x.frac()),
    "fmod": lambda x: torch.fmod(x, 0.75) + torch.fmod(x, -2),
    "fmax": lambda x: torch.fmax(x, x.log()) - torch.fmin(x.log(), x),
    "isposinf": lambda x: (torch.isposinf(x / 0), torch.isneginf(x / 0)),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "softsign": F.softsign,
    "tanhshrink": F.tanhshrink,
    "softshrink": lambda x: F.softshrink(x, 0.3),
    "hardshrink": F.hardshrink,
    "threshold": lambda x: F.threshold(x, 0.2, -7.0),
}
REDUCTIONS = {
    "nansum": lambda x: (x.log().nansum(-1), torch.nansum(x.log())),
    "nanmean": lambda x: (x.log().nanmean(-1, keepdim=True), torch.nanmean(x.log())),
    "std_mean": lambda x: torch.std_mean(x, (0, 2), correction=0),
    "pairwise_distance": lambda x: (F.pairwise_distance(x, x.exp()), F.pairwise_distance(x, x.exp(), p=1.0)),
    "vecdot": lambda x: torch.linalg.vecdot(x, x.exp()),
    "linalg.matmul": lambda x: torch.linalg.matmul(x, x.mT),
    "fliplr": lambda x: x.fliplr() - x.flipud(),
}
LOSSES = [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.binary_cross_entropy_with_logits]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name, dtype):
    check(POINTWISE[name], (randn(4, 4) * 2).to(dtype))


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    check(REDUCTIONS[name], randn(3, 5, 4))


@pytest.mark.filterwarnings("ignore:var")
def test_corners():
    odd = torch.tensor([-INF, INF, NAN, 0.0, -0.0, -1.0, 1.0, 30.0, -30.0])
    for name in POINTWISE:
        if name != "logit":  # in float64 less of it is infinite
            check(POINTWISE[name], odd)
    check(torch.logit, torch.tensor([0.0, 1.0, 0.25, -1.0, 2.0, NAN, INF]))
    check(lambda x: torch.hypot(x, 2 * x), odd)
    whole = torch.tensor([-7, 7, -7, 7]), torch.tensor([3, 3, -3, -3])
    check(lambda x, y: torch.fmod(x, y), *whole, fallbacks=("fmod",))
    check(lambda x: (x.log1p(), x.expm1(), F.softsign(x)), torch.arange(4))


def test_slopes_by_channel():
    for shape in ((5, 3), (5, 3, 2), (5, 3, 2, 4)):
        check(lambda x, w: F.prelu(x, w), randn(shape), randn(3))
        check(lambda x, w: F.prelu(x, w), randn(shape), randn(1))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", LOSSES)
def test_losses(loss, reduction):
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        x, y = randn(5, 7).to(dtype), torch.rand(5, 7).to(dtype)
        check(lambda x, y: loss(x, y, reduction=reduction), x, y)
    p, y = torch.rand(5, 7), torch.rand(5, 7)
    check(lambda p, y: F.binary_cross_entropy(p, y, reduction=reduction), p, y)


@pytest.mark.filterwarnings("ignore:size_average")
def test_options_of_losses():
    x, y, weight = randn(5, 7) * 3, torch.rand(5, 7), torch.rand(7)
    check(lambda x, y: (F.huber_loss(x, y, delta=0.3), F.smooth_l1_loss(x, y, beta=0.3)), x, y)
    check(lambda x, y, d: F.huber_loss(x, y, delta=d), x, y, 0.3)
    check(lambda x, y: F.smooth_l1_loss(x, y, beta=0.0), x, y)
    check(lambda x, y, w: F.binary_cross_entropy(x.sigmoid(), y, w), x, y, weight)
    check(lambda x, y, w: F.binary_cross_entropy_with_logits(x, y, w, pos_weight=w + 1), x, y, weight)
    sure = torch.tensor([0.0, 1.0, 1.0])
    check(lambda x, y: F.binary_cross_entropy(x, y), sure, sure.flip(0))
    check(lambda x, y: F.mse_loss(x, y, reduce=False), x, y, fallbacks=["mse_loss"])


@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none", "batchmean"])
def test_divergence(reduction):
    x, y = randn(5, 7), torch.rand(5, 7) * 2
    check(lambda x, y: F.kl_div(x.log_softmax(-1), y.floor(), reduction=reduction), x, y)
    check(lambda x, y: F.kl_div(x, y, reduction=reduction, log_target=True), x, y)


def off_by(actual, expected):
    """The largest relative error, in units of the last place of one."""
    error = (actual.double() - expected).abs() / expected.abs().clamp_min(1e-300)
    return error.max().item() / torch.finfo(actual.dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_kernels_lose_nothing_near_zero(dtype):
    small = torch.logspace(-30, -1e-6, 4000, dtype=torch.float64)
    x = torch.cat([small, -small * 0.999]).to(dtype)

    def f(x):
        return x.log1p(), x.expm1(), x.sinh(), F.selu(x), F.celu(x, 2.0), x.tan()

    fast = cleave.jit(f)
    for actual, expected in zip(fast(x), f(x.double()), strict=True):
        assert off_by(actual, expected) < 4
    assert fast.compile_count == 1 and not fast.fallbacks


def test_kernels_lose_nothing_far_from_zero():
    x = torch.cat([torch.linspace(-87, 87, 4001), torch.tensor([0.0])])
    y = torch.cat([torch.logspace(-20, 38, 4001), torch.tensor([0.0])])

    def f(x, y):
        logits = F.binary_cross_entropy_with_logits(x.abs(), x * 0 + 1, reduction="none")
        return y.log1p(), x.expm1(), x.sinh(), x.cosh(), torch.hypot(y, y.flip(0)), logits

    fast = cleave.jit(f)
    for actual, expected in zip(fast(x, y), f(x.double(), y.double()), strict=True):
        assert off_by(actual, expected) < 6
    assert fast.compile_count == 1 and not fast.fallbacks


def test_kernels_of_losses():
    x, y = randn(64, 300), torch.rand(64, 300)

    def f(x, y):
        return [loss(x, y) for loss in LOSSES]

    fast = cleave.jit(f)
    for actual, expected in zip(fast(x, y), f(x.double(), y.double()), strict=True):
        assert off_by(actual, expected) < 50
    assert fast.compile_count == 1 and not fast.fallbacks


@pytest.mark.parametrize("order", [None, "fro", 2, 1, math.inf, -1])
def test_norms_of_matrices_are_no_norms_of_vectors(order: float | str | None) -> None:
    x = torch.randn(4, 5)
    for arguments in ({}, {"dim": (0, 1)}, {"dim": 1}):
        if order == "fro" and arguments.get("dim") == 1:
            continue
        fast = cleave.jit(lambda x, a=arguments: torch.linalg.norm(x, order, **a))
        assert torch.allclose(fast(x), torch.linalg.norm(x, order, **arguments), atol=1e-5), arguments


@pytest.mark.parametrize("function", [torch.fmod, torch.hypot, torch.logaddexp])
def test_integers_that_have_no_such_form_run_in_pytorch(function: Callable[..., torch.Tensor]) -> None:
    a, b = torch.tensor([-128, 7, 5], dtype=torch.int8), torch.tensor([3, -2, 4], dtype=torch.int8)
    fast = cleave.jit(lambda a, b: function(a, b) + 1)
    try:
        expected = function(a, b) + 1
    except RuntimeError:
        with pytest.raises(RuntimeError):
            fast(a, b)
        return
    assert torch.equal(fast(a, b), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_are_rounded_before_they_are_compared_with_half_precision(dtype: torch.dtype) -> None:
    x = torch.tensor([0.1, 0.2, -0.1, 0.0, 65504.0, 257.0]).to(dtype)
    for compare in (torch.le, torch.lt, torch.eq, torch.ne, torch.ge, torch.gt):
        for bound in (0.1, 0.2, 257, 1e6, float("inf")):
            fast = cleave.jit(lambda x, c=compare, b=bound: (c(x, b), torch.where(c(x, b), x, 0)))
            for found, eager in zip(fast(x), fast.fn(x), strict=True):
                assert torch.equal(found, eager), (compare, bound)
    fast = cleave.jit(lambda x: F.hardshrink(x, 0.1))
    assert torch.equal(fast(x), F.hardshrink(x, 0.1))
