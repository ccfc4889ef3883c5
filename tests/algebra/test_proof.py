"""Equalities that must be proved, each confirmed by the second opinion."""

from __future__ import annotations

import time

import pytest
from algebra.pairs import program, refuted
from programs import PROGRAMS

from cleave.algebra.proof import prove

PAIRS: dict[str, tuple[str, str, str]] = {}

X = "x[N, K]"
SOFTMAX = """
m[n: N] = max[k: K](x[n, k])
c[n: N, k: K] = sub(x[n, k], m[n])
e[n: N, k: K] = exp(c[n, k])
s[n: N] = sum[k: K](e[n, k])
y[n: N, k: K] = div(e[n, k], s[n])
-> y[n, k]
"""
UNSAFE = """
e[n: N, k: K] = exp(x[n, k])
s[n: N] = sum[k: K](e[n, k])
y[n: N, k: K] = div(e[n, k], s[n])
-> y[n, k]
"""
PAIRS["safe and unsafe"] = (X, SOFTMAX, UNSAFE)
PAIRS["through the log of the sum"] = (
    X,
    SOFTMAX,
    """
    e[n: N, k: K] = exp(x[n, k])
    s[n: N] = sum[k: K](e[n, k])
    l[n: N] = log(s[n])
    c[n: N, k: K] = sub(x[n, k], l[n])
    y[n: N, k: K] = exp(c[n, k])
    -> y[n, k]
    """,
)
ATTENTION = """
qk[s: S, t: T] = contract[d: D](q[s, d], k[t, d])
m[s: S] = max[t: T](qk[s, t])
c[s: S, t: T] = sub(qk[s, t], m[s])
e[s: S, t: T] = exp(c[s, t])
l[s: S] = sum[t: T](e[s, t])
p[s: S, t: T] = div(e[s, t], l[s])
o[s: S, f: F] = contract[t: T](p[s, t], v[t, f])
-> o[s, f]
"""
QKV = "q[S, D], k[T, D], v[T, F]"
PAIRS["divided last"] = (
    QKV,
    ATTENTION,
    """
    qk[s: S, t: T] = contract[d: D](q[s, d], k[t, d])
    e[s: S, t: T] = exp(qk[s, t])
    l[s: S] = sum[t: T](e[s, t])
    a[s: S, f: F] = contract[t: T](e[s, t], v[t, f])
    o[s: S, f: F] = div(a[s, f], l[s])
    -> o[s, f]
    """,
)
SPLIT_SCORES = """
qk[p: parts(T), s: S, t: part(T)] = contract[d: D](q[s, d], k[join(p, t), d])
"""
PAIRS["split with maxima of parts"] = (
    QKV,
    ATTENTION,
    SPLIT_SCORES
    + """
    m[p: parts(T), s: S] = max[t: part(T)](qk[p, s, t])
    c[p: parts(T), s: S, t: part(T)] = sub(qk[p, s, t], m[p, s])
    e[p: parts(T), s: S, t: part(T)] = exp(c[p, s, t])
    l[p: parts(T), s: S] = sum[t: part(T)](e[p, s, t])
    a[p: parts(T), s: S, f: F] = contract[t: part(T)](e[p, s, t], v[join(p, t), f])
    top[s: S] = max[p: parts(T)](m[p, s])
    gap[p: parts(T), s: S] = sub(m[p, s], top[s])
    w[p: parts(T), s: S] = exp(gap[p, s])
    total[s: S] = contract[p: parts(T)](w[p, s], l[p, s])
    sums[s: S, f: F] = contract[p: parts(T)](w[p, s], a[p, s, f])
    o[s: S, f: F] = div(sums[s, f], total[s])
    -> o[s, f]
    """,
)
LSE = """
qk[p: parts(T), s: S, t: part(T)] = contract[d: D](q[s, d], k[join(p, t), d])
e[p: parts(T), s: S, t: part(T)] = exp(qk[p, s, t])
l[p: parts(T), s: S] = sum[t: part(T)](e[p, s, t])
a[p: parts(T), s: S, f: F] = contract[t: part(T)](e[p, s, t], v[join(p, t), f])
o[p: parts(T), s: S, f: F] = div(a[p, s, f], l[p, s])
lse[p: parts(T), s: S] = log(l[p, s])
"""
MASKED = QKV + ", mask: bool[S, T]"
MASKED_SCORES = """
qk[s: S, t: T] = contract[d: D](q[s, d], k[t, d])
z[s: S, t: T] = select(mask[s, t], qk[s, t], -inf)
"""
MASKED_ATTENTION = (
    MASKED_SCORES
    + """
m[s: S] = max[t: T](z[s, t])
c[s: S, t: T] = sub(z[s, t], m[s])
e[s: S, t: T] = exp(c[s, t])
l[s: S] = sum[t: T](e[s, t])
p[s: S, t: T] = div(e[s, t], l[s])
o[s: S, f: F] = contract[t: T](p[s, t], v[t, f])
-> o[s, f]
"""
)
PAIRS["masked, safe and unsafe"] = (
    MASKED,
    MASKED_ATTENTION,
    MASKED_SCORES
    + """
    e[s: S, t: T] = exp(z[s, t])
    l[s: S] = sum[t: T](e[s, t])
    a[s: S, f: F] = contract[t: T](e[s, t], v[t, f])
    o[s: S, f: F] = div(a[s, f], l[s])
    -> o[s, f]
    """,
)
PAIRS["masked by products"] = (
    MASKED,
    MASKED_ATTENTION,
    """
    qk[s: S, t: T] = contract[d: D](q[s, d], k[t, d])
    r[s: S, t: T] = exp(qk[s, t])
    e[s: S, t: T] = select(mask[s, t], r[s, t], 0.0)
    l[s: S] = sum[t: T](e[s, t])
    a[s: S, f: F] = contract[t: T](e[s, t], v[t, f])
    o[s: S, f: F] = div(a[s, f], l[s])
    -> o[s, f]
    """,
)
GUARDED_PARTS = (
    SPLIT_SCORES
    + """
z[p: parts(T), s: S, t: part(T)] = select(mask[s, join(p, t)], qk[p, s, t], -inf)
m[p: parts(T), s: S] = max[t: part(T)](z[p, s, t])
dead[p: parts(T), s: S] = eq(m[p, s], -inf)
u[p: parts(T), s: S] = select(dead[p, s], 0.0, m[p, s])
c[p: parts(T), s: S, t: part(T)] = sub(z[p, s, t], u[p, s])
e[p: parts(T), s: S, t: part(T)] = exp(c[p, s, t])
l[p: parts(T), s: S] = sum[t: part(T)](e[p, s, t])
a[p: parts(T), s: S, f: F] = contract[t: part(T)](e[p, s, t], v[join(p, t), f])
top[s: S] = max[p: parts(T)](m[p, s])
gap[p: parts(T), s: S] = sub(m[p, s], top[s])
w[p: parts(T), s: S] = exp(gap[p, s])
total[s: S] = contract[p: parts(T)](w[p, s], l[p, s])
sums[s: S, f: F] = contract[p: parts(T)](w[p, s], a[p, s, f])
o[s: S, f: F] = div(sums[s, f], total[s])
-> o[s, f]
"""
)
PAIRS["masked, split with guarded maxima of parts"] = (MASKED, MASKED_ATTENTION, GUARDED_PARTS)
PAIRS["a sink in the sum is a union"] = (
    "x[N, K], sink[J]",
    """
    z[n: N, u: (K | J)] = cat[u = k | j](x[n, k], sink[j])
    m[n: N] = max[u: (K | J)](z[n, u])
    c[n: N, u: (K | J)] = sub(z[n, u], m[n])
    e[n: N, u: (K | J)] = exp(c[n, u])
    l[n: N] = sum[u: (K | J)](e[n, u])
    y[n: N, k: K] = div(e[n, in0(k)], l[n])
    -> y[n, k]
    """,
    """
    e[n: N, k: K] = exp(x[n, k])
    l[n: N] = sum[k: K](e[n, k])
    a[j: J] = exp(sink[j])
    b = sum[j: J](a[j])
    total[n: N] = add(l[n], b)
    y[n: N, k: K] = div(e[n, k], total[n])
    -> y[n, k]
    """,
)
PAIRS["a sink as a factor of the log-sum-exp"] = (
    "x[N, K], sink[N]",
    """
    e[n: N, k: K] = exp(x[n, k])
    l[n: N] = sum[k: K](e[n, k])
    a[n: N] = exp(sink[n])
    total[n: N] = add(l[n], a[n])
    y[n: N, k: K] = div(e[n, k], total[n])
    -> y[n, k]
    """,
    """
    e[n: N, k: K] = exp(x[n, k])
    l[n: N] = sum[k: K](e[n, k])
    lse[n: N] = log(l[n])
    p[n: N, k: K] = div(e[n, k], l[n])
    gap[n: N] = sub(sink[n], lse[n])
    g[n: N] = exp(gap[n])
    d[n: N] = add(g[n], 1.0)
    y[n: N, k: K] = div(p[n, k], d[n])
    -> y[n, k]
    """,
)
PAIRS["log-sum-exp with the maximum"] = (
    X,
    """
    e[n: N, k: K] = exp(x[n, k])
    l[n: N] = sum[k: K](e[n, k])
    y[n: N] = log(l[n])
    -> y[n]
    """,
    """
    m[n: N] = max[k: K](x[n, k])
    c[n: N, k: K] = sub(x[n, k], m[n])
    e[n: N, k: K] = exp(c[n, k])
    l[n: N] = sum[k: K](e[n, k])
    a[n: N] = log(l[n])
    y[n: N] = add(a[n], m[n])
    -> y[n]
    """,
)
PAIRS["sigmoid"] = (
    "x[N]",
    "a[n: N] = neg(x[n])\nb[n: N] = exp(a[n])\nc[n: N] = add(b[n], 1.0)\ny[n: N] = reciprocal(c[n])\n-> y[n]",
    "b[n: N] = exp(x[n])\nc[n: N] = add(b[n], 1.0)\ny[n: N] = div(b[n], c[n])\n-> y[n]",
)
PAIRS["softplus"] = (
    "x[N]",
    "b[n: N] = exp(x[n])\nc[n: N] = add(b[n], 1.0)\ny[n: N] = log(c[n])\n-> y[n]",
    """
    a[n: N] = abs(x[n])
    b[n: N] = neg(a[n])
    c[n: N] = exp(b[n])
    d[n: N] = add(c[n], 1.0)
    e[n: N] = log(d[n])
    r[n: N] = max(x[n], 0.0)
    y[n: N] = add(r[n], e[n])
    -> y[n]
    """,
)
RMS = """
q[n: N, k: K] = mul(x[n, k], x[n, k])
s[n: N] = sum[k: K](q[n, k])
a[n: N] = div(s[n], size(K))
b[n: N] = add(a[n], eps)
r[n: N] = rsqrt(b[n])
"""
PAIRS["scale behind the product"] = (
    "x[N, K], g[K], w[K, O], eps: scalar f32",
    RMS
    + """
    z[n: N, k: K] = mul(x[n, k], r[n])
    h[n: N, k: K] = mul(z[n, k], g[k])
    y[n: N, o: O] = contract[k: K](h[n, k], w[k, o])
    -> y[n, o]
    """,
    RMS
    + """
    gw[k: K, o: O] = mul(g[k], w[k, o])
    z[n: N, o: O] = contract[k: K](x[n, k], gw[k, o])
    y[n: N, o: O] = mul(z[n, o], r[n])
    -> y[n, o]
    """,
)
VARIANCE = """
t[n: N] = sum[k: K](x[n, k])
u[n: N] = div(t[n], size(K))
c[n: N, k: K] = sub(x[n, k], u[n])
q[n: N, k: K] = mul(c[n, k], c[n, k])
s[n: N] = sum[k: K](q[n, k])
v[n: N] = div(s[n], size(K))
-> v[n]
"""
PAIRS["variance in one pass"] = (
    X,
    VARIANCE,
    """
    t[n: N] = sum[k: K](x[n, k])
    u[n: N] = div(t[n], size(K))
    q[n: N, k: K] = mul(x[n, k], x[n, k])
    s[n: N] = sum[k: K](q[n, k])
    a[n: N] = div(s[n], size(K))
    b[n: N] = mul(u[n], u[n])
    v[n: N] = sub(a[n], b[n])
    -> v[n]
    """,
)
PAIRS["adapters"] = (
    "x[N, K], w[K, O], a[K, R], b[R, O]",
    """
    ab[k: K, o: O] = contract[r: R](a[k, r], b[r, o])
    c[k: K, o: O] = add(w[k, o], ab[k, o])
    y[n: N, o: O] = contract[k: K](x[n, k], c[k, o])
    -> y[n, o]
    """,
    """
    xw[n: N, o: O] = contract[k: K](x[n, k], w[k, o])
    xa[n: N, r: R] = contract[k: K](x[n, k], a[k, r])
    z[n: N, o: O] = contract[r: R](xa[n, r], b[r, o])
    y[n: N, o: O] = add(xw[n, o], z[n, o])
    -> y[n, o]
    """,
)
PAIRS["adapters by concatenation"] = (
    "x[N, K], w[K, O], a[K, R], b[R, O]",
    """
    xw[n: N, o: O] = contract[k: K](x[n, k], w[k, o])
    xa[n: N, r: R] = contract[k: K](x[n, k], a[k, r])
    z[n: N, o: O] = contract[r: R](xa[n, r], b[r, o])
    y[n: N, o: O] = add(xw[n, o], z[n, o])
    -> y[n, o]
    """,
    """
    xa[n: N, r: R] = contract[k: K](x[n, k], a[k, r])
    left[n: N, u: (K | R)] = cat[u = k | r](x[n, k], xa[n, r])
    right[u: (K | R), o: O] = cat[u = k | r](w[k, o], b[r, o])
    y[n: N, o: O] = contract[u: (K | R)](left[n, u], right[u, o])
    -> y[n, o]
    """,
)
PAIRS["three products in another order"] = (
    "a[N, K], b[K, L], c[L, M]",
    "ab[n: N, l: L] = contract[k: K](a[n, k], b[k, l])\ny[n: N, m: M] = contract[l: L](ab[n, l], c[l, m])\n-> y[n, m]",
    "bc[k: K, m: M] = contract[l: L](b[k, l], c[l, m])\ny[n: N, m: M] = contract[k: K](a[n, k], bc[k, m])\n-> y[n, m]",
)
PAIRS["row sums of a product"] = (
    "a[N, K], b[K, M]",
    "ab[n: N, m: M] = contract[k: K](a[n, k], b[k, m])\ny[n: N] = sum[m: M](ab[n, m])\n-> y[n]",
    "c[k: K] = sum[m: M](b[k, m])\ny[n: N] = contract[k: K](a[n, k], c[k])\n-> y[n]",
)
PAIRS["entropy"] = (
    X,
    """
    e[n: N, k: K] = exp(x[n, k])
    l[n: N] = sum[k: K](e[n, k])
    p[n: N, k: K] = div(e[n, k], l[n])
    a[n: N, k: K] = log(p[n, k])
    b[n: N, k: K] = mul(p[n, k], a[n, k])
    c[n: N] = sum[k: K](b[n, k])
    y[n: N] = neg(c[n])
    -> y[n]
    """,
    """
    e[n: N, k: K] = exp(x[n, k])
    l[n: N] = sum[k: K](e[n, k])
    a[n: N] = log(l[n])
    b[n: N, k: K] = mul(e[n, k], x[n, k])
    c[n: N] = sum[k: K](b[n, k])
    d[n: N] = div(c[n], l[n])
    y[n: N] = sub(a[n], d[n])
    -> y[n]
    """,
)
PAIRS["one-hot loss"] = (
    "x[N, V], t: i64[N]",
    """
    p[n: N] = add(x[n, t[n]], 0.0)
    -> p[n]
    """,
    """
    v[v: V] = index(v)
    h[n: N, v: V] = eq(v[v], t[n])
    z[n: N, v: V] = select(h[n, v], x[n, v], 0.0)
    p[n: N] = sum[v: V](z[n, v])
    -> p[n]
    """,
)
PAIRS["relu and magnitude"] = (
    "x[N]",
    "y[n: N] = abs(x[n])\n-> y[n]",
    "a[n: N] = max(x[n], 0.0)\nb[n: N] = neg(x[n])\nc[n: N] = max(b[n], 0.0)\ny[n: N] = add(a[n], c[n])\n-> y[n]",
)
PAIRS["root of a square"] = (
    "x[N]",
    "y[n: N] = abs(x[n])\n-> y[n]",
    "a[n: N] = mul(x[n], x[n])\ny[n: N] = sqrt(a[n])\n-> y[n]",
)
PAIRS["smallest as largest"] = (
    X,
    "y[n: N] = min[k: K](x[n, k])\n-> y[n]",
    "a[n: N, k: K] = neg(x[n, k])\nb[n: N] = max[k: K](a[n, k])\ny[n: N] = neg(b[n])\n-> y[n]",
)
PAIRS["largest of exponentials"] = (
    X,
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = exp(m[n])\n-> y[n]",
    "e[n: N, k: K] = exp(x[n, k])\ny[n: N] = max[k: K](e[n, k])\n-> y[n]",
)
PAIRS["largest magnitude by parts"] = (
    X,
    "a[n: N, k: K] = abs(x[n, k])\nb[n: N] = max[k: K](a[n, k])\ny[n: N] = max(b[n], 1e-12)\n-> y[n]",
    """
    a[n: N, p: parts(K), k: part(K)] = abs(x[n, join(p, k)])
    b[n: N, p: parts(K)] = max[k: part(K)](a[n, p, k])
    c[n: N, p: parts(K)] = max(b[n, p], 1e-12)
    y[n: N] = max[p: parts(K)](c[n, p])
    -> y[n]
    """,
)
PAIRS["masks by less and by greater"] = (
    "x[S, T]",
    """
    i[s: S] = index(s)
    j[t: T] = index(t)
    g[s: S, t: T] = le(j[t], i[s])
    y[s: S, t: T] = select(g[s, t], x[s, t], 0.0)
    -> y[s, t]
    """,
    """
    i[s: S] = index(s + 1)
    j[t: T] = index(t)
    g[s: S, t: T] = ge(j[t], i[s])
    y[s: S, t: T] = select(g[s, t], 0.0, x[s, t])
    -> y[s, t]
    """,
)
PAIRS["a window as two masks"] = (
    "x[S, T]",
    """
    i[s: S] = index(s)
    j[t: T] = index(t)
    a[s: S, t: T] = le(j[t], i[s])
    k[s: S] = index(s - 3)
    b[s: S, t: T] = gt(j[t], k[s])
    g[s: S, t: T] = and(a[s, t], b[s, t])
    y[s: S, t: T] = select(g[s, t], x[s, t], 0.0)
    -> y[s, t]
    """,
    """
    i[s: S] = index(s)
    j[t: T] = index(t)
    k[s: S] = index(s - 2)
    a[s: S, t: T] = gt(j[t], i[s])
    y1[s: S, t: T] = select(a[s, t], 0.0, x[s, t])
    b[s: S, t: T] = ge(j[t], k[s])
    y[s: S, t: T] = select(b[s, t], y1[s, t], 0.0)
    -> y[s, t]
    """,
)
PAIRS["halves turned"] = (
    "x[S, (A | A)], c[A], s[A]",
    """
    minus[s1: S, a: A] = neg(x[s1, in1(a)])
    turned[s1: S, u: (A | A)] = cat[u = a | b](minus[s1, a], x[s1, in0(b)])
    cc[u: (A | A)] = cat[u = a | b](c[a], c[b])
    ss[u: (A | A)] = cat[u = a | b](s[a], s[b])
    l[s1: S, u: (A | A)] = mul(x[s1, u], cc[u])
    r[s1: S, u: (A | A)] = mul(turned[s1, u], ss[u])
    y[s1: S, u: (A | A)] = add(l[s1, u], r[s1, u])
    -> y[s1, u]
    """,
    """
    p[s1: S, a: A] = mul(x[s1, in0(a)], c[a])
    q[s1: S, a: A] = mul(x[s1, in1(a)], s[a])
    f[s1: S, a: A] = sub(p[s1, a], q[s1, a])
    t[s1: S, a: A] = mul(x[s1, in1(a)], c[a])
    v[s1: S, a: A] = mul(x[s1, in0(a)], s[a])
    g[s1: S, a: A] = add(t[s1, a], v[s1, a])
    y[s1: S, u: (A | A)] = cat[u = a | b](f[s1, a], g[s1, b])
    -> y[s1, u]
    """,
)
PAIRS["split of a product"] = (
    "a[N, K], b[K, M]",
    "y[n: N, m: M] = contract[k: K](a[n, k], b[k, m])\n-> y[n, m]",
    """
    z[p: parts(K), n: N, m: M] = contract[k: part(K)](a[n, join(p, k)], b[join(p, k), m])
    y[n: N, m: M] = sum[p: parts(K)](z[p, n, m])
    -> y[n, m]
    """,
)
PAIRS["dropped row guard"] = (
    MASKED,
    MASKED_ATTENTION,
    MASKED_SCORES
    + """
    m[s: S] = max[t: T](z[s, t])
    c[s: S, t: T] = sub(z[s, t], m[s])
    e[s: S, t: T] = exp(c[s, t])
    l[s: S] = sum[t: T](e[s, t])
    p[s: S, t: T] = div(e[s, t], l[s])
    g[s: S] = any[t: T](mask[s, t])
    h[s: S, t: T] = select(g[s], p[s, t], 0.0)
    o[s: S, f: F] = contract[t: T](h[s, t], v[t, f])
    -> o[s, f]
    """,
)
PAIRS["scores times a scale of either sign"] = (
    "x[N, K], c: scalar f32",
    """
    z[n: N, k: K] = mul(x[n, k], c)
    m[n: N] = max[k: K](z[n, k])
    d[n: N, k: K] = sub(z[n, k], m[n])
    e[n: N, k: K] = exp(d[n, k])
    l[n: N] = sum[k: K](e[n, k])
    y[n: N, k: K] = div(e[n, k], l[n])
    -> y[n, k]
    """,
    """
    m[n: N] = max[k: K](x[n, k])
    d[n: N, k: K] = sub(x[n, k], m[n])
    z[n: N, k: K] = mul(d[n, k], c)
    e[n: N, k: K] = exp(z[n, k])
    l[n: N] = sum[k: K](e[n, k])
    y[n: N, k: K] = div(e[n, k], l[n])
    -> y[n, k]
    """,
)
PAIRS["powers and roots"] = (
    "x[N], y[N]",
    "a[n: N] = div(x[n], y[n])\nb[n: N] = pow(a[n], 2.0)\nz[n: N] = mul(b[n], y[n])\n-> z[n]",
    "a[n: N] = mul(x[n], x[n])\nz[n: N] = div(a[n], y[n])\n-> z[n]",
)
PAIRS["a difference of squares over a sum"] = (
    "x[N], y[N]",
    """
    a[n: N] = mul(x[n], x[n])
    b[n: N] = mul(y[n], y[n])
    c[n: N] = sub(a[n], b[n])
    d[n: N] = add(x[n], y[n])
    z[n: N] = div(c[n], d[n])
    -> z[n]
    """,
    "z[n: N] = sub(x[n], y[n])\n-> z[n]",
)
PAIRS["weights as shares of a square"] = (
    "x[N, K], y[M, K]",
    """
    d[n: N, m: M, k: K] = sub(x[n, k], y[m, k])
    q[n: N, m: M, k: K] = mul(d[n, m, k], d[n, m, k])
    z[n: N, m: M] = sum[k: K](q[n, m, k])
    -> z[n, m]
    """,
    """
    a[n: N, k: K] = mul(x[n, k], x[n, k])
    b[n: N] = sum[k: K](a[n, k])
    c[m: M, k: K] = mul(y[m, k], y[m, k])
    d[m: M] = sum[k: K](c[m, k])
    e[n: N, m: M] = contract[k: K](x[n, k], y[m, k])
    f[n: N, m: M] = mul(e[n, m], 2.0)
    g[n: N, m: M] = add(b[n], d[m])
    z[n: N, m: M] = sub(g[n, m], f[n, m])
    -> z[n, m]
    """,
)
PAIRS["sum of a square of a sum"] = (
    X,
    "s[n: N] = sum[k: K](x[n, k])\nq[n: N] = mul(s[n], s[n])\ny = sum[n: N](q[n])\n-> y",
    "g[k: K, l: K] = contract[n: N](x[n, k], x[n, l])\nh[k: K] = sum[l: K](g[k, l])\ny = sum[k: K](h[k])\n-> y",
)

