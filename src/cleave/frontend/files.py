"""Program files: plain Python files whose functions name their inputs' dimensions once.

    @cleave.program(q="f32[B, KV*G, S, D=64]", k="f32[B, KV, T, D]", v="f32[B, KV, T, D]", S=512)
    def attention(q, k, v): ...

`load("FILE.py:FUNCTION")` gives the `Program` without any data. See docs/program-files.md.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from cleave.errors import CallError, CleaveError, Invalid, Unsupported
from cleave.frontend.axis_text import AXIS, Factor, factors
from cleave.frontend.calls import (
    check_flag,
    check_function,
    checked_call,
    name_of_function,
    parameters_of,
    shown,
)
from cleave.frontend.captured import Captured
from cleave.frontend.fakes import NUMBERS, Declared, DeclaredTensor, capture_declared
from cleave.frontend.raised import line_of, told
from cleave.frontend.trace import users_line
from cleave.frontend.values import TORCH_DTYPES
from cleave.ir.dims import Atom, Dim
from cleave.ir.program import Program
from cleave.ir.sizes import check_size

_DTYPE_NAMES: Mapping[Any, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_SHAPE = re.compile(r"\s*(\w+)\s*\[(.*)\]\s*")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A loaded function: `sizes` are the typical sizes that its file gives, by dim."""

    sizes: Mapping[Dim, int]
    captured: Captured
    function: Callable[..., Any]

    @property
    def program(self) -> Program:
        """The function as one program; `Unsupported` where it is not."""
        _demand_one(self.captured)
        return self.captured.program


