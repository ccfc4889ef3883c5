"""Random pairs of programs, by sound laws or with one unsound one, and what the prover and the second opinion
say of them.

Pair number `k` of seed `s` is always the same. A *fault* is a Yes for programs that the second opinion tells
apart, or a sound law that changes a value (then the test itself, or the second opinion, is wrong).
"""

from __future__ import annotations

import itertools
import random
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import mpmath

from algebra.form_values import FormValue, Opaque
from algebra.random_faults import FAULTS
from algebra.random_faults import GENERAL as OFTEN
from algebra.random_programs import KINDS, Drawn
from algebra.random_rewrites import LAWS
from algebra.random_steps import apply_law, apply_laws
from cleave.algebra import opinion
from cleave.algebra.conditions import missing, needs_of
from cleave.algebra.digits import TooFar
from cleave.algebra.match import match
from cleave.algebra.normal import normal_forms
from cleave.algebra.opinion import Meaning, Point
from cleave.algebra.proof import prove
from cleave.ir.program import Program


@dataclass(frozen=True)
class Pair:
    """Two programs, the names of the laws between them, and the unsound one among them (or nothing)."""

    name: str
    a: Program
    b: Program
    laws: tuple[str, ...]
    unsound: str
    look: int = 0
    """How many points are looked at where an unsound pair is not proved."""


@dataclass(frozen=True)
class Verdict:
    """The prover's answer, whether the second opinion saw a difference, and the fault, if there is one."""

    answer: str
    differs: bool
    fault: str = ""
    seen: int = 0
    skipped: int = 0
    """Elements that the second opinion looked at, and that it left out (`opinion.look`)."""


def draw(
    seed: int | str, number: int, length: tuple[int, int] = (5, 10), kinds: Sequence[str] = KINDS
) -> Pair:
    """Pair number `number`: of two, one is made by 1 to 5 sound laws, the other with one unsound law, and 0
    to 2 sound ones before or after it. `kinds` are those of the values that the first program is made of."""
    name = f"{seed} {number}"
    rng = random.Random(name)
    program = Drawn(name, kinds).program(rng.randint(*length))
    if number % 2 == 0:
        new, used = apply_laws(program, LAWS, rng.randint(1, 5), rng)
        return Pair(name, program, new, tuple(used), "")
    before, used = apply_laws(program, LAWS, rng.choice((0, 0, 0, 1)), rng)
    wrong, fault = apply_law(before, FAULTS, rng, OFTEN)
    after, more = apply_laws(wrong, LAWS, rng.choice((0, 0, 0, 1)), rng)
    return Pair(name, program, after, (*used, fault, *more), fault, number % 16 == 1)


def judge(pair: Pair, points: int = 3) -> Verdict:
    """What the prover and the second opinion say, at `points` points for a sound pair, thrice as many for
    an unsound one that is proved, and none for most unsound ones that are not: they are no fault."""
    proof = prove(pair.a, pair.b, steps=False, points=0)
    count = points if not pair.unsound else 3 * points if proof.holds else pair.look
    differs, seen, skipped = False, 0, 0
    seed = zlib.crc32(pair.name.encode())
    for point in opinion.points(pair.a, pair.b, count=count, seed=seed, first=seed % 4):
        look = opinion.look(pair.a, pair.b, point)
        found, seen, skipped = look.difference, seen + look.seen, skipped + look.skipped
        if found is None or (not found.defined and not proof.holds):
            continue
        if proof.holds and (proof.answer == "yes" or conditions_hold(pair, point)):
            return Verdict(proof.answer, True, f"{proof.answer} is false: {found}", seen, skipped)
        if found.defined and not pair.unsound and not proof.holds:
            return Verdict(proof.answer, True, f"a sound law changed a value: {found}", seen, skipped)
        differs = differs or found.defined
    return Verdict(proof.answer, differs, "", seen, skipped)


def conditions_hold(pair: Pair, point: Point) -> bool:
    """Do the conditions of a Yes-if hold at a point?"""
    b = match(pair.a, pair.b).program
    forms = normal_forms(b)
    needed = missing(needs_of(b, forms), needs_of(pair.a, normal_forms(pair.a)))
    with mpmath.workdps(60):
        value_of = FormValue(Meaning(b, point))
        for need in needed:
            free = sorted(need.value.free, key=lambda i: (str(i.dim), i.number))
            for where in itertools.product(*(range(point.extent(i.dim)) for i in free)):
                try:
                    value = value_of.poly(need.value, dict(zip(free, where, strict=True)))
                except (Opaque, TooFar):
                    return False
                holds = {"!=": abs(value) > 1e-30, ">": value > 1e-30, ">=": value >= 0, "[]": value == 1}
                if mpmath.isnan(value) or not holds[need.rel]:
                    return False
    return True
