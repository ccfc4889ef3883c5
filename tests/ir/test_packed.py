"""Packed values come back as they were, nodes as the same objects."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.errors import Bug
from cleave.ir.candidate import Candidate, Step
from cleave.ir.ops import const, map_node
from cleave.ir.packed import changed, pack, unpack
from cleave.ir.program import Program
from cleave.ir.text import parse_candidate, parse_program, print_candidate, print_program

TEXT = """
program softmax(x: f32[N, T], scale: scalar f32) where T = 64 {
  low[n: N]: f32 = max[t: T](x[n, t])
  s[n: N, t: T]: f32 = sub(x[n, t], low[n])
  e[n: N, t: T]: f32 = exp(s[n, t])
  total[n: N]: f32 = sum[t: T](e[n, t])
  p[n: N, t: T]: f32 = div(e[n, t], total[n])
  out[n: N, t: T]: f32 = mul(p[n, t], scale)
  return out[n, t]
}
"""

atoms = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.fractions()
values = st.recursive(atoms, lambda inner: st.lists(inner, max_size=4).map(tuple), max_leaves=30)


@given(values)
@settings(max_examples=60, deadline=None)
def test_plain_values_come_back(value) -> None:
    again = unpack(pack(value))
    assert again == value and repr(again) == repr(value)


def test_numbers_that_are_equal_keep_their_types() -> None:
    value = (1, True, 1.0, 0, False, 0.0, -0.0, Fraction(1), "1", None, math.inf)
    assert repr(unpack(pack(value))) == repr(value)
    assert math.isnan(unpack(pack(math.nan)))


def test_a_program_comes_back_with_its_names_and_the_same_nodes() -> None:
    program = parse_program(TEXT)
    again: Program = unpack(pack(program))
    assert again == program and again.names == program.names
    assert [a is b for a, b in zip(again.nodes, program.nodes, strict=True)] == [True] * len(program.nodes)
    assert print_program(again) == print_program(program)


def test_a_candidate_comes_back() -> None:
    program = parse_program(TEXT)
    candidate = Candidate(program, (), (Step("law", "e", "a", "b"),), cost=(("operations", "N"),))
    again = unpack(pack(candidate))
    assert again == candidate and print_candidate(again) == print_candidate(candidate)
    assert parse_candidate(print_candidate(again)) == candidate


def test_the_same_value_gives_the_same_bytes_and_shared_parts_are_written_once() -> None:
    program = parse_program(TEXT)
    once, twice = pack((program,)), pack((program, program))
    assert pack((parse_program(TEXT),)) == once
    assert len(twice) < len(once) + 20


def test_a_deep_program_is_no_problem() -> None:
    node = const(1.0).node
    for _ in range(5000):
        node = map_node("neg", (), [node.read()], "f32")
    assert unpack(pack(node)) is node


def test_other_objects_are_refused() -> None:
    with pytest.raises(Bug, match="of class complex"):
        pack((1j,))


def test_changed_copies() -> None:
    steps = [Step("law", "e", "a", "b"), Step("other", "f", "c", "d")]
    assert changed(steps, after="xy") == [Step("law", "e", "a", "x"), Step("other", "f", "c", "y")]
    assert [step.after for step in steps] == ["b", "d"]
    assert changed([]) == []
