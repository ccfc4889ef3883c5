"""What each point of a suite should reach."""

from __future__ import annotations

WIDE = ("attention", "mha", "gqa", "mqa", "mla", "softcap", "sinks", "qknorm")
MEMORY_SHARE = 0.8
"""What a case that memory bounds should reach of the bandwidth."""
LINEAR_LOSS = "linear+cross-entropy"


def target_of(target: str, case: str, phase: str) -> float:
    """The ratio that a point should reach at least (issues 4 and 6)."""
    attention = any(word in case for word in WIDE)
    if target == "cuda":
        return 0.90 if case in ("matmul", "matmul-narrow") else 0.95
    if attention:
        return 2.0 if phase == "decode" else 1.1
    return 1.2 if case == LINEAR_LOSS else 1.0


COMPILE_SECONDS, TUNING_SECONDS = 5.0, 60.0
"""Seconds of all phases of a compile, without and with tuning."""
MODEL_SHARE = 0.85
"""Of the tuned speed, what the cost model's first choice should reach."""
SCORES = {"paper": {"prefill": 1.1, "decode": 2.3, "all": 1.6}, "static": {"all": 1.3}}
"""Geometric means of a suite on a GPU."""
OVER_CUDNN, OVER_FA3 = 1.0, 0.95
"""Ratios of long prefill attention at head size 128."""
