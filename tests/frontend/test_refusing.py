"""Calls of `cleave.jit` and `cleave.compile`, and of what they return, that cannot be meant: told at once,
with the line of the user and what to write."""

from __future__ import annotations

import functools
import re

import pytest
import torch

import cleave
from cleave.errors import CallError, Invalid

randn = torch.randn
OPTIONS = "dynamic, target, tune, strict, compile_program"


@pytest.mark.parametrize(
    "call, what",
    [
        (
            lambda f, x: cleave.jit(f, dynamics={}),
            "cleave.jit has no option 'dynamics' (given {}); did you mean",
        ),
        (
            lambda f, x: cleave.jit(targets="cpu"),
            "has no option 'targets' (given 'cpu'); did you mean 'target'?",
        ),
        (
            lambda f, x: cleave.jit(f, zzz=x),
            "cleave.jit has no option 'zzz' (given a Tensor of shape [4, 8])",
        ),
        (lambda f, x: cleave.jit(f, x), "cleave.jit takes 1 unnamed argument (fn), not 2: a Tensor of shape"),
        (
            lambda f, x: cleave.compile(f, (x,), tuning=3),
            "cleave.compile has no option 'tuning' (given 3); did",
        ),
        (
            lambda f, x: cleave.compile(f, x, x),
            "cleave.compile takes 2 unnamed arguments (fn, example_inputs)",
        ),
        (lambda f, x: cleave.Jit(f, dynamics={}), "cleave.Jit has no option 'dynamics'"),
    ],
)
def test_unknown_options_are_refused_with_those_that_there_are(call, what):
    for error in (CallError, TypeError):
        with pytest.raises(error) as caught:
            call(lambda a: a + 1, randn(4, 8))
        told = caught.value
        assert what in told.what
        assert "test_refusing.py:" in told.where and "lambda f, x: cleave." in told.where
        assert sorted(told.hint.split(";")[0].removeprefix("its options: ").split(", ")) == sorted(
            OPTIONS.split(", ")
        )


@pytest.mark.parametrize(
    "call, what",
    [
        (lambda f, x: cleave.compile(f), "cleave.compile needs example_inputs"),
        (lambda f, x: cleave.compile(), "cleave.compile needs fn and example_inputs"),
        (lambda f, x: cleave.compile(f, (x,), fn=f), "cleave.compile: multiple values for argument 'fn'"),
        (lambda f, x: cleave.compile(f, x), "arguments as a tuple, not a Tensor of shape [4, 8]"),
        (lambda f, x: cleave.compile(f, {"a": x}), "arguments as a tuple, not {'a': "),
        (lambda f, x: cleave.compile(f, None), "arguments as a tuple, not None (NoneType)"),
        (
            lambda f, x: cleave.compile(x, (x,)),
            "a function of tensors is needed, not a Tensor of shape [4, 8]",
        ),
        (lambda f, x: cleave.jit(3), "a function of tensors is needed, not 3 (int)"),
        (
            lambda f, x: cleave.jit(dynamic=("N", None)),
            "dynamic names axes by input, as a dict, not ('N', None)",
        ),
        (lambda f, x: cleave.jit(f, tune="30"), "tune is a number of seconds, 0 to 1000000, not '30' (str)"),
        (lambda f, x: cleave.jit(tune=-1), "tune is a number of seconds, 0 to 1000000, not -1 (int)"),
        (lambda f, x: cleave.jit(f, tune=float("nan")), "tune is a number of seconds, 0 to 1000000, not nan"),
    ],
)
def test_arguments_that_cannot_be_are_refused_at_once(call, what):
    with pytest.raises(CallError) as caught:
        call(lambda a: a + 1, randn(4, 8))
    assert what in caught.value.what  # not in the user's line, which the whole message has
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, Invalid)
    assert "test_refusing.py:" in caught.value.where and caught.value.hint


def test_errors_of_the_function_itself_come_through():
    def f(a, b):
        return a + b

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'b'") as caught:
        cleave.compile(f, (randn(3),))
    assert not isinstance(caught.value, CallError)


@pytest.mark.parametrize(
    "given, what",
    [
        ("f32[N]", "argument a: dynamic has 'f32\\[N\\]', which is no tuple of its axes"),
        ({"N", "K"}, "argument a: dynamic has .* which is no tuple of its axes"),
        (("N", ""), "argument a: '' is an empty name of an axis"),
        (("N,K", None), "argument a: 'N,K' is not an axis"),
        (("N=", None), "argument a: 'N=' is not an axis"),
        (("3N", None), "argument a: '3N' is not an axis"),
        ((True, None), "argument a: True is not an axis"),
        ((4.0, None), "argument a: 4.0 is not an axis"),
        ((("N",), None), r"argument a: \('N',\) is not an axis"),
        ((-4, None), "argument a: the size -4 is negative"),
        ((10**30, None), "argument a: no axis has the size of more than"),
        ({"first": "N"}, "argument a: dynamic numbers the axes of an input, and 'first' is no number"),
        ({True: "N"}, "argument a: dynamic numbers the axes of an input, and True is no number"),
        ({0: 8.0}, "argument a: 8.0 is not an axis"),
    ],
)
def test_axes_that_cannot_be_meant_are_refused_at_once(given, what):
    for make in (cleave.jit, lambda f, **options: cleave.jit(**options)):
        with pytest.raises(Invalid, match=what) as caught:
            make(lambda a: a + 1, dynamic={"a": given})
        assert "test_refusing.py:" in caught.value.where and caught.value.hint


