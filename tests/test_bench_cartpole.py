"""The Cartpole study: its order, its files, what results are held to, and plans that run."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks import cartpole, cartpole_ahead, cartpole_report, cartpole_study
from benchmarks.cartpole_ahead import groups_of
from benchmarks.cartpole_case import Case
from benchmarks.cartpole_checks import DRIFT, GROWTH, Checks, compared, held_to_oracle, joined
from benchmarks.cartpole_drift import measured
from benchmarks.cartpole_env import DRAWS, draw, make_inputs, oracle, separate, step
from benchmarks.cartpole_facts import touched
from benchmarks.cartpole_goals import missing
from benchmarks.cartpole_order import MANY, order
from benchmarks.cartpole_ours import Variant, arguments, variants
from benchmarks.cartpole_plans import STRATEGIES, Planned, Plans, Prepared, unrolled

from cleave import pipeline
from cleave.errors import Infeasible
from cleave.runtime import build
from cleave.schedule.parse import parse_tiles

STEP_BYTES = 4 * (5 + 5 + 5 + 1) + 1
"""Of one environment in one step in one kernel: state, count and draws in; state, count, reward, done out."""


def test_inputs_are_the_draws_of_their_counters() -> None:
    inputs = make_inputs(7, 5, "cpu")
    index = torch.arange(7, dtype=torch.int32)
    for t in range(5):
        action, fresh = draw(index, torch.full_like(index, t))
        assert torch.equal(action, inputs.action[t])
        assert all(torch.equal(a, b[t]) for a, b in zip(fresh, inputs.fresh, strict=True))
    assert DRAWS == 3


def test_the_most_telling_rows_come_first_and_each_once() -> None:
    tasks = order("cuda", cartpole.SIZES)
    names = [(t.name, t.size) for t in tasks]
    assert len(set(names)) == len(names)
    assert names[0] == ("cleave separate read loop", 2048)
    first = names[:30]
    assert {("by hand", n) for n in cartpole.SIZES} <= set(first)
    assert {("JAX B0", 2048), ("JAX B1", 2048)} <= set(first)


def test_plain_pytorch_is_held_to_the_oracle_and_a_wrong_step_is_found() -> None:
    inputs = make_inputs(64, 12, "cpu")
    assert held_to_oracle(inputs, separate, 12) == ""

    def worse(*args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, *rest = separate(*args)
        return (x + 3e-6, *rest)

    assert "off the oracle" in held_to_oracle(inputs, worse, 12)


def test_results_may_drift_as_far_as_the_pole_carries_a_rounding() -> None:
    size, steps = 8, 30
    count = torch.full((size,), 30, dtype=torch.int32)
    state = [torch.zeros(size) for _ in range(4)]
    out = (torch.ones(steps, size), torch.zeros(steps, size, dtype=torch.bool))
    right = (*state, count, *out)
    assert compared(right, right) == {"agrees": "bit for bit"}
    bound = DRIFT * GROWTH**31
    near = (state[0] + 0.9 * bound, *right[1:])
    assert compared(near, right)["of_bound"] == pytest.approx(0.9, rel=1e-3)
    for far in (
        (state[0] + 1.1 * bound, *right[1:]),
        (*right[:-1], torch.ones(steps, size, dtype=torch.bool)),
    ):
        with pytest.raises(ValueError, match="wrong"):
            compared(far, right)


@pytest.mark.parametrize("state", ["separate", "stacked"])
@pytest.mark.parametrize("random", ["read", "drawn"])
def test_unrolled_steps_are_steps_after_each_other(state: str, random: str) -> None:
    from benchmarks.cartpole_plans import arguments as of_plan

    inputs = make_inputs(6, 3, "cpu")
    planned = Planned("none", "X26", state, random, 3)
    out = unrolled(planned)(*of_plan(planned, inputs, 0))
    states = 5 if state == "separate" else 2
    found = joined([(*out[:states], torch.stack(out[states::2]), torch.stack(out[states + 1 :: 2]))])
    expected = separate(*arguments(Variant("separate", "read", "loop"), inputs, 0, 3))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_what_is_built_ahead_is_planned_together_and_once() -> None:
    tasks = order("cuda", (2048, 64, 1 << 20))
    every = [t.what for t in tasks if isinstance(t.what, Planned)]
    wanted = [t for t in tasks if "separate read x1" in t.name and t.size == 64]
    groups = groups_of(wanted, every)
    assert {size for size, _ in groups} == {64}
    strategies = {size_group[1][0].strategy in MANY: len(size_group[1]) for size_group in groups}
    assert strategies == {False: 10, True: 2}, "those of a kernel an operation are apart"
    assert sum(map(len, groups.values())) == len(wanted)


def test_what_cannot_be_built_ahead_is_tried_again_by_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a row says why, where nothing was said before."""

    def refused(*_: object) -> Prepared:
        raise Infeasible("487 kernels: not built")

    monkeypatch.setattr(Plans, "prepared", refused)
    threads = torch.get_num_threads()
    planned = Planned("none", "X26", "separate", "drawn")
    try:
        built, handed = cartpole_ahead._plans([planned], frozenset([planned]), 8, 20, "cpu", float("inf"))
    finally:
        torch.set_num_threads(threads)
    assert built == {(planned.name, 8): None} and handed == {}


