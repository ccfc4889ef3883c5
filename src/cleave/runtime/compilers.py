"""The C++ compilers at work in this process's name. They can be halted, so that they take no core from a
kernel that is being measured, and then go on where they were."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_AT_WORK: set[int] = set()
"""Process groups: a compiler starts processes of its own."""
_CHANGE = threading.Condition()
_halts = 0


def run_compiler(command: Sequence[str], text: str) -> subprocess.CompletedProcess[str]:
    """Run a compiler on a source, which it reads from its input; it waits to begin while they are halted.
    Its process group is its own, and ends with this call, however it ends."""
    with _CHANGE:
        while _halts:
            _CHANGE.wait()
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, process_group=0)
        _AT_WORK.add(process.pid)
    with process:
        try:
            out, err = process.communicate(text)
        except BaseException:
            _signal(process.pid, signal.SIGKILL)
            raise
        finally:
            with _CHANGE:
                _AT_WORK.discard(process.pid)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@contextmanager
def compilers_halted() -> Iterator[int]:
    """No compiler of this process works meanwhile; how many are kept from it."""
    global _halts
    with _CHANGE:
        _halts += 1
        for group in _AT_WORK:
            _signal(group, signal.SIGSTOP)
        kept = len(_AT_WORK)
    try:
        yield kept
    finally:
        with _CHANGE:
            _halts -= 1
            if not _halts:
                for group in _AT_WORK:
                    _signal(group, signal.SIGCONT)
                _CHANGE.notify_all()


def _signal(group: int, what: signal.Signals) -> None:
    try:
        os.killpg(group, what)
    except ProcessLookupError:
        return  # it has just ended
