"""Graphs for the planner's tests: random ones, and the shapes of real programs at any size."""

from __future__ import annotations

import random

from cleave.fusion.graph import Graph, Shape, Vertex, array


class Draft:
    """Collects vertices."""

    def __init__(self) -> None:
        self.vertices: list[Vertex] = []

    def add(self, opcode: str, *operands: Vertex, shape: Shape, **more) -> Vertex:  # type: ignore[no-untyped-def]
        number = len(self.vertices)
        made = Vertex(number, f"v{number}", opcode, operands, shape, **more)
        self.vertices.append(made)
        return made

    def graph(self, *outputs: Vertex) -> Graph:
        return Graph("drawn", tuple(self.vertices), outputs)


def chain(count: int) -> Graph:
    """Elementwise operations one after the other."""
    d, shape = Draft(), array("f32", (1024,))
    v = d.add("parameter", shape=shape)
    for n in range(count - 1):
        v = d.add(("neg", "exp", "abs")[n % 3], v, shape=shape)
    return d.graph(v)


def blocks(count: int) -> Graph:
    """Norm, product, nonlinearity, product, residual: as a transformer has them."""
    d = Draft()
    wide, row, square = array("f32", (512, 256)), array("f32", (512,)), array("f32", (256, 256))
    x = d.add("parameter", shape=wide)
    zero = d.add("constant", shape=array("f32"), value=0)
    while len(d.vertices) < count:
        total = d.add("reduce", d.add("mul", x, x, shape=wide), zero, shape=row, dims=(1,))
        scale = d.add("broadcast", d.add("rsqrt", total, shape=row), shape=wide, dims=(0,))
        h = d.add("dot", d.add("mul", x, scale, shape=wide), d.add("parameter", shape=square), shape=wide)
        u = d.add("mul", d.add("tanh", h, shape=wide), h, shape=wide)
        two = d.add("broadcast", d.add("constant", shape=array("f32"), value=2), shape=wide)
        y = d.add("dot", d.add("add", u, two, shape=wide), d.add("parameter", shape=square), shape=wide)
        x = d.add("add", x, y, shape=wide)
    return d.graph(x)


def updates(count: int) -> Graph:
    """An optimiser's step over many tensors."""
    d = Draft()
    rate, results = d.add("parameter", shape=array("f32")), []
    while len(d.vertices) < count:
        shape = array("f32", (64 + len(d.vertices) % 50, 128))
        p, g, m, v = (d.add("parameter", shape=shape) for _ in range(4))
        first = d.add("add", m, g, shape=shape)
        second = d.add("add", v, d.add("mul", g, g, shape=shape), shape=shape)
        step = d.add("div", first, d.add("sqrt", second, shape=shape), shape=shape)
        scaled = d.add("mul", d.add("broadcast", rate, shape=shape), step, shape=shape)
        results += [d.add("sub", p, scaled, shape=shape), first, second]
    return d.graph(*results)


def drawn(count: int, seed: int) -> Graph:
    """Elementwise operations, reductions, broadcasts, transposes and opaque calls at random; some sizes
    are 0 or 1."""
    rnd, d = random.Random(seed), Draft()
    rows, columns = rnd.choice([0, 1, 33, 128]), rnd.choice([1, 32, 100])
    wide, row, turned = array("f32", (rows, columns)), array("f32", (rows,)), array("f32", (columns, rows))
    pools: dict[Shape, list[Vertex]] = {s: [d.add("parameter", shape=s)] for s in (wide, row, turned)}
    zero = d.add("constant", shape=array("f32"), value=0)
    while len(d.vertices) < count:
        shape = rnd.choice([wide, wide, wide, row, turned])
        a, b = (rnd.choice(pools[shape][-6:]) for _ in range(2))
        kind = rnd.random()
        if kind < 0.6:
            opcode = rnd.choice(["add", "mul", "exp", "log", "neg", "div"])
            v = d.add(opcode, *((a, b) if opcode in ("add", "mul", "div") else (a,)), shape=shape)
        elif kind < 0.7:
            v = d.add("reduce", rnd.choice(pools[wide][-6:]), zero, shape=row, dims=(1,))
        elif kind < 0.8:
            v = d.add("broadcast", rnd.choice(pools[row][-6:]), shape=wide, dims=(0,))
        elif kind < 0.9:
            source, target = (wide, turned) if rnd.random() < 0.5 else (turned, wide)
            v = d.add("transpose", rnd.choice(pools[source][-6:]), shape=target, dims=(1, 0))
        elif kind < 0.95:
            v = d.add("concat", a, shape=shape, dims=(0,))
        else:
            v = d.add("custom-call", a, shape=shape, effect=rnd.random() < 0.5)
        pools[v.shape].append(v)
    users = d.graph().users
    ends = [v for v in d.vertices if not users[v.number] and v.opcode not in ("parameter", "constant")]
    some = [v for v in d.vertices if users[v.number] and v.operands and rnd.random() < 0.05]
    return d.graph(*ends, *some) if ends or some else d.graph(d.vertices[0])
