"""Reads the text form that `text` prints (import `parse_program` from there).

    program rms_linear(x: f32[N, K], w: f32[O, K], eps: scalar f32) where K = 2048, M = N - 1 {
      sq[n: N]: f32 = sum[k: K](sq_x[n, k])       # reduction; `contract[k: K](a[n, k], b[k])`
      c[n: N, z: (A | B)]: f32 = cat[z = a | b](x[n, a], y[n, b])
      at[n: N]: i64 = index(n + 1)                # terms: `2*i - T`, `ids[i]`, ... (`parse_terms`)
      y[n: N]: f32 = mul(sq[n], 0.5)              # pointwise; literals and `size(K)` may stand inside
      scan walk[t: T](s[n: N] = y[n]; a[n: N] = z[t, n])   # a loop: states; what a step reads
      body step(s: f32[N], a: f32[N]) { ... return s: add1[n], seen: mul1[n] }
      last[n: N]: f32 = scan(walk, s)             # a result of it: the last state, or all steps' outputs
      return o: y[n, 1]                           # one entry per axis of the result: `kv*g`, or `1`
    }

An input axis is a product of dims. Dims are declared by inputs and by `where` (`where T` just declares).
Every error is a `ParseError` that shows the place and says what was expected.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from fractions import Fraction

from cleave.errors import Bug
from cleave.ir.dims import Atom, Dim, Extent, Index, Union
from cleave.ir.lexis import Cursor, Token, at_number, index_names, parse_dim, parse_number
from cleave.ir.loops import scan_nodes
from cleave.ir.ops import (
    DTYPES,
    MAPS,
    REDUCTIONS,
    Access,
    Node,
    Number,
    cat_node,
    const,
    contract_node,
    input_node,
    map_node,
    position,
    reduce_node,
    scalar_node,
    size,
)
from cleave.ir.parse_terms import Known, listed
from cleave.ir.program import Output, Program

COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_OPERATIONS = (*MAPS, *(r for r in REDUCTIONS if r not in MAPS), "contract", "cat", "index", "size", "scan")


def literal_dtype(fn: str, dtype: str, arguments: Iterable[str | None]) -> str:
    """The dtype of a literal argument whose text gives none, for the dtypes of the other arguments (None for
    literals): in a comparison that of the first other argument, else the operation's own `dtype`."""
    given = next((d for d in arguments if d is not None), None)
    return given if fn in COMPARISONS and given is not None else dtype


def parse_program(text: str) -> Program:
    """The program that a text describes; `ParseError` otherwise."""
    cursor = Cursor(text)
    program = Block(cursor, set()).program("program")
    cursor.done()
    return program


@dataclass(frozen=True, slots=True)
class _Literal:
    """An argument that is a literal or a size, before its dtype is known."""

    value: Number | Dim
    dtype: str | None

    def access(self, dtype: str) -> Access:
        own = self.dtype or dtype
        if isinstance(self.value, bool | int | float | Fraction):
            return const(self.value, own)
        return size(self.value, own)


