"""The points of a suite as the tuner takes them: one program per case and dtype, at all its sizes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.compiling import captured
from benchmarks.run import DEFAULT_DTYPES
from benchmarks.runner import DTYPES, bound
from benchmarks.suites import SUITES, Case, Sizes
from cleave.frontend.tuning import Wish


def wishes(
    suite: str,
    target: str,
    cases: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    phases: Sequence[str] | None = None,
) -> list[Wish]:
    """What the filters leave of a suite."""
    found: list[Wish] = []
    for case in SUITES[suite]:
        if cases and not any(name in case.name for name in cases):
            continue
        points = [
            sizes
            for (kind, phase), grid in case.points.items()
            if kind == target and (not phases or phase in phases)
            for sizes in grid
        ]
        for dtype in dtypes or DEFAULT_DTYPES[target]:
            found += of_case(case, points, DTYPES[dtype])
    return found


def of_case(case: Case, points: Sequence[Sizes], dtype: torch.dtype) -> list[Wish]:
    """One wish for each program: points with other known sizes are other programs."""
    grouped: dict[tuple[tuple[str, int], ...], list[Sizes]] = {}
    for sizes in points:
        known = tuple((name, size) for name, size in sorted(sizes.items()) if name not in case.dynamic)
        grouped.setdefault(known, []).append(sizes)
    made: list[Wish] = []
    for group in grouped.values():
        program = captured(case, group[0], dtype)
        made.append(Wish(program, tuple(bound(program, sizes) for sizes in group)))
    return made


__all__ = ["captured", "wishes"]
