"""Program files: plain Python files whose functions name their inputs' dimensions once.

    @cleave.program(q="f32[B, KV*G, S, D=64]", k="f32[B, KV, T, D]", v="f32[B, KV, T, D]", S=512)
    def attention(q, k, v): ...

`load("FILE.py:FUNCTION")` gives the `Program` without any data. See docs/program-files.md.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from cleave.errors import CleaveError, Invalid, Unsupported
from cleave.frontend.calls import check_function, checked_call, shown
from cleave.frontend.capture import capture
from cleave.frontend.captured import Captured
from cleave.frontend.trace import users_line
from cleave.frontend.values import TORCH_DTYPES
from cleave.ir.dims import Atom, Dim
from cleave.ir.program import Program

PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
NUMBERS: Mapping[str, float] = {"float": 0.7310585786300049, "int": 2}
_DTYPE_NAMES: Mapping[Any, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_SHAPE = re.compile(r"\s*(\w+)\s*\[(.*)\]\s*")


@dataclass(frozen=True, slots=True)
class Declared:
    """What `@cleave.program` says of a function: its inputs by name, and typical sizes of dynamic dims."""

    inputs: Mapping[str, str]
    typical: Mapping[str, int]


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
    texts: dict[str, str] = {}
    typical: dict[str, int] = {}
    for name, given in inputs.items():
        if isinstance(given, int) and not isinstance(given, bool):
            typical[name] = given
            if given < 1:
                what = f"{name}={given} is no typical size: a size is at least 1"
                raise Invalid(what, where=users_line(), hint=f"{name}=512")
        else:
            texts[name] = declaration(name, given)
    declared = Declared(texts, typical)

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        check_function(fn)
        parameters = inspect.signature(fn).parameters
        unknown = [name for name in texts if name not in parameters]
        if unknown:
            what = f"{fn.__name__} has no parameter {unknown[0]!r}"
            raise Invalid(what, where=users_line(), hint=f"it has {', '.join(parameters) or 'none'}")
        fn.__cleave_program__ = declared  # type: ignore[attr-defined]
        return fn

    return mark


def declaration(name: str, given: Any) -> str:
    """What is declared of a parameter as `"dtype[axis, ...]"`, `"float"` or `"int"`; a tuple of names and
    sizes is a tensor of float32. `Invalid`, with the user's line, for anything else."""
    if isinstance(given, str):
        text = given
    elif isinstance(given, list | tuple):
        text = f"f32[{', '.join(_axis(name, axis, given) for axis in given)}]"
    else:
        hint = f'{name}="f32[N, K=64]", {name}=("N", 64) for float32, {name}="float" for a number'
        raise Invalid(f"parameter {name}: {shown(given)} is not a declaration", where=users_line(), hint=hint)
    if text.strip() not in NUMBERS:
        try:
            parsed(text, name)
        except Invalid as error:
            raise Invalid(error.what, where=users_line(), hint=error.hint) from None
    return text


def _axis(name: str, axis: Any, given: Sequence[Any]) -> str:
    """An axis of a declaration by a tuple. A dtype or `float` in it is not meant as a name of a dim."""
    hint = 'an axis is a name ("N"), a size (64), both ("D=64") or a product ("KV*G")'
    dtype = axis if isinstance(axis, str) and axis in TORCH_DTYPES else _DTYPE_NAMES.get(axis)
    if dtype is not None:
        rest = ", ".join(str(other) for other in given if other is not axis)
        hint = f'with another dtype than float32 as text: {name}="{dtype}[{rest}]"'
    elif isinstance(axis, str) and axis in NUMBERS:
        hint = f'for a number {name}="{axis}"'
    elif isinstance(axis, str) or (isinstance(axis, int) and not isinstance(axis, bool)):
        return str(axis)
    raise Invalid(
        f"parameter {name}: {axis!r} in {tuple(given)!r} is not an axis", where=users_line(), hint=hint
    )


@checked_call("cleave.load", 'cleave.load("FILE.py:FUNCTION")')
def load(where: str, *, partly: bool = False) -> Loaded:
    """The program of `FILE.py:FUNCTION`. Raises `Invalid` if there is no such function or it is not declared,
    and, unless `partly` is given, `Unsupported` if it cannot be captured as one program."""
    path, _, name = where.rpartition(":")
    if not path or not name:
        raise Invalid(f"{where!r} is not FILE.py:FUNCTION")
    module = _module(Path(path))
    fn = getattr(module, name, None)
    declared = getattr(fn, "__cleave_program__", None)
    if fn is None or declared is None:
        marked = [n for n, f in vars(module).items() if hasattr(f, "__cleave_program__")]
        what = f"{path} has no function {name!r}" if fn is None else f"{name} in {path} is not declared"
        hint = f"declared with @cleave.program: {', '.join(marked) or 'none'}"
        raise Invalid(what, hint=hint)
    captured = _captured(fn, declared, name)
    if not partly:
        _demand_one(captured)
    known = {atom for program in captured.programs for atom in program.dynamic}
    named = {*_names(declared), *(a.name for program in captured.programs for a in program.dims)}
    typical = {Atom(n): size for n, size in declared.typical.items()}
    missing = [a.name for a in typical if a.name not in named]
    if missing:
        raise Invalid(f"{name}: a size is given for {missing[0]}, which no input names")
    return Loaded({a: s for a, s in typical.items() if a in known}, captured, fn)


