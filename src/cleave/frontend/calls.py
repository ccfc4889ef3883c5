"""Calls of Cleave's own functions with arguments that they do not take: told in Cleave's words, with the
user's line, the nearest option and all options that there are. A call that is right costs nothing more."""

from __future__ import annotations

import functools
import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, ParamSpec, TypeVar

import torch

from cleave.errors import CallError, Invalid
from cleave.frontend.axis_text import check_dynamic
from cleave.frontend.trace import users_line

P = ParamSpec("P")
R = TypeVar("R")

MOST_SECONDS = 10**6
"""The longest that tuning may be asked to take: twelve days."""
NEAR = 0.5
"""How alike (by difflib's ratio) the name of an option must be to be offered for another."""


def checked_call(name: str, example: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator: calls that do not fit the function's signature raise `CallError` under the name that users
    know, with an example of a right call. What the function itself raises comes through as it is."""

    def mark(fn: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(fn)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return fn(*args, **kwargs)
            except TypeError:
                told = misfit(fn, name, example, args, kwargs)
                if told is None:
                    raise  # it fits: the error is another one
            raise told

        return call

    return mark


def misfit(
    fn: Callable[..., Any], name: str, example: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> CallError | None:
    """What is wrong with a call of `fn`; None where its signature takes it."""
    signature = inspect.signature(fn)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        parameters = [p for p in signature.parameters.values() if p.name != "self"]
        given = args[1:] if "self" in signature.parameters else args
        what, hint = _told(name, parameters, given, kwargs) or (f"{name}: {error}", "")
        return CallError(what, where=users_line(), hint="; ".join(h for h in (hint, f"as in {example}") if h))
    return None


def _told(
    name: str, parameters: Sequence[Parameter], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, str] | None:
    """What is wrong, and a hint: an option that is not known, a missing argument, or one too many."""
    by_keyword = [p.name for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)]
    options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    listed = f"its options: {', '.join(options)}" if options else ""
    spread = any(p.kind is p.VAR_KEYWORD for p in parameters)
    unknown = [] if spread else [n for n in kwargs if n not in by_keyword]
    if unknown:
        near = get_close_matches(unknown[0], by_keyword, 1, NEAR)
        meant = f"; did you mean {near[0]!r}?" if near else ""
        return f"{name} has no option {unknown[0]!r} (given {_short(kwargs[unknown[0]])}){meant}", listed
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(places):
        taken = f"{len(places) or 'no'} unnamed argument{'' if len(places) == 1 else 's'}"
        names = f" ({', '.join(p.name for p in places)})" if places else ""
        return (
            f"{name} takes {taken}{names}, not {len(args)}: {_short(args[len(places)])} is too many",
            listed,
        )
    here = {p.name for p in places[: len(args)]} | set(kwargs)
    needed = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    missing = [p.name for p in needed if p.default is p.empty and p.name not in here]
    return (f"{name} needs {' and '.join(missing)}", "") if missing else None


def _short(value: object) -> str:
    """A value in a few words: a tensor by its shape, since its numbers say nothing here."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"a {type(value).__name__} of shape {list(getattr(value, 'shape'))}"  # noqa: B009
    return reprlib.repr(value)


def shown(value: object) -> str:
    """A value and its type, for messages: `3 (int)`."""
    text = _short(value)
    return text if text.startswith("a ") else f"{text} ({type(value).__name__})"


# ---------------------------------------------------------------- what the arguments may be


def check_function(fn: object) -> None:
    """`CallError` for what is no function: what cannot be called, a class, a module without `forward`."""
    what = f"a function of tensors is needed, not {shown(fn)}"
    hint = "the function itself, not its name or result"
    if isinstance(fn, type):
        what = f"a function of tensors is needed, not the class {fn.__name__}"
        hint = f"an instance of it that can be called: {fn.__name__}()"
    elif isinstance(fn, torch.nn.Module) and _is_empty(fn):
        what, hint = f"the module {type(fn).__name__} computes nothing: it has no forward", "give it one"
    elif callable(fn):
        return
    raise CallError(what, where=users_line(), hint=hint)


def _is_empty(module: torch.nn.Module) -> bool:
    """Whether a module says nowhere what it computes."""
    own = type(module).__call__ is not torch.nn.Module.__call__
    return not own and getattr(module.forward, "__func__", None) is torch.nn.Module.forward


def name_of_function(fn: Callable[..., Any]) -> str:
    """What a function is called in messages: its name, or that of its class."""
    return getattr(fn, "__name__", type(fn).__name__)


def parameters_of(fn: Callable[..., Any]) -> Mapping[str, Parameter]:
    """The parameters of a function, or of a module's `forward`, that have a name of their own (no `*args`).
    `CallError` for one that does not tell them, as some written in C."""
    try:
        signature = inspect.signature(fn.forward if isinstance(fn, torch.nn.Module) else fn)
    except (TypeError, ValueError):
        what = f"{name_of_function(fn)} does not tell its parameters"
        hint = f"a function of your own that calls it: lambda x: {name_of_function(fn)}(x)"
        raise CallError(what, where=users_line(), hint=hint) from None
    spread = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return {name: p for name, p in signature.parameters.items() if p.kind not in spread}


def check_flag(name: str, value: object) -> None:
    """`CallError` for an option that is neither True nor False."""
    if not isinstance(value, bool):
        raise CallError(
            f"{name} is True or False, not {shown(value)}", where=users_line(), hint=f"{name}=True"
        )


def check_dims(dims: object) -> None:
    """`CallError` for dims that are no mapping by input."""
    if not isinstance(dims, Mapping):
        raise CallError(
            f"dims names axes by input, as a dict, not {shown(dims)}",
            where=users_line(),
            hint='dims={"x": ("N", "T")}, or {"x": "f64[N, T]"} with a dtype',
        )


def check_inputs(inputs: object) -> None:
    """`CallError` for example inputs that are no list of arguments: a tensor would be taken row by row."""
    if not isinstance(inputs, list | tuple):
        raise CallError(
            f"cleave.compile takes the function's arguments as a tuple, not {shown(inputs)}",
            where=users_line(),
            hint="cleave.compile(f, (x, w)); with one argument cleave.compile(f, (x,))",
        )


def check_options(
    dynamic: object, target: object, tune: object, strict: object, compile_program: object
) -> None:
    """Refuse what no option can be before anything is compiled: `Invalid` for a target that there is not and
    for axes that cannot be meant, `CallError` for another type. `tune` is in seconds."""
    if target is not None and compile_program is None:
        from cleave.pipeline import TARGETS

        if not isinstance(target, str) or target not in TARGETS:
            what = f"unknown target {target!r}"
            raise Invalid(what, where=users_line(), hint=f"one of {', '.join(TARGETS)}")
    if dynamic is not None and not isinstance(dynamic, Mapping):
        raise CallError(
            f"dynamic names axes by input, as a dict, not {shown(dynamic)}",
            where=users_line(),
            hint="dynamic={'x': ('N', None)}: a name for each dynamic axis, None for a known one",
        )
    try:
        check_dynamic(dynamic or {})
    except Invalid as error:
        raise Invalid(error.what, where=users_line(), hint=error.hint) from None
    if isinstance(tune, bool) or not isinstance(tune, int | float) or not 0 <= tune <= MOST_SECONDS:
        what = f"tune is a number of seconds, 0 to {MOST_SECONDS}, not {shown(tune)}"
        raise CallError(what, where=users_line(), hint="tune=30")
    check_flag("strict", strict)
    if compile_program is not None and not callable(compile_program):
        what = f"compile_program compiles a program, and is a function, not {shown(compile_program)}"
        raise CallError(what, where=users_line(), hint="leave it out")
