"""The laws of the normal form by name, a record of where they were applied, and a switch for each.

`recorded()` collects applications as steps that people can read. `without(...)` switches laws, or side
conditions of laws, off: tests use it to show that each law is needed for some proof, and that each side
condition keeps some false proof out.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from cleave.algebra.forms import Keyed, Mono, Poly, of_mono
from cleave.algebra.show import friendly, show
from cleave.ir.candidate import Step

LAWS: dict[str, str] = {
    "case": "f([p] a + (1 - [p]) b) = [p] f(a) + (1 - [p]) f(b)",
    "absent": "exp(a where p) = [p] exp(a)",
    "exp-log": "exp(c log a) = a^c",
    "content": "(c m r)^e = c^e m^e r^e; log(c m r) = log c + log m + log r",
    "magnitude": "(a^2)^e = |a|^(2 e)",
    "implied": "[p] [q] = [p] where p implies q; [exists i: g] sum_i g f = sum_i g f",
    "excluded": "[p] [q] = 0 where p and q exclude each other",
    "finite": "what is made of finite values, but by a log or the maximum of nothing, is finite",
    "sum-open": "(sum_i f) (sum_j g) = sum_i,j f g",
    "sum-part": "sum_i,j f(i) g(j) = (sum_i f) (sum_j g); factors without the index leave",
    "sum-size": "sum_K 1 = |K|",
    "sum-union": "sum_(A|B) f = sum_A f + sum_B f",
    "sum-split": "sum_p sum_(i in part p) f(p:i) = sum_K f; sum_p n[p] = |K|",
    "one-hot": "sum_v [v = t] f(v) = [0 <= t < |V|] f(t)",
    "max-flat": "max_i (a + max_j b) = max_i,j (a + b)",
    "max-part": "max_i (a + b(i)) = a + max_i b; max_i,j (a(i) + b(j)) = max_i a + max_j b",
    "max-union": "max_(A|B) f = max(max_A f, max_B f)",
    "max-split": "max_p max_(i in part p) f(p:i) = max_K f",
    "max-exp": "max exp f = exp max f",
    "max-scale": "max(c f) = c max f for c > 0",
    "max-cap": "max_i min(a(i), b) = min(max_i a, b)",
    "max-pair": "max(a, b) = (a + b) / 2 + |a - b| / 2",
    "cross": "a / b = c / d where a d = c b",
    "either-sign": "what holds for |a| = a and for |a| = -a holds",
    "given": "what the user's program needs to be defined holds",
    "same": "values with one normal form are equal",
}

CONDITIONS: dict[str, str] = {
    "positive-base": "only proved-positive factors leave a root or a log",
    "positive-scale": "only proved-positive factors leave a maximum",
    "free-factor": "only factors without the bound index leave a sum",
    "only-joined": "part and index may occur only joined when parts make up the whole",
    "nonempty": "a maximum of a constant is the constant only over what is never empty",
    "in-range": "a one-hot sum picks only positions that exist",
    "fresh-binders": "a binder that is opened gets numbers that occur nowhere else",
    "one-to-one": "indices are only renamed one to one; else like terms are collected",
    "positive-outer": "a factor goes into a maximum only if it is proved positive",
    "positive-lead": "an exponential leaves a maximum only with a positive coefficient",
    "something-largest": "max exp f = exp max f only where there is something to be largest",
    "positive-sum": "a sum of positives is positive only over what is never empty",
    "empty-part": "a part may have no elements",
    "whole-numbers": "[a > 0] = [a - 1 >= 0] only for integers",
    "strictness": "[a >= 0] does not imply [a > 0]",
    "every-entry": "a predicate leaves a maximum only if every entry needs it",
    "same-witness": "[exists i: g] is dropped only beside a sum that the same g guards",
    "widening": "only casts that keep every value are left out",
    "bounded": "a maximum of what may be inf may be inf, a sum of what may be -inf may be -inf",
    "defined": "what only the second program needs to be defined is a condition",
    "reads-inside": "what a program reads must lie inside of the tensor",
    "guarded-need": "what is read under a select is needed only where the select reads it",
}

Application = tuple[str, str, Keyed, Keyed]
"""A law, the place, and the forms before and after."""

_off: frozenset[str] = frozenset()
_record: list[Application] | None = None
_place = ""


def on(name: str) -> bool:
    """Is a law, or a side condition of one, in force?"""
    return name not in _off


@contextmanager
def without(*names: str) -> Generator[None]:
    """Switch laws or side conditions off inside a `with` block (for tests)."""
    global _off
    unknown = [n for n in names if n not in LAWS and n not in CONDITIONS]
    if unknown:
        raise KeyError(f"no law or condition is called {unknown[0]!r}")
    before = _off
    _off = before | frozenset(names)
    try:
        yield
    finally:
        _off = before


def note(law: str, before: Poly | Mono, after: Poly) -> None:
    """Record that a law turned `before` into `after`, if a record is being made."""
    if _record is not None and len(_record) < 400:
        _record.append((law, _place, before, after))


def at(place: str) -> None:
    """Say where the next laws are applied (the name of a node)."""
    global _place
    _place = place


@contextmanager
def recorded() -> Generator[list[Application]]:
    """Collect the applications of laws inside a `with` block; `steps_of` makes them readable."""
    global _record
    before = _record
    found: list[Application] = []
    _record = found
    try:
        yield found
    finally:
        _record = before


@contextmanager
def unrecorded() -> Generator[None]:
    """Record nothing inside a `with` block."""
    global _record
    before = _record
    _record = None
    try:
        yield
    finally:
        _record = before


def usual() -> bool:
    """Are all laws in force and is nothing recorded? Then what is known of a node may be kept."""
    return not _off and _record is None


def recording() -> bool:
    """Is a record being made?"""
    return _record is not None


def steps_of(record: list[Application]) -> tuple[Step, ...]:
    """The record as steps; what was done before, in whatever place, is left out."""
    steps: dict[tuple[str, str, str], Step] = {}
    for law, place, before, after in record:
        old, new = _text(before), _text(after)
        if law == "same" and old == new:
            old = "both programs"
        if old != new:
            steps.setdefault((law, old, new), Step(law, place, old, new))
    return tuple(steps.values())


def _text(value: Keyed) -> str:
    assert isinstance(value, Mono | Poly)
    whole = of_mono(value) if isinstance(value, Mono) else value
    return show(whole, friendly(whole.free))
