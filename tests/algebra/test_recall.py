"""Recall: each program of `tests/cases/algebra` has the forms among its candidates that its file asks for."""

from __future__ import annotations

import io
import json
import re
import time
import tokenize
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from benchmarks.algebra import judged, run_algebra, totals
from benchmarks.patterns import matches, parse
from benchmarks.wanted import FOLDER, Case, Form, load, states_of

from algebra_values import inputs_for
from cleave.algebra import exponents, extremes, unions
from cleave.algebra.equal import answer
from cleave.algebra.search import Found, search
from cleave.errors import Invalid
from cleave.ir.dims import size_of
from cleave.ir.ops import Scalar
from cleave.ir.program import Program
from cleave.ir.reference import evaluate
from cleave.ir.text import parse_program

NAMES = sorted(path.stem for path in FOLDER.glob("*.cleave"))
LONG = {
    "attention_qk_norm", "attention_rotary", "attention_sink_column", "latent", "latent_absorbed",
    "merge_of_attention", "rms_norm_gated", "scan_chunk", "sphere_attention",
}  # fmt: skip
"""Searches that take about a second or more."""
REWRITTEN = [
    "attention_by_log_sum_exp", "attention_naive", "concatenated", "concatenated_weights", "distances",
    "largest_magnitude", "largest_relu", "merge_many", "merge_two", "nearest", "relu_scaled",
    "sigmoid_linear", "silu_other", "two_way",
]  # fmt: skip
"""Programs that other laws than those of sum and product rewrite."""


def marked(names: list[str], long: set[str]) -> list[object]:
    return [pytest.param(n, marks=pytest.mark.slow) if n in long else n for n in names]


@cache
def case(name: str) -> Case:
    return load(FOLDER / f"{name}.cleave")


@cache
def found(name: str) -> tuple[Found, float]:
    started = time.process_time()
    result = search(case(name).program, numerics=case(name).numerics)
    return result, time.process_time() - started


# ---------------------------------------------------------------- what is found


@pytest.mark.parametrize("name", marked(NAMES, LONG))
def test_recall(name: str) -> None:
    result, seconds = found(name)
    lost = case(name).lost(result)
    assert not lost, "\n".join(form.missing(result.candidates) for form in lost)
    assert seconds < 10  # 5 on a quiet machine
    row = judged(case(name), result, seconds)
    assert row.found and row.built >= row.kept + sum(row.dropped.values())
    assert totals([row])[-1] == "1 of 1 found"


def test_the_suite_is_large_and_asks_for_something() -> None:
    assert len(NAMES) >= 60
    for name in NAMES:
        assert case(name).forms and case(name).about and case(name).program.name == name


def test_the_benchmark_prints_a_row_a_program_and_how_many_are_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_algebra(["softmax_first"], tmp_path / "rows.json") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "1 of 1 found" and any("softmax_first" in line and " yes " in line for line in lines)
    data = json.loads((tmp_path / "rows.json").read_text())
    (row,) = data["rows"]
    assert row["found"] and row["split"] and row["streaming"] and row["kept"] >= 2 and row["seconds"] > 0
    with pytest.raises(Invalid):
        run_algebra(["no such case"], None)


EVERY_ONE = {*NAMES} - {*REWRITTEN}


@pytest.mark.parametrize("name", marked(NAMES, EVERY_ONE))
def test_all_that_is_found_is_equal(name: str) -> None:
    program = case(name).program
    rng = np.random.default_rng(3)
    inputs, sizes = inputs_for(program, rng)
    for node in program.inputs:
        if isinstance(node.op, Scalar) and node.dtype == "i64":
            inputs[node.op.name] = np.asarray(2)
    expected = evaluate(program, inputs, sizes)
    for candidate in found(name)[0].candidates:
        forms = [(candidate.program, {})]
        if candidate.split_form is not None:
            total = size_of(candidate.splits[0], sizes)
            forms.append((candidate.split_form, {candidate.splits[0]: [0, 1, total - 1, 0]}))
        for form, parts in forms:
            got = evaluate(form, inputs, sizes, parts)
            for key, value in expected.items():
                fine = np.isclose(got[key], value, rtol=1e-6, atol=1e-8) | np.isnan(value)
                assert fine.all(), (name, candidate.form, key)


