"""Which device is at hand, and what it can do: the fitted machine if `cleave calibrate` has left one.

A fitted machine is a text file in the user's data folder, `machines/<device>.machine`; it may be copied to
another computer with the same device. Without one the built-in figures of `cleave.schedule.machine` hold,
those of a CPU for as many cores as PyTorch has threads at the moment.
"""

from __future__ import annotations

import functools
import logging
import math
import platform
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from cleave.errors import ParseError
from cleave.knobs import knobs
from cleave.runtime.build import machine as processor
from cleave.runtime.triton_build import takes_groups
from cleave.schedule.machine import CPU, H200, Machine

BUILT_IN: Mapping[str, Machine] = {"cpu": CPU, "cuda": H200, "interpret": H200}
FORM = "cleave machine 1"
VECTORS = ("avx512_bf16", "avx512f", "avx2", "avx", "sve", "asimd")
"""Vector instructions, the widest first. Virtual machines of one name have one or the other."""
_log = logging.getLogger("cleave")


_CALLED: dict[str, str] = {}


def call_it(target: str, name: str) -> None:
    """Take a name for that of a target's device, in a process that must not touch it."""
    _CALLED[target] = name


def device_name(target: str) -> str:
    """What the device of a target calls itself. Without a GPU, what is compiled for one is for an H200."""
    return _CALLED.get(target) or _device_name(target, _threads(target))


def _threads(target: str) -> int:
    """On how many threads kernels run at the moment, where that is for PyTorch to say; else 0."""
    return torch.get_num_threads() if target == "cpu" else 0


@functools.cache
def _device_name(target: str, threads: int) -> str:
    if target == "cuda":
        return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "NVIDIA H200"
    if target == "interpret":
        return "interpreter"
    told = processor()
    found = re.search(r"'model name': '([^']*)'", told)
    vectors = next((v for v in VECTORS if re.search(rf"\b{v}\b", told)), "")
    return ", ".join(
        p for p in (found[1] if found else platform.machine(), vectors, f"{threads} threads") if p
    )


def machine_of(target: str) -> Machine:
    """The fitted machine of a target's device, else the built-in one; without warp groups where the GPU at
    hand, or Triton, has none."""
    if target == "interpret":
        return BUILT_IN[target]
    machine = _machine(target, machine_file(target), _threads(target))
    if target == "cuda" and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        return machine if takes_groups(10 * major + minor) else replace(machine, groups=())
    return machine


class Machines(Mapping[str, Machine]):
    """The machine of each target, read when it is asked for."""

    def __getitem__(self, target: str) -> Machine:
        if target not in BUILT_IN:
            raise KeyError(target)
        return machine_of(target)

    def __iter__(self) -> Iterator[str]:
        return iter(BUILT_IN)

    def __len__(self) -> int:
        return len(BUILT_IN)


def machine_file(target: str) -> Path:
    """Where the fitted machine of a target's device is kept."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", device_name(target)).strip("-").lower()
    return knobs().data_dir / "machines" / f"{name}.machine"


@functools.cache
def _machine(target: str, path: Path, threads: int) -> Machine:
    base = built_in(target, threads)
    try:
        return parse_machine(path.read_text(), base)
    except OSError:
        return base
    except ParseError as error:
        _log.warning("%s is ignored: %s", path, error)
        return base


def built_in(target: str, threads: int) -> Machine:
    """The built-in machine of a target; a CPU with one core for each of so many threads."""
    base = BUILT_IN[target]
    return with_cores(base, threads) if target == "cpu" else base


def with_cores(machine: Machine, cores: int) -> Machine:
    """A CPU's figures for another number of its cores. Fewer cores than draw all of the memory's bandwidth
    get their share of it, as in the cost model. Of more than it was measured with, each has its own way to
    the last cache, and the memory's bandwidth is taken to grow with their root (two channels for a desktop's
    eight, eight for a server's hundred): `cleave calibrate` knows better. One core waits for no other."""
    if cores == machine.cores:
        return machine
    drawn = min(1.0, cores / (machine.cores * machine.drawing))
    more = max(1.0, cores / machine.cores)
    alone = {"launch": machine.launch - machine.gathering, "gathering": 0.0} if cores == 1 else {}
    return replace(
        machine,
        name=f"{machine.name.rpartition('-')[0]}-{cores}",
        cores=cores,
        memory=machine.memory * drawn * math.sqrt(more),
        near=machine.near * drawn * more,
        **alone,
    )


def forget() -> None:
    """Read the files again at the next call."""
    _machine.cache_clear()


def print_machine(machine: Machine, notes: Mapping[str, str]) -> str:
    """The text of a machine; `notes` say how it came about."""
    lines = [FORM, *(f"# {name}: {value}" for name, value in notes.items())]
    for item in fields(machine):
        value = getattr(machine, item.name)
        if isinstance(value, Mapping):
            lines += [f"{item.name}.{key} = {number:.6g}" for key, number in value.items()]
        elif isinstance(value, tuple):
            lines.append(f"{item.name} = {' '.join(map(str, value))}")
        else:
            lines.append(
                f"{item.name} = {value:.6g}" if isinstance(value, float) else f"{item.name} = {value}"
            )
    return "\n".join(lines) + "\n"


def parse_machine(text: str, base: Machine) -> Machine:
    """A machine from its text. What the text does not give, and what this version does not know, is as in
    `base`; `ParseError` for a text of another kind."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines or lines[0] != FORM:
        raise ParseError(f"line 1 is {lines[0] if lines else 'missing'!r}, expected {FORM!r}")
    known = {item.name: getattr(base, item.name) for item in fields(base)}
    changed: dict[str, Any] = {}
    for line in lines[1:]:
        name, equals, value = (part.strip() for part in line.partition("="))
        if line.startswith("#"):
            continue
        if not equals:
            raise ParseError(f"{line!r} is not NAME = VALUE")
        head, _, key = name.partition(".")
        if head not in known:
            continue
        try:
            if key:
                changed[head] = {**changed.get(head, known[head]), key: float(value)}
            else:
                changed[head] = _like(known[head], value)
        except ValueError as error:
            raise ParseError(f"{line!r}: {error}") from error
    made = replace(base, **changed)
    if made.kind != base.kind:
        raise ParseError(f"it is for {made.kind}, not for {base.kind}")
    return made


def _like(old: Any, value: str) -> Any:
    if isinstance(old, tuple):
        return tuple(int(word) for word in value.split())
    return type(old)(value) if not isinstance(old, bool) else value == "True"
