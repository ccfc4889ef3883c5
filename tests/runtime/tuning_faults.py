"""Tile programs that go wrong in every way, through a compiler that breaks kernels by their name; also a
tuner as a process of its own, to be killed or doubled: `python tuning_faults.py COUNT BUDGET`."""

from __future__ import annotations

import json
import stat
import sys
from dataclasses import replace
from pathlib import Path

import tile_examples as te
from cleave.ir.dims import Atom
from cleave.ir.parse import parse_program
from cleave.runtime.tune import tune
from cleave.runtime.tune_point import Choice, Limits, Point
from cleave.schedule.tiles import TileProgram

PROGRAM = parse_program(
    """program product(x: f32[N, K], w: f32[O, K]) {
  out[n: N, o: O]: f32 = contract[k: K](x[n, k], w[o, k])
  return out[n, o]
}
"""
)
SIZES = {Atom("N"): 24, Atom("O"): 20, Atom("K"): 33}

_COMPILER = r"""#!/bin/bash
# Compiles quickly, and breaks kernels whose name says so, or takes its time for them.
if [ "$1" = --version ]; then exec g++ --version; fi
source=$(mktemp)
trap 'rm -f "$source"' EXIT
(echo '#include <unistd.h>'; echo '#include <cstdlib>'; cat) > "$source"
breaks() { sed -i "s/^\(extern \"C\" int [a-z_0-9]*_$1(.*{\)\$/\1 $2/" "$source"; }
breaks crash 'std::abort();'
breaks quits '_exit(3);'
breaks hang 'for (;;) sleep(1);'
breaks memory 'return 1;'
breaks wrong 'return 0;'
breaks refused 'this is no statement'
breaks slow 'usleep(300000);'
if grep -q '^extern "C" int [a-z_0-9]*_tardy(' "$source"; then sleep 2; fi
if grep -q '^extern "C" int [a-z_0-9]*_stuck(' "$source"; then sleep 60; fi
g++ "$@" -O0 < "$source"
"""


def compiler(folder: Path) -> str:
    """The command of the breaking compiler, made in a folder."""
    path = folder / "breaking-compiler"
    path.write_text(_COMPILER)
    path.chmod(path.stat().st_mode | stat.S_IEXEC)
    return str(path)


def product(tile: int, fault: str = "main") -> TileProgram:
    """A matrix product; `fault` names its kernel."""
    tiles = te.matmul(n_tile=tile, o_tile=16, k_tile=16).tiles
    kernels = (replace(tiles.kernels[0], name=fault),)
    return replace(tiles, name="product", kernels=kernels)


def point(*faults: str) -> Point:
    """A point with one choice for each fault, each of another tile size."""
    choices = (
        Choice(product(4 * (n + 1), fault), 1e-6 * (n + 1), "c", "test") for n, fault in enumerate(faults)
    )
    return Point(PROGRAM, "cpu", SIZES, tuple(choices))


def main() -> None:
    count, budget = int(sys.argv[1]), float(sys.argv[2])
    found = tune([point(*["slow"] * count)], Limits(budget=budget, measure_seconds=60))[0]
    print(json.dumps([[r.measured.status, r.now] for r in found.results]))


if __name__ == "__main__":
    main()
