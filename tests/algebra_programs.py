"""More programs for the tests of `algebra`, as text: what the search must find forms of."""

from __future__ import annotations

from cleave.ir.program import Program
from cleave.ir.text import parse_program
from programs import PROGRAMS

_ATTENTION = """
program attention({inputs}, scale: scalar f32) {{
  qk[{h}s: S, t: T]: f32 = contract[d: D](q[{a}s, d], k[{b}t, d])
  scaled[{h}s: S, t: T]: f32 = mul(qk[{a}s, t], scale)
  row[s: S]: i64 = index(s + T - S)
  column[t: T]: i64 = index(t)
  seen[s: S, t: T]: bool = le(column[t], row[s])
  score[{h}s: S, t: T]: f32 = select(seen[s, t], scaled[{a}s, t], -inf)
  m[{h}s: S]: f32 = max[t: T](score[{a}s, t])
  c[{h}s: S, t: T]: f32 = sub(score[{a}s, t], m[{a}s])
  e[{h}s: S, t: T]: f32 = exp(c[{a}s, t])
  l[{h}s: S]: f32 = sum[t: T](e[{a}s, t])
  p[{h}s: S, t: T]: f32 = div(e[{a}s, t], l[{a}s])
  o[{h}s: S, d: D]: f32 = contract[t: T](p[{a}s, t], v[{b}t, d])
  log_l[{h}s: S]: f32 = log(l[{a}s])
  lse[{h}s: S]: f32 = add(m[{a}s], log_l[{a}s])
  return o[{a}s, d], lse[{a}s]
}}
"""

