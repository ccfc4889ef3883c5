"""Merging the parts of a split several at once: values in Triton's interpreter for any number of parts, and
machine code that asks for all states before it uses one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import triton

from cleave.codegen.triton import emit
from cleave.codegen.triton_parts import GROUP, merges
from cleave.runtime.triton_build import kernels_for
from cleave.schedule.counting import MOST_PARTS
from cleave.schedule.parse import parse_tiles
from cleave.schedule.tiles import Loop, TileProgram

TESTS = Path(__file__).parents[1]
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

SCRIPT = """
    import sys
    sys.path[:0] = [{tests!r}, {tests!r} + "/codegen"]
    import torch
    from test_triton_parts import split_attention
    from cleave.ir.dims import Atom
    from cleave.runtime.triton_launch import TritonLauncher

    torch.manual_seed(0)
    q, k, v = (torch.randn(n, s, 128) for n, s in ((32, 2), (8, 1100), (8, 1100)))
    scores = q.double().view(8, 8, 128) @ k.double().mT / 128 ** 0.5
    right = (scores.softmax(-1) @ v.double()).view(32, 2, 128)
    for parts in (1, 3, 4, 5, 8, 9):
        tiles, choose = split_attention("f32"), lambda t, s: {{Atom("T"): parts}}
        launcher = TritonLauncher(tiles, "interpret", choose=choose)
        found, = launcher(q, k, v)
        worst = (found.double() - right).abs().max().item()
        assert worst < 1e-5, (parts, worst)
    print("done")
"""


def split_attention(dtype: str = "bf16") -> TileProgram:
    """Parts by plain Triton, and their merge."""
    text = (TESTS / "cases" / "split" / "grouped.tiles").read_text()
    text = re.sub(r"\n +(descriptors|groups 2|group 8)(?=\n| \{)", "", text)
    return parse_tiles(text.replace("n: N by 1, s: S by 8", "n: N by 1, s: S by 2").replace("bf16", dtype))


def test_which_loops_merge() -> None:
    _, merge = split_attention().kernels
    (loop,) = [s for s in merge.body if isinstance(s, Loop)]
    assert merges(loop)
    assert not any(merges(s) for s in split_attention().kernels[0].body if isinstance(s, Loop))


def test_the_text_asks_for_several_parts_and_leaves_out_those_that_are_not_there() -> None:
    text = emit(split_attention()).text.split("def main_merge(")[1]
    assert f"in range(0, parts_T, {MOST_PARTS}):" in text
    assert text.count("tl.load(") == 3 * MOST_PARTS
    assert text.count(" if p_t_") == MOST_PARTS // GROUP - 1
    assert text.count("< parts_T\n") == MOST_PARTS - 1, "each but the first is tested"


def test_values_for_any_number_of_parts_in_the_interpreter(tmp_path: Path) -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "CLEAVE_CACHE_DIR": str(tmp_path)}
    script = textwrap.dedent(SCRIPT.format(tests=str(TESTS)))
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "done" in done.stdout, done.stderr[-3000:]


def test_machine_code_asks_for_all_states_before_it_uses_one(tmp_path: Path) -> None:
    """An assembler that moves a load to its use makes a merge wait for every part's state in turn."""
    kernels = dict(kernels_for(emit(split_attention())))
    made = tmp_path / "kernel.cubin"
    made.write_bytes(kernels["main_merge"].asm["cubin"])
    command = [TOOLS / "cuobjdump", "-sass", made]
    code = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    order = re.findall(r"\b(LDG|MUFU\.EX2)\b", code)
    first = order.index("MUFU.EX2")
    assert first >= 0.9 * order.count("LDG") >= 0.9 * 3 * MOST_PARTS, order
