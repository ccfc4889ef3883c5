"""What happened, for people: the stages of one compilation as plain text, and the same as data.

Everything shown is read off the `Plan`: nothing is computed again, so what is printed is what was used.
"""

from __future__ import annotations

from cleave.algebra.verdict import verdict
from cleave.ir.candidate import Candidate, Step
from cleave.ir.text import print_candidate, print_program
from cleave.knobs import knobs
from cleave.pipeline import Plan, emit
from cleave.report.found import (
    COSTS,
    at,
    candidates_text,
    conditions_text,
    costs_of,
    counts_text,
    derivation_text,
    dropped_text,
    folds_text,
    left_out,
    proof_of,
    verdict_text,
)
from cleave.report.schedule import (
    amount,
    dynamic_text,
    facts,
    maps_text,
    others_text,
    points_of,
    sizes_text,
    variant_text,
)
from cleave.schedule.select import Ranked
from cleave.schedule.text import print_tiles


def explain(plan: Plan, *, source: str = "chosen") -> str:
    """The whole story: program, candidates, the chosen one's derivation and conditions, schedule, source,
    rejections. `source` says of which variants to print the tile program and the source: `chosen` (the
    first), `all` or `none`."""
    chosen = plan.variants[0]
    parts = [
        summary(plan),
        section("Program", print_program(plan.program)),
        *([section("Recipe", plan.recipe.text())] if plan.recipe or plan.recipe.notes else []),
        section("Candidates", candidates_text(plan.found)),
        section(f"Derivation of the chosen candidate: {chosen.candidate.form}", chosen_text(plan, chosen)),
        *(
            section(f"Derivation of the next best: {candidate.form}", other_text(plan, candidate))
            for candidate in next_best(plan)
        ),
    ]
    for number, variant in enumerate(plan.variants, 1):
        title = f"Schedule: variant {number} of {len(plan.variants)}, from '{variant.candidate.form}'"
        parts.append(section(title, variant_text(plan, variant)))
        if number == 1:
            parts.append(section("Tile maps of variant 1", maps_text(variant.tiles)))
        if source == "all" or (source == "chosen" and number == 1):
            parts.append(section(f"Tile program of variant {number}", print_tiles(variant.tiles)))
            parts.append(section(f"Source of variant {number}", emit(variant.tiles, plan.target).text))
    parts.append(section("Considered and rejected", rejected(plan)))
    return "\n".join(parts)


def summary(plan: Plan) -> str:
    """What was compiled and what came out, in a few lines."""
    chosen = plan.variants[0]
    point = dynamic_text(plan, plan.representatives[0])
    return (
        f"{plan.program.name} for {plan.target}\n"
        f"Decided by {decided(plan)}.\n"
        f"{len(plan.found.candidates)} candidates, {len(plan.variants)} variants. "
        f"At {point}: candidate '{chosen.candidate.form}', {', '.join(facts(chosen.tiles))}; "
        f"{times_text(plan)}.\n"
    )


def times_text(plan: Plan) -> str:
    """What a call of the first variant takes, each time by its name: modelled, and measured if it was, at
    sizes that are said where they are others than those of the first representative."""
    chosen, here = plan.variants[0], plan.representatives[0]
    modelled = f"modelled {amount(chosen.cost.seconds)}s"
    found = plan.recipe.measured(chosen.tiles, here)
    if found is None:
        return f"{modelled}, not measured"
    point, seconds = found
    same = all(here[dim] == size for dim, size in point.items())
    return f"{modelled}, measured {amount(seconds)}s{'' if same else f' at {sizes_text({**point})}'}"


def decided(plan: Plan) -> str:
    """What decided for the first variant: a recipe, by its file and the point that was measured, or the cost
    model, and why no recipe did."""
    if plan.target == "interpret":
        return "the cost model: no recipe serves Triton's interpreter"
    return plan.recipe.decided(plan.variants[0].tiles, plan.representatives[0])


def section(title: str, body: str) -> str:
    """A heading, underlined, and its text."""
    return f"{title}\n{'-' * len(title)}\n{body.rstrip()}\n"


def chosen_text(plan: Plan, chosen: Ranked) -> str:
    """A candidate's derivation, proof, Folds, conditions, and its cost before and after."""
    candidate = chosen.candidate
    return "\n".join(
        [
            derivation_text(candidate),
            f"\nProof: {proof_of(candidate)}",
            f"\nFolds (how each dim is reduced piece by piece)\n{folds_text(candidate)}",
            f"\nNumerical verdict\n{verdict_text(plan.program, candidate)}",
            f"\nNumeric conditions\n{conditions_text(candidate)}",
            f"\nCost before and after\n{before_after(plan, candidate)}",
        ]
    )


MOST_DERIVATIONS = 3
"""Candidates whose derivations are printed, the chosen one among them."""


