"""The data of the normal form: keys, free indices, renaming, text."""

from __future__ import annotations

from fractions import Fraction

from cleave.algebra import label, rewrite
from cleave.algebra.arithmetic import add, mul, neg, scale, sub
from cleave.algebra.forms import (
    ONE,
    UNIT,
    ZERO,
    Element,
    Mono,
    Poly,
    Sum,
    constant,
    fresh,
    of_factor,
    of_mono,
    terms_in,
)  # fmt: skip
from cleave.algebra.powers import exp, log, power
from cleave.algebra.sums import total
from cleave.ir.dims import Atom, Index, term, var
from cleave.ir.ops import input_node

N, K = Atom("N"), Atom("K")
A = input_node("a", [[N], [N]], "f32")
X = input_node("x", [[N]], "f32")
Y = input_node("y", [[N]], "f32")
I_, J = Index(N, 0), Index(N, 1)


def element(node: object, *where: Index) -> Poly:
    return of_factor(Element(node, tuple(var(w) for w in where)))  # type: ignore[arg-type]


def test_zero_and_one() -> None:
    x = element(X, I_)
    assert sub(x, x) == ZERO and not sub(x, x).terms
    assert mul(x, power(x, -1)) == ONE
    assert constant(0) is ZERO and constant(1) == ONE
    assert ONE.number == 1 and ZERO.number == 0 and x.number is None


def test_equal_values_have_equal_keys_and_hashes() -> None:
    x, y = element(X, I_), element(Y, I_)
    one, two = mul(add(x, y), sub(x, y)), sub(mul(x, x), mul(y, y))
    assert one == two and one.key == two.key and hash(one) == hash(two)
    assert add(x, y) == add(y, x) and mul(x, y) == mul(y, x)


def test_bound_indices_have_no_names() -> None:
    sums = []
    for order in (0, 1):
        i, j = fresh(N), fresh(N)
        value = mul(element(A, i, j), element(X, i), element(Y, j))
        sums.append(total(value, [i, j] if order else [j, i]))
    assert sums[0] == sums[1] and not sums[0].free


def test_symmetric_binders_are_told_apart_where_they_differ() -> None:
    def quadratic(first: Poly | None = None) -> Poly:
        i, j = fresh(N), fresh(N)
        return total(mul(element(A, i, j), element(X, i), element(X, j)), [j, i])

    i, j = fresh(N), fresh(N)
    transposed = total(mul(element(A, j, i), element(X, i), element(X, j)), [i, j])
    assert quadratic() == transposed
    i, j = fresh(N), fresh(N)
    assert quadratic() != total(mul(element(A, i, j), element(X, i), element(Y, j)), [i, j])


def test_cycles_of_symmetric_binders() -> None:
    """A cycle of four and two cycles of two have the same colours: individualisation must tell them apart."""

    def cycle(steps: list[tuple[int, int]]) -> Poly:
        binders = [fresh(N) for _ in range(4)]
        return total(mul(*(element(A, binders[p], binders[q]) for p, q in steps)), binders)

    four = cycle([(0, 1), (1, 2), (2, 3), (3, 0)])
    assert four == cycle([(2, 0), (0, 3), (3, 1), (1, 2)])
    assert four != cycle([(0, 1), (1, 0), (2, 3), (3, 2)])


def test_beyond_the_bound_the_order_is_still_an_order() -> None:
    binders = [fresh(N) for _ in range(7)]
    body = mul(*(element(A, p, q) for p in binders for q in binders if p != q))
    assert sorted(label.order(binders, body.text), key=str) == sorted(binders, key=str)


def test_free_indices() -> None:
    i = fresh(N)
    value = mul(total(element(A, I_, i), [i]), exp(element(X, J)))
    assert value.free == {I_, J}
    assert set(terms_in(value)) >= {var(I_), var(J)}


def test_substitution_does_not_capture() -> None:
    i = fresh(N)
    rows = total(element(A, I_, i), [i])
    (mono,) = rows.terms
    inner = mono.factors[0][0]
    assert isinstance(inner, Sum)
    bound = inner.binders[0]
    moved = rewrite.substitute(rows, {I_: var(bound)})
    assert moved.free == {bound}
    diagonal = fresh(N)
    assert moved != total(element(A, diagonal, diagonal), [diagonal])


def test_renaming_and_substituting_agree() -> None:
    i = fresh(N)
    value = exp(total(mul(element(A, I_, i), log(add(element(X, i), element(Y, I_)))), [i]))
    assert rewrite.rename(value, {I_: J}) == rewrite.substitute(value, {I_: term((J, 1))})
    shifted = rewrite.substitute(value, {I_: term((J, 1), offset=1)})
    assert rewrite.substitute(shifted, {J: term((I_, 1), offset=-1)}) == value


def test_swapping_two_indices_at_once() -> None:
    value = mul(element(A, I_, J), element(X, I_))
    swapped = rewrite.substitute(value, {I_: var(J), J: var(I_)})
    assert swapped == mul(element(A, J, I_), element(X, J))


def test_replacing_factors() -> None:
    x, y = element(X, I_), element(Y, I_)
    value = add(mul(x, x), exp(x))
    factor = x.factor
    assert factor is not None
    assert rewrite.replace(value, {factor: y}) == add(mul(y, y), exp(y))


def test_numbers_are_exact() -> None:
    third = constant(Fraction(1, 3))
    assert add(third, third, third) == ONE
    assert scale(constant(7), Fraction(1, 7)) == ONE
    assert power(constant(8), Fraction(1, 3)) == constant(2)
    assert mul(power(constant(2), Fraction(1, 2)), power(constant(2), Fraction(1, 2))) == constant(2)
    assert power(constant(12), Fraction(1, 2)) == scale(power(constant(3), Fraction(1, 2)), 2)


def test_text_is_for_people_and_repeatable() -> None:
    i = fresh(N)
    value = neg(total(mul(element(A, I_, i), element(X, i)), [i]))
    other = fresh(N)
    again = neg(total(mul(element(X, other), element(A, I_, other)), [other]))
    assert str(value) == str(again) == "-sum_n'(a[n0, n']*x[n'])"
    assert str(of_mono(UNIT, Fraction(3, 2))) == "3/2"
    assert str(Poly({Mono((), element(X, I_)): Fraction(1)})) == "exp(x[n0])"
