"""Every lowered function against eager: values, dtypes, and the corner cases that docs/semantics.md lists."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from doubles import check

from cleave.frontend.capture import capture

randn = torch.randn
INF, NAN = float("inf"), float("nan")

POINTWISE = {
    "add": lambda x: x + 1,
    "radd": lambda x: 2 + x,
    "sub": lambda x: x - 0.5,
    "rsub": lambda x: 3 - x,
    "mul": lambda x: x * 2.5,
    "div": lambda x: x / 3,
    "rdiv": lambda x: 1 / x,
    "neg": lambda x: -x,
    "abs": abs,
    "pow2": lambda x: x**2,
    "pow3": lambda x: x**3,
    "powhalf": lambda x: x.abs() ** 0.5,
    "pow": lambda x: x.abs() ** 1.7,
    "rpow": lambda x: 2**x,
    "floordiv": lambda x: x // 2,
    "mod": lambda x: x % 2,
    "exp": torch.exp,
    "exp2": torch.exp2,
    "log": lambda x: x.abs().log(),
    "log2": lambda x: x.abs().log2(),
    "sqrt": lambda x: x.abs().sqrt(),
    "rsqrt": lambda x: x.abs().rsqrt(),
    "reciprocal": torch.reciprocal,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "round": torch.round,
    "trunc": torch.trunc,
    "sign": torch.sign,
    "square": torch.square,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "relu6": F.relu6,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "mish": F.mish,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": F.hardtanh,
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "glu": F.glu,
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "where as a method": lambda x: x.exp().where(x > 0, -1.5),
    "where as a method, by name": lambda x: (x > 1).where(other=x, condition=x < 0),
    "masked_fill": lambda x: x.masked_fill(x < 0, 7),
    "maximum": lambda x: torch.maximum(x, x * 2),
    "minimum": lambda x: torch.minimum(x, x * 2),
    "compare": lambda x: ((x > 0) & (x <= 1)) | ~(x != 2),
    "isnan": torch.isnan,
    "isfinite": torch.isfinite,
    "nan_to_num": torch.nan_to_num,
    "lerp": lambda x: torch.lerp(x, x * 2, 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.5),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "to": lambda x: x.to(torch.float64),
    "long": lambda x: x.long(),
    "bool": lambda x: x.bool(),
}

REDUCTIONS = {
    "sum": lambda x: x.sum(-1),
    "sum_all": torch.sum,
    "sum_dims": lambda x: x.sum((0, 2), keepdim=True),
    "mean": lambda x: x.mean(1),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin((0, 1)),
    "max": lambda x: x.max(),
    "max_values": lambda x: x.max(0, keepdim=True).values,
    "min": lambda x: x.min(-1)[0],
    "prod": lambda x: x.prod(-1),
    "any": lambda x: (x > 1).any(-1),
    "all": lambda x: (x > -9).all(),
    "var": lambda x: x.var(-1),
    "var0": lambda x: x.var(-1, unbiased=False),
    "std": lambda x: x.std((0, 2)),
    "var_correction": lambda x: x.var(-1, correction=0, keepdim=True),
    "var_mean": lambda x: torch.var_mean(x, -1),
    "softmax": lambda x: x.softmax(1),
    "softmin": lambda x: F.softmin(x, -1),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(-1),
    "logsumexp_dims": lambda x: x.logsumexp((0, 1), keepdim=True),
    "norm": lambda x: x.norm(dim=-1),
    "norm1": lambda x: x.norm(p=1, dim=0),
    "norm_inf": lambda x: x.norm(p=INF, dim=0),
    "norm3": lambda x: x.norm(p=3, dim=0),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "count_nonzero": lambda x: (x > 0).count_nonzero(dim=0),
    "cosine": lambda x: F.cosine_similarity(x, x * 2 + 1, -1),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_pointwise(name):
    check(POINTWISE[name], randn(3, 4) * 2)


@pytest.mark.parametrize(
    "name", ["silu", "gelu", "softplus", "sigmoid", "exp", "mul", "div", "floor", "clamp", "glu"]
)
def test_pointwise_of_half_precision(name):
    check(POINTWISE[name], randn(3, 4).bfloat16())


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions(name):
    check(REDUCTIONS[name], randn(3, 5, 4))


@pytest.mark.parametrize("name", ["sum", "mean", "softmax", "var", "logsumexp", "norm", "amax", "normalize"])
def test_reductions_of_half_precision(name):
    check(REDUCTIONS[name], randn(3, 5, 4).half())


def test_products():
    a, b = randn(2, 3, 5), randn(2, 5, 4)
    check(
        lambda a, b: (a @ b, torch.bmm(a, b), torch.mm(a[0], b[0]), a[0] @ b, a @ b[0, :, 0], a[0, 0] @ b),
        a,
        b,
    )
    check(lambda a, b: torch.einsum("bij,bjk->bik", a, b), a, b)
    check(lambda a: torch.einsum("bij,bij->b", a, a), a)
    check(lambda a: torch.einsum("...ij->...ji", a), a)
    check(lambda a: torch.einsum("bii->bi", a[:, :, :3]), a)
    check(lambda a, b: torch.einsum("bij,bjk", a, b), a, b)
    check(lambda a, b: torch.tensordot(a, b, ([2], [1])), a, b)
    check(lambda a, b: torch.outer(a[0, 0], b[0, 0]), a, b)
    w, bias = randn(4, 5), randn(4)
    check(lambda x, w, b: (F.linear(x, w, b), torch.addmm(b, x[0], w.T, beta=0.5, alpha=2)), a, w, bias)
    check(lambda x, w, b: torch.baddbmm(b, x, w.T[None].expand(2, -1, -1)), a, w, bias)


def test_layer_rms_and_group_norm():
    for dtype in (torch.float32, torch.bfloat16):
        x, w, b = (randn(*s).to(dtype) for s in ((3, 4, 8), (8,), (8,)))
        check(lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b), x, w, b)
        check(lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6), x, w)
        check(lambda x: F.rms_norm(x, x.shape[-2:]), x)
    check(lambda x, w, b: F.group_norm(x, 2, w, b), randn(3, 4, 5, 6), randn(4), randn(4))


def test_batch_norm_by_running_statistics():
    for shape in ((3, 4), (3, 4, 5), (3, 4, 5, 6)):
        for dtype in (torch.float32, torch.bfloat16):
            model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.ReLU()).eval().requires_grad_(False)
            model[0]._check_input_dim = lambda x: None
            for tensor in (model[0].running_mean, model[0].running_var, model[0].weight, model[0].bias):
                tensor.copy_(torch.rand(4) + 0.5)
            check(model, randn(shape).to(dtype))
    check(lambda x, m, v: F.batch_norm(x, m, v), randn(3, 4, 5), randn(4), torch.rand(4))
    check(lambda x: F.batch_norm(x, None, None, training=True), randn(3, 4), fallbacks=["batch_norm"])


# ---------------------------------------------------------------- attention


def attention(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sdpa_gives_zero_on_a_fully_masked_row(dtype):
    q, k, v = (randn(2, 4, n, 8).to(dtype) for n in (5, 7, 7))
    mask = torch.rand(2, 1, 5, 7) > 0.5
    mask[:, :, 3] = False
    check(attention, q, k, v, mask)
    assert (attention(q, k, v, mask)[:, :, 3] == 0).all()
    check(attention, q, k, v, torch.where(mask, randn(2, 1, 5, 7), -INF).to(dtype))


def test_sdpa_is_causal_from_the_top_left():
    check(
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        randn(1, 2, 3, 8),
        randn(1, 2, 6, 8),
    )
    check(
        lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True),
        randn(1, 2, 6, 8),
        randn(1, 2, 3, 8),
    )


@pytest.mark.parametrize("scale", [1.0, 0.37, -0.5, None])
def test_the_scale_is_the_users(scale):  # U67
    def f(q, k, scale):
        return F.scaled_dot_product_attention(q, k, k, scale=scale)

    check(f, randn(1, 2, 5, 8), randn(1, 2, 7, 8), scale)
    check(lambda q, k: ((q @ k.mT) / 3.0).softmax(-1) @ k, randn(5, 8), randn(7, 8))
    check(lambda q, k, c: ((q * c) @ k.mT).softmax(-1) @ k, randn(5, 8), randn(7, 8), 0.37)


def test_sdpa_with_grouped_heads():
    def f(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)

    check(f, randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 8))
    check(f, randn(2, 4, 5, 8), randn(2, 1, 7, 8), randn(2, 1, 7, 8))


# ---------------------------------------------------------------- losses and look-ups


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_ignores_minus_100(reduction):
    def f(x, t):
        return F.cross_entropy(x, t, reduction=reduction)

    check(f, randn(5, 7), torch.tensor([0, 3, -100, 6, 2]))
    check(f, randn(5, 7, 3), torch.randint(0, 7, (5, 3)))
    check(f, randn(2, 7), torch.tensor([-100, -100]))


def test_nll_loss_and_weights():
    weight = torch.rand(7)
    check(lambda x, t, w: F.nll_loss(x.log_softmax(-1), t, w), randn(5, 7), torch.randint(0, 7, (5,)), weight)
    check(lambda x, t, w: F.cross_entropy(x, t, w), randn(5, 7), torch.randint(0, 7, (5,)), weight)


def test_look_ups():
    ids = torch.randint(0, 9, (2, 5))
    check(lambda i, w: F.embedding(i, w) @ w.T, ids, randn(9, 4))
    x, index = randn(5, 7), torch.randint(0, 5, (5, 3))
    check(lambda x, i: (x.gather(-1, i), x.index_select(0, i[0]), x[i], x[i, i], x[:, i[0]]), x, index)
    check(lambda x, i: x.gather(0, i), x, torch.randint(0, 5, (3, 4)))
    check(lambda x: x[torch.tensor(-1)], x)
    check(lambda x, i: x[i], x, torch.tensor([-1, 0, -5]))
    check(lambda i: F.one_hot(i, 5), torch.tensor([0, 4, 2]))


def test_relative_bias_from_a_table():  # U55
    def f(q, k, table):
        s = q.shape[0]
        i, j = torch.arange(s)[:, None], torch.arange(s)
        return (q @ k.T + table[i - j + s - 1]).softmax(-1)

    check(f, randn(5, 8), randn(5, 8), randn(9))


# ---------------------------------------------------------------- masks and creation


def test_masks_stay_predicates():
    def tril(q):
        keep = torch.ones(q.shape[0], q.shape[0]).tril().bool()
        return q.masked_fill(~keep, -INF).softmax(-1)

    def corner(q, k):
        rows, columns = q.shape[-2], k.shape[-2]
        keep = torch.tril(torch.ones(rows, columns, dtype=torch.bool), diagonal=columns - rows)
        return torch.where(keep, q @ k.mT, -1e9)

    def upper(x):
        return x + torch.triu(torch.full((x.shape[0], x.shape[1]), -INF), diagonal=1)

    check(tril, randn(5, 5))
    check(corner, randn(5, 8), randn(7, 8))
    check(upper, randn(4, 6))


def test_creation():
    check(
        lambda x: (torch.zeros(x.shape), torch.ones_like(x), torch.full((2, x.shape[0]), 0.5), torch.eye(3)),
        randn(3, 4),
    )
    check(lambda x: x + torch.arange(2, x.shape[0] + 2)[:, None] * torch.arange(0, 8, 2), randn(3, 4))
    check(lambda x: x.new_zeros(2, 3) + torch.tensor(1.5), randn(3, 4))
    check(lambda x: torch.arange(x.shape[0], dtype=torch.int32), randn(3))


# ---------------------------------------------------------------- dtypes

DTYPES = [torch.bool, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64]


def operand(kind, dtype):
    if kind == "number":
        return 2.5 if dtype.is_floating_point else 3
    size = () if kind == "0-d" else (3,)
    return torch.ones(size, dtype=dtype)


@pytest.mark.parametrize("left", DTYPES, ids=str)
def test_promotion_is_pytorchs(left):  # U43
    x = operand("tensor", left)
    for right in DTYPES:
        for kind in ("tensor", "0-d"):
            y = operand(kind, right)
            check(lambda a, b: (a + b, a * b, a / b, torch.maximum(a, b), torch.where(a > b, a, b)), x, y)
    check(lambda a: (a * 2.5, a + 3, a / 3, a > 1, 2 - a if a.dtype != torch.bool else a), x)


def test_known_promotions():  # U43
    assert (torch.tensor([1]) / torch.tensor([2])).dtype == torch.float32
    captured = check(lambda x: x + torch.tensor(0.1, dtype=torch.float64), randn(3).bfloat16())
    assert captured.program.outputs[0].node.dtype == "bf16"


def test_mixed_matmul_is_left_to_eagers_error():  # U44
    captured = capture(lambda a, b: a @ b, (randn(4, 8).half(), randn(8, 4)))
    assert captured.fallbacks[0].reason == "a product of operands of dtypes f16 and f32"


@pytest.mark.filterwarnings("ignore:var")
def test_rows_that_are_empty_or_not_finite():
    empty = torch.zeros(3, 0)
    check(lambda x: (x.sum(-1), x.mean(-1), x.softmax(-1), x.prod(-1), x.any(-1), x.var(-1)), empty)
    check(lambda x, w: x @ w, empty, torch.zeros(0, 7))
    odd = torch.tensor([[-INF, -INF, -INF], [1.0, NAN, 2.0], [INF, 1.0, -INF], [-INF, 0.0, 1.0]])
    check(
        lambda x: (x.softmax(-1), x.logsumexp(-1), x.amax(-1), x.relu(), x.clamp(-1, 1), x.log_softmax(-1)),
        odd,
    )
    check(lambda x: F.normalize(x, dim=-1), torch.zeros(2, 3))
