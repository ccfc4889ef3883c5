"""Where loops are alive and where they carry no mask, against counting element by element."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.ir.dims import Atom, Dim, Index, extent, term, var
from cleave.schedule.affine import affine_of, inequalities, known
from cleave.schedule.bounds import Order, segments
from cleave.schedule.tiles import AlignBound, Bound, LimitBound, PartBound, SizeBound, SpanBound
from cleave.schedule.values import FillOf, Graph, LocateOf, LoopPlan, MeasureOf, Value

S, T, W = Atom("S"), Atom("T"), Atom("W")
ROW, KEY = Index(S, 0), Index(T, 1)


def at(graph: Graph, *leaves: tuple[Index, int], offset: object = 0) -> Value:
    """A position as a value."""
    where = term(*leaves, offset=offset)  # pyright: ignore[reportArgumentType]
    return graph.value(LocateOf(where), graph.term_indices(where), "i64")


def causal(graph: Graph) -> Value:
    """Key `j` is seen by query `i`: j <= i + |T| - |S|."""
    return graph.compute(
        "le", "bool", (at(graph, (KEY, 1)), at(graph, (ROW, 1), offset=extent(0, (T, 1), (S, -1))))
    )


def window(graph: Graph) -> Value:
    """Causal, and no further back than |W|."""
    near = graph.compute(
        "lt",
        "bool",
        (
            graph.compute("sub", "i64", (at(graph, (ROW, 1)), at(graph, (KEY, 1)))),
            graph.value(MeasureOf(extent(0, (W, 1))), (), "i64"),
        ),
    )
    return graph.compute("and", "bool", (causal(graph), near))


def value_at(bound: Bound, sizes: dict[Dim, int], span: tuple[int, int]) -> int:
    match bound:
        case SizeBound(e):
            return e.at(sizes)
        case SpanBound(_, end, offset):
            return span[1 if end else 0] + offset.at(sizes)
        case AlignBound(inner, tile, up, origin):
            base = value_at(origin, sizes, span)
            gap = value_at(inner, sizes, span) - base
            return base + (-(-gap // tile) if up else gap // tile) * tile
        case LimitBound(kind, bounds):
            return (min if kind == "min" else max)(value_at(b, sizes, span) for b in bounds)
        case PartBound():
            raise AssertionError("no part here")


@settings(max_examples=80, deadline=None)
@given(
    s=st.integers(1, 20), t=st.integers(0, 30), w=st.integers(0, 25), tile=st.sampled_from([2, 4, 8]),
    rows=st.sampled_from([1, 4, 8]), windowed=st.booleans(), order=st.sampled_from(Order),
)  # fmt: skip
def test_segments_visit_each_live_element_once(
    s: int, t: int, w: int, tile: int, rows: int, windowed: bool, order: Order
) -> None:
    sizes: dict[Dim, int] = {S: s, T: t, W: w}
    graph = Graph()
    support = window(graph) if windowed else causal(graph)
    loop = LoopPlan(KEY, "whole", supports=[support])
    for first in range(0, s, rows):
        span = (first, min(s, first + rows))
        seen: list[int] = []
        steps: list[bool] = []
        backwards = order is not Order.FORWARDS
        for segment in segments(loop, tile, {}, order):
            start, stop = value_at(segment.start, sizes, span), value_at(segment.stop, sizes, span)
            steps.append(start < stop)
            if start >= stop:
                continue
            assert segment.closed == (backwards and not segment.exact)
            behind = range(stop, start + -(-(stop - start) // tile) * tile)
            if segment.closed:
                assert not any(holds(i, j, s, t, w, windowed) for i in range(*span) for j in behind)
            assert start >= 0
            assert start % tile == 0
            if segment.exact:
                assert stop <= t
                assert (stop - start) % tile == 0
            for j in range(start, min(stop, t)):
                seen.append(j)
                if segment.facts:
                    assert all(holds(i, j, s, t, w, windowed) for i in range(*span)), "a mask was dropped"
        assert not backwards or steps[0] or not steps[1], "full tiles go on with what a border has started"
        live = [j for j in range(t) if any(holds(i, j, s, t, w, windowed) for i in range(*span))]
        assert len(set(seen)) == len(seen)
        assert set(live) <= set(seen)
        dead_tiles = {j // tile for j in seen} - {j // tile for j in live}
        # Each inequality is taken by itself: together they may be false where each holds for some row.
        assert not dead_tiles or windowed
        assert not live or len(dead_tiles) <= 2


def holds(i: int, j: int, s: int, t: int, w: int, windowed: bool) -> bool:
    return j <= i + t - s and (not windowed or i - j < w)


def test_a_loop_of_known_size_has_no_border_if_tiles_divide_it() -> None:
    loop = LoopPlan(KEY, "whole")
    assert [s.exact for s in segments(loop, 16, {T: 64})] == [True]
    assert [s.exact for s in segments(loop, 16, {T: 70})] == [True, False]
    assert [s.exact for s in segments(loop, 16, {T: 10})] == [False]
    assert [s.exact for s in segments(loop, 16, {})] == [True, False]


def test_a_split_loop_is_aligned_to_its_part() -> None:
    from cleave.ir.dims import Parts

    part = Index(Parts(T), 5)
    graph = Graph()
    found = segments(LoopPlan(KEY, "part", part, supports=[causal(graph)]), 16, {})
    assert found[0].start == PartBound(part, False)
    assert isinstance(found[0].stop, AlignBound)
    assert found[0].stop.origin == PartBound(part, False)


def test_backwards_the_last_border_comes_first_and_has_a_step() -> None:
    from cleave.ir.dims import Parts

    part = Index(Parts(T), 5)
    border, interior = segments(LoopPlan(KEY, "part", part), 16, {}, Order.BACKWARDS)
    before = PartBound(part, True, extent(-1))
    assert interior.exact and interior.stop == AlignBound(before, 16, False, PartBound(part, False))
    assert border.start == LimitBound("max", (PartBound(part, False), interior.stop))
    assert not border.closed, "it ends where the part does, and the next part goes on"
    border, interior = segments(LoopPlan(KEY, "whole"), 16, {}, Order.BACKWARDS)
    assert interior.exact and not border.exact and not border.closed
    plain = segments(LoopPlan(KEY, "whole"), 16, {}, Order.BACKWARDS_IF_ENDED)
    assert plain == segments(LoopPlan(KEY, "whole"), 16, {}), "no predicate ends it"
    assert [s.exact for s in segments(LoopPlan(KEY, "whole"), 16, {T: 64}, Order.BACKWARDS)] == [True]


def test_one_accumulator_without_support_keeps_the_loop_whole() -> None:
    graph = Graph()
    for supports in ([causal(graph), None], [None], []):
        assert all(not s.facts for s in segments(LoopPlan(KEY, "whole", supports=supports), 16, {}))


@pytest.mark.parametrize("holds_", [True, False])
def test_not_affine_is_not_read(holds_: bool) -> None:
    graph = Graph()
    product = graph.compute("mul", "i64", (at(graph, (ROW, 1)), at(graph, (KEY, 1))))
    limit = graph.value(FillOf(3), (), "i64")
    assert affine_of(product) is None
    assert inequalities(graph.compute("lt", "bool", (product, limit)), holds_) == ((), False)
    real = graph.compute("cast", "f32", (at(graph, (ROW, 1)),))
    assert affine_of(real) is None


def test_facts_decide_weaker_and_opposite_predicates() -> None:
    graph = Graph()
    facts = inequalities(causal(graph))[0]
    limit = at(graph, (ROW, 1), offset=extent(0, (T, 1), (S, -1)))
    weaker = graph.compute("le", "bool", (at(graph, (KEY, 1), offset=-3), limit))
    stronger = graph.compute("le", "bool", (at(graph, (KEY, 1), offset=1), limit))
    opposite = graph.compute("gt", "bool", (at(graph, (KEY, 1)), limit))
    assert known(causal(graph), facts) is True
    assert known(weaker, facts) is True
    assert known(stronger, facts) is None
    assert known(opposite, facts) is False
    assert known(graph.compute("not", "bool", (opposite,)), facts) is True
    assert known(graph.compute("and", "bool", (weaker, stronger)), facts) is None
    assert known(graph.compute("or", "bool", (weaker, stronger)), facts) is True


@pytest.mark.parametrize("fn", ["lt", "le", "gt", "ge", "eq"])
def test_inequalities_say_what_the_comparison_says(fn: str) -> None:
    graph = Graph()
    value = graph.compute(fn, "bool", (at(graph, (ROW, 2)), at(graph, (KEY, 1), offset=1)))
    for holds_ in (True, False):
        forms, complete = inequalities(value, holds_)
        for i, j in itertools.product(range(5), repeat=2):
            true = {"lt": 2 * i < j + 1, "le": 2 * i <= j + 1, "gt": 2 * i > j + 1, "ge": 2 * i >= j + 1}
            actual = true.get(fn, 2 * i == j + 1)
            said = all(
                sum(c * (i if x == ROW else j) for x, c in f.terms) + f.offset.const >= 0 for f in forms
            )
            if complete:
                assert said == (actual == holds_)
            elif actual == holds_:
                assert said


def test_variable_term_is_itself() -> None:
    graph = Graph()
    found = affine_of(graph.value(LocateOf(var(ROW)), (ROW,), "i64"))
    assert found is not None
    assert found.terms == ((ROW, 1),)
