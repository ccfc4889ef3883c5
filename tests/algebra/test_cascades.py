"""Cascaded reductions: one loop for each, proved, or a reason why there is none.

The programs stand in `cascades`. Every Fold is proved from its own four programs (`prove_fold`), and from the
whole program written out over parts; `test_cascades_run` runs them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from algebra.cascades import APART, BEST, EVERY, JOINED, ONE_LOOP, QUICK, TWO_LOOPS, marked
from algebra_values import inputs_for
from cleave.algebra.equal import answer
from cleave.algebra.fold_proof import prove_fold
from cleave.algebra.folds import folds_of, refusals_of, split_program
from cleave.algebra.frame import stages
from cleave.algebra.joined import joined
from cleave.algebra.normal import normal_forms
from cleave.algebra.proof import prove
from cleave.algebra.search import search
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.dims import Atom, Dim, Part, Parts
from cleave.ir.ops import Access, Input
from cleave.ir.precision import assign
from cleave.ir.program import Program
from cleave.ir.reference import evaluate, evaluate_fold
from cleave.ir.text import parse_candidate, parse_program, print_candidate, print_program
from cleave.schedule.interpret import run
from cleave.schedule.machine import CPU
from cleave.schedule.select import best

SHAPES: dict[str, list[tuple[str, str, str]]] = {
    # name: dim, values, state, of the Fold with the most values
    "variance": [("K", "s ss", "sum sum2 sum3 sum4")],
    "five_in_one_pass": [("K", "s ss low high", "sum sum2 sum3 sum4 min max")],
    "covariance": [("K", "sx sy xy xx yy", "sum sum2 sum3 sum4 sum5 sum6 sum7 sum8")],
    "centred_norm_matmul": [("K", "s ss y", "sum sum2 sum3 sum4 sum5 sum6 sum7")],
    "entropy": [("K", "m l s", "max sum sum2")],
    "divergence": [("K", "m l m2 l2 y", "max sum max2 sum2 sum3 sum4")],
    "smoothed_loss": [("K", "m l s", "max sum sum2 sum3")],
    "largest_deviation": [("K", "s top ss high low", "sum max min count sum2 sum3")],
    "largest_share": [("K", "m l top least y", "max sum min sum2")],
    "over_two_dims": [("A", "m l y", "max sum sum2"), ("B", "m l y", "max sum sum2")],
    "over_two_dims_nested": [("A", "m y0 l", "max sum sum2"), ("B", "m y0 l", "max sum sum2")],
    "sink": [("(T | I)", "m l y", "max sum sum2")],
    "three_parts": [("(T | J | I)", "m l a b", "max sum sum2 sum3")],
    "past_and_new": [("(T | J)", "m l y", "max sum sum2")],
    "past_and_new_apart": [("(T | J)", "m yab l", "max sum sum2")],
    "moments_of_two": [("(T | J)", "s q", "sum sum2 sum3 sum4")],
    "sink_apart": [("T", "ma la y", "max sum sum2")],
    "windowed": [("T", "m l y", "max sum sum2")],
    "soft_nearest": [("K", "m l y", "min sum sum2")],
}
# ---------------------------------------------------------------- which Folds there are


def shape(program: Program) -> list[tuple[str, str, str]]:
    return [
        (str(f.over), " ".join(program.names.get(v.node, "?") for v in f.values), " ".join(f.state))
        for f in folds_of(program)
    ]


@pytest.mark.parametrize("name", SHAPES)
def test_the_values_of_a_cascade_share_a_fold(name: str) -> None:
    found = shape(BEST[name])
    assert [s for s in found if s in SHAPES[name]] == SHAPES[name], found


@pytest.mark.parametrize("name", BEST)
def test_one_loop_is_enough(name: str) -> None:
    own = BEST[name]
    assert refusals_of(own) == ()
    assert all(f.reason == "" for f in folds_of(own))


@pytest.mark.parametrize("name", TWO_LOOPS)
def test_what_no_loop_can_follow_says_why(name: str) -> None:
    refusals = refusals_of(TWO_LOOPS[name])
    words = APART[name][1]
    assert refusals and any(words in r.why for r in refusals), [str(r) for r in refusals]
    assert all(r.needs and r.value != "a value" for r in refusals)


def test_a_refusal_names_the_values() -> None:
    (found,) = refusals_of(TWO_LOOPS["rounded"])
    assert str(found) == "y0 over K needs m first: round of a running value cannot be rescaled"


def test_the_search_hands_on_refusals() -> None:
    assert [str(r) for r in search(TWO_LOOPS["mean_distance"]).refusals] == [
        "t over K needs s first: abs of a running value cannot be rescaled"
    ]
    assert search(ONE_LOOP["past_and_new_apart"]).refusals == ()


def test_masks_are_supports() -> None:
    for name in ("windowed", "sloped", "capped", "masked_to_zero", "masked_moments"):
        fold = max(folds_of(BEST[name]), key=lambda f: len(f.values))
        assert fold.support is not None, name
        assert fold.support_of in {e.name for e in fold.elements}


def test_candidates_with_these_folds_round_trip() -> None:
    for name in ("sink_apart", "sink", "largest_deviation"):
        candidate = Candidate(BEST[name], folds_of(BEST[name]))
        again = parse_candidate(print_candidate(candidate))
        assert print_candidate(again) == print_candidate(candidate)
        assert again.folds == candidate.folds


# ---------------------------------------------------------------- proofs


@pytest.mark.parametrize("name", marked())
def test_every_fold_is_proved_from_its_programs(name: str) -> None:
    if name == "masked_moments":
        pytest.skip("the larger of a sum and 1 as a divisor is beyond the normal form; its split is proved")
    own = EVERY[name]
    for fold in folds_of(own):
        proof = prove_fold(own, fold)
        assert proof.holds, (name, str(fold.over), proof.open)
        assert proof.obligations[0].answer == "yes"


UNPROVED = {
    "largest_share": "the normal form has no law for the minimum of an exponential",
    "largest_normed": "the normal form does not know that an inverse root is positive",
}


@pytest.mark.parametrize("name", marked((*QUICK, "masked_moments", "soft_nearest", "smoothed_loss")))
def test_every_fold_written_out_over_parts_is_the_program(name: str) -> None:
    own = EVERY[name]
    if name in UNPROVED:
        pytest.skip(UNPROVED[name])
    for fold in folds_of(own):
        written = split_program(own, fold)
        assert same_forms(own, written) or answer(own, written) == "yes", str(fold.over)


def spoiled(fold: Fold, which: str) -> Fold:
    """The Fold of a softmax with one thing wrong."""
    texts = {p: print_program(getattr(fold, p)) for p in ("init", "step", "merge", "finish")}
    if which == "merge forgets the second part":
        merge = fold.merge
        inputs = {n.op.name: n for n in merge.inputs if isinstance(n.op, Input)}
        outputs = tuple(replace(o, node=inputs[f"a_{o.name}"]) for o in merge.outputs)
        return replace(fold, merge=replace(merge, outputs=outputs, names={}))
    old, new, program = {
        "init begins with 0": ("-inf", "0.0", "init"),
        "step adds instead of rescaling": ("mul(sum[", "add(sum[", "step"),
        "merge takes the smaller maximum": ("max(a_max", "min(a_max", "merge"),
    }[which]
    assert old in texts[program], texts[program]
    return replace(
        fold, **{program: parse_program("program " + texts[program].replace(old, new).split(" ", 1)[1])}
    )


@pytest.mark.parametrize(
    "which",
    [
        "init begins with 0",
        "step adds instead of rescaling",
        "merge takes the smaller maximum",
        "merge forgets the second part",
    ],
)
def test_a_wrong_fold_is_not_proved(which: str) -> None:
    own = ONE_LOOP["temperature"]
    (fold,) = folds_of(own)
    assert prove_fold(own, fold).holds
    assert not prove_fold(own, spoiled(fold, which)).holds


def test_a_wrong_support_is_not_proved() -> None:
    own = ONE_LOOP["windowed"]
    fold = max(folds_of(own), key=lambda f: len(f.values))
    assert fold.support is not None
    where = {n: node for node, n in own.names.items()}
    assert fold.support.node is where["seen"] and prove_fold(own, fold).holds
    unrelated = parse_program("program p(q: bool[N, T]) {\n  return q[n, t]\n}").outputs[0].node
    bad = replace(fold, support=Access(unrelated, fold.support.terms))
    assert prove_fold(own, bad).open == ("support",)


# ---------------------------------------------------------------- splits of splits


def same_forms(one: Program, two: Program) -> bool:
    """Have the outputs the same normal forms?"""
    pairs = [(x.node, y.node) for x, y in zip(one.outputs, two.outputs, strict=True)]
    return all((forms := normal_forms([x, y]))[x] == forms[y] for x, y in pairs)


def test_a_part_is_split_again() -> None:
    own = ONE_LOOP["temperature"]
    once = split_program(own, folds_of(own)[0])
    inner = next(f for f in folds_of(once) if isinstance(f.over, Part))
    twice = split_program(once, inner)
    assert same_forms(own, twice)
    rng = np.random.default_rng(1)
    inputs = {"x": rng.normal(size=(3, 8)) * 50, "v": rng.normal(size=(8, 2)), "t": np.asarray(0.5)}
    expected, k = evaluate(own, inputs)["y"], Atom("K")
    for cut in ([1, 3], [0, 4, 0], [2, 1, 1]):
        got = evaluate(twice, inputs, partitions={k: [4, 4], Parts(Part(k)): cut})["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-12)


def test_merging_is_split_again() -> None:
    own = ONE_LOOP["temperature"]
    once = split_program(own, folds_of(own)[0])
    outer = next(f for f in folds_of(once) if isinstance(f.over, Parts))
    twice = split_program(once, outer)
    rng = np.random.default_rng(1)
    inputs = {"x": rng.normal(size=(3, 8)) * 50, "v": rng.normal(size=(8, 2)), "t": np.asarray(0.5)}
    expected, k = evaluate(own, inputs)["y"], Atom("K")
    for groups in ([2, 1], [0, 3, 0], [1, 1, 1]):
        got = evaluate(twice, inputs, partitions={k: [3, 0, 5], Parts(Parts(k)): groups})["y"]
        np.testing.assert_allclose(got, expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["over_two_dims", "over_two_dims_nested", "variance_over_two_dims"])
def test_two_dims_are_split_at_once(name: str) -> None:
    own = BEST[name]
    a, b = Atom("A"), Atom("B")
    once = split_program(own, next(f for f in folds_of(own) if f.over == a))
    (fold,) = [f for f in folds_of(once) if f.over == b]
    proof = prove_fold(once, fold)
    assert proof.holds, proof.open
    twice = split_program(once, fold)
    assert not [f for f in folds_of(twice) if f.over in (a, b)]
    assert prove(own, twice, steps=False).answer == "yes"
    rng = np.random.default_rng(2)
    inputs, sizes = inputs_for(own, rng, spread=30.0)
    parts: dict[Dim, list[int]] = {a: [1, 0, sizes[a] - 1], b: [sizes[b] - 1, 1]}
    expected, got = evaluate(own, inputs, sizes), evaluate(twice, inputs, sizes, partitions=parts)
    for key, value in expected.items():
        np.testing.assert_allclose(got[key], value, rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------- frames, joins and lifts


def test_no_fold_needs_its_own_values() -> None:
    own = parse_program("""
