"""A value that is made when it is first asked for."""

from __future__ import annotations

from cleave.ir.later import Later


def test_it_is_made_once_and_only_when_asked_for() -> None:
    calls: list[int] = []
    later = Later(lambda: calls.append(1) or (1, 2))
    assert not calls
    assert later() == (1, 2) and later() == (1, 2) and calls == [1]


def test_it_equals_what_it_holds() -> None:
    later = Later(lambda: "a")
    assert later == "a" and later == Later(lambda: "a") and hash(later) == hash("a")
    assert later != "b" and later != Later(lambda: "b") and later != None  # noqa: E711
