"""Cascaded reductions as text programs: what `test_cascades` finds Folds of, and `test_cascades_run` runs.

Each entry is a program in which a reduction needs the value of another one over the same dim. `TEXTS` are
those that one loop computes; `APART` those of which some value needs a second loop, with words of the reason.
"""

from __future__ import annotations

import pytest

from algebra import cascades_of_rows
from algebra.cascades_of_rows import rows
from cleave.algebra.joined import joined
from cleave.ir.program import Program
from cleave.ir.text import parse_program

TEXTS: dict[str, str] = dict(cascades_of_rows.TEXTS)

# ---------------------------------------------------------------- two indices, unions

TEXTS["over_two_dims"] = """
program over_two_dims(x: f32[N, A, B], v: f32[A, B, O]) {
  m[n: N]: f32 = max[a: A, b: B](x[n, a, b])
  c[n: N, a: A, b: B]: f32 = sub(x[n, a, b], m[n])
  e[n: N, a: A, b: B]: f32 = exp(c[n, a, b])
  l[n: N]: f32 = sum[a: A, b: B](e[n, a, b])
  p[n: N, a: A, b: B]: f32 = div(e[n, a, b], l[n])
  y[n: N, o: O]: f32 = contract[a: A, b: B](p[n, a, b], v[a, b, o])
  return y[n, o]
}
"""
TEXTS["over_two_dims_nested"] = """
program over_two_dims_nested(x: f32[N, A, B], v: f32[A, B, O]) {
  ma[n: N, a: A]: f32 = max[b: B](x[n, a, b])
  m[n: N]: f32 = max[a: A](ma[n, a])
  c[n: N, a: A, b: B]: f32 = sub(x[n, a, b], m[n])
  e[n: N, a: A, b: B]: f32 = exp(c[n, a, b])
  la[n: N, a: A]: f32 = sum[b: B](e[n, a, b])
  l[n: N]: f32 = sum[a: A](la[n, a])
  y0[n: N, o: O]: f32 = contract[a: A, b: B](e[n, a, b], v[a, b, o])
  y[n: N, o: O]: f32 = div(y0[n, o], l[n])
  return y[n, o]
}
"""
TEXTS["variance_over_two_dims"] = """
program variance_over_two_dims(x: f32[A, N, B]) {
  s[n: N]: f32 = sum[a: A, b: B](x[a, n, b])
  area: f32 = mul(size(A), size(B))
  mu[n: N]: f32 = div(s[n], area)
  c[a: A, n: N, b: B]: f32 = sub(x[a, n, b], mu[n])
  q[a: A, n: N, b: B]: f32 = mul(c[a, n, b], c[a, n, b])
  ss[n: N]: f32 = sum[a: A, b: B](q[a, n, b])
  v[n: N]: f32 = div(ss[n], area)
  return mu[n], v[n]
}
"""
TEXTS["sink"] = f"""
program sink(x: f32[N, T], s: f32[I], v: f32[T, O]) where I = 1 {{
  z[n: N, k: (T | I)]: f32 = cat[k = t | i](x[n, t], s[i]){rows("z", "(T | I)")}
  y[n: N, o: O]: f32 = contract[t: T](p[n, in0(t)], v[t, o])
  return y[n, o]
}}
"""
TEXTS["past_and_new"] = f"""
program past_and_new(q: f32[N, D], pk: f32[T, D], nk: f32[J, D], pv: f32[T, O], nv: f32[J, O]) {{
  k0[k: (T | J), d: D]: f32 = cat[k = t | j](pk[t, d], nk[j, d])
  v0[k: (T | J), o: O]: f32 = cat[k = t | j](pv[t, o], nv[j, o])
  z[n: N, k: (T | J)]: f32 = contract[d: D](q[n, d], k0[k, d]){rows("z", "(T | J)")}
  y[n: N, o: O]: f32 = contract[k: (T | J)](p[n, k], v0[k, o])
  return y[n, o]
}}
"""
_TWO_LOOPS = """
  a[n: N, t: T]: f32 = contract[d: D](q[n, d], pk[t, d])
  b[n: N, j: J]: f32 = contract[d: D](q[n, d], nk[j, d])
  ma[n: N]: f32 = max[t: T](a[n, t])
  mb[n: N]: f32 = max[j: J](b[n, j])
  m[n: N]: f32 = max(ma[n], mb[n])
  ca[n: N, t: T]: f32 = sub(a[n, t], m[n])
  cb[n: N, j: J]: f32 = sub(b[n, j], m[n])
  ea[n: N, t: T]: f32 = exp(ca[n, t])
  eb[n: N, j: J]: f32 = exp(cb[n, j])
  la[n: N]: f32 = sum[t: T](ea[n, t])
  lb[n: N]: f32 = sum[j: J](eb[n, j])
  l[n: N]: f32 = add(la[n], lb[n])
  ya[n: N, o: O]: f32 = contract[t: T](ea[n, t], pv[t, o])
  yb[n: N, o: O]: f32 = contract[j: J](eb[n, j], nv[j, o])
  yab[n: N, o: O]: f32 = add(ya[n, o], yb[n, o])
  y[n: N, o: O]: f32 = div(yab[n, o], l[n])"""
