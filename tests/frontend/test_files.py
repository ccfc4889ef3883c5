"""Program files and proofs: programs without data."""

from __future__ import annotations

import pytest
import torch

import cleave
from cleave.errors import CallError, Invalid, Unsupported
from cleave.frontend.files import capture_for_proof, load
from cleave.ir.dims import Atom
from cleave.ir.text import parse_program, print_program

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

@cleave.program(x="f32[N]")
def same(x):
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
        ('"f32[N]", N=-3', "N is given a typical size: the size -3 is negative"),
        ('"f32[N]", N=10**30', "N is given a typical size: no axis has the size of more than 10"),
        ('"f32[N]", N=True', r"parameter N: True \(bool\) is not a declaration"),
        ('"f32[N]", N=3.0', r"parameter N: 3.0 \(float\) is not a declaration"),
        ('("B", "")', "parameter x: '' is an empty name of an axis"),
        ('("B", "  ")', "parameter x: '  ' is an empty name of an axis"),
        ('"f32[B,,K]"', r"parameter x: axis 1 of 'f32\[B,,K\]' is empty"),
        ('"f32[B, ]"', r"parameter x: axis 1 of 'f32\[B, \]' is empty"),
        ('"f32[,]"', r"parameter x: axis 0 of 'f32\[,\]' is empty"),
        ('("N,K",)', "parameter x: 'N,K' is not an axis"),
        ('"f32[N K]"', "parameter x: 'N K' is not an axis"),
        ('"f32[N*]"', r"parameter x: 'N\*' is not an axis"),
        ('"f32[N=]"', "parameter x: 'N=' is not an axis"),
        ('"f32[N=4=4]"', "parameter x: 'N=4=4' is not an axis"),
        ('"f32[3K]"', "parameter x: '3K' is not an axis"),
        ('"f32[\u0663]"', "parameter x: '\u0663' is not an axis"),
        ('("\u00e4",)', "parameter x: '\u00e4' is not an axis"),
        ("(-1,)", "parameter x: the size -1 is negative"),
        ("(10**30,)", "parameter x: no axis has the size of more than 10"),
        (f'"f32[N={2**41}]"', f"parameter x: no axis has the size {2**41}"),
        ('"f32[" + "9" * 5000 + "]"', "parameter x: no axis has the size of more than 10"),
        (f'"f32[{2**30}*{2**30}]"', f"parameter x: no axis has the size {2**60}"),
        ('"f32[K=3, K=4]"', "parameter x: K is 4, but 3 in it as well"),
        ('"f32[K=3*K=4]"', "parameter x: K is 4, but 3 in it as well"),
        ('"f32[K=3]", w=("K=4",)', "parameter w: K is 4, but 3 for parameter x"),
        ('"f32[N, K=64]", K=32', "K=32 is a typical size of a dynamic dim, and K is known: 64"),
        ('"f32[N, K=64]", K=64', "K=64 is a typical size of a dynamic dim, and K is known: 64"),
        ('"f32[A*B]"', "parameter x: the sizes of A and B do not follow"),
        ('"f32[N*N]"', "parameter x: the sizes of N and N do not follow"),
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
        (lambda f: cleave.load("a.py:f", partly="no"), r"partly is True or False, not 'no' \(str\)"),
        (lambda f: cleave.load(f), r"FILE.py:FUNCTION is needed, not <function .* \(function\)"),
        (lambda f: cleave.load(None), r"FILE.py:FUNCTION is needed, not None \(NoneType\)"),
        (lambda f: cleave.load(b"a.py:f"), r"FILE.py:FUNCTION is needed, not b'a.py:f' \(bytes\)"),
        (lambda f: cleave.program(x="f32[N]")(torch.nn.Module()), "module Module computes nothing"),
        (lambda f: cleave.program(x="f32[N]")(torch.nn.ModuleList()), "module ModuleList computes nothing"),
        (lambda f: cleave.program(x="f32[N]")(torch.nn.ReLU), "not the class ReLU"),
        (lambda f: cleave.program(x="f32[N]")(torch.exp), "exp does not tell its parameters"),
        (lambda f: cleave.program(obj="f32[N]")(len), "len .* takes no mark"),
        (lambda f: cleave.program(input="f32[N]")(torch.nn.ReLU().forward), "forward .* takes no mark"),
        (lambda f: cleave.prove(torch.nn.Module(), f, dims={"x": ("N",)}), "module Module computes nothing"),
        (lambda f: cleave.prove(max, f, dims={"x": ("N",)}), "max does not tell its parameters"),
        (lambda f: cleave.prove(int, f, dims={"x": ("N",)}), "not the class int"),
    ],
)
def test_calls_that_do_not_fit(call, message):
    for error in (CallError, TypeError):
        with pytest.raises(error, match=message) as caught:
            call(lambda x: x)
        assert "test_files.py:" in caught.value.where


