"""Recording a scan while a function is captured, and building it as a loop of a program.

The body is traced on stand-ins (`Pre` nodes of kind `formal`). What it computes from them is inside the loop;
what it reads from outside becomes an argument that is the same at every step, but for literals, sizes and
positions, which the body makes itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cleave.errors import Invalid
from cleave.frontend.axes import Ix, Var, hint_of, leaves_of, root
from cleave.frontend.build import Builder, Numbering, below, copy_of, extension
from cleave.frontend.recorded import Whole
from cleave.frontend.scan import check_carry, leaf_names, pair
from cleave.frontend.trace import Tracer, users_line
from cleave.frontend.values import TORCH_DTYPES, Pre, Read, Value, fresh_like, read, whole
from cleave.ir.dims import Index, term, var
from cleave.ir.loops import scan_nodes
from cleave.ir.ops import Access, Node, input_node, map_node
from cleave.ir.program import Output, Program


@dataclass(eq=False, slots=True)
class Recorded:
    """A recorded scan. `formals` stand for the states, then for what a step reads; `args` are read at the
    formals' axes and, behind the states, at `times`. `outputs` are the next states, then what steps hand
    out."""

    name: str
    over: Var
    states: int
    formals: list[Pre]
    names: list[str]
    args: list[Read]
    times: list[Ix]
    outputs: list[Value]
    labels: list[str]


def record(t: Tracer, body: Callable[..., Any], init: Any, xs: Any, count: Any) -> tuple[Any, Any]:
    """Trace the body once, and make the results of the loop."""
    where = users_line()
    init = pytree.tree_map(lambda x: x if isinstance(x, torch.Tensor) else torch.as_tensor(x), init)
    states, tree = pytree.tree_flatten(init)
    leaves, reads_tree = pytree.tree_flatten(xs)
    read_ = [leaf for leaf in leaves if leaf is not None]
    given = [t._traced(t._known(leaf)) for leaf in (*states, *read_)]
    over = _over(t, given[len(states) :], count)
    loop = Recorded(getattr(body, "__name__", "body"), over, len(states), [], [], [], [], [], [])
    called = [name for name, leaf in zip(leaf_names(xs, "x"), leaves, strict=True) if leaf is not None]
    names = _distinct([*leaf_names(init), *called])
    fakes: list[torch.Tensor] = []
    for number, (name, leaf, value) in enumerate(zip(names, (*states, *read_), given, strict=True)):
        step = number >= len(states)
        fakes.append(_formal(t, loop, name, leaf, value, step=step))
    before = len(t.calls)
    carry, ys = pair(
        body(
            pytree.tree_unflatten(fakes[: len(states)], tree),
            pytree.tree_unflatten(_filled(leaves, fakes[len(states) :]), reads_tree),
        )
    )
    if len(t.calls) > before:
        raise Whole(f"the body of a scan calls {t.calls[before].name}, which PyTorch runs", where=where)
    check_carry(init, carry)
    outs, ys_tree = pytree.tree_flatten(ys)
    handed = [y for y in outs if y is not None]
    if not all(isinstance(y, torch.Tensor) for y in handed):
        raise Invalid("the outputs of a scan's body must be tensors", where=where)
    loop.outputs = [t._traced(t._known(leaf)) for leaf in (*pytree.tree_leaves(carry), *handed)]
    shown = [name for name, y in zip(leaf_names(ys, "y"), outs, strict=True) if y is not None]
    loop.labels = _distinct([*names[: len(states)], *shown])
    for value, old in zip(loop.outputs, given[: len(states)], strict=False):
        for a, b in zip(value.axes, old.axes, strict=True):
            t.space.match(a, b)
    _close(loop)
    results = _results(t, loop, where)
    return pytree.tree_unflatten(results[: len(states)], tree), pytree.tree_unflatten(
        _filled(outs, results[len(states) :]), ys_tree
    )


def _filled(leaves: Sequence[Any], tensors: Sequence[torch.Tensor]) -> list[Any]:
    """The tensors in the places of those leaves that are not None."""
    rest = iter(tensors)
    return [None if leaf is None else next(rest) for leaf in leaves]


def _over(t: Tracer, values: Sequence[Value], count: Any) -> Var:
    """The dim of the steps."""
    if not values:
        return t.space.sized(t.size(count), int(t.concrete(count)))
    first = values[0].axes[0]
    for value in values[1:]:
        if hint_of(value.axes[0]) != hint_of(first):
            raise Invalid(f"a scan runs over {hint_of(first)} positions and over {hint_of(value.axes[0])}")
        t.space.match(first, value.axes[0])
    if not leaves_of(first):
        return t.space.known(1)
    if len(leaves_of(first)) != 1:
        raise Whole("a scan along an axis that merges several dims")
    return leaves_of(first)[0].var


def _formal(
    t: Tracer, loop: Recorded, name: str, leaf: torch.Tensor, value: Value, *, step: bool
) -> torch.Tensor:
    """A stand-in for a state, or for what one step reads of a tensor."""
    shown = value.axes[1:] if step else value.axes
    axes = tuple(fresh_like(axis) for axis in shown)
    flat = tuple(ix for axis in axes for ix in axis)
    node = Pre("formal", name, flat, value.dtype, level=value.level, call=t.count)
    time = Ix(loop.over)
    loop.formals.append(node)
    loop.names.append(name)
    loop.times.append(time)
    first = ((time,) if leaves_of(value.axes[0]) else (),) if step else ()
    loop.args.append(read(value, (*first, *axes)))
    with torch._C.DisableTorchFunction(), t.fakes:
        shape = tuple(leaf.shape)[1 if step else 0 :]
        fake = torch.empty(tuple(map(int, shape)), dtype=TORCH_DTYPES[value.dtype], device=leaf.device)
        t.input_storages[fake.untyped_storage()._cdata] = name
    t.values[id(fake)] = (fake, whole(node, axes))
    return fake


def _distinct(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        number, wish = 1, name
        while wish in found:
            number += 1
            wish = f"{name}_{number}"
        found.append(wish)
    return found


def _close(loop: Recorded) -> None:
    """What the body reads from outside becomes arguments of the loop."""
    inside: dict[Pre, bool] = dict.fromkeys(loop.formals, True)
    free: dict[Pre, bool] = {}
    stack: list[tuple[Pre, bool]] = [(value.node, False) for value in reversed(loop.outputs)]
    stack += [(r.node, False) for value in loop.outputs for r in _looked_up(value)]
    order: list[Pre] = []
    while stack:
        pre, ready = stack.pop()
        if pre in inside:
            continue
        children = below(pre)
        if ready:
            inside[pre] = any(inside[c] for c in children)
            plain = pre.kind in ("const", "size", "position") or (pre.kind == "map" and bool(children))
            free[pre] = not inside[pre] and not (plain and not any(free.get(c, False) for c in children))
            order.append(pre)
            continue
        stack.append((pre, True))
        stack += [(c, False) for c in reversed(children) if c not in inside]
    wanted: dict[Pre, None] = {}
    for pre in order:
        if inside[pre]:
            wanted.update(dict.fromkeys(c for c in below(pre) if not inside[c] and free[c]))
    ends = [v.node for v in loop.outputs] + [r.node for v in loop.outputs for r in _looked_up(v)]
    wanted.update(dict.fromkeys(n for n in ends if not inside[n] and free[n]))
    for number, pre in enumerate(wanted):
        axes = fresh_like(pre.axes)
        label = pre.data if pre.kind == "scalar" and isinstance(pre.data, str) else f"c{number}"
        loop.names = _distinct([*loop.names, label])
        loop.formals.append(Pre("free", pre, axes, pre.dtype, level=pre.level))
        loop.times.append(Ix(loop.over))
        loop.args.append(Read(pre, axes))


def _looked_up(value: Value) -> list[Read]:
    """What the digits of a value read."""
    probe = Pre("map", "id", (), value.dtype, (Read(value.node, value.digits),))
    return [Read(n, ()) for n in below(probe)[1:]]


def _results(t: Tracer, loop: Recorded, where: str) -> list[torch.Tensor]:
    """A tensor for each result."""
    t.count += 1
    t.recorder.call, t.recorder.where = t.count, where
    made: list[torch.Tensor] = []
    level = max((r.node.level for r in loop.args), default=0)
    steps = root(loop.over).hint
    for number, value in enumerate(loop.outputs):
        axes = tuple(fresh_like(axis) for axis in value.axes)
        if number >= loop.states:
            axes = ((Ix(loop.over),), *axes)
        flat = tuple(ix for axis in axes for ix in axis)
        node = Pre("scan", (loop, number), flat, value.dtype, tuple(loop.args), (), level, where, t.count)
        shape = tuple(hint_of(axis) for axis in value.axes)
        if number >= loop.states:
            shape = (steps, *shape)
        device = t.values[id(_fake_of(t, loop, value))][0].device
        with torch._C.DisableTorchFunction(), t.fakes:
            fake = torch.empty(shape, dtype=TORCH_DTYPES[value.dtype], device=device)
        t.values[id(fake)] = (fake, whole(node, axes))
        made.append(fake)
    return made


def _fake_of(t: Tracer, loop: Recorded, value: Value) -> torch.Tensor:
    """The tensor that a value was traced for."""
    return next(fake for fake, known in t.values.values() if known is value)


# ---------------------------------------------------------------- building


@extension("scan")
def build_scan(builder: Builder, pre: Pre, numbering: Numbering, built: Mapping[Pre, Node]) -> Node:
    """The node of a result of a loop; the loop is built once."""
    loop, number = pre.data
    nodes = builder.kept.get(loop)
    if nodes is None:
        nodes = builder.kept[loop] = _build(builder, loop, numbering, built)
    node = nodes[number]
    if number < loop.states or leaves_of((Ix(loop.over),)):
        return node
    # A dim of one step has no index: the only step's output.
    own = [Index(index.dim, n) for n, index in enumerate(node.axes[1:])]
    return map_node("id", own, [Access(node, (term(offset=0), *map(var, own)))], node.dtype)


def _build(
    builder: Builder, loop: Recorded, numbering: Numbering, built: Mapping[Pre, Node]
) -> tuple[Node, ...]:
    inputs: list[Node] = []
    args: list[Access] = []
    inner: dict[Pre, Node] = {}
    over = builder.names.dim(root(loop.over))
    for name, formal, time, arg in zip(loop.names, loop.formals, loop.times, loop.args, strict=True):
        leaves = leaves_of(formal.axes)
        dims = [builder.names.dim(ix.var) for ix in leaves]
        node = input_node(name, [[dim] for dim in dims], formal.dtype)
        own = {ix: Index(dim, n) for n, (ix, dim) in enumerate(zip(leaves, dims, strict=True))}
        own |= {ix: Index(over, len(dims)) for ix in leaves_of((time,))}
        inputs.append(node)
        args.append(builder._access(arg, {**numbering, **own}, built))
        inner[formal.data if formal.kind == "free" else formal] = node
    outputs: list[Output] = []
    lines: dict[Node, str] = {}
    for label, value in zip(loop.labels, loop.outputs, strict=True):
        plain = value if builder._is_plain(value) and _in_order(value) else copy_of(value)
        builder._below(plain.node, inner, lines)
        node = inner[plain.node]
        outputs.append(Output(label, node, tuple((n,) for n in range(len(node.axes)))))
    body = Program(loop.name, tuple(inputs), tuple(outputs), lines=lines)
    return scan_nodes(over, body, loop.states, args)


def _in_order(value: Value) -> bool:
    """Whether a value's axes are its node's in order."""
    shown = [ix for axis in value.axes for ix in leaves_of(axis)]
    return shown == list(leaves_of(value.node.axes)) and value.node.kind not in ("formal", "free", "scan")
