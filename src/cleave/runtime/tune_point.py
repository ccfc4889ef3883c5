"""What a tuner is given and what it finds: points with choices, limits, results, and events for a display."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cleave.ir.dims import Dim
from cleave.ir.program import Program
from cleave.runtime.tune_store import RIGHT, Measured
from cleave.schedule.tiles import TileProgram

BUILD_SECONDS, LEAST_BUILD, BUILD_SHARE = 30.0, 6.0, 0.25
"""A compiler is given this share of the budget, but so much at least and at most."""
MEASURE_SECONDS = 30.0
"""After this long a kernel hangs."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A tile program that may be measured; `model` is what the cost model says, in seconds, `candidate` the
    digest of the candidate that it computes, `form` what that is called."""

    tiles: TileProgram
    model: float
    candidate: str = ""
    form: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """A program at sizes (of its dynamic atoms at least), and what may be chosen for it, likeliest first;
    `note` says why there is nothing."""

    program: Program
    target: str
    sizes: Mapping[Dim, int]
    choices: tuple[Choice, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Result:
    """A choice and what was measured; `now` says that it was in this run and not an earlier one."""

    choice: Choice
    measured: Measured
    now: bool = False


@dataclass(slots=True)
class Tuned:
    """What is known of a point: right ones first, the fastest first."""

    point: Point
    results: list[Result] = field(default_factory=list[Result])
    seconds: float = 0.0
    """How long this took."""
    note: str = ""
    """Why nothing could be measured here."""

    @property
    def best(self) -> Result | None:
        """The fastest right one."""
        return next((r for r in self.results if r.measured.status == RIGHT), None)

    @property
    def first(self) -> Result | None:
        """What the cost model would have taken, if it was measured."""
        firsts = self.point.choices[:1]
        return next((r for r in self.results if r.choice in firsts), None)


@dataclass(frozen=True, slots=True)
class Event:
    """Something for a progress display: `point` of `points`, `done` of `total` there."""

    point: int
    points: int
    done: int
    total: int
    what: str
    best: float | None = None
    left: float = 0.0
    """The point is at something that people read; `done` of `total` tile programs are through, the best right
    one took `best` seconds; `left` seconds of the whole are left."""


Watch = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a tuner may take: seconds for all points, processes that compile (0: one a core), how long one
    kernel may take to be checked and timed before it counts as hanging, and how long to be compiled (0: a
    share of the budget) before it counts as slow."""

    budget: float = 60.0
    jobs: int = 0
    measure_seconds: float = MEASURE_SECONDS
    build_seconds: float = 0.0

    @property
    def patience(self) -> float:
        """Seconds that a compiler is given."""
        return self.build_seconds or min(BUILD_SECONDS, max(LEAST_BUILD, BUILD_SHARE * self.budget))
