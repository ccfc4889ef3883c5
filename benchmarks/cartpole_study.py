"""What the Cartpole study says of its rows, made of raw files: what each decision costs in hardware terms,
every variant and strategy over the number of environments, how far rounding carries, and the paper's figures
beside ours. `benchmarks.cartpole_report` writes these tables into docs/cartpole.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cartpole_goals import MAIN, TIME, Line, Row, Rows, times_at

Data = Mapping[str, Any]

DECISIONS = (
    "strategy@epoch", "launches", "bytes an environment", "instructions", "most registers", "us/step",
    "us a further launch",
)  # fmt: skip


def decisions(rows: Rows, code: Rows, state: str) -> list[Line]:
    """The strategies on one step that reads its random numbers, at `MAIN` environments: launches, bytes,
    instructions and registers beside time. The last column is what each launch beyond the first of the plan
    with fewest adds."""
    instructions = _instructions(code)
    mine = [r for r in rows if r["environments"] == MAIN and _is_step(r, state) and TIME in r]
    mine.sort(key=lambda r: (r["launches_per_step"], r[TIME]))
    found: list[Line] = []
    for r in mine:
        more = r["launches_per_step"] - mine[0]["launches_per_step"]
        further = f"{(r[TIME] - mine[0][TIME]) / more:.2f}" if more else ""
        count = instructions.get(r["implementation"])
        found.append((
            r["implementation"].split()[1], f"{r['launches_per_step']:g}",
            f"{r['touched_bytes_per_step'] / MAIN:.0f}", "" if count is None else f"{count:.0f}",
            str(max((x or 0 for x in r.get("registers", ())), default="")), f"{r[TIME]:.3g}", further,
        ))  # fmt: skip
    return found


def _is_step(row: Row, state: str) -> bool:
    words = row["implementation"].split()
    return words[0] == "plan" and words[2:] == [state, "read", "x1"] and not row["failure"]


def _instructions(code: Rows) -> dict[str, float]:
    known = {r["implementation"]: r["instructions_per_step"] for r in code if "instructions_per_step" in r}
    for r in code:
        if r.get("same_as") in known:
            known[r["implementation"]] = known[r["same_as"]]
    return known


def over_sizes(rows: Rows, head: str) -> tuple[Line, list[Line]]:
    """Microseconds per step of everything whose name begins so, over the number of environments."""
    mine = [r for r in rows if r["implementation"].startswith(head) and TIME in r and not r["failure"]]
    sizes = sorted({r["environments"] for r in mine})
    times: dict[str, dict[int, float]] = {}
    for r in mine:
        times.setdefault(r["implementation"], {})[r["environments"]] = r[TIME]
    if head == "plan":  # those that were run at one size stand in the table of that size
        times = {name: at for name, at in times.items() if len(at) > 1}
        sizes = sorted({n for at in times.values() for n in at})
    order = sorted(times, key=lambda name: times[name].get(MAIN, math.inf))
    body = [
        (
            name.removeprefix(head).strip(),
            *(f"{times[name][n]:.3g}" if n in times[name] else "" for n in sizes),
        )
        for name in order
    ]
    return ("us/step", *(f"N = {n}" for n in sizes)), body


# ---------------------------------------------------------------- how far rounding carries


def drift(data: Data) -> tuple[Line, list[Line]]:
    """The largest difference of free runs after some steps: of JAX and PyTorch, of PyTorch and float64."""
    rows: Rows = data["rows"]
    head = ("steps", *(str(r["steps"]) for r in rows))
    lines = [
        ("JAX - PyTorch", *(f"{r['jax']:.1e}" if "jax" in r else "" for r in rows)),
        ("PyTorch - float64", *(f"{r['float64']:.1e}" for r in rows)),
        ("bound", *(f"{r['bound']:.1e}" for r in rows)),
    ]
    return head, lines


def one_step(data: Data) -> str:
    """What one step from the same state is off float64, and how fast a difference grows."""
    jax = f", JAX {data['one_step_jax']:.1e}" if "one_step_jax" in data else ""
    return (
        f"One step from the same state, {data['environments']} environments: PyTorch is "
        f"{data['one_step']:.1e} off float64{jax}. A difference grows by {data['growth']:.3f} a step "
        f"(near the top, d2(angle)/dt2 = {data['rate'] ** 2:.1f} angle)."
    )


def of_bound(rows: Rows) -> str:
    """How much of the bound JAX's runs use."""
    mine = [r for r in rows if r["implementation"].startswith("JAX") and not r["failure"]]
    used = [r["of_bound"] for r in mine if "of_bound" in r]
    same = sum(r.get("agrees") == "bit for bit" for r in mine)
    text = f"{same} of JAX's {len(mine)} rows agree bit for bit"
    return text + (f"; the others use {min(used):.2f} to {max(used):.2f} of the bound." if used else ".")


