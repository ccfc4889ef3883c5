"""The child of a tuner: builds tile programs, or measures them one at a time.

    python -m cleave.runtime.tune_worker build|measure

Reads messages and answers each (see `tune_process`). `build` compiles, so that the cache has what is measured
later, and needs no device. `measure` first gets a point (`task`), then tile programs: each is run on poisoned
memory and compared with float64, run again for equal bits, and only then timed. Where float64 is too large
it is compared with float64 at smaller sizes, and at full size with the first that was right. Whatever is
not foreseen ends the process, which the parent survives.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from cleave.errors import BuildError, CleaveError, Infeasible
from cleave.ir.dims import Dim
from cleave.ir.parse import parse_program
from cleave.ir.program import Program
from cleave.runtime.clock import Clock
from cleave.runtime.judge import Value, allowed, error_of, evaluate, make_inputs
from cleave.runtime.launch import Launcher
from cleave.runtime.triton_build import compile_for
from cleave.runtime.triton_launch import TritonLauncher
from cleave.schedule.parse import parse_tiles
from cleave.schedule.tiles import TileProgram

Message = dict[str, Any]
STEADY_RUNS = 2
QUICK_SECONDS, LONG_SECONDS = 0.1, 0.6
SMALL = 192
"""Dynamic sizes at which results are checked where the full ones are too large for float64."""
SLACK = 2.0
"""Two right results may lie this much further apart than either from the truth."""


def main() -> None:
    """Build or measure until the parent is gone."""
    serve(build if sys.argv[1] == "build" else Measurer().answer)


def serve(answer: Callable[[Message], Message]) -> None:
    """Answer messages until the parent is gone."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what kernels print must not mix with the answers
    threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()
    for line in sys.stdin:
        answers.write(json.dumps(answer(json.loads(line))) + "\n")
        answers.flush()


