"""Still more pairs that are nearly equal: true for some sizes only, weights, norms, losses, chains of gathers
(see `near_forms`). `UNDEFINED` holds pairs where the second program is not defined somewhere the first is."""

from __future__ import annotations

from algebra.equal_rows import SOFTMAX
from algebra.near_conditions import GUARDED
from algebra.near_forms import SQUARE, XY, X

MORE: dict[str, tuple[str, str, str]] = {}

SUM = "s[n: N] = sum[k: K](x[n, k])\n"
MORE["true for two elements only"] = (
    X,
    SUM + "y[n: N] = mul(s[n], 2.0)\n-> y[n]",
    SUM + "y[n: N] = mul(s[n], size(K))\n-> y[n]",
)
MORE["pairs of three elements only"] = (
    X,
    """
    i[a: K] = index(a)
    j[b: K] = index(b)
    g[a: K, b: K] = lt(i[a], j[b])
    o[a: K, b: K] = select(g[a, b], 1.0, 0.0)
    p = sum[a: K, b: K](o[a, b])
    y[n: N] = mul(x[n, 0], p)
    -> y[n]
    """,
    "y[n: N] = mul(x[n, 0], size(K))\n-> y[n]",
)
MORE["a cap that depends on the index"] = (
    "x[N, K], c[N, K]",
    "a[n: N, k: K] = min(x[n, k], c[n, k])\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
    "m[n: N] = max[k: K](x[n, k])\nt[n: N] = max[k: K](c[n, k])\ny[n: N] = min(m[n], t[n])\n-> y[n]",
)
MORE["a cap times a factor of any sign"] = (
    "x[N, K], c[N], s[N]",
    """
    a[n: N, k: K] = min(x[n, k], c[n])
    b[n: N, k: K] = mul(a[n, k], s[n])
    y[n: N] = max[k: K](b[n, k])
    -> y[n]
    """,
    """
    m[n: N] = max[k: K](x[n, k])
    a[n: N] = min(m[n], c[n])
    y[n: N] = mul(a[n], s[n])
    -> y[n]
    """,
)
MORE["a cap of the smallest for the largest"] = (
    "x[N, K], c[N]",
    "a[n: N, k: K] = min(x[n, k], c[n])\ny[n: N] = min[k: K](a[n, k])\n-> y[n]",
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = min(m[n], c[n])\n-> y[n]",
)
MORE["what another row needs"] = (
    "x[N, N], g: bool[N]",
    """
    w[n: N, k: N] = select(g[n], x[n, k], -inf)
    m[n: N] = max[k: N](w[n, k])
    d[n: N] = sub(x[n, n], m[n])
    o[k: N] = select(g[k], 1.0, 0.0)
    s = sum[k: N](o[k])
    y[n: N] = mul(d[n], s)
    -> y[n]
    """,
    """
    w[n: N, k: N] = select(g[n], x[n, k], -inf)
    m[n: N] = max[k: N](w[n, k])
    d[n: N] = sub(x[n, n], m[n])
    y[n: N] = mul(d[n], size(N))
    -> y[n]
    """,
)
MORE["true for one element only"] = (
    X, SUM + "-> s[n]", "y[n: N] = max[k: K](x[n, k])\n-> y[n]"
)  # fmt: skip
WINDOW = """
i[s: S] = index(s)
j[t: T] = index(t - 2)
g[s: S, t: T] = ge(i[s], j[t])
y[s: S, t: T] = select(g[s, t], x[s, t], 0.0)
-> y[s, t]
"""
MORE["a window that cuts long rows only"] = (
    "x[S, T]",
    WINDOW,
    "y[s: S, t: T] = add(x[s, t], 0.0)\n-> y[s, t]",
)
MORE["true for as many rows as columns"] = (
    "x[N, K], y[K]",
    "a[n: N, k: K] = add(x[n, k], y[k])\nz = sum[n: N, k: K](a[n, k])\n-> z",
    "s = sum[n: N, k: K](x[n, k])\nt = sum[k: K](y[k])\nu = mul(t, size(K))\nz = add(s, u)\n-> z",
)
MORE["true on the diagonal only"] = (
    SQUARE,
    "y[i: N, j: N] = mul(a[i, j], a[j, i])\n-> y[i, j]",
    "y[i: N, j: N] = mul(a[i, j], a[i, j])\n-> y[i, j]",
)
MORE["relu of a product"] = (
    XY,
    "a[n: N] = mul(x[n], y[n])\nz[n: N] = max(a[n], 0.0)\n-> z[n]",
    "a[n: N] = max(x[n], 0.0)\nb[n: N] = max(y[n], 0.0)\nz[n: N] = mul(a[n], b[n])\n-> z[n]",
)
MORE["a clamp in the other order"] = (
    "x[N]",
    "a[n: N] = max(x[n], 2.0)\ny[n: N] = min(a[n], 1.0)\n-> y[n]",
    "a[n: N] = min(x[n], 1.0)\ny[n: N] = max(a[n], 2.0)\n-> y[n]",
)
MORE["the smallest as minus the largest"] = (
    X,
    "y[n: N] = min[k: K](x[n, k])\n-> y[n]",
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = neg(m[n])\n-> y[n]",
)
MORE["a sum up to a row, and before it"] = (
    "x[N]",
    """
    i[n: N] = index(n)
    g[n: N, k: N] = le(i[k], i[n])
    z[n: N, k: N] = select(g[n, k], x[k], 0.0)
    y[n: N] = sum[k: N](z[n, k])
    -> y[n]
    """,
    """
    i[n: N] = index(n)
    g[n: N, k: N] = lt(i[k], i[n])
    z[n: N, k: N] = select(g[n, k], x[k], 0.0)
    y[n: N] = sum[k: N](z[n, k])
    -> y[n]
    """,
)
MORE["a masked mean over all"] = (
    "x[N, K], p: bool[N, K]",
    """
    z[n: N, k: K] = select(p[n, k], x[n, k], 0.0)
    s[n: N] = sum[k: K](z[n, k])
    y[n: N] = div(s[n], size(K))
    -> y[n]
    """,
    """
    z[n: N, k: K] = select(p[n, k], x[n, k], 0.0)
    s[n: N] = sum[k: K](z[n, k])
    o[n: N, k: K] = select(p[n, k], 1.0, 0.0)
    c[n: N] = sum[k: K](o[n, k])
    y[n: N] = div(s[n], c[n])
    -> y[n]
    """,
)
MORE["a shift that does not cancel"] = (
    X,
    SOFTMAX,
    """
    m[n: N] = max[k: K](x[n, k])
    d[n: N, k: K] = sub(x[n, k], m[n])
    e[n: N, k: K] = exp(d[n, k])
    f[n: N, k: K] = exp(x[n, k])
    s[n: N] = sum[k: K](f[n, k])
    y[n: N, k: K] = div(e[n, k], s[n])
    -> y[n, k]
    """,
)
LOG = """
m[n: N] = max[k: K](x[n, k])
d[n: N, k: K] = sub(x[n, k], m[n])
e[n: N, k: K] = exp(d[n, k])
s[n: N] = sum[k: K](e[n, k])
l[n: N] = log(s[n])
"""
MORE["a maximum that is not added back"] = (X, LOG + "y[n: N] = add(l[n], m[n])\n-> y[n]", LOG + "-> l[n]")
MORE["logs of sums of parts added"] = (
    X,
    "e[n: N, k: K] = exp(x[n, k])\ns[n: N] = sum[k: K](e[n, k])\nl[n: N] = log(s[n])\n-> l[n]",
    """
    e[n: N, p: parts(K), k: part(K)] = exp(x[n, join(p, k)])
    s[n: N, p: parts(K)] = sum[k: part(K)](e[n, p, k])
    l[n: N, p: parts(K)] = log(s[n, p])
    y[n: N] = max[p: parts(K)](l[n, p])
    -> y[n]
    """,
)
MORE["a temperature outside"] = (
    X + ", tau: scalar f32",
    "z[n: N, k: K] = mul(x[n, k], tau)\n" + SOFTMAX.replace("x[n, k]", "z[n, k]"),
    SOFTMAX.replace("-> y[n, k]", "z[n: N, k: K] = mul(y[n, k], tau)\n-> z[n, k]"),
)
MORE["a norm behind a product without the mean"] = (
    "x[N, K], w[K, O]",
    """
    s[n: N] = sum[k: K](x[n, k])
    m[n: N] = div(s[n], size(K))
    d[n: N, k: K] = sub(x[n, k], m[n])
    y[n: N, o: O] = contract[k: K](d[n, k], w[k, o])
    -> y[n, o]
    """,
    """
    s[n: N] = sum[k: K](x[n, k])
    m[n: N] = div(s[n], size(K))
    z[n: N, o: O] = contract[k: K](x[n, k], w[k, o])
    y[n: N, o: O] = sub(z[n, o], m[n])
    -> y[n, o]
    """,
)
MORE["weights of concatenated inputs exchanged"] = (
    "a[N, K], b[N, K], w[(K | K), O]",
    "z[n: N, u: (K | K)] = cat[u = i | j](a[n, i], b[n, j])\n"
    "y[n: N, o: O] = contract[u: (K | K)](z[n, u], w[u, o])\n-> y[n, o]",
    """
    p[n: N, o: O] = contract[k: K](a[n, k], w[in1(k), o])
    q[n: N, o: O] = contract[k: K](b[n, k], w[in0(k), o])
    y[n: N, o: O] = add(p[n, o], q[n, o])
    -> y[n, o]
    """,
)
MORE["keys of the group and of the head"] = (
    "q[N, N, D], k[N, D]",
    "y[g: N, h: N] = contract[d: D](q[g, h, d], k[g, d])\n-> y[g, h]",
    "y[g: N, h: N] = contract[d: D](q[g, h, d], k[h, d])\n-> y[g, h]",
)
MORE["a gate of the square"] = (
    "x[N]",
    """
    a[n: N] = neg(x[n])
    b[n: N] = exp(a[n])
    c[n: N] = add(b[n], 1.0)
    y[n: N] = div(x[n], c[n])
    -> y[n]
    """,
    """
    a[n: N] = mul(x[n], x[n])
    a1[n: N] = neg(a[n])
    b[n: N] = exp(a1[n])
    c[n: N] = add(b[n], 1.0)
    y[n: N] = reciprocal(c[n])
    -> y[n]
    """,
)
LOGITS = "l[n: N, k: K] = sub(x[n, k], y[n, k])\n"
MORE["a divergence the other way"] = (
    "x[N, K], y[N, K]",
    LOGITS + "e[n: N, k: K] = exp(x[n, k])\nz[n: N] = contract[k: K](e[n, k], l[n, k])\n-> z[n]",
    LOGITS + "e[n: N, k: K] = exp(y[n, k])\nz[n: N] = contract[k: K](e[n, k], l[n, k])\n-> z[n]",
)
MORE["a distance with one cross term"] = (
    "x[N, D], y[M, D]",
    """
    d[n: N, m: M, e: D] = sub(x[n, e], y[m, e])
    z[n: N, m: M] = contract[e: D](d[n, m, e], d[n, m, e])
    -> z[n, m]
    """,
    """
    a[n: N] = contract[e: D](x[n, e], x[n, e])
    b[m: M] = contract[e: D](y[m, e], y[m, e])
    c[n: N, m: M] = contract[e: D](x[n, e], y[m, e])
    s[n: N, m: M] = add(a[n], b[m])
    z[n: N, m: M] = sub(s[n, m], c[n, m])
    -> z[n, m]
    """,
)
MORE["some and two"] = (
    "p: bool[N, K]",
    "a[n: N] = any[k: K](p[n, k])\ny[n: N] = select(a[n], 1.0, 0.0)\n-> y[n]",
    """
    o[n: N, k: K] = select(p[n, k], 1.0, 0.0)
    c[n: N] = sum[k: K](o[n, k])
    a[n: N] = ge(c[n], 2.0)
    y[n: N] = select(a[n], 1.0, 0.0)
    -> y[n]
    """,
)
MORE["a gather once and twice"] = (
    "x[N], t: i64[N]",
    "a[n: N] = add(x[t[n]], 0.0)\ny[n: N] = add(a[t[n]], 0.0)\n-> y[n]",
    "y[n: N] = add(x[t[n]], 0.0)\n-> y[n]",
)
MORE["documents in order and the same document"] = (
    "x[N, N], t: i64[N]",
    "g[i: N, j: N] = eq(t[i], t[j])\ny[i: N, j: N] = select(g[i, j], x[i, j], 0.0)\n-> y[i, j]",
    "g[i: N, j: N] = le(t[i], t[j])\ny[i: N, j: N] = select(g[i, j], x[i, j], 0.0)\n-> y[i, j]",
)
MORE["eps beside the quotient"] = (
    "x[N], y[N], eps: scalar f32",
    "a[n: N] = add(y[n], eps)\nz[n: N] = div(x[n], a[n])\n-> z[n]",
    "a[n: N] = div(x[n], y[n])\nz[n: N] = add(a[n], eps)\n-> z[n]",
)
MORE["capture at depth three under parts"] = (
    SQUARE,
    """
    r[i: N] = sum[j: N](a[i, j])
    q[p: parts(N), i: N] = contract[j: part(N)](a[i, join(p, j)], r[join(p, j)])
    z[i: N] = sum[p: parts(N)](q[p, i])
    -> z[i]
    """,
    """
    q[p: parts(N), i: N] = contract[j: part(N)](a[i, join(p, j)], a[join(p, j), join(p, j)])
    z[i: N] = sum[p: parts(N)](q[p, i])
    -> z[i]
    """,
)
MORE["capture in a maximum"] = (
    SQUARE,
    """
    m[i: N] = max[j: N](a[i, j])
    s[i: N, j: N] = sub(a[i, j], m[j])
    z[i: N] = max[j: N](s[i, j])
    -> z[i]
    """,
    """
    m[i: N] = max[j: N](a[i, j])
    s[i: N, j: N] = sub(a[i, j], m[i])
    z[i: N] = max[j: N](s[i, j])
    -> z[i]
    """,
)
MORE["a power of a sum"] = (
    X,
    SUM + "a[n: N] = mul(s[n], s[n])\ny[n: N] = mul(a[n], s[n])\n-> y[n]",
    SUM + "a[n: N, k: K] = mul(x[n, k], x[n, k])\nb[n: N] = sum[k: K](a[n, k])\n"
    "y[n: N] = mul(b[n], s[n])\n-> y[n]",
)
MORE["a product of sums over one index"] = (
    "x[N, K], y[N, K]",
    "z[n: N] = contract[k: K](x[n, k], y[n, k])\n-> z[n]",
    "a[n: N] = sum[k: K](x[n, k])\nb[n: N] = sum[k: K](y[n, k])\nz[n: N] = mul(a[n], b[n])\n-> z[n]",
)
MORE["the largest of parts of a maximum with a weight"] = (
    X + ", w[parts(K)]",
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = add(m[n], w[0])\n-> y[n]",
    """
    m[p: parts(K), n: N] = max[k: part(K)](x[n, join(p, k)])
    s[p: parts(K), n: N] = add(m[p, n], w[p])
    y[n: N] = max[p: parts(K)](s[p, n])
    -> y[n]
    """,
)

