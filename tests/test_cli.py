"""Every command of `cleave`, its exit codes, and what it says of wrong input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cleave.cli import main
from cleave.ir.text import parse_candidate, parse_program, print_candidate, print_program
from cleave.schedule.text import parse_tiles, print_tiles

FILE = """
import torch, cleave

@cleave.program(x="f32[N, K]", K=256)
def softmax(x):
    return torch.softmax(x, -1)

@cleave.program(x="f32[N, K]")
def unsafe(x):
    e = x.exp()
    return e / e.sum(-1, keepdim=True)

@cleave.program(x="f32[N, K]")
def doubled(x):
    return 2 * torch.softmax(x, -1)

@cleave.program(x="f32[N]")
def same(x):
    return x + 1

@cleave.program(x="f32[N]")
def same_if(x):
    return x * x / x + 1

@cleave.program(y="f32[N]")
def other_input(y):
    return y + 1

@cleave.program(x="f32[N, K]", w="f32[O=64, K=96]", N=128)
def linear(x, w):
    return torch.nn.functional.linear(x, w)

@cleave.program(x="f32[N, K]", y="f32[M, K]")
def mismatched(x, y):
    return x @ y

@cleave.program(x="f32[N]")
def raises(x):
    return {}["nothing"]

@cleave.program(x="f32[N]")
def falls_back(x):
    return x.cumsum(0)

def plain(x):
    return x
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("cli") / "programs.py"
    path.write_text(FILE)
    (path.parent / "breaks.py").write_text("import cleave\n\nfailing = 1 / 0\n")
    (path.parent / "badly.py").write_text('import cleave\n\n@cleave.program(x="f32[N")\ndef f(x): ...\n')
    (path.parent / "syntax.py").write_text("def (")
    return str(path)


# ---------------------------------------------------------------- compile


def test_the_program_parses_back(run, file):
    code, text, err = run("compile", f"{file}:softmax", "--emit", "program")
    assert (code, err) == (0, "")
    program = parse_program(text)
    assert print_program(program) == text
    assert program.name == "softmax" and len(program.dynamic) == 2
    code, said, _ = run("compile", f"{file}:softmax", "--emit", "program", "--json")
    assert (code, json.loads(said)) == (0, {"program": text})


def test_candidates_parse_back(run, file):
    code, said, err = run("compile", f"{file}:softmax", "--emit", "candidates", "--json")
    assert (code, err) == (0, "")
    texts = json.loads(said)["candidates"]
    assert [print_candidate(parse_candidate(text)) for text in texts] == texts
    assert parse_candidate(texts[0]).form == "as written"
    printed = run("compile", f"{file}:softmax", "--emit", "candidates")[1]
    marks = [f"# candidate {n} of {len(texts)}\n{text}" for n, text in enumerate(texts, 1)]
    assert printed == "\n".join(marks)
    assert parse_candidate(marks[0]) == parse_candidate(texts[0])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_tile_programs_parse_back(run, file, target):
    code, said, _ = run("compile", f"{file}:softmax", "--emit", "tiles", "--target", target, "--json")
    texts = json.loads(said)["tiles"]
    assert code == 0 and texts
    assert [print_tiles(parse_tiles(text)) for text in texts] == texts


def test_sources(run, file):
    _, cpp, _ = run("compile", f"{file}:linear")
    assert 'extern "C" int linear_main(' in cpp and "#pragma omp parallel for" in cpp
    assert run("compile", f"{file}:linear", "--emit", "cpp")[1] == cpp
    _, triton, _ = run("compile", f"{file}:linear", "--emit", "triton")
    assert "@triton.jit" in triton and "tl.dot" in triton
    assert run("compile", f"{file}:linear", "--target", "cuda")[1] == triton


def test_typical_sizes_choose_the_schedule(run, file):
    tall = run("compile", f"{file}:linear", "--emit", "tiles", "--size", "N=4096")[1]
    flat = run("compile", f"{file}:linear", "--emit", "tiles", "--size", "N=1")[1]
    assert tall != flat


