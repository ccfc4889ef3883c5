"""Tuned recipes: text files with a program, tile programs for it, and what they took where.

A recipe serves every program with the same canonical text (`naming.program_digest`), on the device that it
was tuned on; its file is named `<name>.<program digest>.<device>.recipe`, so that a folder is its own index.
Folders are looked through in order: those of the `recipes` setting, the user's data folder, the package. A
recipe of another form, one that was altered, or a tile program that this version cannot read is passed over
and `Adopted.notes` says why. Between and beyond the tuned sizes the cost model decides, scaled by what was
measured at the nearest ones.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from cleave.errors import Bug, Invalid, ParseError
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim
from cleave.ir.ops import Contract, Input
from cleave.ir.parse import parse_program
from cleave.ir.program import Program
from cleave.ir.text import print_program
from cleave.knobs import knobs
from cleave.runtime.machines import device_name
from cleave.runtime.naming import canonical, digest_of, program_digest, renamed, renaming
from cleave.runtime.tune_store import RIGHT, versions
from cleave.runtime.written import write_whole
from cleave.schedule.parse import parse_tiles
from cleave.schedule.text import print_tiles
from cleave.schedule.tiles import TileProgram
from cleave.schedule.verify import verify
from cleave.version import VERSION

if TYPE_CHECKING:
    from cleave.runtime.tune_point import Tuned

FORM = "cleave recipe 1"
SUFFIX = ".recipe"
SHIPPED = Path(__file__).parents[1] / "recipes"
UNTUNED, LOST, NEAR = 1.25, 10.0, 1.0
"""What the cost model's word for a tile program that was not tuned is multiplied by: those that it ranked
high were measured, and lost, at these very sizes or at ones near by."""

Sizes = Mapping[Atom, int]
Model = Callable[[TileProgram, Mapping[Dim, int]], float]


@dataclass(frozen=True, slots=True)
class Entry:
    """A tuned tile program: the digest of its candidate and what that is called."""

    tiles: TileProgram
    candidate: str
    form: str


@dataclass(frozen=True, slots=True)
class Settings:
    """Under which settings a recipe was made. `precision` is PyTorch's of float32 products, `any` where the
    program has none."""

    numerics: str = "stable"
    reassociate: bool = False
    precision: str = "any"


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a file says. `timings` has, for each tuned point (sizes of the dynamic atoms), the seconds of the
    entries that were measured there, by number."""

    program: Program
    device: str
    target: str
    versions: str
    made_by: str
    entries: tuple[Entry, ...]
    timings: tuple[tuple[tuple[tuple[Atom, int], ...], tuple[tuple[int, float], ...]], ...]
    settings: Settings = Settings()


def settings_of(program: Program, target: str) -> Settings:
    """The settings in force, as far as they matter to a program."""
    products = [n for n in program.nodes if isinstance(n.op, Contract)]
    singles = any(access.node.dtype == "f32" for product in products for access in product.reads)
    precision = torch.get_float32_matmul_precision() if singles and target != "cpu" else "any"
    return Settings(knobs().numerics, knobs().reassociate, precision)


# ---------------------------------------------------------------- making one


def recipe_of(tuned: Sequence[Tuned]) -> Recipe:
    """The recipe of one program, from what was tuned at some points: the fastest tile program of each, with
    its times at the others. A point where the time ended before the cost model's first choice was measured
    counts for nothing: the best of the others may be slower. `Invalid` if nothing was right anywhere."""
    program, target = tuned[0].point.program, tuned[0].point.target
    winners: dict[TileProgram, Entry] = {}
    known = [one for one in tuned if one.first is not None]
    for one in known:
        right = [r for r in one.results if r.measured.status == RIGHT]
        free = next((r for r in right if not r.choice.tiles.limits), None)
        for result in (*right[:1], *([free] if free else [])):
            choice = result.choice
            winners.setdefault(choice.tiles, Entry(choice.tiles, choice.candidate, choice.form))
    if not winners:
        reasons = sorted({f"{r.measured.status}: {r.measured.detail}" for one in tuned for r in one.results})
        notes = [one.note for one in tuned if one.note]
        notes += ["the cost model's first choice was not measured in time"] * (len(known) < len(tuned))
        raise Invalid(
            f"no tile program of {program.name} could be measured on {device_name(target)}",
            hint="; ".join((*notes, *reasons))[:400],
        )
    places = {tiles: n for n, tiles in enumerate(winners)}
    timings: list[tuple[tuple[tuple[Atom, int], ...], tuple[tuple[int, float], ...]]] = []
    for one in known:
        point = tuple((atom, one.point.sizes[atom]) for atom in program.dynamic)
        found = {
            places[r.choice.tiles]: r.measured.seconds
            for r in one.results
            if r.measured.status == RIGHT and r.measured.seconds is not None and r.choice.tiles in places
        }
        if found:
            timings.append((point, tuple(sorted(found.items(), key=lambda item: item[1]))))
    made_by = f"cleave {VERSION}"
    entries = tuple(winners.values())
    how = settings_of(program, target)
    return Recipe(program, device_name(target), target, versions(), made_by, entries, tuple(timings), how)


