"""Are two programs equal, for every size? (design.md, section 3)

`prove(a, b)` answers `yes`; `yes-if` with the conditions under which `b` is defined and equal wherever `a`
is; `no` with a counterexample from the second opinion; or `unknown`. Inputs are matched by name, outputs by
position. A Yes is an identity of normal forms over the finite reals; forms that differ may still be proved
equal with denominators multiplied out, and by cases on magnitudes and predicates.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from cleave.algebra import laws, opinion, rewrite
from cleave.algebra.arithmetic import add, mul, sub
from cleave.algebra.conditions import Need, missing, needs_of
from cleave.algebra.demands import part_number
from cleave.algebra.forms import (
    ONE,
    ZERO,
    Factor,
    Held,
    Masked,
    Max,
    Mono,
    Poly,
    Power,
    Predicate,
    Size,
    constant,
    factors_in,
    fresh,
    is_predicate,
    of_factor,
    of_mono,
)  # fmt: skip
from cleave.algebra.infinite import presence
from cleave.algebra.match import Match, match, rename_dims
from cleave.algebra.normal import Forms, normal_forms
from cleave.algebra.rewrite import Known
from cleave.algebra.sums import split_union
from cleave.errors import Unsupported
from cleave.ir.candidate import Step
from cleave.ir.dims import Atom, Dim, Extent, Index, Union
from cleave.ir.program import Output, Program
from cleave.ir.text import parse_program, print_program

ROUNDS = 12
"""How many denominators are multiplied out."""

CASES = 4
"""How deep cases on magnitudes and predicates nest."""

WORK = 40_000
"""Factors that one comparison may look at, over all cases; beyond it the answer is Unknown."""

LARGEST = 20_000
"""So many factors may an output's normal form have; beyond it the answer is Unknown."""


@dataclass(frozen=True)
class Proof:
    """The answer (`yes`, `yes-if`, `no`, `unknown`), the conditions of a `yes-if`, the counterexample of a
    `no` (for `unknown`, what stood in the way), and the named laws that led to the normal forms."""

    answer: str
    conditions: tuple[str, ...] = ()
    counterexample: str = ""
    steps: tuple[Step, ...] = ()

    @property
    def holds(self) -> bool:
        """Is it a Yes, perhaps under conditions?"""
        return self.answer in ("yes", "yes-if")


def prove(a: Program, b: Program, *, points: int = 8, steps: bool = True) -> Proof:
    """Is `b` equal to `a`? See the module. `points` bounds the search for a counterexample; without `steps`
    the derivation is not recorded."""
    found = match(a, b)
    if found.problem:
        return Proof("unknown", counterexample=found.problem)
    try:
        if not steps:
            return _prove(a, found, points)
        with laws.recorded() as record:
            proof = _prove(a, found, points)
    except Unsupported as problem:
        return Proof("unknown", counterexample=problem.what)
    return replace(proof, steps=laws.steps_of(record))


def _prove(a: Program, found: Match, points: int) -> Proof:
    b = found.program
    merged: dict[Atom, Dim] = {x: y for x, y in found.equal if isinstance(x, Atom)}
    merged |= {y: x for x, y in found.equal if isinstance(y, Atom) and y not in merged and x not in merged}
    if any(x not in merged and y not in merged for x, y in found.equal):
        return Proof("unknown", counterexample="the second program needs equal sizes: " + _sizes(found))
    one, two = rename_dims(a, merged), rename_dims(b, merged)
    forms_a, forms_b = normal_forms(_placed(one, "first")), normal_forms(_placed(two, "second"))
    for program, forms in ((one, forms_a), (two, forms_b)):
        for output in program.outputs:
            if size_up_to(LARGEST, forms[output.node]) == LARGEST:
                raise Unsupported(f"the normal form of output {output.name} has {LARGEST} factors or more")
    with laws.unrecorded():
        given = needs_of(one, forms_a)
        needed = missing(needs_of(two, forms_b), given, _identical(one, two))
    if any(need.rel == "[]" and not need.value.terms for need in needed):
        return Proof("unknown", counterexample="where values are infinite has too many cases")
    held = [need for need in given.found.values() if need.rel == "[]" and not need.loose]
    held += [need for need in needed if need.rel == "[]"]
    for number, (x, y) in enumerate(zip(one.outputs, two.outputs, strict=True)):
        laws.at(f"output {x.name}")
        if not _same(one, forms_a, x, forms_b, y, [need for need in held if need.output == number]):
            return _refute(a, b, found, points, x.name)
        laws.note("same", _at(forms_a[x.node], x, _axes(x)), _at(forms_b[y.node], y, _axes(x)))
    conditions = [*(f"|{x}| = |{y}|" for x, y in found.equal), *map(str, needed)]
    return Proof("yes-if" if conditions else "yes", tuple(dict.fromkeys(conditions)))


