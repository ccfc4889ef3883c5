"""Plans that are made again from what `cleave fuse --json` wrote, its bounds, and bad files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cleave.cli import main
from cleave.errors import Invalid
from cleave.fusion.decisions import replay
from cleave.fusion.notation import parse_graph
from cleave.fusion.planning import plan_again, plan_fusion
from cleave.fusion.rules import Rules, device_named
from cleave.report.fusion import fusion_data, fusion_text
from fusion.graphs import blocks, chain, drawn, updates

SMALL = "p: f32[1000] = parameter\na = neg(p)\nb = abs(a)\nc = exp(a)\nret b, c\n"


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["fuse", *words])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("strategy", ["none", "xla", "priority", "vertical-dup+multi-output", "cleave"])
@pytest.mark.parametrize("device", ["h200", "cpu"])
def test_a_report_becomes_the_same_plan_again(strategy: str, device: str) -> None:
    for graph in (drawn(60, 5), blocks(80), updates(60)):
        plan = plan_fusion(graph, strategy, Rules("X23", device_named(device)))
        data = json.loads(json.dumps(fusion_data(plan)))
        again = plan_again(graph, data)
        assert again.totals == plan.totals and again.groups == plan.groups and again.notes == plan.notes
        assert fusion_text(again) == fusion_text(plan)


def test_a_log_that_does_not_fit_is_refused() -> None:
    graph = blocks(80)
    plan = plan_fusion(graph, "xla", Rules("X23"))
    data = fusion_data(plan)
    with pytest.raises(Invalid, match=r"log was cut: \d+ decisions are missing"):
        plan_again(graph, fusion_data(plan, limit=5))
    with pytest.raises(Invalid, match=r"another graph|no operation"):
        plan_again(drawn(400, 1), data)
    with pytest.raises(Invalid, match="it says 99 launches"):
        plan_again(graph, {**data, "after": {"launches": 99}})
    for junk in ({}, {**data, "device": "abacus"}, {**data, "decisions": 3}, {**data, "passes": None}):
        with pytest.raises(Invalid, match="no plan that cleave fuse wrote"):
            plan_again(graph, junk)
    small = parse_graph(SMALL)
    first = next(d for d in plan_fusion(small, "vertical-dup", Rules("X23")).decisions if d.verdict)
    with pytest.raises(Invalid, match=r"[bc] does not read a at this point"):
        replay(small, [first, first])
    with pytest.raises(Invalid, match="unknown reason 'MAGIC'"):
        plan_again(graph, {**data, "decisions": [{**data["decisions"][0], "code": "MAGIC"}]})  # type: ignore[index]


def test_data_is_bounded_whatever_the_kernels_hold() -> None:
    plan = plan_fusion(chain(3000), "xla", Rules("X26"))
    assert len(plan.kernels) == 1 and len(plan.kernels[0].members) > 2000
    data = fusion_data(plan, limit=100)
    (kernel,) = data["kernels"]  # type: ignore[misc]
    assert len(kernel["members"]) == 100
    assert kernel["members_left_out"] == len(plan.kernels[0].members) - 100
    assert len(json.dumps(data)) < 40_000


def test_the_command_replays_and_refuses_bad_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where, log, bad = tmp_path / "small.cleave", tmp_path / "plan.json", tmp_path / "bad.cleave"
    where.write_text(SMALL)
    assert run(str(where), "--strategy", "vertical-dup", "--epoch", "X23", "--json", str(log)) == 0
    planned = capsys.readouterr().out
    assert run(str(where), "--replay", str(log)) == 0
    assert capsys.readouterr().out == planned and "strategy vertical-dup" in planned
    bad.write_bytes(b"\xff\xfe\x00")
    log.write_text("[1]")
    for words, message in (
        ((str(where), "--replay", str(log)), "holds no plan"),
        ((str(where), "--replay", str(where)), "is no JSON"),
        ((str(where), "--replay", str(tmp_path / "none.json")), "there is no file"),
        ((str(where), "--limit", "-3"), "is negative"),
        ((str(where), "--size", "N=3"), "the sizes of a .cleave file stand in it"),
        ((str(bad),), "is not UTF-8"),
    ):
        assert run(*words) == 4
        assert message in capsys.readouterr().err
