"""What Cartpole is compared with: eager PyTorch, torch.compile, JAX, and a kernel written by hand.

JAX is used where it can be imported. Its baselines are those of the study: `B0` (state [N, 4], random numbers
in the loop), `B1` (precomputed), `S2` (four arrays), `S3 k` (unrolled k times). Every peer that can be is
given the same inputs as Cleave, and its results are compared; B0 draws numbers of its own.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.cartpole_case import Case, graphed
from benchmarks.cartpole_env import LIMIT_ANGLE, LIMIT_X, LONGEST, TAU, Inputs, step

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

EAGER_STEPS = 20


def stepped(function: Callable[..., Any], inputs: Inputs) -> Callable[[], Any]:
    """A loop in Python around a function of one step."""

    def run() -> Any:
        found: list[Any] = []
        state: Any = (*inputs.state, inputs.count)
        for t in range(inputs.steps):
            state, out = function(state, inputs.action[t], tuple(f[t] for f in inputs.fresh))
            found.append((*state, out[0][None], out[1][None]))
        return found

    return run


def eager(inputs: Inputs) -> Case:
    """PyTorch, one kernel per operation, launched from Python."""
    few = inputs.cut(0, min(EAGER_STEPS, inputs.steps))
    return Case("PyTorch eager", stepped(step, few), few.steps, {"launches_per_step": 50})


class Compiled:
    """torch.compile of one step, called from Python (on a GPU through a CUDA graph)."""

    def __init__(self) -> None:
        self.function: Any = None
        self.seconds = 0.0

    def case(self, inputs: Inputs, target: str) -> Case:
        few = inputs.cut(0, min(100, inputs.steps))
        start = time.perf_counter()
        if self.function is None:
            self.function = torch.compile(step, dynamic=True)
        run = stepped(self.function, few)
        run()
        self.seconds = self.seconds or time.perf_counter() - start
        call = graphed(run) if target == "cuda" else run
        return Case(
            "torch.compile", call, few.steps, {"compile_seconds": self.seconds, "launches_per_step": 1}
        )


# ---------------------------------------------------------------- JAX


JAX = ("B0", "B1", "S2", "S3 10", "S3 2", "S3 5", "S3 20")
"""The baselines that run in JAX."""
_GIVEN: dict[str, Any] = {}
"""The last inputs as JAX has them."""


def jax_case(name: str, inputs: Inputs, target: str) -> Case:
    """One of `JAX`; raises `ImportError` where there is no JAX."""
    import jax  # pyright: ignore[reportMissingImports]  it is no dependency

    device = jax.devices("gpu" if target == "cuda" else "cpu")[0]

    def array(tensor: torch.Tensor) -> Any:
        if tensor.is_cuda:  # the same memory
            return jax.dlpack.from_dlpack(tensor.contiguous())
        return jax.device_put(tensor.numpy(), device)

    if _GIVEN.get("inputs") is not inputs:
        _GIVEN.clear()
        _GIVEN["inputs"] = inputs
    return _jax_case(jax, name, inputs, array, _GIVEN)


def _jax_case(
    jax: Any, name: str, inputs: Inputs, array: Callable[[torch.Tensor], Any], made: dict[str, Any]
) -> Case:
    step_of = jax_step(jax.numpy)
    if "state" not in made:
        made["state"] = tuple(map(array, inputs.state))
        made["count"], made["action"] = array(inputs.count), array(inputs.action)
        made["fresh"] = tuple(map(array, inputs.fresh))
    if name in ("B0", "B1") and "both" not in made:
        made["both"] = jax.numpy.stack(made["state"], -1)
        made["fresh4"] = jax.numpy.stack(made["fresh"], -1)
    loop = _jax_stacked if name in ("B0", "B1") else _jax_separate
    function, args = loop(jax, step_of, name, inputs, made)
    start = time.perf_counter()
    jitted = jax.jit(function).lower(*args).compile()
    seconds = time.perf_counter() - start

    def run() -> Any:
        return jax.block_until_ready(jitted(*args))

    def results() -> Any:
        state, (reward, done) = run()
        return [tuple(_tensor(x) for x in (*jax.tree.leaves(state), reward, done))]

    def one(*given: Any) -> Any:
        state, out = jax.jit(step_of)(given[:5], given[5], given[6:])
        return (*state, *out)

    compare = None if name == "B0" else results
    facts = {"compile_seconds": seconds, "results": compare, "blocks": True}
    return Case(f"JAX {name}", run, inputs.steps, facts if name == "B0" else {**facts, "one_step": one})


Loop = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function and its arguments."""