MODEL_WORDS = {
    "softmax", "attention", "lora", "mlp", "rms", "norm", "layernorm", "groupnorm", "logsumexp", "lse",
    "entropy", "rope", "rotary", "alibi", "causal", "latent", "swiglu", "silu", "sigmoid", "kmeans", "gated",
    "quantised", "variance", "flash", "relu", "clamp", "perplexity", "logits",
}  # fmt: skip


def test_no_name_of_a_model_operation_is_in_the_algebra() -> None:
    names = {n for n in NAMES if "_" in n}
    folder = Path(search.__code__.co_filename).parent
    for path in sorted(folder.glob("*.py")):
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            prose = token.type == tokenize.STRING and token.string.startswith('"""')
            if token.type not in (tokenize.NAME, tokenize.STRING) or prose:
                continue
            words = set(re.split(r"[^a-z]+", token.string.lower()))
            wrong = words & MODEL_WORDS or (token.string.strip("\"'") in names)
            assert not wrong, f"{path.name}:{token.start[0]}: {token.string}"


# ---------------------------------------------------------------- laws that make programs to read


def made(change: Callable[[Program], Program | None], text: str) -> tuple[Program, Program]:
    program = parse_program(text)
    new = change(program)
    assert new is not None and answer(program, new) == "yes"
    inputs, sizes = inputs_for(program, np.random.default_rng(2))
    for key, value in evaluate(program, inputs, sizes).items():
        assert np.allclose(evaluate(new, inputs, sizes)[key], value, rtol=1e-6, equal_nan=True)
    return program, new


def out(program: Program, pattern: str) -> bool:
    return matches(parse(pattern), program.outputs[0].node)


def test_a_union_is_taken_apart_down_to_its_pieces() -> None:
    text = """
    program cut(a: f32[N, A], b: f32[N, B], w: f32[(A | B), O]) {
      c[n: N, i: (A | B)]: f32 = cat[i = j | k](a[n, j], b[n, k])
      e[n: N, i: (A | B)]: f32 = exp(c[n, i])
      m[n: N]: f32 = max[i: (A | B)](c[n, i])
      y[n: N, o: O]: f32 = contract[i: (A | B)](e[n, i], w[i, o])
      z[n: N, o: O]: f32 = mul(y[n, o], m[n])
      return z[n, o]
    }
    """
    _, new = made(unions.apart, text)
    assert out(new, "max(max[A](a), max[B](b)) * _")
    assert out(new, "_ * (sum[A](exp(a) * w) + sum[B](exp(b) * w))")


def test_maxima_turn_into_minima_where_a_function_falls() -> None:
    text = """
    program turned(x: f32[N, K], c: f32[N], s: f32[N]) {
      y[n: N, k: K]: f32 = mul(x[n, k], -2.0)
      p[n: N]: f32 = exp(s[n])
      q[n: N, k: K]: f32 = mul(y[n, k], p[n])
      z[n: N, k: K]: f32 = sub(c[n], q[n, k])
      m[n: N]: f32 = min[k: K](z[n, k])
      return m[n]
    }
    """
    _, new = made(extremes.lifted, text)
    assert out(new, "c - min[K](x) * exp(s)") or out(new, "c + min[K](x) * exp(s)")


def test_a_factor_of_unknown_sign_stays_inside_a_maximum() -> None:
    text = """
    program stays(x: f32[N, K], s: f32[N]) {
      y[n: N, k: K]: f32 = mul(x[n, k], s[n])
      m[n: N]: f32 = max[k: K](y[n, k])
      return m[n]
    }
    """
    assert extremes.lifted(parse_program(text)) is None


