"""What is told of a child that has died."""

from __future__ import annotations

import pytest

from cleave.runtime.tune_process import RAISED, Died, Process


def test_the_error_is_quoted_and_not_what_others_print_after_it() -> None:
    child = Process("build", module="no_such_module_anywhere")
    with pytest.raises(Died, match=r"exit code 1: .*No module named no_such_module_anywhere"):
        child.answer(60)


@pytest.mark.parametrize(
    ("line", "raised"),
    [
        ("ValueError: 3 is too much", True),
        ("triton.compiler.errors.CompilationError: at 4:1", True),
        ("KeyboardInterrupt", True),
        ("SystemExit: 3", True),
        ("See https://nanobind.readthedocs.io/en/latest/refleaks.html", False),
        ("Errors may follow", False),
    ],
)
def test_which_line_says_what_nobody_caught(line: str, raised: bool) -> None:
    assert bool(RAISED.match(line)) == raised
