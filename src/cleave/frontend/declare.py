"""Declared axes: names, products of names and known sizes, given before the function is traced.

An axis is `"S"` (a dynamic dim; one name is one dim), `"D=64"`, `64` or `None` (known), or a product of these
(`"KV*G"`), outermost first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import sympy
from torch.utils._sympy.functions import FloorDiv

from cleave.errors import Invalid
from cleave.frontend.axes import Space, Var, root


def declare(space: Space, axes: Sequence[tuple[str, Var, Any]]) -> None:
    """Name axes: each is where it stands, its variable and what is declared. Raises `Invalid` where the sizes
    of the arguments contradict the declaration, or do not decide the size of a name."""
    names: dict[str, Var] = {}
    waiting: list[tuple[str, Var, list[str]]] = []
    for where, var, wanted in axes:
        if wanted is None or isinstance(wanted, int) or wanted.isdigit():
            if wanted is not None and int(wanted) != var.hint:
                raise Invalid(f"{where}: the size is {var.hint}, declared {wanted}")
            space.fix(var, var.hint)
            continue
        factors = [factor.strip() for factor in wanted.split("*")]
        if len(factors) > 1:
            waiting.append((where, var, factors))
        else:
            _single(space, names, where, var, factors[0])
    for where, var, factors in waiting:
        _product(space, names, where, var, factors)


def _single(space: Space, names: dict[str, Var], where: str, var: Var, text: str) -> None:
    name, _, value = text.partition("=")
    if value and int(value) != var.hint:
        raise Invalid(f"{where}: the size is {var.hint}, declared {text}")
    first = names.setdefault(name, var)
    if first is var:
        var.declared = name
    elif root(first).hint != var.hint:
        raise Invalid(f"{where}: the size is {var.hint}, but {name} is {root(first).hint} elsewhere")
    else:
        space.unify(first, var)
    if value:
        space.fix(first, int(value))


def _product(space: Space, names: dict[str, Var], where: str, var: Var, texts: Sequence[str]) -> None:
    factors: list[Var | None] = []
    for text in texts:
        name, _, value = text.partition("=")
        if name.isdigit():
            factors.append(space.known(int(name)))
        elif name in names:
            factors.append(names[name])
        elif value:
            names[name] = known = space.known(int(value))
            known.declared = name
            factors.append(known)
        else:
            factors.append(None)
    known_factors = [factor for factor in factors if factor is not None]
    rest = math.prod(root(factor).hint for factor in known_factors)
    if len(known_factors) < len(factors) - 1:
        unknown = " and ".join(t for t, f in zip(texts, factors, strict=True) if f is None)
        raise Invalid(
            f"{where}: the sizes of {unknown} do not follow", hint="name one of them on an axis of its own"
        )
    whole = len(known_factors) == len(factors)
    if (whole and rest != var.hint) or (not whole and (rest == 0 or var.hint % rest)):
        raise Invalid(f"{where}: the size is {var.hint}, declared {'*'.join(texts)} with {rest} known")
    for place, factor in enumerate(factors):
        if factor is None:
            user = FloorDiv(space.user(var), sympy.Mul(*(space.user(f) for f in known_factors)))
            made = space.fresh(var.hint // rest, user, texts[place])
            made.declared = texts[place]
            factors[place] = names[texts[place]] = made
    space.refine(var, [factor for factor in factors if factor is not None])
