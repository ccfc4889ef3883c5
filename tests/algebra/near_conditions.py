"""For each side condition of a law a pair that is proved, wrongly, when the condition is switched off: inputs
and two bodies (see `pairs`). `laws.CONDITIONS` says what each condition is."""

from __future__ import annotations

from algebra.near_forms import FORMS, X
from algebra.near_rows import ROWS

GUARDED: dict[str, tuple[str, str, str]] = {
    "positive-base": FORMS["root of a square"],
    "positive-scale": FORMS["maximum with a factor of unknown sign at each row"],
    "free-factor": (X, "y[n: N] = sum[k: K](x[n, k])\n-> y[n]", "y[n: N] = mul(x[n, 0], 1.0)\n-> y[n]"),
    "only-joined": (
        "x[N, K], w[parts(K)]",
        """
        z[p: parts(K), n: N] = sum[k: part(K)](x[n, join(p, k)])
        y[n: N] = contract[p: parts(K)](z[p, n], w[p])
        -> y[n]
        """,
        "z[n: N] = sum[k: K](x[n, k])\ny[n: N] = mul(z[n], w[0])\n-> y[n]",
    ),
    "nonempty": (
        X,
        "y[n: N] = exp(x[n, 0])\n-> y[n]",
        """
        m[p: parts(K), n: N] = max[k: part(K)](x[n, 0])
        e[p: parts(K), n: N] = exp(m[p, n])
        t[n: N] = sum[p: parts(K)](e[p, n])
        y[n: N] = div(t[n], size(parts(K)))
        -> y[n]
        """,
    ),
    "in-range": (
        "x[N, V], t: i64[N]",
        """
        v[v: V] = index(v)
        h[n: N, v: V] = eq(v[v], t[n])
        z[n: N, v: V] = select(h[n, v], 1.0, 0.0)
        p[n: N] = sum[v: V](z[n, v])
        -> p[n]
        """,
        "a[n: N] = mul(x[n, 0], 0.0)\np[n: N] = add(a[n], 1.0)\n-> p[n]",
    ),
    "fresh-binders": (
        X,
        "s[n: N] = sum[k: K](x[n, k])\nq[n: N] = mul(s[n], s[n])\ny = sum[n: N](q[n])\n-> y",
        "q[n: N, k: K] = mul(x[n, k], x[n, k])\ny = sum[n: N, k: K](q[n, k])\n-> y",
    ),
    "one-to-one": (
        "x[N]",
        "f[i: N, j: N] = add(x[i], x[j])\ny[i: N] = mul(f[i, i], 1.0)\n-> y[i]",
        "y[i: N] = mul(x[i], 1.0)\n-> y[i]",
    ),
    "positive-outer": (
        "x[N, K], c[N], w[K]",
        """
        m[n: N] = max[k: K](x[n, k])
        d[n: N] = mul(m[n], c[n])
        z[n: N, j: K] = add(d[n], w[j])
        y[n: N] = max[j: K](z[n, j])
        -> y[n]
        """,
        """
        d[n: N, k: K] = mul(x[n, k], c[n])
        z[n: N, j: K, k: K] = add(d[n, k], w[j])
        y[n: N] = max[j: K, k: K](z[n, j, k])
        -> y[n]
        """,
    ),
    "positive-lead": (
        X,
        "e[n: N, k: K] = exp(x[n, k])\na[n: N, k: K] = neg(e[n, k])\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
        "m[n: N] = max[k: K](x[n, k])\ne[n: N] = exp(m[n])\ny[n: N] = neg(e[n])\n-> y[n]",
    ),
    "something-largest": (
        X,
        """
        e[p: parts(K), n: N, k: part(K)] = exp(x[n, join(p, k)])
        m[p: parts(K), n: N] = max[k: part(K)](e[p, n, k])
        f[p: parts(K), n: N] = max(m[p, n], -1.0)
        y[n: N] = sum[p: parts(K)](f[p, n])
        -> y[n]
        """,
        """
        m[p: parts(K), n: N] = max[k: part(K)](x[n, join(p, k)])
        e[p: parts(K), n: N] = exp(m[p, n])
        f[p: parts(K), n: N] = max(e[p, n], -1.0)
        y[n: N] = sum[p: parts(K)](f[p, n])
        -> y[n]
        """,
    ),
    "positive-sum": (
        X,
        """
        e[p: parts(K), n: N, k: part(K)] = exp(x[n, join(p, k)])
        s[p: parts(K), n: N] = sum[k: part(K)](e[p, n, k])
        g[p: parts(K), n: N] = gt(s[p, n], 0.0)
        z[p: parts(K), n: N] = select(g[p, n], 1.0, 0.0)
        y[n: N] = sum[p: parts(K)](z[p, n])
        -> y[n]
        """,
        "o[n: N] = mul(x[n, 0], 0.0)\ny[n: N] = add(o[n], size(parts(K)))\n-> y[n]",
    ),
    "empty-part": (
        X,
        """
        s[p: parts(K)] = sum[k: part(K)](1.0)
        g[p: parts(K)] = ge(s[p], 1.0)
        z[p: parts(K)] = select(g[p], 1.0, 0.0)
        y = sum[p: parts(K)](z[p])
        -> y
        """,
        "y = add(size(parts(K)), 0.0)\n-> y",
    ),
    "whole-numbers": (
        X,
        "g[n: N, k: K] = gt(x[n, k], 1.0)\ny[n: N, k: K] = select(g[n, k], 2.0, 3.0)\n-> y[n, k]",
        "g[n: N, k: K] = ge(x[n, k], 2.0)\ny[n: N, k: K] = select(g[n, k], 2.0, 3.0)\n-> y[n, k]",
    ),
    "strictness": (
        "x[N]",
        """
        d[n: N] = sub(x[n], x[0])
        g[n: N] = ge(d[n], 0.0)
        h[n: N] = gt(d[n], 0.0)
        b[n: N] = and(g[n], h[n])
        y[n: N] = select(b[n], 2.0, 3.0)
        -> y[n]
        """,
        "d[n: N] = sub(x[n], x[0])\ng[n: N] = ge(d[n], 0.0)\ny[n: N] = select(g[n], 2.0, 3.0)\n-> y[n]",
    ),
    "every-entry": (
        "x[N], y[N], p: bool[N]",
        """
        a[n: N] = select(p[n], x[n], -inf)
        m[n: N] = max(a[n], y[n])
        z[n: N] = exp(m[n])
        -> z[n]
        """,
        """
        m[n: N] = max(x[n], y[n])
        b[n: N] = select(p[n], m[n], -inf)
        z[n: N] = exp(b[n])
        -> z[n]
        """,
    ),
    "same-witness": (
        "x[N, K], p: bool[N, K], q: bool[N, K]",
        """
        a[n: N] = any[k: K](q[n, k])
        z[n: N, k: K] = select(p[n, k], x[n, k], 0.0)
        s[n: N] = sum[k: K](z[n, k])
        y[n: N] = select(a[n], s[n], 0.0)
        -> y[n]
        """,
        "z[n: N, k: K] = select(p[n, k], x[n, k], 0.0)\ny[n: N] = sum[k: K](z[n, k])\n-> y[n]",
    ),
    "widening": ROWS["a cast to integers"],
    "bounded": (
        "c: scalar f32, x[K]",
        "d = sub(c, c)\ny[k: K] = add(x[k], d)\n-> y[k]",
        """
        m[p: parts(K)] = min[k: part(K)](c)
        n = max[p: parts(K)](m[p])
        d = sub(n, n)
        y[k: K] = add(x[k], d)
        -> y[k]
        """,
    ),
    "defined": (
        "x[N, K], p: bool[N, K]",
        """
        z[n: N, k: K] = select(p[n, k], x[n, k], -inf)
        e[n: N, k: K] = exp(z[n, k])
        s[n: N] = sum[k: K](e[n, k])
        y[n: N, k: K] = div(e[n, k], s[n])
        a[n: N] = any[k: K](p[n, k])
        w[n: N, k: K] = select(a[n], y[n, k], 0.0)
        -> w[n, k]
        """,
        """
        z[n: N, k: K] = select(p[n, k], x[n, k], -inf)
        e[n: N, k: K] = exp(z[n, k])
        s[n: N] = sum[k: K](e[n, k])
        y[n: N, k: K] = div(e[n, k], s[n])
        -> y[n, k]
        """,
    ),
    "reads-inside": (
        "x[N]",
        """
        i[n: N] = index(n)
        last = sub(size(N), 1)
        e[n: N] = eq(i[n], last)
        c[n: N] = mul(2.0, -3.0)
        y[n: N] = select(e[n], c[n], c[n + 1])
        -> y[n]
        """,
        "c[n: N] = mul(2.0, -3.0)\ny[n: N] = id(c[n + 1])\n-> y[n]",
    ),
}  # fmt: skip
