"""The subgraphs of the static suite as plain PyTorch, written the way a model's author would.

Shapes by letter: B requests, H query heads, KV key heads, S rows (queries), T keys, D head depth, E depth of
values, K and N features, R a low rank, V words. Masks are bottom-right: the last query sees every key.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

LOG2E = 1.4426950408889634


def matmul(x, w):
    return x @ w


def grouped(q, k):
    """Queries as (B, KV, heads of one key head, S, D)."""
    return q.view(q.shape[0], k.shape[1], q.shape[1] // k.shape[1], q.shape[2], q.shape[3])


def positions(rows, keys, device):
    """Where each query stands among the keys, as a column, and the keys' own positions, as a row."""
    i = torch.arange(rows, device=device)[:, None] + (keys - rows)
    return i, torch.arange(keys, device=device)[None, :]


def attention(q, k, v):
    scores = (grouped(q, k) @ k.transpose(-1, -2).unsqueeze(2)) / math.sqrt(q.shape[-1])
    return (torch.softmax(scores, -1) @ v.unsqueeze(2)).reshape(*q.shape[:-1], v.shape[-1])


def causal_attention(q, k, v):
    scores = (grouped(q, k) @ k.transpose(-1, -2).unsqueeze(2)) / math.sqrt(q.shape[-1])
    i, j = positions(q.shape[2], k.shape[2], q.device)
    weights = torch.softmax(scores.masked_fill(j > i, float("-inf")), -1)
    return (weights @ v.unsqueeze(2)).reshape(*q.shape[:-1], v.shape[-1])


def causal_attention_lse(q, k, v):
    """Causal attention and its log-sum-exp in base 2, as serving engines keep it."""
    scores = (grouped(q, k) @ k.transpose(-1, -2).unsqueeze(2)).float() / math.sqrt(q.shape[-1])
    i, j = positions(q.shape[2], k.shape[2], q.device)
    scores = scores.masked_fill(j > i, float("-inf"))
    out = torch.softmax(scores, -1).to(v.dtype) @ v.unsqueeze(2)
    lse = torch.logsumexp(scores, -1) * LOG2E
    return out.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])


def softcap_attention(q, k, v, *, cap=50.0, window=4096):
    """Gemma 2: scores held within a cap, keys within a window."""
    scores = (grouped(q, k) @ k.transpose(-1, -2).unsqueeze(2)) / math.sqrt(q.shape[-1])
    scores = cap * torch.tanh(scores / cap)
    i, j = positions(q.shape[2], k.shape[2], q.device)
    scores = scores.masked_fill((j > i) | (i - j >= window), float("-inf"))
    return (torch.softmax(scores, -1) @ v.unsqueeze(2)).reshape(q.shape)


def sink_attention(q, k, v, sinks, *, window=128):
    """GPT-OSS: one more score a head that takes weight and gives nothing."""
    scores = (grouped(q, k) @ k.transpose(-1, -2).unsqueeze(2)).float() / math.sqrt(q.shape[-1])
    i, j = positions(q.shape[2], k.shape[2], q.device)
    scores = scores.masked_fill((j > i) | (i - j >= window), float("-inf"))
    sink = sinks.float().view(1, k.shape[1], -1, 1, 1).expand(*scores.shape[:-1], 1)
    weights = torch.softmax(torch.cat([scores, sink], -1), -1)[..., :-1]
    return (weights.to(v.dtype) @ v.unsqueeze(2)).reshape(q.shape)


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def qknorm_rope_attention(q, k, v, g_q, g_k, cos_q, sin_q, cos_k, sin_k):
    """Qwen 3: queries and keys are normalised and rotated before causal attention."""
    q = rotated(F.rms_norm(q, (q.shape[-1],), g_q, 1e-6), cos_q, sin_q)
    k = rotated(F.rms_norm(k, (k.shape[-1],), g_k, 1e-6), cos_k, sin_k)
    return causal_attention(q, k, v)


def qknorm_attention(q, k, v, g_q, g_k):
    """Decoding with queries and keys normalised by head."""
    q = F.rms_norm(q, (q.shape[-1],), g_q, 1e-6)
    k = F.rms_norm(k, (k.shape[-1],), g_k, 1e-6)
    return attention(q, k, v)


def latent_shared(q, kv, q_rope, k_rope):
    """MLA decode with the weights absorbed: all heads of a request share one latent."""
    scores = (q @ kv.transpose(-1, -2) + q_rope @ k_rope.transpose(-1, -2)) * 0.1352
    return torch.softmax(scores, -1) @ kv


def lora(x, w, a, b):
    return x @ w + (x @ a) @ b * 2.0


def mlp_block(x, g, w1, w2, w3):
    h = F.rms_norm(x, (x.shape[-1],), g, 1e-5)
    return (F.silu(h @ w1) * (h @ w2)) @ w3 + x


def add_rmsnorm(x, res, g):
    r = x + res
    return F.rms_norm(r, (r.shape[-1],), g, 1e-5), r


def rmsnorm(x, g):
    return F.rms_norm(x, (x.shape[-1],), g, 1e-5)


def layernorm(x, g, b):
    return F.layer_norm(x, (x.shape[-1],), g, b, 1e-5)


def layernorm_linear(x, g, b, w, c):
    return F.layer_norm(x, (x.shape[-1],), g, b, 1e-5) @ w + c


def softmax(x):
    return torch.softmax(x, -1)


def log_softmax(x):
    return torch.log_softmax(x, -1)


def cross_entropy(x, y):
    return F.cross_entropy(x.float(), y, reduction="none")


def linear_cross_entropy(h, w, y):
    return F.cross_entropy((h @ w).float(), y, reduction="none")


def quant_matmul(x, w8, s_w):
    """A row's largest value sets the step that it is rounded to; the step scales what comes out. The steps
    are those of 8-bit integers: Cleave has no 8-bit floats yet."""
    step = x.float().abs().amax(-1, keepdim=True) / 127.0
    q = torch.round(x.float() / step).to(x.dtype)
    return ((q @ w8.to(x.dtype)) * step * s_w).to(x.dtype)


def quant_matmul_int8(x, w8, s_w):
    """The same with the product of 8-bit numbers."""
    step = x.float().abs().amax(-1, keepdim=True) / 127.0
    q = torch.round(x.float() / step).to(torch.int8)
    return (torch._int_mm(q, w8).float() * step * s_w).to(x.dtype)


def ntrans(x, h, alpha):
    """nGPT: a step on the sphere towards a normalised update."""
    return F.normalize(x + alpha * (F.normalize(h, dim=-1) - x), dim=-1)
