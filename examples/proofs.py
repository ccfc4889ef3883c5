"""Pairs of functions for `cleave prove`: spellings that are equal for every size, and two that are not.

cleave prove examples/proofs.py:softmax examples/proofs.py:softmax_unsafe
cleave prove examples/proofs.py:causal examples/proofs.py:causal_off_by_one
"""

import torch

import cleave


@cleave.program(x="f32[N, K]")
def softmax(x):
    return torch.softmax(x, -1)


@cleave.program(x="f32[N, K]")
def softmax_unsafe(x):
    e = x.exp()
    return e / e.sum(-1, keepdim=True)


@cleave.program(x="f32[N, K]")
def variance(x):
    return ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1)


@cleave.program(x="f32[N, K]")
def variance_one_pass(x):
    return (x * x).mean(-1) - x.mean(-1) ** 2


def _masked(s, shift):
    i = torch.arange(s.shape[0])[:, None]
    j = torch.arange(s.shape[1])[None, :]
    return torch.softmax(s.masked_fill(j > i + shift, float("-inf")), -1)


@cleave.program(s="f32[S, T]")
def causal(s):
    return _masked(s, 0)


@cleave.program(s="f32[S, T]")
def causal_off_by_one(s):
    return _masked(s, 1)
