"""Cascades over one index: moments, norms, distributions. See `cascades`."""

from __future__ import annotations

TEXTS: dict[str, str] = {}
"""Programs whose reductions one loop computes."""


def _exponentials(score: str, over: str, name: str) -> str:
    """The maximum of `score` over `over`, exponentials of what is below it, and their sum."""
    n, d = name, over
    return f"""
  m{n}[n: N]: f32 = max[k: {d}]({score}[n, k])
  c{n}[n: N, k: {d}]: f32 = sub({score}[n, k], m{n}[n])
  e{n}[n: N, k: {d}]: f32 = exp(c{n}[n, k])
  l{n}[n: N]: f32 = sum[k: {d}](e{n}[n, k])"""


def rows(score: str, over: str, name: str = "") -> str:
    """A softmax of `score` over `over` with its maximum: `m`, `c`, `e`, `l`, `p`."""
    n, d = name, over
    return f"""{_exponentials(score, over, name)}
  p{n}[n: N, k: {d}]: f32 = div(e{n}[n, k], l{n}[n])"""


def log_rows(score: str, over: str, name: str = "") -> str:
    """`lp`, the log-softmax of `score`, with `p`, its exponential."""
    n, d = name, over
    return f"""{_exponentials(score, over, name)}
  ll{n}[n: N]: f32 = log(l{n}[n])
  lp{n}[n: N, k: {d}]: f32 = sub(c{n}[n, k], ll{n}[n])
  p{n}[n: N, k: {d}]: f32 = exp(lp{n}[n, k])"""


MOMENTS = """
  s[n: N]: f32 = sum[k: K](x[n, k])
  mu[n: N]: f32 = div(s[n], size(K))
  c[n: N, k: K]: f32 = sub(x[n, k], mu[n])
  q[n: N, k: K]: f32 = mul(c[n, k], c[n, k])
  ss[n: N]: f32 = sum[k: K](q[n, k])
  v[n: N]: f32 = div(ss[n], size(K))"""

# ---------------------------------------------------------------- moments

TEXTS["variance"] = f"""
program variance(x: f32[N, K]) {{{MOMENTS}
  return v[n]
}}
"""
TEXTS["unbiased"] = """
program unbiased(x: f32[N, K]) {
  s[n: N]: f32 = sum[k: K](x[n, k])
  mu[n: N]: f32 = div(s[n], size(K))
  c[n: N, k: K]: f32 = sub(x[n, k], mu[n])
  q[n: N, k: K]: f32 = mul(c[n, k], c[n, k])
  ss[n: N]: f32 = sum[k: K](q[n, k])
  below: f32 = sub(size(K), 1.0)
  v[n: N]: f32 = div(ss[n], below)
  return v[n], mu[n]
}
"""
TEXTS["deviation"] = f"""
program deviation(x: f32[N, K]) {{{MOMENTS}
  y[n: N]: f32 = sqrt(v[n])
  return y[n], mu[n]
}}
"""
TEXTS["two_squares"] = """
program two_squares(x: f32[N, K]) {
  s[n: N]: f32 = sum[k: K](x[n, k])
  q[n: N, k: K]: f32 = mul(x[n, k], x[n, k])
  ss[n: N]: f32 = sum[k: K](q[n, k])
  mu[n: N]: f32 = div(s[n], size(K))
  ms[n: N]: f32 = div(ss[n], size(K))
  mm[n: N]: f32 = mul(mu[n], mu[n])
  v[n: N]: f32 = sub(ms[n], mm[n])
  return v[n], mu[n]
}
"""
TEXTS["five_in_one_pass"] = f"""
program five_in_one_pass(x: f32[N, K]) {{{MOMENTS}
  low[n: N]: f32 = min[k: K](x[n, k])
  high[n: N]: f32 = max[k: K](x[n, k])
  return mu[n], v[n], low[n], high[n], s[n]
}}
"""
TEXTS["skewness"] = f"""
program skewness(x: f32[N, K]) {{{MOMENTS}
  t[n: N, k: K]: f32 = mul(q[n, k], c[n, k])
  st[n: N]: f32 = sum[k: K](t[n, k])
  f[n: N, k: K]: f32 = mul(q[n, k], q[n, k])
  sf[n: N]: f32 = sum[k: K](f[n, k])
  return v[n], st[n], sf[n]
}}
"""
TEXTS["covariance"] = """
program covariance(x: f32[N, K], y: f32[N, K]) {
  sx[n: N]: f32 = sum[k: K](x[n, k])
  mx[n: N]: f32 = div(sx[n], size(K))
  sy[n: N]: f32 = sum[k: K](y[n, k])
  my[n: N]: f32 = div(sy[n], size(K))
  cx[n: N, k: K]: f32 = sub(x[n, k], mx[n])
  cy[n: N, k: K]: f32 = sub(y[n, k], my[n])
  xy[n: N]: f32 = contract[k: K](cx[n, k], cy[n, k])
  xx[n: N]: f32 = contract[k: K](cx[n, k], cx[n, k])
  yy[n: N]: f32 = contract[k: K](cy[n, k], cy[n, k])
  b[n: N]: f32 = mul(xx[n], yy[n])
  root[n: N]: f32 = sqrt(b[n])
  r[n: N]: f32 = div(xy[n], root[n])
  return r[n], xy[n]
}
"""
TEXTS["weighted_variance"] = """
program weighted_variance(x: f32[N, K], w: f32[K]) {
  h[k: K]: f32 = mul(w[k], w[k])
  weight: f32 = sum[k: K](h[k])
  total[n: N]: f32 = contract[k: K](x[n, k], h[k])
  mean[n: N]: f32 = div(total[n], weight)
  c[n: N, k: K]: f32 = sub(x[n, k], mean[n])
  q[n: N, k: K]: f32 = mul(c[n, k], c[n, k])
  spread[n: N]: f32 = contract[k: K](q[n, k], h[k])
  v[n: N]: f32 = div(spread[n], weight)
  return mean[n], v[n]
}
"""

