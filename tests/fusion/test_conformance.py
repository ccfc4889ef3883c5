"""All developer cases of the specification, for the epochs that they name; prints `N of N` per epoch."""

from __future__ import annotations

import pytest

from fusion.cases import Case, all_cases, check_case

CASES = all_cases()
POINTS = [(case, epoch) for case in CASES for epoch in case.epochs]
DEVELOPER_CASES = 93


@pytest.mark.parametrize(("case", "epoch"), POINTS, ids=lambda x: x.name if isinstance(x, Case) else x)
def test_case(case: Case, epoch: str) -> None:
    assert not check_case(case, epoch)


def test_every_case_of_the_specification_stands() -> None:
    labels = {case.label for case in CASES}
    series = {"V": 19, "G": 20, "B": 4, "C": 11, "M": 19, "L": 8, "P": 10, "N": 2}
    assert labels == {f"{letter}{n:02d}" for letter, count in series.items() for n in range(1, count + 1)}
    assert len(labels) == DEVELOPER_CASES


def test_counts_per_epoch(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []
    for epoch in ("X22", "X23", "X26"):
        mine = [case for case in CASES if epoch in case.epochs]
        wrong = {case.label for case in mine if check_case(case, epoch)}
        labels = {case.label for case in mine}
        lines.append(f"{epoch}: {len(labels) - len(wrong)} of {len(labels)} cases")
        assert not wrong, f"{epoch}: {sorted(wrong)}"
    whole = {case.label for case in CASES}
    with capsys.disabled():
        print("\n" + "\n".join([*lines, f"all: {len(whole)} of {DEVELOPER_CASES} cases"]))
