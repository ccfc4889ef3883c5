"""The tuner on the CPU: faults of every kind, what is kept and resumed, several tuners, broken databases."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from tuning_faults import PROGRAM, SIZES, compiler, point, product

import tile_examples as te
from cleave.knobs import knobs, scope
from cleave.report.tuned import Lines
from cleave.runtime.tune import key_of, tune
from cleave.runtime.tune_point import Choice, Event, Limits, Point, Result
from cleave.runtime.tune_space import HEAVY, ordered, refinements, weight
from cleave.runtime.tune_store import NAME, Measured, Store
from cleave.schedule.tiles import GridAxis

TESTS = Path(__file__).parents[1]


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data folder and a compiler of their own."""
    with scope(data_dir=tmp_path / "data", compiler=compiler(tmp_path)):
        yield tmp_path / "data"


LIMITS = Limits(budget=240, measure_seconds=5)


def test_a_crash_and_a_wrong_result_are_survived(data: Path) -> None:
    tuned = tune([point("wrong", "crash", "main")], LIMITS)[0]
    found = {r.choice.tiles.kernels[0].name: r.measured for r in tuned.results}
    assert {name: m.status for name, m in found.items()} == {
        "wrong": "wrong",
        "crash": "crash",
        "main": "right",
    }
    assert tuned.best is not None and tuned.best.choice.tiles.kernels[0].name == "main"
    assert "SIGABRT" in found["crash"].detail


@pytest.mark.slow
def test_every_fault_is_survived_and_kept(data: Path) -> None:
    """A crash, a hang, an exit, no memory, a wrong result and a refused source: each is recorded, the right
    one is chosen, and none is tried again."""
    faults = ("wrong", "crash", "main", "hang", "refused", "memory", "quits", "main")
    events: list[Event] = []
    tuned = tune([point(*faults)], LIMITS, watch=events.append)[0]
    found = {r.choice: r.measured for r in tuned.results}
    wanted = {"main": "right", "quits": "crash"}
    for choice, fault in zip(point(*faults).choices, faults, strict=True):
        assert found[choice].status == wanted.get(fault, fault), (fault, found[choice])
    assert tuned.best is not None and tuned.best.choice.tiles.kernels[0].name == "main"
    assert [r.measured.status for r in tuned.results][:2] == ["right", "right"]
    details = {fault: found[c].detail for c, fault in zip(point(*faults).choices, faults, strict=True)}
    assert "SIGABRT" in details["crash"] and "exit code 3" in details["quits"]
    assert "within 5 s" in details["hang"] and "no memory" in details["memory"]
    assert "compiler failed" in details["refused"] and "error" in details["refused"]
    assert events[-1].total == len(faults) and events[-1].done == len(faults)

    again = tune([point(*faults)], Limits(budget=0))[0]
    assert not any(r.now for r in again.results)
    assert {r.choice: r.measured.status for r in again.results} == {c: m.status for c, m in found.items()}
    assert again.best is not None and again.best.choice == tuned.best.choice


def test_no_budget_measures_little_and_says_so(data: Path) -> None:
    tuned = tune([point("main", "main")], Limits(budget=0))[0]
    assert tuned.results == [] and tuned.best is None and tuned.seconds < 5


def test_what_is_built_is_measured_while_more_is_to_be_built(data: Path) -> None:
    """Where there is no time to build all, the likeliest are measured, and never while a compiler works."""
    events: list[Event] = []
    start = time.monotonic()
    tuned = tune([point(*["tardy"] * 12)], Limits(budget=15, jobs=2), watch=events.append, target="cpu")[0]
    assert time.monotonic() - start < 20
    wanted = point(*["tardy"] * 12).choices
    found = {r.choice for r in tuned.results}
    assert 1 <= len(found) < 12 and found <= set(wanted[: len(found) + 1])  # one of two may be late
    assert all(r.measured.status == "right" for r in tuned.results)
    told = [e.what for e in events if e.what.startswith("measured ")]
    assert len(told) == len(found) and all("no compiler at work" in text for text in told)
    assert events[-1].total == 12 and events[-1].done == len(found)


