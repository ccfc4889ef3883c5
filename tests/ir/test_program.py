"""Programs: order of nodes, dims, bound sizes, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from cleave.errors import Bug
from cleave.ir.dims import Atom, Extent, Index
from cleave.ir.ops import Input, Scalar, input_node, map_node
from cleave.ir.program import Output, Program, sort_nodes
from drawn import programs
from programs import PROGRAMS, program

N, K = Atom("N"), Atom("K")


@given(programs())
@settings(deadline=None, max_examples=60)
def test_arguments_come_before_users_and_each_node_once(drawn: Program) -> None:
    seen: set[object] = set()
    for node in drawn.nodes:
        assert all(access.node in seen for access in node.reads)
        assert node not in seen
        seen.add(node)
    assert {output.node for output in drawn.outputs} <= seen


def test_order_is_that_of_reading() -> None:
    names = PROGRAMS["softmax"].names
    assert [names.get(n, "x") for n in PROGRAMS["softmax"].nodes] == ["x", "m", "c", "e", "s", "y"]


def test_dims_are_listed_by_first_use() -> None:
    assert [d.name for d in program("attention").dims] == ["KV", "G", "S", "D", "T"]
    assert [d.name for d in program("slices").dims] == ["N", "K", "M", "J"]


def test_dynamic_dims_are_those_without_a_size() -> None:
    assert [d.name for d in program("slices").dynamic] == ["N", "K"]
    assert [d.name for d in program("mla_decode").dynamic] == ["H", "C", "R", "T"]


def test_bind_completes_known_and_derived_sizes() -> None:
    assert program("slices").bind({N: 9, K: 2}) == {N: 9, K: 2, Atom("M"): 7, Atom("J"): 3}
    assert program("slices").bind({N: 9, K: 2, Atom("J"): 4})[Atom("J")] == 4


def test_names_and_lines_are_not_part_of_identity() -> None:
    one = program("softmax")
    node = one.nodes[-1]
    other = Program(one.name, one.inputs, one.outputs, one.sizes, {node: "z"}, {node: "file.py:3"})
    assert one == other
    assert hash(one) == hash(other)
    assert one != Program("other", one.inputs, one.outputs, one.sizes)
    assert one != Program(one.name, one.inputs, one.outputs, ((N, 3),))


def test_unused_inputs_stay() -> None:
    x, y = input_node("x", [[N]], "f32"), input_node("y", [[K]], "f32")
    made = Program("p", (x, y), (Output("x", x, ((0,),)),))
    assert made.dims == (N, K)
    assert made.nodes == (x,)


def test_what_is_not_a_program_is_refused() -> None:
    n = Index(N, 0)
    x = input_node("x", [[N]], "f32")
    y = map_node("exp", [n], [x(n)], "f32")
    with pytest.raises(Bug, match="an input is a Map"):
        Program("p", (y,), ())
    with pytest.raises(Bug, match="without listing it as an input"):
        Program("p", (), (Output("y", y, ((0,),)),))
    with pytest.raises(Bug, match="does not list each axis once"):
        Program("p", (x,), (Output("y", y, ((0, 0),)),))
    with pytest.raises(Bug, match="does not list each axis once"):
        Program("p", (x,), (Output("y", y, ()),))


def test_derived_sizes_may_mention_atoms_of_their_own() -> None:
    x = input_node("x", [[N]], "f32")
    made = Program("p", (x,), (Output("x", x, ((0,),)),), ((N, Extent(1, ((K, 2),))),))
    assert made.dims == (N, K)
    assert made.dynamic == (K,)
    assert made.bind({K: 3})[N] == 7


def test_examples_are_about_what_they_say() -> None:
    assert all(isinstance(n.op, Input | Scalar) for p in PROGRAMS.values() for n in p.inputs)
    assert len(PROGRAMS["attention"].outputs) == 2
    assert sort_nodes([]) == ()
