"""Pairs whose forms are equal, and that differ where a part is empty: its maximum is -inf, and what is made
of that is a number in one program and not in the other, or another truth. Then pairs that differ where a mask
is. Inputs and two bodies (`pairs`)."""

from __future__ import annotations

INPUTS = "x[K], w[K], c: scalar f32, d: scalar f32, g: bool[K]"
_TOP = "m[p: parts(K)] = max[k: part(K)](x[join(p, k)])\n"
_OTHER = "n[p: parts(K)] = max[k: part(K)](w[join(p, k)])\n"
_NOTHING = "y = mul(c, 0.0)\n-> y"
_ONES = "t = gt(1.0, 0.0)\nz[p: parts(K)] = select(t, 1.0, 0.0)\n-> z[p]"
_TRUTH = "z[p: parts(K)] = select({}[p], 1.0, 0.0)\n-> z[p]"
_SUM = "y = sum[p: parts(K)]({}[p])\n-> y"

NAN = {
    "opposite infinities added": (
        _NOTHING,
        _TOP + "h[p: parts(K)] = neg(m[p])\nq[p: parts(K)] = add(m[p], h[p])\n" + _SUM.format("q"),
    ),
    "an infinity cut off, and its opposite added": (
        _TOP + "h[p: parts(K)] = neg(m[p])\na[p: parts(K)] = max(h[p], 0.0)\ne[p: parts(K)] = neg(a[p])\n"
        "z[p: parts(K)] = exp(e[p])\n-> z[p]",
        _TOP
        + "h[p: parts(K)] = neg(m[p])\na[p: parts(K)] = max(h[p], 0.0)\nq[p: parts(K)] = add(m[p], h[p])\n"
        "e[p: parts(K)] = sub(q[p], a[p])\nz[p: parts(K)] = exp(e[p])\n-> z[p]",
    ),
    "another product of the same maximum": (
        _TOP + "a[p: parts(K)] = mul(m[p], c)\nz[p: parts(K)] = max(a[p], 0.0)\n-> z[p]",
        _TOP
        + "a[p: parts(K)] = mul(m[p], c)\nz[p: parts(K)] = max(a[p], 0.0)\nb[p: parts(K)] = mul(m[p], d)\n"
        "e[p: parts(K)] = sub(b[p], b[p])\ny[p: parts(K)] = add(z[p], e[p])\n-> y[p]",
    ),
    "a reciprocal of a reciprocal": (
        _TOP + "y[p: parts(K)] = exp(m[p])\n-> y[p]",
        _TOP + "r[p: parts(K)] = reciprocal(m[p])\nq[p: parts(K)] = reciprocal(r[p])\n"
        "y[p: parts(K)] = exp(q[p])\n-> y[p]",
    ),
    "exponentials of opposite infinities": (
        _NOTHING,
        _TOP + "e[p: parts(K)] = exp(m[p])\nh[p: parts(K)] = neg(m[p])\nf[p: parts(K)] = exp(h[p])\n"
        "q[p: parts(K)] = mul(e[p], f[p])\nr[p: parts(K)] = sub(q[p], 1.0)\n" + _SUM.format("r"),
    ),
    "sums of both signs": (
        _NOTHING,
        _TOP + "h[p: parts(K)] = neg(m[p])\na[p: parts(K)] = mul(h[p], c)\nb[p: parts(K)] = mul(m[p], c)\n"
        "s = sum[p: parts(K)](a[p])\nt = sum[p: parts(K)](b[p])\ny = add(s, t)\n-> y",
    ),
    "nothing times a maximum": (_NOTHING, _TOP + "a[p: parts(K)] = mul(m[p], 0.0)\n" + _SUM.format("a")),
    "nothing contracted with a maximum": (
        _NOTHING,
        _TOP + "o = mul(c, 0.0)\ny = contract[p: parts(K)](m[p], o)\n-> y",
    ),
    "a maximum divided by itself": (
        "y = mul(size(parts(K)), 1.0)\n-> y",
        _TOP + "a[p: parts(K)] = div(m[p], m[p])\n" + _SUM.format("a"),
    ),
    "the sine of a maximum": (
        _NOTHING,
        _TOP + "a[p: parts(K)] = sin(m[p])\nb[p: parts(K)] = sub(a[p], a[p])\n" + _SUM.format("b"),
    ),
    "the log of what a mask leaves nothing of": (
        _NOTHING,
        "e[k: K] = exp(x[k])\ns[k: K] = select(g[k], e[k], 0.0)\nt = sum[k: K](s[k])\nl = log(t)\n"
        "y = sub(l, l)\n-> y",
    ),
    "a sum of exponentials of infinities": (
        _NOTHING,
        _TOP + "h[p: parts(K)] = neg(m[p])\ne[p: parts(K)] = exp(h[p])\ns = sum[p: parts(K)](e[p])\n"
        "y = sub(s, s)\n-> y",
    ),
    "an exponential of a sum of maxima, divided by itself": (
        "y = mul(size(K), 1.0)\n-> y",
        _TOP + "s = sum[p: parts(K)](m[p])\ne = exp(s)\nf = sum[k: K](e)\ny = div(f, e)\n-> y",
    ),
    "powers of a maximum": (
        _NOTHING,
        _TOP + "q[p: parts(K)] = pow(m[p], 2.0)\nr[p: parts(K)] = pow(m[p], -2.0)\n"
        "t[p: parts(K)] = mul(q[p], r[p])\nu[p: parts(K)] = sub(t[p], 1.0)\n" + _SUM.format("u"),
    ),
    "the largest of maxima of unknown sign": (
        _NOTHING,
        _TOP + "a[p: parts(K)] = mul(m[p], d)\nb = max[p: parts(K)](a[p])\ny = sub(b, b)\n-> y",
    ),
    "the largest of minima": (
        _NOTHING,
        "m[p: parts(K)] = min[k: part(K)](x[join(p, k)])\nb = max[p: parts(K)](m[p])\ny = sub(b, b)\n-> y",
    ),
    "the larger of two by their distance": (
        _TOP + "a[p: parts(K)] = mul(m[p], c)\nz[p: parts(K)] = max(a[p], 1.0)\n-> z[p]",
        _TOP + "a[p: parts(K)] = mul(m[p], c)\nb[p: parts(K)] = sub(a[p], 1.0)\ne[p: parts(K)] = abs(b[p])\n"
        "f[p: parts(K)] = add(a[p], e[p])\nh[p: parts(K)] = add(f[p], 1.0)\nz[p: parts(K)] = div(h[p], 2.0)\n"
        "-> z[p]",
    ),
    "the maximum of a constant, scaled by a negative number": (
        "a = exp(c)\ny = sub(a, a)\n-> y",
        "b[p: parts(K), k: part(K)] = mul(-2.0, c)\nm[p: parts(K)] = max[k: part(K)](b[p, k])\n"
        "a[p: parts(K)] = div(m[p], -2.0)\ne[p: parts(K)] = exp(a[p])\nt = max[p: parts(K)](e[p])\n"
        "y = sub(t, t)\n-> y",
    ),
    "an infinity of another part than the mask's, times nothing": (
        _NOTHING,
        _TOP + "b[q: parts(K), k: K] = sub(x[k], m[q])\ne[q: parts(K), k: K] = exp(b[q, k])\n"
        "r[q: parts(K), k: K] = select(g[k], e[q, k], 0.0)\n"
        "s[p: parts(K), q: parts(K)] = sum[k: part(K)](r[q, join(p, k)])\no = mul(c, 0.0)\n"
        "z[p: parts(K), q: parts(K)] = mul(s[p, q], o)\ny = sum[p: parts(K), q: parts(K)](z[p, q])\n-> y",
    ),
}
"""The second program has no number where the first has one, and never the other way round."""

