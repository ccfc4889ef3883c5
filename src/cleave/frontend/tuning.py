"""Tuning programs: from a program and sizes to points, and from measurements to a recipe that is used.

`tune_program` searches once, asks the scheduler for tile programs at each size, has them measured
(`cleave.runtime.tune`) and leaves a recipe in the user's data folder, or where it is told to, which this and
later processes compile with.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from cleave.algebra.search import search
from cleave.errors import Infeasible, Invalid
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Dim
from cleave.ir.precision import assign
from cleave.ir.program import Program
from cleave.ir.text import print_program
from cleave.knobs import knobs
from cleave.pipeline import TARGETS, fits, usable
from cleave.runtime.recipes import Recipe, candidate_digest, recipe_of, remember, save
from cleave.runtime.tune import Choice, Limits, Point, Tuned, Watch, jobs_here, tune
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
    out: Path | None = None,
    watch: Watch | None = None,
    count: int = 0,
) -> Done:
    """Tune one program at some sizes; see `tune_all`."""
    return tune_all([Wish(program, tuple(sizes))], target, limits, out=out, watch=watch, count=count)[0]


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
    jobs = (limits.jobs if limits else 0) or jobs_here()
    points = points_of_all(wishes, target, count or COUNTS[target], jobs)
    results = iter(tune([p for own in points for p in own], limits, watch=watch))
    where = out if out is not None else knobs().data_dir / "recipes"
    done: list[Done] = []
    for own in points:
        tuned = tuple(next(results) for _ in own)
        try:
            recipe = recipe_of(tuned)
        except Invalid as error:
            done.append(Done(tuned, None, None, str(error)))
            continue
        path: Path | None = None
        try:
            path = save(recipe, where)
        except OSError as error:
            if out is not None:
                raise Invalid(f"{out} cannot be written: {error.strerror}") from error
        remember(recipe, path or where)
        done.append(Done(tuned, recipe, path))
    return done


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
    found = search(program, reassociate=knobs().reassociate, numerics=knobs().numerics)
    return tuple(assign(c, program) for c in usable(program, found.candidates))


def bound_sizes(wish: Wish) -> list[dict[Dim, int]]:
    """All sizes of each point. `Invalid` names a dim without a size."""
    program = wish.program
    for given in wish.sizes:
        missing = [atom.name for atom in program.dynamic if atom not in given]
        if missing:
            raise Invalid(f"no size is given for {', '.join(missing)} of {program.name}")
    return [program.bind({atom: given[atom] for atom in program.dynamic}) for given in wish.sizes]


def points_of_all(wishes: Sequence[Wish], target: str, count: int, jobs: int) -> list[list[Point]]:
    """The points of all wishes; where there are many they are worked out in processes of their own. One that
    fails there has nothing to measure."""
    total = sum(len(wish.sizes) for wish in wishes)
    if total <= FEW or jobs == 1:
        return [points_for(wish, target, count) for wish in wishes]
    asked = [(wish, sizes) for wish in wishes for sizes in bound_sizes(wish)]
    own = threading.local()
    started: list[Process] = []

    def work(item: tuple[Wish, dict[Dim, int]]) -> Point:
        wish, sizes = item
        program = wish.program
        if getattr(own, "process", None) is None:
            own.process = Process("plan", "cleave.frontend.tuning_worker")
            started.append(own.process)
        named = {atom.name: sizes[atom] for atom in program.dynamic}
        message = {"program": print_program(program), "sizes": named, "target": target, "count": count}
        try:
            choices = own.process.ask(message, PLAN_SECONDS)["choices"]
        except (Died, Late):
            own.process = None
            choices = []
        made = (Choice(parse_tiles(c["tiles"]), c["model"], c["candidate"], c["form"]) for c in choices)
        return Point(program, target, sizes, tuple(made))

    try:
        with ThreadPoolExecutor(min(jobs, total)) as pool:
            points = iter(list(pool.map(work, asked)))
    finally:
        for process in started:
            process.kill()
    return [[next(points) for _ in wish.sizes] for wish in wishes]


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
