"""The child of a tuner: builds tile programs, or measures them one at a time.

    python -m cleave.runtime.tune_worker build|measure

Reads messages and answers each (see `tune_process`). `build` compiles, so that the cache has what is measured
later, and needs no device. `measure` first gets a point (`task`), then tile programs: each is run on poisoned
memory and compared with float64, run again for equal bits, and only then timed. Whatever is not foreseen
ends the process, which the parent survives.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from cleave.errors import BuildError, CleaveError, Infeasible
from cleave.ir.dims import Atom, Dim
from cleave.ir.parse import parse_program
from cleave.ir.program import Program
from cleave.runtime import machines
from cleave.runtime.ahead import pretend, stand_ins
from cleave.runtime.clock import Clock
from cleave.runtime.judge import Value, allowed, error_of, evaluate, make_inputs
from cleave.runtime.launch import Launcher
from cleave.runtime.triton_build import Report
from cleave.runtime.triton_launch import TritonLauncher
from cleave.schedule.parse import parse_tiles
from cleave.schedule.tiles import TileProgram

Message = dict[str, Any]
STEADY_RUNS = 2
NICE = 10
QUICK_SECONDS, LONG_SECONDS = 0.1, 0.6


def main() -> None:
    """Build or measure until the parent is gone."""
    if sys.argv[1] != "build":
        serve(Measurer().answer)
        return
    os.nice(NICE)  # what is timed goes first
    threading.Thread(target=_imported, daemon=True).start()  # while the first message is on its way
    serve(build)


def _imported() -> None:
    """Import what compiles, which takes seconds. Imports lock: a message that comes meanwhile waits."""
    with suppress(ImportError):
        import triton.compiler  # noqa: F401

        import cleave.codegen.triton  # noqa: F401


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
        torch.set_float32_matmul_precision(message["precision"])
        reports = compiled_ahead(tiles, message)
    except (BuildError, Infeasible) as error:
        return refusal(error)
    notes = [f"{r.kernel}: {r.registers} registers, {r.spills} spilled, {r.shared} shared" for r in reports]
    return {"status": "built", "detail": "; ".join(notes), "spills": sum(r.spills for r in reports)}


def compiled_ahead(tiles: TileProgram, message: Message) -> tuple[Report, ...]:
    """Compile for a GPU that this process does not touch, as the measured call will ask for it."""
    pretend(message["capability"])
    sizes: dict[Dim, int] = {Atom(name): size for name, size in message["sizes"].items()}
    example = stand_ins(tiles, sizes) if sizes else None
    machines.call_it("cuda", message["device"])
    launcher = TritonLauncher(
        tiles, precision=message["precision"], capability=message["capability"], example=example
    )
    return launcher.reports


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
    """What results are compared with: arguments, the right results, and the error that is allowed."""

    args: list[Value]
    wanted: tuple[torch.Tensor, ...]
    allowed: float


@dataclass(slots=True)
class Measurer:
    """The measuring side: the point in hand, and the launchers that were right at it."""

    target: str = ""
    standard: Standard | None = None
    launchers: dict[str, Launcher] = field(default_factory=dict[str, Launcher])
    clock: Clock | None = None

    def answer(self, message: Message) -> Message:
        """Do what a message asks: `warm`, `task`, `load`, `measure` or `compare`."""
        match message["ask"]:
            case "warm":
                return self.warm(message["target"])
            case "task":
                return self.begin(message)
            case "load":
                return self.load(message["digest"], message["tiles"])
            case "measure":
                return self.measure(message["digest"])
            case _:
                return self.compare(message["digests"], message["seconds"])

    # ------------------------------------------------------------ the point

    def warm(self, target: str) -> Message:
        """Import what compiles, and begin with the device, before there is anything to measure."""
        self.clock = self.clock or Clock("cuda" if target == "cuda" else "cpu")
        if target == "cuda":
            _imported()
            self.clock.once(torch.cuda.synchronize)
        return {"status": "warm"}

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
        try:
            self.standard = standard(program, sizes, device)
        except (Infeasible, torch.OutOfMemoryError) as error:
            return {"status": "unjudged", "detail": f"it cannot be told what is right: {error}"}
        return {"status": "ready"}

    # ------------------------------------------------------------ one tile program

    def load(self, digest: str, text: str) -> Message:
        """Build a tile program, or take it from the cache."""
        assert self.standard is not None
        try:
            self.launchers[digest] = launcher_for(parse_tiles(text), self.target, self.standard.args)
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
            assert self.standard is not None
            args = self.standard.args
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
        """The error, and what is allowed."""
        assert self.standard is not None
        with poisoned():
            found = launcher(*self.standard.args)
        error = error_of(found, self.standard.wanted)
        return math.inf if math.isnan(error) else error, max(self.standard.allowed, 1e-300)

    # ------------------------------------------------------------ the best few

    def compare(self, digests: Sequence[str], seconds: float) -> Message:
        """Time several that are loaded in turns."""
        assert self.clock is not None
        assert self.standard is not None
        args = self.standard.args
        calls = {d: (lambda run=self.launchers[d]: run(*args)) for d in digests}
        return {"status": "compared", "seconds": self.clock.medians(calls, seconds, least=7, most=101)}


def standard(program: Program, sizes: Mapping[Dim, int], device: str) -> Standard:
    """Arguments at some sizes, and the results in float64. `Infeasible` if they are too many to be had."""
    args = make_inputs(program, sizes, device)
    wanted = evaluate(program, args, sizes)
    own = error_of(evaluate(program, args, sizes, None), wanted)
    return Standard(args, wanted, allowed(own, program, max(sizes.values(), default=1)))


def launcher_for(tiles: TileProgram, target: str, example: Sequence[Value]) -> Launcher:
    """Build a tile program for a target and for calls like an example."""
    if target == "cpu":
        return Launcher(tiles)
    precision = torch.get_float32_matmul_precision()
    return TritonLauncher(tiles, target=target, precision=precision, example=example)


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
