"""Runs tile programs built with the sanitizers; a script, as these must be loaded before Python is."""

from __future__ import annotations

import sys

import numpy as np
import torch
import triton_cases as cases

import tile_examples as te
from cleave.ir.dims import Dim
from cleave.runtime.launch import DTYPES, Launcher
from tile_attention import attention, attention_split
from tile_builder import Example


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


def main() -> None:
    odd = (
        te.matmul(n_tile=7, o_tile=19, k_tile=5),
        te.norm_linear(n_tile=3, o_tile=18, k_tile=9),
        attention(s_tile=5, t_tile=7, g_tile=4, width=20),
        attention_split(s_tile=3, t_tile=5, width=12, part_tile=2),
        *(te.matmul(n_tile=rows, o_tile=37, k_tile=21) for rows in (1, 2, 3, 4)),
        te.matmul(n_tile=2, o_tile=37, k_tile=21, dtype="bf16"),
        te.softmax_loops(n_tile=3, k_tile=70),
    )
    for example in (*te.EXAMPLES, *odd):
        run_example(example)
        print(example.name, flush=True)
    for case in cases.own_cases():
        args, _ = cases.arguments_of(case)
        Launcher(case.tiles, choose=lambda tiles, sizes, case=case: case.parts, sanitize=True)(*args)
        print(case.name, flush=True)
    print("all fine")


if __name__ == "__main__":
    sys.exit(main())