def _jax_stacked(
    jax: Any, step_of: Callable[..., Any], name: str, inputs: Inputs, made: dict[str, Any]
) -> Loop:
    """`B0` and `B1`: the state is one array; `B0` draws actions and fresh states in the loop."""
    jnp, lax = jax.numpy, jax.lax
    size, steps = inputs.size, inputs.steps

    def stacked_body(carry: Any, given: Any) -> Any:
        both, count = carry
        action, fresh = given
        parts, out = step_of(
            (*[both[:, k] for k in range(4)], count), action, [fresh[:, k] for k in range(4)]
        )
        return (jnp.stack(parts[:4], -1), parts[4]), out

    def drawn_body(carry: Any, key: Any) -> Any:
        one, two = jax.random.split(key)
        action = jax.random.bernoulli(one, shape=(size,)).astype(jnp.int32)
        fresh = jax.random.uniform(two, (size, 4), minval=-0.05, maxval=0.05)
        return stacked_body(carry, (action, fresh))

    def drawn(both: Any, count: Any, key: Any) -> Any:
        return lax.scan(drawn_body, (both, count), jax.random.split(key, steps))

    def read(both: Any, count: Any, *given: Any) -> Any:
        return lax.scan(stacked_body, (both, count), given)

    if name == "B0":
        return drawn, (made["both"], made["count"], jax.random.key(0))
    return read, (made["both"], made["count"], made["action"], made["fresh4"])


def _jax_separate(
    jax: Any, step_of: Callable[..., Any], name: str, inputs: Inputs, made: dict[str, Any]
) -> Loop:
    """`S2` and `S3`: an array for each part of the state; `S3 10` unrolls ten steps."""
    unroll = int(name.split()[1]) if name.startswith("S3") else 1

    def separate_body(carry: Any, given: Any) -> Any:
        return step_of(carry, given[0], given[1:])

    def separate(state: Any, *given: Any) -> Any:
        return jax.lax.scan(separate_body, state, given, unroll=unroll)

    return separate, ((*made["state"], made["count"]), made["action"], *made["fresh"])


def _tensor(array: Any) -> torch.Tensor:
    import numpy as np

    try:
        return torch.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError):
        return torch.from_numpy(np.array(array))


def jax_step(jnp: Any) -> Callable[..., Any]:
    """The step in JAX, operation for operation."""

    def terminal(x: Any, a: Any) -> Any:
        return (x > LIMIT_X) | (x < -LIMIT_X) | (a > LIMIT_ANGLE) | (a < -LIMIT_ANGLE)

    def step_(state: Any, action: Any, fresh: Any) -> Any:
        x, v, a, w, count = state
        reward = 1.0 - terminal(x, a).astype(jnp.float32)
        force = jnp.where(action == 1, 10.0, -10.0)
        c, s = jnp.cos(a), jnp.sin(a)
        u = (force + 0.05 * w * w * s) / 1.1
        turn = (9.8 * s - c * u) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
        push = u - 0.05 * turn * c / 1.1
        new = (x + TAU * v, v + TAU * push, a + TAU * w, w + TAU * turn)
        count = count + 1
        done = terminal(new[0], new[2]) | (count >= LONGEST)
        new = tuple(jnp.where(done, f, s) for f, s in zip(fresh, new, strict=True))
        return (*new, jnp.where(done, 0, count)), (reward, done)

    return step_


# ---------------------------------------------------------------- written by hand

