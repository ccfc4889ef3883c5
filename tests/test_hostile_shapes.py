"""Sizes and layouts, through the whole CPU path: tiny and empty dims, strides, offsets, views, and Python
arithmetic on sizes. Each function is compiled once and called at many shapes."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import cleave
from hostile_judge import all_compiled, judged, randn


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# ---------------------------------------------------------------- sizes


def test_tiny_products():  # U83
    f = cleave.jit(lambda a, b: a @ b)
    for k in (17, 1, 2, 3, 8, 15, 0):
        for m in (1, 3, 8, 17, 0):
            for n in (1, 2, 15, 17, 0):
                judged(f, randn(m, k), randn(k, n), length=100)  # a row of one value can cancel
    all_compiled(f, 2)


@pytest.mark.slow
def test_tiny_products_in_batches():  # U83
    f = cleave.jit(lambda a, b: a @ b)
    for batch in (3, 1, 0):
        for m, k, n in ((1, 17, 8), (3, 1, 1), (17, 2, 17), (1, 1, 1), (0, 2, 3), (2, 0, 3)):
            judged(f, randn(batch, m, k), randn(batch, k, n), length=100)
    all_compiled(f, 2)


@pytest.mark.slow
def test_gated_products():  # U40
    f = cleave.jit(lambda x, a, b: F.silu(x @ a) * (x @ b))
    for m, k, n in ((7, 100, 77), (1, 4096, 300), (1, 1, 1), (129, 17, 1025)):
        judged(f, randn(m, k), randn(k, n), randn(k, n), length=k)
    all_compiled(f, 2)


def test_sizes_of_one():  # U74
    f = cleave.jit(lambda x: F.rms_norm(x, x.shape[-1:]))
    for shape in (
        (5, 3, 128),
        (1, 3, 128),
        (5, 1, 128),
        (5, 3, 1),
        (1, 1, 1),
        (0, 3, 4),
        (3, 0, 4),
        (3, 4, 0),
    ):
        judged(f, randn(shape), length=128)
    all_compiled(f)


@pytest.mark.slow
def test_sizes_of_one_at_first():  # U74
    f = cleave.jit(lambda x, y: (x - y.mean(-1, keepdim=True)).softmax(-1))
    for shape in ((1, 1, 1), (5, 3, 128), (1, 3, 17), (5, 1, 1), (0, 1, 2)):
        judged(f, randn(shape), randn(shape))
    all_compiled(f)


def test_four_outputs_of_square_and_other_shapes():  # U76 U73
    def parts(x):
        m = x.amax(-1, True)
        e = (x - m).exp()
        s = e.sum(-1, True)
        return e / s, m, s, m + s.log()

    f = cleave.jit(parts)
    for shape in ((7, 7), (7, 5), (1, 5), (1, 1), (33, 4097), (0, 3)):
        judged(f, randn(shape))
    all_compiled(f)


def test_an_empty_axis_in_the_middle_of_two_outputs():  # U13: one output is written although another is empty
    f = cleave.jit(lambda x: (x.softmax(1), x.logsumexp(1)))
    for shape in ((33, 5, 129), (2, 0, 3), (2, 1, 0)):
        judged(f, randn(shape), nan=True)
    assert (f(randn(2, 0, 3))[1] == -math.inf).all()
    all_compiled(f)


def test_a_sum_of_everything_is_not_computed_again_by_every_block():
    """Compiled at a small size, where one kernel is best, then called at a large one, where it is not."""
    f = cleave.jit(lambda x: (x * 2, x.sum(-1), x.square().mean()))
    for shape in ((4, 129), (1, 1), (512, 2048)):
        judged(f, randn(shape), length=10**6)
    (compiled,) = [c for kind in f.kinds.values() for v in kind.variants for c in v.callables]
    assert compiled.footprint(randn(512, 2048))[0] > 1
    all_compiled(f)


def test_any_rank_of_adapter():  # U79
    f = cleave.jit(lambda x, w, a, b, alpha: x @ w.T + alpha * (x @ a.T) @ b.T)
    x, w = randn(5, 40), randn(17, 40)
    for rank in (4, 16, 64, 1, 0):
        for alpha in (0.5, 2.0):
            judged(f, x, w, randn(rank, 40), randn(17, rank), alpha, length=400)
    all_compiled(f, 2)


def test_rank_zero():  # U14
    f = cleave.jit(
        lambda x: (
            x.softmax(0), x.log_softmax(-1), x.sum(), x.sum(-1), x.mean(), x.amax(-1), torch.rsqrt(x),
            x.logsumexp(0), x.flip(0), x.reshape(1), x.expand(3), x * x.sum(),
        )
    )  # fmt: skip
    judged(f, torch.tensor(3.14), nan=True)
    judged(f, torch.tensor(-1.0), nan=True)
    all_compiled(f)


SIZES: dict[str, Callable[[int, int], object]] = {
    "sqrt": lambda n, m: math.sqrt(n),
    "power": lambda n, m: n**-0.5,
    "quotient": lambda n, m: n / m,
    "one over": lambda n, m: 1 / n,
    "floor": lambda n, m: n // 3,
    "rest": lambda n, m: n % 4,
    "extrema": lambda n, m: max(n, m) - min(n, 5),
    "ceil": lambda n, m: (n + m - 1) // m,
    "float": lambda n, m: float(n) ** 1.5,
    "branch": lambda n, m: 1 if n > m else 2,
    "of torch": lambda n, m: torch.sym_max(n, m) + torch.sym_float(n),
    "log": lambda n, m: math.log(n),
    "round": lambda n, m: round(n / 3) + int(n**0.5),
}


def test_python_numbers_made_of_sizes():
    """Run-time values or guarded, but never those of the first call."""
    few = [name for name in SIZES if name not in ("branch", "log", "round")]
    f = cleave.jit(lambda x: [x * SIZES[name](*x.shape) for name in few])
    for shape in ((5, 7), (9, 2), (16, 16), (3, 130), (1, 1)):
        judged(f, randn(shape))
    all_compiled(f, 5)  # Python's `max` is a branch


@pytest.mark.slow
@pytest.mark.parametrize("name", SIZES)
def test_each_number_made_of_sizes(name):
    f = cleave.jit(lambda x: x * SIZES[name](*x.shape))
    for shape in ((5, 7), (9, 2), (16, 16), (3, 130)):
        judged(f, randn(shape))


# ---------------------------------------------------------------- layouts


def test_any_strides():  # U17 U19
    f = cleave.jit(lambda x: (x * 2).reshape(x.shape[0], -1).softmax(-1))
    base = randn(4 * 5 * 6 * 7 + 1)
    for x in (
        randn(5, 2, 3, 4),
        randn(2, 5, 3, 4).transpose(0, 1),
        randn(1, 1, 3, 1).expand(4, 5, 3, 2),
        randn(9, 8, 7, 6)[1::3, ::2, 2:5, 1:],
        base[1:].view(4, 5, 6, 7),
        base.as_strided((3, 4, 5, 6), (1, 2, 3, 4)),
        base.as_strided((3, 4, 5, 6), (1, 0, 3, 4), 7),
        randn(4, 6, 5, 3).to(memory_format=torch.channels_last),
        randn(3, 4, 5, 6).permute(3, 1, 0, 2),
        torch.view_as_complex(randn(3, 4, 5, 2, 2)).real,
    ):
        judged(f, x)
    all_compiled(f)


def test_negated_views():
    f = cleave.jit(lambda x, y: (x @ y).softmax(-1))
    z = torch.complex(randn(4, 4), randn(4, 4))
    x = z.conj().imag
    assert x.is_neg()
    torch.testing.assert_close(f(x, x), f.fn(x, x))
    torch.testing.assert_close(f(x, z.imag), f.fn(x, z.imag))
    all_compiled(f)


def test_attention_over_strided_expanded_and_unaligned_inputs():  # U19
    f = cleave.jit(lambda q, k, v: (q @ k.mT * 0.3).softmax(-1) @ v)
    for n in (5, 33):
        q = randn(2, n, 3, 16).transpose(1, 2)
        k = randn(2, 1, n, 16).expand(2, 3, n, 16)
        v = randn(2, 3, n, 33)[..., 1::2]
        judged(f, q, k, v)
        judged(f, q, k.mT.contiguous().mT, v[..., :1].expand(2, 3, n, 16), length=1000)
    all_compiled(f)


def test_outputs_are_written_in_full():  # U34
    def packed(x, ends):
        i = torch.arange(x.shape[0])
        return torch.where((i < ends[-1])[:, None], x.softmax(-1), 0), x.T + 0

    f = cleave.jit(packed)
    for n in (5, 130, 1):
        x = randn(n, 17)
        x[n // 2 + 1 :] = math.nan
        poison = [torch.full((n, 17), math.nan) for _ in range(4)]
        del poison
        out = judged(f, x, torch.tensor([0, 1, n // 2 + 1]), nan=True)[0]
        assert out.isfinite().all() and (out[n // 2 + 1 :] == 0).all()
    all_compiled(f)


VIEWS = {
    "flip": (lambda x: x.flip(1).softmax(-1), [(3, 4, 5), (1, 1, 1), (2, 129, 17), (0, 3, 2)]),
    "neighbours": (lambda x: x[:, 1:] + x[:, :-1], [(3, 4, 5), (1, 2, 1), (2, 129, 17), (3, 1, 2)]),
    "last": (lambda x: x[..., -1] * 2, [(3, 4, 5), (1, 2, 1), (2, 129, 17)]),
    "merge": (lambda x: x.reshape(-1, x.shape[-1]).softmax(0), [(3, 4, 5), (1, 1, 1), (2, 129, 17)]),
    "split": (lambda x: x.reshape(x.shape[0], 2, -1).sum(1), [(3, 4, 5), (1, 2, 1), (2, 130, 17), (3, 0, 2)]),
    "cat": (lambda x: torch.cat([x, x * 2, x[:1]]).softmax(0), [(3, 4, 5), (1, 1, 1), (2, 129, 17)]),
    "stack": (lambda x: torch.stack([x, x + 1], 1).sum(-1), [(3, 4, 5), (1, 1, 1), (0, 129, 17)]),
    "triangles": (lambda x: x.tril() + 2 * x.triu(1), [(3, 4, 5), (1, 1, 1), (2, 17, 129)]),
    "distances": (
        lambda x: (x[:, :, None] - x[:, None]).square().sum(-1),
        [(3, 4, 5), (1, 1, 1), (2, 33, 8)],
    ),
    "products": (lambda x: x.transpose(0, 1) @ x.permute(1, 2, 0), [(3, 4, 5), (2, 129, 17), (1, 1, 1)]),
    "repeat": (lambda x: x.repeat(2, 1, 3).sum(0), [(3, 4, 5), (1, 1, 1), (2, 129, 17)]),
    "halves": (lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1], [(3, 4, 6), (1, 1, 2), (2, 129, 18)]),
    "flatten": (lambda x: x.flatten().softmax(0), [(3, 4, 5), (1, 1, 1), (2, 129, 17), (2, 0, 3)]),
    "count": (lambda x: x.square().sum() / x.numel(), [(3, 4, 5), (1, 1, 1), (2, 129, 17)]),
    "transposed": (
        lambda x: x.mT.contiguous().view(x.shape[0], -1).softmax(-1),
        [(3, 4, 5), (1, 1, 1), (2, 129, 17)],
    ),
    "pixels": (
        lambda x: x.reshape(x.shape[0], -1, 2, x.shape[2]).transpose(1, 2).reshape(x.shape) + 1,
        [(3, 4, 5), (1, 2, 1), (2, 130, 17)],
    ),
}
FAST = ("flip", "split", "pixels")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in VIEWS])
def test_views(name):
    fn, shapes = VIEWS[name]
    f = cleave.jit(fn)
    for shape in shapes:
        judged(f, randn(shape), length=1000)
    all_compiled(f, 2)


SQUARES = {
    "gram": lambda x: (x * 2, x @ x.t(), x + 1),
    "of two": lambda x: (x + x.flip(0), x @ x.flip(0).t(), x - x.flip(0)),
    "softmax": lambda x: (x + 1, torch.softmax(x @ x.t(), -1), x * 2),
    "distances": lambda x: (x * 2, ((x[:, None] - x[None]) ** 2).sum(-1), x + 1),
    "three of them": lambda x: (x @ x.t(), x * 2, x.sum(1), x @ x.t() + 1, x.sum(1) + 1),
}


@pytest.mark.parametrize("name", SQUARES)
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_a_result_with_one_dim_twice_beside_results_with_it_once(name: str, rows: int) -> None:
    """Both of its axes are rows of the same input, and must not become one index of a kernel."""
    x = torch.randn(rows, 5, generator=torch.Generator().manual_seed(rows))
    for found, right in zip(cleave.jit(SQUARES[name])(x), SQUARES[name](x.double()), strict=True):
        torch.testing.assert_close(found.double(), right, atol=1e-4, rtol=1e-4)


WHOLE = {
    "lower": lambda x: x.tril().sum(),
    "upper": lambda x: x.triu(1).mean(),
    "of three": lambda x: x.expand(3, -1, -1).tril().sum((1, 2)),
    "masked softmax": lambda x: torch.softmax(x.masked_fill(x.tril() == 0, -torch.inf), -1).sum(),
    "beside": lambda x: x.triu() + x.triu(1).sum(),
}


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_a_sum_over_both_axes_of_a_triangle(name: str, rows: int) -> None:
    """A loop whose end hangs on the position of a loop inside of it has none that it knows."""
    x = torch.randn(rows, rows, generator=torch.Generator().manual_seed(rows))
    torch.testing.assert_close(
        cleave.jit(WHOLE[name])(x).double(), WHOLE[name](x.double()), atol=1e-4, rtol=1e-4
    )
