"""Values at the edges, through the whole CPU path: NaN, infinities, huge and tiny numbers, cancellations,
dtypes and how they meet. Each function is compiled once per dtype and called at many sizes."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import cleave
from hostile_judge import HALF, INF, NAN, all_compiled, close, judged, randn

EDGES = [
    NAN,
    INF,
    -INF,
    0.0,
    -0.0,
    1.0,
    -1.0,
    1e30,
    -1e30,
    100.0,
    -100.0,
    1e-40,
    0.5,
    -2.5,
    88.0,
    -104.0,
    1e-5,
]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def pairs(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    edges = torch.tensor(EDGES).to(dtype)
    return edges[:, None].expand(len(EDGES), -1), edges[None].expand(len(EDGES), -1)


def one_by_one(found: list[torch.Tensor], eager: list[torch.Tensor], names: list[str], ulps: int = 8) -> None:
    """Each value by itself: eager's NaN and infinities, and within a few ulp of eager."""
    for a, b, name in zip(found, eager, names, strict=True):
        assert a.dtype == b.dtype, name
        limit = b.double().abs() * (ulps * torch.finfo(b.dtype).eps if b.is_floating_point() else 0)
        fine = (a == b) | (a.isnan() & b.isnan()) | ((a.double() - b.double()).abs() <= limit)
        assert fine.all(), (name, a[~fine].tolist()[:4], b[~fine].tolist()[:4])


# ---------------------------------------------------------------- softmax and sums of exponentials


def few(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(x.shape[0])[:, None] < 3, x, -INF)


def late(x: torch.Tensor) -> torch.Tensor:
    i, j = torch.arange(x.shape[0]), torch.arange(x.shape[1])
    return x.masked_fill(j > i[:, None] - 100, -INF)


def kept(x: torch.Tensor) -> torch.Tensor:
    return torch.where(torch.arange(x.shape[0])[:, None] < 3, x.abs(), 0.0)


MASKED_ROWS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda x: torch.softmax(few(x), -1).sum(0),
    lambda x: torch.softmax(few(x), -1).sum(),
    lambda x: x.t() @ torch.softmax(few(x), -1),
    lambda x: torch.log_softmax(few(x), -1).amax(0),
    lambda x: torch.softmax(late(x), -1).sum(0),
    lambda x: x.t() @ torch.softmax(late(x), -1),
    lambda x: (torch.softmax(few(x.t()), -1) * x.t()).sum(-2),
    lambda x: (kept(x) / kept(x).sum(-1, keepdim=True)).sum(0),
    lambda x: (kept(x) * (1 / kept(x))).sum(0),
    lambda x: torch.softmax(few(x), -1),
]


@pytest.mark.parametrize("number", range(len(MASKED_ROWS)))
def test_rows_that_are_masked_as_a_whole_are_nan_in_sums_over_rows(number: int):
    """What a mask makes nothing of is not nothing where the same mask makes its row's maximum -inf too."""
    function = MASKED_ROWS[number]
    fast = cleave.jit(function)
    for rows, columns in ((5, 4), (3, 7), (300, 70), (2, 300), (130, 260)):
        x = randn(rows, columns)
        found, eager = fast(x), function(x)
        assert torch.equal(found.isnan(), eager.isnan()), (rows, columns)
        right = torch.nan_to_num(eager, nan=0.0, neginf=-1e3)
        assert torch.allclose(torch.nan_to_num(found, nan=0.0, neginf=-1e3), right, atol=1e-5, rtol=1e-4)


def test_sums_over_masked_rows_without_such_a_row_are_still_skipped():
    """The support of a sum over rows stays where nothing else hangs on the mask: inputs are finite."""
    x, lse = randn(200, 60), randn(200)
    function = lambda x, lse, v: torch.exp(few(x) - lse[:, None]).t() @ v  # noqa: E731
    fast = cleave.jit(function)
    assert torch.allclose(fast(x, lse, x), function(x, lse, x), atol=1e-4, rtol=1e-4)


def test_huge_scores_in_half_precision():
    f = cleave.jit(lambda x: (x.softmax(-1), x.log_softmax(-1), x.float().logsumexp(-1)))
    for n in (1, 17, 127, 129, 4097):
        x = (1e4 * randn(3, n)).half()
        judged(f, x)
        x[1], x[2] = 1e4, -1e4
        judged(f, x, nan=True)
    all_compiled(f)


