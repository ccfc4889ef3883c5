"""Further tables of the Cartpole study: what was asked for and what is reached, which rows are missing and
why, the sweep over loads ahead, and where a step of JAX's loops spends its time.

All from raw files in `benchmarks/results`; `benchmarks.cartpole_report` writes them into docs/cartpole.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
Rows = Sequence[Row]
Line = tuple[str, ...]

TIME = "microseconds_per_step"
MAIN = 2048
HAND = "by hand"
LEAST_OF_HAND, LEAST_OF_BASE, LEAST_OF_EAGER, LEAST_OF_JAX = 0.95, 10.56, 5.0, 1.5
LARGEST_ASKED = 1 << 20
GOALS = ("what", "asked", "reached", "")
HANDS = ("N", "by hand, us", "ours, us", "by hand / ours", "ours is")
AHEAD = ("loads ahead", "registers")
BLOCKS = ("environments a block", "warps", "elements a thread", "least us at 1 Mi", "loads ahead")
JAX = ("commands", "N", "loop", "operations a step", "of them copies", "us/step", "us an operation")


def times_at(rows: Rows, size: int) -> dict[str, float]:
    """Microseconds per step of what ran and is right at a size."""
    return {
        r["implementation"]: r[TIME]
        for r in rows
        if r["environments"] == size and TIME in r and not r["failure"]
    }


def _ours(times: dict[str, float], word: str = "") -> tuple[str, float] | None:
    own = [(k, t) for k, t in times.items() if k.startswith("cleave") and word in k]
    return min(own, key=lambda item: item[1], default=None)


def hands(rows: Rows) -> list[Line]:
    """The kernel by hand against the best of ours that reads what it reads, at every size."""
    found: list[Line] = []
    for size in sorted({r["environments"] for r in rows}):
        times = times_at(rows, size)
        ours = _ours(times, " read ")
        if ours is not None and HAND in times:
            ratio = times[HAND] / ours[1]
            found.append((str(size), f"{times[HAND]:.3g}", f"{ours[1]:.3g}", f"{ratio:.2f}", ours[0][7:]))
    return found


def goals(rows: Rows, target: str) -> list[Line]:
    """What issue 5 asks for on a target, and what the file says."""
    times = times_at(rows, MAIN)
    best = _ours(times)
    if best is None:
        return []
    name, own = best
    found: list[Line] = []

    def against(peer: str, least: float) -> None:
        if peer in times:
            found.append(_goal(f"{name} over {peer}, N = {MAIN}", least, times[peer] / own))

    if target == "cuda":
        for peer in ("JAX B0", "JAX B1"):
            against(peer, LEAST_OF_BASE)
        plans = [(t, k) for k, t in times.items() if k.startswith("plan") and k.endswith(" x1")]
        if plans:
            least, plan = min(plans)
            for peer in ("JAX B0", "JAX B1"):
                if peer in times:
                    ratio = f"{times[peer] / least:.2f}x"
                    found.append(
                        (f"{plan} over {peer}, N = {MAIN}", "", ratio, "a launch a step, for comparison")
                    )
        ratios = [(float(h[3]), h[0]) for h in hands(rows) if 64 <= int(h[0]) <= LARGEST_ASKED]
        if ratios:
            least, size = min(ratios)
            found.append(
                _goal(f"by hand / ours, least from N = 64 to 1 Mi (at {size})", LEAST_OF_HAND, least)
            )
    else:
        against("PyTorch eager", LEAST_OF_EAGER)
        for peer in ("JAX S2", "JAX B1", "JAX B0"):
            against(peer, LEAST_OF_JAX)
    return found


def _goal(what: str, least: float, value: float) -> Line:
    return what, f"{least:g}x", f"{value:.2f}x", "reached" if value >= least else "**missed**"


def missing(rows: Rows, target: str) -> list[str]:
    """Which rows of the study's order a file lacks: it is worked off by rank until the budget ends."""
    from benchmarks.cartpole_order import order

    sizes = [MAIN, *sorted({r["environments"] for r in rows} - {MAIN})]
    have = {(r["implementation"], r["environments"]) for r in rows}
    absent: dict[str, list[int]] = {}
    wanted = order(target, sizes)
    for task in wanted:
        if (task.name, task.size) not in have:
            absent.setdefault(_kind(task.name), []).append(task.size)
    if not absent:
        return [f"All {len(wanted)} rows of the full order at these {len(sizes)} sizes are there."]
    lines = [
        f"Of the {len(wanted)} rows of the full order at these {len(sizes)} sizes {len(have)} were run "
        f"before the budget ended; it is worked off by what a row tells, and `--resume` goes on. Missing:",
        "",
    ]
    for kind, at in absent.items():
        main = at.count(MAIN)
        where = f"{main} at N = {MAIN}, {len(at) - main} elsewhere" if main else f"{len(at)} at other sizes"
        lines.append(f"- {kind}: {where}")
    return lines


def _kind(name: str) -> str:
    words = name.split()
    if words[0] == "plan":
        return (
            "plans unrolled or drawn" if words[-1] != "x1" or "drawn" in words else "plans of one step, read"
        )
    return f"ours, {' '.join(words[3:4])}" if words[0] == "cleave" else name


def ahead(rows: Rows) -> tuple[Line, list[Line]]:
    """The sweep over loads ahead, one warp a block, one element a thread: header and lines."""
    sizes = sorted({r["n"] for r in rows})
    mine = [r for r in rows if r["what"] == "ours" and (r["block"], r["warps"]) == (32, 1)]
    found: list[Line] = []
    for stages in sorted({r["stages"] for r in mine}):
        here = {r["n"]: r for r in mine if r["stages"] == stages}
        registers = "/".join(str(n) for n in sorted({r["registers"] for r in here.values()}))
        found.append(
            (str(stages - 1), registers, *(f"{here[n]['us']:.3f}" if n in here else "" for n in sizes))
        )
    hand = {r["n"]: r for r in rows if r["what"] == HAND}
    registers = " to ".join(str(n) for n in sorted({r["registers"] for r in hand.values()}))
    found.append((HAND, registers, *(f"{hand[n]['us']:.3f}" if n in hand else "" for n in sizes)))
    return (*AHEAD, *(f"N = {n}" for n in sizes)), found


def blocks(rows: Rows) -> list[Line]:
    """The least time of each block at 1 Mi environments."""
    here = [r for r in rows if r["what"] == "ours" and r["n"] == LARGEST_ASKED]
    shapes = sorted({(r["block"], r["warps"]) for r in here})
    found: list[Line] = []
    for block, warps in shapes:
        best = min((r for r in here if (r["block"], r["warps"]) == (block, warps)), key=lambda r: r["us"])
        each = f"{block / (32 * warps):g}"
        found.append((str(block), str(warps), each, f"{best['us']:.2f}", str(best["stages"] - 1)))
    return found


def jax_loops(rows: Rows) -> list[Line]:
    """What a step of JAX's loops launches and takes, with XLA's command buffers and without."""
    found: list[Line] = []
    for r in rows:
        each = r["us"] / r["operations"]
        copies = str(r["body"].get("copy", 0))
        found.append((
            r["mode"], str(r["n"]), r["name"], str(r["operations"]), copies, f"{r['us']:.1f}", f"{each:.2f}",
        ))  # fmt: skip
    return found
