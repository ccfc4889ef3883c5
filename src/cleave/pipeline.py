"""The stages in order: program, candidates, dtypes, tile programs, source, kernels.

The one place that knows the order; each stage is a function of the one before and all of them are kept on
the result, so that `explain` can show what was found, chosen and rejected.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, prod

import torch

from cleave.algebra.search import Found
from cleave.algebra.verdict import is_plain, keeps_rounding
from cleave.codegen import cpp, triton
from cleave.codegen.source import Source
from cleave.errors import BuildError, Infeasible, Invalid, Unsupported
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.dims import Atom, Dim, Parts, size_of
from cleave.ir.ops import Input, Scalar
from cleave.ir.precision import NARROW, assign, narrows, overflows, rounds_operands
from cleave.ir.program import Program
from cleave.ir.sizes import infer_sizes
from cleave.ir.states import states_apart
from cleave.knobs import knobs
from cleave.runtime.ahead import stand_ins
from cleave.runtime.collection import without_collection
from cleave.runtime.launch import Launcher
from cleave.runtime.machines import Machines
from cleave.runtime.recipes import Adopted, find
from cleave.runtime.search_store import search
from cleave.runtime.triton_launch import TritonLauncher
from cleave.schedule.cost import cost_of
from cleave.schedule.machine import Machine, width
from cleave.schedule.select import Ranked, best, choose_parts
from cleave.schedule.tiles import TileProgram

TARGETS: Mapping[str, Machine] = Machines()
"""What can be compiled for; `interpret` runs the GPU's kernels on CPU tensors, slowly."""

MOST_VARIANTS = 3
"""Sizes that a program is scheduled for at first."""
MOST_FURTHER, MOST_SLOWDOWN = 8, 2.0
"""A further variant is looked for where those that serve the sizes are so much slower than one that does not,
as long as there are not that many variants."""
FURTHER_CHOICES, LEAST_GAIN = 4, {"cpu": 0.85, "cuda": 1.0}
"""It is taken if it promises to take less than this share of the time; so many stand behind it. On a GPU
tiles that are half empty are slower than the model says; on a CPU a variant costs seconds of a compiler."""

MOST_SHAPES = 4096
"""Combinations of shapes whose variant is remembered."""

SMALL, LARGE = 16, 2048

MOST_SPILLING = 4
"""Tile programs whose kernels spill registers that are passed over before the least bad one is taken."""

MINOR_SPILLS = 64
"""Bytes per thread that a kernel may spill without being passed over: so little is in none of its loops."""

BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

