"""The second opinion against the reference, and its points."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest

from algebra.pairs import program, refuted
from cleave.algebra import opinion
from cleave.algebra.opinion import Meaning, Point, compare, look, points
from cleave.errors import Unsupported
from cleave.ir.dims import Parts, size_of
from cleave.ir.ops import Input, Scalar
from cleave.ir.program import Program
from cleave.ir.reference import evaluate
from programs import PROGRAMS


def arrays(program: Program, point: Point) -> tuple[dict[str, np.ndarray], Meaning]:
    """The input values of a point as arrays in the caller's layout."""
    meaning = Meaning(program, point)
    found: dict[str, np.ndarray] = {}
    for node in program.inputs:
        assert isinstance(node.op, Input | Scalar)
        shape = tuple(point.extent(i.dim) for i in node.axes)
        kind = np.bool_ if node.dtype == "bool" else np.int64 if node.dtype[0] in "iu" else np.float64
        array = np.zeros(shape, kind)
        for where in np.ndindex(*shape):
            array[where] = kind(float(meaning.node(node, where)))
        if isinstance(node.op, Input):
            groups = [int(np.prod([point.extent(d) for d in g], dtype=int)) for g in node.op.layout]
            array = array.reshape(groups)
        found[node.op.name] = array if isinstance(node.op, Input) else array[()]
    return found, meaning


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "slices"])
def test_agrees_with_the_reference(name: str) -> None:
    found = PROGRAMS[name]
    for point in points(found, count=2, seed=3):
        inputs, meaning = arrays(found, point)
        cuts = {dim.of: parts for dim, parts in point.partitions.items() if isinstance(dim, Parts)}
        expected = evaluate(found, inputs, dict(point.sizes), cuts)
        for result in found.outputs:
            order = [n for g in result.layout for n in g]
            shape = tuple(size_of(result.node.axes[n].dim, point.sizes) for n in order)
            got = np.array([float(meaning.at(result, w)) for w in np.ndindex(*shape)]).reshape(shape)
            want = expected[result.name].reshape(shape).astype(float)
            known = ~np.isnan(got)  # the reference reads the nearest element where a term leaves its axis
            assert known.any() and np.allclose(got[known], want[known], rtol=1e-9, atol=1e-12)


def test_points_are_repeatable_and_differ() -> None:
    found = PROGRAMS["split_softmax"]
    one, two = list(points(found, count=6)), list(points(found, count=6))
    assert one == two and len({p.describe() for p in one}) > 2
    assert any(0 in parts for p in points(found, count=20) for parts in p.partitions.values())
    assert all(sum(parts) == p.extent(dim.of) for p in one for dim, parts in p.partitions.items())  # type: ignore[union-attr]


def test_finds_a_difference_and_describes_it() -> None:
    a = program("x[N]", "y[n: N] = mul(x[n], x[n])\n-> y[n]")
    b = program("x[N]", "y[n: N] = add(x[n], x[n])\n-> y[n]")
    text = refuted(a, b)
    assert "|N| = " in text and "against" in text and "x[" in text
    assert not refuted(a, a)


def test_tiny_differences_are_seen_and_rounding_is_not() -> None:
    a = program("x[N]", "e[n: N] = exp(x[n])\ny[n: N] = log(e[n])\n-> y[n]")
    same = program("x[N]", "y[n: N] = add(x[n], 0.0)\n-> y[n]")
    near = program("x[N]", "y[n: N] = add(x[n], 1e-18)\n-> y[n]")
    assert not refuted(a, same)
    assert refuted(same, near)


def test_where_only_the_second_is_undefined() -> None:
    a = program("x[N]", "y[n: N] = abs(x[n])\n-> y[n]")
    b = program("x[N]", "r[n: N] = sqrt(x[n])\ny[n: N] = mul(r[n], r[n])\n-> y[n]")
    found = [d for p in points(a, b) if (d := compare(a, b, p)) is not None]
    assert found and not any(d.defined for d in found)


def test_sizes_follow_the_program() -> None:
    for point in points(PROGRAMS["slices"], count=5):
        assert (
            point.extent(PROGRAMS["slices"].sizes[0][0])
            == point.extent(PROGRAMS["slices"].inputs[0].axes[0].dim) - 2
        )
    assert opinion.DIGITS >= 30


def test_what_rounding_leaves_of_an_integer_is_one() -> None:
    rounded = "r[n: N] = reciprocal(x[n])\nz[n: N] = mul(x[n], r[n])\ny[n: N] = {}(z[n])\n-> y[n]"
    for fn in ("floor", "ceil", "trunc"):
        a = program("x[N]", rounded.format(fn))
        assert not refuted(a, program("x[N]", "y[n: N] = div(x[n], x[n])\n-> y[n]"))


def test_what_needs_hundreds_of_digits_is_computed_with_them() -> None:
    """log(1 + exp(-c)) is about exp(-c), not 0."""
    text = "n[i: N] = neg(x[i])\nm[i: N] = sub(n[i], {}.0)\ne[i: N] = exp(m[i])\nf[i: N] = exp(e[i])\n"
    for less, computed in ((700, True), (7000, False)):  # the latter would need thousands
        a = program("x[N]", text.format(less) + "l[i: N] = log(f[i])\ny[i: N] = log(l[i])\n-> y[i]")
        b = program("x[N]", text.format(less) + "y[i: N] = id(m[i])\n-> y[i]")
        seen = [look(a, b, point) for point in points(a, b, count=6)]
        assert not any(found.difference for found in seen)
        assert all((found.seen > 0) == computed for found in seen)


