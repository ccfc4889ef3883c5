"""Loops as text: the levels of a nest, and the reductions that are kept in registers.

The innermost loop is vectorised; where its loads have a stride known only at run time, the loops are written
as a lambda that is compiled twice, for stride 1 and for any stride. Long sums have several running values.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from cleave.codegen import cpp_math
from cleave.codegen.cpp_text import TILE_TYPES, Namer, Text, indent, literal, loop_head
from cleave.ir.dims import Index
from cleave.ir.ops import FLOATS, Number

IDENTITY: dict[str, Number] = {
    "sum": 0, "prod": 1, "any": False, "all": True, "max": float("-inf"), "min": float("inf"),
}  # fmt: skip
LEAST = {"i64": -(2**63), "i32": -(2**31), "i16": -(2**15), "i8": -(2**7), "u8": 0, "bool": 0}
GREATEST = {"i64": 2**63 - 1, "i32": 2**31 - 1, "i16": 2**15 - 1, "i8": 2**7 - 1, "u8": 255, "bool": 1}
LONG = 64
"""Elements that a loop has at least whose sums get several running values."""
QUICK, SLOWER = 64, 32
"""Running values of a sum: where a step does little, and where it does much."""
SLOW = rf"\b({'|'.join(sorted(cpp_math.COSTLY))})\("
CLAUSES = {"sum": "+", "prod": "*", "any": "|", "all": "&"}


@dataclass(frozen=True, slots=True)
class Running:
    """A reduction that is kept in a register: its kind, dtype, variable and first value."""

    kind: str
    dtype: str
    name: str
    start: str

    @property
    def clause(self) -> str:
        """How OpenMP calls it."""
        if self.kind in ("max", "min") and self.dtype in FLOATS:
            return "top" if self.kind == "max" else "bottom"
        return CLAUSES.get(self.kind, self.kind)


@dataclass(slots=True)
class Level:
    """One loop: the indices it runs over, its variable and its trip count; and what stands inside it
    before and after the next loop."""

    indices: tuple[Index, ...]
    variable: str
    count: Text
    lines: list[str] = field(default_factory=list[str])
    after: list[str] = field(default_factory=list[str])
    sums: list[Running] = field(default_factory=list["Running"])


def identity(kind: str, dtype: str) -> str:
    """What a reduction over nothing is."""
    if dtype not in FLOATS and kind in ("max", "min"):
        return literal((LEAST if kind == "max" else GREATEST)[dtype], dtype)
    return literal(IDENTITY[kind], dtype)


def combine(kind: str, dtype: str, a: str, b: str) -> str:
    """The assignment that adds `b` to the running reduction `a`."""
    if kind in ("max", "min"):
        return f"{a} = {kind}<{TILE_TYPES[dtype]}>({a}, {b});"
    return f"{a} {CLAUSES[kind]}= {b};"


@dataclass(frozen=True, slots=True)
class Loops:
    """Loops to be written, outermost first; the first level is what stands around all of them. `units` are
    the strides known only at run time, `sums` what the lambda's loops change outside of it."""

    levels: Sequence[Level]
    units: Sequence[str]
    sums: Sequence[str]
    names: Namer

    def text(self) -> list[str]:
        """All loops, with what stands before, in and after them."""
        units = [unit for unit in self.units if len(self.levels) > 1]
        body = self._level(0)
        if not units:
            return body
        parameters = ", ".join(f"auto {unit}" for unit in units)
        test = " && ".join(f"{unit} == 1" for unit in units)
        captures = ", ".join(["=", *(f"&{name}" for name in self.sums)])  # by value: it vectorises
        once, general = ", ".join("unit" for _ in units), ", ".join(units)
        head, loops = self._split_root(body)
        return [
            *head,
            f"const auto sweep = [{captures}]({parameters}) {{",
            *indent(loops),
            "};",
            f"if ({test}) sweep({once});",
            f"else sweep({general});",
            *self.levels[0].after,
        ]

    def _split_root(self, body: list[str]) -> tuple[list[str], list[str]]:
        """What stands before the loops and must stay visible after them, and the loops."""
        head = len(self.levels[0].lines)
        tail = len(self.levels[0].after)
        return body[:head], body[head : len(body) - tail]

    def _level(self, number: int) -> list[str]:
        level = self.levels[number]
        lines = list(level.lines)
        if number + 1 < len(self.levels):
            inner = self.levels[number + 1]
            body = self._level(number + 1)
            count = inner.count
            if number + 2 < len(self.levels):
                lines += [f"{loop_head(inner.variable, count)} {{", *indent(body), "}"]
                return [*lines, *level.after]
            if self.units and isinstance(count, int):
                count = self.names.name(f"{inner.variable}_steps")
                lines.append(f"const i64 {count} = steps({inner.count}, {self.units[0]});")
            if inner.sums and not (isinstance(inner.count, int) and inner.count < LONG):
                lines += self._several_at_once(inner, count, body)
            else:
                head = loop_head(inner.variable, count)
                lines += [_simd(inner.sums), f"{head} {{", *indent(body), "}"]
        return [*lines, *level.after]

    def _several_at_once(self, level: Level, count: Text, body: list[str]) -> list[str]:
        """The innermost loop, of `count` steps, with as many running values of each of its sums as several
        vectors hold: an addition takes longer than the next one takes to arrive, and what OpenMP's reductions
        leave in a vector is put together number by number."""
        variable, slot = level.variable, self.names.name("slot")
        start, at = self.names.name(f"{variable}_from"), self.names.name(f"{variable}_at")
        values = {s.name: self.names.name(f"{s.name}_values") for s in level.sums}
        given = ", ".join(f"{TILE_TYPES[s.dtype]}& {s.name}" for s in level.sums)
        width = SLOWER if any(re.search(SLOW, line) for line in level.lines) else QUICK
        call = f"{at}({start} + {slot}, {', '.join(f'{name}[{slot}]' for name in values.values())});"
        lines = [
            f"const auto {at} = [=](i64 {variable}, {given}) __attribute__((always_inline)) {{",
            *indent(body),
            "};",
        ]
        for s in level.sums:
            lines += [
                f"{TILE_TYPES[s.dtype]} {values[s.name]}[{width}];",
                "#pragma omp simd",
                f"{loop_head(slot, width)} {values[s.name]}[{slot}] = {s.start};",
            ]
        lines += [
            f"i64 {start} = 0;",
            f"for (; {start} + {width} <= {count}; {start} += {width}) {{",
            "  #pragma omp simd",
            f"  {loop_head(slot, width)} {call}",
            "}",
        ]
        if not isinstance(level.count, int) or level.count % width:
            lines += ["#pragma omp simd", f"{loop_head(slot, f'{count} - {start}')} {call}"]
        for s in level.sums:
            kind = TILE_TYPES[s.dtype]
            put = f"[]({kind} a, {kind} b) {{ {combine(s.kind, s.dtype, 'a', 'b')} return a; }}"
            lines.append(combine(s.kind, s.dtype, s.name, f"folded<{width}>({values[s.name]}, {put})"))
        return lines


def _simd(sums: Sequence[Running]) -> str:
    clauses = "".join(f" reduction({s.clause}: {s.name})" for s in sums)
    return f"#pragma omp simd{clauses}"
