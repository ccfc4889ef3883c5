"""A child of a benchmark run: one case in one dtype (see `runner`).

    python -m benchmarks.worker case

Messages: `prepare` compiles for all points and needs no device; `measure` gives the records of one point.
Whatever is not foreseen ends the process, which the run survives.
"""

from __future__ import annotations

from typing import Any

from benchmarks.runner import Options, Runner
from benchmarks.suites import SUITES
from cleave.runtime.tune_worker import serve

Message = dict[str, Any]


class Worker:
    """Answers the messages of a run."""

    def __init__(self) -> None:
        self.runner: Runner | None = None

    def answer(self, message: Message) -> Message:
        if message["do"] == "prepare":
            case = next(c for c in SUITES[message["suite"]] if c.name == message["case"])
            options = message["options"]
            several = {name: tuple(options[name]) for name in ("ablations", "only")}
            self.runner = Runner(case, message["dtype"], Options(**{**options, **several}))
            self.runner.prepare(message["points"])
            return {}
        assert self.runner is not None
        return {"records": self.runner.measure(message["phase"], message["sizes"], message["reused"])}


if __name__ == "__main__":
    serve(Worker().answer)
