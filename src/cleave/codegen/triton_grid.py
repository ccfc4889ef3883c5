"""The head of a GPU kernel: its signature, and the program's number taken apart into the tiles of a block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cleave.codegen.source import Argument
from cleave.codegen.triton_maps import NARROW_LIMIT, TYPES
from cleave.codegen.triton_scope import Parameters, Scope, bracketed, is_number, tensor_text
from cleave.codegen.triton_text import WIDTH, Line, Names
from cleave.codegen.triton_tiles import Span, plan_lanes
from cleave.ir.dims import Atom, Dim, Index, indices_of
from cleave.schedule.tiles import (
    AlignBound,
    Bound,
    GridAxis,
    Kernel,
    LimitBound,
    Load,
    Loop,
    SpanBound,
    Statement,
    Store,
    TileProgram,
)
from cleave.schedule.walks import firsts_of, statements


def index_names_of(kernel: Kernel, names: Names) -> dict[Index, str]:
    known = dict(kernel.names)
    found: dict[Index, str] = {}
    for lane in plan_lanes(kernel).members:
        for index in lane:
            found[index] = names.take(known.get(index, str(index.dim).lower()))
    return found


# ---------------------------------------------------------------- the grid


def decode(scope: Scope, kernel: Kernel, kept: frozenset[Index] | None = None) -> None:
    """Take the program's number apart, and bring the indices of the grid and whole ones into scope. `kept`
    are the grid's indices that have a block even if they are empty."""
    starts: dict[Index, str] = {}
    kept, heavy = firsts_of(kernel) if kept is None else kept, longest_last(kernel.body)
    scope.lines.append(Line("pid = tl.program_id(0)", "pid"))
    counts = {axis: count_of(scope, axis, axis.index in kept) for axis in kernel.grid}
    if kernel.group > 1:
        _grouped(scope, kernel.group, *(counts[axis] for axis in kernel.grid[-2:]))
    for axis in reversed(kernel.grid):
        name, count = scope.index_names[axis.index], counts[axis]
        if kernel.group > 1 and axis in kernel.grid[-2:]:
            own = "across" if axis is kernel.grid[-1] else "along"
        elif axis is not kernel.grid[0]:
            own = f"pid % {bracketed(count)}"
        else:
            own = "pid"
        if axis.index in heavy and own.startswith("pid"):
            own = f"{bracketed(count)} - 1 - {own}"  # the blocks with the longest loops start first
        if axis.tile > 1:
            own = f"{bracketed(own)} * {axis.tile}"
        comment = f"  # {axis.index.dim}" + (f", {axis.tile} at a time" if axis.tile > 1 else "")
        start = name if axis.tile == 1 else scope.names.take(f"{name}0")
        scope.lines.append(Line(f"{start} = {own}{comment}", start))
        starts[axis.index] = start
        if axis is not kernel.grid[0] and not (kernel.group > 1 and axis in kernel.grid[-2:]):
            scope.lines.append(Line(f"pid = pid // {bracketed(count)}", "pid"))
    enter(scope, kernel, starts, kept)


def enter(scope: Scope, kernel: Kernel, starts: Mapping[Index, str], kept: frozenset[Index]) -> None:
    """Bring the grid's indices, whose tiles start where `starts` says, and whole ones into scope."""
    spans: dict[Index, Span] = {}
    for axis in kernel.grid:
        size = scope.params.size(axis.index.dim)
        full = int(size) % axis.tile == 0 and size != "0" if is_number(size) else axis.tile == 1
        full = full and (axis.index not in kept or is_number(size))
        spans[axis.index] = Span(axis.tile, starts[axis.index], size, full)
    for whole in kernel.whole:
        size = scope.params.size(whole.index.dim)
        spans[whole.index] = Span(whole.tile, "0", size, size == str(whole.tile))
    scope.enter(spans)


def longest_last(body: Sequence[Statement]) -> frozenset[Index]:
    """The indices whose later tiles run longer: where they are, loops stop."""
    found: set[Index] = set()

    def visit(bound: Bound) -> None:
        match bound:
            case SpanBound(index):
                found.add(index)
            case AlignBound(inner):
                visit(inner)
            case LimitBound(_, bounds):
                for inner in bounds:
                    visit(inner)
            case _:
                pass

    for statement in body:
        if isinstance(statement, Loop):
            visit(statement.stop)
            found |= longest_last(statement.body)
    return frozenset(found)


def snaked(total: str) -> list[Line]:
    """The number of the tile that a block does instead of `tile`, where it does one after another and these
    run unequally long: every other round of the blocks goes backwards (`back`, 0 in the first), so that
    whoever had a long one gets a short one next."""
    texts = [
        ("first", "tile - tl.program_id(0)"),
        ("place", f"tl.minimum({total} - first, tl.num_programs(0)) - 1 - 2 * tl.program_id(0)"),
        ("pid", "tile + back * place  # every other round backwards"),
        ("back", "1 - back"),
    ]
    return [Line(f"{name} = {text}", name) for name, text in texts]


