"""Command lines with options that would change nothing, sizes that are none, and files that cannot be
written: refused in words, before any work."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cleave.knobs import scope

FILE = """import torch, cleave

@cleave.program(x="f32[N, K]", N=16)
def softmax(x):
    return torch.softmax(x, -1)

@cleave.program(x="f32[N]")
def raises(x):
    return x + torch.zeros(10**30)
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options")
    (path / "programs.py").write_text(FILE)
    (path / "exits.py").write_text("import sys\nsys.exit(3)\n")
    (path / "own.py").write_text("class Own(Exception): ...\nraise Own('mine')\n")
    return path


@pytest.mark.parametrize(
    "words, said",
    [
        ("compile F --emit program --size N=3", "--size changes nothing of --emit program"),
        ("compile F --emit candidates --target cuda", "--target changes nothing of --emit candidates"),
        ("explain F --json --source all", "--source is for text"),
        ("tune F --dtype f32", "--dtype picks from a suite"),
        ("tune F --phase decode", "--phase picks from a suite"),
        ("tune F --case x", "--case picks from a suite"),
        ("tune --suite paper --size S=3", "--size is for a function"),
        ("tune --suite paper --case mla-decode --phase prefill", "has no prefill on cpu"),
        ("fuse F --limit 3", "--limit limits the data that --json writes"),
        ("fuse F --replay D/plan.json --strategy xla", "--strategy is what --replay reads"),
        ("fuse F --replay D/plan.json --epoch X22", "--epoch is what --replay reads"),
        ("fuse F --replay D/plan.json --device cpu", "--device is what --replay reads"),
        ("prove --check D/c.txt --certificate D/c.txt", "--certificate writes a file"),
        ("bench algebra --dtype f32", "the study algebra has no use for --dtype"),
        ("bench algebra --target cpu", "the study algebra has no use for --target"),
        ("bench search --budget 3", "the study search has no use for --budget"),
        ("bench cartpole --phase decode", "the study cartpole has no use for --phase"),
        ("bench fusion --sizes 3", "the study fusion has no use for --sizes"),
        ("bench paper --sizes 3", "--sizes is for the study 'cartpole'"),
        ("bench paper --ahead 3", "--ahead is for the study 'cartpole'"),
        ("bench paper --resume", "--resume goes on with a file"),
        ("bench cartpole --resume", "--resume goes on with a file"),
        ("bench paper --peers none --sweep 3", "--sweep is for the settings of peers"),
        ("bench paper --case mla-decode --phase prefill", "has no prefill on cpu in the cases mla-decode"),
    ],
)
def test_an_option_that_would_change_nothing_is_refused(
    run: Run, folder: Path, words: str, said: str
) -> None:
    refused(run, folder, words, said)


@pytest.mark.parametrize(
    "words, said",
    [
        (f"compile F --size N={10**30}", "no axis has the size"),
        (f"explain F --size N={'9' * 5000}", "no axis has the size"),
        (f"fuse F --size N={2**41}", f"no axis has the size {2**41}"),
        (f"tune F --size N={10**30}", "no axis has the size"),
        ("compile F --size N=1.5", "expected NAME=N"),
        ("compile F --size N=True", "expected NAME=N"),
        ("compile F --size N=3 --size N=4", "--size gives N twice: N=3 and N=4"),
        ("fuse F --size N=3 --size N=3", "--size gives N twice"),
        ("tune F --size N=3 --size N=3", "--size gives N=3 twice"),
    ],
)
def test_sizes_that_are_none_are_refused(run: Run, folder: Path, words: str, said: str) -> None:
    refused(run, folder, words, said)


@pytest.mark.parametrize(
    "words, said",
    [
        ("compile D/exits.py:f", "exits.py ends Python where it is loaded\n  at exits.py:2: sys.exit(3)"),
        ("compile D/own.py:f", "own.py raised Own: mine\n  at own.py:2: raise Own"),
        ("compile D/programs.py:raises", "raises raised TypeError: zeros()"),
        ("prove D/programs.py:raises F", "raises raised TypeError: zeros()"),
    ],
)
def test_what_a_file_raises_is_told(run: Run, folder: Path, words: str, said: str) -> None:
    refused(run, folder, words, said)


@pytest.mark.parametrize(
    "words",
    [
        "tune F --out D/programs.py/x.recipe",
        "tune F --out D/programs.py/in/x.recipe",
        "tune F --out D/programs.py/folder",
        "tune --suite paper --out D/programs.py",
        "calibrate --out D/programs.py/x.machine",
        "calibrate --out D",
        "explain F --html D/none/x.html",
        "fuse F --html D/programs.py/x.html",
        "fuse F --json D/programs.py/x.json",
        "prove F F --certificate D/programs.py/x.txt",
        "bench paper --json D/programs.py/x.json",
        "bench algebra --json D",
    ],
)
def test_files_that_cannot_be_written_are_told_before_any_work(
    run: Run, folder: Path, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worked(*arguments: object, **options: object) -> None:
        raise AssertionError("work was begun")

    monkeypatch.setattr("cleave.frontend.tuning.tune_all", worked)
    monkeypatch.setattr("cleave.frontend.calibrate._device", worked)
    monkeypatch.setattr("cleave.frontend.files.load", worked)
    before = sorted(folder.rglob("*"))
    refused(run, folder, words, "cannot be written")
    assert sorted(folder.rglob("*")) == before


def test_a_file_of_the_users_is_not_lost_to_a_recipe(run: Run, folder: Path) -> None:
    for command in ("tune F", "calibrate"):
        refused(run, folder, f"{command} --out D/programs.py", "is another file, and would be lost")
    assert (folder / "programs.py").read_text() == FILE


def test_a_data_folder_that_cannot_be_written_ends_the_tuner(run: Run, folder: Path) -> None:
    """By default the recipe goes there: a command that could only keep it in its own process has failed."""
    with scope(data_dir=folder / "programs.py"):
        refused(run, folder, "tune F", "recipes cannot be written")
        refused(run, folder, "calibrate", "cannot be written")


def test_options_that_are_looked_at_stand(run: Run, folder: Path) -> None:
    where = f"{folder / 'programs.py'}:softmax"
    code, out, err = run("fuse", where, "--limit", "3", "--json", "-", "--strategy", "xla", "--device", "cpu")
    assert (code, err) == (0, "") and json.loads(out)
    assert run("compile", where, "--emit", "tiles", "--size", "N=3", "--size", "K=40")[0] == 0


def refused(run: Run, folder: Path, words: str, said: str) -> None:
    own = {"F": f"{folder / 'programs.py'}:softmax"}
    arguments = [
        own.get(w) or (str(folder) + w[1:] if w == "D" or w.startswith("D/") else w) for w in words.split()
    ]
    code, out, err = run(*arguments)
    assert (code, out) == (4, ""), err
    assert said in err and "Traceback" not in err
