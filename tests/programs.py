"""Small example programs as text, used by all tests: `PROGRAMS["attention"]`, or `program("attention")`.

Each is what capture would make of a few lines of PyTorch, written with primitive operations only.
"""

from __future__ import annotations

from cleave.ir.program import Program
from cleave.ir.text import parse_program

TEXTS: dict[str, str] = {}

TEXTS["softmax"] = """
program softmax(x: f32[N, K]) {
  m[n: N]: f32 = max[k: K](x[n, k])
  c[n: N, k: K]: f32 = sub(x[n, k], m[n])
  e[n: N, k: K]: f32 = exp(c[n, k])
  s[n: N]: f32 = sum[k: K](e[n, k])
  y[n: N, k: K]: f32 = div(e[n, k], s[n])
  return y[n, k]
}
"""

# Grouped queries (h = kv*G + g), bottom-right causal, the scale given at the call, the log-sum-exp in base e.
TEXTS["attention"] = """
program attention(q: f32[KV*G, S, D], k: f32[KV, T, D], v: f32[KV, T, D], scale: scalar f32) {
  qk[kv: KV, g: G, s: S, t: T]: f32 = contract[d: D](q[kv, g, s, d], k[kv, t, d])
  scaled[kv: KV, g: G, s: S, t: T]: f32 = mul(qk[kv, g, s, t], scale)
  row[s: S]: i64 = index(s + T - S)
  column[t: T]: i64 = index(t)
  seen[s: S, t: T]: bool = le(column[t], row[s])
  score[kv: KV, g: G, s: S, t: T]: f32 = select(seen[s, t], scaled[kv, g, s, t], -inf)
  m[kv: KV, g: G, s: S]: f32 = max[t: T](score[kv, g, s, t])
  c[kv: KV, g: G, s: S, t: T]: f32 = sub(score[kv, g, s, t], m[kv, g, s])
  e[kv: KV, g: G, s: S, t: T]: f32 = exp(c[kv, g, s, t])
  l[kv: KV, g: G, s: S]: f32 = sum[t: T](e[kv, g, s, t])
  p[kv: KV, g: G, s: S, t: T]: f32 = div(e[kv, g, s, t], l[kv, g, s])
  o[kv: KV, g: G, s: S, d: D]: f32 = contract[t: T](p[kv, g, s, t], v[kv, t, d])
  log_l[kv: KV, g: G, s: S]: f32 = log(l[kv, g, s])
  lse[kv: KV, g: G, s: S]: f32 = add(m[kv, g, s], log_l[kv, g, s])
  return o[kv*g, s, d], lse[kv*g, s]
}
"""

# As PyTorch's own attention function has it: a row that sees nothing gives 0.
TEXTS["masked_attention"] = """
program masked_attention(q: f32[H, S, D], k: f32[H, T, D], v: f32[H, T, E], mask: bool[S, T]) where D = 8 {
  qk[h: H, s: S, t: T]: f32 = contract[d: D](q[h, s, d], k[h, t, d])
  scaled[h: H, s: S, t: T]: f32 = mul(qk[h, s, t], 0.3535533905932738)
  score[h: H, s: S, t: T]: f32 = select(mask[s, t], scaled[h, s, t], -inf)
  m[h: H, s: S]: f32 = max[t: T](score[h, s, t])
  c[h: H, s: S, t: T]: f32 = sub(score[h, s, t], m[h, s])
  e[h: H, s: S, t: T]: f32 = exp(c[h, s, t])
  l[h: H, s: S]: f32 = sum[t: T](e[h, s, t])
  p[h: H, s: S, t: T]: f32 = div(e[h, s, t], l[h, s])
  seen[s: S]: bool = any[t: T](mask[s, t])
  safe[h: H, s: S, t: T]: f32 = select(seen[s], p[h, s, t], 0.0)
  o[h: H, s: S, e2: E]: f32 = contract[t: T](safe[h, s, t], v[h, t, e2])
  return o[h, s, e2]
}
"""

TEXTS["rms_linear"] = """
program rms_linear(x: f32[N, K], g: f32[K], w: f32[O, K], eps: scalar f32) {
  sq[n: N, k: K]: f32 = mul(x[n, k], x[n, k])
  ss[n: N]: f32 = sum[k: K](sq[n, k])
  ms[n: N]: f32 = div(ss[n], size(K))
  shifted[n: N]: f32 = add(ms[n], eps)
  r[n: N]: f32 = rsqrt(shifted[n])
  xr[n: N, k: K]: f32 = mul(x[n, k], r[n])
  xg[n: N, k: K]: f32 = mul(xr[n, k], g[k])
  y[n: N, o: O]: f32 = contract[k: K](xg[n, k], w[o, k])
  return y[n, o]
}
"""

