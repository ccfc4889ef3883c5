"""The prover against the second opinion on random pairs of programs, at a size for the night.

    python -m benchmarks.soundness --pairs 100000 --seed 1 [--infinite] [--out FILE] [--limit SECONDS]
    python -m benchmarks.soundness --again FILE
    python -m benchmarks.soundness --merge FILE... --code TEXT --out FILE

Pair `k` of a seed is always the same (`tests/algebra/random_pairs.py`): even ones are made by 1 to 5 sound
laws and must never be told apart where they are proved, odd ones with an unsound law and must never be
proved where they are told apart. Elements that are made of numbers too large to compute with are not compared
but counted (`elements`). With `--infinite` many values are infinite: maxima of parts that may be empty,
masks, logs of 0. FILE (JSON) is written as the run goes on; started again with the same seed, a run goes on
where FILE ends. The exit status is 1 if there is any fault. `--again` judges the faults of a run's file once
more with the code at hand: each says in "again" what came out. `--merge` puts several runs of one code, named
by `--code`, into one file.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from algebra.form_values import wrong_form
from algebra.random_pairs import Pair, draw, judge
from algebra.random_programs import INFINITE, KINDS
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


def _write(path: Path, data: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(data, indent=1) + "\n")
    os.replace(fresh, path)


class Summary:
    """What was seen up to some pair; `load` and `save` make a run go on after a stop."""

    def __init__(self, seed: str, kinds: Sequence[str] = KINDS) -> None:
        self.seed = seed
        self.kinds = kinds
        self.done = 0
        self.seconds = 0.0
        self.answers: Counter[str] = Counter()
        self.laws: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.forms = 0
        self.seen = self.skipped = 0
        self.faults: list[dict[str, Any]] = []
        self.slow: list[tuple[float, str]] = []

    def load(self, path: Path) -> None:
        if not path.exists():
            return
        data = json.loads(path.read_text())
        if (data["seed"], data["infinite"]) != (self.seed, self.kinds == INFINITE):
            raise SystemExit(f"{path} is of seed {data['seed']}, or of other programs: give another --out")
        self.done, self.seconds, self.forms = data["pairs"], data["seconds"], data["forms"]
        self.seen, self.skipped = data["elements"]["compared"], data["elements"]["out of reach"]
        self.answers, self.laws = Counter(data["answers"]), Counter(data["laws"])
        self.lost = Counter(data["not proved, by sound law"])
        self.faults, self.slow = data["faults"], [(s, n) for s, n in data["slowest"]]

    def save(self, path: Path) -> None:
        data = {
            "seed": self.seed,
            "infinite": self.kinds == INFINITE,
            "pairs": self.done,
            "seconds": round(self.seconds, 1),
            "answers": dict(sorted(self.answers.items())),
            "laws": dict(sorted(self.laws.items())),
            "not proved, by sound law": dict(sorted(self.lost.items())),
            "forms": self.forms,
            "elements": {"compared": self.seen, "out of reach": self.skipped},
            "slowest": sorted(self.slow, reverse=True)[:SLOWEST],
            "faults": self.faults,
        }
        _write(path, data)

    def look(self, number: int, limit: float) -> None:
        """Judge one pair."""
        pair, fault, start = draw(self.seed, number, kinds=self.kinds), "", time.process_time()
        try:
            with at_most(limit):
                verdict = judge(pair, points=2)
                fault = verdict.fault
                self.seen += verdict.seen
                self.skipped += verdict.skipped
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


COUNTED = ("answers", "laws", "not proved, by sound law", "elements")


def merged(paths: Sequence[Path], code: str) -> dict[str, Any]:
    """The summaries of several runs as one: counts added, faults with their seeds."""
    runs = [json.loads(path.read_text()) for path in paths]
    told = [
        {k: run[k] for k in ("seed", "infinite", "pairs")} | {"faults": len(run["faults"])} for run in runs
    ]
    whole: dict[str, Any] = {"code": code, "runs": told}
    whole["pairs"] = sum(run["pairs"] for run in runs)
    whole["seconds"] = round(sum(run["seconds"] for run in runs), 1)
    for name in COUNTED:
        total: Counter[str] = sum((Counter(run[name]) for run in runs), Counter[str]())
        whole[name] = dict(sorted(total.items()))
    whole["forms"] = sum(run["forms"] for run in runs)
    whole["slowest"] = sorted((s for run in runs for s in run["slowest"]), reverse=True)[:SLOWEST]
    whole["faults"] = [fault | {"seed": run["seed"]} for run in runs for fault in run["faults"]]
    return whole


def _fault(number: int, pair: Pair, text: str) -> dict[str, Any]:
    programs = [print_program(p) for p in (pair.a, pair.b)]
    return {"pair": number, "laws": list(pair.laws), "fault": text, "programs": programs}


def judged_again(path: Path) -> int:
    """Judge the faults of a run's file once more, as that run did; 1 if one is left."""
    data = json.loads(path.read_text())
    for fault in data["faults"]:
        pair = draw(data["seed"], fault["pair"], kinds=INFINITE if data["infinite"] else KINDS)
        verdict = judge(pair, points=2)
        fault["again"] = verdict.fault or f"none, the prover says {verdict.answer}"
    _write(path, data)
    left = [f["pair"] for f in data["faults"] if not f["again"].startswith("none")]
    print(f"{len(data['faults'])} faults judged again, {len(left)} left: {left}")
    return 1 if left else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soundness", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--out", type=Path, help="summary (default: benchmarks/results/soundness-SEED.json)")
    parser.add_argument("--limit", type=float, default=20.0, help="processor seconds that one pair may take")
    parser.add_argument("--infinite", action="store_true", help="programs with many infinite values")
    parser.add_argument("--again", type=Path, help="a summary whose faults are to be judged once more")
    parser.add_argument("--merge", type=Path, nargs="+", help="summaries to put into one")
    parser.add_argument("--code", default="", help="with --merge: the code that was run")
    args = parser.parse_args()
    if args.again:
        return judged_again(args.again)
    if args.merge:
        if not args.out or not args.code:
            parser.error("--merge needs --out and --code")
        _write(args.out, merged(args.merge, args.code))
        return 0
    path = args.out or Path(__file__).parent / "results" / f"soundness-{args.seed}.json"
    summary = Summary(args.seed, INFINITE if args.infinite else KINDS)
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