# ---------------------------------------------------------------- the paper

PAPER = ("#", "paper (second-hand)", "here, N = 2048", "")


def paper(gpu: Rows, cpu: Rows) -> list[Line]:
    """The paper's figures, ours beside them, and whether the order is the same."""
    t = times_at(gpu, MAIN)
    ours = [k for k in t if k.startswith("cleave ")]
    loop, step = _least(t, ours, "loop"), _least(t, ours, "step")
    b0, b1, s2, s3 = (t.get(f"JAX {k}") for k in ("B0", "B1", "S2", "S3 10"))
    xla = min((x for x in (b0, b1, s2, s3) if x is not None), default=None)
    hand, eager, compiled = (t.get(k) for k in ("by hand", "PyTorch eager", "torch.compile"))
    drawn = _x(_least(t, ours, "drawn loop"), _least(t, ours, "read loop"))
    apart = _x(t.get("cleave stacked read loop"), t.get("cleave separate read loop"))
    rolled = _x(t.get("cleave separate read step"), t.get("cleave separate read unroll 10"))
    by_hand = f"{_x(b0, hand)} and {_x(xla, hand)}; ours {_x(b0, loop)} and {_x(xla, loop)}"
    return [
        ("1", "random numbers read instead of drawn: 1.87x",
         f"JAX, B0 over B1: {_x(b0, b1)}; our whole loop, drawn over read: {drawn}", _order(b0, b1)),
        ("2", "a concatenation with several users may fuse: +10 %", _relaxed(t), "see below"),
        ("3", "four arrays instead of one: 3.41x",
         f"JAX, B1 over S2: {_x(b1, s2)}; our whole loop, stacked over separate: {apart}", _order(b1, s2)),
        ("4", "unrolled by 10: 3x more",
         f"JAX, S2 over S3 10: {_x(s2, s3)}; ours, step over unroll 10: {rolled}", _order(s2, s3)),
        ("5", "CPU wins below about 70 environments", _crossing(cpu, gpu), "see below"),
        ("6a", "PyTorch eager 0.13x of B0", _x(b0, eager), _order(eager, b0)),
        ("6b", "one fused kernel a step 1.97x of B0",
         f"torch.compile {_x(b0, compiled)}, ours {_x(b0, step)}", _order(b0, compiled)),
        ("6c", "by hand, loop inside: 28x over B0, 2.7x over the best XLA", by_hand, _order(xla, hand)),
    ]  # fmt: skip


def _order(slow: float | None, fast: float | None) -> str:
    """Whether what should be faster is."""
    if slow is None or fast is None:
        return "not measured"
    return "order confirmed" if slow > fast else "**not confirmed**"


def _least(times: Mapping[str, float], names: Sequence[str], word: str) -> float | None:
    return min((times[k] for k in names if k.endswith(word)), default=None)


def _x(one: float | None, two: float | None) -> str:
    return f"{one / two:.2f}x" if one is not None and two else "not measured"


def _relaxed(times: Mapping[str, float]) -> str:
    """Plans where the edit lets a concatenation in, against the same without it."""
    ratios = {
        name: times[plain] / times[name]
        for name in times
        if " relaxed " in name and (plain := name.replace(" relaxed", "")) in times
    }
    if not ratios:
        return "not measured"
    least, most = min(ratios.values()), max(ratios.values())
    return f"{len(ratios)} plans, with the edit {least:.2f}x to {most:.2f}x"


def _crossing(cpu: Rows, gpu: Rows) -> str:
    """Between which numbers of environments the GPU overtakes one CPU thread."""
    found: list[str] = []
    for words, name in (("cleave", "ours"), ("JAX", "JAX")):
        below: list[int] = []
        above: list[int] = []
        for size in sorted({r["environments"] for r in cpu} & {r["environments"] for r in gpu}):
            one, two = times_at(cpu, size), times_at(gpu, size)
            a = min((v for k, v in one.items() if k.startswith(words)), default=None)
            b = min((v for k, v in two.items() if k.startswith(words)), default=None)
            if a is not None and b is not None:
                (below if a < b else above).append(size)
        if below and above:
            found.append(f"{name}: between {max(below)} and {min(above)}")
        elif above:
            found.append(f"{name}: below {min(above)}")
    return "; ".join(found) or "not measured"


__all__ = ["DECISIONS", "PAPER", "decisions", "drift", "of_bound", "one_step", "over_sizes", "paper"]
