"""`cleave.jit`: how often it compiles, what it sees again at each call, and what it hands back."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from doubles import agrees, by_reference, jitted, same

import cleave
from cleave.errors import Invalid
from cleave.frontend import torch_compile

randn = torch.randn


def causal(q, k, v):
    i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(j > i, float("-inf"))
    return scores.softmax(-1) @ v


def test_growing_lengths_compile_once():  # U16
    f = jitted(causal)
    for length in (5, 17, 64, 65, 1, 129, 0):
        agrees(f, *(randn(1, 2, length, 8) for _ in range(3)))
    assert f.compile_count == 1 and not f.fallbacks


def test_equal_sizes_at_the_first_call():  # U59
    f = jitted(causal)
    for shape in ((4, 4, 16, 16), (2, 4, 20, 16), (4, 2, 16, 8), (1, 1, 1, 1), (4, 4, 16, 16)):
        agrees(f, *(randn(shape) for _ in range(3)))
    assert f.compile_count == 2 and not f.fallbacks


@pytest.mark.parametrize("first", [0, 4])
def test_sizes_of_one(first):  # U74
    shapes = [(5, 3, 128), (1, 3, 128), (5, 1, 128), (5, 3, 1), (1, 1, 1)]
    f = jitted(lambda x: F.rms_norm(x, x.shape[-1:]))
    for shape in (shapes[first], *shapes):
        agrees(f, randn(shape))
    assert f.compile_count == 1


def test_a_number_is_never_baked_in():  # U41
    f = jitted(lambda x, s: torch.clamp(F.silu(x), max=s) * s)
    for s in (0.5, 1.5, 2.5, 0.5):
        agrees(f, randn(5, 7), s)
    g = jitted(
        lambda x, w: torch.where(torch.arange(x.shape[0])[:, None] - torch.arange(x.shape[1]) < w, x, 0)
    )
    for w in (1, 2, 63, 0, -3):
        agrees(g, randn(7, 7), w)
    assert f.compile_count == g.compile_count == 1


def test_lora_of_any_rank():  # U79
    f = jitted(lambda x, w, a, b, alpha: x @ w.T + alpha * (x @ a.T) @ b.T)
    for rank in (4, 16, 64, 1):
        for alpha in (0.5, 2.0):
            agrees(f, randn(5, 8), randn(6, 8), randn(rank, 8), randn(6, rank), alpha)
    assert f.compile_count <= 2


@pytest.mark.parametrize("f", [lambda x: x.roll(1, 1), lambda x: x[:, 1:] * 2, lambda x: x[2:].exp()])
def test_sizes_that_follow_from_others(f):
    """Nothing but a part of a tensor, of which no reduction asks anything."""
    fast = jitted(f)
    for shape in ((4, 6), (7, 3), (2, 2)):
        agrees(fast, randn(*shape))


def test_weights_are_read_at_each_call():  # U79
    layer = torch.nn.Linear(8, 6)
    f = jitted(layer)
    with torch.no_grad():
        agrees(f, randn(3, 8))
        layer.weight.data.copy_(randn(6, 8))
        agrees(f, randn(5, 8))
        layer.weight = torch.nn.Parameter(randn(6, 8))
        agrees(f, randn(1, 8))
        assert f.compile_count == 1 and not f.fallbacks


def test_tensors_in_closures_and_globals_are_read_at_each_call():
    holder = {"w": [randn(4)]}
    f = jitted(lambda x: x * holder["w"][0])
    agrees(f, randn(3, 4))
    holder["w"][0] = randn(4)
    agrees(f, randn(3, 4))
    assert f.compile_count == 1


def test_other_closure_constants_are_another_function():  # U37
    def made(scale, window):
        def f(x):
            i, j = torch.arange(x.shape[0])[:, None], torch.arange(x.shape[1])
            return torch.where(i - j < window, x * scale, 0)

        return jitted(f)

    f, g, x = made(0.1, 4), made(10, 64), randn(9, 9)
    agrees(f, x)
    agrees(g, x)


def test_a_rebound_constant_is_seen():
    scale = 2.0

    def f(x):
        return x * scale

    compiled = jitted(f)
    agrees(compiled, randn(3))
    scale = 3.0
    agrees(compiled, randn(3))


def test_training_mode_is_part_of_the_key():
    model = torch.nn.Sequential(torch.nn.Dropout(1.0))
    f = jitted(model)
    assert (f(torch.ones(3)) == 0).all()
    model.eval()
    assert (f(torch.ones(3)) == 1).all()


def test_strided_expanded_and_offset_inputs():  # U17 U19
    f = jitted(lambda x: (x * 2).reshape(x.shape[0], -1).softmax(-1))
    agrees(f, randn(5, 2, 3, 4))
    agrees(f, randn(2, 5, 3, 4).transpose(0, 1))
    g = jitted(causal)
    q = randn(2, 5, 3, 8).transpose(1, 2)
    k = randn(2, 1, 5, 8).expand(2, 3, 5, 8)
    v = randn(2, 3, 5, 17)[..., 1::2]
    agrees(g, q, k, v)
    assert f.compile_count == g.compile_count == 1


def test_outputs_are_dense_and_rows_first():  # U20
    f = jitted(lambda x: x * 2 + 1)
    out = f(randn(4, 3).t())
    assert out.is_contiguous()


def test_shared_memory_without_writes_needs_no_guard_and_writes_fall_back():  # U22
    f = jitted(lambda x, y: x + y)
    base = torch.arange(6.0)
    agrees(f, base[:4], base[2:6])

    def writes(x, y):
        x.mul_(2)
        return x + y

    one, two = torch.arange(6.0), torch.arange(6.0)
    g = jitted(writes)
    assert torch.equal(g(one[:4], one[2:6]), writes(two[:4], two[2:6])) and torch.equal(one, two)
    assert "mul_ writes to the tensor 'x'" in g.fallbacks[0].reason


def test_identity_alias_and_expanded_outputs():  # U46
    f = jitted(lambda x: (x, x * 2, x.t()))
    x = randn(3, 4)
    agrees(f, x)
    assert f(x)[0] is x
    agrees(jitted(lambda x: x.sum(0, keepdim=True).expand_as(x)), x)
    agrees(jitted(lambda x, y: x), x, x)


def test_views_of_one_base_are_told_apart_by_position():  # U47
    f = jitted(lambda a, b, emb: emb[a].sum() - 3 * emb[b].sum())
    base, emb = torch.randint(0, 9, (3, 6)), randn(9, 4)
    agrees(f, base[:, :-1], base[:, 1:], emb)
    agrees(f, base, base, emb)
    agrees(f, base[:2], base[1:], emb)
    assert f.compile_count == 1


def test_masks_of_lengths_and_documents():  # U85
    def f(q, k, length, doc):
        i, j = torch.arange(q.shape[1])[:, None], torch.arange(q.shape[1])
        keep = (j <= i) & (j < length[:, None, None]) & (doc[:, :, None] == doc[:, None, :])
        return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1)

    compiled = jitted(f)
    for s in (33, 64, 20):
        agrees(
            compiled, randn(2, s, 8), randn(2, s, 8), torch.tensor([s, s // 2]), torch.randint(0, 3, (2, s))
        )
    assert compiled.compile_count == 1


def test_gradients_run_in_pytorch_and_are_not_lost():
    f = jitted(lambda x: (x * x).sum())
    x = randn(3, requires_grad=True)
    f(x).backward()
    same(x.grad, 2 * x.detach())
    assert "requires a gradient" in f.fallbacks[0].reason and f.compile_count == 0
    with torch.no_grad():
        agrees(f, x)
    assert f.compile_count == 1


def test_eagers_errors_come_through():  # U44
    f = jitted(lambda a, b: a @ b)
    with pytest.raises(RuntimeError, match=r"Half.*(Float|float)|same dtype"):
        f(randn(4, 8).half(), randn(8, 4))
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        f(randn(4, 8), randn(7, 4))
    agrees(f, randn(4, 8), randn(8, 4))
    with pytest.raises(RuntimeError, match="invalid for input of size 4"):
        jitted(lambda x: x.view(3))(randn(4))


def test_broadcasting_is_decided_again_when_sizes_ask_for_it():
    f = jitted(lambda x, y: x + y)
    for a, b in (((3, 4), (3, 4)), ((3, 4), (1, 4)), ((5, 4), (5, 4)), ((5, 4), (1, 4))):
        agrees(f, randn(a), randn(b))
    assert f.compile_count == 2


def test_an_unsupported_operation_is_explained_with_its_line():  # U77
    f = jitted(lambda x: (x + 1).cumsum(0).softmax(-1))
    agrees(f, randn(3, 4))
    text = f.explain()
    assert (
        "cumsum at test_jit.py" in text and "no lowering for this operation" in text and f.compile_count == 1
    )


def test_a_stale_intermediate_size_runs_in_pytorch():
    f = jitted(lambda x: torch.unique_consecutive(x.cumsum(0)) * 2)
    agrees(f, torch.ones(4))


def test_keyword_and_nested_arguments():
    def f(x, *, scale, pair):
        return x * scale + pair["a"] - pair["b"][0]

    agrees(jitted(f), randn(3), scale=2.0, pair={"a": randn(3), "b": [randn(3)]})


def test_strings_bools_and_none_specialise():
    f = jitted(
        lambda x, how, flag, other: (
            F.gelu(x, approximate=how) if flag else x + (0 if other is None else other)
        )
    )
    agrees(f, randn(3), "none", True, None)
    agrees(f, randn(3), "tanh", True, None)
    agrees(f, randn(3), "tanh", False, None)
    agrees(f, randn(3), "tanh", False, 2.0)


def test_ahead_of_time_refuses_what_does_not_fit():
    f = cleave.compile(
        lambda a, b: a @ b,
        (randn(4, 8), randn(8, 5)),
        dynamic={"a": ("M", None), "b": (None, "N")},
        compile_program=by_reference,
    )
    agrees(f, randn(7, 8), randn(8, 2))
    with pytest.raises(Invalid, match="argument a has size 9 on axis 1"):
        f(randn(7, 9), randn(9, 2))
    with pytest.raises(
        Invalid, match=r"argument a: expected torch.float32 of rank 2 on cpu, got torch.float64"
    ):
        f(randn(7, 8).double(), randn(8, 2))
    with pytest.raises(Invalid, match=r"argument a: expected .* rank 2 .* got .* rank 1"):
        f(randn(8), randn(8, 2))
    with pytest.raises(Invalid, match="compiled for 2 arguments, not 1"):
        f(randn(7, 8))
    assert f.compile_count == 1


def test_methods_can_be_decorated():
    class Model:
        def __init__(self) -> None:
            self.w = randn(3)

        def forward(self, x):
            return x * self.w

    model, other = Model(), Model()
    f = jitted(model.forward)
    agrees(f, randn(2, 3))
    model.w = randn(3)
    agrees(f, randn(2, 3))
    Model.compiled = jitted(Model.forward)
    for _ in range(2):
        agrees(model.compiled, randn(2, 3))
        agrees(other.compiled, randn(2, 3))
    assert model.compiled.compile_count == 1 and model.compiled is not other.compiled


def test_tensors_in_argument_objects_are_found():
    class Cache:
        def __init__(self) -> None:
            self.k = randn(3)

    cache = Cache()
    f = jitted(lambda x, cache: x * cache.k)
    agrees(f, randn(2, 3), cache)
    cache.k = randn(3)
    agrees(f, randn(2, 3), cache)
    agrees(f, randn(2, 3), Cache())


def test_a_module_in_training_runs_in_pytorch_without_compiling():
    f = jitted(torch.nn.Linear(4, 2))
    f(randn(3, 4)).sum().backward()
    f(randn(5, 4))
    assert f.compile_count == 0 and "requires a gradient" in f.fallbacks[0].reason
    with torch.no_grad():
        agrees(f, randn(3, 4))
    assert f.compile_count == 1


def test_an_in_place_update_of_a_weight_is_seen_and_a_new_shape_is_captured():
    holder = torch.nn.Module()
    holder.w = torch.nn.Parameter(randn(4), requires_grad=False)
    f = jitted(lambda x: x * holder.w)
    agrees(f, randn(2, 4))
    holder.w = torch.nn.Parameter(randn(5), requires_grad=False)
    agrees(f, randn(2, 5))
    holder.w = torch.nn.Parameter(randn(5).double(), requires_grad=False)
    agrees(f, randn(2, 5))


def test_torch_compile_backend():
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 4))

    def backend(graph, inputs):
        return torch_compile.backend(graph, inputs, options={"compile_program": by_reference})

    before = len(torch_compile.compiled_graphs)
    compiled = torch.compile(model, backend=backend, dynamic=True)
    with torch.no_grad():
        for n in (3, 5):
            x = randn(n, 8)
            same(compiled(x), model(x))
    assert torch_compile.compiled_graphs[before].compile_count == 1
    compiled(randn(3, 8)).sum().backward()
    assert model[0].weight.grad is not None


def test_long_chains_take_linear_time_to_capture():  # U58
    def chain(x, n=100):
        for _ in range(n):
            x = (x * 1.01 + 0.1).tanh()
        return x

    f = jitted(chain)
    agrees(f, randn(2, 2))
    assert f.compile_count == 1 and not f.fallbacks


t = 1.0
"""Also what `x.t()` is called."""


def gram(x: torch.Tensor) -> torch.Tensor:
    return x @ x.t()


def test_an_attribute_is_no_global_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    fast = cleave.compile(gram, (torch.randn(7, 5),), dynamic={"x": ("N", "K")})
    monkeypatch.setitem(globals(), "t", 2.0)
    x = torch.randn(6, 5)
    assert torch.allclose(fast(x), x @ x.t(), atol=1e-5)


SCALE = 2.0


class Scaled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * SCALE


def test_constants_that_a_modules_forward_reads_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(3, 4)
    for fast in (cleave.jit(Scaled()), cleave.jit(torch.nn.Sequential(torch.nn.ReLU(), Scaled()))):
        assert torch.allclose(fast(x), fast.fn(x))
        monkeypatch.setitem(globals(), "SCALE", 5.0)
        assert torch.allclose(fast(x), fast.fn(x))
        monkeypatch.setitem(globals(), "SCALE", 2.0)
