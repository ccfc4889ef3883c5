"""More pairs that are nearly equal: masks, parts, unions, gathers and functions (see `near_forms`)."""

from __future__ import annotations

from algebra.equal_forms import RMS, VARIANCE
from algebra.equal_rows import ATTENTION, GUARDED_PARTS, LSE, MASKED, MASKED_ATTENTION, QKV
from algebra.near_forms import XY, X

ROWS: dict[str, tuple[str, str, str]] = {}

ROWS["a mask off by one"] = (
    "x[S, T]",
    """
    i[s: S] = index(s)
    j[t: T] = index(t)
    g[s: S, t: T] = le(j[t], i[s])
    y[s: S, t: T] = select(g[s, t], x[s, t], 0.0)
    -> y[s, t]
    """,
    """
    i[s: S] = index(s)
    j[t: T] = index(t)
    g[s: S, t: T] = lt(j[t], i[s])
    y[s: S, t: T] = select(g[s, t], x[s, t], 0.0)
    -> y[s, t]
    """,
)
ROWS["a mask at the other corner"] = (
    "x[S, T]",
    """
    i[s: S] = index(s)
    j[t: T] = index(t)
    g[s: S, t: T] = le(j[t], i[s])
    y[s: S, t: T] = select(g[s, t], x[s, t], 0.0)
    -> y[s, t]
    """,
    """
    i[s: S] = index(s + T - S)
    j[t: T] = index(t)
    g[s: S, t: T] = le(j[t], i[s])
    y[s: S, t: T] = select(g[s, t], x[s, t], 0.0)
    -> y[s, t]
    """,
)
ROWS["a window one wider"] = (
    "x[S, T]",
    """
    i[s: S] = index(s - 2)
    j[t: T] = index(t)
    g[s: S, t: T] = ge(j[t], i[s])
    y[s: S, t: T] = select(g[s, t], x[s, t], 0.0)
    -> y[s, t]
    """,
    """
    i[s: S] = index(s - 2)
    j[t: T] = index(t)
    g[s: S, t: T] = gt(j[t], i[s])
    y[s: S, t: T] = select(g[s, t], x[s, t], 0.0)
    -> y[s, t]
    """,
)
ROWS["a mask filled with a finite number"] = (
    MASKED, MASKED_ATTENTION, MASKED_ATTENTION.replace("-inf", "-100.0")
)  # fmt: skip
ROWS["a mask filled with 0"] = (MASKED, MASKED_ATTENTION, MASKED_ATTENTION.replace("-inf", "0.0"))
ROWS["a mask the other way round"] = (
    MASKED,
    MASKED_ATTENTION,
    MASKED_ATTENTION.replace("select(mask[s, t], qk[s, t], -inf)", "select(mask[s, t], -inf, qk[s, t])"),
)
ROWS["no mask"] = (
    MASKED,
    MASKED_ATTENTION,
    MASKED_ATTENTION.replace("select(mask[s, t], qk[s, t], -inf)", "add(qk[s, t], 0.0)"),
)  # fmt: skip
ROWS["maxima of parts without a guard"] = (
    MASKED, MASKED_ATTENTION, GUARDED_PARTS.replace("sub(z[p, s, t], u[p, s])", "sub(z[p, s, t], m[p, s])")
)  # fmt: skip
ROWS["parts merged without weights"] = (
    QKV,
    ATTENTION,
    LSE + "y[s: S, f: F] = sum[p: parts(T)](o[p, s, f])\n-> y[s, f]\n",
)
ROWS["parts weighted by the largest log-sum-exp alone"] = (
    QKV,
    ATTENTION,
    LSE
    + """
    w[p: parts(T), s: S] = exp(lse[p, s])
    sums[s: S, f: F] = contract[p: parts(T)](w[p, s], o[p, s, f])
    top[s: S] = max[p: parts(T)](w[p, s])
    y[s: S, f: F] = div(sums[s, f], top[s])
    -> y[s, f]
    """,
)
ROWS["the mean of means of parts"] = (
    X,
    "s[n: N] = sum[k: K](x[n, k])\ny[n: N] = div(s[n], size(K))\n-> y[n]",
    """
    s[p: parts(K), n: N] = sum[k: part(K)](x[n, join(p, k)])
    z[p: parts(K)] = sum[k: part(K)](1.0)
    m[p: parts(K), n: N] = div(s[p, n], z[p])
    a[n: N] = sum[p: parts(K)](m[p, n])
    y[n: N] = div(a[n], size(parts(K)))
    -> y[n]
    """,
)
ROWS["parts as if all had the size over the number"] = (
    X,
    "s[n: N] = sum[k: K](x[n, k])\ny[n: N] = div(s[n], size(K))\n-> y[n]",
    """
    s[p: parts(K), n: N] = sum[k: part(K)](x[n, join(p, k)])
    each = div(size(K), size(parts(K)))
    m[p: parts(K), n: N] = div(s[p, n], each)
    a[n: N] = sum[p: parts(K)](m[p, n])
    y[n: N] = mul(a[n], 1.0)
    -> y[n]
    """,
)
ROWS["variances of parts added up"] = (
    X,
    VARIANCE,
    """
    z[p: parts(K)] = sum[k: part(K)](1.0)
    t[p: parts(K), n: N] = sum[k: part(K)](x[n, join(p, k)])
    u[p: parts(K), n: N] = div(t[p, n], z[p])
    c[p: parts(K), n: N, k: part(K)] = sub(x[n, join(p, k)], u[p, n])
    q[p: parts(K), n: N, k: part(K)] = mul(c[p, n, k], c[p, n, k])
    s[p: parts(K), n: N] = sum[k: part(K)](q[p, n, k])
    a[n: N] = sum[p: parts(K)](s[p, n])
    v[n: N] = div(a[n], size(K))
    -> v[n]
    """,
)
ROWS["variance without the mean"] = (
    X,
    VARIANCE,
    """
    q[n: N, k: K] = mul(x[n, k], x[n, k])
    s[n: N] = sum[k: K](q[n, k])
    v[n: N] = div(s[n], size(K))
    -> v[n]
    """,
)
ROWS["variance divided by one less"] = (
    X,
    VARIANCE,
    VARIANCE.replace("v[n: N] = div(s[n], size(K))", "less = sub(size(K), 1)\nv[n: N] = div(s[n], less)"),
)  # fmt: skip
ROWS["a scale that depends on the reduced index"] = (
    "x[N, K], g[K], w[K, O]",
    "h[n: N, k: K] = mul(x[n, k], g[k])\ny[n: N, o: O] = contract[k: K](h[n, k], w[k, o])\n-> y[n, o]",
    """
    z[n: N, o: O] = contract[k: K](x[n, k], w[k, o])
    t = sum[k: K](g[k])
    y[n: N, o: O] = mul(z[n, o], t)
    -> y[n, o]
    """,
)
ROWS["a sum of roots"] = (
    "x[N, K], w[K, O], eps: scalar f32",
    RMS + "z[n: N, k: K] = mul(x[n, k], r[n])\ny[n: N, o: O] = contract[k: K](z[n, k], w[k, o])\n-> y[n, o]",
    RMS.replace("add(a[n], eps)", "add(a[n], 0.0)")
    + "z[n: N, k: K] = mul(x[n, k], r[n])\ny[n: N, o: O] = contract[k: K](z[n, k], w[k, o])\n-> y[n, o]",
)
ROWS["eps outside of the root"] = (
    "x[N, K], eps: scalar f32",
    RMS + "y[n: N, k: K] = mul(x[n, k], r[n])\n-> y[n, k]",
    """
    q[n: N, k: K] = mul(x[n, k], x[n, k])
    s[n: N] = sum[k: K](q[n, k])
    a[n: N] = div(s[n], size(K))
    b[n: N] = sqrt(a[n])
    c[n: N] = add(b[n], eps)
    y[n: N, k: K] = div(x[n, k], c[n])
    -> y[n, k]
    """,
)
ROWS["a sum of squares and a square of a sum"] = (
    X,
    "q[n: N, k: K] = mul(x[n, k], x[n, k])\ny[n: N] = sum[k: K](q[n, k])\n-> y[n]",
    "s[n: N] = sum[k: K](x[n, k])\ny[n: N] = mul(s[n], s[n])\n-> y[n]",
)
ROWS["a quotient of sums and a sum of quotients"] = (
    "x[N, K], y[N, K]",
    "a[n: N] = sum[k: K](x[n, k])\nb[n: N] = sum[k: K](y[n, k])\nz[n: N] = div(a[n], b[n])\n-> z[n]",
    "q[n: N, k: K] = div(x[n, k], y[n, k])\nz[n: N] = sum[k: K](q[n, k])\n-> z[n]",
)
ROWS["a constant summed"] = (
    X,
    "o[n: N, k: K] = mul(x[n, 0], 1.0)\ny[n: N] = sum[k: K](o[n, k])\n-> y[n]",
    "y[n: N] = mul(x[n, 0], 1.0)\n-> y[n]",
)
ROWS["sizes of two dims"] = (
    X,
    "s[n: N] = sum[k: K](x[n, k])\ny[n: N] = div(s[n], size(K))\n-> y[n]",
    "s[n: N] = sum[k: K](x[n, k])\ny[n: N] = div(s[n], size(N))\n-> y[n]",
)
ROWS["a shift"] = (
    X,
    "i[k: K] = index(k)\nf[k: K] = eq(i[k], 0)\ny[n: N, k: K] = select(f[k], 0.0, x[n, k - 1])\n-> y[n, k]",
    "i[k: K] = index(k)\nf[k: K] = eq(i[k], 0)\ny[n: N, k: K] = select(f[k], 0.0, x[n, k])\n-> y[n, k]",
)
ROWS["pieces joined in the other order"] = (
    "a[N, A], b[N, A]",
    "y[n: N, u: (A | A)] = cat[u = i | j](a[n, i], b[n, j])\n-> y[n, u]",
    "y[n: N, u: (A | A)] = cat[u = i | j](b[n, i], a[n, j])\n-> y[n, u]",
)
ROWS["halves turned the other way"] = (
    "x[S, (A | A)]",
    """
    m[s: S, a: A] = neg(x[s, in1(a)])
    y[s: S, u: (A | A)] = cat[u = a | b](m[s, a], x[s, in0(b)])
    -> y[s, u]
    """,
    """
    m[s: S, a: A] = neg(x[s, in0(a)])
    y[s: S, u: (A | A)] = cat[u = a | b](x[s, in1(a)], m[s, b])
    -> y[s, u]
    """,
)
ROWS["a union that lacks a part"] = (
    "x[N, K], sink[J]",
    """
    z[n: N, u: (K | J)] = cat[u = k | j](x[n, k], sink[j])
    e[n: N, u: (K | J)] = exp(z[n, u])
    l[n: N] = sum[u: (K | J)](e[n, u])
    y[n: N, k: K] = div(e[n, in0(k)], l[n])
    -> y[n, k]
    """,
    """
    e[n: N, k: K] = exp(x[n, k])
    l[n: N] = sum[k: K](e[n, k])
    y[n: N, k: K] = div(e[n, k], l[n])
    -> y[n, k]
    """,
)
ROWS["a gather through another index"] = (
    "x[N, V], t: i64[N], u: i64[N]",
    "y[n: N] = add(x[n, t[n]], 0.0)\n-> y[n]",
    "y[n: N] = add(x[n, u[n]], 0.0)\n-> y[n]",
)
ROWS["a gather at another row"] = (
    "x[V, D], t: i64[N]",
    "y[n: N, d: D] = add(x[t[n], d], 0.0)\n-> y[n, d]",
    "y[n: N, d: D] = add(x[t[0], d], 0.0)\n-> y[n, d]",
)
ROWS["rounding before and after"] = (
    XY,
    "a[n: N] = add(x[n], y[n])\nz[n: N] = round(a[n])\n-> z[n]",
    "a[n: N] = round(x[n])\nb[n: N] = round(y[n])\nz[n: N] = add(a[n], b[n])\n-> z[n]",
)
ROWS["a cast to integers"] = (
    "x[N]",
    "a![n: N]".replace("![n: N]", "[n: N]!") + " = cast(x[n])\ny[n: N] = cast(a[n])\n-> y[n]",
    "y[n: N] = add(x[n], 0.0)\n-> y[n]",
)
ROWS["a hyperbolic tangent"] = (
    "x[N], c: scalar f32",
    "a[n: N] = mul(x[n], c)\ny[n: N] = tanh(a[n])\n-> y[n]",
    "a[n: N] = tanh(x[n])\ny[n: N] = mul(a[n], c)\n-> y[n]",
)
ROWS["a sigmoid and its complement"] = (
    "x[N]",
    "a[n: N] = neg(x[n])\nb[n: N] = exp(a[n])\nc[n: N] = add(b[n], 1.0)\ny[n: N] = reciprocal(c[n])\n-> y[n]",
    "b[n: N] = exp(x[n])\nc[n: N] = add(b[n], 1.0)\ny[n: N] = reciprocal(c[n])\n-> y[n]",
)
ROWS["equal for positive values only"] = (
    "x[N]", "y[n: N] = abs(x[n])\n-> y[n]", "y[n: N] = max(x[n], 0.0)\n-> y[n]"
)  # fmt: skip
ROWS["equal for two parts only"] = (
    X,
    "s[n: N] = sum[k: K](x[n, k])\ny[n: N] = mul(s[n], 2.0)\n-> y[n]",
    """
    s[p: parts(K), n: N] = sum[k: part(K)](x[n, join(p, k)])
    a[n: N] = sum[p: parts(K)](s[p, n])
    y[n: N] = mul(a[n], size(parts(K)))
    -> y[n]
    """,
)
ROWS["some and all"] = (
    "g: bool[N, K]",
    "a[n: N] = any[k: K](g[n, k])\ny[n: N] = select(a[n], 1.0, 0.0)\n-> y[n]",
    "a[n: N] = all[k: K](g[n, k])\ny[n: N] = select(a[n], 1.0, 0.0)\n-> y[n]",
)
ROWS["less and not greater"] = (
    XY,
    "g[n: N] = lt(x[n], y[n])\nz[n: N] = select(g[n], x[n], 1.0)\n-> z[n]",
    "g[n: N] = gt(x[n], y[n])\nz[n: N] = select(g[n], x[n], 1.0)\n-> z[n]",
)
ROWS["a product of reductions"] = (
    X,
    "y[n: N] = prod[k: K](x[n, k])\n-> y[n]",
    "y[n: N] = sum[k: K](x[n, k])\n-> y[n]",
)
ROWS["another output order"] = (
    XY,
    "a[n: N] = mul(x[n], 2.0)\nb[n: N] = mul(y[n], 2.0)\n-> a[n], b[n]",
    "a[n: N] = mul(x[n], 2.0)\nb[n: N] = mul(y[n], 2.0)\n-> b[n], a[n]",
)

