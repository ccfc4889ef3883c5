"""The rule sets: which XLA is meant (the *epoch*), what the device is, and every number that can be turned.

"XLA's fusion" is three different systems, so every plan names its epoch. A `Rules` value is all that a plan
depends on beside the graph and the strategy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from cleave.errors import Invalid
from cleave.schedule.machine import CPU, H200, Machine

EPOCHS: Mapping[str, str] = {
    "X22": "XLA 2d1ff8e3 (2022-10-15): the merger counts bytes",
    "X23": "XLA 90531c6d (2023-01-20): merger and multi-output fusion use a run-time model",
    "X26": "XLA 183fa00c (2026-08-22): priority fusion, then multi-output fusion",
}

REASONS: Mapping[str, str] = {
    "OK": "the two share a kernel",
    "ROOT": "the producer is the result",
    "NOT_FUSIBLE": "one of the two is no loop or input operation, or is a group that this pass does not take",
    "DUP_FORBIDDEN": "the producer would be computed twice, and this pass does not duplicate",
    "DUP_EXPENSIVE": "the producer would be computed twice and is expensive",
    "DUP_GLOBAL": "the producer cannot join all its users, and recomputing it would read more than it saves",
    "REUSE_EXPENSIVE": "the producer is expensive and the consumer reads its elements several times",
    "UNCOALESCED": "the consumer is a tiled reduction and the producer changes the order in memory",
    "CONST": "a constant that is no scalar, or whose user is not yet a group",
    "HEAVY": "the producer holds a long reduction that the consumer would repeat",
    "IN_PLACE": "the consumer overwrites what the producer still reads",
    "SMEM": "too much shared memory",
    "TOO_MANY_REDUCTIONS": "too many tiled reductions in one kernel",
    "TOO_MANY_ARGS": "too many operands and results of one kernel",
    "CODE_DUP": "the code of the producer would be emitted too often",
    "IR_TOO_LARGE": "the kernel's code would be too large",
    "CYCLE": "the two kernels would wait for each other",
    "SHAPE": "the loops of the two do not agree",
    "BYTES": "more bytes would move",
    "SLOWER": "it would take longer, by the model",
    "BITCAST": "a user only reinterprets the bytes",
    "EXPENSIVE": "a member is expensive and would be computed several times",
    "TWO_REDUCTIONS": "both sides contain a reduction",
    "EPILOGUE": "the reduction would fall back to a plain loop",
    "SCATTER": "a scatter's result and its buffer stay outside",
    "NO_USERS": "nothing reads the producer",
    "SHARED_PARAMETER": "the two share a parameter, which siblings would serve better",
    "DTYPE": "the results have different types",
    "LARGE": "too large to be worth a shared launch",
    "OVERLAP": "the two read different slices",
}
"""What each reason code says."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU (or a CPU seen as one) in the numbers that the rules and cost models need. Rates per second."""

    name: str
    cores: int
    units: int
    """Multiply-add units per core."""
    clock: float
    bandwidth: float
    cache: int
    shared: int
    """Bytes of shared memory per block."""
    launch: float = 1e-6
    most_blocks: float = inf
    """Blocks that ask memory at a time, at most: on a CPU its cores, on a GPU as XLA models it any number."""

    @property
    def lanes(self) -> int:
        return self.cores * self.units


A6000 = Device("rtx-a6000", 84, 128, 1.41e9, 768.096e9, 6 << 20, 48 << 10)
"""The device of upstream's tests."""


def device_of(machine: Machine) -> Device:
    """The scheduler's machine in the terms of the planner."""
    clock = 1.7e9 if machine.kind == "cuda" else 2.45e9
    units = max(1, round(machine.vector / (2 * clock)))
    return Device(
        machine.name,
        machine.cores,
        units,
        clock,
        machine.memory,
        machine.near_bytes,
        machine.core_bytes if machine.kind == "cuda" else 48 << 10,
        machine.launch,
        inf if machine.kind == "cuda" else machine.cores,
    )


XLA_H200 = Device("nvidia-h200", H200.cores, 128, 1.98e9, 4.8e12, 50 << 20, 227 << 10)
"""An H200 as XLA sees it: peak figures, not what is reached."""

DEVICES: Mapping[str, Device] = {"a6000": A6000, "h200": XLA_H200, "cpu": device_of(CPU)}


@dataclass(frozen=True, slots=True)
class Rules:
    """The epoch, the device and the knobs. 0 means: what the epoch says."""

    epoch: str = "X26"
    device: Device = A6000
    base: bool = False
    """The base cost list and edge rule, without what is special to GPUs (conformance cases V)."""
    allow_multi_user_cache_breakers: bool = False
    """The paper's edit: a concatenation with several users may be taken in."""
    args: int = 0
    reductions: int = 8
    emissions: int = 15
    ir_size: int = 10_000
    bytes_ratio: float = 1.10
    batch: int = 32
    batch_bytes: int = 4000
    batch_elements: int = 128 * 2048
    batch_members: int = 30
    concat_penalty: int = 400
    concat_kernel: bool = True
    """Today's XLA makes a concatenation of few parts in a kernel of its own, which has one result."""
    today: bool = field(init=False, repr=False, compare=False, default=False)
    most_args: int = field(init=False, repr=False, compare=False, default=0)
    shared: int = field(init=False, repr=False, compare=False, default=0)
    """What follows from the others: whether the epoch is today's, the most operands and results of a kernel,
    and the bytes of shared memory that it may use."""

    def __post_init__(self) -> None:
        if self.epoch not in EPOCHS:
            known = "; ".join(f"{name} is {text}" for name, text in EPOCHS.items())
            raise Invalid(f"unknown epoch {self.epoch!r}", hint=known)
        today = self.epoch == "X26"
        shared = self.device.shared if today else min(self.device.shared, 48 << 10)
        object.__setattr__(self, "today", today)
        object.__setattr__(self, "most_args", self.args or (96 if today else 64))
        object.__setattr__(self, "shared", shared)


def device_named(name: str) -> Device:
    """A device by name."""
    if name not in DEVICES:
        raise Invalid(f"unknown device {name!r}", hint=f"one of {', '.join(DEVICES)}")
    return DEVICES[name]
