"""Printed derivations can be followed: from the user's program, line by line, to the candidate.

Each step takes lines of the printed program away and puts others there. So the whole program after each step
is known, and is checked: it is a program, it is proved equal to the one before, a name that stays stands for
the same value, and the last one is the candidate's.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from benchmarks.wanted import FOLDER, load

from algebra_values import inputs_for
from cleave.algebra import share
from cleave.algebra.chain import Law, start
from cleave.algebra.equal import answer
from cleave.algebra.search import search
from cleave.ir.candidate import Candidate, Step
from cleave.ir.dims import Dim, size_of
from cleave.ir.ops import Input, Scalar, map_node
from cleave.ir.program import Output, Program
from cleave.ir.reference import evaluate
from cleave.ir.text import parse_program, print_program, printed
from cleave.report.found import steps_text

NAMES = sorted(path.stem for path in FOLDER.glob("*.cleave"))
SHOWN = [
    "attention_causal_bottom", "attention_sink", "attention_sink_column", "divergence", "lora", "merge_two",
    "linear_cross_entropy", "rms_norm_linear", "softmax_naive", "variance",
]  # fmt: skip
"""Programs whose derivations are checked step by step on every run; the others with the slow tests."""


@cache
def candidates(name: str) -> tuple[Candidate, ...]:
    case = load(FOLDER / f"{name}.cleave")
    return search(case.program, numerics=case.numerics).candidates


# ---------------------------------------------------------------- programs out of lines


def after(lines: Sequence[str], step: Step) -> list[str]:
    """The lines of the program after a step."""
    left = list(lines)
    for line in step.before.splitlines():
        left.remove(line)
    return [*left, *step.after.splitlines()]


def assembled(lines: Sequence[str]) -> Program:
    """The program of some lines, each definition put behind those that it reads."""
    first = next(n for n, line in enumerate(lines) if line.startswith("program "))
    ends = next(n for n, line in enumerate(lines) if n >= first and line.endswith("{"))
    head, last = lines[first : ends + 1], [n for n, line in enumerate(lines) if line == "}"][-1]
    back = next(n for n, line in enumerate(lines) if line.startswith("return"))
    # A step that renames an index of an output has its own line for what is returned.
    tail = [line for n, line in enumerate(lines) if back <= n < max(last, back + 1)]
    taken = {*range(first, ends + 1), *range(back, back + len(tail)), last}
    body = {re.split(r"[:\[]", line)[0]: line for n, line in enumerate(lines) if n not in taken}
    reads = {
        name: set(re.findall(r"\w+", line.partition(" = ")[2])) & body.keys() for name, line in body.items()
    }
    done: dict[str, None] = {}
    while len(done) < len(body):
        ready = [name for name in body if name not in done and reads[name] <= done.keys()]
        assert ready, f"a cycle among {sorted(set(body) - set(done))}"
        done.update(dict.fromkeys(ready))
    return parse_program("\n".join([*head, *(body[name] for name in done), *tail, "}"]))


def programs_of(user: Program, candidate: Candidate) -> list[Program]:
    """The programs that a reader has, from the user's on."""
    lines: list[str] = [line.strip() for line in print_program(user).splitlines()]
    found = [assembled(lines)]
    for step in candidate.derivation:
        lines = after(lines, step)
        found.append(assembled(lines))
    return found


# ---------------------------------------------------------------- every program


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in SHOWN else pytest.mark.slow) for n in NAMES]
)
def test_each_step_starts_where_the_one_before_ended(name: str) -> None:
    own, *others = candidates(name)
    for candidate in others:
        assert candidate.derivation, candidate.form
        programs = programs_of(own.program, candidate)
        wanted = candidate.split_form or candidate.program
        assert programs[0].outputs == own.program.outputs
        assert programs[-1].outputs == wanted.outputs, candidate.form
        # What the reader calls the values is what they are called in the candidate.
        assert sorted(print_program(programs[-1])) == sorted(print_program(wanted)), candidate.form
        for step, (one, two) in zip(candidate.derivation, itertools.pairwise(programs), strict=True):
            assert step.law and step.place and step.given, step
            assert one.outputs != two.outputs, step
            assert set(step.before.splitlines()).isdisjoint(step.after.splitlines())


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in SHOWN else pytest.mark.slow) for n in NAMES]
)
def test_each_step_keeps_what_the_program_gives_and_what_names_stand_for(name: str) -> None:
    own, *others = candidates(name)
    rng = np.random.default_rng(5)
    inputs, sizes = inputs_for(own.program, rng)
    for node in own.program.inputs:
        if isinstance(node.op, Input | Scalar) and node.dtype == "i64":
            # Positions in tensors whose smallest axes have two elements; widths and lengths.
            inputs[node.op.name] = np.asarray(2) if isinstance(node.op, Scalar) else inputs[node.op.name] % 2
    seen: set[tuple[Step, ...]] = set()
    for candidate in others:
        programs = programs_of(own.program, candidate)
        parts: dict[Dim, list[int]] = {}
        for over in candidate.splits:
            total = size_of(over, sizes)
            parts[over] = [1, total - 1]
        held: dict[str, np.ndarray] = {}
        for number, program in enumerate(programs):
            way = candidate.derivation[:number]
            if way in seen:
                continue
            seen.add(way)
            for key, value in values_in(program, inputs, sizes, parts).items():
                before = held.setdefault(key, value)
                fine = np.isclose(before, value, rtol=1e-6, atol=1e-8) | np.isnan(before)
                assert before.shape == value.shape and fine.all(), (candidate.form, number, key)