# ---------------------------------------------------------------- norms

_SCALED = """
  e[n: N]: f32 = add(v[n], eps)
  r[n: N]: f32 = rsqrt(e[n])
  cr[n: N, k: K]: f32 = mul(c[n, k], r[n])
  cg[n: N, k: K]: f32 = mul(cr[n, k], g[k])
  cb[n: N, k: K]: f32 = add(cg[n, k], b[k])"""
TEXTS["centred_norm"] = f"""
program centred_norm(x: f32[N, K], g: f32[K], b: f32[K], eps: scalar f32) {{{MOMENTS}{_SCALED}
  return cb[n, k]
}}
"""
TEXTS["centred_norm_matmul"] = f"""
program centred_norm_matmul(
  x: f32[N, K], g: f32[K], b: f32[K], w: f32[K, O], eps: scalar f32
) {{{MOMENTS}{_SCALED}
  y[n: N, o: O]: f32 = contract[k: K](cb[n, k], w[k, o])
  return y[n, o]
}}
"""
TEXTS["grouped_norm"] = """
program grouped_norm(x: f32[N, G, C, P], g: f32[G, C], b: f32[G, C]) {
  s[n: N, g0: G]: f32 = sum[c: C, p: P](x[n, g0, c, p])
  area: f32 = mul(size(C), size(P))
  mu[n: N, g0: G]: f32 = div(s[n, g0], area)
  d[n: N, g0: G, c: C, p: P]: f32 = sub(x[n, g0, c, p], mu[n, g0])
  q[n: N, g0: G, c: C, p: P]: f32 = mul(d[n, g0, c, p], d[n, g0, c, p])
  ss[n: N, g0: G]: f32 = sum[c: C, p: P](q[n, g0, c, p])
  v[n: N, g0: G]: f32 = div(ss[n, g0], area)
  e[n: N, g0: G]: f32 = add(v[n, g0], 1e-05)
  r[n: N, g0: G]: f32 = rsqrt(e[n, g0])
  dr[n: N, g0: G, c: C, p: P]: f32 = mul(d[n, g0, c, p], r[n, g0])
  y[n: N, g0: G, c: C, p: P]: f32 = mul(dr[n, g0, c, p], g[g0, c])
  z[n: N, g0: G, c: C, p: P]: f32 = add(y[n, g0, c, p], b[g0, c])
  return z[n, g0*c, p]
}
"""
TEXTS["grouped_norm_matmul"] = """
program grouped_norm_matmul(x: f32[N, G, C], w: f32[G, C, O]) {
  s[n: N, g: G]: f32 = sum[c: C](x[n, g, c])
  mu[n: N, g: G]: f32 = div(s[n, g], size(C))
  d[n: N, g: G, c: C]: f32 = sub(x[n, g, c], mu[n, g])
  ss[n: N, g: G]: f32 = contract[c: C](d[n, g, c], d[n, g, c])
  v[n: N, g: G]: f32 = div(ss[n, g], size(C))
  e[n: N, g: G]: f32 = add(v[n, g], 1e-05)
  r[n: N, g: G]: f32 = rsqrt(e[n, g])
  dr[n: N, g: G, c: C]: f32 = mul(d[n, g, c], r[n, g])
  y[n: N, g: G, o: O]: f32 = contract[c: C](dr[n, g, c], w[g, c, o])
  return y[n, g, o]
}
"""
TEXTS["clamped_length"] = """
program clamped_length(x: f32[N, K], w: f32[K, O]) {
  ss[n: N]: f32 = contract[k: K](x[n, k], x[n, k])
  root[n: N]: f32 = sqrt(ss[n])
  below[n: N]: f32 = max(root[n], 1e-12)
  u[n: N, k: K]: f32 = div(x[n, k], below[n])
  y[n: N, o: O]: f32 = contract[k: K](u[n, k], w[k, o])
  return y[n, o]
}
"""
TEXTS["between_extremes"] = """
program between_extremes(x: f32[N, K], w: f32[K, O]) {
  low[n: N]: f32 = min[k: K](x[n, k])
  high[n: N]: f32 = max[k: K](x[n, k])
  wide[n: N]: f32 = sub(high[n], low[n])
  c[n: N, k: K]: f32 = sub(x[n, k], low[n])
  u[n: N, k: K]: f32 = div(c[n, k], wide[n])
  y[n: N, o: O]: f32 = contract[k: K](u[n, k], w[k, o])
  return y[n, o]
}
"""
TEXTS["scaled_by_largest"] = """
program scaled_by_largest(x: f32[N, K], w: f32[K, O]) {
  a[n: N, k: K]: f32 = abs(x[n, k])
  m[n: N]: f32 = max[k: K](a[n, k])
  u[n: N, k: K]: f32 = div(x[n, k], m[n])
  y[n: N, o: O]: f32 = contract[k: K](u[n, k], w[k, o])
  return y[n, o]
}
"""
TEXTS["largest_deviation"] = f"""
program largest_deviation(x: f32[N, K]) {{{MOMENTS}
  far[n: N, k: K]: f32 = abs(c[n, k])
  top[n: N]: f32 = max[k: K](far[n, k])
  high[n: N]: f32 = max[k: K](c[n, k])
  low[n: N]: f32 = min[k: K](c[n, k])
  return top[n], v[n], high[n], low[n]
}}
"""
TEXTS["largest_share"] = f"""
program largest_share(x: f32[N, K], v: f32[K, O]) {{{rows("x", "K")}
  top[n: N]: f32 = max[k: K](p[n, k])
  least[n: N]: f32 = min[k: K](p[n, k])
  y[n: N, o: O]: f32 = contract[k: K](p[n, k], v[k, o])
  return top[n], least[n], y[n, o]
}}
"""

