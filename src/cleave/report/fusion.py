"""Fusion plans for people: text, data and one self-contained page, all of bounded size (docs/fusion.md).

Everything is made from a finished `Plan`, so that a plan that was replayed from its log reads the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from jinja2 import Environment

from cleave.fusion.decisions import Decision, as_data, counts
from cleave.fusion.explaining import Explanation
from cleave.fusion.lints import Lint
from cleave.fusion.planning import Group, Plan, Totals
from cleave.fusion.rules import EPOCHS

MOST_KERNELS = 60
MOST_DECISIONS = 200
MOST_NAMES = 12


def count_text(number: float, unit: str = "") -> str:
    """A number as people read it: 12.3 MB, 4.5 k."""
    for size, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}".rstrip()


def fusion_text(plan: Plan, found: Sequence[Lint] = ()) -> str:
    """The plan: its cost before and after, its kernels, what was duplicated and why edges were refused."""
    lines = [*_heading(plan), "", *_table(plan.before, plan.totals), "", "Kernels"]
    kernels = plan.kernels
    for number, group in enumerate(kernels[:MOST_KERNELS], 1):
        lines += _kernel(plan, number, group)
    lines += _more(len(kernels) - MOST_KERNELS, "kernels")
    duplicates = plan.duplicates
    if duplicates:
        lines += ["", "Computed in several kernels"]
        lines += [f"  {v.name} ({v.opcode}): {n} times{_at(v.line)}" for v, n in duplicates[:MOST_NAMES]]
        lines += _more(len(duplicates) - MOST_NAMES, "operations")
    refused = {name: n for name, n in counts(plan.decisions).items() if not name.endswith(" OK")}
    if refused:
        lines += ["", "Refused edges, by pass and reason"]
        lines += [f"  {n:6} {name}" for name, n in sorted(refused.items(), key=lambda i: (-i[1], i[0]))]
    if found:
        lines += ["", "Lints"]
        lines += [f"  {lint.code}: {lint.text}{_at(lint.line)}" for lint in found[:MOST_NAMES]]
        lines += _more(len(found) - MOST_NAMES, "lints")
    return "\n".join(lines) + "\n"


def _heading(plan: Plan) -> list[str]:
    rules, strategy = plan.rules, plan.strategy
    passes = ", ".join(strategy.passes) or "no passes"
    lines = [
        f"{plan.graph.name}: strategy {strategy.name} ({passes})",
        f"epoch {rules.epoch}: {EPOCHS[rules.epoch]}; device {rules.device.name}",
    ]
    return lines + [f"note: {note}" for note in plan.notes]


def _table(before: Totals, after: Totals) -> list[str]:
    rows = [
        ("launches", f"{before.launches}", f"{after.launches}"),
        ("bytes moved", count_text(before.bytes, "B"), count_text(after.bytes, "B")),
        ("peak memory", count_text(before.peak, "B"), count_text(after.peak, "B")),
        ("modelled time", f"{before.seconds * 1e6:.1f} us", f"{after.seconds * 1e6:.1f} us"),
        ("operations", count_text(before.flops), count_text(after.flops)),
        ("computed again", "0", f"{after.duplicated} ({count_text(after.duplicated_flops)} elements)"),
    ]
    wide = 2 + max(len(text) for _, *texts in rows for text in (*texts, "before"))
    lines = [f"{'':16}{'before':>{wide}}{'after':>{wide}}"]
    return lines + [f"{name:16}{a:>{wide}}{b:>{wide}}" for name, a, b in rows]


def _kernel(plan: Plan, number: int, group: Group) -> list[str]:
    names = [m.name for m in group.members if not m.view]
    rest = f", ... {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    shown = ", ".join(names[:MOST_NAMES]) + rest
    kind = {"L": "loop", "I": "input", "R": "rows", "": "single"}[group.kind]
    if group.horizontal:
        kind = "horizontal"
    out = ", ".join(f"{o.name}: {o.shape}" for o in group.outputs[:MOST_NAMES])
    lines = sorted({m.line.split(": ")[0] for m in group.members if m.line})
    where = f"  from {', '.join(lines[:4])}" if lines else ""
    reads = ", ".join(o.name for o in group.operands[:MOST_NAMES])
    return [
        f"{number:3}. {kind} {{{shown}}} {plan.seconds(group) * 1e6:.2f} us{where}",
        f"       reads {reads or 'nothing'}; writes {out}",
    ]


def _more(rest: int, what: str) -> list[str]:
    return [f"  ... {rest} more {what}"] if rest > 0 else []


def _at(line: str) -> str:
    return f"  [{line}]" if line else ""


def explanation_text(answer: Explanation) -> str:
    """Why two operations share a kernel or not, and what would change it."""
    a, b = answer.one, answer.two
    if a is b:
        return f"{a.name} is one operation.\n"
    if answer.together:
        return f"{a.name} and {b.name} share {len(answer.together)} kernel(s): {answer.together[0].text}\n"
    lines = [f"{a.name} ({a.opcode}) and {b.name} ({b.opcode}) do not share a kernel.{_at(a.line or b.line)}"]
    lines += [decision_text(d) for d in answer.edges[-MOST_NAMES:]]
    for one, two, edges in answer.walls[:MOST_NAMES]:
        lines.append(f"  the way crosses a border from {one.name} to {two.name}")
        lines += ["  " + decision_text(d) for d in edges[-3:]] or [
            f"    no pass decided this edge: {answer.unseen}"
        ]
    if not answer.edges and not answer.walls:
        lines.append(
            "  nothing of the one reaches the other: only siblings or horizontal fusion could join them"
        )
    if answer.changes:
        lines.append("What would flip it (planned again and checked):")
        lines += [f"  {c.sort}: {c.text}" for c in answer.changes]
    else:
        lines.append("Nothing that was tried makes them share a kernel.")
    lines.append(f"Tried: {answer.tried}.")
    return "\n".join(lines) + "\n"


def decision_text(d: Decision) -> str:
    """A decision in a line."""
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in d.numbers)
    verdict = "fused" if d.verdict else f"refused {d.code}"
    tail = f" ({numbers})" if numbers else ""
    return f"  {d.stage}: {d.producer} -> {d.consumer}: {verdict}: {d.reason}{tail}{_at(d.line)}"


# ---------------------------------------------------------------- data and page


def fusion_data(
    plan: Plan, found: Sequence[Lint] = (), answer: Explanation | None = None, limit: int = 0
) -> dict[str, object]:
    """The plan as data. With a limit, only so many decisions, kernels, lints and members of all kernels are
    listed, and the rest is counted; a log of which nothing is left out replays (`planning.plan_again`)."""
    kernels, decisions = plan.kernels, plan.decisions
    data: dict[str, object] = {
        "graph": plan.graph.name,
        "strategy": plan.strategy.name,
        "passes": list(plan.strategy.passes),
        "epoch": plan.rules.epoch,
        "upstream": EPOCHS[plan.rules.epoch],
        "device": plan.rules.device.name,
        "notes": list(plan.notes),
        "before": _totals(plan.before),
        "after": _totals(plan.totals),
        "kernels": _groups(plan, limit),
        "kernels_left_out": max(0, len(kernels) - limit) if limit else 0,
        "duplicated": {v.name: n for v, n in _first(plan.duplicates, limit)},
        "reasons": counts(decisions),
        "decisions": [as_data(d) for d in _first(decisions, limit)],
        "decisions_left_out": max(0, len(decisions) - limit) if limit else 0,
        "lints": [
            {"code": f.code, "where": f.where, "text": f.text, "line": f.line} for f in _first(found, limit)
        ],
        "lints_left_out": max(0, len(found) - limit) if limit else 0,
    }
    if answer is not None:
        data["explanation"] = {
            "one": answer.one.name,
            "two": answer.two.name,
            "together": bool(answer.together),
            "edges": [as_data(d) for d in _first(answer.edges, limit)],
            "walls": [
                [a.name, b.name, [as_data(d) for d in _first(edges, MOST_NAMES if limit else 0)]]
                for a, b, edges in _first(answer.walls, limit)
            ],
            "changes": [{"sort": c.sort, "text": c.text} for c in answer.changes],
            "unseen": answer.unseen,
            "tried": answer.tried,
        }
    return data


def _first(items, limit: int):  # type: ignore[no-untyped-def]
    return items[:limit] if limit else items


def _totals(t: Totals) -> dict[str, float]:
    return {
        "launches": t.launches,
        "bytes": t.bytes,
        "seconds": t.seconds,
        "peak_bytes": t.peak,
        "operations": t.flops,
        "duplicated_operations": t.duplicated,
        "duplicated_elements": t.duplicated_flops,
    }


def _groups(plan: Plan, limit: int) -> list[dict[str, object]]:
    """Kernels; with a limit, also of the members of all of them together, and of the operands."""
    found: list[dict[str, object]] = []
    left = limit
    for g in _first(plan.kernels, limit):
        most = max(1, left) if limit else 0
        members, operands = _first(g.members, most), _first(g.operands, most)
        left -= len(members) + len(operands)
        found.append(
            {
                "kind": g.kind or "single",
                "horizontal": g.horizontal,
                "members": [m.name for m in members],
                "members_left_out": len(g.members) - len(members),
                "outputs": [o.name for o in _first(g.outputs, most)],
                "operands": [o.name for o in operands],
                "seconds": plan.seconds(g),
                "lines": sorted({m.line for m in members if m.line}),
            }
        )
    return found


PAGE = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(
    """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<title>{{ plan.graph.name }}: fusion</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem;
  color: #222; }
