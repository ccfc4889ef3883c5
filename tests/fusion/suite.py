"""Program files of the fusion suite, small enough for tests (`cleave.program` declarations)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import cleave


@cleave.program(x="f32[N, D=64]", N=33)
def softmax(x):
    return torch.softmax(x, -1)


@cleave.program(x="f32[N, D=64]", w="f32[D=64]", b="f32[D=64]", N=33)
def layer_norm(x, w, b):
    return F.layer_norm(x, (64,), w, b)


@cleave.program(x="f32[N, D=32]", w="f32[H=48, D=32]", b="f32[H=48]", N=17)
def gelu_mlp(x, w, b):
    return F.gelu(F.linear(x, w, b), approximate="tanh")


@cleave.program(
    p="f32[A]", g="f32[A]", m="f32[A]", q="f32[B, C]", h="f32[B, C]", n="f32[B, C]", A=100, B=7, C=9
)
def updates(p, g, m, q, h, n):
    outs = []
    for value, grad, first in ((p, g, m), (q, h, n)):
        moment = 0.9 * first + 0.1 * grad
        outs += [value - 0.001 * moment / (moment.abs().sqrt() + 1e-8), moment]
    return tuple(outs)


@cleave.program(x="f32[N, D=64]", r="f32[N, D=64]", w="f32[D=64]", N=33)
def residual_norm(x, r, w):
    y = x + r
    z = y * torch.rsqrt((y * y).mean(-1, keepdim=True) + 1e-6) * w
    s = z.abs().amax(-1, keepdim=True) / 127
    return y, torch.round(z / s), s


@cleave.program(q="f32[S, D=16]", k="f32[T, D=16]", v="f32[T, D=16]", S=20, T=24)
def attention(q, k, v):
    return torch.softmax(q @ k.T * 0.25, -1) @ v


@cleave.program(s="f32[N, 4]", a="f32[N]", N=50)
def cartpole(s, a):
    x, xd, th, thd = s[:, 0], s[:, 1], s[:, 2], s[:, 3]
    force = torch.where(a == 1, 10.0, -10.0)
    c, sn = torch.cos(th), torch.sin(th)
    u = (force + 0.05 * thd * thd * sn) / 1.1
    tha = (9.8 * sn - c * u) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
    xa = u - 0.05 * tha * c / 1.1
    n = torch.stack([x + 0.02 * xd, xd + 0.02 * xa, th + 0.02 * thd, thd + 0.02 * tha], 1)
    done = (n[:, 0].abs() > 2.4) | (n[:, 2].abs() > 0.2095)
    return n, done


@cleave.program(x="f16[N, D=64]", N=33)
def softmax16(x):
    return torch.softmax(x, -1)


@cleave.program(p="f16[A]", g="f16[A]", q="f16[B, C]", h="f16[B, C]", A=100, B=7, C=9)
def updates16(p, g, q, h):
    return p - 0.1 * g, q - 0.1 * h


@cleave.program(x="f32[N, D=64]", N=33)
def exp_and_sum(x):
    e = torch.exp(x)
    return e, e.sum(-1)