TEXTS: dict[str, str] = {}
TEXTS["multi_head"] = _ATTENTION.format(
    inputs="q: f32[H, S, D], k: f32[H, T, D], v: f32[H, T, D]", h="h: H, ", a="h, ", b="h, "
)
TEXTS["multi_query"] = _ATTENTION.format(
    inputs="q: f32[H, S, D], k: f32[T, D], v: f32[T, D]", h="h: H, ", a="h, ", b=""
)
TEXTS["unshifted"] = """
program unshifted(q: f32[H, S, D], k: f32[H, T, D], v: f32[H, T, E]) {
  qk[h: H, s: S, t: T]: f32 = contract[d: D](q[h, s, d], k[h, t, d])
  e[h: H, s: S, t: T]: f32 = exp(qk[h, s, t])
  l[h: H, s: S]: f32 = sum[t: T](e[h, s, t])
  p[h: H, s: S, t: T]: f32 = div(e[h, s, t], l[h, s])
  o[h: H, s: S, e2: E]: f32 = contract[t: T](p[h, s, t], v[h, t, e2])
  lse[h: H, s: S]: f32 = log(l[h, s])
  return o[h, s, e2], lse[h, s]
}
"""
TEXTS["unshifted_masked"] = """
program unshifted_masked(x: f32[S, T], seen: bool[S, T], v: f32[T, E]) {
  z[s: S, t: T]: f32 = select(seen[s, t], x[s, t], -inf)
  e[s: S, t: T]: f32 = exp(z[s, t])
  l[s: S]: f32 = sum[t: T](e[s, t])
  n[s: S, e2: E]: f32 = contract[t: T](e[s, t], v[t, e2])
  o[s: S, e2: E]: f32 = div(n[s, e2], l[s])
  lse[s: S]: f32 = log(l[s])
  return o[s, e2], lse[s]
}
"""
TEXTS["lora"] = """
program lora(x: f32[N, K], w: f32[K, O], a: f32[K, R], b: f32[R, O]) {
  base[n: N, o: O]: f32 = contract[k: K](x[n, k], w[k, o])
  low[n: N, r: R]: f32 = contract[k: K](x[n, k], a[k, r])
  up[n: N, o: O]: f32 = contract[r: R](low[n, r], b[r, o])
  y[n: N, o: O]: f32 = add(base[n, o], up[n, o])
  return y[n, o]
}
"""
TEXTS["lora_merged"] = """
program lora_merged(x: f32[N, K], w: f32[K, O], a: f32[K, R], b: f32[R, O]) {
  ab[k: K, o: O]: f32 = contract[r: R](a[k, r], b[r, o])
  merged[k: K, o: O]: f32 = add(w[k, o], ab[k, o])
  y[n: N, o: O]: f32 = contract[k: K](x[n, k], merged[k, o])
  return y[n, o]
}
"""
TEXTS["two_weights"] = """
program two_weights(x: f32[N, K], a: f32[K, O], b: f32[K, O]) {
  one[n: N, o: O]: f32 = contract[k: K](x[n, k], a[k, o])
  two[n: N, o: O]: f32 = contract[k: K](x[n, k], b[k, o])
  y[n: N, o: O]: f32 = add(one[n, o], two[n, o])
  return y[n, o]
}
"""
TEXTS["layer_norm_linear"] = """
program layer_norm_linear(x: f32[N, K], g: f32[K], b: f32[K], w: f32[K, O]) {
  s[n: N]: f32 = sum[k: K](x[n, k])
  mu[n: N]: f32 = div(s[n], size(K))
  c[n: N, k: K]: f32 = sub(x[n, k], mu[n])
  q[n: N, k: K]: f32 = mul(c[n, k], c[n, k])
  ss[n: N]: f32 = sum[k: K](q[n, k])
  v[n: N]: f32 = div(ss[n], size(K))
  e[n: N]: f32 = add(v[n], 1e-05)
  r[n: N]: f32 = rsqrt(e[n])
  cr[n: N, k: K]: f32 = mul(c[n, k], r[n])
  cg[n: N, k: K]: f32 = mul(cr[n, k], g[k])
  cb[n: N, k: K]: f32 = add(cg[n, k], b[k])
  y[n: N, o: O]: f32 = contract[k: K](cb[n, k], w[k, o])
  return y[n, o]
}
"""
TEXTS["scaled_last"] = """
program scaled_last(x: f32[N, K], w: f32[O, K], eps: scalar f32) {
  sq[n: N, k: K]: f32 = mul(x[n, k], x[n, k])
  ss[n: N]: f32 = sum[k: K](sq[n, k])
  ms[n: N]: f32 = div(ss[n], size(K))
  shifted[n: N]: f32 = add(ms[n], eps)
  r[n: N]: f32 = rsqrt(shifted[n])
  y[n: N, o: O]: f32 = contract[k: K](x[n, k], w[o, k])
  z[n: N, o: O]: f32 = mul(y[n, o], r[n])
  return z[n, o]
}
"""
TEXTS["linear_attention"] = """
program linear_attention(q: f32[H, S, D], k: f32[H, T, D], v: f32[H, T, E]) {
  qk[h: H, s: S, t: T]: f32 = contract[d: D](q[h, s, d], k[h, t, d])
  o[h: H, s: S, e: E]: f32 = contract[t: T](qk[h, s, t], v[h, t, e])
  return o[h, s, e]
}
"""
TEXTS["gated_mlp"] = """
program gated_mlp(x: f32[N, K], gate: f32[F, K], up: f32[F, K], down: f32[K, F]) {
  a[n: N, f: F]: f32 = contract[k: K](x[n, k], gate[f, k])
  b[n: N, f: F]: f32 = contract[k: K](x[n, k], up[f, k])
  minus[n: N, f: F]: f32 = neg(a[n, f])
  e[n: N, f: F]: f32 = exp(minus[n, f])
  below[n: N, f: F]: f32 = add(e[n, f], 1.0)
  silu[n: N, f: F]: f32 = div(a[n, f], below[n, f])
  h[n: N, f: F]: f32 = mul(silu[n, f], b[n, f])
  y[n: N, k: K]: f32 = contract[f: F](h[n, f], down[k, f])
  return y[n, k]
}
"""
TEXTS["weights_out"] = """
program weights_out(x: f32[S, T], v: f32[T, E]) {
  m[s: S]: f32 = max[t: T](x[s, t])
  c[s: S, t: T]: f32 = sub(x[s, t], m[s])
  e[s: S, t: T]: f32 = exp(c[s, t])
  l[s: S]: f32 = sum[t: T](e[s, t])
  p[s: S, t: T]: f32 = div(e[s, t], l[s])
  o[s: S, e2: E]: f32 = contract[t: T](p[s, t], v[t, e2])
  return o[s, e2], p[s, t]
}
"""

MORE: dict[str, Program] = {name: parse_program(text) for name, text in TEXTS.items()}
NINE: dict[str, Program] = {
    **{n: PROGRAMS[n] for n in ("matmul", "matmul_matmul", "matmul_rowsum", "swiglu", "rms_linear")},
    "grouped": PROGRAMS["attention"],
    "multi_head": MORE["multi_head"],
    "multi_query": MORE["multi_query"],
    "latent": PROGRAMS["mla_prefill"],
}
EVERY: dict[str, Program] = {**PROGRAMS, **MORE}

EXPANDED = """
program expanded(x: f32[N, K], w: f32[K, O]) {
  s[n: N]: f32 = sum[k: K](x[n, k])
  mu[n: N]: f32 = div(s[n], size(K))
  c[n: N, k: K]: f32 = sub(x[n, k], mu[n])
  y[n: N, o: O]: f32 = contract[k: K](c[n, k], w[k, o])
  return y[n, o]
}
"""
"""A difference that may cancel if the product is taken apart."""