def test_a_whole_study_lacks_nothing() -> None:
    rows = [{"implementation": t.name, "environments": t.size} for t in order("cpu", (2048, 64))]
    assert missing(rows, "cpu") == [f"All {len(rows)} rows of the full order at these 2 sizes are there."]
    lines = missing([r for r in rows if r["implementation"] != "JAX B0"], "cpu")
    assert (
        lines[0].startswith(f"Of the {len(rows)} rows")
        and lines[-1] == "- JAX B0: 1 at N = 2048, 1 elsewhere"
    )


def test_a_plan_with_kernels_that_were_measured_is_not_measured_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    study = cartpole.Study("cpu", None, [])
    first, second = Planned("xla", "X22", "separate", "read"), Planned("xla", "X23", "separate", "read")
    study.rows.append({"implementation": first.name, "environments": 8, "failure": "", cartpole.TIME: 2.0,
                       "kernels": 1, "planned_us_per_step": 1.0})  # fmt: skip
    made = Prepared(first.name, "", {"planned_us_per_step": 3.0}, 0.1)
    monkeypatch.setattr(study.makers.plans, "_prepared", lambda *_: made)
    monkeypatch.setattr(study, "inputs", lambda size: Checks(make_inputs(size, 1, "cpu"), study.makers.ours))
    row = study.run(cartpole.Task(3, 8, second.name, second))
    assert (row[cartpole.TIME], row["same_as"], row["kernels"]) == (2.0, first.name, 1)
    assert row["planned_us_per_step"] == 3.0 and row["implementation"] == second.name


def test_every_variant_and_strategy_is_in_the_order() -> None:
    tasks = order("cuda", cartpole.SIZES)
    names = {(t.name, t.size) for t in tasks}
    assert {(v.name, n) for v in variants() for n in cartpole.SIZES} <= names
    for strategy, epoch in STRATEGIES:
        for state in ("separate", "stacked"):
            for n in (2048, 64, 1 << 16, 1 << 20):
                assert (Planned(strategy, epoch, state, "read").name, n) in names
            assert (Planned(strategy, epoch, state, "drawn").name, 2048) in names


def test_decisions_have_launches_bytes_instructions_and_time() -> None:
    def row(name: str, launches: int, us: float) -> cartpole.Row:
        return {"implementation": f"plan {name} separate read x1", "environments": 2048, "failure": "",
                cartpole.TIME: us, "launches_per_step": launches, "touched_bytes_per_step": 2048 * 65,
                "registers": [20, None, 26]}  # fmt: skip

    rows = [row("vertical@X23", 3, 5.0), row("xla@X23", 1, 2.0)]
    names = [f"plan {name} separate read x1" for name in ("xla@X23", "vertical@X23")]
    code = [
        {"implementation": names[0], "instructions_per_step": 184.0},
        {"implementation": names[1], "same_as": names[0]},
    ]
    assert cartpole_study.decisions(rows, code, "separate") == [
        ("xla@X23", "1", "65", "184", "26", "2", ""),
        ("vertical@X23", "3", "65", "184", "26", "5", "1.50"),
    ]