Launched = Launcher | TritonLauncher


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known before anything is built. `ranked` has, for each representative size, the best tile
    programs, best first; `tuned` those of the recipe that serves the program, if there is one."""

    program: Program
    target: str
    found: Found
    candidates: tuple[Candidate, ...]
    representatives: tuple[Mapping[Dim, int], ...]
    ranked: tuple[tuple[Ranked, ...], ...]
    recipe: Adopted
    tuned: tuple[Ranked, ...] = ()

    @property
    def variants(self) -> tuple[Ranked, ...]:
        """The tuned tile programs, then the best one of each representative, without repetitions, and one
        without limits."""
        chosen: dict[TileProgram, Ranked] = {r.tiles: r for r in self.tuned}
        for ranked in self.ranked:
            chosen.setdefault(ranked[0].tiles, ranked[0])
        if all(tiles.limits for tiles in chosen):
            free = next((r for ranked in self.ranked for r in ranked if not r.tiles.limits), None)
            if free is not None:
                chosen[free.tiles] = free
        return tuple(chosen.values())


def plan(program: Program, *, target: str, sizes: Mapping[Dim, int] | None = None, count: int = 8) -> Plan:
    """Search, give dtypes, schedule. `sizes` binds dynamic dims to what is typical (512 where not given)."""
    if target not in TARGETS:
        raise Invalid(f"unknown target {target!r}", hint=f"one of {', '.join(TARGETS)}")
    found = search(program, reassociate=knobs().reassociate, numerics=knobs().numerics)
    chosen = usable(program, found.candidates)
    # Every magnitude of sizes may get its variant when it comes (`Compiled`), on a GPU also these.
    points = representatives(program, sizes or {})[: 1 if target == "cuda" else MOST_VARIANTS]
    machine = TARGETS[target]
    with without_collection():
        candidates = tuple(assigned(chosen, program))
        ranked = tuple(best(candidates, point, machine, count=count) for point in points)
    if not all(ranked):
        raise Unsupported(f"no schedule for program {program.name} on {target}")
    recipe = find(program, target)
    adopted = tuned(recipe, candidates, points[0], machine)
    return Plan(program, target, found, candidates, points, ranked, recipe, adopted)


def assigned(candidates: Sequence[Candidate], program: Program) -> Iterator[Candidate]:
    """The candidates with dtypes. One that only asks for a split as well is as the one without."""
    known: dict[tuple[Program, tuple[Fold, ...]], Candidate] = {}
    for candidate in candidates:
        key = (candidate.program, candidate.folds)
        if key not in known:
            known[key] = assign(candidate, program)
        yield states_apart(replace(candidate, program=known[key].program, folds=known[key].folds))


def tuned(
    recipe: Adopted, candidates: Sequence[Candidate], sizes: Mapping[Dim, int], machine: Machine
) -> tuple[Ranked, ...]:
    """The tile programs of a recipe, the one for the nearest sizes first."""
    usable_ones = [
        Ranked(tiles, cost_of(tiles, sizes, machine, choose_parts(tiles, sizes, machine)), candidate)
        for tiles, candidate in recipe.usable(candidates)
    ]
    first = recipe.nearest(sizes)
    return tuple(sorted(usable_ones, key=lambda r: r.tiles != first))


def usable(program: Program, candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Those that the settings allow: stable ones unless numerics is `fast`, without operands whose range a
    narrow dtype of the program may not hold, or that it would round where the user's are exact; the user's
    own always, and nothing else, not even through a Fold that rescales, where numerics is `strict`."""
    fast, reassociate = knobs().numerics == "fast", knobs().reassociate
    first, *others = candidates
    if knobs().numerics == "strict":
        return tuple(plain(c) for c in candidates if keeps_rounding(program, c))
    narrow = sorted({n.dtype for n in program.inputs} & set(NARROW))
    kept = [c for c in others if reassociate or not c.reassociated]
    wide = "f64" if any(n.dtype == "f64" for n in program.nodes) else "f32"
    kept = [c for c in kept if not any(overflows(x, wide) for x in c.conditions)]
    if not fast:
        kept = [c for c in kept if c.stable and not any(narrows(x, d) for x in c.conditions for d in narrow)]
        kept = [c for c in kept if not rounds_operands(c, program)]
    return (first, *kept)


def plain(candidate: Candidate) -> Candidate:
    """Without the Folds that compute more than reductions of single values: what is left computes, step by
    step, what the candidate's program says, also over empty dims."""
    kept = tuple(fold for fold in candidate.folds if is_plain(fold))
    return candidate if kept == candidate.folds else replace(candidate, folds=kept)


def representatives(program: Program, sizes: Mapping[Dim, int]) -> tuple[Mapping[Dim, int], ...]:
    """The sizes to schedule for: the given ones, then each dynamic dim at the other end of its range."""
    given: dict[Dim, int] = {atom: sizes.get(atom, 512) for atom in program.dynamic}
    points = [given]
    for atom in program.dynamic:
        other = SMALL if given[atom] > 4 * SMALL else LARGE
        points.append({**given, atom: other})
    return tuple(program.bind(point) for point in points[:MOST_VARIANTS])


def emit(tiles: TileProgram, target: str) -> Source:
    """The source of a tile program for a target."""
    if target == "cpu":
        return cpp.emit(tiles)
    manner = {"described": True, "overlapped": True} if target == "cuda" else {}
    return triton.emit(tiles, precision=torch.get_float32_matmul_precision(), **manner)


Argument = torch.Tensor | float | int | bool
Key = tuple[int | tuple[int, ...], ...]