def _placed(program: Program, which: str) -> Program:
    """The program with names, as it is printed, that say which of the two it is, if steps are recorded."""
    if not laws.recording():
        return program
    names = parse_program(print_program(program)).names
    return replace(program, names={n: f"{name} of the {which} program" for n, name in names.items()})


def _identical(one: Program, two: Program) -> list[int]:
    """The numbers of outputs that are computed alike."""
    pairs = zip(one.outputs, two.outputs, strict=True)
    return [n for n, (x, y) in enumerate(pairs) if x.node is y.node and x.layout == y.layout]


def _axes(output: Output) -> list[Index]:
    return [output.node.axes[n] for group in output.layout for n in group]


def _sizes(found: Match) -> str:
    return ", ".join(f"|{x}| = |{y}|" for x, y in found.equal)


def _refute(a: Program, b: Program, found: Match, points: int, output: str) -> Proof:
    """A counterexample, or none found."""
    if found.equal:
        return Proof("unknown", counterexample=f"output {output} differs; it needs {_sizes(found)}")
    for point in opinion.points(a, b, count=points):
        difference = opinion.compare(a, b, point)
        if difference is not None and difference.defined and point.exact:
            return Proof("no", counterexample=str(difference))
    return Proof("unknown", counterexample=f"output {output}: the normal forms differ, no value was seen to")


def _known(held: Sequence[Need], axes: Mapping[int, Index]) -> Known:
    """What is known of an element of an output, at these axes, by what it needs: predicates that hold, and
    those whose complement does. What another element needs says nothing of this one."""
    found: dict[str, Poly] = {}
    for need in held:
        own = [i for i in need.value.free if i.number >= 0]
        here = all(i.number in axes and axes[i.number].dim == i.dim for i in own)
        if not here or not need.parts <= axes.keys():
            continue
        value = rewrite.rename(need.value, {i: axes[i.number] for i in own})
        for literal, truth in ((value, ONE), (sub(ONE, value), ZERO)):
            factor = literal.factor
            if factor is not None:
                found[rewrite.closure(factor, axes.values())] = truth
    return Known(found, frozenset(axes.values()))


def _same(
    program: Program, forms_a: Forms, a: Output, forms_b: Forms, b: Output, held: Sequence[Need]
) -> bool:
    axes = [fresh(a.node.axes[n].dim) for group in a.layout for n in group]
    one = _at(forms_a[a.node], a, axes)
    two = _at(forms_b[b.node], b, axes)
    return _equal_parts(one, two, dict(enumerate(axes)), program, held)


def _at(value: Poly, output: Output, axes: Sequence[Index]) -> Poly:
    order = [n for group in output.layout for n in group]
    where = {output.node.axes[n]: axes[k] for k, n in enumerate(order)}
    return rewrite.rename(value, {old: new for old, new in where.items() if old.dim == new.dim})


def _equal_parts(a: Poly, b: Poly, axes: Mapping[int, Index], program: Program, held: Sequence[Need]) -> bool:
    """Equality, for each part of a union that an axis runs over; axes by the numbers that needs give them."""
    if a == b:
        return True
    number = next((n for n, i in axes.items() if isinstance(i.dim, Union)), None)
    if number is None:
        return equal(a, b) or _equal_given(a, b, program, _known(held, axes))
    union = axes[number]
    pieces = zip(split_union(a, union), split_union(b, union), strict=True)
    for part, ((i, x), (j, y)) in enumerate(pieces):
        inner = {n: axis for n, axis in axes.items() if n != number} | {part_number(number, part): i}
        if not _equal_parts(x, rewrite.rename(y, {j: i}), inner, program, held):
            return False
    return True


