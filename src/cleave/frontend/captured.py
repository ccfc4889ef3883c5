"""What a capture delivers: programs and PyTorch calls in order, how to feed them, and when they hold.

`Captured.run` is the meaning: it takes the flat arguments of a call and one callable per program.
`Captured.holds` says whether a call's sizes and numbers are ones that this capture serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sympy
import torch
from torch.utils import _pytree as pytree
from torch.utils._sympy.printers import PythonPrinter

from cleave.errors import Bug
from cleave.frontend.outside import Getter, Way
from cleave.frontend.recorded import Fallback
from cleave.ir.dims import Dim
from cleave.ir.program import Program


class Stale(Exception):
    """A size that PyTorch computed in the middle is not one that the rest was captured for."""


@dataclass(frozen=True, slots=True)
class Symbols:
    """Where each symbol's value is found: `(name of a tensor, axis)`, or `(name of a number, -1)`."""

    places: Mapping[sympy.Symbol, tuple[str, int]]

    def compile(self, conditions: Sequence[sympy.Basic]) -> tuple[Callable[[Mapping[str, Any]], bool], str]:
        """One function for all conditions, over tensors and numbers by name; and its text."""
        text = " and ".join(f"({self._text(c)})" for c in conditions) or "True"
        return self._function(text), text

    def value(self, expr: sympy.Basic) -> Callable[[Mapping[str, Any]], Any]:
        """The value of an expression in a call."""
        return self._function(self._text(expr))

    def _text(self, expr: sympy.Basic) -> str:
        names = {s: sympy.Symbol(f"v{n}_", **s.assumptions0) for n, s in enumerate(self.places)}
        return PythonPrinter().doprint(
            expr.xreplace({s: n for s, n in names.items() if s in expr.free_symbols})
        )

    def _function(self, text: str) -> Callable[[Mapping[str, Any]], Any]:
        lines: dict[str, None] = {}
        for n, (name, axis) in enumerate(self.places.values()):
            if f"v{n}_" in text:
                number = list(dict.fromkeys(p[0] for p in self.places.values())).index(name)
                lines[f"s{number} = env[{name!r}]" + (".shape" if axis >= 0 else "")] = None
                lines[f"v{n}_ = s{number}" + (f"[{axis}]" if axis >= 0 else "")] = None
        body = "".join(f"    {line}\n" for line in (*lines, f"return {text}"))
        scope: dict[str, Any] = {}
        exec(f"import math\nimport torch\ndef check(env):\n{body}", scope)
        return scope["check"]


@dataclass(frozen=True, slots=True)
class Argument:
    """One flat argument: `kind` is `tensor`, `number` or `constant` (then `value` is what it must be)."""

    name: str
    kind: str
    value: Any = None


@dataclass(frozen=True, slots=True)
class Outside:
    """A tensor that the function reads beside its arguments."""

    name: str
    read: Getter
    parameter: bool
    way: Way | None = None


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """Run a program: `feeds` names its inputs in order, `results` its outputs."""

    program: Program
    feeds: tuple[str, ...]
    results: tuple[str, ...]
    sizes: Mapping[Dim, int] = field(default_factory=dict[Dim, int])
    """The sizes of the dynamic dims in the captured call."""


@dataclass(frozen=True, slots=True)
class Named:
    """A tensor of the run, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Copied:
    """A fresh copy of a tensor of the run: a result that is not the tensor itself, but has its values."""

    name: str


@dataclass(frozen=True, slots=True)
class Computed:
    """A number that follows from sizes and number arguments; `text` says how, for people."""

    value: Callable[[Mapping[str, Any]], Any]
    text: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """A `torch.Size`: its sizes are ints or `Computed`."""

    sizes: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class EagerStep:
    """Run a PyTorch call. `args` is a tree with `Named` and `Computed` leaves. `results` names its tensors
    (`None`: not used). `check` must hold afterwards."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[str | None, ...]
    check: Callable[[Mapping[str, Any]], bool] | None
    fallback: Fallback


