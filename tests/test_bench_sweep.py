"""Sweeps of whole spaces: what is in one, what becomes of each tile program, and what the page says of it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks import ranking, report_parts, sweep
from benchmarks.suites import PAPER

from cleave.errors import Invalid
from cleave.knobs import scope
from cleave.pipeline import plan
from cleave.runtime.naming import tiles_digest
from cleave.schedule.parse import parse_tiles
from runtime.tuning_faults import compiler, point

Row = dict[str, Any]
TITLE = {"case": "product", "phase": "decode", "sizes": {"N": 24, "O": 20, "K": 33}, "dtype": "f32"}


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data folder, and a compiler that breaks kernels by their names."""
    with scope(data_dir=tmp_path / "data", compiler=compiler(tmp_path)):
        yield tmp_path


def swept(*faults: str, seconds: float = 200, limit: float = 240) -> Row:
    found: list[Row] = []
    offers = [sweep.Offer(TITLE, point(*faults))]
    with sweep.Sweep(offers, "cpu", seconds, time.monotonic() + limit, jobs=2) as one:
        one.run(found.append)
    return found[0]


def test_every_tile_program_has_an_outcome(data: Path) -> None:
    """One that is wrong, refused or a crash costs no other; what is right is ranked by the model."""
    found = swept("wrong", "main", "refused", "crash", "main")
    assert [row["status"] for row in found["rows"]][1:] == ["right", "refused", "crash", "right"]
    assert found["rows"][0]["status"] in ("wrong", "slow"), "on a busy machine it may be too slow first"
    assert found["complete"] and found["space"] == found["covered"] == 5
    counts = sweep.counts(found)
    assert (counts["right"], counts["unreached"], counts["refused"] + counts["bad"]) == (2, 0, 3)
    right = [row for row in found["rows"] if row["status"] == "right"]
    assert all(row["us"] > 0 and row["again"] > 0 and row["error"] < 1e-5 for row in right)
    assert "SIGABRT" in found["rows"][3]["detail"]

    ranked = ranking.ranked(found, pointers=False)
    assert ranked["programs"] == 2 and ranked["best"] == min(row["again"] for row in right)
    assert ranked["firsts"]["1"] >= ranked["firsts"]["8"] == 1.0 and abs(ranked["correlation"]) == 1.0
    assert (ranked["space"], ranked["complete"]) == (5, True)


def test_a_sweep_that_is_cut_says_what_is_missing(data: Path) -> None:
    start = time.monotonic()
    found = swept(*["tardy"] * 12, seconds=7)
    assert time.monotonic() - start < 25
    known = [row["place"] for row in found["rows"] if row["status"] == "right"]
    assert 1 <= len(known) < 12 and not found["complete"]
    assert found["covered"] == next(n for n in range(12) if n not in known)
    assert sweep.counts(found)["unreached"] == 12 - len(known)
    assert f"cut: the model's first {found['covered']}, and" in sweep.told(found)


def test_no_time_is_no_point_and_no_outcome(data: Path) -> None:
    found: list[Row] = []
    with sweep.Sweep([sweep.Offer(TITLE, point("main"))], "cpu", 60, time.monotonic() - 1, 1) as one:
        one.run(found.append)
    assert found == []


def test_likely_ones_come_first_and_the_rest_is_a_sample() -> None:
    order = sweep.in_order(200)
    assert order[: sweep.FIRST] == list(range(sweep.FIRST)) and sorted(order) == list(range(200))
    rest = order[sweep.FIRST :]
    assert rest != sorted(rest) and order == sweep.in_order(200)
    assert sweep.in_order(5) == [0, 1, 2, 3, 4]


def test_the_space_is_all_that_the_scheduler_offers() -> None:
    """What a compile ranks is in it, in the same order; nothing is in it twice."""
    case = next(c for c in PAPER if c.name == "rmsnorm+matmul")
    one = sweep.offered(case, "decode", case.points["cuda", "decode"][0], "cuda", "bf16")
    choices = one.point.choices
    models = [choice.model for choice in choices]
    assert models == sorted(models) and len(choices) > 100
    digests = [tiles_digest(choice.tiles, one.point.program) for choice in choices]
    assert len(set(digests)) == len(choices) == len(sweep.rows_of(one.point))
    some = plan(one.point.program, target="cuda", sizes=one.point.sizes, count=64).ranked[0]
    assert len(some) == 64 and some[0].tiles == choices[0].tiles
    assert {r.tiles for r in some} < {choice.tiles for choice in choices}
    row = next(iter(sweep.rows_of(one.point).values()))
    assert parse_tiles(row["tiles"]) == choices[0].tiles and row["model"] == pytest.approx(
        1e6 * models[0], abs=1e-3
    )


