"""Every exception of Cleave. Each message says what went wrong, where, the values, and what to do.

`Unsupported` is not the user's fault: the part runs in PyTorch instead, is counted and listed by
`explain`. `Invalid` is the user's input or program. `Bug` is ours.
"""

from __future__ import annotations


class CleaveError(Exception):
    """The root of all errors that Cleave raises on purpose."""


class Unsupported(CleaveError):
    """An operation or form that Cleave cannot compile (yet). It falls back to PyTorch."""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(_compose(what, where, hint))


class Invalid(CleaveError):
    """The caller's argument, program or command is wrong."""

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(_compose(what, where, hint))


class CallError(Invalid, TypeError):
    """A call of one of Cleave's functions with arguments or options that it does not take; a `TypeError` too,
    as it is of Python's own functions."""


class ParseError(Invalid):
    """Text that is not a program, a candidate or a tile program."""


class BuildError(CleaveError):
    """The machine's compiler is missing or refused the generated source."""


class Infeasible(CleaveError):
    """A schedule that does not fit the machine or the candidate; the search takes the next one."""


class Bug(CleaveError):
    """An invariant of Cleave is broken. Please report it with the program's text."""


def _compose(what: str, where: str, hint: str) -> str:
    lines = [what]
    if where:
        lines.append(f"  at {where}")
    if hint:
        lines.append(f"  hint: {hint}")
    return "\n".join(lines)
