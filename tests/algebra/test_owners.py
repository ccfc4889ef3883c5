"""An index inside a part runs in one part: joined there with the number of another, it is not understood."""

from __future__ import annotations

import pytest

from algebra.pairs import program, refuted
from cleave.algebra.conditions import needs_of
from cleave.algebra.normal import normal_forms
from cleave.algebra.proof import prove
from cleave.ir.parse import parse_program

OTHERS = "t[i: part(A)] = {0}[q: parts(A)](x[join(q, i)])\ns[p: parts(A)] = {0}[i: part(A)](t[i])\n-> s[p]"
BESIDE = "t[i: part(A)] = {0}[q: parts(A)](y[q, i])\ns[p: parts(A)] = {0}[i: part(A)](t[i])\n-> s[p]"


@pytest.mark.parametrize("kind", ["sum", "max", "min"])
def test_another_parts_number_is_not_taken_for_the_own_one(kind: str) -> None:
    a = program("x[A]", OTHERS.format(kind))
    b = program("x[A]", f"d = {kind}[a: A](x[a])\ns[p: parts(A)] = id(d)\n-> s[p]")
    assert kind == "min" or refuted(a, b, count=6)
    assert prove(a, b).answer == prove(b, a).answer == "unknown"


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_nor_is_one_that_stands_beside(kind: str) -> None:
    inputs = "y[parts(A), part(A)]"
    a = program(inputs, BESIDE.format(kind))
    whole = f"d = {kind}[q: parts(A), i: part(A)](y[q, i])\ns[p: parts(A)] = id(d)\n-> s[p]"
    assert prove(a, program(inputs, whole), points=0).answer == "unknown"


def test_a_program_may_be_thousands_of_nodes_deep() -> None:
    deep = 3000
    chain = "".join(f"  u{n + 1}[i: N]: f32 = tanh(u{n}[i])\n" for n in range(deep))
    last = f"  y[i: N]: f32 = add(u{deep}[i], x[i])\n  return y[i]\n"
    made = parse_program("program p(x: f32[N]) {\n  u0[i: N]: f32 = id(x[i])\n" + chain + last + "}\n")
    assert not needs_of(made, normal_forms(made)).found
