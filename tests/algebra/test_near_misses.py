"""Pairs that are nearly equal, and must never be proved so. The second opinion tells most of them apart.

Each side condition of a law keeps some near miss out, and each law is needed for some proof.
"""

from __future__ import annotations

import pytest

from algebra.near_forms import FORMS, SQUARE, X
from algebra.near_rows import ROWS
from algebra.pairs import program, refuted
from algebra.test_proof import PAIRS
from cleave.algebra import laws
from cleave.algebra.proof import prove

MISSES = {**FORMS, **ROWS}

# The second opinion cannot tell these apart by a finite value: they differ where one is not defined.
UNDEFINED = ("log of a product as a sum of logs", "log of a square", "maxima of parts without a guard")


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_are_not_proved(name: str) -> None:
    inputs, one, two = MISSES[name]
    a, b = program(inputs, one), program(inputs, two)
    assert refuted(a, b), "the pair is no near miss"
    proof = prove(a, b)
    assert proof.answer != "yes"
    if name not in UNDEFINED:
        assert proof.answer == "no"
        assert proof.counterexample


def test_there_are_many() -> None:
    assert len(MISSES) >= 60


@pytest.mark.parametrize("name", MISSES)
def test_near_misses_are_not_proved_backwards(name: str) -> None:
    inputs, one, two = MISSES[name]
    assert name in UNDEFINED or not prove(program(inputs, two), program(inputs, one), steps=False).holds


def test_sizes_that_only_the_second_program_needs_equal() -> None:
    a = program("x[N, K], y[M, K]", "z[n: N, m: M, k: K] = mul(x[n, k], y[m, k])\n-> z[n, m, k]")
    b = program("x[N, K], y[N, K]", "z[n: N, m: N, k: K] = mul(x[n, k], y[m, k])\n-> z[n, m, k]")
    assert prove(b, a).answer == "yes"
    proof = prove(a, b)
    assert (proof.answer, proof.conditions) == ("yes-if", ("|N| = |M|",))


def test_an_input_that_only_one_program_has() -> None:
    a = program("x[N]", "y[n: N] = mul(x[n], 1.0)\n-> y[n]")
    b = program("x[N], z[N]", "y[n: N] = mul(x[n], z[n])\n-> y[n]")
    assert prove(a, b).answer == "unknown"


def test_outputs_of_another_shape() -> None:
    a = program(X, "y[n: N, k: K] = mul(x[n, k], 2.0)\n-> y[n, k]")
    b = program(X, "y[n: N, k: K] = mul(x[n, k], 2.0)\n-> y[n*k]")
    assert prove(a, b).answer == "unknown"
    square = program(SQUARE, "y[i: N, j: N] = mul(a[i, j], 2.0)\n-> y[i, j]")
    turned = program(SQUARE, "y[i: N, j: N] = mul(a[i, j], 2.0)\n-> y[j, i]")
    assert prove(square, turned).answer == "no"


# Each side condition keeps some false proof out.
GUARDED: dict[str, tuple[str, str, str]] = {
    "positive-base": MISSES["root of a square"],
    "positive-scale": MISSES["maximum with a factor of unknown sign at each row"],
    "free-factor": (
        "x[N, K]", "y[n: N] = sum[k: K](x[n, k])\n-> y[n]", "y[n: N] = mul(x[n, 0], 1.0)\n-> y[n]"
    ),
    "only-joined": (
        "x[N, K], w[parts(K)]",
        """
        z[p: parts(K), n: N] = sum[k: part(K)](x[n, join(p, k)])
        y[n: N] = contract[p: parts(K)](z[p, n], w[p])
        -> y[n]
        """,
        "z[n: N] = sum[k: K](x[n, k])\ny[n: N] = mul(z[n], w[0])\n-> y[n]",
    ),
    "nonempty": (
        X,
        "y[n: N] = exp(x[n, 0])\n-> y[n]",
        """
        m[p: parts(K), n: N] = max[k: part(K)](x[n, 0])
        e[p: parts(K), n: N] = exp(m[p, n])
        t[n: N] = sum[p: parts(K)](e[p, n])
        y[n: N] = div(t[n], size(parts(K)))
        -> y[n]
        """,
    ),
    "in-range": (
        "x[N, V], t: i64[N]",
        """
        v[v: V] = index(v)
        h[n: N, v: V] = eq(v[v], t[n])
        z[n: N, v: V] = select(h[n, v], 1.0, 0.0)
        p[n: N] = sum[v: V](z[n, v])
        -> p[n]
        """,
        "a[n: N] = mul(x[n, 0], 0.0)\np[n: N] = add(a[n], 1.0)\n-> p[n]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("condition", GUARDED)
def test_without_a_side_condition_a_near_miss_is_proved(condition: str) -> None:
    inputs, one, two = GUARDED[condition]
    a, b = program(inputs, one), program(inputs, two)
    assert not prove(a, b, steps=False).holds
    with laws.without(condition):
        assert prove(a, b, steps=False).holds


def test_every_side_condition_is_guarded() -> None:
    assert set(GUARDED) == set(laws.CONDITIONS)


# Each law is needed for some proof.
NEEDED = {
    "case": "masked, split with guarded maxima of parts",
    "absent": "masked by products",
    "exp-log": "through the log of the sum",
    "content": "sigmoids summed",
    "magnitude": "root of a square",
    "implied": "masked, split with guarded maxima of parts",
    "excluded": "masks that exclude each other",
    "sum-open": "three products in another order",
    "sum-part": "safe and unsafe",
    "sum-size": "variance in one pass",
    "sum-union": "adapters by concatenation",
    "sum-split": "split of a product",
    "one-hot": "one-hot loss",
    "max-flat": "largest magnitude by parts",
    "max-part": "largest of a shifted row",
    "max-union": "largest of a union",
    "max-split": "largest magnitude by parts",
    "max-exp": "largest of exponentials",
    "max-scale": "largest of a scaled row",
    "max-pair": "roots of squares summed",
    "cross": "a difference of squares over a sum",
    "either-sign": "softplus",
    "given": "one-hot loss",
}


@pytest.mark.parametrize("law", NEEDED)
def test_without_a_law_a_proof_is_lost(law: str) -> None:
    inputs, one, two = PAIRS[NEEDED[law]]
    a, b = program(inputs, one), program(inputs, two)
    assert prove(a, b, steps=False).holds
    with laws.without(law):
        assert not prove(a, b, steps=False, points=0).holds


def test_every_law_is_needed() -> None:
    assert {*NEEDED, "same"} == set(laws.LAWS)  # that equal forms are equal is what a proof ends with