TEXTS["past_and_new_apart"] = f"""
program past_and_new_apart(
  q: f32[N, D], pk: f32[T, D], nk: f32[J, D], pv: f32[T, O], nv: f32[J, O]
) {{{_TWO_LOOPS}
  return y[n, o]
}}
"""
TEXTS["sink_apart"] = """
program sink_apart(x: f32[N, T], s: f32[N], v: f32[T, O]) {
  ma[n: N]: f32 = max[t: T](x[n, t])
  m[n: N]: f32 = max(ma[n], s[n])
  ca[n: N, t: T]: f32 = sub(x[n, t], m[n])
  cs[n: N]: f32 = sub(s[n], m[n])
  ea[n: N, t: T]: f32 = exp(ca[n, t])
  es[n: N]: f32 = exp(cs[n])
  la[n: N]: f32 = sum[t: T](ea[n, t])
  l[n: N]: f32 = add(la[n], es[n])
  p[n: N, t: T]: f32 = div(ea[n, t], l[n])
  y[n: N, o: O]: f32 = contract[t: T](p[n, t], v[t, o])
  return y[n, o]
}
"""

TEXTS["three_parts"] = f"""
program three_parts(x: f32[N, T], z0: f32[N, J], s: f32[I], v: f32[T, O], w: f32[J, O]) where I = 1 {{
  z[n: N, k: (T | J | I)]: f32 = cat[k = t | j | i](x[n, t], z0[n, j], s[i]){rows("z", "(T | J | I)")}
  a[n: N, o: O]: f32 = contract[t: T](p[n, in0(t)], v[t, o])
  b[n: N, o: O]: f32 = contract[j: J](p[n, in1(j)], w[j, o])
  y[n: N, o: O]: f32 = add(a[n, o], b[n, o])
  return y[n, o]
}}
"""
TEXTS["masked_new"] = """
program masked_new(a: f32[N, T], b0: f32[N, J], pv: f32[T, O], nv: f32[J, O]) {
  row[n: N]: i64 = index(n)
  column[j: J]: i64 = index(j)
  seen[n: N, j: J]: bool = le(column[j], row[n])
  b[n: N, j: J]: f32 = select(seen[n, j], b0[n, j], -inf)
  ma[n: N]: f32 = max[t: T](a[n, t])
  mb[n: N]: f32 = max[j: J](b[n, j])
  m[n: N]: f32 = max(ma[n], mb[n])
  ca[n: N, t: T]: f32 = sub(a[n, t], m[n])
  cb[n: N, j: J]: f32 = sub(b[n, j], m[n])
  ea[n: N, t: T]: f32 = exp(ca[n, t])
  eb[n: N, j: J]: f32 = exp(cb[n, j])
  la[n: N]: f32 = sum[t: T](ea[n, t])
  lb[n: N]: f32 = sum[j: J](eb[n, j])
  l[n: N]: f32 = add(la[n], lb[n])
  ya[n: N, o: O]: f32 = contract[t: T](ea[n, t], pv[t, o])
  yb[n: N, o: O]: f32 = contract[j: J](eb[n, j], nv[j, o])
  yab[n: N, o: O]: f32 = add(ya[n, o], yb[n, o])
  y[n: N, o: O]: f32 = div(yab[n, o], l[n])
  return y[n, o]
}
"""
TEXTS["moments_of_two"] = """
program moments_of_two(x: f32[N, T], y: f32[N, J]) {
  sx[n: N]: f32 = sum[t: T](x[n, t])
  sy[n: N]: f32 = sum[j: J](y[n, j])
  s[n: N]: f32 = add(sx[n], sy[n])
  count: f32 = add(size(T), size(J))
  mu[n: N]: f32 = div(s[n], count)
  cx[n: N, t: T]: f32 = sub(x[n, t], mu[n])
  cy[n: N, j: J]: f32 = sub(y[n, j], mu[n])
  qx[n: N]: f32 = contract[t: T](cx[n, t], cx[n, t])
  qy[n: N]: f32 = contract[j: J](cy[n, j], cy[n, j])
  q[n: N]: f32 = add(qx[n], qy[n])
  v[n: N]: f32 = div(q[n], count)
  return mu[n], v[n]
}
"""

