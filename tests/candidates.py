"""Candidates with Folds written by hand: what the scheduler is tested on.

`CASES[name]` gives a `Case`: the candidate, dims with the sizes to try, and arguments for a call. The Folds
are what algebra delivers for these programs, written down so that the scheduler's tests need no algebra.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from cleave.ir.candidate import Candidate, Element, Fold, Value
from cleave.ir.dims import Atom, Dim, Index, Part, atoms_of, size_of, var
from cleave.ir.ops import Access, Input, Node, Scalar
from cleave.ir.program import Program
from cleave.ir.text import parse_program
from programs import PROGRAMS


@dataclass(frozen=True)
class Case:
    """A candidate and the sizes (by atom name) at which it is tried, tails and size 1 included."""

    candidate: Candidate
    sizes: tuple[dict[str, int], ...]

    def bound(self, number: int = 0) -> dict[Dim, int]:
        """One of the sizes, completed."""
        given: dict[Dim, int] = {Atom(name): size for name, size in self.sizes[number].items()}
        return self.candidate.program.bind(given)


def arguments(program: Program, sizes: Mapping[Dim, int], seed: int = 0) -> dict[str, object]:
    """Random arguments by name, in the caller's layout; integers are small enough to index with."""
    rng = np.random.default_rng(seed)
    least = min([size_of(d, sizes) for n in program.inputs for d in n.dims] or [1])
    found: dict[str, object] = {}
    for node in program.inputs:
        if isinstance(node.op, Scalar):
            found[node.op.name] = 0.7 if node.dtype in ("f32", "f64") else 2
            continue
        assert isinstance(node.op, Input)
        shape = [int(np.prod([size_of(d, sizes) for d in group])) for group in node.op.layout]
        if node.dtype in ("f32", "f64", "f16", "bf16"):
            found[node.op.name] = rng.standard_normal(shape)
        elif node.dtype == "bool":
            found[node.op.name] = rng.random(shape) < 0.7
        else:
            found[node.op.name] = rng.integers(0, max(1, least), shape)
    return found


def node_named(program: Program, name: str) -> Node:
    """The node that a program's text calls `name`."""
    inputs = {node.op.name: node for node in program.inputs if isinstance(node.op, Input | Scalar)}
    named = {text: node for node, text in program.names.items()}
    return {**named, **inputs}[name]


def _declared(name: str, text: str, program: Program) -> str:
    """The text of a small program, with the outer program's dims declared."""
    head, _, body = text.partition("{")
    dims = [a.name for a in program.dims if re.search(rf"\b{a.name}\b", body)]
    where = f"where {', '.join(dims)} " if dims else ""
    return f"program {name}{head}{where}{{{body}"


def fold(
    program: Program,
    over: str,
    values: Mapping[str, str],
    elements: Mapping[str, str],
    init: str,
    step: str,
    merge: str,
    finish: str,
    support: tuple[str, str] | None = None,
) -> Fold:
    """A Fold over the atom `over`. `values` and `elements` map names in the small programs to nodes; an
    element's input has the node's axes in order, `part(over)` for `over`. `support` names a boolean node
    whose axes are found by dim among those of the element it is given for."""
    dim = Atom(over)
    texts = {"init": init, "step": step, "merge": merge, "finish": finish}
    parsed = {name: parse_program(_declared(name, text, program)) for name, text in texts.items()}
    reads: list[Element] = []
    for name, source in elements.items():
        node = node_named(program, source)
        own = [Index(Part(dim) if a.dim == dim else a.dim, a.number) for a in node.axes]
        reads.append(Element(name, node(*own)))
    access = None
    if support is not None:
        where, host = node_named(program, support[0]), node_named(program, elements[support[1]])
        axes = [next(a for a in host.axes if a.dim == b.dim) for b in where.axes]
        access = Access(
            where, tuple(var(Index(Part(dim) if a.dim == dim else a.dim, a.number)) for a in axes)
        )
    found = tuple(Value(name, node_named(program, node)) for name, node in values.items())
    return Fold(
        dim,
        found,
        tuple(reads),
        parsed["init"],
        parsed["step"],
        parsed["merge"],
        parsed["finish"],
        access,
        support[1] if support else "",
    )


