"""Every setting, typed, read from the environment once. Change one in code with `scope`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from cleave.errors import Invalid


@dataclass(frozen=True, slots=True)
class Knobs:
    """The settings. `cache_dir` holds built kernels, `data_dir` measurements, recipes and fitted machines,
    `recipes` further folders of recipes; `numerics` is `strict`, `stable` or `fast`;
    `compiler` is the C++ compiler's command; `reassociate` allows rewrites that change the operation
    count class."""

    cache_dir: Path
    numerics: str = "stable"
    compiler: str = ""
    reassociate: bool = False
    data_dir: Path = Path()
    recipes: tuple[Path, ...] = ()


NUMERICS = ("strict", "stable", "fast")


def _one_of(name: str, usual: str, allowed: Sequence[str]) -> str:
    """A setting of the environment; `Invalid` if it is none of those allowed."""
    value = os.environ.get(name) or usual
    if value not in allowed:
        raise Invalid(f"{name} is {value!r}", hint=f"one of {', '.join(allowed)}; without it {usual} holds")
    return value


def _read() -> Knobs:
    env = os.environ
    folder = env.get("CLEAVE_CACHE_DIR") or platformdirs.user_cache_dir("cleave")
    return Knobs(
        cache_dir=Path(folder),
        numerics=_one_of("CLEAVE_NUMERICS", "stable", NUMERICS),
        compiler=env.get("CLEAVE_COMPILER", ""),
        reassociate=_one_of("CLEAVE_REASSOCIATE", "0", ("0", "1")) == "1",
        data_dir=Path(env.get("CLEAVE_DATA_DIR") or platformdirs.user_data_dir("cleave")),
        recipes=tuple(Path(p) for p in env.get("CLEAVE_RECIPES", "").split(os.pathsep) if p),
    )


_current = _read()


def knobs() -> Knobs:
    """The settings in force."""
    return _current


@contextmanager
def scope(**changes: object) -> Iterator[Knobs]:
    """Change settings inside a `with` block."""
    global _current
    before = _current
    _current = replace(before, **changes)  # pyright: ignore[reportArgumentType]
    try:
        yield _current
    finally:
        _current = before
