"""Run-time models: X23's and today's of XLA, and the totals of a plan (xla-fusion.md, section 2.9).

All times are seconds on `rules.device`. `time_yesterday` compares a producer with all of its users before and
after; `time_alone` and `time_with` are today's time of one kernel, alone or with a producer taken in. They
rank plans and promise nothing.
"""

from __future__ import annotations

from itertools import islice

from cleave.fusion.clocks import flops_of
from cleave.fusion.graph import Vertex
from cleave.fusion.opcodes import COLUMN, reduced_extent, tiled_reduction, tiled_transpose
from cleave.fusion.rules import Device, Rules
from cleave.fusion.units import GROUP, LOOP, MIXED, REUSED, ROWS, SOMEWHERE, UNTIMED, WHOLE, Asked, Unit

SECTOR = 64
"""Bytes of one transaction with memory."""
PER_CLOCK = 32
"""Bytes that a block can ask of memory in a clock."""
TICKS = 4e9
"""XLA keeps times in quarters of a nanosecond. Where gains tie, which of them goes first hangs on it."""
OVERLAP = 0.95
"""The part of the shorter of computing and moving that runs beside the longer."""
PER_THREAD = 16
BLOCK = 256
"""Elements of a row that a thread reduces, and threads that a block of short rows is filled up to."""


