"""Kernels side by side in one launch: the text of both languages, and what must not be joined."""

from __future__ import annotations

import torch

from cleave.codegen import cpp, triton
from cleave.codegen.together import together
from cleave.frontend.capture import capture
from cleave.ir.program import Program
from cleave.runtime.planned import as_written
from cleave.schedule.beside import independent
from cleave.schedule.machine import CPU, H200, Machine
from cleave.schedule.select import best
from cleave.schedule.tiles import TileProgram


def two_updates() -> Program:
    x, y = torch.randn(5, 7), torch.randn(11)
    made = capture(lambda x, y, g: (x - 0.1 * g, y * 0.5), (x, y, x), dynamic={"x": ("N", "D"), "y": ("M",)})
    return made.program


def tiles_of(program: Program, machine: Machine) -> TileProgram:
    sizes = program.bind(dict.fromkeys(program.dynamic, 8))
    return best(as_written(program), sizes, machine, count=1)[0].tiles


def test_independent_kernels_become_one_entry_with_each_parameter_once() -> None:
    for machine, emit in ((CPU, cpp.emit), (H200, triton.emit)):
        tiles = tiles_of(two_updates(), machine)
        assert len(tiles.kernels) == 2 and independent(tiles)
        source = together(emit(tiles), tiles)
        (entry,) = source.entries
        assert entry.beside == 1
        keys = [(a.kind, a.tensor, a.axis, a.dim) for a in entry.arguments]
        assert len(set(keys)) == len(keys) and len({a.name for a in entry.arguments}) == len(keys)
        assert source.text.count(f"{entry.function}(") == 1
        assert together(emit(tiles), tiles) == source


def test_what_depends_on_each_other_or_is_alone_stays_as_it_is() -> None:
    x = torch.randn(4096, 64)
    program = capture(lambda x: x / x.sum(0, keepdim=True), (x,), dynamic={}).program
    found = best(as_written(program), program.bind({}), CPU, count=8)
    apart = [r.tiles for r in found if len(r.tiles.kernels) > 1]
    for tiles in [*apart, tiles_of(capture(torch.exp, (x,), dynamic={}).program, CPU)]:
        source = cpp.emit(tiles)
        assert together(source, tiles) is source
        assert len(tiles.kernels) == 1 or not independent(tiles)
