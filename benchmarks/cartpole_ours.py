"""Cleave's own variants of Cartpole: how the state is held, where random numbers come from, how much of the
loop one kernel takes in.

`step` makes one step a kernel, `unroll k` k steps, `loop` all of them. A variant with several launches keeps
the state in memory between them. On a GPU a run is captured in a CUDA graph, so that what is timed is the
device's work and not Python's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import cleave
from benchmarks.cartpole_case import Case, Outputs, graphed
from benchmarks.cartpole_env import Inputs, separate, separate_drawn, stacked, stacked_drawn
from benchmarks.cartpole_facts import facts_of, sizes_of

Tensor = torch.Tensor

UNROLLS = (2, 5, 10, 20)


@dataclass(frozen=True)
class Variant:
    """`state` is `separate` or `stacked`, `random` is `read` or `drawn`, `kernel` is `step`, `unroll k` or
    `loop`."""

    state: str
    random: str
    kernel: str

    @property
    def name(self) -> str:
        return f"cleave {self.state} {self.random} {self.kernel}"

    def chunk(self, steps: int) -> int:
        """Steps of one launch."""
        if self.kernel == "loop":
            return steps
        return int(self.kernel.split()[1]) if self.kernel.startswith("unroll") else 1


def variants() -> list[Variant]:
    """All variants, the whole loop first."""
    kernels = ["loop", "step", *(f"unroll {k}" for k in UNROLLS)]
    return [Variant(s, r, k) for k in kernels for s in ("separate", "stacked") for r in ("read", "drawn")]


class Ours:
    """Compiles each variant once, for every number of environments, and makes cases of it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._made: dict[tuple[Variant, int], Any] = {}

    def launcher(self, variant: Variant, inputs: Inputs) -> Any:
        """The kernels that serve a variant at the size of the inputs, as a function of tensors."""
        chunk = variant.chunk(inputs.steps)
        return self._get(variant, inputs)[0](arguments(variant, inputs, 0, chunk))

    def _get(self, variant: Variant, inputs: Inputs) -> Any:
        chunk = variant.chunk(inputs.steps)
        static = 0 if variant.kernel == "loop" and variant.random == "read" else chunk
        key = (variant, static)
        if key not in self._made:
            start = time.perf_counter()
            made = self._compiled(variant, chunk, static, arguments(variant, inputs, 0, chunk))
            self._made[key] = (made, time.perf_counter() - start)
        return self._made[key]

    def case(self, variant: Variant, inputs: Inputs) -> Case:
        """A variant on inputs; raises whatever went wrong."""
        chunk = variant.chunk(inputs.steps)
        args = arguments(variant, inputs, 0, chunk)
        launcher_of, seconds = self._get(variant, inputs)
        launcher = launcher_of(args)
        reports = getattr(launcher, "reports", ())
        facts = facts_of(launcher.tiles, sizes_of(launcher.tiles, args), self.target, reports, chunk)
        facts["compile_seconds"] = seconds
        calls = inputs.steps // chunk
        pieces = [arguments(variant, inputs, n * chunk, (n + 1) * chunk) for n in range(calls)]
        states = 5 if variant.state == "separate" else 2

        def run() -> Outputs:
            found: Outputs = []
            state: Sequence[Tensor] = pieces[0][:states]
            for piece in pieces:
                found.append(launcher(*state, *piece[states:]))
                state = found[-1][:states]
            return found

        call = graphed(run) if self.target == "cuda" else run
        return Case(variant.name, call, inputs.steps, facts)

    def _compiled(self, variant: Variant, chunk: int, static: int, args: Sequence[Any]) -> Any:
        function = source_of(variant, chunk)
        jitted = cleave.jit(function, dynamic=dims_of(variant, static), target=self.target)
        jitted(*args)
        if jitted.fallbacks:
            raise RuntimeError(f"it runs in PyTorch: {jitted.fallbacks[0]}")
        compiled = jitted.compiled[0]

        def launcher_of(given: Sequence[Any]) -> Any:
            return compiled._choose(tuple(a.shape for a in given if isinstance(a, Tensor)), given)

        return launcher_of


def source_of(variant: Variant, steps: int) -> Callable[..., Any]:
    """The function of a variant."""
    if variant.random == "drawn":
        return (separate_drawn if variant.state == "separate" else stacked_drawn)(steps)
    return separate if variant.state == "separate" else stacked


def arguments(variant: Variant, inputs: Inputs, start: int, stop: int) -> tuple[Any, ...]:
    """The arguments of a call for some of the steps."""
    both = variant.state == "stacked"
    state = (torch.stack(inputs.state, -1),) if both else inputs.state
    if variant.random == "drawn":
        return (*state, inputs.count, start)
    cut = inputs.cut(start, stop)
    fresh = (torch.stack(cut.fresh, -1),) if both else cut.fresh
    return (*state, inputs.count, cut.action, *fresh)


def dims_of(variant: Variant, static: int) -> dict[str, tuple[str | int | None, ...]]:
    """The names of the axes of a variant's arguments; `static` is a number of steps, 0 where it may vary."""
    steps = static or "T"
    found: dict[str, tuple[str | int | None, ...]] = {}
    if variant.state == "stacked":
        found |= {"both": ("N", 4), "n": ("N",)}
        if variant.random == "read":
            found |= {"action": (steps, "N"), "fresh": (steps, "N", 4)}
        return found
    found |= dict.fromkeys(("x", "v", "a", "w", "n"), ("N",))
    if variant.random == "read":
        found |= dict.fromkeys(("action", "f0", "f1", "f2", "f3"), (steps, "N"))
    return found
