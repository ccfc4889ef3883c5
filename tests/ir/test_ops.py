"""Nodes: interning, canonical numbering of indices, what distinguishes constants, what is refused."""

from __future__ import annotations

import gc
import math
from fractions import Fraction

import pytest

from cleave.errors import Bug
from cleave.ir import ops
from cleave.ir.dims import Atom, Gather, Index, Inject, Join, Union, term, var
from cleave.ir.ops import (
    Access,
    Contract,
    Map,
    Position,
    Reduce,
    cat_node,
    const,
    contract_node,
    input_node,
    map_node,
    position,
    rebuild,
    reduce_node,
    scalar_node,
    size,
)

A, B = Atom("A"), Atom("B")
X = input_node("x", [[A], [B]], "f32")
IDS = input_node("ids", [[A]], "i64")


def test_equal_nodes_are_one_object_whatever_their_indices_are_called() -> None:
    one = map_node("exp", [Index(A, 0), Index(B, 1)], [X(Index(A, 0), Index(B, 1))], "f32")
    two = map_node("exp", [Index(A, 7), Index(B, 3)], [X(Index(A, 7), Index(B, 3))], "f32")
    assert one is two
    assert one.axes == (Index(A, 0), Index(B, 1))


def test_order_of_axes_matters() -> None:
    a, b = Index(A, 0), Index(B, 1)
    assert map_node("exp", [a, b], [X(a, b)], "f32") is not map_node("exp", [b, a], [X(a, b)], "f32")


def test_bound_indices_follow_the_axes() -> None:
    a, b = Index(A, 4), Index(B, 2)
    node = reduce_node("sum", [b], [a], X(a, b), "f32")
    assert node.bound == (Index(A, 1),)
    assert node.args[0].terms == (var(Index(A, 1)), var(Index(B, 0)))
    product = contract_node([a], [b], [X(a, b), X(a, b)], "f32")
    assert product.op == Contract((Index(B, 1),), (X(Index(A, 0), Index(B, 1)),) * 2)


def test_two_indices_over_one_dim_stay_two() -> None:
    i, j = Index(A, 0), Index(A, 1)
    gram = map_node("mul", [i, j], [IDS(i), IDS(j)], "i64")
    square = map_node("mul", [i, j], [IDS(i), IDS(i)], "i64")
    assert gram is not square


def test_constants_differ_by_type_and_bits() -> None:
    values = [0, 0.0, -0.0, False, Fraction(0), 1, 1.0, True, math.nan, math.inf, -math.inf]
    nodes = {const(v).node for v in values}
    assert len(nodes) == len(values)
    assert const(math.nan).node is const(-math.nan).node
    assert const(1).node is not const(1, "i64").node


def test_dtype_is_part_of_a_node() -> None:
    assert size(A).node is not size(A, "f32").node
    assert scalar_node("e", "f32") is not scalar_node("e", "f64")
    assert input_node("x", [[A, B]], "f32") is not X


def test_unused_nodes_are_forgotten() -> None:
    digest = const(123.456).node.digest
    gc.collect()
    assert ops.NODES.get(digest) is None


def test_reads_lists_what_gathers_read_too() -> None:
    a = Index(A, 0)
    inner = term((Join(var(a), var(Gather(IDS(a)))), 1))
    node = map_node("neg", [a], [X(var(Gather(IDS(term((a, 2))))), inner)], "f32")
    read = node.reads
    assert read[0].node is X
    assert [access.node for access in read[1:]] == [IDS, IDS]
    assert node.args == (read[0],)
    assert position([a], var(Gather(IDS(a)))).reads == (IDS(a),)


def test_rebuild_keeps_axes_and_bound_indices() -> None:
    a, b = Index(A, 0), Index(B, 1)
    node = reduce_node("max", [a], [b], X(a, b), "f32")
    other = input_node("y", [[B]], "f32")
    again = rebuild(node, [other(b)])
    assert again is reduce_node("max", [a], [b], other(b), "f32")
    assert rebuild(X, []) is X
    assert isinstance(again.op, Reduce)


def test_pieces_of_a_concatenation_use_indices_of_their_own() -> None:
    union = Union((A, B))
    n, u = Index(B, 5), Index(union, 9)
    y = input_node("y", [[B], [B]], "f32")
    node = cat_node([u, n], 0, [X(Index(A, 9), n), y(Index(B, 9), n)], "f32")
    same = cat_node(
        [Index(union, 0), Index(B, 1)], 0, [X(Index(A, 0), Index(B, 1)), y(Index(B, 0), Index(B, 1))], "f32"
    )
    assert node is same


def test_access_substitutes_everywhere() -> None:
    a, b = Index(A, 0), Index(B, 1)
    access = X(var(Gather(IDS(a))), term((b, 1), offset=1))
    moved = access.at({a: term((a, 1), offset=2), b: var(Index(B, 3))})
    assert moved == X(var(Gather(IDS(term((a, 1), offset=2)))), term((Index(B, 3), 1), offset=1))
    assert moved.indices == {a, Index(B, 3)}


def test_what_is_not_well_formed_is_refused() -> None:
    a, b, u = Index(A, 0), Index(B, 1), Index(Union((A, B)), 0)
    cases = [
        (lambda: map_node("exp", [a], [X(a, b)], "f32"), "indices that nothing binds"),
        (lambda: map_node("exp", [a], [Access(X, (var(a),))], "f32"), "1 terms for 2 axes"),
        (lambda: map_node("add", [a, b], [X(a, b)], "f32"), "add with 1 arguments"),
        (lambda: map_node("bessel", [a, b], [X(a, b)], "f32"), "bessel"),
        (lambda: map_node("exp", [a, b], [X(a, b)], "f8"), "unknown dtype 'f8'"),
        (lambda: map_node("exp", [a, a], [X(a, a)], "f32"), "used for two axes"),
        (lambda: reduce_node("mean", [a], [b], X(a, b), "f32"), "unknown reduction 'mean'"),
        (lambda: contract_node([a], [b], [X(a, b)], "f32"), "two operands or more"),
        (lambda: cat_node([a], 0, [IDS(a)], "f32"), "concatenation along A"),
        (lambda: cat_node([u], 0, [IDS(a)] * 3, "f32"), "piece number 2"),
        (lambda: position([a], b), "indices that nothing binds"),
        (lambda: position([a], var(Inject(0, var(b)))), "indices that nothing binds"),
    ]
    for build, message in cases:
        with pytest.raises(Bug, match=message):
            build()


def test_kinds_of_nodes() -> None:
    a = Index(A, 0)
    assert isinstance(position([a], a).op, Position)
    assert isinstance(map_node("neg", [a], [IDS(a)], "i64").op, Map)
    assert position([a], a).bound == ()
    assert X.read() == X(Index(A, 0), Index(B, 1))
    assert X.dims == (A, B)
