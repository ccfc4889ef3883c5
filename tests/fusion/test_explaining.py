"""Explanations, lints and the report of a plan; the command line."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cleave.cli import main
from cleave.errors import Invalid
from cleave.fusion.explaining import MOST_VERTICES, Change, explain
from cleave.fusion.lints import lints
from cleave.fusion.notation import parse_graph
from cleave.fusion.planning import Plan, plan_fusion
from cleave.fusion.rules import Rules
from cleave.report.fusion import MOST_DECISIONS, explanation_text, fusion_data, fusion_page, fusion_text
from fusion.graphs import blocks, drawn

CASES = Path(__file__).parents[1] / "cases" / "fusion"
SUITE = Path(__file__).parent / "suite.py"
CONCAT = """
a: f32[64,2] = parameter, src=step.py:3
b: f32[64,2] = parameter
q: f32[64,4] = parameter
x = neg(a), src=step.py:4
c = concat(x, b), dims={1}, src=step.py:5
m = abs(q), src=step.py:2
e = add(c, m), src=step.py:6
r: f32[64,4] = custom-call(c), effect, src=step.py:7
ret e, r
"""


def test_a_refusal_names_its_reason_and_a_change_that_was_tried() -> None:
    plan = plan_fusion(
        parse_graph("p: f32[8] = parameter\na = neg(p)\nb = abs(a)\nc = exp(a)\nret b, c"), "vertical"
    )
    answer = explain(plan, "a", "b")
    assert not answer.together and [d.code for d in answer.edges] == ["DUP_FORBIDDEN"]
    assert ("pass", "--strategy vertical+vertical-dup") in [(c.sort, c.text) for c in answer.changes]
    text = explanation_text(answer)
    assert "refused DUP_FORBIDDEN" in text and "What would flip it" in text
    assert text.endswith("Tried: knobs, rewrites, passes, epochs and the strategy cleave.\n")


def test_a_concatenation_with_two_readers() -> None:
    plan = plan_fusion(parse_graph(CONCAT), "vertical-dup", Rules("X23"))
    answer = explain(plan, "c", "e")
    assert not answer.together
    assert explain(plan, "step.py:5", "6").two.name == "e"
    changes = {c.sort for c in answer.changes}
    assert "rewrite" in changes
    with pytest.raises(Invalid, match="no operation comes from line"):
        explain(plan, "step.py:99", "e")
    with pytest.raises(Invalid, match="has no operation 'zz'"):
        explain(plan, "zz", "e")


def test_operations_that_are_not_neighbours_are_explained_by_the_borders_between_them() -> None:
    text = "p: f32[8] = parameter\na = neg(p)\nw: f32[8] = custom-call(a)\nb = abs(w)\nret b"
    answer = explain(plan_fusion(parse_graph(text), "xla", Rules("X23")), "a", "b")
    assert [(x.name, y.name) for x, y, _ in answer.walls] == [("a", "w"), ("w", "b")]
    together = explain(plan_fusion(parse_graph(text.replace("custom-call", "neg")), "xla"), "b", "a")
    assert together.together and "share 1 kernel" in explanation_text(together)


@pytest.mark.parametrize(
    ("strategy", "words"),
    [("xla", "knobs, rewrites, epochs and the strategy cleave"), ("cleave", "knobs, rewrites and epochs")],
)
def test_what_was_tried_is_said(strategy: str, words: str) -> None:
    answer = explain(plan_fusion(parse_graph("p: f32[8] = parameter\na = neg(p)\nret a"), strategy), "p", "a")
    assert answer.tried == words and not answer.changes
    shown = explanation_text(answer)
    assert f"Nothing that was tried makes them share a kernel.\nTried: {words}.\n" in shown


def test_on_a_large_graph_only_knobs_are_tried_and_the_text_says_so() -> None:
    """The same question, in a graph with operations beside it that make it large."""
    question = "p: f32[8] = parameter\na = neg(p)\nb = abs(a)\nc = exp(a)\n"
    beside = "".join(f"x{n} = neg({f'x{n - 1}' if n else 'p'})\n" for n in range(MOST_VERTICES))
    graph = parse_graph(f"{question}{beside}ret b, c, x{MOST_VERTICES - 1}")
    answer = explain(plan_fusion(graph, "vertical"), "a", "b")
    assert len(graph.vertices) > MOST_VERTICES and not answer.changes
    shown = explanation_text(answer)
    assert f"Tried: knobs only, since the graph has {len(graph.vertices)} vertices" in shown
    assert "pass" not in shown.rpartition("Nothing that was tried")[2]
    small = explain(plan_fusion(parse_graph(f"{question}ret b, c"), "vertical"), "a", "b")
    assert small.changes and "pass" in {c.sort for c in small.changes}


LOOP = """
body step {{
  s: f32[64,4] = parameter
  x = slice(s), at={{0:64, 0:2}}
  y = slice(s), at={{0:64, 2:4}}
  u = add(x, y)
  {call}
  n = concat(u, v), dims={{1}}, src=sim.py:9
  carry s <- n
  ret n
}}
p: f32[64,4] = parameter
w: (f32[64,4]) = while(p), trips=100, body=step, src=sim.py:7
r = get-tuple-element(w), value=0
ret r
"""


def test_lints_of_a_loop() -> None:
    opaque = lints(parse_graph(LOOP.format(call="v: f32[64,2] = custom-call(u), src=sim.py:8")))
    assert [(f.code, f.line) for f in opaque] == [
        ("CONCAT_CARRIED", "sim.py:9"),
        ("OPAQUE_IN_LOOP", "sim.py:8"),
    ]
    plain = lints(parse_graph(LOOP.format(call="v = sin(u)")))
    assert [f.code for f in plain] == ["CONCAT_CARRIED", "UNROLLABLE"]
    assert "unroll it by 20" in plain[1].text
    flat = """
    body step {
      x: f32[64] = parameter
      y = sin(x)
      carry x <- y
      ret y
    }
    p: f32[64] = parameter
    w: (f32[64]) = while(p), trips=7, body=step
    r = get-tuple-element(w), value=0
    ret r
    """
    assert "whole loop fits one kernel" in lints(parse_graph(flat))[0].text


def test_reports_are_bounded_and_name_the_epoch() -> None:
    plan = plan_fusion(blocks(900), "xla", Rules("X23"))
    assert len(plan.decisions) > MOST_DECISIONS
    text, page = fusion_text(plan), fusion_page(plan)
    assert "epoch X23: XLA 90531c6d" in text and len(text) < 40_000
    assert page.count("<tr>") <= MOST_DECISIONS + 2 and len(page) < 200_000 and "http" not in page
    data = fusion_data(plan, limit=50)
    assert len(data["decisions"]) == 50 and data["decisions_left_out"] == len(plan.decisions) - 50  # type: ignore[arg-type,operator]
    assert json.loads(json.dumps(data))["epoch"] == "X23"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["fuse", *words])
    return int(ended.value.code or 0)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, data = tmp_path / "plan.html", tmp_path / "plan.json"
    where = f"{SUITE}:cartpole"
    assert run(where, "--strategy", "xla", "--epoch", "X22", "--html", str(page), "--json", str(data)) == 0
    shown = capsys.readouterr().out
    assert "epoch X22" in shown and "launches" in shown and "CONCAT_CARRIED" in shown
    assert page.read_text().startswith("<!doctype html>")
    read = json.loads(data.read_text())
    assert read["after"]["launches"] == 2  # the paper's first kernel ends at the concatenation
    assert run(where, "--strategy", "xla", "--epoch", "X22", "--explain", "out0", "out1") == 0
    assert "do not share a kernel" in capsys.readouterr().out
    assert run(str(CASES / "V10.cleave").replace("V10", "missing")) == 4
    assert run(where, "--epoch", "X99") == 4
    assert "unknown epoch 'X99'" in capsys.readouterr().err
    assert run(where, "--strategy", "magic") == 4
    assert run(where, "--size", "Q=3") == 4
    graph = tmp_path / "small.cleave"
    graph.write_text("p: f32[8] = parameter\na = neg(p)\nb = abs(a)\nret b\n")
    assert run(str(graph), "--json", "-") == 0
    assert json.loads(capsys.readouterr().out.split("\n", 0)[0])["after"]["launches"] == 1


SORTS = {"knob", "pass", "epoch", "strategy"}


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from(["none", "vertical", "vertical-dup", "multi-output", "xla"]))
def test_advice_really_flips_the_decision(seed: int, strategy: str) -> None:
    """Each change that is named, made by hand from its text, puts the two into one kernel."""
    graph = drawn(24, seed)
    rules = Rules("X23")
    plan = plan_fusion(graph, strategy, rules)
    followed = 0
    for v in graph.vertices:
        for operand in v.operands:
            if operand.opcode == "parameter" or plan.together(operand, v) or followed >= 3:
                continue
            for change in explain(plan, operand.name, v.name).changes:
                followed += change.sort in SORTS
                assert change.sort == "rewrite" or follow(plan, change).together(operand, v), change


def follow(plan: Plan, change: Change) -> Plan:
    if change.sort == "knob":
        name, _, value = change.text.partition("=")
        return plan_fusion(
            plan.graph, plan.strategy.name, replace(plan.rules, **{name: ast.literal_eval(value)})
        )
    words = change.text.split()
    epoch = words[words.index("--epoch") + 1] if "--epoch" in words else plan.rules.epoch
    return plan_fusion(plan.graph, words[words.index("--strategy") + 1], replace(plan.rules, epoch=epoch))