@pytest.mark.slow
def test_a_compiler_that_hangs_costs_no_other_its_measurement(data: Path) -> None:
    start = time.monotonic()
    tuned = tune([point("main", "stuck", "main", "main")], Limits(budget=30, jobs=2), target="cpu")[0]
    assert time.monotonic() - start < 36
    found = {r.choice for r in tuned.results if r.measured.status == "right"}
    choices = point("main", "stuck", "main", "main").choices
    assert choices[0] in found and choices[2] in found and choices[1] not in found


def test_why_nothing_was_measured_is_told(data: Path) -> None:
    tuned = tune([point("stuck")], Limits(budget=1), target="cpu")[0]
    assert not tuned.results and "the budget of 1 s ended while" in tuned.note
    assert "compiling, the longest for" in tuned.note


def test_the_key_tells_points_apart_and_not_names(data: Path) -> None:
    one = key_of(point("main"))
    other = key_of(Point(PROGRAM, "cpu", {**SIZES, next(iter(SIZES)): 25}, ()))
    assert one.program == other.program and one.sizes != other.sizes
    assert one.sizes == "24 33 20" and "torch" in one.versions and "emitters" in one.versions


def test_refinements_change_warps_and_stages_only(data: Path) -> None:

    made = refinements([Result(Choice(product(8), 1e-6), Measured("right", 1e-5))])
    kernels = {c.tiles.kernels[0] for c in made}
    assert len(kernels) == len(made) > 16
    assert {(k.groups, k.warps, k.descriptors) for k in kernels if k.groups} == {(1, 4, True)}
    assert {k.warps for k in kernels} >= {4, 8} and {k.descriptors for k in kernels} == {True, False}
    assert all(c.tiles.kernels[0].body == product(8).kernels[0].body for c in made)
    assert refinements([Result(Choice(product(8), 1e-6), Measured("wrong"))]) == []


def test_what_compiles_slowly_and_what_differs_in_little_comes_last(data: Path) -> None:
    made = [product(tile) for tile in (64, 8, 16)]
    kernel = replace(made[0].kernels[0], warps=1)  # 64 * 16 * 16 products for 32 threads
    heavy = replace(made[0], kernels=(replace(kernel, grid=_grown(kernel.grid, 8)),))
    assert weight(heavy) >= HEAVY > weight(made[1])
    twin = replace(made[1], name="twin")
    choices = [Choice(tiles, 1e-6) for tiles in (made[1], heavy, twin, made[2])]
    assert [c.tiles for c in ordered(choices, "cuda")] == [made[1], made[2], twin, heavy]
    assert [c.tiles for c in ordered(choices, "cpu")] == [made[1], heavy, made[2], twin]
    liked = [choices[1], choices[0], *choices[2:]]  # the cost model's first is always tried first
    assert [c.tiles for c in ordered(liked, "cuda")] == [heavy, made[1], made[2], twin]
    torch.set_float32_matmul_precision("high")
    try:
        assert weight(heavy) == 0  # matrix units do it
    finally:
        torch.set_float32_matmul_precision("highest")


def _grown(grid: tuple[GridAxis, ...], factor: int) -> tuple[GridAxis, ...]:
    return tuple(replace(axis, tile=factor * axis.tile) for axis in grid)


def test_a_compiler_gets_a_share_of_the_budget() -> None:
    assert [Limits(budget=b).patience for b in (1, 60, 600)] == [6.0, 15.0, 30.0]
    assert Limits(build_seconds=3).patience == 3


@pytest.mark.slow
def test_the_budget_holds_for_a_kernel_that_hangs(data: Path) -> None:
    """It is cut short, which is no measurement: the next tuner tries it."""
    tune([point("main")], LIMITS)  # compiles
    start = time.monotonic()
    tuned = tune([point("hang", "main")], Limits(budget=10, measure_seconds=200))[0]
    assert time.monotonic() - start < 20
    assert all(r.measured.status == "right" for r in tuned.results)
    assert {status for status, _ in rows(data)} == {"right"}


