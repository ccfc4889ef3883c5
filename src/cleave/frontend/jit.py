"""`cleave.jit` and `cleave.compile`: a function that captures, compiles and picks what fits each call.

Calls are told apart by what changes the code: dtypes, devices, ranks, strings, bools, `None`, constants in
sight of the function. Within one such kind sizes are dynamic (see `capture`); a static size that changes
makes all sizes dynamic, so there are two compiles at most, unless the function itself branches on sizes or
numbers.
Whatever cannot be compiled runs in PyTorch and is listed in `fallbacks`.
"""

from __future__ import annotations

import copy
import functools
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from cleave.errors import Infeasible, Invalid, Unsupported
from cleave.frontend.arguments import parameters_in_order, placed
from cleave.frontend.calls import check_function, check_inputs, check_options, checked_call
from cleave.frontend.capture import Dynamic, capture
from cleave.frontend.captured import Captured, Named, Outside, Stale
from cleave.frontend.copies import ATOMIC, copied_function, moved, unpicklable
from cleave.frontend.members import Members
from cleave.frontend.outside import Surroundings
from cleave.frontend.quick import Quick
from cleave.frontend.recorded import TENSORS, Fallback, foreign
from cleave.frontend.refusing import Foreign, lists_noted, misfit, refused
from cleave.frontend.trace import users_line
from cleave.ir.text import print_program
from cleave.knobs import knobs

Compiler = Callable[..., Callable[..., Sequence[torch.Tensor]]]

ORDINARY = (
    RuntimeError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError,
    NameError,
)  # fmt: skip
"""What a user's function may raise; anything of ours is a `CleaveError`."""

MOST_VARIANTS = 8
MOST_INT = 2**62
"""Integers from here on are no run-time numbers: kernels have 64 bits."""


def _pipeline(*args: Any, **options: Any) -> Any:
    from cleave.pipeline import compile_program

    return compile_program(*args, **options)


@dataclass(slots=True)
class Variant:
    """One capture and the callables of its programs (none where the function runs in PyTorch)."""

    captured: Captured
    callables: tuple[Callable[..., Any], ...]
    metas: tuple[Any, ...] = ()

    def fits(self, env: Mapping[str, Any]) -> bool:
        """Whether it serves this call."""
        if self.metas:
            for outside, meta in zip(self.captured.outside, self.metas, strict=True):
                tensor = env[outside.name]
                if foreign(tensor) or (tensor.dtype, tensor.device, tensor.dim()) != meta:
                    return False
        return self.captured.holds(env)


@dataclass(slots=True)
class Kind:
    """All variants for one kind of call; `eager` says why it runs in PyTorch for good."""

    variants: list[Variant] = field(default_factory=list[Variant])
    eager: Fallback | None = None
    outside: tuple[Outside, ...] = ()

    def moved(self, around: Surroundings) -> Kind:
        """The same for a copy of the function, which has these surroundings."""
        captures = [replace(v.captured, outside=moved(v.captured.outside, around)) for v in self.variants]
        variants = [replace(v, captured=c) for v, c in zip(self.variants, captures, strict=True)]
        return Kind(variants, self.eager, moved(self.outside, around))