@dataclass(slots=True, repr=False)
class Compiled:
    """A compiled program: call it with tensors and numbers in the program's input order; it returns a tuple
    of fresh tensors. Which variant serves which shapes is decided once per combination of shapes (on a CPU
    for each number of threads); sizes that no variant may take (a limit), or only slow ones, get a further
    variant from the same candidates, without a new search. Where a reduction is over nothing the user's own
    program runs: other forms may divide by the empty sum."""

    plan: Plan
    variants: list[Ranked]
    launchers: dict[TileProgram, Launched] = field(default_factory=dict["TileProgram", "Launched"])
    chosen: dict[Key, Launched] = field(default_factory=dict["Key", "Launched"])
    refused: dict[TileProgram, str] = field(default_factory=dict["TileProgram", str])
    further: dict[TileProgram, tuple[Ranked, ...]] = field(
        default_factory=dict["TileProgram", "tuple[Ranked, ...]"]
    )
    magnitudes: set[tuple[int, ...]] = field(default_factory=set["tuple[int, ...]"])
    lock: threading.RLock = field(default_factory=threading.RLock)

    def _key(self, args: Sequence[Argument]) -> Key:
        """What decides which variant serves a call: its shapes, and how many threads a CPU's kernels have."""
        threads = torch.get_num_threads() if self.plan.target == "cpu" else 0
        return (threads, *[a.shape for a in args if isinstance(a, torch.Tensor)])

    def __call__(self, *args: Argument) -> tuple[torch.Tensor, ...]:
        key = self._key(args)
        launcher = self.chosen.get(key)
        if launcher is None:
            launcher = self._choose(key, args)
        return launcher(*args)

    def prepared(self, *args: Argument) -> Callable[..., tuple[torch.Tensor, ...]] | None:
        """What repeats a call with arguments like these (see `Launcher.prepared`)."""
        key = self._key(args)
        launcher = self.chosen.get(key)
        return launcher.prepared(*args) if launcher is not None else None

    def prepare(self, *args: Argument) -> Launched:
        """Choose and build what serves arguments of these shapes, ahead of the first call; tensors without
        memory (device `meta`) do."""
        with self.lock:
            variant, only = self._served(args)
            return self.launcher(variant, only, args)

    def _choose(self, key: Key, args: Sequence[Argument]) -> Launched:
        with self.lock:
            variant, only = self._served(args)
            launcher = self.launcher(variant, only, args)
            while self.plan.target == "cuda" and not is_steady(launcher, args):
                self.refused[launcher.tiles] = "its results differ from run to run"
                del self.launchers[variant.tiles]
                launcher = self.launcher(variant, only, args)
            if self.plan.target == "cuda" and torch.cuda.is_current_stream_capturing():
                return launcher  # not checked; at the next call outside of a graph it is
            if len(self.chosen) >= MOST_SHAPES:
                self.chosen.clear()
            self.chosen[key] = launcher
            return launcher

    def _served(self, args: Sequence[Argument]) -> tuple[Ranked, Sequence[Candidate]]:
        """The variant for arguments of these shapes, and the candidates that may stand in for it (none: all
        of them)."""
        program, machine = self.plan.program, TARGETS[self.plan.target]
        sizes = infer_sizes(program, shapes_of(program, args))
        candidates = self.plan.candidates
        if reduces_nothing(program, sizes):
            candidates = (plain(candidates[0]),)
        costs = {v.tiles: self.expected(v.tiles, sizes) for v in self.variants}
        able = [v for v in self.variants if v.candidate in candidates and fits(v.tiles, sizes)]
        least = min((costs[v.tiles] for v in able), default=inf)
        if not able or self._slow(least, costs, sizes):
            likely = tuple({r.candidate: None for ranked in self.plan.ranked for r in ranked})
            chosen = tuple(c for c in likely if c in candidates) or candidates
            try:
                with without_collection():
                    ranked = best(chosen, sizes, machine, count=FURTHER_CHOICES)
            except Infeasible:
                if not able:
                    raise
                ranked = ()
            seconds = self.expected(ranked[0].tiles, sizes) if ranked else inf
            if ranked and (not able or seconds < LEAST_GAIN.get(self.plan.target, 1.0) * least):
                self.variants.append(ranked[0])
                self.further[ranked[0].tiles] = ranked
                able.append(ranked[0])
                costs[ranked[0].tiles] = seconds
        variant = min(able, key=lambda v: costs[v.tiles])
        return variant, () if candidates is self.plan.candidates else candidates

    def _slow(self, least: float, costs: Mapping[TileProgram, float], sizes: Mapping[Dim, int]) -> bool:
        """Whether to look for a further variant: where those that may serve the sizes are far from one that
        may not, and the first time that sizes of this magnitude come."""
        if len(self.variants) >= MOST_FURTHER:
            return False
        cores = TARGETS[self.plan.target].cores
        magnitude = (cores, *(sizes[atom].bit_length() for atom in self.plan.program.dynamic))
        new = magnitude not in self.magnitudes
        self.magnitudes.add(magnitude)
        return new or least > MOST_SLOWDOWN * min(costs.values())

    def expected(self, tiles: TileProgram, sizes: Mapping[Dim, int]) -> float:
        """Seconds that a tile program should take: the cost model's word, scaled by what a recipe has
        measured if one serves this program."""
        machine, recipe = TARGETS[self.plan.target], self.plan.recipe
        if not recipe:
            return seconds_of(tiles, sizes, machine)
        return recipe.seconds(tiles, sizes, lambda t, s: seconds_of(t, s, machine))

    def serving(self, *args: Argument) -> TileProgram:
        """The tile program that serves a call with these arguments."""
        key = self._key(args)
        return (self.chosen.get(key) or self._choose(key, args)).tiles

    def footprint(self, *args: Argument) -> tuple[int, int]:
        """Launches, and bytes of workspace, of a call with these arguments."""
        tiles = self.serving(*args)
        sizes: dict[Dim, int] = infer_sizes(self.plan.program, shapes_of(self.plan.program, args))
        parts = choose_parts(tiles, sizes, TARGETS[self.plan.target])
        sizes |= {Parts(dim): count for dim, count in parts.items()}
        spaces = ((t, [d for group in t.layout for d in group]) for t in tiles.workspaces)
        total = sum(width(t.dtype) * prod(size_of(d, sizes) for d in dims) for t, dims in spaces)
        return sum(1 for _ in triton.launches_of(tiles, grouped=True)), total

    def launcher(
        self, variant: Ranked, only: Sequence[Candidate] = (), args: Sequence[Argument] | None = None
    ) -> Launched:
        """The launcher of a variant, built on first use, for calls like that with `args`. A tile program that
        the target refuses gives way to the next best one of its representative, of the candidates `only` if
        any are given."""
        if variant.tiles not in self.launchers:
            every = tuple(r for ranked in self.plan.ranked for r in ranked)
            known = [*self.plan.ranked, *self.further.values()]
            ranked = next((r for r in known if r[0].tiles == variant.tiles), every)
            ranked = [variant, *(r for r in ranked if serves(r.tiles, variant.tiles))]
            ranked = [r for r in ranked if not only or r.candidate in only]
            self.launchers[variant.tiles] = self._build(ranked, args)
        return self.launchers[variant.tiles]

    def _build(self, ranked: Sequence[Ranked], args: Sequence[Argument] | None) -> Launched:
        spilling: list[Launched] = []
        for place, choice in enumerate(ranked):
            if choice.tiles in self.refused:
                continue
            try:
                launcher = launcher_for(choice.tiles, self.plan.target, args)
            except Infeasible as error:
                self.refused[choice.tiles] = str(error)
                continue
            except BuildError as error:
                if self.plan.recipe.entry(choice.tiles) is None:
                    raise
                self.refused[choice.tiles] = str(error)  # a recipe may come from another version
                continue
            self._stand_behind(launcher, ranked[place + 1 :])
            if spills(launcher) <= MINOR_SPILLS:
                return launcher
            spilling.append(launcher)
            if len(spilling) == MOST_SPILLING:
                break
        if spilling:
            return min(spilling, key=spills)
        raise Unsupported(
            f"no schedule of program {self.plan.program.name} could be built for {self.plan.target}",
            hint="; ".join(dict.fromkeys(self.refused.values())),
        )

    def _stand_behind(self, launcher: Launched, rest: Sequence[Ranked]) -> None:
        """Let the next choice without warp groups serve calls whose tensors those cannot take: tiles for
        groups are not those that a kernel without them would have."""
        plain_ones = [r for r in rest if not grouped(r.tiles)]
        if not (isinstance(launcher, TritonLauncher) and grouped(launcher.tiles) and plain_ones):
            return

        def made(args: Sequence[Argument]) -> TritonLauncher | None:
            try:
                with self.lock:
                    other = self._build(plain_ones, args)
            except Unsupported:
                return None  # then the same tile program serves, without groups
            assert isinstance(other, TritonLauncher)
            return other

        launcher.stand_in = made


