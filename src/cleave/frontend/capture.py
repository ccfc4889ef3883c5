"""Capture: an ordinary PyTorch function becomes `Program`s with the PyTorch calls that lie between them.

`capture` traces the function on fakes of the given arguments (`trace.py`), decides which sizes are static,
cuts the recording at calls that PyTorch must run, and builds the programs. What cannot be captured at all
comes back as a `Captured` whose `whole` says why. See docs/decisions/0002-capture.md.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses import fake_tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from cleave.errors import Invalid
from cleave.frontend import (  # noqa: F401  (registers the lowerings)
    lower_activations,
    lower_contract,
    lower_create,
    lower_index,
    lower_losses,
    lower_nn,
    lower_pointwise,
    lower_reduce,
    lower_special,
    lower_views,
    record_scan,
)
from cleave.frontend.axes import Var, root
from cleave.frontend.axis_text import Factor, axes_of
from cleave.frontend.build import Refused
from cleave.frontend.captured import Argument, Captured, Outside
from cleave.frontend.declare import declare
from cleave.frontend.emit import TABLE
from cleave.frontend.outside import Surroundings
from cleave.frontend.plan import Planner
from cleave.frontend.raised import line_of
from cleave.frontend.recorded import Fallback, Retry, Whole, Wishes
from cleave.frontend.trace import Tracer

Dynamic = Mapping[str, Sequence[str | int | None] | Mapping[int, str]]
"""For each input, by name, what its axes are called; `None` or an int is a static size."""

BEYOND = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedOperatorException,
    GuardOnDataDependentSymNode,
)
MOST_ATTEMPTS = 40


class _Flat:
    """The arguments of a call in a flat list, with names."""

    def __init__(self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        named = by_parameter(fn, args, kwargs)
        self.leaves: list[Any] = []
        self.names: list[str] = []
        self.leaves, self.spec = pytree.tree_flatten((tuple(args), dict(kwargs)))
        for name, value in named:
            paths = pytree.tree_flatten_with_path(value)[0]
            for path, _ in paths:
                steps = "".join(f"_{re.sub(r'[^0-9a-zA-Z]+', '', str(step))}" for step in path)
                self.names.append(_unique(re.sub(r"\W", "_", f"{name}{steps}"), self.names))


def by_parameter(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    """The arguments of a call, by position and by name, each with the name of its parameter."""
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    spread = next((p.name for p in parameters if p.kind == p.VAR_POSITIONAL), "arg")
    named: list[tuple[str, Any]] = []
    for number, value in enumerate(args):
        named.append((plain[number].name if number < len(plain) else f"{spread}{number}", value))
    return [*named, *kwargs.items()]


def _unique(wanted: str, used: Sequence[str]) -> str:
    name, number = wanted, 1
    while name in used:
        number += 1
        name = f"{wanted}_{number}"
    return name


def capture(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic: Dynamic | None = None,
    static: str = "parameters",
    surroundings: Surroundings | None = None,
    name: str | None = None,
    computed: bool = False,
) -> Captured:
    """Capture `fn` as called with these arguments.

    Sizes are dynamic, except, with `static="parameters"`, those that meet a parameter of a module and those
    of a last axis that is contracted; `static="none"` makes all dynamic. With `dynamic`, exactly the named
    axes are (one name is one size). With `computed`, a result that is an input as it came is the output of a
    program (its copy), as for a proof. Errors of the function itself come through as PyTorch raises them."""
    label = re.sub(r"\W+", "_", name or getattr(fn, "__name__", type(fn).__name__)).strip("_") or "program"
    around = surroundings or Surroundings(fn)
    wishes = Wishes()
    for _ in range(MOST_ATTEMPTS):
        attempt = _Attempt(fn, args, kwargs or {}, around, wishes)
        try:
            return attempt.captured(label, dynamic, static, computed)
        except Retry as again:
            wishes.eager[again.call] = again.reason
        except Refused as error:
            if error.call < 0 or error.call in wishes.eager:
                return Captured(label, whole=Fallback(label, error.where, error.what))
            wishes.eager[error.call] = error.what
        except Whole as error:
            return Captured(label, whole=Fallback(label, error.where, error.what))
        except BEYOND as error:
            return Captured(label, whole=Fallback(label, line_of(error), _reason(error)))
    return Captured(label, whole=Fallback(label, "", f"more than {MOST_ATTEMPTS} attempts"))


def _reason(error: Exception) -> str:
    if isinstance(error, fake_tensor.UnsupportedOperatorException):
        return f"PyTorch has no fake form of {error}"
    return "Python needs the value of a tensor here"


class _Attempt:
    """One tracing of the function."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        around: Surroundings,
        wishes: Wishes,
    ) -> None:
        self.fn, self.around = fn, around
        self.flat = _Flat(fn, args, kwargs)
        self.outside: list[Outside] = []
        self.arguments: list[Argument] = []
        self.tracer = Tracer(TABLE, wishes, self._outside_name)
        tensors = [leaf for leaf in self.flat.leaves if isinstance(leaf, torch.Tensor)]
        if any(tensor.dtype == torch.float64 for tensor in tensors):
            self.tracer.floats = "f64"

    def _outside_name(self, tensor: torch.Tensor, where: str) -> str:
        found = self.around.locate(tensor, {a.name: a.value for a in self.arguments if a.kind == "constant"})
        if found is None:
            what = "a tensor that is no argument, closure variable, global or attribute of a module"
            raise Whole(what, where=where)
        path, read, way = found
        used = [*self.flat.names, *(o.name for o in self.outside)]
        label = _unique(re.sub(r"\W", "_", path).strip("_") or "tensor", used)
        self.outside.append(Outside(label, read, isinstance(tensor, torch.nn.Parameter), way))
        return label

    def captured(self, label: str, dynamic: Dynamic | None, static: str, computed: bool) -> Captured:
        leaves = self._inputs(dynamic)
        args, kwargs = pytree.tree_unflatten(leaves, self.flat.spec)
        with self.tracer.running():
            result = self.fn(*args, **kwargs)
        outputs, spec = pytree.tree_flatten(result, is_leaf=lambda x: isinstance(x, torch.Size))
        self.tracer.sync()
        given = tuple(self.arguments), tuple(self.outside)
        planner = Planner(self.tracer, label, *given, computed=computed)
        return planner.captured(outputs, spec, "declared" if dynamic is not None else static)

    def _inputs(self, dynamic: Dynamic | None) -> list[Any]:
        """Fakes and symbols for the arguments; strings, bools and None stay, and are guarded."""
        leaves: list[Any] = []
        for place, (name, leaf) in enumerate(zip(self.flat.names, self.flat.leaves, strict=True)):
            if isinstance(leaf, torch.Tensor):
                self.arguments.append(Argument(name, "tensor"))
                leaves.append(self.tracer.add_tensor(name, leaf, place=place).fake)
            elif isinstance(leaf, int | float) and not isinstance(leaf, bool) and _is_finite(leaf):
                self.arguments.append(Argument(name, "number"))
                leaves.append(self.tracer.add_number(name, leaf, place))
            else:
                self.arguments.append(Argument(name, "constant", leaf))
                leaves.append(leaf)
        if dynamic is not None:
            self._declare(dynamic)
        return leaves

    def _declare(self, dynamic: Dynamic) -> None:
        space = self.tracer.space
        inputs = {item.name: item for item in self.tracer.tensors}
        unknown = [name for name in dynamic if name not in inputs]
        if unknown:
            known = ", ".join(inputs) or "none"
            raise Invalid(
                f"dynamic names an input {unknown[0]!r} that does not exist", hint=f"inputs: {known}"
            )
        axes: list[tuple[str, Var, Sequence[Factor] | None]] = []
        for item in self.tracer.tensors:
            named = axes_of(dynamic.get(item.name, ()), item.name, len(item.node.data))
            for number, (axis, wanted) in enumerate(zip(item.node.data, named, strict=True)):
                axes.append((f"argument {item.name}, axis {number}", root(axis[0].var), wanted))
        declare(space, axes)


def _is_finite(value: float) -> bool:
    return abs(value) < 2**62 if isinstance(value, int) else value - value == 0