def test_the_papers_figures_are_computed_and_what_is_missing_is_said() -> None:
    def rows(**times: float) -> list[cartpole.Row]:
        return [{"implementation": k.replace("_", " "), "environments": 2048, "failure": "", cartpole.TIME: t}
                for k, t in times.items()]  # fmt: skip

    lines = {n: (here, said) for n, _, here, said in cartpole_study.paper(rows(JAX_B0=12.0, JAX_B1=8.0), [])}
    assert lines["1"] == (
        "JAX, B0 over B1: 1.50x; our whole loop, drawn over read: not measured",
        "order confirmed",
    )
    assert lines["3"][1] == "not measured"
    lines = {n: said for n, *_, said in cartpole_study.paper(rows(JAX_B1=8.0, JAX_S2=9.0), [])}
    assert lines["3"] == "**not confirmed**"


def test_runs_drift_less_than_the_bound() -> None:
    data = measured(64, (1, 5))
    assert [r["steps"] for r in data["rows"]] == [1, 5]
    assert all(0 < r["float64"] < r["bound"] for r in data["rows"])


def test_a_cpu_is_believed_by_the_clock_only_where_it_was_quiet(tmp_path: Path) -> None:
    row = {
        "implementation": "x",
        "environments": 1,
        "failure": "",
        cartpole.TIME: 5.0,
        "cpu_" + cartpole.TIME: 2.0,
    }
    for load, expected in ((0.1, 5.0), (4.0, 2.0)):
        path = tmp_path / "raw.json"
        path.write_text(json.dumps({"target": "cpu", "load": load, "rows": [row]}))
        assert cartpole_report.read(path)["rows"][0][cartpole.TIME] == expected


@pytest.mark.slow
def test_plans_run_and_touch_what_they_say() -> None:
    inputs = make_inputs(48, 6, "cpu")
    expected = separate(*arguments(Variant("separate", "read", "loop"), inputs, 0, 6))
    plans = Plans("cpu")
    one = plans.case(Planned("cleave", "X26", "separate", "read"), inputs)
    assert one.facts["launches_per_step"] == 1
    assert one.facts["touched_bytes_per_step"] == STEP_BYTES * 48
    for planned in (
        Planned("vertical", "X23", "separate", "read"),
        Planned("xla", "X22", "stacked", "read"),
        Planned("cleave", "X26", "separate", "read", 2),
    ):
        case = plans.case(planned, inputs)
        found = joined(case.facts["results"]())
        assert "agrees" in compared(found, expected)
        assert case.facts["kernels"] >= 1
        assert case.facts["touched_bytes_per_step"] > 0


