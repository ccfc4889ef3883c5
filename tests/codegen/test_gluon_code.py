"""What the code of kernels with warp groups must keep for compute capability 9: products that overlap, and
little of it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import triton
from triton.backends.nvidia.compiler import get_ptxas

from cleave.codegen.triton import emit
from cleave.runtime.triton_build import kernels_for
from cleave.schedule.parse import parse_tiles

FOLDER = Path(__file__).parents[1] / "cases" / "groups"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.tiles")))
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
INSTRUCTION = 16
"""Bytes."""
MOST_CODE = 72 * 1024
"""Bytes of code that are still in the caches after a few other kernels; measured: 63 KiB cost 1 us then, 77
KiB 16 us (docs/decisions/0009-warp-groups.md)."""


def assembled(name: str, folder: Path) -> tuple[str, int]:
    """What the assembler has to say of a case's kernel, and its bytes of code."""
    source = emit(parse_tiles((FOLDER / f"{name}.tiles").read_text()), described=True, grouped=True)
    ((_, kernel),) = kernels_for(source)
    text, made = folder / "kernel.ptx", folder / "kernel.cubin"
    text.write_text(kernel.asm["ptx"])
    command = [get_ptxas(90).path, "-arch=sm_90a", "-v", text, "-o", made]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    command = [TOOLS / "cuobjdump", "-sass", made]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return said, INSTRUCTION * sum("*/" in line and ";" in line for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_no_two_products_wait_for_each_other_and_code_is_small(name: str, tmp_path: Path) -> None:
    """The assembler says so where it makes asynchronous products wait (C7510 and the like), and goes on."""
    said, size = assembled(name, tmp_path)
    assert "Used" in said
    assert "(C75" not in said, said
    if name in ("edge", "tail"):
        assert size <= MOST_CODE, f"{size} bytes"


@pytest.mark.parametrize("name", ["deep", "latent"])
def test_results_wait_for_all_warps_where_a_tile_lay(name: str) -> None:
    """Nothing is written to a lent place before all warps of a group have ended their products with it, and
    it is given back when what all of them wrote has been read: the model of Gluon knows of no warps."""
    source = emit(parse_tiles((FOLDER / f"{name}.tiles").read_text()), described=True, grouped=True)
    assert "= lend(q_ring, " in source.text
    ((_, kernel),) = kernels_for(source)
    lines = [line.strip() for line in kernel.asm["ptx"].splitlines()]
    leaving = [
        n for n, line in enumerate(lines) if "cp.async.bulk.tensor" in line and "global.shared" in line
    ]
    assert len(leaving) == 2, "one for each group"
    for place in leaving:
        written = [n for n in range(place) if lines[n].startswith(("stmatrix", "st.shared.v"))]
        done = [n for n in range(written[-1]) if lines[n].startswith("wgmma.wait_group")]
        first = min(n for n in written if not done or n > done[-1])
        read = min(n for n in range(place, len(lines)) if "bulk.wait_group.read" in lines[n])
        given = min(n for n in range(read, len(lines)) if "mbarrier.arrive" in lines[n])
        steps = [(written[-1], place), (read, given)]
        if name == "deep":  # of the other one the first group's products end before it gives the last step
            steps.append((done[-1], first))
        for begin, end in steps:
            assert any(line.startswith(("bar.sync", "barrier.sync")) for line in lines[begin:end]), (
                begin,
                end,
            )
