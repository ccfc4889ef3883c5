"""The fixed parts of a generated Gluon module: imports, layouts by name, and device functions.

A block of rows by columns lies in the layout of a warp group's matrix product, `MMA_n` for n columns; a
vector along its rows in `ROWS_n`, along its columns in `COLUMNS_n`, and a left operand in `LEFT_n`. On its
way from and to memory a block of 16-bit values lies in `WIDE_m_n` (m rows), of which a thread has 16 bytes at
a time. Texts are written as for Triton and translated word by word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cleave.codegen.triton_maps import HELPERS, TANH_NEAR

IMPORTS = """from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

copy_in = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
copy_out = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
lend = getattr(gl.shared_memory_descriptor, "reinterpret", None)
lend = lend or getattr(gl.shared_memory_descriptor, "_reinterpret", None)
"""
"""Triton renamed these after version 3.6."""

DEPTH = "@0@"
"""Stands for the number of turns of the rings until it is known; no name is like it."""

WIDEST = 256
"""Columns of one matrix instruction."""

_LAYOUT = re.compile(r"\b(MMA|ROWS|COLUMNS|LEFT)_(\d+)\b")
_WIDE = re.compile(r"\bWIDE_(?:(?:ROWS|COLUMNS)_)?(\d+)_(\d+)\b")
_SHARED = re.compile(r"\bSHARED_(\d+)_(\d+)_(float16|bfloat16|float32)\b")
_WORD = re.compile(r"(?<![\w.])(" + "|".join(HELPERS) + r")(?=\()|(?<=, )(larger|smaller|times)(?=\))")
_ALONE = re.compile(r"^( +)(larger|smaller|times),$", re.M)
"""A function that a reduction is by, on a line of its own where the call is too long for one."""

ONCE = "@1@"
"""The same for tiles that come once for each tile of the grid."""

LEAN = {
    "exp2_flushed": """
@gluon.jit
def exp2_flushed(x):
    # One instruction: results below 2^-126 are 0.
    return gl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=gl.float32, is_pure=True, pack=1
    )
""",
    "exp_flushed": """
@gluon.jit
def exp_flushed(x):
    return exp2_flushed(x * 1.4426950408889634)
""",
    "tanh_flushed": f"""
@gluon.jit
def tanh_flushed(x):
    # Cephes, as `tanh_single`, in fused steps and with the machine's own reciprocal: no division, no branch.
    size = gl.abs(x)
    z = x * x
    near = gl.fma(z, {TANH_NEAR[0]}, {TANH_NEAR[1]})
    near = gl.fma(near, z, {TANH_NEAR[2]})
    near = gl.fma(near, z, {TANH_NEAR[3]})
    near = gl.fma(near, z, {TANH_NEAR[4]})
    near = gl.fma(near * z, x, x)
    above = exp2_flushed(size * 2.8853900817779268) + 1.0
    part = gl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [above], dtype=gl.float32, is_pure=True, pack=1
    )
    far = gl.fma(part, -2.0, 1.0)
    far = gl.inline_asm_elementwise(
        "copysign.f32 $0, $1, $2;", "=f,f,f", [x, far], dtype=gl.float32, is_pure=True, pack=1
    )
    return gl.where(size < 0.625, near, far)
""",
}
"""Functions of float32 in few instructions, in the order in which a module lists them; each may call those
before it. Within 5 units in the last place, where results are not below the smallest normal number."""
LEAN_OF = {"exp2": "exp2_flushed", "exp": "exp_flushed", "tanh": "tanh_flushed"}

CLEAR_ROWS = """
@gluon.jit
def clear_rows(tile, count, rows: gl.constexpr, per_row: gl.constexpr):
    # Rows from `count` on become 0. Every warp group that reads the tile writes the same.
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 // per_row, per_row], [4, 1], [1, 0])
    for first in gl.static_range(0, rows, 16):
        part = tile.slice(first, 16, 0)
        row = first + gl.arange(0, 16, layout=gl.SliceLayout(1, layout))
        values = part.load(layout)
        part.store(gl.where((row < count)[:, None], values, gl.zeros_like(values)))
    fence_async_shared()
