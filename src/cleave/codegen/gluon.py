"""From a kernel of a tile program to Gluon, Triton's lower dialect: one warp copies, warp groups compute.

A second way to write a kernel for compute capability 9, for kernels that ask for it (`Kernel.groups`): tiles
come through bulk copies into rings of shared memory, products are asynchronous, and each warp group has a
share of the rows. A kernel becomes three functions: what a warp group does (`..._rows`), what the copying
warp does (`..._copies`), and the kernel, which makes room and starts them. `Infeasible` where a kernel is not
of this form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from cleave.codegen.gluon_body import Rows
from cleave.codegen.gluon_plan import (
    FLUSHING,
    REGISTERS,
    Copies,
    Groups,
    Ring,
    RowScope,
    depths_of,
    plan_groups,
    starts_of,
)
from cleave.codegen.gluon_text import DEPTH, LEAN, ONCE, translated
from cleave.codegen.source import KINDS, Argument
from cleave.codegen.triton_grid import (
    comments_of,
    count_of,
    decode,
    index_names_of,
    longest_last,
    signature,
    snaked,
    takes_index,
    typed_pid,
    typed_strides,
)
from cleave.codegen.triton_maps import HELPERS, TYPES
from cleave.codegen.triton_scope import Parameters, Scope, bracketed
from cleave.codegen.triton_text import Line, Lines, Names, Nested, prune, render, words_of
from cleave.codegen.triton_tiles import Span, plan_lanes
from cleave.errors import Bug, Infeasible
from cleave.ir.dims import Index
from cleave.schedule.tiles import ContractTile, Kernel, Load, Loop, Statement, TileProgram
from cleave.schedule.walks import firsts_of

RESERVED = (
    *("gl", "gluon", "group", "mbarrier", "tma", "fence_async_shared", "clear_rows", "anew"),
    *("copy_in", "copy_out", "lend", "warpgroup_mma", "warpgroup_mma_wait"),
    *("tile", "back", "turns", "turn_at", "given_full", "given_free", "given_at", *LEAN),
)


def emit_kernel(tp: TileProgram, kernel: Kernel, name: str) -> tuple[str, tuple[Argument, ...], bool]:
    """The functions of one kernel, its parameters, and whether a block does one tile of the grid after
    another: then the copying warp loads for the next one while the groups end the one before."""
    if kernel.groups not in REGISTERS:
        raise Infeasible(f"kernel {kernel.name} asks for {kernel.groups} warp groups")
    names = Names([*HELPERS, *RESERVED, name, f"{name}_rows", f"{name}_copies"])
    made = _bodies(tp, kernel, names)
    words = {word for line in (*made.computing, *made.copying) for word in words_of(line)}
    found = [a for a in made.params.arguments.values() if a.name in words]
    arguments = tuple(sorted(found, key=lambda a: KINDS.index(a.kind)))
    dynamic = takes_index(arguments)
    given = [a.name for a in arguments] + _rooms(made)
    last = ["INDEX"] if dynamic else []
    head = typed_strides(arguments)
    computing = [*head, *typed_pid(made.computing, dynamic, tp)]
    copying = [*head, *typed_pid(made.copying, dynamic, tp)]
    signed = signature(name, arguments, kernel, made.params, dynamic)
    parts = [
        *_function(f"{name}_rows", given, [*last, "group"], computing),
        *_function(f"{name}_copies", given, last, copying),
        *[line.replace("@triton.jit", "@gluon.jit") for line in signed],
        *[f"    # {text}" for text in comments_of(kernel, made.params)],
        *_main(name, made.groups, made.rings, made.rows, [*given, *last]),
    ]
    text = translated("\n".join(["", *parts, ""]))
    depth, once = depths_of(made.rings, made.rows.memory.scratch_bytes(), made.groups, kernel.stages)
    if made.rows.memory.lent and once > 1:
        raise Bug(f"kernel {kernel.name} lends one of {once} places of a tile")
    text = text.replace(DEPTH, str(depth)).replace(ONCE, str(once if made.goes_on else 1))
    return text, arguments, made.goes_on


@dataclass(frozen=True, slots=True)
class _Bodies:
    """The lines of a warp group's function and of the copying warp's, and what was found in writing them."""

    params: Parameters
    groups: Groups
    rows: Rows
    rings: list[Ring]
    goes_on: bool
    computing: list[str]
    copying: list[str]


def _bodies(tp: TileProgram, kernel: Kernel, names: Names) -> _Bodies:
    """Write what a warp group does, then the copies that it turned out to wait for."""
    index_names = index_names_of(kernel, names)
    params = Parameters(tp, kernel, names)
    params.described = True
    lanes = plan_lanes(kernel)
    groups = plan_groups(kernel, lanes)
    lanes = replace(lanes, exact=frozenset({groups.rows, *groups.pieces}))
    copies = Copies(names, groups, _ordinals(kernel.body))
    rows = Rows(groups, copies)
    rows.memory.products, rows.stages = _products(kernel.body), kernel.stages
    scope = RowScope(params, lanes, index_names, names.inner())
    scope.groups = groups
    decode(scope, kernel)
    rows.write(scope, kernel.body)
    rings = list(copies.rings.values())
    # Three groups have too few registers to know the next tile beside this one's operands.
    goes_on = groups.count <= FLUSHING or not any(isinstance(s, Load) for s in kernel.body)
    last_lines: Lines = [Line("tma.store_wait(0)")] if rows.stored else []
    computing = _whole(scope, kernel, goes_on, _counters(rows, rings), last_lines)
    outer = Scope(params, lanes, index_names, names.inner())
    decode(outer, kernel)
    _Copying(copies, groups).write(outer, kernel.body)
    copying = _whole(outer, kernel, goes_on, _counters(rows, rings), [])
    return _Bodies(params, groups, rows, rings, goes_on, computing, copying)


def _rooms(made: _Bodies) -> list[str]:
    """The names of the shared memory that both functions are given."""
    rooms = [room for ring in made.rings for room in (ring.name, *_barriers(ring))]
    rooms += made.rows.memory.scratch
    rooms += ["turns"] if made.rows.turns else []
    return rooms + (["given_full", "given_free"] if made.rows.gives else [])


def _products(body: Sequence[Statement]) -> dict[str, int]:
    """How many contractions read each value."""
    counts: dict[str, int] = {}
    for s in body:
        if isinstance(s, Loop):
            for key, count in _products(s.body).items():
                counts[key] = counts.get(key, 0) + count
        elif isinstance(s, ContractTile):
            for arg in s.args:
                counts[arg] = counts.get(arg, 0) + 1
    return counts


def _ordinals(body: Sequence[Statement]) -> dict[str, int]:
    """The number of each load among those of its tensor in its body."""
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    for s in body:
        if isinstance(s, Loop):
            found |= _ordinals(s.body)
        elif isinstance(s, Load):
            found[s.out] = counts.get(s.tensor, 0)
            counts[s.tensor] = found[s.out] + 1
    return found


def _rendered(lines: Lines) -> list[str]:
    kept, _ = prune(lines, set())
    return render(kept)


def _counters(rows: Rows, rings: Sequence[Ring]) -> Lines:
    """How many tiles each ring has had, how many turns a group, and how often one gave something."""
    names = [f"{ring.name}_at" for ring in rings] + (["turn_at"] if rows.turns else [])
    names += ["given_at"] if rows.gives else []
    return [Line(f"{name} = gl.to_tensor(0)", name) for name in names]


def _whole(scope: Scope, kernel: Kernel, goes_on: bool, first: Lines, last: Lines) -> list[str]:
    """The lines of a function, for the block's tile of the grid or for one after another."""
    if not goes_on:
        return _rendered([*first, *scope.lines, *last])
    outer = Scope(scope.params, scope.lanes, scope.index_names, scope.names)
    counts = [bracketed(count_of(outer, axis, axis.index in firsts_of(kernel))) for axis in kernel.grid]
    total = " * ".join(counts)
    own: Lines = [Line("pid = tile", "pid")]
    if longest_last(kernel.body):
        own, first = [*snaked(total)], [*first, Line("back = gl.to_tensor(0)", "back")]
    lines: Lines = []
    for x in scope.lines:
        start = isinstance(x, Line) and x.target == "pid" and "program_id" in x.text
        lines += own if start else [x]
    head = f"for tile in range(tl.program_id(0), {total}, tl.num_programs(0)):"
    carried = tuple(line.target for line in first if isinstance(line, Line))
    return _rendered([*first, *outer.lines, Nested(head, lines, carried), *last])