def test_the_same_input_gives_the_same_bytes(run, file):
    """In this process and in another one with another hash seed."""
    code = (
        "import sys; from cleave.cli import main\n"
        "for words in sys.argv[2:]:\n"
        "    stage, name = words.split()\n"
        "    try: main(['compile', sys.argv[1] + ':' + name, '--emit', stage])\n"
        "    except SystemExit as done: assert done.code == 0\n"
    )
    wanted = ["tiles linear", "program softmax", "candidates softmax", "triton linear", "cpp softmax"]
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    other = subprocess.run(
        [sys.executable, "-c", code, file, *wanted],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    assert other.stderr == ""
    ours = {w: run("compile", f"{file}:{w.split()[1]}", "--emit", w.split()[0])[1] for w in sorted(wanted)}
    assert "".join(ours[w] for w in wanted) == other.stdout and len(other.stdout.splitlines()) > 200


# ---------------------------------------------------------------- explain


def test_explain_tells_the_whole_story(run, file):
    code, text, err = run("explain", f"{file}:linear")
    assert (code, err) == (0, "")
    for title in (
        "Program",
        "Candidates",
        "Derivation of",
        "Folds",
        "Numeric conditions",
        "Schedule: variant 1",
    ):
        assert title in text
    assert "kernel main: blocks of" in text and "loads x[" in text
    assert 'extern "C"' in text and "Considered and rejected" in text


def test_explain_without_and_with_all_sources(run, file):
    _, none, _ = run("explain", f"{file}:linear", "--source", "none")
    assert 'extern "C"' not in none and "Tile program" not in none
    _, everything, _ = run("explain", f"{file}:linear", "--source", "all", "--size", "N=1")
    assert everything.count("\nSource of variant") == everything.count("\nSchedule: variant")


def test_explain_as_data_and_as_a_page(run, file, tmp_path):
    page = tmp_path / "page.html"
    code, said, err = run("explain", f"{file}:softmax", "--json", "--html", str(page))
    assert code == 0 and err == f"wrote {page}\n"
    data = json.loads(said)
    assert data["candidates"][0]["form"] == "as written"
    assert {"tiles", "source", "maps", "cost", "best_at"} <= data["variants"][0].keys()
    assert parse_tiles(data["considered"][0]["ranked"][0]["tiles"]).name == "softmax"
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "softmax" in text
    assert "http" not in text.lower().replace("http-equiv", "")


# ---------------------------------------------------------------- prove


@pytest.mark.parametrize(
    "left, right, options, code, answer",
    [
        ("softmax", "unsafe", (), 0, "yes"),
        ("softmax", "doubled", (), 1, "no"),
        ("same", "other_input", (), 2, "unknown"),
        ("same", "same_if", (), 0, "yes-if"),
        ("same", "same_if", ("--strict",), 3, "yes-if"),
        ("softmax", "unsafe", ("--strict",), 0, "yes"),
    ],
)
def test_prove_answers_by_its_exit_code(run, file, left, right, options, code, answer):
    found, said, err = run("prove", f"{file}:{left}", f"{file}:{right}", *options, "--json")
    assert (found, err) == (code, "")
    data = json.loads(said)
    assert data["answer"] == answer
    assert bool(data["conditions"]) == (answer == "yes-if")
    assert bool(data["counterexample"]) == (answer in ("no", "unknown"))


def test_prove_in_words(run, file):
    _, text, _ = run("prove", f"{file}:same", f"{file}:same_if")
    assert text.startswith("Yes, if\n") and "x" in text.splitlines()[1]
    _, text, _ = run("prove", f"{file}:softmax", f"{file}:doubled")
    assert text.startswith("No\n") and "against" in text.splitlines()[1]


# ---------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    "arguments, said",
    [
        (("compile", "FILE:nothing"), ("has no function 'nothing'", "softmax, unsafe")),
        (("compile", "FILE:plain"), ("plain in", "is not declared")),
        (("compile", "DIR/badly.py:f"), ("'f32[N' is not a declaration", "at badly.py:3: @cleave", "hint")),
        (("compile", "FILE:falls_back"), ("cumsum", "programs.py:43")),
        (("compile", "FILE:mismatched"), ("mismatched raised RuntimeError", "return x @ y")),
        (("compile", "FILE:raises"), ("raises raised KeyError: 'nothing'", "programs.py:")),
        (("compile", "nowhere.py:f"), ("there is no file nowhere.py",)),
        (("compile", "nowhere"), ("'nowhere' is not FILE.py:FUNCTION",)),
        (("compile", "DIR/breaks.py:f"), ("ZeroDivisionError", "breaks.py:3: failing = 1 / 0")),
        (("compile", "DIR/syntax.py:f"), ("SyntaxError",)),
        (("compile", "FILE:softmax", "--size", "Q=3"), ("has no dim 'Q'", "it has K, N")),
        (("compile", "FILE:linear", "--size", "K=3"), ("K is not dynamic in linear: it is 96",)),
        (("compile", "FILE:softmax", "--size", "N"), ("--size N: expected NAME=N",)),
        (("compile", "FILE:softmax", "--size", "N=-1"), ("--size N=-1: expected NAME=N",)),
        (("compile", "FILE:softmax", "--target", "tpu"), ("'tpu' is not one of 'cpu', 'cuda'",)),
        (("compile", "FILE:softmax", "--emit", "ptx"), ("'ptx' is not one of",)),
        (
            ("compile", "FILE:softmax", "--emit", "cpp", "--target", "cuda"),
            ("--emit cpp is for the target cpu",),
        ),
        (("explain", "FILE:softmax", "--html", "DIR/none/x.html"), ("cannot be written",)),
        (("prove", "FILE:softmax"), ("prove takes two functions",)),
        (("prove", "FILE:softmax", "FILE:nothing"), ("has no function 'nothing'",)),
        (("bench", "nothing"), ("there is no suite 'nothing'", "paper")),
        (("bench", "paper", "--case", "zzz"), ("has no case 'zzz'", "causal-gqa-lse")),
        (("bench", "paper", "--dtype", "f8"), ("'f8' is not one of",)),
        (("bench", "paper", "--phase", "later"), ("'later' is not one of",)),
        (("frobnicate",), ("No such command 'frobnicate'",)),
        (("compile", "--frobnicate"), ("No such option",)),
    ],
)
def test_wrong_input_is_one_clear_error(run, file, arguments, said):
    folder = str(Path(file).parent)
    code, out, err = run(*(a.replace("FILE", file).replace("DIR", folder) for a in arguments))
    assert (code, out) == (4, "")
    assert len(err.splitlines()) <= 20 and "Traceback" not in err
    for part in said:
        assert part in err


