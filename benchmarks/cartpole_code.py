"""A step of Cartpole in machine code: `python -m benchmarks.cartpole_code [--json FILE] [--case WORD]`

Every variant of ours, some strategies' plans and the kernel by hand are compiled for an H200 (capability
9.0), which need not be there, at `SIZE` environments; the machine code is disassembled with Triton's own
`nvdisasm`. A row has, for each kernel, registers, local and shared memory, the warps that an SM could hold
and those that it is given, and the instructions that one thread executes for one step, on the way that leaves
out the sine's slow reduction of huge angles (`machine_code.way`); what is outside of the loop over steps
counts with its share. Nothing is run: instructions are counted, time is not.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine_code as mc
from benchmarks.cartpole_ahead import blank
from benchmarks.cartpole_facts import sizes_of
from benchmarks.cartpole_ours import Variant, arguments, dims_of, source_of, variants
from benchmarks.cartpole_plans import Planned, Plans
from benchmarks.cartpole_plans import arguments as of_plan
from cleave.ir.dims import size_of
from cleave.schedule.tiles import Kernel, TileProgram

SIZE, STEPS, CAPABILITY, CORES = 2048, 500, 90, 132
RESULT = Path(__file__).parent / "results" / "cartpole-code-sm90.json"
PLANS = (
    ("cleave", "X26"), ("xla", "X22"), ("xla", "X23"), ("xla", "X26"), ("priority", "X26"),
    ("vertical", "X23"), ("vertical-dup", "X23"), ("vertical-dup+merger", "X23"), ("multi-output", "X23"),
)  # fmt: skip
"""Strategies whose kernels are looked at, for one step, with random numbers read."""
STORES = 2
"""What a step hands out: reward and done."""

Row = dict[str, Any]


def rows(words: Sequence[str] = ()) -> Iterator[Row]:
    """A row for each case with one of the words in its name (none: all)."""
    from cleave.runtime.ahead import pretend

    pretend(CAPABILITY)
    inputs = blank(SIZE, STEPS, "cpu")
    for variant in variants():
        if not words or any(word in variant.name for word in words):
            args = arguments(variant, inputs, 0, variant.chunk(STEPS))
            yield _row(variant.name, tiles_of(variant, args), args, variant.chunk(STEPS))
    plans = Plans("cuda")
    for state in ("separate", "stacked"):
        for strategy, epoch in PLANS:
            planned = Planned(strategy, epoch, state, "read")
            if words and not any(word in planned.name for word in words):
                continue
            made = plans.prepared(planned, inputs)
            if made.first != planned.name:
                yield {"implementation": planned.name, "same_as": made.first}
                continue
            from cleave.schedule.parse import parse_tiles

            args = of_plan(planned, inputs, 0)
            yield _row(planned.name, parse_tiles(made.tiles), args, 1)
    if not words or any(word in "by hand" for word in words):
        yield by_hand()


def operations() -> int:
    """Pointwise operations of one step on separate state that reads its random numbers."""
    from benchmarks.cartpole_plans import captured
    from cleave.ir.ops import Map

    planned = Planned("none", "X26", "separate", "read")
    program = captured(planned, of_plan(planned, blank(SIZE, 1, "cpu"), 0))
    return sum(isinstance(node.op, Map) for node in program.nodes)


def tiles_of(variant: Variant, args: Sequence[Any]) -> TileProgram:
    """The tile program that serves a variant at the size of the arguments on an H200."""
    from cleave.frontend.capture import capture
    from cleave.pipeline import Compiled, plan

    chunk = variant.chunk(STEPS)
    static = 0 if variant.kernel == "loop" and variant.random == "read" else chunk
    program = capture(source_of(variant, chunk), args, dynamic=dims_of(variant, static)).program
    made = plan(program, target="cuda")
    compiled = Compiled(made, list(made.variants))
    return compiled._served(args)[0].tiles


def _row(name: str, tiles: TileProgram, args: Sequence[Any], steps: int) -> Row:
    from cleave.runtime.triton_launch import TritonLauncher

    meta = [a.to("meta") if isinstance(a, torch.Tensor) else a for a in args]
    launcher = TritonLauncher(tiles, capability=CAPABILITY, example=meta)
    sizes = sizes_of(tiles, args)
    reports = {r.kernel: r for r in launcher.reports}
    kernels: list[Row] = []
    for (entry, built), kernel in zip(launcher.ahead(meta), tiles.kernels, strict=True):
        report = reports[entry]
        blocks = prod(-(-size_of(a.index.dim, sizes) // a.tile) for a in kernel.grid)
        own = {"registers": report.registers, "local": report.spills, "shared": report.shared}
        kernels.append({"kernel": entry, **own, **_held(own, kernel, blocks), **code_facts(built, steps)})
    return _summed({"implementation": name, "steps": steps, "kernels": kernels})


def _held(own: Row, kernel: Kernel, blocks: int) -> Row:
    return held(own["registers"], own["shared"], kernel.warps, blocks)


def held(registers: int, shared: int, warps: int, blocks: int) -> Row:
    """What an SM could hold of a kernel, and what it gets of so many blocks: warps of 64."""
    most = mc.resident(registers, shared, warps)
    return {
        "warps": warps,
        "blocks": blocks,
        "possible_warps": most * warps,
        "resident_warps": min(most, blocks / CORES) * warps,
    }


def code_facts(built: Any, steps: int) -> Row:
    """The instructions of a kernel: in its code, and of one thread for one of `steps` steps."""
    return way_facts(mc.disassembled(built.asm["cubin"], _tool()), steps)


def way_facts(code: Sequence[mc.Instruction], steps: int) -> Row:
    """Instructions for one of `steps` steps on the shortest way; with a loop over steps, of the loop."""
    whole = range(len(code))
    ends = [n for n, i in enumerate(code) if i.name.startswith("EXIT") and not i.guarded]
    loop = mc.main_loop(code)
    found: Row = {"code": len(code)}
    if loop is None or steps == 1:
        taken = mc.way(code, 0, ends, whole)
        return {**found, "per_step": len(taken) / steps, "kinds": _kinds(mc.counted(code, taken), steps)}
    taken = mc.way(code, loop.start, [loop.stop - 1], loop)
    inside = mc.counted(code, taken)
    each = max(1, inside["store"] // STORES)
    before = mc.way(code, 0, [loop.start], range(loop.start + 1))[:-1]
    after = mc.way(code, loop.stop - 1, ends, range(loop.stop - 1, len(code)))[1:]
    outside = mc.counted(code, [*before, *after])
    rounds = steps / each
    counts = Counter({kind: outside[kind] + rounds * inside[kind] for kind in {*inside, *outside}})
    return {
        **found,
        "loop_steps": each,
        "loop_per_step": len(taken) / each,
        "outside": len(before) + len(after),
        "per_step": sum(counts.values()) / steps,
        "kinds": _kinds(counts, steps),
    }


def _kinds(counts: Counter[str], steps: float) -> dict[str, float]:
    return {kind: round(counts[kind] / steps, 2) for kind in sorted(counts)}


def _summed(row: Row) -> Row:
    kernels = row["kernels"]
    kinds: Counter[str] = Counter()
    for kernel in kernels:
        kinds.update(kernel["kinds"])
    row["instructions_per_step"] = sum(k["per_step"] for k in kernels)
    row["kinds"] = {kind: round(count, 2) for kind, count in sorted(kinds.items())}
    return row


def _tool() -> Path:
    import triton

    return Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"


def by_hand() -> Row:
    """The kernel by hand, as `cartpole_triton.launch` starts it."""
    import triton
    from triton.runtime.jit import MockTensor

    from benchmarks.cartpole_triton import block_of, cartpole
    from cleave.runtime.triton_build import report_of

    block = block_of(SIZE)
    floats, ints = MockTensor(torch.float32), MockTensor(torch.int32)
    state = [*(floats for _ in range(4)), ints]
    values = [*state, ints, *(floats for _ in range(4)), *state, floats, MockTensor(torch.bool), SIZE, STEPS]
    warps, blocks = max(1, block // 32), triton.cdiv(SIZE, block)
    kernel: Any = cartpole
    built = kernel.warmup(*values, BLOCK=block, num_warps=warps, grid=(blocks,))
    report = report_of("cartpole", built)
    own = {"registers": report.registers, "local": report.spills, "shared": report.shared}
    facts = {**own, **held(report.registers, report.shared, warps, blocks), **code_facts(built, STEPS)}
    return _summed(
        {"implementation": "by hand", "steps": STEPS, "kernels": [{"kernel": "cartpole", **facts}]}
    )


# ---------------------------------------------------------------- tables


HEAD = (
    "implementation", "kernels", "registers", "warps an SM could hold", "has at N = 2048",
    "instructions a step", "float", "special", "integer", "load", "store", "other",
)  # fmt: skip


def table(data: Row) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and lines for the study, fewest instructions first; equal plans left out."""
    lines: list[tuple[str, ...]] = []
    known = [r for r in data["rows"] if "kernels" in r]
    for row in sorted(known, key=lambda r: (len(r["kernels"]), r["instructions_per_step"])):
        kernels, kinds = row["kernels"], row["kinds"]
        listed = dict.fromkeys(str(k["registers"]) for k in kernels)
        could = sorted({k["possible_warps"] for k in kernels})
        has = max(k["resident_warps"] for k in kernels)
        other = sum(kinds.get(kind, 0) for kind in ("other", "convert", "local"))
        columns = [kinds.get(kind, 0) for kind in ("float", "special", "integer", "load", "store")]
        lines.append((
            row["implementation"], str(len(kernels)), ", ".join(listed),
            f"{could[0]}" if len(could) == 1 else f"{could[0]} to {could[-1]}", f"{has:.2f}",
            f"{row['instructions_per_step']:.0f}", *(f"{x:.0f}" for x in (*columns, other)),
        ))  # fmt: skip
    return HEAD, lines


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--case", action="append", default=[])
    given = parser.parse_args()
    import triton

    data: Row = {
        "experiment": "code", "capability": CAPABILITY, "environments": SIZE, "triton": triton.__version__,
        "torch": torch.__version__, "python": platform.python_version(),
        "operations": operations(), "rows": [],
    }  # fmt: skip
    for row in rows(given.case):
        data["rows"].append(row)
        more = row.get("same_as") or f"{row['instructions_per_step']:8.1f} instructions a step"
        print(f"{row['implementation']:<44} {more}", flush=True)
        given.json.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
