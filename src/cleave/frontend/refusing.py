"""Calls that a compiled function does not serve, told: which argument, what was expected, what came."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cleave.errors import CallError, Invalid
from cleave.frontend.arguments import misnamed
from cleave.frontend.calls import name_of_function
from cleave.frontend.capture import by_parameter
from cleave.frontend.captured import Captured
from cleave.frontend.recorded import foreign
from cleave.frontend.trace import users_line
from cleave.ir.ops import Input
from cleave.ir.sizes import infer_sizes

PLAIN = (bool, str, bytes, int, float, type(None), torch.dtype, torch.device)
FEW = 4
"""Values of a list, tuple or dict that are shown one by one."""
TENSOR_OF = "torch.tensor(...) makes a tensor of lists of numbers"


@dataclass(frozen=True, slots=True)
class Foreign:
    """The kind of a tensor that is not plain memory."""

    what: str


@dataclass(frozen=True, slots=True)
class _Leaf:
    """What is known of a value in a call: a dtype, device and rank, or another kind."""

    kind: Any

    def __str__(self) -> str:
        match self.kind:
            case (torch.dtype() as dtype, device, int() as rank):
                return f"{dtype} of rank {rank} on {device}"
            case Foreign(what):
                return what
            case type():
                return self.kind.__name__
            case (type() as kind, value) if issubclass(kind, PLAIN):
                return repr(value) if kind in (str, bytes) else str(value)
            case (type() as kind, _):
                return f"an object of class {kind.__name__}"
            case _:
                return str(self.kind)


def refused(fn: Callable[..., Any], key: Any, first: Any, constants: Sequence[str]) -> Invalid:
    """Why a function that was compiled for the kind of call `first` refuses one of the kind `key`: keys of
    calls, of which the first two items are the tree of the arguments and the kinds of its leaves, and the
    third has the values of `constants`."""
    name = name_of_function(fn)
    (args, kwargs), (own_args, own_kwargs) = _arguments(key), _arguments(first)
    told = misnamed(fn, args, kwargs) if kwargs else None
    if told is not None:
        return told
    given, own = by_parameter(fn, args, kwargs), by_parameter(fn, own_args, own_kwargs)
    if len(given) != len(own):
        here, there = [n for n, _ in given], [n for n, _ in own]
        less = [f"{n!r} is missing" for n in there if n not in here]
        more = [f"the example inputs had no {n!r}" for n in here if n not in there]
        what = f"{name} was compiled for {len(own)} arguments, not {len(given)}"
        what += f": {', '.join(less or more)}" if less or more else ""
        return CallError(what, where=users_line(), hint=f"its arguments: {', '.join(n for n, _ in own)}")
    if len(args) != len(own_args) or set(kwargs) != set(own_kwargs):
        return Invalid(
            f"{name} was compiled for {len(first[1])} tensors in other places of a call",
            where=users_line(),
            hint="by position or by name as when it was compiled; "
            "@cleave.jit compiles each form of a call for itself",
        )
    for (argument, value), (_, expected) in zip(given, own, strict=True):
        if value != expected:
            what = f"argument {argument}: expected {_shown(expected)}, got {_shown(value)}"
            wanted = isinstance(value, list | tuple) and isinstance(expected, _Leaf)
            hint = TENSOR_OF if wanted else "as the example inputs were"
            return Invalid(what, where=users_line(), hint=hint)
    what, again = f"{name} was compiled under other settings of PyTorch or of Cleave", "compile it again"
    for constant, value, expected in zip(constants, key[2], first[2], strict=False):
        if value != expected:
            was, now = map(_plain, (expected, value))
            what = f"{name} was compiled where {constant} is {was!r}; now it is {now!r}"
            again = f"compile it again, or set {constant} back"
            break
    return Invalid(what, where=users_line(), hint=f"{again}, or use @cleave.jit")


def _plain(constant: Any) -> Any:
    """A constant as a key has it: those of closures and globals come with their class."""
    match constant:
        case (type(), value):
            return value
        case _:
            return constant


def _arguments(key: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    leaves = [_Leaf(kind) for kind in key[1]]
    if isinstance(key[0], int):  # a call of tensors and numbers alone: its leaves are its arguments
        return leaves, {}
    args, kwargs = pytree.tree_unflatten(leaves, key[0])
    return args, kwargs


def _shown(tree: Any) -> str:
    if isinstance(tree, _Leaf):
        return str(tree)
    count = len(tree) if hasattr(tree, "__len__") else 0
    if 0 < count <= FEW and isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key!r}: {_shown(value)}" for key, value in tree.items()) + "}"
    if 0 < count <= FEW and isinstance(tree, list | tuple):
        inside = ", ".join(map(_shown, tree))
        return f"[{inside}]" if isinstance(tree, list) else f"({inside})"
    return f"a {type(tree).__name__} of {count}" if count else f"a {type(tree).__name__}"


def lists_noted(fn: Callable[..., Any], args: Any, kwargs: Any) -> list[str]:
    """What may be worth a word where a function fails: arguments that are lists of numbers, which it may have
    wanted as tensors."""
    found: list[str] = []
    for name, value in by_parameter(fn, args, kwargs):
        leaves = pytree.tree_leaves(value)
        if isinstance(value, list) and leaves and all(isinstance(n, int | float) for n in leaves):
            found.append(f"argument {name} is a list of numbers; {TENSOR_OF}")
    return found


def misfit(captured: Captured, flat: Sequence[Any], metas: Sequence[Any]) -> Invalid:
    """One error for sizes that a strict compile does not serve: argument, axis, expected, actual. `metas` are
    the dtypes, devices and ranks of what it reads beside its arguments."""
    env = captured.environment(flat)
    for outside, meta in zip(captured.outside, metas, strict=True):
        tensor = env[outside.name]
        now = foreign(tensor) or str(_Leaf((tensor.dtype, tensor.device, tensor.dim())))
        if now != str(_Leaf(meta)):
            what = f"{captured.name} reads {outside.name}: expected {_Leaf(meta)}, got {now}"
            return Invalid(what, where=users_line(), hint="compile it again, or use @cleave.jit")
    for step in captured.program_steps:
        shapes = {
            node.op.name: tuple(env[name].shape)
            for name, node in zip(step.feeds, step.program.inputs, strict=True)
            if isinstance(node.op, Input) and name in env
        }
        try:
            infer_sizes(step.program, shapes)
        except Invalid as error:
            return error
    shapes_text = ", ".join(f"{n} {list(v.shape)}" for n, v in env.items() if isinstance(v, torch.Tensor))
    return Invalid(
        f"{captured.name} was compiled for calls where {' and '.join(captured.guards)}", where=shapes_text
    )
