"""What an operation costs, in clocks: the tables of XLA's two models (xla-fusion.md, section 2.9)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import prod

from cleave.fusion.graph import Vertex
from cleave.fusion.opcodes import SOURCES, arity, reduced_extent
from cleave.fusion.rules import Rules

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
_CLOCKS = "cbrt cos exp expm1 log log1p rsqrt sin sqrt tanh add sub mul div atan2 pow logistic"


def _row(text: str) -> dict[str, float]:
    """Clocks by opcode: a number for each word of `_CLOCKS`, `-` for what is not measured."""
    pairs = zip(_CLOCKS.split(), text.split(), strict=True)
    return {name: float(number) for name, number in pairs if number != "-"}


MEASURED: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "nvidia-h200": {
        "f16": _row("201 997 102 217 182 245 95 993 95 502 7 7 7 43 451 526 -"),
        "f32": _row("178 978 79 190 166 229 75 958 75 467 7 7 3 19 431 510 -"),
        "f64": _row("586 558 376 712 815 1259 277 554 332 431 15 15 15 526 930 2205 -"),
        "i8": {"div": 356, "mul": 7, "pow": 122},
        "i16": {"div": 364, "mul": 7, "pow": 122},
        "i32": {"div": 297, "mul": 3, "pow": 71},
        "i64": {"div": 685, "mul": 11, "pow": 253},
        "u8": {"div": 300, "mul": 7, "pow": 122},
        "u16": {"div": 304, "mul": 7, "pow": 126},
        "u32": {"div": 122, "mul": 3, "pow": 71},
        "u64": {"div": 629, "mul": 11, "pow": 253},
    },
    "rtx-a6000": {
        "f16": _row("925 691 108 396 266 284 97 - 97 212 - - - - 482 975 226"),
        "f32": _row("867 662 86 381 244 262 75 662 75 190 - - - - 486 925 176"),
        "f64": _row("6339 1717 1652 1900 608 2073 698 1789 986 1609 97 97 97 2016 3747 5511 2412"),
        "i8": {"div": 370, "pow": 392},
        "i16": {"div": 367, "pow": 396},
        "i32": {"div": 306},
        "i64": {"div": 918, "pow": 601},
        "u8": {"div": 306, "pow": 388},
        "u16": {"div": 302, "pow": 399},
        "u32": {"div": 115},
        "u64": {"div": 838, "pow": 604},
    },
}
"""Today's operations by device and dtype, in clocks as XLA measured them (hlo_op_profiles_data.h, compute
capability 9.0 and 8.6); what is not listed costs `DEFAULT_FLOPS`."""
LIKE: Mapping[str, str] = {"floordiv": "div", "mod": "div", "bf16": "f32"}
"""What a Program has and XLA does not, as what it costs: it computes bf16 in f32."""
DEFAULT_FLOPS = 3.0
FREE = (
    frozenset({"broadcast", "reshape", "bitcast", "slice", "dynamic-slice", "transpose", "reverse"})
    | {"dynamic-update-slice"}
    | SOURCES
)
"""Movement computes nothing."""


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
    dtype = v.shape.dtype
    # What a reduction combines with is taken for an addition.
    each = _each(dtype, "add" if v.opcode == "reduce" and today else v.opcode, rules.device.name, today)
    if v.opcode == "reduce":
        return each * (reduced_extent(v) - (1 if today else 0)) * arity(v)
    if v.opcode == "dot":
        inner = v.operands[0].elements * v.operands[1].elements / max(1, v.elements)
        return 2.0 * (prod(v.window) if v.window else inner**0.5)
    return each


@cache
def _each(dtype: str, opcode: str, device: str, today: bool) -> float:
    """The tables' entry for an opcode."""
    if today and device in MEASURED:
        clocks = MEASURED[device].get(LIKE.get(dtype, dtype), {})
        return clocks.get(LIKE.get(opcode, opcode), DEFAULT_FLOPS)
    dtype = "f32" if dtype in ("f16", "bf16") else dtype
    base = FLOPS.get(dtype, {}).get(opcode, DEFAULT_FLOPS)
    return TODAY.get(dtype, {}).get(opcode, base) if today else base
