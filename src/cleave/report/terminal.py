"""What commands share at the terminal: the option `--json`, progress, files that may not be there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cleave.errors import Invalid

Json = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]


@contextmanager
def progress(what: str, quiet: bool) -> Iterator[None]:
    """A line on stderr with the time that passes, while it lasts and if somebody looks."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        shown.add_task(what)
        yield


def read(path: Path) -> str:
    """The text of a file; `Invalid` if it cannot be read."""
    if not path.is_file():
        raise Invalid(f"there is no file {path}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Invalid(f"{path} is no text: byte {error.start} is not UTF-8") from error
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror}") from error


def write(path: Path, text: str) -> None:
    """Write a file and say so on stderr; `Invalid` if that fails."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}") from error
    print(f"wrote {path}", file=sys.stderr)
