"""Tuning programs: from a program and sizes to points, and from measurements to a recipe that is used.

`tune_program` searches once, asks the scheduler for tile programs at each size, has them measured
(`cleave.runtime.tune`) and leaves a recipe in the user's data folder, or where it is told to, which this and
later processes compile with.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from cleave.algebra.search import search
from cleave.errors import CleaveError, Infeasible, Invalid
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Dim
from cleave.ir.precision import assign
from cleave.ir.program import Program
from cleave.ir.text import print_program
from cleave.knobs import knobs
from cleave.pipeline import TARGETS, fits, usable
from cleave.runtime.joining import with_earlier
from cleave.runtime.recipes import Recipe, candidate_digest, recipe_of, remember, save
from cleave.runtime.tune import jobs_here, tune
from cleave.runtime.tune_point import Choice, Limits, Point, Tuned, Watch
from cleave.runtime.tune_process import Died, Late, Process
from cleave.schedule.parse import parse_tiles
from cleave.schedule.select import Ranked, best

COUNTS = {"cpu": 16, "cuda": 64}
"""Tile programs that are offered for a point."""
FEW, PLAN_SECONDS = 3, 300.0
"""Up to so many points are worked out in this process; for longer than this one is not waited for."""
WIDER = 4
"""So many times more are ranked than offered, to choose different ones from."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A program to tune, at some sizes of its dynamic dims."""

    program: Program
    sizes: tuple[Mapping[Dim, int], ...]


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a wish: the measurements of its points, the recipe (None if nothing was right: `why`)
    and where it was written."""

    tuned: tuple[Tuned, ...]
    recipe: Recipe | None
    path: Path | None
    why: str = ""


def tune_program(
    program: Program,
    target: str,
    sizes: Sequence[Mapping[Dim, int]],
    limits: Limits | None = None,
    *,
    count: int = 0,
) -> Done:
    """Tune one program at some sizes; see `tune_all`."""
    return tune_all([Wish(program, tuple(sizes))], target, limits, count=count)[0]


def tune_all(
    wishes: Sequence[Wish],
    target: str,
    limits: Limits | None = None,
    *,
    out: Path | None = None,
    watch: Watch | None = None,
    count: int = 0,
) -> list[Done]:
    """Tune programs within one budget, shared equally by all points. `out` is a folder, or a file if there is
    one program; by default the user's data folder."""
    if target not in COUNTS:
        raise Invalid(f"target {target!r} cannot be tuned", hint=f"one of {', '.join(COUNTS)}")
    if target == "cuda" and not torch.cuda.is_available():
        raise Invalid("target cuda: torch finds no GPU here", hint="target cpu")
    started, limits = time.monotonic(), limits or Limits()
    jobs = limits.jobs or jobs_here()
    where = out if out is not None else knobs().data_dir / "recipes"
    places = [n for n, wish in enumerate(wishes) for _ in wish.sizes]
    found: dict[int, Tuned] = {}

    def kept(place: int) -> Done:
        """The recipe of a wish, from what is known by now."""
        own = tuple(found[n] for n, wish in enumerate(places) if wish == place and n in found)
        try:
            recipe = with_earlier(recipe_of(own), where)
        except Invalid as error:
            return Done(own, None, None, str(error))
        path: Path | None = None
        try:
            path = save(recipe, where)
        except OSError as error:
            if out is not None:
                raise Invalid(f"{out} cannot be written: {error.strerror}") from error
        remember(recipe, path or where)
        return Done(own, recipe, path)

    def each(number: int, tuned: Tuned) -> None:
        found[number] = tuned
        kept(places[number])  # a tuner that is killed leaves what it has

    with planned(wishes, target, count or COUNTS[target], jobs) as points:
        tune(points, limits, watch=watch, started=started, target=target, each=each)
    return [kept(place) for place in range(len(wishes))]


def points_for(wish: Wish, target: str, count: int) -> list[Point]:
    """What there is to measure for a wish, one point for each sizes."""
    program = wish.program
    candidates = candidates_of(program)
    digests = {candidate: candidate_digest(candidate) for candidate in candidates}
    points: list[Point] = []
    for sizes in bound_sizes(wish):
        chosen = varied(candidates, sizes, target, count)
        choices = tuple(
            Choice(r.tiles, r.cost.seconds, digests[r.candidate], r.candidate.form) for r in chosen
        )
        points.append(Point(program, target, sizes, choices))
    return points


