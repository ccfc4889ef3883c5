"""The text form of tile programs: it reads well, parses back exactly, and wrong text has one clear error."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.errors import Bug, ParseError
from cleave.ir.dims import Atom, Extent, Index, Inject, Join, Lookup, Parts, Term, Union, extent, term, var
from cleave.schedule.maps import print_maps, tile_maps
from cleave.schedule.text import parse_tiles, print_kernel, print_tiles
from cleave.schedule.tiles import (
    ZERO,
    AlignBound,
    Bound,
    Fill,
    GridAxis,
    Kernel,
    LimitBound,
    Load,
    Locate,
    Loop,
    Measure,
    PartBound,
    SizeBound,
    SpanBound,
    Statement,
    Store,
    Tensor,
    TileProgram,
)
from tile_attention import attention, attention_split
from tile_builder import Example
from tile_examples import EXAMPLES, matmul, matmul_split

MATMUL_SPLIT = """\
tiles matmul_split(x: f32[N, K], w: f32[O, K]) -> (y: f32[N, O]) split K {
  workspace sums: f32[parts(K), N, O]

  kernel main(x, w, sums) grid(p: parts(K) by 1, n: N by 16, o: O by 32) warps 4 stages 2 {
    acc0[n, o]: f32 = fill 0.0
    carry acc[n, o]: f32 = acc0
    for k: K by 64 from part_start(p) to part_end(p) {
      x1[n, k]: f32 = load x[n, k]
      w1[o, k]: f32 = load w[o, k]
      xw[n, o]: f32 = contract[k](x1, w1)
      acc1[n, o]: f32 = add(acc, xw)
      update acc = acc1
    }
    store sums[p, n, o] = acc
  }

  kernel merge(sums, y) grid(n: N by 16, o: O by 32) warps 4 stages 2 {
    acc0[n, o]: f32 = fill 0.0
    carry acc[n, o]: f32 = acc0
    for p: parts(K) by 1 from 0 to parts(K) {
      a[p, n, o]: f32 = load sums[p, n, o]
      a1[n, o]: f32 = reduce sum[p](a)
      acc1[n, o]: f32 = add(acc, a1)
      update acc = acc1
    }
    store y[n, o] = acc
  }
}
"""


def assert_round_trip(tiles: TileProgram) -> str:
    text = print_tiles(tiles)
    again = parse_tiles(text)
    assert again == tiles
    assert print_tiles(again) == text
    return text


def test_the_text_of_a_split() -> None:
    assert assert_round_trip(matmul_split(16, 32, 64).tiles) == MATMUL_SPLIT


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_examples_come_back(example: Example) -> None:
    text = assert_round_trip(example.tiles)
    assert max(map(len, text.splitlines())) <= 112
    assert "indices(" not in text


@settings(max_examples=15, deadline=None)
@given(tiles=st.tuples(*[st.integers(1, 300)] * 4), group=st.sampled_from(["whole", "grid", "one"]))
def test_any_tiles_come_back(tiles: tuple[int, int, int, int], group: str) -> None:
    assert_round_trip(attention(*tiles, group=group).tiles)
    assert_round_trip(attention_split(*tiles).tiles)


# ---------------------------------------------------------------- corners

N, K, LOWER = Atom("N"), Atom("K"), Atom("n")
BOTH = Union((K, LOWER))


def program(
    body: list[Statement],
    *,
    names: tuple[tuple[Index, str], ...],
    grid: tuple[GridAxis, ...] = (),
    **header: object,
) -> TileProgram:
    x = Tensor("x", "input", "f32", ((N, K), (), (BOTH,)))
    y = Tensor("y", "output", "f32", ((N,),))
    kernel = Kernel("main", (x, y), grid, (), (), tuple(body), names)
    return replace(TileProgram("test", (x,), (y,), (), (kernel,)), **header)  # pyright: ignore


n, k, p = Index(LOWER, 0), Index(K, 1), Index(Parts(K, 1), 2)

TERMS = [
    var(n),
    term((n, 2), (k, -1), offset=3),
    term((n, -1), offset=extent(-1, (LOWER, 1))),
    term(offset=extent(0, (LOWER, -2), (BOTH, 1))),
    term((Inject(1, term((k, 3), offset=-1)), 2), (Lookup("a value"), -1)),
    var(Join(var(p), term((k, 1), offset=extent(0, (N, 1))))),
    Term(((k, 1), (n, 1)), Extent(0, ((K, 1), (Atom("A"), 0)))),
    Term(),
]


@pytest.mark.parametrize("value", TERMS, ids=range(len(TERMS)))
def test_terms_come_back(value: Term) -> None:
    """An index named like a dim, quoted names, nested terms, terms not in canonical order."""
    grid = tuple(GridAxis(index, 1) for index in (n, k, p))
    body: list[Statement] = [Locate("at", (), "i64", value), Store("y", (value,), "at", (k, n))]
    assert_round_trip(program(body, names=((n, "n"), (k, "k"), (p, "lookup")), grid=grid))


BOUNDS: list[Bound] = [
    ZERO,
    SizeBound(extent(-3, (BOTH, -1), (K, 2))),
    SpanBound(n, False),
    SpanBound(n, True, extent(-1, (LOWER, -1), (K, 1))),
    SpanBound(n, False, extent(7)),
    PartBound(p, True),
    PartBound(p, True, extent(-1)),
    AlignBound(PartBound(p, False), 16, True),
    AlignBound(SpanBound(k, False), 8, False, LimitBound("max", (ZERO, SizeBound(extent(1))))),
    LimitBound("min", (SpanBound(n, True), SizeBound(extent(0, (Parts(K, 1), 1))), ZERO)),
]


@pytest.mark.parametrize("bound", BOUNDS, ids=range(len(BOUNDS)))
def test_bounds_come_back(bound: Bound) -> None:
    loop = Loop(Index(N, 3), 5, bound, bound, True, (), ())
    grid = tuple(GridAxis(index, 1) for index in (n, k, p))
    names = ((n, "start"), (k, "part_end"), (p, "min"), (loop.index, "t"))
    assert_round_trip(program([loop], names=names, grid=grid))


def test_numbers_come_back() -> None:
    values = [
        0,
        1,
        -1,
        True,
        False,
        0.0,
        -0.0,
        1.0,
        1e-30,
        -1e300,
        float("inf"),
        float("-inf"),
        Fraction(1, 3),
    ]
    tiles = program([Fill(f"v{i}", (), "f32", value) for i, value in enumerate(values)], names=())
    again = parse_tiles(assert_round_trip(tiles)).kernels[0].body
    for statement, value in zip(again, values, strict=True):
        assert isinstance(statement, Fill)
        assert type(statement.value) is type(value) and str(statement.value) == str(value)


def test_loads_come_back_guarded_or_not() -> None:
    where = (var(n), var(k), var(n))
    body: list[Statement] = [
        Load("a", (n, k), "f32", "x", where),
        Load("b", (n, k), "f32", "x", where, True),
        Load("c", (n, k), "f32", "x", where, True, 0.0),
        Load("d", (n, k), "f32", "x", where, False, 0.0),
    ]
    grid = (GridAxis(n, 2), GridAxis(k, 3))
    text = assert_round_trip(program(body, names=((n, "n"), (k, "k")), grid=grid))
    assert "b[n, k]: f32 = load x[n, k, n] else 0\n" in text
    assert "load x[n, k, n] unguarded 0.0" in text


def test_names_that_are_words_of_the_text() -> None:
    words = ["for", "store", "update", "carry", "load", "fill", "inf", "size", "a b", "parts", "über"]
    body: list[Statement] = [Fill(word, (), "f32", 1.0) for word in words]
    body.append(Loop(n, 1, ZERO, ZERO, False, (), tuple((word, word) for word in words)))
    body.append(Measure("in1", "i64", extent(2)))
    assert_round_trip(program(body, names=((n, "size"),)))


def test_numbers_and_order_of_indices() -> None:
    """Where they are not the order of appearance, `indices` says so."""
    other = Index(K, 7)
    grid = (GridAxis(n, 2), GridAxis(other, 3))
    text = assert_round_trip(program([], names=((other, "b"), (n, "a"), (p, "unused")), grid=grid))
    assert "indices(b: K = 7, a: n = 0, unused: parts(K, 1) = 2)" in text
    lanes = program([Loop(k, 1, ZERO, ZERO, False, (), ())], names=((n, "n"), (k, "k")), grid=grid[:1])
    kernel = replace(lanes.kernels[0], lanes=((n, k),))
    assert_round_trip(replace(lanes, kernels=(kernel,)))


def test_headers_come_back() -> None:
    sizes = ((N, 4), (K, extent(1, (LOWER, 2))), (Atom("c"), Extent(5)))
    text = assert_round_trip(program([], names=(), sizes=sizes, limits=((LOWER, 9),), splits=(K, BOTH)))
    assert text.startswith(
        "tiles test(\n  x: f32[N*K, 1, (K | n)],\n) -> (y: f32[N]) "
        "where N = 4, K = 2*n + 1, c = extent(5) limit n <= 9 split K, (K | n) {\n"
    )


def test_what_has_no_text() -> None:
    tiles = matmul().tiles
    (kernel,) = tiles.kernels
    with pytest.raises(Bug, match="two tensors are named x"):
        print_tiles(replace(tiles, inputs=(tiles.inputs[0], tiles.inputs[0])))
    with pytest.raises(Bug, match="has role workspace where input belongs"):
        print_tiles(replace(tiles, inputs=(replace(tiles.inputs[0], role="workspace"),), kernels=()))
    with pytest.raises(Bug, match="a tensor w that"):
        print_tiles(replace(tiles, inputs=tiles.inputs[:1]))
    with pytest.raises(Bug, match="has no name"):
        print_kernel(replace(kernel, names=kernel.names[1:]))
    with pytest.raises(Bug, match="named twice, or two indices alike"):
        print_kernel(replace(kernel, names=tuple((index, "i") for index, _ in kernel.names)))


WRONG = {
    "": "expected `tiles`",
    MATMUL_SPLIT.replace("load x[n, k]", "load z[n, k]"): "z is no tensor of this program",
    MATMUL_SPLIT.replace("load x[n, k]", "load x[n, k"): "expected `,` or `]`",
    MATMUL_SPLIT.replace("x1[n, k]: f32", "x1[n, j]: f32"): "j is no index of this kernel",
    MATMUL_SPLIT.replace("x1[n, k]: f32", "x1[n, k]: f31"): "expected a dtype",
    MATMUL_SPLIT.replace("reduce sum", "reduce mean"): "mean is no reduction",
    MATMUL_SPLIT.replace("add(acc, xw)", "plus(acc, xw)"): "plus is no operation on tiles",
    MATMUL_SPLIT.replace("kernel main(x,", "kernel main(v,"): "v is no tensor",
    MATMUL_SPLIT.replace("for k: K", "for o: K"): "index o runs over O",
    MATMUL_SPLIT.replace("    store sums", "    update a = b\n    store sums"): "an update outside a loop",
    MATMUL_SPLIT.replace("reduce sum[p](a)", "reduce sum[p](a, a)"): "a reduction has one argument",
    MATMUL_SPLIT.replace("grid(p", "indices(p: parts(K) = 0, p: parts(K) = 1) grid(p"): "p stands twice",
    MATMUL_SPLIT.replace("grid(p", "indices(p: parts(K) = 0) grid(p"): "index n is missing in `indices`",
    MATMUL_SPLIT + "more": "expected the end of the text",
    MATMUL_SPLIT[:-2]: "found the end of the text",
}


@pytest.mark.parametrize("text", WRONG, ids=WRONG.values())
def test_wrong_text_is_one_error(text: str) -> None:
    with pytest.raises(ParseError, match=WRONG[text]) as caught:
        parse_tiles(text)
    assert "line " in str(caught.value)


# ---------------------------------------------------------------- tile maps


def test_tile_maps_of_attention() -> None:
    text = print_maps(attention(s_tile=16, t_tile=32, group="grid").tiles.kernels[0])
    grid, interior, border = text.split("loop t")
    assert "loads q[h : 1, start(g) : 4, start(s) : 16, 0 : D]" in grid
    assert "loads k[h : 1, 0 : min(end(s) - S + T, T), 0 : D]" in grid
    assert "stores lse[h : 1, start(g) : 4, start(s) : 16]" in grid
    for loop in (interior, border):
        assert "loads k[h : 1, start(t) : 32, 0 : D]" in loop
        assert "loads q" not in loop and "stores" not in loop


def test_tile_maps_follow_the_terms() -> None:
    tiles = parse_tiles("""
      tiles test(x: f32[N, K], c: f32[(K | N)]) -> (y: f32[N]) {
        kernel main(x, c, y) grid(n: N by 4, k: K by 2) warps 1 stages 1 {
          i[n]: i64 = index(n)
          a[n, k]: f32 = load x[2*n - k + 1, 0]
          b[n]: f32 = load c[in1(n)]
          d[n]: f32 = load x[lookup(i), N - 1]
          store y[n] = b first(k)
        }
      }""")
    maps = {m.axes: m for m in tile_maps(tiles.kernels[0])}
    texts = [[f"{axis.offset} : {axis.extent}" for axis in axes] for axes in maps]
    assert texts == [
        ["2*start(n) - start(k) : 8", "0 : 1"],
        ["K + start(n) : 4"],
        ["lookup(i) : scattered", "N - 1 : 1"],
        ["start(n) : 4"],
    ]
    assert [m.stored for m in maps.values()] == [False, False, False, True]


def test_the_example_in_the_documentation_is_a_tile_program():
    from textwrap import dedent

    from cleave.schedule import text

    said = text.__doc__ or ""
    example = dedent(said[said.index("    tiles ") : said.index("\nWords, ")])
    assert parse_tiles(print_tiles(parse_tiles(example))) == parse_tiles(example)
