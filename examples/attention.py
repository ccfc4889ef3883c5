"""Causal grouped-query attention with its log-sum-exp as a second output, from plain PyTorch.

cleave explain examples/attention.py:attention
cleave compile examples/attention.py:attention --emit triton --size S=1 --size T=4096
python examples/attention.py
"""

import math

import torch

import cleave


@cleave.program(q="f32[H=8, S, D=64]", k="f32[KV=2, T, D]", v="f32[KV, T, D]", S=512, T=512)
def attention(q, k, v):
    heads, rows, depth = q.shape
    groups, keys = k.shape[0], k.shape[1]
    grouped = q.view(groups, heads // groups, rows, depth)
    scores = (grouped @ k.transpose(-1, -2).unsqueeze(1)) / math.sqrt(depth)
    i = torch.arange(rows, device=q.device)[:, None] + (keys - rows)
    j = torch.arange(keys, device=q.device)[None, :]
    scores = scores.masked_fill(j > i, float("-inf"))
    out = torch.softmax(scores, -1) @ v.unsqueeze(1)
    return out.reshape(heads, rows, depth), torch.logsumexp(scores, -1).reshape(heads, rows)


def main() -> None:
    fast = cleave.jit(attention)
    for rows, keys in ((512, 512), (1, 4097), (127, 127)):
        q, k, v = torch.randn(8, rows, 64), torch.randn(2, keys, 64), torch.randn(2, keys, 64)
        out, lse = fast(q, k, v)
        expected, expected_lse = attention(q.double(), k.double(), v.double())
        gap = max(float((out - expected).abs().max()), float((lse - expected_lse).abs().max()))
        print(f"S={rows} T={keys}: off float64 by {gap:.1e}, compiles so far {fast.compile_count}")


if __name__ == "__main__":
    main()