table { border-collapse: collapse; }
td, th { padding: .15rem .8rem; text-align: left; border-bottom: 1px solid #ddd; }
code, pre { font-size: .85rem; } pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; }
.no { color: #a33; } .yes { color: #274; } input { width: 24rem; }
</style></head><body>
<h1>{{ plan.graph.name }} <small>{{ plan.strategy.name }}, {{ plan.rules.epoch }}</small></h1>
<pre>{{ text }}</pre>
{% if explanation %}<h2>Why not together</h2><pre>{{ explanation }}</pre>{% endif %}
<h2>Decisions</h2>
<p>{{ shown|length }} of {{ total }}, refused ones first. <label>Filter <input id="filter"></label></p>
<table id="rows"><tr><th>pass</th><th>producer</th><th>consumer</th>
<th>verdict</th><th>why</th><th>line</th></tr>
{% for d in shown %}
<tr><td>{{ d.stage }}</td><td><code>{{ d.producer }}</code></td><td><code>{{ d.consumer }}</code></td>
<td class="{{ 'yes' if d.verdict else 'no' }}">{{ d.code }}</td>
<td>{{ d.reason }}</td><td>{{ d.line }}</td></tr>
{% endfor %}
</table>
<script>
document.getElementById("filter").addEventListener("input", e => {
  const wanted = e.target.value.toLowerCase();
  document.querySelectorAll("#rows tr").forEach((row, n) => {
    row.style.display = n && !row.textContent.toLowerCase().includes(wanted) ? "none" : "";
  });
});
</script>
</body></html>
"""
)


def fusion_page(plan: Plan, found: Sequence[Lint] = (), answer: Explanation | None = None) -> str:
    """One self-contained page with at most `MOST_DECISIONS` decisions."""
    refused: Iterable[Decision] = (d for d in plan.decisions if not d.verdict)
    order = [*refused, *(d for d in plan.decisions if d.verdict)]
    return PAGE.render(
        plan=plan,
        text=fusion_text(plan, found),
        explanation=explanation_text(answer) if answer is not None else "",
        shown=order[:MOST_DECISIONS],
        total=len(plan.decisions),
    )
