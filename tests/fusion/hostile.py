"""Program files that are hard for the planner: random numbers in a step, a transformer block, many tensors,
writes in place, sizes of 0 and 1, loops, gathers, halves."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import cleave


@cleave.program(s="f32[N, 4]", first="int", N=40)
def drawn_step(s, first):
    """A step of Cartpole whose action and reset values are drawn in it."""
    index = torch.arange(s.shape[0], dtype=torch.int32)
    words = cleave.threefry2x32((7, 9), (index, torch.zeros_like(index) + first))
    x, v, a, w = s.unbind(-1)
    force = torch.where((words[0] & 1) == 1, 10.0, -10.0)
    c, sn = torch.cos(a), torch.sin(a)
    u = (force + 0.05 * w * w * sn) / 1.1
    turn = (9.8 * sn - c * u) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
    push = u - 0.05 * turn * c / 1.1
    new = torch.stack([x + 0.02 * v, v + 0.02 * push, a + 0.02 * w, w + 0.02 * turn], -1)
    done = (new[:, 0].abs() > 2.4) | (new[:, 2].abs() > 0.2095)
    fresh = torch.stack([cleave.uniform(words[k % 2], -0.05, 0.05) for k in range(4)], -1)
    return torch.where(done[:, None], fresh, new), done


@cleave.program(
    x="f32[S, D=32]", g="f32[D=32]", wq="f32[D=32, D2=32]", wk="f32[D=32, D2=32]", wv="f32[D=32, D2=32]",
    up="f32[H=48, D=32]", down="f32[D=32, H=48]", S=12,
)  # fmt: skip
def block(x, g, wq, wk, wv, up, down):
    h = F.rms_norm(x, (32,), g, 1e-5)
    q, k, v = h @ wq, h @ wk, h @ wv
    seen = torch.arange(x.shape[0])[:, None] >= torch.arange(x.shape[0])[None, :]
    p = torch.softmax(torch.where(seen, (q @ k.T) * 0.2, float("-inf")), -1)
    x = x + p @ v
    return x + F.linear(F.gelu(F.linear(F.rms_norm(x, (32,), g, 1e-5), up), approximate="tanh"), down)


@cleave.program(
    a="f32[A]", b="f32[B]", c="f32[C, 3]", d="f32[1]", ga="f32[A]", gb="f32[B]", gc="f32[C, 3]", gd="f32[1]",
    ma="f32[A]", mb="f32[B]", mc="f32[C, 3]", md="f32[1]", rate="float", A=70, B=33, C=5,
)  # fmt: skip
def many(a, b, c, d, ga, gb, gc, gd, ma, mb, mc, md, rate):
    found = []
    for p, g, m in ((a, ga, ma), (b, gb, mb), (c, gc, mc), (d, gd, md)):
        m = 0.9 * m + 0.1 * g
        found += [p - rate * m / (m.abs().sqrt() + 1e-8), m]
    return tuple(found)


@cleave.program(x="f32[N, 6]", y="f32[N]", N=20)
def in_place(x, y):
    """Writes into tensors of its own."""
    z = x * 2
    z.add_(y[:, None]).neg_()
    w = z.exp()
    z += 1
    w.mul_(y[:, None]).clamp_(max=5.0)
    return z, w, w.sum(-1)


@cleave.program(x="f32[N, 6]", y="f32[N]", N=20)
def assigns(x, y):
    """Writes to a part of a tensor, which is not captured."""
    z = x * 2
    z[:, 1] = y
    return z


@cleave.program(x="f32[N, 5]", e="f32[0, 5]", w="f32[5, 0]", N=7)
def empty(x, e, w):
    """Empty operands beside full ones: a concatenation, a product over nothing, a sum over nothing."""
    both = torch.cat([x, e], 0)
    nothing = x @ w
    return both.exp() - 1, nothing * 2, nothing.sum(-1) + x[:, 0], (e * 3).sum(0)


@cleave.program(x="f32[N, 2]", u="f32[T, N]", T=6, N=9)
def loop(x, u):
    """A loop whose state is one array, with work before and behind it."""

    def body(state, given):
        (both,) = state
        p, v = both.unbind(-1)
        v = 0.9 * v + given[0]
        return (torch.stack([p + 0.1 * v, v], -1),), (p * p,)

    (last,), (out,) = cleave.scan(body, (x * 2,), (u.tanh(),))
    return last.sum(-1), out.exp().mean(0)


@cleave.program(t="f32[V=11, D=8]", i="i64[N]", y="i64[N]", N=13)
def entropy(t, i, y):
    """Gathers: an embedding, and one logit a row."""
    h = F.embedding(i % 11, t)
    logits = h @ t.T
    top = logits - logits.amax(-1, keepdim=True)
    return top.exp().sum(-1).log() - top.gather(1, (y % 11)[:, None])[:, 0], h.sum(0)


@cleave.program(x="f16[N, D=24]", m="bool[N]", N=1)
def halves(x, m):
    """Halves and predicates, one row."""
    y = torch.where(m[:, None], x, -x).float()
    return (y / y.abs().amax(-1, keepdim=True).clamp(min=1e-3)).half(), (y > 0).sum(-1), m & (x[:, 0] > 0)
