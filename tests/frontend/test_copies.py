"""Copies of compiled functions and of models that hold them, and what a compiled module has of its module."""

from __future__ import annotations

import copy
import functools
import pickle

import pytest
import torch
from doubles import agrees, by_reference, jitted, same

import cleave
from cleave.errors import CallError, Invalid

randn = torch.randn


def compiled(fn, inputs, **options):
    return cleave.compile(fn, inputs, compile_program=by_reference, **options)


class Model(torch.nn.Module):
    """Holds a compiled method."""

    def __init__(self, make=jitted) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(randn(4), requires_grad=False)
        self.fast = make(self.body)
        self.inner = torch.nn.Linear(4, 4).requires_grad_(False)

    def body(self, x):
        return self.inner(x).exp() * self.w if self.training else x * self.w

    def forward(self, x):
        return self.fast(x)


def changed(model):
    for parameter in model.parameters():
        parameter.data.mul_(3)
    return model


def independent(model, copied):
    """The copy computes with its own weights, the original with its own."""
    x = randn(5, 4)
    before = model(x)
    same(copied(x), before)
    changed(copied)
    same(model(x), before)
    assert not torch.allclose(copied(x), before)


# ---------------------------------------------------------------- functions


def test_a_plain_function_is_copied_as_python_copies_functions():
    x = randn(3, 4)
    for fast in (jitted(torch.sin), compiled(lambda a: a.exp(), (x,))):
        agrees(fast, x)
        for twin in (copy.copy(fast), copy.deepcopy(fast), copy.deepcopy({"f": fast})["f"]):
            agrees(twin, x)
            assert twin.compile_count == 1


def test_kernels_of_the_cpu_are_shared():
    layer, x = torch.nn.Linear(4, 4).requires_grad_(False), randn(3, 4)
    fast = cleave.compile(layer, (x,))
    twin = copy.deepcopy(fast)
    assert twin.compiled[0] is fast.compiled[0]
    independent(fast, twin)
    for _ in range(3):  # the short way, too
        agrees(twin, x)
        agrees(fast, x)
    assert twin.compile_count == 1 and twin.fn is not layer


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("warm", [False, True])
def test_a_compiled_module_is_copied_with_its_weights(warm):
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).requires_grad_(False)
    fast = jitted(layer)
    if warm:
        fast(randn(2, 4))
    twin = copy.deepcopy(fast)
    assert twin.fn is not layer and twin.__wrapped__ is twin.fn
    independent(fast, twin)
    assert twin.compile_count == 1


@pytest.mark.parametrize("warm", [False, True])
def test_a_model_survives_that_holds_a_compiled_method(warm):
    model = Model()
    if warm:
        model(randn(2, 4))
    twin = copy.deepcopy(model)
    assert twin.fast.fn.__self__ is twin and model.fast.fn.__self__ is model
    independent(model, twin)
    assert twin.fast.compile_count == 1
    twin.eval()
    x = randn(2, 4)
    same(twin(x), x * twin.w)
    same(model(x), model.body(x))


def test_a_copy_of_an_ahead_of_time_compile_refuses_what_the_original_does():
    model = Model(make=lambda body: None)
    model.fast = compiled(model.body, (randn(3, 4),), dynamic={"x": ("N", None)})
    model.tag = 3  # set later: no constant that the compile saw
    model.inner.more = torch.nn.ReLU()
    twin = copy.deepcopy(model)
    independent(model, twin)
    with pytest.raises(Invalid, match="argument x has size 5 on axis 1"):
        twin(randn(3, 5))
    twin.eval()
    with pytest.raises(Invalid, match="body was compiled where training is True; now it is False"):
        twin(randn(3, 4))
    with pytest.raises(
        Invalid, match=r"body reads inner_weight: expected torch.float32 .* got torch.float64"
    ):
        twin.train().double()(randn(3, 4))
    same(model(x := randn(3, 4)), model.body(x))


def test_a_model_that_compiles_itself_is_copied_once():
    model = torch.nn.Linear(4, 4).requires_grad_(False)
    model.fast = jitted(model)
    twin = copy.deepcopy(model.fast)
    assert twin.fn is not model and twin.fn.fast is twin


def test_a_function_with_the_model_in_its_closure_follows_the_copy():
    model = torch.nn.Linear(4, 4).requires_grad_(False)
    model.fast = jitted(lambda x: torch.relu(model(x)))
    model.fast(randn(2, 4))
    twin = copy.deepcopy(model)
    x = randn(3, 4)
    changed(twin)
    same(twin.fast(x), torch.relu(twin(x)))
    same(model.fast(x), torch.relu(model(x)))


