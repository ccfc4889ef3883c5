"""The suites: plain PyTorch functions, the sizes they are run at, and how their inputs are made.

`paper` holds the nine subgraphs of the Cleave paper (section 0.5) at its prefill and decode sizes, softmax in
its safe form, plus causal grouped-query attention with its log-sum-exp as a second output. On the CPU the
same functions run at sizes that two cores finish in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from benchmarks.case import Attention, Case, Sizes, grid
from benchmarks.static_suite import static


def matmul(x, w):
    return x @ w


def matmul_matmul(q, k, v):
    return (q @ k.transpose(-1, -2)) @ v


def matmul_rowsum(x, w):
    return (x @ w).sum(-1)


def swiglu(x, w1, w2):
    return F.silu(x @ w1) * (x @ w2)


def rmsnorm_matmul(x, g, w):
    return F.rms_norm(x, (x.shape[-1],), g, 1e-5) @ w


def attention(q, k, v):
    scores = (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    return torch.softmax(scores, -1) @ v


def grouped_attention(q, k, v):
    heads, rows, depth = q.shape
    grouped = q.view(k.shape[0], heads // k.shape[0], rows, depth)
    scores = (grouped @ k.transpose(-1, -2).unsqueeze(1)) / math.sqrt(depth)
    return (torch.softmax(scores, -1) @ v.unsqueeze(1)).reshape(heads, rows, v.shape[-1])


def latent_attention(q, kv, q_rope, k_rope):
    scores = (q @ kv.transpose(-1, -2) + q_rope @ k_rope.transpose(-1, -2)) * 0.1352
    return torch.softmax(scores, -1) @ kv


def causal_grouped_attention(q, k, v):
    heads, rows, depth = q.shape
    keys = k.shape[1]
    grouped = q.view(k.shape[0], heads // k.shape[0], rows, depth)
    scores = (grouped @ k.transpose(-1, -2).unsqueeze(1)).float() / math.sqrt(depth)
    i = torch.arange(rows, device=q.device)[:, None] + (keys - rows)
    j = torch.arange(keys, device=q.device)[None, :]
    scores = scores.masked_fill(j > i, float("-inf"))
    out = torch.softmax(scores, -1).to(v.dtype) @ v.unsqueeze(1)
    return out.reshape(heads, rows, v.shape[-1]), torch.logsumexp(scores, -1).reshape(heads, rows)


HEADS = Attention(lambda q, k, v: (q[None], k[None], v[None]), lambda out: out[0])
"""The paper's attention has no batch: libraries get one of 1."""
LATENT = Attention(
    lambda q, kv, q_rope, k_rope: (
        torch.cat([q, q_rope], -1)[None],
        torch.cat([kv, k_rope], -1)[None],
        kv[None],
    ),
    lambda out: out[0],
    scale=0.1352,
    latent=True,
)