@dataclass(slots=True)
class Block(Known):
    """Reads one program. `names` holds the first name of each node, `axes` the names of a node's axes by its
    name, `loops` and `results` the results of each loop and what they are called."""

    names: dict[Node, str] = field(default_factory=dict[Node, str])
    axes: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    loops: dict[str, tuple[Node, ...]] = field(default_factory=dict[str, tuple[Node, ...]])
    results: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])

    # ------------------------------------------------------------ operations

    def statement(self) -> None:
        """`name[i: N]: f32 = operation`; adds to the nodes that are known."""
        token = self.cursor.peek()
        if self.cursor.at("scan") and self.cursor.peek(1).kind in ("name", "quoted"):
            self._loop()
            return
        name = self.cursor.name("a statement (`y[n: N]: f32 = ...`) or `return`")
        self._fresh(name, token)
        indices: dict[str, Index] = {}
        axes = self.declare(indices) if self.cursor.accept("[") else []
        self.axes[name] = tuple(indices)
        self.cursor.expect(":")
        dtype = self._dtype()
        self.cursor.expect("=")
        with self.located(self.cursor.peek()):
            node = self._operation(axes, indices, dtype)
        self.nodes[name] = node
        self.names.setdefault(node, name)

    @contextmanager
    def located(self, token: Token) -> Generator[None]:
        """Turn an invariant that the text breaks into an error at `token`."""
        try:
            yield
        except Bug as error:
            raise self.cursor.error(str(error), token) from error

    def _fresh(self, name: str, token: Token) -> None:
        if name in self.nodes:
            raise self.cursor.error(f"{name} is defined twice", token)

    def _dtype(self) -> str:
        token = self.cursor.peek()
        if token.kind != "name" or token.text not in DTYPES:
            raise self.cursor.wrong("a dtype", f"one of {', '.join(DTYPES)}")
        return self.cursor.take().text

    def _operation(self, axes: list[Index], indices: dict[str, Index], dtype: str) -> Node:
        cursor, token = self.cursor, self.cursor.peek()
        if at_number(cursor) or cursor.at("size"):
            if axes:
                raise cursor.error("a literal and a size have no axes", token)
            return self._literal().access(dtype).node
        fn = token.text
        if token.kind != "name" or fn not in _OPERATIONS:
            close = get_close_matches(fn, _OPERATIONS, 3)
            hint = f"close: {', '.join(close)}" if close else f"one of {', '.join(_OPERATIONS)}"
            raise cursor.wrong("an operation", hint)
        cursor.take()
        if fn == "index":
            cursor.expect("(")
            value = self.term(indices)
            cursor.expect(")")
            return position(axes, value, dtype)
        if fn == "cat":
            return self._cat(axes, indices, dtype)
        if fn == "scan":
            return self._result(axes, dtype, token)
        if fn in MAPS and not cursor.at("["):
            return map_node(fn, axes, self._arguments(indices, fn, dtype, MAPS[fn]), dtype)
        if fn not in REDUCTIONS and fn != "contract":
            raise cursor.wrong("`(`")
        cursor.expect("[")
        bound = self.declare(indices)
        if fn == "contract":
            return contract_node(axes, bound, self._arguments(indices, fn, dtype, None), dtype)
        return reduce_node(fn, axes, bound, self._arguments(indices, fn, dtype, 1)[0], dtype)

    def _loop(self) -> None:
        """`scan walk[t: T](s[n: N] = y[n]; a[n: N] = z[t, n])` and the body; adds to the loops that are
        known."""
        cursor = self.cursor
        start = cursor.expect("scan")
        name = cursor.name("the name of a loop")
        if name in self.loops:
            raise cursor.error(f"loop {name} is defined twice", start)
        cursor.expect("[")
        step = cursor.name("an index")
        cursor.expect(":")
        over = self.dim()
        cursor.expect("]")
        cursor.expect("(")
        given: list[Access | _Literal] = []
        states = -1
        while not cursor.accept(")"):
            if cursor.accept(";"):
                states = len(given)
                continue
            if given and states != len(given):
                cursor.accept(",")
                if cursor.accept(")"):
                    break
            cursor.name("an input of the body")
            indices: dict[str, Index] = {}
            axes = self.declare(indices) if cursor.accept("[") else []
            cursor.expect("=")
            given.append(self._argument({**indices, step: Index(over, len(axes))}))
        body = Block(cursor, set(self.atoms)).program("body")
        with self.located(start):
            if len(given) != len(body.inputs):
                raise Bug(f"loop {name} gives {len(given)} values, its body reads {len(body.inputs)}")
            pairs = zip(given, body.inputs, strict=True)
            args = [g.access(n.dtype) if isinstance(g, _Literal) else g for g, n in pairs]
            self.loops[name] = scan_nodes(over, body, len(given) if states < 0 else states, args)
        self.results[name] = tuple(output.name for output in body.outputs)

    def _result(self, axes: list[Index], dtype: str, start: Token) -> Node:
        """`(walk, s)`, after the word."""
        cursor = self.cursor
        cursor.expect("(")
        token = cursor.peek()
        name = cursor.name("the name of a loop")
        if name not in self.loops:
            raise cursor.error(f"there is no loop {name}", token, f"loops above: {listed(self.loops)}")
        cursor.expect(",")
        token = cursor.peek()
        result = cursor.name("an output of the loop's body")
        if result not in self.results[name]:
            raise cursor.error(f"loop {name} has no {result}", token, f"it has: {listed(self.results[name])}")
        cursor.expect(")")
        node = self.loops[name][self.results[name].index(result)]
        if (node.dims, node.dtype) != (tuple(i.dim for i in axes), dtype):
            what = f"{result} of loop {name} is {node.dtype}[{', '.join(map(str, node.dims))}]"
            raise cursor.error(what, start)
        return node

    def _arguments(self, indices: dict[str, Index], fn: str, dtype: str, count: int | None) -> list[Access]:
        start = self.cursor.peek()
        self.cursor.expect("(")
        given = self.cursor.sequence(lambda: self._argument(indices), ")")
        if count is not None and len(given) != count:
            raise self.cursor.error(f"{fn} takes {count} arguments, and is given {len(given)}", start)
        dtypes = [None if isinstance(a, _Literal) else a.node.dtype for a in given]
        obvious = literal_dtype(fn, dtype, dtypes)
        return [a.access(obvious) if isinstance(a, _Literal) else a for a in given]

    def _argument(self, indices: dict[str, Index]) -> Access | _Literal:
        if not at_number(self.cursor) and not self.cursor.at("size"):
            return self.access(indices)
        literal = self._literal()
        return _Literal(literal.value, self._dtype()) if self.cursor.accept(":") else literal

    def _literal(self) -> _Literal:
        if not self.cursor.accept("size"):
            return _Literal(parse_number(self.cursor), None)
        self.cursor.expect("(")
        dim = self.dim()
        self.cursor.expect(")")
        return _Literal(dim, None)

    def _cat(self, axes: list[Index], indices: dict[str, Index], dtype: str) -> Node:
        """`[z = a | b](x[a], y[b])`, after the word."""
        cursor = self.cursor
        cursor.expect("[")
        token = cursor.peek()
        name = cursor.name("an index")
        index = indices.get(name)
        if index is None or not isinstance(index.dim, Union):
            raise cursor.error(f"{name} is not an index over a union `(A | B)`", token, listed(indices))
        cursor.expect("=")
        own: dict[str, Index] = {}
        while not own or cursor.accept("|"):
            token = cursor.peek()
            piece = cursor.name("an index")
            if piece in own or piece in indices:
                raise cursor.error(f"index {piece} is declared twice", token)
            if len(own) == len(index.dim.parts):
                raise cursor.error(f"{index.dim} has {len(own)} parts only", token)
            own[piece] = Index(index.dim.parts[len(own)], index.number)
        cursor.expect("]")
        pieces = self._arguments({**indices, **own}, "cat", dtype, len(own))
        return cat_node(axes, index.number, pieces, dtype)

    # ------------------------------------------------------------ programs

    def program(self, word: str) -> Program:
        """A whole program that begins with `word`."""
        start = self.cursor.expect(word)
        name = self.cursor.name("the program's name")
        self.cursor.expect("(")
        inputs = self.cursor.sequence(self._input, ")")
        sizes = self._where() if self.cursor.accept("where") else []
        self.cursor.expect("{")
        while not self.cursor.accept("return"):
            self.statement()
        outputs: list[Output] = []
        while not self.cursor.accept("}"):
            if outputs and not self.cursor.accept(","):
                raise self.cursor.wrong("`,` or `}`")
            outputs.append(self._output())
        with self.located(start):
            return Program(name, tuple(inputs), tuple(outputs), tuple(sizes), dict(self.names))

    def _input(self) -> Node:
        token = self.cursor.peek()
        name = self.cursor.name("an input's name")
        self._fresh(name, token)
        self.cursor.expect(":")
        if self.cursor.accept("scalar"):
            node = scalar_node(name, self._dtype())
        else:
            dtype = self._dtype()
            self.cursor.expect("[")
            node = input_node(name, self.cursor.sequence(self._input_axis, "]"), dtype)
        self.nodes[name] = node
        return node

    def _input_axis(self) -> tuple[Dim, ...]:
        token = self.cursor.peek()
        if token.kind == "number":
            if token.text == "1":
                self.cursor.take()
                return ()
            raise self.cursor.wrong("a dim or `1`", "name the size, and give it: `where K = 64`")
        dims = [parse_dim(self.cursor, self.new_atom)]
        while self.cursor.accept("*"):
            dims.append(parse_dim(self.cursor, self.new_atom))
        return tuple(dims)

    def _where(self) -> list[tuple[Atom, int | Extent]]:
        sizes: dict[Atom, int | Extent] = {}
        self.pending = []
        while True:
            token = self.cursor.peek()
            atom = self.new_atom()
            if self.cursor.accept("="):
                if atom in sizes:
                    raise self.cursor.error(f"the size of {atom} is given twice", token)
                sizes[atom] = self._size()
            if not self.cursor.accept(","):
                break
        used, self.pending = self.pending, None
        for name, token in used:
            self.declared(name, token)
        return list(sizes.items())

    def _size(self) -> int | Extent:
        if self.cursor.accept("extent"):
            self.cursor.expect("(")
            value = self.cursor.integer("an integer")
            self.cursor.expect(")")
            return Extent(value)
        token = self.cursor.peek()
        value = self.term({})
        if value.leaves:
            raise self.cursor.error("a size is a linear expression in sizes", token)
        return value.offset if value.offset.terms else value.offset.const

    def _output(self) -> Output:
        token = self.cursor.peek()
        name = called = self.cursor.name("an output")
        if self.cursor.accept(":"):
            token = self.cursor.peek()
            called = self.cursor.name("a node")
        node = self.nodes.get(called)
        if node is None:
            raise self.cursor.error(f"{called} is not defined", token, f"defined above: {listed(self.nodes)}")
        axes = self.axes[called] if called in self.axes else index_names(node.dims, ())
        groups: list[tuple[int, ...]] = []
        if self.cursor.accept("["):
            groups = self.cursor.sequence(lambda: self._output_axis(axes), "]")
        if sorted(n for group in groups for n in group) != list(range(len(axes))):
            what = f"the result must list each axis of {called} once: {', '.join(axes) or 'none'}"
            raise self.cursor.error(what, token)
        return Output(name, node, tuple(groups))

    def _output_axis(self, axes: tuple[str, ...]) -> tuple[int, ...]:
        if self.cursor.peek().text == "1":
            self.cursor.take()
            return ()
        group: list[int] = []
        while not group or self.cursor.accept("*"):
            token = self.cursor.peek()
            name = self.cursor.name("an axis or `1`")
            if name not in axes:
                what = f"{name} is not an axis of the result"
                raise self.cursor.error(what, token, f"its axes: {', '.join(axes) or 'none'}")
            group.append(axes.index(name))
        return tuple(group)