# ---------------------------------------------------------------- running maxima


def running_max(
    rows: Sequence[str], over: str, *, columns: Sequence[str] = (), shared: Sequence[str] = ()
) -> dict[str, str]:
    """The small programs of {m, l} or, with `columns`, {m, l, acc}: a maximum, a sum of exponentials below
    it, and a sum of such exponentials times `v[shared, part, columns]`."""
    r = ", ".join(f"{d.lower()}: {d}" for d in rows)
    ri = ", ".join(d.lower() for d in rows)
    rd = ", ".join(rows)
    c = "".join(f", {d.lower()}: {d}" for d in columns)
    ci = "".join(f", {d.lower()}" for d in columns)
    cd = "".join(f", {d}" for d in columns)
    sd = "".join(f"{d}, " for d in shared)
    si = "".join(f"{d.lower()}, " for d in shared)
    acc = bool(columns)
    state = f"m: f32[{rd}], l: f32[{rd}]" + (f", acc: f32[{rd}{cd}]" if acc else "")
    init = f"""() {{
  m[{r}]: f32 = id(-inf)
  l[{r}]: f32 = id(0.0)
  {f"acc[{r}{c}]: f32 = id(0.0)" if acc else ""}
  return m: m[{ri}], l: l[{ri}]{f", acc: acc[{ri}{ci}]" if acc else ""}
}}"""
    v = f", v: f32[{sd}part({over}){cd}]" if acc else ""
    step = f"""({state}, x: f32[{rd}, part({over})]{v}) {{
  t[{r}]: f32 = max[at: part({over})](x[{ri}, at])
  m1[{r}]: f32 = max(m[{ri}], t[{ri}])
  unseen[{r}]: bool = eq(m1[{ri}], -inf)
  u[{r}]: f32 = select(unseen[{ri}], 0.0, m1[{ri}])
  gap[{r}]: f32 = sub(m[{ri}], u[{ri}])
  back[{r}]: f32 = exp(gap[{ri}])
  diff[{r}, at: part({over})]: f32 = sub(x[{ri}, at], u[{ri}])
  e[{r}, at: part({over})]: f32 = exp(diff[{ri}, at])
  sum_e[{r}]: f32 = sum[at: part({over})](e[{ri}, at])
  lb[{r}]: f32 = mul(l[{ri}], back[{ri}])
  l1[{r}]: f32 = add(lb[{ri}], sum_e[{ri}])
  {f"pv[{r}{c}]: f32 = contract[at: part({over})](e[{ri}, at], v[{si}at{ci}])" if acc else ""}
  {f"ab[{r}{c}]: f32 = mul(acc[{ri}{ci}], back[{ri}])" if acc else ""}
  {f"acc1[{r}{c}]: f32 = add(ab[{ri}{ci}], pv[{ri}{ci}])" if acc else ""}
  return m: m1[{ri}], l: l1[{ri}]{f", acc: acc1[{ri}{ci}]" if acc else ""}
}}"""
    a_state = f"a_m: f32[{rd}], a_l: f32[{rd}]" + (f", a_acc: f32[{rd}{cd}]" if acc else "")
    b_state = a_state.replace("a_m", "b_m").replace("a_l", "b_l").replace("a_acc", "b_acc")
    merge = f"""({a_state}, {b_state}) {{
  m1[{r}]: f32 = max(a_m[{ri}], b_m[{ri}])
  unseen[{r}]: bool = eq(m1[{ri}], -inf)
  u[{r}]: f32 = select(unseen[{ri}], 0.0, m1[{ri}])
  ga[{r}]: f32 = sub(a_m[{ri}], u[{ri}])
  gb[{r}]: f32 = sub(b_m[{ri}], u[{ri}])
  ea[{r}]: f32 = exp(ga[{ri}])
  eb[{r}]: f32 = exp(gb[{ri}])
  la[{r}]: f32 = mul(a_l[{ri}], ea[{ri}])
  lb[{r}]: f32 = mul(b_l[{ri}], eb[{ri}])
  l1[{r}]: f32 = add(la[{ri}], lb[{ri}])
  {f"aa[{r}{c}]: f32 = mul(a_acc[{ri}{ci}], ea[{ri}])" if acc else ""}
  {f"ab[{r}{c}]: f32 = mul(b_acc[{ri}{ci}], eb[{ri}])" if acc else ""}
  {f"acc1[{r}{c}]: f32 = add(aa[{ri}{ci}], ab[{ri}{ci}])" if acc else ""}
  return m: m1[{ri}], l: l1[{ri}]{f", acc: acc1[{ri}{ci}]" if acc else ""}
}}"""
    finish = f"""({state}) {{
  {f"o[{r}{c}]: f32 = div(acc[{ri}{ci}], l[{ri}])" if acc else ""}
  return m: m[{ri}], l: l[{ri}]{f", o: o[{ri}{ci}]" if acc else ""}
}}"""
    return {"init": init, "step": step, "merge": merge, "finish": finish}


