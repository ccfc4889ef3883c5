"""Arguments by name: a call is brought into the form in which as many as can be are given by position, so
that a function that was compiled with some by position takes them by name too."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter
from typing import Any

import torch

from cleave.errors import CallError
from cleave.frontend.calls import NEAR, name_of_function
from cleave.frontend.trace import users_line


def parameters_in_order(fn: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The parameters of a function, or of a module's `forward`; none where it does not tell them. A wrapper
    is asked for its own, as it may treat arguments by name in its own way; PyTorch's do not (`no_grad`)."""
    target: Any = fn.forward if isinstance(fn, torch.nn.Module) else fn
    owner = None
    if isinstance(target, types.MethodType):
        target, owner = target.__func__, target.__self__
    while isinstance(target, types.FunctionType) and "__wrapped__" in vars(target):
        if not str(target.__globals__.get("__name__")).startswith("torch."):
            break
        target = vars(target)["__wrapped__"]
    if owner is not None and callable(target):
        target = types.MethodType(target, owner)
    try:
        return tuple(inspect.signature(target, follow_wrapped=False).parameters.values())
    except (TypeError, ValueError):
        return ()


def placed(
    fn: Callable[..., Any],
    parameters: Sequence[Parameter],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    least: int,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The same call with arguments by position as far as they go without a gap; defaults fill gaps among the
    first `least`. What stays by name comes in the order of the parameters. Hooks of modules see which
    arguments are given by name, so a call of a module that has some stays as it is."""
    if isinstance(fn, torch.nn.Module) and (fn._forward_pre_hooks or fn._forward_hooks):
        return args, dict(kwargs)
    values, named = list(args), dict(kwargs)
    for number in range(len(args), len(parameters)):
        parameter = parameters[number]
        if parameter.kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
            break  # behind `*args`: by name alone
        if parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and parameter.name in named:
            values.append(named.pop(parameter.name))
        elif number < least and parameter.default is not Parameter.empty and parameter.name not in named:
            values.append(parameter.default)
        else:
            break
    order = {parameter.name: number for number, parameter in enumerate(parameters)}
    return tuple(values), dict(sorted(named.items(), key=lambda item: order.get(item[0], len(order))))


def misnamed(fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallError | None:
    """What is wrong with the names in a call that a function does not take: one that it does not have, one
    that is given twice, or one that is missing; none if it takes the call, or does not tell."""
    parameters = parameters_in_order(fn)
    name = name_of_function(fn)
    plain = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_name = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    spread = not parameters or any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [n for n in kwargs if n not in by_name and not spread]
    twice = [p.name for p in plain[: len(args)] if p.name in by_name and p.name in kwargs]
    given = {*kwargs, *(p.name for p in plain[: len(args)])}
    spreads = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in spreads]
    missing = [n for n in needed if n not in given]
    if unknown:
        near = get_close_matches(unknown[0], by_name, 1, NEAR)
        what = f"{name} has no parameter {unknown[0]!r}" + (f"; did you mean {near[0]!r}?" if near else "")
        if unknown[0] in [p.name for p in plain]:
            what = f"{name} takes its parameter {unknown[0]!r} by position alone"
    elif twice:
        what = f"{name} is given {twice[0]!r} twice, by position and by name"
    elif missing:
        what = f"{name} needs {' and '.join(map(repr, missing))}"
    else:
        return None
    hint = f"its parameters: {', '.join(p.name for p in parameters)}"
    return CallError(what, where=users_line(), hint=hint)