def _names(declared: Declared) -> list[str]:
    """The names of dims in the declarations of inputs."""
    axes = [
        a
        for name, text in declared.inputs.items()
        if text.strip() not in NUMBERS
        for a in parsed(text, name)[1]
    ]
    return [factor.partition("=")[0] for axis in axes for factor in axis.split("*")]


def capture_for_proof(fn: Callable[..., Any], dims: Mapping[str, Sequence[str | int] | str]) -> Captured:
    """Capture a function from its inputs' dims alone: `{"x": ("N", "T")}` or `{"x": "f64[N, T]"}`.

    All names are dynamic, ints known. Parameters that `dims` does not name take their defaults as run-time
    numbers, or are floats. Raises `Unsupported` if part of the function would run in PyTorch."""
    texts = {name: declaration(name, given) for name, given in dims.items()}
    captured = _captured(fn, Declared(texts, {}), getattr(fn, "__name__", "program"))
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
    if not path.is_file():
        raise Invalid(f"there is no file {path}")
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
    except (ImportError, SyntaxError, NameError, TypeError, AttributeError, ValueError) as error:
        raise Invalid(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    return module


# ---------------------------------------------------------------- fakes from declarations


def _captured(fn: Callable[..., Any], declared: Declared, name: str) -> Captured:
    sizes = _Sizes(declared)
    arguments: dict[str, Any] = {}
    named: dict[str, Sequence[str]] = {}
    with FakeTensorMode():
        for parameter in inspect.signature(fn).parameters.values():
            text = declared.inputs.get(parameter.name)
            if text is not None and text.strip() in NUMBERS:
                default = parameter.default
                usable = isinstance(default, int | float) and not isinstance(default, bool)
                arguments[parameter.name] = default if usable else NUMBERS[text.strip()]
            elif text is not None:
                dtype, axes = parsed(text, parameter.name)
                arguments[parameter.name] = torch.empty([sizes.of(axis) for axis in axes], dtype=dtype)
                named[parameter.name] = axes
            elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            else:
                given = parameter.default is not parameter.empty
                arguments[parameter.name] = parameter.default if given else NUMBERS["float"]
    return capture(fn, (), arguments, dynamic=named, name=name)


def parsed(text: str, name: str) -> tuple[torch.dtype, list[str]]:
    """`"f32[B, S, D=64]"` as a dtype and the texts of the axes."""
    found = _SHAPE.fullmatch(text)
    if found is None or found[1] not in TORCH_DTYPES:
        hint = f"dtype[axis, ...] with a dtype of {', '.join(TORCH_DTYPES)}; or float, int"
        raise Invalid(f"parameter {name}: {text!r} is not a declaration", hint=hint)
    axes = [axis.strip().replace(" ", "") for axis in found[2].split(",") if axis.strip()]
    for axis in axes:
        for factor in axis.split("*"):
            if not re.fullmatch(r"\d+|[A-Za-z_]\w*(=\d+)?", factor):
                raise Invalid(f"parameter {name}: {axis!r} is not an axis", hint="S, D=64, 64 or KV*G")
    return TORCH_DTYPES[found[1]], axes


class _Sizes:
    """A size for every name: known, typical, or a prime of its own, so that no two names look equal."""

    def __init__(self, declared: Declared) -> None:
        self.known: dict[str, int] = {}
        for name, text in declared.inputs.items():
            if text.strip() in NUMBERS:
                continue
            for axis in parsed(text, name)[1]:
                for factor in axis.split("*"):
                    label, _, value = factor.partition("=")
                    if value and self.known.setdefault(label, int(value)) != int(value):
                        raise Invalid(f"parameter {name}: {label} is both {self.known[label]} and {value}")
        self.known = {**declared.typical, **self.known}
        self.primes = iter(PRIMES)

    def of(self, axis: str) -> int:
        total = 1
        for factor in axis.split("*"):
            label = factor.partition("=")[0]
            if not label.isdigit() and label not in self.known:
                self.known[label] = next(p for p in self.primes if p not in self.known.values())
            total *= int(label) if label.isdigit() else self.known[label]
        return total
