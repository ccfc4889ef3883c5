"""Pointwise operations and reductions of tiles as Triton expressions (`cleave.ir.ops.MAPS`).

`float16` and `bfloat16` are computed in float32 and rounded once per operation. Only functions that run on
the device and in Triton's interpreter alike are used (the one instruction of assembly is taught to it, see
`runtime.triton_build`); what Triton lacks is written out in `HELPERS`, small device functions that are put
into a module when an expression calls them. NaN passes max and min; division and square root are rounded
correctly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from cleave.codegen.triton_tiles import Tile
from cleave.errors import Bug, Unsupported
from cleave.ir.ops import FLOATS, INTEGERS, Number
from cleave.ir.parse import COMPARISONS
from cleave.knobs import knobs

TYPES = {
    "f64": "tl.float64", "f32": "tl.float32", "f16": "tl.float16", "bf16": "tl.bfloat16", "i64": "tl.int64",
    "i32": "tl.int32", "i16": "tl.int16", "i8": "tl.int8", "u8": "tl.uint8", "bool": "tl.int1",
}  # fmt: skip
LIMITS = {"i64": 63, "i32": 31, "i16": 15, "i8": 7}
WIDTHS = {
    "f64": 64,
    "f32": 32,
    "f16": 16,
    "bf16": 16,
    "i64": 64,
    "i32": 32,
    "i16": 16,
    "i8": 8,
    "u8": 8,
    "bool": 1,
}
HALVES = ("f16", "bf16")
NARROW_WEIGHT = 7
"""Indices are below 2^28 where they are 32 bits wide, so sums of up to 7 of them fit."""
NARROW_LIMIT = 1 << 28

TANH_NEAR = (
    "-5.70498872745e-3",
    "2.06390887954e-2",
    "-5.37397155531e-2",
    "1.33314422036e-1",
    "-3.33332819422e-1",
)
"""`(tanh(x) - x) / x^3` below 0.625 as a polynomial in `x^2`, the highest power first (Cephes, `tanhf`)."""

HELPERS = {
    "larger": """
@triton.jit
def larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "smaller": """
@triton.jit
def smaller(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
""",
    "times": """
@triton.jit
def times(a, b):
    return a * b
""",
    "align_down": """
@triton.jit
def align_down(x, tile: tl.constexpr):
    # Division truncates: step down once more where x is negative and no multiple.
    return (x // tile - tl.where(x % tile < 0, 1, 0)) * tile
""",
    "floor_divide": """
@triton.jit
def floor_divide(a, b):
    rest = a % b
    return a // b - tl.where((rest != 0) & ((rest < 0) != (b < 0)), 1, 0)
""",
    "remainder": """
@triton.jit
def remainder(a, b):
    rest = a % b
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    "floor_divide_float": """
@triton.jit
def floor_divide_float(a, b):
    rest = a % b
    exact = (a - rest) / b
    exact = tl.where((rest != 0) & ((rest < 0) != (b < 0)), exact - 1, exact)
    whole = tl.floor(exact)
    whole = tl.where(exact - whole > 0.5, whole + 1, whole)
    return tl.where(b == 0, a / b, whole)
""",
    "round_even": """
@triton.jit
def round_even(x, whole: tl.constexpr):
    # Adding `whole` leaves no bits behind the point; from there on every number is an integer.
    size = tl.abs(x)
    near = (size + whole) - whole
    return tl.where(size < whole, tl.where(x < 0, near * -1.0, near), x)
""",
    "tanh_single": f"""
@triton.jit
def tanh_single(x):
    # Cephes: an odd polynomial near 0, 1 - 2 / (exp(2x) + 1) elsewhere.
    size = tl.abs(x)
    z = x * x
    small = tl.fma(z, {TANH_NEAR[0]}, {TANH_NEAR[1]})
    small = tl.fma(small, z, {TANH_NEAR[2]})
    small = tl.fma(small, z, {TANH_NEAR[3]})
    small = tl.fma(tl.fma(small, z, {TANH_NEAR[4]}) * z, x, x)
    large = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 0.625, small, tl.where(x < 0, large * -1.0, large))
""",
    "tanh_coarse": """
