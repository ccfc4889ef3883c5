"""Recipes: text, names, what is passed over and why, and which tile program they make the pipeline choose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from cleave.errors import Invalid, ParseError
from cleave.frontend.tuning import Done
from cleave.ir.dims import Atom
from cleave.ir.parse import parse_program
from cleave.ir.program import Program
from cleave.ir.text import print_program
from cleave.knobs import scope
from cleave.pipeline import compile_program, plan
from cleave.report.explain import as_data, explain
from cleave.report.html import page
from cleave.report.tuned import lines_of
from cleave.runtime import recipes
from cleave.runtime.machines import device_name
from cleave.runtime.naming import canonical, program_digest, renamed, renaming, tiles_digest
from cleave.runtime.recipes import (
    SHIPPED,
    SUFFIX,
    Recipe,
    find,
    parse_recipe,
    print_recipe,
    recipe_of,
    save,
)
from cleave.runtime.tune_point import Choice, Point, Result, Tuned
from cleave.runtime.tune_store import Measured

TEXT = """program normed(x: f32[S, K], w: f32[K, C]) where K = 48, C = 32 {
  square[s: S, k: K]: f32 = mul(x[s, k], x[s, k])
  total[s: S]: f32 = sum[k: K](square[s, k])
  root[s: S]: f32 = rsqrt(total[s])
  product[s: S, c: C]: f32 = contract[k: K](x[s, k], w[k, c])
  out[s: S, c: C]: f32 = mul(product[s, c], root[s])
  return out[s, c]
}
"""
PROGRAM = parse_program(TEXT)
OTHER_NAMES = {"normed": "renormed", "x": "rows", "w": "weight", "S": "Batch", "K": "Depth", "C": "Width",
               "out": "z", "square": "sq", "total": "sums", "root": "scale", "product": "dots"}  # fmt: skip
S = Atom("S")


def other_names() -> Program:
    text = re.sub(r"\b(\w+)\b", lambda m: OTHER_NAMES.get(m[1], m[1]), TEXT)
    return parse_program(text)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of recipes; nothing remembered from other tests."""
    monkeypatch.setattr(recipes, "_REMEMBERED", {})
    with scope(data_dir=tmp_path / "data", recipes=(tmp_path / "recipes",)):
        (tmp_path / "recipes").mkdir()
        yield tmp_path / "recipes"


def tuned(program: Program = PROGRAM, best: int = 2, *sizes: int) -> list[Tuned]:
    """As if measured: at each size the tile program number `best` of the ranking is the fastest."""
    made: list[Tuned] = []
    for size in sizes or (64,):
        planned = plan(program, target="cpu", sizes={program.dynamic[0]: size}, count=6)
        choices = tuple(
            Choice(r.tiles, r.cost.seconds, recipes.candidate_digest(r.candidate), r.candidate.form)
            for r in planned.ranked[0]
        )
        point = Point(program, "cpu", planned.representatives[0], choices)
        times = [1e-5 if n == best else 2e-5 + n * 1e-6 for n in range(len(choices))]
        results = [Result(c, Measured("right", t, 1e-7)) for c, t in zip(choices, times, strict=True)]
        made.append(Tuned(point, sorted(results, key=lambda r: r.measured.seconds or 0.0)))
    return made


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return recipe_of(tuned(PROGRAM, 2, 64, 1024))


# ---------------------------------------------------------------- names


def test_names_do_not_matter() -> None:
    mine, other = PROGRAM, other_names()
    assert program_digest(mine) == program_digest(other)
    assert print_program(canonical(mine)) == print_program(canonical(other))
    assert program_digest(parse_program(TEXT.replace("K = 48", "K = 47"))) != program_digest(mine)
    assert program_digest(parse_program(TEXT.replace("rsqrt", "sqrt"))) != program_digest(mine)


def test_tile_programs_follow_the_names() -> None:
    tiles = plan(PROGRAM, target="cpu", sizes={S: 64}).ranked[0][0].tiles
    other = other_names()
    theirs = renamed(tiles, renaming(PROGRAM, other), other.name)
    assert theirs.inputs[0].name == "rows" and theirs != tiles
    assert renamed(theirs, renaming(other, PROGRAM), tiles.name) == tiles
    assert tiles_digest(theirs, other) == tiles_digest(tiles, PROGRAM)
    one = replace(tiles, kernels=(replace(tiles.kernels[0], warps=9), *tiles.kernels[1:]))
    assert tiles_digest(one, PROGRAM) != tiles_digest(tiles, PROGRAM)


