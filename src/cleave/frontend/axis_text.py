"""Axes as users write them in `cleave.program`, `cleave.prove` and `dynamic`.

An axis is `"S"` (a name), `64` (a size), `"D=64"` (both) or a product (`"KV*G"`), outermost first. Whatever
cannot be meant is refused here, before anything is traced.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any, NamedTuple

from cleave.errors import Invalid
from cleave.ir.sizes import check_size, read_size

AXIS = 'an axis is a name ("N"), a size (64), both ("D=64") or a product ("KV*G")'
_FACTOR = re.compile(r"\s*(?:([A-Za-z_]\w*)\s*(?:=\s*(\d+)\s*)?|(\d+)\s*)", re.ASCII)


class Factor(NamedTuple):
    """A name, a size or both; `name` is empty without one, `size` None."""

    name: str
    size: int | None

    def __str__(self) -> str:
        return self.name if self.size is None else f"{self.name}={self.size}" if self.name else str(self.size)


def factors(axis: str, whose: str) -> tuple[Factor, ...]:
    """The factors of an axis. `Invalid` for what is none; `whose` says of which input, for the message."""
    if not axis.strip():
        raise Invalid(f"{whose}: {axis!r} is an empty name of an axis", hint=AXIS)
    found: list[Factor] = []
    for text in axis.split("*"):
        match = _FACTOR.fullmatch(text)
        if match is None:
            raise Invalid(f"{whose}: {axis.strip()!r} is not an axis", hint=AXIS)
        digits = match[2] or match[3]
        found.append(Factor(match[1] or "", read_size(digits, whose) if digits else None))
    check_size(math.prod(f.size for f in found if f.size is not None), whose)
    return tuple(found)


def shown(axis: Iterable[Factor]) -> str:
    """An axis as text: `KV*G`."""
    return "*".join(map(str, axis))


def known_sizes(axes: Sequence[tuple[str, Sequence[Factor]]]) -> dict[str, int]:
    """The sizes that names are given on these axes, each with whose it is. `Invalid` where one name has two
    sizes, or where the sizes of a product's factors do not follow."""
    sizes: dict[str, tuple[int, str]] = {}
    for whose, axis in axes:
        for name, size in axis:
            if name and size is not None:
                before, first = sizes.setdefault(name, (size, whose))
                if before != size:
                    other = "in it as well" if first == whose else f"for {first}"
                    what = f"{whose}: {name} is {size}, but {before} {other}"
                    raise Invalid(what, hint=f"one size for {name}, or another name")
    _decided(axes, {name: size for name, (size, _) in sizes.items()})
    return {name: size for name, (size, _) in sizes.items()}


def _decided(axes: Sequence[tuple[str, Sequence[Factor]]], sizes: Mapping[str, int]) -> None:
    """`Invalid` for a product with more than one factor whose size nothing gives: only their product is
    known."""
    known = dict.fromkeys(sizes)
    known |= dict.fromkeys(axis[0].name for _, axis in axes if len(axis) == 1)
    waiting = [(whose, axis) for whose, axis in axes if len(axis) > 1]
    while waiting:
        place = next((n for n, (_, axis) in enumerate(waiting) if len(unknown(axis, known)) <= 1), 0)
        whose, axis = waiting.pop(place)
        names = unknown(axis, known)
        if len(names) > 1:
            raise undecided(whose, names)
        known |= dict.fromkeys(names)


def unknown(axis: Sequence[Factor], known: Container[str]) -> list[str]:
    """The names of a product whose sizes are to be found; one that stands in it twice comes twice."""
    return [name for name, size in axis if name and size is None and name not in known]


def undecided(whose: str, names: Sequence[str]) -> Invalid:
    """Of a product with several unknown sizes only their product is known."""
    what = f"{whose}: the sizes of {' and '.join(names)} do not follow"
    return Invalid(what, hint=f"name one of them on an axis of its own, or give its size ({names[0]}=4)")


# ---------------------------------------------------------------- `dynamic`


def dynamic_axis(axis: Any, whose: str) -> tuple[Factor, ...] | None:
    """What `dynamic` says of an axis; None: its size is known, and that of the example. `Invalid` for what
    says nothing."""
    if axis is None:
        return None
    if isinstance(axis, str):
        return factors(axis, whose)
    if isinstance(axis, bool) or not isinstance(axis, Integral):
        raise Invalid(f"{whose}: {axis!r} is not an axis", hint=f"{AXIS}, or None for a known size")
    check_size(int(axis), whose)
    return (Factor("", int(axis)),)


def check_dynamic(dynamic: Mapping[Any, Any]) -> None:
    """`Invalid` for what `dynamic` cannot say of any input: seen before there is one."""
    for name, given in dynamic.items():
        whose = f"argument {name}"
        if isinstance(given, Mapping):
            for place in given:
                if isinstance(place, bool) or not isinstance(place, Integral):
                    what = f"{whose}: dynamic numbers the axes of an input, and {place!r} is no number"
                    raise Invalid(what, hint='{0: "N"} or {-1: "N"}, or a tuple of all axes: ("N", None)')
            listed = list(given.values())
        elif isinstance(given, list | tuple):
            listed = list(given)
        else:
            raise Invalid(
                f"{whose}: dynamic has {given!r}, which is no tuple of its axes",
                hint='("N", None): a name for a dynamic axis, None for a known one; or {0: "N"}',
            )
        for axis in listed:
            dynamic_axis(axis, whose)


def axes_of(given: Any, name: str, rank: int) -> list[tuple[Factor, ...] | None]:
    """What `dynamic` says of each axis of an input of this rank. `Invalid` for axes that it does not have,
    and for one that is given twice."""
    check_dynamic({name: given})
    if isinstance(given, Mapping):
        places: dict[int, Any] = {}
        for number, axis in given.items():
            place = number + rank if number < 0 else number
            if not 0 <= place < rank:
                raise Invalid(f"argument {name} has {rank} axes, dynamic names axis {number}")
            if place in places:
                raise Invalid(f"argument {name}: dynamic names axis {place} twice, once as {number}")
            places[place] = axis
        listed = [places.get(place) for place in range(rank)]
    else:
        listed = list(given) or [None] * rank
        if len(listed) != rank:
            raise Invalid(f"argument {name} has {rank} axes, dynamic names {len(listed)}")
    return [dynamic_axis(axis, f"argument {name}") for axis in listed]
