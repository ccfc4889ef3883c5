"""A recipe and an earlier one of the same program: what was tuned stays when other sizes are tuned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cleave.errors import CleaveError
from cleave.runtime.recipes import Entry, Recipe, file_name, parse_recipe


def joined(recipe: Recipe, before: Recipe) -> Recipe:
    """The recipe, with the points of an earlier one that it lacks and the tile programs measured there."""
    known = {point for point, _ in recipe.timings}
    entries: dict[object, Entry] = {entry.tiles: entry for entry in recipe.entries}
    timings = list(recipe.timings)
    for point, times in before.timings:
        if point in known:
            continue
        for number, _ in times:
            entries.setdefault(before.entries[number].tiles, before.entries[number])
        places = {tiles: n for n, tiles in enumerate(entries)}
        timings.append((point, tuple((places[before.entries[n].tiles], s) for n, s in times)))
    return replace(recipe, entries=tuple(entries.values()), timings=tuple(timings))


def with_earlier(recipe: Recipe, where: Path) -> Recipe:
    """The recipe joined with what `where`, a file or a folder, has of it: the same program under the same
    names, device and settings, by the same versions. What cannot be read, or was made otherwise, is
    replaced."""
    path = where / file_name(recipe) if where.is_dir() or not where.suffix else where
    try:
        before = parse_recipe(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, CleaveError):
        return recipe
    alike = ("program", "device", "target", "settings", "versions")
    same = all(getattr(recipe, name) == getattr(before, name) for name in alike)
    return joined(recipe, before) if same else recipe


__all__ = ["joined", "with_earlier"]
