"""What results of the Cartpole study are held to.

A float64 oracle holds our whole-loop kernel after 1, 2, 3... steps; everything else is held to that kernel's
run. Free runs of two correct programs drift apart: the pole is unstable, so a difference of one rounding
grows by `GROWTH` with every step of an episode (the largest eigenvalue of the linearised step), until the
episode ends and both take the same fresh values. An environment is therefore held to `DRIFT` times the growth
over the steps since its last reset: 5e-7 after a reset, 5e-5 after 60 steps, 1e-4 after 70, 1e-3 after 100,
where float32 programs are nearly that far from float64 themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.cartpole_case import Case
from benchmarks.cartpole_env import TAU, Inputs, oracle
from benchmarks.cartpole_ours import Ours, Variant, arguments

TRUSTED = Variant("separate", "read", "loop")
SAME_EPISODES = 0.995
ONE_STEP, DRIFT = 1e-6, 5e-7
RATE = (9.8 / (0.5 * (4 / 3 - 0.1 / 1.1))) ** 0.5
"""How fast the pole falls: d2(angle)/dt2 = RATE^2 angle near the top."""
GROWTH = 1 + TAU * RATE
COLUMNS, ORACLE_STEPS = 4096, 40


class Checks:
    """The inputs of one size and what is known to be right there."""

    def __init__(self, inputs: Inputs, ours: Ours) -> None:
        self.inputs, self.ours = inputs, ours
        self.wrong: str | None = None
        self.last: Case | None = None
        self._reference: dict[int, tuple[torch.Tensor, ...]] = {}

    def reference(self, steps: int) -> tuple[torch.Tensor, ...]:
        """Our whole-loop kernel's state after some steps, and reward and done of each."""
        if steps not in self._reference:
            launcher = self.ours.launcher(TRUSTED, self.inputs)
            outputs = launcher(*arguments(TRUSTED, self.inputs, 0, steps))
            self._reference[steps] = joined([outputs])
        return self._reference[steps]

    def held(self, case: Case) -> dict[str, Any]:
        """How a case's results compare with what is right: facts of its row; raises `ValueError` if wrong."""
        self.last = case
        if self.wrong is None:
            self.wrong = held_to_oracle(self.inputs, self.ours.launcher(TRUSTED, self.inputs))
        if case.name == TRUSTED.name and self.wrong:
            raise ValueError(self.wrong)
        one = self._one_step(case.facts["one_step"]) if "one_step" in case.facts else {}
        results = case.facts.get("results", case.call)
        if results is None:
            return {"agrees": "numbers of its own", **one}
        reference = self.reference(case.steps)
        found = joined(results())
        found = tuple(t.to(r.device) for t, r in zip(found, reference, strict=True))
        return {**compared(found, reference), **one}

    def _one_step(self, step: Callable[..., Any]) -> dict[str, Any]:
        """How far one step of a peer, from states of our run, is off the oracle; raises if too far."""
        pick = slice(None, None, -(-self.inputs.size // COLUMNS))
        worst = 0.0
        for t in range(0, min(ORACLE_STEPS, self.inputs.steps), 8):
            state = self.reference(t)[:5] if t else (*self.inputs.state, self.inputs.count)
            drawn = (self.inputs.action[t], *(f[t] for f in self.inputs.fresh))
            given = [s[pick].cpu().numpy() for s in (*state, *drawn)]
            found = step(*given)
            right, done, near = oracle(given[:5], given[5], given[6:])
            if not np.array_equal(np.asarray(found[-1])[~near], done[~near]):
                raise ValueError(f"it is wrong: `done` of one step differs from the oracle at step {t}")
            gaps = [np.abs(np.asarray(g) - o)[~near] for g, o in zip(found[:4], right[:4], strict=True)]
            worst = max(worst, *(float(g.max(initial=0)) for g in gaps))
        if worst > ONE_STEP:
            raise ValueError(f"it is wrong: one step is {worst:.1e} off the oracle")
        return {"one_step_gap": worst}


def joined(outputs: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """The last state (five arrays), and reward and done [T, N], of a run in pieces."""
    last = outputs[-1]
    state = (*last[0].unbind(-1), last[1]) if len(last) == 4 else tuple(last[:5])
    columns = [[piece[k] if piece[k].dim() == 2 else piece[k][None] for piece in outputs] for k in (-2, -1)]
    return (*(s.clone() for s in state), *(torch.cat(c) for c in columns))


def compared(found: Sequence[torch.Tensor], reference: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Whether a run is right beside the reference's."""
    if all(torch.equal(a, b) for a, b in zip(found, reference, strict=True)):
        return {"agrees": "bit for bit"}
    same = (found[-1] == reference[-1]).all(0)
    share = float(same.float().mean())
    since = reference[4][same].double()
    bound = DRIFT * GROWTH ** (since + 1)
    gaps = [(a - b).abs()[same].double() for a, b in zip(found[:4], reference[:4], strict=True)]
    gap = max((float(g.max()) for g in gaps if g.numel()), default=0.0)
    over = max((float((g / bound).max()) for g in gaps if g.numel()), default=0.0)
    text = f"{share:.5f} of episodes, states to {gap:.1e} ({over:.2f} of the bound)"
    if share < SAME_EPISODES or over > 1:
        raise ValueError(f"it is wrong: {text}")
    return {"agrees": text, "gap": gap, "of_bound": over}


def held_to_oracle(inputs: Inputs, loop: Callable[..., Any], steps: int = ORACLE_STEPS) -> str:
    """What is wrong with the whole-loop kernel against the float64 oracle, run for 1, 2, 3... steps at the
    size of the inputs (up to `COLUMNS` environments are compared); or nothing."""
    pick = slice(None, None, -(-inputs.size // COLUMNS))
    now = [s[pick].double().cpu().numpy() for s in (*inputs.state, inputs.count)]
    free, sure = list(now), np.ones(len(now[0]), bool)
    for t in range(min(steps, inputs.steps)):
        cut = inputs.cut(0, t + 1)
        outputs = loop(*inputs.state, inputs.count, cut.action, *cut.fresh)
        got = [x[pick].cpu().numpy() for x in outputs[:5]]
        got_done = outputs[-1][t][pick].cpu().numpy()
        given = (cut.action[t][pick].cpu().numpy(), [f[t][pick].cpu().numpy() for f in cut.fresh])
        one, done, near = oracle(now, *given)
        free, free_done, free_near = oracle(free, *given)
        sure &= ~free_near
        if not np.array_equal(got_done[~near], done[~near]) or not np.array_equal(
            got_done[sure], free_done[sure]
        ):
            return f"`done` differs from the oracle at step {t + 1}"
        bound = DRIFT * GROWTH ** (free[4] + 1)
        gaps = [float(np.abs(g - o)[~near].max(initial=0)) for g, o in zip(got[:4], one[:4], strict=True)]
        wide = [
            float((np.abs(g - o) / bound)[sure].max(initial=0))
            for g, o in zip(got[:4], free[:4], strict=True)
        ]
        if max(gaps) > ONE_STEP or max(wide) > 1 or not np.array_equal(got[4][~near], one[4][~near]):
            return (
                f"step {t + 1} is {max(gaps):.1e} off the oracle, the free run {max(wide):.2f} of its bound"
            )
        now = [g.astype(np.float64) for g in got]
    return ""