@triton.jit
def tanh_coarse(x):
    # One instruction, within 2^-11 of the value.
    return tl.inline_asm_elementwise(
        "tanh.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )
""",
    "tanh_double": """
@triton.jit
def tanh_double(x):
    # Cephes: a rational function near 0, 1 - 2 / (exp(2x) + 1) elsewhere.
    size = tl.abs(x)
    z = tl.where(size < 0.625, x * x, 0.0)
    top = (-9.64399179425052238628e-1 * z - 9.92877231001918586564e1) * z - 1.61468768441708447952e3
    bottom = ((z + 1.12811678491632931402e2) * z + 2.23548839060100448583e3) * z + 4.84406305325125486048e3
    large = 1.0 - 2.0 / (tl.exp(2.0 * size) + 1.0)
    return tl.where(size < 0.625, x + x * z * (top / bottom), tl.where(x < 0, large * -1.0, large))
""",
    "power": """
@triton.jit
def power(x, y):
    # In float64, so that float32 results are exact to a unit in the last place.
    base = tl.cast(x, tl.float64)
    up = tl.cast(y, tl.float64) + tl.zeros_like(base)
    size = tl.exp(up * tl.log(tl.abs(base)))
    half = up * 0.5
    odd = (tl.floor(half) != half) & (tl.floor(up) == up)
    signed = tl.where(odd, size * -1.0, size)
    negative = tl.where(tl.floor(up) == up, signed, float("nan"))
    result = tl.where(base < 0, negative, size)
    result = tl.where((base == 0) & odd & (up > 0), base, result)
    return tl.where((up == 0) | (base == 1), 1.0, result)
""",
    "power_integer": """
@triton.jit
def power_integer(x, y):
    # Below 0 only powers of 1 and -1 are not 0.
    one = x * 0 + 1
    below = tl.where(x == 1, one, tl.where(x == -1, one - 2 * (y & 1), one - 1))
    result, square = one, x
    for bit in tl.static_range(6):
        result = tl.where((y >> bit) & 1 != 0, result * square, result)
        square = square * square
    return tl.where(y < 0, below, result)
""",
}
"""Device functions that expressions call, in the order in which a module lists them."""


def number(value: Number, dtype: str) -> str:
    """A literal that Triton gives the right type beside a tile of its dtype."""
    if dtype == "bool":
        return str(bool(value))
    if dtype in INTEGERS:
        return str(int(value))
    real = float(value) if not isinstance(value, Fraction) else value.numerator / value.denominator
    if math.isnan(real):
        return 'float("nan")'
    if math.isinf(real):
        return 'float("inf")' if real > 0 else 'float("-inf")'
    return repr(real)


def typed(value: Number, dtype: str, shape: str = "()") -> str:
    """A literal of a type of its own, as a block or a scalar."""
    return f"tl.full({shape}, {number(value, dtype)}, {TYPES[dtype]})"


def literal_tile(value: Number, dtype: str) -> Tile:
    """A literal as a tile."""
    return Tile(number(value, dtype), dtype, literal=value)


def convert(tile: Tile, text: str, dtype: str) -> str:
    """The text of a tile (already spread over the lanes wanted), in another dtype."""
    if tile.literal is not None:
        if dtype in INTEGERS and tile.dtype in FLOATS:
            return number(math.trunc(tile.literal), dtype)
        return number(tile.literal, dtype)
    if tile.weight:
        return f"tl.cast({text}, {TYPES[dtype]})" if dtype != "bool" else f"({text} != 0)"
    if tile.dtype == dtype:
        return text
    if dtype == "bool":
        return f"({text} != 0)"
    if tile.dtype in HALVES and dtype in HALVES:
        return f"{text}.to(tl.float32).to({TYPES[dtype]})"
    return f"{text}.to({TYPES[dtype]})"


# ---------------------------------------------------------------- pointwise

_SAME = ("id", "cast", "neg", "abs", "max", "min", "select")
"""Operations that a 16-bit float can do as it is."""

_PLAIN = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "lt": "{0} < {1}", "le": "{0} <= {1}",
    "gt": "{0} > {1}", "ge": "{0} >= {1}", "eq": "{0} == {1}", "ne": "{0} != {1}", "and": "{0} & {1}",
    "or": "{0} | {1}", "xor": "{0} ^ {1}", "exp": "tl.exp({0})", "log": "tl.log({0})", "abs": "tl.abs({0})",
    "exp2": "tl.exp2({0})", "fma": "tl.fma({0}, {1}, {2})",
    "sin": "tl.sin({0})", "cos": "tl.cos({0})", "erf": "tl.erf({0})", "isnan": "{0} != {0}",
    "sign": "({0} > 0).to({T}) - ({0} < 0).to({T})", "rsqrt": "tl.rsqrt({0})",
    "select": "tl.where({0}, {1}, {2})", "id": "{0}", "cast": "{0}", "not": "{0} == 0",
}  # fmt: skip
_FLOAT = {
    "neg": "{0} * -1.0", "floor": "tl.floor({0})", "ceil": "tl.ceil({0})",
    "trunc": "tl.where({0} < 0, tl.ceil({0}), tl.floor({0}))", "mod": "remainder({0}, {1})",
    "max": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)", "pow": "power({0}, {1})",
    "min": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)", "div": "{0} / {1}",
    "floordiv": "floor_divide_float({0}, {1})", "sqrt": "tl.sqrt({0})", "reciprocal": "1.0 / {0}",
}  # fmt: skip
_SINGLE = {
    "round": "round_even({0}, 8388608.0)", "tanh": "tanh_single({0})",
    "tanh_coarse": "tanh_coarse({0})",
}  # fmt: skip
_ROUNDED = {"div": "tl.div_rn({0}, {1})", "reciprocal": "tl.div_rn(1.0, {0})", "sqrt": "tl.sqrt_rn({0})"}
"""Correctly rounded. A call each, around which a loop's registers spill: division takes 2 units in the last
place instead unless numerics is `strict`."""
_DOUBLE = {
    "round": "round_even({0}, 4503599627370496.0)",
    "tanh": "tanh_double({0})",
    "tanh_coarse": "tanh_double({0})",
}
_WHOLE = {
    "neg": "-{0}", "max": "tl.maximum({0}, {1})", "min": "tl.minimum({0}, {1})", "floor": "{0}",
    "ceil": "{0}", "trunc": "{0}", "round": "{0}", "floordiv": "floor_divide({0}, {1})",
    "mod": "remainder({0}, {1})", "pow": "power_integer({0}, {1})", "not": "~{0}", "shl": "{0} << {1}",
    "shr": "{0} >> {1}",
}  # fmt: skip
_BOOL = {
    "add": "{0} | {1}", "mul": "{0} & {1}", "max": "{0} | {1}", "min": "{0} & {1}", "not": "~{0}",
    "neg": "{0}", "abs": "{0}",
}  # fmt: skip


def pointwise(fn: str, dtype: str, args: Sequence[Tile], texts: Sequence[str]) -> tuple[str, int]:
    """The expression of a pointwise operation on arguments spread over the result's lanes, in `dtype`, and
    the weight of the result (see `Tile.weight`)."""
    narrow = _narrow(fn, dtype, args)
    if narrow is not None:
        return _PLAIN[fn].format(*texts), narrow
    works = wider([a.dtype for a in args]) if fn in COMPARISONS else dtype
    works = args[0].dtype if fn == "isnan" else works
    works = "f32" if works in HALVES and fn not in _SAME else works
    kinds = ["bool", works, works] if fn == "select" else [works] * len(args)
    spoken = [convert(a, t, kind) for a, t, kind in zip(args, texts, kinds, strict=True)]
    values = args[1:] if fn == "select" else args
    if all(a.literal is not None for a in values):
        spoken[-1] = typed_text(args[-1], works)
    elif works in HALVES or works == "f64":
        spoken = [
            typed_text(a, kind) if a.literal is not None and kind == works else s
            for a, s, kind in zip(args, spoken, kinds, strict=True)
        ]
    power = _constant_power(args, spoken, works) if fn == "pow" else None
    text = power or _template(fn, works).format(*spoken, T=TYPES[works])
    boolean = fn in COMPARISONS or fn == "isnan" or (fn == "not" and works in FLOATS)
    if dtype != ("bool" if boolean else works):
        text = f"({text}).to({TYPES[dtype]})"
    return text, 0


def wider(dtypes: Sequence[str]) -> str:
    """The dtype that comparisons of these dtypes work in: floats before integers, then the wider one."""
    best = dtypes[0]
    for other in dtypes[1:]:
        if {best, other} == {"f16", "bf16"}:
            best = "f32"
        elif {best, other} == {"i8", "u8"}:
            best = "i16"
        else:
            best = max((best, other), key=lambda d: (d in FLOATS, WIDTHS[d]))
    return best


def typed_text(tile: Tile, dtype: str) -> str:
    """A literal tile as a scalar of its own type."""
    assert tile.literal is not None
    value = math.trunc(tile.literal) if dtype in INTEGERS else tile.literal
    return typed(value, dtype)


def _template(fn: str, works: str) -> str:
    if works == "f32" and fn in _ROUNDED and (fn == "sqrt" or knobs().numerics == "strict"):
        return _ROUNDED[fn]
    tables = [_PLAIN]
    if works == "bool":
        tables.insert(0, _BOOL)
    elif works in INTEGERS:
        tables.insert(0, _WHOLE)
    else:
        tables.insert(0, _FLOAT)
        if works != "f64":
            tables.insert(0, _SINGLE)
        else:
            tables.insert(0, _DOUBLE)
    for table in tables:
        if fn in table:
            return table[fn]
    raise Unsupported(f"{fn} of {works} on a GPU", hint="cast the argument to float32 first")


def _narrow(fn: str, dtype: str, args: Sequence[Tile]) -> int | None:
    """The weight of the result if an operation can work in the type of indices, else None."""
    compares = fn in COMPARISONS
    if not (compares or (fn in ("add", "sub") and dtype == "i64")) or not any(a.weight for a in args):
        return None
    weights: list[int] = []
    for tile in args:
        if tile.literal is not None and tile.dtype in INTEGERS and abs(tile.literal) < NARROW_LIMIT:
            weights.append(1)
        elif tile.weight:
            weights.append(tile.weight)
        else:
            return None
    if compares:
        return 0
    return sum(weights) if sum(weights) <= NARROW_WEIGHT else None


def _constant_power(args: Sequence[Tile], texts: Sequence[str], works: str) -> str | None:
    """A power with a small literal exponent as products, a root or a quotient."""
    value, base = args[1].literal, texts[0]
    if value is None or args[0].literal is not None:
        return None
    if value in (1, 2, 3, 4):
        return " * ".join([base] * int(value))
    if works in INTEGERS or works == "bool":
        return None
    if value == 0.5:
        return _template("sqrt", works).format(base)
    if value == -0.5:
        return f"tl.rsqrt({base})"
    if value == -1:
        return _template("reciprocal", works).format(base)
    if works == "f64":
        raise Unsupported(f"a float64 power with exponent {value} on a GPU", hint="use float32")
    return None


# ---------------------------------------------------------------- reductions


def neutral(kind: str, dtype: str) -> Number:
    """What leaves a reduction as it is."""
    match kind:
        case "sum":
            return 0
        case "prod":
            return 1
        case "any":
            return False
        case "all":
            return True
        case "max" | "min":
            sign = -1 if kind == "max" else 1
            if dtype in FLOATS:
                return sign * math.inf
            if dtype == "bool":
                return sign > 0
            if dtype == "u8":
                return 0 if sign < 0 else 255
            return -(1 << LIMITS[dtype]) if sign < 0 else (1 << LIMITS[dtype]) - 1
        case _:
            raise Bug(f"unknown reduction {kind!r}")


def reduced(kind: str, dtype: str, text: str, axis: int) -> str:
    """The reduction of a block (in `dtype`, padding neutral) over one axis, in `dtype`."""
    if kind in ("any", "all") or dtype == "bool":
        over = "max" if kind in ("any", "max", "sum") else "min"
        return f"tl.{over}({text}.to(tl.int32), {axis}) != 0"
    if kind == "sum":
        done = f"tl.sum({text}, {axis})"
        return f"{done}.to({TYPES[dtype]})" if dtype not in ("f32", "f64", "i64", "i32") else done
    if kind == "prod":
        return f"tl.reduce({text}, {axis}, times)"
    if dtype in FLOATS:
        return f"tl.reduce({text}, {axis}, {'larger' if kind == 'max' else 'smaller'})"
    done = f"tl.{kind}({text}, {axis})"
    return done if dtype in ("i64", "i32") else f"{done}.to({TYPES[dtype]})"
