"""Recipes that are tuned in pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from test_recipes import PROGRAM, S, tuned

from cleave.runtime.joining import joined, with_earlier
from cleave.runtime.recipes import Recipe, parse_recipe, print_recipe, recipe_of, save


def best_at(recipe: Recipe) -> dict[int, object]:
    """The fastest tile program at each size."""
    return {dict(p)[S]: recipe.entries[min(t, key=lambda x: x[1])[0]].tiles for p, t in recipe.timings}


def test_what_was_tuned_before_stays_and_what_is_tuned_again_is_new() -> None:
    before, now = recipe_of(tuned(PROGRAM, 2, 64, 1024)), recipe_of(tuned(PROGRAM, 0, 1024, 4096))
    both = joined(now, before)
    assert best_at(both) == best_at(before) | best_at(now)
    assert best_at(before)[1024] != best_at(now)[1024]
    assert len({e.tiles for e in both.entries}) == len(both.entries)
    assert parse_recipe(print_recipe(both)) == both
    assert joined(both, before) == both


def test_a_file_is_joined_if_it_was_made_alike(tmp_path: Path) -> None:
    before, now = recipe_of(tuned(PROGRAM, 2, 64)), recipe_of(tuned(PROGRAM, 0, 4096))
    assert with_earlier(now, tmp_path) == now, "there is none"
    path = save(before, tmp_path)
    assert set(best_at(with_earlier(now, tmp_path))) == {64, 4096}
    assert set(best_at(with_earlier(now, path))) == {64, 4096}
    save(replace(before, versions="torch 1.0"), tmp_path)
    assert with_earlier(now, tmp_path) == now
    path.write_text("no recipe")
    assert with_earlier(now, tmp_path) == now
