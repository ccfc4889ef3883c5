"""What the planner knows of operations, one vertex at a time (xla-fusion.md, section 2.2).

Opcodes that stand in no table here are unknown: they are left alone and reported. All functions are pure
functions of a vertex; what depends on groups lies in `units.py`.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod

from cleave.fusion.graph import POINTWISE, WIDTHS, Shape, Vertex


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


MOVEMENT = _words(
    "bitcast broadcast concat dynamic-slice dynamic-update-slice gather pad reduce-window reshape reverse "
    "slice transpose"
)
SOURCES = frozenset({"parameter", "constant", "iota"})
OPAQUE = _words(
    "custom-call while conditional call tuple get-tuple-element convolution dot sort rng map all-reduce "
    "all-gather reduce-scatter all-to-all collective-permute optimization-barrier"
)
KNOWN = POINTWISE | MOVEMENT | SOURCES | OPAQUE | {"reduce", "scatter"}

NEVER = frozenset(
    {"parameter", "while", "conditional", "call", "custom-call", "tuple", "get-tuple-element"}
    | {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
    | {"optimization-barrier"}
)
"""No strategy takes these into a group."""

EXPENSIVE = _words(
    "exp exp2 log log1p tanh pow sqrt rsqrt expm1 logistic atan2 cbrt erf map dot convolution reduce "
    "reduce-window gather scatter sort rng all-reduce all-gather reduce-scatter all-to-all collective-permute"
    " call while conditional custom-call"
)
DIVISIONS = frozenset({"div", "rem", "floordiv", "mod", "reciprocal"})
CHEAP_ON_GPU = frozenset({"div", "reciprocal", "sqrt", "rsqrt", "exp", "exp2"})
COMPLEX_COST = frozenset({"abs", "cos", "sign", "sin"})
NO_REUSE = frozenset({"bitcast", "concat", "reshape", "reverse", "slice", "transpose", "gather"})
CACHE_BREAKERS = frozenset({"concat", "dot", "dynamic-update-slice", "pad", "reduce", "reduce-window"})
"""They end the emitter's cache of values per index."""

WARP = 32
ROW, COLUMN = "row", "column"


def is_pointwise(v: Vertex) -> bool:
    """Elementwise in all operands, whatever the dtype."""
    return v.pointwise


def pointwise_in(v: Vertex, operand: Vertex) -> bool:
    """Elementwise with respect to one operand (a dynamic-update-slice is in its buffer)."""
    if v.opcode == "dynamic-update-slice":
        return v.operands[0] is operand and operand not in v.operands[1:]
    return v.opcode in POINTWISE


def same_dims(a: Shape, b: Shape) -> bool:
    """Equal but for the element type."""
    return a is b or (a.dims == b.dims and a.order == b.order)


def is_scalar(v: Vertex) -> bool:
    """Effectively a scalar: every extent is 1."""
    return not v.shape.parts and all(d == 1 for d in v.shape.dims)


def true_rank(v: Vertex) -> int:
    """How many extents are not 1."""
    return sum(d != 1 for d in v.shape.dims)


def base_fusible(v: Vertex, users: int) -> bool:
    """What the base pass takes at all."""
    if v.opcode not in KNOWN or v.opcode in NEVER or v.effect:
        return False
    return v.opcode != "rng" or users <= 1


def is_expensive(v: Vertex, gpu: bool) -> bool:
    """Too dear to compute twice. On GPUs division, roots and exp of f32 and f16 are cheap."""
    if v.opcode in DIVISIONS:
        if gpu and v.opcode in CHEAP_ON_GPU and v.shape.dtype in ("f32", "f16"):
            return False
        return v.shape.dtype[0] not in "iu" or not _by_constant(v)
    if v.opcode in COMPLEX_COST:
        return v.shape.dtype[0] == "c"
    if gpu and v.opcode in CHEAP_ON_GPU and v.shape.dtype in ("f32", "f16"):
        return False
    return v.opcode in EXPENSIVE


def _by_constant(v: Vertex) -> bool:
    if len(v.operands) < 2:
        return False
    divisor = v.operands[1]
    if divisor.opcode == "broadcast":
        divisor = divisor.operands[0]
    return divisor.opcode == "constant"


def always_duplicable(v: Vertex) -> bool:
    """A broadcast, or a conversion to a wider type."""
    if v.opcode == "broadcast":
        return True
    return v.opcode == "convert" and WIDTHS[v.shape.dtype] > WIDTHS[v.operands[0].shape.dtype]