program crossed(x: f32[N, T], y: f32[N, J]) {
  a[n: N]: f32 = sum[t: T](x[n, t])
  b[n: N]: f32 = sum[j: J](y[n, j])
  c[n: N]: f32 = contract[t: T](x[n, t], b[n])
  d[n: N]: f32 = contract[j: J](y[n, j], a[n])
  return c[n], d[n]
}
""")
    loops = stages(own, lambda _site, _running: "")
    assert len(loops) == 3 and sum(len(loop.sites) for loop in loops) == 4
    ranked = best([assign(Candidate(own, folds_of(own)), own)], dict.fromkeys(own.dynamic, 9), CPU, 1)
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(9, 9)), "y": rng.normal(size=(9, 9))}
    expected = evaluate(own, inputs)
    for key, value in run(ranked[0].tiles, inputs).items():
        np.testing.assert_allclose(value, expected[key])


def test_a_value_from_outside_the_loop_is_read_by_merge() -> None:
    (fold,) = folds_of(ONE_LOOP["sink_apart"])
    names = {n.op.name for n in fold.merge.inputs if isinstance(n.op, Input)}
    outside = {e.name for e in fold.elements if ONE_LOOP["sink_apart"].inputs[1] is e.access.node}
    assert len(outside) == 1 and outside <= names


def test_only_what_makes_loops_fewer_is_joined() -> None:
    assert joined(ONE_LOOP["two_products"]) is None
    assert joined(ONE_LOOP["temperature"]) is None
    assert joined(ONE_LOOP["past_and_new"]) is None


@pytest.mark.parametrize("name", JOINED)
def test_joined_programs_are_equal_and_found(name: str) -> None:
    own = ONE_LOOP[name]
    whole = joined(own)
    assert whole is not None and prove(own, whole, points=0, steps=False).answer == "yes"
    assert parse_program(print_program(whole)).outputs == whole.outputs


@pytest.mark.parametrize("name", ["sink", "past_and_new_apart"])
def test_the_search_joins_and_splits_the_joined_loop(name: str) -> None:
    found = search(ONE_LOOP[name]).candidates
    forms = [c.form for c in found]
    assert any(f.endswith("joined") for f in forms)
    assert any("joined" in c.form and c.splits for c in found)
    assert all("reductions over A and over B" in c.derivation[0].law for c in found if c.form == "joined")


@pytest.mark.parametrize(
    ("factor", "loops"),
    [
        ("  f[n: N]: f32 = exp(s[n])", 1),
        ("  f[n: N]: f32 = mul(s[n], s[n])", 1),
        ("  f[n: N]: f32 = abs(s[n])", 1),
        ("  f[n: N]: f32 = neg(s[n])", 2),
        ("  f[n: N]: f32 = id(s[n])", 2),
    ],
)
def test_a_maximum_is_lifted_over_a_factor_that_is_never_negative(factor: str, loops: int) -> None:
    own = parse_program(f"""