Step = ProgramStep | EagerStep


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured function. `outputs` are `Named`, `Copied`, `Computed`, `Shape` or plain values, in the tree
    `spec`; a `Named` argument is handed back as it is. `guards` says, for people, what sizes and numbers must
    satisfy. If `whole` is given nothing could be captured, and the function runs in PyTorch."""

    name: str
    arguments: tuple[Argument, ...] = ()
    outside: tuple[Outside, ...] = ()
    steps: tuple[Step, ...] = ()
    outputs: tuple[Any, ...] = ()
    spec: Any = None
    check: Callable[[Mapping[str, Any]], bool] | None = None
    guards: tuple[str, ...] = ()
    fallbacks: tuple[Fallback, ...] = ()
    whole: Fallback | None = None

    @property
    def program_steps(self) -> tuple[ProgramStep, ...]:
        """The steps that run a program, in order."""
        return tuple(step for step in self.steps if isinstance(step, ProgramStep))

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs in order."""
        return tuple(step.program for step in self.program_steps)

    @property
    def results(self) -> tuple[str, ...]:
        """What each result is, in words, in the order of the flat result."""
        given = {a.name: f"the argument {a.name} itself" for a in self.arguments}
        given |= {
            o.name: f"{o.name} itself, which the function reads beside its arguments" for o in self.outside
        }
        for step in self.steps:
            if isinstance(step, EagerStep):
                by = f"from {step.fallback.op} in PyTorch"
                given |= {name: f"{name}, {by}" for name in step.results if name is not None}
        return tuple(_in_words(output, given) for output in self.outputs) or ("an empty container",)

    @property
    def program(self) -> Program:
        """The only program; `Bug` if there are more, or PyTorch calls between them."""
        if len(self.steps) != 1 or not isinstance(self.steps[0], ProgramStep):
            raise Bug(f"{self.name} is not one program: {len(self.steps)} steps")
        return self.steps[0].program

    def environment(self, flat: Sequence[Any]) -> dict[str, Any]:
        """Tensors and numbers of a call by name."""
        env = {a.name: value for a, value in zip(self.arguments, flat, strict=True) if a.kind != "constant"}
        for item in self.outside:
            env[item.name] = item.read()
        return env

    def holds(self, env: Mapping[str, Any]) -> bool:
        """Whether this capture serves a call with these sizes and numbers."""
        try:
            return self.check is None or self.check(env)
        except ZeroDivisionError:
            return False

    def run(self, env: dict[str, Any], callables: Sequence[Callable[..., Sequence[torch.Tensor]]]) -> Any:
        """Run all steps; `callables` has one function for each program, in order."""
        number = 0
        for step in self.steps:
            if isinstance(step, ProgramStep):
                results = callables[number](*[env[name] for name in step.feeds])
                number += 1
                env.update(zip(step.results, results, strict=True))
            else:
                self._eager(step, env)
        leaves = [env[x.name] if isinstance(x, Named) else _filled(x, env) for x in self.outputs]
        return leaves[0] if self.spec.is_leaf() else pytree.tree_unflatten(leaves, self.spec)

    def _eager(self, step: EagerStep, env: dict[str, Any]) -> None:
        args, kwargs = pytree.tree_map(
            lambda leaf: _filled(leaf, env),
            (step.args, step.kwargs),
            is_leaf=lambda x: isinstance(x, Named | Computed),
        )
        results = pytree.tree_leaves(step.func(*args, **kwargs))
        for name, value in zip(step.results, results, strict=True):
            if name is not None:
                env[name] = value
        if step.check is not None and not step.check(env):
            raise Stale(str(step.fallback))


def _in_words(output: Any, given: Mapping[str, str]) -> str:
    match output:
        case Named(name):
            return given.get(name, f"{name}, compiled")
        case Copied(name):
            return f"a copy of {name}"
        case Computed(_, text):
            return f"the number {text}"
        case Shape(sizes):
            return f"the sizes ({', '.join(s.text if isinstance(s, Computed) else str(s) for s in sizes)})"
        case slice():
            parts = (_in_words(part, given) for part in (output.start, output.stop, output.step))
            return f"a slice of {', '.join(parts)}"
        case _:
            return f"the constant {output!r}"


def _filled(leaf: Any, env: Mapping[str, Any]) -> Any:
    if isinstance(leaf, Named):
        return env[leaf.name]
    if isinstance(leaf, Copied):
        return env[leaf.name].detach().clone(memory_format=torch.contiguous_format)
    if isinstance(leaf, Computed):
        return leaf.value(env)
    if isinstance(leaf, Shape):
        return torch.Size([_filled(size, env) for size in leaf.sizes])
    if isinstance(leaf, slice):
        return slice(*(_filled(part, env) for part in (leaf.start, leaf.stop, leaf.step)))
    return leaf