SEEN = "x[N, K], p: bool[N, K], q: bool[N, K]"
ROWS["masked by one, guarded by another"] = (
    SEEN,
    """
    a[n: N] = any[k: K](q[n, k])
    z[n: N, k: K] = select(p[n, k], x[n, k], 0.0)
    y[n: N, k: K] = select(a[n], z[n, k], 0.0)
    -> y[n, k]
    """,
    "y[n: N, k: K] = select(p[n, k], x[n, k], 0.0)\n-> y[n, k]",
)
ROWS["masked, guarded by all"] = (
    SEEN,
    """
    a[n: N] = all[k: K](p[n, k])
    z[n: N, k: K] = select(p[n, k], x[n, k], 0.0)
    y[n: N, k: K] = select(a[n], z[n, k], 0.0)
    -> y[n, k]
    """,
    "y[n: N, k: K] = select(p[n, k], x[n, k], 0.0)\n-> y[n, k]",
)
ROWS["not masked, guarded by any"] = (
    SEEN,
    """
    a[n: N] = any[k: K](p[n, k])
    z[n: N, k: K] = select(p[n, k], 0.0, x[n, k])
    y[n: N, k: K] = select(a[n], z[n, k], 0.0)
    -> y[n, k]
    """,
    "y[n: N, k: K] = select(p[n, k], 0.0, x[n, k])\n-> y[n, k]",
)
ROWS["guarded by any other row"] = (
    "x[N, K], p: bool[K, N]",
    """
    a[n: N] = any[k: K](p[k, n])
    z[n: N, k: K] = select(p[k, 0], x[n, k], 0.0)
    y[n: N, k: K] = select(a[n], z[n, k], 0.0)
    -> y[n, k]
    """,
    "y[n: N, k: K] = select(p[k, 0], x[n, k], 0.0)\n-> y[n, k]",
)
ROWS["nothing where something is below 0"] = (
    "x[N], y[N]",
    "i[n: N] = lt(x[n], 0.0)\na[n: N] = mul(x[n], y[n])\nz[n: N] = select(i[n], 0.0, a[n])\n-> z[n]",
    "z[n: N] = mul(x[n], y[n])\n-> z[n]",
)