def _barriers(ring: Ring) -> list[str]:
    return [f"{ring.name}_full", f"{ring.name}_free"]


def _function(name: str, given: Sequence[str], constant: Sequence[str], body: Sequence[str]) -> list[str]:
    """A function of its own registers, that the kernel starts."""
    texts = [*given, *(f"{word}: tl.constexpr" for word in constant)]
    lines = ["@gluon.jit", f"def {name}("]
    while texts:
        line = "    "
        while texts and len(line) + len(texts[0]) < 100:
            line += f"{texts.pop(0)}, "
        lines.append(line.rstrip())
    return [*lines, "):", *(body or ["    pass"]), "", ""]


def _main(name: str, groups: Groups, rings: Sequence[Ring], rows: Rows, given: Sequence[str]) -> list[str]:
    """The body of the kernel: shared memory, barriers, and the start of the warps' functions."""
    lines: list[str] = []
    inits: list[str] = []
    for ring in rings:
        turns = ring.turns
        count = turns if ring.shared else f"{groups.count} * {turns}"
        count = count if ring.pieces == 1 else f"{ring.pieces} * {count}"
        shape = ", ".join(map(str, ring.block))
        room = f"{TYPES[ring.dtype]}, [{count}, {shape}], {ring.descriptor}.layout"
        lines.append(f"    {ring.name} = gl.allocate_shared_memory({room})")
        for barrier, arrivals in zip(_barriers(ring), (1, groups.count), strict=True):
            layout = "mbarrier.MBarrierLayout()"
            lines.append(f"    {barrier} = gl.allocate_shared_memory(gl.int64, [{turns}, 1], {layout})")
            inits.append(f"    for slot in gl.static_range({turns}):")
            inits.append(f"        mbarrier.init({barrier}.index(slot), count={arrivals})")
    for buffer, (shape, dtype, layout, count) in rows.memory.scratch.items():
        what = f"{TYPES[dtype]}, [{', '.join(map(str, (count, *shape)))}], {layout}"
        place = rows.memory.lent.get(buffer)
        made = f"lend({place}, {what})" if place else f"gl.allocate_shared_memory({what})"
        lines.append(f"    {buffer} = {made}")
    if rows.turns:
        layout = "mbarrier.MBarrierLayout()"
        lines.append(f"    turns = gl.allocate_shared_memory(gl.int64, [{groups.count}, 1], {layout})")
        inits.append(f"    for slot in gl.static_range({groups.count}):")
        inits.append("        mbarrier.init(turns.index(slot), count=1)")
        inits.append("    mbarrier.arrive(turns.index(0), count=1)")
    if rows.gives:
        for barrier, arrivals in (("given_full", 1), ("given_free", groups.count - 1)):
            layout = "mbarrier.MBarrierLayout()"
            lines.append(f"    {barrier} = gl.allocate_shared_memory(gl.int64, [1, 1], {layout})")
            inits.append(f"    mbarrier.init({barrier}.index(0), count={arrivals})")
    computing, copying = REGISTERS[groups.count]
    all_given = ", ".join(given)
    workers = [
        f"        ({name}_rows, ({all_given}, {number})),  # group {number}" for number in range(groups.count)
    ]
    warps = ", ".join([*["4"] * (groups.count - 1), "1"])
    registers = ", ".join([*[str(computing)] * (groups.count - 1), str(copying)])
    start = ["    gl.warp_specialize([", *workers, f"        ({name}_copies, ({all_given},)),"]
    return [*lines, *inits, "    fence_async_shared()", *start, f"    ], [{warps}], [{registers}])"]