def test_logs_leave_exponents_and_exponentials_leave_quotients() -> None:
    text = """
    program leaves(a: f32[N], b: f32[N]) {
      q[n: N]: f32 = mul(b[n], b[n])
      r[n: N]: f32 = add(q[n], 1.0)
      l[n: N]: f32 = log(r[n])
      d[n: N]: f32 = sub(a[n], l[n])
      e[n: N]: f32 = exp(d[n])
      return e[n]
    }
    """
    _, new = made(exponents.without_logs, text)
    assert out(new, "exp(a) / (b * b + 1)")
    text = """
    program leaves(a: f32[N], b: f32[N]) {
      x[n: N]: f32 = exp(a[n])
      y[n: N]: f32 = exp(b[n])
      s[n: N]: f32 = add(x[n], y[n])
      e[n: N]: f32 = div(x[n], s[n])
      return e[n]
    }
    """
    _, new = made(exponents.without_quotients, text)
    assert out(new, "1 / (1 + exp(b - a))")


# ---------------------------------------------------------------- the matcher

PLAIN = """
program plain(e: f32[S, T], v: f32[T, E], x: f32[S]) {
  l[s: S]: f32 = sum[t: T](e[s, t])
  p[s: S, t: T]: f32 = div(e[s, t], l[s])
  o[s: S, i: E]: f32 = contract[t: T](p[s, t], v[t, i])
  return o[s, i]
}
"""


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [
        ("sum[T](_ * v)", True),
        ("sum[T](e * v / sum[T](e))", True),
        ("sum[T](v / sum[T](_) * e)", True),
        ("_", True),
        ("sum[T](_)", True),
        ("sum[T](_ * v) / sum[T](_)", False),
        ("sum[S](_ * v)", False),
        ("sum[T](v)", False),
        ("sum[T](e * e / sum[T](e))", False),
        ("max[T](_)", False),
        ("sum[T]({e} * v)", False),
        ("sum[T](_ * v) + _", False),
        ("exp(_)", False),
    ],
)
def test_patterns(pattern: str, answer: bool) -> None:
    assert matches(parse(pattern), parse_program(PLAIN).outputs[0].node) is answer


def test_patterns_of_sums_of_terms() -> None:
    text = "program t(x: f32[N], y: f32[N]) {{\n  z[n: N]: f32 = {}\n  return z[n]\n}}"
    minus = parse_program(text.format("sub(x[n], y[n])")).outputs[0].node
    assert matches(parse("x - y"), minus) and matches(parse("-y + x"), minus)
    assert not matches(parse("y - x"), minus) and not matches(parse("x + y"), minus)
    assert not matches(parse("x"), minus) and not matches(parse("1 + x - y"), minus)
    more = parse_program(text.format("add(x[n], 1.0)")).outputs[0].node
    assert matches(parse("x"), more) and matches(parse("x + 1"), more) and not matches(parse("x + y"), more)


@pytest.mark.parametrize("text", ["sum[T](", "a +", "a b", "", "sum[T] a", "a * $"])
def test_what_is_no_pattern(text: str) -> None:
    with pytest.raises(Invalid):
        parse(text)


def test_properties_tell_candidates_apart() -> None:
    """Each form of a program with several is missed by one of the candidates, the user's own or another."""
    for name in ("softmax_matmul", "chain", "two_weights", "lora", "bilinear"):
        candidates = found(name)[0].candidates
        for form in case(name).forms:
            alone = [Form(form.name, form.lines, form.properties).found([c]) for c in candidates]
            assert True in alone and False in alone, (name, form.name)


def test_states_are_read_off_folds() -> None:
    fold = next(f for c in found("softmax_matmul")[0].candidates for f in c.folds if len(f.values) == 3)
    assert sorted(states_of(fold)) == ["max[N]", "sum[N, E]", "sum[N]"]