# ---------------------------------------------------------------- the cases


def _softmax() -> Case:
    p = PROGRAMS["softmax"]
    f = fold(p, "K", {"m": "m", "l": "s"}, {"x": "x"}, **running_max(["N"], "K"))
    return Case(
        Candidate(p, (f,)), ({"N": 5, "K": 37}, {"N": 64, "K": 128}, {"N": 1, "K": 1}, {"N": 3, "K": 600})
    )


_VARIANCE_STATE = "n: f32[N], s: f32[N], q: f32[N]"
_VARIANCE_STEP = f"""({_VARIANCE_STATE}, x: f32[N, part(K)]) {{
  nb[]: f32 = id(size(part(K)))
  sb[i: N]: f32 = sum[k: part(K)](x[i, k])
  mb[i: N]: f32 = div(sb[i], nb)
  db[i: N, k: part(K)]: f32 = sub(x[i, k], mb[i])
  sq[i: N, k: part(K)]: f32 = mul(db[i, k], db[i, k])
  qb[i: N]: f32 = sum[k: part(K)](sq[i, k])
  n1[i: N]: f32 = add(n[i], nb)
  na[i: N]: f32 = max(n[i], 1.0)
  ma[i: N]: f32 = div(s[i], na[i])
  gap[i: N]: f32 = sub(mb[i], ma[i])
  gap2[i: N]: f32 = mul(gap[i], gap[i])
  w[i: N]: f32 = mul(n[i], nb)
  w1[i: N]: f32 = div(w[i], n1[i])
  more[i: N]: f32 = mul(gap2[i], w1[i])
  qq[i: N]: f32 = add(q[i], qb[i])
  q1[i: N]: f32 = add(qq[i], more[i])
  s1[i: N]: f32 = add(s[i], sb[i])
  return n: n1[i], s: s1[i], q: q1[i]
}}"""
_VARIANCE_MERGE = """(a_n: f32[N], a_s: f32[N], a_q: f32[N], b_n: f32[N], b_s: f32[N], b_q: f32[N]) {
  n1[i: N]: f32 = add(a_n[i], b_n[i])
  nn[i: N]: f32 = max(n1[i], 1.0)
  na[i: N]: f32 = max(a_n[i], 1.0)
  nb[i: N]: f32 = max(b_n[i], 1.0)
  ma[i: N]: f32 = div(a_s[i], na[i])
  mb[i: N]: f32 = div(b_s[i], nb[i])
  gap[i: N]: f32 = sub(mb[i], ma[i])
  gap2[i: N]: f32 = mul(gap[i], gap[i])
  w[i: N]: f32 = mul(a_n[i], b_n[i])
  w1[i: N]: f32 = div(w[i], nn[i])
  more[i: N]: f32 = mul(gap2[i], w1[i])
  qq[i: N]: f32 = add(a_q[i], b_q[i])
  q1[i: N]: f32 = add(qq[i], more[i])
  s1[i: N]: f32 = add(a_s[i], b_s[i])
  return n: n1[i], s: s1[i], q: q1[i]
}"""


