"""`torch.compile(fn, backend="cleave")`: the graph that dynamo hands over is captured and compiled like any
function. Registered in pyproject under `torch_dynamo_backends` as `cleave.frontend.torch_compile:backend`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from cleave.frontend.jit import Jit

compiled_graphs: list[Jit] = []
"""Every graph compiled so far in this process, in order: for `explain` and for counting."""


def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """A dynamo backend. Inputs that require a gradient run in PyTorch, with their gradient."""
    holders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    places = sizes_in([node.meta.get("example_value") for node in holders])
    kept = tuple(n for n in range(len(example_inputs)) if n not in places)

    def run(*args: Any) -> Any:
        given = dict(zip(kept, args, strict=True))
        for number, (tensor, axis) in places.items():
            given[number] = given[tensor].shape[axis]
        return graph.forward(*[given[number] for number in range(len(given))])

    run.__name__ = "graph"
    compiled = Jit(run, **(options.get("options") or {}))
    compiled_graphs.append(compiled)
    return (lambda *args: compiled(*[args[n] for n in kept])) if places else compiled


def sizes_in(inputs: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """The inputs that dynamo gives as numbers and that are sizes of others: which tensor, which axis.

    A size read off its tensor stays a dynamic dim; a number used as a size would be one compile per value."""
    first: dict[Any, tuple[int, int]] = {}
    for number, value in enumerate(inputs):
        for axis, size in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(size, torch.SymInt):
                first.setdefault(size.node.expr, (number, axis))
    return {
        number: first[value.node.expr]
        for number, value in enumerate(inputs)
        if isinstance(value, torch.SymInt) and value.node.expr in first
    }
