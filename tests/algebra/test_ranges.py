"""Ranges hold for every value; maxima that they make unneeded are left out only if the user asks for it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cleave.algebra.equal import answer
from cleave.algebra.ranges import Range, range_of
from cleave.algebra.search import search
from cleave.algebra.unneeded import LAW, without_maxima
from cleave.ir.ops import FLOATS
from cleave.ir.precision import narrows, overflows
from cleave.ir.program import Program
from cleave.ir.reference import evaluate
from cleave.ir.text import parse_program

CAPPED = """
program capped(q: f32[S, D], k: f32[T, D], v: f32[T, E], cap: f32[S]) {
  row[s: S]: i64 = index(s)
  column[t: T]: i64 = index(t)
  hidden[s: S, t: T]: bool = gt(column[t], row[s])
  qk[s: S, t: T]: f32 = contract[d: D](q[s, d], k[t, d])
  small[s: S, t: T]: f32 = div(qk[s, t], CAP)
  flat[s: S, t: T]: f32 = tanh(small[s, t])
  score[s: S, t: T]: f32 = mul(flat[s, t], CAP)
  seen[s: S, t: T]: f32 = select(hidden[s, t], -inf, score[s, t])
  top[s: S]: f32 = max[t: T](seen[s, t])
  c[s: S, t: T]: f32 = sub(seen[s, t], top[s])
  e[s: S, t: T]: f32 = exp(c[s, t])
  l[s: S]: f32 = sum[t: T](e[s, t])
  p[s: S, t: T]: f32 = div(e[s, t], l[s])
  o[s: S, e: E]: f32 = contract[t: T](p[s, t], v[t, e])
  return o[s, e]
}
"""

SINGLE = """
program single(x: f32[N]) {
  y[n: N]: f32 = tanh(x[n])
  BODY
  return z[n]
}
"""


def capped(cap: str) -> Program:
    return parse_program(CAPPED.replace("CAP", cap).replace(", cap: f32[S]", ""))


def single(*lines: str) -> Program:
    return parse_program(SINGLE.replace("BODY", "\n  ".join(lines)))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["z[n: N]: f32 = mul(y[n], -3)"], Range(-3, 3)),
        (["z[n: N]: f32 = add(y[n], 2)"], Range(1, 3)),
        (["a[n: N]: f32 = add(y[n], 3)", "z[n: N]: f32 = div(y[n], a[n])"], Range(-0.5, 0.5)),
        (["z[n: N]: f32 = exp(y[n])"], Range(math.exp(-1), math.exp(1))),
        (["z[n: N]: f32 = abs(y[n])"], Range(0, 1)),
        (["z[n: N]: f32 = max(y[n], 0)"], Range(0, 1)),
        (["z[n: N]: f32 = min(y[n], 0)"], Range(-1, 0)),
        (["z[n: N]: f32 = sub(y[n], x[n])"], Range()),
        (["z[n: N]: f32 = mul(y[n], x[n])"], Range()),
        (["a[n: N]: f32 = add(y[n], 1)", "z[n: N]: f32 = sqrt(a[n])"], Range(0, math.sqrt(2))),
        (["p[n: N]: bool = gt(x[n], 0)", "z[n: N]: f32 = select(p[n], y[n], -inf)"], Range(-1, 1, True)),
        (["p[n: N]: bool = gt(x[n], 0)", "z[n: N]: f32 = select(p[n], y[n], 7)"], Range(-1, 7)),
    ],
)
def test_ranges(lines: list[str], expected: Range) -> None:
    program = single(*lines)
    found = range_of(program.outputs[0].node.read())
    assert found.low == pytest.approx(expected.low) and found.high == pytest.approx(expected.high)
    assert found.masked == expected.masked


def test_every_value_lies_in_its_range() -> None:
    program = capped("4")
    rng = np.random.default_rng(0)
    inputs = {n: rng.normal(size=s) * 20 for n, s in {"q": (5, 3), "k": (6, 3), "v": (6, 2)}.items()}
    from dataclasses import replace

    from cleave.ir.program import Output

    for node in program.nodes:
        if node.dtype not in FLOATS:
            continue
        one = replace(program, outputs=(Output("y", node, tuple((k,) for k in range(len(node.axes)))),))
        sizes = {} if {n.op for n in one.nodes} >= {n.op for n in program.inputs} else dict(program.bind({}))
        try:
            value = evaluate(one, inputs, sizes)["y"]
        except KeyError:
            continue
        known = range_of(node.read())
        kept = value[np.isfinite(value)] if known.masked else value
        assert kept.size == 0 or (kept.min() >= known.low - 1e-9 and kept.max() <= known.high + 1e-9)


def test_a_bounded_exponent_needs_no_maximum_if_the_user_says_fast() -> None:
    program = capped("30")
    bare = without_maxima(program)
    assert bare is not None and answer(program, bare) == "yes"
    assert not any(getattr(n.op, "kind", "") == "max" for n in bare.nodes)
    stable, fast = search(program), search(program, numerics="fast")
    left = [c for c in fast.candidates if any(step.law == LAW for step in c.derivation)]
    assert left and not any(step.law == LAW for c in stable.candidates for step in c.derivation)
    for candidate in left:
        assert all(c.holds for c in candidate.conditions)
        exponents = [c for c in candidate.conditions if c.kind == "exponent"]
        assert [c.bound for c in exponents] == ["<= 30"]
        assert not any(overflows(c, "f32") for c in candidate.conditions)
        assert any(narrows(c, "f16") for c in candidate.conditions) == any(
            c.bound.startswith("|") for c in candidate.conditions
        )


def test_a_bound_beyond_the_dtype_is_refused_by_the_pipeline() -> None:
    from cleave import knobs
    from cleave.pipeline import usable

    for cap, kept in (("30", True), ("90", False)):
        program = capped(cap)
        with knobs.scope(numerics="fast"):
            found = usable(program, search(program, split=False, numerics="fast").candidates)
        assert any(step.law == LAW for c in found for step in c.derivation) == kept


def test_without_bounds_maxima_stay() -> None:
    unbounded = parse_program(
        CAPPED.replace(", cap: f32[S]", "")
        .replace("tanh(small[s, t])", "neg(small[s, t])")
        .replace("CAP", "4")
    )
    assert without_maxima(unbounded) is None
    program = capped("30")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cleave.algebra.unneeded.range_of", lambda access: Range())
        assert without_maxima(program) is None


@pytest.mark.parametrize("scale", [1, 16, 256])
def test_what_is_left_out_changes_no_value(scale: int) -> None:
    program = capped("30")
    bare = without_maxima(program)
    assert bare is not None
    rng = np.random.default_rng(1)
    shapes = {"q": (7, 8), "k": (9, 8), "v": (9, 4)}
    inputs = {n: (rng.normal(size=s) * scale).astype(np.float32) for n, s in shapes.items()}
    exact = evaluate(program, inputs)["o"]
    got = evaluate(bare, inputs, dtype=np.float32)["o"]
    safe = evaluate(program, inputs, dtype=np.float32)["o"]
    assert np.isfinite(got).all()
    error = np.abs(got - exact).max() / np.abs(exact).max()
    assert error < 1e-5 + 4 * np.abs(safe - exact).max() / np.abs(exact).max()
