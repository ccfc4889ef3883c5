"""The short way of a repeated call: one look-up from what the arguments are to what runs.

A call of tensors alone whose classes, dtypes, devices, shapes, strides, alignments and gradients were seen
before, under the same settings, takes the same variant of the same program: its guards depend on nothing
else. `Quick` remembers that. Whatever is not of this kind (numbers, containers, keyword arguments, functions
that run partly in PyTorch) goes the long way, which is right for everything.

The latest call on the CPU is told by the guards of PyTorch's own compiler, which compare all of this without
a line of Python for each tensor: a `Repeat`. Where they are missing, or say no, the look-up decides.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree

from cleave.frontend.captured import Captured, Named, Outside, ProgramStep
from cleave.frontend.recorded import TENSORS
from cleave.knobs import Knobs, knobs

Run = Callable[..., Any]
MOST = 4096
PLAIN = (torch.Tensor, torch.nn.Parameter)

_torch: Any = torch._C
_precision: Callable[[], str] = _torch._get_float32_matmul_precision
_modes: Callable[[], int] = _torch._len_torch_dispatch_stack
_transforms: Callable[[], Any] = _torch._functorch.peek_interpreter_stack


def _state() -> Callable[[], bool] | None:
    """Says whether the global state (gradients, autocast, default dtype, threads) is what it is now."""
    try:
        return _torch._dynamo.guards.GlobalStateGuard().check
    except (AttributeError, TypeError):
        return None


def _alike(values: Sequence[torch.Tensor]) -> Callable[..., bool] | None:
    """Says whether as many other values are tensors of the classes, dtypes, devices, shapes, strides and
    gradients of these."""
    try:
        shapes, strides = [list(v.shape) for v in values], [list(v.stride()) for v in values]
        guards = _torch._dynamo.guards.TensorGuards(
            *values, dynamic_dims_sizes=shapes, dynamic_dims_strides=strides
        )
        return guards.check if guards.check(*values) else None
    except (AttributeError, TypeError, ValueError, RuntimeError, SystemError):
        return None


@dataclass(slots=True)
class Repeat:
    """A remembered call of plain tensors on the CPU. The guards know no forward differentiation, not every
    mode, and no settings of ours."""

    run: Run
    count: int
    alike: Callable[..., bool]
    state: Callable[[], bool]
    knobs: Knobs
    precision: str
    constants: tuple[Any, ...]

    def serves(self, values: Sequence[Any], constants: tuple[Any, ...]) -> bool:
        """Whether these values are such a call."""
        return (
            len(values) == self.count
            and not _modes()
            and _transforms() is None
            and forward_ad._current_level < 0
            and self.knobs is knobs()
            and self.alike(*values)
            and self.state()
            and _precision() == self.precision
            and constants == self.constants
        )


def repeat_of(run: Run, values: Sequence[torch.Tensor], constants: tuple[Any, ...]) -> Repeat | None:
    """How the call of these tensors is told from now on; none where that takes a look at each."""
    if not values or any(v.device.type != "cpu" for v in values):
        return None
    alike, state = _alike(values), _state()
    if alike is None or state is None:
        return None
    return Repeat(run, len(values), alike, state, knobs(), _precision(), constants)


def signature(values: Sequence[Any], settings: Any) -> Any:
    """All that decides about a call of these tensors; none if one of them is not plain memory."""
    if not all(type(a) in PLAIN for a in values):
        return None
    try:
        return (
            settings,
            tuple(
                [
                    (
                        type(a),
                        a.shape,
                        a.stride(),
                        a.dtype,
                        a.device,
                        a.data_ptr() & 15,
                        a.requires_grad,
                        a.is_neg(),
                    )
                    for a in values
                ]
            ),
        )
    except (AttributeError, TypeError, RuntimeError):
        return None  # no tensor, or one of another layout


class Quick:
    """The calls of one function that take the short way."""

    def __init__(self) -> None:
        self.latest: Repeat | None = None
        self.runs: dict[Any, Run] = {}
        self.repeats: dict[Any, Repeat] = {}
        self.outside: tuple[Outside, ...] | None = None
        self.lock = threading.Lock()

    def values(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments and what the function reads beside them."""
        if not self.outside:
            return args
        return (*args, *[item.read() for item in self.outside])

    def found(self, values: tuple[Any, ...], settings: Any) -> Run | None:
        """What runs a call of these values under these settings (of which the first are the constants in
        sight), if it was seen before."""
        key = signature(values, settings)
        run = self.runs.get(key)
        if run is not None:
            repeat = self.repeats.get(key)
            if repeat is None or repeat.run is not run or not repeat.serves(values, settings[0]):
                repeat = repeat_of(run, values, settings[0])
                if repeat is not None:
                    self.repeats[key] = repeat
            self.latest = repeat
        return run

    def remember(self, captured: Captured, program: Any, args: tuple[Any, ...], settings: Any) -> None:
        """Take the short way from now on for calls like this one, if there is one."""
        if self.outside is not None and self.outside != captured.outside:
            return  # another kind of call reads other things
        feeds = places(captured, len(args))
        prepare = getattr(program, "prepared", None)
        if feeds is None or prepare is None:
            return
        if any(type(a) not in TENSORS or a.layout is not torch.strided for a in args):
            return
        values = (*args, *[item.read() for item in captured.outside])
        key = signature(values, settings)
        if key is None or any(v.layout is not torch.strided for v in values):
            return
        run = prepare(*[values[place] for place in feeds])
        if run is None:
            return
        if len(self.runs) >= MOST:
            self.runs.clear()
            self.repeats.clear()
        run = fed(run, feeds, len(values), results(captured))
        with self.lock:
            # Another thread may have come first, with a kind of call that reads other things.
            if self.outside in (None, captured.outside):
                self.outside = captured.outside
                self.runs[key] = run


