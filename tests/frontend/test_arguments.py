"""Calls by name of what was compiled with arguments by position."""

from __future__ import annotations

import re

import pytest
import torch
from doubles import agrees, by_reference, jitted, same

import cleave
from cleave.errors import CallError, Invalid

randn = torch.randn


def scaled(a, b, scale=2.0, *, shift=None):
    return (a - b) * scale + (0 if shift is None else shift)


def compiled(fn, inputs, **options):
    return cleave.compile(fn, inputs, compile_program=by_reference, **options)


def test_names_in_any_order_and_beside_positions():
    x, w = randn(3, 4), randn(3, 4)
    fast = compiled(scaled, (x, w))
    for args, named in (((), {"a": x, "b": w}), ((), {"b": w, "a": x}), ((x,), {"b": w}), ((x, w), {})):
        same(fast(*args, **named), scaled(x, w))
    assert fast.compile_count == 1 and len(fast.kinds) == 1
    dynamic = compiled(scaled, (x, w), dynamic={"a": ("N", None), "b": ("N", None)})
    same(dynamic(b=w[:2], a=x[:2]), scaled(x[:2], w[:2]))


def test_defaults_stand_where_a_call_has_none():
    x, w = randn(3, 4), randn(3, 4)
    fast = compiled(scaled, (x, w, 3.0))
    for args, named in (((x, w), {}), ((x,), {"b": w}), ((x,), {"scale": 5.0, "b": w}), ((x, w, 4.0), {})):
        agrees(fast, *args, **named)
    assert fast.compile_count == 1
    maybe = compiled(lambda x, mask=None, flag=False: x * 2 if flag else x, (x, None, True))
    agrees(maybe, x, flag=True)


@pytest.mark.parametrize(
    "args, named, what",
    [
        (1, {"c": 1}, "scaled has no parameter 'c'"),
        (1, {"scales": 1}, "scaled has no parameter 'scales'; did you mean 'scale'?"),
        (2, {"a": 1}, "scaled is given 'a' twice, by position and by name"),
        (0, {"b": 1}, "scaled needs 'a'"),
        (0, {"scale": 1}, "scaled needs 'a' and 'b'"),
    ],
)
def test_names_that_are_wrong_double_or_missing_are_told(args, named, what):
    x = randn(3, 4)
    fast = compiled(scaled, (x, x))
    for error in (Invalid, TypeError):
        with pytest.raises(error) as caught:
            fast(*[x] * args, **dict.fromkeys(named, x))
    assert isinstance(caught.value, CallError) and caught.value.what == what
    assert "test_arguments.py:" in caught.value.where
    assert caught.value.hint == "its parameters: a, b, scale, shift"


def test_an_argument_that_the_example_had_not_is_told():
    x = randn(3, 4)
    fast = compiled(scaled, (x, x))
    what = "scaled was compiled for 2 arguments, not 3: the example inputs had no 'scale'"
    with pytest.raises(CallError, match=re.escape(what)):
        fast(x, b=x, scale=3.0)
    for args, named in (((x,), {}), ((), {"a": x})):
        with pytest.raises(TypeError, match=re.escape("for 2 arguments, not 1: 'b' is missing")):
            fast(*args, **named)


def test_parameters_by_position_alone_and_spread_ones():
    def only(x, /, y):
        return x - y

    def spread(x, *rest, **named):
        return x + sum(rest) + sum(named.values())

    x, y = randn(3), randn(3)
    same(compiled(only, (x, y))(x, y=y), x - y)
    with pytest.raises(CallError, match="only takes its parameter 'x' by position alone"):
        compiled(only, (x, y))(x=x, y=y)
    same(compiled(spread, (x,))(x=x), x)
    agrees(jitted(spread), x, y, other=y)
    agrees(jitted(spread), x=x, other=y)


def test_modules_methods_and_pytorchs_wrappers():
    layer = torch.nn.Bilinear(4, 4, 2).requires_grad_(False)

    class Model(torch.nn.Module):
        @torch.no_grad()
        def forward(self, x, y):
            return x - y

        def body(self, x, y):
            return x / y

    model, x, y = Model(), randn(3, 4), randn(3, 4)
    for fn in (model, model.body, model.forward, torch.no_grad()(scaled)):
        first, second = ("a", "b") if not hasattr(fn, "body") and fn.__name__ == "scaled" else ("x", "y")
        same(compiled(fn, (x, y))(**{second: y, first: x}), fn(x, y))
    same(compiled(layer, (x, y))(x, input2=y), layer(x, y))


def test_names_and_positions_are_one_kind_of_call_of_a_jitted_function():
    x, w = randn(3, 4), randn(3, 4)
    fast = jitted(scaled)
    for args, named in (((x, w), {}), ((), {"b": w, "a": x}), ((x,), {"b": w}), ((x, w), {"shift": x})):
        agrees(fast, *args, **named)
    agrees(fast, x, w, scale=5.0)
    assert len(fast.kinds) == 3 and fast.compile_count == 3
    with pytest.raises(TypeError, match="unexpected keyword argument 'c'"):
        fast(x, c=w)


def test_hooks_see_what_is_given_by_name():
    layer = torch.nn.Linear(4, 4).requires_grad_(False)
    seen = []
    layer.register_forward_pre_hook(lambda module, args: seen.append(len(args)))
    jitted(layer)(input=randn(2, 4))
    assert seen and not any(seen)


def test_a_parameter_behind_spread_ones_keeps_its_default() -> None:
    def scaled(x: torch.Tensor, *weights: float, k: float = 3.0) -> torch.Tensor:
        for weight in weights:
            x = x * weight
        return x * k

    x = torch.ones(2, 3)
    fast = cleave.jit(scaled)
    assert torch.equal(fast(x, 1.0, 2.0), scaled(x, 1.0, 2.0))
    assert torch.equal(fast(x, 5.0), scaled(x, 5.0))
    assert torch.equal(fast(x, 5.0, k=2.0), scaled(x, 5.0, k=2.0))
