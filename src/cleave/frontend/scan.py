"""`cleave.scan`: a loop with carried state, written once and run in PyTorch or captured as one operation.

In eager PyTorch it is a plain Python loop. While a function is captured the body is traced once, on stand-ins
for the states and for what a step reads, and becomes one loop of the program (`cleave.ir.ops.Scan`), which
the scheduler may run inside one kernel. Tensors that the body reads from outside are read at every step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from cleave.errors import CallError, Invalid
from cleave.frontend.calls import checked_call, shown
from cleave.frontend.trace import users_line
from cleave.ir.sizes import check_size

if TYPE_CHECKING:
    from cleave.frontend.trace import Tracer

Body = Callable[[Any, Any], tuple[Any, Any]]


@checked_call("cleave.scan", "carry, ys = cleave.scan(body, init, xs)")
def scan(body: Body, init: Any, xs: Any = None, length: int | None = None) -> tuple[Any, Any]:
    """Run `carry, y = body(carry, x)` once for each position along the first axes of the tensors `xs`, or
    `length` times; returns the last carry, and all `y` stacked along a new first axis.

    `init`, `xs` and `y` are trees of tensors (`None` where there is nothing); the carry keeps its structure,
    shapes and dtypes. The same as `jax.lax.scan`. `Invalid` if the carry changes, if lengths differ, or if
    neither `xs` nor `length` says how often; `CallError` for a body that is no function or returns no pair,
    and for a length that is no whole number."""
    if not callable(body):
        what = f"the body of a scan is a function of carry and x, not {shown(body)}"
        raise CallError(what, where=users_line(), hint="def body(carry, x): return carry, y")
    leaves, tree = pytree.tree_flatten(xs)
    count = _length([leaf for leaf in leaves if leaf is not None], length)
    tracer = _tracer()
    if tracer is not None:
        from cleave.frontend.record_scan import record

        return record(tracer, body, init, xs, count)
    if int(count) == 0:
        empty = [
            None if x is None else torch.zeros(x.shape[1:], dtype=x.dtype, device=x.device) for x in leaves
        ]
        _, ys = pair(body(init, pytree.tree_unflatten(empty, tree)))
        return init, pytree.tree_map(lambda y: None if y is None else y.new_empty((0, *y.shape)), ys)
    carry = init
    columns: list[list[torch.Tensor | None]] = []
    spec: Any = None
    for step in range(int(count)):
        here = [None if leaf is None else leaf[step] for leaf in leaves]
        new, ys = pair(body(carry, pytree.tree_unflatten(here, tree)))
        check_carry(init, new)
        carry = new
        found, other = pytree.tree_flatten(ys)
        if not step:
            spec, columns = other, [[] for _ in found]
        _check_outputs(found, other, [column[0] for column in columns] if step else found, spec)
        for column, value in zip(columns, found, strict=True):
            column.append(value)
    handed = [[y for y in column if y is not None] for column in columns]
    stacked = [torch.stack(column) if column else None for column in handed]
    return carry, pytree.tree_unflatten(stacked, spec)


def pair(result: Any) -> tuple[Any, Any]:
    """What a body returned as its next carry and what it hands out; `CallError` if that is no pair."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        what = f"the body of a scan returns two things, carry and y, not {shown(result)}"
        raise CallError(
            what, where=users_line(), hint="return carry, None where there is nothing to hand out"
        )
    return result[0], result[1]


def _check_outputs(found: list[Any], tree: Any, first: list[Any], expected: Any) -> None:
    """`Invalid` unless a step hands out tensors, of the shapes and dtypes of the first step's."""
    kinds = [
        [(tuple(y.shape), y.dtype) if isinstance(y, torch.Tensor) else y for y in ys] for ys in (found, first)
    ]
    for y in kinds[0]:
        if y is not None and not isinstance(y, tuple):
            what = f"the outputs of a scan's body must be tensors, not {shown(y)}"
            raise Invalid(what, where=users_line(), hint="torch.tensor(...) makes one of a number")
    if tree != expected or kinds[0] != kinds[1]:
        what = f"a scan's body hands out {kinds[1]} at its first step and {kinds[0]} at a later one"
        raise Invalid(what, where=users_line(), hint="the same shapes and dtypes at every step")


def check_carry(before: Any, after: Any) -> None:
    """`Invalid` unless a carry keeps its structure, and its tensors their shapes and dtypes."""
    old, tree = pytree.tree_flatten(before)
    new, other = pytree.tree_flatten(after)
    if tree != other:
        raise Invalid(f"the carry of a scan begins as {tree} and is {other} after a step")
    for name, one, two in zip(leaf_names(before), old, new, strict=True):
        if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
            raise Invalid(f"the carry {name} of a scan is {type(two).__name__}, expected tensors")
        if (tuple(one.shape), one.dtype) != (tuple(two.shape), two.dtype):
            what = f"the carry {name} of a scan begins as {one.dtype}{list(one.shape)}"
            raise Invalid(f"{what} and is {two.dtype}{list(two.shape)} after a step")


def leaf_names(tree: Any, stem: str = "s") -> list[str]:
    """A name for each leaf of a tree: the keys that lead to it, or its number."""
    names: list[str] = []
    for path, _ in pytree.tree_flatten_with_path(tree)[0]:
        parts = [re.sub(r"\W", "", str(step)) for step in path]
        name = "_".join(part for part in parts if part)
        names.append(name if name and not name[0].isdigit() else f"{stem}{name}" if name else stem)
    return names


def _length(leaves: Sequence[Any], length: Any) -> Any:
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
            what = f"what a scan runs over must be tensors with at least one axis, not {shown(leaf)}"
            raise Invalid(what, where=users_line(), hint="xs=None and length=100 runs over nothing")
    sizes = [leaf.shape[0] for leaf in leaves]
    if not sizes and length is None:
        raise Invalid("a scan needs `xs` or `length`", where=users_line(), hint="length=100")
    if length is not None and (isinstance(length, bool) or not isinstance(length, Integral | torch.SymInt)):
        what = f"the length of a scan is a whole number, not {shown(length)}"
        raise CallError(what, where=users_line(), hint="length=100")
    first: Any = sizes[0] if sizes else length
    size: Any
    for size in [*sizes, *([length] if length is not None else [])]:
        if size is not first and size != first:
            what = f"a scan runs over {int(first)} positions and over {int(size)}"
            raise Invalid(what, where=users_line(), hint="one number of steps for all that it reads")
    if isinstance(first, int):
        try:
            check_size(first, "the length of a scan")
        except Invalid as error:
            raise Invalid(error.what, where=users_line(), hint=error.hint) from None
    return first


def _tracer() -> Tracer | None:
    """The capture that is going on, if one is."""
    stack = torch.overrides._get_current_function_mode_stack()
    if not stack:
        return None
    from cleave.frontend.trace import Tracer

    return stack[-1] if isinstance(stack[-1], Tracer) else None
