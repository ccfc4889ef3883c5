"""What a compiled function hands back beside what it computes: arguments, copies, numbers, constants."""

from __future__ import annotations

import enum

import pytest
import torch
from doubles import by_reference, same

import cleave
from cleave.frontend.jit import Jit


def jitted(fn) -> Jit:
    return Jit(fn, compile_program=by_reference)


def shares(one: torch.Tensor, two: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()


def test_an_argument_handed_back_is_the_argument() -> None:
    f = jitted(lambda x: (x, x, x + 1))
    for x in (torch.randn(2, 3), torch.randn(5, 3).T, torch.randn(0, 3)):
        one, two, three = f(x)
        assert one is x and two is x
        same(three, x + 1)
    assert f.compile_count <= 2 and not f.fallbacks


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.clone(),
        lambda x: x.detach(),
        lambda x: x.reshape(x.shape),
        lambda x: x.contiguous(),
        lambda x: x.view_as(x),
    ],
)
def test_what_only_equals_an_argument_is_fresh(fn) -> None:
    f = jitted(fn)
    for x in (torch.randn(4, 3), torch.randn(3, 4).T, torch.randn(1, 3).expand(4, 3)):
        before = x.clone()
        result = f(x)
        same(result, x)
        assert not shares(result, x) and result.is_contiguous()
        result.add_(1)
        same(x, before)
    assert not f.fallbacks


def test_two_results_share_memory_only_where_they_are_one_tensor() -> None:
    def fn(x):
        y = x + 1
        return y, y.clone(), y, y.view_as(y)

    one, two, three, four = jitted(fn)(torch.randn(4))
    assert one is three and not shares(one, two) and not shares(one, four)
    one.zero_()
    assert two.abs().sum() > 0


def test_a_tensor_beside_the_arguments_is_handed_back_itself() -> None:
    w = torch.randn(3)
    one, two = jitted(lambda x: (x * w, w))(torch.randn(2, 3))
    assert two is w and one.shape == (2, 3)


def test_a_detached_weight_asks_for_no_gradient() -> None:
    w = torch.nn.Parameter(torch.randn(3))
    with torch.no_grad():
        _, two = jitted(lambda x: (x * w, w.detach()))(torch.randn(2, 3))
    assert not two.requires_grad and not shares(two, w)


class Color(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: None,
        lambda x: 3.5,
        lambda x: (x, None, "a", 1j, Color.RED),
        lambda x: (),
        lambda x: {"n": x.shape[0], "big": x.shape[0] > 3, "twice": x.shape[0] * 2.5},
        lambda x: x.shape,
        lambda x: (x.dtype, x.device, slice(0, x.shape[0])),
    ],
)
def test_functions_that_compute_no_tensor(fn) -> None:
    f = jitted(fn)
    for rows in (2, 5):
        x = torch.randn(rows, 3)
        assert repr(f(x)) == repr(fn(x))
    assert f.compile_count == 0 and not f.fallbacks
    assert "nothing is computed" in f.explain() and "returns" in f.explain()


def test_constants_beside_a_computed_tensor() -> None:
    f = jitted(lambda x: {"out": x + 1, "none": None, "three": 3, "x": x, "rows": x.shape[0]})
    for rows in (2, 5):
        x = torch.randn(rows, 3)
        found = f(x)
        assert (found["none"], found["three"], found["rows"]) == (None, 3, rows) and found["x"] is x
        same(found["out"], x + 1)
    assert f.compile_count == 1
    assert "the number X0" in f.explain() and "the argument x itself" in f.explain()


def test_an_object_that_each_call_makes_anew_is_left_to_pytorch() -> None:
    class Box:
        def __init__(self, inside) -> None:
            self.inside = inside

    f = jitted(lambda x: Box(x + 1))
    x = torch.randn(2)
    one, two = f(x), f(x)
    assert one is not two
    same(one.inside, x + 1)
    assert "an object of class Box" in f.fallbacks[0].reason


def test_ahead_of_time_nothing_to_compile_is_no_error() -> None:
    f = cleave.compile(lambda x: x, (torch.randn(2, 3),), dynamic={"x": ("N", None)})
    x = torch.randn(5, 3)
    assert f(x) is x and f.compile_count == 0


def test_mismatched_sizes_give_one_error_and_nothing_else(capfd) -> None:
    for fn, shapes in (
        (lambda a, b: a @ b, [(4, 6), (5, 6)]),
        (lambda a, b: torch.bmm(a, b), [(2, 3, 4), (2, 5, 6)]),
        (lambda a, b: torch.nn.functional.linear(a, b), [(4, 6), (5, 7)]),
        (lambda a, b: torch.einsum("ik,kj->ij", a, b), [(4, 6), (5, 7)]),
    ):
        args = [torch.randn(shape) for shape in shapes]
        with pytest.raises(RuntimeError) as ours:
            cleave.jit(fn)(*args)
        with pytest.raises(RuntimeError) as eager:
            fn(*args)
        assert str(ours.value) == str(eager.value)
        with pytest.raises(RuntimeError):
            cleave.compile(fn, args)
    said = capfd.readouterr()
    assert said.out == "" and said.err == ""
