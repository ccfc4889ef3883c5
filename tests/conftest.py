"""What tests share: a kernel cache for the session, so that the same kernel is built once; command lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cleave.knobs import scope

sys.path.insert(0, str(Path(__file__).parents[1]))  # for `benchmarks.harness`, the judge


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """`cache_dir` inside this session's temporary folder; subprocesses see it too."""
    folder = tmp_path_factory.mktemp("cleave-cache")
    with pytest.MonkeyPatch.context() as patch, scope(cache_dir=folder, data_dir=folder / "data"):
        patch.setenv("CLEAVE_CACHE_DIR", str(folder))
        patch.setenv("CLEAVE_DATA_DIR", str(folder / "data"))
        yield folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run a command line: exit code, stdout, stderr."""
    from cleave.cli import main

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as done:
            main(arguments)
        said = capsys.readouterr()
        assert isinstance(done.value.code, int)
        return done.value.code, said.out, said.err

    return call
