"""Calls that a caller gets wrong or that PyTorch treats specially, through the whole CPU path: bad arguments,
scalars, threads, aliases, writes, unsupported operations, modes, and `torch.compile`."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.autograd import forward_ad

import cleave
from cleave.errors import Invalid
from cleave.frontend import torch_compile
from hostile_judge import INF, NAN, all_compiled, judged, randn, same


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def softmax() -> Any:
    return cleave.jit(lambda x: (x * 2).softmax(-1))


# ---------------------------------------------------------------- bad arguments


@pytest.fixture(scope="module")
def declared() -> Any:
    torch.manual_seed(0)
    return cleave.compile(
        lambda x, w, s: (x @ w).softmax(-1) * s,
        (randn(4, 8), randn(8, 6), 1.0),
        dynamic={"x": ("N", "K"), "w": ("K", None)},
    )


def test_declared_sizes(declared):
    for n, k in ((1, 1), (17, 129), (0, 8), (5, 0), (4097, 3)):
        judged(declared, randn(n, k), randn(k, 6), 0.5)
    all_compiled(declared)


BAD = {
    "sizes that differ": ((randn(4, 8), randn(9, 6), 1.0), ("w", "8", "9")),
    "a size that is fixed": ((randn(4, 8), randn(8, 7), 1.0), ("w", "6", "7")),
    "rank": ((randn(8), randn(8, 6), 1.0), ("x", "rank 2", "rank 1")),
    "float64": ((randn(4, 8).double(), randn(8, 6), 1.0), ("x", "float32", "float64")),
    "integers": ((randn(4, 8).int(), randn(8, 6), 1.0), ("x", "float32", "int32")),
    "device": ((randn(4, 8), randn(8, 6, device="meta"), 1.0), ("w", "cpu", "meta")),
    "layout": ((randn(4, 8).to_sparse(), randn(8, 6), 1.0), ("x", "float32", "sparse_coo")),
    "a string": ((randn(4, 8), randn(8, 6), "no"), ("s", "float", "no")),
    "nothing": ((randn(4, 8), randn(8, 6), None), ("s", "float", "None")),
    "a bool": ((randn(4, 8), randn(8, 6), True), ("s", "float", "True")),
    "a tensor for a number": ((randn(4, 8), randn(8, 6), torch.tensor(1.0)), ("s", "float", "rank 0")),
    "a number for a tensor": ((randn(4, 8), 3.0, 1.0), ("w", "float32", "float")),
    "too few": ((randn(4, 8), randn(8, 6)), ("3 arguments", "2")),
}


@pytest.mark.parametrize("case", BAD)
def test_one_error_names_argument_expected_and_actual(declared, case):
    args, words = BAD[case]
    with pytest.raises(Invalid) as caught:
        declared(*args)
    text = str(caught.value)
    assert len(text.splitlines()) <= 20 and all(word in text for word in words), text


def test_a_size_that_breaks_a_guard():
    f = cleave.compile(
        lambda x, y: x.view(2, -1, 4).sum(1) * (2 if x.shape[0] > 8 else 3) + y,
        (randn(16), randn(2, 4)),
        dynamic={"x": ("N",)},
    )
    judged(f, randn(32), randn(2, 4))
    for args, words in (
        ((randn(12), randn(2, 4)), ("x", "12", "multiple of 8")),
        ((randn(16), randn(3, 4)), ("y", "3", "2")),
        ((randn(8), randn(2, 4)), ("> 8", "x [8]")),
    ):
        with pytest.raises(Invalid) as caught:
            f(*args)
        text = str(caught.value)
        assert len(text.splitlines()) <= 20 and all(word in text for word in words), text
    all_compiled(f)


def test_what_eager_refuses_is_refused_with_its_words(capfd):  # U44
    f = cleave.jit(lambda a, b: (a @ b).softmax(-1))
    for a, b in (
        (randn(4, 8).half(), randn(8, 4)),
        (randn(4, 8), randn(7, 4)),
        (randn(4), randn(3)),
        (randn(2, 4, 4), randn(3, 4, 4)),
    ):
        with pytest.raises(RuntimeError) as eager:
            f.fn(a, b)
        with pytest.raises(RuntimeError) as ours:
            f(a, b)
        assert str(ours.value) == str(eager.value) and len(str(ours.value).splitlines()) <= 20
    for args in ((randn(3),), (randn(3, 3),) * 3):
        with pytest.raises(TypeError):
            f(*args)
    assert capfd.readouterr().err == ""  # PyTorch would log pages of its frames
    judged(f, randn(4, 8), randn(8, 4))
    assert f.compile_count <= 2


# ---------------------------------------------------------------- numbers


def test_numbers_are_read_at_each_call():  # U41
    f = cleave.jit(lambda x, s: torch.clamp(F.silu(x), max=s) * s)
    x = randn(5, 7)
    for s in (0.5, 1.5, 2.5, 0.5):
        judged(f, x, s)
    assert f.compile_count == 1
    for s in (2, 3, INF, -INF, NAN):
        judged(f, x, s, nan=True)
    assert f.compile_count <= 5


def test_numbers_of_every_kind():
    f = cleave.jit(lambda x, s: x * s)
    for x in (randn(5), torch.arange(5), torch.arange(5).to(torch.int8)):
        for s in (2, 2.5, True, -1, 100, torch.tensor(4.5, dtype=torch.float64), torch.tensor(3)):
            assert same(f(x, s), f.fn(x, s))
    with pytest.raises((OverflowError, RuntimeError)):
        f(randn(5), 2**70)
    with pytest.raises((OverflowError, RuntimeError)):
        f.fn(randn(5), 2**70)


def test_closure_constants_make_another_function():  # U37
    def made(scale: float, window: int) -> Any:
        def f(x):
            i, j = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])
            return torch.where(i - j < window, x * scale, -INF).softmax(-1)

        return cleave.jit(f)

    x = randn(70, 70)
    for scale, window in ((0.1, 4), (10, 64)):
        judged(made(scale, window), x)


def test_settings_of_pytorch_are_part_of_the_key():
    f = cleave.jit(lambda a, b: (a @ b, a / 3))
    ints, a = torch.arange(4).view(2, 2), randn(2, 2)
    judged(f, a, a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert f(a, a)[0].dtype == torch.bfloat16
    judged(f, a, a)
    g = cleave.jit(lambda x: x / 3)
    assert g(ints).dtype == torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert g(ints).dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


# ---------------------------------------------------------------- threads and lifetimes


def test_threads_that_call_one_function_at_once():  # U52
    f = cleave.jit(lambda q, k, v: (q @ k.mT * 0.2).softmax(-1) @ v)
    inputs = [[randn(2, n, 16) for _ in range(3)] for n in (5, 17, 64, 129, 33, 1, 200, 128)]
    wanted = [f.fn(*x) for x in inputs]
    kinds = [x.to(d) for x in (randn(2, 3, 5),) for d in (torch.float32, torch.float64)]
    g = cleave.jit(lambda x: (x * 2).softmax(-1))
    start, wrong = threading.Barrier(8), []

    def work(turn: int) -> None:
        try:
            start.wait()
            for n in range(turn, turn + 24):
                torch.testing.assert_close(f(*inputs[n % 8]), wanted[n % 8], rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(g(kinds[n % 2]), g.fn(kinds[n % 2]))
        except BaseException as error:  # noqa: BLE001  whatever it is, the test reports it
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    all_compiled(f)
    all_compiled(g, 2)


def test_earlier_results_stay(softmax):  # U52
    x, y = randn(4, 33), randn(4, 33)
    first = softmax(x)
    kept = first.clone()
    second = softmax(y)
    softmax(x[:2])
    assert torch.equal(first, kept) and first.data_ptr() != second.data_ptr()
    first.zero_()
    assert torch.equal(softmax(x), kept)


# ---------------------------------------------------------------- aliases and writes


def test_writes_give_eagers_result():  # U22 U23
    def scaled(x, y):
        x.mul_(2)
        return x + y

    def through_a_view(x):
        a = x.expand(4, 3)
        a[-1] = 3
        return a + 1

    def inside(x):
        y = x * 2
        y[0] = 1
        y.add_(1)
        y.view(-1)[1] = 5
        return y, y.sum()

    f, g, h = cleave.jit(scaled), cleave.jit(through_a_view), cleave.jit(inside)
    for _ in range(2):
        one, two = torch.arange(6.0), torch.arange(6.0)
        assert torch.equal(f(one[:4], one[2:6]), scaled(two[:4], two[2:6])) and torch.equal(one, two)
    one = randn(3)
    two = one.clone()
    assert torch.equal(g(one), through_a_view(two)) and torch.equal(one, two)
    x = randn(3, 4)
    assert all(torch.equal(a, b) for a, b in zip(h(x), inside(x), strict=True))


def test_identity_expanded_and_nested_results():  # U46
    f = cleave.jit(
        lambda x: {
            "a": (x, x * 2, x.t()), "b": [x.view(-1), x[0], None, 3, "s", x.shape[0]],
            "c": x.sum(0, keepdim=True).expand_as(x),
        }
    )  # fmt: skip
    for shape in ((3, 4), (1, 1), (17, 129)):
        x = randn(shape)
        assert judged(f, x)["a"][0] is x
    all_compiled(f)


@pytest.mark.slow
def test_views_of_one_base_and_negative_positions():  # U47
    f = cleave.jit(lambda a, b, table: table[a].sum() - 3 * table[b].sum())
    base, table = torch.randint(0, 9, (3, 6)), randn(9, 4)
    for a, b in ((base[:, :-1], base[:, 1:]), (base, base), (base[:2], base[1:]), (base - 9, base)):
        judged(f, a, b, table, length=1000)
    all_compiled(f)


def test_weights_are_read_at_each_call():  # U79
    layer = torch.nn.Sequential(torch.nn.LayerNorm(8), torch.nn.Linear(8, 6), torch.nn.GELU())
    f = cleave.jit(layer)
    with torch.no_grad():
        for n in (3, 1, 17, 0):
            x = randn(n, 8)
            torch.testing.assert_close(f(x), layer(x), rtol=1e-4, atol=1e-5)
            layer[1].weight.data.copy_(randn(6, 8))
    all_compiled(f)


# ---------------------------------------------------------------- what runs in PyTorch


def test_the_rest_stays_compiled_and_the_reason_is_told():  # U77
    f = cleave.jit(lambda x: F.layer_norm((x + 1).softmax(-1).cumsum(-1) * 2, x.shape[-1:]))
    for shape in ((3, 17), (5, 129), (1, 2)):
        judged(f, randn(shape), length=1000)
    assert f.compile_count == 1
    text = f.explain()
    assert "cumsum at test_hostile.py" in text and "no lowering for this operation" in text
    g = cleave.jit(lambda x: torch.fft.rfft((x + 1).softmax(-1)).abs() * 2)
    for shape in ((3, 17), (5, 128)):
        torch.testing.assert_close(g(randn(shape)).shape, g.fn(randn(shape)).shape)
    assert g.compile_count == 1 and "fft_rfft" in g.explain()


class Marked(torch.Tensor):
    """A subclass: its operations may mean anything."""


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_tensors_that_are_no_plain_memory_run_in_pytorch(softmax):
    x = randn(3, 5)
    wanted = softmax(x)
    assert isinstance(softmax(x.as_subclass(Marked)), Marked)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(x)
        assert isinstance(softmax(fake), FakeTensor)
    assert isinstance(softmax(fake), FakeTensor)
    assert softmax(x.to("meta")).device.type == "meta"
    assert torch.equal(softmax(x.to_mkldnn()).to_dense(), softmax.fn(x.to_mkldnn()).to_dense())
    for odd in (x.to_sparse(), x.to_sparse_csr(), x.to(torch.float8_e4m3fn), "text", None):
        with pytest.raises((RuntimeError, TypeError, AttributeError)) as eager:
            softmax.fn(odd)
        with pytest.raises(type(eager.value)):
            softmax(odd)
    assert torch.equal(softmax(x), wanted)


def test_transforms_see_through_a_compiled_function(softmax):
    x = randn(3, 5)
    softmax(x)
    torch.testing.assert_close(torch.func.vmap(softmax)(x), softmax.fn(x))
    weights = randn(3, 5)
    torch.testing.assert_close(
        torch.func.grad(lambda x: (softmax(x) * weights).sum())(x),
        torch.func.grad(lambda x: (softmax.fn(x) * weights).sum())(x),
    )
    with forward_ad.dual_level():
        dual = softmax(forward_ad.make_dual(x, weights))
        assert forward_ad.unpack_dual(dual).tangent is not None
    with torch.inference_mode():
        torch.testing.assert_close(softmax(randn(3, 5) * 0), torch.full((3, 5), 0.2))
    assert softmax(x.clone().requires_grad_()).requires_grad


def test_torch_compile_of_a_function_and_a_module():
    def causal(q, k, v):
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(j > i, -INF).softmax(-1) @ v

    torch._dynamo.reset()
    before = len(torch_compile.compiled_graphs)
    f = torch.compile(causal, backend=torch_compile.backend)
    for n in (5, 17, 1, 129, 500):
        qkv = [randn(1, 2, n, 16) for _ in range(3)]
        torch.testing.assert_close(f(*qkv), causal(*qkv), rtol=1e-4, atol=1e-5)
    graphs = torch_compile.compiled_graphs[before:]
    assert sum(g.compile_count for g in graphs) <= 3 and not any(g.fallbacks for g in graphs)
