"""Derivations: the named laws that lead from the user's program to a candidate, for people.

A reading of a cluster may use several laws at once; here it is taken apart into stages of one law each, which
`chain` tells as steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from cleave.algebra.bodies import Exp, Run, Shift
from cleave.algebra.chain import Chain, Law
from cleave.algebra.clusters import Product
from cleave.algebra.folds import cut_plainly, split_from
from cleave.algebra.frame import plain
from cleave.algebra.pieces import Assembly
from cleave.algebra.read import Reader, Reading, orders_of
from cleave.ir.dims import Index, Term
from cleave.ir.ops import Access, Node
from cleave.ir.program import Program

FINITE = "the sums are finite"
REGROUPED = Law("a product is associative and commutative", "no condition")
COMMUTE = Law("sums over two indices commute, and factors without the index of a sum leave it", FINITE)
OTHER = Law("a shared factor joins another operand of the product", "no condition")
OPENED = Law("a sum of a sum is the sum of sums", FINITE)
COMMON = Law("a common factor leaves a sum", "no condition")
TERMS = Law("in each term, sums commute and factors without the index of a sum leave or join it", FINITE)
MOVED = Law("factors without the index of a part leave its sum", "no condition")
CARRIED = {
    Exp: Law(
        "exp(f - u) = exp(f - p) * exp(p - u), p what u is for a part, and exp(p - u) leaves its sum",
        "p is finite; where it is not, 0 is taken off",
    ),
    Shift: Law(
        "f - u = (f - p) + (p - u), p what u is for a part; products and squares open, p - u leaves its sum",
        "p is defined; an empty part has one that is",
    ),
}
"""How a sum around a value of the whole is had from one around a value of a part."""


Told = dict[tuple[int, tuple[tuple[Node, Reading], ...]], Chain]
"""Chains by reader and the stages that led to them: many choices of readings begin alike."""


def told(chain: Chain, reader: Reader, choice: Mapping[Node, Reading], known: Told) -> Chain:
    """The chain with the steps of a choice of readings, of the program that the chain has led to."""
    names = chain.program
    done: tuple[tuple[Node, Reading], ...] = ()
    for node, reading in choice.items():
        for law, stage in stages(reader, names, node, reading):
            key = id(reader), (*done, (node, stage))
            if key not in known:
                known[key] = chain.then(law, reader.rebuild(dict(key[1])), names.names.get(node, ""))
            chain = known[key]
        done = (*done, (node, reading))
    return chain


def stages(reader: Reader, program: Program, node: Node, reading: Reading) -> list[tuple[Law, Reading]]:
    """A reading of a node as readings of one law each, the last one being it; some may change nothing."""
    if reading.common[0] >= 0:
        return [(TERMS, replace(reading, raw=True)), (COMMON, reading)]
    form = reader.flat.form(node)
    own = orders_of(form)[0]
    if reading.opened >= 0:
        first = replace(reading, order=own, raw=True)
        return [(OPENED, first), (COMMUTE, replace(reading, raw=True)), (TERMS, reading)]
    first = replace(reading, order=own, last=False)
    return [
        (_moved(program, form, reading.late), first),
        (COMMUTE, replace(reading, last=False)),
        (OTHER, reading),
    ]


def _moved(program: Program, form: Product, late: bool) -> Law:
    if not form.free and form.coefficient in (1, -1):
        return REGROUPED
    text = "a factor without the bound index leaves the sum" if late else "a factor joins the sum"
    factors = [_product(program, ((access, Fraction(1)),)) for access, _ in form.free]
    factors += [f"{float(form.coefficient):g}"] if form.coefficient not in (1, -1) else []
    verb = "does" if len(factors) == 1 else "do"
    return Law(text, f"{' and '.join(factors)} {verb} not depend on {', '.join(map(name_of, form.bound))}")


def split(chain: Chain, assembly: Assembly) -> Chain:
    """The chain with one loop cut into parts: first every reduction by itself, then so that no part needs
    what only all parts together know."""
    over, states = assembly.over, assembly.states.values()
    kinds = " and ".join(sorted({"sum" if s.kind == "count" else s.kind for s in states}))
    cut = Law(
        f"a {kinds} over {over} is one over parts of one in each part",
        f"the parts are disjoint and make up {over}",
    )
    gens = {type(gen) for state in states for gen, _ in state.inside}
    own = [law for kind, law in CARRIED.items() if kind in gens]
    if not own or any(outside for m in assembly.members.values() for _, outside, _ in m.terms):
        own.append(MOVED)
    given = [*_running(chain.program, assembly), *(o.given for o in own if o is not MOVED)] or [MOVED.given]
    law = Law("; ".join(o.text for o in own), "; ".join(given))
    return chain.then(cut, cut_plainly(chain.program, assembly)).then(
        law, split_from(chain.program, assembly)
    )


def _running(program: Program, assembly: Assembly) -> list[str]:
    """Which values the laws call `u`."""
    found: dict[str, None] = {}
    for state in assembly.states.values():
        shifts = [gen for gen, _ in state.inside if isinstance(gen, Shift)]
        for exponent in (gen for gen, _ in state.inside if isinstance(gen, Exp)):
            shifts += [gen for _, factors in exponent.arg for gen, _ in factors if isinstance(gen, Shift)]
        runs = [gen for shift in shifts for _, factors in shift.run for gen, _ in factors]
        nodes = [plain(gen.access).node for gen in runs if isinstance(gen, Run)]
        found |= {program.names[node]: None for node in nodes if node in program.names}
    return [f"u is {', '.join(found)}"] if found else []


def form_name(reader: Reader, choice: dict[Node, Reading]) -> str:
    """What is special about a choice, in a few words."""
    words: list[str] = []
    for node, reading in choice.items():
        words += [w for w in _words(reader, node, reading) if w not in words]
    return ", ".join(words)


def _words(reader: Reader, node: Node, reading: Reading) -> list[str]:
    if reading.common[0] >= 0:
        return ["common factor out"]
    if reading.opened >= 0:
        return ["distributed"]
    form = reader.flat.form(node)
    words: list[str] = []
    powers = [p for _, p in form.free]
    if powers or form.coefficient not in (1, -1):
        when = "last" if reading.late else "first"
        if any(p < 0 for p in powers):
            words.append(f"divided {when}")
        if any(p > 0 for p in powers) or not powers:
            words.append(f"scaled {when}")
    if len(form.bound) > 1 and reading.order:
        words.append(" before ".join(str(form.bound[n].dim) for n in reading.order))
    if reading.last:
        words.append("shared factor joins the last operand")
    return words or ["rebuilt"]


def _product(program: Program, factors: tuple[tuple[Access, Fraction], ...]) -> str:
    parts: list[str] = []
    for access, power in factors:
        text = program.names.get(access.node, "") or getattr(access.node.op, "name", "a value")
        if access.terms:
            text += f"[{', '.join(map(_term, access.terms))}]"
        parts.append(text if power == 1 else f"{text}^{power}")
    return " * ".join(parts)


def _term(value: Term) -> str:
    variable = value.variable
    return name_of(variable) if variable is not None else "..."


def name_of(index: Index) -> str:
    """An index by its dim; bound ones by the dim too, small letters."""
    return str(index.dim).lower()
