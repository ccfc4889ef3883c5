"""One self-contained HTML page of a compilation: the stages of `explain`, each one foldable."""

from __future__ import annotations

import jinja2

from cleave.ir.text import print_program
from cleave.pipeline import Plan, emit
from cleave.report.explain import candidates_table, chosen_first, derivation, rejected, schedule_text

TEMPLATE = jinja2.Template(
    """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>cleave explain {{ name }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }
pre { background: #f6f6f4; padding: 1rem; overflow-x: auto; font-size: 13px; line-height: 1.45; }
summary { cursor: pointer; font-weight: 600; padding: 0.4rem 0; }
</style>
</head>
<body>
<h1>{{ name }} <small>for {{ target }}</small></h1>
{% for title, text, open in sections %}
<details{% if open %} open{% endif %}><summary>{{ title }}</summary><pre>{{ text }}</pre></details>
{% endfor %}
</body>
</html>
""",
    autoescape=True,
    trim_blocks=True,
)


def page(plan: Plan, *, best: int = 3) -> str:
    """The page's text."""
    sections = [
        ("Program", print_program(plan.program), True),
        ("Candidates", candidates_table(plan), True),
    ]
    for number, candidate in enumerate(chosen_first(plan)[:best]):
        text = f"{print_program(candidate.program)}\n\n{derivation(candidate)}"
        sections.append((f"Candidate: {candidate.form}", text, number == 0))
    for number, variant in enumerate(plan.variants, 1):
        sections.append((f"Schedule of variant {number}", schedule_text(variant), number == 1))
        sections.append((f"Source of variant {number}", emit(variant.tiles, plan.target).text, False))
    sections.append(("Considered and rejected", rejected(plan), False))
    return TEMPLATE.render(name=plan.program.name, target=plan.target, sections=sections)