GLOBAL = torch.nn.Linear(4, 4).requires_grad_(False)


def test_a_function_that_cannot_follow_is_refused():
    GLOBAL.fast = jitted(lambda x: GLOBAL(x))
    try:
        with pytest.raises(
            CallError, match="reads 'GLOBAL', which is copied, and its copy would read the old"
        ):
            copy.deepcopy(GLOBAL)
        assert copy.deepcopy(GLOBAL.fast) is GLOBAL.fast  # alone it is a plain function
    finally:
        del GLOBAL.fast


def test_partial_functions_and_objects_that_are_called():
    class Scale:
        def __init__(self) -> None:
            self.w = randn(4)

        def __call__(self, x):
            return x * self.w

    scale, x = Scale(), randn(3, 4)
    for fn, weight in ((scale, lambda f: f.w), (functools.partial(torch.mul, randn(4)), lambda f: f.args[0])):
        fast = jitted(fn)
        agrees(fast, x)
        twin = copy.deepcopy(fast)
        weight(twin.fn).mul_(3)
        agrees(twin, x)
        agrees(fast, x)
        assert not torch.allclose(twin(x), fast(x)) and twin.compile_count == 1


def test_decorated_methods_of_copies():
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(randn(4), requires_grad=False)

        @functools.partial(cleave.jit, compile_program=by_reference)
        def forward(self, x):
            return x * self.w

    layer = Layer()
    layer(randn(2, 4))
    shallow = copy.copy(layer)
    shallow._parameters = {"w": torch.nn.Parameter(layer.w.clone(), requires_grad=False)}
    independent(layer, shallow)
    independent(layer, copy.deepcopy(layer))


def test_pickling_is_refused_with_a_reason():
    layer = torch.nn.Linear(4, 4)
    for fast in (jitted(layer), jitted(torch.sin), compiled(lambda x: x + 1, (randn(3),))):
        with pytest.raises(
            TypeError, match="cannot be pickled: its kernels belong to this process"
        ) as caught:
            pickle.dumps(fast)
        assert isinstance(caught.value, CallError) and "state_dict" in caught.value.hint


# ---------------------------------------------------------------- what a module has


def test_a_compiled_module_has_what_its_module_has():
    layer = torch.nn.Linear(4, 2).requires_grad_(False)
    fast, x = jitted(layer), randn(3, 4)
    assert [id(p) for p in fast.parameters()] == [id(p) for p in layer.parameters()]
    assert list(fast.state_dict()) == ["weight", "bias"] and fast.weight is layer.weight
    assert isinstance(fast, cleave.Jit) and fast.out_features == 2
    for call in (fast.eval, fast.train, fast.double, lambda: fast.to(torch.float32), fast.requires_grad_):
        assert call() is fast
    assert layer.training and layer.weight.requires_grad
    fast.requires_grad_(False)
    fast.training = False
    assert not layer.training and "training" not in vars(fast)
    fast.load_state_dict({"weight": randn(2, 4), "bias": randn(2)})
    fast.weight = torch.nn.Parameter(randn(2, 4), requires_grad=False)
    agrees(fast, x)
    same(fast.forward(x), layer(x))
    same(fast.to(torch.float64)(x.double()), layer(x.double()))
    with pytest.raises(AttributeError, match="'Linear' object has no attribute 'nothing'"):
        fast.nothing  # noqa: B018
    assert not hasattr(jitted(torch.sin), "parameters")


def test_a_compiled_forward_stays_registered():
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4).requires_grad_(False)
            self.inner.forward = jitted(self.inner.forward)

        def forward(self, x):
            return self.inner(x)

    outer = Outer()
    assert list(outer.state_dict()) == ["inner.weight", "inner.bias"]
    outer(randn(2, 4))
    independent(outer, copy.deepcopy(outer))
    assert outer.inner.forward.compile_count == 1


def test_shallow_copies():
    layer, x = torch.nn.Linear(4, 4).requires_grad_(False), randn(3, 4)
    fast = jitted(layer)
    fast(x)
    twin = copy.copy(fast)
    assert twin.fn is not layer and twin.weight is layer.weight
    twin.eval()
    assert layer.training and not twin.training
    agrees(twin, x)
    assert copy.copy(method := jitted(Model().body)) is method


def test_modes_decide_what_a_compiled_module_computes():
    fast = jitted(torch.nn.Dropout(1.0))
    assert (fast(torch.ones(3)) == 0).all() and (fast.eval()(torch.ones(3)) == 1).all()