def grouped(tiles: TileProgram) -> bool:
    """Whether kernels of a tile program ask for warp groups."""
    return any(kernel.groups for kernel in tiles.kernels)


def spills(launcher: Launched) -> int:
    """Bytes that the kernels of a GPU launcher keep in local memory for want of registers."""
    return sum(r.spills for r in launcher.reports) if isinstance(launcher, TritonLauncher) else 0


def is_steady(launcher: Launched, args: Sequence[Argument]) -> bool:
    """Whether three runs give the same bits. Our kernels are deterministic, so a difference is a race in what
    the GPU's compiler made of one. Not asked while a graph is captured."""
    if torch.cuda.is_current_stream_capturing():
        return True
    first = [bits(o) for o in launcher(*args)]
    return all(
        torch.equal(one, bits(two)) for _ in range(2) for one, two in zip(first, launcher(*args), strict=True)
    )


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bits, so that a NaN equals itself."""
    return tensor.view(BITS[tensor.element_size()]) if tensor.is_floating_point() else tensor


def launcher_for(tiles: TileProgram, target: str, args: Sequence[Argument] | None = None) -> Launched:
    """Build a tile program for a target, and for calls like that with `args`."""
    if target == "cpu":
        return Launcher(tiles)
    precision = torch.get_float32_matmul_precision()
    return TritonLauncher(tiles, target=target, precision=precision, example=args)


def shapes_of(program: Program, args: Sequence[Argument]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensor arguments by name; `Invalid` if there are too few or too many arguments."""
    names = [node.op.name for node in program.inputs if isinstance(node.op, Input | Scalar)]
    if len(names) != len(args):
        raise Invalid(
            f"program {program.name} takes {len(names)} arguments ({', '.join(names)}), not {len(args)}"
        )
    pairs = zip(names, args, strict=True)
    return {name: tuple(a.shape) for name, a in pairs if isinstance(a, torch.Tensor)}