def test_it_tells_where_it_is_twice_a_second(data: Path) -> None:
    """Also while points are worked out; a line at least every two seconds is made of it."""
    pending: Future[Point] = Future()
    threading.Timer(2.5, lambda: pending.set_result(point())).start()
    events: list[tuple[float, Event]] = []
    lines: list[float] = []
    display = Lines(["product"])

    def watch(event: Event) -> None:
        events.append((time.monotonic(), event))
        display(event)
        if display.last not in lines:
            lines.append(display.last)

    tune([pending], Limits(budget=20), watch=watch)
    times = [t for t, _ in events]
    assert max(b - a for a, b in pairwise(times)) < 1.5
    assert "working out" in events[0][1].what and events[0][1].left > 15
    assert max(b - a for a, b in pairwise([*lines, times[-1]])) < 2.0 + 0.5


def test_on_the_cpu_nothing_is_measured_while_points_are_worked_out(data: Path) -> None:
    pending: list[Future[Point]] = [Future(), Future()]
    pending[0].set_result(point("main"))
    threading.Timer(3, lambda: pending[1].set_result(point("main"))).start()
    events: list[tuple[float, Event]] = []
    start = time.monotonic()
    tuned = tune(
        pending,
        Limits(budget=40),
        watch=lambda event: events.append((time.monotonic() - start, event)),
        target="cpu",
    )
    assert [t.best is not None for t in tuned] == [True, True]
    assert min(at for at, event in events if event.total) > 2.9


def test_what_fails_to_be_worked_out_is_told(data: Path) -> None:
    found = tune([replace(point(), note="ValueError: why")], Limits(budget=5))[0]
    assert found.note == "ValueError: why" and not found.results


# ---------------------------------------------------------------- the database


def test_slow_compilers_are_believed_for_a_day_and_no_longer_patience(data: Path) -> None:
    store, key = Store(), key_of(point("main"))
    store.end(key, "t", Measured("slow", 10.0, detail="compiled for 10 s and more"))
    row = store.rows(key)["t"]
    assert row.known(10.0) and row.known(6.0) and not row.known(11.0)
    assert not replace(row, moment=row.moment - 2 * 24 * 3600).known(6.0)
    assert all(Measured(s).known(100.0) for s in ("right", "wrong", "hang", "crash"))


def test_what_was_cut_short_is_forgotten(data: Path) -> None:
    store, key = Store(), key_of(point("main"))
    store.begin(key, "t", "text")
    store.forget(key, "t")
    assert store.rows(key) == {}


def test_a_begun_measurement_is_tried_twice_and_no_more(data: Path) -> None:
    """A tile program that took its tuner down, say by hanging the machine, is not tried for ever."""
    key = key_of(point("main"))
    store = Store()
    store.begin(key, "t", "text")
    assert not store.rows(key)["t"].done
    store.begin(key, "t", "text")
    row = store.rows(key)["t"]
    assert row.attempts == 2 and row.done  # its owner, this process, is not at it any more
    assert store.text("t") == "text"
    store.end(key, "t", Measured("right", 1e-6, 0.0))
    assert Store().rows(key)["t"].seconds == 1e-6


@pytest.mark.parametrize("content", [b"", b"no database at all" * 100, b"SQLite format 3\0" + b"\1" * 5000])
def test_a_corrupted_database_is_set_aside(data: Path, content: bytes) -> None:
    data.mkdir(parents=True)
    (data / NAME).write_bytes(content)
    store = Store()
    key = key_of(point("main"))
    store.end(key, "t", Measured("right", 1e-6))
    assert Store().rows(key)["t"].status == "right"
    aside = list(data.glob("measured-1-broken-*"))
    assert len(aside) == (1 if content else 0) and bool(store.note) == bool(content)


def test_pages_that_rot_are_noticed(data: Path) -> None:
    store = Store()
    key = key_of(point("main"))
    for number in range(300):
        store.end(key, f"tiles {number}", Measured("right", 1e-6, detail="x" * 100))
    store.close()
    raw = bytearray((data / NAME).read_bytes())
    raw[4096 * 2 : 4096 * 6] = os.urandom(4096 * 4)
    (data / NAME).write_bytes(raw)
    assert "was no database any more" in (fresh := Store()).note
    assert fresh.rows(key) == {}


