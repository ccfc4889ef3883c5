"""Numerical standing: which conditions are found, and which follow from the user's."""

from __future__ import annotations

import numpy as np

from algebra_programs import EVERY, EXPANDED
from cleave.algebra.search import search
from cleave.ir.candidate import Candidate
from cleave.ir.precision import narrows
from cleave.ir.reference import evaluate_fold
from cleave.ir.text import parse_program


def by_form(name: str, **options: str) -> dict[str, Candidate]:
    return {c.form: c for c in search(EVERY[name], **options).candidates}  # pyright: ignore


def kinds(candidate: Candidate) -> list[tuple[str, str, bool]]:
    return [(c.kind, c.bound, c.holds) for c in candidate.conditions]


def test_a_shifted_exponent_is_at_most_zero_and_its_sum_at_least_one() -> None:
    own = by_form("attention")["divided last"]
    found = kinds(own)
    assert ("exponent", "<= 0", True) in found
    assert ("denominator", ">= 1", True) in found
    assert ("range", "between 0 and 1", True) in found
    assert own.stable


def test_an_unshifted_exponent_has_no_bound_but_is_the_users() -> None:
    found = by_form("unshifted")
    assert ("exponent", "no bound", True) in kinds(found["as written"])
    assert ("exponent", "<= 0", True) in kinds(found["shifted"])


def test_every_candidate_kept_by_default_is_stable() -> None:
    for name in EVERY:
        assert all(c.stable for c in search(EVERY[name], split=False).candidates), name


def test_a_difference_that_may_cancel_is_for_fast_only() -> None:
    user = parse_program(EXPANDED)
    stable, fast = search(user, split=False), search(user, split=False, numerics="fast")
    assert "dropped: stands worse than the user's program" in stable.counts
    worse = [c for c in fast.candidates if not c.stable]
    assert worse and all(any(x.kind == "difference" for x in c.conditions) for c in worse)
    assert all(c.stable for c in stable.candidates)


def test_the_mean_is_taken_off_before_squares_are_summed() -> None:
    user = EVERY["layer_norm"]
    rng = np.random.default_rng(0)
    x = (1e4 + rng.normal(size=(3, 64))).astype(np.float32)
    inputs = {"x": x, "g": np.ones(64, np.float32), "b": np.zeros(64, np.float32)}
    for candidate in search(user, split=False).candidates:
        fold = candidate.folds[0]
        got = evaluate_fold(candidate, fold, inputs, [10, 0, 30, 24], np.float32)
        squares = [v for v in fold.values if user.names.get(v.node) == "ss"]
        assert len(squares) == 1
        assert np.allclose(got[squares[0].name], x.astype(np.float64).var(1) * 64, rtol=1e-4)


def test_an_operand_of_its_own_is_listed_with_its_range() -> None:
    own = by_form("rms_linear")["scaled last"]
    assert any(c.kind == "range" and "mul(x, g)" in c.subject for c in own.conditions)


def test_operands_that_float16_may_not_hold_are_marked() -> None:
    last = next(c for c in search(EVERY["rms_linear"]).candidates if c.form == "scaled last")
    marked = [c.subject for c in last.conditions if narrows(c, "f16")]
    assert len(marked) == 1 and not any(narrows(c, "bf16") for c in last.conditions)
    own, divided = by_form("attention")["as written"], by_form("attention")["divided last"]
    assert not any(narrows(c, "f16") for c in (*own.conditions, *divided.conditions))