# ---------------------------------------------------------------- attention

_QK = """
  z[n: N, t: T]: f32 = contract[d: D](q[n, d], k[t, d])"""
_OVER_T = """
  m[n: N]: f32 = max[t: T](w[n, t])
  c[n: N, t: T]: f32 = sub(w[n, t], m[n])
  e[n: N, t: T]: f32 = exp(c[n, t])
  l[n: N]: f32 = sum[t: T](e[n, t])
  p[n: N, t: T]: f32 = div(e[n, t], l[n])
  y[n: N, o: O]: f32 = contract[t: T](p[n, t], v[t, o])
  return y[n, o]
}
"""
_QKV = "q: f32[N, D], k: f32[T, D], v: f32[T, O], scale: scalar f32"
TEXTS["cosine"] = f"""
program cosine({_QKV}) {{
  qq[n: N]: f32 = contract[d: D](q[n, d], q[n, d])
  kk[t: T]: f32 = contract[d: D](k[t, d], k[t, d])
  ql0[n: N]: f32 = sqrt(qq[n])
  kl0[t: T]: f32 = sqrt(kk[t])
  ql[n: N]: f32 = max(ql0[n], 1e-12)
  kl[t: T]: f32 = max(kl0[t], 1e-12)
  qn[n: N, d: D]: f32 = div(q[n, d], ql[n])
  kn[t: T, d: D]: f32 = div(k[t, d], kl[t])
  z[n: N, t: T]: f32 = contract[d: D](qn[n, d], kn[t, d])
  w[n: N, t: T]: f32 = mul(z[n, t], scale){_OVER_T}"""
TEXTS["normed_keys"] = f"""
program normed_keys({_QKV}, g: f32[D]) {{
  qq[n: N]: f32 = contract[d: D](q[n, d], q[n, d])
  kk[t: T]: f32 = contract[d: D](k[t, d], k[t, d])
  qm[n: N]: f32 = div(qq[n], size(D))
  km[t: T]: f32 = div(kk[t], size(D))
  qe[n: N]: f32 = add(qm[n], 1e-06)
  ke[t: T]: f32 = add(km[t], 1e-06)
  qr[n: N]: f32 = rsqrt(qe[n])
  kr[t: T]: f32 = rsqrt(ke[t])
  q1[n: N, d: D]: f32 = mul(q[n, d], qr[n])
  k1[t: T, d: D]: f32 = mul(k[t, d], kr[t])
  q2[n: N, d: D]: f32 = mul(q1[n, d], g[d])
  z[n: N, t: T]: f32 = contract[d: D](q2[n, d], k1[t, d])
  w[n: N, t: T]: f32 = mul(z[n, t], scale){_OVER_T}"""
