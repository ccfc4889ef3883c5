"""Cleave's own variants of Cartpole: how the state is held, where random numbers come from, how much of the
loop one kernel takes in.

`ops` makes every operation a kernel, `step` one step, `unroll k` k steps, `loop` all of them. A variant with
several launches keeps the state in memory between them. On a GPU its launches are captured in one CUDA graph,
so that what is timed is the device's work and not Python's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

import cleave
from benchmarks.cartpole_env import (
    Inputs,
    separate,
    separate_drawn,
    stacked,
    stacked_drawn,
    stacked_step,
    step,
)
from cleave.frontend.capture import capture
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim
from cleave.ir.ops import Map
from cleave.ir.program import Program
from cleave.ir.sizes import infer_sizes
from cleave.pipeline import TARGETS, launcher_for, shapes_of
from cleave.runtime.triton_launch import TritonLauncher
from cleave.schedule.cost import cost_of
from cleave.schedule.cuts import _cut
from cleave.schedule.kernels import output_roots
from cleave.schedule.select import _assembled
from cleave.schedule.tiles import TileProgram

Tensor = torch.Tensor
Outputs = list[Sequence[Tensor]]
"""What a run gives: for each launch the state after it, and reward and done of its steps."""

UNROLLS = (2, 5, 10, 20)


@dataclass
class Case:
    """One implementation, ready to run. `call` runs `steps` steps and returns an `Outputs`, or None if it
    keeps its results on the device."""

    name: str
    call: Callable[[], Any]
    steps: int
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Variant:
    """`state` is `separate` or `stacked`, `random` is `read` or `drawn`, `kernel` is `ops`, `step`, `unroll
    k` or `loop`."""

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
    found = [Variant(s, r, k) for k in kernels for s in ("separate", "stacked") for r in ("read", "drawn")]
    return [*found, Variant("separate", "read", "ops"), Variant("stacked", "read", "ops")]


class Ours:
    """Compiles each variant once, for every number of environments, and makes cases of it."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._made: dict[tuple[Variant, int], Any] = {}
        self._compile: dict[tuple[Variant, int], float] = {}

    def case(self, variant: Variant, inputs: Inputs) -> Case:
        """A variant on inputs; raises whatever went wrong."""
        chunk = variant.chunk(inputs.steps)
        static = 0 if variant.kernel == "loop" and variant.random == "read" else chunk
        key = (variant, static)
        args = arguments(variant, inputs, 0, chunk)
        if key not in self._made:
            start = time.perf_counter()
            self._made[key] = self._compiled(variant, chunk, static, args)
            self._compile[key] = time.perf_counter() - start
        function, tiles_of = self._made[key]
        tiles, reports = tiles_of(args)
        facts = self._facts(tiles, reports, args, chunk)
        facts["compile_seconds"] = self._compile[key]
        calls = inputs.steps // chunk
        pieces = [arguments(variant, inputs, n * chunk, (n + 1) * chunk) for n in range(calls)]
        states = 5 if variant.state == "separate" else 2

        def run() -> Outputs:
            found: Outputs = []
            state: Sequence[Tensor] = pieces[0][:states]
            for piece in pieces:
                found.append(function(*state, *piece[states:]))
                state = found[-1][:states]
            return found

        call = graphed(run) if self.target == "cuda" and calls > 1 else run
        return Case(variant.name, call, inputs.steps, facts)

    def _compiled(self, variant: Variant, chunk: int, static: int, args: Sequence[Any]) -> Any:
        if variant.kernel == "ops":
            return self._each_operation(variant, args)
        function = source_of(variant, chunk)
        jitted = cleave.jit(function, dynamic=_dynamic(variant, static), target=self.target)
        jitted(*args)
        if jitted.fallbacks:
            raise RuntimeError(f"it runs in PyTorch: {jitted.fallbacks[0]}")
        compiled = jitted.compiled[0]

        def tiles_of(given: Sequence[Any]) -> tuple[TileProgram, Any]:
            compiled(*given)
            launcher = compiled._choose(tuple(a.shape for a in given if isinstance(a, Tensor)), given)
            return launcher.tiles, getattr(launcher, "reports", ())

        return compiled, tiles_of

    def _each_operation(self, variant: Variant, args: Sequence[Any]) -> Any:
        program = one_step_program(variant, args)
        sizes = infer_sizes(program, shapes_of(program, args))
        tiles = apart(program, sizes, self.target)
        launcher = launcher_for(tiles, self.target)
        return launcher, lambda given: (
            tiles,
            launcher.reports if isinstance(launcher, TritonLauncher) else (),
        )

    def _facts(self, tiles: TileProgram, reports: Any, args: Sequence[Any], chunk: int) -> dict[str, Any]:
        machine = TARGETS[self.target]
        sizes = _sizes(tiles, args)
        cost = cost_of(tiles, sizes, machine, {})
        return {
            "kernels": len(tiles.kernels),
            "launches_per_step": len(tiles.kernels) / chunk,
            "modelled_bytes_per_step": cost.memory / chunk,
            "accessed_bytes_per_step": cost.loaded / chunk,
            "modelled_us_per_step": cost.seconds / chunk * 1e6,
            "registers": [r.registers for r in reports],
            "spills": [r.spills for r in reports],
            "tiles": [[(str(a.index.dim), a.tile) for a in k.grid] for k in tiles.kernels][:4],
            "warps": [k.warps for k in tiles.kernels][:4],
        }


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
    if variant.kernel == "ops":
        return (*state, inputs.count, cut.action[0], *(f[0] for f in fresh))
    return (*state, inputs.count, cut.action, *fresh)


