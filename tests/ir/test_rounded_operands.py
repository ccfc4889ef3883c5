"""No candidate rounds an input on its way into a product that the user's program multiplies as it is."""

from __future__ import annotations

import math

import pytest
import torch

import cleave
from cleave.algebra.search import search
from cleave.ir.parse import parse_program
from cleave.ir.precision import rounds_operands
from cleave.ir.program import Program
from cleave.knobs import scope
from cleave.pipeline import usable


def scored(dtype: str, scale: str, width: int = 24) -> Program:
    """Scores that are scaled behind their product, summed over keys."""
    head = f"program scored(q: {dtype}[S, D], k: {dtype}[T, D], v: {dtype}[T, V]) where D = {width}"
    return parse_program(f"""{head} {{
  dot[s: S, t: T]: {dtype} = contract[d: D](q[s, d], k[t, d])
  x[s: S, t: T]: {dtype} = mul(dot[s, t], {scale})
  m[s: S]: {dtype} = max[t: T](x[s, t])
  gap[s: S, t: T]: {dtype} = sub(x[s, t], m[s])
  e[s: S, t: T]: {dtype} = exp(gap[s, t])
  out[s: S, c: V]: {dtype} = contract[t: T](e[s, t], v[t, c])
  return out[s, c]
}}""")


def counts(program: Program, numerics: str = "stable") -> tuple[int, int]:
    """How many candidates the search finds, and how many of those round an operand and are usable."""
    with scope(numerics=numerics):
        found = search(program, reassociate=False, numerics=numerics).candidates
        allowed = usable(program, found)
    return (
        sum(rounds_operands(c, program) for c in found),
        sum(rounds_operands(c, program) for c in allowed),
    )


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_an_input_that_is_scaled_first_is_rounded(dtype: str) -> None:
    found, allowed = counts(scored(dtype, "0.3"))
    assert found > 0 and allowed == 0
    assert counts(scored(dtype, "0.3"), "fast")[1] > 0, "that asks for speed"


@pytest.mark.parametrize(
    ("first", "factor"), [("", "r[s]"), ("", "c[t]"), ("  h: f32 = div(1, size(D))\n", "h")]
)
def test_a_factor_of_rows_or_keys_or_a_size_is_rounded_as_a_number_is(first: str, factor: str) -> None:
    program = parse_program(f"""program weighed(
  q: f16[S, D],
  k: f16[T, D],
  v: f16[T, V],
  r: f16[S],
  c: f16[T],
) {{
{first}  dot[s: S, t: T]: f16 = contract[d: D](q[s, d], k[t, d])
  x[s: S, t: T]: f16 = mul(dot[s, t], {factor})
  y[s: S, t: T]: f16 = max(x[s, t], 0)
  out[s: S, e: V]: f16 = contract[t: T](y[s, t], v[t, e])
  return out[s, e]
}}""")
    found, allowed = counts(program)
    assert found > 0 and allowed == 0


@pytest.mark.parametrize(("dtype", "scale"), [("f32", "0.3"), ("f16", "0.125"), ("bf16", "-4")])
def test_float32_and_powers_of_two_are_exact(dtype: str, scale: str) -> None:
    assert counts(scored(dtype, scale))[0] == 0


def test_scores_that_cancel_keep_what_is_left() -> None:
    """A newcomer's: eager has 0.880, and an operand rounded before its product left nothing of it."""

    def weighted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.relu(q @ k.mT / math.sqrt(q.shape[-1]))
        return scores @ v / (scores.sum(-1, keepdim=True) + 1e-3)

    q, k, v = torch.zeros(37, 24), torch.zeros(37, 24), torch.ones(37, 24)
    q[:, :3] = torch.tensor([3, 3 + 2**-8, 1.0])
    k[:, :3] = torch.tensor([3 + 2**-8, -3, 2**-10])
    given = [t.half() for t in (q, k, v)]
    right = weighted(*(t.double() for t in given))
    found = cleave.compile(weighted, tuple(given))(*given)
    assert (found.double() - right).abs().max() < 2 * (weighted(*given).double() - right).abs().max() + 1e-3