_PLACES = """
  row[n: N]: i64 = index(n + T - N)
  column[t: T]: i64 = index(t)"""
TEXTS["sloped"] = f"""
program sloped({_QKV}) {{{_QK}{_PLACES}
  far[n: N, t: T]: i64 = sub(column[t], row[n])
  real[n: N, t: T]: f32 = cast(far[n, t])
  bias[n: N, t: T]: f32 = mul(real[n, t], scale)
  sum0[n: N, t: T]: f32 = add(z[n, t], bias[n, t])
  seen[n: N, t: T]: bool = le(column[t], row[n])
  w[n: N, t: T]: f32 = select(seen[n, t], sum0[n, t], -inf){_OVER_T}"""
TEXTS["capped"] = f"""
program capped({_QKV}) {{{_QK}{_PLACES}
  low[n: N, t: T]: f32 = div(z[n, t], scale)
  flat[n: N, t: T]: f32 = tanh(low[n, t])
  up[n: N, t: T]: f32 = mul(flat[n, t], scale)
  seen[n: N, t: T]: bool = le(column[t], row[n])
  w[n: N, t: T]: f32 = select(seen[n, t], up[n, t], -inf){_OVER_T}"""
TEXTS["windowed"] = f"""
program windowed({_QKV}) {{{_QK}{_PLACES}
  ahead[n: N, t: T]: bool = le(column[t], row[n])
  first[n: N]: i64 = sub(row[n], 3)
  near[n: N, t: T]: bool = gt(column[t], first[n])
  seen[n: N, t: T]: bool = and(ahead[n, t], near[n, t])
  scaled[n: N, t: T]: f32 = mul(z[n, t], scale)
  w[n: N, t: T]: f32 = select(seen[n, t], scaled[n, t], -inf){_OVER_T}"""
TEXTS["masked_to_zero"] = f"""
program masked_to_zero({_QKV}, seen: bool[N, T]) {{{_QK}
  w[n: N, t: T]: f32 = select(seen[n, t], z[n, t], -inf)
  some[n: N]: bool = any[t: T](seen[n, t])
  m[n: N]: f32 = max[t: T](w[n, t])
  c[n: N, t: T]: f32 = sub(w[n, t], m[n])
  e[n: N, t: T]: f32 = exp(c[n, t])
  l[n: N]: f32 = sum[t: T](e[n, t])
  p0[n: N, t: T]: f32 = div(e[n, t], l[n])
  p[n: N, t: T]: f32 = select(some[n], p0[n, t], 0.0)
  y[n: N, o: O]: f32 = contract[t: T](p[n, t], v[t, o])
  return y[n, o]
}}
"""
TEXTS["masked_again"] = f"""
program masked_again({_QKV}, seen: bool[N, T]) {{{_QK}
  w[n: N, t: T]: f32 = select(seen[n, t], z[n, t], -inf)
  m[n: N]: f32 = max[t: T](w[n, t])
  c[n: N, t: T]: f32 = sub(w[n, t], m[n])
  e[n: N, t: T]: f32 = exp(c[n, t])
  l[n: N]: f32 = sum[t: T](e[n, t])
  p0[n: N, t: T]: f32 = div(e[n, t], l[n])
  p[n: N, t: T]: f32 = select(seen[n, t], p0[n, t], 0.0)
  y[n: N, o: O]: f32 = contract[t: T](p[n, t], v[t, o])
  return y[n, o]
}}
"""
TEXTS["two_products"] = f"""
program two_products({_QKV}, q2: f32[N, E], k2: f32[T, E]) {{{_QK}
  z2[n: N, t: T]: f32 = contract[c: E](q2[n, c], k2[t, c])
  w[n: N, t: T]: f32 = add(z[n, t], z2[n, t]){_OVER_T}"""