def places(captured: Captured, count: int) -> tuple[int, ...] | None:
    """Where the only program of a capture finds its inputs among arguments and what is read beside them; none
    if there is more to do than run it."""
    if len(captured.steps) != 1 or not isinstance(captured.steps[0], ProgramStep):
        return None
    if results(captured) is None or len(captured.arguments) != count:
        return None
    if any(argument.kind != "tensor" for argument in captured.arguments):
        return None
    names = [a.name for a in captured.arguments] + [o.name for o in captured.outside]
    feeds = captured.steps[0].feeds
    return tuple(names.index(name) for name in feeds) if set(feeds) <= set(names) else None


def results(captured: Captured) -> tuple[str, tuple[int, ...]] | None:
    """How the result is made of the program's: `one`, `tuple` or `list`, and which of them; none for what
    else a function may return."""
    step = captured.steps[0]
    assert isinstance(step, ProgramStep)
    made = {name: place for place, name in enumerate(step.results)}
    found = [made.get(o.name) if type(o) is Named else None for o in captured.outputs]
    wanted = tuple(place for place in found if place is not None)
    if len(wanted) != len(found) or len(set(wanted)) != len(wanted):
        return None
    if captured.spec.is_leaf():
        return "one", wanted
    tree = pytree.tree_unflatten(list(wanted), captured.spec)
    if type(tree) in (tuple, list) and list(tree) == list(wanted):
        return type(tree).__name__, wanted
    return None


def fed(run: Run, feeds: tuple[int, ...], count: int, result: tuple[str, tuple[int, ...]] | None) -> Run:
    """`run` as a function of all values, with the user's result."""
    assert result is not None
    kind, wanted = result
    plain = feeds == tuple(range(count))
    if kind == "tuple" and plain and wanted == tuple(range(len(wanted))):
        return lambda *values: run(*values)[: len(wanted)]
    if kind == "one":
        (only,) = wanted
        if plain and only == 0 and (single := getattr(run, "single", None)) is not None:
            return single
        if plain:
            return lambda *values: run(*values)[only]
        return lambda *values: run(*[values[place] for place in feeds])[only]
    make = tuple if kind == "tuple" else list

    def call(*values: Any) -> Any:
        outputs = run(*[values[place] for place in feeds])
        return make([outputs[place] for place in wanted])

    return call