class _Copying:
    """Writes what the copying warp does."""

    def __init__(self, copies: Copies, groups: Groups) -> None:
        self.copies, self.groups = copies, groups

    def write(self, scope: Scope, body: Sequence[Statement]) -> None:
        """The copies of a body, in the order in which the groups take them."""
        for statement in body:
            if isinstance(statement, Load) and statement.out in self.copies.loads:
                self.copy(scope, statement, self.copies.loads[statement.out])
            elif isinstance(statement, Loop):
                self.loop(scope, statement)

    def loop(self, scope: Scope, statement: Loop) -> None:
        index, tile = statement.index, statement.tile
        name = scope.index_names[index]
        start, stop, full = scope.ends(statement)
        inner = scope.inner()
        at = name if tile == 1 else inner.names.take(f"{name}0")
        inner.enter({index: Span(tile, at, stop, full)})
        self.write(inner, statement.body)
        counters = tuple(f"{r.name}_at" for r in self.copies.rings.values())
        step = f", {tile}" if tile > 1 else ""
        if any(isinstance(line, Nested) or not line.target for line in inner.lines):
            scope.lines.append(Nested(f"for {at} in range({start}, {stop}{step}):", inner.lines, counters))

    def copy(self, scope: Scope, statement: Load, ring: Ring) -> None:
        box: list[Index] = [i for i in (term.variable for term in statement.terms) if i is not None]
        slot, phase, full = f"{ring.name}_slot", f"{ring.name}_phase", f"{ring.name}_full"
        scope.lines.append(Line(f"{slot} = {ring.name}_at % {ring.turns}", slot))
        scope.lines.append(Line(f"{phase} = {ring.name}_at // {ring.turns} & 1", phase))
        scope.lines.append(Line(f"{ring.name}_at += 1"))
        scope.lines.append(Line(f"mbarrier.wait({ring.name}_free.index({slot}), {phase} ^ 1)"))
        count = 1 if ring.shared else self.groups.count
        total = ring.bytes(self.groups.count)
        scope.lines.append(Line(f"mbarrier.expect({full}.index({slot}), {total})"))
        for number, piece in product(range(count), range(ring.pieces)):
            starts = starts_of(scope, box, self.groups.apart, count, str(number))
            if piece:
                starts[ring.pieced] = scope.plus(starts[ring.pieced], str(piece * ring.block[ring.pieced]))
            place = slot if ring.shared else f"{slot} * {count} + {number}"
            place = place if ring.pieces == 1 else f"({place}) * {ring.pieces} + {piece}"
            where = f"{full}.index({slot}), {ring.name}.index({place})"
            scope.lines.append(Line(f"copy_in({ring.descriptor}, [{', '.join(starts)}], {where})"))