def count_of(scope: Scope, axis: GridAxis, kept: bool) -> str:
    """Tiles along an axis of the grid."""
    count = size = scope.params.size(axis.index.dim)
    if axis.tile > 1:
        count = str(-(-int(size) // axis.tile)) if is_number(size) else f"tl.cdiv({size}, {axis.tile})"
    if not kept:
        return count
    return str(max(1, int(count))) if is_number(count) else f"tl.maximum({count}, 1)"


def _grouped(scope: Scope, group: int, rows: str, columns: str) -> None:
    """Number the blocks of the last two axes group by group: down the rows of a group, then along."""
    rows, columns = scope.shared("rows", rows), scope.shared("columns", columns)
    if is_number(rows) and int(rows) <= group:  # one group, whose rows are all there: divisions take long
        texts = [
            ("place", f"pid % ({rows} * {columns})  # {rows} rows of blocks share columns"),
            ("pid", f"pid // ({rows} * {columns})"),
            ("along", f"place % {rows}"),
            ("across", f"place // {rows}"),
        ]
        scope.lines += [Line(f"{name} = {text}", name) for name, text in texts]
        return
    texts = [
        ("place", f"pid % ({rows} * {columns})"),
        ("pid", f"pid // ({rows} * {columns})"),
        ("first", f"place // ({group} * {columns}) * {group}  # {group} rows of blocks share columns"),
        ("high", f"tl.minimum({rows} - first, {group})"),
        ("place", f"place % ({group} * {columns})"),
        ("along", "first + place % high"),
        ("across", "place // high"),
    ]
    scope.lines += [Line(f"{name} = {text}", name) for name, text in texts]


def typed_pid(body: list[str], dynamic: bool, tp: TileProgram) -> list[str]:
    """Positions take their type from the program's number: `INDEX`, or 64 bits where a known size asks."""
    wide = any(isinstance(size, int) and size >= NARROW_LIMIT for _, size in tp.sizes)
    kind = ".to(INDEX)" if dynamic else ".to(tl.int64)" if wide else ""
    return [line.replace("tl.program_id(0)", f"tl.program_id(0){kind}") for line in body]


def takes_index(arguments: Sequence[Argument]) -> bool:
    """Whether a kernel has the parameter `INDEX`: it does if it has a size or a stride."""
    return any(a.kind in ("size", "chunk", "parts", "stride") for a in arguments)


def typed_strides(arguments: Sequence[Argument]) -> list[str]:
    """Strides in the type of positions. They come untyped: Triton compiles for a stride of 1."""
    strides: dict[str, list[str]] = {}
    for argument in arguments:
        if argument.kind == "stride":
            strides.setdefault(argument.tensor, []).append(argument.name)
    lines: list[str] = []
    for names in strides.values():
        line = f"    {', '.join(names)} = {', '.join(f'tl.cast({n}, INDEX)' for n in names)}"
        lines += [line] if len(line) <= WIDTH else [f"    {n} = tl.cast({n}, INDEX)" for n in names]
    return lines


# ---------------------------------------------------------------- the signature


def signature(
    name: str, arguments: Sequence[Argument], kernel: Kernel, params: Parameters, dynamic: bool
) -> list[str]:
    texts: list[str] = []
    for argument in arguments:
        kind = ""
        if argument.kind == "scalar":
            kind = f": {TYPES[argument.dtype if argument.dtype != 'bool' else 'i32']}"
        elif argument.kind == "stride" and params.tensors[argument.tensor].role == "workspace":
            kind = ": tl.int64"
        texts.append(f"{argument.name}{kind}")
    if dynamic:
        texts.append("INDEX: tl.constexpr")
    vectors = _contiguous_dims(kernel)
    loose = [a.name for a in arguments if a.kind == "parts" or (a.kind == "size" and a.dim not in vectors)]
    loose += [a.name for a in arguments if a.kind == "scalar"]
    head = f"@triton.jit(do_not_specialize=[{', '.join(repr(n) for n in loose)}])" if loose else "@triton.jit"
    head = head.replace("'", '"')
    one = f"def {name}({', '.join(texts)}):"
    if len(one) <= 100:
        return [head, one]
    lines = [head, f"def {name}("]
    groups: dict[str, list[str]] = {}
    for text, argument in zip(texts, arguments, strict=False):
        own = argument.tensor if argument.kind == "stride" else ""
        groups.setdefault(f"{argument.kind} {own}", []).append(text)
    lines += [f"    {', '.join(group)}," for group in groups.values()]
    return [*lines, *(["    INDEX: tl.constexpr,"] if dynamic else []), "):"]


def _contiguous_dims(kernel: Kernel) -> frozenset[Dim]:
    """The dims whose size bounds the last axis of a tensor: where it is a multiple of 16 masks are whole
    vectors, so it pays to compile for that; the other sizes never ask for another compilation."""
    last = [s.terms[-1] for s in statements(kernel.body) if isinstance(s, Load | Store) and s.terms]
    return frozenset(i.dim for term in last for i in indices_of(term) if isinstance(i.dim, Atom))


def comments_of(kernel: Kernel, params: Parameters) -> list[str]:
    """What each tensor is, and the dims whose sizes stand as numbers in the text."""
    lines = [f"{tensor.name}: {tensor_text(tensor)}" for tensor in kernel.tensors]
    dims = dict.fromkeys(d for t in kernel.tensors for g in t.layout for d in g if isinstance(d, Atom))
    fixed = [f"{dim} = {size}" for dim in dims if is_number(size := params.size(dim))]
    return [*lines, *([", ".join(fixed)] if fixed else [])]
