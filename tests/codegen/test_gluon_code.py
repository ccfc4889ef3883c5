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