@pytest.mark.parametrize("way", ["softmax", pytest.param("sum", marks=pytest.mark.slow), "both"])
def test_infinite_scores(way):
    def fn(x):
        one = (x.softmax(-1), x.log_softmax(-1)) if way != "sum" else ()
        return (*one, x.logsumexp(-1)) if way != "softmax" else one

    f = cleave.jit(fn)
    for n in (3, 129):
        x = randn(5, n)
        x[0, 0], x[1, 1], x[2], x[3, 0] = INF, NAN, -INF, -INF
        judged(f, x, nan=True)
    all_compiled(f)


@pytest.mark.parametrize("dim", [2, *(pytest.param(d, marks=pytest.mark.slow) for d in (0, 1))])
def test_softmax_over_any_axis(dim):  # U64
    f = cleave.jit(lambda x: (x.softmax(dim), x.log_softmax(dim), x.logsumexp(dim)))
    for shape in ((33, 5, 129), (1, 1, 1), (4, 129, 1), (1, 2, 4097)):
        judged(f, randn(shape), length=max(64, shape[dim]))
    all_compiled(f)


@pytest.mark.slow
def test_softmax_over_two_axes():  # U64
    def both(x):
        e = (x - x.amax((0, 2), True)).exp()
        return e / e.sum((0, 2), True)

    f = cleave.jit(both)
    for shape in ((33, 5, 129), (1, 1, 1), (4, 129, 1)):
        judged(f, randn(shape), length=shape[0] * shape[2])
    all_compiled(f)


def test_cross_entropy():
    f = cleave.jit(lambda x, t: F.cross_entropy(x, t))
    for n, c in ((5, 7), (1, 1), (129, 4097), (17, 129)):
        t = torch.randint(0, c, (n,))
        judged(f, randn(n, c), t)
        t[0] = -100
        judged(f, 1e4 * randn(n, c), t, nan=True)
    all_compiled(f)


# ---------------------------------------------------------------- norms


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_layer_norm_of_a_small_spread_around_a_large_mean(dtype):  # U61
    """The spread is a few ulp of the mean, so a rounding of the mean counts: 3e-3, not the usual rule."""
    f = cleave.jit(lambda x: F.layer_norm(x, x.shape[-1:]))
    for n in (16, 256, 4097, 17, 129):
        for x in (1e4 + randn(3, n), 1449.3 + 0.5 * randn(3, n)):
            x = x.to(dtype)
            ref = f.fn(x.double())
            assert (f(x) - ref).norm() <= (3e-3 if dtype == torch.float32 else 1e-2) * ref.norm()
        assert f(torch.full((3, n), 7.3).to(dtype)).abs().max() <= 0.05  # eager's mean is exact here
        for x in (randn(3, n), randn(3, n) * 1e18, randn(3, n) * 1e-20, torch.zeros(3, n)):
            judged(f, x.to(dtype), nan=True)
    judged(f, randn(3, 1).to(dtype))
    all_compiled(f)


@pytest.mark.slow
def test_variance_of_constants():  # U61
    f = cleave.jit(lambda x: (x.var(-1), x.std(-1, correction=0), F.group_norm(x[:, None], 1)))
    for n in (2, 16, 257, 4097):
        for x in (torch.full((3, n), 0.5), torch.zeros(3, n), randn(3, n), 1e15 * randn(3, n)):
            judged(f, x, nan=True)
    all_compiled(f)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rms_norm_of_huge_and_tiny_values(dtype):  # U62
    f = cleave.jit(lambda x, w, eps: F.rms_norm(x, x.shape[-1:], w, eps))
    for n in (16, 17, 4097):
        w = randn(n).to(dtype)
        for scale in (300, 0, 1e-20) if dtype == torch.float16 else (300, 0, 1e-20, 1e18, 1e30):
            for eps in (1e-6, 1e-12):
                out = judged(f, (scale * randn(3, n)).to(dtype), w, eps, nan=True)
                assert out.isfinite().all() or scale == 1e30
    all_compiled(f)


def test_norm_behind_a_product():  # U62 U80: the scale must not move to where it overflows
    f = cleave.jit(lambda x, w: F.linear(F.rms_norm(x, x.shape[-1:]), w))
    for n in (16, 17, 129):
        w = randn(5, n)
        for scale in (300, 0, 1e-20, 1e18, 1e20, 1e30):
            judged(f, scale * randn(3, n), w)
        for scale in (300, 3e4, 0):
            judged(f, (scale * randn(3, n)).half(), w.half())
    all_compiled(f, 4)


