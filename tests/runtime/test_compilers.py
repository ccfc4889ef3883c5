"""Compilers that are halted do nothing until they may go on; none outlives its call."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cleave.runtime.compilers import compilers_halted, run_compiler

COUNTS = """
import sys, time, pathlib
path = pathlib.Path(sys.argv[1])
for n in range(int(sys.argv[2])):
    path.write_text(str(n))
    time.sleep(0.01)
print(sys.stdin.read(), "read", file=sys.stderr)
sys.exit(3)
"""


def counting(python: str, path: Path, times: int) -> list[str]:
    """A shell with a counting process below it: what halts must halt both."""
    return ["/bin/sh", "-c", f'"{python}" -c "$1" "$2" {times}; exit $?', "sh", COUNTS, str(path)]


def until(found: Path) -> None:
    limit = time.monotonic() + 30
    while not (found.exists() and found.read_text()) and time.monotonic() < limit:
        time.sleep(0.01)


def test_a_halted_compiler_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "count"
    results = list[subprocess.CompletedProcess[str]]()
    command = counting(sys.executable, path, 100)
    thread = threading.Thread(target=lambda: results.append(run_compiler(command, "source")))
    thread.start()
    until(path)
    with compilers_halted() as kept:
        assert kept >= 1  # a test before may have left one
        time.sleep(0.1)  # a signal takes a moment to reach a busy process
        before = path.read_text()
        time.sleep(1.5)
        assert path.read_text() == before and thread.is_alive()
        later = threading.Thread(target=lambda: results.append(run_compiler(["true"], "")))
        later.start()
        time.sleep(0.2)
        assert later.is_alive() and not results  # nothing begins meanwhile
    later.join(30)
    thread.join(60)
    assert sorted(r.returncode for r in results) == [0, 3]
    assert next(r for r in results if r.returncode).stderr == "source read\n"
    with compilers_halted() as left:
        assert left < kept


def test_an_interrupted_compiler_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "count"

    def interrupted(self: subprocess.Popen[str], text: str) -> tuple[str, str]:
        until(path)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_compiler(counting(sys.executable, path, 100_000), "")
    time.sleep(0.1)
    before = path.read_text()
    time.sleep(0.5)
    assert path.read_text() == before
