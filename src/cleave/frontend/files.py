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

from cleave.errors import Invalid, Unsupported
from cleave.frontend.capture import capture
from cleave.frontend.captured import Captured
from cleave.frontend.values import TORCH_DTYPES
from cleave.ir.dims import Atom, Dim
from cleave.ir.program import Program

PRIMES = (3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
NUMBERS: Mapping[str, float] = {"float": 0.7310585786300049, "int": 2}
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


def program(**inputs: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Name the dimensions of a function's inputs.

    Each tensor is `"dtype[axis, ...]"`, an axis being a name (dynamic), `NAME=64` or `64` (known) or a
    product of these; `"float"` and `"int"` are run-time numbers. A keyword with an int gives a typical size
    of a dynamic dim. The function itself stays as it is."""

    def mark(fn: Callable[..., Any]) -> Callable[..., Any]:
        texts = {name: text for name, text in inputs.items() if isinstance(text, str)}
        typical = {name: size for name, size in inputs.items() if isinstance(size, int)}
        unknown = [name for name in texts if name not in inspect.signature(fn).parameters]
        if unknown:
            raise Invalid(f"{fn.__name__} has no parameter {unknown[0]!r}")
        fn.__cleave_program__ = Declared(texts, typical)  # type: ignore[attr-defined]
        return fn

    return mark


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
    texts: dict[str, str] = {}
    for name, given in dims.items():
        texts[name] = given if isinstance(given, str) else f"f32[{', '.join(map(str, given))}]"
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
