"""Derivations: the named laws that lead from the user's program to a candidate, for people.

Each chosen reading is one step: the law, the value it was applied to, the flat form before, and how it is
built after, readable with pencil and paper.
"""

from __future__ import annotations

from fractions import Fraction

from cleave.algebra.clusters import Product, is_linear
from cleave.algebra.read import Reader, Reading
from cleave.algebra.stability import spell
from cleave.ir.candidate import Step
from cleave.ir.dims import Index, Term
from cleave.ir.ops import Access, Node
from cleave.ir.program import Program


def describe(
    reader: Reader, program: Program, choice: dict[Node, Reading]
) -> tuple[tuple[Step, ...], tuple[str, ...]]:
    """The steps of a choice of readings, and the places where a difference may cancel."""
    steps: list[Step] = []
    cancels: list[str] = []
    for node, reading in choice.items():
        place = spell(program, node.read())
        if is_linear(node):
            form = reader.flat.form(node)
            before, after = spell_form(program, form), _after(program, form, reading)
        else:
            before, after = place, "sum(common * (rest + rest))"
        steps.append(Step(reading.law, place, before, after))
        if reading.cancels:
            cancels.append(place)
    return tuple(steps), tuple(cancels)


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


def spell_form(program: Program, form: Product) -> str:
    """A flat form as text."""
    bound = " ".join(f"sum[{name_of(i)}]" for i in form.bound)
    body = _product(program, form.factors, form.coefficient)
    return f"{bound} {body}".strip()


def _after(program: Program, form: Product, reading: Reading) -> str:
    inside = _product(program, form.inside, Fraction(1))
    outside = _product(program, form.free, form.coefficient)
    order = [form.bound[n] for n in reading.order] if reading.order else list(form.bound)
    sums = " ".join(f"sum[{name_of(i)}]" for i in reversed(order))
    if reading.opened >= 0:
        return f"{sums} of each term"
    if reading.last:
        inside = _product(program, tuple(reversed(form.inside)), Fraction(1))
    if not form.free and form.coefficient == 1:
        return f"{sums} ({inside})"
    return f"({sums} {inside}) * {outside}" if reading.late else f"{sums} ({inside} * {outside})"


def _product(program: Program, factors: tuple[tuple[Access, Fraction], ...], c: Fraction) -> str:
    parts = [] if c == 1 and factors else [f"{float(c):g}"]
    for access, power in factors:
        text = spell(program, access)
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
