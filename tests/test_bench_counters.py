"""What is read off the profiler's page, and where the report shows it."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict

from benchmarks import counters, report_misses
from benchmarks.counters import Kernel, kernels_of, missed
from benchmarks.run import by_point

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


def test_the_points_that_are_profiled_and_where_it_is_shown(tmp_path) -> None:
    times = {1: {"eager": 9, "cleave": 10}, 2: {"eager": 5, "cleave": 10}, 3: {"eager": 10, "cleave": 9}}
    records = [_record(name, rows, us) for rows, both in times.items() for name, us in both.items()]
    file = tmp_path / "paper-h200-bf16.json"
    file.write_text(json.dumps({"records": records}))
    points = missed(file, 0.95)
    assert [p["sizes"]["S"] for p in points] == [2, 1] and {p["implementation"] for p in points} == {"cleave"}
    rows = [{**points[0], "kernels": [asdict(k) for k in kernels_of(PAGE)]}]
    (tmp_path / "counters-h200.json").write_text(json.dumps({"of": file.name, "points": rows}))
    assert report_misses.counted(tmp_path, "static-h200-bf16") == {}
    profiles = report_misses.counted(tmp_path, file.stem)
    both = list(by_point(records).values())
    table = report_misses.misses(both[:2], "cuda", {"matmul": "a reason"}, profiles)
    assert "Profile of each missed point, 1 of 1" in "\n".join(table) and len(both) == 3
    table = report_misses.misses(both[1:2], "cuda", {}, profiles)[:5]
    assert "main 21.5 us: memory 42%" in table[-2] + table[-1] and "merge 3.0 us" in table[-2] + table[-1]


def _point(rows: int, case: str = "matmul") -> dict[str, object]:
    return {"case": case, "phase": "decode", "dtype": "bf16", "sizes": {"S": rows}}


def test_points_of_a_case_share_a_process() -> None:
    points = [_point(1), _point(1, "swiglu"), _point(2), _point(2, "swiglu"), _point(3)]
    assert [[(p["case"], p["sizes"]["S"]) for p in batch] for batch in counters.batches_of(points, 4)] == [
        [("matmul", 1), ("matmul", 2), ("matmul", 3), ("swiglu", 1)],
        [("swiglu", 2)],
    ]


def _named(*names: str) -> list[Kernel]:
    return [Kernel(name, 1.0, 1, 1) for name in names]


def test_each_point_has_the_kernels_after_its_mark() -> None:
    assert counters.windows_of([]) == []
    windows = counters.windows_of(_named("spin", "main", "merge", "spin", "spin", "main"))
    assert [[k.name for k in w] for w in windows] == [["main", "merge"], [], ["main"]]
    points = [_point(n) for n in range(4)]
    notes = [
        {"pid": 1},
        {"begun": 0},
        {"marked": 0},
        {"done": 0},
        {"begun": 1},
        {"failed": 1, "why": "no memory"},
    ]
    notes += [{"begun": 2}, {"marked": 2}, {"done": 2}]
    rows, left = counters.settled(points, notes, [_named("a"), _named("b", "c")], "", False)
    assert [(r["sizes"]["S"], r["failure"], [k["name"] for k in r["kernels"]]) for r in rows] == [
        (0, "", ["a"]), (1, "no memory", []), (2, "", ["b", "c"]),
    ]  # fmt: skip
    assert left == [points[3]]


def test_a_process_that_dies_costs_one_point() -> None:
    points = [_point(n) for n in range(3)]
    notes = [{"begun": 0}, {"marked": 0}, {"done": 0}, {"begun": 1}]
    rows, left = counters.settled(points, notes, [], "illegal access", False)
    assert [(r["sizes"]["S"], r["failure"]) for r in rows] == [(1, "it died: illegal access")]
    assert left == [points[0], points[2]]
    rows, left = counters.settled(points, notes, [_named("a")], "", True)
    assert [(r["sizes"]["S"], r["failure"]) for r in rows] == [(0, ""), (1, "no answer in time")]
    rows, left = counters.settled(points[:1], notes[:3], [], "no permission", False)
    assert rows[0]["failure"] == "the profiler saw none of its kernels: no permission" and left == []


FAKE = """#!{python}
import json, sys
arguments = sys.argv[1:]
if arguments[0] == "--import":
    names = ["spin", "main"] * int(open({count!r}).read())
    print('"ID","Kernel Name","gpu__time_duration.sum"')
    print('"","","ns"')
    for number, name in enumerate(names):
        print(f'"{{number}}","{{name}}","1,000"')
else:
    asked = json.load(open(arguments[-1]))
    done = 0
    with open(asked["journal"], "a") as journal:
        for number, point in enumerate(asked["points"]):
            print(json.dumps({{"begun": number}}), file=journal, flush=True)
            if point["sizes"]["S"] == 2:
                sys.exit("gone")
            print(json.dumps({{"marked": number}}), file=journal)
            print(json.dumps({{"done": number}}), file=journal)
            done += 1
    open({count!r}, "w").write(str(done))
"""


def test_the_command_goes_on_after_a_point_that_dies(tmp_path, monkeypatch, capsys) -> None:
    """With a stand-in for the profiler, of which one point kills the process."""
    records = [_record(n, s, us) for s in (1, 2, 3) for n, us in (("eager", 5 + s), ("cleave", 10))]
    file, out = tmp_path / "static-h200-bf16.json", tmp_path / "counters.json"
    file.write_text(json.dumps({"target": "cuda", "records": records}))
    (tmp_path / "count").write_text("0")
    ncu = tmp_path / "ncu"
    ncu.write_text(FAKE.format(python=sys.executable, count=str(tmp_path / "count")))
    ncu.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command = ["counters", str(file), str(out), "--batch", "3"]
    monkeypatch.setattr(sys, "argv", command)
    counters.main()
    told = json.loads(out.read_text())
    assert told["of"] == file.name
    assert {p["sizes"]["S"]: p["failure"] for p in told["points"]} == {1: "", 2: "it died: gone", 3: ""}
    assert "2 points profiled, 1 failed, 0 left" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", [*command, "--resume"])
    counters.main()
    assert len(json.loads(out.read_text())["points"]) == 3
    assert "2 points profiled, 1 failed" in capsys.readouterr().out