def values_in(program: Program, inputs, sizes, parts) -> dict[str, np.ndarray]:
    """Every value of a program that is not over parts, by name."""
    plain = [
        Output(f"_{name}", node, tuple((k,) for k in range(len(node.axes))))
        for node, name in program.names.items()
        if not isinstance(node.op, Input | Scalar) and not any("part" in str(d) for d in node.dims)
    ]
    whole = Program(program.name, program.inputs, tuple(plain), program.sizes)
    return evaluate(whole, inputs, sizes, parts)


@pytest.mark.parametrize("name", SHOWN)
def test_each_step_is_proved(name: str) -> None:
    """By itself, or, where a loop is cut in two steps, together with the step before. A masked row whose
    every part is empty may be a condition."""
    own, *others = candidates(name)
    proved: set[tuple[object, object]] = set()
    for candidate in others:
        programs = programs_of(own.program, candidate)
        for number, step in enumerate(candidate.derivation):
            one, two = programs[number : number + 2]
            key = (one.outputs, two.outputs)
            if key in proved:
                continue
            proved.add(key)
            found = answer(one, two)
            if found == "unknown" and "is one over parts" in candidate.derivation[number - 1].law:
                found = answer(programs[number - 1], two)
            assert found in ("yes", "yes-if"), steps_text([step])


# ---------------------------------------------------------------- the chain


PLAIN = """
program plain(x: f32[N, K], y: f32[N]) {
  m[n: N, k: K]: f32 = mul(x[n, k], y[n])
  out[n: N]: f32 = sum[k: K](m[n, k])
  return out[n]
}
"""


def test_a_step_tells_what_goes_and_what_comes() -> None:
    program = parse_program(PLAIN)
    outside = parse_program("""
    program plain(x: f32[N, K], y: f32[N]) {
      m[n: N]: f32 = sum[k: K](x[n, k])
      out[n: N]: f32 = mul(m[n], y[n])
      return out[n]
    }
    """)
    chain = start(program).then(Law("leaves", "y is free"), outside, "out")
    (step,) = chain.steps
    assert (step.law, step.place, step.given) == ("leaves", "out", "y is free")
    assert step.before.splitlines() == [
        "m[n: N, k: K]: f32 = mul(x[n, k], y[n])",
        "out[n: N]: f32 = sum[k: K](m[n, k])",
    ]
    assert step.after.splitlines() == [
        "sum1[n: N]: f32 = sum[k: K](x[n, k])",
        "out[n: N]: f32 = mul(sum1[n], y[n])",
    ]
    assert chain.then(Law("again", ""), outside) is chain


def test_new_values_get_names_that_nothing_had() -> None:
    program = parse_program(PLAIN)
    (out,) = program.outputs
    twice = map_node(
        "neg", out.node.axes, [map_node("neg", out.node.axes, [out.node.read()], "f32").read()], "f32"
    )
    more = Program(program.name, program.inputs, (Output("out", twice, out.layout),))
    chain = start(program).then(Law("twice", "no condition"), more)
    names = set(chain.program.names.values())
    assert len(names) == len(chain.program.names) == 4
    assert chain.program.names[out.node] == "out"  # it is still there, so it is still called that
    assert chain.steps[0].place == "neg1, neg2" and "return out: neg2[n]" in chain.steps[0].after


def test_names_are_given_to_all_values_and_those_taken_are_not_made_up() -> None:
    program = parse_program(PLAIN.replace(" m[", " mul1[").replace("(m[", "(mul1["))
    bare = Program(program.name, program.inputs, program.outputs)
    assert set(printed(bare)[0].names.values()) == {"mul1", "out"}
    called, lines = printed(bare, ["mul1", "mul2"])
    assert set(called.names.values()) == {"mul3", "out"}
    assert "\n".join(lines) == print_program(called).rstrip()


def test_steps_say_which_values_their_laws_are_about() -> None:
    """A value computed once, where the user guards one of two, and a row by its parts."""
    own = parse_program("""
program both(x: f32[N, K]) {
  m[n: N]: f32 = max[k: K](x[n, k])
  d[n: N, k: K]: f32 = sub(x[n, k], m[n])
  e[n: N, k: K]: f32 = exp(d[n, k])
  s[n: N]: f32 = sum[k: K](e[n, k])
  p[n: N, k: K]: f32 = div(e[n, k], s[n])
  a[n: N]: f32 = abs(m[n])
  q[n: N]: bool = eq(a[n], inf)
  g[n: N]: f32 = select(q[n], 0.0, m[n])
  h[n: N, k: K]: f32 = sub(x[n, k], g[n])
  f[n: N, k: K]: f32 = exp(h[n, k])
  t[n: N]: f32 = sum[k: K](f[n, k])
  l[n: N]: f32 = log(t[n])
  z[n: N]: f32 = add(l[n], g[n])
  return p[n, k], z[n]
}
""")
    steps = [s for c in search(own).candidates for s in c.derivation]
    once = next(s for s in steps if s.law == share.LAW)
    assert once.given == (
        "g is m where that is finite, so d = h, e = f, s = t; "
        "m - m is 0 there, else NaN, as the user's value is"
    )
    assert any(s.given.startswith("u is g; p is finite") for s in steps)