@pytest.mark.slow
def test_four_spellings_of_one_norm_and_product():  # U80
    def library(x, r, g, w):
        y = x + r
        return F.rms_norm(y, y.shape[-1:], 1 + g, 1e-6) @ w, y

    def squares(x, r, g, w):
        y = x + r
        return (y * torch.rsqrt(y.pow(2).mean(-1, True) + 1e-6) * (1 + g)) @ w, y

    def quotient(x, r, g, w):
        y = x + r
        return (y / torch.sqrt((y * y).mean(-1, keepdim=True) + 1e-6) * (1 + g)) @ w, y

    def cast(x, r, g, w):
        y = x + r
        return (y * torch.rsqrt(y.float().square().mean(-1, True) + 1e-6).to(y.dtype) * (1 + g)) @ w, y

    kernels = []
    for fn in (library, squares, quotient, cast):
        f = cleave.jit(fn)
        for n, k, m in ((5, 64, 33), (129, 17, 130), (1, 1, 1)):
            judged(f, randn(n, k), randn(n, k), randn(k), randn(k, m), length=max(k, 16))
        all_compiled(f, 2)
        compiled = [c for kind in f.kinds.values() for v in kind.variants for c in v.callables]
        kernels.append([len(tiles.kernels) for c in compiled for tiles in c.launchers])
    assert all(counts == kernels[0] for counts in kernels)


# ---------------------------------------------------------------- pointwise

IDENTITIES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "log(exp x)": lambda x, y: x.exp().log(),
    "exp x * exp -x": lambda x, y: x.exp() * (-x).exp(),
    "exp x * exp y": lambda x, y: x.exp() * y.exp(),
    "exp x / exp y": lambda x, y: x.exp() / y.exp(),
    "x - x": lambda x, y: x - x,
    "x * 0": lambda x, y: x * 0,
    "x / x": lambda x, y: x / x,
    "sqrt x²": lambda x, y: (x * x).sqrt(),
    "(x²)^½": lambda x, y: (x**2) ** 0.5,
    "x + y - y": lambda x, y: (x + y) - y,
    "x * y / y": lambda x, y: x * y / y,
    "exp(log x)": lambda x, y: x.log().exp(),
    "2x - x - x": lambda x, y: x * 2 - x - x,
    "x / (1 / y)": lambda x, y: x / (1 / y),
    "1 / (1 / x)": lambda x, y: 1 / (1 / x),
    "yx - yx": lambda x, y: y * x - y * x,
}


def test_identities_of_the_reals_at_the_edges():  # U70 U71
    f = cleave.jit(lambda x, y: [fn(x, y) for fn in IDENTITIES.values()])
    x, y = pairs()
    found, eager = f(x, y), f.fn(x, y)
    # A product that overflows in float32 only: what float64 says is right too.
    exact = [r.to(a.dtype) for r, a in zip(f.fn(x.double(), y.double()), eager, strict=True)]
    eager = [torch.where(a == r, r, b) for a, r, b in zip(found, exact, eager, strict=True)]
    one_by_one(found, eager, list(IDENTITIES))
    all_compiled(f)


@pytest.mark.slow
@pytest.mark.parametrize("name", IDENTITIES)
def test_each_identity_alone(name):  # U70
    f = cleave.jit(IDENTITIES[name])
    x, y = pairs()
    one_by_one([f(x, y)], [f.fn(x, y)], [name])


def test_exact_cancellation():  # U71: no fused multiply-add across a subtraction
    f = cleave.jit(lambda a, x: (a * x - a * x, a * x - (a * x).amax(-1, True)))
    for x in (torch.tensor([1e20, 1e20, 3e19]), torch.full((17,), 133120 * 0.125), 1e20 * randn(129)):
        zero, shifted = judged(f, torch.tensor(0.3), x)
        assert (zero == 0).all() and shifted.max() == 0
    all_compiled(f)


