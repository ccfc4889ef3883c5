"""Run plans in Triton's interpreter and hold them to the float64 reference: NAME STRATEGY EPOCH ...

Needs `TRITON_INTERPRET=1` before triton is imported; prints one line for each plan with its launches.
"""

from __future__ import annotations

import sys

import numpy as np
import torch

from cleave.ir.reference import evaluate
from fusion.test_fusion_pieces import arguments, planned


def main(words: list[str]) -> None:
    for name, strategy, epoch in zip(words[::3], words[1::3], words[2::3], strict=True):
        found, plan, made = planned(name, strategy, epoch, "interpret")
        inputs = arguments(found)
        expected = evaluate(found.program, inputs)
        results = made(*[torch.from_numpy(inputs[n]) for n in made.inputs])
        loose = 2e-3 if any(a.dtype == np.float16 for a in inputs.values()) else 1e-5
        for output, value in zip(made.outputs, results, strict=True):
            np.testing.assert_allclose(value.double().numpy(), expected[output], rtol=loose, atol=loose)
        print(name, strategy, plan.totals.launches, made.launches)


if __name__ == "__main__":
    main(sys.argv[1:])