"""

ANEW = """
@gluon.jit
def anew(slot):
    # The same number, of which the compiler does not know that it is.
    return gl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [gl.to_tensor(slot)], dtype=gl.int32, is_pure=False, pack=1
    )
"""


def translated(text: str) -> str:
    """A line of Triton as a line of Gluon."""
    text = _WORD.sub(lambda m: f"{m.group(0)}_in_group", text)
    text = _ALONE.sub(r"\1\2_in_group,", text)
    return re.sub(r"\btl\.(?!PropagateNan)", "gl.", text)


def helpers_for(texts: Iterable[str]) -> list[str]:
    """The device functions that some texts call, in the order of `HELPERS`."""
    text = "\n".join(texts)
    found = [translated_helper(name) for name in HELPERS if f"{name}_in_group" in text]
    lean = {name for name in LEAN if f"{name}(" in text}
    lean |= {"exp2_flushed"} if lean else set()
    found += [body for name, body in LEAN.items() if name in lean]
    found += [ANEW] if "anew(" in text else []
    return [*found, CLEAR_ROWS] if "clear_rows(" in text else found


def translated_helper(name: str) -> str:
    """A device function of `HELPERS` for Gluon."""
    body = HELPERS[name].replace("@triton.jit", "@gluon.jit").replace(f"def {name}(", f"def {name}_in_group(")
    return re.sub(r"\btl\.(?!PropagateNan)", "gl.", body)


def layouts_for(texts: Iterable[str]) -> list[str]:
    """The definitions of the layouts that some texts name."""
    text = "\n".join(texts)
    widths = sorted({int(n) for _, n in _LAYOUT.findall(text)})
    kinds = {(kind, int(n)) for kind, n in _LAYOUT.findall(text)}
    lines: list[str] = []
    for n in widths:
        shape = f"[16, {min(n, WIDEST)}, 16]"
        lines.append(f"MMA_{n} = gl.constexpr(gl.NVMMADistributedLayout([3, 0], [4, 1], {shape}))")
        forms = {
            "ROWS": f"gl.SliceLayout(1, MMA_{n}.value)",
            "COLUMNS": f"gl.SliceLayout(0, MMA_{n}.value)",
            "LEFT": f"gl.DotOperandLayout(0, MMA_{n}.value, 2)",
        }
        lines += [f"{kind}_{n} = gl.constexpr({form})" for kind, form in forms.items() if (kind, n) in kinds]
    for rows, columns in sorted({(int(m), int(n)) for m, n in _WIDE.findall(text)}):
        lines += wide_layouts(rows, columns)
    for rows, columns, kind in sorted(set(_SHARED.findall(text))):
        name = f"SHARED_{rows}_{columns}_{kind}"
        made = f"gl.NVMMASharedLayout.get_default_for([{rows}, {columns}], gl.{kind})"
        lines.append(f"{name} = gl.constexpr({made})")
    return lines


def wide_layouts(rows: int, columns: int) -> list[str]:
    """The layout of a block of 16-bit values of which each thread has 8 neighbours, and those of vectors
    along its rows and columns. Every four threads have the rows that they have in `MMA_n`, so that they need
    no others to change from one layout to the other."""
    own = [[0, 1], [0, 2], [0, 4], [8, 0]]
    own += [[0, 1 << n] for n in range(5, columns.bit_length() - 1)]
    own += [[1 << n, 0] for n in range(6, rows.bit_length() - 1)]
    quads = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    name = f"WIDE_{rows}_{columns}"
    bases = f"{own}, {quads}, [[16, 0], [32, 0]], []"
    return [
        f"{name} = gl.constexpr(gl.DistributedLinearLayout({bases}, [{rows}, {columns}]))",
        f"WIDE_ROWS_{rows}_{columns} = gl.constexpr(gl.SliceLayout(1, {name}.value))",
        f"WIDE_COLUMNS_{rows}_{columns} = gl.constexpr(gl.SliceLayout(0, {name}.value))",
    ]
