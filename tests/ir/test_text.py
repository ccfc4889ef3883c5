"""Programs as text: what prints parses back, whatever the names; errors show the place."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.errors import Bug, ParseError
from cleave.ir.dims import Atom, Extent, Gather, Index, Part, Parts, Union, term, var
from cleave.ir.lexis import Cursor, dim_text, index_names, number_text, parse_dim, parse_number, quote
from cleave.ir.ops import Access, const, input_node, map_node, number_key, reduce_node
from cleave.ir.program import Output, Program
from cleave.ir.text import parse_program, print_program
from drawn import NUMBERS, programs
from programs import PROGRAMS, TEXTS


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_example_round_trips_with_and_without_names(name: str) -> None:
    program = PROGRAMS[name]
    text = print_program(program)
    again = parse_program(text)
    assert again == program
    assert again.names == program.names
    assert print_program(again) == text
    bare = Program(program.name, program.inputs, program.outputs, program.sizes)
    assert parse_program(print_program(bare)) == program
    assert print_program(parse_program(print_program(bare))) == print_program(bare)


@pytest.mark.parametrize("name", ["softmax", "rms_linear", "layer_norm", "matmul_matmul", "token_shift"])
def test_example_prints_as_it_was_written(name: str) -> None:
    assert print_program(PROGRAMS[name]).strip() == TEXTS[name].strip()


@given(programs())
@settings(deadline=None, max_examples=150)
def test_random_program_round_trips(program: Program) -> None:
    try:
        text = print_program(program)
    except Bug as error:
        assert "two inputs are named" in str(error)
        return
    again = parse_program(text)
    assert again == program
    assert [n.digest for n in again.nodes] == [n.digest for n in program.nodes]
    assert print_program(again) == text


def test_text_is_as_documented() -> None:
    program = PROGRAMS["slices"]
    assert print_program(program) == (
        "program slices(x: f32[N, K]) where M = N - 2, J = 3 {\n"
        "  step[m: M, k: K]: f32 = sub(x[m + 2, k], x[m, k])\n"
        "  every[j: J]: f32 = mul(x[2*j, 0], x[-j + N - 1, K - 1])\n"
        "  diagonal[j: J]: f32 = abs(x[j, j])\n"
        "  return step[k, m], every[j], diagonal[1, j, 1]\n"
        "}\n"
    )


def test_long_headers_and_results_take_several_lines() -> None:
    inputs = ", ".join(f"argument_number_{n}: f32[N]" for n in range(8))
    lines = "\n".join(f"value_of_number_{n}[n: N]: f32 = neg(argument_number_{n}[n])" for n in range(8))
    results = ", ".join(f"value_of_number_{n}[n]" for n in range(8))
    program = parse_program(f"program long({inputs}) {{ {lines} return {results} }}")
    text = print_program(program)
    assert max(map(len, text.splitlines())) <= 60
    assert parse_program(text) == program


def test_a_literal_that_a_gather_reads_has_a_line() -> None:
    n = Index(Atom("N"), 0)
    x = input_node("x", [[n.dim]], "f32")
    three = const(3, "i64")
    node = map_node("add", [n], [x(var(Gather(three))), three], "f32")
    program = Program("p", (x,), (Output("y", node, ((0,),)),))
    text = print_program(program)
    assert "value1: i64 = 3" in text
    assert "add(x[value1[]], value1)" in text
    assert parse_program(text) == program


def test_names_that_are_invalid_or_used_twice_are_made_up() -> None:
    n = Index(Atom("N"), 0)
    x = input_node("x", [[n.dim]], "f32")
    a = map_node("exp", [n], [x(n)], "f32")
    b = map_node("neg", [n], [a(n)], "f32")
    c = map_node("abs", [n], [b(n)], "f32")
    names = {a: "same", b: "same", c: "not a word"}
    program = Program("p", (x,), (Output("y", c, ((0,),)),), names=names)
    text = print_program(program)
    assert "exp1[n: N]" in text
    assert "neg1[n: N]" in text
    assert "y[n: N]: f32 = abs(neg1[n])" in text


def test_index_names_repeat_and_do_not_clash() -> None:
    k, t = Atom("K"), Atom("T")
    dims = (k, k, Union((k, t)), Parts(t), Part(t), Atom("x"), Atom("in1"), Atom("H1"), Atom("H1"))
    names = index_names(dims, {"k2", "x"})
    assert names == ("k", "k3", "k_t", "pt", "t", "x2", "in1_2", "h1", "h1_2")


def test_a_dim_named_in_has_indices() -> None:
    """`in2` injects into a union, so a second index over `IN` is called otherwise."""
    names = index_names((Atom("IN"), Atom("IN"), Atom("in"), Atom("IN2")), {"x"})
    assert names == ("in", "in_2", "in_3", "in2_2")
    i, j = Index(Atom("IN"), 0), Index(Atom("IN"), 1)
    x = input_node("x", [[Atom("IN")], [Atom("IN")]], "f32")
    total = reduce_node("sum", [i], [j], x(var(i), var(j)), "f32")
    program = Program("p", (x,), (Output("out", total, ((0,),)),))
    assert parse_program(print_program(program)) == program


def test_literals_show_a_dtype_only_where_it_is_not_obvious() -> None:
    n = Index(Atom("N"), 0)
    x = input_node("x", [[n.dim]], "f32")
    small = map_node("lt", [n], [x(n), const(1e-6, "f32")], "bool")
    wide = map_node("lt", [n], [x(n), const(1e-6, "f64")], "bool")
    one = map_node("select", [n], [small(n), const(1.0, "f32"), const(1, "i64")], "f32")
    both = map_node("and", [n], [small(n), wide(n)], "bool")
    program = Program("p", (x,), (Output("a", one, ((0,),)), Output("b", both, ((0,),))))
    text = print_program(program)
    assert "lt(x[n], 1e-06)" in text
    assert "lt(x[n], 1e-06:f64)" in text
    assert "1.0, 1:i64)" in text
    assert parse_program(text) == program


@pytest.mark.parametrize("value", NUMBERS, ids=number_text)
def test_constants_keep_their_type(value: bool | int | float | Fraction) -> None:
    cursor = Cursor(number_text(value))
    assert number_key(parse_number(cursor)) == number_key(value)
    cursor.done()


@given(st.one_of(st.floats(), st.integers(), st.fractions(), st.booleans()))
@settings(deadline=None)
def test_any_constant_round_trips(value: bool | int | float | Fraction) -> None:
    again = parse_number(Cursor(number_text(value)))
    assert number_key(again) == number_key(value)


@given(st.text(min_size=1))
@settings(deadline=None)
def test_any_name_round_trips_in_backquotes(name: str) -> None:
    cursor = Cursor(f"{quote(name)} rest")
    assert cursor.name("a name") == name
    assert cursor.accept("rest")


def test_dims_round_trip() -> None:
    a, b = Atom("A"), Atom("b c")
    for dim in (
        a,
        b,
        Union((a, b)),
        Union((a,)),
        Union((Union((a, b)), Parts(Part(a), 2))),
        Parts(Union((a, b))),
    ):
        cursor = Cursor(dim_text(dim))
        assert parse_dim(cursor, lambda c=cursor: Atom(c.name("a dim"))) == dim
        cursor.done()


def test_sizes_keep_ints_and_expressions_apart() -> None:
    sizes = ((Atom("K"), 5), (Atom("M"), Extent(5)), (Atom("L"), Extent(-1, ((Atom("K"), 2),))))
    x = input_node("x", [[Atom("K")]], "f32")
    program = Program("p", (x,), (Output("x", x, ((0,),)),), sizes)
    text = print_program(program)
    assert "where K = 5, M = extent(5), L = 2*K - 1 {" in text
    assert parse_program(text) == program


def test_dims_that_no_input_has_are_declared() -> None:
    text = "program p(x: f32[N]) where T, M = N + T { at[n: N]: i64 = index(n + T) return at[n] }"
    program = parse_program(text)
    assert print_program(program).startswith("program p(x: f32[N]) where M = N + T, T {")
    assert parse_program(print_program(program)) == program


def test_unused_inputs_and_dead_statements() -> None:
    text = (
        "program p(x: f32[N], y: f32[N]) { dead[n: N]: f32 = exp(y[n]) z[n: N]: f32 = neg(x[n]) return z[n] }"
    )
    program = parse_program(text)
    assert [n.op.name for n in program.inputs] == ["x", "y"]  # pyright: ignore[reportAttributeAccessIssue]
    assert "exp" not in print_program(program)


def test_comments_and_newlines_mean_nothing() -> None:
    text = "program p(x: f32[N]) { # an example\n z[n:\nN]: f32 = neg(x[n]) return z[n] } # done"
    assert parse_program(text) == parse_program(text.replace("# an example", "").replace("# done", ""))


def test_accesses_read_terms_of_every_kind() -> None:
    text = """
    program p(x: f32[(A | B), T], ids: i64[N], w: i64[], scale: scalar f32) where S {
      a[n: N, b: B]: f32 = mul(x[in1(b), ids[n] + 2*n - T + 1], scale)
      c[n: N]: f32 = neg(a[0, ids[w[]]])
      d[n: N, pt: parts(T)]: f32 = max[t: part(T)](x[n + (A | B), join(pt, t + 1)])
      return a[n*b], c[n], d[pt, n]
    }"""
    program = parse_program(text)
    assert parse_program(print_program(program)) == program
    assert "ids[n] + 2*n" in print_program(program).replace("2*n + ids[n]", "ids[n] + 2*n")


@pytest.mark.parametrize(
    ("text", "message", "place"),
    [
        ("program p(x: f31[N]) { return x[n] }", "expected a dtype, found `f31`", "line 1, column 14"),
        (
            "program p(x: f32[N]) {\n  y[n: N]: f32 = nag(x[n])\n  return y[n]\n}",
            "found `nag`",
            "line 2, column 18",
        ),
        (
            "program p(x: f32[N]) {\n  y[n: M]: f32 = neg(x[n])\n  return y[n]\n}",
            "dim M is not declared",
            "line 2",
        ),
        (
            "program p(x: f32[N]) { y[n: N]: f32 = neg(x[m]) return y[n] }",
            "no index and no dim called m",
            "line 1",
        ),
        ("program p(x: f32[N]) { y[n: N]: f32 = neg(z[n]) return y[n] }", "z is not defined", "line 1"),
        (
            "program p(x: f32[N]) { y[n: N]: f32 = neg(x[n, n]) return y[n] }",
            "x has axes [N], and is read with 2",
            "",
        ),
        (
            "program p(x: f32[N]) { y[n: N]: f32 = add(x[n]) return y[n] }",
            "add takes 2 arguments, and is given 1",
            "",
        ),
        ("program p(x: f32[N]) { x[n: N]: f32 = neg(x[n]) return x[n] }", "x is defined twice", "column 24"),
        (
            "program p(x: f32[N]) { y[n: N, n: N]: f32 = neg(x[n]) return y[n] }",
            "index n is declared twice",
            "",
        ),
        (
            "program p(x: f32[N]) { y[n: N]: f32 = neg(x[n]) return y[k] }",
            "k is not an axis of the result",
            "",
        ),
        (
            "program p(x: f32[N]) { y[n: N]: f32 = neg(x[n]) return y }",
            "must list each axis of y once: n",
            "",
        ),
        ("program p(x: f32[N, 3]) { return x[n] }", "expected a dim or `1`, found `3`", "column 21"),
        ("program p(x: f32[N]) where N = M { return x[n] }", "dim M is not declared", "column 32"),
        ("program p(x: f32[N]) where N = 1, N = 2 { return x[n] }", "size of N is given twice", ""),
        (
            "program p(x: f32[N]) { y[n: N]: f32 = cat[n = a | b](x[a], x[b]) return y[n] }",
            "not an index over",
            "",
        ),
        ("program p(x: f32[N]) { return x[n] } more", "expected the end of the text, found `more`", ""),
        ("program p(x: f32[N]) { return x[n]", "`,` or `}`, found the end of the text", "line 1, column 35"),
        ("program p(x: f32[N]) { y: f32 = 1.5.2 return y }", "expected", ""),
        ("program p(x: f32[N]) { y[n: N]: f32 = 1.0 return y[n] }", "have no axes", ""),
        ("program p(x: f32[N]) { y: f32 = contract[n: N](x[n]) return y }", "two operands or more", ""),
        ("program p(x: f32[N]) { y: f32 = 1/0 return y }", "denominator must be positive", ""),
        ("program p(x: f32[N]) ? { }", "unexpected character '?'", "column 22"),
    ],
)
def test_errors_say_what_and_where(text: str, message: str, place: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse_program(text)
    assert message in str(caught.value)
    assert place in caught.value.where


def test_error_points_at_the_place_with_a_caret() -> None:
    with pytest.raises(ParseError) as caught:
        parse_program("program p(x: f32[N]) {\n\ty[n: N]: f32 = nge(x[n])\n  return y[n]\n}")
    assert str(caught.value) == (
        "expected an operation, found `nge`\n"
        "     2 | \ty[n: N]: f32 = nge(x[n])\n"
        "       | \t               ^\n"
        "  at line 2, column 17\n"
        "  hint: close: ne, ge, neg"
    )


def test_two_inputs_of_one_name_cannot_be_printed() -> None:
    one, two = input_node("x", [[Atom("N")]], "f32"), input_node("x", [[Atom("M")]], "f32")
    program = Program("p", (one, two), (Output("y", one, ((0,),)),))
    with pytest.raises(Bug, match="two inputs are named x"):
        print_program(program)


def test_a_deep_program_needs_no_recursion() -> None:
    n = Index(Atom("N"), 0)
    node = x = input_node("x", [[n.dim]], "f32")
    for _ in range(3000):
        node = map_node("neg", [n], [node(n)], "f32")
    program = Program("deep", (x,), (Output("y", node, ((0,),)),))
    assert parse_program(print_program(program)) == program


def test_nan_and_infinities_inside_programs() -> None:
    n = Index(Atom("N"), 0)
    x = input_node("x", [[n.dim]], "f32")
    args = [const(math.nan), const(-math.inf), const(-0.0)]
    nodes = [map_node("add", [n], [Access(x, (var(n),)), a], "f32") for a in args]
    total = reduce_node("max", [], [n], nodes[0](term((n, 2), offset=-1)), "f32")
    outputs = (*(Output(f"y{i}", node, ((0,),)) for i, node in enumerate(nodes)), Output("t", total, ()))
    program = Program("p", (x,), outputs)
    assert parse_program(print_program(program)) == program
