"""Certificates with one thing changed: an operand, a size, a number, a condition, in any step or program.

Every mutant is refused, or proves what no numbers speak against. And the checker stands alone: a fresh
process in which the search cannot be imported checks what the search wrote.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from algebra.equal_forms import CAPS, CONDITIONAL, FORMS
from algebra.equal_rows import ROWS
from cleave.algebra.certificate import certify
from cleave.errors import CleaveError
from cleave.ir.certificate import Certificate, parse
from cleave.ir.text import parse_program
from test_checker import accepted, certificate, sound

PAIRS = [*ROWS, *FORMS, *CAPS]
CHOSEN = [*PAIRS[:: max(1, len(PAIRS) // 26)], *CONDITIONAL]
"""Some thirty pairs of all kinds, those with conditions among them."""
MOST = 40
"""Mutants of each kind a certificate."""

TOKEN = re.compile(r"[A-Za-z_]\w*(?:['~.]\d+)?|\d+")


def exchanged(text: str, words: list[str], rng: random.Random) -> Iterator[str]:
    """The text with one word or number of it another one."""
    places = list(TOKEN.finditer(text))
    for place in rng.sample(places, min(3, len(places))):
        word = rng.choice(words)
        if word != place.group():
            yield text[: place.start()] + word + text[place.end() :]


def steps_changed(found: Certificate, rng: random.Random) -> Iterator[Certificate]:
    words = sorted({w for s in found.steps for t in (s.before, s.after, s.detail) for w in TOKEN.findall(t)})
    for number, step in enumerate(found.steps):
        for field in ("before", "after", "detail"):
            for text in exchanged(getattr(step, field), words, rng):
                changed = replace(step, **{field: text})
                yield replace(found, steps=(*found.steps[:number], changed, *found.steps[number + 1 :]))


def conditions_changed(found: Certificate, rng: random.Random) -> Iterator[Certificate]:
    words = sorted({w for c in found.conditions for w in TOKEN.findall(c)})
    for number, condition in enumerate(found.conditions):
        texts = list(exchanged(condition, words, rng))
        for old, new in ((">= 0", "> 0"), ("> 0", ">= 0"), ("!= 0", ">= 0"), ("= 1", "= 0")):
            texts += [condition.replace(old, new)] if old in condition else []
        for text in texts:
            yield replace(
                found, conditions=(*found.conditions[:number], text, *found.conditions[number + 1 :])
            )


def programs_changed(found: Certificate, rng: random.Random) -> Iterator[Certificate]:
    for side in ("first", "second"):
        text = getattr(found, side)
        words = sorted(set(TOKEN.findall(text)))
        for _ in range(10):
            for changed in exchanged(text, words, rng):
                try:
                    parse_program(changed)
                except CleaveError:
                    continue
                yield replace(found, **{side: changed})


@pytest.mark.parametrize("name", CHOSEN)
def test_mutants_are_refused_or_true(name: str) -> None:
    text = certificate(name)
    found, rng = parse(text), random.Random(name)
    assert accepted(text) is not None
    tried = 0
    for kind in (steps_changed, conditions_changed, programs_changed):
        mutants = [str(m) for m in kind(found, rng)]
        for mutant in rng.sample(mutants, min(MOST, len(mutants))):
            tried += 1
            sound(mutant, text)
    assert tried >= 2


@pytest.mark.parametrize("name", CONDITIONAL)
def test_conditions_are_listed_and_no_other_will_do(name: str) -> None:
    found, rng = parse(certificate(name)), random.Random(name)
    assert found.conditions and all(re.search(r"(= 1|= 0|!= 0|>= 0|> 0)$", c) for c in found.conditions)
    for mutant in conditions_changed(found, rng):
        assert mutant.conditions == found.conditions or accepted(str(mutant)) is None


SIZED = """program sized(x: f32[N, K], w: f32[N]) where K = 8 {{
{}
  return y[n]
}}
"""
MEAN = """  m[n: N]: f32 = sum[k: K](x[n, k])
  a[n: N]: f32 = div(m[n], {})
  y[n: N]: f32 = mul(a[n], w[n])"""
INSIDE = """  a[n: N, k: K]: f32 = mul(x[n, k], w[n])
  m[n: N]: f32 = sum[k: K](a[n, k])
  y[n: N]: f32 = div(m[n], 8.0)"""


def test_a_size_that_is_changed_is_not_the_one_that_was_proved() -> None:
    """The size stands in a place without a name of its own, behind a literal."""
    one, two = SIZED.format(MEAN.format("size(K)")), SIZED.format(INSIDE)
    found = certify(parse_program(one), parse_program(two))
    assert found.holds, found.reason
    text = found.text
    assert any(step.law == "given" for step in parse(text).steps)
    assert text.count("where K = 8") == 2 and accepted(text) is not None
    assert accepted(text.replace("K = 8", "K = 9")) is None
    assert accepted(text.replace("K = 8", "K = 9", 1)) is None
    assert accepted(text.replace("8.0", "7.0")) is None
    assert not certify(parse_program(SIZED.format(MEAN.format("7.0"))), parse_program(two)).holds


FRESH = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[:2] in (["cleave", "algebra"], ["torch"]):
            raise ImportError(f"{name} is no part of the checker")

sys.meta_path.insert(0, Refuse())
from cleave.errors import Invalid
from cleave.ir.checker import check

text = open(sys.argv[1]).read()
found = check(text)
print(len(found.steps), len(found.conditions))
try:
    check(text.replace("step 1 at", "step 2 at"))
except Invalid as error:
    print("refused")
own = {name for name in sys.modules if name.startswith("cleave.")}
assert all(name in ("cleave.errors", "cleave.version") or name.startswith("cleave.ir") for name in own), own
"""


def test_a_fresh_process_checks_without_the_search(tmp_path: Path) -> None:
    for name in ("safe and unsafe", "a log-sum-exp where nothing may be seen"):
        path = tmp_path / "proof.txt"
        path.write_text(certificate(name))
        source = Path(__file__).parents[1] / "src"
        command = [sys.executable, "-c", FRESH, str(path)]
        done = subprocess.run(
            command, capture_output=True, text=True, env={"PYTHONPATH": str(source)}, timeout=100
        )
        found = parse(path.read_text())
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [str(len(found.steps)), str(len(found.conditions)), "refused"]
