"""A component around the old running values, carried to the new ones: what it is multiplied by, written out.

`rescaling` proves the identity that stands behind it, `M(k, u') = sum_j R_j(u, u') * M_j(k, u)`. While
nothing has been seen a shift counts as 0, except in an exponential that is `anchored`: there -inf is right.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

from cleave.algebra.bodies import Elem, Exp, Factors, Poly, Shift, Size, rebase
from cleave.algebra.emission import signed
from cleave.algebra.frame import Site, at_axes, plain
from cleave.ir.dims import Index, Term, var
from cleave.ir.ops import Access, Reduce, size

if TYPE_CHECKING:
    from cleave.algebra.moments import Moment, State
    from cleave.algebra.pieces import Assembly


def rescaled(assembly: Assembly, state: State, old: Moment, new: Moment) -> Access:
    """A component around the old running values, carried to the new ones."""
    build, site = assembly.build, state.site
    total = build.number(0.0)
    weight: Access | None = None
    for coefficient, deltas, exponent, factors in rebase(state.inside):
        part = assembly.read(old, site, "sum", factors)
        for run, power in deltas:
            part = build.mul(part, build.power(_delta(assembly, site, run, old, new), power))
        total = build.add(total, build.mul(part, build.number(coefficient)))
        if exponent and weight is None:
            weight = _weight(assembly, site, exponent, old, new)
    if weight is None:
        return total
    if anchored(assembly, site, state.inside):
        return build.mul(total, weight)
    nothing = build.map("eq", total, build.number(0.0), dtype="bool")
    return build.select(nothing, build.number(0.0), build.mul(total, weight))


def _delta(assembly: Assembly, site: Site, run: Poly, old: Moment, new: Moment, raw: bool = False) -> Access:
    """How much the shift grows from the old moment to the new one."""
    sign, run = signed(run)
    before = assembly.shift_value(old, site, run, raw=raw)
    after = assembly.shift_value(new, site, run)
    if sign > 0 and raw:
        # A minimum of nothing is inf: less it is -inf, whose exponential is 0.
        return assembly.build.add(after, assembly.build.map("neg", before))
    return assembly.build.sub(before, after) if sign < 0 else assembly.build.sub(after, before)


def _weight(assembly: Assembly, site: Site, exponent: Poly, old: Moment, new: Moment) -> Access:
    build = assembly.build
    total = build.number(0.0)
    for coefficient, factors in exponent:
        part = build.number(coefficient)
        for gen, power in factors:
            if isinstance(gen, Shift):
                raw = _is_anchor(assembly, site, coefficient, factors)
                part = build.mul(_delta(assembly, site, gen.run, old, new, raw), part)
            elif isinstance(gen, Elem):
                part = build.mul(part, build.power(plain(gen.access), power))
            else:
                assert isinstance(gen, Size)
                part = build.mul(part, build.power(size(gen.dim, build.dtype), power))
        total = build.add(total, part)
    return build.map("exp", total)


def anchored(assembly: Assembly, site: Site, inside: Factors) -> bool:
    """Does a monomial have the exponential of an anchored shift?"""
    return any(
        _is_anchor(assembly, site, coefficient, factors)
        for gen, _ in inside
        if isinstance(gen, Exp)
        for coefficient, factors in gen.arg
    )


def _is_anchor(assembly: Assembly, site: Site, coefficient: Fraction, factors: Factors) -> bool:
    """Is this term `base - max base` (or `min base - base`)? Then all that was summed while the maximum
    was -inf is 0, and the plain weight `exp(-inf - u')` is right."""
    gen = factors[0][0] if len(factors) == 1 else None
    single = assembly.lattice_run(gen.run) if isinstance(gen, Shift) else None
    if not isinstance(gen, Shift) or single is None or not tied(assembly, site, gen):
        return False
    return coefficient * gen.base[0][0] * (1 if single[2] == "max" else -1) >= 0


def tied(assembly: Assembly, site: Site, gen: Shift) -> bool:
    """Is a shift the difference of a value and its own maximum, or minimum, over all that is summed?"""
    single = assembly.lattice_run(gen.run)
    if single is None or len(gen.base) != 1 or len(gen.base[0][1]) != 1:
        return False
    sign, access, _, _ = single
    base, power = gen.base[0][1][0]
    if not isinstance(base, Elem) or power != 1 or gen.base[0][0] != -sign:
        return False
    op = access.node.op
    assert isinstance(op, Reduce)
    if [i.dim for i in op.bound] != [i.dim for i in site.node.bound]:
        return False
    where: dict[Index, Term] = at_axes(access)
    where |= {own: var(mine) for own, mine in zip(op.bound, site.node.bound, strict=True)}
    return plain(op.arg.at(where)) == plain(base.access)
