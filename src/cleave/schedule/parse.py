"""The parser of the text form of tile programs (`cleave.schedule.text` shows it by example).

`parse_tiles` raises `ParseError` with line, column and a caret. It checks words and names, not meaning:
that is `cleave.schedule.verify`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from typing import TypeVar

from cleave.ir.dims import Atom, Dim, Extent, Index, Inject, Join, Leaf, Lookup, Part, Parts, Term, Union
from cleave.ir.lexis import Cursor, Token, parse_dim, parse_number
from cleave.ir.ops import DTYPES, MAPS, REDUCTIONS, Number
from cleave.schedule.tiles import (
    ZERO,
    AlignBound,
    Bound,
    Carry,
    Compute,
    ContractTile,
    Fill,
    GridAxis,
    Kernel,
    LimitBound,
    Load,
    Locate,
    Loop,
    Measure,
    PartBound,
    ReduceTile,
    SizeBound,
    SpanBound,
    Statement,
    Store,
    Tensor,
    TileProgram,
    Whole,
)

_ITEM = TypeVar("_ITEM")
_BOUNDS = ("min", "max", "start", "end", "part_start", "part_end", "align_up", "align_down")


def parse_tiles(text: str) -> TileProgram:
    """The tile program that a text says; `ParseError` if it says none."""
    cursor = Cursor(text)
    cursor.expect("tiles")
    name = cursor.name("the name of the tile program")
    cursor.expect("(")
    inputs = tuple(cursor.sequence(lambda: _tensor(cursor, "input"), ")"))
    cursor.expect("->")
    cursor.expect("(")
    outputs = tuple(cursor.sequence(lambda: _tensor(cursor, "output"), ")"))
    sizes = _listed(cursor, "where", lambda: _size(cursor))
    limits = _listed(cursor, "limit", lambda: _limit(cursor))
    splits = _listed(cursor, "split", lambda: _dim(cursor))
    cursor.expect("{")
    workspaces: list[Tensor] = []
    while cursor.accept("workspace"):
        workspaces.append(_tensor(cursor, "workspace"))
    tensors = {tensor.name: tensor for tensor in (*inputs, *outputs, *workspaces)}
    kernels: list[Kernel] = []
    while not cursor.accept("}"):
        kernels.append(_KernelParser(cursor, tensors).kernel())
    cursor.done()
    return TileProgram(
        name, inputs, outputs, tuple(workspaces), tuple(kernels), tuple(sizes), tuple(limits), tuple(splits)
    )


def _listed(cursor: Cursor, word: str, item: Callable[[], _ITEM]) -> list[_ITEM]:
    """Items between commas after a word, none if the word does not come."""
    items: list[_ITEM] = []
    if cursor.accept(word):
        items.append(item())
        while cursor.accept(","):
            items.append(item())
    return items


def _atom(cursor: Cursor) -> Atom:
    return Atom(cursor.name("a dim"))


def _dim(cursor: Cursor) -> Dim:
    return parse_dim(cursor, lambda: _atom(cursor))


def _dtype(cursor: Cursor) -> str:
    token = cursor.peek()
    if token.kind != "name" or token.text not in DTYPES:
        raise cursor.wrong("a dtype", hint=f"dtypes are {', '.join(DTYPES)}")
    return cursor.take().text


def _tensor(cursor: Cursor, role: str) -> Tensor:
    name = cursor.name("the name of a tensor")
    cursor.expect(":")
    if role == "input" and cursor.accept("scalar"):
        return Tensor(name, "scalar", _dtype(cursor), ())
    dtype = _dtype(cursor)
    cursor.expect("[")
    return Tensor(name, role, dtype, tuple(cursor.sequence(lambda: _group(cursor), "]")))


def _group(cursor: Cursor) -> tuple[Dim, ...]:
    token = cursor.peek()
    if token.kind == "number" and token.text == "1":
        cursor.take()
        return ()
    group = [_dim(cursor)]
    while cursor.accept("*"):
        group.append(_dim(cursor))
    return tuple(group)


def _size(cursor: Cursor) -> tuple[Atom, int | Extent]:
    atom = _atom(cursor)
    cursor.expect("=")
    if cursor.accept("extent"):
        cursor.expect("(")
        const = cursor.integer("a number")
        cursor.expect(")")
        return atom, Extent(const)
    extent = _extent(cursor)
    return atom, extent if extent.terms else extent.const


def _limit(cursor: Cursor) -> tuple[Atom, int]:
    atom = _atom(cursor)
    cursor.expect("<=")
    return atom, cursor.integer("a limit")


def _extent(cursor: Cursor) -> Extent:
    terms, const = _linear(cursor, lambda: _dim(cursor))
    return Extent(const, tuple(terms))


def _linear(cursor: Cursor, item: Callable[[], _ITEM]) -> tuple[list[tuple[_ITEM, int]], int]:
    """A sum of numbers and of items with coefficients, as `join_signed` writes it."""
    terms: list[tuple[_ITEM, int]] = []
    const = 0
    sign = -1 if cursor.accept("-") else 1
    while True:
        if cursor.peek().kind != "number":
            terms.append((item(), sign))
        else:
            number = sign * cursor.integer("a number")
            if cursor.accept("*"):
                terms.append((item(), number))
            else:
                const += number
        if cursor.accept("+"):
            sign = 1
        elif cursor.accept("-"):
            sign = -1
        else:
            return terms, const


class _KernelParser:
    """Parses one kernel; knows the program's tensors and, as they appear, the kernel's indices."""

    def __init__(self, cursor: Cursor, tensors: dict[str, Tensor]) -> None:
        self.cursor, self.tensors = cursor, tensors
        self.indices: dict[str, Index] = {}
        self.complete = False

    def kernel(self) -> Kernel:
        cursor = self.cursor
        cursor.expect("kernel")
        name = cursor.name("the name of a kernel")
        cursor.expect("(")
        tensors = tuple(self.tensors[n] for n in cursor.sequence(lambda: self.tensor(self.tensors), ")"))
        self.complete = bool(self.group("indices", self.numbered))
        grid = tuple(GridAxis(i, n) for i, n in self.group("grid", self.tiled))
        whole = tuple(Whole(i, n) for i, n in self.group("whole", self.tiled))
        lanes = self.group("lanes", self.lane)
        cursor.expect("warps")
        warps = cursor.integer("a number of warps")
        cursor.expect("stages")
        stages = cursor.integer("a number of stages")
        group = cursor.integer("a number of rows of blocks") if cursor.accept("group") else 1
        descriptors = cursor.accept("descriptors")
        groups = cursor.integer("a number of warp groups") if cursor.accept("groups") else 0
        merged = cursor.accept("merged")
        cursor.expect("{")
        body, updates = self.body()
        if updates is not None:
            raise cursor.error("an update outside a loop", updates)
        # Lanes may name indices of loops, which the body introduces.
        rows = tuple(tuple(self.resolve(token) for token in lane) for lane in lanes)
        names = tuple((index, name) for name, index in self.indices.items())
        wishes = (warps, stages, group, descriptors, groups, merged)
        return Kernel(name, tensors, grid, whole, rows, body, names, *wishes)

    def group(self, word: str, item: Callable[[], _ITEM]) -> tuple[_ITEM, ...]:
        """Items in parentheses after a word, none if the word does not come."""
        if not self.cursor.accept(word):
            return ()
        self.cursor.expect("(")
        return tuple(self.cursor.sequence(item, ")"))

    # ------------------------------------------------------------ indices and names

    def declare(self) -> Index:
        """`name: dim`: the first time the next number is the index' own."""
        token = self.cursor.peek()
        name = self.cursor.name("the name of an index")
        self.cursor.expect(":")
        dim = _dim(self.cursor)
        known = self.indices.get(name)
        if known is None and not self.complete:
            known = self.indices[name] = Index(dim, len(self.indices))
        if known is None or known.dim != dim:
            over = f"runs over {known.dim}" if known else "is missing in `indices`"
            raise self.cursor.error(f"index {name} {over}, here it is over {dim}", token)
        return known

    def numbered(self) -> Index:
        token = self.cursor.peek()
        name = self.cursor.name("the name of an index")
        self.cursor.expect(":")
        dim = _dim(self.cursor)
        self.cursor.expect("=")
        if name in self.indices:
            raise self.cursor.error(f"index {name} stands twice in `indices`", token)
        self.indices[name] = Index(dim, self.cursor.integer("the number of the index"))
        return self.indices[name]

    def tiled(self) -> tuple[Index, int]:
        index = self.declare()
        self.cursor.expect("by")
        return index, self.cursor.integer("a tile size")

    def lane(self) -> list[Token]:
        self.cursor.expect("(")
        return self.cursor.sequence(self.token, ")")

    def token(self) -> Token:
        token = self.cursor.peek()
        self.cursor.name("the name of an index")
        return token

    def index(self) -> Index:
        return self.resolve(self.token())

    def resolve(self, token: Token) -> Index:
        name = Cursor(token.text).name("the name of an index")
        if name not in self.indices:
            raise self.cursor.error(f"{name} is no index of this kernel", token)
        return self.indices[name]

    def tensor(self, known: Container[str]) -> str:
        token = self.cursor.peek()
        name = self.cursor.name("the name of a tensor")
        if name not in known:
            raise self.cursor.error(f"{name} is no tensor of this program", token)
        return name

    def value(self) -> str:
        return self.cursor.name("the name of a value")

    def axes(self) -> tuple[Index, ...]:
        return tuple(self.cursor.sequence(self.index, "]")) if self.cursor.accept("[") else ()

    # ------------------------------------------------------------ terms and bounds

    def terms(self) -> tuple[Term, ...]:
        return tuple(self.cursor.sequence(self.term, "]")) if self.cursor.accept("[") else ()

    def term(self) -> Term:
        items, const = _linear(self.cursor, self.leaf_or_size)
        leaves: list[tuple[Leaf, int]] = []
        sizes: list[tuple[Dim, int]] = []
        for item, coefficient in items:
            if isinstance(item, Atom | Union | Parts | Part):
                sizes.append((item, coefficient))
            else:
                leaves.append((item, coefficient))
        return Term(tuple(leaves), Extent(const, tuple(sizes)))

    def leaf_or_size(self) -> Leaf | Dim:
        cursor, token = self.cursor, self.cursor.peek()
        called = cursor.at("(", 1) and token.kind == "name"
        if called and (token.text in ("lookup", "join", "size") or re.fullmatch(r"in\d+", token.text)):
            cursor.take()
            cursor.take()
            match token.text:
                case "lookup":
                    leaf: Leaf | Dim = Lookup(self.value())
                case "size":
                    leaf = _dim(cursor)
                case "join":
                    part = self.term()
                    cursor.expect(",")
                    leaf = Join(part, self.term())
                case word:
                    leaf = Inject(int(word[2:]), self.term())
            cursor.expect(")")
            return leaf
        if token.kind in ("name", "quoted") and not called:
            known = self.indices.get(Cursor(token.text).name("a name"))
            if known is not None:
                cursor.take()
                return known
        return _dim(cursor)

    def bound(self) -> Bound:
        cursor, token = self.cursor, self.cursor.peek()
        if not (cursor.at("(", 1) and token.kind == "name" and token.text in _BOUNDS):
            return SizeBound(_extent(cursor))
        cursor.take()
        cursor.expect("(")
        match token.text:
            case "min" | "max":
                return LimitBound(token.text, tuple(cursor.sequence(self.bound, ")")))
            case "part_start" | "part_end":
                part = self.index()
                return PartBound(part, token.text == "part_end", self.offset())
            case "start" | "end":
                index = self.index()
                return SpanBound(index, token.text == "end", self.offset())
            case _:
                inner = self.bound()
                cursor.expect(",")
                tile = cursor.integer("a tile size")
                origin = self.bound() if cursor.accept(",") else ZERO
                cursor.expect(")")
                return AlignBound(inner, tile, token.text == "align_up", origin)

    def offset(self) -> Extent:
        """What is added to a bound, behind its bracket."""
        cursor = self.cursor
        cursor.expect(")")
        return _extent(cursor) if cursor.at("-") or cursor.accept("+") else Extent()

    # ------------------------------------------------------------ statements

    def body(self) -> tuple[tuple[Statement, ...], Token | None]:
        """Statements up to and with `}`, or up to `update`, whose token is handed back."""
        cursor, statements = self.cursor, list[Statement]()
        while not cursor.accept("}"):
            word = cursor.peek() if not cursor.at(":", 1) and not cursor.at("[", 1) else None
            match word.text if word else "":
                case "update":
                    return tuple(statements), cursor.take()
                case "for":
                    statements.append(self.loop())
                case "store":
                    statements.append(self.store())
                case "carry":
                    cursor.take()
                    out, axes, dtype = self.head()
                    statements.append(Carry(out, axes, dtype, self.value()))
                case _:
                    statements.append(self.assignment(*self.head()))
        return tuple(statements), None

    def head(self) -> tuple[str, tuple[Index, ...], str]:
        out, axes = self.value(), self.axes()
        self.cursor.expect(":")
        dtype = _dtype(self.cursor)
        self.cursor.expect("=")
        return out, axes, dtype

    def loop(self) -> Loop:
        cursor = self.cursor
        cursor.expect("for")
        index, tile = self.tiled()
        cursor.expect("from")
        start = self.bound()
        cursor.expect("to")
        stop = self.bound()
        exact, closed = cursor.accept("exact"), cursor.accept("closed")
        cursor.expect("{")
        body, update = self.body()
        updates: list[tuple[str, str]] = []
        if update is not None:
            updates = [self.update()]
            while cursor.accept(","):
                updates.append(self.update())
            cursor.expect("}")
        return Loop(index, tile, start, stop, exact, body, tuple(updates), closed)

    def update(self) -> tuple[str, str]:
        name = self.value()
        self.cursor.expect("=")
        return name, self.value()

    def store(self) -> Store:
        self.cursor.expect("store")
        tensor, terms = self.tensor(self.tensors), self.terms()
        self.cursor.expect("=")
        value = self.value()
        return Store(tensor, terms, value, self.group("first", self.index))

    def assignment(self, out: str, axes: tuple[Index, ...], dtype: str) -> Statement:
        cursor, token = self.cursor, self.cursor.take()
        match token.text:
            case "fill":
                return Fill(out, axes, dtype, parse_number(cursor))
            case "load":
                return self.load(out, axes, dtype)
            case "measure" if not axes:
                return Measure(out, dtype, _extent(cursor))
            case "index":
                cursor.expect("(")
                where = self.term()
                cursor.expect(")")
                return Locate(out, axes, dtype, where)
            case "reduce":
                kind = cursor.take()
                if kind.text not in REDUCTIONS:
                    raise cursor.error(
                        f"{kind.text} is no reduction", kind, f"one of {', '.join(REDUCTIONS)}"
                    )
                over, args = self.reduced()
                if len(args) != 1:
                    raise cursor.error("a reduction has one argument", kind)
                return ReduceTile(out, axes, dtype, kind.text, over, args[0])
            case "contract":
                over, args = self.reduced()
                return ContractTile(out, axes, dtype, over, args)
            case fn if fn in MAPS and cursor.accept("("):
                return Compute(out, axes, dtype, fn, tuple(cursor.sequence(self.value, ")")))
            case _:
                raise cursor.error(f"{token.text} is no operation on tiles", token)

    def reduced(self) -> tuple[tuple[Index, ...], tuple[str, ...]]:
        self.cursor.expect("[")
        over = tuple(self.cursor.sequence(self.index, "]"))
        self.cursor.expect("(")
        return over, tuple(self.cursor.sequence(self.value, ")"))

    def load(self, out: str, axes: tuple[Index, ...], dtype: str) -> Load:
        cursor = self.cursor
        tensor, terms = self.tensor(self.tensors), self.terms()
        other: Number = 0
        guarded = cursor.accept("else")
        if guarded or cursor.accept("unguarded"):
            other = parse_number(cursor)
        return Load(out, axes, dtype, tensor, terms, guarded, other)
