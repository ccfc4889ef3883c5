"""What is timed in the Cartpole study: one implementation, ready to run, and how its launches become one CUDA
graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

Outputs = list[Sequence[torch.Tensor]]
"""What a run gives: for each launch the state after it, and reward and done of its steps."""


@dataclass
class Case:
    """One implementation. `call` runs `steps` steps and returns an `Outputs`, or None if it keeps its results
    on the device. The facts are what its row says; `results`, `one_step` and `blocks` are for the study
    itself: a function that gives an `Outputs`, one that takes and gives NumPy arrays of one step, and
    whether a call returns only when the device is done."""

    name: str
    call: Callable[[], Any]
    steps: int
    facts: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Graphed:
    """A run in a CUDA graph. A graph knows addresses: what the run reads lives as long as the run is kept."""

    run: Callable[[], Any]
    graph: Any
    results: Any

    def __call__(self) -> Any:
        self.graph.replay()
        return self.results


def graphed(run: Callable[[], Any]) -> Graphed:
    """A run captured in a CUDA graph, after it has run twice: what is timed is the device's work, not
    Python's."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = run()
    return Graphed(run, graph, kept)
