"""Pointwise operations as C++ expressions (`cleave.ir.ops.MAPS`).

Arguments are converted to the dtype the operation works in, and the result is rounded to the node's dtype.
float16 and bfloat16 are worked in float32 and rounded after each operation.
"""

from __future__ import annotations

from collections.abc import Sequence

from cleave.codegen.cpp_text import TILE_TYPES
from cleave.errors import Bug
from cleave.ir.ops import FLOATS

WIDTH = {"bool": 0, "u8": 1, "i8": 2, "i16": 3, "i32": 4, "i64": 5, "f16": 6, "bf16": 6, "f32": 7, "f64": 8}
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
INFIX = {"add": "+", "sub": "-", "mul": "*"}
LOGIC = {"and": "&", "or": "|", "xor": "^"}
SHIFTS = ("shl", "shr")
CALLS = (
    "exp",
    "exp2",
    "log",
    "sqrt",
    "abs",
    "tanh",
    "erf",
    "sin",
    "cos",
    "floor",
    "ceil",
    "round",
    "trunc",
    "sign",
)
COARSE = {"tanh_coarse": "tanh"}
"""What serves for functions that need not be exact to the last places: a CPU has nothing quicker."""
CALLS_OF_TWO = ("pow", "max", "min", "floordiv", "mod")
CALLS_OF_THREE = ("fma",)
COSTLY = frozenset(
    {"exp", "exp2", "log", "tanh", "tanh_coarse", "erf", "sin", "cos"}
    | {"pow", "sqrt", "rsqrt", "div", "floordiv", "mod"}
)

Typed = tuple[str, str]
"""The text of an argument and its dtype."""


def convert(text: str, source: str, target: str) -> str:
    """The value of an expression in another dtype."""
    if source == target:
        return text
    if target == "bool":
        return f"({text} != 0)"
    if source == "bool":  # a choice, as gcc vectorises no conversion of a bool
        kind = TILE_TYPES[target]
        return f"({text} ? {kind}(1) : {kind}(0))"
    if target in ("f16", "bf16"):
        if source == "u8":
            return f"float({text})"
        return f"round_{target}({text if TILE_TYPES[source] == 'float' else f'float({text})'})"
    if TILE_TYPES[source] == TILE_TYPES[target]:
        return text
    return f"{TILE_TYPES[target]}({text})"


def expression(fn: str, dtype: str, args: Sequence[Typed]) -> str:
    """The value of a pointwise operation."""
    if fn in ("cast", "id"):
        return convert(*args[0], dtype)
    if fn in COMPARISONS:
        a, b = _common(args)
        return f"{a} {COMPARISONS[fn]} {b}"
    if fn == "isnan":
        text, source = args[0]
        return f"({text} != {text})" if source in FLOATS else "false"
    if fn == "select":
        chosen = convert(*args[0], "bool")
        a, b = (_brackets(convert(text, source, dtype)) for text, source in args[1:])
        return f"{_brackets(chosen)} ? {a} : {b}"
    fn = COARSE.get(fn, fn)
    values = [convert(text, source, dtype) for text, source in args]
    return _rounded(_arithmetic(fn, dtype, values), fn, dtype)


def _common(args: Sequence[Typed]) -> tuple[str, str]:
    """Both arguments in the wider of their dtypes."""
    wide = max((dtype for _, dtype in args), key=lambda d: WIDTH[d])
    if {dtype for _, dtype in args} == {"f16", "bf16"}:
        wide = "f32"
    (a, b) = (_brackets(convert(text, dtype, wide)) for text, dtype in args)
    return a, b


def _arithmetic(fn: str, dtype: str, values: list[str]) -> str:
    first = _brackets(values[0])
    second = _brackets(values[1]) if len(values) > 1 else ""
    real = dtype in FLOATS
    kind = TILE_TYPES[dtype]
    if fn in INFIX:
        if dtype == "bool":
            return {"add": f"{first} | {second}", "mul": f"{first} & {second}"}.get(fn, f"{first} ^ {second}")
        return f"{first} {INFIX[fn]} {second}"
    if fn in SHIFTS:
        # A shift to the left as a product: gcc makes a rotation of two shifts, and AVX2 has none.
        return f"{kind}({first} * ({kind}(1) << {second}))" if fn == "shl" else f"{kind}({first} >> {second})"
    if fn in LOGIC:
        return f"{first} {LOGIC[fn]} {second}"
    if fn == "neg":
        return f"-{first}"
    if fn == "not":
        return f"!{first}" if dtype == "bool" else f"~{first}"
    if fn == "div":
        return f"{first} / {second}" if real else f"divide<{kind}>({values[0]}, {values[1]})"
    if fn == "reciprocal":
        return f"1 / {first}"
    if fn == "rsqrt":
        return f"1 / sqrt({values[0]})"
    if fn in CALLS:
        if not real and fn in ("floor", "ceil", "round", "trunc"):
            return values[0]
        return f"{fn}({values[0]})" if real else f"{fn}<{kind}>({values[0]})"
    if fn in CALLS_OF_THREE:
        return f"{fn}({', '.join(values)})"
    if fn in CALLS_OF_TWO:
        arguments = f"({values[0]}, {values[1]})"
        return f"{fn}{arguments}" if fn in ("pow", "mod") and real else f"{fn}<{kind}>{arguments}"
    raise Bug(f"the C++ emitter does not know the operation {fn!r}")


def _rounded(text: str, fn: str, dtype: str) -> str:
    exact = ("max", "min", "neg", "abs", "sign", "floor", "ceil", "round", "trunc")
    if dtype in ("f16", "bf16") and fn not in exact:
        return f"round_{dtype}({text})"
    return text


def _brackets(text: str) -> str:
    """The text as an operand: bracketed unless it is one word, one literal or one call."""
    depth = 0
    for letter in text:
        if letter in "([<":
            depth += 1
        elif letter in ")]>":
            depth -= 1
        elif letter == " " and depth == 0:
            return f"({text})"
    return f"({text})" if text.startswith("-") else text