PAIRS["sigmoids summed"] = (
    "x[N]",
    """
    a[n: N] = neg(x[n])
    b[n: N] = exp(a[n])
    c[n: N] = add(b[n], 1.0)
    y[n: N] = reciprocal(c[n])
    z = sum[n: N](y[n])
    -> z
    """,
    "b[n: N] = exp(x[n])\nc[n: N] = add(b[n], 1.0)\ny[n: N] = div(b[n], c[n])\nz = sum[n: N](y[n])\n-> z",
)
PAIRS["magnitudes summed"] = (
    "x[N]",
    "a[n: N] = abs(x[n])\ny = sum[n: N](a[n])\n-> y",
    """
    a[n: N] = max(x[n], 0.0)
    b[n: N] = neg(x[n])
    c[n: N] = max(b[n], 0.0)
    d[n: N] = add(a[n], c[n])
    y = sum[n: N](d[n])
    -> y
    """,
)
PAIRS["masks that exclude each other"] = (
    "x[N], t: i64[N]",
    """
    a[n: N] = eq(t[n], 0)
    b[n: N] = eq(t[n], 1)
    g[n: N] = and(a[n], b[n])
    y[n: N] = select(g[n], x[n], 0.0)
    z = sum[n: N](y[n])
    -> z
    """,
    "y[n: N] = mul(x[n], 0.0)\nz = sum[n: N](y[n])\n-> z",
)
PAIRS["largest of a shifted row"] = (
    X + ", b[N]",
    "a[n: N, k: K] = add(x[n, k], b[n])\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = add(m[n], b[n])\n-> y[n]",
)
PAIRS["largest of a scaled row"] = (
    X + ", b[N]",
    "e[n: N] = exp(b[n])\na[n: N, k: K] = mul(x[n, k], e[n])\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
    "e[n: N] = exp(b[n])\nm[n: N] = max[k: K](x[n, k])\ny[n: N] = mul(m[n], e[n])\n-> y[n]",
)
PAIRS["largest of a union"] = (
    "x[N, K], y[N, J]",
    "z[n: N, u: (K | J)] = cat[u = k | j](x[n, k], y[n, j])\nm[n: N] = max[u: (K | J)](z[n, u])\n-> m[n]",
    "a[n: N] = max[k: K](x[n, k])\nb[n: N] = max[j: J](y[n, j])\nm[n: N] = max(a[n], b[n])\n-> m[n]",
)