# ---------------------------------------------------------------- distributions

TEXTS["entropy"] = f"""
program entropy(x: f32[N, K]) {{{rows("x", "K")}
  lp[n: N, k: K]: f32 = log(p[n, k])
  h[n: N, k: K]: f32 = mul(p[n, k], lp[n, k])
  s[n: N]: f32 = sum[k: K](h[n, k])
  y[n: N]: f32 = neg(s[n])
  return y[n]
}}
"""
TEXTS["perplexity"] = f"""
program perplexity(x: f32[N, K]) {{{log_rows("x", "K")}
  s[n: N]: f32 = contract[k: K](p[n, k], lp[n, k])
  h[n: N]: f32 = neg(s[n])
  y[n: N]: f32 = exp(h[n])
  return y[n]
}}
"""
TEXTS["divergence"] = f"""
program divergence(x: f32[N, K], z: f32[N, K]) {{{log_rows("x", "K")}{log_rows("z", "K", "2")}
  gap[n: N, k: K]: f32 = sub(lp[n, k], lp2[n, k])
  y[n: N]: f32 = contract[k: K](p[n, k], gap[n, k])
  return y[n]
}}
"""
TEXTS["divergence_of_shares"] = f"""
program divergence_of_shares(x: f32[N, K], z: f32[N, K]) {{{rows("x", "K")}{rows("z", "K", "2")}
  r[n: N, k: K]: f32 = div(p[n, k], p2[n, k])
  lr[n: N, k: K]: f32 = log(r[n, k])
  y[n: N]: f32 = contract[k: K](p[n, k], lr[n, k])
  return y[n]
}}
"""
TEXTS["smoothed_loss"] = f"""
program smoothed_loss(x: f32[N, K], target: i64[N], alpha: scalar f32) {{{log_rows("x", "K")}
  s[n: N]: f32 = sum[k: K](lp[n, k])
  mean[n: N]: f32 = div(s[n], size(K))
  right: f32 = sub(1.0, alpha)
  a[n: N]: f32 = mul(lp[n, target[n]], right)
  b[n: N]: f32 = mul(mean[n], alpha)
  c0[n: N]: f32 = add(a[n], b[n])
  each[n: N]: f32 = neg(c0[n])
  total: f32 = sum[n: N](each[n])
  loss: f32 = div(total, size(N))
  return loss
}}
"""
TEXTS["smoothed_loss_of_logits"] = f"""
program smoothed_loss_of_logits(h: f32[N, D], w: f32[K, D], target: i64[N], alpha: scalar f32) {{
  x[n: N, k: K]: f32 = contract[d: D](h[n, d], w[k, d]){log_rows("x", "K")}
  at[k: K]: i64 = index(k)
  hit[n: N, k: K]: bool = eq(at[k], target[n])
  right: f32 = sub(1.0, alpha)
  rest: f32 = div(alpha, size(K))
  best: f32 = add(right, rest)
  t[n: N, k: K]: f32 = select(hit[n, k], best, rest)
  s[n: N]: f32 = contract[k: K](t[n, k], lp[n, k])
  each[n: N]: f32 = neg(s[n])
  return each[n]
}}
"""
TEXTS["squared_normaliser"] = """
program squared_normaliser(x: f32[N, K], target: i64[N]) {
  m[n: N]: f32 = max[k: K](x[n, k])
  c[n: N, k: K]: f32 = sub(x[n, k], m[n])
  e[n: N, k: K]: f32 = exp(c[n, k])
  l[n: N]: f32 = sum[k: K](e[n, k])
  ll[n: N]: f32 = log(l[n])
  lse[n: N]: f32 = add(m[n], ll[n])
  own[n: N]: f32 = sub(lse[n], x[n, target[n]])
  z[n: N]: f32 = mul(lse[n], lse[n])
  y[n: N]: f32 = add(own[n], z[n])
  return y[n]
}
"""
TEXTS["variance_of_shares"] = f"""
program variance_of_shares(x: f32[N, K], y: f32[N, K]) {{{rows("x", "K")}
  mu[n: N]: f32 = contract[k: K](p[n, k], y[n, k])
  d[n: N, k: K]: f32 = sub(y[n, k], mu[n])
  dd[n: N, k: K]: f32 = mul(d[n, k], d[n, k])
  v[n: N]: f32 = contract[k: K](p[n, k], dd[n, k])
  return mu[n], v[n]
}}
"""
TEXTS["gradient"] = f"""
program gradient(x: f32[N, K], up: f32[N, K], w: f32[K, O]) {{{rows("x", "K")}
  delta[n: N]: f32 = contract[k: K](p[n, k], up[n, k])
  gap[n: N, k: K]: f32 = sub(up[n, k], delta[n])
  dx[n: N, k: K]: f32 = mul(p[n, k], gap[n, k])
  y[n: N, o: O]: f32 = contract[k: K](dx[n, k], w[k, o])
  return y[n, o]
}}
"""
TEXTS["weighted_log_sum"] = """
program weighted_log_sum(x: f32[N, K], w: f32[K]) {
  m[n: N]: f32 = max[k: K](x[n, k])
  c[n: N, k: K]: f32 = sub(x[n, k], m[n])
  e[n: N, k: K]: f32 = exp(c[n, k])
  h[k: K]: f32 = mul(w[k], w[k])
  l[n: N]: f32 = contract[k: K](e[n, k], h[k])
  ll[n: N]: f32 = log(l[n])
  lse[n: N]: f32 = add(m[n], ll[n])
  return lse[n]
}
"""
TEXTS["temperature"] = f"""
program temperature(x: f32[N, K], v: f32[K, O], t: scalar f32) {{
  z[n: N, k: K]: f32 = mul(x[n, k], t){rows("z", "K")}
  y[n: N, o: O]: f32 = contract[k: K](p[n, k], v[k, o])
  return y[n, o]
}}
"""
TEXTS["both_ways"] = """
program both_ways(x: f32[N, N]) {
  m[n: N]: f32 = max[k: N](x[n, k])
  c[n: N, k: N]: f32 = sub(x[n, k], m[n])
  e[n: N, k: N]: f32 = exp(c[n, k])
  l[n: N]: f32 = sum[k: N](e[n, k])
  ll[n: N]: f32 = log(l[n])
  a[n: N]: f32 = add(m[n], ll[n])
  m2[k: N]: f32 = max[n: N](x[n, k])
  c2[n: N, k: N]: f32 = sub(x[n, k], m2[k])
  e2[n: N, k: N]: f32 = exp(c2[n, k])
  l2[k: N]: f32 = sum[n: N](e2[n, k])
  ll2[k: N]: f32 = log(l2[k])
  b[k: N]: f32 = add(m2[k], ll2[k])
  return a[n], b[k]
}
"""

