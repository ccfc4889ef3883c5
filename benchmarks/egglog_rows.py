"""The pairs of the comparison with egglog (`egglog_peer`): each in egglog's words, and as two programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """A pair: the index sets of the leaves, both sides as Python expressions over the vocabulary of
    `egglog_peer.by_egglog`, and both sides as programs."""

    name: str
    leaves: Mapping[str, str]
    one: str
    two: str
    first: str
    second: str


HEAD = "program {name}({inputs}) {{\n{body}  return {out}\n}}\n"


def _program(name: str, inputs: str, body: str, out: str) -> str:
    lines = "".join(f"  {line.strip()}\n" for line in body.strip().splitlines() if line.strip())
    return HEAD.format(name=name, inputs=inputs, body=lines, out=out)


_SCORES = "s: f32[S, T], v: f32[T, E], m: f32[S]"
_LOCAL = "s: f32[S, T], v: f32[T, E], m: f32[S], n: f32[S, parts(T)]"
_SOFT = """
c[s: S, t: T]: f32 = sub(s[s, t], m[s])
e[s: S, t: T]: f32 = exp(c[s, t])
l[s: S]: f32 = sum[t: T](e[s, t])
"""
_BARE = """
e[s: S, t: T]: f32 = exp(s[s, t])
l[s: S]: f32 = sum[t: T](e[s, t])
"""
_PARTS = """
e[s: S, t: T]: f32 = exp(s[s, t])
l1[s: S, p: parts(T)]: f32 = sum[t: part(T)](e[s, join(p, t)])
l[s: S]: f32 = sum[p: parts(T)](l1[s, p])
o1[s: S, p: parts(T), e: E]: f32 = contract[t: part(T)](e[s, join(p, t)], v[join(p, t), e])
o[s: S, e: E]: f32 = sum[p: parts(T)](o1[s, p, e])
"""
_QUOTIENT = "y[s: S, t: T]: f32 = div(e[s, t], l[s])"
_LAST = "y[s: S, e: E]: f32 = div(o[s, e], l[s])"
_NUMERATOR = "o[s: S, e: E]: f32 = contract[t: T](e[s, t], v[t, e])"
_DIVIDED = """
p[s: S, t: T]: f32 = div(e[s, t], l[s])
y[s: S, e: E]: f32 = contract[t: T](p[s, t], v[t, e])
"""

_KEYS, _QUERIES = "S('h', q * S('d', c * wk))", "S('d', c * S('h', q * wk))"
CONTROL = "a wrong pair (control)"
ROWS: tuple[Row, ...] = (
    Row(
        "a factor leaves a matmul",
        {"x": "sk", "r": "s", "g": "k", "w": "kn"},
        "S('k', ((x * r) * g) * w)",
        "r * S('k', (x * g) * w)",
        _program("f", "x: f32[S, K], r: f32[S], g: f32[K], w: f32[K, N]",
                 "y[s: S, k: K]: f32 = mul(x[s, k], r[s])\nz[s: S, k: K]: f32 = mul(y[s, k], g[k])\n"
                 "o[s: S, n: N]: f32 = contract[k: K](z[s, k], w[k, n])", "o[s, n]"),
        _program("f", "x: f32[S, K], r: f32[S], g: f32[K], w: f32[K, N]",
                 "y[s: S, k: K]: f32 = mul(x[s, k], g[k])\n"
                 "z[s: S, n: N]: f32 = contract[k: K](y[s, k], w[k, n])\n"
                 "o[s: S, n: N]: f32 = mul(z[s, n], r[s])", "o[s, n]"),
    ),
    Row(
        "row sum of a matmul",
        {"x": "sk", "w": "kn"},
        "S('n', S('k', x * w))",
        "S('k', x * S('n', w))",
        _program("f", "x: f32[S, K], w: f32[K, N]",
                 "y[s: S, n: N]: f32 = contract[k: K](x[s, k], w[k, n])\n"
                 "o[s: S]: f32 = sum[n: N](y[s, n])", "o[s]"),
        _program("f", "x: f32[S, K], w: f32[K, N]",
                 "u[k: K]: f32 = sum[n: N](w[k, n])\no[s: S]: f32 = contract[k: K](x[s, k], u[k])", "o[s]"),
    ),
    Row(
        "two matmuls reassociated",
        {"q": "sd", "k": "td", "v": "te"},
        "S('t', S('d', q * k) * v)",
        "S('d', q * S('t', k * v))",
        _program("f", "q: f32[S, D], k: f32[T, D], v: f32[T, E]",
                 "a[s: S, t: T]: f32 = contract[d: D](q[s, d], k[t, d])\n"
                 "o[s: S, e: E]: f32 = contract[t: T](a[s, t], v[t, e])", "o[s, e]"),
        _program("f", "q: f32[S, D], k: f32[T, D], v: f32[T, E]",
                 "a[d: D, e: E]: f32 = contract[t: T](k[t, d], v[t, e])\n"
                 "o[s: S, e: E]: f32 = contract[d: D](q[s, d], a[d, e])", "o[s, e]"),
    ),
    Row(
        "low-rank weights apart",
        {"x": "sk", "w": "kn", "a": "kr", "b": "rn"},
        "S('k', x * (w + S('r', a * b)))",
        "S('k', x * w) + S('r', S('k', x * a) * b)",
        _program("f", "x: f32[S, K], w: f32[K, N], a: f32[K, R], b: f32[R, N]",
                 "ab[k: K, n: N]: f32 = contract[r: R](a[k, r], b[r, n])\n"
                 "t[k: K, n: N]: f32 = add(w[k, n], ab[k, n])\n"
                 "o[s: S, n: N]: f32 = contract[k: K](x[s, k], t[k, n])", "o[s, n]"),
        _program("f", "x: f32[S, K], w: f32[K, N], a: f32[K, R], b: f32[R, N]",
                 "p[s: S, n: N]: f32 = contract[k: K](x[s, k], w[k, n])\n"
                 "xa[s: S, r: R]: f32 = contract[k: K](x[s, k], a[k, r])\n"
                 "u[s: S, n: N]: f32 = contract[r: R](xa[s, r], b[r, n])\n"
                 "o[s: S, n: N]: f32 = add(p[s, n], u[s, n])", "o[s, n]"),
    ),
    Row(
        "divided last",
        {"s": "st", "v": "te"},
        "S('t', (exp(s) * inv(S('t', exp(s)))) * v)",
        "S('t', exp(s) * v) * inv(S('t', exp(s)))",
        _program("f", "s: f32[S, T], v: f32[T, E]", _BARE + _DIVIDED, "y[s, e]"),
        _program("f", "s: f32[S, T], v: f32[T, E]", f"{_BARE}\n{_NUMERATOR}\n{_LAST}", "y[s, e]"),
    ),
    Row(
        "stabilised is unstabilised",
        {"s": "st", "m": "s"},
        "exp(s + neg(m)) * inv(S('t', exp(s + neg(m))))",
        "exp(s) * inv(S('t', exp(s)))",
        _program("f", "s: f32[S, T], m: f32[S]", _SOFT + _QUOTIENT, "y[s, t]"),
        _program("f", "s: f32[S, T], m: f32[S]", _BARE + _QUOTIENT, "y[s, t]"),
    ),
    Row(
        "stabilised, divided last",
        {"s": "st", "v": "te", "m": "s"},
        "S('t', (exp(s + neg(m)) * inv(S('t', exp(s + neg(m))))) * v)",
        "S('t', exp(s) * v) * inv(S('t', exp(s)))",
        _program("f", _SCORES, _SOFT + _DIVIDED, "y[s, e]"),
        _program("f", _SCORES, f"{_BARE}\n{_NUMERATOR}\n{_LAST}", "y[s, e]"),
    ),
    Row(
        "split",
        {"s": "st", "v": "te"},
        "S('t', (exp(s) * inv(S('t', exp(s)))) * v)",
        "S('pt', S('qt', exp(s) * v)) * inv(S('pt', S('qt', exp(s))))",
        _program("f", "s: f32[S, T], v: f32[T, E]", _BARE + _DIVIDED, "y[s, e]"),
        _program("f", "s: f32[S, T], v: f32[T, E]", f"{_PARTS}\n{_LAST}", "y[s, e]"),
    ),
    Row(
        "stabilised, split, divided last",
        {"s": "st", "v": "te", "m": "s"},
        "S('t', (exp(s + neg(m)) * inv(S('t', exp(s + neg(m))))) * v)",
        "S('pt', S('qt', exp(s) * v)) * inv(S('pt', S('qt', exp(s))))",
        _program("f", _SCORES, _SOFT + _DIVIDED, "y[s, e]"),
        _program("f", _SCORES, f"{_PARTS}\n{_LAST}", "y[s, e]"),
    ),
    Row(
        "split with local maxima",
        {"s": "st", "v": "te", "m": "s", "n": "sp"},
        "S('t', (exp(s + neg(m)) * inv(S('t', exp(s + neg(m))))) * v)",
        "S('pt', exp(n) * S('qt', exp(s + neg(n)) * v)) * inv(S('pt', exp(n) * S('qt', exp(s + neg(n)))))",
        _program("f", _LOCAL, _SOFT + _DIVIDED, "y[s, e]"),
        _program("f", _LOCAL, """
            d[s: S, p: parts(T), t: part(T)]: f32 = sub(s[s, join(p, t)], n[s, p])
            e[s: S, p: parts(T), t: part(T)]: f32 = exp(d[s, p, t])
            w[s: S, p: parts(T)]: f32 = exp(n[s, p])
            l1[s: S, p: parts(T)]: f32 = sum[t: part(T)](e[s, p, t])
            l[s: S]: f32 = contract[p: parts(T)](l1[s, p], w[s, p])
            o1[s: S, p: parts(T), e: E]: f32 = contract[t: part(T)](e[s, p, t], v[join(p, t), e])
            o[s: S, e: E]: f32 = contract[p: parts(T)](o1[s, p, e], w[s, p])
            """ + _LAST, "y[s, e]"),
    ),
    Row(
        "absorbed projections",
        {"c": "td", "wk": "dh", "q": "sh", "wv": "de"},
        f"S('t', exp({_KEYS}) * inv(S('t', exp({_KEYS}))) * S('d', c * wv))",
        f"S('d', wv * (S('t', exp({_QUERIES}) * c) * inv(S('t', exp({_QUERIES})))))",
        _program("f", "c: f32[T, D], wk: f32[D, H], q: f32[S, H], wv: f32[D, E]", """
            k[t: T, h: H]: f32 = contract[d: D](c[t, d], wk[d, h])
            v[t: T, e: E]: f32 = contract[d: D](c[t, d], wv[d, e])
            s[s: S, t: T]: f32 = contract[h: H](q[s, h], k[t, h])""" + _BARE + _DIVIDED,
            "y[s, e]"),
        _program("f", "c: f32[T, D], wk: f32[D, H], q: f32[S, H], wv: f32[D, E]", """
            qk[s: S, d: D]: f32 = contract[h: H](q[s, h], wk[d, h])
            s[s: S, t: T]: f32 = contract[d: D](qk[s, d], c[t, d])""" + _BARE + """
            o[s: S, d: D]: f32 = contract[t: T](e[s, t], c[t, d])
            z[s: S, d: D]: f32 = div(o[s, d], l[s])
            y[s: S, e: E]: f32 = contract[d: D](z[s, d], wv[d, e])""", "y[s, e]"),
    ),
    Row(
        "five matmuls",
        {"a": "sa", "b": "ab", "c": "bc", "d": "cd", "e": "de"},
        "S('d', S('c', S('b', S('a', a * b) * c) * d) * e)",
        "S('a', a * S('b', b * S('c', c * S('d', d * e))))",
        _program("f", "a: f32[S, A], b: f32[A, B], c: f32[B, C], d: f32[C, D], e: f32[D, E]", """
            p[s: S, b: B]: f32 = contract[a: A](a[s, a], b[a, b])
            q[s: S, c: C]: f32 = contract[b: B](p[s, b], c[b, c])
            r[s: S, d: D]: f32 = contract[c: C](q[s, c], d[c, d])
            y[s: S, e: E]: f32 = contract[d: D](r[s, d], e[d, e])""", "y[s, e]"),
        _program("f", "a: f32[S, A], b: f32[A, B], c: f32[B, C], d: f32[C, D], e: f32[D, E]", """
            p[c: C, e: E]: f32 = contract[d: D](d[c, d], e[d, e])
            q[b: B, e: E]: f32 = contract[c: C](c[b, c], p[c, e])
            r[a: A, e: E]: f32 = contract[b: B](b[a, b], q[b, e])
            y[s: S, e: E]: f32 = contract[a: A](a[s, a], r[a, e])""", "y[s, e]"),
    ),
    Row(
        "squares of differences opened",
        {"x": "sk", "u": "s"},
        "S('k', (x + neg(u)) * (x + neg(u)))",
        "S('k', x * x) + (neg(u * S('k', x)) + (neg(u * S('k', x)) + (u * u) * S('k', one)))",
        _program("f", "x: f32[S, K], u: f32[S]", """
            c[s: S, k: K]: f32 = sub(x[s, k], u[s])
            d[s: S, k: K]: f32 = mul(c[s, k], c[s, k])
            y[s: S]: f32 = sum[k: K](d[s, k])""", "y[s]"),
        _program("f", "x: f32[S, K], u: f32[S]", """
            xx[s: S, k: K]: f32 = mul(x[s, k], x[s, k])
            a[s: S]: f32 = sum[k: K](xx[s, k])
            b[s: S]: f32 = sum[k: K](x[s, k])
            ub[s: S]: f32 = mul(u[s], b[s])
            uu[s: S]: f32 = mul(u[s], u[s])
            n[s: S]: f32 = mul(uu[s], size(K))
            p[s: S]: f32 = sub(a[s], ub[s])
            q[s: S]: f32 = sub(p[s], ub[s])
            y[s: S]: f32 = add(q[s], n[s])""", "y[s]"),
    ),
    Row(
        "differences before a matmul, opened",
        {"x": "sk", "u": "s", "r": "s", "g": "k", "b": "k", "w": "kn"},
        "S('k', ((((x + neg(u)) * r) * g) + b) * w)",
        "r * (S('k', (x * g) * w) + neg(u * S('k', g * w))) + S('k', b * w)",
        _program("f", "x: f32[S, K], u: f32[S], r: f32[S], g: f32[K], b: f32[K], w: f32[K, N]", """
            c[s: S, k: K]: f32 = sub(x[s, k], u[s])
            d[s: S, k: K]: f32 = mul(c[s, k], r[s])
            f[s: S, k: K]: f32 = mul(d[s, k], g[k])
            h[s: S, k: K]: f32 = add(f[s, k], b[k])
            y[s: S, n: N]: f32 = contract[k: K](h[s, k], w[k, n])""", "y[s, n]"),
        _program("f", "x: f32[S, K], u: f32[S], r: f32[S], g: f32[K], b: f32[K], w: f32[K, N]", """
            xg[s: S, k: K]: f32 = mul(x[s, k], g[k])
            p[s: S, n: N]: f32 = contract[k: K](xg[s, k], w[k, n])
            q[n: N]: f32 = contract[k: K](g[k], w[k, n])
            t[n: N]: f32 = contract[k: K](b[k], w[k, n])
            uq[s: S, n: N]: f32 = mul(q[n], u[s])
            d[s: S, n: N]: f32 = sub(p[s, n], uq[s, n])
            rd[s: S, n: N]: f32 = mul(d[s, n], r[s])
            y[s: S, n: N]: f32 = add(rd[s, n], t[n])""", "y[s, n]"),
    ),
    Row(
        "through a log-sum-exp",
        {"s": "st", "v": "te", "m": "s"},
        "S('t', exp(s + neg(m + log(S('t', exp(s + neg(m)))))) * v)",
        "S('t', exp(s) * v) * inv(S('t', exp(s)))",
        _program("f", _SCORES, _SOFT + """
            g[s: S]: f32 = log(l[s])
            z[s: S]: f32 = add(m[s], g[s])
            d[s: S, t: T]: f32 = sub(s[s, t], z[s])
            p[s: S, t: T]: f32 = exp(d[s, t])
            y[s: S, e: E]: f32 = contract[t: T](p[s, t], v[t, e])""", "y[s, e]"),
        _program("f", _SCORES, f"{_BARE}\n{_NUMERATOR}\n{_LAST}", "y[s, e]"),
    ),
    Row(
        CONTROL,
        {"s": "st", "v": "te", "m": "s"},
        "S('t', exp(s + neg(m)) * v) * inv(S('t', exp(s)))",
        "S('t', exp(s) * v) * inv(S('t', exp(s)))",
        _program("f", _SCORES, _SOFT.replace("l[s: S]: f32 = sum[t: T](e[s, t])", "") + _NUMERATOR + """
            x[s: S, t: T]: f32 = exp(s[s, t])
            l[s: S]: f32 = sum[t: T](x[s, t])
            """ + _LAST, "y[s, e]"),
        _program("f", _SCORES, f"{_BARE}\n{_NUMERATOR}\n{_LAST}", "y[s, e]"),
    ),
)  # fmt: skip
