"""What `cleave bench search` and the comparison with egglog measure, and the pages they make."""

from __future__ import annotations

import importlib.util
import json

import pytest
from benchmarks import egglog_peer, egglog_rows
from benchmarks import search as bench

from cleave.algebra.proof import prove
from cleave.cli import main
from cleave.errors import Invalid
from cleave.ir.text import parse_program
from cleave.knobs import knobs


def test_the_suite_is_the_papers_and_that_of_the_algebra() -> None:
    names = list(bench.programs())
    assert sum(name.startswith("paper: ") for name in names) >= 9 and len(names) >= 69
    with pytest.raises(Invalid, match="no program has nothing"):
        bench.programs(["nothing"])


def test_larger_sizes_are_multiples_and_change_nothing_else() -> None:
    program = bench.programs(["softmax_temperature"])["softmax_temperature"]
    one, two = bench.sized(program, 1), bench.sized(program, bench.FACTOR)
    assert not one.dynamic and not two.dynamic
    assert [v * bench.FACTOR for _, v in one.sizes] == [v for _, v in two.sizes]
    assert [o.node for o in one.outputs] == [o.node for o in program.outputs]


def test_the_command_writes_what_the_page_needs(tmp_path, capsys) -> None:
    path = tmp_path / "search.json"
    before = knobs()
    with pytest.raises(SystemExit) as done:
        main(["bench", "search", "--case", "paper: matmul", "--case", "softmax_temp", "--json", str(path)])
    assert knobs() == before
    data = json.loads(path.read_text())
    figures = data["summary"]
    assert figures["programs"] == len(data["rows"]) == 4
    assert figures["same_x64"] == 4 and figures["searched_again"] == 0
    assert done.value.code == (1 if bench.missed(figures) else 0)
    for row in data["rows"]:
        counts = row["counts"]
        assert counts["kept"] == row["candidates"] and row["cached_ms"] > 0
    page = bench.page(data)
    assert all(row["program"] in page for row in data["rows"])
    assert "Where the time goes" in page and "algebra/" in page
    said = capsys.readouterr().out
    assert "4 programs: median" in said and "normal forms of" in said


def test_figures_beyond_their_limits_are_named() -> None:
    figures = dict.fromkeys(bench.LIMITS, 0.0) | {"same_x64": 3, "programs": 3, "searched_again": 0}
    assert bench.missed(figures) == []
    worse = {**figures, "worst_s": 6.0, "same_x64": 2, "searched_again": 1}
    assert bench.missed(worse) == ["worst_s", "same_x64", "searched_again"]


@pytest.mark.parametrize("row", egglog_rows.ROWS, ids=lambda row: row.name)
def test_every_pair_is_equal(row) -> None:
    proof = prove(parse_program(row.first), parse_program(row.second), points=2)
    assert proof.holds == (row.name != egglog_rows.CONTROL)


@pytest.mark.skipif(
    importlib.util.find_spec("egglog") is None, reason="egglog is not installed (extra bench)"
)
def test_egglog_finds_an_easy_pair() -> None:
    found = egglog_peer.measured("egglog", egglog_rows.ROWS[0])
    assert found["answer"] == "found" and found["rounds"] >= 1


def test_the_comparison_as_a_page() -> None:
    sides = {
        "egglog": {"answer": "not in time", "seconds": None, "rounds": 4, "mib": None},
        "cleave": {"answer": "found", "seconds": 0.01234, "rounds": 0, "mib": 1.5},
    }
    page = egglog_peer.page(
        {"egglog": "13.2.0", "limit_s": 20, "laws": "a + b = b + a", "rows": [{"row": "r", **sides}]}
    )
    assert "| r | not in time |  | 4 |  | found | 0.0123 | 1.5 |" in page
    assert "Found: egglog 0, Cleave 1, of 1;" in page
