"""The cases in JAX, compiled by XLA, where JAX can be imported.

JAX has a stream of its own, which CUDA events on PyTorch's do not see: its calls are timed by the wall clock,
many queued one after the other over the input sets and waited for once. Where a call takes less than the
host needs to queue it, what is shown is the host's time, and says so (`timed`).
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.case import Case

if TYPE_CHECKING:
    from benchmarks.peers import Peer

QUEUED = 20


def jax_peer(case: Case) -> list[Peer]:
    """JAX as a peer of a case that has a version in it."""
    from benchmarks.peers import Peer

    if case.name not in VERSIONS:
        return []
    return [Peer("jax", lambda: iter([("", JaxCall(VERSIONS[case.name]))]))]


class JaxCall:
    """A jitted function on torch tensors: memory is shared both ways, nothing is copied."""

    def __init__(self, version: Callable[[Any, Any], Callable[..., Any]]) -> None:
        if importlib.util.find_spec("jax") is None:
            from benchmarks.peers import NotInstalled

            raise NotInstalled("jax is not installed")
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        import jax
        import jax.numpy as jnp

        self.jax = jax
        self.run = jax.jit(version(jax, jnp))

    def __call__(self, *inputs: torch.Tensor) -> object:
        out = self.run(*(self.jax.dlpack.from_dlpack(t) for t in inputs))
        self.jax.block_until_ready(out)
        if isinstance(out, tuple):
            return tuple(torch.from_dlpack(o) for o in out)
        return torch.from_dlpack(out)

    def seconds(self, sets: Sequence[Sequence[torch.Tensor]], repeats: int) -> tuple[float, int]:
        """Median seconds of a call among `QUEUED` in a row, and of how many such rows."""
        given = [tuple(self.jax.dlpack.from_dlpack(t) for t in inputs) for inputs in sets]
        times: list[float] = []
        for _ in range(max(5, repeats // QUEUED) + 1):
            torch.cuda.synchronize()
            began = time.perf_counter()
            outs = [self.run(*given[n % len(given)]) for n in range(QUEUED)]
            self.jax.block_until_ready(outs)
            times.append((time.perf_counter() - began) / QUEUED)
        return statistics.median(times[1:]), len(times) - 1


def _norm(jnp: Any, x: Any, g: Any, eps: float) -> Any:
    wide = x.astype(jnp.float32)
    scale = 1.0 / jnp.sqrt((wide * wide).mean(-1, keepdims=True) + eps)
    return (wide * scale).astype(x.dtype) * g


def _layer(jnp: Any, x: Any, g: Any, b: Any) -> Any:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scale = 1.0 / jnp.sqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return (centred * scale).astype(x.dtype) * g + b


def _unit(jnp: Any, x: Any) -> Any:
    wide = x.astype(jnp.float32)
    size = jnp.sqrt((wide * wide).sum(-1, keepdims=True))
    return (wide / jnp.maximum(size, 1e-12)).astype(x.dtype)


def _swiglu(jax: Any, jnp: Any) -> Callable[..., Any]:
    return lambda x, w1, w2: jax.nn.silu(x @ w1) * (x @ w2)


def _loss(jax: Any, jnp: Any, logits: Any, y: Any) -> Any:
    wide = logits.astype(jnp.float32)
    return jax.nn.logsumexp(wide, -1) - jnp.take_along_axis(wide, y[:, None], -1)[:, 0]


def _attention(batched: bool, causal: bool) -> Callable[[Any, Any], Callable[..., Any]]:
    def version(jax: Any, jnp: Any) -> Callable[..., Any]:
        def run(q: Any, k: Any, v: Any) -> Any:
            t = (q, k, v) if batched else (q[None], k[None], v[None])
            swapped = [x.swapaxes(1, 2) for x in t]
            out = jax.nn.dot_product_attention(*swapped, is_causal=causal).swapaxes(1, 2)
            return out if batched else out[0]

        return run

    return version


VERSIONS: dict[str, Callable[[Any, Any], Callable[..., Any]]] = {
    "matmul": lambda jax, jnp: lambda x, w: x @ w,
    "matmul-narrow": lambda jax, jnp: lambda x, w: x @ w,
    "matmul+matmul": lambda jax, jnp: lambda q, k, v: (q @ k.swapaxes(-1, -2)) @ v,
    "matmul+rowsum": lambda jax, jnp: lambda x, w: (x @ w).sum(-1),
    "swiglu": _swiglu,
    "rmsnorm+matmul": lambda jax, jnp: lambda x, g, w: _norm(jnp, x, g, 1e-5) @ w,
    "rmsnorm": lambda jax, jnp: lambda x, g: _norm(jnp, x, g, 1e-5),
    "layernorm": lambda jax, jnp: lambda x, g, b: _layer(jnp, x, g, b),
    "layernorm+linear": lambda jax, jnp: lambda x, g, b, w, c: _layer(jnp, x, g, b) @ w + c,
    "add+rmsnorm": lambda jax, jnp: lambda x, res, g: (_norm(jnp, x + res, g, 1e-5), x + res),
    "softmax": lambda jax, jnp: lambda x: jax.nn.softmax(x, -1),
    "log-softmax": lambda jax, jnp: lambda x: jax.nn.log_softmax(x, -1),
    "cross-entropy": lambda jax, jnp: lambda x, y: _loss(jax, jnp, x, y),
    "linear+cross-entropy": lambda jax, jnp: lambda h, w, y: _loss(jax, jnp, h @ w, y),
    "ntrans": lambda jax, jnp: lambda x, h, a: _unit(jnp, x + a * (_unit(jnp, h) - x)),
    "lora": lambda jax, jnp: lambda x, w, a, b: x @ w + (x @ a) @ b * 2.0,
    "mlp-block": lambda jax, jnp: (
        lambda x, g, w1, w2, w3: _swiglu(jax, jnp)(_norm(jnp, x, g, 1e-5), w1, w2) @ w3 + x
    ),
    "attention": _attention(True, False),
    "mha-d64": _attention(False, False),
    "mha-d128": _attention(False, False),
    "gqa-d64": _attention(False, False),
    "gqa-d128": _attention(False, False),
    "mqa-d64": _attention(False, False),
    "mqa-d128": _attention(False, False),
}
"""Causal attention is left out where rows and keys may differ: JAX's mask is top-left."""
