"""Normal forms of nodes: the laws one by one, and the value of every form against the second opinion."""

from __future__ import annotations

import time

import pytest

from algebra.form_values import wrong_form
from algebra.pairs import program
from algebra.random_programs import Drawn
from cleave.algebra.forms import Apply, Element, Held, Poly, factors_in
from cleave.algebra.normal import form_of, normal_forms
from programs import PROGRAMS

X = "x[N, K]"


def output(inputs: str, body: str, where: str = "") -> str:
    """The text of the last output's form."""
    found = program(inputs, body, where)
    return str(normal_forms(found)[found.outputs[-1].node])


@pytest.mark.parametrize("block", range(12))
def test_forms_of_random_programs_have_the_value_of_the_program(block: int) -> None:
    for seed in range(25 * block, 25 * block + 25):
        drawn = Drawn(f"normal {seed}").program(9)
        assert not wrong_form(drawn, seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(40))
def test_forms_of_many_random_programs(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        drawn = Drawn(f"many {seed}").program(7 + seed % 6)
        assert not wrong_form(drawn, seed)


@pytest.mark.parametrize("name", ["softmax", "masked_attention", "rms_linear", "past_keys", "rotate_half",
                                  "split_softmax", "token_shift", "moments", "cross_entropy"])  # fmt: skip
def test_forms_of_examples_have_the_value_of_the_program(name: str) -> None:
    assert not wrong_form(PROGRAMS[name], 1, points=1)


def test_factors_leave_and_sums_open() -> None:
    body = "a[n: N, k: K] = mul(x[n, k], y[n])\nz[n: N] = sum[k: K](a[n, k])\n-> z[n]"
    assert output("x[N, K], y[N]", body) == "sum_k'(x[n0, k'])*y[n0]"
    body = "a[n: N] = sum[k: K](x[n, k])\nz = sum[n: N](a[n])\n-> z"
    assert output(X, body) == "sum_k',n'(x[n', k'])"
    body = "a[n: N] = mul(x[n], x[n])\nb[n: N, m: N] = mul(a[n], x[m])\nz = sum[n: N, m: N](b[n, m])\n-> z"
    assert output("x[N]", body) == "sum_n'(x[n'])*sum_n'(x[n']^2)"


def test_sizes() -> None:
    assert (
        output("y[N], w[M]", "z[n: N] = sum[k: N, u: (N | M)](y[n])\n-> z[n]")
        == "y[n0]*|M|*|N| + y[n0]*|N|^2"
    )


def test_parts_make_up_the_whole() -> None:
    body = """
    a[p: parts(K), n: N] = sum[k: part(K)](x[n, join(p, k)])
    c[p: parts(K)] = sum[k: part(K)](1.0)
    b[n: N] = sum[p: parts(K)](a[p, n])
    d = sum[p: parts(K)](c[p])
    z[n: N] = div(b[n], d)
    -> z[n]
    """
    assert output(X, body) == "sum_k'(x[n0, k'])*|K|^(-1)"


def test_gathers_through_computed_nodes() -> None:
    body = "i![n: N]".replace("![n: N]", "[n: N]!") + " = add(t[n], 1)\nz[n: N] = add(x[i[n]], 0.0)\n-> z[n]"
    assert output("x[V], t: i64[N]", body) == "x[t[n0] + 1]"


def test_leaves_are_not_looked_into() -> None:
    found = PROGRAMS["softmax"]
    by_name = {name: node for node, name in found.names.items()}
    forms = normal_forms(found, frozenset({by_name["e"]}))
    last = forms[found.outputs[0].node]
    nodes = {f.node for f in factors_in(last) if isinstance(f, Element)}
    assert nodes == {by_name["e"]}
    assert form_of(by_name["e"].read(), forms) == forms[by_name["e"]]


def test_casts() -> None:
    same = "a[n: N] = add(x[n], 0.0)\n-> a[n]"
    found = program("x[N]", same)
    assert str(normal_forms(found)[found.outputs[0].node]) == "x[n0]"
    rounded = "a[n: N]! = cast(x[n])\nb[n: N] = cast(a[n])\n-> b[n]"
    assert output("x[N]", rounded) == "cast i64(x[n0])"
    truth = "a[n: N] = gt(x[n], 0.0)\nb[n: N] = cast(a[n])\nc[n: N] = mul(b[n], b[n])\n-> c[n]"
    assert output("x[N]", truth) == "[x[n0] > 0]"


def test_a_large_product_is_held() -> None:
    names = [f"x{k}" for k in range(20)]
    lines = ["s0[n: N] = add(x0[n], x1[n])"]
    lines += [f"s{k - 1}[n: N] = add(s{k - 2}[n], x{k}[n])" for k in range(2, 20)]
    lines += ["p[n: N] = mul(s18[n], s17[n])", "q[n: N] = mul(p[n], s16[n])", "-> q[n]"]
    inputs = ", ".join(f"{name}[N]" for name in names)
    found = program(inputs, "\n".join(lines))
    form = normal_forms(found)[found.outputs[0].node]
    assert len(form.terms) <= 256
    assert any(isinstance(f, Held) for f in factors_in(form))
    again = normal_forms(program(inputs, "\n".join(lines)))[found.outputs[0].node]
    assert form == again


def test_uninterpreted_functions_keep_their_arguments() -> None:
    found = program("x[N]", "a[n: N] = mul(x[n], 2.0)\nb[n: N] = tanh(a[n])\n-> b[n]")
    form = normal_forms(found)[found.outputs[0].node]
    assert isinstance(form, Poly) and isinstance(form.factor, Apply)


def test_forms_do_not_depend_on_earlier_work() -> None:
    first = [str(normal_forms(PROGRAMS[name])[o.node]) for name in PROGRAMS for o in PROGRAMS[name].outputs]
    for seed in range(5):
        normal_forms(Drawn(seed).program(8))
    again = [str(normal_forms(PROGRAMS[name])[o.node]) for name in PROGRAMS for o in PROGRAMS[name].outputs]
    assert first == again


def test_speed() -> None:
    nodes = sum(len(p.nodes) for p in PROGRAMS.values())
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        for found in PROGRAMS.values():
            normal_forms(found)
        best = min(best, time.process_time() - start)
    assert best / nodes < 0.002
