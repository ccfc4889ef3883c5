"""The measuring process as the tuner sees it: made when it is needed, given up when it dies or hangs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from cleave.ir.text import print_program
from cleave.runtime.tune_build import Job
from cleave.runtime.tune_point import Limits, Point
from cleave.runtime.tune_process import Died, Late, Message, Process
from cleave.runtime.tune_store import Key, Measured

TASK_SECONDS = 120.0
"""After this long the making of a point's arguments and standard hangs."""
LEAST_ASKED = 0.5
"""The measuring process is given so many seconds at least, whatever the budget says."""


class Unready(Exception):
    """The measuring process dies or hangs before it has measured anything."""


class Measurer:
    """One process at a time, which has taken up one point. `end` (by the monotonic clock) is when the budget
    ends; `note` hears what is being done, `beat` is called while an answer is waited for, and `ended` says
    why there is nothing where the time was too short."""

    def __init__(
        self,
        limits: Limits,
        end: float,
        note: Callable[[str], None],
        beat: Callable[[], None],
        ended: Callable[[], str],
    ) -> None:
        self.limits, self.end = limits, end
        self.note, self.beat, self.ended = note, beat, ended
        self.process: Process | None = None
        self.warming = False
        self.begun: tuple[int, str] = (0, "")

    @property
    def has_begun(self) -> bool:
        """Whether a process has taken up a point."""
        return bool(self.begun[0])

    def stop(self) -> None:
        """End the process, if there is one."""
        if self.process is not None:
            self.process.kill()

    def warm(self, target: str) -> None:
        """Have a new process import what it needs and the device begin."""
        self.process = Process("measure")
        self.process.send({"ask": "warm", "target": target})
        self.warming = True

    def at(self, point: Point, key: Key) -> Process:
        """The process, at this point. `Unready` if it cannot take it up."""
        if self.process is None:
            self.process, self.warming = Process("measure"), False
        here = (self.process.pid, f"{key}")
        if self.begun == here:
            return self.process
        self.note("making arguments and the right results")
        try:
            if self.warming:
                self.process.answer(TASK_SECONDS, self.beat)
                self.warming = False
            answer = self.process.ask(_task(point), self.within(TASK_SECONDS)[0], self.beat)
        except Died as death:
            self.process = None
            raise Unready(f"the measuring process could not take up the point: {death}") from death
        except Late:
            self.process = None
            seconds, short = self.within(TASK_SECONDS)
            hung = f"making arguments and the right results took more than {seconds:g} s"
            raise Unready(self.ended() if short else hung) from None
        self.begun = here
        if answer["status"] != "ready":
            raise Unready(answer["detail"])
        return self.process

    def asked(self, point: Point, key: Key, job: Job) -> Measured:
        """What the process says of a tile program; `waiting` if the budget ended before it said anything."""
        process = self.at(point, key)
        slow = False
        try:
            load = {"ask": "load", "digest": job.digest, "tiles": job.text}
            patience, slow = self.within(job.patience)
            answer = process.ask(load, patience, self.beat)
            if answer["status"] == "loaded":
                patience, slow = self.within(self.limits.measure_seconds)
                answer = process.ask({"ask": "measure", "digest": job.digest}, patience, self.beat)
        except Died as death:
            self.process = None
            return Measured("crash", detail=str(death))
        except Late:
            self.process = None
            if slow:
                return Measured("waiting")
            return Measured("hang", detail=f"no answer within {self.limits.measure_seconds:g} s")
        return Measured(
            answer["status"], answer.get("seconds"), answer.get("error"), answer.get("detail", "")
        )

    def compared(
        self, point: Point, key: Key, texts: Mapping[str, str], seconds: float, left: float
    ) -> Mapping[str, float]:
        """The median seconds of tile programs (texts by digest) that run in turns, for `seconds` and no more
        than half of what is `left`. Nothing if the process dies or hangs: what was measured alone stands."""
        try:
            process = self.at(point, key)
            for digest, text in texts.items():
                message: Message = {"ask": "load", "digest": digest, "tiles": text}
                process.ask(message, self.within(self.limits.patience)[0], self.beat)
            message = {"ask": "compare", "digests": list(texts), "seconds": min(seconds, left / 2)}
            longest = seconds + self.limits.measure_seconds * len(texts)
            answer = process.ask(message, self.within(longest)[0], self.beat)
        except (Died, Late):
            self.process = None
            return {}
        return answer["seconds"]

    def within(self, seconds: float) -> tuple[float, bool]:
        """Seconds that something may take so that the budget holds, and whether it is the budget that says
        so."""
        left = max(LEAST_ASKED, self.end - time.monotonic())
        return min(seconds, left), left < seconds


def _task(point: Point) -> Message:
    """What tells the process to take up a point."""
    program = point.program
    return {
        "ask": "task",
        "target": point.target,
        "program": print_program(program),
        "sizes": {atom.name: point.sizes[atom] for atom in program.dynamic},
        "precision": torch.get_float32_matmul_precision(),
        "threads": torch.get_num_threads() if point.target == "cpu" else 0,
    }
