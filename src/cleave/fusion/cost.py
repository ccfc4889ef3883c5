"""Run-time models: X23's and today's of XLA, and the totals of a plan (xla-fusion.md, section 2.9).

All times are seconds on `rules.device`. `time_yesterday` compares a producer with all of its users before and
after; `time_alone` and `time_with` are today's time of one kernel, alone or with a producer taken in. They
rank plans and promise nothing.
"""

from __future__ import annotations

from itertools import islice
from math import prod

from cleave.fusion.graph import Vertex
from cleave.fusion.opcodes import COLUMN, SOURCES, arity, reduced_extent, tiled_reduction, tiled_transpose
from cleave.fusion.rules import Device, Rules
from cleave.fusion.units import LOOP, MIXED, REUSED, ROWS, SOMEWHERE, UNTIMED, WHOLE, Asked, Unit

FLOPS: dict[str, dict[str, float]] = {
    "f32": {
        "tanh": 30, "log": 45, "log1p": 60, "exp": 20, "expm1": 30, "pow": 60, "sin": 30, "cos": 30,
        "div": 15,
        "rsqrt": 10, "sqrt": 10, "erf": 30, "logistic": 40, "atan2": 60, "cbrt": 40,
    },
    "f64": {
        "add": 120, "sub": 120, "mul": 120, "div": 3200, "exp": 2200, "log": 2200, "pow": 11000, "tanh": 4000,
        "sqrt": 1200, "rsqrt": 1200, "sin": 3000, "cos": 3000,
    },
    "i32": {"div": 80, "rem": 80, "mod": 80, "floordiv": 80},
    "i64": {"div": 200, "rem": 200, "mod": 200, "floordiv": 200},
}  # fmt: skip
TODAY: dict[str, dict[str, float]] = {"f32": {"sin": 960, "cos": 960}}
"""What today's tables say otherwise, where a device has none of its own."""
MEASURED: dict[str, dict[str, float]] = {
    "nvidia-h200": {
        "cbrt": 178, "cos": 978, "exp": 79, "expm1": 190, "log": 166, "log1p": 229, "rsqrt": 75, "sin": 958,
        "sqrt": 75, "tanh": 467, "add": 7, "sub": 7, "mul": 3, "div": 19, "atan2": 431, "pow": 510,
    },
    "rtx-a6000": {
        "cbrt": 867, "cos": 662, "exp": 86, "expm1": 381, "log": 244, "log1p": 262, "logistic": 176,
        "rsqrt": 75, "sin": 662, "sqrt": 75, "tanh": 190, "atan2": 486, "pow": 925,
    },
}  # fmt: skip
"""Today's f32 operations by device, in clocks as XLA measured them (hlo_op_profiles_data.h, compute
capability 9.0 and 8.6); what is not listed costs `DEFAULT_FLOPS`."""
DEFAULT_FLOPS = 3.0
FREE = (
    frozenset({"broadcast", "reshape", "bitcast", "slice", "dynamic-slice", "transpose", "reverse"}) | SOURCES
)
"""Movement computes nothing."""
SECTOR = 64
"""Bytes of one transaction with memory."""
PER_CLOCK = 32
"""Bytes that a block can ask of memory in a clock."""
TICKS = 4e9
"""XLA keeps times in quarters of a nanosecond. Where gains tie, which of them goes first hangs on it."""
PER_THREAD = 16
BLOCK = 256
"""Elements of a row that a thread reduces, and threads that a block of short rows is filled up to."""


def flops_of(v: Vertex, rules: Rules, today: bool) -> float:
    """Operations for one element of a vertex."""
    if v.opcode in FREE:
        return 0.0
    if v.opcode == "concat":
        if not today:
            return 0.0
        axis = v.dims[0] if v.dims else 0
        uneven = axis != 0 and v.operands[0].shape.dims[axis] % 32 != 0
        return float(rules.concat_penalty) if uneven else 6.0
    dtype = "f32" if v.shape.dtype in ("f16", "bf16") else v.shape.dtype
    # What a reduction combines with is taken for an addition.
    each = _each(dtype, "add" if v.opcode == "reduce" and today else v.opcode, rules.device.name, today)
    if v.opcode == "reduce":
        return each * (reduced_extent(v) - (1 if today else 0)) * arity(v)
    if v.opcode == "dot":
        inner = v.operands[0].elements * v.operands[1].elements / max(1, v.elements)
        return 2.0 * (prod(v.window) if v.window else inner**0.5)
    return each


