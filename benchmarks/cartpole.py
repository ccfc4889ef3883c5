"""The Cartpole study: every variant and every peer, over the number of environments; checked, then timed.

`run_cartpole` works through the sizes in order of interest until its time is up; what there was no time for,
and what fails, is a row that says so. Correctness: at small sizes our whole-loop kernel is held, step by
step, to a float64 oracle (one step from the same state to 1e-6, a free run to 1e-4, `done` equal wherever
rounding does not decide); everything else is held to it: our own variants bit for bit or not, peers to 1e-3
where their episodes are the same. Times are of runs with warm caches: a GPU's by events, the median; the
CPU's and JAX's by the clock, on a CPU the least.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cartpole_env import Inputs, make_inputs, oracle, separate
from benchmarks.cartpole_ours import Case, Ours, Variant, arguments, one_step_program, variants
from benchmarks.cartpole_peers import Compiled, by_hand, eager, jax_cases
from cleave.ir.dims import Atom

SIZES = (2048, 1 << 20, 64, 1 << 17, 1 << 14, 256, 1 << 23, 1, 70)
"""Numbers of environments, the most interesting ones first."""
LARGEST = {"cpu": 1 << 20, "cuda": 1 << 23}
MOST_ELEMENTS = {"cpu": 1 << 23, "cuda": 1 << 28}
JAX = ("B0", "B1", "S2", "S3 10", "S3 20")
DEFAULT_BUDGET = 235.0
POINT_SECONDS = 0.12
clock = time.perf_counter
"""What the host's times are read from."""
LEAST_RUNS, MOST_RUNS = 3, 200

Row = dict[str, Any]


def run_cartpole(target: str, *, json_file: Path | None = None, budget: float | None = None,
                 sizes: Sequence[int] | None = None) -> int:  # fmt: skip
    """Run the study on `cpu` or `cuda`; returns how many of our own results are wrong."""
    deadline = time.perf_counter() + (DEFAULT_BUDGET if budget is None else budget)
    rows: list[Row] = []
    ours, compiled = Ours(target), Compiled()
    for size in sizes or SIZES:
        if size > LARGEST[target]:
            continue
        rows += _size(size, target, ours, compiled, deadline)
        write(json_file, target, rows)
    rows += planned()
    write(json_file, target, rows)
    print(summary(rows))
    return sum(
        bool(r["failure"]) and r["implementation"].startswith("cleave") and "time" not in r["failure"]
        for r in rows
    )


def planned(size: int = 2048) -> list[Row]:
    """What each fusion strategy makes of one step, by its own account (not run): launches, bytes, time."""
    found: list[Row] = []
    try:
        from cleave.fusion.from_program import graph_of
        from cleave.fusion.planning import plan_fusion
        from cleave.fusion.strategies import NAMES
    except ImportError:
        return found
    inputs = make_inputs(8, 2, "cpu")
    for state in ("separate", "stacked"):
        variant = Variant(state, "read", "ops")
        program = one_step_program(variant, arguments(variant, inputs, 0, 1))
        for strategy in NAMES:
            r = row(f"plan {strategy} {state}", size, 1)
            try:
                totals = plan_fusion(graph_of(program, {Atom("N"): size}), strategy).totals
                r["launches_per_step"], r["modelled_bytes_per_step"] = totals.launches, totals.bytes
                r["modelled_us_per_step"] = totals.seconds * 1e6
                counts = f"{totals.launches:>4} launches {totals.bytes:>9} bytes"
                print(f"{size:>8} {r['implementation']:<34} {counts}")
            except Exception as error:  # noqa: BLE001  (a failing row is reported)
                r["failure"] = _short(error)
            found.append(r)
    return found