def _follow(parent: int) -> None:
    """End when the parent does, even in the middle of a kernel that hangs."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def build(message: Message) -> Message:
    """Compile a tile program for a target. The answer has `status` (`built`, `refused`, `infeasible`)."""
    tiles = parse_tiles(message["tiles"])
    try:
        if message["target"] == "cpu":
            Launcher(tiles)
            return {"status": "built", "detail": ""}
        from cleave.codegen import triton as emitter

        torch.set_float32_matmul_precision(message["precision"])
        overlapped = message["capability"] >= 90
        source = emitter.emit(tiles, precision=message["precision"], described=True, overlapped=overlapped)
        reports = compile_for(source, message["capability"])
    except (BuildError, Infeasible) as error:
        return refusal(error)
    notes = [f"{r.kernel}: {r.registers} registers, {r.spills} spilled, {r.shared} shared" for r in reports]
    return {"status": "built", "detail": "; ".join(notes), "spills": sum(r.spills for r in reports)}


def refusal(error: CleaveError) -> Message:
    """What a tile program that cannot run is recorded as."""
    if isinstance(error, BuildError):
        status = "refused"
    else:
        status = "infeasible" if isinstance(error, Infeasible) else "memory"
    first, *rest = str(error).splitlines()
    telling = [line.strip() for line in rest if "error" in line.lower()][:1]
    return {"status": status, "detail": "; ".join([first[:200], *telling])[:400]}


@dataclass(slots=True)
class Standard:
    """What results are compared with at some sizes: arguments, wanted results (None: not known), and the
    error that is allowed."""

    args: list[Value]
    wanted: tuple[torch.Tensor, ...] | None
    allowed: float


@dataclass(slots=True)
class Measurer:
    """The measuring side: the point in hand, and the launchers that were right at it."""

    target: str = ""
    standards: list[Standard] = field(default_factory=list[Standard])
    launchers: dict[str, Launcher] = field(default_factory=dict[str, Launcher])
    clock: Clock | None = None

    def answer(self, message: Message) -> Message:
        """Do what a message asks: `task`, `load`, `measure` or `compare`."""
        match message["ask"]:
            case "task":
                return self.begin(message)
            case "load":
                return self.load(message["digest"], message["tiles"])
            case "measure":
                return self.measure(message["digest"])
            case _:
                return self.compare(message["digests"], message["seconds"])

    # ------------------------------------------------------------ the point

    def begin(self, message: Message) -> Message:
        """Take up a point: make its arguments and what results are compared with."""
        self.target = message["target"]
        torch.set_float32_matmul_precision(message["precision"])
        if message["threads"]:
            torch.set_num_threads(message["threads"])
        device = "cuda" if self.target == "cuda" else "cpu"
        self.clock = self.clock or Clock(device)
        self.launchers.clear()
        program = parse_program(message["program"])
        sizes = program.bind({a: message["sizes"][a.name] for a in program.dynamic})
        self.standards = [standard(program, sizes, device)]
        if self.standards[0].wanted is None:
            small = program.bind({a: min(SMALL, sizes[a]) for a in program.dynamic})
            if small != sizes:
                self.standards.insert(0, standard(program, small, device))
        self.standards = [s for s in self.standards if s.wanted is not None or s is self.standards[-1]]
        exact = self.standards[-1].wanted is not None
        if not exact and message["anchor"]:  # what was right before this process began
            self._judged(launcher_for(parse_tiles(message["anchor"]), self.target))
        return {"status": "ready", "exact": exact}

    # ------------------------------------------------------------ one tile program

    def load(self, digest: str, text: str) -> Message:
        """Build a tile program, or take it from the cache."""
        try:
            self.launchers[digest] = launcher_for(parse_tiles(text), self.target)
        except CleaveError as refused:
            return refusal(refused)
        return {"status": "loaded"}

    def measure(self, digest: str) -> Message:
        """Check a tile program that is loaded, then time it; only a right one stays loaded."""
        launcher = self.launchers.pop(digest)
        try:
            error, limit = self._judged(launcher)
            if not error <= limit:
                return {"status": "wrong", "error": shown(error), "detail": f"allowed is {limit:.2e}"}
            args = self.standards[-1].args
            if not steady(launcher, args):
                return {
                    "status": "unsteady",
                    "error": shown(error),
                    "detail": "its bits differ from run to run",
                }
            assert self.clock is not None
            seconds = self.clock.median(lambda: launcher(*args), QUICK_SECONDS)
        except torch.OutOfMemoryError as gone:
            return {"status": "memory", "detail": str(gone).splitlines()[0][:300]}
        except CleaveError as refused:
            return refusal(refused)
        self.launchers[digest] = launcher
        return {"status": "right", "seconds": seconds, "error": error}

    def _judged(self, launcher: Launcher) -> tuple[float, float]:
        """The error, and what is allowed, at the sizes where they are furthest apart. A right result
        becomes the standard of a point that has none."""
        worst = (0.0, math.inf)
        for one in sorted(self.standards, key=lambda s: s.wanted is None):
            with poisoned():
                found = launcher(*one.args)
            if one.wanted is None:
                if worst[0] > worst[1]:
                    break  # wrong where it can be judged: no standard for others
                one.wanted, one.allowed = found, SLACK * max(s.allowed for s in self.standards)
            error = error_of(found, one.wanted)
            allowed = max(one.allowed, 1e-300)
            if math.isnan(error):
                return math.inf, allowed
            if worst[1] == math.inf or error / allowed > worst[0] / worst[1]:
                worst = error, allowed
        return worst

    # ------------------------------------------------------------ the best few

    def compare(self, digests: Sequence[str], seconds: float) -> Message:
        """Time several that are loaded in turns."""
        assert self.clock is not None
        args = self.standards[-1].args
        calls = {d: (lambda run=self.launchers[d]: run(*args)) for d in digests}
        return {"status": "compared", "seconds": self.clock.medians(calls, seconds, least=7, most=101)}


def standard(program: Program, sizes: Mapping[Dim, int], device: str) -> Standard:
    """Arguments at some sizes, and the results in float64 if they can be had."""
    args = make_inputs(program, sizes, device)
    try:
        wanted = evaluate(program, args, sizes)
        own = error_of(evaluate(program, args, sizes, None), wanted)
    except (Infeasible, torch.OutOfMemoryError):
        return Standard(args, None, 0.02)
    return Standard(args, wanted, allowed(own, program, max(sizes.values(), default=1)))


def launcher_for(tiles: TileProgram, target: str) -> Launcher:
    """Build a tile program for a target."""
    if target == "cpu":
        return Launcher(tiles)
    return TritonLauncher(tiles, target=target, precision=torch.get_float32_matmul_precision())


@contextmanager
def poisoned() -> Iterator[None]:
    """New memory holds NaN and the largest integers, not the last result."""
    # The public function imports the whole of torch's own compiler first.
    torch._C._set_deterministic_algorithms(True, warn_only=True)
    torch._C._set_deterministic_fill_uninitialized_memory(True)
    try:
        yield
    finally:
        torch._C._set_deterministic_algorithms(False, warn_only=False)


def steady(launcher: Launcher, args: Sequence[Value]) -> bool:
    """Whether further runs give the same bits."""
    first = launcher(*args)
    return all(
        bool(((a == b) | ((a != a) & (b != b))).all())
        for _ in range(STEADY_RUNS)
        for a, b in zip(first, launcher(*args), strict=True)
    )


def shown(error: float) -> float | None:
    """An error as JSON has it."""
    return error if math.isfinite(error) else None


if __name__ == "__main__":
    main()
