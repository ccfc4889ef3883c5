"""Capture of whole functions: the first slice, sizes, guards, what falls back, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from doubles import check, run, same

from cleave.errors import Invalid
from cleave.frontend.capture import capture
from cleave.ir.dims import Atom
from cleave.ir.text import print_program

randn = torch.randn


def gqa(q, k, v, scale):
    _, heads, s, _ = q.shape
    groups, t = heads // k.shape[1], k.shape[2]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    scores = (q @ k.transpose(-1, -2)) * scale
    i, j = torch.arange(s)[:, None], torch.arange(t)
    scores = scores.masked_fill(j > i + (t - s), float("-inf"))
    top = scores.amax(-1, keepdim=True)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    return (weights / total) @ v, (top + total.log()).squeeze(-1)


def test_row_softmax():
    captured = check(lambda x: torch.softmax(x, -1), randn(3, 5), name="softmax")
    assert print_program(captured.program) == (
        "program softmax(x: f32[X0, X1]) {\n"
        "  max1[x0: X0]: f32 = max[x1: X1](x[x0, x1])\n"
        "  sub1[x0: X0, x1: X1]: f32 = sub(x[x0, x1], max1[x0])\n"
        "  exp1[x0: X0, x1: X1]: f32 = exp(sub1[x0, x1])\n"
        "  sum1[x0: X0]: f32 = sum[x1: X1](exp1[x0, x1])\n"
        "  out[x0: X0, x1: X1]: f32 = div(exp1[x0, x1], sum1[x0])\n"
        "  return out[x0, x1]\n"
        "}\n"
    )


def test_rms_norm_linear_has_eps_as_a_run_time_number():
    def f(x, g, w, eps):
        return (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * g) @ w

    captured = check(f, randn(3, 8), randn(8), randn(8, 6), 1e-5)
    assert "eps: scalar f32" in print_program(captured.program)


def test_gqa_factors_heads_in_the_layout_of_the_input():
    captured = check(gqa, randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 8), 0.3)
    q = captured.program.inputs[0]
    assert [len(axis) for axis in q.op.layout] == [1, 2, 1, 1]
    assert q.op.layout[1][0] == captured.program.inputs[1].op.layout[1][0]


def test_gqa_by_reshape_and_einsum():
    def f(q, k, v):
        batch, heads, s, d = q.shape
        q = q.reshape(batch, k.shape[1], heads // k.shape[1], s, d)
        w = (torch.einsum("bkgsd,bktd->bkgst", q, k) / d**0.5).softmax(-1)
        return torch.einsum("bkgst,bktd->bkgsd", w, v).reshape(batch, heads, s, d)

    check(f, randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 8))


def test_gqa_by_expand():
    def f(q, k):
        batch, kv, t, d = k.shape
        k = k[:, :, None].expand(batch, kv, q.shape[1] // kv, t, d).reshape(batch, q.shape[1], t, d)
        return q @ k.mT

    check(f, randn(2, 4, 5, 8), randn(2, 2, 7, 8))


def test_one_program_serves_other_sizes():
    captured = capture(gqa, (randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 8), 0.3))
    for b, g, kv, s, t in ((1, 1, 1, 1, 1), (3, 3, 2, 4, 9), (2, 2, 3, 0, 5)):
        args = randn(b, g * kv, s, 8), randn(b, kv, t, 8), randn(b, kv, t, 8), -0.7
        same(run(captured, *args), gqa(*args))


@pytest.mark.parametrize("lq, lk", [(2, 5), (5, 2), (10, 7), (1, 6)])
def test_causal_corner_is_read_from_the_program(lq, lk):  # U10
    def attention(q, k, v, shift):
        i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
        if shift:
            i = i + (k.shape[-2] - q.shape[-2])
        scores = torch.where(j <= i, q @ k.mT, float("-inf"))
        return scores.softmax(-1) @ v

    for shift in (False, True):
        check(attention, randn(2, lq, 4), randn(2, lk, 4), randn(2, lk, 4), shift)


def test_sizes_that_are_equal_by_chance_stay_two():  # U59
    captured = capture(gqa, (randn(4, 4, 8, 8), randn(4, 2, 8, 8), randn(4, 2, 8, 8), 1.0))
    batch, heads, s, d = (axis for axis in captured.program.inputs[0].op.layout)
    assert len({*batch, *heads, *s, *d}) == 5
    args = randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 8), 0.5
    same(run(captured, *args), gqa(*args))


def test_a_contracted_last_axis_is_static_and_others_are_not():
    captured = capture(gqa, (randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 6), 1.0))
    known = dict(captured.program.sizes)
    assert [known.get(dim) for dim in captured.program.inputs[0].dims] == [None, None, None, None, 8]
    assert captured.program.inputs[2].dims[-1] not in known
    everything = capture(gqa, (randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 6), 1.0), static="none")
    assert not everything.program.sizes


def test_what_meets_a_parameter_is_static():
    layer = torch.nn.Linear(8, 6)
    with torch.no_grad():
        captured = check(lambda x: F.silu(layer(x)), randn(5, 8))
    sizes = dict(captured.program.sizes)
    assert sorted(sizes.values()) == [6, 8]
    assert len(captured.program.dynamic) == 1


def test_declared_dims_are_named_and_the_rest_is_known():
    dynamic = {"a": ("M", None), "b": {1: "N"}}
    captured = capture(lambda a, b: a @ b, (randn(4, 8), randn(8, 5)), dynamic=dynamic)
    assert captured.program.dynamic == (Atom("M"), Atom("N"))


def test_declared_dims_that_contradict_the_sizes_are_refused():
    with pytest.raises(Invalid, match=r"argument y, axis 0: the size is 4, but N is 3 elsewhere"):
        capture(lambda x, y: (x, y), (randn(3), randn(4)), dynamic={"x": ("N",), "y": ("N",)})
    with pytest.raises(Invalid, match="has 2 axes, dynamic names 1"):
        capture(lambda x: x, (randn(3, 3),), dynamic={"x": ("N",)})
    with pytest.raises(Invalid, match="'z' that does not exist"):
        capture(lambda x: x, (randn(3, 3),), dynamic={"z": ("N",)})


def test_a_branch_on_a_size_becomes_a_guard():
    def f(x):
        return x * 2 if x.shape[0] == 1 else x * 3

    captured = check(f, randn(4, 3))
    assert captured.guards == ("Ne(X0, 1)",)
    assert not captured.holds(captured.environment([randn(1, 3)]))
    assert captured.holds(captured.environment([randn(9, 2)]))


def test_a_branch_on_a_number_becomes_a_guard():
    captured = check(lambda x, s: x * s if s > 1 else x, randn(3), 2.5)
    assert captured.guards == ("s > 1.0",)


def test_math_sqrt_of_a_size_stays_symbolic():
    captured = check(lambda x: x / math.sqrt(x.shape[0]), randn(4, 3))
    assert not captured.guards and math.sqrt(4) == 2.0


def test_numbers_are_converted_where_python_needs_a_value():
    captured = check(lambda x, s: x * math.exp(s), randn(3), 0.5)
    assert captured.guards == ("Eq(s, 0.5)",)


def test_an_int_used_as_a_size_is_guarded():
    captured = check(lambda x, n: x.reshape(n, -1), randn(6), 2)
    assert any("n" in guard for guard in captured.guards)
    assert not captured.holds(captured.environment([randn(6), 3]))


def test_products_of_sizes_round_trip():  # 2x64 and 64x2 meet in 2x32x2
    def f(x):
        return (x.reshape(2, 64, -1) * 2).reshape(64, 2, -1).sum(1)

    layout = check(f, randn(128, 3)).program.inputs[0].op.layout
    assert len(layout[0]) == 3


def test_merged_batch_and_heads():
    def f(q, k, v):
        batch, heads, s, d = q.shape
        q, k, v = (x.reshape(batch * heads, -1, d) for x in (q, k, v))
        out = torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v)
        return out.view(batch, heads, s, d).transpose(1, 2).reshape(batch, s, heads * d)

    check(f, randn(2, 3, 5, 8), randn(2, 3, 7, 8), randn(2, 3, 7, 8))


# ---------------------------------------------------------------- fall-back


def test_an_unsupported_call_in_the_middle_splits_the_function():  # U77
    def f(x):
        y = x * 2 + 1
        z = torch.fft.rfft(y).abs()
        return z.softmax(-1), y.sum()

    captured = check(f, randn(3, 8), fallbacks=("fft_rfft", "abs"))
    assert len(captured.programs) == 2
    assert "torch.fft.rfft(y).abs()" in captured.fallbacks[0].where
    other = randn(5, 6)
    same(run(captured, other), f(other))


def test_cumsum_falls_back_and_its_result_meets_the_rest():  # U77
    captured = check(lambda x: ((x * 2).cumsum(-1) + x).softmax(-1), randn(3, 8), fallbacks=("cumsum",))
    assert [len(p.outputs) for p in captured.programs] == [1, 1]


def test_a_mask_is_not_materialised_for_a_later_program():
    def f(x):
        s = x.shape[0]
        keep = torch.arange(s)[:, None] >= torch.arange(s)
        return torch.where(keep, x.cumsum(0), 0.0)

    captured = check(f, randn(5, 5), fallbacks=("cumsum",))
    assert len(captured.programs) == 1


def test_the_indices_of_max_fall_back_only_when_used():
    check(lambda x: x.max(-1).values, randn(3, 8))
    check(lambda x: tuple(x.max(-1)), randn(3, 8), fallbacks=("max",))


def test_random_numbers_fall_back():
    captured = capture(lambda x: F.dropout(x * 2, 0.5) + 1, (randn(100),))
    assert [f.reason for f in captured.fallbacks] == ["random numbers"]


@pytest.mark.parametrize(
    "fn, reason",
    [
        (lambda x: x * x.sum().item(), "Python needs the value of a tensor"),
        (lambda x: x if x.sum() > 0 else -x, "Python needs the value of a tensor"),
        (lambda x: x.mul_(2), "writes to the tensor 'x'"),
        (lambda x: x.stride(), "is about memory"),
        (lambda x: x[x > 0], "Python needs the value of a tensor"),
    ],
)
def test_what_cannot_be_captured_is_named_with_its_line(fn, reason):
    captured = capture(fn, (randn(3),))
    assert captured.whole is not None and reason in captured.whole.reason
    assert "test_capture.py" in captured.whole.where


def test_writes_to_intermediates_are_functional():
    def f(x):
        y = x * 2
        y.add_(1)
        y += x
        y[...].clone()
        return y

    def g(x):
        y = x * 2
        y.mul_(3).sub_(1)
        return y.relu_()

    check(g, randn(4))
    assert capture(f, (randn(4),)).whole is None


def test_writes_through_views_are_left_to_pytorch():  # U23
    def f(x):
        a = x.expand(4, 3)
        a[-1] = 3
        return a

    assert "writes to the tensor" in capture(f, (randn(3),)).whole.reason

    def g(x):
        y = x * 2
        z = y.view(-1)
        z.add_(1)
        return y

    assert "has views" in capture(g, (randn(3, 2),)).whole.reason


def test_capture_is_deterministic():
    args = randn(2, 4, 5, 8), randn(2, 2, 7, 8), randn(2, 2, 7, 8), 0.3
    texts = {print_program(capture(gqa, args).program) for _ in range(3)}
    assert len(texts) == 1


def test_outputs_keep_their_tree_and_plain_values():
    def f(x, n):
        return {"a": x * 2, "b": [x.shape[0], None, "s", (n + 1, x.shape[1] / 2)]}

    check(f, randn(3, 4), 5)