program lifted(x: f32[N, K]) {{
  s[n: N]: f32 = sum[k: K](x[n, k])
{factor}
  z[n: N, k: K]: f32 = mul(x[n, k], f[n])
  m[n: N]: f32 = max[k: K](z[n, k])
  return m[n]
}}
""")
    folds = folds_of(own)
    assert len(folds) == loops
    if loops == 2:
        assert "unknown sign" in folds[1].reason


def test_a_negative_factor_turns_a_maximum_into_a_minimum() -> None:
    own = parse_program("""
program turned(x: f32[N, K]) {
  s[n: N]: f32 = sum[k: K](x[n, k])
  z[n: N, k: K]: f32 = sub(s[n], x[n, k])
  w[n: N, k: K]: f32 = mul(z[n, k], -2.0)
  m[n: N]: f32 = min[k: K](w[n, k])
  return m[n]
}
""")
    (fold,) = folds_of(own)
    assert fold.state == ("sum", "min")
    assert prove_fold(own, fold).holds
    x = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    got = evaluate_fold(Candidate(own, ()), fold, {"x": x}, [2, 0, 5], np.float32)
    expected = (-2 * (x.sum(1, keepdims=True) - x)).min(1)
    np.testing.assert_allclose(got["v1"], expected, rtol=1e-5, atol=1e-5)
