"""The values of a Fold on degenerate rows, as its program has them (design.md, section 3, Folds).

While a loop runs, a shift that is not finite counts as 0, since nothing may have been seen yet. When all has
been seen, the program has the shift as it is: a row whose maximum is -inf is `exp(-inf - -inf)`, NaN, and not
a sum of nothing. So a value that is handed out is corrected for the shifts that the program does not guard
itself: by `exp` of the shift where that is all there is to it, else by `u - u`, which is 0 or NaN. Where
indicators mask every term, nothing was there to be NaN; a component of its own says whether any was.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cleave.algebra.bodies import Elem, Exp, Factors, Gate, Gen, Indicator, Poly, Run, Shift, Size, unguarded
from cleave.algebra.emission import signed
from cleave.algebra.frame import at_axes, plain
from cleave.algebra.rescaled import tied
from cleave.ir.ops import Access, Cat, Const, Map, size

if TYPE_CHECKING:
    from cleave.algebra.build import Builder
    from cleave.algebra.pieces import Assembly, Reading

SPREADING = ("add", "sub", "mul", "div", "neg", "exp", "log", "sqrt", "rsqrt", "reciprocal")
"""Operations that are NaN wherever one of their arguments is."""


def settled(assembly: Assembly, view: Reading, part: Access, outside: Factors, inside: Factors) -> Access:
    """A sum at the end, `part`, as the program has it if a shift is not finite; `part` itself where what
    waits, `outside`, is NaN then anyway, and where the program guards its shifts."""
    build, site = assembly.build, view.site
    shifts = open_shifts(assembly, inside)
    every = all(tied(assembly, site, s) for s in shifts)
    if not shifts or (every and _told(assembly, outside, shifts)):
        return part
    made = part
    values = [assembly.emit.poly(view, signed(s.run)[1]) for s in shifts]
    if every or len(shifts) > 1 or any(isinstance(g, Shift) for g, _ in inside):
        for value in values:
            made = build.add(made, build.sub(value, value))
    else:
        weight = build.map("exp", _exponent(build, view, inside))
        finite = build.map("lt", build.map("abs", values[0]), build.number(math.inf), dtype="bool")
        made = build.select(finite, part, build.mul(part, weight))
    return made


def open_shifts(assembly: Assembly, inside: Factors) -> list[Shift]:
    """The shifts of a monomial that a Fold replaces by 0 and the program does not, each that differs once."""
    found: dict[Poly, Shift] = {}
    for gen in shifts_in(inside):
        if assembly.lattice_run(gen.run) is not None:
            run = gen.run[0][1][0][0]
            if isinstance(run, Run) and unguarded(plain(run.access))[1]:
                continue
        elif assembly.is_mean(gen.run):
            continue
        found.setdefault(gen.run, gen)
    return list(found.values())


def shifts_in(inside: Factors) -> list[Shift]:
    """Every shifted term of a monomial, those in its exponential too."""
    found: list[Shift] = []
    for gen, _ in inside:
        if isinstance(gen, Shift):
            found.append(gen)
        elif isinstance(gen, Exp):
            found += [s for _, factors in gen.arg for s in shifts_in(factors)]
    return found


def hidden(assembly: Assembly, outside: Factors, inside: Factors) -> Factors:
    """The component that says whether a monomial is there at all, where something that is not finite may
    stand in it, or wait for it; nothing if it does not matter or always is there."""
    waits = any(isinstance(g, Run) for g, _ in outside)
    condition = witness(assembly.build, inside) if waits or open_shifts(assembly, inside) else None
    return () if condition is None else ((Elem(condition), 1),)


def witness(build: Builder, inside: Factors) -> Access | None:
    """The condition under which a monomial is there at all; None if it always is somewhere."""
    made: Access | None = None
    for gen, _ in inside:
        if isinstance(gen, Indicator):
            own = gen.access if gen.positive else build.map("not", gen.access, dtype="bool")
            made = own if made is None else build.map("and", made, own, dtype="bool")
    return None if made is None or _somewhere(made) else made


def _somewhere(condition: Access) -> bool:
    """Is a condition true in all of one part of a union?"""
    op = condition.node.op
    return isinstance(op, Cat) and any(
        isinstance(p.node.op, Const) and p.node.op.value is True for p in op.pieces
    )


def _exponent(build: Builder, view: Reading, inside: Factors) -> Access:
    """What the running values add to the exponent of a monomial."""
    total = build.number(0.0)
    for coefficient, factors in next(g.arg for g, _ in inside if isinstance(g, Exp)):
        if not any(isinstance(g, Shift) for g, _ in factors):
            continue
        term = build.number(coefficient)
        for gen, power in factors:
            term = build.mul(term, build.power(_factor(build, view, gen), power))
        total = build.add(total, term)
    return total


def _factor(build: Builder, view: Reading, gen: Gen) -> Access:
    match gen:
        case Shift(_, run):
            return view.assembly.emit.poly(view, run)
        case Elem(access):
            return plain(access)
        case _:
            assert isinstance(gen, Size)
            return size(gen.dim, build.dtype)


def _told(assembly: Assembly, outside: Factors, shifts: list[Shift]) -> bool:
    """Is what waits NaN wherever one of the shifts is not finite?"""
    wanted = {_lattice(assembly, s) for s in shifts}
    told: set[Access] = set()
    for gen, _ in outside:
        if isinstance(gen, Run):
            told |= _telling(assembly, gen.access)
    return wanted <= told


def _telling(assembly: Assembly, access: Access) -> set[Access]:
    """The maxima and minima that make a value NaN where they are not finite."""
    access = plain(access)
    op = access.node.op
    member = assembly.members.get(access.node)
    found: set[Access] = set()
    if member is not None:
        for _, outside, inside in member.terms:
            hides = any(isinstance(g, Gate) for g, _ in outside)
            if not hides and witness(assembly.build, inside) is None:
                own = [s for s in open_shifts(assembly, inside) if tied(assembly, member.site, s)]
                found |= {_lattice(assembly, s).at(at_axes(access)) for s in own}
    elif isinstance(op, Map) and op.fn in SPREADING:
        for argument in op.args:
            found |= _telling(assembly, argument.at(at_axes(access)))
    return found


def _lattice(assembly: Assembly, shift: Shift) -> Access:
    single = assembly.lattice_run(shift.run)
    assert single is not None
    return plain(single[1])
