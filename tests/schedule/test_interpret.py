"""The interpreter of tile programs: right over tiles, tails, splits and orders, and strict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.errors import Bug, Invalid
from cleave.ir.dims import Atom, Dim
from cleave.schedule.arithmetic import Precision, round_bf16, wider
from cleave.schedule.interpret import run
from cleave.schedule.text import parse_tiles
from cleave.schedule.verify import verify
from tile_attention import attention, attention_split
from tile_builder import Example
from tile_examples import (
    EXAMPLES,
    index_terms,
    matmul,
    matmul_split,
    norm_linear,
    softmax_keep,
    softmax_loops,
)

K, T = Atom("K"), Atom("T")


def assert_close(got: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], tolerance: float) -> None:
    """Same shapes, same NaN and infinities, and close relative to the largest value."""
    assert got.keys() == want.keys()
    for name, expected in want.items():
        actual = got[name].astype(np.float64)
        assert actual.shape == expected.shape
        finite = np.isfinite(expected)
        np.testing.assert_array_equal(actual[~finite], expected[~finite])
        if finite.any():
            error = np.abs(actual[finite] - expected[finite]).max()
            assert error <= tolerance * max(1e-30, np.abs(expected[finite]).max()), f"{name}: {error}"


def check(
    example: Example,
    sizes: dict[str, int],
    parts: dict[Dim, int] | None = None,
    seed: int = 0,
    **options: Any,
) -> None:
    verify(example.tiles)
    inputs = example.make_inputs(sizes, np.random.default_rng(seed))
    got = run(example.tiles, inputs, parts, seed=seed, **options)
    assert_close(got, example.reference(inputs), 1e-10)


# ---------------------------------------------------------------- against the reference


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_examples_compute_their_reference(example: Example) -> None:
    for sizes in example.sizes:
        for parts in example.parts[:2]:
            inputs = example.make_inputs(sizes, np.random.default_rng(1))
            want = example.reference(inputs)
            assert_close(run(example.tiles, inputs, parts), want, 1e-10)
            assert_close(run(example.tiles, inputs, parts, np.float32), want, example.tolerance)


size = st.integers(0, 17)
some = st.integers(1, 17)
tile = st.integers(1, 17)
order = st.sampled_from(["forward", "reverse", "random"])
few = settings(max_examples=25, deadline=None)


@few
@given(n=size, k=some, n_tile=tile, k_tile=tile, order=order)
def test_softmax(n: int, k: int, n_tile: int, k_tile: int, order: str) -> None:
    check(softmax_keep(n_tile, 17), {"N": n, "K": k}, order=order)
    check(softmax_loops(n_tile, k_tile), {"N": n, "K": k}, order=order)


@few
@given(n=size, o=size, k=size, tiles=st.tuples(tile, tile, tile), order=order)
def test_matmul(n: int, o: int, k: int, tiles: tuple[int, int, int], order: str) -> None:
    check(matmul(*tiles), {"N": n, "O": o, "K": k}, order=order)


@few
@given(n=some, o=some, k=size, tiles=st.tuples(tile, tile, tile), part_tile=tile, parts=st.integers(1, 5),
       longer=st.integers(0, 3), order=order)  # fmt: skip
def test_split_matmul(
    n: int, o: int, k: int, tiles: tuple[int, int, int], part_tile: int, parts: int, longer: int, order: str
) -> None:
    """Any number of parts, of any length that covers, more parts than elements too."""
    chunk = max(1, -(-k // parts)) + longer
    example = matmul_split(*tiles, part_tile)
    check(example, {"N": n, "O": o, "K": k}, {K: parts}, chunks={K: chunk}, order=order)


@few
@given(n=some, o=some, k=some, tiles=st.tuples(tile, tile, tile), order=order)
def test_norm_linear(n: int, o: int, k: int, tiles: tuple[int, int, int], order: str) -> None:
    check(norm_linear(*tiles), {"N": n, "O": o, "K": k}, order=order)


heads = st.tuples(st.integers(1, 3), st.integers(1, 3))
group = st.sampled_from(["whole", "grid", "one"])


@few
@given(
    heads=heads, s=some, t=size, s_tile=tile, t_tile=tile, width=st.integers(1, 5), group=group, order=order
)
def test_attention(
    heads: tuple[int, int], s: int, t: int, s_tile: int, t_tile: int, width: int, group: str, order: str
) -> None:
    """Interior and border loops cover what is visible, whatever the tiles; rows that see nothing are NaN."""
    sizes = {"KV": heads[0], "G": heads[1], "S": s, "T": t, "D": width}
    check(attention(s_tile, t_tile, 3, width, group=group), sizes, order=order)


@few
@given(heads=heads, s=some, t=size, s_tile=tile, t_tile=tile, part_tile=st.integers(1, 5),
       parts=st.integers(1, 5), order=order)  # fmt: skip
def test_split_attention(
    heads: tuple[int, int], s: int, t: int, s_tile: int, t_tile: int, part_tile: int, parts: int, order: str
) -> None:
    sizes = {"KV": heads[0], "G": heads[1], "S": s, "T": t, "D": 2}
    check(attention_split(s_tile, t_tile, 3, 2, part_tile), sizes, {T: parts}, order=order)


def test_split_attention_with_more_parts_than_keys() -> None:
    for sizes in ({"KV": 1, "G": 2, "S": 3, "T": 4, "D": 16}, {"KV": 1, "G": 1, "S": 5, "T": 2, "D": 16}):
        check(attention_split(), sizes, {T: 11})


@few
@given(a=size, j=some, v=some, tiles=st.tuples(tile, tile), shift=st.integers(0, 20), order=order)
def test_index_terms(a: int, j: int, v: int, tiles: tuple[int, int], shift: int, order: str) -> None:
    check(index_terms(*tiles, shift), {"A": a, "J": j, "V": v}, order=order)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_order_of_blocks_changes_no_bit(example: Example) -> None:
    inputs = example.make_inputs(example.sizes[0], np.random.default_rng(2))
    runs = [
        run(
            example.tiles,
            inputs,
            example.parts[-1 if len(example.parts) == 1 else 1],
            np.float32,
            order=order,
        )
        for order in ("forward", "reverse", "random")
    ]
    for other in runs[1:]:
        for name, array in runs[0].items():
            np.testing.assert_array_equal(other[name], array)


CHAIN = """
tiles chain(x: f32[N, K], w: f32[H, K], v: f32[O, H]) -> (y: f32[N, O]) {
  kernel main(x, w, v, y) grid(n: N by 3) warps 4 stages 2 {
    z: f32 = fill 0.0
    for o: O by 2 from 0 to O {
      carry acc[n, o]: f32 = z
      for h: H by 5 from 0 to H {
        carry hid[n, h]: f32 = z
        for k: K by 4 from 0 to K {
          x1[n, k]: f32 = load x[n, k]
          w1[h, k]: f32 = load w[h, k]
          xw[n, h]: f32 = contract[k](x1, w1)
          hid1[n, h]: f32 = add(hid, xw)
          update hid = hid1
        }
        v1[o, h]: f32 = load v[o, h]
        hv[n, o]: f32 = contract[h](hid, v1)
        acc1[n, o]: f32 = add(acc, hv)
        update acc = acc1
      }
      store y[n, o] = acc
    }
  }
}
"""


def test_nested_loops_start_their_accumulators_again() -> None:
    """An accumulator declared in a loop's body is new in each iteration; its first value broadcasts."""
    tiles, rng = parse_tiles(CHAIN), np.random.default_rng(0)
    verify(tiles)
    x, w, v = rng.standard_normal((7, 9)), rng.standard_normal((11, 9)), rng.standard_normal((5, 11))
    assert_close(run(tiles, {"x": x, "w": w, "v": v}), {"y": x @ w.T @ v.T}, 1e-12)