@pytest.mark.parametrize("sum_of", ["add(e[i], c)", "sub(e[i], c)"])
def test_what_is_nothing_beside_another_number_is_left_out(sum_of: str) -> None:
    back = "sub(s[i], c)" if sum_of.startswith("add") else "add(s[i], c)"
    text = f"m[i: N] = sub(x[i], 70000.0)\ne[i: N] = exp(m[i])\ns[i: N] = {sum_of}\nd[i: N] = {back}\n"
    a = program("x[N], c: scalar f32", text + "y[i: N] = log(d[i])\n-> y[i]")
    b = program("x[N], c: scalar f32", text + "y[i: N] = id(m[i])\n-> y[i]")
    seen = [look(a, b, point) for point in points(a, b, count=8)]
    assert not any(found.difference for found in seen) and sum(found.skipped for found in seen)


def test_a_piece_may_be_read_at_the_place_in_the_whole() -> None:
    a = program("x[A, B], u[(A | B)]", "y[i: (A | B)] = cat[i = p | q](u[p], u[i])\n-> y[i]")
    b = program("x[A, B], u[(A | B)]", "y[i: (A | B)] = mul(u[i], 1.0)\n-> y[i]")
    assert not refuted(a, b)


@pytest.mark.timeout(30)
@pytest.mark.parametrize("fn", ["exp", "sin", "cos", "tanh", "erf"])
def test_numbers_out_of_reach_are_left_out_and_counted(fn: str) -> None:
    tower = "".join(f"e{n + 1}[n: N] = exp(e{n}[n])\n" for n in range(1, 5))
    text = "e1[n: N] = exp(x[n])\n" + tower + f"y[n: N] = {fn}(e5[n])\nz[n: N] = {{}}\n-> z[n]"
    a, b = (program("x[N]", text.format(last)) for last in ("mul(y[n], 0.0)", "add(x[n], 1.0)"))
    seen = [look(a, b, point) for point in points(a, b, count=6)]
    assert sum(found.skipped for found in seen) > 0
    assert all(found.seen + found.skipped for found in seen)


def test_numbers_that_differ_in_a_late_digit_are_told_apart() -> None:
    with mpmath.workdps(60):
        one, other = mpmath.mpf(1), 1 + mpmath.mpf(10) ** -30
        texts = opinion.told_apart(one, other)
    assert texts[0] != texts[1]
    assert opinion.told_apart(mpmath.mpf(1), mpmath.mpf(2)) == ("1.0", "2.0")


TWICE = """
y[p: parts(A), i: part(A)] = id(x[join(p, i)])
z[p: parts(A), q: parts(A)] = sum[i: part(A)]({})
w = sum[p: parts(A), q: parts(A)](z[p, q])
-> w
"""


@pytest.mark.parametrize("read", ["y[q, i]", "x[join(q, i)]"])
def test_a_node_may_have_the_same_parts_twice(read: str) -> None:
    """What stands beside an index says in which part it runs, as what it is joined with does."""
    a = program("x[A]", TWICE.format(read))
    whole = "s = sum[a: A](x[a])\nw = mul(s, size(parts(A)))\n-> w"
    assert not refuted(a, program("x[A]", whole), count=8)
    for point in points(a, count=6):
        cuts = {dim.of: parts for dim, parts in point.partitions.items() if isinstance(dim, Parts)}
        expected = evaluate(a, arrays(a, point)[0], dict(point.sizes), cuts)
        assert np.isclose(float(Meaning(a, point).at(a.outputs[0], ())), expected["w"], rtol=1e-9)


def test_where_nothing_tells_the_part_it_is_said() -> None:
    a = program("x[A]", TWICE.format("1.0"))
    with pytest.raises(Unsupported, match="nothing tells in which of the parts it runs"):
        refuted(a, a)


def test_ties_are_seen() -> None:
    """Two values that differ by rounding alone are level; some points have entries that are."""
    text = "p[n: N, m: N] = {}({}, x[m])\nz[n: N, m: N] = select(p[n, m], x[n], 7.0)\n-> z[n, m]"
    long = "e[n: N] = exp(x[n])\nl[n: N] = log(e[n])\n"
    for fn in ("lt", "le", "gt", "ge", "eq", "ne"):
        a = program("x[N]", text.format(fn, "x[n]"))
        assert not refuted(a, program("x[N]", long + text.format(fn, "l[n]")))
    text = "p[n: N] = {}(x[n], y[n])\nz[n: N] = select(p[n], x[n], 7.0)\n-> z[n]"
    lower, upper = (program("x[N], y[N]", text.format(fn)) for fn in ("lt", "le"))
    assert refuted(lower, upper)


def test_zeros_are_among_the_values() -> None:
    a = program("x[N]", "y[n: N] = mul(x[n], 1.0)\n-> y[n]")
    b = program("x[N]", "p[n: N] = eq(x[n], 0.0)\ny[n: N] = select(p[n], 1.0, x[n])\n-> y[n]")
    found = refuted(a, b)
    assert "is 0.0 against 1.0" in found
