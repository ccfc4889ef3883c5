"""Random pairs that were once proved though they are not equal, or that took too long."""

from __future__ import annotations

from cleave.ir.program import Program
from cleave.ir.text import parse_program

INPUTS = "x: f32[A, B], a: f32[A, A], y: f32[B], u: f32[(A | B)], g: bool[A, B], c: scalar f32, t: i64[B]"

WRONG: dict[str, tuple[str, str]] = {}


def wrong(name: str) -> tuple[Program, Program]:
    """The two programs of a pair."""
    one, two = (f"program p({INPUTS}) {{{body}}}" for body in WRONG[name])
    return parse_program(one), parse_program(two)


WRONG["the largest of what is inf for an empty part, as a softmax' argument"] = (
    """
  sum1[a2: A, pb: parts(B)]: f32 = sum[b: part(B)](y[join(pb, b)])
  neg1[a2: A, pb: parts(B)]: f32 = neg(sum1[a2, pb])
  max1[a2: A]: f32 = max[pb: parts(B)](neg1[a2, pb])
  sum2[b: B]: f32 = sum[a2: A](max1[a2])
  id1[b: B, a2: A]: f32 = id(sum2[b])
  max2[b: B]: f32 = max[a2: A](id1[b, a2])
  sub1[b: B, a2: A]: f32 = sub(id1[b, a2], max2[b])
  exp1[b: B, a2: A]: f32 = exp(sub1[b, a2])
  dot1[b: B]: f32 = contract[a2: A](exp1[b, a2], u[a2])
  sum3[b: B]: f32 = sum[a2: A](exp1[b, a2])
  z0[b: B]: f32 = div(dot1[b], sum3[b])
  return z0[b]
""",
    """
  max1[a2: A, pb: parts(B)]: f32 = max[b: part(B)](y[join(pb, b)])
  neg1[a2: A, pb: parts(B)]: f32 = neg(max1[a2, pb])
  max2[a2: A]: f32 = max[pb: parts(B)](neg1[a2, pb])
  sum1[b: B]: f32 = sum[a2: A](max2[a2])
  id1[b: B, a2: A]: f32 = id(sum1[b])
  exp1[b: B, a2: A]: f32 = exp(id1[b, a2])
  max3[b: B]: f32 = max[a2: A](id1[b, a2])
  exp2[b: B, a2: A]: f32 = exp(max3[b])
  div1[b: B, a2: A]: f32 = div(exp1[b, a2], exp2[b, a2])
  dot1[b: B]: f32 = contract[a2: A](div1[b, a2], u[a2])
  sum2[b: B]: f32 = sum[a2: A](div1[b, a2])
  z0[b: B]: f32 = div(dot1[b], sum2[b])
  return z0[b]
""",
)
WRONG["a sum of maxima, -inf if a part is empty, in an exponent"] = (
    """
  at1[b: B, a2: A]: i64 = index(a2)
  eq1[b: B, a2: A]: bool = eq(at1[b, a2], t[b])
  max1[b: B]: f32 = max[a2: A](u[a2])
  id1[a2: A, a_b: (A | B)]: f32 = id(max1[0])
  max2[a2: A]: f32 = max[a_b: (A | B)](id1[a2, a_b])
  sub1[a2: A, a_b: (A | B)]: f32 = sub(id1[a2, a_b], max2[a2])
  exp1[a2: A, a_b: (A | B)]: f32 = exp(sub1[a2, a_b])
  select1[b: B, a2: A]: f32 = select(eq1[b, a2], exp1[a2, b + A], 0.0)
  z0[b: B]: f32 = sum[a2: A](select1[b, a2])
  id2[b: B, a2: A]: f32 = id(x[a2, b])
  max3[b: B]: f32 = max[a2: A](id2[b, a2])
  id3[a2: A, a_b: (A | B)]: f32 = id(max3[0])
  max4[a2: A]: f32 = max[a_b: (A | B)](id3[a2, a_b])
  sub2[a2: A, a_b: (A | B)]: f32 = sub(id3[a2, a_b], max4[a2])
  z1[a2: A, a_b: (A | B)]: f32 = exp(sub2[a2, a_b])
  return z0[b], z1[a2, a_b]
""",
    """
  at1[b: B, a2: A]: i64 = index(a2)
  eq1[b: B, a2: A]: bool = eq(at1[b, a2], t[b])
  max1[b: B]: f32 = max[a2: A](u[a2])
  id1[a2: A, a_b: (A | B)]: f32 = id(max1[0])
  max2[a2: A]: f32 = max[a_b: (A | B)](id1[a2, a_b])
  sub1[a2: A, a_b: (A | B)]: f32 = sub(id1[a2, a_b], max2[a2])
  exp1[a2: A, a_b: (A | B)]: f32 = exp(sub1[a2, a_b])
  select1[b: B, a2: A]: f32 = select(eq1[b, a2], exp1[a2, b + A], 0.0)
  z0[b: B]: f32 = sum[a2: A](select1[b, a2])
  id2[b: B, a2: A]: f32 = id(x[a2, b])
  max3[b: B, pa: parts(A)]: f32 = max[a2: part(A)](id2[b, join(pa, a2)])
  sum1[b: B]: f32 = sum[pa: parts(A)](max3[b, pa])
  id3[a2: A, a_b: (A | B)]: f32 = id(sum1[0])
  exp2[a2: A, a_b: (A | B)]: f32 = exp(id3[a2, a_b])
  max4[a2: A]: f32 = max[a_b: (A | B)](id3[a2, a_b])
  exp3[a2: A, a_b: (A | B)]: f32 = exp(max4[a2])
  z1[a2: A, a_b: (A | B)]: f32 = div(exp2[a2, a_b], exp3[a2, a_b])
  return z0[b], z1[a2, a_b]
""",
)
WRONG["1 / inf is 0, and exp(-inf) divided by"] = (
    """
  max1[a_b: (A | B), pb: parts(B)]: f32 = max[b: part(B)](x[0, join(pb, b)])
  neg1[a_b: (A | B), pb: parts(B)]: f32 = neg(max1[a_b, pb])
  sum1[a_b: (A | B)]: f32 = sum[pb: parts(B)](neg1[a_b, pb])
  z0[a_b: (A | B), a2: A]: f32 = reciprocal(sum1[a_b])
  return z0[a_b, a2]
""",
    """
  max1[a_b: (A | B), pb: parts(B)]: f32 = max[b: part(B)](x[0, join(pb, b)])
  neg1[a_b: (A | B), pb: parts(B)]: f32 = neg(max1[a_b, pb])
  sum1[a_b: (A | B)]: f32 = sum[pb: parts(B)](neg1[a_b, pb])
  neg2[a_b: (A | B)]: f32 = neg(sum1[a_b])
  exp1[a_b: (A | B)]: f32 = exp(neg2[a_b])
  reciprocal1[a_b: (A | B)]: f32 = reciprocal(exp1[a_b])
  sum2[a_b: (A | B), pb: parts(B)]: f32 = sum[b: part(B)](reciprocal1[a_b])
  sum3[a_b: (A | B)]: f32 = sum[pb: parts(B)](sum2[a_b, pb])
  div1[a_b: (A | B)]: f32 = div(sum3[a_b], size(B):i64)
  log1[a_b: (A | B)]: f32 = log(div1[a_b])
  z0[a_b: (A | B), a2: A]: f32 = reciprocal(log1[a_b])
  return z0[a_b, a2]
""",
)
WRONG["a maximum of a constant, scaled by a negative number, in an exponent"] = (
    """
  max1[a2: A, pb: parts(B, 1)]: f32 = max[b: part(B, 1)](u[a2])
  exp1[a2: A, pb: parts(B, 1)]: f32 = exp(max1[a2, pb])
  max2[a2: A]: f32 = max[pb: parts(B, 1)](exp1[a2, pb])
  z0: f32 = sub(max2[0], max2[0])
  return z0
""",
    """
  mul1[a2: A, pb: parts(B, 1), b: part(B, 1)]: f32 = mul(-2.0, u[a2])
  max1[a2: A, pb: parts(B, 1)]: f32 = max[b: part(B, 1)](mul1[a2, pb, b])
  div1[a2: A, pb: parts(B, 1)]: f32 = div(max1[a2, pb], -2.0)
  exp1[a2: A, pb: parts(B, 1)]: f32 = exp(div1[a2, pb])
  max2[a2: A]: f32 = max[pb: parts(B, 1)](exp1[a2, pb])
  sub1: f32 = sub(max2[0], max2[0])
  add1: f32 = add(sub1, sub1)
  z0: f32 = mul(add1, 0.5)
  return z0
""",
)
WRONG["exponentials of exponentials: once no end"] = (
    """
  mul1[a_b: (A | B), a2: A]: f32 = mul(x[a2, 0], x[a2, 0])
  max1[a2: A, pb: parts(B, 1)]: f32 = max[b: part(B, 1)](mul1[a2, a2])
  exp1[a2: A, pb: parts(B, 1)]: f32 = exp(max1[a2, pb])
  max2[a2: A]: f32 = max[pb: parts(B, 1)](exp1[a2, pb])
  id1[a2: A, b: B]: f32 = id(max2[a2])
  sum1[a2: A]: f32 = sum[b: B](id1[a2, b])
  z0[a2: A]: f32 = div(sum1[a2], size(B):i64)
  return z0[a2]
""",
    """
  mul1[a_b: (A | B), a2: A]: f32 = mul(x[a2, 0], x[a2, 0])
  max1[a2: A, pb: parts(B, 1)]: f32 = max[b: part(B, 1)](mul1[a2, a2])
  neg1[a2: A, pb: parts(B, 1)]: f32 = neg(max1[a2, pb])
  exp1[a2: A, pb: parts(B, 1)]: f32 = exp(neg1[a2, pb])
  reciprocal1[a2: A, pb: parts(B, 1)]: f32 = reciprocal(exp1[a2, pb])
  max2[a2: A]: f32 = max[pb: parts(B, 1)](reciprocal1[a2, pb])
  id1[a2: A, b: B]: f32 = id(max2[a2])
  sum1[a2: A]: f32 = sum[b: B](id1[a2, 0])
  div1[a2: A]: f32 = div(sum1[a2], size(B):i64)
  exp2[a2: A]: f32 = exp(div1[a2])
  z0[a2: A]: f32 = log(exp2[a2])
  return z0[a2]
""",
)
WRONG["a proof that looked at too many cases"] = (
    """
  select1[a_b: (A | B), a2: A]: f32 = select(g[a2, 0], x[a2, 0], u[a2])
  exp1[b: B, a2: A]: f32 = exp(c)
  select2[b: B, a2: A]: f32 = select(g[a2, b], exp1[b, a2], 0.0)
  sum1[b: B]: f32 = sum[a2: A](select2[b, a2])
  log1[b: B]: f32 = log(sum1[b])
  min1[a2: A]: f32 = min(log1[0], select1[a2, a2])
  div1[a2: A, a3: A]: f32 = div(u[a3], min1[a2])
  abs1[a2: A, a_b: (A | B)]: f32 = abs(div1[a2, a2])
  z0[b: B, a2: A]: f32 = mul(select1[b + A, a2], abs1[a2, a2])
  return z0[b, a2]
""",
    """
  select1[a_b: (A | B), a2: A]: f32 = select(g[a2, 0], x[a2, 0], u[a2])
  exp1[b: B, a2: A]: f32 = exp(c)
  select2[b: B, a2: A]: f32 = select(g[a2, b], exp1[b, a2], 0.0)
  max1[b: B]: f32 = max[a2: A](select2[b, a2])
  add1[b: B]: f32 = add(max1[b], c)
  sub1[b: B]: f32 = sub(add1[b], c)
  log1[b: B]: f32 = log(sub1[b])
  min1[a2: A]: f32 = min(log1[0], select1[a2, a2])
  div1[a2: A, a3: A]: f32 = div(u[a3], min1[a2])
  abs1[a2: A, a_b: (A | B)]: f32 = abs(div1[a2, a2])
  z0[b: B, a2: A]: f32 = mul(select1[b + A, a2], abs1[a2, a2])
  return z0[b, a2]
""",
)
