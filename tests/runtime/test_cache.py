"""The store of built things: whole entries or none, whatever else happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleave import knobs
from cleave.runtime import cache

SOURCE = Path(cache.__file__).parents[2]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with knobs.scope(cache_dir=tmp_path):
        yield tmp_path


def put(content: bytes, made: list[int] | None = None):
    def make(path: Path) -> None:
        if made is not None:
            made.append(1)
        path.write_bytes(content)

    return make


def files(folder: Path) -> list[Path]:
    return [p for p in folder.rglob("*") if p.is_file()]


def test_an_entry_is_made_once() -> None:
    made: list[int] = []
    first = cache.fetch("ab" * 20, ".bin", put(b"hello", made))
    second = cache.fetch("ab" * 20, ".bin", put(b"hello", made))
    assert first == second and first.read_bytes() == b"hello" and len(made) == 1


def test_entries_with_one_key_and_two_suffixes_are_two() -> None:
    a = cache.fetch("ab" * 20, ".a", put(b"a"))
    b = cache.fetch("ab" * 20, ".b", put(b"b"))
    assert a.read_bytes() == b"a" and b.read_bytes() == b"b"


@pytest.mark.parametrize("damage", [b"", b"hel", b"jello", b"hello, and more"])
def test_a_damaged_entry_is_made_again(damage: bytes, folder: Path) -> None:
    path = cache.fetch("cd" * 20, ".bin", put(b"hello"))
    path.write_bytes(damage)
    again = cache.fetch("cd" * 20, ".bin", put(b"hello"))
    assert again.read_bytes() == b"hello"
    assert len(files(folder)) == 1


def test_a_foreign_file_is_not_taken(folder: Path) -> None:
    path = cache.fetch("ef" * 20, ".bin", put(b"hello"))
    foreign = path.with_name("ef" * 20 + "-0123.bin")
    foreign.write_bytes(b"from somewhere else")
    path.unlink()
    assert cache.fetch("ef" * 20, ".bin", put(b"hello")).read_bytes() == b"hello"
    assert not foreign.exists()


def test_a_failed_make_leaves_nothing(folder: Path) -> None:
    def make(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        cache.fetch("11" * 20, ".bin", make)
    assert files(folder) == []
    assert cache.fetch("11" * 20, ".bin", put(b"now")).read_bytes() == b"now"


def test_old_leftovers_are_swept(folder: Path) -> None:
    path = cache.fetch("22" * 20, ".bin", put(b"x"))
    old, fresh = path.with_name("tmp-old.bin"), path.with_name("tmp-fresh.bin")
    old.write_bytes(b"")
    fresh.write_bytes(b"")
    os.utime(old, (1, 1))
    cache.fetch("22" * 19 + "33", ".bin", put(b"y"))
    assert not old.exists() and fresh.exists()


def test_the_key_holds_every_part() -> None:
    base = {"source": "a", "machine": "m"}
    keys = {
        cache.key_of(p) for p in (base, {**base, "machine": "n"}, {**base, "source": "b"}, {"source": "a"})
    }
    assert len(keys) == 4
    assert cache.key_of(base) == cache.key_of(dict(reversed(base.items())))


def test_other_versions_and_other_sources_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """U49."""
    key = cache.key_of({"source": "a"})
    monkeypatch.setattr(cache, "library_versions", lambda: {"torch": "0.1", "triton": "3"})
    other = cache.key_of({"source": "a"})
    monkeypatch.setattr(cache, "own_digest", lambda: "another")
    assert len({key, other, cache.key_of({"source": "a"})}) == 3


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    with knobs.scope(cache_dir=blocked):
        path = cache.fetch("44" * 20, ".bin", put(b"hello"))
    assert path.read_bytes() == b"hello" and tmp_path not in path.parents


WORKER = """
import sys, time
from pathlib import Path
from cleave.runtime import cache
key, number = sys.argv[1], int(sys.argv[2])
def make(path):
    content = b"x" * 200_000
    with path.open("wb") as f:
        for at in range(0, len(content), 10_000):
            f.write(content[at : at + 10_000]); f.flush(); time.sleep(0.001 * number)
done = 0
while done < 10:
    try:
        assert cache.fetch(key, ".bin", make).read_bytes() == b"x" * 200_000
        done += 1
    except FileNotFoundError:  # another process has removed it since
        pass
    if number % 2:
        for path in cache._folder(key).glob(key + "*"):
            path.unlink(missing_ok=True)
print("fine")
"""


def start(folder: Path, code: str, *args: str) -> subprocess.Popen[str]:
    env = {**os.environ, "CLEAVE_CACHE_DIR": str(folder), "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen([sys.executable, "-c", code, *args], env=env, stdout=subprocess.PIPE, text=True)


def test_many_processes_make_remove_and_read_one_entry(folder: Path) -> None:
    """Two of them only read; two remove the entry under the others' feet. Nobody sees half of it."""
    running = [start(folder, WORKER, "55" * 20, number) for number in ("0", "2", "1", "3")]
    outputs = [process.communicate(timeout=60)[0].strip() for process in running]
    assert outputs == ["fine"] * 4


def test_many_processes_make_one_entry(folder: Path) -> None:
    running = [start(folder, WORKER, "66" * 20, "2") for _ in range(4)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in running]
    assert outputs == ["fine"] * 4
    assert len(files(folder)) == 1


def test_a_kill_in_the_middle_leaves_no_entry(folder: Path) -> None:
    code = WORKER.replace("time.sleep(0.001 * number)", "time.sleep(1)")
    process = start(folder, code, "77" * 20, "2")
    deadline = time.monotonic() + 30
    while not any(p.stat().st_size for p in files(folder)) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    left = files(folder)
    assert left and all(p.name.startswith("tmp-") for p in left)
    assert cache.fetch("77" * 20, ".bin", put(b"whole")).read_bytes() == b"whole"


def test_a_part_may_be_called_like_what_is_always_part_of_a_key() -> None:
    keys = {cache.key_of({name: value}) for name in ("torch", "triton", "cleave") for value in ("1", "2")}
    assert len({*keys, cache.key_of({})}) == 7


def test_the_digest_of_the_source_is_that_of_its_files_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "cleave"
    (root / "runtime").mkdir(parents=True)
    (root / "ir" / "deep").mkdir(parents=True)
    one = root / "ir" / "deep" / "one.py"
    one.write_text("a = 1\n")
    (root / "ir" / "two.h").write_text("int x;\n")
    (root / "ir" / "notes.txt").write_text("no source")
    monkeypatch.setattr(cache, "__file__", str(root / "runtime" / "cache.py"))

    def digest(*packages: str) -> str:
        cache.own_digest.cache_clear()
        return cache.own_digest(*packages)

    try:
        first = digest("ir")
        assert digest("ir") == first == digest()
        (root / "runtime" / "other.py").write_text("b = 2\n")
        assert digest("ir") == first != digest()
        one.write_text("a = 2\n")
        os.utime(one, ns=(1, 1))
        changed = digest("ir")
        assert changed != first
        one.write_text("a = 1\n")
        assert digest("ir") == first
    finally:
        cache.own_digest.cache_clear()
