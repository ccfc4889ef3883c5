"""Files that Cleave leaves: whether one can be written, before work is spent on it, and written whole or not
at all."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

from cleave.errors import Invalid


def check_writable(path: Path, *, folder: bool = False, head: str = "", made: bool = False) -> None:
    """`Invalid` if a file cannot be written there, or files in it if it is to be a `folder`. A file that is
    there already must begin with `head`: another one is the user's. `made` says that who writes makes the
    folders that are missing; those of a `folder` are. Nothing is left behind."""
    try:
        if not folder and path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not folder and path.exists():
            _check_there(path, head)
            return
        nearest = path if folder else path.parent
        while (folder or made) and not nearest.exists() and nearest != nearest.parent:
            nearest = nearest.parent
        with tempfile.TemporaryFile(dir=nearest):
            return
    except (OSError, ValueError) as error:
        raise Invalid(
            f"{path} cannot be written: {getattr(error, 'strerror', None) or error}",
            hint="a path in a folder that may be written to",
        ) from error


def _check_there(path: Path, head: str) -> None:
    """The same for what is there: a file that must begin with `head`, or a pipe or device, which any may
    write to."""
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if not head or not path.is_file():
        return
    with path.open("rb") as there:
        ours = there.read(len(head)) in (b"", head.encode())
    if not ours:
        what = f"{path} is another file, and would be lost"
        raise Invalid(what, hint=f"a path that is free, or of a file that begins with {head!r}")


def write_whole(path: Path, text: str) -> None:
    """Write a file, and the folders that it lies in; who reads it meanwhile sees the old one. `OSError` if it
    cannot be written, which leaves the old one and nothing beside it."""
    path = path.resolve()  # a link stays one
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():  # a pipe or a device: there is no old one
        path.write_text(text, encoding="utf-8")
        return
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