TEXTS["centred_shares"] = """
program centred_shares(x: f32[N, K], v: f32[K, O]) {
  s[n: N]: f32 = sum[k: K](x[n, k])
  mu[n: N]: f32 = div(s[n], size(K))
  z[n: N, k: K]: f32 = sub(x[n, k], mu[n])
  m[n: N]: f32 = max[k: K](z[n, k])
  c[n: N, k: K]: f32 = sub(z[n, k], m[n])
  e[n: N, k: K]: f32 = exp(c[n, k])
  l[n: N]: f32 = sum[k: K](e[n, k])
  y0[n: N, o: O]: f32 = contract[k: K](e[n, k], v[k, o])
  y[n: N, o: O]: f32 = div(y0[n, o], l[n])
  return y[n, o]
}
"""
TEXTS["largest_normed"] = f"""
program largest_normed(x: f32[N, K], eps: scalar f32) {{{MOMENTS}
  b[n: N]: f32 = add(v[n], eps)
  r[n: N]: f32 = rsqrt(b[n])
  u[n: N, k: K]: f32 = mul(c[n, k], r[n])
  a[n: N, k: K]: f32 = abs(u[n, k])
  top[n: N]: f32 = max[k: K](a[n, k])
  scale[n: N]: f32 = div(top[n], 127.0)
  return scale[n]
}}
"""
TEXTS["masked_moments"] = """
program masked_moments(x: f32[N, K], seen: bool[N, K]) {
  one[n: N, k: K]: f32 = select(seen[n, k], 1.0, 0.0)
  z[n: N, k: K]: f32 = select(seen[n, k], x[n, k], 0.0)
  count[n: N]: f32 = sum[k: K](one[n, k])
  s[n: N]: f32 = sum[k: K](z[n, k])
  some[n: N]: f32 = max(count[n], 1.0)
  mu[n: N]: f32 = div(s[n], some[n])
  c[n: N, k: K]: f32 = sub(x[n, k], mu[n])
  d[n: N, k: K]: f32 = select(seen[n, k], c[n, k], 0.0)
  q[n: N, k: K]: f32 = mul(d[n, k], d[n, k])
  ss[n: N]: f32 = sum[k: K](q[n, k])
  v[n: N]: f32 = div(ss[n], some[n])
  return mu[n], v[n]
}
"""
TEXTS["geometric_mean"] = """
program geometric_mean(x: f32[N, K], w: f32[K, O]) {
  a[n: N, k: K]: f32 = mul(x[n, k], x[n, k])
  b[n: N, k: K]: f32 = add(a[n, k], 1.0)
  lg[n: N, k: K]: f32 = log(b[n, k])
  s[n: N]: f32 = sum[k: K](lg[n, k])
  mean[n: N]: f32 = div(s[n], size(K))
  g[n: N]: f32 = exp(mean[n])
  u[n: N, k: K]: f32 = div(x[n, k], g[n])
  y[n: N, o: O]: f32 = contract[k: K](u[n, k], w[k, o])
  return y[n, o]
}
"""
