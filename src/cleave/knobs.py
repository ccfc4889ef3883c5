"""Every setting, typed, read from the environment once. Change one in code with `scope`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs


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


def _read() -> Knobs:
    env = os.environ
    folder = env.get("CLEAVE_CACHE_DIR") or platformdirs.user_cache_dir("cleave")
    return Knobs(
        cache_dir=Path(folder),
        numerics=env.get("CLEAVE_NUMERICS", "stable"),
        compiler=env.get("CLEAVE_COMPILER", ""),
        reassociate=env.get("CLEAVE_REASSOCIATE", "0") == "1",
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
