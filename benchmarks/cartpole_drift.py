"""How far two correct programs of Cartpole drift apart: `python -m benchmarks.cartpole_drift [--json FILE]`.

Free runs from the same states with the same actions and reset values, on the CPU: float32 in PyTorch, float32
in JAX where it is installed, and float64. After some steps, the largest difference of a state among the
environments whose episodes are the same so far. Beside it the study's bound for an episode of that length.
"""

from __future__ import annotations

import argparse
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cartpole_checks import DRIFT, GROWTH, RATE
from benchmarks.cartpole_env import make_inputs, oracle, step

SIZE = 4096
AT = (1, 10, 28, 46, 64, 82, 100)
RESULT = Path(__file__).parent / "results" / "cartpole-drift.json"


def measured(size: int = SIZE, at: tuple[int, ...] = AT) -> dict[str, Any]:
    """The raw file."""
    inputs = make_inputs(size, max(at), "cpu")
    state: Any = (*inputs.state, inputs.count)
    exact = [s.double().numpy() for s in state]
    jitted = _jax_step()
    other: Any = [s.numpy() for s in state]
    same = {"jax": np.ones(size, bool), "float64": np.ones(size, bool)}
    data: dict[str, Any] = {"experiment": "drift", "environments": size, "torch": torch.__version__,
                            "python": platform.python_version(), "growth": GROWTH, "rate": RATE}  # fmt: skip
    rows: list[dict[str, float]] = []
    for t in range(max(at)):
        action, fresh = inputs.action[t], tuple(f[t] for f in inputs.fresh)
        given = (action.numpy(), [f.numpy() for f in fresh])
        state, (_, done) = step(state, action, fresh)
        exact, over, _ = oracle(exact, *given)
        same["float64"] &= over == done.numpy()
        if jitted is not None:
            out, (_, ended) = jitted(tuple(other), given[0], tuple(given[1]))
            other = [np.asarray(x) for x in out]
            same["jax"] &= np.asarray(ended) == done.numpy()
        if t == 0:
            data["one_step"] = _gap(state, exact, same["float64"])
            if jitted is not None:
                data["one_step_jax"] = _gap(other, exact, same["float64"] & same["jax"])
        if t + 1 in at:
            row: dict[str, float] = {
                "steps": t + 1,
                "float64": _gap(state, exact, same["float64"]),
                "bound": DRIFT * GROWTH ** (t + 1),
                "same_episodes": float(same["float64"].mean()),
            }
            if jitted is not None:
                row["jax"] = _gap(state, other, same["jax"])
            rows.append(row)
    return {**data, "rows": rows}


def _gap(one: Any, two: Any, where: Any) -> float:
    pairs = zip(one[:4], two[:4], strict=True)
    return max(
        float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64))[where].max()) for a, b in pairs
    )


def _jax_step() -> Any:
    try:
        import jax  # pyright: ignore[reportMissingImports]  it is no dependency
    except ImportError:
        return None
    from benchmarks.cartpole_peers import jax_step

    return jax.jit(jax_step(jax.numpy))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, default=RESULT)
    given = parser.parse_args()
    data = measured()
    given.json.write_text(json.dumps(data, indent=1) + "\n")
    for row in data["rows"]:
        print(row)


if __name__ == "__main__":
    main()