def _dynamic(variant: Variant, static: int) -> dict[str, tuple[str | int | None, ...]]:
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


def _sizes(tiles: TileProgram, args: Sequence[Any]) -> dict[Dim, int]:
    from cleave.schedule.shapes import infer_sizes as of_tiles

    names = [t.name for t in tiles.inputs]
    shapes = {n: tuple(a.shape) for n, a in zip(names, args, strict=True) if isinstance(a, Tensor)}
    return of_tiles(tiles, shapes)


def one_step_program(variant: Variant, args: Sequence[Any]) -> Program:
    """One step without a loop, as a program."""

    def plain(x: Any, v: Any, a: Any, w: Any, n: Any, action: Any, f0: Any, f1: Any, f2: Any, f3: Any) -> Any:
        state, out = step((x, v, a, w, n), action, (f0, f1, f2, f3))
        return (*state, *out)

    def joined(both: Any, n: Any, action: Any, fresh: Any) -> Any:
        state, out = stacked_step((both, n), action, fresh)
        return (*state, *out)

    names: Mapping[str, Any] = dict.fromkeys(
        ("x", "v", "a", "w", "n", "action", "f0", "f1", "f2", "f3"), ("N",)
    )
    if variant.state == "stacked":
        names = {"both": ("N", 4), "n": ("N",), "action": ("N",), "fresh": ("N", 4)}
    return capture(joined if variant.state == "stacked" else plain, args, dynamic=names).program


def apart(program: Program, sizes: Mapping[Dim, int], target: str) -> TileProgram:
    """A kernel for every pointwise operation."""
    nodes = tuple(node for node in program.nodes if isinstance(node.op, Map))
    roots = {root.node: root.tensor for root in reversed(output_roots(program)) if root.node is not None}
    candidate = Candidate(program, ())
    plan = _cut("step by step", candidate, nodes, roots)
    return _assembled(candidate, plan, program.bind(sizes), TARGETS[target], 1)[0].tiles


def graphed(run: Callable[[], Any]) -> Callable[[], Any]:
    """A run captured in a CUDA graph, after it has run twice."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()

    def replay() -> Any:
        graph.replay()
        return kept

    return replay


__all__ = ["Atom", "Case", "Ours", "Variant", "apart", "arguments", "graphed", "one_step_program", "variants"]
