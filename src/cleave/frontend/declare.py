"""Declared axes: names, products of names and known sizes, given before the function is traced.

An axis is `"S"` (a dynamic dim; one name is one dim), `"D=64"`, `64` or `None` (known), or a product of these
(`"KV*G"`), outermost first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import sympy
from torch.utils._sympy.functions import FloorDiv

from cleave.errors import Invalid
from cleave.frontend.axes import Space, Var, root
from cleave.frontend.axis_text import Factor, known_sizes, shown, undecided, unknown


def declare(space: Space, axes: Sequence[tuple[str, Var, Sequence[Factor] | None]]) -> None:
    """Name axes: each is where it stands, its variable and what is declared (None: known, as in the example).
    Raises `Invalid` where the sizes of the arguments contradict the declaration, or do not decide the size of
    a name, and where declarations contradict each other."""
    given = [(where, axis) for where, _, axis in axes if axis is not None]
    sizes = known_sizes(given)
    names: dict[str, Var] = {}
    waiting: list[tuple[str, Var, Sequence[Factor]]] = []
    for where, var, axis in axes:
        if axis is None:
            space.fix(var, var.hint)
        elif len(axis) > 1:
            waiting.append((where, var, axis))
        elif axis[0].name:
            _single(space, names, where, var, axis[0])
        elif axis[0].size != var.hint:
            raise Invalid(f"{where}: the size is {var.hint}, declared {axis[0].size}")
        else:
            space.fix(var, var.hint)
    for name, size in sizes.items():
        if name not in names:
            names[name] = space.known(size)
            names[name].declared = name
        elif root(names[name]).hint != size:
            raise Invalid(f"the size of {name} is {root(names[name]).hint}, declared {name}={size}")
        else:
            space.fix(names[name], size)
    while waiting:  # one that gives the last size that another one lacks comes before it
        place = next((n for n, item in enumerate(waiting) if len(unknown(item[2], names)) <= 1), 0)
        _product(space, names, *waiting.pop(place))


def _single(space: Space, names: dict[str, Var], where: str, var: Var, factor: Factor) -> None:
    name, size = factor
    if size is not None and size != var.hint:
        raise Invalid(f"{where}: the size is {var.hint}, declared {factor}")
    first = names.setdefault(name, var)
    if first is var:
        var.declared = name
    elif root(first).hint != var.hint:
        raise Invalid(f"{where}: the size is {var.hint}, but {name} is {root(first).hint} elsewhere")
    else:
        space.unify(first, var)


def _product(space: Space, names: dict[str, Var], where: str, var: Var, axis: Sequence[Factor]) -> None:
    open_ = unknown(axis, names)
    if len(open_) > 1:
        raise undecided(where, open_)
    factors = [names.get(f.name) if f.name else space.known(f.size or 0) for f in axis]
    known = [factor for factor in factors if factor is not None]
    rest = math.prod(root(factor).hint for factor in known)
    whole = not open_
    if (whole and rest != var.hint) or (not whole and (rest == 0 or var.hint % rest)):
        raise Invalid(f"{where}: the size is {var.hint}, declared {shown(axis)} with {rest} known")
    for place, factor in enumerate(factors):
        if factor is None:
            user = FloorDiv(space.user(var), sympy.Mul(*(space.user(f) for f in known)))
            made = space.fresh(var.hint // rest, user, axis[place].name)
            made.declared = axis[place].name
            factors[place] = names[axis[place].name] = made
    space.refine(var, [factor for factor in factors if factor is not None])
