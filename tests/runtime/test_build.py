"""C++ source to functions: flags, messages, caching, sanitizers."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cleave import knobs
from cleave.codegen.source import Argument, Entry, Source
from cleave.errors import BuildError
from cleave.runtime import build, cache

TESTS = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with knobs.scope(cache_dir=tmp_path):
        yield tmp_path


def source(body: str, *arguments: Argument, name: str = "f") -> Source:
    parameters = ", ".join(f"i64 {a.name}" for a in arguments)
    head = '#include "cpp_runtime.h"\nusing namespace cleave;'
    text = f'{head}\nextern "C" int {name}({parameters}) {{ {body} }}\n'
    return Source("c++", text, (Entry("main", name, arguments, ()),))


def test_builds_once_and_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = source("return int(a + 1);", Argument("size", "a"))
    library = build.build(wanted)
    assert library.functions["f"](41) == 42
    assert folder in library.path.parents
    assert build.build(wanted) is library

    def refuse(*args: object) -> None:
        raise AssertionError("compiled twice")

    monkeypatch.setattr(build, "_LIBRARIES", {})
    monkeypatch.setattr(build, "_compile", refuse)
    assert build.build(wanted).functions["f"](1) == 2


def test_other_machine_or_compiler_builds_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """U49: an entry made for another processor or by another compiler is not taken."""
    wanted = source("return 7;")
    paths = {build.build(wanted).path}
    monkeypatch.setattr(build, "machine", lambda: "another processor")
    paths.add(build.build(wanted).path)
    monkeypatch.setattr(build, "compiler_version", lambda name: "another compiler")
    paths.add(build.build(wanted).path)
    assert len(paths) == 3


def test_a_damaged_library_is_built_again(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = source("return 9;")
    path = build.build(wanted).path
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[: len(content) // 2])
    monkeypatch.setattr(build, "_LIBRARIES", {})
    assert build.build(wanted).functions["f"]() == 9


def test_the_compilers_message_is_shown() -> None:
    with pytest.raises(BuildError) as error:
        build.build(source("return not_declared;"))
    text = str(error.value)
    assert "exit code 1" in text and "-std=c++17" in text and "not_declared" in text
    assert len(text.splitlines()) <= build.SHOWN_LINES + 3


def test_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(BuildError, match=r"no C\+\+ compiler was found[\s\S]*install"):
        build.compiler()
    monkeypatch.setenv("CXX", "c++-of-my-own")
    with pytest.raises(BuildError, match=r"c\+\+-of-my-own.*not found"):
        build.compiler()


def test_the_setting_goes_before_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own = tmp_path / "mycc"
    own.write_text("#!/bin/sh\necho mine")
    own.chmod(own.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", "g++ -O1")
    assert build.compiler() == ["g++", "-O1"]
    with knobs.scope(compiler=str(own)):
        assert build.compiler() == [str(own)]
        assert build.compiler_version(str(own)) == "mine"


def test_scratch_that_cannot_be_had_is_reported() -> None:
    """A kernel returns 1 where memory runs out; nothing aborts."""
    body = "char* memory = scratch.room(i64(1) << 60); return memory ? 0 : 1;"
    assert build.build(source(body)).functions["f"]() == 1


def test_vector_width_of_this_machine() -> None:
    body = "return kColumns<float> * 100 + kRows;"
    value = build.build(source(body)).functions["f"]()
    assert value in (806, 812, 1606, 3212)


def test_threads_are_those_of_torch() -> None:
    """One OpenMP run time in the process: the built library's is the one that torch has loaded."""
    import torch

    torch.get_num_threads()
    build.build(
        source(
            "int n = 0;\n#pragma omp parallel num_threads(2)\n{\n#pragma omp atomic\n n += 1; }\n return n;"
        )
    )
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        pytest.skip("no /proc/self/maps on this machine")
    found = {line.split()[-1] for line in maps.splitlines() if "libgomp" in line}
    assert len(found) <= 1


def test_keys_do_not_depend_on_the_cache_folder(tmp_path: Path) -> None:
    wanted = source("return 3;")
    first = build.build(wanted).path
    build._LIBRARIES.clear()  # pyright: ignore[reportPrivateUsage]
    with knobs.scope(cache_dir=tmp_path / "other"):
        second = build.build(wanted).path
    assert first.name.split("-")[0] == second.name.split("-")[0]


def under_sanitizers(*words: str) -> None:
    """`sanitized.py` with the address and undefined-behaviour sanitizers."""
    name = build.compiler()[0]
    asan = subprocess.run([name, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    library = Path(asan.stdout.strip())
    if not library.is_absolute():
        pytest.skip("the compiler has no address sanitizer library")
    roots = [Path(cache.__file__).parents[2], TESTS.parent, TESTS, TESTS / "codegen"]
    env = {
        **os.environ,
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0,verify_asan_link_order=0",
        "CLEAVE_CACHE_DIR": str(knobs.knobs().cache_dir),
        "PYTHONPATH": os.pathsep.join(map(str, roots)),
    }
    command = [sys.executable, str(TESTS / "runtime" / "sanitized.py"), *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "all fine" in done.stdout


@pytest.mark.slow
def test_examples_under_the_sanitizers() -> None:
    """Every example and every feature case, with odd sizes, strides and offsets."""
    under_sanitizers("examples")


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, 5))
def test_suites_under_the_sanitizers(part: int) -> None:
    """What the compiler makes of every case of both suites, with odd sizes, strides and offsets."""
    under_sanitizers("suites", f"{part}/4")
