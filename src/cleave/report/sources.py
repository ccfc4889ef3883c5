"""Where generated source lies: a file in the cache, written on first demand, the same for the same text."""

from __future__ import annotations

from pathlib import Path

from cleave.pipeline import Launched
from cleave.runtime import cache
from cleave.runtime.triton_launch import TritonLauncher


def source_of(launcher: Launched) -> Path:
    """The file with the source that a launcher runs."""
    if isinstance(launcher, TritonLauncher) and launcher.module.__file__:
        return Path(launcher.module.__file__)
    return kept(launcher.source.text, ".cpp")


def kept(text: str, suffix: str) -> Path:
    """A file in the cache with this text."""
    return cache.fetch(cache.key_of({"source": text}), suffix, lambda path: _write(path, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
