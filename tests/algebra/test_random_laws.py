"""The laws of the random pairs hold where they are applied: for infinities and NaN, zeros and ties, too."""

from __future__ import annotations

import itertools
import random

import mpmath
import pytest

from algebra.random_faults import FAULTS
from algebra.random_programs import INFINITE, KINDS, Drawn
from algebra.random_rewrites import LAWS, fn_of
from algebra.random_sorts import HIGH, LOW, MINUS, NAN, PLUS, ZERO, sorts_of
from algebra.random_steps import PARTIAL, exact, rewritten, watched
from cleave.algebra import opinion
from cleave.algebra.digits import TooFar
from cleave.algebra.opinion import Meaning, Point
from cleave.ir.ops import Access, Node
from cleave.ir.program import Output, Program
from cleave.ir.text import parse_program

PROGRAMS = [(f"laws {n}", kinds) for n in range(20) for kinds in (KINDS, INFINITE)]


def alike(a: mpmath.mpf, b: mpmath.mpf) -> bool:
    """Are two values the same, NaN and infinities among them?"""
    if not (mpmath.isfinite(a) and mpmath.isfinite(b)):
        return bool(a == b or (mpmath.isnan(a) and mpmath.isnan(b)))
    return bool(abs(a - b) <= mpmath.mpf(10) ** -30 * max(abs(a), abs(b), 1))


def elements(node: Node, point: Point) -> list[tuple[int, ...]]:
    """Some places of a node, those inside of parts that have them."""
    ranges = [range(point.extent(axis.dim)) for axis in node.axes]
    return list(itertools.islice(itertools.product(*ranges), 12))


def changed(program: Program, place: Node, found: Access, point: Point) -> str:
    """Where what a law puts for a node has another value than the node."""
    meaning = Meaning(program, point)
    for where in elements(place, point):
        scope = dict(zip(place.axes, where, strict=True))
        try:
            old, new = meaning.node(place, where), meaning.read(found, scope)
        except TooFar:
            continue
        if not alike(old, new):
            return f"{where}: {mpmath.nstr(old, 8)} is {mpmath.nstr(new, 8)}; {point.describe()}"
    return ""


@pytest.mark.parametrize(("seed", "kinds"), PROGRAMS)
def test_a_law_changes_no_value_where_it_holds_exactly(seed: str, kinds: tuple[str, ...]) -> None:
    program, rng = Drawn(seed, kinds).program(8), random.Random(seed)
    with mpmath.workdps(60):
        for place in program.nodes:
            for name, law in LAWS.items():
                found = law(place, rng) if place not in program.inputs and exact(name, place) else None
                if found is None or any(type(i.dim).__name__ == "Part" for i in place.axes):
                    continue
                whole = Output("z", found.node, tuple((k,) for k in range(len(found.node.axes))))
                made = Program("p", program.inputs, (whole,))
                for point in opinion.points(program, made, count=2, seed=len(name), first=rng.randrange(4)):
                    assert not (said := changed(program, place, found, point)), (name, place, said)


@pytest.mark.parametrize(("seed", "kinds"), PROGRAMS)
def test_the_sorts_of_values(seed: str, kinds: tuple[str, ...]) -> None:
    program = Drawn(seed, kinds).program(9)
    with mpmath.workdps(60):
        for point in opinion.points(program, count=3, seed=1):
            meaning = Meaning(program, point)
            for node in program.nodes:
                if node.dtype == "bool" or any(type(i.dim).__name__ == "Part" for i in node.axes):
                    continue
                for where in elements(node, point):
                    try:
                        value = meaning.node(node, where)
                    except TooFar:
                        continue
                    assert _sort(value) in sorts_of(node.read()), (node, where, value)


def _sort(value: mpmath.mpf) -> str:
    if mpmath.isnan(value):
        return NAN
    if mpmath.isinf(value):
        return HIGH if value > 0 else LOW
    return PLUS if value > 0 else MINUS if value < 0 else ZERO


def test_what_makes_nan_is_not_applied_where_a_comparison_asks() -> None:
    """A choice as a blend multiplies -inf by 0; a comparison that is negated sees the NaN."""
    program = parse_program("""
    program p(y: f32[B], g: bool[A, B]) {
      chosen[b: B, a: A]: f32 = select(g[a, b], y[b], -inf)
      level[a: A, b: B]: bool = lt(chosen[b, a], 1.0)
      z[a: A, b: B]: f32 = select(level[a, b], -1.0, y[b])
      return z[a, b]
    }
    """)
    chosen, last = (n for n in program.nodes if fn_of(n) == "select")
    assert chosen in watched(program) and last not in watched(program)
    assert not exact("select blended", chosen) and exact("select blended", last)


def test_a_comparison_of_nan_is_not_negated() -> None:
    program = parse_program("""
    program p(x: f32[A]) {
      low[a: A]: f32 = log(x[a])
      level[a: A]: bool = lt(low[a], 1.0)
      sure[a: A]: bool = lt(x[a], 1.0)
      z[a: A]: f32 = select(level[a], -1.0, x[a])
      w[a: A]: f32 = select(sure[a], -1.0, x[a])
      return z[a], w[a]
    }
    """)
    rng = random.Random(1)
    by_arg = {fn_of(n.args[0].node): n for n in program.nodes if fn_of(n) == "lt"}
    assert LAWS["comparison negated"](by_arg["log"], rng) is None
    assert LAWS["comparison negated"](by_arg[""], rng) is not None
    assert FAULTS["negated"](by_arg["log"], rng) is not None


def test_laws_that_make_nan_are_drawn_all_the_same() -> None:
    used: set[str] = set()
    for number in range(400):
        used |= set(rewritten(f"partial {number}")[2])
    assert used >= {*PARTIAL} - {"split with local maxima"}
