"""Coarse functions: which programs get them, and what they mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.ir.candidate import Candidate
from cleave.ir.ops import COARSE_ERROR, Map
from cleave.ir.precision import assign, coarse_of
from cleave.ir.program import Program
from cleave.ir.reference import evaluate
from cleave.ir.text import parse_program, print_program
from cleave.knobs import scope
from cleave.pipeline import assigned, plan, usable
from cleave.runtime.search_store import search
from cleave.schedule.text import print_tiles

CAPPED = """
program capped(q: DTYPE[S, D], k: DTYPE[T, D], v: DTYPE[T, E]) {
  s0[s: S, t: T]: DTYPE = contract[d: D](q[s, d], k[t, d])
  s1[s: S, t: T]: DTYPE = div(s0[s, t], 50)
  s2[s: S, t: T]: DTYPE = tanh(s1[s, t])
  s3[s: S, t: T]: DTYPE = mul(s2[s, t], 50)
  s4[s: S, t: T]: WIDE = cast(s3[s, t])
  m[s: S]: WIDE = max[t: T](s4[s, t])
  e0[s: S, t: T]: WIDE = sub(s4[s, t], m[s])
  e[s: S, t: T]: WIDE = exp(e0[s, t])
  l[s: S]: WIDE = sum[t: T](e[s, t])
  p[s: S, t: T]: WIDE = div(e[s, t], l[s])
  p1[s: S, t: T]: DTYPE = cast(p[s, t])
  o[s: S, e: E]: DTYPE = contract[t: T](p1[s, t], v[t, e])
  return o[s, e]
}
"""
TWO = """
program two(x: bf16[N]) {
  a[n: N]: bf16 = tanh(x[n])
  c[n: N]: f32 = cast(x[n])
  b[n: N]: f32 = tanh(c[n])
  y[n: N]: f32 = add(a[n], b[n])
  return y[n]
}
"""


def capped(dtype: str) -> Program:
    return parse_program(CAPPED.replace("DTYPE", dtype).replace("WIDE", "f64" if dtype == "f64" else "f32"))


def functions(program: Program) -> set[tuple[str, str]]:
    """The hyperbolic tangents of a program, with their dtypes."""
    maps = ((n.op.fn, n.dtype) for n in program.nodes if isinstance(n.op, Map))
    return {(fn, dtype) for fn, dtype in maps if fn.startswith("tanh")}


def of(user: Program, numerics: str = "stable") -> set[tuple[str, str]]:
    """Those of all candidates that the settings allow."""
    with scope(numerics=numerics):
        candidates = usable(user, search(user, reassociate=False, numerics=numerics).candidates)
        return {f for c in assigned(candidates, user) for f in functions(c.program)}


def test_what_the_user_rounds_to_bf16_is_coarse_in_every_candidate() -> None:
    assert of(capped("bf16")) == of(capped("bf16"), "fast") == {("tanh_coarse", "f32")}


def test_nothing_else_is() -> None:
    """Not float16 either: near 1 its half unit is 2^-12, and a coarse tanh may be off by 2^-11."""
    assert of(capped("f16")) == {("tanh", "f32")}
    assert of(capped("f32")) == {("tanh", "f32")}
    assert of(capped("f64")) == {("tanh", "f64")}
    assert of(capped("bf16"), "strict") == {("tanh", "f32")}


def test_one_function_of_float32_keeps_all_from_being_coarse() -> None:
    """To algebra both are one value, whose node says nothing of where it goes."""
    user = parse_program(TWO)
    assert functions(assign(Candidate(user, ()), user).program) == {("tanh", "f32")}
    assert coarse_of(user) == frozenset()
    assert coarse_of(parse_program(TWO.replace("f32", "bf16"))) == {"tanh"}
    assert coarse_of(parse_program(TWO.replace("f32", "f16"))) == frozenset()


@pytest.mark.parametrize(("dtype", "coarse"), [("bf16", {"tanh"}), ("f32", set[str]())])
def test_a_loop_counts_like_what_is_around_it(dtype: str, coarse: set[str]) -> None:
    text = """
program around(x: bf16[N], y: DTYPE[N], u: DTYPE[T, N]) {
  a[n: N]: bf16 = tanh(x[n])
  scan walk[t: T](s[n: N] = y[n]; w[n: N] = u[t, n])
  body step(s: DTYPE[N], w: DTYPE[N]) {
    r[n: N]: DTYPE = add(s[n], w[n])
    h[n: N]: DTYPE = tanh(r[n])
    return s: h[n]
  }
  z[n: N]: DTYPE = scan(walk, s)
  return a: a[n], z: z[n]
}
"""
    assert coarse_of(parse_program(text.replace("DTYPE", dtype))) == coarse


def test_it_is_printed_and_parsed() -> None:
    user = capped("bf16")
    program = assign(Candidate(user, ()), user).program
    text = print_program(program)
    assert "= tanh_coarse(" in text
    assert print_program(parse_program(text)) == text
    made = plan(user, target="cpu")
    assert all("= tanh_coarse(" in print_tiles(r.tiles) for ranked in made.ranked for r in ranked)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32), min_size=1, max_size=8))
def test_the_reference_is_odd_and_within_the_bound(values: list[float]) -> None:
    program = parse_program("program p(x: f32[N]) { y[n: N]: f32 = tanh_coarse(x[n]) return y[n] }")
    x = np.array(values)
    y, minus = evaluate(program, {"x": x})["y"], evaluate(program, {"x": -x})["y"]
    right = np.tanh(x)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(x))
    np.testing.assert_allclose(y, right, rtol=COARSE_ERROR, atol=0)
    np.testing.assert_array_equal(minus, -y)
    exact = (x == 0) | np.isinf(x)
    np.testing.assert_array_equal(y[exact], right[exact])
    assert not (np.abs(y) > 1).any()
