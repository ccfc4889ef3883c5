"""Loops with carried state: how the results of a scan are built, and what a loop is to those that walk over
it.

A scan is one loop with several results; each result is a node of its own (`cleave.ir.ops.Scan`) and two of
them belong to one loop if they agree in all but `result`. `scan_nodes` builds all of them; `Loop` is what
they share. The body is a program of its own, in which the states and what a step reads are inputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cleave.errors import Bug
from cleave.ir.dims import Dim, Index
from cleave.ir.ops import Access, Input, Node, Scan, make_node
from cleave.ir.program import Program


@dataclass(frozen=True, slots=True)
class Loop:
    """What the results of one scan share."""

    over: Dim
    body: Program
    states: int
    args: tuple[Access, ...]

    def time(self, number: int) -> Index:
        """The position in `over`, as argument number `number` reads it."""
        return Index(self.over, len(self.body.inputs[number].axes))

    @property
    def key(self) -> str:
        """A text that tells loops apart."""
        return self.result(0).digest

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the body's inputs."""
        return tuple(n.op.name for n in self.body.inputs if isinstance(n.op, Input))

    def result(self, number: int) -> Node:
        """The node of one result."""
        own = self.body.outputs[number].node
        dims = own.dims if number < self.states else (self.over, *own.dims)
        axes = [Index(dim, n) for n, dim in enumerate(dims)]
        return make_node(Scan(self.over, self.body, self.states, self.args, number), axes, own.dtype)


def loop_of(op: Scan) -> Loop:
    """The loop that a result belongs to."""
    return Loop(op.over, op.body, op.states, op.args)


def scan_nodes(over: Dim, body: Program, states: int, args: Sequence[Access]) -> tuple[Node, ...]:
    """All results of a loop: the states after the last step, then what the steps hand out. `Bug` if the body
    and the arguments do not fit (see `cleave.ir.ops.Scan`)."""
    for output in body.outputs:
        if output.layout != tuple((n,) for n in range(len(output.node.axes))):
            raise Bug(f"output {output.name} of a scan's body is not laid out as its node")
    if len({output.name for output in body.outputs}) < len(body.outputs):
        raise Bug(f"two outputs of a scan's body {body.name} have one name")
    loop = Loop(over, body, states, tuple(args))
    return tuple(loop.result(number) for number in range(len(body.outputs)))


def loops_in(nodes: Iterable[Node]) -> tuple[Loop, ...]:
    """The loops among some nodes, in order, each once."""
    return tuple(dict.fromkeys(loop_of(n.op) for n in nodes if isinstance(n.op, Scan)))