def _attention_case(name: str, kv: int, heads: int, depth: int) -> Case:
    grouped = kv != heads
    gpu = {"H": heads, "KV": kv, "T": 4096, "D": depth}
    cpu = {"H": 8, "KV": max(1, 8 * kv // heads), "T": 1024, "D": depth}
    key = "KV" if grouped else "H"
    return Case(
        name=f"{name}-d{depth}",
        function=grouped_attention if grouped else attention,
        inputs={"q": ("H", "S", "D"), "k": (key, "T", "D"), "v": (key, "T", "D")},
        dynamic=("S", "T"),
        points={
            ("cuda", "prefill"): grid(gpu, "S", (512, 1024, 2048, 4096)),
            ("cuda", "decode"): grid(gpu, "S", (16, 64, 128)),
            ("cpu", "prefill"): grid(cpu, "S", (128, 512)),
            ("cpu", "decode"): grid({**cpu, "T": 4096}, "S", (1, 16)),
        },
        attention=HEADS,
        independent=("H", "KV") if grouped else ("H",),
        flops=lambda s: 4.0 * s["H"] * s["S"] * s["T"] * s["D"],
    )


def _latent_case(rows: Sequence[int]) -> Case:
    big = {"H": 128, "S": 128, "C": 512, "R": 64}
    small = {"H": 8, "S": 16, "C": 128, "R": 32}
    return Case(
        name="mla-decode",
        function=latent_attention,
        inputs={
            "q": ("H", "S", "C"),
            "kv": ("H", "T", "C"),
            "q_rope": ("H", "S", "R"),
            "k_rope": ("H", "T", "R"),
        },
        dynamic=("S", "T"),
        points={
            ("cuda", "decode"): grid(big, "T", rows),
            ("cpu", "decode"): grid(small, "T", (512, 1024)),
        },
        attention=LATENT,
        independent=("H",),
        flops=lambda s: 2.0 * s["H"] * s["S"] * s["T"] * (2 * s["C"] + s["R"]),
    )


def _linear_points(gpu: Sizes, cpu: Sizes) -> dict[tuple[str, str], list[Sizes]]:
    return {
        ("cuda", "prefill"): grid(gpu, "S", (256, 1024, 4096)),
        ("cuda", "decode"): grid(gpu, "S", (16, 64, 128)),
        ("cpu", "prefill"): grid(cpu, "S", (64, 256)),
        ("cpu", "decode"): grid(cpu, "S", (1, 16)),
    }


PAPER: tuple[Case, ...] = (
    Case(
        name="matmul",
        function=matmul,
        inputs={"x": ("S", "K"), "w": ("K", "N")},
        dynamic=("S",),
        points=_linear_points({"K": 4096, "N": 4096}, {"K": 1024, "N": 1024}),
        flops=lambda s: 2.0 * s["S"] * s["K"] * s["N"],
    ),
    Case(
        name="matmul+matmul",
        function=matmul_matmul,
        inputs={"q": ("H", "S", "D"), "k": ("H", "T", "D"), "v": ("H", "T", "D")},
        dynamic=("S", "T"),
        points={
            ("cuda", "prefill"): grid({"H": 32, "T": 4096, "D": 64}, "S", (512, 1024, 4096)),
            ("cuda", "decode"): grid({"H": 32, "T": 4096, "D": 64}, "S", (16, 64, 128)),
            ("cpu", "prefill"): grid({"H": 8, "T": 1024, "D": 64}, "S", (128, 512)),
            ("cpu", "decode"): grid({"H": 8, "T": 4096, "D": 64}, "S", (1, 16)),
        },
        flops=lambda s: 4.0 * s["H"] * s["S"] * s["T"] * s["D"],
    ),
    Case(
        name="matmul+rowsum",
        function=matmul_rowsum,
        inputs={"x": ("S", "K"), "w": ("K", "N")},
        dynamic=("S",),
        points=_linear_points({"K": 64, "N": 4096}, {"K": 64, "N": 4096}),
        flops=lambda s: 2.0 * s["S"] * s["K"] * s["N"],
    ),
    Case(
        name="swiglu",
        function=swiglu,
        inputs={"x": ("S", "K"), "w1": ("K", "N"), "w2": ("K", "N")},
        dynamic=("S",),
        points=_linear_points({"K": 4096, "N": 14336}, {"K": 1024, "N": 2048}),
        flops=lambda s: 4.0 * s["S"] * s["K"] * s["N"],
    ),
    Case(
        name="rmsnorm+matmul",
        function=rmsnorm_matmul,
        inputs={"x": ("S", "K"), "g": ("K",), "w": ("K", "N")},
        dynamic=("S",),
        points=_linear_points({"K": 4096, "N": 6144}, {"K": 2048, "N": 2048}),
        flops=lambda s: 2.0 * s["S"] * s["K"] * s["N"],
    ),
    *(_attention_case("mha", 32, 32, depth) for depth in (64, 128)),
    *(_attention_case("gqa", 8, 32, depth) for depth in (64, 128)),
    *(_attention_case("mqa", 1, 32, depth) for depth in (64, 128)),
    Case(
        name="mla-prefill",
        function=attention,
        inputs={"q": ("H", "S", "D"), "k": ("H", "T", "D"), "v": ("H", "T", "E")},
        dynamic=("S", "T"),
        points={
            ("cuda", "prefill"): grid({"H": 128, "T": 4096, "D": 192, "E": 128}, "S", (512, 1024, 2048)),
            ("cpu", "prefill"): grid({"H": 8, "T": 512, "D": 96, "E": 64}, "S", (128, 512)),
        },
        attention=HEADS,
        independent=("H",),
        flops=lambda s: 2.0 * s["H"] * s["S"] * s["T"] * (s["D"] + s["E"]),
    ),
    _latent_case((1024, 2048, 4096)),
    Case(
        name="causal-gqa-lse",
        function=causal_grouped_attention,
        inputs={"q": ("H", "S", "D"), "k": ("KV", "T", "D"), "v": ("KV", "T", "D")},
        dynamic=("S", "T"),
        points={
            ("cuda", "prefill"): [
                {"H": 32, "KV": 8, "D": 128, "S": s, "T": s} for s in (512, 1024, 2048, 4096)
            ],
            ("cuda", "decode"): [{"H": 32, "KV": 8, "D": 128, "S": s, "T": 4096} for s in (1, 16)],
            ("cpu", "prefill"): [{"H": 8, "KV": 2, "D": 64, "S": s, "T": s} for s in (127, 512, 1024)],
            ("cpu", "decode"): [{"H": 8, "KV": 2, "D": 64, "S": 1, "T": 4097}],
        },
        flops=lambda s: 2.0 * s["H"] * s["S"] * (2 * s["T"] - s["S"]) * s["D"],
        attention=replace(HEADS, causal=True, lse=math.e),
        independent=("H", "KV"),
    ),
)


STATIC: tuple[Case, ...] = static(PAPER)

SUITES: Mapping[str, tuple[Case, ...]] = {"paper": PAPER, "static": STATIC}
