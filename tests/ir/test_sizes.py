"""Sizes of dims from the shapes of arguments: products, unions, expressions, and what does not fit."""

from __future__ import annotations

import pytest

from cleave.errors import Invalid
from cleave.ir.dims import Atom, Dim
from cleave.ir.sizes import infer_sizes
from cleave.ir.text import parse_program
from programs import PROGRAMS

Shapes = dict[str, tuple[int, ...]]


def named(sizes: dict[Dim, int]) -> dict[str, int]:
    return {str(dim): size for dim, size in sizes.items()}


def test_products_unions_and_expressions_are_solved() -> None:
    shapes: Shapes = {"q": (12, 5, 8), "k": (4, 9, 8), "v": (4, 9, 8)}
    found = named(infer_sizes(PROGRAMS["attention"], shapes))
    assert found == {"KV": 4, "G": 3, "S": 5, "T": 9, "D": 8}
    found = named(infer_sizes(PROGRAMS["rotate_half"], {"x": (2, 8), "cosine": (2, 8), "sine": (2, 8)}))
    assert found == {"A": 4, "B": 4, "S": 2}
    assert named(infer_sizes(PROGRAMS["slices"], {"x": (9, 2)})) == {"N": 9, "K": 2, "M": 7, "J": 3}


def test_expressions_are_solved_backwards() -> None:
    program = parse_program(
        "program p(x: f32[M], y: f32[(N | N | A)]) where A = 1, M = 2*N - 1 { return x[m] }"
    )
    assert named(infer_sizes(program, {"x": (5,), "y": (7,)})) == {"M": 5, "N": 3, "A": 1}


def test_a_dim_beside_an_empty_one_may_be_anything() -> None:
    shapes: Shapes = {"q": (0, 5, 8), "k": (0, 9, 8), "v": (0, 9, 8)}
    found = named(infer_sizes(PROGRAMS["attention"], shapes))
    assert found["KV"] == 0
    assert found["G"] == 1


def test_given_sizes_help() -> None:
    found = infer_sizes(PROGRAMS["token_shift"], {"x": (6, 3), "mix": (3,)}, {Atom("B"): 2})
    assert found[Atom("T")] == 3


@pytest.mark.parametrize(
    ("name", "shapes", "message", "hint"),
    [
        ("matmul", {"a": (2, 3), "b": (4, 5)}, "argument b has size 4 on axis 0 (K), expected 3",
         "K = 3 by argument a, axis 1"),
        ("matmul", {"a": (2, 3, 1), "b": (3, 5)},
         "argument a has 3 axes (shape (2, 3, 1)), expected 2: [M, K]", ""),
        ("matmul", {"a": (2, 3)}, "there is no value for argument b", ""),
        ("matmul", {"a": (2, 3), "b": (3, 5), "z": (1,)}, "there is no argument z; the arguments are a, b",
         ""),
        ("attention", {"q": (6, 1, 2), "k": (4, 3, 2), "v": (4, 3, 2)},
         "argument q has size 6 on axis 0 (KV*G), expected a multiple of 4", "KV = 4 by argument k, axis 0"),
        ("token_shift", {"x": (6, 3), "mix": (3,)}, "the size of B does not follow from the arguments",
         "argument x, axis 0 only tells B*T = 6"),
        ("moments", {"x": (2, 2, 6)}, "argument x has size 2 on axis 1 (1), expected 1", ""),
        ("moments", {"x": (2, 1, 5)}, "argument x has size 5 on axis 2 (K), expected 6",
         "K = 6 by program moments"),
        ("slices", {"x": (1, 5)}, "size M would be -1", ""),
        ("rotate_half", {"x": (2, 3), "cosine": (2, 8), "sine": (2, 8)},
         "argument x has size 3 on axis 1 ((A | B)), expected", "A = 4"),
    ],
)  # fmt: skip
def test_shapes_that_do_not_fit(name: str, shapes: Shapes, message: str, hint: str) -> None:
    with pytest.raises(Invalid) as caught:
        infer_sizes(PROGRAMS[name], shapes)
    assert message in caught.value.what
    assert hint in caught.value.hint


def test_sizes_that_contradict_each_other() -> None:
    program = parse_program("program p(x: f32[M], y: f32[N]) where M = N + 1 { return x[m] }")
    with pytest.raises(Invalid, match=r"size M is 3, expected 4 by M = N \+ 1"):
        infer_sizes(program, {"x": (3,), "y": (3,)})
    with pytest.raises(Invalid, match=r"argument x has size 3 on axis 0 \(M\), expected 9"):
        infer_sizes(program, {"x": (3,), "y": (2,)}, {Atom("M"): 9})
    even = parse_program("program p(x: f32[M]) where M = 2*N, N { return x[m] }")
    with pytest.raises(Invalid, match=r"no size N fits M = 2\*N"):
        infer_sizes(even, {"x": (3,)})
