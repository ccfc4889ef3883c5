"""What happened, for people: the stages of one compilation as plain text, and the same as data.

Everything shown is read off the `Plan`: nothing is computed again, so what is printed is what was used.
"""

from __future__ import annotations

from collections.abc import Mapping

from cleave.ir.candidate import Candidate
from cleave.ir.dims import Dim
from cleave.ir.text import print_program
from cleave.pipeline import Plan, emit
from cleave.schedule.select import Ranked
from cleave.schedule.text import print_tiles


def explain(plan: Plan, *, best: int = 3) -> str:
    """The whole story: program, candidates, derivations of the best `best`, schedule, source, rejections."""
    parts = [
        section("Program", print_program(plan.program)),
        section("Candidates", candidates_table(plan)),
        *(section(f"Derivation: {c.form}", derivation(c)) for c in chosen_first(plan)[:best]),
    ]
    for number, ranked in enumerate(plan.variants):
        title = f"Variant {number + 1}: from candidate '{ranked.candidate.form}'"
        parts.append(section(title, schedule_text(ranked)))
        parts.append(section(f"Source of variant {number + 1}", emit(ranked.tiles, plan.target).text))
    parts.append(section("Considered and rejected", rejected(plan)))
    return "\n".join(parts)


def section(title: str, body: str) -> str:
    """A heading, underlined, and its text."""
    return f"{title}\n{'-' * len(title)}\n{body.rstrip()}\n"


def chosen_first(plan: Plan) -> list[Candidate]:
    """The candidates that variants were made of, then the others."""
    used = [v.candidate for v in plan.variants]
    rest = [c for c in plan.candidates if c not in used]
    return list(dict.fromkeys(used)) + rest if rest else used


def candidates_table(plan: Plan) -> str:
    """One line a candidate: form, splits, cost, standing."""
    lines: list[str] = []
    for number, candidate in enumerate(plan.found.candidates, 1):
        costs = ", ".join(f"{name} {text}" for name, text in candidate.cost)
        marks = [
            *(f"split over {dim}" for dim in candidate.splits),
            *(["reassociated"] if candidate.reassociated else []),
            *([] if candidate.stable else ["unstable"]),
        ]
        note = f" ({', '.join(marks)})" if marks else ""
        lines.append(f"{number:2}. {candidate.form}{note}\n      {costs}")
    counts = ", ".join(f"{name} {count}" for name, count in plan.found.counts.items())
    return "\n".join([*lines, f"counts: {counts}"])


def derivation(candidate: Candidate) -> str:
    """Numbered laws with what they change, the Folds, and the numeric conditions."""
    lines: list[str] = []
    for number, step in enumerate(candidate.derivation, 1):
        lines.append(f"{number:2}. {step.law}" + (f", at {step.place}" if step.place else ""))
        if step.before:
            lines.append(f"      from {step.before}")
        if step.after:
            lines.append(f"      to   {step.after}")
    if not candidate.derivation:
        lines.append("as the user wrote it")
    for fold in candidate.folds:
        values = ", ".join(candidate.program.names.get(v.node, v.name) for v in fold.values)
        lines.append(f"fold over {fold.over}: state ({', '.join(fold.state)}) gives {values}")
        if fold.reason:
            lines.append(f"      {fold.reason}")
    for condition in candidate.conditions:
        verdict = "holds" if condition.holds else "does not hold"
        lines.append(
            f"{condition.kind} of {condition.subject}: {condition.bound} {verdict} ({condition.why})"
        )
    return "\n".join(lines)


def schedule_text(ranked: Ranked) -> str:
    """The tile program and what the cost model says of it."""
    return f"{print_tiles(ranked.tiles)}\ncost model: {ranked.cost}"


def rejected(plan: Plan) -> str:
    """The tile programs that ranked below the chosen ones, and the candidates that the settings leave out."""
    lines: list[str] = []
    for point, ranked in zip(plan.representatives, plan.ranked, strict=True):
        lines.append(f"at {sizes_text(point)}:")
        best = ranked[0].cost.seconds
        for other in ranked[1:]:
            ratio = other.cost.seconds / best if best else 1.0
            lines.append(f"  {other.tiles.name} of '{other.candidate.form}': {ratio:.2f}x the modelled time")
    kept = {c.form for c in plan.candidates}
    for candidate in plan.found.candidates:
        if candidate.form not in kept:
            why = "changes the operation count class" if candidate.reassociated else "numerically unstable"
            lines.append(f"'{candidate.form}' left out: {why}")
    return "\n".join(lines)


def sizes_text(sizes: Mapping[Dim, int]) -> str:
    return ", ".join(f"{dim}={value}" for dim, value in sizes.items())


def as_data(plan: Plan) -> dict[str, object]:
    """The same for `--json`."""
    return {
        "program": print_program(plan.program),
        "target": plan.target,
        "counts": dict(plan.found.counts),
        "candidates": [
            {
                "form": c.form,
                "stable": c.stable,
                "reassociated": c.reassociated,
                "splits": [str(d) for d in c.splits],
                "cost": dict(c.cost),
                "program": print_program(c.program),
                "derivation": [[s.law, s.place, s.before, s.after] for s in c.derivation],
            }
            for c in plan.found.candidates
        ],
        "variants": [
            {
                "form": v.candidate.form,
                "tiles": print_tiles(v.tiles),
                "seconds": v.cost.seconds,
                "source": emit(v.tiles, plan.target).text,
            }
            for v in plan.variants
        ],
    }
