"""The search: what it finds, that all of it is equal to the user's program, and that names do not matter."""

from __future__ import annotations

import random
import re
import string
from functools import cache

import numpy as np
import pytest

from algebra_programs import EVERY, MORE, NINE
from algebra_values import computed, inputs_for
from cleave.algebra.search import Found, search
from cleave.ir.candidate import Candidate
from cleave.ir.dims import Atom, Dim, size_of
from cleave.ir.ops import Contract, Map, Node, Reduce
from cleave.ir.program import Program
from cleave.ir.reference import evaluate, evaluate_fold
from cleave.ir.text import parse_program, print_program

ALL = {**EVERY, **NINE}


@cache
def found(name: str) -> Found:
    return search(ALL[name])


def forms(name: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(c.form, tuple(map(str, c.splits))) for c in found(name).candidates]


def node_of(candidate: Candidate, output: int = 0) -> Node:
    return candidate.program.outputs[output].node


def fold_values(candidate: Candidate, over: str) -> list[int]:
    return [len(f.values) for f in candidate.folds if str(f.over) == over]


# ---------------------------------------------------------------- what is found


def test_split_k_matmul_lists_plain_and_split() -> None:
    assert forms("matmul") == [("as written", ()), ("split K", ("K",))]
    split = found("matmul").candidates[1]
    assert split.split_form is not None
    kinds = [type(n.op) for n in split.split_form.nodes if n.bound]
    assert kinds == [Contract, Reduce]


def test_norm_before_a_product_lists_scale_first_and_scale_last() -> None:
    by_root = {type(node_of(c).op) for c in found("rms_linear").candidates if not c.splits}
    assert by_root == {Contract, Map}  # the product is the last operation, or the scale is
    backwards = {type(node_of(c).op) for c in found("scaled_last").candidates if not c.splits}
    assert backwards == {Contract, Map}


@pytest.mark.parametrize("name", ["grouped", "multi_head", "multi_query", "latent"])
def test_a_softmax_before_a_product_is_divided_last_in_one_fold(name: str) -> None:
    result = found(name)
    last = [c for c in result.candidates if c.form == "divided last"]
    assert len(last) == 1
    root = node_of(last[0])
    assert isinstance(root.op, Map) and root.op.fn == "div"
    assert isinstance(root.op.args[0].node.op, Contract)
    assert fold_values(last[0], "T") == [3]
    split = [c for c in result.candidates if c.form == "divided last, split T"]
    assert len(split) == 1 and split[0].splits == (Atom("T"),) and split[0].split_form is not None
    assert split[0].program == last[0].program


def test_missing_maxima_are_put_in() -> None:
    for name in ("unshifted", "unshifted_masked"):
        shifted = [c for c in found(name).candidates if c.form == "shifted"]
        assert len(shifted) == 1, name
        assert fold_values(shifted[0], "T") == [3], name
        nodes = shifted[0].program.nodes
        assert [n.op.kind for n in nodes if isinstance(n.op, Reduce)].count("max") == 1, name
        # The logarithm of the sum comes out as a maximum plus a logarithm.
        lse = shifted[0].program.outputs[1].node
        assert isinstance(lse.op, Map) and lse.op.fn == "add", name


def test_reassociations_are_marked_and_can_be_switched_off() -> None:
    for name in ("matmul_matmul", "matmul_rowsum", "linear_attention", "lora"):
        marked = [c for c in found(name).candidates if c.reassociated]
        assert marked, name
        without = search(EVERY[name], reassociate=False).candidates
        assert not any(c.reassociated for c in without), name
        assert len(without) == len(found(name).candidates) - len(marked), name


def test_a_shared_factor_is_taken_out_and_put_back() -> None:
    assert any(c.form == "common factor out" for c in found("two_weights").candidates)
    assert any(c.form == "common factor out" for c in found("lora").candidates)
    merged = found("lora_merged").candidates
    assert any(c.form == "distributed" and c.reassociated for c in merged)


def test_values_that_are_outputs_too_are_still_opened() -> None:
    assert ("divided last", ()) in forms("weights_out")


def test_split_false_and_strict() -> None:
    assert not any(c.splits for c in search(EVERY["attention"], split=False).candidates)
    strict = search(EVERY["attention"], numerics="strict").candidates
    assert [c.form for c in strict] == ["as written"]


@pytest.mark.parametrize("name", sorted(EVERY))
def test_the_users_program_comes_first_and_counts_add_up(name: str) -> None:
    result = found(name)
    assert result.candidates[0].program == EVERY[name]
    assert result.candidates[0].form == "as written"
    assert result.counts["kept"] == len(result.candidates) <= 24
    dropped = sum(n for reason, n in result.counts.items() if reason.startswith("dropped"))
    assert dropped + result.counts["kept"] <= result.counts["built"]
    programs = [(c.program.outputs, c.splits) for c in result.candidates]
    assert len(set(programs)) == len(programs)


