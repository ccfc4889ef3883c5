"""Words of C++: types, literals, arithmetic on texts, identifiers.

An expression is a text, or an int where its value is known: `times` and `plus` fold what they can, so that
known sizes stand as literals in the source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

import numpy as np

from cleave.ir.ops import FLOATS, Number

Text = str | int

TILE_TYPES = {
    "f64": "double", "f32": "float", "f16": "float", "bf16": "float", "i64": "i64", "i32": "i32",
    "i16": "i16", "i8": "i8", "u8": "u8", "bool": "bool",
}  # fmt: skip
"""What an element of a tile is held in: narrow floats are rounded values in a float."""

MEMORY_TYPES = {**TILE_TYPES, "f16": "f16", "bf16": "bf16"}
"""What an element of a tensor is stored as."""

TILE_BYTES = {"double": 8, "float": 4, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1, "bool": 1}

_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char class compl concept const
    constexpr const_cast continue decltype default delete do double dynamic_cast else enum explicit export
    extern false float for friend goto if inline int long mutable namespace new noexcept not not_eq nullptr
    operator or or_eq private protected public register reinterpret_cast requires return short signed sizeof
    static static_assert static_cast struct switch template this thread_local throw true try typedef typeid
    typename union unsigned using virtual void volatile wchar_t while xor xor_eq
    i64 i32 i16 i8 u8 u16 u32 f16 bf16 inf nan unit bits ceil_div least greatest align_down align_up inside
    rows_each folded fresh line_of put_line steps
    fma max min sqrt floor ceil round trunc abs sign exp log tanh erf sin cos pow mod divide floordiv
    scratch Scratch tile product product_bf16 block blocks rest memory threads failed sweep main std cleave
"""
RESERVED = frozenset(_WORDS.split())


def times(*factors: Text) -> Text:
    """The product of expressions."""
    number, texts = 1, list[str]()
    for factor in factors:
        if isinstance(factor, int):
            number *= factor
        else:
            texts.append(factor)
    if number == 0 or not texts:
        return number
    if number == 1 and len(texts) == 1:
        return texts[0]
    texts = [f"({text})" if _is_sum(text) else text for text in texts]
    return " * ".join([*texts, str(number)] if number != 1 else texts)


def plus(*summands: Text) -> Text:
    """The sum of expressions."""
    number, text = 0, ""
    for summand in summands:
        if isinstance(summand, int):
            number += summand
        elif not text:
            text = summand
        elif summand.startswith("-"):
            text += f" - {summand[1:]}"
        else:
            text += f" + {summand}"
    if not text:
        return number
    if number:
        text += f" {'-' if number < 0 else '+'} {abs(number)}"
    return text


def minus(a: Text, b: Text) -> Text:
    """The difference of two expressions."""
    if isinstance(b, int):
        return plus(a, -b)
    if a == b:
        return 0
    return f"{a} - {f'({b})' if _is_sum(b) else b}"


def least(bounds: Sequence[Text], name: str = "least") -> Text:
    """The least of expressions (or, with `name="greatest"`, the greatest)."""
    numbers = [b for b in bounds if isinstance(b, int)]
    texts = list(dict.fromkeys(b for b in bounds if not isinstance(b, int)))
    known = [min(numbers) if name == "least" else max(numbers)] if numbers else []
    result: Text | None = None
    for bound in [*texts, *known]:
        result = bound if result is None else f"{name}({result}, {bound})"
    assert result is not None
    return result


def _is_sum(text: str) -> bool:
    """Does a text need brackets as a factor?"""
    depth = 0
    for position, letter in enumerate(text):
        if letter in "([":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif depth == 0 and letter in "+-" and (position == 0 or text[position - 1] == " "):
            return True
    return False


def literal(value: Number, dtype: str) -> str:
    """A constant of a dtype; a narrow float is rounded to its values."""
    if dtype == "bool":
        return "true" if value else "false"
    if dtype in FLOATS:
        return _float_literal(float(value), dtype)
    number = int(value)
    if number < -(2**63) + 1:
        return "(-9223372036854775807 - 1)"
    return str(number)


def _float_literal(value: float, dtype: str) -> str:
    if dtype != "f64":
        value = _round(value, dtype)
    if math.isnan(value) or math.isinf(value):
        word = "nan" if math.isnan(value) else "inf"
        word = f"double({word})" if dtype == "f64" else word
        return f"-{word}" if value == -math.inf else word
    text = repr(value) if dtype == "f64" else f"{np.float32(value)!s}"
    if not re.search(r"[.e]", text):
        text += ".0"
    return text if dtype == "f64" else f"{text}f"


def _round(value: float, dtype: str) -> float:
    with np.errstate(over="ignore"):
        if dtype == "f16":
            return float(np.float16(value))
        narrow = np.float32(value)
    if dtype == "bf16" and np.isfinite(narrow):
        raw = narrow.view(np.uint32).astype(np.uint64)
        raw = (raw + 0x7FFF + ((raw >> np.uint64(16)) & np.uint64(1))) & np.uint64(0xFFFF0000)
        return float(raw.astype(np.uint32).view(np.float32))
    return float(narrow)


class Namer:
    """Gives identifiers that are unique in a scope and the scopes around it."""

    def __init__(self, parent: Namer | None = None) -> None:
        self._parent = parent
        self._used: set[str] = set()

    def taken(self, name: str) -> bool:
        if name in self._used or name in RESERVED:
            return True
        return self._parent is not None and self._parent.taken(name)

    def name(self, wanted: str) -> str:
        """`wanted` made an identifier, with a number behind it if it is taken."""
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII).strip("_") or "v"
        if base[0].isdigit():
            base = f"v{base}"
        name, number = base, 2
        while self.taken(name):
            name, number = f"{base}_{number}", number + 1
        self._used.add(name)
        return name


def loop_head(variable: str, count: Text) -> str:
    """The head of a loop over `[0, count)`."""
    return f"for (i64 {variable} = 0; {variable} < {count}; ++{variable})"


def indent(lines: Iterable[str], by: int = 1) -> list[str]:
    """Lines moved right; pragmas and empty lines stay where they are."""
    return [f"{'  ' * by}{line}" if line else line for line in lines]
