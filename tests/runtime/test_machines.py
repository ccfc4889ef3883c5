"""Fitted machines as text files, and which one a target has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cleave.errors import Invalid, ParseError
from cleave.frontend import calibrate as calibration
from cleave.knobs import scope
from cleave.pipeline import TARGETS
from cleave.runtime import machines
from cleave.runtime.machines import (
    device_name,
    machine_file,
    machine_of,
    parse_machine,
    print_machine,
)
from cleave.schedule.machine import CPU, H200


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    machines.forget()
    with scope(data_dir=tmp_path):
        yield tmp_path
    machines.forget()


@pytest.mark.parametrize("machine", [CPU, H200], ids=lambda m: m.name)
def test_the_text_comes_back(machine: machines.Machine) -> None:
    assert parse_machine(print_machine(machine, {"made": "by hand"}), machine) == machine


def test_what_a_text_lacks_or_has_too_much(data: Path) -> None:
    found = parse_machine("cleave machine 1\nmemory = 1e9\nmatrix.f32 = 5\nwarp_drive = 9\n", CPU)
    assert found == replace(CPU, memory=1e9, matrix={**CPU.matrix, "f32": 5.0})
    for text in (
        "",
        "cleave machine 2\n",
        "cleave machine 1\nmemory: 3\n",
        "cleave machine 1\nmemory = fast\n",
    ):
        with pytest.raises(ParseError):
            parse_machine(text, CPU)
    with pytest.raises(ParseError, match="for cuda"):
        parse_machine(print_machine(H200, {}), CPU)


def test_a_fitted_machine_is_used_and_a_broken_file_is_not(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    known = machines.built_in("cpu", calibration.torch.get_num_threads())
    assert machine_of("cpu") == known == TARGETS["cpu"]
    path = machine_file("cpu")
    path.parent.mkdir(parents=True)
    path.write_text(print_machine(replace(CPU, memory=1e9), {}))
    machines.forget()
    assert machine_of("cpu").memory == TARGETS["cpu"].memory == 1e9
    path.write_text("nonsense")
    machines.forget()
    assert machine_of("cpu") == known and "is ignored" in caplog.text
    assert list(TARGETS) == ["cpu", "cuda", "interpret"]


def test_calibration_fits_what_can_be_believed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small probes: what is measured is kept, or a note says why not; the file is read at once."""
    for name, size in (("STREAM", 1 << 16), ("SQUARE", 96)):
        monkeypatch.setattr(calibration, name, {"cpu": size, "cuda": size})
    monkeypatch.setattr(calibration, "CHAIN", 4)
    before = calibration._device("cpu")
    monkeypatch.setattr(calibration, "_device", lambda target: replace(before, matrix={"f32": 60e9}))
    found = calibration.calibrate("cpu", budget=60)
    told = [note.split()[0] for note in found.notes]
    changed = [name for name, _, _ in found.rows()]
    alone = calibration.torch.get_num_threads() == 1  # nobody has to wake up
    names = ("launch", "memory", "near", "vector", "special", "division", "matrix.f32")
    for name in names if alone else (*names, "gathering"):
        assert (name in changed) != (name in told), (name, found.notes)
    assert found.path.exists() and machine_of("cpu").memory == pytest.approx(found.machine.memory, rel=1e-5)
    assert str(found.path) in found.text() and found.data()["device"] == found.machine.name


def test_calibration_without_time_or_device(data: Path) -> None:
    found = calibration.calibrate("cpu", budget=0, out=data / "mine.machine")
    several = calibration.torch.get_num_threads() > 1
    probes = 6 + several + len([d for d in CPU.matrix if d != "f64"])
    assert len(found.notes) == probes and not found.rows()[3:]
    assert parse_machine((data / "mine.machine").read_text(), CPU).memory == CPU.memory
    with pytest.raises(Invalid, match="cannot be measured"):
        calibration.calibrate("interpret")
    if not calibration.torch.cuda.is_available():
        with pytest.raises(Invalid, match="no GPU"):
            calibration.calibrate("cuda")
    (data / "file").write_text("")
    with pytest.raises(Invalid, match="cannot be written"):
        calibration.calibrate("cpu", budget=0, out=data / "file" / "x.machine")


def test_the_cpu_is_called_after_the_threads_that_it_has_now(data: Path) -> None:
    before = calibration.torch.get_num_threads()
    try:
        calibration.torch.set_num_threads(1)
        assert device_name("cpu").endswith(", 1 threads")
        calibration.torch.set_num_threads(2)
        assert device_name("cpu").endswith(", 2 threads")
    finally:
        calibration.torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ("fma avx avx2", "Model, avx2, 3 threads"),
        ("avx avx2 avx512f avx512_bf16", "Model, avx512_bf16, 3 threads"),
        ("avx avx2 avx512f avx512vl", "Model, avx512f, 3 threads"),
        ("sse2", "Model, 3 threads"),
    ],
)
def test_the_cpu_is_called_after_its_vectors(flags: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Machines of one model differ in them, and so does the best tile program."""
    processor = f"x86_64 {{'model name': 'Model', 'flags': '{flags}'}}"
    monkeypatch.setattr(machines, "processor", lambda: processor)
    assert machines._device_name.__wrapped__("cpu", 3) == told


def test_plans_are_for_the_threads_that_there_are_now(data: Path) -> None:
    """Not calibrated: as many cores as threads; one draws its share of the bandwidth and waits for none."""
    before = calibration.torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 8):
            calibration.torch.set_num_threads(threads)
            found.append(machine_of("cpu"))
            assert found[-1].cores == TARGETS["cpu"].cores == calibration._device("cpu").cores == threads
    finally:
        calibration.torch.set_num_threads(before)
    one, two, eight = found
    assert two == CPU and one.gathering == 0 and one.launch == CPU.launch - CPU.gathering
    assert one.memory == pytest.approx(CPU.memory / (CPU.cores * CPU.drawing))
    assert one.memory < two.memory < eight.memory < 4 * two.memory and eight.near == 4 * two.near
    assert [m.name for m in found] == ["cpu-avx2-1", "cpu-avx2-2", "cpu-avx2-8"]


@pytest.mark.parametrize(("capability", "groups"), [((9, 0), True), ((8, 0), False), ((10, 0), False)])
def test_only_a_gpu_that_has_warp_groups_is_asked_for_them(
    capability: tuple[int, int], groups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(machines.torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(machines, "machine_file", lambda target: Path("nowhere"))
    assert bool(machines.machine_of("cuda").groups) == groups