def steps_for(size: int, target: str) -> int:
    """Steps of a run: 500, or as many as memory takes; a multiple of 20."""
    return max(20, min(500, MOST_ELEMENTS[target] // size) // 20 * 20)


def _size(size: int, target: str, ours: Ours, compiled: Compiled, deadline: float) -> Iterator[Row]:
    """All rows of one size; an iterator, so that a crash leaves those before it."""
    steps = steps_for(size, target)
    if time.perf_counter() > deadline:
        yield row("all", size, steps, failure="no time left")
        return
    try:
        inputs = make_inputs(size, steps, target)
        trusted = ours.case(Variant("separate", "read", "loop"), inputs)
        reference = joined(trusted.call())
        checked = held_to_oracle(inputs, target) if size <= 4096 else ""
    except Exception as error:  # noqa: BLE001  (a failing row is reported)
        yield row("all", size, steps, failure=_short(error))
        return
    for name, make in _cases(inputs, target, ours, compiled):
        if time.perf_counter() > deadline:
            yield row(name, size, steps, failure="no time left")
            continue
        found = row(name, size, steps)
        try:
            case = make()
            found |= {k: v for k, v in case.facts.items() if k not in ("results", "blocks")}
            if checked and name == trusted.name:
                found["failure"] = checked
            found |= agreement(case, reference, deadline)
            found["microseconds_per_step"] = timed(case, target) / case.steps * 1e6
            found["steps_per_second"] = 1e6 / found["microseconds_per_step"] * size
        except Exception as error:  # noqa: BLE001  (a failing row is reported)
            found["failure"] = _short(error)
        if not found["failure"] and found.get("wrong"):
            found["failure"] = found["wrong"]
        print(line(found), flush=True)
        yield found


def row(name: str, size: int, steps: int, failure: str = "") -> Row:
    return {"implementation": name, "environments": size, "steps": steps, "failure": failure}


def _short(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]


def _cases(
    inputs: Inputs, target: str, ours: Ours, compiled: Compiled
) -> Iterator[tuple[str, Callable[[], Case]]]:
    """Names and makers, the most telling first."""
    every = variants()

    def own(variant: Variant) -> tuple[str, Callable[[], Case]]:
        return variant.name, lambda: ours.case(variant, inputs)

    yield from (own(v) for v in every if v.kernel == "loop")
    yield "by hand", lambda: by_hand(inputs, target)
    try:
        import jax  # noqa: F401

        yield from jax_cases(inputs, target, JAX)
    except Exception as error:  # noqa: BLE001  (a failing row is reported)
        reason = _short(error)
        yield "JAX", lambda: _unavailable(reason)
    yield "PyTorch eager", lambda: eager(inputs)
    yield from (own(v) for v in every if v.kernel in ("step", "ops"))
    yield "torch.compile", lambda: compiled.case(inputs, target)
    yield from (own(v) for v in every if v.kernel.startswith("unroll"))


def _unavailable(reason: str) -> Case:
    raise RuntimeError(reason)


# ---------------------------------------------------------------- results


def joined(outputs: Sequence[Sequence[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
    """The last state (five arrays), and reward and done [T, N], of a run in pieces."""
    last = outputs[-1]
    state = (*last[0].unbind(-1), last[1]) if len(last) == 4 else tuple(last[:5])
    columns = [[piece[k] if piece[k].dim() == 2 else piece[k][None] for piece in outputs] for k in (-2, -1)]
    return (*(s.clone() for s in state), *(torch.cat(c) for c in columns))


def agreement(case: Case, reference: tuple[torch.Tensor, ...], deadline: float) -> Row:
    """How a case's results compare with ours."""
    results = case.facts.get("results", case.call)
    if results is None:
        return {"agrees": "numbers of its own"}
    found = joined(results())
    found = tuple(t.to(r.device) for t, r in zip(found, reference, strict=True))
    steps = found[-1].shape[0]
    same = (found[-1] == reference[-1][:steps]).all(0)
    share = float(same.float().mean())
    if steps < reference[-1].shape[0]:
        wrong = "" if share > 0.995 else f"only {share:.4f} of the episodes are the same"
        return {"agrees": f"{share:.5f} of episodes, {steps} steps", "wrong": wrong}
    if all(torch.equal(a, b) for a, b in zip(found, reference, strict=True)):
        return {"agrees": "bit for bit"}
    gap = max((float((a - b).abs()[same].max()) if bool(same.any()) else 0.0)
              for a, b in zip(found[:4], reference[:4], strict=True))  # fmt: skip
    wrong = (
        ""
        if share > 0.995 and gap < 1e-4
        else f"{share:.4f} of the episodes are the same, states to {gap:.1e}"
    )
    return {"agrees": f"{share:.5f} of episodes, states to {gap:.1e}", "wrong": wrong}


def held_to_oracle(inputs: Inputs, target: str, steps: int = 40) -> str:
    """What is wrong with the whole-loop kernel against the float64 oracle, run for 1, 2, 3... steps; or
    nothing."""
    import cleave

    names = {**dict.fromkeys(("x", "v", "a", "w", "n"), ("N",)),
             **dict.fromkeys(("action", "f0", "f1", "f2", "f3"), ("T", "N"))}  # fmt: skip
    loop = cleave.jit(separate, dynamic=names, target=target)
    now = [s.double().cpu().numpy() for s in (*inputs.state, inputs.count)]
    free, sure = list(now), np.ones(inputs.size, bool)
    for t in range(min(steps, inputs.steps)):
        cut = inputs.cut(0, t + 1)
        got = [x.cpu().numpy() for x in loop(*inputs.state, inputs.count, cut.action, *cut.fresh)]
        given = (cut.action[t].cpu().numpy(), [f[t].cpu().numpy() for f in cut.fresh])
        one, done, near = oracle(now, *given)
        free, free_done, free_near = oracle(free, *given)
        sure &= ~free_near
        if not np.array_equal(got[-1][t][~near], done[~near]) or not np.array_equal(
            got[-1][t][sure], free_done[sure]
        ):
            return f"`done` differs from the oracle at step {t + 1}"
        gaps = [float(np.abs(g - o)[~near].max(initial=0)) for g, o in zip(got[:4], one[:4], strict=True)]
        wide = [float(np.abs(g - o)[sure].max(initial=0)) for g, o in zip(got[:4], free[:4], strict=True)]
        if max(gaps) > 1e-6 or max(wide) > 1e-4 or not np.array_equal(got[4][~near], one[4][~near]):
            return f"step {t + 1} is {max(gaps):.1e} off the oracle, the free run {max(wide):.1e}"
        now = [g.astype(np.float64) for g in got[:5]]
    return ""


# ---------------------------------------------------------------- times


def timed(case: Case, target: str) -> float:
    """Seconds of a run."""
    case.call()
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < LEAST_RUNS or (
        time.perf_counter() - start < POINT_SECONDS and len(samples) < MOST_RUNS
    ):
        samples.append(_once(case, target))
        if time.perf_counter() - start > 4 * POINT_SECONDS and len(samples) >= 2:
            break
    # Other work on a shared CPU only ever adds time; on a GPU the median.
    return statistics.median(samples) if target == "cuda" else min(samples)


def _once(case: Case, target: str) -> float:
    if target == "cuda" and not case.facts.get("blocks"):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        case.call()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 1e3
    start = clock()
    case.call()
    return clock() - start


# ---------------------------------------------------------------- what is shown and kept


def line(r: Row) -> str:
    head = f"{r['environments']:>8} {r['implementation']:<34}"
    if "microseconds_per_step" not in r:
        return f"{head} {r['failure']}"
    facts = f"{r['microseconds_per_step']:>10.3f} us/step"
    if "launches_per_step" in r:
        facts += f"  {r['launches_per_step']:<6.3g} launches"
    if r.get("registers"):
        facts += f"  {r['registers'][0]} registers"
    if "compile_seconds" in r:
        facts += f"  built in {r['compile_seconds']:.1f} s"
    return f"{head} {facts}  {r.get('agrees', '')}  {r['failure']}"


def summary(rows: Sequence[Row]) -> str:
    """Speed-ups of the best of ours over JAX's baselines, eager and the kernel by hand, per size."""
    lines = ["environments  best of ours              us/step   over B0  over B1  over eager  over by hand"]
    for size in dict.fromkeys(r["environments"] for r in rows):
        kept = [r for r in rows if r["environments"] == size and not r["failure"]]
        times = {
            r["implementation"]: r["microseconds_per_step"] for r in kept if "microseconds_per_step" in r
        }
        ours = {k: t for k, t in times.items() if k.startswith("cleave")}
        if not ours:
            continue
        best = min(ours, key=lambda k: ours[k])
        read = min((t for k, t in ours.items() if " read " in k), default=float("nan"))
        ratios = [
            times[n] / ours[best] if n in times else float("nan")
            for n in ("JAX B0", "JAX B1", "PyTorch eager")
        ]
        hand = times["by hand"] / read if "by hand" in times else float("nan")
        lines.append(
            f"{size:>12}  {best[7:]:<24} {ours[best]:>9.3f} "
            + " ".join(f"{x:>8.2f}" for x in (*ratios, hand))
        )
    return "\n".join(lines)


def write(path: Path | None, target: str, rows: Sequence[Row]) -> None:
    """Keep the raw results, and draw them beside (`*.svg`)."""
    if path is None:
        return
    device = torch.cuda.get_device_name(0) if target == "cuda" else platform.processor() or platform.machine()
    head = {"study": "cartpole", "target": target, "device": device, "torch": torch.__version__,
            "python": platform.python_version(), "threads": torch.get_num_threads()}  # fmt: skip
    if "jax" in sys.modules:
        head["jax"] = sys.modules["jax"].__version__
    path.write_text(json.dumps({**head, "rows": list(rows)}, indent=1))


if __name__ == "__main__":
    arguments = sys.argv[1:]
    run_cartpole(
        arguments[0] if arguments else "cpu", json_file=Path(arguments[1]) if len(arguments) > 1 else None
    )
