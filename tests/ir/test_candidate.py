"""Candidates as text: Folds, derivation and conditions come back as they were."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.errors import ParseError
from cleave.ir.candidate import Candidate, Condition, Element, Fold, Step, Value
from cleave.ir.dims import Atom, Gather, Index, Part, Union, term, var
from cleave.ir.ops import Const, SizeOf, const, input_node, map_node
from cleave.ir.program import Program
from cleave.ir.text import parse_candidate, print_candidate
from drawn import NAMES
from fold_examples import SOFTMAX, VARIANCE
from programs import PROGRAMS


def full(candidate: Candidate) -> Candidate:
    """A candidate with something in every field."""
    k = Atom("K")
    return replace(
        candidate,
        derivation=(Step("sum is linear", "node y, line 3", 'sum["k"](a)', "two\nlines\tand `this`"),),
        conditions=(Condition("exponent", "c", "<= 0", True, "max"), Condition("range", "", "", False, "")),
        splits=(k, Union((k, Atom("N")))),
        written_out=PROGRAMS["split_softmax"],
        form="divided last",
        cost=(("operations", "2*N*K + N"), ("bytes", "4*N")),
        reassociated=True,
    )


@pytest.mark.parametrize(
    "candidate", [SOFTMAX, VARIANCE, full(SOFTMAX), Candidate(PROGRAMS["attention"], ())]
)
def test_candidate_round_trips(candidate: Candidate) -> None:
    text = print_candidate(candidate)
    again = parse_candidate(text)
    assert again == candidate
    assert print_candidate(again) == text


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_plain_candidate_of_every_example_round_trips(name: str) -> None:
    candidate = Candidate(PROGRAMS[name], ())
    assert parse_candidate(print_candidate(candidate)) == candidate


def test_candidate_of_a_program_without_names_round_trips() -> None:
    program = PROGRAMS["softmax"]
    bare = Program(program.name, program.inputs, program.outputs, program.sizes)
    candidate = replace(SOFTMAX, program=bare)
    text = print_candidate(candidate)
    assert "value m = max1" in text
    assert parse_candidate(text) == candidate
    assert print_candidate(parse_candidate(text)) == text


def test_what_folds_refer_to_beside_the_program_is_defined() -> None:
    n, t = Index(Atom("N"), 0), Index(Part(Atom("K")), 1)
    x = PROGRAMS["softmax"].inputs[0]
    rows = Index(Atom("N"), 0), Index(Atom("K"), 1)
    other = map_node("tanh", rows, [x(*rows)], "f32")
    ids = input_node("x", [[Atom("N")], [Atom("K")]], "f32")
    seen = map_node("lt", rows, [other(*rows), const(0.5)], "bool")
    elements = (
        Element("e", other(n, t)),
        Element("c", const(2.0)),
        Element("far", other(term((Gather(x(n, t)), 1), offset=1), t)),
    )
    fold = SOFTMAX.folds[0]
    step_inputs = (
        *fold.step.inputs,
        input_node("c", (), "f32"),
        input_node("far", [[n.dim], [t.dim]], "f32"),
    )
    step = replace(fold.step, inputs=step_inputs)
    odd = replace(fold, elements=elements, step=step, support=seen(n, t), support_of="e", reason="why")
    candidate = replace(SOFTMAX, folds=(odd,))
    text = print_candidate(candidate)
    assert "define {" in text
    assert "support of e[n: N, k: part(K)] = " in text
    assert parse_candidate(text) == candidate
    assert ids is x


def test_a_value_that_is_a_literal_of_the_program_gets_a_line() -> None:
    program = PROGRAMS["rms_linear"]
    count = next(n for n in program.nodes if isinstance(n.op, SizeOf))
    zero = const(0.5)
    assert isinstance(zero.node.op, Const)
    fold = Fold(Atom("K"), (Value("n", count), Value("z", zero.node)), (), *_empty(4))
    candidate = Candidate(program, (fold,))
    assert parse_candidate(print_candidate(candidate)) == candidate


def _empty(count: int) -> list[Program]:
    return [Program(f"empty{n}", (), ()) for n in range(count)]


@given(st.lists(st.text(), min_size=8, max_size=8), st.booleans(), st.sampled_from(NAMES))
@settings(deadline=None, max_examples=50)
def test_any_texts_round_trip(texts: list[str], holds: bool, name: str) -> None:
    a, b, c, d, e, f, g, h = texts
    fold = replace(SOFTMAX.folds[0], reason=e, values=(Value(name, SOFTMAX.folds[0].values[0].node),))
    candidate = replace(
        SOFTMAX, folds=(fold,), derivation=(Step(a, b, c, d),), form=f, cost=((g, h),),
        conditions=(Condition(a, b, c, holds, d),),
    )  # fmt: skip
    assert parse_candidate(print_candidate(candidate)) == candidate


def test_stable_means_that_no_condition_fails() -> None:
    assert SOFTMAX.stable
    assert not full(SOFTMAX).stable


def test_state_is_what_init_returns() -> None:
    assert SOFTMAX.folds[0].state == ("m", "s")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("candidate { }", "a candidate without a program"),
        ("candidate { colour 3 }", "expected an item of a candidate, found `colour`"),
        ("candidate { program p(x: f32[N]) { return x[n] } fold over N { } }", "a fold without init"),
        (
            "candidate { program p(x: f32[N]) { return x[n] } fold over N { value v = y } }",
            "y is not defined",
        ),
        ("candidate { program p(x: f32[N]) { return x[n] } fold over M { } }", "dim M is not declared"),
        ("candidate { form wide }", "expected a string, found `wide`"),
        ("program p(x: f32[N]) { return x[n] }", "expected `candidate`, found `program`"),
    ],
)
def test_errors_say_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_candidate(text)
    assert message in str(caught.value)


def test_element_indices_are_those_of_the_step_input() -> None:
    element = SOFTMAX.folds[0].elements[0]
    assert element.access.terms == (var(Index(Atom("N"), 0)), var(Index(Part(Atom("K")), 1)))
    assert "element e[n: N, k: part(K)] = x[n, k]" in print_candidate(SOFTMAX)
