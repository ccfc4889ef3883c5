"""What Triton made of a kernel's loops: rings of tiles in shared memory, read off its GPU text (TTGIR).

A loop copies tiles of later steps into rings while asynchronous products read those of this step. A product
that goes on when the step's copies start must not read the slot that they fill.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cleave.schedule.text import print_tiles
from cleave.schedule.tiles import TileProgram

VALUE = re.compile(r"%([\w-]+)")
VIEWS = ("ttg.memdesc_trans", "ttg.memdesc_reshape", "ttg.memdesc_reinterpret", "ttg.memdesc_subslice")
STEPS = ("arith.select", "arith.addi")
COMPILE = """
    import sys, torch
    from cleave.ir.dims import Atom
    from cleave.runtime.ahead import pretend, stand_ins
    from cleave.runtime.triton_launch import TritonLauncher
    from cleave.schedule.parse import parse_tiles

    pretend(90)
    tiles = parse_tiles(sys.stdin.read())
    sizes = dict(tiles.sizes) | {Atom(n): int(s) for n, s in (a.split("=") for a in sys.argv[1:])}
    launcher = TritonLauncher(tiles, capability=90, example=stand_ins(tiles, sizes))
    for name, kernel in launcher.ahead(stand_ins(tiles, sizes)):
        print(kernel.asm["ttgir"])
"""


@dataclass(frozen=True)
class Ring:
    """A ring that an asynchronous product reads: its slots, how many steps its copies are ahead, and whether
    the product is still running when they start."""

    name: str
    slots: int
    ahead: int
    running: bool

    @property
    def overwritten(self) -> bool:
        """Whether a copy fills the slot that the product reads."""
        return self.running and self.ahead % self.slots == 0


def compiled(tiles: TileProgram, folder: Path, **sizes: int) -> str:
    """Triton's GPU text of all kernels, compiled for compute capability 9 on any machine."""
    env = {**os.environ, "CLEAVE_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    env.pop("TRITON_INTERPRET", None)
    given = [f"{name}={size}" for name, size in sizes.items()]
    script = "\n".join(line[4:] for line in COMPILE.splitlines())
    command = [sys.executable, "-W", "ignore", "-c", script, *given]
    done = subprocess.run(
        command, input=print_tiles(tiles), env=env, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-3000:]
    return done.stdout


def rings(text: str) -> list[Ring]:
    """The rings of all loops."""
    lines = [line.split(" loc(")[0] for line in text.splitlines()]
    numbers = dict(re.findall(r"%([\w-]+) = arith\.constant (-?\d+) : i32", "\n".join(lines)))
    found: list[Ring] = []
    for place, line in enumerate(lines):
        head = re.search(r"scf\.for %[\w-]+ = .* iter_args\((.*)\) -> ", line)
        if head:
            inside = _inside(lines, place)
            starts = {
                a: int(numbers[b]) for a, b in re.findall(r"%([\w-]+) = %([\w-]+)", head[1]) if b in numbers
            }
            found += _Loop(inside, starts).rings()
    return found


def _inside(lines: list[str], place: int) -> list[str]:
    depth = len(lines[place]) - len(lines[place].lstrip())
    end = place + 1
    while not lines[end].strip() or len(lines[end]) - len(lines[end].lstrip()) > depth:
        end += 1
    return lines[place + 1 : end]


class _Loop:
    """One loop: what its values are made of, and where its counters start."""

    def __init__(self, lines: list[str], starts: dict[str, int]) -> None:
        self.lines, self.starts = lines, starts
        parts = (re.match(r"\s*%([\w-]+)(?::\d+)? = (.*)", line) for line in lines)
        self.made = {m[1]: m[2] for m in parts if m}

    def rings(self) -> list[Ring]:
        copies = [
            v
            for line in self.lines
            if re.search(r"async_(tma_)?copy_global_to_local", line)
            for v in self._of(line)
        ]
        filled = dict(filter(None, (self._slot(v) for v in copies)))
        waits = [w for w in self.lines if "warp_group_dot_wait" in w and re.search(r"pendings = [1-9]", w)]
        found: list[Ring] = []
        for name, text in self.made.items():
            if not text.startswith("ttng.warp_group_dot ") or "isAsync = true" not in text:
                continue
            running = any(name in self._of(w) for w in waits)
            for operand in self._of(text)[:2]:
                slot = self._slot(operand)
                if slot and slot[0] in filled:
                    (size, read), (_, written) = slot[1], filled[slot[0]]
                    found.append(Ring(slot[0], size, written - read, running))
        return found

    def _of(self, text: str) -> list[str]:
        return VALUE.findall(text.split(" : ")[0])

    def _slot(self, value: str) -> tuple[str, tuple[int, int]] | None:
        """The ring of a tile in shared memory, its slots, and where the counter of this one starts."""
        text = self.made.get(value, "")
        while text.startswith(VIEWS):
            text = self.made.get(self._of(text)[0], "")
        size = re.search(r"memdesc<(\d+)x", text)
        if not text.startswith("ttg.memdesc_index") or size is None:
            return None
        ring, at = self._of(text)[:2]
        start = self._start(at)
        return None if start is None else (ring, (int(size[1]), start))

    def _start(self, value: str) -> int | None:
        if value in self.starts:
            return self.starts[value]
        text = self.made.get(value, "")
        if not text.startswith(STEPS):
            return None
        return next(
            (s for s in map(self._start, self._of(text)[text.startswith("arith.select") :]) if s is not None),
            None,
        )
