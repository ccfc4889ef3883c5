"""Rewrites of a graph that a user could make in the source, to try out what they would change.

Each yields a sentence for the user and the edited graph. They are tried on a copy, nothing is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from cleave.fusion.graph import Formed, Graph, Vertex
from cleave.fusion.notation import unknown_in

Replacement = Callable[[dict[int, Vertex], int], "list[Vertex]"]


def rewrites(graph: Graph, one: Vertex, two: Vertex) -> Iterator[tuple[str, Graph]]:
    """What could be rewritten between two operations, the smallest first."""
    if one in graph.outputs and len(graph.outputs) > 1:
        kept = tuple(o for o in graph.outputs if o is not one)
        yield f"do not return {one.name}", _rebuilt(graph, {}, kept)
    if len(graph.users[one.number]) > 1 and one.number in [o.number for o in two.operands]:
        yield (
            f"compute {one.name} once more for {two.name} instead of sharing it",
            _with_copy(graph, one, two),
        )
    for concat in _concats_between(graph, one, two):
        parts = len(concat.operands)
        yield (
            f"keep the {parts} parts of {concat.name} as separate tensors instead of concatenating them",
            _without_concat(graph, concat),
        )
    walls = {
        v.number for v in (*unknown_in(graph), *(v for v in graph.vertices if v.opcode == "custom-call"))
    }
    for v in (one, two):
        if v.number in walls:
            yield (
                f"write {v.name} ({v.opcode}) as plain operations instead of an opaque call",
                _opened(graph, v),
            )


def _concats_between(graph: Graph, one: Vertex, two: Vertex) -> list[Vertex]:
    near = {one.number, two.number, *graph.users[one.number], *(o.number for o in two.operands)}
    near |= {o.number for n in list(near) for o in graph.vertices[n].operands}
    return [v for v in graph.vertices if v.number in near and v.opcode == "concat"]


def _rebuilt(
    graph: Graph,
    replaced: Mapping[int, Replacement],
    outputs: tuple[Vertex, ...],
) -> Graph:
    """The graph with some vertices replaced by others; what nothing needs any more goes."""
    new: dict[int, Vertex] = {}
    made: list[Vertex] = []
    for v in graph.vertices:
        if v.number in replaced:
            more = replaced[v.number](new, len(made))
        else:
            more = [_moved(v, len(made), tuple(new[o.number] for o in v.operands))]
        made += more
        new[v.number] = more[-1] if more else new[v.operands[0].number]
    formed = tuple(
        Formed(
            f.name, f.kind, tuple(new[m.number] for m in f.members), tuple(new[o.number] for o in f.outputs)
        )
        for f in graph.formed
    )
    return Graph(graph.name, tuple(made), tuple(new[o.number] for o in outputs), formed)


def _moved(v: Vertex, number: int, operands: tuple[Vertex, ...], name: str = "", opcode: str = "") -> Vertex:
    return Vertex(
        number,
        name or v.name,
        opcode or v.opcode,
        operands,
        v.shape,
        v.dims,
        v.starts,
        v.strides,
        v.window,
        v.value,
        v.effect and not opcode,
        v.view,
        v.line,
        v.node,
        v.body,
        v.trips,
        v.inner,
    )


def _with_copy(graph: Graph, one: Vertex, two: Vertex) -> Graph:
    def make(new: dict[int, Vertex], number: int) -> list[Vertex]:
        copy = _moved(one, number, tuple(new[o.number] for o in one.operands), f"{one.name}~copy")
        operands = tuple(copy if o is one else new[o.number] for o in two.operands)
        return [copy, _moved(two, number + 1, operands)]

    return _rebuilt(graph, {two.number: make}, graph.outputs)


def _without_concat(graph: Graph, concat: Vertex) -> Graph:
    """Readers of a concatenation read parts: slices that lie in one part become that part's slices, and as a
    result the parts are handed out."""
    axis = concat.dims[0] if concat.dims else 0

    def cut(v: Vertex) -> Replacement | None:
        if v.opcode != "slice" or v.operands[0] is not concat:
            return None
        start = 0
        for part in concat.operands:
            extent = part.shape.dims[axis]
            if start <= v.starts[axis] and v.starts[axis] + v.shape.dims[axis] <= start + extent:
                return _slice_of(
                    v, part, tuple(s - start if k == axis else s for k, s in enumerate(v.starts))
                )
            start += extent
        return None

    edits = {v.number: made for v in graph.vertices if (made := cut(v)) is not None}
    outputs: list[Vertex] = []
    for o in graph.outputs:
        outputs += concat.operands if o is concat else [o]
    needed = [n for n in graph.users[concat.number] if n not in edits]
    if not needed:
        edits[concat.number] = lambda new, number: [
            _moved(concat, number, tuple(new[o.number] for o in concat.operands), opcode="tuple")
        ]
    return _rebuilt(graph, edits, tuple(dict.fromkeys(outputs)))


def _slice_of(v: Vertex, part: Vertex, starts: tuple[int, ...]) -> Replacement:
    def make(new: dict[int, Vertex], number: int) -> list[Vertex]:
        more = {"view": v.view, "line": v.line, "node": v.node}
        return [
            Vertex(number, v.name, "slice", (new[part.number],), v.shape, v.dims, starts, v.strides, **more)  # type: ignore[arg-type]
        ]

    return make


def _opened(graph: Graph, v: Vertex) -> Graph:
    def make(new: dict[int, Vertex], number: int) -> list[Vertex]:
        return [_moved(v, number, tuple(new[o.number] for o in v.operands), opcode="add")]

    return _rebuilt(graph, {v.number: make}, graph.outputs)