def test_a_step_on_stacked_state_is_vectorised(tmp_path: Path) -> None:
    """gcc made its code twice, for environments that end and that go on, and then had a store in a branch."""
    command, *own = build.compiler()
    if "g++" not in command:
        pytest.skip("the messages are those of g++")
    made = Plans("cpu").prepared(Planned("cleave", "X26", "stacked", "read"), make_inputs(4096, 20, "cpu"))
    source = pipeline.emit(parse_tiles(made.tiles), "cpu").text
    (tmp_path / "step.cpp").write_text(source)
    lines = list(enumerate(source.splitlines(), 1))
    physics = next(n for n, text in lines if "* 0.02f" in text)
    loop = max(n for n, text in lines if n < physics and "for (" in text)
    how = [*build.FLAGS, *own, f"-I{build.INCLUDE}", "-fopt-info-vec-optimized", "step.cpp", "-o", "step.so"]
    told = subprocess.run([command, *how], cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    places = [int(n) for n in re.findall(r"step\.cpp:(\d+):\d+: optimized: loop vectorized", told)]
    assert any(loop <= place <= loop + 2 for place in places), told


def test_bytes_are_counted_once_a_kernel_and_where_they_are() -> None:
    from cleave.ir.candidate import Candidate
    from cleave.ir.dims import Atom
    from cleave.ir.text import parse_program
    from cleave.schedule.machine import CPU
    from cleave.schedule.select import best

    text = """
    program rows(a: f32[K, N]) where K = 3 {
      s[n: N]: f32 = add(a[0, n], a[2, n])
      return s: s[n]
    }
    """
    tiles = best([Candidate(parse_program(text), ())], {Atom("N"): 100}, CPU)[0].tiles
    assert touched(tiles, {Atom("N"): 100, Atom("K"): 3}) == (800, 400)


def test_a_file_is_whole_after_every_row_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def run(self: cartpole.Study, task: cartpole.Task) -> cartpole.Row:
        made.append(task.name)
        return {"implementation": task.name, "environments": task.size, "failure": "", cartpole.TIME: 1.0}

    monkeypatch.setattr(cartpole.Study, "run", run)
    path = tmp_path / "raw.json"
    cartpole.run_cartpole("cpu", json_file=path, sizes=[64], only=("loop", "by hand"))
    assert len(made) == 5
    rows = json.loads(path.read_text())["rows"]
    assert [r["implementation"] for r in rows] == made
    cartpole.run_cartpole("cpu", json_file=path, sizes=[64], only=("loop", "by hand"), resume=True)
    assert len(made) == 5
    assert cartpole.run_cartpole("cpu", json_file=path, sizes=[64], budget=0.0, resume=True) == 0


def test_what_is_wrong_after_it_was_timed_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wearing:
        """Right the first time only."""

        inputs = None

        def __init__(self) -> None:
            self.asked = 0

        def held(self, _: Case) -> dict[str, str]:
            self.asked += 1
            if self.asked > 1:
                raise ValueError("it is wrong now")
            return {"agrees": "bit for bit"}

    study = cartpole.Study("cpu", None, [])
    monkeypatch.setattr(study, "inputs", lambda _: Wearing())
    monkeypatch.setattr(study.makers, "case", lambda *_: Case("it", lambda: None, 5))
    row = study.run(order("cpu", [64])[0])
    assert "it is wrong now" in row["failure"]
    assert not [name for name in row if "microseconds" in name or "per_second" in name]


def test_tables_are_made_of_rows_and_put_where_they_are_marked() -> None:
    rows = [
        {"implementation": "cleave separate read loop", "environments": 64, "failure": "",
         cartpole_report.TIME: 0.5, "steps_per_second": 1.28e8},
        {"implementation": "by hand", "environments": 64, "failure": "", cartpole_report.TIME: 0.6,
         "steps_per_second": 1e8},
        {"implementation": "JAX B1", "environments": 64, "failure": "it is wrong", cartpole_report.TIME: 0.1},
    ]  # fmt: skip
    table = cartpole_report.by_size(rows)
    assert table[2].startswith("| 64 | 0.5 |") and "0.6 (1.20x)" in table[2] and "0.1" not in table[2]
    page = cartpole_report.filled(
        "a\n<!-- table x -->\nold\n<!-- end -->\nb\n<!-- table y -->\n<!-- end -->", {"x": ["new"]}
    )
    assert "new" in page and "old" not in page and page.endswith("<!-- table y -->\n<!-- end -->")


def test_the_oracle_and_the_step_are_two_writings_of_one_thing() -> None:
    inputs = make_inputs(128, 1, "cpu")
    state = (*(s.double() for s in inputs.state), inputs.count)
    given = (inputs.action[0], [f[0].double() for f in inputs.fresh])
    (found, (_, done)), (right, over, _) = (
        step(state, *given),  # type: ignore[arg-type]
        oracle([s.numpy() for s in state], given[0].numpy(), [f.numpy() for f in given[1]]),
    )
    assert np.array_equal(done.numpy(), over)
    for one, two in zip(found, right, strict=True):
        np.testing.assert_allclose(one.numpy(), two, atol=1e-14)


def test_a_case_keeps_to_itself_what_is_the_studys_own() -> None:
    case = Case("x", lambda: None, 1, {"results": None, "kernels": 1})
    kept = {k: v for k, v in case.facts.items() if k not in cartpole.PRIVATE}
    assert kept == {"kernels": 1}
