"""Copies of compiled functions (`copy.copy`, `copy.deepcopy`): they share kernels, and read what a copy of
the function itself reads. A copied model that holds one must not compute with the weights of the old model.

Plain functions are copied as Python copies them: not at all. Only where one has an object in its closure that
is being copied beside it, its copy is the same code with the copied object in the closure.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from cleave.errors import CallError
from cleave.frontend.calls import name_of_function
from cleave.frontend.captured import Outside
from cleave.frontend.outside import Surroundings
from cleave.frontend.trace import users_line

ATOMIC = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
"""What `copy.copy` leaves as it is."""
_HINT = "a method does not (cleave.jit(self.f)); or compile again with the copy"


def copied_function(fn: types.FunctionType, around: Surroundings, memo: Mapping[int, Any]) -> Any:
    """A plain function where other objects are being copied: itself, unless it holds some of them in its
    closure. `CallError` where it reads one by another way, and would go on reading the old one."""
    contents = [_content(cell) for cell in fn.__closure__ or ()]
    here = [memo.get(id(value), value) for value in contents]
    beyond = [(name, _content_of(get)) for name, get in around.roots[around.own :]]
    for name, value in beyond:
        if memo.get(id(value), value) is not value:
            what = (
                f"{name_of_function(fn)} reads {name!r}, which is copied, and its copy would read the old one"
            )
            raise CallError(what, where=users_line(), hint=_HINT)
    if all(new is old for new, old in zip(here, contents, strict=True)):
        return fn
    cells = zip(fn.__closure__ or (), contents, here, strict=True)
    closure = tuple(cell if new is old else types.CellType(new) for cell, old, new in cells)
    made = types.FunctionType(fn.__code__, fn.__globals__, fn.__name__, fn.__defaults__, closure)
    made.__kwdefaults__, made.__qualname__, made.__doc__ = fn.__kwdefaults__, fn.__qualname__, fn.__doc__
    made.__dict__.update(fn.__dict__)
    return made


def _content(cell: types.CellType) -> Any:
    return _content_of(lambda: cell.cell_contents)


def _content_of(get: Callable[[], Any]) -> Any:
    try:
        return get()
    except (ValueError, KeyError, AttributeError):
        return None


def moved(outside: tuple[Outside, ...], around: Surroundings) -> tuple[Outside, ...]:
    """What a copy reads beside its arguments: found by the same ways from its own roots. It is not read here:
    a model is complete only after what it holds has been copied."""
    return tuple(o if o.way is None else replace(o, read=around.along(o.way)) for o in outside)


def unpicklable(name: str) -> CallError:
    """Why a compiled function cannot be pickled, and what to do."""
    return CallError(
        f"the compiled function {name} cannot be pickled: its kernels belong to this process",
        where=users_line(),
        hint="pickle what it was made of (a module's state_dict), and compile that where it is loaded; "
        "kernels built before are found on disk",
    )
