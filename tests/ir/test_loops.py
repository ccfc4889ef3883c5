"""Scans in programs: text, meaning, what is refused, and stacked states taken apart."""

from __future__ import annotations

import numpy as np
import pytest

from cleave.errors import Bug, ParseError
from cleave.ir.dims import Atom, Index
from cleave.ir.loops import loops_in, scan_nodes
from cleave.ir.ops import input_node, map_node
from cleave.ir.program import Output, Program
from cleave.ir.reference import evaluate
from cleave.ir.states import take_apart
from cleave.ir.text import parse_program, print_program

WALK = """
program walk(x: f32[N], v: f32[N], a: f32[T, N], dt: scalar f32) {
  at1[t: T]: i64 = index(t)
  scan walk[t: T](x[n: N] = x[n], v[n: N] = v[n]; a[n: N] = a[t, n], i = at1[t], dt = dt, c = 2.0)
  body step(x: f32[N], v: f32[N], a: f32[N], i: i64[], dt: f32[], c: f32[]) {
    dv[n: N]: f32 = mul(a[n], dt)
    v1[n: N]: f32 = add(v[n], dv[n])
    dx[n: N]: f32 = mul(v[n], dt)
    x1[n: N]: f32 = add(x[n], dx[n])
    f: f32 = cast(i)
    y1[n: N]: f32 = add(x1[n], f)
    y2[n: N]: f32 = mul(y1[n], c)
    return x: x1[n], v: v1[n], seen: y2[n]
  }
  last[n: N]: f32 = scan(walk, x)
  speed[n: N]: f32 = scan(walk, v)
  seen[t: T, n: N]: f32 = scan(walk, seen)
  half[t: T, n: N]: f32 = mul(seen[t, n], 0.5)
  return last: last[n], speed: speed[n], half: half[t, n]
}
"""

STACKED = """
program stacked(s: f32[N, K], a: f32[T, N]) where K = 2 {
  scan loop[t: T](s[n: N, k: K] = s[n, k]; a[n: N] = a[t, n])
  body step(s: f32[N, K], a: f32[N]) {
    at[k: K]: i64 = index(k)
    first[k: K]: bool = eq(at[k], 0)
    v1[n: N]: f32 = add(s[n, 1], a[n])
    x1[n: N]: f32 = add(s[n, 0], v1[n])
    both[n: N, k: K]: f32 = select(first[k], x1[n], v1[n])
    return s: both[n, k], x: x1[n]
  }
  last[n: N, k: K]: f32 = scan(loop, s)
  xs[t: T, n: N]: f32 = scan(loop, x)
  return last: last[n, k], xs: xs[t, n]
}
"""


def walked(
    x: np.ndarray, v: np.ndarray, a: np.ndarray, dt: float
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    seen: list[np.ndarray] = []
    for i, push in enumerate(a):
        x, v = x + v * dt, v + push * dt
        seen.append(x + i)
    return x, v, seen


@pytest.mark.parametrize("text", [WALK, STACKED])
def test_text_comes_back(text: str) -> None:
    program = parse_program(text)
    printed = print_program(program)
    assert parse_program(printed) == program
    assert print_program(parse_program(printed)) == printed


@pytest.mark.parametrize(("size", "steps"), [(5, 4), (1, 1), (3, 0), (0, 2)])
def test_meaning_is_a_loop(size: int, steps: int) -> None:
    rng = np.random.default_rng(0)
    x, v, a = rng.normal(size=size), rng.normal(size=size), rng.normal(size=(steps, size))
    found = evaluate(parse_program(WALK), {"x": x, "v": v, "a": a, "dt": 0.1})
    last, speed, seen = walked(x, v, a, 0.1)
    np.testing.assert_allclose(found["last"], last)
    np.testing.assert_allclose(found["speed"], speed)
    np.testing.assert_allclose(found["half"], np.reshape(seen, (steps, size)))


def test_results_of_one_loop_are_one_loop() -> None:
    assert len(loops_in(parse_program(WALK).nodes)) == 1


def test_stacked_states_are_taken_apart() -> None:
    program = parse_program(STACKED)
    apart = take_apart(program)
    (loop,) = loops_in(apart.nodes)
    assert loop.states == 2 and all(len(n.axes) == 1 for n in loop.body.inputs)
    assert parse_program(print_program(apart)) == apart
    rng = np.random.default_rng(1)
    inputs = {"s": rng.normal(size=(4, 2)), "a": rng.normal(size=(6, 4))}
    one, two = evaluate(program, inputs), evaluate(apart, inputs)
    for name, value in one.items():
        np.testing.assert_array_equal(two[name], value)


def test_sizes_that_only_a_call_tells() -> None:
    """A size may follow from one that is not known yet, with states to take apart or without loops."""
    text = STACKED.replace("a: f32[T, N]", "a: f32[T, N], b: f32[B]").replace("K = 2", "K = 2, B = N - 1")
    (loop,) = loops_in(take_apart(parse_program(text)).nodes)
    assert loop.states == 2
    plain = "program p(x: f32[N]) where M = N - 1 { y[m: M]: f32 = neg(x[m + 1]) return y[m] }"
    program = parse_program(plain)
    assert take_apart(program) is program


def test_nothing_to_take_apart() -> None:
    program = parse_program(WALK)
    assert take_apart(program) is program


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("scan(walk, x)", "scan(walk, y)", "loop walk has no y"),
        ("scan(walk, x)", "scan(other, x)", "there is no loop other"),
        ("last[n: N]: f32 = scan(walk, x)", "last[t: T]: f32 = scan(walk, x)", "x of loop walk is f32"),
        ("c = 2.0)", "c = 2.0, d = 1.0)", "gives 7 values"),
        ("x: x1[n], v: v1[n]", "x: f, v: v1[n]", "before a step"),
    ],
)
def test_what_does_not_fit_is_an_error_with_its_place(old: str, new: str, what: str) -> None:
    with pytest.raises(ParseError, match=what.replace("[", r"\[")) as error:
        parse_program(WALK.replace(old, new))
    assert "line" in str(error.value)


def test_a_state_must_keep_its_dtype() -> None:
    x = input_node("x", [[Atom("N")]], "f32")
    n = Index(Atom("N"), 0)
    body = Program("body", (x,), (Output("x", map_node("cast", [n], [x(n)], "f64"), ((0,),)),))
    with pytest.raises(Bug, match="before a step"):
        scan_nodes(Atom("T"), body, 1, [x(n)])