def _each(dtype: str, opcode: str, device: str, today: bool) -> float:
    """The tables' entry for an opcode."""
    if today and dtype == "f32" and device in MEASURED:
        return MEASURED[device].get(opcode, DEFAULT_FLOPS)
    base = FLOPS.get(dtype, {}).get(opcode, DEFAULT_FLOPS)
    return TODAY.get(dtype, {}).get(opcode, base) if today else base


def unit_flops(unit: Unit, rules: Rules, today: bool = True) -> float:
    """Operations of a unit, with what it computes more than once, by today's tables or X23's."""
    total, done = unit.flops if today else unit.flops_before
    if done < len(unit.members):
        vertices, facts = unit.graph.vertices, unit.facts
        for n in islice(unit.members, done, None):
            each = flops_of(vertices[n], rules, today)
            if each:
                total += each * (facts.get(n) or unit.use(n)).work
        if today:
            unit.flops = (total, len(unit.members))
        else:
            unit.flops_before = (total, len(unit.members))
    return total


def compute(device: Device, flops: float, threads: float) -> float:
    """X23's time to compute."""
    return flops / (2 * device.clock * max(1.0, min(threads, device.lanes))) if flops else 0.0


def read(device: Device, net: float, total: float) -> float:
    """X23's time to read `total` bytes of which `net` are different."""
    speed = device.bandwidth
    if net < device.cache:
        speed *= 2.5
        if net < 2048 * device.cores:
            speed *= 8
    return total / speed


def _share(unit: Unit, number: int) -> float:
    """The fraction of a value's elements that a unit reads: above 1 where it reads them again."""
    elements = unit.graph.vertices[number].elements
    return (unit.facts.get(number) or unit.use(number)).work / elements if elements else 0.0


def _straight(unit: Unit, number: int) -> bool:
    """Whether a unit reads a value at its own index and nowhere else."""
    facts = unit.use(number)
    return facts.sources == WHOLE and not facts.flags & (MIXED | REUSED)


def _own_time(unit: Unit, rules: Rules) -> float:
    found = unit.once("own time")
    if found is None:
        device, root = rules.device, unit.root
        total = sum([_read_all(unit, o, device) for o in unit.operands]) + root.bytes / device.bandwidth
        found = max(compute(device, unit_flops(unit, rules, False), root.elements), total)
        unit.keep("own time", found)
    return found


def _read_all(unit: Unit, number: int, device: Device) -> float:
    size = unit.graph.vertices[number].bytes
    total = size * _share(unit, number)
    return read(device, min(size, total), total)


def time_yesterday(rules: Rules, unit: Unit, users: list[Unit], keeps: bool = False) -> tuple[float, float]:
    """X23: seconds of a producer and its users before and after fusing it into all of them. With `keeps` its
    own value is still written (multi-output)."""
    device, root = rules.device, unit.root
    before = device.launch * (len(users) + 1) + _own_time(unit, rules)
    after = device.launch * len(users)
    flops = unit_flops(unit, rules, False)
    for user in users:
        share = _share(user, root.number)
        before += read(device, min(root.bytes, root.bytes * share), root.bytes * share)
        reads = sum(_read_inside(unit, user, o, share, device) for o in unit.operands)
        after += max(compute(device, flops * share, root.elements * share), reads)
    return before, after + (root.bytes / device.bandwidth if keeps else 0.0)


def _read_inside(unit: Unit, user: Unit, number: int, share: float, device: Device) -> float:
    size = unit.graph.vertices[number].bytes
    used = _share(unit, number) * share - _common(unit, user, number)
    return read(device, min(size, size * used), size * used) if used > 0 else 0.0


