"""What stands where in the body of a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cleave.ir.dims import Index
from cleave.schedule.tiles import Kernel, Loop, Statement, Store


def statements(body: Sequence[Statement]) -> Iterator[Statement]:
    """All statements in order of text, those inside loops too."""
    for statement in body:
        yield statement
        if isinstance(statement, Loop):
            yield from statements(statement.body)


def loops_of(body: Sequence[Statement]) -> Iterator[Loop]:
    """All loops, outer before inner."""
    return (s for s in statements(body) if isinstance(s, Loop))


def firsts_of(kernel: Kernel) -> frozenset[Index]:
    """The grid indices whose first block stores what lacks them: they have a block even if they are empty."""
    stores = (s for s in statements(kernel.body) if isinstance(s, Store))
    return frozenset(index for store in stores for index in store.first)