def test_an_error_of_ours_is_not_hidden(run, file, monkeypatch):
    def broken(where: str, **options: bool) -> None:
        raise KeyError("ours")

    monkeypatch.setattr("cleave.frontend.files.load", broken)
    with pytest.raises(KeyError, match="ours"):
        main(["compile", f"{file}:softmax"])


def test_an_interrupt_is_no_traceback(run, file, monkeypatch):
    def interrupted(where: str, **options: bool) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cleave.frontend.files.load", interrupted)
    code, out, err = run("compile", f"{file}:softmax")
    assert (code, out) == (130, "") and "Traceback" not in err


def test_a_long_error_is_cut(run, file, monkeypatch):
    from cleave.errors import BuildError

    def refused(where: str, **options: bool) -> None:
        raise BuildError("\n".join(f"line {n}" for n in range(100)))

    monkeypatch.setattr("cleave.frontend.files.load", refused)
    code, _, err = run("compile", f"{file}:softmax")
    assert code == 4 and len(err.splitlines()) == 21 and err.endswith("... 80 more lines\n")


# ---------------------------------------------------------------- bench, start-up, progress


def test_bench_runs_a_case_and_keeps_raw_results(run, tmp_path, monkeypatch):
    import torch

    # The peer costs half a minute of compiling, and is not what is tested here.
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    raw = tmp_path / "raw.json"
    arguments = ("--case", "matmul+rowsum", "--dtype", "f32", "--phase", "decode", "--budget", "0.01")
    code, out, _ = run("bench", "paper", *arguments, "--json", str(raw))
    assert code == 0 and "points correct" in out
    records = json.loads(raw.read_text())["records"]
    assert {r["implementation"] for r in records} == {"eager", "torch.compile", "cleave"}
    ours = [r for r in records if r["implementation"] == "cleave"]
    assert ours and all(r["error"] <= r["allowed"] and r["seconds"] > 0 for r in ours)


def test_bench_fails_where_a_result_is_wrong(run, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    import benchmarks.run

    monkeypatch.setattr(benchmarks.run, "run_suite", lambda suite, **options: 2)
    assert run("bench", "paper")[0] == 1
    monkeypatch.setattr(benchmarks.run, "run_suite", lambda suite, **options: 0)
    assert run("bench", "paper")[0] == 0


def test_help_and_version_need_no_torch():
    code = (
        "import sys\nfrom cleave.cli import main\n"
        "try: main([sys.argv[1]])\n"
        "except SystemExit as done: print(done.code, 'torch' in sys.modules)\n"
    )
    for option, said in (("--help", "explain"), ("--version", "cleave ")):
        command = [sys.executable, "-c", code, option]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert said in done.stdout and done.stdout.endswith("0 False\n")


def test_progress_is_for_terminals(capfd, monkeypatch):
    from cleave.report.terminal import progress

    with progress("working", quiet=False):
        pass
    assert capfd.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("working", quiet=True):
        pass
    assert capfd.readouterr().err == ""
    with progress("working", quiet=False):
        pass
    assert "working" in capfd.readouterr().err
