"""Equalities that must be proved, each confirmed by the second opinion."""

from __future__ import annotations

import time

import pytest

from algebra.equal_forms import CAPS, CONDITIONAL, FORMS
from algebra.equal_rows import GUARDED_PARTS, MASKED, MASKED_ATTENTION, ROWS, SOFTMAX, UNSAFE
from algebra.pairs import program, refuted
from algebra.random_steps import rewritten
from cleave.algebra.proof import prove
from programs import PROGRAMS

PAIRS = {**ROWS, **FORMS, **CAPS}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_programs_are_proved(name: str) -> None:
    inputs, one, two = PAIRS[name]
    a, b = program(inputs, one), program(inputs, two)
    proof = prove(a, b)
    assert proof.answer == "yes", proof
    assert not refuted(a, b, count=4)


@pytest.mark.parametrize("name", PAIRS)
def test_proofs_hold_the_other_way_round_too(name: str) -> None:
    inputs, one, two = PAIRS[name]
    assert prove(program(inputs, two), program(inputs, one), steps=False).holds


@pytest.mark.parametrize("name", CONDITIONAL)
def test_conditions_are_listed(name: str) -> None:
    inputs, one, two, conditions = CONDITIONAL[name]
    proof = prove(program(inputs, one), program(inputs, two))
    assert (proof.answer, proof.conditions) == ("yes-if", conditions)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_equals_itself(name: str) -> None:
    assert prove(PROGRAMS[name], PROGRAMS[name], steps=False).answer == "yes"


def test_examples_that_are_split_equal_the_whole() -> None:
    assert prove(PROGRAMS["softmax"], PROGRAMS["split_softmax"]).answer == "yes"
    assert prove(PROGRAMS["matmul"], PROGRAMS["split_k"]).answer == "yes"


def test_names_of_dims_do_not_matter() -> None:
    a = program("x[N, K]", SOFTMAX)
    b = program("x[A, B]", UNSAFE.replace("n: N", "n: A").replace("k: K", "k: B"))
    assert prove(a, b).answer == "yes"


def test_the_steps_name_laws_and_places() -> None:
    steps = prove(PROGRAMS["softmax"], PROGRAMS["split_softmax"]).steps
    assert {"sum-split", "sum-open", "sum-part", "case"} <= {s.law for s in steps}
    assert all(s.place and s.before and s.after for s in steps)
    assert steps == prove(PROGRAMS["softmax"], PROGRAMS["split_softmax"]).steps


def test_speed() -> None:
    a, b = program(MASKED, MASKED_ATTENTION), program(MASKED, GUARDED_PARTS)
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        prove(a, b, steps=False)
        best = min(best, time.process_time() - start)
    assert best < 0.5


def _answers(name: str, count: int) -> list[str]:
    answers: list[str] = []
    for seed in range(count):
        a, b, laws = rewritten(f"{name} {seed}")
        proof = prove(a, b, steps=False, points=3)
        assert proof.answer != "no", (seed, laws, proof.counterexample)
        answers.append(proof.answer)
    return answers


@pytest.mark.parametrize("block", range(4))
def test_random_rewrites_are_never_denied_and_nearly_always_proved(block: int) -> None:
    answers = _answers(f"rewrite {block}", 60)
    assert sum(a != "unknown" for a in answers) >= 57


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_random_rewrites(block: int) -> None:
    answers = _answers(f"many {block}", 500)
    assert sum(a != "unknown" for a in answers) >= 480
