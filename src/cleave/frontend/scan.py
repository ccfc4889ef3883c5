"""`cleave.scan`: a loop with carried state, written once and run in PyTorch or captured as one operation.

In eager PyTorch it is a plain Python loop. While a function is captured the body is traced once, on stand-ins
for the states and for what a step reads, and becomes one loop of the program (`cleave.ir.ops.Scan`), which
the scheduler may run inside one kernel. Tensors that the body reads from outside are read at every step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from cleave.errors import Invalid

if TYPE_CHECKING:
    from cleave.frontend.trace import Tracer

Body = Callable[[Any, Any], tuple[Any, Any]]


def scan(body: Body, init: Any, xs: Any = None, length: int | None = None) -> tuple[Any, Any]:
    """Run `carry, y = body(carry, x)` once for each position along the first axes of the tensors `xs`, or
    `length` times; returns the last carry, and all `y` stacked along a new first axis.

    `init`, `xs` and `y` are trees of tensors (`None` where there is nothing); the carry keeps its structure,
    shapes and dtypes. The same as `jax.lax.scan`. `Invalid` if the carry changes, if lengths differ, or if
    neither `xs` nor `length` says how often."""
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
        _, ys = body(init, pytree.tree_unflatten(empty, tree))
        return init, pytree.tree_map(lambda y: None if y is None else y.new_empty((0, *y.shape)), ys)
    carry = init
    columns: list[list[torch.Tensor]] = []
    spec: Any = None
    for step in range(int(count)):
        here = [None if leaf is None else leaf[step] for leaf in leaves]
        new, ys = body(carry, pytree.tree_unflatten(here, tree))
        check_carry(init, new)
        carry = new
        found, spec = pytree.tree_flatten(ys)
        columns = columns or [[] for _ in found]
        for column, value in zip(columns, found, strict=True):
            column.append(value)
    stacked = [None if column[0] is None else torch.stack(column) for column in columns]
    return carry, pytree.tree_unflatten(stacked, spec)


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
            raise Invalid("what a scan runs over must be tensors with at least one axis")
    sizes = [leaf.shape[0] for leaf in leaves]
    if not sizes and length is None:
        raise Invalid("a scan needs `xs` or `length`")
    first = sizes[0] if sizes else length
    for size in [*sizes, *([length] if length is not None else [])]:
        if size is not first and size != first:
            raise Invalid(f"a scan runs over {first} positions and over {size}")
    if isinstance(first, int) and first < 0:
        raise Invalid(f"a scan over {first} positions")
    return first


def _tracer() -> Tracer | None:
    """The capture that is going on, if one is."""
    stack = torch.overrides._get_current_function_mode_stack()
    if not stack:
        return None
    from cleave.frontend.trace import Tracer

    return stack[-1] if isinstance(stack[-1], Tracer) else None
