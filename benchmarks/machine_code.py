"""Machine code of NVIDIA GPUs, read: which instructions a way through a kernel takes, and how many of its
blocks an SM holds at once.

A kernel's code is a graph of instructions. The way taken is the one of fewest instructions: what it leaves
out are detours (the reduction of huge angles for a sine), which come back to where it goes on. A loop is a
branch back; predicated exits (threads beyond the end) do not count as ends. Sizes of the SM are those of
compute capability 9.0.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cleave.errors import BuildError

REGISTERS, WARPS, BLOCKS = 65536, 64, 32
"""Of one SM."""
GRAIN = 256
"""Registers are given to a warp in such pieces."""
SHARED, RESERVED = 228 << 10, 1 << 10
"""Shared memory of an SM, and what each block takes besides."""

LINE = re.compile(r"^\s*/\*([0-9a-f]+)\*/\s+(?:(@!?U?P[\dT]+)\s+)?([A-Z][A-Z0-9_.]*)([^;]*);")
LABEL = re.compile(r"^\s*(\.L_x?_?\w+):")
TARGET = re.compile(r"`\((\.L_x?_?\w+)\)")
KINDS = (
    ("float", ("FADD", "FMUL", "FFMA", "FSEL", "FSETP", "FMNMX", "FCHK", "FSET")),
    ("special", ("MUFU",)),
    ("integer", ("IADD", "IMAD", "LOP3", "SHF", "ISETP", "LEA", "IMNMX", "SEL", "PLOP3", "VIADD", "PRMT")),
    ("convert", ("I2F", "F2I", "F2F", "I2I", "F2FP", "FRND")),
    ("load", ("LDG", "LD.")),
    ("store", ("STG", "ST.")),
    ("local", ("LDL", "STL")),
)
"""What instructions do, by the start of their names; all others are `other` (moves, branches, barriers)."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: its name with suffixes, whether a predicate guards it, and where it may branch to."""

    name: str
    guarded: bool
    target: int | None = None


def disassembled(cubin: bytes, tool: Path) -> list[Instruction]:
    """The instructions of a cubin with one kernel, by NVIDIA's `nvdisasm`. `BuildError` if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        done = subprocess.run([str(tool), "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{tool.name} failed: {done.stderr.strip()[:300]}")
    return parsed(done.stdout)


def parsed(text: str) -> list[Instruction]:
    """The instructions of a listing; `BuildError` for a branch to a label that is not there."""
    labels: dict[str, int] = {}
    raw: list[tuple[str, bool, str | None]] = []
    for line in text.splitlines():
        if found := LABEL.match(line):
            labels[found[1]] = len(raw)
        elif found := LINE.match(line):
            name = found[3].rstrip(".")
            aim = TARGET.search(found[4]) if name.startswith(("BRA", "CALL", "BSSY")) else None
            raw.append((name, found[2] is not None, aim[1] if aim else None))
    missing = {aim for name, _, aim in raw if aim and name.startswith("BRA")} - labels.keys()
    if missing:
        raise BuildError(f"the listing branches to {sorted(missing)[0]}, which it does not have")
    return [
        Instruction(name, guarded, labels.get(aim) if aim and name.startswith("BRA") else None)
        for name, guarded, aim in raw
    ]


def _next(code: Sequence[Instruction], at: int) -> Iterable[int]:
    """Where control may go from an instruction."""
    here = code[at]
    if here.target is not None:
        yield here.target
        # A branch may also depend on a predicate among its operands; its own guard is what is printed.
        if not here.guarded:
            return
    if here.name.startswith("EXIT") and not here.guarded:
        return
    if at + 1 < len(code):
        yield at + 1


def way(code: Sequence[Instruction], start: int, ends: Iterable[int], inside: range) -> list[int]:
    """The shortest way from an instruction to one of some others, both counted; empty if there is none."""
    goals, came = set(ends), {start: start}
    queue = deque([start])
    while queue:
        at = queue.popleft()
        if at in goals:
            found = [at]
            while at != start:
                at = came[at]
                found.append(at)
            return found[::-1]
        for after in _next(code, at):
            if after in inside and after not in came:
                came[after] = at
                queue.append(after)
    return []


def loops(code: Sequence[Instruction]) -> list[range]:
    """The loops: from where a branch back leads to the branch."""
    return [range(i.target, n + 1) for n, i in enumerate(code) if i.target is not None and i.target <= n]


def main_loop(code: Sequence[Instruction]) -> range | None:
    """The innermost of the loops that store most, each time around; `None` if no loop stores."""
    storing = [(sum(code[n].name.startswith("STG") for n in loop), loop) for loop in loops(code)]
    storing = [(stores, loop) for stores, loop in storing if stores]
    if not storing:
        return None
    most = max(stores for stores, _ in storing)
    return min((loop for stores, loop in storing if stores == most), key=len)


def counted(code: Sequence[Instruction], places: Iterable[int]) -> Counter[str]:
    """How many instructions of each kind stand at some places."""
    return Counter(kind_of(code[n].name) for n in places)


def kind_of(name: str) -> str:
    """What an instruction does."""
    return next((kind for kind, heads in KINDS if name.startswith(heads)), "other")


def resident(registers: int, shared: int, warps: int) -> int:
    """Blocks of so many warps that an SM of capability 9.0 holds at once: what registers a thread, shared
    memory a block, warps and blocks allow."""
    each = -(-max(registers, 1) * 32 // GRAIN) * GRAIN
    by_registers = REGISTERS // each // warps
    by_shared = SHARED // (shared + RESERVED)
    return max(0, min(BLOCKS, WARPS // warps, by_registers, by_shared))


__all__ = [
    "WARPS", "Instruction", "counted", "disassembled", "kind_of", "loops", "main_loop", "parsed", "resident",
    "way",
]  # fmt: skip