TRUTHS = {
    "a maximum and one more": (
        _ONES,
        _TOP + "s[p: parts(K)] = add(m[p], 1.0)\nt[p: parts(K)] = gt(s[p], m[p])\n" + _TRUTH.format("t"),
    ),
    "a comparison of maxima, and of their difference": (
        _TOP + _OTHER + "t[p: parts(K)] = le(m[p], n[p])\n" + _TRUTH.format("t"),
        _TOP
        + _OTHER
        + "s[p: parts(K)] = sub(n[p], m[p])\nt[p: parts(K)] = ge(s[p], 0.0)\n"
        + _TRUTH.format("t"),
    ),
    "a comparison of maxima, and one that it implies": (
        _TOP + _OTHER + "t[p: parts(K)] = le(m[p], n[p])\n" + _TRUTH.format("t"),
        _TOP + _OTHER + "t[p: parts(K)] = le(m[p], n[p])\ns[p: parts(K)] = add(n[p], 1.0)\n"
        "r[p: parts(K)] = lt(m[p], s[p])\nb[p: parts(K)] = and(t[p], r[p])\n" + _TRUTH.format("b"),
    ),
    "a comparison that hides what is not a number": (
        _ONES,
        _TOP + "h[p: parts(K)] = sub(m[p], m[p])\nt[p: parts(K)] = ge(h[p], 0.0)\n" + _TRUTH.format("t"),
    ),
    "two comparisons that hide what is not a number": (
        _ONES,
        _TOP + _OTHER + "h[p: parts(K)] = sub(m[p], n[p])\nt[p: parts(K)] = ge(h[p], 0.0)\n"
        "r[p: parts(K)] = lt(h[p], 0.0)\nz[p: parts(K)] = select(t[p], 1.0, 0.0)\n"
        "y[p: parts(K)] = select(r[p], 1.0, 0.0)\nq[p: parts(K)] = add(y[p], z[p])\n-> q[p]",
    ),
    "a quotient by what a mask may leave nothing of, and inf": (
        _ONES,
        "e[k: K] = exp(x[k])\nr[k: K] = select(g[k], e[k], 0.0)\n"
        "s[p: parts(K)] = sum[k: part(K)](r[join(p, k)])\nq[p: parts(K)] = div(c, s[p])\n"
        "a[p: parts(K)] = abs(q[p])\nt[p: parts(K)] = lt(a[p], inf)\n" + _TRUTH.format("t"),
    ),
}
"""Both programs have numbers, and not the same: a Yes of neither for the other without conditions."""

