"""What algebra found, as text: candidates with their cost, derivations, Folds, numeric conditions.

Values are called what they are called in the printed program (`dot1`, `max1`), so that every line can be
looked up there.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import repeat

from cleave.algebra.cost import bytes_of
from cleave.algebra.laws import LAWS
from cleave.algebra.search import Found
from cleave.algebra.stability import spell
from cleave.algebra.verdict import verdict
from cleave.ir.candidate import Candidate, Step
from cleave.ir.dims import Dim
from cleave.ir.ops import Contract, Map, Node
from cleave.ir.program import Program
from cleave.ir.text import parse_program, print_program
from cleave.knobs import Knobs
from cleave.report.formulas import element_texts, finish_formulas, step_formulas
from cleave.report.schedule import WIDE
from cleave.schedule.machine import width

ASKED = {
    "exponent": {"exp": (0,)},
    "denominator": {"div": (1,), "reciprocal": (0,), "rsqrt": (0,), "log": (0,)},
}
"""Which arguments of which operations a kind of condition is about; a range is about those of products."""


COSTS = {
    "operations": "operations",
    "bytes": "bytes in, out and between",
    "elements": "elements in, out and between",
    "intermediates": "elements between reductions",
    "depth": "reductions in a row",
}
"""What the entries of a symbolic cost count."""


def named(program: Program) -> Program:
    """The same program, with the names that its nodes have in print."""
    # Nodes are interned: the parsed program has the same ones.
    return replace(program, names=parse_program(print_program(program)).names)


def names_of(candidate: Candidate) -> Mapping[Node, str]:
    """What the printed program of a candidate calls its nodes."""
    return named(candidate.program).names


def costs_of(candidate: Candidate) -> tuple[tuple[str, str], ...]:
    """The symbolic cost of a candidate, by name, with bytes for elements."""
    moved = str(bytes_of(candidate.program, width))
    return tuple(("bytes", moved) if name == "elements" else (name, text) for name, text in candidate.cost)


def candidates_text(found: Found) -> str:
    """One entry a candidate: form, marks, the numerical verdict, and what changes in cost against the user's
    program."""
    lines: list[str] = []
    user = found.candidates[0].program
    first = dict(costs_of(found.candidates[0]))
    seen: dict[tuple[tuple[str, str], ...], int] = {}
    for number, candidate in enumerate(found.candidates, 1):
        note = f" ({', '.join(marks)})" if (marks := marks_of(candidate)) else ""
        lines.append(f"{number:2}. {candidate.form}{note}")
        told = verdict(user, candidate)
        lines.append(f"      {told.level}: {told.why}")
        costs = costs_of(candidate)
        before = seen.setdefault(costs, number)
        if before != number:
            lines.append(f"      cost as in {before}")
            continue
        changed = [(n, text) for n, text in costs if number == 1 or text != first.get(n)]
        lines += [f"      {COSTS.get(name, name)}: {text}" for name, text in changed]
    return "\n".join([*lines, counts_text(found)])


def counts_text(found: Found) -> str:
    """How many programs the search built and kept, and why it dropped the others."""
    counts = ", ".join(f"{name} {count}" for name, count in found.counts.items())
    return f"search: {counts}"


def dropped_text(found: Found) -> str:
    """The programs that were built and not kept, each with why, and the proof of that."""
    lines: list[str] = []
    for dropped in found.dropped:
        lines.append(f"program '{dropped.form}' dropped: {dropped.reason}")
        lines += [f"      {line}" for line in dropped.proof]
    return "\n".join(lines)


def marks_of(candidate: Candidate) -> list[str]:
    """What sets a candidate apart, in words."""
    return [
        *(f"split over {dim}" for dim in candidate.splits),
        *(["another operation count class"] if candidate.reassociated else []),
        *([] if candidate.stable else ["stands worse than the user's program"]),
    ]


def left_out(candidate: Candidate, settings: Knobs) -> str:
    """Why the settings keep a candidate from being scheduled."""
    if settings.numerics == "strict":
        return "numerics is strict, so only the order in which the terms of a sum are added may change"
    if candidate.reassociated and not settings.reassociate:
        return "it changes the operation count class, which CLEAVE_REASSOCIATE=1 allows"
    failed = next((c for c in candidate.conditions if not c.holds), None)
    return f"its {failed.kind} of {failed.subject}: {failed.why}" if failed else "it is not stable"


# ---------------------------------------------------------------- one candidate


def derivation_text(candidate: Candidate) -> str:
    """The numbered laws from the user's program to a candidate, each with its place, before and after."""
    if not candidate.derivation:
        return "The program is as the user wrote it."
    return steps_text(candidate.derivation)


