"""Every measurement, kept: one SQLite file in the user's data folder, safe with many tuners at once.

A row is one tile program at one point: `Key` says on which device, of which program, at which sizes and with
which versions; the digest of the tile program completes it. What is committed survives a kill. A file that
is no database any more is set aside and a new one begun; where nothing can be written the rows live as long
as the process.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cleave.knobs import knobs
from cleave.runtime import cache
from cleave.runtime.naming import digest_of

NAME = "measured-1.sqlite3"
"""The number is that of the tables' form: another form is another file."""
BUSY_SECONDS = 30.0
MOST_ATTEMPTS = 2
"""So often a measurement is begun; one that took the tuner with it each time is not begun again."""

STARTED, RIGHT, WRONG, SLOW = "started", "right", "wrong", "slow"
STATUSES = (RIGHT, WRONG, STARTED, SLOW, "crash", "hang", "memory", "infeasible", "refused", "unsteady")
"""How a measurement may stand: `crash` and `hang` ended the process, `memory` is what the device or the host
ran out of, `infeasible` what the device never has, `refused` by a compiler, `slow` to compile, `unsteady`
differs from run to run. Only `right` is ever chosen."""
SLOW_KEPT = 24 * 3600.0
"""For so many seconds it is believed that something is slow to compile: the machine may have been busy."""

_TABLES = """
create table if not exists measured (
  device text, program text, sizes text, versions text, tiles text,
  status text not null, seconds real, error real, detail text not null, attempts integer not null,
  owner integer not null, moment real not null,
  primary key (device, program, sizes, versions, tiles)
);
create table if not exists texts (digest text primary key, text text not null);
"""


@dataclass(frozen=True, slots=True)
class Key:
    """A point: everything that a time depends on beside the tile program. `program` is the digest of the
    canonical text, `sizes` those of its dynamic dims by place."""

    device: str
    program: str
    sizes: str
    versions: str


@dataclass(frozen=True, slots=True)
class Measured:
    """What became of one tile program at one point. `seconds` is the median of one that is right, how long
    a compiler was given for one that is slow, else None; `error` the largest relative error of a row;
    `detail` is for people, `moment` when it was."""

    status: str
    seconds: float | None = None
    error: float | None = None
    detail: str = ""
    attempts: int = 1
    owner: int = 0
    moment: float = 0.0

    @property
    def done(self) -> bool:
        """Whether it need not be measured again."""
        return self.known(0.0)

    def known(self, patience: float) -> bool:
        """The same for one who would give a compiler so many seconds."""
        if self.status == STARTED:
            return self.attempts >= MOST_ATTEMPTS and not _lives(self.owner)
        if self.status == SLOW:
            return (self.seconds or 0.0) >= patience and time.time() < self.moment + SLOW_KEPT
        return True


def versions() -> str:
    """What compiled code depends on beside the device: libraries, and Cleave's own emitters and launchers."""
    known = {**cache.library_versions(), "emitters": emitters_digest()}
    return " ".join(f"{name} {value}" for name, value in known.items() if value)


@functools.cache
def emitters_digest() -> str:
    """A digest of what turns a tile program into a running kernel."""
    root = Path(__file__).parents[1]
    names = (
        "build",
        "caller",
        "descriptors",
        "judge",
        "launch",
        "triton_build",
        "triton_call",
        "triton_launch",
    )
    paths = [*sorted((root / "codegen").glob("*.*")), *(root / "runtime" / f"{n}.py" for n in names)]
    return digest_of("".join(p.read_text() for p in paths if p.suffix in (".py", ".h")))[:12]


class Store:
    """The database. Not to be shared between threads; any number of processes may have one."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or knobs().data_dir
        self.note = ""
        """What had to be done to open it, for people."""
        self._base = self._opened()

    def close(self) -> None:
        """Let go of the file."""
        self._base.close()

    def _opened(self) -> sqlite3.Connection:
        path = self.folder / NAME
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and not os.access(path, os.W_OK):
                raise PermissionError(f"{path} cannot be written")
            return _connected(path)
        except (OSError, sqlite3.OperationalError) as error:
            self.note = f"measurements are not kept: {error}"
            return _connected(":memory:")
        except sqlite3.DatabaseError as error:
            aside = path.with_name(f"{path.stem}-broken-{time.time_ns()}{path.suffix}")
            self.note = f"{path} was no database any more ({error}); it is now {aside.name}"
            with suppress(FileNotFoundError):  # another tuner may be first
                os.replace(path, aside)
            return _connected(path)

    def rows(self, key: Key) -> dict[str, Measured]:
        """All measurements of a point by the tile program's digest."""
        found = self._base.execute(
            "select tiles, status, seconds, error, detail, attempts, owner, moment from measured "
            "where device = ? and program = ? and sizes = ? and versions = ?",
            (key.device, key.program, key.sizes, key.versions),
        )
        return {row[0]: Measured(*row[1:]) for row in found}

    def begin(self, key: Key, tiles: str, text: str) -> None:
        """Note that a measurement begins: if it takes this process with it, the row says so."""
        attempts = 1 + next((r.attempts for d, r in self.rows(key).items() if d == tiles), 0)
        self._put(key, tiles, Measured(STARTED, detail="begun and never ended", attempts=attempts))
        with self._change() as base:
            base.execute("insert or ignore into texts values (?, ?)", (tiles, text))

    def forget(self, key: Key, tiles: str) -> None:
        """Take back what was begun: it was cut short, which says nothing about it."""
        with self._change() as base:
            base.execute(
                "delete from measured where device = ? and program = ? and sizes = ? and versions = ? "
                "and tiles = ?",
                (key.device, key.program, key.sizes, key.versions, tiles),
            )

    def end(self, key: Key, tiles: str, measured: Measured) -> None:
        """Keep what became of it."""
        self._put(key, tiles, measured)

    def text(self, tiles: str) -> str | None:
        """The text of a tile program that was measured, under the names that it had first."""
        row = self._base.execute("select text from texts where digest = ?", (tiles,)).fetchone()
        return row[0] if row else None

    def _put(self, key: Key, tiles: str, m: Measured) -> None:
        values = (key.device, key.program, key.sizes, key.versions, tiles, m.status, m.seconds, m.error,
                  m.detail, m.attempts, os.getpid(), time.time())  # fmt: skip
        with self._change() as base:
            base.execute(f"insert or replace into measured values ({', '.join('?' * len(values))})", values)

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._base:
            yield self._base


def _connected(path: Path | str) -> sqlite3.Connection:
    base = sqlite3.connect(path, timeout=BUSY_SECONDS)
    try:
        sound = base.execute("pragma quick_check(1)").fetchone()[0]
        if sound != "ok":
            raise sqlite3.DatabaseError(sound)
        base.executescript(_TABLES)
    except sqlite3.Error:
        base.close()
        raise
    return base


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process != os.getpid() and process > 0
