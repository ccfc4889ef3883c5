"""Every tile program that the Triton emitter is tested on, and a runner for Triton's interpreter.

Run as a script (with `TRITON_INTERPRET=1`, which must be set before triton is imported; or, on a GPU, with
`--cuda` and without it) it runs every case, or those whose names contain one of the words given, and prints
`{name: complaint}` as JSON. The complaint is empty where the results equal those of the tile programs' own
interpreter.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from triton_features import TORCH, Case, own_cases, strided

import tile_examples as te
from cleave.ir.ops import FLOATS
from cleave.schedule.interpret import run

TOLERANCE = {"f64": 1e-12, "f32": 3e-6, "f16": 2e-3}


# ---------------------------------------------------------------- all of them


def example_cases() -> list[Case]:
    """The hand-written examples, those in bfloat16 left out (Triton's interpreter has its dot wrong)."""
    found: list[Case] = []
    examples = [e for e in te.EXAMPLES if "bf16" not in e.name]
    plain = len(examples)
    examples += [
        te.attention(width=24, s_tile=12, g_tile=3),
        te.attention(s_tile=1, t_tile=16),
        te.attention_split(part_tile=2, t_tile=8),
        te.matmul(n_tile=12, o_tile=20, k_tile=24),
        te.matmul(n_tile=1, o_tile=8),
        te.matmul_split(part_tile=4),
    ]
    for number, example in enumerate(examples):
        limits = {atom.name: most for atom, most in example.tiles.limits}
        for place, sizes in enumerate(example.sizes):
            small = number < plain and "grid" not in example.name and "one" not in example.name
            if any(sizes[name] > most for name, most in limits.items()) or (place in (2, 3) and not small):
                continue
            parts = example.parts[place % min(2, len(example.parts))]
            inputs = example.make_inputs(sizes, np.random.default_rng(place))
            found.append(Case(f"{number}-{example.name}-{place}", example.tiles, inputs, parts,
                              tolerance=example.tolerance))  # fmt: skip
    matmul = te.matmul()
    inputs = matmul.make_inputs({"N": 9, "O": 7, "K": 21}, np.random.default_rng(3))
    found.append(Case("strided", matmul.tiles, inputs, view=strided, tolerance=matmul.tolerance))
    return found


def all_cases() -> list[Case]:
    return [*own_cases(), *example_cases()]


def arguments_of(case: Case) -> tuple[list[Any], dict[str, Any]]:
    """The arguments as torch values, and as the tile programs' interpreter wants them."""
    args: list[Any] = []
    given: dict[str, Any] = {}
    for t in case.tiles.inputs:
        value = case.inputs[t.name]
        if t.role == "scalar":
            args.append(value)
            given[t.name] = value
            continue
        made = case.view(t.name, torch.from_numpy(np.ascontiguousarray(value)).to(TORCH[t.dtype]))
        args.append(made)
        given[t.name] = made.numpy() if made.dtype != torch.bfloat16 else made.float().numpy()
    return args, given


def complaint(case: Case, target: str = "interpret") -> str:
    """Run a case in Triton's interpreter (or on a GPU) and compare; empty if all is well."""
    from cleave.runtime.triton_launch import TritonLauncher

    args, given = arguments_of(case)
    expected = run(case.tiles, given, dict(case.parts), dtype=np.float32)
    launcher = TritonLauncher(case.tiles, target, choose=lambda tiles, sizes: case.parts)
    if target == "cuda":
        args = [moved(a) if isinstance(a, torch.Tensor) else a for a in args]
    for t, result in zip(case.tiles.outputs, launcher(*args), strict=True):
        got, want = result.cpu().numpy(), np.asarray(expected[t.name])
        if got.shape != want.shape or result.dtype != TORCH[t.dtype]:
            return f"{t.name}: {result.dtype}{got.shape}, expected {t.dtype}{want.shape}"
        tolerance = (case.tolerance or TOLERANCE[t.dtype]) if t.dtype in FLOATS else 0
        scale = np.abs(want, where=np.isfinite(want), out=np.zeros(want.shape)).max(initial=0)
        least = tolerance * min(1.0, scale)
        worst = np.argwhere(~np.isclose(got, want, rtol=tolerance, atol=least, equal_nan=True))
        if len(worst):
            at = tuple(worst[0])
            return f"{t.name}{at} is {got[at]}, expected {want[at]} ({len(worst)} wrong)"
    return ""


def moved(value: torch.Tensor) -> torch.Tensor:
    """The same view of a copy of the memory on the GPU."""
    memory = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage())
    return memory.cuda().as_strided(value.shape, value.stride(), value.storage_offset())


def main(wanted: Sequence[str]) -> None:
    results: dict[str, str] = {}
    target = "cuda" if "--cuda" in wanted else "interpret"
    wanted = [word for word in wanted if word != "--cuda"]
    for case in all_cases():
        if wanted and not any(w in case.name for w in wanted):
            continue
        try:
            with np.errstate(all="ignore"):
                results[case.name] = complaint(case, target)
        except Exception:  # noqa: BLE001 - the test reads what went wrong from the output
            results[case.name] = traceback.format_exc()[-1500:]
    print(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1:])
