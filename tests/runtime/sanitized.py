"""Runs tile programs built with the sanitizers; a script, as these must be loaded before Python is.

`sanitized.py examples` runs hand-written tile programs, `sanitized.py suites [2/3]` those that the compiler
chooses for every case of the benchmark suites (or for the second of three parts of the cases).
"""

from __future__ import annotations

import sys

import numpy as np
import torch
import triton_cases as cases
from benchmarks.case import Case, Sizes
from benchmarks.compiling import captured
from benchmarks.harness import allowed_error, as_tuple, errors, reference
from benchmarks.suites import PAPER, STATIC
from test_cpp import program

import tile_examples as te
from cleave import pipeline
from cleave.ir.dims import Atom, Dim, Index
from cleave.runtime.launch import DTYPES, Launcher
from tile_attention import attention, attention_split
from tile_builder import Block, Example, tensor


def layouts(value: torch.Tensor) -> list[torch.Tensor]:
    """The same values: dense and tightly allocated, behind an odd offset, and with a stride everywhere."""
    behind = torch.empty(value.numel() + 1, dtype=value.dtype)[1:].view(value.shape)
    big = torch.empty([max(1, 2 * n - 1) for n in value.shape], dtype=value.dtype)
    spread = big[tuple(slice(None, None, 2) for _ in value.shape)]
    found = [value.clone()]
    for view in (behind, spread):
        if view.shape == value.shape:
            found.append(view.copy_(value))
    return found


def run_example(example: Example) -> None:
    parts: dict[Dim, int] = {}
    launcher = Launcher(example.tiles, choose=lambda tiles, sizes: parts, sanitize=True)
    for sizes in example.sizes:
        for chosen in example.parts:
            parts.clear()
            parts.update(chosen)
            launcher._bound.clear()  # pyright: ignore[reportPrivateUsage]
            inputs = example.make_inputs(sizes, np.random.default_rng(0))
            made = [
                layouts(torch.from_numpy(np.array(v)).to(DTYPES[t.dtype]))
                if isinstance(v, np.ndarray)
                else [v]
                for t, v in ((t, inputs[t.name]) for t in example.tiles.inputs)
            ]
            for number in range(3):
                launcher(*(m[min(number, len(m) - 1)] for m in made))


def far_outputs() -> None:
    """Outputs that are written past the caches, at every offset of their lines."""
    n, k = Index(Atom("N"), 0), Index(Atom("K"), 1)
    for dtype in ("f32", "bf16"):
        x = tensor("x", "input", dtype, Atom("N"), Atom("K"))
        y = tensor("y", "output", dtype, Atom("N"), Atom("K"))
        block = Block()
        block.load("x1", (n, k), x, n, k)
        block.store(y, block.compute("y1", (n, k), "add", "x1", "x1", dtype=dtype), n, k)
        launcher = Launcher(program("twice", (x, y), block, [(n, 4), (k, 1 << 17)]), sanitize=True)
        for shape in ((2100, 4099), (130, 70001), (140000, 61)):
            values = torch.randn(shape).to(DTYPES[dtype])
            assert torch.equal(launcher(values)[0], 2 * values), f"{dtype} {shape}"
        print("far outputs", dtype, flush=True)


def examples() -> None:
    far_outputs()
    odd = (
        te.matmul(n_tile=7, o_tile=19, k_tile=5),
        te.norm_linear(n_tile=3, o_tile=18, k_tile=9),
        attention(s_tile=5, t_tile=7, g_tile=4, width=20),
        attention_split(s_tile=3, t_tile=5, width=12, part_tile=2),
        *(te.matmul(n_tile=rows, o_tile=37, k_tile=21) for rows in (1, 2, 3, 4)),
        te.matmul(n_tile=2, o_tile=37, k_tile=21, dtype="bf16"),
        *(te.matmul(n_tile=rows, o_tile=35, k_tile=21) for rows in (13, 16, 30)),  # columns in place of rows
        te.softmax_loops(n_tile=3, k_tile=70),
    )
    for example in (*te.EXAMPLES, *odd):
        run_example(example)
        print(example.name, flush=True)
    for case in cases.own_cases():
        args, _ = cases.arguments_of(case)
        Launcher(case.tiles, choose=lambda tiles, sizes, case=case: case.parts, sanitize=True)(*args)
        print(case.name, flush=True)


ODD = {"B": 2, "H": 4, "KV": 2, "S": 5, "T": 37, "D": 20, "E": 10, "K": 45, "N": 39, "R": 3, "V": 51, "C": 33}
"""Sizes that no tile and no vector divides."""
OTHER = {"B": 1, "S": 19, "T": 131, "N": 301, "R": 5}
"""Of dynamic dims, at a later call."""


def points(case: Case) -> tuple[tuple[Sizes, torch.dtype], ...]:
    """Small sizes in float32, and in bfloat16 the last point that is measured on a CPU."""
    odd = {d: ODD[d] for dims in case.inputs.values() for d in dims}
    if case.name.startswith(("mha", "causal-attention")) and "KV" in odd:
        odd["KV"] = odd["H"]
    measured = [s for (target, _), values in case.points.items() if target == "cpu" for s in values]
    return (odd, torch.float32), (measured[-1], torch.bfloat16)


def run_case(case: Case, point: Sizes, dtype: torch.dtype) -> None:
    """The tile program that the compiler takes at a point, at odd sizes of the dynamic dims."""
    program = captured(case, point, dtype)

    def bound(sizes: Sizes) -> dict[Dim, int]:
        return pipeline.dims_by_name(program, {a.name: sizes[a.name] for a in program.dynamic})

    made = pipeline.plan(program, target="cpu", sizes=bound(point))
    tiles = made.variants[0].tiles
    launcher = Launcher(tiles, sanitize=True)
    for other in (ODD, OTHER):
        call = {**point, **{d: v for d, v in other.items() if d in case.dynamic}}
        if pipeline.fits(tiles, program.bind(bound(call))):
            judged(case, launcher, case.make(call, dtype, "cpu", 0), dtype, max(call.values()))


def judged(
    case: Case, launcher: Launcher, inputs: tuple[torch.Tensor, ...], dtype: torch.dtype, most: int
) -> None:
    """One call in each layout: the same bits in all, and close to float64."""
    known = reference(case.function, inputs)
    eager = errors(as_tuple(case.function(*inputs)), known)
    made = [layouts(value) for value in inputs]
    for number in range(3):
        found = launcher(*(m[min(number, len(m) - 1)] for m in made))
        error = errors(found, known)
        assert error <= allowed_error(eager, dtype, most), f"{case.name}: {error} against {eager}"


def suites(part: str) -> None:
    number, parts = map(int, part.split("/"))
    every = {case.name: case for case in (*PAPER, *STATIC)}
    for case in list(every.values())[number - 1 :: parts]:
        for point, dtype in points(case):
            run_case(case, point, dtype)
            print(case.name, dtype, flush=True)


def main() -> None:
    what, *rest = sys.argv[1:] or ["examples"]
    if what == "suites":
        suites(rest[0] if rest else "1/1")
    else:
        examples()
    print("all fine")


if __name__ == "__main__":
    sys.exit(main())
