"""The Cartpole environment as a program: physics, one step with reset, the whole loop; its inputs and its
oracle.

Constants and the order of operations are those of Gymnasium and gymnax (explicit Euler, old velocities for
the positions, strict limits tested on the new state, reset in the same step as the end of an episode, reward
1 - (the state before was terminal)). The state is four arrays and a step count, or one array [N, 4] and the
count. Random numbers come from `cleave.threefry2x32`, counted by environment and step, so that a loop that
makes them gives the same bits as one that reads them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import cleave

Tensor = torch.Tensor
State = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
Array = npt.NDArray[Any]

TAU, LIMIT_X, LIMIT_ANGLE, LONGEST = 0.02, 2.4, 12 * 2 * math.pi / 360, 500
KEY = (0, 2026)
DRAWS = 3
"""Pairs of words per environment and step: an action, four values of a reset, and one to spare."""


# ---------------------------------------------------------------- the step


def physics(
    x: Tensor, v: Tensor, a: Tensor, w: Tensor, force: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One Euler step of the cart (x, v) and the pole (angle a, rate w)."""
    c, s = torch.cos(a), torch.sin(a)
    u = (force + 0.05 * w * w * s) / 1.1
    turn = (9.8 * s - c * u) / (0.5 * (4.0 / 3.0 - 0.1 * c * c / 1.1))
    push = u - 0.05 * turn * c / 1.1
    return x + TAU * v, v + TAU * push, a + TAU * w, w + TAU * turn


def is_terminal(x: Tensor, a: Tensor) -> Tensor:
    return (x > LIMIT_X) | (x < -LIMIT_X) | (a > LIMIT_ANGLE) | (a < -LIMIT_ANGLE)


def step(state: State, action: Tensor, fresh: Sequence[Tensor]) -> tuple[State, tuple[Tensor, Tensor]]:
    """One step of all environments; returns the state, and reward and done."""
    x, v, a, w, count = state
    reward = 1.0 - is_terminal(x, a).to(torch.float32)
    force = torch.where(action == 1, 10.0, -10.0)
    x, v, a, w = physics(x, v, a, w, force)
    count = count + 1
    done = is_terminal(x, a) | (count >= LONGEST)
    x, v, a, w = (torch.where(done, new, old) for new, old in zip(fresh, (x, v, a, w), strict=True))
    return (x, v, a, w, torch.where(done, 0, count)), (reward, done)


def stacked_step(
    state: tuple[Tensor, Tensor], action: Tensor, fresh: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The same on one array [N, 4], as the paper's baseline has it: taken apart, and put together at the
    end."""
    both, count = state
    parts, out = step((*both.unbind(-1), count), action, fresh.unbind(-1))  # type: ignore[arg-type]
    return (torch.stack(parts[:4], -1), parts[4]), out


def early_stacked_step(
    state: tuple[Tensor, Tensor], action: Tensor, fresh: Tensor
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The same, but put together before it is tested and reset: the stack then has several readers."""
    x, v, a, w = state[0].unbind(-1)
    reward = 1.0 - is_terminal(x, a).to(torch.float32)
    new = torch.stack(physics(x, v, a, w, torch.where(action == 1, 10.0, -10.0)), -1)
    count = state[1] + 1
    done = is_terminal(new[:, 0], new[:, 2]) | (count >= LONGEST)
    return (torch.where(done[:, None], fresh, new), torch.where(done, 0, count)), (reward, done)


def draw(index: Tensor, time: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor, Tensor]]:
    """The action and the reset values of environments `index` at step `time` (int32; they broadcast)."""
    words = [word for n in range(DRAWS) for word in cleave.threefry2x32(KEY, (index, time * DRAWS + n))]
    fresh = tuple(cleave.uniform(word, -0.05, 0.05) for word in words[1:5])
    return words[0] & 1, fresh  # type: ignore[return-value]


# ---------------------------------------------------------------- loops


def separate(x: Tensor, v: Tensor, a: Tensor, w: Tensor, n: Tensor, action: Tensor, f0: Tensor, f1: Tensor,
             f2: Tensor, f3: Tensor) -> tuple[Tensor, ...]:  # fmt: skip
    """Four arrays, random numbers from memory: `action` and `f0` to `f3` are [T, N]."""

    def body(state: State, given: tuple[Tensor, ...]) -> tuple[State, tuple[Tensor, Tensor]]:
        return step(state, given[0], given[1:])

    state, (reward, done) = cleave.scan(body, (x, v, a, w, n), (action, f0, f1, f2, f3))
    return (*state, reward, done)


def stacked(both: Tensor, n: Tensor, action: Tensor, fresh: Tensor) -> tuple[Tensor, ...]:
    """One array [N, 4], random numbers from memory: `fresh` is [T, N, 4]."""

    def body(state: tuple[Tensor, Tensor], given: tuple[Tensor, Tensor]) -> Any:
        return stacked_step(state, *given)

    (both, n), (reward, done) = cleave.scan(body, (both, n), (action, fresh))
    return both, n, reward, done


