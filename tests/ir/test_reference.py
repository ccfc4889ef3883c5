"""The reference against PyTorch in float64, against a naive evaluator element by element, and its errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.errors import Invalid
from cleave.ir.dims import Atom, Dim, Gather, Index, Inject, Term, Union, size_of
from cleave.ir.ops import (
    Access,
    Cat,
    Const,
    Contract,
    Input,
    Map,
    Node,
    Position,
    Reduce,
    Scalar,
    SizeOf,
)
from cleave.ir.program import Program
from cleave.ir.reference import evaluate, evaluate_fold
from cleave.ir.text import parse_program
from drawn import A, B, C, programs
from fold_examples import SOFTMAX, VARIANCE
from programs import PROGRAMS

Arrays = dict[str, Any]
F = torch.nn.functional


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return rng(seed + sum(shape)).standard_normal(shape)


def close(ours: np.ndarray, theirs: Any) -> None:
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def tensors(inputs: Mapping[str, Any]) -> list[Any]:
    return [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in inputs.values()]


# ---------------------------------------------------------------- the examples against PyTorch


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> list[torch.Tensor]:
    group = q.shape[0] // max(k.shape[0], 1)
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    s, t = q.shape[1], k.shape[1]
    mask = torch.arange(t) <= torch.arange(s)[:, None] + t - s
    scores = (q @ k.mT * scale).masked_fill(~mask, -math.inf)
    return [torch.softmax(scores, -1) @ v, torch.logsumexp(scores, -1)]


def mla(causal: bool) -> Callable[..., list[torch.Tensor]]:
    def run(q: torch.Tensor, kv: torch.Tensor, scale: float) -> list[torch.Tensor]:
        s, t = q.shape[0], kv.shape[0]
        scores = torch.einsum("shc,tc->hst", q, kv) * scale
        if causal:
            scores = scores.masked_fill(torch.arange(t) > torch.arange(s)[:, None] + t - s, -math.inf)
        return [torch.einsum("hst,tc->shc", torch.softmax(scores, -1), kv[:, :5])]

    return run


def rotate_half(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> list[torch.Tensor]:
    return [x * cosine + torch.cat([-x[:, 4:], x[:, :4]], -1) * sine]


def past_keys(q: torch.Tensor, past: torch.Tensor, new: torch.Tensor) -> list[torch.Tensor]:
    k = torch.cat([past, new], 1)
    scores = torch.einsum("hd,htd->ht", q, k)
    return [scores - scores.amax(-1, keepdim=True), k]


def slices(x: torch.Tensor) -> list[torch.Tensor]:
    every = x[0:5:2, 0] * x.flip(0)[:3, -1]
    return [(x[2:] - x[:-2]).T, every, x.diagonal()[:3].abs()[None, :, None]]


def token_shift(x: torch.Tensor, mix: torch.Tensor) -> list[torch.Tensor]:
    x = x.reshape(2, -1, x.shape[1])
    return [(x + (F.pad(x, (0, 0, 1, -1)) - x) * mix).flatten(0, 1)]


def moments(x: torch.Tensor, shift: float) -> list[torch.Tensor]:
    x = x[:, 0]
    above = x > shift
    mean = x.mean(-1)
    return [mean, x.amax(-1, keepdim=True), x.amin(-1), above.any(-1), above.sum(-1), (x - mean[:, None]).T]


def linear(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor, eps: float) -> list[torch.Tensor]:
    return [F.rms_norm(x, g.shape, g, eps) @ w.T]


MASK = np.array([[True, False, True, True], [False] * 4, [False, True, False, False]])
IDS = np.array([[0, 5, 3], [2, 2, 4]])
CASES: dict[str, tuple[Arrays, Callable[..., Any]]] = {
    "softmax": ({"x": normal(5, 7)}, lambda x: [torch.softmax(x, -1)]),
    "attention": (
        {"q": normal(6, 3, 8), "k": normal(2, 5, 8), "v": normal(2, 5, 8), "scale": 0.3},
        attention,
    ),
    "masked_attention": (
        {"q": normal(2, 3, 8), "k": normal(2, 4, 8), "v": normal(2, 4, 6), "mask": MASK},
        lambda q, k, v, mask: [F.scaled_dot_product_attention(q, k, v, mask)],
    ),
    "rms_linear": ({"x": normal(4, 6), "g": normal(6), "w": normal(3, 6), "eps": 1e-5}, linear),
    "layer_norm": (
        {"x": normal(4, 6), "g": normal(6), "b": normal(6, seed=1)},
        lambda x, g, b: [F.layer_norm(x, g.shape, g, b)],
    ),
    "matmul": ({"a": normal(3, 4), "b": normal(4, 5)}, lambda a, b: [a @ b]),
    "matmul_matmul": ({"a": normal(3, 4), "b": normal(4, 5), "c": normal(5, 2)}, lambda a, b, c: [a @ b @ c]),
    "matmul_rowsum": ({"a": normal(3, 4), "b": normal(4, 5)}, lambda a, b: [(a @ b).sum(-1)]),
    "swiglu": (
        {"x": normal(3, 4), "gate": normal(5, 4), "up": normal(5, 4, seed=1)},
        lambda x, gate, up: [F.silu(x @ gate.T) * (x @ up.T)],
    ),
    "mla_decode": ({"q": normal(1, 3, 7), "kv": normal(6, 7), "scale": 0.5, "C": 5}, mla(False)),
    "mla_prefill": ({"q": normal(4, 3, 7), "kv": normal(6, 7), "scale": 0.5, "C": 5}, mla(True)),
    "embedding": (
        {"table": normal(6, 4), "ids": IDS, "rows": normal(5, 4)},
        lambda table, ids, rows: [(F.embedding(ids, table) + rows[1:4]).flatten(0, 1)],
    ),
    "cross_entropy": (
        {"x": normal(4, 6), "target": IDS[0].repeat(2)[:4]},
        lambda x, t: [F.cross_entropy(x, t)],
    ),
    "past_keys": ({"q": normal(2, 3), "past": normal(2, 5, 3), "new": normal(2, 1, 3)}, past_keys),
    "rotate_half": (
        {"x": normal(3, 8), "cosine": normal(3, 8, seed=1), "sine": normal(3, 8, seed=2)},
        rotate_half,
    ),
    "slices": ({"x": normal(5, 4)}, slices),
    "token_shift": ({"x": normal(6, 4), "mix": normal(4), "B": 2}, token_shift),
    "moments": ({"x": normal(4, 1, 6), "shift": 0.2}, moments),
    "split_softmax": ({"x": normal(5, 7)}, lambda x: [torch.softmax(x, -1)]),
    "split_k": ({"a": normal(3, 7), "b": normal(7, 5)}, lambda a, b: [a @ b]),
}


def test_every_example_has_a_case() -> None:
    assert sorted(CASES) == sorted(PROGRAMS)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_example_agrees_with_pytorch(name: str) -> None:
    given_inputs, theirs = CASES[name]
    inputs = {k: v for k, v in given_inputs.items() if k not in ("B", "C")}
    sizes: dict[Dim, int] = {Atom(k): v for k, v in given_inputs.items() if k in ("B", "C")}
    partitions = {Atom("K"): (2, 0, 4, 1)} if name.startswith("split") else None
    outputs = evaluate(PROGRAMS[name], inputs, sizes, partitions)
    expected = theirs(*tensors(inputs))
    assert len(outputs) == len(expected)
    for ours, other in zip(outputs.values(), expected, strict=True):
        close(ours, other)


def test_rows_that_see_nothing() -> None:
    inputs = {"q": normal(2, 5, 8), "k": normal(1, 3, 8), "v": normal(1, 3, 8), "scale": 1.0}
    outputs = evaluate(PROGRAMS["attention"], inputs)
    assert np.isnan(outputs["o"][:, :2]).all()
    assert np.isfinite(outputs["o"][:, 2:]).all()
    assert np.isnan(outputs["lse"][:, :2]).all()
    masked = evaluate(PROGRAMS["masked_attention"], CASES["masked_attention"][0])
    assert (masked["o"][:, 1] == 0).all()


@pytest.mark.parametrize("partition", [(7,), (0, 7), (7, 0), (3, 4), (1,) * 7, (0, 0, 5, 0, 2)])
def test_split_is_the_same_for_every_partition(partition: tuple[int, ...]) -> None:
    x = normal(3, 7)
    x[1] = -math.inf
    x[1, 6] = 2.0
    ours = evaluate(PROGRAMS["split_softmax"], {"x": x}, partitions={Atom("K"): partition})["y"]
    close(ours, torch.softmax(torch.from_numpy(x), -1))


def test_what_stands_beyond_a_part_does_not_count() -> None:
    text = """program p(a: f32[K], b: f32[K]) {
      y[p: parts(K)]: f32 = contract[k: part(K)](a[join(p, k)], b[join(p, k)])
      z[p: parts(K)]: f32 = max[k: part(K)](a[join(p, k)])
      return y[p], z[p]
    }"""
    a, b = np.array([1.0, 2.0, math.nan, 3.0]), np.array([1.0, math.inf, 4.0, math.nan])
    outputs = evaluate(parse_program(text), {"a": a, "b": b}, partitions={Atom("K"): (1, 0, 3)})
    np.testing.assert_equal(outputs["y"], [1.0, 0.0, math.nan])
    np.testing.assert_equal(outputs["z"], [1.0, -math.inf, math.nan])


def test_sizes_zero_and_one() -> None:
    empty = evaluate(PROGRAMS["matmul"], {"a": np.zeros((3, 0)), "b": np.zeros((0, 2))})["y"]
    assert empty.shape == (3, 2)
    assert not empty.any()
    assert evaluate(PROGRAMS["softmax"], {"x": np.zeros((0, 4))})["y"].shape == (0, 4)
    assert evaluate(PROGRAMS["softmax"], {"x": np.zeros((2, 0))})["y"].shape == (2, 0)
    assert evaluate(
        PROGRAMS["split_k"], {"a": np.zeros((3, 0)), "b": np.zeros((0, 2))}, None, {Atom("K"): ()}
    )["y"].shape == (3, 2)
    none = {"q": np.zeros((0, 2, 4)), "k": np.zeros((0, 2, 4)), "v": np.zeros((0, 2, 4)), "scale": 1.0}
    assert evaluate(PROGRAMS["attention"], none)["o"].shape == (0, 2, 4)
    one = evaluate(PROGRAMS["softmax"], {"x": np.full((1, 1), 1e4)})["y"]
    assert one.tolist() == [[1.0]]


def test_reductions_over_nothing() -> None:
    text = """program p(x: f32[N, K], i: i8[N, K], b: bool[N, K]) {
      a[n: N]: f32 = sum[k: K](x[n, k])
      c[n: N]: f32 = max[k: K](x[n, k])
      d[n: N]: f32 = min[k: K](x[n, k])
      e[n: N]: f32 = prod[k: K](x[n, k])
      f[n: N]: i8 = max[k: K](i[n, k])
      g[n: N]: bool = any[k: K](b[n, k])
      h[n: N]: bool = all[k: K](b[n, k])
      return a[n], c[n], d[n], e[n], f[n], g[n], h[n]
    }"""
    inputs = {"x": np.zeros((1, 0)), "i": np.zeros((1, 0), np.int8), "b": np.zeros((1, 0), bool)}
    outputs = evaluate(parse_program(text), inputs)
    assert [v[0] for v in outputs.values()] == [0.0, -math.inf, math.inf, 1.0, -128, False, True]


def test_contraction_multiplies_before_it_sums() -> None:
    text = """program p(a: f32[K], b: f32[]) {
      y: f32 = contract[k: K](a[k], b)
      z: f32 = contract[k: K](b, a[k], 2.0)
      return y, z
    }"""
    program = parse_program(text)
    for a, b, expected in (([], math.nan, 0.0), ([], math.inf, 0.0), ([0.0, 1.0], math.inf, math.nan)):
        outputs = evaluate(program, {"a": np.array(a), "b": np.array(b)})
        np.testing.assert_equal([outputs["y"].item(), outputs["z"].item()], [expected, expected])


def test_float32_really_computes_in_float32() -> None:
    outputs = evaluate(PROGRAMS["softmax"], {"x": np.full((1, 2), 1e4)}, dtype=np.float32)
    assert outputs["y"].dtype == np.float32
    text = "program p(x: f32[N]) { y[n: N]: f32 = exp(x[n]) return y[n] }"
    assert evaluate(parse_program(text), {"x": np.array([100.0])}, dtype=np.float32)["y"].tolist() == [
        math.inf
    ]


# ---------------------------------------------------------------- element by element


class Naive:
    """One element at a time, by recursion: slow, and written from the definitions alone."""

    def __init__(self, arrays: dict[Node, np.ndarray], sizes: dict[Dim, int]) -> None:
        self.arrays, self.sizes, self.known = arrays, sizes, {}

    def value(self, node: Node, at: tuple[int, ...]) -> float:
        if (node, at) not in self.known:
            self.known[node, at] = self.compute(node, dict(zip(node.axes, at, strict=True)))
        return self.known[node, at]

    def compute(self, node: Node, at: dict[Index, int]) -> float:
        match node.op:
            case Input() | Scalar():
                return self.arrays[node][tuple(at.values())].item()
            case Const(value):
                return float(value)
            case SizeOf(dim):
                return size_of(dim, self.sizes)
            case Position(term):
                return self.place(term, at, None)
            case Map(fn, args):
                return POINT[fn](*(self.read(a, at) for a in args))
            case Reduce(kind, bound, arg):
                values = [self.read(arg, inner) for inner in self.over(bound, at)]
                neutral = {"sum": 0.0, "max": -math.inf, "min": math.inf}[kind]
                fold = {"sum": lambda a, b: a + b, "max": POINT["max"], "min": POINT["min"]}[kind]
                for value in values:
                    neutral = fold(neutral, value)
                return neutral
            case Contract(bound, args):
                products = [math.prod(self.read(a, inner) for a in args) for inner in self.over(bound, at)]
                return sum(products)
            case Cat(axis, pieces):
                rest = at[node.axes[axis]]
                for part, piece in zip(node.axes[axis].dim.parts, pieces, strict=True):  # pyright: ignore
                    if rest < size_of(part, self.sizes):
                        return self.read(piece, {**at, Index(part, axis): rest})
                    rest -= size_of(part, self.sizes)
        raise AssertionError(node)

    def over(self, bound: tuple[Index, ...], at: dict[Index, int]) -> list[dict[Index, int]]:
        found = [at]
        for index in bound:
            found = [{**a, index: n} for a in found for n in range(size_of(index.dim, self.sizes))]
        return found

    def read(self, access: Access, at: dict[Index, int]) -> float:
        places: list[int] = []
        for term, axis in zip(access.terms, access.node.axes, strict=True):
            size = size_of(axis.dim, self.sizes)
            places.append(min(max(self.place(term, at, axis.dim), 0), size - 1))
            if size == 0:
                return 0 if access.node.dtype == "i64" else math.nan
        return self.value(access.node, tuple(places))

    def place(self, term: Term, at: dict[Index, int], dim: Dim | None) -> int:
        total = term.offset.at(self.sizes)
        for leaf, factor in term.leaves:
            match leaf:
                case Index():
                    total += factor * at[leaf]
                case Gather(access):
                    total += factor * int(self.read(access, at))
                case Inject(part, inner):
                    assert isinstance(dim, Union)
                    before = sum(size_of(d, self.sizes) for d in dim.parts[:part])
                    total += factor * (before + self.place(inner, at, dim.parts[part]))
                case _:
                    raise AssertionError(leaf)
        return total


def pick(best: Callable[..., float]) -> Callable[[float, float], float]:
    return lambda a, b: math.nan if math.isnan(a) or math.isnan(b) else best(a, b)


POINT: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "neg": lambda a: -a,
    "abs": abs, "max": pick(max), "min": pick(min), "select": lambda p, a, b: a if p != 0 else b,
}  # fmt: skip


@given(programs(runnable=True), st.tuples(*[st.integers(0, 3)] * 3), st.integers(0, 99))
@settings(deadline=None, max_examples=120)
def test_random_program_agrees_with_a_naive_evaluator(
    program: Program, abc: tuple[int, int, int], seed: int
) -> None:
    sizes: dict[Dim, int] = dict(zip((A, B, C), abc, strict=True))
    generator = rng(seed)
    inputs: Arrays = {}
    arrays: dict[Node, np.ndarray] = {}
    for node in program.inputs:
        assert isinstance(node.op, Input | Scalar)
        shape = tuple(size_of(d, sizes) for d in node.dims)
        if node.dtype == "i64":
            arrays[node] = generator.integers(0, max(sizes[A], 1), shape)
        else:
            arrays[node] = generator.integers(-3, 4, shape) / 2
        inputs[node.op.name] = np.asarray(arrays[node])
        arrays[node] = np.asarray(arrays[node])
    ours = evaluate(program, inputs)
    naive = Naive(arrays, sizes)
    for output in program.outputs:
        shape = tuple(size_of(d, sizes) for d in output.node.dims)
        expected = np.array([naive.value(output.node, at) for at in np.ndindex(*shape)], dtype=float).reshape(
            shape
        )
        flat = [n for group in output.layout for n in group]
        expected = expected.transpose(flat).reshape(ours[output.name].shape)
        np.testing.assert_allclose(ours[output.name], expected, rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------- folds


def softmax_parts(x: np.ndarray) -> dict[str, np.ndarray]:
    m = x.max(1, initial=-math.inf)
    return {"m": m, "s": np.exp(x - np.where(np.isinf(m), 0, m)[:, None]).sum(1)}


@given(st.lists(st.integers(0, 4), max_size=6), st.sampled_from([1.0, 30.0, 1e4]), st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_online_softmax_for_any_partition(partition: list[int], scale: float, seed: int) -> None:
    x = rng(seed).standard_normal((3, sum(partition))) * scale
    x[0, : x.shape[1] // 2] = -math.inf
    x[1, x.shape[1] // 2 :] = -math.inf
    x[2] = -math.inf
    expected = softmax_parts(x.astype(np.float32).astype(np.float64))
    for dtype, tolerance in ((np.float64, 1e-9), (np.float32, 1e-4)):
        values = evaluate_fold(SOFTMAX, SOFTMAX.folds[0], {"x": x}, partition, dtype)
        assert values["m"].dtype == dtype
        for name, value in values.items():
            exact = softmax_parts(x)[name] if dtype == np.float64 else expected[name]
            np.testing.assert_allclose(value, exact, rtol=tolerance)


def test_fold_runs_loops_inside_parts_and_merges_in_a_tree() -> None:
    x, w = normal(3, 9), np.abs(normal(9)) + 0.1
    fold = VARIANCE.folds[0]
    mean = (x * w).sum(1) / w.sum()
    expected = {"total": (x * w).sum(1), "spread": ((x - mean[:, None]) ** 2 * w).sum(1)}
    for partition in ([9], [(2, 3), 0, (0, 1), 3], [(1, 2), (3,), (), (3, 0)], [(2, 2, 2, 2, 1)]):
        trees: list[Any] = (
            [None] if len(partition) != 4 else [None, ((0, 1), (2, 3)), (0, (1, (2, 3))), (3, 1, 0, 2)]
        )
        for tree in trees:
            values = evaluate_fold(VARIANCE, fold, {"x": x, "w": w}, partition, tree=tree)
            for name, value in values.items():
                close(value, expected[name])


def test_fold_that_keeps_no_maximum_overflows_in_float32_only() -> None:
    text = """program p(x: f32[N, K]) {
      e[n: N, k: K]: f32 = exp(x[n, k])
      s[n: N]: f32 = sum[k: K](e[n, k])
      return s[n]
    }"""
    program = parse_program(text)
    x = np.full((1, 2), 100.0)
    assert np.isinf(evaluate(program, {"x": x}, dtype=np.float32)["s"]).all()
    assert np.isfinite(evaluate(program, {"x": x})["s"]).all()


def test_fold_with_parts_that_do_not_add_up() -> None:
    with pytest.raises(Invalid, match=r"the parts of K are \[1, 2\], expected a sum of 4"):
        evaluate_fold(SOFTMAX, SOFTMAX.folds[0], {"x": np.zeros((1, 4))}, [1, 2])


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("matmul", {"a": np.zeros((2, 3))}, "there is no value for argument b"),
        ("matmul", {"a": np.zeros((2, 3)), "b": np.zeros((3, 2)), "c": 1}, "there is no argument c"),
        ("cross_entropy", {"x": np.zeros((1, 3)), "target": np.zeros(1)},
         "target has dtype float64, expected i64"),
        ("moments", {"x": np.zeros((2, 1, 6)), "shift": np.zeros(2)},
         r"shift has shape \(2,\), expected a number"),
        ("rms_linear", {"x": np.zeros((2, 3)), "g": np.zeros(3), "w": np.zeros((2, 3))},
         "no value for argument eps"),
        ("embedding", {"table": np.zeros((2, 3)), "ids": np.array([[0, 2]]), "rows": np.zeros((3, 3))},
         "table is read at 2 on axis V, which has size 2"),
        ("embedding", {"table": np.zeros((2, 3)), "ids": np.array([[0, -1]]), "rows": np.zeros((3, 3))},
         "table is read at -1 on axis V"),
        ("split_k", {"a": np.zeros((2, 3)), "b": np.zeros((3, 2))}, "no partition of K is given"),
    ],
)  # fmt: skip
def test_arguments_that_do_not_fit(name: str, inputs: Arrays, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        evaluate(PROGRAMS[name], inputs)


def test_partition_that_does_not_add_up() -> None:
    inputs = {"a": np.zeros((2, 3)), "b": np.zeros((3, 2))}
    with pytest.raises(Invalid, match=r"the parts of K are \[2, 2\], expected a sum of 3"):
        evaluate(PROGRAMS["split_k"], inputs, partitions={Atom("K"): (2, 2)})


def test_a_part_without_a_place_is_refused_only_if_parts_are_uneven() -> None:
    text = "program p(x: f32[K]) { y: f32 = sum[k: part(K)](x[k]) return y }"
    program = parse_program(text)
    assert evaluate(program, {"x": np.ones(4)}, partitions={Atom("K"): (2, 2)})["y"] == 2
    with pytest.raises(Invalid, match="nothing tells in which of the uneven parts it runs"):
        evaluate(program, {"x": np.ones(4)}, partitions={Atom("K"): (1, 3)})
