"""Program files and proofs: programs without data."""

from __future__ import annotations

import pytest
import torch

import cleave
from cleave.errors import Invalid, Unsupported
from cleave.frontend.files import capture_for_proof, load
from cleave.ir.dims import Atom
from cleave.ir.text import print_program

TEXT = """
import torch, cleave

@cleave.program(q="f32[B, KV*G, S, D=64]", k="f32[B, KV, T, D]", scale="float", S=512)
def scores(q, k, scale):
    g = q.shape[1] // k.shape[1]
    return (q @ k.repeat_interleave(g, 1).mT) * scale

@cleave.program(x="bf16[M, K=4096]", w="bf16[N=6144, K]", g="bf16[K]")
def norm_linear(x, g, w, eps: float = 1e-6):
    return torch.nn.functional.linear(torch.nn.functional.rms_norm(x, (x.shape[-1],), g, eps), w)

@cleave.program(x="f32[N]")
def falls_back(x):
    return x.cumsum(0)

@cleave.program(x="f32[N")
def badly(x):
    return x

@cleave.program(x="f32[A*B]")
def undecided(x):
    return x

def plain(x):
    return x
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "programs.py"
    path.write_text(TEXT)
    return path


def test_names_and_known_sizes(file):
    loaded = load(f"{file}:scores")
    text = print_program(loaded.program)
    assert text.splitlines()[0].startswith("program scores(q: f32[B, KV*G, S, D], k: f32[B, KV, T, D]")
    assert loaded.program.sizes == ((Atom("D"), 64),)
    assert loaded.sizes == {Atom("S"): 512}
    assert {atom.name for atom in loaded.program.dynamic} == {"B", "KV", "G", "S", "T"}


def test_large_inputs_take_no_memory(file):
    program = load(f"{file}:norm_linear").program
    assert dict(program.sizes) == {Atom("K"): 4096, Atom("N"): 6144}
    assert print_program(program).count("scalar f32") == 1


@pytest.mark.parametrize(
    "name, message",
    [
        ("plain", "plain in .* is not declared"),
        ("nothing", "has no function 'nothing'"),
        ("badly", "'f32\\[N' is not a declaration"),
        ("undecided", "the sizes of A and B do not follow"),
    ],
)
def test_what_is_wrong_is_said(file, name, message):
    with pytest.raises(Invalid, match=message):
        load(f"{file}:{name}")


def test_a_file_or_function_that_is_missing():
    with pytest.raises(Invalid, match=r"is not FILE\.py:FUNCTION"):
        load("nothing")
    with pytest.raises(Invalid, match="there is no file"):
        load("nowhere.py:f")


def test_a_program_must_be_whole(file):
    with pytest.raises(Unsupported, match="cumsum") as caught:
        load(f"{file}:falls_back")
    assert "programs.py:15" in caught.value.where


def test_capture_for_proof_names_dims():
    captured = capture_for_proof(lambda x, s: (x / x.sum(-1, keepdim=True)) * s, {"x": ("N", "T")})
    assert print_program(captured.program).startswith("program lambda(x: f32[N, T], s: scalar f32)")


def test_import_is_quick_and_lazy():
    import subprocess
    import sys

    code = "import sys, cleave; assert 'torch' not in sys.modules; print(cleave.__all__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "jit" in done.stdout
    assert torch is not None and callable(cleave.jit)
    with pytest.raises(AttributeError):
        _ = cleave.nothing
