"""Random pairs of programs: what the prover says against the second opinion (`python -m benchmarks.soundness`
runs as many as a night has time for)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from algebra.random_faults import FAULTS
from algebra.random_pairs import Pair, draw, judge
from algebra.random_programs import INFINITE
from algebra.random_rewrites import LAWS
from algebra.wrong_pairs import WRONG, wrong
from cleave.ir.text import print_program

ROOT = Path(__file__).parents[2]


def judged(seed: str, count: int, points: int, length: tuple[int, int] = (5, 10)) -> Counter[str]:
    """The answers for pairs of a seed; an assertion fails at the first fault."""
    answers: Counter[str] = Counter()
    for number in range(count):
        pair = draw(seed, number, length)
        verdict = judge(pair, points)
        shown = "\n".join(map(print_program, (pair.a, pair.b)))
        assert not verdict.fault, f"pair {number} of {seed}: {pair.laws}: {verdict.fault}\n{shown}"
        answers[f"{'unsound' if pair.unsound else 'sound'} {verdict.answer}"] += 1
    return answers


@pytest.mark.parametrize("block", range(4))
def test_what_is_proved_is_true(block: int) -> None:
    answers = judged(f"quick {block}", 500, points=1, length=(3, 6))
    assert answers["sound yes"] + answers["sound yes-if"] >= 0.9 * 250
    assert answers["unsound unknown"] >= 100


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("block", range(10))
def test_what_is_proved_is_true_of_many(block: int) -> None:
    answers = judged(f"many {block}", 2000, points=3)
    assert answers["sound yes"] + answers["sound yes-if"] >= 0.9 * 1000


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", WRONG)
def test_what_was_wrong_is_not(name: str) -> None:
    verdict = judge(Pair(name, *wrong(name), (), "a law that does not hold"), points=2)
    assert not verdict.fault
    assert verdict.answer != "yes"


def test_programs_with_infinities() -> None:
    for number in range(150):
        pair = draw("infinite", number, kinds=INFINITE)
        verdict = judge(pair, points=2)
        assert not verdict.fault, f"pair {number}: {pair.laws}: {verdict.fault}"


def test_every_law_and_every_fault_is_drawn() -> None:
    used: set[str] = set()
    for number in range(500):
        used |= set(draw("coverage", number).laws)
    assert len({*LAWS, *FAULTS} - used) <= 8


def test_a_pair_is_always_the_same() -> None:
    for number in range(20):
        one, two = draw("same", number), draw("same", number)
        assert (one.a.outputs, one.b.outputs, one.laws) == (two.a.outputs, two.b.outputs, two.laws)


def test_the_command_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "soundness.json"
    command = [sys.executable, "-m", "benchmarks.soundness", "--seed", "command", "--out", str(out)]
    for count in ("4", "8"):
        done = subprocess.run(
            [*command, "--pairs", count], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    found = json.loads(out.read_text())
    assert found["pairs"] == 8 and sum(found["answers"].values()) == 8 and found["faults"] == []
    assert "8 of 8 pairs, 0 faults" in done.stdout
    both = tmp_path / "both.json"
    merge = [*command[:3], "--merge", str(out), str(out), "--code", "this", "--out", str(both)]
    subprocess.run(merge, cwd=ROOT, check=True)
    whole = json.loads(both.read_text())
    assert (whole["code"], whole["pairs"], sum(whole["answers"].values())) == ("this", 16, 16)
    assert whole["elements"]["compared"] == 2 * found["elements"]["compared"] > 0
    found["faults"] = [{"pair": 3, "fault": "the opinion of another day"}]
    out.write_text(json.dumps(found))
    again = subprocess.run([*command[:3], "--again", str(out)], cwd=ROOT, capture_output=True, text=True)
    (fault,) = json.loads(out.read_text())["faults"]
    assert again.returncode == 0 and "1 faults judged again, 0 left" in again.stdout
    assert fault["fault"] == "the opinion of another day" and fault["again"].startswith("none")
