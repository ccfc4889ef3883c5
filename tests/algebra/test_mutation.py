"""Every law and every side condition is needed: with a condition off a near miss becomes a false Yes, with a
law off a proof is lost."""

from __future__ import annotations

import pytest

from algebra.near_conditions import GUARDED
from algebra.pairs import program, refuted
from algebra.test_proof import PAIRS
from cleave.algebra import laws
from cleave.algebra.proof import prove

# Of these the second program is only not defined where the first is: they must never be a Yes without
# conditions.
ABOUT_DEFINEDNESS = ("defined", "reads-inside", "bounded")


def answer(inputs: str, one: str, two: str) -> str:
    return prove(program(inputs, one), program(inputs, two), steps=False, points=0).answer


@pytest.mark.parametrize("condition", GUARDED)
def test_without_a_side_condition_a_near_miss_is_proved(condition: str) -> None:
    inputs, one, two = GUARDED[condition]
    assert refuted(program(inputs, one), program(inputs, two)), "the pair is no near miss"
    false = ("yes",) if condition in ABOUT_DEFINEDNESS else ("yes", "yes-if")
    assert answer(inputs, one, two) not in false
    with laws.without(condition):
        assert answer(inputs, one, two) in false


def test_a_condition_that_only_makes_needs_weaker() -> None:
    """Without `guarded-need` a need under a select counts as one of the whole program."""
    inputs, one, two = GUARDED["defined"]
    assert answer(inputs, one, two) == "yes-if"
    with laws.without("guarded-need"):
        assert answer(inputs, one, two) == "yes"


def test_every_side_condition_is_guarded() -> None:
    assert {*GUARDED, "guarded-need"} == set(laws.CONDITIONS)


# Each law is needed for some proof.
NEEDED = {
    "case": "exponentials of a choice, summed",
    "absent": "masked by products",
    "exp-log": "through the log of the sum",
    "content": "sigmoids summed",
    "magnitude": "root of a square",
    "implied": "masked, split with guarded maxima of parts",
    "excluded": "masks that exclude each other",
    "finite": "variance of two dims, split by both",
    "sum-open": "three products in another order",
    "sum-part": "safe and unsafe",
    "sum-size": "variance in one pass",
    "sum-union": "adapters by concatenation",
    "sum-split": "split of a product",
    "one-hot": "one-hot loss",
    "max-flat": "largest magnitude by parts",
    "max-part": "largest of a shifted row",
    "max-union": "largest of a union",
    "max-split": "largest magnitude by parts",
    "max-exp": "largest of exponentials",
    "max-scale": "largest of a scaled row",
    "max-cap": "largest of capped values",
    "max-pair": "roots of squares summed",
    "cross": "a difference of squares over a sum",
    "either-sign": "softplus",
    "given": "one-hot loss",
}


@pytest.mark.parametrize("law", NEEDED)
def test_without_a_law_a_proof_is_lost(law: str) -> None:
    row = PAIRS[NEEDED[law]]
    assert answer(*row).startswith("yes")
    with laws.without(law):
        assert answer(*row) == "unknown"


def test_every_law_is_needed() -> None:
    assert {*NEEDED, "same"} == set(laws.LAWS)  # that equal forms are equal is what a proof ends with


@pytest.mark.slow
@pytest.mark.parametrize("law", NEEDED)
def test_no_law_makes_an_equal_pair_differ(law: str) -> None:
    """With a law off, what is still proved is true, and nothing is denied."""
    with laws.without(law):
        for inputs, one, two in PAIRS.values():
            assert prove(program(inputs, one), program(inputs, two), steps=False, points=4).answer != "no"