CPP = """
#include <cstdint>
// Under names of our own: gcc would make one complex exponential of both, which it cannot vectorise.
extern "C" __attribute__((simd("notinbranch"), const)) float many_sinf(float) noexcept __asm__("sinf");
extern "C" __attribute__((simd("notinbranch"), const)) float many_cosf(float) noexcept __asm__("cosf");
extern "C" void cartpole(float* __restrict x, float* __restrict v, float* __restrict a, float* __restrict w,
    int32_t* __restrict n, const int32_t* __restrict action, const float* __restrict f0, const float*
    __restrict f1, const float* __restrict f2, const float* __restrict f3, float* __restrict reward, bool*
    __restrict done, int64_t size, int64_t steps, int64_t threads) {
  constexpr int64_t kBlock = 256;
  constexpr float kX = 2.4f, kA = 0.20943951023931953f;
  #pragma omp parallel for num_threads(threads)
  for (int64_t b = 0; b < size; b += kBlock) {
    const int64_t end = b + kBlock < size ? b + kBlock : size;
    for (int64_t t = 0; t < steps; ++t) {
      const int64_t at = t * size;
      #pragma omp simd
      for (int64_t i = b; i < end; ++i) {
        const float xi = x[i], vi = v[i], ai = a[i], wi = w[i];
        const float g0 = f0[at + i], g1 = f1[at + i], g2 = f2[at + i], g3 = f3[at + i];
        const bool before = (xi > kX) | (xi < -kX) | (ai > kA) | (ai < -kA);
        const float c = many_cosf(ai), s = many_sinf(ai);
        const float u = ((action[at + i] == 1 ? 10.0f : -10.0f) + 0.05f * wi * wi * s) / 1.1f;
        const float turn = (9.8f * s - c * u) / (0.5f * (1.3333334f - 0.1f * c * c / 1.1f));
        const float push = u - 0.05f * turn * c / 1.1f;
        const float xn = xi + 0.02f * vi, vn = vi + 0.02f * push, an = ai + 0.02f * wi, wn = wi + 0.02f *
        turn; const int32_t count = n[i] + 1; const bool over = (xn > kX) | (xn < -kX) | (an > kA) | (an <
        -kA) | (count >= 500); x[i] = over ? g0 : xn; v[i] = over ? g1 : vn; a[i] = over ? g2 : an; w[i] =
        over ? g3 : wn; n[i] = over ? 0 : count; reward[at + i] = before ? 0.0f : 1.0f; done[at + i] = over;
      }
    }
  }
}
"""


def by_hand(inputs: Inputs, target: str) -> Case:
    """A kernel with the time loop inside, written by hand in the target's language."""
    if target == "cuda":
        from benchmarks.cartpole_triton import launch

        seconds, call, facts = launch(inputs)
        return Case(
            "by hand",
            graphed(call),
            inputs.steps,
            {"compile_seconds": seconds, "launches_per_step": 1 / inputs.steps, **facts},
        )
    start = time.perf_counter()
    function = _library().cartpole
    seconds = time.perf_counter() - start
    threads = torch.get_num_threads()

    def run() -> Any:
        state = [s.clone() for s in (*inputs.state, inputs.count)]
        reward = torch.empty(inputs.action.shape)
        done = torch.empty(inputs.action.shape, dtype=torch.bool)
        tensors = [*state, inputs.action, *inputs.fresh, reward, done]
        function(
            *[ctypes.c_void_p(t.data_ptr()) for t in tensors],
            *map(ctypes.c_int64, (inputs.size, inputs.steps, threads)),
        )
        return [(*state, reward, done)]

    return Case(
        "by hand", run, inputs.steps, {"compile_seconds": seconds, "launches_per_step": 1 / inputs.steps}
    )


_BUILT: list[Any] = []


def _library() -> Any:
    if not _BUILT:
        folder = Path(tempfile.mkdtemp(prefix="cartpole-"))
        (folder / "cartpole.cpp").write_text(CPP)
        flags = "-std=c++17 -O3 -march=native -fopenmp -ffp-contract=off -fno-math-errno -fno-trapping-math"
        flags += " -fno-tree-sink -fPIC -shared"
        subprocess.run(["g++", *flags.split(), "cartpole.cpp", "-o", "cartpole.so"], cwd=folder, check=True)
        _BUILT.append(ctypes.CDLL(str(folder / "cartpole.so")))
    return _BUILT[0]