TEXTS["sigmoid_weights"] = f"""
program sigmoid_weights({_QKV}) {{{_QK}
  minus[n: N, t: T]: f32 = neg(z[n, t])
  e[n: N, t: T]: f32 = exp(minus[n, t])
  below[n: N, t: T]: f32 = add(e[n, t], 1.0)
  p[n: N, t: T]: f32 = div(1.0, below[n, t])
  l[n: N]: f32 = sum[t: T](p[n, t])
  u[n: N, t: T]: f32 = div(p[n, t], l[n])
  y[n: N, o: O]: f32 = contract[t: T](u[n, t], v[t, o])
  return y[n, o]
}}
"""
TEXTS["linear_weights"] = """
program linear_weights(q: f32[N, D], k: f32[T, D], v: f32[T, O]) {
  fk[t: T, d: D]: f32 = exp(k[t, d])
  fq[n: N, d: D]: f32 = exp(q[n, d])
  z[n: N, t: T]: f32 = contract[d: D](fq[n, d], fk[t, d])
  l[n: N]: f32 = sum[t: T](z[n, t])
  p[n: N, t: T]: f32 = div(z[n, t], l[n])
  y[n: N, o: O]: f32 = contract[t: T](p[n, t], v[t, o])
  return y[n, o]
}
"""
TEXTS["merged_parts"] = """
program merged_parts(y: f32[C, N, O], lse: f32[C, N]) {
  m[n: N]: f32 = max[c: C](lse[c, n])
  d[c: C, n: N]: f32 = sub(lse[c, n], m[n])
  e[c: C, n: N]: f32 = exp(d[c, n])
  l[n: N]: f32 = sum[c: C](e[c, n])
  s[c: C, n: N]: f32 = div(e[c, n], l[n])
  z[n: N, o: O]: f32 = contract[c: C](s[c, n], y[c, n, o])
  ll[n: N]: f32 = log(l[n])
  all[n: N]: f32 = add(m[n], ll[n])
  return z[n, o], all[n]
}
"""
TEXTS["nearest"] = """
program nearest(x: f32[N, D], c: f32[K, D]) {
  g[n: N, k: K, d: D]: f32 = sub(x[n, d], c[k, d])
  q[n: N, k: K, d: D]: f32 = mul(g[n, k, d], g[n, k, d])
  s[n: N, k: K]: f32 = sum[d: D](q[n, k, d])
  least[n: N]: f32 = min[k: K](s[n, k])
  total: f32 = sum[n: N](least[n])
  return least[n], total
}
"""
TEXTS["soft_nearest"] = """
program soft_nearest(x: f32[N, D], c: f32[K, D]) {
  g[n: N, k: K, d: D]: f32 = sub(x[n, d], c[k, d])
  q[n: N, k: K, d: D]: f32 = mul(g[n, k, d], g[n, k, d])
  s[n: N, k: K]: f32 = sum[d: D](q[n, k, d])
  m[n: N]: f32 = min[k: K](s[n, k])
  u[n: N, k: K]: f32 = sub(m[n], s[n, k])
  e[n: N, k: K]: f32 = exp(u[n, k])
  l[n: N]: f32 = sum[k: K](e[n, k])
  p[n: N, k: K]: f32 = div(e[n, k], l[n])
  y[n: N, d: D]: f32 = contract[k: K](p[n, k], c[k, d])
  return y[n, d]
}
"""

# ---------------------------------------------------------------- what no loop can follow

APART: dict[str, tuple[str, str]] = {}
"""A program, and words of the reason that it gives."""