def _layer_norm() -> Case:
    p = PROGRAMS["layer_norm"]
    f = fold(
        p, "K", {"s": "total", "q": "ss"}, {"x": "x"},
        init="""() {
  n[i: N]: f32 = id(0.0)
  s[i: N]: f32 = id(0.0)
  q[i: N]: f32 = id(0.0)
  return n: n[i], s: s[i], q: q[i]
}""",
        step=_VARIANCE_STEP,
        merge=_VARIANCE_MERGE,
        finish=f"({_VARIANCE_STATE}) {{\n  return s: s[n], q: q[n]\n}}",
    )  # fmt: skip
    return Case(
        Candidate(p, (f,)), ({"N": 5, "K": 37}, {"N": 33, "K": 256}, {"N": 1, "K": 1}, {"N": 2, "K": 700})
    )


def _plain_sum(over: str, state: str, axes: str, named: str, elements: str, body: str) -> dict[str, str]:
    """The small programs of one sum: `body` computes `piece` of the elements."""
    own = axes.replace(":", "").split(", ")
    index = ", ".join(a.split()[0] for a in own)
    dims = ", ".join(a.split()[1] for a in own)
    return {
        "init": f"() {{\n  z[{axes}]: f32 = id(0.0)\n  return {state}: z[{index}]\n}}",
        "step": f"""({state}: f32[{dims}], {elements}) {{
  {body}
  next[{axes}]: f32 = add({state}[{index}], piece[{index}])
  return {state}: next[{index}]
}}""",
        "merge": f"""(a_{state}: f32[{dims}], b_{state}: f32[{dims}]) {{
  both[{axes}]: f32 = add(a_{state}[{index}], b_{state}[{index}])
  return {state}: both[{index}]
}}""",
        "finish": f"({state}: f32[{dims}]) {{\n  return {named}: {state}[{index}]\n}}",
    }


def _matmul() -> Case:
    p = PROGRAMS["matmul"]
    small = _plain_sum(
        "K", "acc", "m: M, n: N", "y", "a: f32[M, part(K)], b: f32[part(K), N]",
        "piece[m: M, n: N]: f32 = contract[k: part(K)](a[m, k], b[k, n])",
    )  # fmt: skip
    f = fold(p, "K", {"y": "y"}, {"a": "a", "b": "b"}, **small)
    sizes = (
        {"M": 33, "K": 70, "N": 45},
        {"M": 1, "K": 3, "N": 1},
        {"M": 64, "K": 128, "N": 64},
        {"M": 5, "K": 1100, "N": 7},
    )
    return Case(Candidate(p, (f,)), sizes)


def _matmul_matmul() -> Case:
    p = PROGRAMS["matmul_matmul"]
    small = _plain_sum(
        "L", "acc", "m: M, n: N", "y", "ab: f32[M, part(L)], c: f32[part(L), N]",
        "piece[m: M, n: N]: f32 = contract[k: part(L)](ab[m, k], c[k, n])",
    )  # fmt: skip
    f = fold(p, "L", {"y": "y"}, {"ab": "ab", "c": "c"}, **small)
    return Case(
        Candidate(p, (f,)), ({"M": 19, "K": 16, "L": 70, "N": 24}, {"M": 40, "K": 33, "L": 17, "N": 65})
    )


def _matmul_rowsum() -> Case:
    p = PROGRAMS["matmul_rowsum"]
    small = _plain_sum(
        "N", "acc", "m: M", "total", "y: f32[M, part(N)]", "piece[m: M]: f32 = sum[k: part(N)](y[m, k])"
    )
    f = fold(p, "N", {"total": "total"}, {"y": "y"}, **small)
    return Case(Candidate(p, (f,)), ({"M": 33, "K": 20, "N": 70}, {"M": 1, "K": 64, "N": 129}))


def _swiglu() -> Case:
    p = PROGRAMS["swiglu"]
    folds: list[Fold] = []
    for name, weight in (("a", "gate"), ("b", "up")):
        small = _plain_sum(
            "K", f"acc_{name}", "n: N, f: F", name, f"x: f32[N, part(K)], {weight}: f32[F, part(K)]",
            f"piece[n: N, f: F]: f32 = contract[k: part(K)](x[n, k], {weight}[f, k])",
        )  # fmt: skip
        folds.append(fold(p, "K", {name: name}, {"x": "x", weight: weight}, **small))
    return Case(Candidate(p, tuple(folds)), ({"N": 17, "K": 70, "F": 40}, {"N": 1, "K": 130, "F": 64}))


