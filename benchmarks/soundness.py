"""The prover against the second opinion on random pairs of programs, at a size for the night.

    python -m benchmarks.soundness --pairs 100000 --seed 1 [--out FILE] [--limit SECONDS]

Pair `k` of a seed is always the same (`tests/algebra/random_pairs.py`): even ones are made by 1 to 5 sound
laws and must never be told apart where they are proved, odd ones with an unsound law and must never be
proved where they are told apart. FILE (JSON) is written as the run goes on; started again with the same
seed, a run goes on where FILE ends. The exit status is 1 if there is any fault.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from algebra.form_values import wrong_form
from algebra.random_pairs import Pair, draw, judge
from cleave.errors import CleaveError
from cleave.ir.text import print_program

EVERY = 500
"""So many pairs between two writes of the summary."""

FORMS = 16
"""Of so many pairs one has the forms of all its nodes compared with the nodes' values."""

SLOWEST = 20

CRASHES = (
    CleaveError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What is a fault of the pair that it happens in, and no end of the run."""


class TooLong(Exception):
    """A pair took longer than the limit."""


@contextmanager
def at_most(seconds: float):
    """Raise `TooLong` in the block after some seconds of processor time."""

    def stop(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Summary:
    """What was seen up to some pair; `load` and `save` make a run go on after a stop."""

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.done = 0
        self.seconds = 0.0
        self.answers: Counter[str] = Counter()
        self.laws: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.forms = 0
        self.faults: list[dict[str, Any]] = []
        self.slow: list[tuple[float, str]] = []

    def load(self, path: Path) -> None:
        if not path.exists():
            return
        data = json.loads(path.read_text())
        if data["seed"] != self.seed:
            raise SystemExit(f"{path} is of seed {data['seed']}, not {self.seed}: give another --out")
        self.done, self.seconds, self.forms = data["pairs"], data["seconds"], data["forms"]
        self.answers, self.laws = Counter(data["answers"]), Counter(data["laws"])
        self.lost = Counter(data["not proved, by sound law"])
        self.faults, self.slow = data["faults"], [(s, n) for s, n in data["slowest"]]

    def save(self, path: Path) -> None:
        data = {
            "seed": self.seed,
            "pairs": self.done,
            "seconds": round(self.seconds, 1),
            "answers": dict(sorted(self.answers.items())),
            "laws": dict(sorted(self.laws.items())),
            "not proved, by sound law": dict(sorted(self.lost.items())),
            "forms": self.forms,
            "slowest": sorted(self.slow, reverse=True)[:SLOWEST],
            "faults": self.faults,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_text(json.dumps(data, indent=1) + "\n")
        os.replace(fresh, path)

    def look(self, number: int, limit: float) -> None:
        """Judge one pair."""
        pair, fault, start = draw(self.seed, number), "", time.process_time()
        try:
            with at_most(limit):
                verdict = judge(pair, points=2)
                fault = verdict.fault
                if not fault and number % FORMS == number // FORMS % FORMS:
                    self.forms += len(pair.b.nodes)
                    fault = wrong_form(pair.b, number, points=1)
            seen = "told apart" if verdict.differs else "not told apart"
            looked = pair.look or verdict.answer != "unknown"
            kind = f"unsound, {seen if looked else 'not looked at'}" if pair.unsound else "sound"
            self.answers[f"{kind}: {verdict.answer}"] += 1
            if not pair.unsound and verdict.answer == "unknown":
                self.lost.update(set(pair.laws))
        except TooLong:
            fault = f"not done in {limit} s"
        except CRASHES as problem:
            fault = f"{type(problem).__name__}: {problem}"
        self.laws.update(set(pair.laws))
        if fault:
            self.faults.append(_fault(number, pair, fault))
        took = time.process_time() - start
        self.slow = sorted([*self.slow, (round(took, 3), pair.name)], reverse=True)[:SLOWEST]
        self.seconds += took
        self.done = number + 1


def _fault(number: int, pair: Pair, text: str) -> dict[str, Any]:
    programs = [print_program(p) for p in (pair.a, pair.b)]
    return {"pair": number, "laws": list(pair.laws), "fault": text, "programs": programs}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soundness", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--out", type=Path, help="summary (default: benchmarks/results/soundness-SEED.json)")
    parser.add_argument("--limit", type=float, default=20.0, help="processor seconds that one pair may take")
    args = parser.parse_args()
    path = args.out or Path(__file__).parent / "results" / f"soundness-{args.seed}.json"
    summary = Summary(args.seed)
    summary.load(path)
    start = time.perf_counter()
    first = summary.done
    for number in range(first, args.pairs):
        summary.look(number, args.limit)
        if summary.done % EVERY == 0 or summary.done == args.pairs:
            summary.save(path)
            rate = (summary.done - first) / (time.perf_counter() - start)
            left = (args.pairs - summary.done) / rate
            print(
                f"{summary.done} of {args.pairs} pairs, {len(summary.faults)} faults, {rate:.0f} a second, "
                f"{left / 60:.0f} min left",
                flush=True,
            )
    print(f"{summary.done} pairs of seed {args.seed}: {len(summary.faults)} faults; {path}")
    for kind, count in sorted(summary.answers.items()):
        print(f"  {count:7d}  {kind}")
    return 1 if summary.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
