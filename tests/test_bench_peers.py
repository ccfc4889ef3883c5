"""Peers that need a GPU, held to what they are asked for: FlexAttention as it runs uncompiled, FA3 and
FlashInfer by stand-ins with their calling conventions and plain PyTorch inside."""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from benchmarks.peers import fa3, flex, folds, sdpa
from benchmarks.peers_flashinfer import flashinfer
from benchmarks.suites import PAPER, STATIC

CASES = {case.name: case for case in (*PAPER, *STATIC)}
FAST = ("gqa-d128", "causal-gqa-lse2", "mla-decode-shared", "sinks-window", "qknorm-decode")
BASE = {"B": 1, "H": 4, "KV": 2, "S": 16, "T": 32, "D": 8, "E": 4, "C": 16, "R": 8}
LSE = math.log2(math.e)


def attentions(keep=lambda case: True):
    """The cases that libraries can compute, most of them only where tests may take long."""
    names = [name for name, case in CASES.items() if case.attention and keep(case)]
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


def plain(q, k, v, *, scale=None, causal=False, left=-1, cap=0.0):
    """Attention on [B, H, S, D] and its natural log-sum-exp."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
    scores = cap * torch.tanh(scores / cap) if cap else scores
    i = torch.arange(q.shape[2])[:, None] + k.shape[2] - q.shape[2]
    j = torch.arange(k.shape[2])[None, :]
    if causal:
        scores = scores.masked_fill(j > i, -math.inf)
    if left >= 0:
        scores = scores.masked_fill(i - j > left, -math.inf)
    return torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)


def flash_attn_func(
    q, k, v, softmax_scale=None, causal=False, qv=None, window_size=(-1, -1), softcap=0.0, num_splits=1,
    pack_gqa=None, return_attn_probs=False,
):  # fmt: skip
    t = [x.transpose(1, 2) for x in (q, k, v)]
    if qv is not None:
        joined = torch.cat([t[0], qv.transpose(1, 2)], -1), torch.cat([t[1], t[2]], -1)
        return plain(*joined, t[2], scale=softmax_scale)[0].transpose(1, 2)
    out, lse = plain(*t, scale=softmax_scale, causal=causal, left=window_size[0], cap=softcap)
    return (out.transpose(1, 2), lse) if return_attn_probs else out.transpose(1, 2)


def single_prefill_with_kv_cache(
    q,
    k,
    v,
    causal=False,
    return_lse=False,
    sm_scale=None,
    window_left=-1,
    logits_soft_cap=None,
    backend="auto",
):
    t = [x.transpose(0, 1)[None] for x in (q, k, v)]
    out, lse = plain(*t, scale=sm_scale, causal=causal, left=window_left, cap=logits_soft_cap or 0.0)
    found = out[0].transpose(0, 1), lse[0].T * LSE
    return found if return_lse else found[0]


def single_decode_with_kv_cache(q, k, v, use_tensor_cores=False, **options):
    return single_prefill_with_kv_cache(q[None], k, v, **options)[0]


class Paged:
    def __init__(self, space, layout, use_tensor_cores=False):
        assert layout == "NHD"

    def plan(self, ends, indices, last, heads, kv, depth, page, **options):
        self.count, self.options = len(ends) - 1, options
        assert int(ends[-1]) == len(indices) and (last == page).all()

    def run(self, q, cache):
        keys, values = (x.reshape(self.count, -1, *x.shape[2:]) for x in cache)
        options = {k: self.options[k] for k in ("sm_scale", "window_left", "logits_soft_cap")}
        each = zip(q, keys, values, strict=True)
        return torch.stack([single_decode_with_kv_cache(*t, **options) for t in each])


class Latent:
    def __init__(self, space, backend="auto"):
        pass

    def plan(self, queries, keys, indices, lengths, heads, ckv, kpe, page, causal, scale, *dtypes):
        self.scale, self.count = scale, len(lengths)
        assert int(keys[-1]) * page == int(lengths.sum()) and not causal

    def run(self, q, q_rope, ckv, kpe):
        kv, rope = (x.reshape(self.count, -1, x.shape[-1])[:, None] for x in (ckv, kpe))
        joined = torch.cat([q, q_rope], -1)[:, :, None], torch.cat([kv, rope], -1)
        return plain(*joined, kv, scale=self.scale)[0][:, :, 0]


@pytest.fixture
def libraries(monkeypatch):
    parts = {
        "fa3_fwd_interface": {"flash_attn_func": flash_attn_func},
        "flashinfer": {
            "single_prefill_with_kv_cache": single_prefill_with_kv_cache,
            "single_decode_with_kv_cache": single_decode_with_kv_cache,
            "BatchDecodeWithPagedKVCacheWrapper": Paged,
            "mla": SimpleNamespace(BatchMLAPagedAttentionWrapper=Latent),
        },
    }
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def check(case, peer, sizes):
    """All settings compute the case, but for those that say they cannot; returns how many do."""
    inputs = case.make(sizes, torch.float32, "cpu", 0)
    known = case.function(*inputs)
    known = known if isinstance(known, tuple) else (known,)
    right = 0
    for _, call in peer(case.attention, sizes):
        try:
            found = call(*inputs)
        except NotImplementedError:
            continue
        for one, other in zip(found if isinstance(found, tuple) else (found,), known, strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)
        right += 1
    return right


def sizes_of(case, **changed):
    dims = {d for dims in case.inputs.values() for d in dims}
    return {d: {**BASE, **changed}[d] for d in dims}


@pytest.mark.parametrize("name", attentions())
@pytest.mark.parametrize("rows", [1, 16])
def test_fa3_is_called_as_the_case_means(libraries, name, rows):
    case = CASES[name]
    sizes = sizes_of(case, S=rows)
    if case.attention.sinks is not None:
        with pytest.raises(NotImplementedError):
            next(fa3(case.attention, sizes))
        return
    assert check(case, fa3, sizes) >= 7


@pytest.mark.parametrize("name", attentions())
@pytest.mark.parametrize("rows, batch", [(1, 1), (1, 3), (16, 1)])
def test_flashinfer_is_called_as_the_case_means(libraries, name, rows, batch):
    case = CASES[name]
    sizes = sizes_of(case, S=rows, B=batch)
    if case.attention.sinks is not None or (case.attention.lse and sizes.get("B", 1) > 1):
        with pytest.raises(NotImplementedError):
            check(case, flashinfer, sizes)
        return
    paged = rows == 1 and sizes.get("B", 1) > 1 and not case.attention.latent
    assert check(case, flashinfer, sizes) == (0 if paged and case.attention.prologue else 2) or not paged


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", attentions(lambda case: case.name != "mla-decode"))
@pytest.mark.parametrize("rows", [1, 16])
def test_flex_is_called_as_the_case_means(libraries, name, rows):
    case = CASES[name]

    sizes = sizes_of(case, S=rows, B=2)
    assert check(case, lambda how, sizes: iter([next(flex(how, sizes))]), sizes) == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("rows", [1, 160])
def test_windows_end_at_the_query(libraries, rows):
    case = CASES["sinks-window"]
    sizes = sizes_of(case, S=rows, T=200)
    assert check(case, lambda how, sizes: iter([next(flex(how, sizes))]), sizes) == 1


@pytest.mark.parametrize("name", attentions(lambda case: not case.attention.lse))
def test_sdpa_is_called_as_the_case_means(libraries, name):
    case = CASES[name]
    how = case.attention
    if how.cap or how.sinks is not None:
        with pytest.raises(NotImplementedError):
            next(sdpa(how, {}, None))
        return
    assert check(case, lambda how, sizes: sdpa(how, sizes, None), sizes_of(case, B=2)) >= 1


def test_query_heads_are_folded_only_where_no_mask_tells_them_apart():
    q, k = torch.empty(2, 4, 3, 8), torch.empty(2, 2, 5, 8)
    how = CASES["attention"].attention
    causal = CASES["causal-attention"].attention
    assert set(folds(how, q, k)) == {"", "heads as batch", "query heads as rows"}
    assert set(folds(causal, q, k)) == {"", "heads as batch"}
    packed, keys, _ = folds(how, q, k)["query heads as rows"]((q, k, k))
    assert packed.shape == (4, 1, 6, 8) and keys.shape == (4, 1, 5, 8)