_SCALE_LAST = parse_program("""
program rms_linear(x: f32[N, K], g: f32[K], w: f32[O, K], eps: scalar f32) {
  sq[n: N, k: K]: f32 = mul(x[n, k], x[n, k])
  ss[n: N]: f32 = sum[k: K](sq[n, k])
  ms[n: N]: f32 = div(ss[n], size(K))
  shifted[n: N]: f32 = add(ms[n], eps)
  r[n: N]: f32 = rsqrt(shifted[n])
  xg[n: N, k: K]: f32 = mul(x[n, k], g[k])
  y[n: N, o: O]: f32 = contract[k: K](xg[n, k], w[o, k])
  out[n: N, o: O]: f32 = mul(y[n, o], r[n])
  return out[n, o]
}
""")


def _rms_linear() -> Case:
    p = _SCALE_LAST
    first = _plain_sum(
        "K", "ss", "n: N", "ss", "sq: f32[N, part(K)]", "piece[n: N]: f32 = sum[k: part(K)](sq[n, k])"
    )
    second = _plain_sum(
        "K", "acc", "n: N, o: O", "y", "xg: f32[N, part(K)], w: f32[O, part(K)]",
        "piece[n: N, o: O]: f32 = contract[k: part(K)](xg[n, k], w[o, k])",
    )  # fmt: skip
    folds = (
        fold(p, "K", {"ss": "ss"}, {"sq": "sq"}, **first),
        fold(p, "K", {"y": "y"}, {"xg": "xg", "w": "w"}, **second),
    )
    return Case(
        Candidate(p, folds, form="scaled last"), ({"N": 17, "K": 70, "O": 40}, {"N": 1, "K": 300, "O": 33})
    )


def _rms_linear_first() -> Case:
    return Case(
        Candidate(PROGRAMS["rms_linear"], ()), ({"N": 17, "K": 70, "O": 40}, {"N": 2, "K": 1500, "O": 9})
    )


def _attention(splits: tuple[Dim, ...] = ()) -> Case:
    p = PROGRAMS["attention"]
    small = running_max(["KV", "G", "S"], "T", columns=["D"], shared=["KV"])
    f = fold(p, "T", {"m": "m", "l": "l", "o": "o"}, {"x": "score", "v": "v"}, **small, support=("seen", "x"))
    sized = _sized("attention", KV=2, G=4, D=16)
    sizes = (
        {"S": 37, "T": 37}, {"S": 1, "T": 70}, {"S": 64, "T": 128}, {"S": 20, "T": 77}, {"S": 1, "T": 1},
        {"S": 130, "T": 300},
    )  # fmt: skip
    return Case(Candidate(sized, (f,), splits=splits, form="split" if splits else "as written"), sizes)


def _mla() -> Case:
    p = PROGRAMS["mla_decode"]
    small = running_max(["H", "S"], "T", columns=["C"])
    f = fold(p, "T", {"m": "m", "l": "l", "o": "o"}, {"x": "score"}, **small)
    node = node_named(p, "kv")
    kv = Element("v", node(*_mla_terms()))
    f = Fold(f.over, f.values, (*f.elements, kv), f.init, f.step, f.merge, f.finish)
    sized = _sized("mla_decode", C=24, R=8)
    return Case(Candidate(sized, (f,)), ({"H": 16, "T": 50}, {"H": 3, "T": 130}))


def _mla_terms() -> tuple[object, ...]:
    from cleave.ir.dims import Inject

    t, c = Index(Part(Atom("T")), 0), Index(Atom("C"), 1)
    return var(t), var(Inject(0, var(c)))


def _sized(name: str, **sizes: int) -> Program:
    """An example program with some sizes fixed."""
    p = PROGRAMS[name]
    more = tuple((Atom(atom), size) for atom, size in sizes.items())
    return Program(p.name, p.inputs, p.outputs, (*p.sizes, *more), p.names, p.lines)