# ---------------------------------------------------------------- strictness


def tiles_of(body: str, *, grid: str = "grid(n: N by 4)", head: str = "", out: str = "y: f32[N]") -> Any:
    """A program with inputs `x: f32[N, K]` and `ids: i64[N]`, and one kernel with the given body."""
    names = [part.split(":")[0].strip() for part in out.split(";")]
    outputs = out.replace(";", ",")
    return parse_tiles(
        f"tiles test(x: f32[N, K], ids: i64[N]) -> ({outputs}) {head} {{\n"
        f"kernel main(x, ids, {', '.join(names)}) {grid} warps 4 stages 2 {{\n{body}\n}} }}"
    )


def call(tiles: Any, n: int = 6, k: int = 5, ids: Any = None, **options: Any) -> dict[str, np.ndarray]:
    x = np.arange(n * k, dtype=np.float64).reshape(n, k)
    return run(tiles, {"x": x, "ids": np.arange(n) if ids is None else np.asarray(ids)}, **options)


ROWS = "grid(n: N by 4)"
FINISH = "a[n]: f32 = fill 1.0  store y[n] = a"
ONES = "{ b: f32 = fill 1.0 }"

BROKEN: dict[str, tuple[str, str]] = {
    "written twice": ("grid(n: N by 4, k: K by 4)", FINISH),
    "writes an element of y twice": (ROWS, "i[n]: i64 = fill 0  a: f32 = fill 1.0  store y[lookup(i)] = a"),
    "unguarded load leaves": (ROWS, "a[n]: f32 = load x[n, n]  store y[n] = a"),
    "store leaves": (ROWS, "a[n]: f32 = fill 1.0  store y[n + 1] = a"),
    "exact loop": (ROWS, f"for k: K by 4 from 0 to K exact {ONES} {FINISH}"),
    "loop starts at -1": (ROWS, f"for k: K by 4 from -1 to K {ONES} {FINISH}"),
    "b is not in scope": (ROWS, f"for k: K by 4 from 0 to K {ONES} store y[n] = b"),
    "index k is not in scope": (ROWS, f"for k: K by 4 from 0 to K {ONES} a[k]: f32 = fill 1.0"),
    "no axis and spans 4": ("grid(n: N by 4, k: K by 1)", "b[k]: f32 = load x[n, k]"),
    "defined twice": (ROWS, "a: f32 = fill 1.0  a: f32 = fill 2.0"),
    "has axes k": ("grid(n: N by 4, k: K by 2)", "b[n, k]: f32 = load x[n, k]  a[n]: f32 = exp(b)"),
    "no accumulator": (
        ROWS,
        "a: f32 = fill 1.0 for k: K by 4 from 0 to K { b: f32 = fill 1.0 update a = b }",
    ),
    "its update b is f64": (
        ROWS,
        "z: f32 = fill 1.0 carry a: f32 = z for k: K by 4 from 0 to K { b: f64 = fill 1.0 update a = b }",
    ),
    "has a span already": (ROWS, f"for n: N by 4 from 0 to N {ONES}"),
    "spans 4 at most": ("grid(n: N by 4) whole(k: K by 4)", FINISH),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_programs_raise(what: str) -> None:
    grid, body = BROKEN[what]
    with pytest.raises(Bug, match=what):
        call(tiles_of(body, grid=grid))


def test_elements_that_nobody_writes_show() -> None:
    body = "a[m]: f32 = fill 1.0  i[m]: i64 = fill 1  store y[m] = a  store c[m] = i"
    loop = f"for m: N by 4 from start(n) to end(n) - 1 {{ {body} }}"
    got = call(tiles_of(loop, out="y: f32[N]; c: i32[N]"))
    least = np.iinfo(np.int32).min
    np.testing.assert_array_equal(got["y"], [1, 1, 1, np.nan, 1, np.nan])
    np.testing.assert_array_equal(got["c"], [1, 1, 1, least, 1, least])


@pytest.mark.parametrize("tile", [1, 4])
def test_the_first_block_is_there_for_what_lacks_an_empty_index(tile: int) -> None:
    """As in kernels: `y` lacks k and is stored by k's first block; `z` has nothing that could be stored."""
    body = "a[n]: f32 = fill 1.0  b[n, k]: f32 = load x[n, k]  store y[n] = a first(k)  store z[n, k] = b"
    tiles = tiles_of(body, grid=f"grid(n: N by 4, k: K by {tile})", out="y: f32[N]; z: f32[N, K]")
    verify(tiles)
    for k in (0, 1, 9):
        got = call(tiles, k=k)
        assert got["y"].tolist() == [1.0] * 6
        np.testing.assert_array_equal(got["z"], np.arange(6.0 * k).reshape(6, k))


@pytest.mark.parametrize("other", ["", "else 7.0"])
def test_a_load_at_an_index_without_positions_reads_nothing(other: str) -> None:
    body = f"b[n]: f32 = load x[n, k] {other}  store z[n, k] = b  store y[n] = b first(k)"
    tiles = tiles_of(body, grid="grid(n: N by 4, k: K by 1)", out="y: f32[N]; z: f32[N, K]")
    verify(tiles)
    assert call(tiles, k=0)["y"].tolist() == [7.0 if other else 0.0] * 6
    assert call(tiles, k=2)["y"].tolist() == [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]


def test_workspace_read_before_it_is_written() -> None:
    tiles = parse_tiles("""
      tiles test(x: f32[N]) -> (y: f32[N]) {
        workspace w: f32[N]
        kernel one(x, w) grid(n: N by 4) warps 1 stages 1 {
          for m: N by 4 from start(n) to end(n) - 1 { a[m]: f32 = load x[m]  store w[m] = a }
        }
        kernel two(w, y) grid(n: N by 4) warps 1 stages 1 { a[n]: f32 = load w[n]  store y[n] = a }
      }""")
    with pytest.raises(Bug, match="elements of w are read before they are written"):
        run(tiles, {"x": np.ones(6)})


def test_guarded_loads_give_other_outside() -> None:
    body = "a[n, k]: f32 = load x[n - 2, 2*k + 1] else -inf  b[n]: f32 = reduce max[k](a)  store y[n] = b"
    got = call(tiles_of(body, grid="grid(n: N by 4) whole(k: K by 8)", head="limit K <= 8"))
    assert got["y"].tolist() == [-np.inf, -np.inf, 3.0, 8.0, 13.0, 18.0]


def test_guarded_load_of_an_empty_tensor_and_lookups_out_of_range() -> None:
    tiles = tiles_of("i[n]: i64 = load ids[n]  a[n]: f32 = load x[lookup(i), 0] else 7.5  store y[n] = a")
    assert call(tiles, ids=[0, -1, 5, 6, 99, 2])["y"].tolist() == [0.0, 7.5, 25.0, 7.5, 7.5, 10.0]
    assert call(tiles, k=0)["y"].tolist() == [7.5] * 6


def test_reductions_over_nothing_are_neutral() -> None:
    body = """
      a[n, k]: f32 = load x[n, k]
      s[n]: f32 = reduce sum[k](a)  m[n]: f32 = reduce max[k](a)  p[n]: f32 = reduce prod[k](a)
      c[n]: f32 = contract[k](a, a)  l[n]: f32 = reduce min[k](a)
      ms[n]: f32 = add(m, s)  cp[n]: f32 = add(c, p)
      store y[n] = ms  store z[n] = cp  store u[n] = l"""
    tiles = tiles_of(body, grid="grid(n: N by 4) whole(k: K by 8)", out="y: f32[N]; z: f32[N]; u: f32[N]")
    got = call(tiles, k=0)
    assert (got["y"] == -np.inf).all() and (got["z"] == 1).all() and (got["u"] == np.inf).all()


def test_operands_without_the_reduced_index_count_for_each_position() -> None:
    body = """
      one: f32 = fill 1.0  two: f32 = fill 2.0
      a[n]: f32 = reduce sum[k](one)  b[n]: f32 = contract[k](one, two)  c[n]: f32 = add(a, b)
      store y[n] = c"""
    assert call(tiles_of(body, grid="grid(n: N by 4) whole(k: K by 8)"))["y"].tolist() == [15.0] * 6


def test_nan_passes_through_max() -> None:
    tiles = softmax_loops().tiles
    x = np.array([[0.0, np.nan, 1.0], [1.0, 1.0, 1.0]])
    got = run(tiles, {"x": x})["y"]
    assert np.isnan(got[0]).all() and np.allclose(got[1], 1 / 3)


def test_arguments_that_do_not_fit_are_named() -> None:
    tiles = softmax_keep(4, 8).tiles
    with pytest.raises(Invalid, match="argument x"):
        run(tiles, {})
    with pytest.raises(Invalid, match="argument x has 1 axes"):
        run(tiles, {"x": np.ones(3)})
    with pytest.raises(Invalid, match="K has size 9"):
        run(tiles, {"x": np.ones((3, 9))})
    with pytest.raises(Invalid, match="do not cover"):
        run(matmul_split().tiles, {"x": np.ones((1, 9)), "w": np.ones((1, 9))}, {K: 2}, chunks={K: 3})
    with pytest.raises(Invalid, match="order"):
        run(tiles, {"x": np.ones((3, 8))}, order="sideways")


# ---------------------------------------------------------------- precision


def test_native_precision_rounds_like_torch() -> None:
    rng = np.random.default_rng(3)
    values = np.concatenate(
        [rng.standard_normal(500) * 10.0 ** rng.integers(-9, 9, 500), [0.0, -0.0, np.inf]]
    )
    values = values.astype(np.float32)
    for dtype, torch_dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        want = torch.from_numpy(values).to(torch_dtype).to(torch.float32).numpy()
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(Precision(False).array(values, dtype), want)
    assert np.isnan(round_bf16(np.array([np.nan], np.float32))).all()


def test_computes_work_in_their_dtype() -> None:
    half = Precision(False)
    big = np.asarray(2048.0, np.float32)
    one = np.asarray(1.0, np.float32)
    assert half.map("add", [(big, "f16"), (one, "f16")], "f16") == 2048.0
    assert half.map("add", [(big, "f16"), (one, "f16")], "f32") == 2049.0
    fine = np.asarray(2049.0, np.float32)
    assert half.map("id", [(fine, "f32")], "f16") == 2048.0
    assert half.map("lt", [(big, "f16"), (fine, "f32")], "bool") == np.True_
    assert half.map("cast", [(np.asarray(-1.7, np.float32), "f32")], "i64") == -1
    chosen = half.map("select", [(np.asarray(True), "bool"), (fine, "f32"), (one, "f32")], "f16")
    assert chosen == 2048.0


def test_wider_dtypes() -> None:
    assert wider(["f16", "bf16"]) == "f32" and wider(["i64", "f16"]) == "f16"
    assert wider(["i8", "u8"]) == "i16" and wider(["bool", "i32"]) == "i32" and wider(["f32", "f64"]) == "f64"


def test_native_outputs_have_the_nearest_numpy_dtype() -> None:
    for example, expected in ((matmul(dtype="f16"), np.float16), (matmul(dtype="bf16"), np.float32)):
        inputs = example.make_inputs(example.sizes[0], np.random.default_rng(0))
        assert run(example.tiles, inputs, dtype=np.float32)["y"].dtype == expected
