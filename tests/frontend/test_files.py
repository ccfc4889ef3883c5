"""Program files and proofs: programs without data."""

from __future__ import annotations

import pytest
import torch

import cleave
from cleave.errors import CallError, Invalid, Unsupported
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
        ("undecided", "the sizes of A and B do not follow"),
    ],
)
def test_what_is_wrong_is_said(file, name, message):
    with pytest.raises(Invalid, match=message):
        load(f"{file}:{name}")


@pytest.mark.parametrize(
    "given, message",
    [
        ('"f32[N"', r"parameter x: 'f32\[N' is not a declaration"),
        ('"f32[N, -1]"', r"parameter x: '-1' is not an axis"),
        ('("bf16", "N", "K")', r"(?s)'bf16' in \('bf16', 'N', 'K'\) is not an axis.*x=\"bf16\[N, K\]\""),
        ('(torch.float16, "N")', r"(?s)torch\.float16 in .* is not an axis.*x=\"f16\[N\]\""),
        ('("float",)', r"(?s)'float' in .*for a number x=\"float\""),
        ('("N", None)', r"None in \('N', None\) is not an axis"),
        ('("N", True)', "True in .* is not an axis"),
        ("True", r"True \(bool\) is not a declaration"),
        ("torch.float32", "torch.float32 .* is not a declaration"),
        ("3.5", r"3\.5 \(float\) is not a declaration"),
        ('{0: "N"}', "is not a declaration"),
        ('"f32[N]", y="f32[N]"', "(?s)f has no parameter 'y'.*it has x, w"),
        ('"f32[N]", N=0', "N=0 is no typical size"),
    ],
)
def test_a_declaration_is_refused_where_it_stands(tmp_path, given, message):
    path = tmp_path / "given.py"
    path.write_text(f"import torch, cleave\n\n@cleave.program(x={given})\ndef f(x, w=1.0):\n    return x\n")
    with pytest.raises(Invalid, match=message) as caught:
        load(f"{path}:f")
    assert caught.value.where.startswith("given.py:3: @cleave.program(") and caught.value.hint


def test_a_tuple_of_axes_is_a_tensor_of_float32():
    def f(x, w):
        return x @ w

    as_text = cleave.program(x="f32[N, G*4, K=64]", w="f32[K, 8]", N=16)(f)
    wanted = as_text.__cleave_program__
    for axes in (("N", "G*4", "K=64"), ["N", "G*4", "K=64"]):
        assert cleave.program(x=axes, w=("K", 8), N=16)(f).__cleave_program__ == wanted
    assert cleave.prove(f, f, dims={"x": ("N", "K"), "w": "f32[K, 8]"}).answer == "yes"
    with pytest.raises(Invalid, match=r"'f32' in .* is not an axis"):
        cleave.prove(f, f, dims={"x": ("f32", "N", "K"), "w": ("K", 8)})


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda f: cleave.program(f), r"(?s)cleave.program takes no unnamed arguments, not 1.*x=\"f32\[N"),
        (lambda f: cleave.program("f32[N]"), "'f32\\[N\\]' is too many"),
        (lambda f: cleave.program(x="f32[N]")("f"), r"a function of tensors is needed, not 'f' \(str\)"),
        (lambda f: cleave.prove(f, f), "cleave.prove needs dims"),
        (lambda f: cleave.prove(f, dims={"x": ("N",)}), "cleave.prove needs g"),
        (lambda f: cleave.prove(f, f, dim={"x": ("N",)}), "has no option 'dim' .* did you mean 'dims'"),
        (lambda f: cleave.prove(f, f, dims=("N",)), r"dims names axes by input, as a dict, not \('N',\)"),
        (lambda f: cleave.prove(3, f, dims={"x": ("N",)}), r"a function of tensors is needed, not 3 \(int\)"),
        (lambda f: cleave.load("a.py:f", part=True), "did you mean 'partly'"),
    ],
)
def test_calls_that_do_not_fit(call, message):
    for error in (CallError, TypeError):
        with pytest.raises(error, match=message) as caught:
            call(lambda x: x)
        assert "test_files.py:" in caught.value.where


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
