"""Where generated source lies: a file in the cache, written on first demand, the same for the same text."""

from __future__ import annotations

from pathlib import Path

from cleave.pipeline import Compiled, Launched, emit
from cleave.runtime import cache
from cleave.runtime.triton_launch import TritonLauncher
from cleave.schedule.select import Ranked


def source_of(launcher: Launched) -> Path:
    """The file with the source that a launcher runs."""
    if isinstance(launcher, TritonLauncher) and launcher.module.__file__:
        return Path(launcher.module.__file__)
    return kept(launcher.source.text, ".cpp")


def source_of_variant(compiled: Compiled, variant: Ranked) -> Path:
    """The file with the source of a variant, built or not."""
    if variant.tiles in compiled.launchers:
        return source_of(compiled.launchers[variant.tiles])
    suffix = ".cpp" if compiled.plan.target == "cpu" else ".py"
    return kept(emit(variant.tiles, compiled.plan.target).text, suffix)


def kept(text: str, suffix: str) -> Path:
    """A file in the cache with this text."""
    return cache.fetch(cache.key_of({"source": text}), suffix, lambda path: _write(path, text))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
