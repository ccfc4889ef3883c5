"""Settings of the environment: what is none of theirs is refused by name."""

from __future__ import annotations

import pytest

from cleave.errors import Invalid
from cleave.knobs import _read


@pytest.mark.parametrize(
    ("name", "value"),
    [("CLEAVE_NUMERICS", "Strict"), ("CLEAVE_NUMERICS", "bogus"), ("CLEAVE_REASSOCIATE", "true")],
)
def test_a_value_that_a_setting_does_not_have_is_refused(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(Invalid, match=f"{name} is '{value}'"):
        _read()


def test_empty_is_the_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLEAVE_NUMERICS", "")
    monkeypatch.setenv("CLEAVE_REASSOCIATE", "1")
    assert _read().numerics == "stable" and _read().reassociate
