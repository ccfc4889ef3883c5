"""What is read off the profiler's page, and where the report shows it."""

from __future__ import annotations

import json
from dataclasses import asdict

from benchmarks import report
from benchmarks.counters import Kernel, kernels_of, missed

PAGE = """==PROF== Connected to process 1
"ID","Kernel Name","gpu__time_duration.sum","launch__grid_size","launch__registers_per_thread",\
"gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed","sm__warps_active.avg.pct_of_peak_sustained_active",\
"sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",\
"smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_wait_not_issued_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_selected_per_issue_active.ratio"
"","","ns","","register/thread","%","%","%","inst","inst","inst","inst"
"0","main","21,504","264","168","41.5","12.5","33.1","2.25","7.5","6","1"
"1","merge","3,000","64","32","10","50","1","9","1","1","1"
"""


def test_the_kernels_of_a_page() -> None:
    main, merge = kernels_of(PAGE)
    assert main == Kernel(
        "main",
        21.504,
        264,
        168,
        {"memory": 41.5, "warps": 12.5},
        {"xu": 33.1},
        {"wait": 7.5, "long_scoreboard": 2.25},
    )
    assert (merge.name, merge.microseconds, next(iter(merge.stalls))) == ("merge", 3.0, "long_scoreboard")
    assert str(main) == "main 21.5 us: memory 42%, warps 12%, xu 33%; waits for wait 7.5, long scoreboard 2.2"
    assert kernels_of("==ERROR== nothing was profiled") == []


def _record(name: str, rows: int, seconds: float) -> dict[str, object]:
    fixed = {
        "case": "matmul",
        "row": "",
        "phase": "decode",
        "dtype": "bf16",
        "failure": "",
        "error": 0,
        "allowed": 1,
    }
    return {**fixed, "sizes": {"S": rows}, "implementation": name, "seconds": seconds}


def test_the_points_that_are_profiled_and_where_it_is_shown(tmp_path, monkeypatch) -> None:
    times = {1: {"eager": 9, "cleave": 10}, 2: {"eager": 5, "cleave": 10}, 3: {"eager": 10, "cleave": 9}}
    records = [_record(name, rows, us) for rows, both in times.items() for name, us in both.items()]
    file = tmp_path / "paper-h200-bf16.json"
    file.write_text(json.dumps({"records": records}))
    points = missed(file, 0.95)
    assert [p["sizes"]["S"] for p in points] == [2, 1] and {p["implementation"] for p in points} == {"cleave"}
    rows = [{**points[0], "kernels": [asdict(k) for k in kernels_of(PAGE)]}]
    (tmp_path / "counters-h200.json").write_text(json.dumps({"of": file.name, "points": rows}))
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    assert report.counted("static-h200-bf16") == {}
    table = report.misses(
        [[r for r in records if r["sizes"] == {"S": 2}]], "cuda", {}, report.counted(file.stem)
    )
    assert "main 21.5 us: memory 42%" in table[-2] + table[-1] and "merge 3.0 us" in table[-2] + table[-1]