APART["rounded"] = (
    """
program rounded(x: f32[N, K], w: f32[K, O]) {
  a[n: N, k: K]: f32 = abs(x[n, k])
  m[n: N]: f32 = max[k: K](a[n, k])
  big[n: N, k: K]: f32 = mul(x[n, k], 127.0)
  u[n: N, k: K]: f32 = div(big[n, k], m[n])
  r[n: N, k: K]: f32 = round(u[n, k])
  y0[n: N, o: O]: f32 = contract[k: K](r[n, k], w[k, o])
  y1[n: N, o: O]: f32 = mul(y0[n, o], m[n])
  y[n: N, o: O]: f32 = div(y1[n, o], 127.0)
  return y[n, o]
}
""",
    "round",
)
APART["mean_distance"] = (
    """
program mean_distance(x: f32[N, K]) {
  s[n: N]: f32 = sum[k: K](x[n, k])
  mu[n: N]: f32 = div(s[n], size(K))
  c[n: N, k: K]: f32 = sub(x[n, k], mu[n])
  a[n: N, k: K]: f32 = abs(c[n, k])
  t[n: N]: f32 = sum[k: K](a[n, k])
  return t[n]
}
""",
    "abs",
)
APART["own_temperature"] = (
    """
program own_temperature(x: f32[N, K], v: f32[K, O]) {
  ss[n: N]: f32 = contract[k: K](x[n, k], x[n, k])
  r[n: N]: f32 = rsqrt(ss[n])
  z[n: N, k: K]: f32 = mul(x[n, k], r[n])
  m[n: N]: f32 = max[k: K](z[n, k])
  c[n: N, k: K]: f32 = sub(z[n, k], m[n])
  e[n: N, k: K]: f32 = exp(c[n, k])
  l[n: N]: f32 = sum[k: K](e[n, k])
  y0[n: N, o: O]: f32 = contract[k: K](e[n, k], v[k, o])
  y[n: N, o: O]: f32 = div(y0[n, o], l[n])
  return y[n, o]
}
""",
    "exponent",
)
APART["above_the_mean"] = (
    """
program above_the_mean(x: f32[N, K]) {
  s[n: N]: f32 = sum[k: K](x[n, k])
  mu[n: N]: f32 = div(s[n], size(K))
  over[n: N, k: K]: bool = gt(x[n, k], mu[n])
  z[n: N, k: K]: f32 = select(over[n, k], x[n, k], 0.0)
  t[n: N]: f32 = sum[k: K](z[n, k])
  return t[n]
}
""",
    "predicate",
)
APART["twice_normalised"] = (
    f"""
program twice_normalised(x: f32[N, K], v: f32[K, O]) {{{rows("x", "K")}{rows("p", "K", "2")}
  y[n: N, o: O]: f32 = contract[k: K](p2[n, k], v[k, o])
  return y[n, o]
}}
""",
    "exponent",
)
APART["two_matmuls"] = (
    """
program two_matmuls(x: f32[N, K], w: f32[K, K]) {
  y[n: N, k: K]: f32 = contract[j: K](x[n, j], w[j, k])
  z[n: N, o: K]: f32 = contract[k: K](y[n, k], w[k, o])
  return z[n, o]
}
""",
    "finished value",
)

ONE_LOOP: dict[str, Program] = {name: parse_program(text) for name, text in TEXTS.items()}
TWO_LOOPS: dict[str, Program] = {name: parse_program(text) for name, (text, _) in APART.items()}

JOINED = ("over_two_dims_nested", "sink", "past_and_new_apart", "three_parts", "masked_new", "moments_of_two")
BEST: dict[str, Program] = {n: (joined(p) or p) if n in JOINED else p for n, p in ONE_LOOP.items()}
"""Each cascade in the form that has the fewest loops."""

EVERY: dict[str, Program] = {**BEST, **TWO_LOOPS}
QUICK = (
    "variance", "weighted_variance", "between_extremes", "largest_deviation", "largest_share", "entropy",
    "divergence", "gradient", "sink", "sink_apart", "past_and_new_apart", "windowed", "over_two_dims",
    "grouped_norm_matmul", "masked_again", "rounded",
)  # fmt: skip
"""Those that are checked in every run."""


def marked(names: tuple[str, ...] = QUICK) -> list[object]:
    """Every cascade; those that are not quick run with the slow tests."""
    return [n if n in names else pytest.param(n, marks=pytest.mark.slow) for n in EVERY]