def unit_flops(unit: Unit, rules: Rules, today: bool = True) -> float:
    """Operations of a unit, with what it computes more than once, by today's tables or X23's."""
    total, done = unit.flops if today else unit.flops_before
    if done < len(unit.members):
        vertices, facts = unit.graph.vertices, unit.facts
        key = rules.device.name, rules.concat_penalty, today
        costs = unit.graph.flops.get(key)
        if costs is None:
            costs = unit.graph.flops[key] = {}
        for n in islice(unit.members, done, None):
            each = costs.get(n)
            if each is None:
                each = costs[n] = flops_of(vertices[n], rules, today)
            if each:
                total += each * (facts.get(n) or unit.use(n)).work
        if today:
            unit.flops = (total, len(unit.members))
        else:
            unit.flops_before = (total, len(unit.members))
    return total + unit.repeated[0] if today else total


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
    return unit.read_work(number) / elements if elements else 0.0


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
    # Without tiled operations and concatenations the results alone decide.
    stamp = -len(unit.outputs)
    if unit.specials or unit.kind == ROWS or (unit.concats and unit.may_concatenate()):
        stamp = unit.version
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
    elements = max((_written_elements(unit, unit.graph.vertices[o]) for o in unit.outputs), default=1)
    return max(1.0, -(-elements // 128)), float(min(128, max(1, elements)))


def _written_elements(unit: Unit, output: Vertex) -> int:
    """Elements that a loop kernel goes over for a result."""
    if output.opcode == "dynamic-update-slice":
        return output.operands[1].elements
    hero = unit.concatenation()
    return output.elements if hero is None else max(o.elements for o in hero.operands)


def _written_bytes(output: Vertex) -> int:
    """Bytes that a kernel writes for a result: of an update in place what it updates."""
    return output.operands[1].bytes if output.opcode == "dynamic-update-slice" else output.bytes


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
    # XLA divides by whole operations a nanosecond: two threads at 1.98 GHz make 7, not 7.92.
    rate = int(2e-9 * device.clock * (lanes if lanes > 1.0 else 1.0))
    busy = int(flops / rate * 1e-9 * TICKS + 0.5) / TICKS if flops else 0.0
    shorter = busy if busy < moved else moved
    hidden = int(OVERLAP * int(shorter * TICKS + 0.5) + 0.5) / TICKS
    return int((busy + moved - hidden) * TICKS + 0.5) / TICKS


def ticks(seconds: float) -> float:
    """A time of the model, which XLA keeps in quarters of a nanosecond."""
    return int(seconds * TICKS + 0.5) / TICKS if seconds > 0.0 else -int(0.5 - seconds * TICKS) / TICKS


def _asking(device: Device, blocks: float) -> float:
    """Bytes per second that so many blocks can ask for."""
    return (blocks if blocks < device.most_blocks else device.most_blocks) * device.clock * PER_CLOCK


def _reading(device: Device, size: float, total: float, waste: float, asking: float) -> float:
    """Seconds to read `total` bytes of an operand of `size`: once from memory, and what is read again from
    the caches, but never faster than the blocks can ask. Each is in `TICKS` (none is negative)."""
    speed = device.bandwidth
    first = asking if asking < speed else speed
    if total <= size:
        return int(total * waste / first * TICKS + 0.5) / TICKS
    if size < device.cache:
        speed *= 20.0 if size < 2048 * device.cores else 2.5
    again = asking if asking < speed else speed
    once = int(size * waste / first * TICKS + 0.5)
    return once / TICKS + int((total - size) / again * TICKS + 0.5) / TICKS


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


def _lone_bitcast(unit: Unit) -> bool:
    """A bitcast that is no part of a kernel: nothing moves."""
    return not unit.kind and unit.root.opcode == "bitcast"


def _written(unit: Unit, rules: Rules) -> float:
    if _lone_bitcast(unit):
        return 0.0
    if len(unit.outputs) == 1:
        return int(_written_bytes(unit.root) / rules.device.bandwidth * TICKS + 0.5) / TICKS
    total = sum([_written_bytes(unit.graph.vertices[o]) for o in unit.outputs])
    return ticks(total / rules.device.bandwidth)


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
            lone, asking = _lone_bitcast(unit), _asking(device, blocks)
            for number in untimed:
                if number not in times:
                    continue  # it has become a member
                work, v = (facts.get(number) or unit.use(number)).work, vertices[number]
                if unit.read_again:
                    work += unit.read_again.get(number, 0.0)
                size = v.bytes
                total = size * work / v.elements if v.elements and not lone else 0.0
                waste = _waste(unit, number) if unit.transposed else 1.0
                times[number] = _reading(device, size, total, waste, asking)
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
                # In a loop only what is read elementwise has the kernel's index.
                straight = GROUP in facts.sources and (unit.kind == LOOP or not facts.flags & MIXED)
                found.append(Asked(o, v.bytes, unit.read_work(o) / v.elements, straight, waste))
        unit.asked = (unit.version, found)
    return unit.asked[1]


def time_with(producer: Unit, unit: Unit, rules: Rules) -> float:
    """Seconds of a kernel once it has taken a producer in, launch not included."""
    made, device = producer.root, rules.device
    use = unit.facts.get(made.number) or unit.use(made.number)
    work = use.work
    if unit.read_again:
        work += unit.read_again.get(made.number, 0.0)
    share = work / made.elements if made.elements else 0.0
    whole = use.sources == WHOLE
    if unit.run[0] != unit.version:
        time_alone(unit, rules)
    _, _, moved, blocks, threads, flops = unit.run
    if (producer.reductions or producer.concats) and leads(producer, unit):
        blocks, threads = geometry(producer)
    times, asking = unit.operands, _asking(device, blocks)
    moved -= times[made.number]
    for o, size, each, plain, waste in (
        producer.asked[1] if producer.asked[0] == producer.version else asked(producer)
    ):
        used = each * share
        if o in times:
            moved -= times[o]
            used += _share(unit, o)
            if plain:
                straight = whole and GROUP in unit.use(o).sources  # mostly
                used -= 1.0 if straight else unit.common(o, made.number)
            if unit.transposed:
                waste = max(waste, _waste(unit, o))
        moved += _reading(device, size, size * used, waste, asking)
    flops += unit_flops(producer, rules) * share
    return _seconds(device, flops, moved if moved > 0.0 else 0.0, blocks, threads)


def is_reduction_epilogue(producer: Unit, unit: Unit) -> bool:
    """Whether the consumer only finishes a tiled reduction that the producer computes."""
    if producer.kind == LOOP or not tiled_reduction(producer.leading()):
        return False
    return _ends_with(producer, unit)


def leads(producer: Unit, unit: Unit) -> bool:
    """Whether a kernel that takes a producer in is launched as the producer was."""
    if producer.reductions and is_reduction_epilogue(producer, unit):
        return True
    return producer.concatenation() is not None and _ends_with(producer, unit)


def _ends_with(producer: Unit, unit: Unit) -> bool:
    """Whether the consumer is nothing but light operations on a producer's value."""
    return all(unit.hero(o).number == producer.outputs[0] for o in unit.outputs)