CONDITIONAL: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "merge of outputs and log-sum-exps": (
        QKV,
        ATTENTION,
        LSE
        + """
        top[s: S] = max[p: parts(T)](lse[p, s])
        gap[p: parts(T), s: S] = sub(lse[p, s], top[s])
        w[p: parts(T), s: S] = exp(gap[p, s])
        total[s: S] = sum[p: parts(T)](w[p, s])
        sums[s: S, f: F] = contract[p: parts(T)](w[p, s], o[p, s, f])
        y[s: S, f: F] = div(sums[s, f], total[s])
        -> y[s, f]
        """,
        ("[n[partst] - 1 >= 0]",),
    ),
    "merge of means and squares": (
        X,
        VARIANCE,
        """
        one[p: parts(K), k: part(K)] = mul(x[0, join(p, k)], 0.0)
        o[p: parts(K), k: part(K)] = exp(one[p, k])
        c[p: parts(K)] = sum[k: part(K)](o[p, k])
        t[p: parts(K), n: N] = sum[k: part(K)](x[n, join(p, k)])
        u[p: parts(K), n: N] = div(t[p, n], c[p])
        d[p: parts(K), n: N, k: part(K)] = sub(x[n, join(p, k)], u[p, n])
        q[p: parts(K), n: N, k: part(K)] = mul(d[p, n, k], d[p, n, k])
        s[p: parts(K), n: N] = sum[k: part(K)](q[p, n, k])
        all1[n: N] = sum[p: parts(K)](t[p, n])
        mean[n: N] = div(all1[n], size(K))
        e[p: parts(K), n: N] = sub(u[p, n], mean[n])
        f[p: parts(K), n: N] = mul(e[p, n], e[p, n])
        g[p: parts(K), n: N] = mul(f[p, n], c[p])
        h[p: parts(K), n: N] = add(s[p, n], g[p, n])
        i[n: N] = sum[p: parts(K)](h[p, n])
        v[n: N] = div(i[n], size(K))
        -> v[n]
        """,
        ("[n[partsk] - 1 >= 0]",),
    ),
    "a quotient of one value": ("x[N]", "y[n: N] = mul(x[n], 0.0)\nz[n: N] = add(y[n], 1.0)\n-> z[n]",
                                "z[n: N] = div(x[n], x[n])\n-> z[n]", ("x[n] != 0",)),
    "maxima of parts that may see nothing": (
        MASKED, MASKED_ATTENTION,
        GUARDED_PARTS.replace("sub(z[p, s, t], u[p, s])", "sub(z[p, s, t], m[p, s])"),
        ("some{partt': mask[s, partst:partt']}",),
    ),
    "a log-sum-exp where nothing may be seen": (
        "x[N, K], g: bool[N, K]",
        """
        z[n: N, k: K] = select(g[n, k], x[n, k], -inf)
        e[n: N, k: K] = exp(z[n, k])
        l[n: N] = sum[k: K](e[n, k])
        y[n: N] = log(l[n])
        -> y[n]
        """,
        """
        z[n: N, k: K] = select(g[n, k], x[n, k], -inf)
        m[n: N] = max[k: K](z[n, k])
        c[n: N, k: K] = sub(z[n, k], m[n])
        e[n: N, k: K] = exp(c[n, k])
        l[n: N] = sum[k: K](e[n, k])
        a[n: N] = log(l[n])
        y[n: N] = add(a[n], m[n])
        -> y[n]
        """,
        ("some{k': g[n, k']}",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PAIRS)
def test_equal_programs_are_proved(name: str) -> None:
    inputs, one, two = PAIRS[name]
    a, b = program(inputs, one), program(inputs, two)
    proof = prove(a, b)
    assert proof.answer == "yes", proof
    assert not refuted(a, b, count=4)


@pytest.mark.parametrize("name", PAIRS)
def test_proofs_hold_the_other_way_round_too(name: str) -> None:
    inputs, one, two = PAIRS[name]
    assert prove(program(inputs, two), program(inputs, one), steps=False).holds


@pytest.mark.parametrize("name", CONDITIONAL)
def test_conditions_are_listed(name: str) -> None:
    inputs, one, two, conditions = CONDITIONAL[name]
    proof = prove(program(inputs, one), program(inputs, two))
    assert (proof.answer, proof.conditions) == ("yes-if", conditions)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_equals_itself(name: str) -> None:
    assert prove(PROGRAMS[name], PROGRAMS[name], steps=False).answer == "yes"


def test_examples_that_are_split_equal_the_whole() -> None:
    assert prove(PROGRAMS["softmax"], PROGRAMS["split_softmax"]).answer == "yes"
    assert prove(PROGRAMS["matmul"], PROGRAMS["split_k"]).answer == "yes"


def test_names_of_dims_do_not_matter() -> None:
    a = program("x[N, K]", SOFTMAX)
    b = program("x[A, B]", UNSAFE.replace("n: N", "n: A").replace("k: K", "k: B"))
    assert prove(a, b).answer == "yes"


def test_the_steps_name_laws_and_places() -> None:
    steps = prove(PROGRAMS["softmax"], PROGRAMS["split_softmax"]).steps
    assert {"sum-split", "sum-open", "sum-part", "case"} <= {s.law for s in steps}
    assert all(s.place and s.before and s.after for s in steps)
    assert steps == prove(PROGRAMS["softmax"], PROGRAMS["split_softmax"]).steps


def test_speed() -> None:
    a, b = program(MASKED, MASKED_ATTENTION), program(MASKED, GUARDED_PARTS)
    best = 1e9
    for _ in range(3):
        start = time.process_time()
        prove(a, b, steps=False)
        best = min(best, time.process_time() - start)
    assert best < 0.5
