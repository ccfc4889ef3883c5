"""Taking turns on a device: one measurement at a time over all processes with one data folder."""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cleave.knobs import knobs
from cleave.runtime.tune_process import BEAT, still

PAUSE = 0.02
"""Seconds between two tries to get the device."""


@contextmanager
def device_lock(device: str, beat: Callable[[], None] = still) -> Iterator[None]:
    """Have the device alone; `beat` is called now and then while somebody else has it."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", device)
    try:
        knobs().data_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(knobs().data_dir / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    except OSError:
        yield  # nothing can be written: nobody to take turns with
        return
    try:
        last = time.monotonic()
        while not _taken(handle):
            time.sleep(PAUSE)
            if time.monotonic() - last > BEAT:
                last = time.monotonic()
                beat()
        yield
    finally:
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a folder whose file system has no locks: there is nobody to take turns with
        return True
    return True