def separate_drawn(steps: int) -> Any:
    """Four arrays, random numbers made in the loop, `steps` steps from the step number `first` on."""

    def loop(x: Tensor, v: Tensor, a: Tensor, w: Tensor, n: Tensor, first: int) -> tuple[Tensor, ...]:
        index = torch.arange(x.shape[0], dtype=torch.int32, device=x.device)

        def body(state: State, time: Tensor) -> tuple[State, tuple[Tensor, Tensor]]:
            action, fresh = draw(index, time + torch.zeros_like(index))
            return step(state, action, fresh)

        times = torch.arange(steps, dtype=torch.int32, device=x.device) + first
        state, (reward, done) = cleave.scan(body, (x, v, a, w, n), times)
        return (*state, reward, done)

    return loop


def stacked_drawn(steps: int) -> Any:
    """One array [N, 4], random numbers made in the loop."""

    def loop(both: Tensor, n: Tensor, first: int) -> tuple[Tensor, ...]:
        index = torch.arange(both.shape[0], dtype=torch.int32, device=both.device)

        def body(state: tuple[Tensor, Tensor], time: Tensor) -> Any:
            action, fresh = draw(index, time + torch.zeros_like(index))
            return stacked_step(state, action, torch.stack(fresh, -1))

        times = torch.arange(steps, dtype=torch.int32, device=both.device) + first
        (both, n), (reward, done) = cleave.scan(body, (both, n), times)
        return both, n, reward, done

    return loop


# ---------------------------------------------------------------- inputs


@dataclass
class Inputs:
    """What all implementations are given: the first state, and for every step an action and reset values."""

    state: tuple[Tensor, ...]
    count: Tensor
    action: Tensor
    fresh: tuple[Tensor, ...]

    @property
    def steps(self) -> int:
        return self.action.shape[0]

    @property
    def size(self) -> int:
        return self.action.shape[1]

    def cut(self, start: int, stop: int) -> Inputs:
        """The same for some of the steps."""
        return Inputs(
            self.state, self.count, self.action[start:stop], tuple(f[start:stop] for f in self.fresh)
        )


MOST_DRAWN = {"cpu": 1 << 20, "cuda": 1 << 25}
"""Environments times steps that are drawn at a time."""


def make_inputs(size: int, steps: int, device: str) -> Inputs:
    """Start values from counters beyond all steps, and the draws of every step."""
    index = torch.arange(size, dtype=torch.int32, device=device)
    start = draw(index, torch.full_like(index, 1_000_000))[1]
    action = torch.empty(steps, size, dtype=torch.int32, device=device)
    fresh = tuple(torch.empty(steps, size, device=device) for _ in range(4))
    rows = max(1, MOST_DRAWN[device] // max(1, size))
    for first in range(0, steps, rows):
        times = torch.arange(first, min(first + rows, steps), dtype=torch.int32, device=device)
        drawn, values = draw(index[None].expand(len(times), size), times[:, None].expand(len(times), size))
        action[first : first + rows] = drawn
        for into, value in zip(fresh, values, strict=True):
            into[first : first + rows] = value
    return Inputs(tuple(start), torch.zeros_like(index), action, fresh)


# ---------------------------------------------------------------- oracle


def oracle(state: Sequence[Array], action: Array, fresh: Sequence[Array]) -> tuple[list[Array], Array, Array]:
    """One step in float64: the next state (five arrays), done, and where rounding may decide otherwise
    (within 1e-5 of a limit). Written from the equations, not from the code above."""
    x, v, theta, rate = (np.asarray(s, np.float64) for s in state[:4])
    force = np.where(action == 1, 10.0, -10.0)
    sin, cos = np.sin(theta), np.cos(theta)
    common = (force + 0.05 * rate**2 * sin) / 1.1
    angular = (9.8 * sin - cos * common) / (0.5 * (4.0 / 3.0 - 0.1 * cos**2 / 1.1))
    linear = common - 0.05 * angular * cos / 1.1
    new = [x + TAU * v, v + TAU * linear, theta + TAU * rate, rate + TAU * angular]
    count = np.asarray(state[4]) + 1
    done = (np.abs(new[0]) > LIMIT_X) | (np.abs(new[2]) > LIMIT_ANGLE) | (count >= LONGEST)
    near = (np.abs(np.abs(new[0]) - LIMIT_X) < 1e-5) | (np.abs(np.abs(new[2]) - LIMIT_ANGLE) < 1e-5)
    new = [np.where(done, np.asarray(f, np.float64), s) for f, s in zip(fresh, new, strict=True)]
    return [*new, np.where(done, 0, count)], done, near