TEXTS["layer_norm"] = """
program layer_norm(x: f32[N, K], g: f32[K], b: f32[K]) {
  total[n: N]: f32 = sum[k: K](x[n, k])
  mean[n: N]: f32 = div(total[n], size(K))
  c[n: N, k: K]: f32 = sub(x[n, k], mean[n])
  sq[n: N, k: K]: f32 = mul(c[n, k], c[n, k])
  ss[n: N]: f32 = sum[k: K](sq[n, k])
  variance[n: N]: f32 = div(ss[n], size(K))
  shifted[n: N]: f32 = add(variance[n], 1e-05)
  r[n: N]: f32 = rsqrt(shifted[n])
  normed[n: N, k: K]: f32 = mul(c[n, k], r[n])
  scaled[n: N, k: K]: f32 = mul(normed[n, k], g[k])
  y[n: N, k: K]: f32 = add(scaled[n, k], b[k])
  return y[n, k]
}
"""

TEXTS["matmul"] = """
program matmul(a: f32[M, K], b: f32[K, N]) {
  y[m: M, n: N]: f32 = contract[k: K](a[m, k], b[k, n])
  return y[m, n]
}
"""

TEXTS["matmul_matmul"] = """
program matmul_matmul(a: f32[M, K], b: f32[K, L], c: f32[L, N]) {
  ab[m: M, l: L]: f32 = contract[k: K](a[m, k], b[k, l])
  y[m: M, n: N]: f32 = contract[l: L](ab[m, l], c[l, n])
  return y[m, n]
}
"""

TEXTS["matmul_rowsum"] = """
program matmul_rowsum(a: f32[M, K], b: f32[K, N]) {
  y[m: M, n: N]: f32 = contract[k: K](a[m, k], b[k, n])
  total[m: M]: f32 = sum[n: N](y[m, n])
  return total[m]
}
"""

TEXTS["swiglu"] = """
program swiglu(x: f32[N, K], gate: f32[F, K], up: f32[F, K]) {
  a[n: N, f: F]: f32 = contract[k: K](x[n, k], gate[f, k])
  b[n: N, f: F]: f32 = contract[k: K](x[n, k], up[f, k])
  minus[n: N, f: F]: f32 = neg(a[n, f])
  e[n: N, f: F]: f32 = exp(minus[n, f])
  below[n: N, f: F]: f32 = add(e[n, f], 1.0)
  silu[n: N, f: F]: f32 = div(a[n, f], below[n, f])
  y[n: N, f: F]: f32 = mul(silu[n, f], b[n, f])
  return y[n, f]
}
"""

# One latent vector per position serves all heads as key (with 64 rotary channels more) and as value.
_MLA_BODY = """
  m[h: H, s: S]: f32 = max[t: T](score[h, s, t])
  c[h: H, s: S, t: T]: f32 = sub(score[h, s, t], m[h, s])
  e[h: H, s: S, t: T]: f32 = exp(c[h, s, t])
  l[h: H, s: S]: f32 = sum[t: T](e[h, s, t])
  p[h: H, s: S, t: T]: f32 = div(e[h, s, t], l[h, s])
  o[h: H, s: S, c: C]: f32 = contract[t: T](p[h, s, t], kv[t, in0(c)])
  return o[s, h, c]
}
"""

TEXTS["mla_decode"] = (
    """
program mla_decode(q: f32[S, H, (C | R)], kv: f32[T, (C | R)], scale: scalar f32) where S = 1 {
  qk[h: H, s: S, t: T]: f32 = contract[c_r: (C | R)](q[s, h, c_r], kv[t, c_r])
  score[h: H, s: S, t: T]: f32 = mul(qk[h, s, t], scale)
"""
    + _MLA_BODY
)

TEXTS["mla_prefill"] = (
    """
program mla_prefill(q: f32[S, H, (C | R)], kv: f32[T, (C | R)], scale: scalar f32) {
  qk[h: H, s: S, t: T]: f32 = contract[c_r: (C | R)](q[s, h, c_r], kv[t, c_r])
  scaled[h: H, s: S, t: T]: f32 = mul(qk[h, s, t], scale)
  row[s: S]: i64 = index(s + T - S)
  column[t: T]: i64 = index(t)
  seen[s: S, t: T]: bool = le(column[t], row[s])
  score[h: H, s: S, t: T]: f32 = select(seen[s, t], scaled[h, s, t], -inf)
"""
    + _MLA_BODY
)

TEXTS["embedding"] = """
program embedding(table: f32[V, D], ids: i64[B, L], rows: f32[P, D]) {
  y[b: B, l: L, d: D]: f32 = add(table[ids[b, l], d], rows[l + 1, d])
  return y[b*l, d]
}
"""

TEXTS["cross_entropy"] = """
program cross_entropy(x: f32[N, V], target: i64[N]) {
  m[n: N]: f32 = max[v: V](x[n, v])
  c[n: N, v: V]: f32 = sub(x[n, v], m[n])
  e[n: N, v: V]: f32 = exp(c[n, v])
  l[n: N]: f32 = sum[v: V](e[n, v])
  log_l[n: N]: f32 = log(l[n])
  each[n: N]: f32 = sub(log_l[n], c[n, target[n]])
  total[]: f32 = sum[n: N](each[n])
  loss: f32 = div(total, size(N))
  return loss
}
"""