@pytest.mark.parametrize(
    "f, dims, message, where",
    [
        (
            lambda x: x + 1,
            {"x": ("N",), "q": ("N",)},
            "dims names 'q', which is an input of neither function",
            "x",
        ),
        (lambda x: x + 1, {3: ("N",)}, "dims names 3, which is an input of neither function", "x"),
        (lambda x: x + 1, {"x": ("N", "")}, "parameter x: '' is an empty name of an axis", ""),
        (lambda x: x + 1, {"x": (10**30,)}, "parameter x: no axis has the size of more than", ""),
        (lambda x: x + 1, {"x": ("N=3", "N=4")}, "parameter x: N is 4, but 3 in it as well", ""),
        (
            lambda x: x + 1,
            {"x": (2**40, 2**40)},
            f"parameter x: no tensor has {2**40} x {2**40} elements",
            "",
        ),
        (
            lambda x: x + 1,
            {"x": tuple(f"a{n}" for n in range(30))},
            "parameter x: no tensor has 3 x 5 x 7",
            "a0=3",
        ),
        (lambda x: {}[3], {"x": ("N",)}, "raised KeyError: 3", "N=3"),
        (lambda x: x @ x, {"x": ("N", "K")}, r"raised RuntimeError: .*\[3, 5\] X \[3, 5\]", "N=3, K=5"),
        (lambda x, w: x @ w, {"x": ("N", "K")}, "raised TypeError", "taken for a number: w"),
        (lambda x: x.reshape("a"), {"x": ("N",)}, "raised TypeError: reshape", "N=3"),
        (lambda x: x + torch.zeros(10**30), {"x": ("N",)}, "raised TypeError: zeros", "N=3"),
    ],
)
def test_what_cannot_be_proved_about_is_said(f, dims, message, where):
    with pytest.raises(Invalid, match=message) as caught:
        cleave.prove(f, f, dims=dims)
    assert caught.value.where.startswith("test_files.py:") and where in caught.value.hint


def test_a_bug_of_ours_while_capturing_is_not_told_as_the_users(monkeypatch):
    from cleave.frontend.trace import Tracer

    monkeypatch.setattr(Tracer, "_traced", staticmethod({}.pop))
    with pytest.raises(KeyError):
        cleave.prove(lambda x: x + 1, lambda x: x + 1, dims={"x": ("N",)})


def test_what_returns_an_input_can_be_compared(file):
    dims = {"x": ("N", "K")}
    for f, g, answer in (
        (lambda x: x.log().exp(), lambda x: x, "yes"),
        (lambda x: x, lambda x: x, "yes"),
        (lambda x: x.clone(), lambda x: x * 1, "yes"),
        (lambda x: x, lambda x: -x, "no"),
        (lambda x: (x, x + 1), lambda x: (x.exp().log(), 1 + x), "yes"),
        (lambda x: (x, x), lambda x: (x, -x), "no"),
        (lambda x: x, lambda x: (x, x), "unknown"),
    ):
        assert cleave.prove(f, g, dims=dims).answer == answer
    program = load(f"{file}:same").program
    assert parse_program(print_program(program)) == program and len(program.outputs) == 1
    with pytest.raises(Unsupported, match="computes nothing: it returns the number N"):
        cleave.prove(lambda x: x.shape[0], lambda x: x.shape[0], dims=dims)
    partly = load(f"{file}:same", partly=True).captured
    assert not partly.steps  # compiled it hands out the argument itself


def test_sizes_that_follow_in_any_order():
    """A product's factor may be known by a later axis, alone, with a size or in a product."""
    for x, w in (("A*B", "A"), ("A*B", "B=4"), ("A*B", "A=2*C"), ("A=2*A", "A*C")):
        text = print_program(capture_for_proof(lambda x, w: x * 2 + w.sum(), {"x": (x,), "w": (w,)}).program)
        assert f"x: f32[{x.replace('=2', '')}]" in text and f"w: f32[{w.partition('=')[0]}" in text
    known = capture_for_proof(lambda x, w: x + w.sum(), {"x": ("K",), "w": ("K=8*M",)}).program
    assert dict(known.sizes) == {Atom("K"): 8}


def test_modules_and_positional_only_parameters_are_functions_too(tmp_path):
    layer = torch.nn.Linear(8, 3)
    cleave.program(input="f32[N, K=8]")(layer)
    relu = torch.nn.ReLU()
    assert cleave.prove(relu, torch.nn.Sequential(relu), dims={"input": ("N",)}).answer == "yes"
    same = cleave.prove(lambda x, /: x + 1, lambda x: 1 + x, dims={"x": ("N",)})
    assert same.answer == "yes"
    path = tmp_path / "module.py"
    path.write_text(
        "import torch, cleave\nlayer = cleave.program(input='f32[N, K=8]')(torch.nn.Linear(8, 3))\n"
    )
    assert load(path.parent / "module.py:layer").program.dynamic[0] == Atom("N")


@pytest.mark.parametrize(
    "text, message, where",
    [
        ("raise KeyError('a')", "given.py raised KeyError: 'a'", "given.py:1: raise KeyError"),
        ("class E(Exception): ...\nraise E('mine')", "given.py raised E: mine", "given.py:2: raise E"),
        ("open('/nowhere/at all')", "given.py raised FileNotFoundError", "given.py:1: open"),
        ("import sys; sys.exit(3)", "given.py ends Python where it is loaded", "given.py:1: import sys"),
        ("def (", "given.py raised SyntaxError", ""),
        ("f = 3", "f in .* is not declared", ""),
    ],
)
def test_a_file_that_fails_is_told_with_its_line(tmp_path, text, message, where):
    path = tmp_path / "given.py"
    path.write_text(text)
    with pytest.raises(Invalid, match=message) as caught:
        load(f"{path}:f")
    assert caught.value.where.startswith(where)


def test_a_typical_size_of_no_dim_is_told_with_the_declaration(tmp_path):
    path = tmp_path / "given.py"
    path.write_text('import cleave\n@cleave.program(x="f32[N]", M=3)\ndef f(x): return x + 1\n')
    with pytest.raises(Invalid, match="a size is given for M, which no input names") as caught:
        load(f"{path}:f")
    assert caught.value.where.startswith("given.py:2: @cleave") and caught.value.hint == "its inputs name N"


def test_a_file_or_function_that_is_missing():
    with pytest.raises(Invalid, match=r"is not FILE\.py:FUNCTION"):
        load("nothing")
    for where in ("nowhere.py:f", "\0:f"):
        with pytest.raises(Invalid, match="there is no file"):
            load(where)
    with pytest.raises(Invalid, match="is no file"):
        load("a" * 5000 + ":f")


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