class Jit:
    """A compiled function. `compile_count` counts compiles, `fallbacks` lists what runs in PyTorch,
    `explain()` shows programs and guards. One that was made of a module has the module's attributes too."""

    def __new__(cls, *args: Any, **options: Any) -> Jit:
        fn = args[0] if args else options.get("fn")
        return object.__new__(JitModule if cls is Jit and isinstance(fn, torch.nn.Module) else cls)

    @checked_call("cleave.Jit", "cleave.Jit(f, dynamic={'x': ('N', None)})")
    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        dynamic: Dynamic | None = None,
        target: str | None = None,
        compile_program: Compiler | None = None,
        strict: bool = False,
        tune: float = 0.0,
    ) -> None:
        check_function(fn)
        check_options(dynamic, target, tune, strict, compile_program)
        self.tune, self.dynamic, self.target, self.strict = tune, dynamic, target, strict
        self.compile_program = compile_program or _pipeline
        self.compile_count = 0
        self.around = Surroundings(fn)
        self.signature = parameters_in_order(fn)
        self.least = 0
        self.kinds: dict[Any, Kind] = {}
        self.kept: dict[int, Any] = {}
        self.noted: dict[Fallback, None] = {}
        self.quick = Quick()
        self.lock = threading.RLock()
        functools.update_wrapper(self, fn, updated=())
        self.fn = fn  # from here on what is set may be the module's

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """On a method: a compiled function for each instance, kept on it."""
        if instance is None:
            return self
        name = f"_cleave_{self._name}"
        own = vars(instance)
        if name not in own or own[name].fn.__self__ is not instance:  # a copy has the original's
            bound = types.MethodType(self.fn, instance)
            own[name] = Jit(
                bound,
                dynamic=self.dynamic,
                target=self.target,
                compile_program=self.compile_program,
                strict=self.strict,
                tune=self.tune,
            )
        return own[name]

    # ------------------------------------------------------------ copies

    def __copy__(self) -> Jit:
        return self if isinstance(self.fn, ATOMIC) else object.__new__(type(self))._become(self, copy.copy)

    def __deepcopy__(self, memo: dict[int, Any]) -> Jit:
        copied = functools.partial(copy.deepcopy, memo=memo)
        if isinstance(self.fn, types.FunctionType):
            made = copied_function(self.fn, self.around, memo)
            if made is self.fn:
                return self
            copied = lambda fn: made  # noqa: E731
        twin = memo[id(self)] = object.__new__(type(self))  # what is copied now may hold this function
        return twin._become(self, copied)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise unpicklable(self._name)

    def _become(self, other: Jit, copied: Callable[[Any], Any]) -> Jit:
        """A copy of another compiled function, with a copy of its function; kernels are shared."""
        fn = copied(other.fn)
        around = Surroundings(fn, like=other.around)
        kinds = {key: kind.moved(around) for key, kind in list(other.kinds.items())}
        own = {**vars(other), "around": around, "kinds": kinds, "fn": fn, "__wrapped__": fn}
        own |= {"kept": dict(other.kept), "noted": dict(other.noted)}
        vars(self).update(own, quick=Quick(), lock=threading.RLock())
        return self

    # ------------------------------------------------------------ calls

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        quick, around = self.quick, self.around
        constants = around.constants() if around.cells or around.flags else ()
        latest = quick.latest
        if latest is not None and not kwargs:
            values = (*args, *[item.read() for item in quick.outside]) if quick.outside else args
            if latest.serves(values, constants):
                return latest.run(*values)
        if _watched():
            self._note(Fallback(self._name, "", "autocast, a transform or a mode of PyTorch is on"))
            return self.fn(*args, **kwargs)
        if kwargs or len(args) < self.least:
            args, kwargs = placed(self.fn, self.signature, args, kwargs, self.least)
        settings = _settings()
        now = (constants, settings, torch.is_grad_enabled(), torch.get_num_threads())
        if not kwargs:
            values = quick.values(args)
            run = quick.found(values, now)
            if run is not None:
                return run(*values)
        flat: Sequence[Any] = args
        spec: Any = len(args)
        if kwargs or not _LEAVES.issuperset(map(type, args)):
            flat, spec = pytree.tree_flatten((args, kwargs))
        key = (
            spec,
            tuple(
                [
                    (a.dtype, a.device, a.dim())
                    if type(a) in TENSORS and a.layout is torch.strided
                    else self._kind_of(a)
                    for a in flat
                ]
            ),
            constants,
            settings,
        )
        kind = self.kinds.get(key)
        if kind is None:
            kind = self._new_kind(key)
        if kind.eager is not None:
            return self.fn(*args, **kwargs)
        if torch.is_grad_enabled() and _wants_grad(flat, kind.outside):
            return self._without_grad(args, kwargs)
        for variant in kind.variants:
            env = variant.captured.environment(flat)
            if variant.fits(env):
                result = self._run(kind, variant, env, args, kwargs)
                if flat is args and len(variant.callables) == 1:
                    self.quick.remember(variant.captured, variant.callables[0], args, now)
                return result
        with self.lock:
            return self._first(kind, flat, args, kwargs)

    def _kind_of(self, leaf: Any) -> Any:
        kind = type(leaf)
        if kind is int:
            return kind if -MOST_INT < leaf < MOST_INT else (kind, leaf)
        if kind is float:
            return kind if leaf - leaf == 0 else (kind, repr(leaf))
        if isinstance(leaf, torch.Tensor):
            return Foreign(foreign(leaf))
        if leaf is None or kind in (bool, str, bytes, torch.dtype, torch.device):
            return kind, leaf
        self.kept.setdefault(id(leaf), leaf)
        return kind, id(leaf)

    def _new_kind(self, key: Any) -> Kind:
        if self.strict and self.kinds:
            raise refused(self.fn, key, next(iter(self.kinds)), self.around.names())
        kind = Kind()
        for given in key[1]:
            if isinstance(given, Foreign):
                self._give_up(kind, Fallback(self._name, "", f"an argument is {given.what}"))
        return self.kinds.setdefault(key, kind)

    def _captured(self, args: Any, kwargs: Any, static: str) -> Captured:
        """A capture of this call; what is wrong with its declared axes is told with the line of the call."""
        try:
            return capture(
                self.fn,
                args,
                kwargs,
                dynamic=self.dynamic,
                static=static,
                surroundings=self.around,
                name=self._name,
            )
        except Invalid as error:
            raise type(error)(error.what, where=error.where or users_line(), hint=error.hint) from None

    def _in_pytorch(self, args: Any, kwargs: Any) -> Any:
        """What the function gives where capture failed; it may fail in PyTorch too, as on a list."""
        try:
            return self.fn(*args, **kwargs)
        except (TypeError, AttributeError) as error:
            for note in lists_noted(self.fn, args, kwargs):
                error.add_note(note)
            raise

    def _without_grad(self, args: Any, kwargs: Any) -> Any:
        self._note(Fallback(self._name, "", "an input requires a gradient: there is no backward yet"))
        return self.fn(*args, **kwargs)

    @property
    def _name(self) -> str:
        return getattr(self.fn, "__name__", type(self.fn).__name__)

    def _run(self, kind: Kind, variant: Variant, env: dict[str, Any], args: Any, kwargs: Any) -> Any:
        try:
            return variant.captured.run(env, variant.callables)
        except Stale as error:
            self._note(Fallback(self._name, "", f"a size that PyTorch computes has changed ({error})"))
            return self.fn(*args, **kwargs)

    # ------------------------------------------------------------ compiling

    def _first(self, kind: Kind, flat: Sequence[Any], args: Any, kwargs: Any) -> Any:
        """No variant fits: make one."""
        for variant in kind.variants:
            env = variant.captured.environment(flat)
            if variant.fits(env):
                return self._run(kind, variant, env, args, kwargs)
        if self.strict and kind.variants:
            raise misfit(kind.variants[0].captured, flat, kind.variants[0].metas)
        if len(kind.variants) >= MOST_VARIANTS:
            self._give_up(
                kind, Fallback(self._name, "", f"more than {MOST_VARIANTS} variants of one kind of call")
            )
            return self.fn(*args, **kwargs)
        try:
            captured = self._captured(args, kwargs, "none" if kind.variants else "parameters")
        except ORDINARY as error:
            result = self._in_pytorch(args, kwargs)
            self._give_up(kind, Fallback(self._name, "", f"{type(error).__name__} while capturing: {error}"))
            return result
        if captured.whole is not None:
            self._give_up(kind, captured.whole)
            return self.fn(*args, **kwargs)
        kind.outside = captured.outside
        if torch.is_grad_enabled() and _wants_grad(flat, kind.outside):
            return self._without_grad(args, kwargs)
        env = captured.environment(flat)
        try:
            variant = self._compiled(captured, env, flat)
        except (Unsupported, Infeasible) as error:
            self._give_up(kind, Fallback(self._name, "", str(error).splitlines()[0]))
            return self.fn(*args, **kwargs)
        if not variant.fits(env):
            self._give_up(
                kind, Fallback(self._name, "", "its guards do not hold for the call it was captured from")
            )
            return self.fn(*args, **kwargs)
        kind.variants.append(variant)
        for fallback in captured.fallbacks:
            self._note(fallback)
        return self._run(kind, variant, env, args, kwargs)

    def _compiled(self, captured: Captured, env: Mapping[str, Any], flat: Sequence[Any]) -> Variant:
        target = self.target or _target_of(env.values())
        if self.tune:
            self._tuned(captured, target)
        callables = tuple(
            self.compile_program(step.program, target=target, sizes=step.sizes)
            for step in captured.program_steps
        )
        if callables:
            self.compile_count += 1
        metas = tuple((env[o.name].dtype, env[o.name].device, env[o.name].dim()) for o in captured.outside)
        return Variant(captured, callables, metas)

    def _tuned(self, captured: Captured, target: str) -> None:
        """Measure what each program could run as at the sizes of this call; the compile then uses it."""
        from cleave.frontend.tuning import tune_program
        from cleave.runtime.tune_point import Limits

        steps = captured.program_steps
        for step in steps:
            tune_program(step.program, target, [step.sizes], Limits(budget=self.tune / len(steps)))

    def _give_up(self, kind: Kind, why: Fallback) -> None:
        kind.eager = why
        self._note(why)

    def _note(self, fallback: Fallback) -> None:
        self.noted[fallback] = None

    # ------------------------------------------------------------ for people

    @property
    def compiled(self) -> tuple[Callable[..., Any], ...]:
        """What the compiler made of each captured program, in order."""
        return tuple(c for k in self.kinds.values() for v in k.variants for c in v.callables)

    @property
    def captures(self) -> tuple[Captured, ...]:
        """All captures in use."""
        return tuple(v.captured for kind in self.kinds.values() for v in kind.variants)

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """What ran in PyTorch, and why."""
        return tuple(self.noted)

    def explain(self) -> str:
        """Programs, guards and fallbacks as text."""
        lines = [f"{self._name}: {self.compile_count} compiles"]
        for captured in self.captures:
            for program in captured.programs:
                lines += ["", print_program(program).rstrip()]
            if not captured.steps:
                lines += ["", "nothing is computed, so there is nothing to compile"]
            if not captured.steps or any(not _is_made(captured, output) for output in captured.outputs):
                lines += ["", "returns", *(f"  {result}" for result in captured.results)]
            if captured.guards:
                lines += ["", "serves calls where", *(f"  {guard}" for guard in captured.guards)]
        if self.noted:
            lines += ["", "in PyTorch", *(f"  {fallback}" for fallback in self.noted)]
        return "\n".join(lines)