# Keys of the past and a new one, joined, then attended to by one query.
TEXTS["past_keys"] = """
program past_keys(q: f32[H, D], past: f32[H, T, D], new: f32[H, N, D]) {
  k[h: H, t: (T | N), d: D]: f32 = cat[t = a | b](past[h, a, d], new[h, b, d])
  score[h: H, t: (T | N)]: f32 = contract[d: D](q[h, d], k[h, t, d])
  m[h: H]: f32 = max[t: (T | N)](score[h, t])
  e[h: H, t: (T | N)]: f32 = sub(score[h, t], m[h])
  return e[h, t], k[h, t, d]
}
"""

# Halves of the last axis swapped, with a sign: what rotary embeddings do.
TEXTS["rotate_half"] = """
program rotate_half(x: f32[S, (A | B)], cosine: f32[S, (A | B)], sine: f32[S, (A | B)]) where A = 4, B = A {
  minus[s: S, b: B]: f32 = neg(x[s, in1(b)])
  turned[s: S, a: (B | A)]: f32 = cat[a = b | c](minus[s, b], x[s, in0(c)])
  straight[s: S, d: (A | B)]: f32 = mul(x[s, d], cosine[s, d])
  bent[s: S, d: (A | B)]: f32 = mul(turned[s, d], sine[s, d])
  y[s: S, d: (A | B)]: f32 = add(straight[s, d], bent[s, d])
  return y[s, d]
}
"""

TEXTS["slices"] = """
program slices(x: f32[N, K]) where M = N - 2, J = 3 {
  step[m: M, k: K]: f32 = sub(x[m + 2, k], x[m, k])
  every[j: J]: f32 = mul(x[2*j, 0], x[N - 1 - j, K - 1])
  diagonal[j: J]: f32 = abs(x[j, j])
  return step[k, m], every[j], diagonal[1, j, 1]
}
"""

# The position before is read everywhere, and kept where it exists.
TEXTS["token_shift"] = """
program token_shift(x: f32[B*T, C], mix: f32[C]) {
  at[t: T]: i64 = index(t)
  first[t: T]: bool = eq(at[t], 0)
  before[b: B, t: T, c: C]: f32 = select(first[t], 0.0, x[b, t - 1, c])
  change[b: B, t: T, c: C]: f32 = sub(before[b, t, c], x[b, t, c])
  part_of[b: B, t: T, c: C]: f32 = mul(change[b, t, c], mix[c])
  y[b: B, t: T, c: C]: f32 = add(x[b, t, c], part_of[b, t, c])
  return y[b*t, c]
}
"""

TEXTS["moments"] = """
program moments(x: f32[N, 1, K], shift: scalar f64) where K = 6 {
  total[n: N]: f32 = sum[k: K](x[n, k])
  mean[n: N]: f32 = div(total[n], size(K))
  high[n: N]: f32 = max[k: K](x[n, k])
  low[n: N]: f32 = min[k: K](x[n, k])
  positive[n: N, k: K]: bool = gt(x[n, k], shift)
  found[n: N]: bool = any[k: K](positive[n, k])
  one[n: N, k: K]: i64 = cast(positive[n, k])
  count[n: N]: i64 = sum[k: K](one[n, k])
  y[n: N, k: K]: f32 = sub(x[n, k], mean[n])
  return mean[n], high[n, 1], low[n], found[n], count[n], centred: y[k, n]
}
"""

# The same row softmax over two levels: a maximum and a sum per part of the columns, then merged.
TEXTS["split_softmax"] = """
program split_softmax(x: f32[N, K]) {
  m[n: N, p: parts(K)]: f32 = max[k: part(K)](x[n, join(p, k)])
  unseen[n: N, p: parts(K)]: bool = eq(m[n, p], -inf)
  u[n: N, p: parts(K)]: f32 = select(unseen[n, p], 0.0, m[n, p])
  c[n: N, p: parts(K), k: part(K)]: f32 = sub(x[n, join(p, k)], u[n, p])
  e[n: N, p: parts(K), k: part(K)]: f32 = exp(c[n, p, k])
  s[n: N, p: parts(K)]: f32 = sum[k: part(K)](e[n, p, k])
  top[n: N]: f32 = max[p: parts(K)](m[n, p])
  gap[n: N, p: parts(K)]: f32 = sub(m[n, p], top[n])
  weight[n: N, p: parts(K)]: f32 = exp(gap[n, p])
  total[n: N]: f32 = contract[p: parts(K)](weight[n, p], s[n, p])
  shifted[n: N, k: K]: f32 = sub(x[n, k], top[n])
  raised[n: N, k: K]: f32 = exp(shifted[n, k])
  y[n: N, k: K]: f32 = div(raised[n, k], total[n])
  return y[n, k]
}
"""

TEXTS["split_k"] = """
program split_k(a: f32[M, K], b: f32[K, N]) {
  part_sum[p: parts(K), m: M, n: N]: f32 = contract[k: part(K)](a[m, join(p, k)], b[join(p, k), n])
  y[m: M, n: N]: f32 = sum[p: parts(K)](part_sum[p, m, n])
  return y[m, n]
}
"""

PROGRAMS: dict[str, Program] = {name: parse_program(text) for name, text in TEXTS.items()}


def program(name: str) -> Program:
    """An example by its name."""
    return PROGRAMS[name]
