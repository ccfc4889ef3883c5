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

    def run(*args: Any) -> Any:
        return graph.forward(*args)

    run.__name__ = "graph"
    compiled = Jit(run, **(options.get("options") or {}))
    compiled_graphs.append(compiled)
    return compiled
