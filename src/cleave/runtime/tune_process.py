"""A child process that may crash, hang or run out of anything without taking its parent along.

Messages are JSON, one a line, on the child's standard input and output; what the child or a library prints
goes to a file whose end is quoted when it dies. A child ends with its parent, however that ends.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from cleave.knobs import knobs

Message = dict[str, Any]
ROOT = Path(__file__).parents[2]
QUOTED = 400
"""Characters of a dead child's output that are quoted."""
RAISED = re.compile(r"[\w.]*(Error|Exception|Interrupt|Exit)\b")
"""The line in which Python says what nobody has caught."""
BEAT = 0.5
"""Seconds between two beats while an answer is waited for."""

KILL_SECONDS = 1.0


def still() -> None:
    """A beat that tells nobody."""


class Died(Exception):
    """The child has ended; the text says how, and what it printed last."""


class Late(Exception):
    """The child has not answered in time."""


class Process:
    """One child: a module run with a role, by default `cleave.runtime.tune_worker` (`build` or `measure`)."""

    def __init__(self, role: str, module: str = "cleave.runtime.tune_worker") -> None:
        self.role = role
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  lives as long as the child
        command = [sys.executable, "-P", "-m", module, role]
        self._child = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=_environment(),
            start_new_session=True,  # an interrupt from the keyboard is the parent's to handle
        )
        self._rest = b""

    @property
    def pid(self) -> int:
        """The child's process number."""
        return self._child.pid

    def ask(self, message: Message, seconds: float, beat: Callable[[], None] = still) -> Message:
        """Send a message and wait for the answer; `beat` is called now and then meanwhile. Raises `Died` or
        `Late`; the child is then gone."""
        self.send(message)
        return self.answer(seconds, beat)

    def send(self, message: Message) -> None:
        """Send a message whose answer is taken later, by `answer`."""
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
        except BrokenPipeError:
            raise self._dead() from None

    def answer(self, seconds: float, beat: Callable[[], None] = still) -> Message:
        """The answer to the first message that has none yet."""
        assert self._child.stdout is not None
        pipe = self._child.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0:
                self.kill()
                raise Late
            if not select.select([pipe], [], [], min(left, BEAT))[0]:
                beat()
                continue
            data = os.read(pipe, 1 << 16)
            if not data:
                raise self._dead()
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def _dead(self) -> Died:
        code = self._child.wait()
        try:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        except ValueError:
            name = f"signal {-code}"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        self._close()
        raised = [line for line in lines if RAISED.match(line)]  # others tell more while they go down
        last = (raised or lines)[-1][:QUOTED] if lines else ""
        return Died(f"{name}: {last}" if last else name)

    def kill(self) -> None:
        """End the child at once, and what it started."""
        if self._child.poll() is None:
            try:
                os.killpg(self._child.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                self._child.kill()
            with suppress(subprocess.TimeoutExpired):  # a driver may hold it until its kernel ends
                self._child.wait(KILL_SECONDS)
        self._close()

    def _close(self) -> None:
        for stream in (self._child.stdin, self._child.stdout, self._log):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue


def _environment() -> dict[str, str]:
    """The settings in force, for a child that reads them from its environment."""
    now = knobs()
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return {
        **os.environ,
        "PYTHONPATH": path,
        "PYTHONUNBUFFERED": "1",
        "CLEAVE_CACHE_DIR": str(now.cache_dir),
        "CLEAVE_DATA_DIR": str(now.data_dir),
        "CLEAVE_COMPILER": now.compiler,
        "CLEAVE_NUMERICS": now.numerics,
        "CLEAVE_REASSOCIATE": "1" if now.reassociate else "0",
    }
