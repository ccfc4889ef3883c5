"""What a function reads beside its arguments: closure cells, globals, modules and their parameters.

`Surroundings.locate` says where a captured tensor lives, as a path that is walked again at each call, so a
weight that was swapped or trained in place is seen. `Surroundings.constants` gives the Python constants that
the function can see; they are part of the key under which a compiled program is found again.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

Getter = Callable[[], Any]
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
DEPTH, MOST = 6, 20000


class Surroundings:
    """The roots that a function can reach without its arguments."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.roots = list(_roots(fn, {}))
        self.modules = [root for _, get in self.roots if isinstance(root := _value(get), torch.nn.Module)]
        self.cells = [get for _, get in self.roots if _constant(_value(get))]
        self.flags = _flags(self.modules)

    def constants(self) -> tuple[Any, ...]:
        """The constants in sight, now."""
        if not self.cells and not self.flags:
            return ()
        cells = tuple(
            (type(v), v if v == v else repr(v)) for v in map(_value, self.cells)
        )  # NaN is not itself
        return cells + tuple(owner.get(name) for owner, name in self.flags)

    def locate(self, tensor: torch.Tensor, objects: Mapping[str, Any]) -> tuple[str, Getter] | None:
        """A name for a tensor in sight, and how to read it at a later call. `objects` are arguments that are
        no tensors; a call with others is captured anew."""
        seen: dict[int, None] = {}
        queue: list[tuple[str, Any, Getter, int]] = [(name, _value(get), get, 0) for name, get in self.roots]
        queue += [(name, item, lambda item=item: item, 0) for name, item in objects.items()]
        while queue:
            name, value, get, depth = queue.pop(0)
            if value is tensor:
                return name, get
            if id(value) in seen or depth > DEPTH or len(seen) > MOST:
                continue
            seen[id(value)] = None
            for step, inner, read in _inside(value):
                queue.append((f"{name}_{step}" if name else step, inner, _then(get, read), depth + 1))
        return None


def _value(get: Getter) -> Any:
    try:
        return get()
    except (ValueError, KeyError, AttributeError):
        return None


def _then(get: Getter, read: Callable[[Any], Any]) -> Getter:
    return lambda: read(get())


def _constant(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(_constant, value)))


def _flags(modules: list[torch.nn.Module]) -> list[tuple[dict[str, Any], str]]:
    """The plain attributes of modules that change what they compute."""
    found: list[tuple[dict[str, Any], str]] = []
    for module in modules:
        for inner in module.modules():
            own = vars(inner)
            found += [
                (own, name)
                for name, value in own.items()
                if isinstance(value, bool | int | float | str)
                and (name == "training" or not name.startswith("_"))
            ]
    return found


def _roots(fn: Any, seen: dict[int, None], depth: int = 0) -> Iterator[tuple[str, Getter]]:
    if id(fn) in seen or depth > 4:
        return
    seen[id(fn)] = None
    if isinstance(fn, functools.partial):
        for number, value in enumerate((*fn.args, *fn.keywords.values())):
            yield f"bound{number}", lambda value=value: value
        yield from _roots(fn.func, seen, depth)
        return
    if isinstance(fn, types.MethodType):
        yield "", lambda: fn.__self__
        yield from _roots(fn.__func__, seen, depth)
        return
    if isinstance(fn, torch.nn.Module):
        yield "", lambda: fn
        return
    if not isinstance(fn, types.FunctionType):
        if hasattr(fn, "__dict__") and callable(fn) and not isinstance(fn, type):
            yield "", lambda: fn
        return
    names = list(fn.__code__.co_freevars)
    for name, cell in zip(names, fn.__closure__ or (), strict=True):
        yield name, lambda cell=cell: cell.cell_contents
        yield from _inner(lambda cell=cell: cell.cell_contents, seen, depth)
    for number, default in enumerate(fn.__defaults__ or ()):
        if isinstance(default, torch.Tensor):
            yield f"default{number}", lambda default=default: default
    for name in _names(fn.__code__):
        if name in fn.__globals__:
            value = fn.__globals__[name]
            if isinstance(value, types.ModuleType | type):
                continue
            yield name, lambda name=name: fn.__globals__[name]
            yield from _inner(lambda name=name: fn.__globals__[name], seen, depth)


def _inner(get: Getter, seen: dict[int, None], depth: int) -> Iterator[tuple[str, Getter]]:
    value = _value(get)
    if isinstance(value, types.FunctionType) and not (value.__module__ or "").startswith(
        ("torch.", "cleave.")
    ):
        yield from _roots(value, seen, depth + 1)


def _names(code: types.CodeType) -> list[str]:
    names = list(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names += _names(inner)
    return list(dict.fromkeys(names))


def _inside(value: Any) -> Iterator[tuple[str, Any, Callable[[Any], Any]]]:
    """What a container holds: a name for the step, the value, and how to read it."""
    if isinstance(value, torch.nn.Module):
        for table in ("_parameters", "_buffers", "_modules"):
            for name, inner in vars(value).get(table, {}).items():
                yield name, inner, lambda owner, table=table, name=name: vars(owner)[table][name]
    if isinstance(value, dict):
        for key, inner in value.items():
            yield str(key), inner, lambda owner, key=key: owner[key]
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield str(number), inner, lambda owner, number=number: owner[number]
    elif hasattr(value, "__dict__") and not isinstance(value, type | types.ModuleType | types.FunctionType):
        for name, inner in vars(value).items():
            if not isinstance(inner, PLAIN) and name not in ("_parameters", "_buffers", "_modules"):
                yield name, inner, lambda owner, name=name: vars(owner)[name]
