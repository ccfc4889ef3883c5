"""Cartpole by hand for a GPU: one Triton kernel, one environment a thread, the time loop inside."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl

from benchmarks.cartpole_env import Inputs


@triton.jit
def cartpole(
    x_ptr, v_ptr, a_ptr, w_ptr, n_ptr, action_ptr, f0_ptr, f1_ptr, f2_ptr, f3_ptr,
    x_out, v_out, a_out, w_out, n_out, reward_ptr, done_ptr, size, steps, BLOCK: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < size
    x = tl.load(x_ptr + i, mask=inside)
    v = tl.load(v_ptr + i, mask=inside)
    a = tl.load(a_ptr + i, mask=inside)
    w = tl.load(w_ptr + i, mask=inside)
    n = tl.load(n_ptr + i, mask=inside)
    for t in range(steps):
        at = tl.cast(t, tl.int64) * size + i
        action = tl.load(action_ptr + at, mask=inside)
        f0 = tl.load(f0_ptr + at, mask=inside)
        f1 = tl.load(f1_ptr + at, mask=inside)
        f2 = tl.load(f2_ptr + at, mask=inside)
        f3 = tl.load(f3_ptr + at, mask=inside)
        before = (x > 2.4) | (x < -2.4) | (a > 0.20943951023931953) | (a < -0.20943951023931953)
        force = tl.where(action == 1, 10.0, -10.0)
        c, s = tl.cos(a), tl.sin(a)
        u = (force + 0.05 * w * w * s) / 1.1
        turn = (9.8 * s - c * u) / (0.5 * (1.3333333333333333 - 0.1 * c * c / 1.1))
        push = u - 0.05 * turn * c / 1.1
        x2, v2, a2, w2 = x + 0.02 * v, v + 0.02 * push, a + 0.02 * w, w + 0.02 * turn
        n = n + 1
        over = (
            (x2 > 2.4) | (x2 < -2.4) | (a2 > 0.20943951023931953) | (a2 < -0.20943951023931953) | (n >= 500)
        )
        x = tl.where(over, f0, x2)
        v = tl.where(over, f1, v2)
        a = tl.where(over, f2, a2)
        w = tl.where(over, f3, w2)
        n = tl.where(over, 0, n)
        tl.store(reward_ptr + at, tl.where(before, 0.0, 1.0), mask=inside)
        tl.store(done_ptr + at, over, mask=inside)
    tl.store(x_out + i, x, mask=inside)
    tl.store(v_out + i, v, mask=inside)
    tl.store(a_out + i, a, mask=inside)
    tl.store(w_out + i, w, mask=inside)
    tl.store(n_out + i, n, mask=inside)


def block_of(size: int) -> int:
    """Environments of a block: four blocks for each of 132 cores, of one to four warps."""
    return max(32, min(128, triton.next_power_of_2(max(1, size // 528))))


def launch(inputs: Inputs) -> tuple[float, Callable[[], Any], dict[str, Any]]:
    """Seconds to compile, a run, and what is known of the kernel."""
    block = block_of(inputs.size)
    kernel: Any = cartpole[(triton.cdiv(inputs.size, block),)]
    kept: list[Any] = []

    def run() -> Any:
        state = [torch.empty_like(s) for s in (*inputs.state, inputs.count)]
        reward = torch.empty_like(inputs.action, dtype=torch.float32)
        done = torch.empty_like(inputs.action, dtype=torch.bool)
        kept[:] = [
            kernel(*inputs.state, inputs.count, inputs.action, *inputs.fresh, *state, reward, done,
                   inputs.size, inputs.steps, BLOCK=block, num_warps=max(1, block // 32))
        ]  # fmt: skip
        return [(*state, reward, done)]

    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    facts = {"registers": [getattr(kept[0], "n_regs", None)], "tiles": [[("N", block)]]}
    return seconds, run, facts