UNDEFINED: dict[str, tuple[str, str, str]] = {
    "a guard around a masked row taken away": GUARDED["defined"],
    "a read beyond the end without its guard": GUARDED["reads-inside"],
    "the largest of smallest of parts": GUARDED["bounded"],
    "a quotient that only one row may need": (
        "x[N]",
        """
        i[n: N] = index(n)
        f[n: N] = eq(i[n], 0)
        r[n: N] = reciprocal(x[n])
        z[n: N] = sub(r[n], r[n])
        o[n: N] = add(z[n], 2.0)
        p[n: N] = exp(x[n])
        y[n: N] = select(f[n], o[n], 2.0)
        -> y[n]
        """,
        "r[n: N] = log(x[n])\nz[n: N] = sub(r[n], r[n])\ny[n: N] = add(z[n], 2.0)\n-> y[n]",
    ),
    "the root of another row": (
        SQUARE,
        "r[i: N] = sqrt(a[i, i])\nz[i: N] = sub(r[i], r[i])\ny[i: N] = add(z[i], 1.0)\n-> y[i]",
        "r[i: N] = sqrt(a[i, 0])\nz[i: N] = sub(r[i], r[i])\ny[i: N] = add(z[i], 1.0)\n-> y[i]",
    ),
    "a root in one part for a root in all": (
        "u[(A | B)], c[N], g: bool[(A | B)]",
        "r[n: N] = sqrt(c[n])\nz[n: N, i: (A | B)] = cat[i = a | b](r[n], u[b + A])\n-> z[n, i]",
        """
        at[i: (A | B)] = index(i)
        in[i: (A | B)] = lt(at[i], size(A))
        p[i: (A | B)] = select(in[i], 1.0, 0.0)
        r[n: N] = sqrt(c[n])
        q[i: (A | B)] = sub(1.0, p[i])
        a[n: N, i: (A | B)] = mul(p[i], r[n])
        b[i: (A | B)] = mul(q[i], u[i])
        z[n: N, i: (A | B)] = add(a[n, i], b[i])
        -> z[n, i]
        """,
    ),
    "an exponential of the smallest of nothing": (
        "x[N, K]",
        """
        m[n: N, p: parts(K)] = max[k: part(K)](x[n, join(p, k)])
        e[n: N, p: parts(K)] = exp(m[n, p])
        t[n: N] = max[p: parts(K)](e[n, p])
        z[n: N] = sub(t[n], t[n])
        -> z[n]
        """,
        """
        m[n: N, p: parts(K)] = min[k: part(K)](x[n, join(p, k)])
        e[n: N, p: parts(K)] = exp(m[n, p])
        t[n: N] = max[p: parts(K)](e[n, p])
        z[n: N] = sub(t[n], t[n])
        -> z[n]
        """,
    ),
    "a blend for a choice": (
        "x[N], y[N], g: bool[N]",
        "r[n: N] = log(y[n])\nz[n: N] = select(g[n], x[n], r[n])\n-> z[n]",
        """
        r[n: N] = log(y[n])
        p[n: N] = select(g[n], 1.0, 0.0)
        q[n: N] = sub(1.0, p[n])
        a[n: N] = mul(p[n], x[n])
        b[n: N] = mul(q[n], r[n])
        z[n: N] = add(a[n], b[n])
        -> z[n]
        """,
    ),
    "one over the exponential of a part's maximum": (
        "x[N, K]",
        """
        m[n: N, p: parts(K)] = max[k: part(K)](x[n, join(p, k)])
        e[n: N, p: parts(K)] = exp(m[n, p])
        y[n: N] = sum[p: parts(K)](e[n, p])
        -> y[n]
        """,
        """
        m[n: N, p: parts(K)] = max[k: part(K)](x[n, join(p, k)])
        e[n: N, p: parts(K)] = exp(m[n, p])
        r[n: N, p: parts(K)] = reciprocal(e[n, p])
        f[n: N, p: parts(K)] = reciprocal(r[n, p])
        y[n: N] = sum[p: parts(K)](f[n, p])
        -> y[n]
        """,
    ),
    "nothing times the maximum of a part that may be empty": (
        "x[N, K]",
        """
        e[n: N, k: K] = exp(x[n, k])
        s[n: N] = sum[k: K](e[n, k])
        -> s[n]
        """,
        """
        m[n: N, p: parts(K)] = max[k: part(K)](x[n, join(p, k)])
        q[n: N, p: parts(K)] = ne(m[n, p], -inf)
        c[n: N, p: parts(K)] = cast(q[n, p])
        t[n: N, p: parts(K)] = mul(c[n, p], m[n, p])
        u[n: N, p: parts(K)] = exp(t[n, p])
        d[n: N, p: parts(K), k: part(K)] = sub(x[n, join(p, k)], t[n, p])
        e[n: N, p: parts(K), k: part(K)] = exp(d[n, p, k])
        z[n: N, p: parts(K)] = sum[k: part(K)](e[n, p, k])
        w[n: N, p: parts(K)] = mul(u[n, p], z[n, p])
        s[n: N] = sum[p: parts(K)](w[n, p])
        -> s[n]
        """,
    ),
    "nothing times the minimum of a part that may be empty": (
        "x[N, K]",
        """
        e[n: N, k: K] = exp(x[n, k])
        s[n: N] = sum[k: K](e[n, k])
        -> s[n]
        """,
        """
        m[n: N, p: parts(K)] = min[k: part(K)](x[n, join(p, k)])
        q[n: N, p: parts(K)] = lt(m[n, p], inf)
        c[n: N, p: parts(K)] = cast(q[n, p])
        t[n: N, p: parts(K)] = mul(m[n, p], c[n, p])
        d[n: N, p: parts(K), k: part(K)] = sub(x[n, join(p, k)], t[n, p])
        e[n: N, p: parts(K), k: part(K)] = exp(d[n, p, k])
        z[n: N, p: parts(K)] = sum[k: part(K)](e[n, p, k])
        u[n: N, p: parts(K)] = exp(t[n, p])
        w[n: N, p: parts(K)] = mul(z[n, p], u[n, p])
        s[n: N] = sum[p: parts(K)](w[n, p])
        -> s[n]
        """,
    ),
}
"""The first program has a value where the second has none: never a Yes without conditions."""
