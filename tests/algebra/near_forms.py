"""Pairs that are nearly equal: inputs and two bodies each (see `pairs`). No two of them are equal."""

from __future__ import annotations

from algebra.equal_rows import SOFTMAX

FORMS: dict[str, tuple[str, str, str]] = {}

X = "x[N, K]"
XY = "x[N], y[N]"
SQUARE = "a[N, N]"
FORMS["an array and its transpose"] = (
    SQUARE, "y[i: N, j: N] = add(a[i, j], 0.0)\n-> y[i, j]", "y[i: N, j: N] = add(a[j, i], 0.0)\n-> y[i, j]"
)  # fmt: skip
FORMS["a diagonal and a row"] = (
    SQUARE, "y[i: N] = add(a[i, i], 0.0)\n-> y[i]", "y[i: N] = add(a[i, 0], 0.0)\n-> y[i]"
)  # fmt: skip
FORMS["row sums and column sums"] = (
    SQUARE, "y[i: N] = sum[j: N](a[i, j])\n-> y[i]", "y[i: N] = sum[j: N](a[j, i])\n-> y[i]"
)  # fmt: skip
FORMS["root of a square"] = (
    "x[N]", "a[n: N] = mul(x[n], x[n])\ny[n: N] = sqrt(a[n])\n-> y[n]", "y[n: N] = add(x[n], 0.0)\n-> y[n]"
)  # fmt: skip
FORMS["root of a square of a product"] = (
    XY,
    "a[n: N] = mul(x[n], y[n])\nb[n: N] = mul(a[n], a[n])\nz[n: N] = sqrt(b[n])\n-> z[n]",
    "b[n: N] = abs(x[n])\nz[n: N] = mul(b[n], y[n])\n-> z[n]",
)
FORMS["root of the square of a root"] = (
    "x[N]",
    """
    a[n: N] = mul(x[n], x[n])
    b[n: N] = mul(a[n], x[n])
    c[n: N] = mul(b[n], b[n])
    y[n: N] = sqrt(c[n])
    -> y[n]
    """,
    "a[n: N] = mul(x[n], x[n])\ny[n: N] = mul(a[n], x[n])\n-> y[n]",
)
FORMS["root of an inverse square"] = (
    "x[N]",
    "a[n: N] = mul(x[n], x[n])\nb[n: N] = reciprocal(a[n])\ny[n: N] = sqrt(b[n])\n-> y[n]",
    "y[n: N] = reciprocal(x[n])\n-> y[n]",
)
FORMS["log of a square"] = (
    "x[N]",
    "a[n: N] = mul(x[n], x[n])\ny[n: N] = log(a[n])\n-> y[n]",
    "a[n: N] = log(x[n])\ny[n: N] = mul(a[n], 2.0)\n-> y[n]",
)
FORMS["log of a product as a sum of logs"] = (
    XY,
    "a[n: N] = mul(x[n], y[n])\nz[n: N] = log(a[n])\n-> z[n]",
    "a[n: N] = log(x[n])\nb[n: N] = log(y[n])\nz[n: N] = add(a[n], b[n])\n-> z[n]",
)
FORMS["log of a sum of exponentials as a sum"] = (
    X,
    "e[n: N, k: K] = exp(x[n, k])\ns[n: N] = sum[k: K](e[n, k])\ny[n: N] = log(s[n])\n-> y[n]",
    "y[n: N] = sum[k: K](x[n, k])\n-> y[n]",
)
FORMS["exponential of a sum as a sum of exponentials"] = (
    X,
    "s[n: N] = sum[k: K](x[n, k])\ny[n: N] = exp(s[n])\n-> y[n]",
    "e[n: N, k: K] = exp(x[n, k])\ny[n: N] = sum[k: K](e[n, k])\n-> y[n]",
)
FORMS["maximum with a negative factor"] = (
    X,
    "a[n: N, k: K] = mul(x[n, k], -2.0)\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = mul(m[n], -2.0)\n-> y[n]",
)
FORMS["maximum with a factor of unknown sign"] = (
    X + ", c: scalar f32",
    "a[n: N, k: K] = mul(x[n, k], c)\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = mul(m[n], c)\n-> y[n]",
)
FORMS["maximum with a factor of unknown sign at each row"] = (
    X + ", c[N]",
    "a[n: N, k: K] = mul(x[n, k], c[n])\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = mul(m[n], c[n])\n-> y[n]",
)
FORMS["largest and smallest"] = (
    X, "y[n: N] = max[k: K](x[n, k])\n-> y[n]", "y[n: N] = min[k: K](x[n, k])\n-> y[n]"
)  # fmt: skip
FORMS["largest square"] = (
    X,
    "a[n: N, k: K] = mul(x[n, k], x[n, k])\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = mul(m[n], m[n])\n-> y[n]",
)
FORMS["largest of a sum"] = (
    "x[N, K], y[N, K]",
    "a[n: N, k: K] = add(x[n, k], y[n, k])\nz[n: N] = max[k: K](a[n, k])\n-> z[n]",
    "a[n: N] = max[k: K](x[n, k])\nb[n: N] = max[k: K](y[n, k])\nz[n: N] = add(a[n], b[n])\n-> z[n]",
)
FORMS["sum of maxima"] = (
    X,
    "s[k: K] = sum[n: N](x[n, k])\ny = max[k: K](s[k])\n-> y",
    "m[n: N] = max[k: K](x[n, k])\ny = sum[n: N](m[n])\n-> y",
)
FORMS["relu of a difference"] = (
    XY,
    "a[n: N] = sub(x[n], y[n])\nz[n: N] = max(a[n], 0.0)\n-> z[n]",
    "a[n: N] = max(x[n], 0.0)\nb[n: N] = max(y[n], 0.0)\nz[n: N] = sub(a[n], b[n])\n-> z[n]",
)
FORMS["magnitude of a sum"] = (
    XY,
    "a[n: N] = add(x[n], y[n])\nz[n: N] = abs(a[n])\n-> z[n]",
    "a[n: N] = abs(x[n])\nb[n: N] = abs(y[n])\nz[n: N] = add(a[n], b[n])\n-> z[n]",
)
FORMS["softmax over the other dim"] = (
    X,
    SOFTMAX,
    """
    e[n: N, k: K] = exp(x[n, k])
    s[k: K] = sum[n: N](e[n, k])
    y[n: N, k: K] = div(e[n, k], s[k])
    -> y[n, k]
    """,
)
FORMS["softmax over the other dim of a square"] = (
    SQUARE,
    """
    e[i: N, j: N] = exp(a[i, j])
    s[i: N] = sum[j: N](e[i, j])
    y[i: N, j: N] = div(e[i, j], s[i])
    -> y[i, j]
    """,
    """
    e[i: N, j: N] = exp(a[i, j])
    s[i: N] = sum[j: N](e[j, i])
    y[i: N, j: N] = div(e[i, j], s[i])
    -> y[i, j]
    """,
)
FORMS["softmax over both dims"] = (
    X,
    SOFTMAX,
    """
    e[n: N, k: K] = exp(x[n, k])
    s = sum[n: N, k: K](e[n, k])
    y[n: N, k: K] = div(e[n, k], s)
    -> y[n, k]
    """,
)
FORMS["values by the transposed weights"] = (
    "q[S, D], k[S, D], v[S, F]",
    """
    qk[s: S, t: S] = contract[d: D](q[s, d], k[t, d])
    o[s: S, f: F] = contract[t: S](qk[s, t], v[t, f])
    -> o[s, f]
    """,
    """
    qk[s: S, t: S] = contract[d: D](q[s, d], k[t, d])
    o[s: S, f: F] = contract[t: S](qk[t, s], v[t, f])
    -> o[s, f]
    """,
)
FORMS["x xT x and x x xT"] = (
    "x[N, N]",
    """
    g[i: N, j: N] = contract[k: N](x[i, k], x[j, k])
    y[i: N, j: N] = contract[k: N](g[i, k], x[k, j])
    -> y[i, j]
    """,
    """
    g[i: N, j: N] = contract[k: N](x[i, k], x[k, j])
    y[i: N, j: N] = contract[k: N](g[i, k], x[j, k])
    -> y[i, j]
    """,
)
FORMS["adjacency and its transpose"] = (
    "adj[N, N], h[N, D]",
    "y[i: N, d: D] = contract[j: N](adj[i, j], h[j, d])\n-> y[i, d]",
    "y[i: N, d: D] = contract[j: N](adj[j, i], h[j, d])\n-> y[i, d]",
)
FORMS["trace of a product and a product of traces"] = (
    "a[N, N], b[N, N]",
    "y = contract[i: N, j: N](a[i, j], b[j, i])\n-> y",
    "s = sum[i: N](a[i, i])\nt = sum[i: N](b[i, i])\ny = mul(s, t)\n-> y",
)
FORMS["capture at depth one"] = (
    SQUARE,
    "r[i: N] = sum[j: N](a[i, j])\ny[i: N] = mul(r[i], r[i])\nz = sum[i: N](y[i])\n-> z",
    "b[i: N, j: N] = mul(a[i, j], a[i, j])\nr[i: N] = sum[j: N](b[i, j])\nz = sum[i: N](r[i])\n-> z",
)
FORMS["capture at depth two"] = (
    SQUARE,
    """
    r[i: N] = sum[j: N](a[i, j])
    p[i: N, k: N] = mul(r[k], a[i, k])
    q[i: N] = sum[k: N](p[i, k])
    z[i: N] = mul(q[i], r[i])
    -> z[i]
    """,
    """
    p[i: N, k: N] = mul(a[k, k], a[i, k])
    q[i: N] = sum[k: N](p[i, k])
    r[i: N] = sum[j: N](a[i, j])
    z[i: N] = mul(q[i], r[i])
    -> z[i]
    """,
)
FORMS["capture at depth three"] = (
    SQUARE,
    """
    r[i: N] = sum[j: N](a[i, j])
    p[i: N] = contract[j: N](a[i, j], r[j])
    q[i: N] = contract[j: N](a[i, j], p[j])
    -> q[i]
    """,
    """
    r[i: N] = sum[j: N](a[i, j])
    b[i: N, j: N] = mul(a[i, j], a[i, j])
    p[i: N] = contract[j: N](b[i, j], r[j])
    q[i: N] = add(p[i], 0.0)
    -> q[i]
    """,
)
FORMS["capture in an exponent"] = (
    SQUARE,
    """
    r[i: N] = sum[j: N](a[i, j])
    e[i: N, j: N] = exp(a[i, j])
    f[i: N, j: N] = mul(e[i, j], r[j])
    z[i: N] = sum[j: N](f[i, j])
    -> z[i]
    """,
    """
    e[i: N, j: N] = exp(a[i, j])
    f[i: N, j: N] = mul(e[i, j], a[j, j])
    z[i: N] = sum[j: N](f[i, j])
    -> z[i]
    """,
)
