"""A function that is only partly compiled: how its pieces follow on each other, what runs in PyTorch and why.

A function that is one program, and hands out nothing else, is told as its one `Plan` (`explain`); any other
is told as the steps of a call, what each result is, and then each compiled piece in full.
"""

from __future__ import annotations

from collections.abc import Sequence

from cleave.frontend.captured import Captured, EagerStep, Named
from cleave.pipeline import Plan
from cleave.report.explain import as_data, explain, section
from cleave.report.html import group, page, render


def is_whole(captured: Captured) -> bool:
    """Whether the function is one program, with results that are all the program's."""
    if len(captured.steps) != 1 or len(captured.programs) != 1:
        return False
    made = set(captured.program_steps[0].results)
    return all(isinstance(output, Named) and output.name in made for output in captured.outputs)


def steps_lines(captured: Captured) -> list[str]:
    """One line for each step of a call, then one for what it returns."""
    if captured.whole is not None:
        where = f" at {captured.whole.where}" if captured.whole.where else ""
        return [f"{captured.name} runs in PyTorch as a whole: {captured.whole.reason}{where}"]
    compiled, left = len(captured.programs), len(captured.fallbacks)
    lines = [f"{captured.name}: {_number(compiled, 'compiled piece')}, {_number(left, 'call')} in PyTorch"]
    piece = 0
    for number, step in enumerate(captured.steps, 1):
        if isinstance(step, EagerStep):
            lines.append(f"{number:2}. in PyTorch: {step.fallback}")
        else:
            piece += 1
            feeds, results = ", ".join(step.feeds), ", ".join(step.results)
            lines.append(
                f"{number:2}. piece {piece}, {step.program.name}: from {feeds or 'nothing'} to {results}"
            )
    if not captured.steps:
        lines.append("nothing is computed, so there is nothing to compile")
    return [*lines, f"returns {'; '.join(captured.results)}"]


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def pieces_text(captured: Captured, plans: Sequence[Plan], *, source: str = "chosen") -> str:
    """The whole story of a function, as text; `plans` has one for each of its programs, in order."""
    if is_whole(captured):
        return explain(plans[0], source=source)
    first, *rest = steps_lines(captured)
    parts = [f"{first}\n"]
    if rest:
        parts.append(section("Steps of a call", "\n".join(rest)))
    for number, plan in enumerate(plans, 1):
        title = f"Piece {number} of {len(plans)}: {plan.program.name}"
        parts.append(f"{title}\n{'=' * len(title)}\n{explain(plan, source=source)}")
    return "\n".join(parts)


def pieces_data(captured: Captured, plans: Sequence[Plan]) -> dict[str, object]:
    """The same for `--json`."""
    if is_whole(captured):
        return as_data(plans[0])
    pieces = [{"name": plan.program.name, **as_data(plan)} for plan in plans]
    return {"pieces": pieces, **rest_data(captured)}


def rest_data(captured: Captured) -> dict[str, object]:
    """What runs in PyTorch and what each result is."""
    left = captured.fallbacks if captured.whole is None else (captured.whole,)
    return {
        "in_pytorch": [{"op": f.op, "where": f.where, "reason": f.reason} for f in left],
        "returns": list(captured.results),
    }


def pieces_page(captured: Captured, plans: Sequence[Plan], target: str) -> str:
    """The same as one HTML page."""
    if is_whole(captured):
        return page(plans[0])
    groups = [group("Steps of a call", "In order", "\n".join(steps_lines(captured)))]
    return render(captured.name, target, groups, plans)