def candidates_of(program: Program) -> tuple[Candidate, ...]:
    """What the settings allow to compute instead of a program."""
    return _candidates(program, knobs().reassociate, knobs().numerics)


@functools.lru_cache(maxsize=2)
def _candidates(program: Program, reassociate: bool, numerics: str) -> tuple[Candidate, ...]:
    found = search(program, reassociate=reassociate, numerics=numerics)
    return tuple(assign(c, program) for c in usable(program, found.candidates))


def bound_sizes(wish: Wish) -> list[dict[Dim, int]]:
    """All sizes of each point. `Invalid` names a dim without a size."""
    program = wish.program
    for given in wish.sizes:
        missing = [atom.name for atom in program.dynamic if atom not in given]
        if missing:
            raise Invalid(f"no size is given for {', '.join(missing)} of {program.name}")
    return [program.bind({atom: given[atom] for atom in program.dynamic}) for given in wish.sizes]


@contextmanager
def planned(
    wishes: Sequence[Wish], target: str, count: int, jobs: int
) -> Generator[list[Future[Point]], None, None]:
    """The points of all wishes while they are worked out: a few in a thread, many in processes of their own.
    One that fails there has nothing to measure. Who leaves does not wait for the rest."""
    asked = [(wish, sizes) for wish in wishes for sizes in bound_sizes(wish)]
    few = len(asked) <= FEW or jobs == 1
    started: list[Process] = []
    own = threading.local()

    def here(item: tuple[Wish, dict[Dim, int]]) -> Point:
        with ThreadPoolExecutor(1) as apart:
            made = apart.submit(points_for, Wish(item[0].program, (item[1],)), target, count)
        error = made.exception()
        if error is None or isinstance(error, CleaveError) or len(asked) == 1:
            return made.result()[0]
        return Point(item[0].program, target, item[1], (), f"{type(error).__name__}: {error}")

    def elsewhere(item: tuple[Wish, dict[Dim, int]]) -> Point:
        wish, sizes = item
        program = wish.program
        if getattr(own, "process", None) is None:
            own.process = Process("plan", "cleave.frontend.tuning_worker")
            started.append(own.process)
        named = {atom.name: sizes[atom] for atom in program.dynamic}
        message = {"program": print_program(program), "sizes": named, "target": target, "count": count}
        why = ""
        try:
            choices = own.process.ask(message, PLAN_SECONDS)["choices"]
        except (Died, Late) as error:
            own.process = None
            choices, why = [], str(error) or f"not worked out within {PLAN_SECONDS:g} s"
        made = (Choice(parse_tiles(c["tiles"]), c["model"], c["candidate"], c["form"]) for c in choices)
        return Point(program, target, sizes, tuple(made), why)

    pool = ThreadPoolExecutor(1 if few else min(jobs, len(asked)))
    try:
        yield [pool.submit(here if few else elsewhere, item) for item in asked]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in started:
            process.kill()


def varied(
    candidates: Sequence[Candidate], sizes: Mapping[Dim, int], target: str, count: int
) -> list[Ranked]:
    """The cost model's best half, then in turns the best of each kind: the model ranks tile programs of one
    kind better than kinds."""
    try:
        ranked = best(candidates, sizes, TARGETS[target], count=WIDER * count)
    except Infeasible as error:
        raise Invalid(f"nothing can be scheduled for {target}: {error}") from error
    ranked = [r for r in ranked if fits(r.tiles, sizes)]
    kinds: dict[object, list[Ranked]] = {}
    for item in ranked:
        kinds.setdefault(_kind(item, candidates), []).append(item)
    turns = [
        kind[n]
        for n in range(max(map(len, kinds.values()), default=0))
        for kind in kinds.values()
        if n < len(kind)
    ]
    free = [r for r in ranked if not r.tiles.limits][:1]
    order = [*ranked[: -(-count // 2)], *free, *turns]
    return list({r.tiles: r for r in order}.values())[:count]


def _kind(item: Ranked, candidates: Sequence[Candidate]) -> object:
    kernels = item.tiles.kernels
    shape = tuple((k.name, len(k.grid), len(k.whole), len(k.body)) for k in kernels)
    return candidates.index(item.candidate), shape, item.tiles.splits, bool(item.tiles.limits)