def _equal_given(a: Poly, b: Poly, program: Program, known: Known) -> bool:
    """Equality with what is known: sizes that the program fixes, predicates that must hold."""
    if not laws.on("given"):
        return False
    swap: dict[Factor, Poly] = {}
    for atom, value in program.sizes:
        swap[Size(atom)] = rewrite.of_extent(value) if isinstance(value, Extent) else constant(value)
    one, two = (rewrite.replace(rewrite.assume(v, known), swap) for v in (a, b))
    if one == a and two == b:
        return False
    laws.note("given", a, one)
    laws.note("given", b, two)
    return equal(one, two)


def equal(a: Poly, b: Poly) -> bool:
    """Are two forms equal: identical, or their difference 0 with denominators multiplied out, by cases?"""
    if a == b:
        return True
    one, two = a.factor, b.factor
    if isinstance(one, Masked) or isinstance(two, Masked):
        if not isinstance(one, Masked) or not isinstance(two, Masked) or one.guard != two.guard:
            return False
        # The values need to agree only where the guard holds.
        return equal(one.value, two.value) or is_zero(mul(one.guard, sub(one.value, two.value)), CASES)
    difference = sub(a, b)
    if is_zero(difference, CASES):
        return True
    # Where a lone maximum or logarithm in both is -inf, both are -inf or not defined.
    guard = presence(a)
    return guard.number is None and guard == presence(b) and is_zero(mul(guard, difference), CASES)


def size_up_to(most: int, value: Poly) -> int:
    """How many factors a value has, those under binders too, or `most` if there are more."""
    return sum(1 for _ in itertools.islice(factors_in(value), most))


def is_zero(value: Poly, depth: int, done: list[int] | None = None) -> bool:
    """Is a value 0 wherever it is defined? `done` counts the factors looked at (`WORK`)."""
    done = [0] if done is None else done
    value = _cleared(value, done) if laws.on("cross") else value
    if not value.terms:
        return True
    done[0] += size_up_to(WORK, value)
    if depth == 0 or done[0] > WORK or not laws.on("either-sign"):
        return False
    for factor in _decidable(value):
        return all(is_zero(rewrite.replace(value, {factor: v}), depth - 1, done) for v in _values(factor))
    return False


def _cleared(value: Poly, done: list[int]) -> Poly:
    """The value times its denominators."""
    for _ in range(ROUNDS):
        done[0] += max(len(value.terms) * (WORK // 2000), size_up_to(WORK, value))
        if done[0] > WORK:
            return value
        least: dict[Factor, Fraction] = {}
        for mono in value.terms:
            for f, e in mono.factors:
                if isinstance(f, Power) and e < 0 and f.base.number is None:
                    least[f] = min(e, least.get(f, Fraction(0)))
        if not least or len(value.terms) < 2:
            return value
        factor = min(least, key=lambda f: f.key)
        by = -least[factor]
        cleared = [_times(m, c, factor, by) for m, c in value.terms.items()]
        value = add(*cleared)
    return value


def _times(mono: Mono, c: Fraction, factor: Factor, by: Fraction) -> Poly:
    """A term times a power of a factor, whole powers of the factor's base multiplied out."""
    assert isinstance(factor, Power)
    e = mono.power_of(factor) + by
    rest = of_mono(Mono(tuple(x for x in mono.factors if x[0] != factor), mono.exponent), c)
    if isinstance(factor, Held):
        return mul(rest, of_factor(factor, e)) if e else rest
    whole = e.numerator // e.denominator
    result = mul(rest, of_factor(factor, e - whole)) if e != whole else rest
    for _ in range(whole):
        result = mul(result, factor.base)
    return result


def _decidable(value: Poly) -> list[Factor]:
    """Factors that are one of a few values: magnitudes, maxima of plain values, predicates."""
    found: dict[Factor, None] = {}
    for factor in factors_in(value):
        if factor.free <= value.free and (is_predicate(factor) or _plain(factor)):
            found[factor] = None
    return sorted(found, key=lambda f: (isinstance(f, Predicate), f.key))


def _plain(factor: Factor) -> bool:
    return isinstance(factor, Max) and all(not e.binders and e.guard.number == 1 for e in factor.entries)


def _values(factor: Factor) -> list[Poly]:
    if isinstance(factor, Max):
        return [entry.value for entry in factor.entries]
    return [ONE, ZERO]
