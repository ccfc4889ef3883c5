"""The precision pass: float32 in between, the user's dtype for operands of products, casts as nodes."""

from __future__ import annotations

from cleave.ir.candidate import Candidate
from cleave.ir.ops import Contract, Map
from cleave.ir.precision import assign, is_matrix_product
from cleave.ir.program import Program
from cleave.ir.text import parse_program

ATTENTION = """
program attention(q: bf16[S, D], k: bf16[T, D], v: bf16[T, E]) {
  s0[s: S, t: T]: bf16 = contract[d: D](q[s, d], k[t, d])
  s1[s: S, t: T]: f32 = cast(s0[s, t])
  m[s: S]: f32 = max[t: T](s1[s, t])
  e[s: S, t: T]: f32 = exp(s1[s, t])
  l[s: S]: f32 = sum[t: T](e[s, t])
  p[s: S, t: T]: f32 = div(e[s, t], l[s])
  p1[s: S, t: T]: bf16 = cast(p[s, t])
  o[s: S, e2: E]: bf16 = contract[t: T](p1[s, t], v[t, e2])
  return o[s, e2], m[s]
}
"""


def assigned(text: str) -> Program:
    user = parse_program(text)
    return assign(Candidate(user, ()), user).program


def products(program: Program) -> list[tuple[str, tuple[str, ...]]]:
    return [
        (n.dtype, tuple(a.node.dtype for a in n.args)) for n in program.nodes if isinstance(n.op, Contract)
    ]


def test_products_keep_the_users_operand_dtype_and_accumulate_in_float32() -> None:
    assert products(assigned(ATTENTION)) == [("f32", ("bf16", "bf16"))] * 2


def test_outputs_keep_their_dtypes_and_intermediates_are_float32() -> None:
    program = assigned(ATTENTION)
    assert [o.node.dtype for o in program.outputs] == ["bf16", "f32"]
    inner = [n for n in program.nodes if isinstance(n.op, Map) and n.op.fn != "cast"]
    assert inner and all(n.dtype == "f32" for n in inner)


def test_a_product_that_the_user_wrote_in_float32_stays_there() -> None:
    program = assigned(
        """
program wide(x: bf16[N, K], w: bf16[K, O]) {
  a[n: N, k: K]: f32 = cast(x[n, k])
  b[k: K, o: O]: f32 = cast(w[k, o])
  y[n: N, o: O]: f32 = contract[k: K](a[n, k], b[k, o])
  return y[n, o]
}
"""
    )
    assert products(program) == [("f32", ("f32", "f32"))]


def test_float64_stays_float64() -> None:
    program = assigned(
        """
program wide(x: f64[N, K], w: f64[K, O]) {
  a[n: N, k: K]: f64 = exp(x[n, k])
  y[n: N, o: O]: f64 = contract[k: K](a[n, k], w[k, o])
  return y[n, o]
}
"""
    )
    assert {n.dtype for n in program.nodes} == {"f64"}


def test_a_row_sum_is_no_matrix_product() -> None:
    user = parse_program(
        """
program row(x: f16[N, K], g: f16[K]) {
  y[n: N]: f16 = contract[k: K](x[n, k], g[k])
  return y[n]
}
"""
    )
    assert not is_matrix_product(user.outputs[0].node)
    assert products(assign(Candidate(user, ()), user).program) == [("f32", ("f16", "f16"))]


def test_a_product_of_three_becomes_one_of_two_and_is_narrowed() -> None:
    program = assigned(
        """
program three(x: bf16[N, K], g: bf16[K], w: bf16[O, K]) {
  y[n: N, o: O]: bf16 = contract[k: K](x[n, k], g[k], w[o, k])
  return y[n, o]
}
"""
    )
    assert products(program) == [("f32", ("bf16", "bf16"))]
    multiplied = next(n for n in program.nodes if isinstance(n.op, Map) and n.op.fn == "mul")
    assert multiplied.dtype == "f32"


def test_rows_of_the_result_are_rows_of_the_left_operand() -> None:
    program = assigned(
        """
program turned(w: bf16[K, O], x: bf16[N, K]) {
  y[n: N, o: O]: bf16 = contract[k: K](w[k, o], x[n, k])
  return y[n, o]
}
"""
    )
    product = next(n for n in program.nodes if isinstance(n.op, Contract))
    assert [a.node.op.name for a in product.args] == ["x", "w"]
