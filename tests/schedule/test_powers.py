"""Exponentials in base 2: the same values in fewer operations, and no change to a tensor's own numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tile_examples as te
from cleave.schedule.interpret import run
from cleave.schedule.parse import parse_tiles
from cleave.schedule.powers import in_base_two
from cleave.schedule.text import print_tiles
from cleave.schedule.tiles import Compute, Loop, Statement, TileProgram
from cleave.schedule.verify import verify

SCORES = """tiles scores(x: f32[S, D], y: f32[T, D]) -> (out: f32[S]) where D = 11 {
  kernel main(x, y, out) grid(s: S by 16) whole(d: D by 16) warps 4 stages 2 {
    c: f32 = fill 0.0
    zero[s]: f32 = fill 0.0
    low[s]: f32 = fill -inf
    carry sum[s]: f32 = zero
    carry top[s]: f32 = low
    x[s, d]: f32 = load x[s, d]
    k: f32 = fill FACTOR
    lowest: f32 = fill -inf
    for t: T by 16 from 0 to T {
      y[t, d]: f32 = load y[t, d]
      dot[s, t]: f32 = contract[d](x, y)
      score[s, t]: f32 = OPERATION(dot, k)
      here[s]: f32 = reduce max[t](score)
      top2[s]: f32 = max(top, here)
      none[s]: bool = eq(top2, lowest)
      shift[s]: f32 = select(none, c, top2)
      gap[s]: f32 = sub(top, shift)
      fade[s]: f32 = exp(gap)
      rest[s, t]: f32 = sub(score, shift)
      e[s, t]: f32 = exp(rest)
      own[s]: f32 = reduce sum[t](e)
      faded[s]: f32 = mul(sum, fade)
      sum2[s]: f32 = add(faded, own)
      update sum = sum2, top = top2
    }
    store out[s] = sum
  }
}
"""


def changed(tiles: TileProgram) -> TileProgram:
    return replace(tiles, kernels=tuple(map(in_base_two, tiles.kernels)))


def computed(body: tuple[Statement, ...]) -> list[tuple[str, tuple[str, ...]]]:
    """The pointwise operations and what they read."""
    found: list[tuple[str, tuple[str, ...]]] = []
    for statement in body:
        if isinstance(statement, Loop):
            found += computed(statement.body)
        elif isinstance(statement, Compute):
            found.append((statement.fn, statement.args))
    return found


@pytest.mark.parametrize("operation, factor", [("mul", "0.125"), ("div", "8.0"), ("mul", "-0.5")])
def test_the_same_values(operation: str, factor: str) -> None:
    tiles = parse_tiles(SCORES.replace("OPERATION", operation).replace("FACTOR", factor))
    new = changed(tiles)
    verify(new)
    assert parse_tiles(print_tiles(new)) == new
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(37, 11)) * 8, "y": rng.normal(size=(45, 11))}
    before, after = (run(t, inputs)["out"] for t in (tiles, new))
    np.testing.assert_allclose(after, before, rtol=1e-12)
    found = computed(new.kernels[0].body)
    assert {"exp2", "fma"} <= {fn for fn, _ in found}
    # A positive factor leaves the maximum, and nothing scales every score any more.
    assert (("mul", ("dot", "k")) in found or ("div", ("dot", "k")) in found) == (float(factor) < 0)


def test_a_factor_of_zero_is_left_alone() -> None:
    tiles = parse_tiles(SCORES.replace("OPERATION", "mul").replace("FACTOR", "0.0"))
    assert changed(tiles) == tiles


def test_numbers_out_of_a_tensor_stay_as_they_are() -> None:
    """The lowest float times log2 e is infinite: only sums of products are rewritten."""
    for example in (te.softmax_keep(), te.softmax_loops()):
        assert changed(example.tiles) == example.tiles


def test_a_function_within_one_is_as_good_as_a_product() -> None:
    """Nothing of it is too large for `log2 e`; an exponential or a logarithm may be."""
    text = SCORES.replace("FACTOR", "50.0").replace("OPERATION(dot, k)", "mul(bent, k)")
    for function, steps in (("tanh", 1), ("tanh_coarse", 1), ("sin", 1), ("exp", 0), ("log", 0)):
        bent = f"      bent[s, t]: f32 = {function}(dot)\n      score"
        tiles = parse_tiles(text.replace("      score", bent, 1))
        found = [fn for fn, _ in computed(changed(tiles).kernels[0].body)]
        assert found.count("fma") == found.count("exp2") == steps, function
        verify(changed(tiles))
    tiles = parse_tiles(text.replace("      score", "      bent[s, t]: f32 = tanh(dot)\n      score", 1))
    random = np.random.default_rng(0)
    inputs = {"x": random.standard_normal((5, 11)), "y": random.standard_normal((37, 11))}
    right = run(tiles, inputs, dtype=np.float64)["out"]
    assert np.allclose(run(changed(tiles), inputs, dtype=np.float64)["out"], right, rtol=1e-12)


BENT = SCORES.replace("      score", "      bent[s, t]: f32 = FUNCTION(dot)\n      score", 1)
BENT = BENT.replace("OPERATION(dot, k)", "OPERATION(bent, k)")


@pytest.mark.parametrize("function", ["tanh", "tanh_coarse", "erf", "sin", "cos"])
@pytest.mark.parametrize(
    "operation, factor, steps",
    [
        ("mul", 50.0, 1),
        ("div", 0.02, 1),
        ("mul", 1.3e8, 1),
        ("mul", 1e9, 0),
        ("mul", 3e38, 0),
        ("mul", -1e20, 0),
        ("div", 3e-39, 0),
    ],
)
def test_a_function_within_one_times_a_huge_factor_is_left_alone(
    function: str, operation: str, factor: float, steps: int
) -> None:
    """`log2 e` times the factor, or times the maximum, is infinite or rounded by more than an exponent bears:
    `exp(c - c)` is 1."""
    text = BENT.replace("FUNCTION", function).replace("OPERATION", operation)
    before = parse_tiles(text.replace("FACTOR", f"{factor}"))
    after = changed(before)
    assert [fn for fn, _ in computed(after.kernels[0].body)].count("exp2") == steps
    # Each row sees one number, all its differences are 0 and their exponentials 1.
    given = {"x": np.full((5, 11), 0.7), "y": np.ones((37, 11))}
    for tiles in (before, after):
        with np.errstate(over="ignore", under="ignore"):
            found = run(tiles, given, dtype=np.float32)["out"]
        if steps and abs(factor) > 100:  # even to rounding of the scores, which are that large themselves
            assert np.isfinite(found).all() and (found > 0).all()
        else:
            np.testing.assert_allclose(found, 37.0, rtol=1e-4)


def test_factors_of_factors_and_sums_are_looked_through() -> None:
    plain = BENT.replace("FUNCTION", "tanh").replace("FACTOR", "1e5")
    twice = plain.replace("OPERATION(bent, k)", "mul(half, k)")
    twice = twice.replace("      score", "      half[s, t]: f32 = mul(bent, k)\n      score", 1)
    summed = twice.replace("mul(half, k)", "add(half, dot)")
    for text, steps in ((twice, 0), (summed, 1), (summed.replace("1e5", "3e38"), 0)):
        found = [fn for fn, _ in computed(changed(parse_tiles(text)).kernels[0].body)]
        assert found.count("exp2") == steps, text


def test_a_factor_known_to_the_call_alone_keeps_contractions_only() -> None:
    """It may be near the largest float where the function is within 1."""
    own = "    k0: f32 = fill 4.0\n    k: f32 = sqrt(k0)\n"
    for text, steps in ((SCORES, 1), (BENT.replace("FUNCTION", "tanh"), 0)):
        text = text.replace("    k: f32 = fill FACTOR\n", own).replace("OPERATION", "mul")
        found = [fn for fn, _ in computed(changed(parse_tiles(text)).kernels[0].body)]
        assert found.count("exp2") == steps


@pytest.mark.parametrize("absent, steps", [("-1e9", 1), ("-1e30", 0), ("-3.4e38", 0)])
def test_rows_masked_with_a_finite_number(absent: str, steps: int) -> None:
    """A row that is masked as a whole is even, and finite, however large the mask's number is."""
    text = SCORES.replace("OPERATION(dot, k)", "select(high, dot, away)").replace("FACTOR", "1e6")
    hidden = f"      high[s, t]: bool = gt(dot, k)\n      away: f32 = fill {absent}\n      score"
    before = parse_tiles(text.replace("      score", hidden, 1))
    after = changed(before)
    verify(after)
    assert [fn for fn, _ in computed(after.kernels[0].body)].count("exp2") == steps
    generator = np.random.default_rng(5)
    given = {"x": generator.normal(size=(5, 11)), "y": generator.normal(size=(37, 11))}
    found = run(after, given, dtype=np.float32)["out"]
    assert np.isfinite(found).all() and (found > 0).all()


