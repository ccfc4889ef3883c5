"""What the search finds in programs as the front end captures them: the suite's subgraphs, from PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.suites import PAPER

from algebra_values import computed
from cleave.algebra.search import Found, search
from cleave.frontend.capture import capture
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.dims import Dim, size_of
from cleave.ir.ops import Contract, Map, Reduce
from cleave.ir.program import Program
from cleave.ir.reference import evaluate, evaluate_fold, infer_sizes
from cleave.ir.text import parse_program, print_candidate

CASES = {case.name: case for case in PAPER}
SIZES = {"H": 4, "KV": 2, "S": 5, "T": 7, "D": 6, "E": 3, "C": 8, "R": 2, "K": 6, "N": 10}
SOFTMAX = sorted(name for name in CASES if name.startswith(("mha", "gqa", "mqa", "mla", "causal")))


@cache
def captured(name: str) -> Program:
    case = CASES[name]
    dynamic = {n: tuple(d if d in case.dynamic else None for d in dims) for n, dims in case.inputs.items()}
    return capture(case.function, case.make(SIZES, torch.float32, "cpu", 0), {}, dynamic=dynamic).program


@cache
def found(name: str) -> Found:
    return search(captured(name))


def forms(name: str) -> list[str]:
    return [c.form for c in found(name).candidates]


def streams(candidate: Candidate, over: str) -> list[Fold]:
    return [f for f in candidate.folds if str(f.over) == over]


def exponentials(program: Program, over: str) -> int:
    return sum(
        isinstance(n.op, Map) and n.op.fn == "exp" and any(str(d) == over for d in n.dims)
        for n in program.nodes
    )


# ---------------------------------------------------------------- recall


@pytest.mark.parametrize("name", sorted(CASES))
def test_the_search_takes_seconds(name: str) -> None:
    start = time.process_time()
    result = search(captured(name))
    assert time.process_time() - start < 5
    assert len(result.candidates) >= 2
    assert any(c.splits for c in result.candidates)


def test_a_matmul_as_it_is_and_split() -> None:
    assert forms("matmul")[0] == "as written"
    assert any(form.startswith("split") for form in forms("matmul"))
    split = next(c for c in found("matmul").candidates if c.splits)
    assert split.split_form is not None
    assert [type(n.op) for n in split.split_form.nodes if n.bound] == [Contract, Reduce]


def test_a_norm_before_a_matmul_scales_first_and_last_in_one_loop() -> None:
    plain = [c for c in found("rmsnorm+matmul").candidates if not c.splits]
    assert {type(c.program.outputs[0].node.op) for c in plain} == {Contract, Map}
    last = next(c for c in plain if c.form == "scaled last")
    assert [len(f.values) for f in last.folds] == [2]


@pytest.mark.parametrize("name", SOFTMAX)
def test_a_softmax_before_a_matmul_is_divided_last_in_one_loop_and_split(name: str) -> None:
    last = next(c for c in found(name).candidates if c.form == "divided last")
    assert [sorted(f.state) for f in streams(last, "T")] == [["max", "sum", "sum2"]]
    assert exponentials(last.program, "T") == 1
    assert any(c.form == "divided last, split T" for c in found(name).candidates)


@pytest.mark.parametrize("name", ["matmul+matmul", "matmul+rowsum"])
def test_chains_of_matmuls_are_reassociated_and_say_so(name: str) -> None:
    marked = [c for c in found(name).candidates if c.reassociated]
    assert marked
    kept = search(captured(name), reassociate=False).candidates
    assert not any(c.reassociated for c in kept)
    assert len(kept) == len(found(name).candidates) - len(marked)


def test_other_names_give_the_same_candidates() -> None:
    case = CASES["causal-gqa-lse"]
    dims = {n: tuple(d if d in case.dynamic else None for d in ds) for n, ds in case.inputs.items()}

    def other(aa: torch.Tensor, bb: torch.Tensor, cc: torch.Tensor) -> object:
        return case.function(aa, bb, cc)

    names: list[str] = ["aa", "bb", "cc"]
    renamed = dict(zip(names, dims.values(), strict=True))
    inputs = case.make(SIZES, torch.float32, "cpu", 0)
    result = search(capture(other, inputs, {}, dynamic=renamed).program)
    assert result.counts == found("causal-gqa-lse").counts
    for one, two in zip(result.candidates, found("causal-gqa-lse").candidates, strict=True):
        assert (one.form, dict(one.cost)["depth"]) == (two.form, dict(two.cost)["depth"])
        assert [f.state for f in one.folds] == [f.state for f in two.folds]


def spelled() -> str:
    """All candidates of all cases as text."""
    texts = [str(found(name).counts) for name in CASES]
    return "\n".join([*texts, *(print_candidate(c) for name in CASES for c in found(name).candidates)])


def test_the_text_of_all_candidates_does_not_depend_on_hashing() -> None:
    root = Path(__file__).parents[2]
    path = os.pathsep.join(str(root / part) for part in (".", "tests", "src"))
    env = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": path}
    code = "from algebra.test_captured import spelled; print(spelled())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert len(done.stdout) > 10_000
    assert done.stdout == spelled() + "\n"


# ---------------------------------------------------------------- the log-sum-exp shares its loop


def test_a_logarithm_of_the_sum_shares_the_loop_of_the_softmax() -> None:
    own, *others = found("causal-gqa-lse").candidates
    assert exponentials(own.program, "T") == 2
    for candidate in others:
        if candidate.form.startswith("split"):
            continue
        assert [len(f.state) for f in streams(candidate, "T")] == [3], candidate.form
        assert exponentials(candidate.program, "T") == 1
        first = candidate.derivation[0]
        gone = [line.partition("[")[0] for line in first.before.splitlines()]
        assert gone == ["sub2", "exp1", "sum1", "div2"] and first.place == "div2", first
        assert first.after.splitlines()[-1].partition(" = ")[2].startswith("div(exp2[")
    once = next(c for c in others if c.form == "computed once")
    assert _operations(once) < _operations(own)


def _operations(candidate: Candidate) -> int:
    text = dict(candidate.cost)["operations"]
    return sum(
        int(part.split("*")[0]) if part.split("*")[0].isdigit() else 1
        for part in text.split(" + ")
        if part.endswith("K0*N*S*T")
    )


def close(got: np.ndarray, expected: np.ndarray) -> bool:
    """The same, NaN and inf too; where eager has NaN anything goes."""
    return bool((np.isclose(got, expected, rtol=1e-5, atol=1e-6) | np.isnan(expected)).all())


@pytest.mark.parametrize("rows, keys", [(5, 3), (1, 4), (4, 4)])
def test_rows_that_see_nothing_are_as_in_eager(rows: int, keys: int) -> None:
    case = CASES["causal-gqa-lse"]
    tensors = case.make({**SIZES, "S": rows, "T": keys}, torch.float64, "cpu", 1)
    inputs = {n: t.numpy() for n, t in zip(case.inputs, tensors, strict=True)}
    expected = [t.numpy() for t in case.function(*tensors)]
    assert np.isneginf(expected[1]).any() == (rows > keys)
    for candidate in found("causal-gqa-lse").candidates:
        sizes = infer_sizes(candidate.program, {n: a.shape for n, a in inputs.items()})
        with np.errstate(all="ignore"):
            results = [evaluate(candidate.program, inputs, sizes)]
            for parts in ([keys], [0, 1, keys - 1, 0], [1] * keys) if candidate.splits else []:
                assert candidate.split_form is not None
                results.append(evaluate(candidate.split_form, inputs, sizes, {candidate.splits[0]: parts}))
            folded = check_folds(candidate, inputs, sizes)
        assert all(close(g, e) for r in results for g, e in zip(r.values(), expected, strict=True))
        assert folded


def check_folds(candidate: Candidate, inputs: dict[str, np.ndarray], sizes: dict[Dim, int]) -> bool:
    """The values of the Fold over the keys, in parts of which some see nothing."""
    fold = next(f for f in candidate.folds if str(f.over) == "T")
    truth = computed(candidate.program, inputs, [v.node for v in fold.values], sizes)
    total = size_of(fold.over, sizes)
    for parts in ([total], [0, 1, total - 1, 0], [1] * total):
        got = evaluate_fold(candidate, fold, inputs, parts, sizes=sizes)
        if not all(close(got[v.name], truth[v.node]) for v in fold.values):
            return False
    return True


# ---------------------------------------------------------------- when sharing would be wrong

TWO_SUMS = """
program two_sums(x: f32[N, K], p: bool[N, K], r: bool[N, K], v: f32[K, O]) {
  s[n: N, k: K]: f32 = select(p[n, k], x[n, k], -inf)
  MAX
  d[n: N, k: K]: f32 = sub(s[n, k], m[n])
  e[n: N, k: K]: f32 = exp(d[n, k])
  l[n: N]: f32 = sum[k: K](e[n, k])
  y[n: N, o: O]: f32 = contract[k: K](e[n, k], v[k, o])
  z[n: N, o: O]: f32 = div(y[n, o], l[n])
  GUARD
  dd[n: N, k: K]: f32 = sub(s[n, k], g[n])
  ee[n: N, k: K]: f32 = exp(dd[n, k])
  ll[n: N]: f32 = sum[k: K](ee[n, k])
  lg[n: N]: f32 = log(ll[n])
  lse[n: N]: f32 = add(lg[n], g[n])
  return z[n, o], lse[n]
}
"""
ITS_MAX = "m[n: N]: f32 = max[k: K](s[n, k])"
OTHER_MAX = """t[n: N, k: K]: f32 = select(r[n, k], x[n, k], -inf)
  m[n: N]: f32 = max[k: K](t[n, k])"""
UNSEEN = """i[n: N]: bool = eq(m[n], -inf)
  g[n: N]: f32 = select(i[n], 0.0, m[n])"""
NONE_HOLDS = """i[n: N]: bool = any[k: K](p[n, k])
  g[n: N]: f32 = select(i[n], m[n], 0.0)"""
BELOW_ZERO = """i[n: N]: bool = lt(m[n], 0.0)
  g[n: N]: f32 = select(i[n], 0.0, m[n])"""
OF_THE_FIRST = """g[n: N]: f32 = select(p[n, 0], m[n], 0.0)"""
OTHER_HOLDS = """i[n: N]: bool = any[k: K](r[n, k])
  g[n: N]: f32 = select(i[n], m[n], 0.0)"""


def two_sums(top: str, guard: str) -> Program:
    return parse_program(TWO_SUMS.replace("MAX", top).replace("GUARD", guard))


def shares(program: Program) -> bool:
    result = search(program, split=False)
    counts = [exponentials(c.program, "K") for c in result.candidates]
    assert counts[0] == 2
    return 1 in counts


@pytest.mark.parametrize("top, guard", [(ITS_MAX, UNSEEN), (ITS_MAX, NONE_HOLDS)])
def test_guards_that_the_mask_implies_are_shared(top: str, guard: str) -> None:
    assert shares(two_sums(top, guard))


@pytest.mark.parametrize(
    "top, guard",
    [
        (ITS_MAX, BELOW_ZERO),
        (ITS_MAX, OF_THE_FIRST),
        (ITS_MAX, OTHER_HOLDS),
        (OTHER_MAX, OTHER_HOLDS),
        (OTHER_MAX, UNSEEN),
    ],
)
def test_guards_that_the_mask_does_not_imply_are_not_shared(top: str, guard: str) -> None:
    assert not shares(two_sums(top, guard))