class JitModule(Members, Jit):
    """A compiled module: it has what the module has, and is called like it."""


def _is_made(captured: Captured, output: Any) -> bool:
    """Whether a result is what a program computes."""
    made = {name for step in captured.program_steps for name in step.results}
    return isinstance(output, Named) and output.name in made


def _wants_grad(flat: Sequence[Any], outside: Sequence[Outside]) -> bool:
    for leaf in flat:
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            return True
    return bool(outside) and any(item.read().requires_grad for item in outside)


def _watched() -> bool:
    """Whether autocast, a dispatch mode (fake tensors, tracing), a function transform or forward
    differentiation takes part in the call: a kernel would hide from it, or get tensors without memory."""
    return (
        torch._C._is_any_autocast_enabled()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None  # pyright: ignore[reportAttributeAccessIssue]
        or forward_ad._current_level >= 0
    )


def _settings() -> tuple[Any, ...]:
    """The settings that a compiled program depends on."""
    now = knobs()
    return torch.get_default_dtype(), torch._C._get_float32_matmul_precision(), now.numerics, now.reassociate


_LEAVES = {torch.Tensor, torch.nn.Parameter, int, float, bool, str, type(None)}


def _target_of(values: Any) -> str:
    devices = {
        v.device.type for v in values if isinstance(v, torch.Tensor) and (v.dim() or v.device.type != "cpu")
    }
    if len(devices) > 1:
        raise Unsupported(f"tensors on {' and '.join(sorted(devices))}")
    device = next(iter(devices), "cpu")
    if device not in ("cpu", "cuda"):
        raise Unsupported(f"tensors on {device}")
    return device