# ---------------------------------------------------------------- text


def test_the_text_comes_back(recipe: Recipe) -> None:
    text = print_recipe(recipe)
    assert parse_recipe(text) == recipe
    assert print_recipe(parse_recipe(text)) == text
    assert text.startswith("cleave recipe 1\n") and "--- point S=64\n1: 10.000 us\n" in text


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (("cleave recipe 1", "cleave recipe 2"), "expected 'cleave recipe 1'"),
        ((" by ", " by 6"), "altered"),
        (("10.000 us", "1.000 us"), "altered"),
        (("--- program", "--- nothing"), "altered"),
        (("", ""), ""),
    ],
)
def test_a_recipe_of_another_form_or_altered_is_passed_over(
    recipe: Recipe, folder: Path, change: tuple[str, str], why: str
) -> None:
    path = save(recipe, folder)
    text = path.read_text()
    path.write_text(text.replace(*change) if change[0] else text[: len(text) // 2])
    found = find(PROGRAM, "cpu")
    assert not found and len(found.notes) == 1 and path.name in found.notes[0]
    assert why in found.notes[0]
    with pytest.raises(ParseError):
        parse_recipe(path.read_text())
    planned = plan(PROGRAM, target="cpu", sizes={S: 64})
    assert not planned.tuned and "passed over" in explain(planned, source="none")


def test_a_tile_program_that_this_version_cannot_read_is_left_out(recipe: Recipe, folder: Path) -> None:
    """Another version may know statements that this one does not."""
    text = print_recipe(recipe)
    head, mark, body = text.partition("--- program")
    body = (mark + body).replace("store ", "stow ", 1)
    head = re.sub(r"content: \w+", f"content: {recipes.digest_of(body)}", head)
    notes: list[str] = []
    parsed = parse_recipe(head + body, notes)
    assert len(parsed.entries) == len(recipe.entries) - 1
    assert len(notes) == 1 and "tile program 1 is left out" in notes[0]
    save(recipe, folder).write_text(head + body)
    found = find(PROGRAM, "cpu")
    assert any("left out" in note for note in found.notes)
    assert bool(found) == bool(parsed.timings)


def test_tile_programs_of_another_program_are_not_taken(recipe: Recipe) -> None:
    other = parse_program(TEXT.replace("x: f32[S, K]", "x: f64[S, K]").replace("f32 =", "f64 =", 1))
    notes: list[str] = []
    body = print_recipe(replace(recipe, program=other))
    assert parse_recipe(body, notes).entries == () and "other arguments" in notes[0]


def test_other_devices_are_not_served(recipe: Recipe, folder: Path) -> None:
    save(replace(recipe, device="another processor"), folder)
    assert not find(PROGRAM, "cpu")
    wrong = save(replace(recipe, device="another processor"), folder / f"a.b{SUFFIX}")
    name = f"x.{program_digest(PROGRAM)}.{recipes._slug(device_name('cpu'))}{SUFFIX}"
    wrong.rename(folder / name)
    found = find(PROGRAM, "cpu")
    assert not found and "it is for another processor" in found.notes[0]


# ---------------------------------------------------------------- use


def test_a_recipe_decides_for_programs_with_other_names(recipe: Recipe, folder: Path) -> None:
    path = save(recipe, folder)
    other = other_names()
    compiled = compile_program(other, target="cpu", sizes={other.dynamic[0]: 64})
    expected = renamed(recipe.entries[0].tiles, renaming(PROGRAM, other), other.name)
    assert compiled.plan.variants[0].tiles == expected
    x, w = torch.randn(64, 48), torch.randn(48, 32)
    wanted = x @ w * torch.rsqrt((x * x).sum(-1, keepdim=True))
    torch.testing.assert_close(compiled(x, w)[0], wanted)
    assert compiled.serving(x, w) == expected
    text = explain(compiled.plan, source="none")
    assert path.name in text and "Batch = 64: 10.0 us measured" in text
    for rows in (1, 7, 500, 3000):
        x = torch.randn(rows, 48)
        torch.testing.assert_close(compiled(x, w)[0], x @ w * torch.rsqrt((x * x).sum(-1, keepdim=True)))


def headline(size: int) -> str:
    """The second line of `explain`."""
    return explain(plan(PROGRAM, target="cpu", sizes={PROGRAM.dynamic[0]: size}), source="none").split("\n")[
        1
    ]


def test_the_headline_names_the_recipe_and_the_point_that_decided(recipe: Recipe, folder: Path) -> None:
    path = save(recipe, folder)
    name, dim = path.name, PROGRAM.dynamic[0].name
    assert headline(64) == f"Decided by recipe {name}: 10.0 us measured at {dim} = 64, these very sizes."
    assert headline(100).endswith(f"measured at {dim} = 64, the nearest that was measured.")
    assert f"measured at {dim} = 1024, the nearest that was measured; so far from it" in headline(50000)
    made = plan(PROGRAM, target="cpu", sizes={PROGRAM.dynamic[0]: 64})
    assert str(as_data(made)["decided"]).startswith(f"recipe {name}: ")
    assert f"Decided by recipe {name}: " in page(made)


def test_the_line_of_times_says_which_is_modelled_and_which_measured(recipe: Recipe, folder: Path) -> None:
    dim = PROGRAM.dynamic[0]

    def third(size: int) -> str:
        return explain(plan(PROGRAM, target="cpu", sizes={dim: size}), source="none").split("\n")[2]

    assert re.search(r"; modelled [\d.]+ \S*s, not measured\.$", third(64))
    save(recipe, folder)
    assert re.search(r"; modelled [\d.]+ \S*s, measured 10 µs\.$", third(64))
    assert re.search(rf"; modelled [\d.]+ \S*s, measured 10 µs at {dim}=64\.$", third(100))
    data = as_data(plan(PROGRAM, target="cpu", sizes={dim: 100}))
    assert data["measured"] == {"sizes": {dim.name: 64}, "seconds": pytest.approx(1e-5)}


def test_the_headline_says_why_the_cost_model_decided(recipe: Recipe, folder: Path) -> None:
    assert headline(64) == (
        "Decided by the cost model: no recipe for this program on any device; `cleave tune` makes one."
    )
    other = save(replace(recipe, device="another processor"), folder)
    told = f"Decided by the cost model: no recipe for this device, only for others: {other.name}."
    assert headline(64) == told
    path = save(recipe, folder)
    path.write_text(path.read_text().replace("10.000 us", "0.001 us"))
    assert headline(64).startswith(f"Decided by the cost model: passed over {path.name}: it was altered")
    save(recipe, folder)
    with scope(numerics="strict"):
        told = headline(64)
    assert told.startswith(f"Decided by the cost model: passed over {path.name}: tile programs from ")
    assert "the settings leave that candidate out" in told
    assert "Decided by the cost model: no recipe" in explain(plan(PROGRAM, target="interpret"), source="none")


def test_the_nearest_sizes_scale_the_model(recipe: Recipe, folder: Path) -> None:
    save(recipe, folder)
    found = find(PROGRAM, "cpu")
    tiles = found.nearest({S: 70})
    assert tiles is not None

    def model(tiles: object, sizes: dict[Atom, int]) -> float:
        return sizes[S] * 1e-6

    assert found.seconds(tiles, {S: 64}, model) == pytest.approx(1e-5)
    assert found.seconds(tiles, {S: 128}, model) == pytest.approx(2e-5)
    fresh = replace(tiles, name="untuned")
    assert found.seconds(fresh, {S: 64}, model) == pytest.approx(1e-4), "measured here, and lost"
    assert found.seconds(fresh, {S: 128}, model) == pytest.approx(2.5e-5)
    far = [found.seconds(one, {S: 4096}, model) for one in (tiles, fresh)]
    assert far[0] == pytest.approx(far[1]), "nothing near was measured: the model alone ranks"


def test_settings_that_bar_a_candidate_bar_its_tile_programs(recipe: Recipe, folder: Path) -> None:
    barred = tuple(replace(e, candidate="0" * 24) for e in recipe.entries)
    save(replace(recipe, entries=barred), folder)
    planned = plan(PROGRAM, target="cpu", sizes={S: 64})
    assert not planned.tuned and "settings leave that candidate out" in planned.recipe.text()
    x, w = torch.randn(9, 48), torch.randn(48, 32)
    compiled = compile_program(PROGRAM, target="cpu", sizes={S: 64})
    torch.testing.assert_close(compiled(x, w)[0], x @ w * torch.rsqrt((x * x).sum(-1, keepdim=True)))


@pytest.mark.parametrize("name", ["mine.recipe", "my.own.name.recipe"])
def test_a_recipe_may_have_a_name_of_its_own(recipe: Recipe, folder: Path, name: str) -> None:
    saved = save(recipe, folder)
    saved.rename(folder / name)
    recipes._index.cache_clear()
    found = find(PROGRAM, "cpu")
    assert found and name in found.text()
    assert not find(parse_program(TEXT.replace("K = 48", "K = 56")), "cpu")


def test_a_file_may_be_named_and_one_that_is_not_there_is_told(recipe: Recipe, folder: Path) -> None:
    other = folder.parent / "elsewhere"
    saved = save(recipe, other).rename(other / "mine.recipe")
    with scope(recipes=(saved,)):
        assert find(PROGRAM, "cpu").entries == recipe.entries
    with scope(recipes=(other / "its.recipe", folder)):
        save(recipe, folder)
        assert any("its.recipe of CLEAVE_RECIPES is not there" in note for note in find(PROGRAM, "cpu").notes)


def test_the_first_folder_wins_and_no_folder_is_no_error(recipe: Recipe, folder: Path) -> None:
    assert not find(PROGRAM, "cpu") and find(PROGRAM, "cpu").text().startswith("none")
    later = recipe_of(tuned(PROGRAM, 3, 64))
    save(later, folder.parent / "data" / "recipes")
    assert find(PROGRAM, "cpu").entries == later.entries
    save(recipe, folder)
    assert find(PROGRAM, "cpu").entries == recipe.entries
    with scope(recipes=(folder / "missing",), data_dir=folder / "neither"):
        assert not find(PROGRAM, "cpu")


def test_nothing_right_is_no_recipe() -> None:
    one = tuned(PROGRAM, 0, 64)[0]
    results = [Result(r.choice, Measured("crash", detail="SIGABRT")) for r in one.results]
    with pytest.raises(Invalid, match="SIGABRT"):
        recipe_of([Tuned(one.point, results)])


def test_a_point_without_the_first_choice_counts_for_nothing() -> None:
    """The best of what was measured may be slower than what the cost model takes."""
    whole, cut = tuned(PROGRAM, 2, 64, 1024)
    cut.results = [r for r in cut.results if r.choice != cut.point.choices[0]]
    (timing,) = recipe_of([whole, cut]).timings
    assert timing[0] == ((S, 64),) and recipe_of([whole, cut]).entries == recipe_of([whole]).entries
    with pytest.raises(Invalid, match="first choice was not measured in time"):
        recipe_of([cut])
    assert "left out" in next(line for line in lines_of([Done((cut,), None, None, "none")]) if "best" in line)


def test_shipped_recipes_are_whole() -> None:
    """Every recipe in the package parses, names its own file, and leaves nothing out."""
    for path in sorted(SHIPPED.glob(f"*{SUFFIX}")):
        notes: list[str] = []
        parsed = parse_recipe(path.read_text(), notes)
        assert recipes.file_name(parsed) == path.name and not notes, (path.name, notes)


def test_the_head_tells_the_settings_and_another_precision_is_passed_over(folder: Path) -> None:
    made = replace(recipe_of(tuned()), target="cuda", device=device_name("cuda"))
    made = replace(made, settings=recipes.settings_of(PROGRAM, "cuda"))
    text = print_recipe(made)
    assert "\nnumerics: stable\nreassociate: no\nprecision: highest\n" in text
    assert parse_recipe(text).settings == made.settings
    save(made, folder)
    assert find(PROGRAM, "cuda").path is not None
    torch.set_float32_matmul_precision("high")
    try:
        found = find(PROGRAM, "cuda")
        recipes.remember(made, folder)
        fresh = find(PROGRAM, "cuda")
    finally:
        torch.set_float32_matmul_precision("highest")
    for adopted in (found, fresh):
        assert not adopted and "tuned with precision highest, this is high" in " ".join(adopted.notes)


def test_other_numerics_are_told(folder: Path) -> None:
    save(recipe_of(tuned()), folder)
    with scope(numerics="fast", reassociate=True):
        adopted = find(PROGRAM, "cpu")
    assert adopted and "numerics stable, reassociate off" in " ".join(adopted.notes)
    assert not find(PROGRAM, "cpu").notes