def test_the_points_are_many_and_of_the_suite() -> None:
    cases = {case.name: case for case in PAPER}
    for name, phase, number in sweep.POINTS:
        assert number < len(cases[name].points["cuda", phase])
    assert len(set(sweep.POINTS)) == len(sweep.POINTS) >= 8
    assert len({name for name, _, _ in sweep.POINTS}) >= 7


def test_what_decides_is_timed_again() -> None:
    """The fastest, and the fastest of the model's first 1, 8 and 16, wherever these are."""
    times = [50.0, *[40.0] * 6, 30.0, *[35.0] * 7, 20.0, *[10.0, 11, 12, 13, 14, 15, 16]]
    rows = [{"place": 2 * n, "us": us} for n, us in enumerate(times)]
    assert sweep.deciding(rows) == {0, 14, 30, *(2 * n for n in range(16, 22))}
    assert sweep.deciding([]) == set()


def test_a_run_goes_on_with_what_is_complete(data: Path, monkeypatch) -> None:
    file = data / "sweep.json.gz"
    points = [{"case": "a", "complete": True}, {"case": "b", "complete": False}]
    sweep.write(file, "cpu", 2, points)
    assert sweep.read(file)["points"] == points and sweep._earlier(file, "cpu") == points[:1]
    monkeypatch.setattr(sweep, "device_name", lambda target: "another")
    with pytest.raises(Invalid, match="not on another"):
        sweep._earlier(file, "cpu")


# ---------------------------------------------------------------- what is made of it


def test_ranks_that_are_equal_are_shared() -> None:
    assert ranking.correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert ranking.correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # Ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3: a covariance of 4.5, squares of 4.5 and 5.
    assert ranking.correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(4.5 / (4.5 * 5) ** 0.5)
    assert ranking.correlation([1, 1], [1, 2]) == 0.0


def test_a_file_of_a_sweep_is_ranked(data: Path, monkeypatch, capsys) -> None:
    one, other = swept("main", "main", "wrong"), {**TITLE, "case": "none", "rows": [], "space": 0}
    sweep.write(data / "x.json.gz", "cpu", 2, [one, other])
    out = data / "ranking-x.json"
    monkeypatch.setattr(sys, "argv", ["ranking", "--data", str(data / "x.json.gz"), "--json", str(out)])
    ranking.main()
    found = json.loads(out.read_text())
    assert found["of"] == "x.json.gz" and found["lacking"] == ["none decode"] and "device" in found
    (made,) = found["points"]
    assert (made["space"], made["right"]) == (3, 2)
    assert made["bad"] + made["refused"] == 1, "on a busy machine it may be too slow before it is wrong"
    assert "product" in capsys.readouterr().out
    page = "\n".join(report_parts.of_model(data))
    assert "Nothing to rank: none decode." in page and "1 of 1 points of 1 subgraphs" in page


def test_the_page_has_spaces_before_samples(tmp_path: Path) -> None:
    sample = {
        "case": "a", "phase": "decode", "sizes": {"S": 16}, "programs": 20, "best": 10.0, "correlation": 0.5,
        "firsts": {"1": 1.5, "8": 1.0, "16": 1.0}, "off": 1.1,
    }  # fmt: skip
    whole = {
        "space": 30,
        "complete": True,
        "covered": 30,
        "compiled": 27,
        "refused": 3,
        "right": 26,
        "bad": 1,
    }
    first = {**sample, **whole, "unreached": 0, "firsts": {"1": 1.25, "8": 1.1, "16": 1.0}}
    cut = {**first, "case": "b", "complete": False, "covered": 12, "unreached": 9, "right": 17}
    about = {"device": "GPU", "date": "2026-01-02", "of": "sweep.json.gz"}
    files = {"a": {"of": "some.json.gz", "points": [sample]}, "z": {**about, "points": [first, cut]}}
    for name, found in files.items():
        (tmp_path / f"ranking-{name}.json").write_text(json.dumps(found))
    page = "\n".join(report_parts.of_model(tmp_path))
    assert page.index("sweep.json.gz, GPU") < page.index("some.json.gz: 1 points")
    assert (
        "at 1 of 2 points of 2 subgraphs. Of 60, 43 are measured and right, 2 wrong or worse, 6 refused"
        in page
    )
    assert (
        "9 not reached in time. The best of the model's first 1, 8 and 16 takes 1.25, 1.10 and 1.00" in page
    )
    assert "| a | decode | S16 | 30 | 27 | 3 | 26 | yes | 10.0 | 0.50 | 1.25 | 1.10 | 1.00 |" in page
    assert "| no: the model's first 12, others at random |" in page
    assert "| all |  |  | 60 | 54 | 6 | 43 | 1 of 2 |  | 0.50 | 1.25 | 1.10 | 1.00 |" in page