@pytest.mark.parametrize(
    "given, what",
    [
        ({"q": ("N",)}, "dynamic names an input 'q' that does not exist"),
        ({"a": ("N",)}, "argument a has 2 axes, dynamic names 1"),
        ({"a": {7: "N"}}, "argument a has 2 axes, dynamic names axis 7"),
        ({"a": {0: "N", -2: "M"}}, "argument a: dynamic names axis 0 twice, once as -2"),
        ({"a": ("K=4", "K=8")}, "argument a, axis 1: K is 8, but 4 for argument a, axis 0"),
        ({"a": ("K", "K=2*N")}, "the size of K is 4, declared K=2"),
        ({"a": ("N", "N")}, "argument a, axis 1: the size is 8, but N is 4 elsewhere"),
        ({"a": ("A*B", None)}, "argument a, axis 0: the sizes of A and B do not follow"),
    ],
)
def test_axes_that_the_inputs_contradict_are_refused_at_the_call(given, what):
    with pytest.raises(Invalid, match=what) as caught:
        cleave.compile(lambda a: a + 1, (randn(4, 8),), dynamic=given)
    assert "test_refusing.py:" in caught.value.where


@pytest.mark.parametrize(
    "options, what",
    [
        ({"tune": True}, "tune is a number of seconds"),
        ({"tune": float("inf")}, "tune is a number of seconds"),
        ({"tune": 10**30}, "tune is a number of seconds"),
        ({"strict": "no"}, "strict is True or False, not 'no'"),
        ({"compile_program": 3}, "compile_program compiles a program, and is a function, not 3"),
        ({"target": ["cpu"]}, "unknown target \\['cpu'\\]"),
    ],
)
def test_options_of_another_type_are_refused_at_once(options, what):
    for make in (lambda: cleave.jit(abs, **options), lambda: cleave.compile(abs, (randn(3),), **options)):
        with pytest.raises(Invalid, match=what) as caught:
            make()
        assert "test_refusing.py:" in caught.value.where


@pytest.mark.parametrize("fn", [torch.nn.Module(), torch.nn.ModuleList(), torch.nn.Linear, int])
def test_what_computes_nothing_is_no_function(fn):
    for make in (lambda: cleave.jit(fn), lambda: cleave.compile(fn, (randn(3),))):
        with pytest.raises(CallError, match=r"computes nothing|not the class"):
            make()


def test_lists_of_numbers_are_told_from_tensors():
    def f(a, b):
        return torch.softmax(a, -1) + b

    numbers = [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(TypeError, match="must be Tensor, not list") as caught:  # PyTorch's own
        cleave.jit(f)(numbers, randn(2))
    (note,) = caught.value.__notes__
    assert note.startswith("argument a is a list of numbers; torch.tensor")
    with pytest.raises(AttributeError, match="'list' object has no attribute 'exp'"):
        cleave.jit(lambda a: a.exp())(numbers)

    class OfTheUser(AttributeError):
        pass

    def refuses(x, shape):
        raise OfTheUser(shape)

    with pytest.raises(OfTheUser):
        cleave.jit(refuses)(randn(6), [2, 3])
    assert torch.equal(cleave.jit(lambda a, shape: a.reshape(shape))(randn(6) * 0, [2, 3]), torch.zeros(2, 3))


def test_an_unknown_target_is_refused_at_once():
    with pytest.raises(Invalid, match="unknown target 'tpu'"):
        cleave.jit(lambda x: x + 1, target="tpu")
    with pytest.raises(Invalid, match="unknown target 'tpu'"):
        cleave.jit(target="tpu")


def test_a_call_of_another_form_is_told_apart_from_one_with_other_arguments() -> None:
    def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * 2 + y

    @functools.wraps(added)
    def wrapped(*args: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
        return added(*args, **{name: 2 * value for name, value in named.items()})

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    with pytest.raises(Invalid, match="2 tensors in other places of a call"):
        cleave.compile(wrapped, (x, y))(x, y=y)
    fast = cleave.compile(added, (x, y))
    expected = "argument x: expected torch.float32 of rank 2 on cpu, got"
    for given, what in (
        (x.numpy(), "an object of class ndarray"),
        ([1.0], "[float]"),
        ([[1.0, 2.0], [3.0, 4.0]], "[[float, float], [float, float]]"),
        ([1.0] * 9, "a list of 9"),
        ((x, [x]), "(torch.float32 of rank 2 on cpu, [torch.float32 of rank 2 on cpu])"),
        ({"a": x}, "{'a': torch.float32 of rank 2 on cpu}"),
        ("text", "'text'"),
        (None, "None"),
        (10**30, str(10**30)),
    ):
        with pytest.raises(Invalid, match=re.escape(f"{expected} {what}")) as caught:
            fast(given, y)
        assert "test_refusing.py:" in caught.value.where
    with pytest.raises(Invalid, match="added was compiled for 2 arguments, not 1"):
        fast([x, y])


def test_constants_that_changed_are_named() -> None:
    scale, model = 2.0, torch.nn.Sequential(torch.nn.Linear(4, 4)).requires_grad_(False)
    x = torch.randn(3, 4)
    fast = cleave.compile(lambda a: model(a) * scale, (x,))
    scale = 3.0
    with pytest.raises(Invalid, match=r"was compiled where scale is 2.0; now it is 3.0"):
        fast(x)
    scale = 2.0
    model[0].eval()
    with pytest.raises(Invalid, match=r"was compiled where 0.training is True; now it is False") as caught:
        fast(x)
    assert "set 0.training back" in caught.value.hint
    model.train().double()
    with pytest.raises(Invalid, match=r"reads model_0_weight: expected torch.float32 of rank 2 on cpu, got"):
        fast(x)