def _common(unit: Unit, user: Unit, number: int) -> float:
    """What is read already, because the user reads the same elements."""
    if number not in user.operands or not _straight(user, unit.outputs[0]):
        return 0.0
    if _straight(unit, number) and _straight(user, number):
        return min(_share(unit, number), _share(user, number))
    return 0.0


# ---------------------------------------------------------------- today's model


def geometry(unit: Unit) -> tuple[float, float]:
    """Blocks, and threads of each, that a kernel is launched with."""
    # Without tiled operations the results alone decide.
    stamp = unit.version if unit.specials or unit.kind == ROWS else -len(unit.outputs)
    if unit.grid[0] != stamp:
        unit.grid = (stamp, _geometry(unit))
    return unit.grid[1]


def _geometry(unit: Unit) -> tuple[float, float]:
    hero = unit.leading()
    if unit.kind == ROWS:
        largest = max(unit.graph.vertices[m].elements for m in unit.members)
        rows = max(1, unit.row_count)
        return float(rows), float(min(1024, max(32, largest // rows)))
    if unit.kind != LOOP and hero.opcode == "reduce" and tiled_reduction(hero):
        extent = max(1, reduced_extent(hero))
        if tiled_reduction(hero) == COLUMN:
            minor = _minor_kept(hero)
            major = max(1, hero.elements // max(1, minor))
            return float(major * -(-extent // 4096) * -(-minor // 32)), 1024.0
        return _row_geometry(max(1, hero.elements), extent)
    if unit.kind != LOOP and tiled_transpose(hero):
        return max(1.0, hero.elements / 1024), 128.0
    elements = max((unit.graph.vertices[o].elements for o in unit.outputs), default=1)
    return max(1.0, -(-elements // 128)), float(min(128, max(1, elements)))


def _row_geometry(rows: int, extent: int) -> tuple[float, float]:
    """Blocks and threads of a row reduction: warps share a row, and short rows share a block."""
    threads = extent if extent < 32 else min(1024, -(-extent // (32 * PER_THREAD)) * 32)
    together = max(1, min(rows, BLOCK // threads))
    return float(-(-rows // together)), float(threads * together)


def _minor_kept(hero: Vertex) -> int:
    data = hero.operands[0].shape
    extent = 1
    for axis in data.order:
        if axis in hero.dims and data.dims[axis] != 1:
            break
        extent *= data.dims[axis]
    return extent


def _seconds(device: Device, flops: float, moved: float, blocks: float, threads: float) -> float:
    lanes = (blocks if blocks < device.cores else device.cores) * (
        threads if threads < device.units else device.units
    )
    busy = ticks(flops / (2 * device.clock * (lanes if lanes > 1.0 else 1.0)))
    return ticks(busy + moved - ticks(0.95 * (busy if busy < moved else moved)))


def ticks(seconds: float) -> float:
    """A time of the model, which XLA keeps in quarters of a nanosecond."""
    return int(seconds * TICKS + 0.5) / TICKS if seconds > 0.0 else -int(0.5 - seconds * TICKS) / TICKS


def _reading(device: Device, size: float, total: float, waste: float, blocks: float) -> float:
    """Seconds to read `total` bytes of an operand of `size`: once from memory, and what is read again from
    the caches, but never faster than so many blocks can ask."""
    asked_for = min(blocks, device.most_blocks) * device.clock * PER_CLOCK
    speed = device.bandwidth
    first = asked_for if asked_for < speed else speed
    if total <= size:
        return ticks(total * waste / first)
    if size < device.cache:
        speed *= 20.0 if size < 2048 * device.cores else 2.5
    again = asked_for if asked_for < speed else speed
    return ticks(size * waste / first) + ticks((total - size) / again)


def _waste(unit: Unit, number: int) -> float:
    """How much more than asked is moved, where neighbours in the kernel are no neighbours in memory."""
    if not unit.transposed:
        return 1.0
    v = unit.graph.vertices[number]
    if unit.kind != LOOP and tiled_transpose(unit.leading()):
        return 1.0
    moved = any(tiled_transpose(unit.graph.vertices[n]) for n in unit.inner.get(number, ()))
    return max(1.0, SECTOR / max(1, v.bytes // max(1, v.elements))) if moved else 1.0


def time_alone(unit: Unit, rules: Rules) -> float:
    """Seconds of one kernel, launch not included."""
    if unit.run[0] != unit.version:
        device = rules.device
        blocks, threads = geometry(unit)
        moved = traffic(unit, rules) + _written(unit, rules)
        flops = unit_flops(unit, rules)
        seconds = _seconds(device, flops, moved, blocks, threads)
        unit.run = (unit.version, seconds, moved, blocks, threads, flops)
    return unit.run[1]


def _written(unit: Unit, rules: Rules) -> float:
    if len(unit.outputs) == 1:
        return ticks(unit.root.bytes / rules.device.bandwidth)
    return ticks(sum([unit.graph.vertices[o].bytes for o in unit.outputs]) / rules.device.bandwidth)


def traffic(unit: Unit, rules: Rules) -> float:
    """Seconds that a unit's operands take to read. What each takes is kept while its use stays the same."""
    if unit.reads[0] != unit.version:
        blocks = geometry(unit)[0]
        times = unit.operands
        if blocks != unit.blocks:
            times = unit.operands = dict.fromkeys(times, UNTIMED)
            unit.blocks = blocks
            unit.fresh = [SOMEWHERE]
        untimed = unit.fresh
        if SOMEWHERE in untimed:
            untimed = [number for number, time in times.items() if time == UNTIMED]
        if untimed:
            unit.fresh = []
            device, vertices, facts = rules.device, unit.graph.vertices, unit.facts
            for number in untimed:
                if number not in times:
                    continue  # it has become a member
                work, v = (facts.get(number) or unit.use(number)).work, vertices[number]
                size = v.bytes
                total = size * work / v.elements if v.elements else 0.0
                waste = _waste(unit, number) if unit.transposed else 1.0
                times[number] = _reading(device, size, total, waste, blocks)
        unit.reads = (unit.version, sum(times.values()))
    return unit.reads[1]


def asked(unit: Unit) -> list[Asked]:
    """The operands that have elements, as the model sees them."""
    if unit.asked[0] != unit.version:
        found: list[Asked] = []
        for o in unit.operands:
            v = unit.graph.vertices[o]
            if v.elements:
                waste = _waste(unit, o) if unit.transposed else 1.0
                facts = unit.use(o)
                straight = facts.sources == WHOLE and not facts.flags & (MIXED | REUSED)
                found.append(Asked(o, v.bytes, facts.work / v.elements, straight, waste))
        unit.asked = (unit.version, found)
    return unit.asked[1]


def time_with(producer: Unit, unit: Unit, rules: Rules) -> float:
    """Seconds of a kernel once it has taken a producer in, launch not included."""
    made, device = producer.root, rules.device
    use = unit.facts.get(made.number) or unit.use(made.number)
    share = use.work / made.elements if made.elements else 0.0
    if unit.run[0] != unit.version:
        time_alone(unit, rules)
    _, _, moved, blocks, threads, flops = unit.run
    if producer.reductions and is_reduction_epilogue(producer, unit):
        blocks, threads = geometry(producer)
    times = unit.operands
    moved -= times[made.number]
    straight = use.sources == WHOLE and not use.flags & (MIXED | REUSED)
    for o, size, each, plain, waste in (
        producer.asked[1] if producer.asked[0] == producer.version else asked(producer)
    ):
        used = each * share
        if o in times:
            moved -= times[o]
            own = _share(unit, o)
            used += own - (min(each, own) if straight and plain and _straight(unit, o) else 0.0)
            waste = max(waste, _waste(unit, o))
        moved += _reading(device, size, size * used, waste, blocks)
    flops += unit_flops(producer, rules) * share
    return _seconds(device, flops, moved if moved > 0.0 else 0.0, blocks, threads)


def is_reduction_epilogue(producer: Unit, unit: Unit) -> bool:
    """Whether the consumer only finishes a tiled reduction that the producer computes."""
    if producer.kind == LOOP or not tiled_reduction(producer.leading()):
        return False
    return all(unit.hero(o).number == producer.outputs[0] for o in unit.outputs)
