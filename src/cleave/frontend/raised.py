"""What a user's function or file raises while Cleave runs it, told with the user's line.

Errors of our own stay as they are: a bug of ours must not look like the user's.
"""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path

from cleave.errors import Invalid
from cleave.frontend.trace import LEADING_PACKAGES

OURS = str(Path(__file__).parents[1])
CALLS = ("self.fn(*", "func(*")
"""How the lines begin on which capture calls the user's function, and the tracer PyTorch's."""


def line_of(error: BaseException) -> str:
    """`file:line: code` of the user's innermost line in a traceback; empty if there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith((*LEADING_PACKAGES, "<frozen")):
            return _shown(frame.filename, frame.lineno)
    return ""


def is_users(error: BaseException) -> bool:
    """Whether it comes from the user's code, or from what PyTorch says of a call in it, and not from ours."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename.startswith(OURS):
            return any(call in (frame.line or "") for call in CALLS)
        if not frame.filename.startswith((*LEADING_PACKAGES, "<frozen")):
            return True
    return False


def told(error: BaseException, whose: str, where: str, hint: str = "") -> Invalid:
    """The error that tells it: `whose` names the function; `where` is said without a line of the user's."""
    what = f"{whose} raised {type(error).__name__}: {error}"
    return Invalid(what, where=line_of(error) or where, hint=hint)


def _shown(file: str, line: int | None) -> str:
    code = linecache.getline(file, line or 0).strip()
    return f"{Path(file).name}:{line}" + (f": {code}" if code else "")