def arity(v: Vertex) -> int:
    """How many tensors a reduction reads; its other operands are first values."""
    return max(1, len(v.operands) // 2)


def reuses(v: Vertex, operand: Vertex) -> bool:
    """Whether an element of an operand may be read for several elements of the result."""
    if v.opcode in POINTWISE or v.opcode in NO_REUSE:
        return False
    places = [k for k, o in enumerate(v.operands) if o is operand]
    match v.opcode:
        case "pad":
            return places != [0]
        case "reduce":
            return max(places) >= arity(v)
        case "dynamic-update-slice":
            return max(places) > 1
        case _:
            return True


def expands(v: Vertex, operand: Vertex) -> bool:
    """Whether reading an operand through this vertex multiplies the reads of its elements."""
    if v.opcode == "reduce-window":
        strides = v.strides or (1,) * len(v.window)
        return any(w > s for w, s in zip(v.window, strides, strict=True))
    return v.opcode in ("gather", "broadcast") and v.operands[0] is operand and v.elements > operand.elements


def window_area(v: Vertex) -> int:
    """How many elements a reduce-window reads for each result."""
    return prod(v.window)


def reads_each(v: Vertex, operand: Vertex) -> float:
    """Elements of an operand that one element of the result needs, on average."""
    if not v.elements:
        return 0.0
    match v.opcode:
        case "reduce":
            return operand.elements / v.elements if operand in v.operands[: arity(v)] else 0.0
        case "reduce-window":
            return float(window_area(v)) if operand is v.operands[0] else 0.0
        case (
            "broadcast" | "slice" | "dynamic-slice" | "reshape" | "bitcast" | "reverse" | "transpose" | "pad"
        ):
            return 1.0 if operand is v.operands[0] else operand.elements / v.elements
        case "gather":
            return 1.0 if operand is v.operands[0] else operand.elements / v.elements
        case "dynamic-update-slice" if operand is v.operands[0] and operand not in v.operands[1:]:
            return 0.0  # what is not overwritten stays where it is
        case _:
            return operand.elements / v.elements


# ---------------------------------------------------------------- layouts


def _runs(v: Vertex, marks: dict[int, bool]) -> list[tuple[bool, int]]:
    """Extents from major to minor, those of size 1 dropped and neighbours with the same mark merged."""
    found: list[tuple[bool, int]] = []
    for axis in v.shape.physical:
        extent = v.shape.dims[axis]
        if extent == 1:
            continue
        if found and found[-1][0] == marks[axis]:
            found[-1] = (marks[axis], found[-1][1] * extent)
        else:
            found.append((marks[axis], extent))
    return found


def tiled_reduction(v: Vertex) -> str:
    """`row` or `column` if a reduction pays as a tiled kernel, else empty."""
    return _tiled(v) if v.opcode == "reduce" else ""


@lru_cache(maxsize=65536)
def _tiled(v: Vertex) -> str:
    data = v.operands[0]
    if not data.elements or not v.dims:
        return ""
    reduced = {axis: axis in v.dims for axis in range(len(data.shape.dims))}
    runs = _runs(data, reduced)
    kept = sum(not r for r, _ in runs)
    gone = sum(r for r, _ in runs)
    if not runs or (runs[-1][0] and kept <= 1):
        minor = runs[-1][1] if runs and runs[-1][0] else 1
        return ROW if minor >= WARP or WARP % minor == 0 else ""
    if gone == 0:
        return ROW
    if gone > 1 or runs[-1][0]:
        return ""
    major = next(extent for r, extent in runs if r)
    minor = runs[-1][1]
    slow = (
        major < WARP
        or (major < 2 * WARP and minor < WARP)
        or (major < 4 * WARP and minor < 8)
        or (major < 8 * WARP and minor < 3)
    )
    return "" if slow else COLUMN


def reduced_extent(v: Vertex) -> int:
    """How many elements go into one result of a reduction."""
    return prod(v.operands[0].shape.dims[axis] for axis in v.dims)


def is_variadic(v: Vertex) -> bool:
    """A reduction of several tensors at once."""
    return v.opcode == "reduce" and len(v.operands) > 2


def _moved(v: Vertex) -> tuple[list[int], list[int]] | None:
    """For a copy or transpose: the operand's axes from major to minor, and those of the result as axes of
    the operand; extents of 1 dropped."""
    if v.opcode not in ("copy", "transpose") or len(v.operands) != 1:
        return None
    before = v.operands[0].shape
    if v.opcode == "copy" and before.dims != v.shape.dims:
        return None
    to_operand = v.dims if v.opcode == "transpose" else tuple(range(len(before.dims)))
    first = [a for a in before.physical if before.dims[a] != 1]
    second = [to_operand[a] for a in v.shape.physical if v.shape.dims[a] != 1]
    return first, second


def is_bitcast(v: Vertex) -> bool:
    """Movement that leaves every byte where it is."""
    match v.opcode:
        case "bitcast":
            return True
        case "reshape":
            before = v.operands[0].shape
            plain = [s.order == tuple(range(len(s.dims) - 1, -1, -1)) for s in (before, v.shape)]
            return all(plain) or [d for d in before.dims if d != 1] == [d for d in v.shape.dims if d != 1]
        case "transpose":
            moved = _moved(v)
            return moved is not None and moved[0] == moved[1]
        case _:
            return False


def keeps_width(v: Vertex) -> bool:
    """A bitcast between types of one width."""
    return WIDTHS.get(v.shape.dtype) == WIDTHS.get(v.operands[0].shape.dtype)


def transposes(v: Vertex) -> bool:
    """Whether the order in memory changes: a copy, or a transpose that is no bitcast."""
    return v.opcode == "copy" or (v.opcode == "transpose" and not is_bitcast(v))


def tiled_transpose(v: Vertex) -> bool:
    """Whether it is, after merging, a swap of the two minor extents, both at least 16."""
    return v.opcode in ("copy", "transpose") and _swaps(v)


@lru_cache(maxsize=65536)
def _swaps(v: Vertex) -> bool:
    moved = _moved(v)
    if moved is None or moved[0] == moved[1]:
        return False
    before, after = moved
    dims = v.operands[0].shape.dims
    place = {axis: k for k, axis in enumerate(before)}
    runs: list[list[int]] = []
    for axis in after:
        if runs and place[axis] == place[runs[-1][-1]] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    order = sorted(range(len(runs)), key=lambda k: place[runs[k][0]])
    extents = [prod(dims[a] for a in run) for run in runs]
    if order == [1, 0]:
        return min(extents) >= 16
    return order == [0, 2, 1] and min(extents[1:]) >= 16


def loop_fusible(v: Vertex) -> bool:
    """What a loop kernel may contain anywhere."""
    if v.opcode in POINTWISE:
        return bool(v.operands) and not (v.opcode == "copy" and tiled_transpose(v))
    return v.opcode in MOVEMENT


def fusible_producer(v: Vertex, any_reduce: bool = False) -> bool:
    """What may be computed inside its consumer's loop; `any_reduce` is today's rule."""
    if v.opcode in ("iota", "constant"):
        return True
    if v.opcode == "reduce":
        return not is_variadic(v) and (any_reduce or not tiled_reduction(v))
    return loop_fusible(v)


def fusible_consumer(v: Vertex) -> bool:
    """What may take a producer in."""
    return loop_fusible(v) or v.opcode in ("reduce", "scatter") or input_fusible(v)


def input_fusible(v: Vertex) -> bool:
    """What roots a kernel that follows its input: a tiled reduction or transpose, a scatter."""
    return v.opcode == "scatter" or bool(tiled_reduction(v)) or tiled_transpose(v)


def heavy(v: Vertex) -> bool:
    """Costly to repeat: an elemental reduction or a window of more than 10 elements."""
    if v.opcode == "reduce-window":
        return window_area(v) > 10
    if v.opcode == "reduce" and v.elements and not tiled_reduction(v):
        return v.operands[0].elements / v.elements > 10
    return False


def shared_memory(v: Vertex, today: bool) -> int:
    """The estimate of bytes of shared memory that a tiled operation needs."""
    kind = tiled_reduction(v)
    width = WIDTHS.get(v.shape.dtype, 4) if not v.shape.parts else WIDTHS[v.shape.parts[0].dtype]
    if kind == ROW:
        return 32 * width * arity(v)
    if kind == COLUMN:
        return (32 * 129 if today else 2 * 32 * 33) * width * arity(v)
    return 32 * 33 * width if tiled_transpose(v) else 0
