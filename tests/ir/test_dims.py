"""Dims, extents and terms: canonical forms, substitution, sizes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.ir.dims import (
    Atom,
    Extent,
    Gather,
    Index,
    Inject,
    Join,
    Part,
    Parts,
    Term,
    Union,
    atoms_of,
    extent,
    indices_of,
    join_signed,
    leaf_key,
    size_of,
    substitute,
    term,
    term_key,
    var,
)
from cleave.ir.ops import input_node

A, B = Atom("A"), Atom("B")
P, Q, R = Index(A, 0), Index(B, 1), Index(A, 2)
SIZES = {A: 5, B: 3}
EXTENTS = st.builds(
    lambda c, a, b: extent(c, (A, a), (B, b)), *[st.integers(-9, 9)] * 3
)  # fmt: skip
TERMS = st.builds(
    lambda a, b, c, o: term((P, a), (Q, b), (P, c), offset=o), *[st.integers(-3, 3)] * 3, EXTENTS
)  # fmt: skip


def value(t: Term, at: dict[Index, int]) -> int:
    total = t.offset.at(SIZES)
    for leaf, c in t.leaves:
        assert isinstance(leaf, Index)
        total += c * at[leaf]
    return total


@given(EXTENTS, EXTENTS, st.integers(-4, 4))
@settings(deadline=None, max_examples=50)
def test_extent_arithmetic_is_that_of_its_values(x: Extent, y: Extent, factor: int) -> None:
    assert (x + y).at(SIZES) == x.at(SIZES) + y.at(SIZES)
    assert (x - y).at(SIZES) == x.at(SIZES) - y.at(SIZES)
    assert (x * factor).at(SIZES) == x.at(SIZES) * factor
    assert x + y == y + x
    assert x - x == Extent()


@given(TERMS, TERMS, TERMS)
@settings(deadline=None, max_examples=50)
def test_substitution_is_that_of_the_values(t: Term, x: Term, y: Term) -> None:
    at = {P: 2, Q: 7}
    new = substitute(t, {P: x, Q: y})
    assert value(new, at) == value(t, {P: value(x, at), Q: value(y, at)})
    assert new == term(*new.leaves, offset=new.offset)


def test_substitution_is_all_at_once_and_goes_inside() -> None:
    ids = input_node("ids", [[A]], "i64")
    swap = {P: var(R), R: var(P)}
    assert substitute(term((P, 1), (R, 2)), swap) == term((R, 1), (P, 2))
    deep = term((Inject(1, term((P, 2))), 1), (Join(var(P), var(R)), 3), (Gather(ids(P)), -1))
    want = term((Inject(1, term((R, 2))), 1), (Join(var(R), var(P)), 3), (Gather(ids(R)), -1))
    assert substitute(deep, swap) == want
    assert indices_of(deep) == {P, R}


def test_terms_are_canonical() -> None:
    assert term((P, 1), (Q, 2), (P, -1)) == term((Q, 2))
    assert term((Q, 1), (P, 1)) == term((P, 1), (Q, 1))
    assert term((P, 1)) == var(P)
    assert term(offset=3) == Term((), Extent(3))
    assert extent(1, (B, 2), (A, 1), (B, -2)) == Extent(1, ((A, 1),))


def test_variable_and_leaf_only_of_plain_terms() -> None:
    assert var(P).variable == P
    assert term((P, 2)).variable is None
    assert term((P, 1), offset=1).variable is None
    assert var(Inject(0, var(P))).variable is None
    assert var(Inject(0, var(P))).leaf == Inject(0, var(P))
    assert term(offset=0).leaf is None


def test_sizes_of_unions_and_of_what_is_not_bound() -> None:
    assert size_of(Union((A, Union((B, A)))), SIZES) == 13
    assert size_of(Parts(A), {**SIZES, Parts(A): 2}) == 2
    assert extent(1, (Union((A, B)), 2)).at(SIZES) == 17
    with pytest.raises(KeyError, match="size of part\\(A\\) is not bound"):
        size_of(Part(A), SIZES)


def test_atoms_are_listed_with_repetitions() -> None:
    assert atoms_of(Union((A, Parts(Union((B, A)))))) == (A, B, A)


def test_text_of_linear_expressions() -> None:
    assert join_signed([(1, "i"), (-2, "j")], 3) == "i - 2*j + 3"
    assert join_signed([(-1, "i")], -1) == "-i - 1"
    assert join_signed([], 0) == "0"
    assert join_signed([(2, "i")], 0) == "2*i"
    assert str(extent(-1, (A, 1))) == "A - 1"
    assert str(Union((A, Parts(B, 1)))) == "(A | parts(B, 1))"


def test_keys_tell_leaves_apart() -> None:
    ids, other = input_node("ids", [[A]], "i64"), input_node("other", [[A]], "i64")
    leaves = [
        P, Q, R, Gather(ids(P)), Gather(other(P)), Gather(ids(R)), Inject(0, var(P)), Inject(1, var(P)),
        Join(var(P), var(Q)), Join(var(Q), var(P)),
    ]  # fmt: skip
    assert len({leaf_key(leaf) for leaf in leaves}) == len(leaves)
    assert len({term_key(term((P, c), offset=o)) for c in (1, 2) for o in (0, 1)}) == 4
