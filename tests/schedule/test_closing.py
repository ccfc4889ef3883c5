"""When the rest of a tile behind a predicate's end needs no mask: by selects, never by a factor 0."""

from __future__ import annotations

import pytest

from cleave.frontend.tuning import candidates_of
from cleave.ir.dims import Dim
from cleave.ir.parse import parse_program
from cleave.runtime.machines import machine_of
from cleave.schedule.select import best
from cleave.schedule.tiles import Loop
from cleave.schedule.walks import statements

HEAD = """program weighted(
  q: bf16[H, S, D],
  k: bf16[H, S, D],
  v: bf16[H, S, V],
  b: f32[S],
) where D = 64, V = 64 {
  dot[h: H, s: S, t: S]: bf16 = contract[d: D](q[h, s, d], k[h, t, d])
  x[h: H, s: S, t: S]: f32 = cast(dot[h, s, t])
  at[t: S]: i64 = index(t)
  row[s: S]: i64 = index(s)
  sees[s: S, t: S]: bool = le(at[t], row[s])
"""
TAIL = """  w[h: H, s: S, t: S]: bf16 = cast(p[h, s, t])
  out[h: H, s: S, e: V]: bf16 = contract[t: S](w[h, s, t], v[h, t, e])
  return out[h, s, e]
}
"""
P = "  p[h: H, s: S, t: S]: f32 ="
PAIR = "  one[h: H, s: S, t: S]: f32 ="
MASK = "  mask[s: S, t: S]: f32 = cast(sees[s, t])\n"


def closed(lines: str) -> bool:
    """Whether a loop over keys is closed in a program with these weights `p`, as warp groups compute it."""
    program = parse_program(HEAD + lines + TAIL)
    sizes: dict[Dim, int] = {atom: {"H": 64, "S": 4096}[atom.name] for atom in program.dynamic}
    ranked = best(candidates_of(program), program.bind(sizes), machine_of("cuda"), count=40)
    kernels = [k for r in ranked for k in r.tiles.kernels if k.groups and len(r.tiles.kernels) == 1]
    loops = [s for k in kernels for s in statements(k.body) if isinstance(s, Loop) and not s.exact]
    assert loops, "none with warp groups"
    found = {loop.closed for loop in loops}
    assert len(found) == 1
    return found.pop()


@pytest.mark.parametrize(
    "lines",
    [
        f"{P} select(sees[s, t], x[h, s, t], 0)\n",
        f"{PAIR} select(sees[s, t], x[h, s, t], -inf)\n{P} exp(one[h, s, t])\n",
        f"{PAIR} select(sees[s, t], x[h, s, t], 0)\n{P} mul(one[h, s, t], 0.5)\n",
    ],
)
def test_a_select_closes_a_loop(lines: str) -> None:
    assert closed(lines)


@pytest.mark.parametrize(
    "lines",
    [
        f"{MASK}{P} mul(x[h, s, t], mask[s, t])\n",
        f"{MASK}{PAIR} exp(x[h, s, t])\n{P} mul(one[h, s, t], mask[s, t])\n",
        f"{MASK}{PAIR} log(x[h, s, t])\n{P} mul(one[h, s, t], mask[s, t])\n",
        f"{PAIR} select(sees[s, t], x[h, s, t], 0)\n{P} mul(one[h, s, t], b[t])\n",
    ],
)
def test_a_factor_does_not(lines: str) -> None:
    """Behind the keys the other factor may overflow, and 0 times that is NaN; eager never looks there."""
    assert not closed(lines)