def steps_text(steps: Sequence[Step]) -> str:
    """Numbered steps: the law and its place, then its conditions, what goes and what comes."""
    lines: list[str] = []
    for number, step in enumerate(steps, 1):
        law = f"{step.law}: {LAWS[step.law]}" if step.law in LAWS else step.law
        lines.append(f"{number:2}. {law}" + (f", at {step.place}" if step.place else ""))
        told = {w: t for w, t in (("given", step.given), ("from", step.before), ("to", step.after)) if t}
        width = max(map(len, told), default=0)
        for word, text in told.items():
            starts = [word, *repeat("", text.count("\n"))]
            lines += [f"      {s:{width}} {line}" for s, line in zip(starts, text.split("\n"), strict=True)]
    return "\n".join(lines)


def proof_of(candidate: Candidate) -> str:
    """What is proved of a candidate: the search keeps those whose proof is a Yes, and no others."""
    if not candidate.derivation:
        return "none needed, it is the user's program"
    split = f"; so is its form split over {', '.join(map(str, candidate.splits))}" if candidate.splits else ""
    return f"Yes, equal to the user's program over the finite reals for every size{split}"


def folds_text(candidate: Candidate, *, most: int = 99) -> str:
    """The Folds: which reductions are computed together in one pass over a dim, from what state, how a piece
    changes the state, and how the values follow from it. A formula takes `most` lines at most."""
    program = named(candidate.program)
    names = program.names
    lines: list[str] = []
    for fold in candidate.folds:
        values = ", ".join(names.get(v.node, v.name) for v in fold.values)
        lines.append(f"over {fold.over}: {values}, from the state ({', '.join(fold.state)})")
        lines.append(f"      each piece reads: {', '.join(element_texts(fold, program))}")
        for text in step_formulas(fold):
            lines += wrapped(text, "      piece:  ", most=most)
        for text in finish_formulas(fold, names):
            lines += wrapped(text, "      result: ", most=most)
        if fold.support is not None:
            where = spell(program, fold.support)
            lines.append(f"      pieces where {where} is false throughout are skipped")
        lines += [f"      {fold.reason}"] if fold.reason else []
    return "\n".join(lines) or "No dim is reduced."


def wrapped(text: str, first: str, *, most: int) -> list[str]:
    """A text on as many lines as it needs, broken at spaces, cut after `most`."""
    later = " " * (len(first) + 2)
    lines = textwrap.wrap(text, WIDE, initial_indent=first, subsequent_indent=later, break_long_words=False)
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1]} ..."]


def verdict_text(user: Program, candidate: Candidate) -> str:
    """Under which setting of numerics a candidate may be used, and why."""
    return str(verdict(user, candidate))


def conditions_text(candidate: Candidate) -> str:
    """The numeric conditions: what each is about, its bound, whether it holds and why."""
    lines: list[str] = []
    for condition, subject in zip(candidate.conditions, subjects_of(candidate), strict=True):
        verdict = "holds" if condition.holds else "DOES NOT HOLD"
        bound = condition.bound
        if condition.subject in bound:
            bound = bound.replace(condition.subject, subject)
        lines.append(f"{condition.kind} of {subject}: {bound}; {verdict}: {condition.why}")
    return "\n".join(lines) or "No value asks for one."


def subjects_of(candidate: Candidate) -> list[str]:
    """For each condition, the name of its value in the printed program. Conditions spell values out; where
    several values are spelled alike and not each has a condition of its own, the spelling stays."""
    names = names_of(candidate)
    alike: dict[tuple[str, str], list[str]] = {}
    for kind, node, spelled in _asked(candidate):
        called = alike.setdefault((kind, spelled), [])
        if names.get(node, spelled) not in called:
            called.append(names.get(node, spelled))
    groups: dict[tuple[str, str], list[int]] = {}
    for number, condition in enumerate(candidate.conditions):
        groups.setdefault((condition.kind, condition.subject), []).append(number)
    subjects = [c.subject for c in candidate.conditions]
    for key, numbers in groups.items():
        called = alike.get(key, [])
        if len(called) == len(numbers):
            for number, name in zip(numbers, called, strict=True):
                subjects[number] = name
    return subjects


def _asked(candidate: Candidate) -> list[tuple[str, Node, str]]:
    """Kind, node and spelling of every value that a condition may be about, in the program's order."""
    program = candidate.program
    found: list[tuple[str, Node]] = []
    for node in program.nodes:
        op = node.op
        if isinstance(op, Map):
            for kind, places in ASKED.items():
                found += [(kind, op.args[n].node) for n in places.get(op.fn, ())]
        elif isinstance(op, Contract):
            found += [("range", a.node) for a in op.args]
    return [(kind, node, spell(program, node.read())) for kind, node in found]


# ---------------------------------------------------------------- cost in numbers


def at(text: str, sizes: Mapping[Dim, int]) -> int | None:
    """The value of a printed polynomial in sizes; None if it has a size that is not known."""
    known = {str(dim): size for dim, size in sizes.items()}
    total = 0
    for term in text.split(" + "):
        product = 1
        for factor in term.split("*"):
            if factor.isdigit():
                product *= int(factor)
            elif factor in known:
                product *= known[factor]
            else:
                return None
        total += product
    return total
