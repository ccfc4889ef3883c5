"""What a function reads beside its arguments: closure cells, globals, modules and their parameters.

`Surroundings.locate` says where a captured tensor lives, as a path that is walked again at each call, so a
weight that was swapped or trained in place is seen. `Surroundings.constants` gives the Python constants that
the function can see; they are part of the key under which a compiled program is found again.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Getter = Callable[[], Any]
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
DEPTH, MOST = 6, 20000


@dataclass(frozen=True, slots=True)
class Way:
    """How a tensor is come to: from which root, by its number, and through which containers."""

    root: int
    steps: tuple[Callable[[Any], Any], ...] = ()


class Surroundings:
    """The roots that a function can reach without its arguments. With `like`, those of a copy of its
    function: what the copy holds itself is its own; globals and what inner functions see are shared."""

    def __init__(self, fn: Callable[..., Any], like: Surroundings | None = None) -> None:
        own = list(_own(fn))
        self.own = len(own)
        if like is None:
            self.roots = [*own, *_beyond(fn, {})]
            self.seen = [n for n, (_, get) in enumerate(self.roots) if _constant(_value(get))]
            self.places = list(_places(self.roots))
        else:
            self.roots = [*own, *like.roots[like.own :]]
            self.seen, self.places = like.seen, like.places
        self.cells = [self.roots[n][1] for n in self.seen]

    @functools.cached_property
    def flags(self) -> list[tuple[dict[str, Any], str]]:
        """The plain attributes of modules in sight, with their owners: found on first use, since a model that
        is being copied is not complete while what it holds is copied."""
        modules: dict[int, dict[str, torch.nn.Module]] = {}
        found: list[tuple[dict[str, Any], str]] = []
        for number, path, name in self.places:
            if number not in modules:
                root = _value(self.roots[number][1])
                modules[number] = dict(root.named_modules()) if isinstance(root, torch.nn.Module) else {}
            inner = modules[number].get(path)
            found.append((vars(inner) if inner is not None else {}, name))
        return found

    def constants(self) -> tuple[Any, ...]:
        """The constants in sight, now."""
        if not self.cells and not self.flags:
            return ()
        cells = tuple(
            (type(v), v if v == v else repr(v)) for v in map(_value, self.cells)
        )  # NaN is not itself
        return cells + tuple(owner.get(name) for owner, name in self.flags)

    def names(self) -> tuple[str, ...]:
        """What the constants in sight are called, in their order."""
        paths = (f"{path}.{name}".lstrip(".") for _, path, name in self.places)
        return (*(self.roots[n][0] for n in self.seen), *paths)

    def locate(
        self, tensor: torch.Tensor, objects: Mapping[str, Any]
    ) -> tuple[str, Getter, Way | None] | None:
        """A name for a tensor in sight, how to read it at a later call, and the way to it. `objects` are
        arguments that are no tensors (no way leads to those); a call with others is captured anew."""
        seen: dict[int, None] = {}
        queue: list[tuple[str, Any, Getter, Way | None, int]] = [
            (name, _value(get), get, Way(number), 0) for number, (name, get) in enumerate(self.roots)
        ]
        queue += [(name, item, lambda item=item: item, None, 0) for name, item in objects.items()]
        while queue:
            name, value, get, way, depth = queue.pop(0)
            if value is tensor:
                return name, get, way
            if id(value) in seen or depth > DEPTH or len(seen) > MOST:
                continue
            seen[id(value)] = None
            for step, inner, read in _inside(value):
                label = f"{name}_{step}" if name else step
                further = None if way is None else Way(way.root, (*way.steps, read))
                queue.append((label, inner, _then(get, read), further, depth + 1))
        return None

    def along(self, way: Way) -> Getter:
        """How to read what this way leads to from these roots."""
        get = self.roots[way.root][1]
        for step in way.steps:
            get = _then(get, step)
        return get


def _value(get: Getter) -> Any:
    try:
        return get()
    except (ValueError, KeyError, AttributeError):
        return None


def _then(get: Getter, read: Callable[[Any], Any]) -> Getter:
    return lambda: read(get())


def _constant(value: Any) -> bool:
    return isinstance(value, PLAIN) or (isinstance(value, tuple) and all(map(_constant, value)))


def _places(roots: list[tuple[str, Getter]]) -> Iterator[tuple[int, str, str]]:
    """The plain attributes of modules that change what they compute: number of the root, path of the module
    within it, and name."""
    for number, (_, get) in enumerate(roots):
        root = _value(get)
        for path, inner in root.named_modules() if isinstance(root, torch.nn.Module) else ():
            for name, value in vars(inner).items():
                plain = isinstance(value, bool | int | float | str)
                if plain and (name == "training" or not name.startswith("_")):
                    yield number, path, name


def _own(fn: Any) -> Iterator[tuple[str, Getter]]:
    """The roots that a function holds itself: another one that is made like it may hold others."""
    if isinstance(fn, functools.partial):
        for number, value in enumerate((*fn.args, *fn.keywords.values())):
            yield f"bound{number}", lambda value=value: value
        yield from _own(fn.func)
    elif isinstance(fn, types.MethodType):
        yield "", lambda: fn.__self__
        yield from _own(fn.__func__)
    elif isinstance(fn, types.FunctionType):
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            yield name, lambda cell=cell: cell.cell_contents
    elif hasattr(fn, "__dict__") and callable(fn) and not isinstance(fn, type):
        yield "", lambda: fn


def _beyond(fn: Any, seen: dict[int, None], depth: int = 0) -> Iterator[tuple[str, Getter]]:
    """The roots that a function does not hold itself: defaults, globals, what functions in sight see."""
    while isinstance(fn, functools.partial | types.MethodType):
        fn = fn.func if isinstance(fn, functools.partial) else fn.__func__
    if isinstance(fn, torch.nn.Module):
        kinds = dict.fromkeys(type(inner) for inner in fn.modules())
        for kind in kinds:
            if not kind.__module__.startswith("torch."):
                yield from _beyond(kind.forward, seen, depth)
        return
    if not isinstance(fn, types.FunctionType) or id(fn) in seen or depth > 4:
        return
    seen[id(fn)] = None
    for cell in fn.__closure__ or ():
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
        if id(value) not in seen and depth < 4:
            yield from _own(value)
        yield from _beyond(value, seen, depth + 1)


def _names(code: types.CodeType) -> list[str]:
    """The globals that a function reads; `co_names` has its attributes' names, too."""
    read = dis.get_instructions(code)
    names = [i.argval for i in read if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
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
