"""Pairs of programs in a short notation, for the tests of proofs: bodies share inputs, dtypes are made up.

A line `m[n: N] = max[k: K](x[n, k])` gets the dtype its operation gives; the last line is `-> m[n]`.
"""

from __future__ import annotations

import re

from cleave.algebra import opinion
from cleave.ir.program import Program
from cleave.ir.text import parse_program

_TRUTHS = ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "not", "any", "all", "xor")


def program(inputs: str, body: str, where: str = "") -> Program:
    """The program with these inputs (`x[N, K]`, `mask: bool[S, T]`, `eps: scalar f32`) and this body."""
    declared = ", ".join(_declare(part) for part in _split(inputs))
    lines = [_line(line.strip()) for line in body.strip().splitlines() if line.strip()]
    head = f"program p({declared})" + (f" where {where}" if where else "")
    return parse_program(head + " {\n" + "\n".join(f"  {line}" for line in lines) + "\n}\n")


def _split(inputs: str) -> list[str]:
    parts, depth = [""], 0
    for ch in inputs:
        depth += (ch in "[(") - (ch in "])")
        if ch == "," and not depth:
            parts.append("")
        else:
            parts[-1] += ch
    return parts


def _declare(part: str) -> str:
    if ":" in part:
        return part.strip()
    name, rest = part.strip().split("[", 1)
    return f"{name}: f32[{rest}"


def _line(line: str) -> str:
    if line.startswith("->"):
        return "return " + line[2:].strip()
    left, right = line.split(" = ", 1)
    fn = re.match(r"\w+", right)
    name = fn.group() if fn else ""
    dtype = "bool" if name in _TRUTHS else "i64" if name == "index" else "f32"
    if left.endswith("!"):
        left, dtype = left[:-1], "i64"
    return f"{left}: {dtype} = {right}"


def refuted(a: Program, b: Program, count: int = 12) -> str:
    """A point where two programs differ (or only the first is defined), as text; empty if none is found."""
    for point in opinion.points(a, b, count=count):
        found = opinion.compare(a, b, point)
        if found is not None:
            return str(found)
    return ""
