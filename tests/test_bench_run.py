"""The benchmarks' machinery: order, resuming, peers of earlier runs, sweeps, children, and the page."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace

import pytest
import torch
from benchmarks import jobs, report, run, runner
from benchmarks.case import Attention, Case
from benchmarks.compiling import ablated, captured, cut
from benchmarks.harness import Clock, allowed_error, judge, row_error, time_all
from benchmarks.jobs import Job, in_turns, measured
from benchmarks.memory import peak_bytes
from benchmarks.peers import (
    NotInstalled,
    Peer,
    attention_peers,
    flex_options,
    peers_of,
    settings_in_turn,
)
from benchmarks.runner import Options, Runner

import cleave
from cleave.algebra.search import search
from cleave.errors import Invalid
from cleave.knobs import knobs
from cleave.runtime.tune_process import Died, Late


def halves(x):
    return x * 0.5 + 1.0


POINTS = {("cpu", "decode"): [{"S": 3, "N": 8}, {"S": 4, "N": 8}], ("cpu", "prefill"): [{"S": 64, "N": 8}]}
CASE = Case("halves", halves, {"x": ("S", "N")}, ("S",), POINTS, row="B0", memory=True)


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.setitem(run.SUITES, "tiny", (CASE,))
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)


def once(tmp_path, **options):
    file = tmp_path / "raw.json"
    asked = {"target": "cpu", "dtypes": ["f32"], "budget": 0.001, "json_file": file}
    wrong = run.run_suite("tiny", **{**asked, **options})
    return wrong, json.loads(file.read_text())


def test_a_run_writes_what_it_measured(suite, tmp_path):
    wrong, data = once(tmp_path, ablations=runner_ablations())
    assert wrong == 0 and data["device"] and data["date"]
    names = ["eager", "torch.compile", *(f"cleave {a}" for a in runner_ablations()), "cleave"]
    points = run.by_point(data["records"])
    assert [[r["implementation"] for r in rows] for rows in points.values()] == [names] * 3
    ours = [r for r in data["records"] if r["implementation"] == "cleave"]
    assert all(r["seconds"] > 0 and r["launches"] == 1 and r["limit"] == "memory" for r in ours)
    assert all(r["fraction"] == pytest.approx(r["floor_seconds"] / r["seconds"]) for r in ours)
    assert {"capture", "search", "plan", "emit", "build", "further"} == set(ours[0]["phases"])
    assert ours[0]["compile_seconds"] == pytest.approx(
        sum(v for k, v in ours[0]["phases"].items() if k != "further"), abs=1e-3
    )


def runner_ablations():
    return ["untuned", "no-algebra", "no-split", "no-horizontal", "no-iterative-tiling", "reassociation"]


def test_without_horizontal_fusion_products_do_not_share_a_loop():
    case = next(c for c in run.SUITES["paper"] if c.name == "swiglu")
    sizes = {"S": 5, "K": 48, "N": 40}
    program = captured(case, sizes, torch.float32)
    fold = next(f for c in search(program).candidates for f in c.folds if len(f.values) == 2)
    assert [(len(f.values), f.state) for f in cut(fold)] == [(1, (s,)) for s in fold.state]
    inputs = case.make(sizes, torch.float32, "cpu", 0)
    launcher = ablated(program, "cpu", {a: sizes[a.name] for a in program.dynamic}, "no-horizontal")
    out = cleave.compile(
        case.function, inputs, dynamic=case.marks, compile_program=lambda *_, **__: launcher
    )(*inputs)
    torch.testing.assert_close(out, case.function(*inputs))


def test_what_depends_on_one_state_stays_one_fold():
    case = next(c for c in run.SUITES["static"] if c.name == "softmax")
    program = captured(case, {"S": 5, "N": 40}, torch.float32)
    folds = [f for c in search(program).candidates for f in c.folds if len(f.values) > 1]
    assert folds and all(cut(f) == (f,) for f in folds)


def test_a_run_that_was_cut_goes_on(suite, tmp_path, monkeypatch):
    _, whole = once(tmp_path, peers="none")
    file = tmp_path / "raw.json"
    first = next(iter(run.by_point(whole["records"]).values()))
    marked = [{**r, "seconds": 123.0} for r in first]
    file.write_text(json.dumps({**whole, "records": marked}))
    _, data = once(tmp_path, peers="none", resume=True)
    points = list(run.by_point(data["records"]).values())
    assert len(points) == 3 and points[0] == marked and points[1][0]["seconds"] < 100
    marked[-1]["failure"] = "the process died"
    file.write_text(json.dumps({**whole, "records": marked}))
    _, data = once(tmp_path, peers="none", resume=True)
    assert len(run.by_point(data["records"])) == 3 and not any(r["failure"] for r in data["records"])
    file.write_text(json.dumps({**whole, "device": "another"}))
    with pytest.raises(Invalid, match="another"):
        once(tmp_path, resume=True)
    file.write_text(json.dumps(whole))
    with pytest.raises(Invalid, match="without --ablation no-split"):
        once(tmp_path, resume=True, ablations=["no-split"])
    with pytest.raises(Invalid, match="--json"):
        run.run_suite("tiny", target="cpu", resume=True)


def test_a_run_stops_in_time_and_children_with_it(suite, tmp_path, monkeypatch):
    _, data = once(tmp_path, peers="none", limit=0.0)
    assert len(run.by_point(data["records"])) == 1
    Child.started = 0
    monkeypatch.setattr(jobs, "Process", Sound)
    monkeypatch.setattr(jobs, "MOST_CHILDREN", 1)
    found = jobs.remote([job(name, "f32", 2) for name in ("a", "b", "c")], 3)
    assert len(next(found)) == 1
    found.close()  # the other two wait for room
    assert Child.started == 1


def test_a_cold_run_finds_nothing_in_caches(suite, tmp_path, monkeypatch):
    seen = []

    def local(jobs):
        seen.append(list(knobs().cache_dir.iterdir()))
        yield from ()

    monkeypatch.setattr(run, "local", local)
    before = knobs().cache_dir
    once_cold = run.run_suite("tiny", target="cpu", cold=True, peers="none", json_file=tmp_path / "x.json")
    assert once_cold == 0 and seen == [[]] and knobs().cache_dir == before


def test_peers_of_an_earlier_run_are_scaled_by_eager(suite, tmp_path):
    _, data = once(tmp_path)
    for r in data["records"]:
        r["seconds"] = {"eager": 1.0, "torch.compile": 0.5}.get(r["implementation"], r["seconds"])
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps({**data, "date": "2020-02-02"}))
    _, again = once(tmp_path, peers_from=earlier, peers="quick")
    for rows in run.by_point(again["records"]).values():
        by = {r["implementation"]: r for r in rows}
        taken = by["torch.compile"]
        assert taken["seconds"] == pytest.approx(0.5 * by["eager"]["seconds"])
        assert taken["reused"]["seconds"] == 0.5 and "†" in report.micro(taken)
    once_more = tmp_path / "once-more.json"
    once_more.write_text(json.dumps(again))
    known = run.reused_rows(run.Run(target="cpu", peers_from=once_more))
    assert all(
        r["seconds"] == 0.5 and r["eager_seconds"] == pytest.approx(1.0) for v in known.values() for r in v
    )
    earlier.write_text(json.dumps({**data, "device": "another"}))
    with pytest.raises(Invalid, match="another"):
        once(tmp_path, peers_from=earlier)


def test_what_is_asked_for_wrongly_is_refused():
    with pytest.raises(Invalid, match="ablation"):
        _ = run.Run(target="cpu", ablations=["no sense"]).options
    assert run.Run(target="cuda", peers="full").options.sweep > 0 == run.Run(target="cuda").options.sweep


# ---------------------------------------------------------------- peers


def slow(x):
    time.sleep(0.02)
    return halves(x)


def test_settings_are_swept_and_wrong_ones_left_out(monkeypatch):
    def settings():
        yield "", slow
        yield "wrong", lambda x: x
        yield "broken", lambda x: x.nonsense
        yield "quick", halves

    def missing():
        raise NotInstalled("it is not installed")
        yield

    peers = [Peer("library", settings), Peer("gone", missing)]
    monkeypatch.setattr(runner, "peers_of", lambda *_: peers)
    records = Runner(CASE, "f32", Options("cpu", budget=0.001, sweep=5.0)).measure("decode", {"S": 3, "N": 8})
    by = {r["implementation"]: r for r in records}
    assert by["library"]["seconds"] > 0.02 > by["library tuned"]["seconds"]
    assert by["library tuned"]["setting"] == "quick" and by["library tuned"]["tried"] == 3
    assert by["library"]["swept"] == 3 and "swept" not in by["gone"]
    assert by["gone"]["failure"] == "it is not installed"
    assert run.best_peer(records)["implementation"] in ("library tuned", "eager")


def test_what_won_before_is_tried_first():
    def settings():
        yield from (("a", halves), ("b", halves), ("c", halves))
        raise NotImplementedError("the others are not for this shape")

    assert [name for name, _ in settings_in_turn(settings(), [])] == ["a", "b", "c"]
    assert [name for name, _ in settings_in_turn(settings(), ["c", "b", "c"])] == ["c", "b", "a"]


def test_a_sweep_tries_unlike_options_first():
    for rows, count in ((1, 72), (512, 36)):
        options = list(flex_options(rows))
        assert len(options) == count and all(len(set(d.items())) == 4 for d in options)
        assert len({d["BLOCK_N"] for d in options[:4]}) >= 2 and ("SPLIT_KV" in options[0]) == (rows == 1)


def test_a_peer_asked_for_alone_is_measured_again_and_others_are_taken(monkeypatch):
    monkeypatch.setattr(runner, "peers_of", lambda *_: [Peer(n, lambda: iter([("", halves)])) for n in "ab"])
    records = alone(("a", "a tuned", "c"), only=("a",))
    assert {r["implementation"]: "reused" in r for r in records} == {
        "eager": False, "cleave": False, "a": False, "a tuned": True, "c": True,
    }  # fmt: skip
    assert records[0]["implementation"] == "eager" and records[-1]["implementation"] == "cleave"
    with pytest.raises(Invalid, match="no peer 'flash'"):
        run.run_suite("paper", target="cpu", only=["flash"])


def alone(names, failure="", **options):
    """The records of a point with rows of these names from an earlier run."""
    old = {"seconds": 1.0, "eager_seconds": 1.0, "failure": failure, "date": "2026-01-01"}
    reused = [{**old, "implementation": name} for name in names]
    asked = Options("cpu", budget=0.001, **options)
    return Runner(CASE, "f32", asked).measure("decode", {"S": 3, "N": 8}, reused)


def test_an_earlier_row_goes_only_for_a_right_one(monkeypatch):
    def missing():
        raise NotInstalled("it is not installed")
        yield

    def settings():
        yield "", slow
        yield "quick", halves

    peers = [
        Peer("gone", missing),
        Peer("wrong", lambda: iter([("", lambda x: x)])),
        Peer("swept", settings),
    ]
    monkeypatch.setattr(runner, "peers_of", lambda *_: peers)
    names = ("gone", "wrong", "swept", "swept tuned", "of another case")
    only = ("gone", "wrong", "swept", "of another case")
    records = alone(names, only=only, sweep=5.0)
    by = {r["implementation"]: r for r in records}
    assert len(records) == len(by) == 2 + len(names)
    assert [n for n in names if "reused" in by[n]] == ["gone", "wrong", "of another case"]
    assert by["gone"]["reused"]["again"] == "it is not installed" and not by["gone"]["failure"]
    assert "again" in by["wrong"]["reused"] and "again" not in by["of another case"]["reused"]
    by = {r["implementation"]: r for r in alone(names, failure="it was wrong", only=only, sweep=5.0)}
    assert by["gone"]["failure"] == "it is not installed" and "reused" not in by["gone"]


def test_peers_asked_for_by_name_may_take_what_all_may(monkeypatch):
    assert [Options("cpu", p).effort for p in ("none", "quick", "full")] == ["none", "quick", "full"]
    one = job("a", "f32", 1)
    one.options = Options("cpu", "none", only=("max-autotune",))
    assert one.options.effort == "full"
    asked = []

    class Patient(Child):
        def ask(self, message, seconds):
            asked.append(seconds)
            return {"records": []}

    one.child = Patient()  # pyright: ignore[reportAttributeAccessIssue]
    one.measure("decode", {"S": 0})
    assert asked == [jobs.MEASURE_SECONDS["full"]]
    monkeypatch.setattr(jobs, "Process", Sound)
    monkeypatch.setattr(jobs.os, "environ", environment := dict(jobs.os.environ))
    environment.pop("TORCHINDUCTOR_COMPILE_THREADS", None)
    assert len(list(jobs.remote([one], 2))) == 1
    assert environment["TORCHINDUCTOR_COMPILE_THREADS"] == str(jobs.inductor_threads("full", 1))
    monkeypatch.setattr(jobs.os, "cpu_count", lambda: 16)
    assert [jobs.inductor_threads("full", children) for children in (2, 14, 90)] == [16, 5, 4]
    assert jobs.inductor_threads("quick", 1) == 1


def test_a_run_says_which_peers_it_measured_and_goes_on_with_the_same(suite, tmp_path, monkeypatch):
    _, data = once(tmp_path, only=["max-autotune"], sweep=1.0)
    assert data["only"] == ["max-autotune"] and data["sweep"] == 1.0
    assert "only max-autotune measured" in str(run.summary(data["records"], "cpu", data["only"]).title)
    _, again = once(tmp_path, only=["max-autotune"], sweep=1.0, resume=True)
    assert again["records"] == data["records"]
    with pytest.raises(Invalid, match="measured with --peer max-autotune, not with none"):
        once(tmp_path, resume=True)
    _, data = once(tmp_path, peers="none")
    assert data["only"] == [] and data["sweep"] == 0.0
    assert "measured" not in str(run.summary(data["records"], "cpu").title)
    with pytest.raises(Invalid, match="measured with no --peer, not with --peer max-autotune"):
        once(tmp_path, only=["max-autotune"], resume=True)
    # without a peer's name, no peer is made to look for it
    monkeypatch.setattr(run, "peers_of", lambda *_: pytest.fail("peers were made"))
    run.check_peers("tiny", run.Run(target="cpu"))


def test_a_wrong_peer_is_never_the_best():
    records = [
        {"implementation": "eager", "seconds": 2.0, "failure": ""},
        {"implementation": "wrong", "seconds": math.nan, "failure": "wrong: error 1"},
        {"implementation": "cleave no-split", "seconds": 0.1, "failure": ""},
        {"implementation": "cleave", "seconds": 1.0, "failure": ""},
    ]
    assert run.best_peer(records)["implementation"] == "eager" and run.ratio_of(records) == 2.0


def test_libraries_that_are_not_here_say_so(monkeypatch):
    for name in ("fa3_fwd_interface", "flashinfer"):
        monkeypatch.setitem(sys.modules, name, None)
    how = Attention(lambda q, k, v: (q, k, v), lambda out: out)
    sizes = {"B": 1, "H": 4, "KV": 2, "S": 3, "T": 5, "D": 8}
    for peer in attention_peers(how, sizes, "cuda", True):
        if peer.name in ("fa3", "flashinfer"):
            with pytest.raises(NotInstalled, match="is not installed"):
                next(peer.settings())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [1, 5])
def test_sdpa_computes_the_case_however_it_is_folded(rows, causal):
    from benchmarks.functions import attention, causal_attention

    how = Attention(lambda q, k, v: (q, k, v), lambda out: out, causal=causal)
    q, k, v = torch.randn(2, 4, rows, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    known = (causal_attention if causal else attention)(q, k, v)
    sizes = {"B": 2, "H": 4, "KV": 2, "S": rows, "T": 5, "D": 8}
    [peer] = attention_peers(how, sizes, "cpu", False)
    folds = 0
    for setting, call in peer.settings():
        if setting == "query heads as rows" and causal and rows > 1:
            with pytest.raises(NotImplementedError):
                call(q, k, v)
            continue
        torch.testing.assert_close(call(q, k, v), known)
        folds += 1
    assert folds >= 2


def test_quick_peers_compile_little():
    case = replace(CASE, attention=Attention(lambda x: (x, x, x), lambda out: out))
    sizes = {"S": 3, "T": 3, "N": 8}
    names = {e: [p.name for p in peers_of(case, sizes, "cuda", e)] for e in ("none", "quick", "full")}
    assert names["none"] == []
    assert set(names["full"]) - set(names["quick"]) == {"max-autotune", "flex"}
    assert {"torch.compile", "sdpa-flash", "sdpa-cudnn", "sdpa-efficient", "fa3", "flashinfer"} == set(
        names["quick"]
    )


# ---------------------------------------------------------------- jobs


def job(name: str, dtype: str, points: int) -> Job:
    case = replace(CASE, name=name)
    return Job(
        "tiny", case, dtype, [("decode", {"S": n}) for n in range(points)], lambda *_: [], Options("cpu")
    )


def test_points_are_taken_in_turns():
    order = in_turns([job("a", "f16", 2), job("b", "f16", 3), job("a", "bf16", 1)])
    assert [(j.case.name, j.dtype, s["S"]) for j, _, s in order] == [
        ("a", "f16", 0), ("b", "f16", 0), ("a", "f16", 1), ("b", "f16", 1), ("b", "f16", 2), ("a", "bf16", 0),
    ]  # fmt: skip


class Child:
    """Stands for a child process: dies at the first point, then serves."""

    started = 0

    def __init__(self, *_):
        Child.started += 1
        self.deadly = Child.started == 1

    def ask(self, message, seconds):
        if message["do"] == "prepare":
            return {}
        if self.deadly:
            raise Died("SIGSEGV: gone")
        return {
            "records": [{"case": "a", "implementation": "cleave", "failure": "", "sizes": message["sizes"]}]
        }

    def kill(self):
        pass


class Sound(Child):
    """One that dies never."""

    def __init__(self, *_):
        super().__init__()
        self.deadly = False


def test_a_child_that_dies_costs_one_point(monkeypatch):
    Child.started = 0
    monkeypatch.setattr(jobs, "Process", Child)
    found = list(jobs.remote([job("a", "f32", 3)], 2))
    assert [r["failure"] for [r] in found] == ["the process died: SIGSEGV: gone", "", ""]
    assert Child.started == 2


def test_a_child_that_hangs_is_a_record():
    one = job("a", "f32", 1)

    class Hanging(Child):
        def ask(self, message, seconds):
            raise Late

    one.child = Hanging()  # pyright: ignore[reportAttributeAccessIssue]
    [record], alive = measured(one, "decode", {"S": 0}, "")
    assert record["failure"] == "no answer in time" and not alive
    [record], alive = measured(one, "decode", {"S": 0}, "compiling took too long")
    assert record["failure"] == "compiling took too long" and alive


@pytest.mark.slow
def test_children_measure_as_this_process_does(tmp_path):
    file = tmp_path / "raw.json"
    options = {"cases": ["softmax"], "dtypes": ["f32"], "phases": ["decode"], "peers": "none", "budget": 0.01}
    assert run.run_suite("static", target="cpu", json_file=file, jobs=2, **options) == 0
    assert {r["case"] for r in json.loads(file.read_text())["records"]} == {"softmax", "log-softmax"}


# ---------------------------------------------------------------- checking and timing


def test_errors_are_by_row_and_want_no_new_infinities():
    ref = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    assert row_error(ref.float(), ref) == 0.0
    assert row_error(torch.tensor([[3.0, 4.5], [0.0, 0.0]]), ref) == pytest.approx(0.1)
    assert row_error(torch.tensor([[3.0, math.inf], [0.0, 0.0]]), ref) == math.inf
    assert row_error(ref[:1], ref) == math.inf
    assert allowed_error(math.nan, torch.bfloat16, 10) == 2 * 2.0**-7


def test_what_is_slow_is_timed_less_often_but_counted():
    calls = {"quick": lambda: None, "slow": lambda: time.sleep(0.01)}
    found = time_all(calls, [()], Clock("cpu"), 0.01, 50)
    assert found["quick"].runs >= 50 > found["slow"].runs >= 5
    assert found["slow"].seconds >= 0.01 and math.isnan(found["slow"].warm)


def test_a_peer_that_raises_is_a_row():
    def broken(*_):
        raise RuntimeError("\nno kernel for this\nmore")

    row = judge("peer", broken, [(torch.ones(2),)], [(torch.ones(2),)], 0.0, 2)
    assert row.failure == "RuntimeError: no kernel for this" and not row.correct


def test_the_peak_is_that_of_the_call():
    size = 64 << 20
    call = lambda: torch.ones(size // 4).add_(1.0).sum()  # noqa: E731
    found = peak_bytes(call, (), "cpu")
    if found is None:
        pytest.skip("no /proc/self/clear_refs that may be written")
    assert size * 0.9 < found < size * 3


# ---------------------------------------------------------------- the page


def test_the_page_shows_misses_as_misses(suite, tmp_path, monkeypatch):
    _, data = once(tmp_path, ablations=["no-split"])
    for r in data["records"]:
        r["seconds"] = {"eager": 3e-6, "torch.compile": 1e-6, "cleave": 2e-6}.get(r["implementation"], 4e-6)
        r["fraction"] = r["floor_seconds"] / r["seconds"]
    data["records"][-1]["failure"] = "BuildError: no compiler"
    folder = tmp_path / "results"
    folder.mkdir()
    (folder / "static-cpu-f32.json").write_text(json.dumps(data))
    (folder / "misses.json").write_text(json.dumps({"static-cpu-f32": {"halves": "it is a test"}}))
    (folder / "ablation-cpu-f32.json").write_text(json.dumps(data))
    (folder / "doubtful.json").write_text(json.dumps({"static-cpu-f32": "a busy machine"}))
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(report, "RESULTS", folder)
    monkeypatch.setattr(report, "PAGE", tmp_path / "docs" / "page.md")
    report.main()
    page = (tmp_path / "docs" / "page.md").read_text()
    assert "| B0 halves | f32 |" in page and "torch.compile 1.0" in page
    assert page.count("**0.50 miss**") == 2 and "it is a test" in page and "BuildError: no compiler" in page
    assert "2 of 3 points correct" in page
    assert page.count("| no-split | 2 | 2.00 | 2.00 (halves S4 N8) | 2 | 2.00 | 0 |") == 2
    assert "over ours" in page and "| 0.25 |" in page  # twice the time, so half the ratio
    assert "Roofline" in page and "Compile time" in page and "Peak memory" in page
    assert page.index("## Summary") < page.index("## static-cpu-f32") and "0.50 (doubtful)" in page
    assert "**Doubtful**: a busy machine" in page
    peers = (tmp_path / "docs" / "benchmarks-peers.md").read_text()
    assert "| B0 halves | decode | f32 |" in peers
    assert (tmp_path / "docs" / "plots" / "static-cpu-f32.svg").exists()
    first = page
    report.main()
    assert (tmp_path / "docs" / "page.md").read_text() == first