@checked_call("cleave.program", '@cleave.program(x="f32[N, K=64]", N=512)')
def program(**inputs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Name the dimensions of a function's inputs.

    Each tensor is `"dtype[axis, ...]"`, an axis being a name (dynamic), `NAME=64` or `64` (known) or a
    product of these; a tuple of axes is a tensor of float32, as for `prove`. `"float"` and `"int"` are
    run-time numbers. A keyword with an int gives a typical size of a dynamic dim. The function itself stays
    as it is. `Invalid`, with the decorator's line, for anything else and for names that are no parameters."""
    typical = {n: given for n, given in inputs.items() if type(given) is int}
    tensors = {n: declaration(n, given) for n, given in inputs.items() if n not in typical}
    for name, size in typical.items():
        try:
            if size == 0:
                raise Invalid(f"{name}=0 is no typical size: a size is at least 1")
            check_size(size, f"{name} is given a typical size")
        except Invalid as error:
            raise Invalid(error.what, where=users_line(), hint=f"{name}=512") from None
    declared = Declared(tensors, typical, users_line())
    declared.check()

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        check_function(fn)
        name = name_of_function(fn)
        parameters = parameters_of(fn)
        unknown = [name for name in tensors if name not in parameters]
        if unknown:
            what = f"{name} has no parameter {unknown[0]!r}"
            raise Invalid(what, where=users_line(), hint=f"it has {', '.join(parameters) or 'none'}")
        try:
            fn.__cleave_program__ = declared  # type: ignore[attr-defined]
        except (AttributeError, TypeError):
            what = f"{name} ({type(fn).__name__}) takes no mark, so it cannot be declared"
            hint = f"declare a function of your own that calls it: def f({', '.join(parameters)}): ..."
            raise CallError(what, where=users_line(), hint=hint) from None
        return fn

    return mark


def declaration(name: str, given: Any) -> str | DeclaredTensor:
    """What is declared of a parameter, by a text `"dtype[axis, ...]"`, `"float"` or `"int"`, or by a tuple of
    names and sizes, which is a tensor of float32. `Invalid`, with the user's line, for anything else."""
    try:
        if isinstance(given, str):
            return given.strip() if given.strip() in NUMBERS else parsed(given, name)
        if isinstance(given, list | tuple):
            return DeclaredTensor(torch.float32, tuple(_axis(name, axis, given) for axis in given))
        hint = f'{name}="f32[N, K=64]", {name}=("N", 64) for float32, {name}="float" for a number'
        raise Invalid(f"parameter {name}: {shown(given)} is not a declaration", hint=hint)
    except Invalid as error:
        raise Invalid(error.what, where=users_line(), hint=error.hint) from None


def _axis(name: str, axis: Any, given: Sequence[Any]) -> tuple[Factor, ...]:
    """An axis of a declaration by a tuple. A dtype or `float` in it is not meant as a name of a dim."""
    hint = AXIS
    dtype = axis if isinstance(axis, str) and axis in TORCH_DTYPES else None
    if isinstance(axis, torch.dtype | type):
        dtype = _DTYPE_NAMES.get(axis)
    if dtype is not None:
        rest = ", ".join(str(other) for other in given if other is not axis)
        hint = f'with another dtype than float32 as text: {name}="{dtype}[{rest}]"'
    elif isinstance(axis, str) and axis in NUMBERS:
        hint = f'for a number {name}="{axis}"'
    elif isinstance(axis, str):
        return factors(axis, f"parameter {name}")
    elif isinstance(axis, Integral) and not isinstance(axis, bool):
        check_size(int(axis), f"parameter {name}")
        return (Factor("", int(axis)),)
    raise Invalid(f"parameter {name}: {axis!r} in {tuple(given)!r} is not an axis", hint=hint)


def parsed(text: str, name: str) -> DeclaredTensor:
    """What `"f32[B, S, D=64]"` declares of the parameter `name`."""
    found = _SHAPE.fullmatch(text)
    if found is None or found[1] not in TORCH_DTYPES:
        hint = f"dtype[axis, ...] with a dtype of {', '.join(TORCH_DTYPES)}; or float, int"
        raise Invalid(f"parameter {name}: {text!r} is not a declaration", hint=hint)
    texts = found[2].split(",") if found[2].strip() else []
    for number, axis in enumerate(texts):
        if not axis.strip():
            what = f"parameter {name}: axis {number} of {text!r} is empty"
            raise Invalid(what, hint=f"a name or a size between the commas, 1 to broadcast; {AXIS}")
    return DeclaredTensor(TORCH_DTYPES[found[1]], tuple(factors(axis, f"parameter {name}") for axis in texts))


@checked_call("cleave.load", 'cleave.load("FILE.py:FUNCTION")')
def load(where: str | os.PathLike[str], *, partly: bool = False) -> Loaded:
    """The program of `FILE.py:FUNCTION`. Raises `Invalid` if there is no such function, if it is not declared
    or if the file or the function raises; and, unless `partly` is given, `Unsupported` if it cannot be
    captured as one program, which hands out copies of inputs. `CallError` for what is no text."""
    text = os.fspath(where) if isinstance(where, os.PathLike) else where
    if not isinstance(text, str):
        hint = 'cleave.load("FILE.py:FUNCTION"); '
        hint += "a function at hand needs no loading: cleave.jit, cleave.compile and cleave.prove take it"
        raise CallError(f"FILE.py:FUNCTION is needed, not {shown(where)}", where=users_line(), hint=hint)
    check_flag("partly", partly)
    path, _, name = text.rpartition(":")
    if not path or not name:
        raise Invalid(f"{text!r} is not FILE.py:FUNCTION", hint="such as examples/attention.py:attention")
    module = _module(Path(path))
    fn = getattr(module, name, None)
    declared = getattr(fn, "__cleave_program__", None)
    if fn is None or not isinstance(declared, Declared):
        marked = [n for n, f in vars(module).items() if hasattr(f, "__cleave_program__")]
        what = f"{path} has no function {name!r}" if fn is None else f"{name} in {path} is not declared"
        hint = f"declared with @cleave.program: {', '.join(marked) or 'none'}"
        raise Invalid(what, hint=hint)
    captured = capture_declared(fn, declared, name, computed=not partly)
    if not partly:
        _demand_one(captured)
    known = {atom for program in captured.programs for atom in program.dynamic}
    named = {*declared.names, *(a.name for program in captured.programs for a in program.dims)}
    typical = {Atom(n): size for n, size in declared.typical.items()}
    missing = [a.name for a in typical if a.name not in named]
    if missing:
        what = f"{name}: a size is given for {missing[0]}, which no input names"
        hint = f"its inputs name {', '.join(dict.fromkeys(declared.names)) or 'none'}"
        raise Invalid(what, where=declared.where, hint=hint)
    return Loaded({a: s for a, s in typical.items() if a in known}, captured, fn)


def capture_for_proof(fn: Callable[..., Any], dims: Mapping[str, Sequence[str | int] | str]) -> Captured:
    """Capture a function from its inputs' dims alone: `{"x": ("N", "T")}` or `{"x": "f64[N, T]"}`.

    All names are dynamic, ints known. Parameters that `dims` does not name take their defaults as run-time
    numbers, or are floats. Raises `Unsupported` if part of the function would run in PyTorch."""
    declared = Declared({name: declaration(name, given) for name, given in dims.items()}, {}, users_line())
    captured = capture_declared(fn, declared, name_of_function(fn), computed=True)
    _demand_one(captured)
    return captured


def _demand_one(captured: Captured) -> None:
    if captured.whole is not None:
        raise Unsupported(captured.whole.reason, where=captured.whole.where)
    if captured.fallbacks or len(captured.programs) != 1:
        first = captured.fallbacks[0] if captured.fallbacks else None
        what = f"{captured.name} is not one program"
        if not captured.steps:
            raise Unsupported(
                f"{captured.name} computes nothing: it returns {' and '.join(captured.results)}"
            )
        raise Unsupported(
            f"{what}: {first.op}: {first.reason}" if first else what, where=first.where if first else ""
        )


def _module(path: Path) -> ModuleType:
    """A program file as a module. `Invalid`, with the file's line, if it cannot be read or run."""
    try:
        if not path.is_file():
            raise Invalid(f"there is no file {path}")
    except (OSError, ValueError) as error:  # a name that no file can have
        raise Invalid(f"{str(path)[:80]!r}... is no file: {error.__class__.__name__}") from error
    label = f"cleave_file_{re.sub(r'[^0-9a-zA-Z]+', '_', str(path.resolve()))}"
    spec = importlib.util.spec_from_file_location(label, path)
    if spec is None or spec.loader is None:
        raise Invalid(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[label] = module
    try:
        spec.loader.exec_module(module)
    except CleaveError:
        raise  # says what is wrong, and on which line of the file
    except SystemExit as error:
        hint = 'what a script does stands behind: if __name__ == "__main__":'
        raise Invalid(f"{path} ends Python where it is loaded", where=line_of(error), hint=hint) from error
    except Exception as error:  # a user's file may raise anything
        raise told(error, str(path), "") from error
    return module
