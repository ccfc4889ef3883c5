"""From programs to recipes: what is offered, and the whole way on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import cleave
from cleave import cli
from cleave.errors import Invalid
from cleave.frontend.files import load
from cleave.frontend.tuning import Wish, planned, points_for, tune_program
from cleave.ir.dims import Atom
from cleave.ir.parse import parse_program
from cleave.knobs import scope
from cleave.report.tuned import as_data, lines_of
from cleave.runtime import recipes
from cleave.runtime.tune_point import Limits
from cleave.schedule.text import print_tiles

FILE = """import cleave


@cleave.program(x="f32[S, K=16]", w="f32[K, C=24]", S=40)
def product(x, w):
    return x @ w
"""
PROGRAM = parse_program("program shift(x: f32[N]) {\n  y[n: N]: f32 = add(x[n], 1.5)\n  return y[n]\n}\n")
N = Atom("N")


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data folder of its own, and a compiler that is quick."""
    compiler = tmp_path / "quick"
    compiler.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then exec g++ --version; fi\nexec g++ "$@" -O0\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setattr(recipes, "_REMEMBERED", {})
    with scope(data_dir=tmp_path / "data", compiler=str(compiler)):
        yield tmp_path / "data"


def test_what_is_offered_is_varied_and_fits(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(FILE)
    loaded = load(f"{tmp_path / 'p.py'}:product")
    (point,) = points_for(Wish(loaded.program, (loaded.sizes,)), "cpu", 8)
    tiles = [c.tiles for c in point.choices]
    assert 1 < len(tiles) <= 8 and len(set(tiles)) == len(tiles)
    assert any(not t.limits for t in tiles)
    assert all(point.sizes[a] <= limit for t in tiles for a, limit in t.limits)
    assert all(c.candidate and c.form for c in point.choices)
    (gpu,) = points_for(Wish(loaded.program, (loaded.sizes,)), "cuda", 40)
    assert gpu.choices and gpu.choices[0].tiles not in tiles
    with pytest.raises(Invalid, match="no size is given for S"):
        points_for(Wish(loaded.program, ({},)), "cpu", 8)


@pytest.mark.slow
def test_many_points_are_worked_out_elsewhere_and_are_the_same() -> None:
    wish = Wish(PROGRAM, tuple({N: size} for size in (8, 100, 5000, 70000)))
    one = points_for(wish, "cpu", 4)
    with planned([wish], "cpu", 4, 2) as started:
        other = [point.result() for point in started]
    assert [[print_tiles(c.tiles) for c in p.choices] for p in one] == [
        [print_tiles(c.tiles) for c in p.choices] for p in other
    ]
    assert [p.choices for p in one] == [p.choices for p in other]


def test_targets_that_cannot_be_tuned() -> None:
    with pytest.raises(Invalid, match="cannot be tuned"):
        tune_program(PROGRAM, "interpret", [{N: 8}])
    if not torch.cuda.is_available():
        with pytest.raises(Invalid, match="no GPU"):
            tune_program(PROGRAM, "cuda", [{N: 8}])


def test_the_command_leaves_a_recipe_that_is_used(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.py").write_text(FILE)
    where, out = f"{tmp_path / 'p.py'}:product", tmp_path / "out" / "mine.recipe"
    command = ["tune", where, "--size", "S=40", "--budget", "60", "--count", "2", "--out", str(out), "--json"]
    with pytest.raises(SystemExit) as end:
        cli.main(command)
    (point,) = json.loads(capsys.readouterr().out)
    assert end.value.code == 0 and point["sizes"] == {"S": 40}
    assert "right" in {r["status"] for r in point["results"]}
    text = out.read_text()
    assert text.startswith("cleave recipe 1") and "--- point S=40" in text

    name = recipes.file_name(recipes.parse_recipe(text))
    (data / "recipes").mkdir(parents=True)
    (data / "recipes" / name).write_text(text)
    recipes._REMEMBERED.clear()  # as in another process
    with pytest.raises(SystemExit):
        cli.main(["explain", where, "--source", "none"])
    shown = capsys.readouterr().out
    assert name in shown and "S = 40" in shown


def test_jit_tunes_before_it_compiles(data: Path) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    ours = cleave.jit(fn, target="cpu", tune=30)
    x = torch.randn(300)
    torch.testing.assert_close(ours(x), fn(x))
    (path,) = (data / "recipes").glob("*.recipe")
    assert ours.compiled[0].plan.recipe.path == path and ours.compiled[0].plan.tuned


def test_what_people_see(data: Path) -> None:
    done = tune_program(PROGRAM, "cpu", [{N: 64}], Limits(budget=0), count=2)
    lines = lines_of([done])
    assert lines[0].startswith("shift N=64: nothing measured (0 now") and "no recipe" in lines[1]
    assert as_data([done])[0]["recipe"] is None


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["tune"], "say what to tune"),
        (["tune", "p.py:f", "--suite", "paper"], "say what to tune"),
        (["tune", "--suite", "nothing"], "there is no suite"),
        (["tune", "--suite", "paper", "--case", "nothing"], "has no case"),
    ],
)
def test_commands_that_make_no_sense(
    arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == cli.FAILED and why in capsys.readouterr().err
