"""Normal forms are made in a fraction of a millisecond a node."""

from __future__ import annotations

import time

from algebra.pairs import program
from algebra.test_proof import PAIRS
from cleave.algebra.normal import node_form
from cleave.ir.ops import Node
from cleave.ir.program import Program
from programs import PROGRAMS

MEDIAN = 0.0002
SLOWEST = 0.005
"""Seconds that the median and the 99th percentile of the nodes may take."""


def seconds(programs: list[Program]) -> list[float]:
    """What each node's form takes, when the forms of what it reads are there."""
    found: list[float] = []
    for one in programs:
        forms: dict[Node, object] = {}
        for node in one.nodes:
            start = time.process_time()
            forms[node] = node_form(node, forms)  # type: ignore[arg-type]
            found.append(time.process_time() - start)
    return found


def test_speed() -> None:
    programs = [*PROGRAMS.values(), *(program(i, b) for i, *two in PAIRS.values() for b in two)]
    runs = zip(*(seconds(programs) for _ in range(4)), strict=True)
    best = sorted(min(times) for times in runs)
    assert len(best) > 800
    assert best[len(best) // 2] < MEDIAN
    assert best[len(best) * 99 // 100] < SLOWEST