def candidate_digest(candidate: Candidate) -> str:
    """Tells candidates of one program apart, whatever the user's names: program, Folds and splits."""
    program = canonical(candidate.program)
    to = renaming(candidate.program, program)
    texts = [print_program(program), *(str(to(dim)) for dim in candidate.splits)]
    for fold in candidate.folds:
        texts.append(f"{to(fold.over)} {len(fold.values)} {print_program(canonical(fold.step))}")
    return digest_of("\n".join(texts))


def file_name(recipe: Recipe) -> str:
    """The name under which a recipe is found again."""
    name = re.sub(r"\W+", "_", recipe.program.name)[:60]
    return f"{name}.{program_digest(recipe.program)}.{_slug(recipe.device)}{SUFFIX}"


def _slug(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


def save(recipe: Recipe, where: Path) -> Path:
    """Write a recipe: to a file, or under its own name into a folder. `OSError` if that fails."""
    path = where / file_name(recipe) if where.is_dir() or not where.suffix else where
    write_whole(path, print_recipe(recipe))
    _index.cache_clear()
    return path


_REMEMBERED: dict[tuple[str, str, str], tuple[Recipe, Path]] = {}


def remember(recipe: Recipe, path: Path) -> None:
    """Use a recipe in this process, wherever it was written."""
    _REMEMBERED[program_digest(recipe.program), recipe.device, recipe.target] = recipe, path


# ---------------------------------------------------------------- text


def print_recipe(recipe: Recipe) -> str:
    """The text of a recipe."""
    lines = ["--- program", *print_program(recipe.program).rstrip().splitlines()]
    for point, times in recipe.timings:
        sizes = " ".join(f"{atom.name}={size}" for atom, size in point)
        lines.append(f"--- point {sizes}".rstrip())
        lines += [f"{number + 1}: {seconds * 1e6:.3f} us" for number, seconds in times]
    for number, entry in enumerate(recipe.entries, 1):
        lines.append(f"--- tiles {number} {entry.candidate} {entry.form}".rstrip())
        lines += print_tiles(entry.tiles).rstrip().splitlines()
    body = "\n".join(lines) + "\n"
    head = {
        "device": recipe.device,
        "target": recipe.target,
        "program": program_digest(recipe.program),
        "numerics": recipe.settings.numerics,
        "reassociate": "yes" if recipe.settings.reassociate else "no",
        "precision": recipe.settings.precision,
        "versions": recipe.versions,
        "made by": recipe.made_by,
        "content": digest_of(body),
    }
    return "\n".join([FORM, *(f"{name}: {value}" for name, value in head.items()), ""]) + "\n" + body


def parse_recipe(text: str, notes: list[str] | None = None) -> Recipe:
    """A recipe from its text. Tile programs that cannot be read are left out, with a note. `ParseError` says
    what is wrong with the text as a whole."""
    head_text, mark, body = text.partition("\n--- program\n")
    first, *rest = head_text.strip().splitlines() or [""]
    if first != FORM:
        raise ParseError(f"line 1 is {first!r}, expected {FORM!r}")
    lines = [line.partition(": ") for line in rest if line.strip()]
    head = {name: value for name, _, value in lines}
    body = mark.lstrip("\n") + body
    if head.get("content") != digest_of(body):
        raise ParseError("it was altered: its content is not what its head says")
    sections = [part.partition("\n") for part in re.split(r"^--- ", body, flags=re.MULTILINE)[1:]]
    program = parse_program(sections[0][2])
    atoms = {atom.name: atom for atom in program.dynamic}
    entries: dict[int, Entry] = {}
    timings: list[tuple[tuple[tuple[Atom, int], ...], dict[int, float]]] = []
    for title, _, content in sections[1:]:
        kind, *words = title.split(" ")
        if kind == "point":
            sizes = [word.partition("=") for word in words if word]
            point = tuple((atoms[name], int(size)) for name, _, size in sizes)
            times = [line.split() for line in content.splitlines() if line]
            timings.append((point, {int(n.rstrip(":")): float(us) / 1e6 for n, us, _ in times}))
        elif kind == "tiles":
            try:
                entries[int(words[0])] = Entry(_tiles(content, program), words[1], " ".join(words[2:]))
            except (ParseError, Bug) as error:
                if notes is not None:
                    notes.append(f"tile program {words[0]} is left out: {' '.join(str(error).split())}")
    order = {number: place for place, number in enumerate(entries)}
    kept = [(p, tuple((order[n], s) for n, s in t.items() if n in order)) for p, t in timings]
    return Recipe(
        program,
        head.get("device", ""),
        head.get("target", ""),
        head.get("versions", ""),
        head.get("made by", ""),
        tuple(entries.values()),
        tuple((p, t) for p, t in kept if t),
        Settings(
            head.get("numerics", "stable"), head.get("reassociate") == "yes", head.get("precision", "any")
        ),
    )


def _tiles(text: str, program: Program) -> TileProgram:
    """A tile program that is well formed and has the program's arguments and results."""
    tiles = parse_tiles(text)
    verify(tiles)
    given = [(n.dtype, n.op.layout if isinstance(n.op, Input) else ()) for n in program.inputs]
    made = [
        (o.node.dtype, tuple(tuple(o.node.dims[n] for n in group) for group in o.layout))
        for o in program.outputs
    ]
    if [(t.dtype, t.layout) for t in tiles.inputs] != given or [
        (t.dtype, t.layout) for t in tiles.outputs
    ] != made:
        raise ParseError(f"tile program {tiles.name} has other arguments or results than its program")
    return tiles


# ---------------------------------------------------------------- using one


@dataclass(slots=True)
class Adopted:
    """The recipe that serves a program, under the program's own names; `path` is None where there is none.
    `notes` says what was passed over and why, `elsewhere` names files for the same program on other devices
    where none is for this one."""

    program: Program
    path: Path | None = None
    entries: tuple[Entry, ...] = ()
    timings: tuple[tuple[Sizes, Mapping[TileProgram, float]], ...] = ()
    notes: tuple[str, ...] = ()
    device: str = ""
    made_with: str = ""
    elsewhere: tuple[str, ...] = ()
    modelled: dict[tuple[TileProgram, int], float] = field(
        default_factory=dict["tuple[TileProgram, int]", float]
    )

    def __bool__(self) -> bool:
        return bool(self.timings)

    @property
    def best(self) -> tuple[tuple[Sizes, TileProgram], ...]:
        """The fastest tile program of each tuned point."""
        return tuple((point, min(times, key=lambda t: times[t])) for point, times in self.timings)

    def entry(self, tiles: TileProgram) -> Entry | None:
        """The entry of a tile program, if it is a tuned one."""
        return next((e for e in self.entries if e.tiles == tiles), None)

    def usable(self, candidates: Sequence[Candidate]) -> tuple[tuple[TileProgram, Candidate], ...]:
        """The fastest tile program of each tuned point with the candidate that it computes; those of
        candidates that are not among these (the settings do not allow them) are dropped."""
        if not self:
            return ()
        known = {candidate_digest(c): c for c in candidates}
        barred = {e.tiles: e for e in self.entries if e.candidate not in known}
        if barred:
            forms = ", ".join(dict.fromkeys(f"'{e.form}'" for e in barred.values()))
            self.notes = (*self.notes, f"tile programs from {forms}: the settings leave that candidate out")
            left = [(p, {t: s for t, s in times.items() if t not in barred}) for p, times in self.timings]
            self.timings = tuple((p, times) for p, times in left if times)
            self.entries = tuple(e for e in self.entries if e.tiles not in barred)
        forms_of = {e.tiles: known[e.candidate] for e in self.entries}
        return tuple((tiles, forms_of[tiles]) for tiles in dict.fromkeys(t for _, t in self.best))

    def nearest(self, sizes: Mapping[Dim, int]) -> TileProgram | None:
        """The fastest tile program of the tuned point nearest to some sizes."""
        return min(self.best, key=lambda item: self._distance(item[0], sizes))[1] if self else None

    def measured(self, tiles: TileProgram, sizes: Mapping[Dim, int]) -> tuple[Sizes, float] | None:
        """The tuned point nearest to some sizes where a tile program was measured, and its seconds there."""
        own = [(point, times[tiles]) for point, times in self.timings if tiles in times]
        return min(own, key=lambda item: self._distance(item[0], sizes)) if own else None

    def decided(self, tiles: TileProgram, sizes: Mapping[Dim, int]) -> str:
        """What decided for a tile program at some sizes, in a line: the recipe and the point where it was
        measured, or the cost model and why no recipe did."""
        found = self.measured(tiles, sizes)
        if self.path is not None and found is not None:
            point, seconds = found
            away = self._distance(point, sizes)
            how = "these very sizes" if not away else "the nearest that was measured"
            if away > NEAR:
                how += (
                    "; so far from it a call takes what the cost model, scaled by it, expects to be fastest"
                )
            return f"recipe {self.path.name}: {seconds * 1e6:.1f} us measured at {_at(point)}, {how}"
        if self.notes:
            more = len(self.notes) - 1
            name = f"{self.path.name}: " if self.path is not None else ""
            told = self.notes[-1 if name else 0]
            why = f"passed over {name}{told}" + (f" (and {more} more, below)" if more else "")
        elif self.elsewhere:
            why = f"no recipe for this device, only for others: {', '.join(self.elsewhere)}"
        else:
            why = "no recipe for this program on any device; `cleave tune` makes one"
        return f"the cost model: {why}"

    def seconds(self, tiles: TileProgram, sizes: Mapping[Dim, int], model: Model) -> float:
        """What a tile program is expected to take: the cost model's word, scaled by measured over modelled at
        the nearest tuned sizes; where this one was not measured, by the best one's there, and more. Farther
        from them than a doubling nothing was measured, and all are scaled alike."""
        near = min(range(len(self.timings)), key=lambda n: self._distance(self.timings[n][0], sizes))
        point, times = self.timings[near]
        distance = self._distance(point, sizes)
        measured = tiles in times and distance <= NEAR
        chosen = tiles if measured else min(times, key=lambda t: times[t])
        key = (chosen, near)
        if key not in self.modelled:
            self.modelled[key] = model(chosen, self.program.bind({**point}))
        ratio = times[chosen] / max(self.modelled[key], 1e-12)
        if not measured and distance <= NEAR:
            ratio *= UNTUNED if distance else LOST
        return model(tiles, sizes) * ratio

    def _distance(self, point: Sizes, sizes: Mapping[Dim, int]) -> float:
        return sum(abs(math.log2((sizes[atom] + 1) / (size + 1))) for atom, size in point.items())

    def text(self) -> str:
        """What is used, for people."""
        lines: list[str] = []
        if self.path is not None and self.timings:
            lines.append(f"{self.path.name}, tuned on {self.device} with {self.made_with}")
            for point, tiles in self.best:
                times = next(t for p, t in self.timings if p == point)
                entry = self.entry(tiles)
                form = entry.form if entry else ""
                lines.append(f"  {_at(point)}: {times[tiles] * 1e6:.1f} us measured, from '{form}'")
            lines.append(
                "Other sizes: the cost model, scaled by measured over modelled at the nearest of these."
            )
        lines += [f"passed over: {note}" for note in self.notes]
        return "\n".join(lines) or "none: the cost model alone decides"


def _at(point: Sizes) -> str:
    """A tuned point, for people."""
    return ", ".join(f"{atom} = {size}" for atom, size in point.items()) or "the sizes of the program"


def _indexed(path: Path) -> tuple[Path, Mapping[tuple[str, str], Sequence[str]]]:
    """A folder and the names of its recipes by program and device; of a file's folder that file alone."""
    if not path.is_file():
        return path, _index(path, _changed(path))
    found = _index(path.parent, _changed(path.parent))
    return path.parent, {key: [path.name] for key, names in found.items() if path.name in names}


def find(program: Program, target: str) -> Adopted:
    """The first recipe for a program and the device of a target; an `Adopted` without entries if none."""
    notes: list[str] = []
    if target == "interpret":
        return Adopted(program)
    folders = (*knobs().recipes, knobs().data_dir / "recipes", SHIPPED)
    indexed = [_indexed(path) for path in folders]
    notes += [f"{path} of CLEAVE_RECIPES is not there" for path in knobs().recipes if not path.exists()]
    if not _REMEMBERED and not any(index for _, index in indexed):
        return Adopted(program)
    digest, device = program_digest(program), device_name(target)
    fresh = _REMEMBERED.get((digest, device, target))
    if fresh is not None and _agrees(*fresh, program, notes):
        found = _adapted(*fresh, program)
        found.notes = tuple(notes)
        return found
    for folder, index in indexed:
        for name in index.get((digest, _slug(device)), ()):
            found = _adopted(folder / name, program, device, target, notes)
            if found:
                found.notes = tuple(notes)
                return found
    others = dict.fromkeys(
        name
        for _, index in indexed
        for (other, where), names in index.items()
        if other == digest and where != _slug(device)
        for name in names
    )
    return Adopted(program, notes=tuple(notes), elsewhere=tuple(others))


def _adopted(path: Path, program: Program, device: str, target: str, notes: list[str]) -> Adopted | None:
    own: list[str] = []
    try:
        recipe = parse_recipe(path.read_text(encoding="utf-8"), own)
    except (OSError, ParseError, UnicodeDecodeError, ValueError, KeyError, IndexError) as error:
        notes.append(f"{path.name}: {' '.join(str(error).split())}")
        return None
    notes += [f"{path.name}: {note}" for note in own]
    if (recipe.device, recipe.target) != (device, target):
        notes.append(f"{path.name}: it is for {recipe.device} ({recipe.target}), this is {device} ({target})")
        return None
    if print_program(canonical(recipe.program)) != print_program(canonical(program)):
        notes.append(f"{path.name}: it is for another program")
        return None
    if not _agrees(recipe, path, program, notes):
        return None
    if not recipe.timings:
        notes.append(f"{path.name}: it has no tile program that can be used")
        return None
    return _adapted(recipe, path, program)


def _agrees(recipe: Recipe, path: Path, program: Program, notes: list[str]) -> bool:
    """Whether a recipe was made under settings like those in force: with another precision other kernels are
    the fastest; with other numerics it has other candidates, which serve as far as they are allowed."""
    old, now = recipe.settings, settings_of(program, recipe.target)
    if old.precision != now.precision:
        notes.append(f"{path.name}: it was tuned with precision {old.precision}, this is {now.precision}")
        return False
    if old != now:
        how = f"numerics {old.numerics}, reassociate {'on' if old.reassociate else 'off'}"
        notes.append(f"{path.name}: it was tuned with {how}: what else may be computed was not measured")
    return True


def _adapted(recipe: Recipe, path: Path, program: Program) -> Adopted:
    """A recipe under the names of a program with the same canonical text."""
    to = renaming(recipe.program, program)
    entries = [Entry(renamed(e.tiles, to, program.name), e.candidate, e.form) for e in recipe.entries]
    timings = tuple(
        ({to(atom): size for atom, size in point}, {entries[n].tiles: seconds for n, seconds in times})
        for point, times in recipe.timings
    )
    made_with = recipe.made_by if recipe.versions == versions() else f"{recipe.made_by}, other versions"
    return Adopted(program, path, tuple(entries), timings, (), recipe.device, made_with)


def _changed(folder: Path) -> int:
    try:
        return folder.stat().st_mtime_ns
    except OSError:
        return 0


@functools.lru_cache(maxsize=16)
def _index(folder: Path, changed: int) -> Mapping[tuple[str, str], tuple[str, ...]]:
    """The files of a folder by the digest of the program and the device, which their names say or, where
    they have a name of their own, their heads; `changed` tells versions of the folder apart."""
    found: dict[tuple[str, str], list[str]] = {}
    if not changed:
        return {}
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        parts = path.name.removesuffix(SUFFIX).split(".")
        named = len(parts) >= 3 and re.fullmatch("[0-9a-f]{24}", parts[-2])
        key = (parts[-2], parts[-1]) if named else _headed(path)
        found.setdefault(key, []).append(path.name)
    return {key: tuple(names) for key, names in found.items()}


def _headed(path: Path) -> tuple[str, str]:
    """The digest of the program and the device that a file's head says; empty where it cannot be read."""
    try:
        head = path.read_text(encoding="utf-8").partition("\n--- program\n")[0]
    except (OSError, UnicodeDecodeError):
        return "", ""
    said = {name: value for name, _, value in (line.partition(": ") for line in head.splitlines())}
    return said.get("program", ""), _slug(said.get("device", ""))