def test_masked_scores_and_rows_that_see_nothing() -> None:
    example = te.attention()
    new = changed(example.tiles)
    verify(new)
    rng = np.random.default_rng(1)
    for sizes in example.sizes:
        inputs = example.make_inputs(sizes, rng)
        want = run(example.tiles, inputs)
        for name, value in run(new, inputs).items():
            np.testing.assert_allclose(value, want[name], rtol=1e-9, atol=1e-12)


def test_a_factor_goes_behind_a_choice_with_an_infinite_number() -> None:
    """Masked scores are raised with one multiply-add each as well, and are the same to the bit before."""
    text = SCORES.replace("OPERATION", "div").replace("FACTOR", "11.5")
    old = "      here[s]: f32 = reduce max[t](score)\n"
    new = """      high[s, t]: bool = gt(dot, k)
      seen[s, t]: f32 = select(high, lowest, score)
      here[s]: f32 = reduce max[t](seen)
"""
    text = text.replace(old, new).replace("sub(score, shift)", "sub(seen, shift)")
    before = parse_tiles(text)
    after = changed(before)
    verify(after)
    works = [fn for fn, _ in computed(after.kernels[0].body)]
    assert works.count("div") == 1 and "fma" in works, "the quotient is left at the maximum alone"
    generator = np.random.default_rng(3)
    given = {"x": generator.normal(size=(20, 11)) * 4, "y": generator.normal(size=(37, 11))}
    one, two = (run(tp, given, dtype=np.float64)["out"] for tp in (before, after))
    assert np.allclose(one, two, rtol=1e-12)
    for absent in ("3.0", "inf"):
        other = text.replace("lowest: f32 = fill -inf", f"lowest: f32 = fill {absent}")
        kept = changed(parse_tiles(other))
        assert verify(kept) is None