UNARY = [
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "erf",
    "floor",
    "ceil",
    "round",
    "trunc",
    "neg",
    "square",
    "abs",
    "sign",
    "relu",
    "isnan",
    "isinf",
    "isfinite",
    "logical_not",
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_at_the_edges(dtype):
    f = cleave.jit(lambda x: [getattr(torch, name)(x) for name in UNARY])
    x = torch.tensor(EDGES).to(dtype)
    one_by_one(f(x), f.fn(x), UNARY)
    all_compiled(f)


def test_functions_of_two_at_the_edges():  # U25
    names = ["+", "-", "*", "/", "max", "min", "clamp", "<", "==", "!=", "where", "lerp"]
    f = cleave.jit(
        lambda x, y: [
            x + y, x - y, x * y, x / y, torch.maximum(x, y), torch.minimum(x, y), x.clamp(-1, 1),
            x < y, x == y, x != y, torch.where(x > y, x, y), torch.lerp(x, y, 0.5),
        ]
    )  # fmt: skip
    x, y = pairs()
    one_by_one(f(x, y), f.fn(x, y), names)
    all_compiled(f)


def test_floor_division_at_the_edges():
    f = cleave.jit(lambda x, y: [x // y, x % y])
    x, y = pairs(torch.float64)
    edges = torch.tensor([1, -1, 3, -3, 2, 7, -7, 100, 127, -128])
    for a, b in ((x, y), *((edges[:, None].to(d), edges[None].to(d)) for d in (torch.int8, torch.uint8))):
        one_by_one(f(a, b), f.fn(a, b), ["//", "%"])


def test_extrema_with_nan_and_ties():  # U25: `argmax` runs in PyTorch, the rest is compiled
    f = cleave.jit(lambda x: (x.amax(-1), x.argmax(-1), x.amin(-1), x.argmin(-1)))
    judged(f, torch.tensor([[1, NAN, 3], [NAN, NAN, 1], [2, 3, NAN]]), nan=True)
    judged(f, torch.tensor([[1, 3.0, 3], [1, 1, 1], [-INF, -INF, -INF]]), nan=True)
    for n in (1, 17, 127, 129, 4097):
        x = torch.randint(0, 4, (3, n)).float()
        judged(f, x, nan=True)
        x[1, n // 2] = NAN
        judged(f, x, nan=True)
    assert {fallback.op for fallback in f.fallbacks} == {"argmax", "argmin"}


# ---------------------------------------------------------------- dtypes


def mixed(x, y):
    return [x + y, x * y, x / y, torch.where(x > 0, x, y), torch.maximum(x, y), x == y]


DTYPES = [
    torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
]  # fmt: skip
SOME = [(torch.int64, torch.float16), (torch.bool, torch.int32), (torch.bfloat16, torch.float64)]
ALL = [pair for pair in itertools.product(DTYPES, DTYPES) if pair not in SOME]


@pytest.mark.parametrize("pair", [*SOME, *(pytest.param(p, marks=pytest.mark.slow) for p in ALL)])
def test_dtypes_meet_as_in_pytorch(pair):  # U43
    f = cleave.jit(mixed)
    x = torch.tensor([0, 1, 2, 3]).to(pair[0])
    for y in (torch.tensor([1, 1, 2, 5]).to(pair[1]), torch.tensor(2).to(pair[1])):
        one_by_one(f(x, y), mixed(x, y), [str(n) for n in range(6)], ulps=1)
    assert not f.fallbacks


@pytest.mark.parametrize("dtype", HALF)
def test_python_numbers_keep_the_tensors_dtype(dtype):  # U43
    f = cleave.jit(lambda x, s: [x * s, x + s, x / s, x == s])
    x = randn(17).to(dtype)
    for s in (2.5, -0.1, 1e-8):
        for mine, theirs in zip(f(x, s), f.fn(x, s), strict=True):
            close(mine, theirs, theirs.double(), length=1, nan=True, where=str(s))
    all_compiled(f)


@pytest.mark.slow
def test_float64_stays_float64():
    f = cleave.jit(lambda q, k, v: (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v)
    for n in (5, 17, 129):
        qkv = [randn(2, n, 16).double() for _ in range(3)]
        assert (f(*qkv) - f.fn(*qkv)).abs().max() <= 1e-13
    all_compiled(f)


# ---------------------------------------------------------------- nothing to reduce


def test_reductions_of_nothing():  # U13
    f = cleave.jit(lambda x: (x.sum(-1), x.mean(-1), x.logsumexp(-1), x.var(-1), x.prod(-1)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # degrees of freedom
        for shape in ((2, 5), (3, 0), (0, 3), (0, 0)):
            judged(f, randn(shape), nan=True)
    all_compiled(f)


LEAVING: dict[str, tuple[Callable[..., torch.Tensor], tuple[float, ...]]] = {
    "relu of a value times an infinite factor": (
        lambda x, g: (x * g.exp()[:, None]).relu().sum(-1),
        (-3.0, 100.0),
    ),
    "clamp to 0 from above": (lambda x, g: (x * g.exp()[:, None]).clamp(max=0).sum(-1), (3.0, 100.0)),
    "a logarithm that takes an exponent down": (
        lambda x, g: (x + g.exp().log()[:, None]).exp().sum(-1),
        (100.0, -60.0),
    ),
}


@pytest.mark.parametrize("name", LEAVING)
def test_no_factor_leaves_that_may_be_infinite(name):
    fn, (x, g) = LEAVING[name]
    f = cleave.jit(fn)
    for columns in (64, 8):
        args = torch.full((5, columns), x), torch.full((5,), g)
        one_by_one([f(*args)], [fn(*args)], [name], ulps=columns)
    all_compiled(f)
