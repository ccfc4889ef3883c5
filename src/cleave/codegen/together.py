"""Kernels that need nothing of each other in one launch: horizontal fusion of generated source.

`together` turns a source with several independent kernels into one whose only entry runs them all. In Triton
each kernel becomes a function that is handed its program's number, and a program finds out whose block it is
by counting blocks; in C++ one function calls the others in turn. Parameters that mean the same are passed
once. The text of the kernels stays as it is.
"""

from __future__ import annotations

import re
from dataclasses import replace

from cleave.codegen.source import KINDS, Argument, Entry, Source
from cleave.codegen.triton_scope import Parameters
from cleave.codegen.triton_text import Names
from cleave.ir.dims import Dim, Parts, extent
from cleave.schedule.beside import independent
from cleave.schedule.tiles import Kernel, TileProgram
from cleave.schedule.walks import firsts_of

Key = tuple[object, ...]


def together(source: Source, tiles: TileProgram) -> Source:
    """The source with one entry for all of its kernels; as it is if they are one or depend on each other."""
    entries = source.entries
    if len(entries) < 2 or not independent(tiles) or any(e.groups for e in entries):
        return source
    shared = _Shared()
    calls = [[shared.take(a) for a in entry.arguments] for entry in entries]
    if source.language == "triton":
        counts = [_blocks(tiles, kernel, shared) for kernel in tiles.kernels]
        arguments = shared.in_order()
        text, function = _triton(source, counts, calls, arguments)
    else:
        arguments = shared.in_order()
        text, function = _cpp(source, calls, arguments)
    first = entries[0]
    most = max(e.warps for e in entries)
    entry = Entry("together", function, arguments, first.grid, most, first.stages, beside=len(entries) - 1)
    return Source(source.language, text, (entry,))


class _Shared:
    """Parameters of several functions, each once, under names of their own."""

    def __init__(self) -> None:
        self.arguments: list[Argument] = []
        self.names: dict[Key, str] = {}
        self.taken: set[str] = {"first", "last", "program"}

    def take(self, a: Argument) -> str:
        """The name under which a function's parameter is passed."""
        key: Key = (a.kind, a.tensor, a.axis, a.dim, a.dtype, a.block)
        if key not in self.names:
            name, number = a.name, 1
            while name in self.taken:
                number += 1
                name = f"{a.name}_{number}"
            self.taken.add(name)
            self.names[key] = name
            self.arguments.append(replace(a, name=name))
        return self.names[key]

    def in_order(self) -> tuple[Argument, ...]:
        """All parameters, in the order of their kinds."""
        return tuple(sorted(self.arguments, key=lambda a: KINDS.index(a.kind)))


# ---------------------------------------------------------------- C++


def _cpp(source: Source, calls: list[list[str]], arguments: tuple[Argument, ...]) -> tuple[str, str]:
    heads = {e.function: re.search(rf"int {e.function}\(([^)]*)\)", source.text) for e in source.entries}
    types: dict[str, str] = {}
    for entry, names in zip(source.entries, calls, strict=True):
        head = heads[entry.function]
        assert head is not None
        for text, name in zip(head[1].split(", "), names, strict=True):
            kind = text.rpartition(" ")[0]
            # A tensor that one kernel writes is written.
            types[name] = kind if name not in types or not kind.startswith("const ") else types[name]
    function = f"{source.entries[0].function}_together"
    parameters = ", ".join(f"{types[a.name]} {a.name}" for a in arguments)
    lines = [f'extern "C" int {function}({parameters}) {{']
    for entry, names in zip(source.entries, calls, strict=True):
        lines.append(f"  if ({entry.function}({', '.join(names)}) != 0) return 1;")
    lines += ["  return 0;", "}"]
    end = "\n}  // namespace cleave\n"
    body = source.text.removesuffix(end)
    return "\n".join([body, *lines, end]), function


# ---------------------------------------------------------------- Triton

_HEAD = r"@triton\.jit(?:\(([^\n]*)\))?\ndef NAME\(((?:.|\n)*?)\):\n"
INDEX = "INDEX: tl.constexpr"


def _blocks(tiles: TileProgram, kernel: Kernel, shared: _Shared) -> str:
    """How many blocks a kernel has, as text."""
    params = Parameters(tiles, kernel, Names())
    kept = firsts_of(kernel)
    factors: list[str] = []
    for axis in kernel.grid:
        flat = params.flat(extent(0, (axis.index.dim, 1)))
        if not flat.terms:
            factors.append(str(max(-(-flat.const // axis.tile), int(axis.index in kept))))
            continue
        size = " + ".join(
            f"{'' if c == 1 else f'{c} * '}{shared.take(_size_of(dim))}" for dim, c in flat.terms
        )
        size += f" + {flat.const}" if flat.const else ""
        count = f"tl.cdiv({size}, {axis.tile})" if axis.tile > 1 else f"({size})"
        factors.append(f"tl.maximum({count}, 1)" if axis.index in kept else count)
    return " * ".join(factors) or "1"


def _size_of(dim: Dim) -> Argument:
    if isinstance(dim, Parts):
        return Argument("parts", f"parts_{dim.of}", dim=dim.of)
    return Argument("size", str(dim), dim=dim)


def _triton(
    source: Source, counts: list[str], calls: list[list[str]], arguments: tuple[Argument, ...]
) -> tuple[str, str]:
    text = source.text
    heads: list[list[str]] = []
    kinds: dict[str, str] = {}
    loose: dict[str, None] = {}
    for entry, names in zip(source.entries, calls, strict=True):
        found = re.search(_HEAD.replace("NAME", entry.function), text)
        assert found is not None
        own = [w.strip() for w in found[2].split(",") if w.strip()]
        heads.append(own)
        of = dict(zip((a.name for a in entry.arguments), names, strict=True))
        for word in own:
            name, _, kind = word.partition(": ")
            if kind and name in of:
                kinds[of[name]] = f": {kind}"
        loose.update(dict.fromkeys(of[n] for n in re.findall(r'"(\w+)"', found[1] or "")))
        rest = text[found.end() :]
        end = re.search(r"^(?=@triton|def )", rest, re.MULTILINE)
        stop = end.start() if end else len(rest)
        body = rest[:stop].replace("tl.program_id(0)", "tl.cast(program, tl.int32)")
        head = "\n".join(
            ["@triton.jit", f"def {entry.function}(", "    program,", *[f"    {w}," for w in own]]
        )
        text = f"{text[: found.start()]}{head}\n):\n{body}{rest[stop:]}"
    dynamic = any(INDEX in own for own in heads)
    parameters = [a.name + kinds.get(a.name, "") for a in arguments] + ([INDEX] if dynamic else [])
    wanted = ", ".join(f'"{n}"' for n in loose)
    lines = ["", f"@triton.jit(do_not_specialize=[{wanted}])" if loose else "@triton.jit", "def together("]
    lines += [*[f"    {p}," for p in parameters], "):", "    program = tl.program_id(0)", "    first = 0"]
    for entry, own, count, names in zip(source.entries, heads, counts, calls, strict=True):
        passed = ", ".join(["program - first", *names, *(["INDEX"] if INDEX in own else [])])
        lines += [
            f"    last = first + {count}",
            "    if (program >= first) & (program < last):",
            f"        {entry.function}({passed})",
            "    first = last",
        ]
    return text.rstrip("\n") + "\n\n" + "\n".join(lines) + "\n", "together"
