"""One self-contained HTML page of a compilation: everything that `explain` knows, each part foldable."""

from __future__ import annotations

from collections.abc import Sequence

import jinja2

from cleave.ir.text import print_candidate, print_program
from cleave.pipeline import Plan, emit
from cleave.report.explain import before_after, decided, rejected, summary
from cleave.report.found import (
    candidates_text,
    conditions_text,
    derivation_text,
    folds_text,
    marks_of,
    proof_of,
    verdict_text,
)
from cleave.report.schedule import maps_text, variant_text
from cleave.schedule.text import print_tiles

TEMPLATE = jinja2.Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{{ name }} for {{ target }}</title>
<style>
:root { color-scheme: light dark; --soft: #8882; --line: #8886; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; }
h1 small { font-weight: 400; opacity: 0.7; }
h2 { margin: 2rem 0 0.5rem; border-bottom: 1px solid var(--line); }
pre { background: var(--soft); padding: 0.8rem; overflow-x: auto; font-size: 13px; line-height: 1.45; }
details { margin: 0.3rem 0 0.3rem 0; }
details details { margin-left: 1.2rem; }
summary { cursor: pointer; padding: 0.2rem 0; }
summary b { font-weight: 600; }
.mark { border: 1px solid var(--line); border-radius: 0.6rem; padding: 0 0.5rem; font-size: 0.8rem; }
</style>
</head>
<body>
<h1>{{ name }} <small>for {{ target }}</small></h1>
{% for group in groups %}
<h2>{{ group.title }}</h2>
{% for part in group.parts recursive %}
<details{% if part.open %} open{% endif %}><summary><b>{{ part.title }}</b>
{% for mark in part.marks %}<span class="mark">{{ mark }}</span> {% endfor %}</summary>
{% if part.text %}<pre>{{ part.text }}</pre>{% endif %}
{% if part.parts %}{{ loop(part.parts) }}{% endif %}
</details>
{% endfor %}
{% endfor %}
</body>
</html>
""",
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
)

Part = dict[str, object]


def page(plan: Plan) -> str:
    """The page's text."""
    return TEMPLATE.render(name=plan.program.name, target=plan.target, groups=_groups(plan))


def render(name: str, target: str, groups: Sequence[Part], plans: Sequence[Plan]) -> str:
    """The page of a function of several programs: `groups` first, then each program's own."""
    own = [g for plan in plans for g in _groups(plan, f"{plan.program.name}: ")]
    return TEMPLATE.render(name=name, target=target, groups=[*groups, *own])


def group(title: str, name: str, text: str) -> Part:
    """A group of one open part."""
    return {"title": title, "parts": [part(name, text, opened=True)]}


def _groups(plan: Plan, prefix: str = "") -> list[Part]:
    return [
        group(f"{prefix}In short", f"Decided by {decided(plan)}", summary(plan)),
        group(f"{prefix}Program", "As captured", print_program(plan.program)),
        {"title": f"{prefix}What was found", "parts": _candidates(plan)},
        {"title": f"{prefix}What was chosen", "parts": _variants(plan)},
        group(f"{prefix}What was considered and rejected", "Ranking", rejected(plan)),
    ]


def part(
    title: str,
    text: str = "",
    *,
    opened: bool = False,
    parts: list[Part] | None = None,
    marks: list[str] | None = None,
) -> Part:
    """A foldable part of the page."""
    return {"title": title, "text": text.rstrip(), "open": opened, "parts": parts or [], "marks": marks or []}


def _candidates(plan: Plan) -> list[Part]:
    chosen = plan.variants[0].candidate
    parts = [part("All candidates and their cost", candidates_text(plan.found))]
    for candidate in plan.found.candidates:
        mine = candidate.form == chosen.form
        inner = [
            part("Derivation", derivation_text(candidate), opened=True),
            part("Folds", folds_text(candidate), opened=True),
            part("Numerical verdict", verdict_text(plan.program, candidate), opened=True),
            part("Numeric conditions", conditions_text(candidate), opened=mine),
            part("Cost before and after", before_after(plan, candidate)),
            part("Program", print_program(candidate.program)),
            part("Whole text", print_candidate(candidate)),
        ]
        marks = [*(["chosen"] if mine else []), *marks_of(candidate), f"proof: {proof_of(candidate)}"]
        parts.append(part(candidate.form, opened=mine, parts=inner, marks=marks))
    return parts


def _variants(plan: Plan) -> list[Part]:
    parts: list[Part] = []
    for number, variant in enumerate(plan.variants, 1):
        inner = [
            part("Outline", variant_text(plan, variant), opened=True),
            part("Tile maps", maps_text(variant.tiles)),
            part("Tile program", print_tiles(variant.tiles)),
            part("Source", emit(variant.tiles, plan.target).text),
        ]
        title = f"Variant {number}, from '{variant.candidate.form}'"
        parts.append(part(title, opened=number == 1, parts=inner))
    return parts