FINITE = {
    "what a part's maximum is taken off, masked, times nothing": (
        _NOTHING,
        _TOP + "b[p: parts(K), k: part(K)] = sub(x[join(p, k)], m[p])\n"
        "e[p: parts(K), k: part(K)] = exp(b[p, k])\n"
        "r[p: parts(K), k: part(K)] = select(g[join(p, k)], e[p, k], 0.0)\n"
        "s[p: parts(K)] = sum[k: part(K)](r[p, k])\no = mul(c, 0.0)\nz[p: parts(K)] = mul(s[p], o)\n"
        + _SUM.format("z"),
    ),
    "a quotient of sums, and inf": (
        _ONES,
        "e[k: K] = exp(x[k])\ns = sum[k: K](e[k])\nl = contract[k: K](e[k], w[k])\nq = div(l, s)\n"
        "a = abs(q)\nt = lt(a, inf)\nz[p: parts(K)] = select(t, 1.0, 0.0)\n-> z[p]",
    ),
}
"""Pairs that look like those above, where nothing is infinite: a Yes, both ways."""

LEAST = {
    "least and largest of -inf in a part that may be empty": (
        INPUTS,
        "m[p: parts(K)] = max[k: part(K)](-inf)\ne[p: parts(K)] = exp(m[p])\n-> e[p]",
        "m[p: parts(K)] = min[k: part(K)](-inf)\ne[p: parts(K)] = exp(m[p])\n-> e[p]",
    ),
    "a part's least of what is masked everywhere": (
        INPUTS,
        "t[k: K] = xor(g[k], g[k])\nl[k: K] = select(t[k], x[k], -inf)\n"
        "m[p: parts(K)] = max[k: part(K)](l[join(p, k)])\ne[p: parts(K)] = exp(m[p])\n-> e[p]",
        "t[k: K] = xor(g[k], g[k])\nl[k: K] = select(t[k], x[k], -inf)\n"
        "m[p: parts(K)] = min[k: part(K)](l[join(p, k)])\ne[p: parts(K)] = exp(m[p])\n-> e[p]",
    ),
}
"""The least of -inf in a part: inf where that is empty. Never a Yes."""

_MASKED = "z[n: N, k: K] = select(g[n, k], x[n, k], -inf)\n"
_SCALED = "d[n: N, k: K] = div({}[n, k], c[n])\n"
_SOFTMAX = """
    e[n: N, k: K] = exp(d[n, k])
    s[n: N] = sum[k: K](e[n, k])
    y[n: N, k: K] = div(e[n, k], s[n])
    -> y[n, k]
"""
_LARGEST = "y[n: N] = max[k: K](d[n, k])\n-> y[n]"
_LEAST = "y[n: N] = min[k: K](d[n, k])\n-> y[n]"
_ROWS = "x[N, K], g: bool[N, K], c[N]"
MASKED: dict[str, tuple[str, str, str]] = {
    "a softmax with a mask, and a temperature of unknown sign": (
        _ROWS,
        _MASKED + _SCALED.format("z") + _SOFTMAX,
        _SCALED.format("x") + _SOFTMAX,
    ),
    "the largest under a mask, divided by what may be negative": (
        _ROWS,
        _MASKED + _SCALED.format("z") + _LARGEST,
        _SCALED.format("x") + _LARGEST,
    ),
}
"""A mask is -inf, or inf once the sign has changed: different values (see `near_forms`)."""

INFINITE = {
    "taken off a mask": (
        _ROWS,
        _MASKED + "d[n: N, k: K] = sub(c[n], z[n, k])\n" + _LEAST,
        "d[n: N, k: K] = sub(c[n], x[n, k])\n" + _LEAST,
    ),
    "least and largest of a masked number, divided": (
        _ROWS,
        "z[n: N, k: K] = select(g[n, k], 2.0, -inf)\n" + _SCALED.format("z") + _LEAST,
        "z[n: N, k: K] = select(g[n, k], 2.0, -inf)\n" + _SCALED.format("z") + _LARGEST,
    ),
}
"""An infinity of the first program leaves no trace in its output: never a Yes without conditions."""