def test_nowhere_to_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with scope(data_dir=tmp_path / "file" / "data"):
        store = Store()
        key = key_of(point("main"))
        store.end(key, "t", Measured("right", 1e-6))
        assert "not kept" in store.note and store.rows(key)["t"].status == "right"


def test_two_stores_write_one_file(data: Path) -> None:
    one, two = Store(), Store()
    key = key_of(point("main"))
    for number in range(20):
        (one, two)[number % 2].end(key, str(number), Measured("right", 1e-6))
    assert len(one.rows(key)) == len(two.rows(key)) == 20


# ---------------------------------------------------------------- processes


def tuner(count: int, budget: float) -> subprocess.Popen[str]:
    path = os.pathsep.join([str(TESTS), str(TESTS / "runtime"), os.environ.get("PYTHONPATH", "")])
    now = knobs()
    env = {**os.environ, "PYTHONPATH": path, "CLEAVE_DATA_DIR": str(now.data_dir),
           "CLEAVE_COMPILER": now.compiler, "CLEAVE_CACHE_DIR": str(now.cache_dir)}  # fmt: skip
    command = [sys.executable, str(TESTS / "runtime" / "tuning_faults.py"), str(count), str(budget)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, start_new_session=True)


def kill(process: subprocess.Popen[str]) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def rows(data: Path) -> list[tuple[str, int]]:
    try:
        with sqlite3.connect(f"file:{data / NAME}?mode=ro", uri=True) as base:
            return base.execute("select status, attempts from measured").fetchall()
    except sqlite3.OperationalError:
        return []


@pytest.mark.slow
def test_a_killed_tuner_goes_on_where_it_was(data: Path) -> None:
    first = tuner(5, 300)
    deadline = time.monotonic() + 200
    while sum(status == "right" for status, _ in rows(data)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    kill(first)
    before = sum(status == "right" for status, _ in rows(data))
    assert 2 <= before < 5
    second = tuner(5, 300)
    out, _ = second.communicate(timeout=250)
    results = json.loads(out)
    assert [status for status, _ in results] == ["right"] * 5
    assert sum(not now for _, now in results) >= before and any(now for _, now in results)


@pytest.mark.slow
def test_children_end_with_their_parent(data: Path) -> None:
    first = tuner(5, 300)
    deadline = time.monotonic() + 200
    while not rows(data) and time.monotonic() < deadline:
        time.sleep(0.05)
    children = _children(first.pid)
    kill(first)
    deadline = time.monotonic() + 30
    while any(map(_runs, children)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert children and not any(map(_runs, children))


@pytest.mark.slow
def test_two_tuners_at_once_share_the_work(data: Path) -> None:
    both = [tuner(4, 300), tuner(4, 300)]
    found = [json.loads(one.communicate(timeout=280)[0]) for one in both]
    assert all([status for status, _ in results] == ["right"] * 4 for results in found)
    assert [(s, n) for s, n in rows(data)] == [("right", 1)] * 4, "each was measured once"


def _children(parent: int) -> list[int]:
    listed = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(parent)], capture_output=True, text=True, check=False
    )
    return [int(word) for word in listed.stdout.split()]


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[-1].split()[0] != "Z"
    except OSError:
        return False


def test_the_example_is_what_the_program_says() -> None:
    assert te.matmul().tiles.inputs == product(8).inputs


def test_the_finalists_are_compared_with_each_other_alone() -> None:
    """Timed on a machine that had become busy, they come before what was timed when it was not."""
    from cleave.runtime.tune import _Run

    choice = Choice(te.matmul().tiles, 1e-6, "", "")
    run = _Run(None, None)  # type: ignore[arg-type]
    for digest, seconds in (("a", 7e-3), ("b", 6e-3), ("c", 2e-3)):
        run.known(digest, Result(choice, Measured("right", seconds, 1e-7)))
    assert [r.measured.seconds for r in run.ranked()] == [2e-3, 6e-3, 7e-3]
    run.finals = frozenset("ab")
    assert [r.measured.seconds for r in run.ranked()] == [6e-3, 7e-3, 2e-3]
