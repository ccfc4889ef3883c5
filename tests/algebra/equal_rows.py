"""Equal programs with exponentials and masks: inputs and two bodies each (see `pairs`)."""

from __future__ import annotations

ROWS: dict[str, tuple[str, str, str]] = {}

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
ROWS["safe and unsafe"] = (X, SOFTMAX, UNSAFE)
ROWS["through the log of the sum"] = (
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
ROWS["divided last"] = (
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
ROWS["split with maxima of parts"] = (
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
ROWS["masked, safe and unsafe"] = (
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
ROWS["masked by products"] = (
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
ROWS["masked, split with guarded maxima of parts"] = (MASKED, MASKED_ATTENTION, GUARDED_PARTS)
ROWS["a sink in the sum is a union"] = (
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
ROWS["a sink as a factor of the log-sum-exp"] = (
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
ROWS["log-sum-exp with the maximum"] = (
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
ROWS["sigmoid"] = (
    "x[N]",
    "a[n: N] = neg(x[n])\nb[n: N] = exp(a[n])\nc[n: N] = add(b[n], 1.0)\ny[n: N] = reciprocal(c[n])\n-> y[n]",
    "b[n: N] = exp(x[n])\nc[n: N] = add(b[n], 1.0)\ny[n: N] = div(b[n], c[n])\n-> y[n]",
)
ROWS["softplus"] = (
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
ROWS["entropy"] = (
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
ROWS["one-hot loss"] = (
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
ROWS["masks by less and by greater"] = (
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
ROWS["a window as two masks"] = (
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
ROWS["dropped row guard"] = (
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
ROWS["scores times a scale of either sign"] = (
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
ROWS["sigmoids summed"] = (
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

MASKED_LSE = """
s[n: N, k: K] = select(p[n, k], x[n, k], -inf)
m[n: N] = max[k: K](s[n, k])
d[n: N, k: K] = sub(s[n, k], m[n])
e[n: N, k: K] = exp(d[n, k])
l[n: N] = sum[k: K](e[n, k])
g[n: N] = log(l[n])
y[n: N] = add(g[n], m[n])
-> y[n]
"""
GUARDED_LSE = """
s[n: N, k: K] = select(p[n, k], x[n, k], -inf)
m[n: N] = max[k: K](s[n, k])
i[n: N] = eq(m[n], -inf)
z[n: N] = select(i[n], 0.0, m[n])
d[n: N, k: K] = sub(s[n, k], z[n])
e[n: N, k: K] = exp(d[n, k])
l[n: N] = sum[k: K](e[n, k])
g[n: N] = log(l[n])
y[n: N] = add(g[n], z[n])
-> y[n]
"""
SEEN = "x[N, K], p: bool[N, K]"
ROWS["masked log-sum-exp, its maximum guarded"] = (SEEN, GUARDED_LSE, GUARDED_LSE.replace("0.0", "7.0"))
ROWS["what is masked implies that something is there"] = (
    SEEN,
    """
    a[n: N] = any[k: K](p[n, k])
    z[n: N, k: K] = select(p[n, k], x[n, k], 0.0)
    y[n: N, k: K] = select(a[n], z[n, k], 0.0)
    -> y[n, k]
    """,
    "y[n: N, k: K] = select(p[n, k], x[n, k], 0.0)\n-> y[n, k]",
)
ROWS["what is not masked implies that not all is"] = (
    SEEN,
    """
    a[n: N] = all[k: K](p[n, k])
    z[n: N, k: K] = select(p[n, k], 0.0, x[n, k])
    y[n: N, k: K] = select(a[n], 0.0, z[n, k])
    -> y[n, k]
    """,
    "y[n: N, k: K] = select(p[n, k], 0.0, x[n, k])\n-> y[n, k]",
)
ROWS["nothing times anything"] = (
    "x[N], y[N]",
    "i[n: N] = eq(x[n], 0.0)\na[n: N] = mul(x[n], y[n])\nz[n: N] = select(i[n], 0.0, a[n])\n-> z[n]",
    "z[n: N] = mul(x[n], y[n])\n-> z[n]",
)
ROWS["masked log-sum-exp, guarded and not"] = (SEEN, MASKED_LSE, GUARDED_LSE)

# Each part by both dims has a mean of its own; those of one dim's parts are merged, then the other's.
ROWS["variance of two dims, split by both"] = (
    "x[A, N, B]",
    """
    s[n: N] = sum[a: A, b: B](x[a, n, b])
    area = mul(size(A), size(B))
    mu[n: N] = div(s[n], area)
    c[a: A, n: N, b: B] = sub(x[a, n, b], mu[n])
    q[a: A, n: N, b: B] = mul(c[a, n, b], c[a, n, b])
    ss[n: N] = sum[a: A, b: B](q[a, n, b])
    v[n: N] = div(ss[n], area)
    -> mu[n], v[n]
    """,
    """
    sum1[q: parts(B), p: parts(A), n: N] = sum[a: part(A), b: part(B)](x[join(p, a), n, join(q, b)])
    sum2[p: parts(A), n: N] = sum[q: parts(B)](sum1[q, p, n])
    s[n: N] = sum[p: parts(A)](sum2[p, n])
    area = mul(size(A), size(B))
    mu[n: N] = div(s[n], area)
    id1[p: parts(A), a: part(A)] = id(1.0)
    sum3[p: parts(A)] = sum[a: part(A)](id1[p, a])
    max1[p: parts(A)] = max(sum3[p], 1.0)
    id2[q: parts(B), b: part(B)] = id(1.0)
    sum4[q: parts(B)] = sum[b: part(B)](id2[q, b])
    max2[q: parts(B)] = max(sum4[q], 1.0)
    mul1[q: parts(B), p: parts(A)] = mul(max1[p], max2[q])
    u[q: parts(B), p: parts(A), n: N] = div(sum1[q, p, n], mul1[q, p])
    d[q: parts(B), p: parts(A), n: N, a: part(A), b: part(B)] = sub(x[join(p, a), n, join(q, b)], u[q, p, n])
    e[q: parts(B), p: parts(A), n: N, a: part(A), b: part(B)] = mul(d[q, p, n, a, b], d[q, p, n, a, b])
    sum5[q: parts(B), p: parts(A), n: N] = sum[a: part(A), b: part(B)](e[q, p, n, a, b])
    sum6[q: parts(B), p: parts(A), n: N] = sum[a: part(A), b: part(B)](d[q, p, n, a, b])
    mul3[p: parts(A)] = mul(max1[p], size(B))
    div2[p: parts(A), n: N] = div(sum2[p, n], mul3[p])
    sub2[q: parts(B), p: parts(A), n: N] = sub(u[q, p, n], div2[p, n])
    mul4[q: parts(B), p: parts(A), n: N] = mul(sum6[q, p, n], sub2[q, p, n])
    mul5[q: parts(B), p: parts(A), n: N] = mul(mul4[q, p, n], 2.0)
    add1[q: parts(B), p: parts(A), n: N] = add(sum5[q, p, n], mul5[q, p, n])
    dot1[q: parts(B), p: parts(A)] = contract[a: part(A), b: part(B)](id1[p, a], id2[q, b])
    mul6[q: parts(B), p: parts(A), n: N] = mul(sub2[q, p, n], sub2[q, p, n])
    mul7[q: parts(B), p: parts(A), n: N] = mul(dot1[q, p], mul6[q, p, n])
    add2[q: parts(B), p: parts(A), n: N] = add(add1[q, p, n], mul7[q, p, n])
    sum7[p: parts(A), n: N] = sum[q: parts(B)](add2[q, p, n])
    mul8[q: parts(B), p: parts(A), n: N] = mul(dot1[q, p], sub2[q, p, n])
    add3[q: parts(B), p: parts(A), n: N] = add(sum6[q, p, n], mul8[q, p, n])
    sum8[p: parts(A), n: N] = sum[q: parts(B)](add3[q, p, n])
    sub3[p: parts(A), n: N] = sub(div2[p, n], mu[n])
    mul9[p: parts(A), n: N] = mul(sum8[p, n], sub3[p, n])
    mul10[p: parts(A), n: N] = mul(mul9[p, n], 2.0)
    add4[p: parts(A), n: N] = add(sum7[p, n], mul10[p, n])
    mul11[p: parts(A)] = mul(sum3[p], size(B))
    mul12[p: parts(A), n: N] = mul(sub3[p, n], sub3[p, n])
    mul13[p: parts(A), n: N] = mul(mul11[p], mul12[p, n])
    add5[p: parts(A), n: N] = add(add4[p, n], mul13[p, n])
    ss[n: N] = sum[p: parts(A)](add5[p, n])
    v[n: N] = div(ss[n], area)
    -> mu[n], v[n]
    """,
)
