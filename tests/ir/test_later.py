"""A value that is made when it is first asked for."""

from __future__ import annotations

from cleave.ir.candidate import Candidate
from cleave.ir.later import Later
from cleave.ir.text import parse_program


def test_it_is_made_once_and_only_when_asked_for() -> None:
    calls: list[int] = []
    later = Later(lambda: calls.append(1) or (1, 2))
    assert not calls
    assert later() == (1, 2) and later() == (1, 2) and calls == [1]


def test_it_equals_what_it_holds() -> None:
    later = Later(lambda: "a")
    assert later == "a" and later == Later(lambda: "a") and hash(later) == hash("a")
    assert later != "b" and later != Later(lambda: "b") and later != None  # noqa: E711


def test_candidates_are_keys_without_making_their_other_forms() -> None:
    calls: list[int] = []
    program = parse_program("program p(x: f32[N]) { y[n: N]: f32 = neg(x[n]) return y[n] }")
    candidate = Candidate(program, (), written_out=Later(lambda: calls.append(1) or program))
    assert candidate in {candidate: 1} and not calls
    assert candidate == Candidate(program, (), written_out=program)
    assert hash(candidate) == hash(Candidate(program, (), written_out=program))