def _plain(name: str, *sizes: dict[str, int]) -> Case:
    return Case(Candidate(PROGRAMS[name], ()), sizes)


def _text(text: str, *sizes: dict[str, int]) -> Case:
    return Case(Candidate(parse_program(text), ()), sizes)


CASES: dict[str, Case] = {
    "softmax": _softmax(),
    "layer_norm": _layer_norm(),
    "rms_linear": _rms_linear(),
    "rms_linear_first": _rms_linear_first(),
    "attention": _attention(),
    "attention_split": _attention((Atom("T"),)),
    "matmul": _matmul(),
    "matmul_matmul": _matmul_matmul(),
    "matmul_rowsum": _matmul_rowsum(),
    "swiglu": _swiglu(),
    "mla": _mla(),
    "plain_softmax": _plain("softmax", {"N": 5, "K": 37}, {"N": 2, "K": 1500}),
    "embedding": _plain("embedding", {"V": 50, "D": 20, "B": 3, "L": 5, "P": 9}),
    "cross_entropy": _plain("cross_entropy", {"N": 9, "V": 70}),
    "rotate_half": _plain("rotate_half", {"S": 7}),
    "slices": _plain("slices", {"N": 9, "K": 6}),
    "token_shift": Case(Candidate(_sized("token_shift", B=2), ()), ({"T": 5, "C": 9},)),
    "moments": _plain("moments", {"N": 9}),
    "past_keys": _plain("past_keys", {"H": 3, "T": 17, "N": 1, "D": 8}),
    "scalars": _text(
        "program scalars(x: f32[], s: scalar f32) {\n  a: f32 = mul(x, s)\n  b: f32 = exp(a)\n"
        "  return a, b\n}",
        {},
    ),
    "total": _text(
        "program total(x: f32[N, K]) {\n  t[]: f32 = sum[n: N, k: K](x[n, k])\n"
        "  y[n: N, k: K]: f32 = sub(x[n, k], t)\n  return t, y[n, k]\n}",
        {"N": 5, "K": 37}, {"N": 40, "K": 300},
    ),
    "pair": _text(
        "program pair(x: f32[N, K]) {\n  a[n: N, k: K]: f32 = exp(x[n, k])\n"
        "  b[k: K, n: N]: f32 = neg(x[n, k])\n  return a[n, k], b[k, n]\n}",
        {"N": 5, "K": 37},
    ),
    "low_rank": _text(
        """program low_rank(x: bf16[N, K], w: bf16[K, O], a: bf16[K, R], b: bf16[R, O]) where R = 8 {
  base[n: N, o: O]: bf16 = contract[k: K](x[n, k], w[k, o])
  down[n: N, r: R]: bf16 = contract[k: K](x[n, k], a[k, r])
  up[n: N, o: O]: bf16 = contract[r: R](down[n, r], b[r, o])
  y[n: N, o: O]: bf16 = add(base[n, o], up[n, o])
  return y[n, o]
}""",
        {"N": 17, "K": 70, "O": 40},
    ),
    "self_product": _text(
        """program self_product(x: f32[N, D]) where D = 8 {
  s[i: N, j: N]: f32 = contract[d: D](x[i, d], x[j, d])
  m[i: N]: f32 = max[j: N](s[i, j])
  c[i: N, j: N]: f32 = sub(s[i, j], m[i])
  e[i: N, j: N]: f32 = exp(c[i, j])
  l[i: N]: f32 = sum[j: N](e[i, j])
  p[i: N, j: N]: f32 = div(e[i, j], l[i])
  y[i: N, d: D]: f32 = contract[j: N](p[i, j], x[j, d])
  return y[i, d]
}""",
        {"N": 19}, {"N": 70},
    ),
}  # fmt: skip
"""Every case by its name."""


def atoms(program: Program) -> tuple[Atom, ...]:
    """The atoms of a program's inputs."""
    return tuple(dict.fromkeys(a for n in program.inputs for d in n.dims for a in atoms_of(d)))
