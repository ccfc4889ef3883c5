"""`explain` and `compile` of functions that are only partly compiled, or compute nothing."""

from __future__ import annotations

import json

import pytest

from cleave.ir.text import parse_program

FILE = """
import torch, cleave

@cleave.program(x="f32[N, K]", w="f32[K, M=64]", N=100)
def partly(x, w):
    y = torch.softmax(x @ w, -1)
    z = torch.sort(y, -1).values
    return z * 2.0 + y

@cleave.program(x="f32[N, K]")
def same(x):
    return x

@cleave.program(x="f32[N, K]")
def mixed(x):
    return x, None, 3, torch.exp(x), x.shape[0]

@cleave.program(x="f32[N, K]")
def only_sorts(x):
    return torch.sort(x).values

@cleave.program(x="f32[N, K]")
def asks(x):
    if x.sum() > 0:
        return x
    return -x
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> str:
    path = tmp_path_factory.mktemp("pieces") / "partial.py"
    path.write_text(FILE)
    return str(path)


def test_each_compiled_piece_is_explained_and_what_runs_in_pytorch_is_listed(run, file, tmp_path):
    html = tmp_path / "page.html"
    code, said, _ = run("explain", f"{file}:partly", "--source", "none", "--html", str(html))
    assert code == 0
    assert "partly: 2 compiled pieces, 1 call in PyTorch" in said
    assert "in PyTorch: sort at partial.py:7: z = torch.sort(y, -1).values: no lowering" in said
    for name in ("partly_0", "partly_1"):
        assert f": {name}\n" in said and f"program {name}(" in said
    assert said.count("Derivation of the chosen candidate") == 2
    page = html.read_text()
    assert "partly_0: What was found" in page and "partly_1: What was chosen" in page and "sort at" in page


def test_partly_as_data(run, file):
    code, said, err = run("explain", f"{file}:partly", "--json")
    data = json.loads(said)
    assert (code, err) == (0, "")
    assert [piece["name"] for piece in data["pieces"]] == ["partly_0", "partly_1"]
    assert all(piece["candidates"] for piece in data["pieces"])
    (left,) = data["in_pytorch"]
    assert left["op"] == "sort" and left["where"].startswith("partial.py:7") and "lowering" in left["reason"]


def test_compile_prints_each_piece(run, file):
    code, said, _ = run("compile", f"{file}:partly")
    assert code == 0
    assert said.count('extern "C" int partly_') == said.count("_main(") > 0 or "// piece 2 of 2" in said
    assert "// piece 1 of 2: partly_0" in said and "in PyTorch: sort at partial.py:7" in said
    assert all(line.startswith("//") for line in said[: said.index("\n\n")].splitlines())
    data = json.loads(run("compile", f"{file}:partly", "--emit", "program", "--json")[1])
    assert [parse_program(piece["program"]).name for piece in data["pieces"]] == ["partly_0", "partly_1"]


def test_sizes_are_those_of_any_piece(run, file):
    assert run("compile", f"{file}:partly", "--size", "K=77")[0] == 0
    code, _, err = run("compile", f"{file}:partly", "--size", "Z=77")
    assert code == 4 and "'Z'" in err and "K, M, N" in err


def test_a_function_that_computes_nothing(run, file):
    for command in ("explain", "compile"):
        code, said, err = run(command, f"{file}:same")
        assert (code, err) == (0, "")
        assert "nothing is computed" in said and "returns the argument x itself" in said
    assert json.loads(run("explain", f"{file}:same", "--json")[1]) == {
        "pieces": [],
        "in_pytorch": [],
        "returns": ["the argument x itself"],
    }


def test_results_that_no_kernel_makes_are_listed(run, file):
    code, said, _ = run("explain", f"{file}:mixed", "--source", "none")
    assert code == 0
    line = next(line for line in said.splitlines() if line.startswith("returns"))
    for words in (
        "the argument x itself",
        "the constant None",
        "the constant 3",
        "out1, compiled",
        "number N",
    ):
        assert words in line


def test_nothing_compiled_at_all(run, file):
    code, said, _ = run("explain", f"{file}:only_sorts")
    assert code == 0 and "0 compiled pieces, 1 call in PyTorch" in said
    code, said, _ = run("explain", f"{file}:asks")
    assert code == 0 and "runs in PyTorch as a whole: Python needs the value of a tensor" in said
    assert "partial.py:24" in said
    code, _, err = run("compile", f"{file}:asks")
    assert code == 4 and "Python needs the value of a tensor" in err and "partial.py:24" in err


def test_proofs_still_ask_for_one_program(run, file):
    code, _, err = run("prove", f"{file}:partly", f"{file}:partly")
    assert code == 4 and "not one program" in err
    code, said, _ = run("prove", f"{file}:same", f"{file}:same")
    assert code == 0 and "Yes" in said, "an argument that is returned is a result, too"
