"""A content-addressed store of built things, safe with many processes and with a kill at any moment.

An entry is one file, `<key>-<digest><suffix>`: the key says what was asked for, the digest is that of the
content. A file is written under a temporary name in the same folder and renamed, so that it is there in full
or not at all; what is truncated, altered or foreign does not match its digest, counts as missing and is
replaced. There is no lock: two processes may do the same work, and either result is right.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from cleave.knobs import knobs

STALE_SECONDS = 3600.0
"""After this long a temporary file belongs to nobody."""


def key_of(parts: Mapping[str, str], *, sources: tuple[str, ...] = ()) -> str:
    """The key of an entry: a digest of everything that its content depends on, by name. Cleave's own source
    and the versions of torch and triton are always part of it, beside the parts whatever those are called;
    with `sources`, only the source of these packages of Cleave."""
    always = {"cleave": own_digest(*sources), **(library_versions() if not sources else {})}
    text = json.dumps([dict(parts), always], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def fetch(key: str, suffix: str, make: Callable[[Path], None]) -> Path:
    """The file of an entry; if there is none that is whole, `make(path)` writes it first. Errors of `make`
    come through and leave nothing behind."""
    folder = _folder(key)
    found = _find(folder, key, suffix)
    if found is not None:
        return found
    _sweep(folder)
    handle, name = tempfile.mkstemp(prefix="tmp-", suffix=suffix, dir=folder)
    os.close(handle)
    temporary = Path(name)
    try:
        make(temporary)
        target = folder / f"{key}-{_digest(temporary)}{suffix}"
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


@functools.cache
def own_digest(*packages: str) -> str:
    """A digest of Cleave's own source files, or of those of some of its packages. It is kept in the cache
    under the files' names, sizes and times of change, so that a process need not read them all."""
    root = Path(__file__).parents[1]
    folders = [root / package for package in packages] or [root]
    paths = [p for folder in folders for p in _sources(folder)]
    seen = [(str(path), status.st_size, status.st_mtime_ns) for path, status in paths]
    stamp = hashlib.sha256(json.dumps(seen).encode()).hexdigest()[:40]

    def make(target: Path) -> None:
        total = hashlib.sha256()
        for path, _ in paths:
            total.update(str(path.relative_to(root)).encode())
            total.update(path.read_bytes())
        target.write_text(total.hexdigest())

    return fetch(stamp, ".source", make).read_text()


def _sources(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """All source files below a folder, sorted by path, with their status."""
    found: list[tuple[Path, os.stat_result]] = []
    for entry in sorted(os.scandir(folder), key=lambda e: e.name):
        if entry.is_dir(follow_symlinks=False):
            found += _sources(Path(entry.path))
        elif entry.name.endswith((".py", ".h")):
            found.append((Path(entry.path), entry.stat()))
    return found


@functools.cache
def library_versions() -> dict[str, str]:
    """The versions of the libraries that built code depends on; empty for one that is not installed."""
    versions: dict[str, str] = {}
    for name in ("torch", "triton"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = ""
    return versions


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:32]


def _find(folder: Path, key: str, suffix: str) -> Path | None:
    """A whole file of this entry. What does not match its digest is removed."""
    for path in sorted(folder.glob(f"{key}-*{suffix}")):
        try:
            if path.name == f"{key}-{_digest(path)}{suffix}":
                return path
            path.unlink()
        except OSError:
            continue
    return None


def _folder(key: str) -> Path:
    """The folder of an entry; one of this process alone if the cache cannot be written."""
    folder = knobs().cache_dir / "built" / key[:2]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return _private_folder()


@functools.cache
def _private_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="cleave-"))


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind."""
    limit = time.time() - STALE_SECONDS
    for path in folder.glob("tmp-*"):
        try:
            if path.stat().st_mtime < limit:
                path.unlink()
        except OSError:
            continue
