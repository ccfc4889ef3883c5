"""What the pages of results say beside the points: goals, tuned peers, ablations, the cost model; merging."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from benchmarks import merge, report_goals, report_parts
from benchmarks.report_text import score_of, unmatched
from benchmarks.reused import merged, peers_by_point
from benchmarks.run import by_point

from cleave.errors import Invalid

Row = dict[str, Any]


def row(name: str, us: float, case: str = "attention", **more: Any) -> Row:
    """A record of 4096 rows at head size 128; times are in microseconds."""
    fixed = {"phase": "prefill", "dtype": "bf16", "sizes": {"S": 4096, "D": 128}, "failure": "", "row": ""}
    floor = {"floor_seconds": 5e-6, "limit": "arithmetic", "fraction": 5 / us, "tflops": 1.0}
    return {**fixed, **floor, "case": case, "implementation": name, "seconds": us * 1e-6, **more}


def decode(name: str, us: float, case: str = "matmul", **more: Any) -> Row:
    return row(name, us, case, **{"phase": "decode", "sizes": {"S": 16}, **more})


def file(records: list[Row], suite: str = "static", **more: Any) -> Row:
    return {
        "suite": suite,
        "target": "cuda",
        "device": "GPU",
        "date": "2026-01-02",
        "records": records,
        **more,
    }


def points(records: list[Row]) -> list[list[Row]]:
    return list(by_point(records).values())


def test_goals_are_figures_of_the_points() -> None:
    phases = {"capture": 1.0, "build": 4.5, "further": 9.0}
    own = [row("eager", 30), row("sdpa-cudnn", 12), row("fa3", 10), row("fa3 tuned", 9)]
    records = [*own, row("cleave", 10, phases=phases)]
    memory = {"limit": "memory", "floor_seconds": 30e-6}
    records += [decode("eager", 60), decode("cleave", 40, fraction=0.75, phases={"plan": 1.0}, **memory)]
    data = file(records)
    found = {what: (told, there) for what, _, told, there in report_goals.of_file(data, points(records))}
    assert found["all points correct"] == ("2", True)
    assert found["score, all"] == ("1.162", False)
    assert found["points at 0.95 of the best peer (plain products 0.90)"] == ("1 of 2; lowest 0.90", False)
    assert found["memory-bound points at 0.8 of the bandwidth"] == (
        "0 of 1; of those above 20 µs 0 of 1",
        False,
    )
    long = [(told, there) for what, (told, there) in found.items() if "head size" in what]
    assert long == [("1 of 1; lowest 1.20", True), ("0 of 1; lowest 0.90", False)]
    assert found["compiles in 5 s without tuning"] == ("1 of 2; longest 5.5 s", False)
    page = "\n".join(report_goals.goals([("static-h200-bf16", data, points(records))]))
    assert "| [static bf16](#static-h200-bf16) | score, all | 1.30 | 1.162 | **no** |" in page
    assert report_goals.goals([("x", {**data, "target": "cpu"}, points(records))]) == []
    table = report_goals.long_attention(points(records))
    assert table[2:] and "| 1.20 | **0.90 miss** |" in table[4] and len(table) == 6


def test_a_row_shows_its_peer_at_its_defaults_and_tuned() -> None:
    text = report_goals.peer_text
    tuned = row("fa3 tuned", 9, setting="num_splits=2")
    assert text([row("fa3", 10), tuned], tuned) == "fa3 tuned 9.0 (num_splits=2; at its defaults 10.0)"
    assert text([row("fa3", 8), tuned], row("fa3", 8)) == "fa3 8.0 (tuned 9.0)"
    swept = row("fa3", 8, swept=35)
    assert text([swept], swept) == "fa3 8.0 (none of 35 settings is faster)"
    both = [row("torch.compile", 8), row("max-autotune", 7)]
    assert text(both, both[1]) == "max-autotune 7.0 (torch.compile 8.0)"
    assert text(both[:1], both[0]) == "torch.compile 8.0" and text([], None) == "none is correct"


# ---------------------------------------------------------------- ablations and the cost model


def test_ablations_are_held_to_the_model_without_a_recipe() -> None:
    records: list[Row] = []
    for case, whole, without in (("a", 10.0, 20.0), ("b", 10.0, 10.0)):
        records += [decode("eager", 30, case), decode("cleave untuned", whole, case)]
        records += [decode("cleave no-split", without, case), decode("cleave", 9, case)]
    records.insert(2, decode("cleave no-algebra", 1, "a", failure="Infeasible: nothing is left"))
    losses = report_parts.Losses(points(records))
    assert losses.gone == {"no-algebra": 1} and set(losses.of) == {"no-split"}
    page = "\n".join(report_parts.ablations(points(records), points(records)))
    assert "| no-split | 2 | 1.41 | 2.00 (a S16) | 1 | 1.00 | 0 |  | 2.36 |" in page
    assert "no recipe" in page and "| a | 2.00 |" in page
    assert "The cost model alone reaches 0.90 of the speed" in page and "2 of 2 points reach 0.85" in page


def test_files_of_ablations_stand_beside_their_suite(tmp_path) -> None:
    records = [decode("eager", 30), decode("cleave no-split", 20), decode("cleave", 10)]
    (tmp_path / "ablation-paper-h200.json").write_text(json.dumps(file(records, "paper")))
    main = [
        decode("eager", 30),
        decode("fa3", 15),
        decode("cleave", 10),
        *[row("eager", 1), row("cleave", 1)],
    ]
    files = [("paper-h200-bf16", file(main, "paper"), points(main))]
    page = "\n".join(report_parts.of_ablation(tmp_path, files))
    assert "1 of 2 points" in page and "over ours" in page and "|  | 0.75 |" in page
    assert "score so" not in "\n".join(report_parts.of_ablation(tmp_path, []))


def test_the_model_tuning_and_calls_have_their_tables(tmp_path) -> None:
    found = {
        "case": "a", "phase": "decode", "sizes": {"S": 16}, "programs": 20, "best": 10.0, "correlation": 0.5,
        "firsts": {"1": 1.25, "8": 1.0, "16": 1.0}, "off": 1.1,
    }  # fmt: skip
    (tmp_path / "ranking-x.json").write_text(json.dumps({"of": "x.json.gz", "points": [found]}))
    page = "\n".join(report_parts.of_model(tmp_path))
    assert "first 1, 8 and 16 takes 1.25, 1.00 and 1.00" in page and "at 0 of 1 points" in page
    tuned = {"sizes": {"S": 16}, "first": 12.0, "best": 9.0, "measured": 30}
    timed = {"case": "a", "dtype": "bf16", "phases": {"plan": 1.0, "tune": 60.0}, "points": [tuned]}
    known = {"device": "GPU", "date": "2026-01-02", "cores": 16, "budget": 60.0, "rows": [timed]}
    (tmp_path / "tuning-h200.json").write_text(json.dumps(known))
    assert "| 60.00 | 61.0 **miss** | 30 | 0.75 |" in "\n".join(report_parts.of_tuning(tmp_path))
    call = {"case": "a", "launches": 2, "ours_us": 20.5, "empty_us": 8.0, "eager_us": 15.0}
    (tmp_path / "overhead-h200.json").write_text(json.dumps({**known, "rows": [call]}))
    assert "| a | 2 | 20.5 | 8.0 | 12.5 | 15.0 |" in "\n".join(report_parts.of_calls(tmp_path))
    empty = tmp_path / "empty"
    assert report_parts.of_model(empty) == report_parts.of_tuning(empty) == report_parts.of_calls(empty) == []


# ---------------------------------------------------------------- merging


def test_peers_of_other_runs_are_merged_and_scaled(tmp_path, monkeypatch) -> None:
    taken = row("torch.compile", 50, reused={"date": "", "seconds": 40e-6, "scale": 1.25})
    base = file([row("eager", 100), taken, row("fa3", 20), row("flex", 1, failure="no"), row("cleave", 10)])
    others = [row("torch.compile", 30), row("fa3", 1), row("flex", 60), row("max-autotune", 25)]
    other = file([row("eager", 50), *others, row("cleave", 1)])
    paths = [tmp_path / name for name in ("base.json", "other.json")]
    for path, data in zip(paths, (base, other), strict=True):
        path.write_text(json.dumps(data))
    monkeypatch.setattr(sys, "argv", ["merge", *map(str, paths)])
    merge.main()
    found = json.loads(paths[0].read_text())
    times = {r["implementation"]: round(r["seconds"] * 1e6) for r in found["records"]}
    assert times == {
        "eager": 100, "torch.compile": 60, "fa3": 20, "flex": 120, "max-autotune": 50, "cleave": 10,
    }  # fmt: skip
    assert found["records"][-1]["implementation"] == "cleave" and found["merged"] == ["other.json"]
    again = peers_by_point(found)
    assert [round(r["seconds"] * 1e6) for r in next(iter(again.values()))] == [30, 20, 60, 25]
    with pytest.raises(Invalid, match="suite paper"):
        merge.merge(found, file([], "paper"), "x.json")


def test_a_point_that_another_run_lacks_stays() -> None:
    records = [row("eager", 100), row("cleave", 10)]
    assert merged(records, []) == records


def test_attention_without_a_fused_peer_counts_for_no_mean() -> None:
    slow = {"seconds": float("nan"), "failure": "no mask of this kind"}
    alone = [row("eager", 900, "sinks"), row("fa3", 1, "sinks", **slow), row("cleave", 10, "sinks")]
    beside = [row("eager", 30), row("sdpa-cudnn", 20), row("fa3", 1, **slow), row("cleave", 10)]
    assert [unmatched(rows) for rows in points([*alone, *beside])] == [True, False]
    assert score_of(points([*alone, *beside])) == pytest.approx(2.0)
    with_flex = points([*alone, row("flex", 20, "sinks"), *beside])
    assert score_of(with_flex) == pytest.approx(2.0) and not any(map(unmatched, with_flex))
    plain = points([row("eager", 30, "matmul"), row("torch.compile", 20, "matmul")])
    assert not unmatched(plain[0]), "no attention: what a library does in one call is a peer as it is"
