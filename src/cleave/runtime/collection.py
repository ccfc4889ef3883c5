"""Python's search for garbage, put off while many objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """For where thousands of small objects are made at once, of which all stay or nearly all go together:
    looking for garbage among them and all that the process holds costs more than making them."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