@pytest.mark.parametrize("name", sorted(EVERY))
def test_derivations_name_a_law_for_each_step(name: str) -> None:
    for candidate in found(name).candidates[1:]:
        assert candidate.derivation
        for step in candidate.derivation:
            assert step.law and step.before and step.after and step.before != step.after, step


# ---------------------------------------------------------------- all of it is equal


@pytest.mark.parametrize("name", sorted({*NINE, *MORE, "masked_attention", "layer_norm"}))
def test_candidates_equal_the_users_program(name: str) -> None:
    user = ALL[name]
    rng = np.random.default_rng(11)
    for _ in range(2):
        inputs, sizes = inputs_for(user, rng)
        expected = evaluate(user, inputs, sizes)
        for candidate in found(name).candidates:
            got = evaluate(candidate.program, inputs, sizes)
            close(got, expected, f"{name}: {candidate.form}")
            if candidate.split_form is not None:
                check_split(candidate, inputs, sizes, expected, rng)


def check_split(
    candidate: Candidate,
    inputs: dict[str, np.ndarray],
    sizes: dict[Dim, int],
    expected: dict[str, np.ndarray],
    rng: np.random.Generator,
) -> None:
    assert candidate.split_form is not None
    total = size_of(candidate.splits[0], sizes)
    first = int(rng.integers(0, total + 1))
    for parts in ([total], [0, first, total - first, 0], [1] * total):
        got = evaluate(candidate.split_form, inputs, sizes, {candidate.splits[0]: parts})
        close(got, expected, f"{candidate.form} in parts {parts}")


def close(got: dict[str, np.ndarray], expected: dict[str, np.ndarray], what: str) -> None:
    for key, value in expected.items():
        # Where the user's program gives NaN (a row that sees nothing) a candidate may give anything.
        fine = np.isclose(got[key], value, rtol=1e-6, atol=1e-9) | np.isnan(value)
        assert fine.all(), f"{what}, {key}: {got[key]} != {value}"


@pytest.mark.parametrize("name", sorted(NINE))
def test_folds_of_candidates_compute_their_values(name: str) -> None:
    user = NINE[name]
    rng = np.random.default_rng(5)
    inputs, sizes = inputs_for(user, rng, spread=30.0)
    for candidate in found(name).candidates:
        if candidate.splits:
            continue
        for fold in candidate.folds:
            truth = computed(candidate.program, inputs, [v.node for v in fold.values], sizes)
            total = size_of(fold.over, sizes)
            got = evaluate_fold(candidate, fold, inputs, [0, 1, total - 1, 0], sizes=sizes)
            for value in fold.values:
                expected = truth[value.node]
                ok = np.isclose(got[value.name], expected, rtol=1e-6, atol=1e-9) | np.isnan(expected)
                assert ok.all(), (name, candidate.form)


# ---------------------------------------------------------------- names do not matter


def renamed(user: Program, rng: random.Random) -> tuple[Program, dict[str, str]]:
    """The program with every name random, and the way back."""
    text = print_program(user)
    words = {n.op.name for n in user.inputs if hasattr(n.op, "name")} | {str(d) for d in user.dims}
    words |= {user.name, *user.names.values()}
    back: dict[str, str] = {}
    for word in sorted(words):
        upper = word[0].isupper()
        new = "".join(rng.choice(string.ascii_lowercase) for _ in range(9))
        back["X" + new.upper() if upper else "x" + new] = word
    forth = {old: new for new, old in back.items()}
    pattern = re.compile(r"\b(" + "|".join(map(re.escape, sorted(forth, key=len, reverse=True))) + r")\b")
    return parse_program(pattern.sub(lambda m: forth[m[1]], text)), back


@pytest.mark.parametrize("name", [*sorted(NINE), "lora", "unshifted", "layer_norm_linear"])
def test_random_names_give_identical_candidates(name: str) -> None:
    user = ALL[name]
    other, back = renamed(user, random.Random(name))
    pattern = re.compile(r"\b(" + "|".join(back) + r")\b")

    def original(text: str) -> str:
        return pattern.sub(lambda m: back[m[1]], text)

    one, two = found(name), search(other)
    assert one.counts == two.counts
    for a, b in zip(one.candidates, two.candidates, strict=True):
        assert a.form == original(b.form)
        assert [str(s) for s in a.splits] == [original(str(s)) for s in b.splits]
        assert a.conditions == b.conditions or len(a.conditions) == len(b.conditions)
        restored = parse_program(original(print_program(b.program)))
        assert [o.node for o in restored.outputs] == [o.node for o in a.program.outputs]
        assert [(f.state, len(f.elements)) for f in a.folds] == [(f.state, len(f.elements)) for f in b.folds]


def test_the_same_input_gives_the_same_text() -> None:
    from cleave.ir.text import print_candidate

    one, two = search(EVERY["attention"]), search(EVERY["attention"])
    assert [print_candidate(c) for c in one.candidates] == [print_candidate(c) for c in two.candidates]