def next_best(plan: Plan) -> list[Candidate]:
    """The best candidates beside the chosen one, by the cost model at the first representative; those that no
    tile program among the best ones comes from go last, in the order in which they were found."""
    chosen = plan.variants[0].candidate
    ranked = [r.candidate for ranking in plan.ranked for r in ranking]
    forms = dict.fromkeys(c.form for c in (*ranked, *plan.candidates) if c.form != chosen.form)
    by_form = {c.form: c for c in plan.candidates}
    return [by_form[form] for form in list(forms)[: MOST_DERIVATIONS - 1]]


def other_text(plan: Plan, candidate: Candidate) -> str:
    """A candidate's derivation, proof and verdict, and its cost before and after."""
    return "\n".join(
        [
            derivation_text(candidate),
            f"\nProof: {proof_of(candidate)}",
            f"\nNumerical verdict\n{verdict_text(plan.program, candidate)}",
            f"\nCost before and after\n{before_after(plan, candidate)}",
        ]
    )


def before_after(plan: Plan, candidate: Candidate) -> str:
    """The symbolic cost of the user's program and of a candidate, in numbers at the first representative."""
    point = plan.representatives[0]
    lines = [f"at {dynamic_text(plan, point)}"]
    first = plan.found.candidates[0]
    for title, one in {"as written": first, candidate.form: candidate}.items():
        values = [(name, at(text, point)) for name, text in costs_of(one)]
        texts = [f"{COSTS.get(name, name)} {value:,}" for name, value in values if value is not None]
        lines.append(f"  {title}: {', '.join(texts)}")
    return "\n".join(lines)


def rejected(plan: Plan) -> str:
    """What the search dropped and why, what the settings leave out, and the tile programs that rank below."""
    lines = [counts_text(plan.found), *([text] if (text := dropped_text(plan.found)) else [])]
    kept = {c.form for c in plan.candidates}
    settings = knobs()
    for candidate in plan.found.candidates:
        if candidate.form not in kept:
            lines.append(f"candidate '{candidate.form}' left out: {left_out(candidate, settings)}")
    return "\n".join([*lines, others_text(plan)])


def as_data(plan: Plan) -> dict[str, object]:
    """The same for `--json`."""
    return {
        "program": print_program(plan.program),
        "target": plan.target,
        "decided": decided(plan),
        "measured": _measured_data(plan),
        "recipe": plan.recipe.text() if plan.recipe or plan.recipe.notes else None,
        "counts": dict(plan.found.counts),
        "dropped": [
            {
                "form": d.form,
                "reason": d.reason,
                "proof": list(d.proof),
                "derivation": [_step_data(s) for s in d.derivation],
            }
            for d in plan.found.dropped
        ],
        "candidates": [_candidate_data(plan, c) for c in plan.found.candidates],
        "variants": [_variant_data(plan, v) for v in plan.variants],
        "considered": [
            {
                "sizes": {str(d): n for d, n in point.items()},
                "ranked": [
                    {"form": r.candidate.form, "seconds": r.cost.seconds, "tiles": print_tiles(r.tiles)}
                    for r in ranked
                ],
            }
            for point, ranked in zip(plan.representatives, plan.ranked, strict=True)
        ],
    }


def _measured_data(plan: Plan) -> dict[str, object] | None:
    """The point nearest to the first representative where the first variant was measured, and its seconds."""
    found = plan.recipe.measured(plan.variants[0].tiles, plan.representatives[0])
    if found is None:
        return None
    return {"sizes": {str(d): n for d, n in found[0].items()}, "seconds": found[1]}


def _candidate_data(plan: Plan, candidate: Candidate) -> dict[str, object]:
    told = verdict(plan.program, candidate)
    return {
        "form": candidate.form,
        "used": candidate.form in {c.form for c in plan.candidates},
        "stable": candidate.stable,
        "reassociated": candidate.reassociated,
        "splits": [str(d) for d in candidate.splits],
        "cost": {**dict(candidate.cost), **dict(costs_of(candidate))},
        "verdict": {"level": told.level, "why": told.why, "bounds": list(told.bounds)},
        "proof": proof_of(candidate),
        "derivation": [_step_data(s) for s in candidate.derivation],
        "conditions": [
            {"kind": c.kind, "subject": c.subject, "bound": c.bound, "holds": c.holds, "why": c.why}
            for c in candidate.conditions
        ],
        "text": print_candidate(candidate),
    }


def _step_data(step: Step) -> dict[str, str]:
    return {"law": step.law, "place": step.place, "before": step.before, "after": step.after}


def _variant_data(plan: Plan, variant: Ranked) -> dict[str, object]:
    cost = variant.cost
    return {
        "form": variant.candidate.form,
        "best_at": [{str(d): n for d, n in p.items()} for p in points_of(plan, variant)],
        "facts": facts(variant.tiles),
        "maps": maps_text(variant.tiles),
        "tiles": print_tiles(variant.tiles),
        "cost": {name: getattr(cost, name) for name in cost.__dataclass_fields__},
        "source": emit(variant.tiles, plan.target).text,
    }