@checked_call("cleave.jit", "@cleave.jit or cleave.jit(f, dynamic={'x': ('N', None)})")
def jit(
    fn: Callable[..., Any] | None = None,
    *,
    dynamic: Dynamic | None = None,
    target: str | None = None,
    tune: float = 0.0,
    strict: bool = False,
    compile_program: Compiler | None = None,
) -> Any:
    """Compile a function of tensors on first use.

    `@cleave.jit` or `@cleave.jit(dynamic={"x": ("N", None)}, target="cpu")`. `dynamic` names the dynamic axes
    of the inputs; without it all sizes are dynamic but those that meet a module's parameter or are a
    contracted last axis, and those too once one of them changes. With `tune`, in seconds, each compile first
    measures the likeliest kernels at the sizes of its call, and keeps what it learns (see `cleave tune`).
    `CallError`, at once, for arguments that it does not take."""
    make = functools.partial(
        Jit, dynamic=dynamic, target=target, tune=tune, strict=strict, compile_program=compile_program
    )
    if fn is None:
        check_options(dynamic, target, tune, strict, compile_program)
        return make
    return make(fn)


@checked_call("cleave.compile", "cleave.compile(f, (x, w), dynamic={'x': ('N', None)})")
def compile(  # noqa: A001
    fn: Callable[..., Any],
    example_inputs: Sequence[Any],
    *,
    dynamic: Dynamic | None = None,
    target: str | None = None,
    tune: float = 0.0,
    strict: bool = True,
    compile_program: Compiler | None = None,
) -> Jit:
    """Compile ahead of time, for the dtypes, devices and ranks of the example inputs; options as of `jit`.

    The result refuses (`Invalid`, naming argument, expected and actual) calls that do not fit `dynamic`.
    `CallError` for arguments that it does not take."""
    check_inputs(example_inputs)
    compiled = Jit(
        fn, dynamic=dynamic, target=target, tune=tune, strict=strict, compile_program=compile_program
    )
    with torch.no_grad():
        compiled(*example_inputs)
    compiled.least = len(example_inputs) if strict else 0
    return compiled