def fits(tiles: TileProgram, sizes: Mapping[Dim, int]) -> bool:
    """Whether the sizes are within the limits of a tile program."""
    return all(sizes[atom] <= limit for atom, limit in tiles.limits)


def reduces_nothing(program: Program, sizes: Mapping[Dim, int]) -> bool:
    """Whether a reduced dim is empty."""
    return any(size_of(index.dim, sizes) == 0 for node in program.nodes for index in node.bound)


def serves(other: TileProgram, tiles: TileProgram) -> bool:
    """Whether another tile program takes every size that this one takes."""
    limits = dict(tiles.limits)
    return all(atom in limits and limits[atom] <= limit for atom, limit in other.limits)


def seconds_of(tiles: TileProgram, sizes: Mapping[Dim, int], machine: Machine) -> float:
    """What the cost model says of a tile program at these sizes."""
    return cost_of(tiles, sizes, machine, choose_parts(tiles, sizes, machine)).seconds


def compile_program(
    program: Program, *, target: str, sizes: Mapping[Dim, int] | None = None, everything: bool = False
) -> Compiled:
    """Compile a program for a target; `everything` builds all variants now instead of on first use."""
    made = plan(program, target=target, sizes=sizes)
    compiled = Compiled(made, list(made.variants))
    for variant in made.variants if everything else made.variants[:1]:
        args = stand_ins(variant.tiles, made.representatives[0]) if target == "cuda" else None
        compiled.launcher(variant, args=args)
    return compiled


def dims_by_name(program: Program, sizes: Mapping[str, int]) -> dict[Dim, int]:
    """Sizes given by the names of dims; `Invalid` names the dims that there are."""
    known = {atom.name for atom in program.dims}
    for name in sizes:
        if name not in known:
            raise Invalid(
                f"program {program.name} has no dim {name!r}", hint=f"it has {', '.join(sorted(known))}"
            )
    return {Atom(name): value for name, value in sizes.items()}
