"""Pairs that are nearly equal, and must never be proved so. The second opinion tells most of them apart."""

from __future__ import annotations

import pytest

from algebra.near_forms import FORMS, SQUARE, X
from algebra.near_infinite import FINITE, INFINITE, INPUTS, LEAST, MASKED, NAN, TRUTHS
from algebra.near_more import MORE
from algebra.near_more import UNDEFINED as NOWHERE
from algebra.near_rows import ROWS
from algebra.pairs import program, refuted
from cleave.algebra.equal import answer
from cleave.algebra.proof import prove

MISSES = {**FORMS, **ROWS, **MORE, **MASKED}

# The second opinion cannot tell these apart by a finite value: they differ where one is not defined.
UNDEFINED = ("log of a product as a sum of logs", "log of a square", "maxima of parts without a guard")


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_are_not_proved(name: str) -> None:
    inputs, one, two = MISSES[name]
    a, b = program(inputs, one), program(inputs, two)
    assert refuted(a, b), "the pair is no near miss"
    proof = prove(a, b)
    assert proof.answer != "yes"
    if name not in UNDEFINED:
        assert proof.answer == "no"
        assert proof.counterexample


@pytest.mark.parametrize("name", NOWHERE)
def test_what_is_not_defined_where_the_first_is_has_conditions(name: str) -> None:
    inputs, one, two = NOWHERE[name]
    a, b = program(inputs, one), program(inputs, two)
    assert refuted(a, b), "the second program is defined everywhere"
    proof = prove(a, b)
    assert proof.answer == "yes-if" and proof.conditions


@pytest.mark.parametrize("name", [*INFINITE, *LEAST])
def test_an_infinity_is_no_reason_not_to_be_defined(name: str) -> None:
    inputs, one, two = {**INFINITE, **LEAST}[name]
    a, b = program(inputs, one), program(inputs, two)
    assert refuted(a, b), "the pair is no near miss"
    assert prove(a, b).answer != "yes" and prove(a, a).answer == prove(b, b).answer == "yes"


@pytest.mark.parametrize("name", [*NAN, *TRUTHS])
def test_what_is_made_of_infinities_has_conditions(name: str) -> None:
    a, b = (program(INPUTS, body) for body in {**NAN, **TRUTHS}[name])
    assert refuted(a, b, count=16), "the pair is no near miss"
    proof = prove(a, b, steps=False)
    assert proof.answer != "yes" and (proof.conditions or proof.answer == "no")
    assert answer(a, b) != "yes"
    assert (prove(b, a, steps=False).answer == "yes") == (name in NAN)
    assert name in NAN or answer(b, a) != "yes"
    assert prove(a, a).answer == prove(b, b).answer == "yes"


@pytest.mark.parametrize("name", FINITE)
def test_what_is_finite_after_all_has_none(name: str) -> None:
    a, b = (program(INPUTS, body) for body in FINITE[name])
    assert not refuted(a, b, count=16)
    assert prove(a, b, steps=False).answer == prove(b, a, steps=False).answer == "yes"


def test_there_are_many() -> None:
    assert len(MISSES) + len(NOWHERE) >= 100


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_are_not_proved_backwards(name: str) -> None:
    inputs, one, two = MISSES[name]
    assert name in UNDEFINED or not prove(program(inputs, two), program(inputs, one), steps=False).holds


def test_sizes_that_only_the_second_program_needs_equal() -> None:
    a = program("x[N, K], y[M, K]", "z[n: N, m: M, k: K] = mul(x[n, k], y[m, k])\n-> z[n, m, k]")
    b = program("x[N, K], y[N, K]", "z[n: N, m: N, k: K] = mul(x[n, k], y[m, k])\n-> z[n, m, k]")
    assert prove(b, a).answer == "yes"
    proof = prove(a, b)
    assert (proof.answer, proof.conditions) == ("yes-if", ("|N| = |M|",))


def test_an_input_that_only_one_program_has() -> None:
    a = program("x[N]", "y[n: N] = mul(x[n], 1.0)\n-> y[n]")
    b = program("x[N], z[N]", "y[n: N] = mul(x[n], z[n])\n-> y[n]")
    assert prove(a, b).answer == "unknown"


def test_outputs_of_another_shape() -> None:
    a = program(X, "y[n: N, k: K] = mul(x[n, k], 2.0)\n-> y[n, k]")
    b = program(X, "y[n: N, k: K] = mul(x[n, k], 2.0)\n-> y[n*k]")
    assert prove(a, b).answer == "unknown"
    square = program(SQUARE, "y[i: N, j: N] = mul(a[i, j], 2.0)\n-> y[i, j]")
    turned = program(SQUARE, "y[i: N, j: N] = mul(a[i, j], 2.0)\n-> y[j, i]")
    assert prove(square, turned).answer == "no"


def test_a_part_without_elements_over_a_number_of_unknown_sign_is_either_infinity() -> None:
    top = "m[p: parts(K)] = max[k: part(K)](x[join(p, k)])\n"
    seen = "t[p: parts(K)] = eq({}[p], -inf)\nz[p: parts(K)] = select(t[p], 1.0, 0.0)\n-> z[p]"
    a = program(INPUTS, top + "q[p: parts(K)] = div(m[p], c)\n" + seen.format("q"))
    b = program(INPUTS, top + seen.format("m"))
    assert prove(a, b).answer == prove(b, a).answer == "no"
