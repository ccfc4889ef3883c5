"""`verify` accepts every example and catches each kind of broken program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cleave.errors import Bug
from cleave.ir.dims import Atom, Index, Parts
from cleave.schedule.text import parse_tiles
from cleave.schedule.tiles import GridAxis, Kernel, TileProgram, Whole
from cleave.schedule.verify import verify
from tile_builder import Example
from tile_examples import EXAMPLES, matmul, matmul_split, softmax_keep

N, K = Atom("N"), Atom("K")


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e.name)
def test_examples_are_well_formed(example: Example) -> None:
    verify(example.tiles)


def body(text: str, *, grid: str = "grid(n: N by 4)", head: str = "") -> TileProgram:
    """A program with inputs x, ids and s, an output y and the given body of its kernel."""
    return parse_tiles(
        f"tiles test(x: f32[N, K], ids: i64[N], c: f32[(N | K)], s: scalar f32) -> (y: f32[N]) {head} {{\n"
        f"kernel main(x, ids, c, s, y) {grid} warps 4 stages 2 {{\n{text}\n}} }}"
    )


FINISH = "fin[n]: f32 = fill 1.0  store y[n] = fin"
ONES = "for k: K by 4 from 0 to K { b[n, k]: f32 = fill 1.0 }"
SUM = "z: f32 = fill 0.0 carry acc[n]: f32 = z for k: K by 4 from 0 to K"

STATEMENTS: dict[str, str] = {
    "nowhere is not in scope": "a[n]: f32 = exp(nowhere)  store y[n] = a",
    "b is not in scope": f"{ONES} store y[n] = b",
    "later is not in scope": f"a[n]: f32 = exp(later)  later[n]: f32 = fill 1.0  {FINISH}",
    "index k is not in scope": f"{ONES} a[k]: f32 = fill 1.0 {FINISH}",
    "defined twice": f"a: f32 = fill 1.0  a: f32 = fill 1.0  {FINISH}",
    "has an axis twice": f"a[n, n]: f32 = fill 1.0  {FINISH}",
    "a has axes n that the result lacks": f"a[n]: f32 = fill 1.0  e: f32 = exp(a)  {FINISH}",
    "exp with 2 arguments": f"a: f32 = fill 1.0  e: f32 = exp(a, a)  {FINISH}",
    "lt gives bool, not f32": f"a: f32 = fill 1.0  e: f32 = lt(a, a)  {FINISH}",
    "the condition a of a select is f32": f"a: f32 = fill 1.0  e: f32 = select(a, a, a)  {FINISH}",
    "reduction 'any' in f32": f"{SUM} {{ e[n]: f32 = reduce any[k](z) }} {FINISH}",
    "a contraction of 1 operands": f"{SUM} {{ e[n]: f32 = contract[k](z) }} {FINISH}",
    r"a reduction over \[n\] that leaves \[n\]": f"a: f32 = fill 1.0 r[n]: f32 = reduce sum[n](a) {FINISH}",
    r"a reduction over \[\]": f"a[n]: f32 = fill 1.0 r[n]: f32 = reduce sum[](a) {FINISH}",
    "a position as f32": f"p[n]: f32 = index(n) {FINISH}",
    "loads f32 from x as f16": f"for k: K by 4 from 0 to K {{ a[n, k]: f16 = load x[n, k] }} {FINISH}",
    "1 terms for the 2 dims of x": f"a[n]: f32 = load x[n] {FINISH}",
    "index n, whose tile is 4 and not 1, is no axis": f"a: f32 = load x[n, 0] {FINISH}",
    "a is looked up as a position and is f32": f"a: f32 = fill 1.0 b: f32 = load x[lookup(a), 0] {FINISH}",
    "part 2 of an axis of c": f"a[n]: f32 = load c[in2(n)] {FINISH}",
    "part 0 of an axis of x": f"a[n]: f32 = load x[in0(n), 0] {FINISH}",
    "loop updates z, which is no accumulator": f"{SUM} {{ e[n]: f32 = fill 1.0 update z = e }} {FINISH}",
    "an accumulator is updated twice": f"{SUM} {{ update acc = acc, acc = acc }} {FINISH}",
    "acc is f32, its update e is f64": f"{SUM} {{ e[n]: f64 = fill 1.0 update acc = e }} {FINISH}",
    "e has axes k that the result lacks": f"{SUM} {{ e[n, k]: f32 = fill 1.0 update acc = e }} {FINISH}",
    "acc is f32, its first value z is f64": f"z: f64 = fill 0.0 carry acc[n]: f32 = z {FINISH}",
    "index n has a span already": f"for n: N by 4 from 0 to N {{ }} {FINISH}",
    "every tile of k stores the same": "for k: K by 4 from 0 to K { a[n]: f32 = fill 1.0 store y[n] = a }",
    "stores a, f64, to f32": "a[n]: f64 = fill 1.0 store y[n] = a",
    "a has axes k": "for k: K by 4 from 0 to K { a[n, k]: f32 = fill 1.0 store y[n] = a }",
    "stores the input x": f"a: f32 = fill 1.0 for k: K by 4 from 0 to K {{ store x[n, k] = a }} {FINISH}",
    "the kernel loads y and stores it": "a[n]: f32 = load y[n] store y[n] = a",
    "loads y, which no earlier kernel stores": "a[n]: f32 = load y[n]",
    "no kernel stores y": "a[n]: f32 = fill 1.0",
    "bounds of part n": f"for k: K by 4 from part_start(n) to K {{ }} {FINISH}",
    "a bound is aligned to 0": f"for k: K by 4 from 0 to align_up(K, 0) {{ }} {FINISH}",
    "a limit of kind 'min' of 0": f"for k: K by 4 from 0 to min() {{ }} {FINISH}",
    "index k has tile 0": f"for k: K by 0 from 0 to K {{ }} {FINISH}",
    "`first` holds an index that is not in the grid": "for k: K by 4 from 0 to K {"
    " a[n]: f32 = fill 1.0 store y[n] = a first(k) }",
}


@pytest.mark.parametrize("what", STATEMENTS)
def test_broken_statements(what: str) -> None:
    with pytest.raises(Bug, match=what):
        verify(body(STATEMENTS[what]))


GRIDS: dict[str, tuple[str, str]] = {
    "every tile of k stores the same": ("grid(n: N by 4, k: K by 4)", ""),
    "whole index k has no known limit": ("grid(n: N by 4) whole(k: K by 8)", ""),
    "whole index k has up to 9 positions": ("grid(n: N by 4) whole(k: K by 8)", "where K = 9"),
    "up to 20 positions": ("grid(n: N by 4) whole(k: K by 8)", "where K = 2*J + 2 limit J <= 9"),
    "index k is in two lanes|an index is in two lanes": (
        "grid(n: N by 4) whole(k: K by 8) lanes((n, k), (k))",
        "limit K <= 8",
    ),
    "over parts.K., but K is not among the splits": ("grid(n: N by 4, p: parts(K) by 1)", ""),
    "index p over parts.K. has tile 2": ("grid(n: N by 4, p: parts(K) by 2)", "split K"),
    "use the dim itself": ("grid(n: N by 4, p: part(K) by 1)", "split K"),
    "an atom stands twice among the sizes": ("grid(n: N by 4)", "where J = 1, J = 2"),
    "an atom stands twice among the limits": ("grid(n: N by 4)", "limit J <= 1, J <= 2"),
    "a dim stands twice among the splits": ("grid(n: N by 4)", "split J, J"),
}


@pytest.mark.parametrize("what", GRIDS)
def test_broken_grids_and_headers(what: str) -> None:
    grid, head = GRIDS[what]
    with pytest.raises(Bug, match=what):
        verify(body(FINISH, grid=grid, head=head))


def edited(tiles: TileProgram, edit: Callable[[Kernel], Kernel]) -> TileProgram:
    return replace(tiles, kernels=(edit(tiles.kernels[0]), *tiles.kernels[1:]))


def test_whole_indices_of_known_sizes_pass() -> None:
    for head in (
        "where K = 8",
        "limit K <= 8",
        "where K = 2*J + 2 limit J <= 3",
        "where K = 10 - J limit K <= 8",
    ):
        verify(body(FINISH, grid="grid(n: N by 4) whole(k: K by 8)", head=head))


def test_broken_tensors() -> None:
    tiles = matmul().tiles
    x, w = tiles.inputs
    (y,) = tiles.outputs
    with pytest.raises(Bug, match="two tensors are named x"):
        verify(replace(tiles, inputs=(x, replace(w, name="x"))))
    with pytest.raises(Bug, match="tensor y has role input"):
        verify(replace(tiles, outputs=(replace(y, role="input"),)))
    with pytest.raises(Bug, match="unknown dtype 'f8'"):
        verify(replace(tiles, outputs=(replace(y, dtype="f8"),)))
    with pytest.raises(Bug, match="scalar x has axes"):
        verify(replace(tiles, inputs=(replace(x, role="scalar"), w)))
    with pytest.raises(Bug, match="tensor w is not listed by the program"):
        verify(replace(tiles, inputs=(x,)))
    with pytest.raises(Bug, match="only workspaces may"):
        verify(replace(tiles, outputs=(replace(y, layout=((Parts(K),),)),), splits=(K,)))
    with pytest.raises(Bug, match="the kernel does not list tensor y"):
        verify(edited(tiles, lambda k: replace(k, tensors=k.tensors[:-1])))


def test_broken_workspaces_and_kernels() -> None:
    tiles = matmul_split().tiles
    main, merge = tiles.kernels
    (part,) = tiles.workspaces
    with pytest.raises(Bug, match="loads sums, which no earlier kernel stores"):
        verify(replace(tiles, kernels=(merge, main)))
    with pytest.raises(Bug, match="stores sums, which an earlier kernel stores"):
        verify(replace(tiles, kernels=(main, replace(main, name="again"), merge)))
    with pytest.raises(Bug, match="two kernels are named main"):
        verify(replace(tiles, kernels=(main, main, merge)))
    with pytest.raises(Bug, match="K is not among the splits"):
        verify(replace(tiles, splits=()))
    wide = replace(part, layout=((Parts(K), N), (Atom("O"),)))
    with pytest.raises(Bug, match="an axis of 2 dims"):
        verify(replace(tiles, workspaces=(wide,)))
    with pytest.raises(Bug, match="no kernel stores y"):
        verify(replace(tiles, kernels=(main,)))


def test_broken_indices() -> None:
    tiles = softmax_keep().tiles
    (n, _), (k, _) = tiles.kernels[0].names
    with pytest.raises(Bug, match="has no name"):
        verify(edited(tiles, lambda kernel: replace(kernel, names=kernel.names[:1])))
    with pytest.raises(Bug, match="two indices alike"):
        verify(edited(tiles, lambda kernel: replace(kernel, names=((n, "i"), (k, "i")))))
    with pytest.raises(Bug, match="two indices have one number"):
        verify(edited(tiles, lambda kernel: replace(kernel, whole=(Whole(Index(K, n.number), 128),))))
    with pytest.raises(Bug, match="a span already"):
        verify(edited(tiles, lambda kernel: replace(kernel, grid=(*kernel.grid, GridAxis(n, 1)))))
    with pytest.raises(Bug, match="lanes hold an index"):
        verify(edited(tiles, lambda kernel: replace(kernel, lanes=((n, Index(K, 9)),))))
    with pytest.raises(Bug, match="0 warps"):
        verify(edited(tiles, lambda kernel: replace(kernel, warps=0)))


def test_the_message_says_where() -> None:
    with pytest.raises(Bug, match="at test, kernel main, value e"):
        verify(body(f"a[n]: f32 = fill 1.0  e: f32 = exp(a)  {FINISH}"))
