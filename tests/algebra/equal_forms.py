"""Equal programs of products, sums, roots and maxima: inputs and two bodies each (see `pairs`)."""

from __future__ import annotations

from algebra.equal_rows import ATTENTION, GUARDED_PARTS, LSE, MASKED, MASKED_ATTENTION, QKV, X

FORMS: dict[str, tuple[str, str, str]] = {}

RMS = """
q[n: N, k: K] = mul(x[n, k], x[n, k])
s[n: N] = sum[k: K](q[n, k])
a[n: N] = div(s[n], size(K))
b[n: N] = add(a[n], eps)
r[n: N] = rsqrt(b[n])
"""
FORMS["scale behind the product"] = (
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
FORMS["exponentials of a choice, summed"] = (
    "x[N, K], y[N, K], p: bool[N, K]",
    """
    z[n: N, k: K] = select(p[n, k], x[n, k], y[n, k])
    e[n: N, k: K] = exp(z[n, k])
    s[n: N] = sum[k: K](e[n, k])
    -> s[n]
    """,
    """
    a[n: N, k: K] = exp(x[n, k])
    b[n: N, k: K] = exp(y[n, k])
    e[n: N, k: K] = select(p[n, k], a[n, k], b[n, k])
    s[n: N] = sum[k: K](e[n, k])
    -> s[n]
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
FORMS["variance in one pass"] = (
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
FORMS["adapters"] = (
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
FORMS["adapters by concatenation"] = (
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
FORMS["three products in another order"] = (
    "a[N, K], b[K, L], c[L, M]",
    """
    ab[n: N, l: L] = contract[k: K](a[n, k], b[k, l])
    y[n: N, m: M] = contract[l: L](ab[n, l], c[l, m])
    -> y[n, m]
    """,
    """
    bc[k: K, m: M] = contract[l: L](b[k, l], c[l, m])
    y[n: N, m: M] = contract[k: K](a[n, k], bc[k, m])
    -> y[n, m]
    """,
)
FORMS["row sums of a product"] = (
    "a[N, K], b[K, M]",
    "ab[n: N, m: M] = contract[k: K](a[n, k], b[k, m])\ny[n: N] = sum[m: M](ab[n, m])\n-> y[n]",
    "c[k: K] = sum[m: M](b[k, m])\ny[n: N] = contract[k: K](a[n, k], c[k])\n-> y[n]",
)
FORMS["relu and magnitude"] = (
    "x[N]",
    "y[n: N] = abs(x[n])\n-> y[n]",
    """
    a[n: N] = max(x[n], 0.0)
    b[n: N] = neg(x[n])
    c[n: N] = max(b[n], 0.0)
    y[n: N] = add(a[n], c[n])
    -> y[n]
    """,
)
FORMS["root of a square"] = (
    "x[N]",
    "y[n: N] = abs(x[n])\n-> y[n]",
    "a[n: N] = mul(x[n], x[n])\ny[n: N] = sqrt(a[n])\n-> y[n]",
)
FORMS["smallest as largest"] = (
    X,
    "y[n: N] = min[k: K](x[n, k])\n-> y[n]",
    "a[n: N, k: K] = neg(x[n, k])\nb[n: N] = max[k: K](a[n, k])\ny[n: N] = neg(b[n])\n-> y[n]",
)
FORMS["largest of exponentials"] = (
    X,
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = exp(m[n])\n-> y[n]",
    "e[n: N, k: K] = exp(x[n, k])\ny[n: N] = max[k: K](e[n, k])\n-> y[n]",
)
FORMS["largest magnitude by parts"] = (
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
FORMS["halves turned"] = (
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
FORMS["split of a product"] = (
    "a[N, K], b[K, M]",
    "y[n: N, m: M] = contract[k: K](a[n, k], b[k, m])\n-> y[n, m]",
    """
    z[p: parts(K), n: N, m: M] = contract[k: part(K)](a[n, join(p, k)], b[join(p, k), m])
    y[n: N, m: M] = sum[p: parts(K)](z[p, n, m])
    -> y[n, m]
    """,
)
FORMS["powers and roots"] = (
    "x[N], y[N]",
    "a[n: N] = div(x[n], y[n])\nb[n: N] = pow(a[n], 2.0)\nz[n: N] = mul(b[n], y[n])\n-> z[n]",
    "a[n: N] = mul(x[n], x[n])\nz[n: N] = div(a[n], y[n])\n-> z[n]",
)
FORMS["a difference of squares over a sum"] = (
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
FORMS["weights as shares of a square"] = (
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
FORMS["sum of a square of a sum"] = (
    X,
    "s[n: N] = sum[k: K](x[n, k])\nq[n: N] = mul(s[n], s[n])\ny = sum[n: N](q[n])\n-> y",
    """
    g[k: K, l: K] = contract[n: N](x[n, k], x[n, l])
    h[k: K] = sum[l: K](g[k, l])
    y = sum[k: K](h[k])
    -> y
    """,
)
FORMS["magnitudes summed"] = (
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
FORMS["roots of squares summed"] = (
    "x[N]",
    "a[n: N] = abs(x[n])\ny = sum[n: N](a[n])\n-> y",
    "a[n: N] = mul(x[n], x[n])\nb[n: N] = sqrt(a[n])\ny = sum[n: N](b[n])\n-> y",
)
FORMS["masks that exclude each other"] = (
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
FORMS["largest of a shifted row"] = (
    X + ", b[N]",
    "a[n: N, k: K] = add(x[n, k], b[n])\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = add(m[n], b[n])\n-> y[n]",
)
FORMS["largest of a scaled row"] = (
    X + ", b[N]",
    "e[n: N] = exp(b[n])\na[n: N, k: K] = mul(x[n, k], e[n])\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
    "e[n: N] = exp(b[n])\nm[n: N] = max[k: K](x[n, k])\ny[n: N] = mul(m[n], e[n])\n-> y[n]",
)
FORMS["largest of a union"] = (
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
        ("some{partt': mask[s, partst:partt']} where [n[partst] - 1 >= 0]",),
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

# Proved, but the checker of certificates does not know the law yet.
CAPS: dict[str, tuple[str, str, str]] = {}
CAPS["largest of capped values"] = (
    "x[N, K], c[N]",
    "a[n: N, k: K] = min(x[n, k], c[n])\ny[n: N] = max[k: K](a[n, k])\n-> y[n]",
    "m[n: N] = max[k: K](x[n, k])\ny[n: N] = min(m[n], c[n])\n-> y[n]",
)
CAPS["smallest of floored values"] = (
    "x[N, K], c[N]",
    "a[n: N, k: K] = max(x[n, k], c[n])\ny[n: N] = min[k: K](a[n, k])\n-> y[n]",
    "m[n: N] = min[k: K](x[n, k])\ny[n: N] = max(m[n], c[n])\n-> y[n]",
)
CAPS["capped along another index"] = (
    "x[N, K, J], c[N, J]",
    "a[n: N, k: K, j: J] = min(x[n, k, j], c[n, j])\ny[n: N] = max[k: K, j: J](a[n, k, j])\n-> y[n]",
    """
    m[n: N, j: J] = max[k: K](x[n, k, j])
    a[n: N, j: J] = min(m[n, j], c[n, j])
    y[n: N] = max[j: J](a[n, j])
    -> y[n]
    """,
)
CAPS["largest of clamped values, by parts"] = (
    "x[N, K], c[N]",
    """
    m[n: N, k: K] = max(x[n, k], -1.0)
    a[n: N, k: K] = min(m[n, k], c[n])
    y[n: N] = max[k: K](a[n, k])
    -> y[n]
    """,
    """
    l[n: N, p: parts(K)] = max[k: part(K)](x[n, join(p, k)])
    t[n: N] = max[p: parts(K)](l[n, p])
    m[n: N] = max(t[n], -1.0)
    y[n: N] = min(m[n], c[n])
    -> y[n]
    """,
)
