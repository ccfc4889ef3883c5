"""From a tile program to a function on torch tensors.

A `Launcher` builds a tile program once and is then called with tensors and numbers in the program's input
order. Everything that follows from dtypes, shapes, strides and the number of threads (checks, sizes, part
counts, shapes of outputs, sizes and strides as arguments) is worked out once per combination of them and
kept; a later call allocates its outputs and calls the kernels. Outputs are fresh and contiguous in the
caller's layout. Kernels run on `torch.get_num_threads()` threads, those with little to do on the calling one
alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from cleave.codegen import cpp
from cleave.codegen.source import Argument, Entry
from cleave.codegen.together import together
from cleave.errors import Bug, Invalid
from cleave.ir.dims import Dim, Parts, size_of
from cleave.runtime.build import Function, build, passed
from cleave.runtime.caller import Call, Maker
from cleave.runtime.machines import machine_of
from cleave.schedule.cost import kernel_cost
from cleave.schedule.machine import width
from cleave.schedule.select import choose_parts
from cleave.schedule.shapes import infer_sizes, parts_of
from cleave.schedule.tiles import Tensor, TileProgram

DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8,
    "bool": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in DTYPES.items()}

KEPT_SIGNATURES = 4096
MUCH = 2 << 20
"""Bytes of inputs and outputs that are no little work by themselves, without a closer look."""

Value = torch.Tensor | float
Choose = Callable[[TileProgram, Mapping[Dim, int]], Mapping[Dim, int]]
"""Chooses the part count of each split dim for the sizes of a call."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor to allocate, dense (`empty_strided` costs half of what `empty` does)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel of a call: its function, its arguments with holes, and which tensor or number (by its place
    among inputs, outputs and workspaces) fills which hole. The last argument is the number of threads."""

    function: Function
    arguments: tuple[int, ...]
    holes: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """What follows from the signature of a call."""

    sizes: dict[Dim, int]
    outputs: tuple[Shape, ...]
    workspaces: tuple[Shape, ...]
    steps: tuple[Step, ...]
    alone: tuple[bool, ...]
    negated: bool
    call: Call


class Launcher:
    """A tile program, built for the CPU. Calls from several threads at once are safe: nothing is shared but
    the record of signatures. `choose` decides part counts (by default the closed-form rule of
    `cleave.schedule.select`). `joined`: kernels that need nothing of each other run in one launch."""

    def __init__(
        self,
        tiles: TileProgram,
        target: str = "cpu",
        *,
        choose: Choose | None = None,
        sanitize: bool = False,
        joined: bool = False,
    ) -> None:
        if target != "cpu":
            raise Bug(f"the C++ launcher has no target {target!r}")
        self.tiles, self.target = tiles, target
        self.choose = choose
        self.source = together(cpp.emit(tiles), tiles) if joined else cpp.emit(tiles)
        self._library = build(self.source, sanitize=sanitize)
        self._bound: dict[tuple[object, ...], Bound] = {}
        self._tensors = (*tiles.inputs, *tiles.outputs, *tiles.workspaces)
        self._places = {tensor.name: place for place, tensor in enumerate(self._tensors)}
        self._maker: Maker | None = None

    def __call__(self, *args: Value) -> tuple[torch.Tensor, ...]:
        """Run the program; returns its outputs. `Invalid` names the argument that does not fit, with the
        expected and the actual value."""
        bound = self._bound_for(args)
        if bound.negated:  # views that are negated when they are read, of which memory knows nothing
            args = tuple([a.resolve_neg() if isinstance(a, torch.Tensor) else a for a in args])
            return self(*args)
        return bound.call(*args)

    def prepared(self, *args: Value) -> Callable[..., tuple[torch.Tensor, ...]] | None:
        """What repeats a call with arguments of these shapes, strides, dtypes, devices and alignments without
        looking at them again; none where that takes more than running kernels."""
        bound = self._bound_for(args)
        return None if bound.negated else bound.call

    def _bound_for(self, args: Sequence[Value]) -> Bound:
        signature = (
            torch.get_num_threads(),
            *[
                (a.shape, a.stride(), a.dtype, a.device, a.is_neg())
                if isinstance(a, torch.Tensor)
                else type(a)
                for a in args
            ],
        )
        bound = self._bound.get(signature)
        if bound is None:
            bound = self._bind(args)
            if len(self._bound) >= KEPT_SIGNATURES:
                self._bound.clear()
            self._bound[signature] = bound
        return bound

    def sizes_of(self, *args: Value, absent: bool = False) -> dict[Dim, int]:
        """The sizes of all atoms for a call with these arguments; `Invalid` if they do not fit. `absent`:
        they may be tensors without memory."""
        self._check(args, absent)
        pairs = zip(self.tiles.inputs, args, strict=True)
        return infer_sizes(
            self.tiles, {t.name: tuple(a.shape) for t, a in pairs if isinstance(a, torch.Tensor)}
        )

    # ------------------------------------------------------------ once per signature

    def _check(self, args: Sequence[Value], absent: bool = False) -> None:
        inputs = self.tiles.inputs
        if len(args) != len(inputs):
            names = ", ".join(t.name for t in inputs)
            raise self._invalid(f"{len(args)} arguments, expected {len(inputs)}: {names}")
        for tensor, value in zip(inputs, args, strict=True):
            if tensor.role == "scalar":
                self._check_number(tensor, value)
            else:
                self._check_tensor(tensor, value, (self.target, "meta") if absent else (self.target,))

    def _check_number(self, tensor: Tensor, value: Value) -> None:
        allowed = {"bool": (bool,), "f64": (float, int), "f32": (float, int)}.get(tensor.dtype, (int,))
        if not isinstance(value, allowed) or (isinstance(value, bool) and tensor.dtype != "bool"):
            actual = f"a {type(value).__name__}"
            raise self._invalid(f"argument {tensor.name} is {actual}, expected a number ({tensor.dtype})")

    def _check_tensor(self, tensor: Tensor, value: Value, devices: Sequence[str]) -> None:
        if not isinstance(value, torch.Tensor):
            actual = f"a {type(value).__name__}"
            raise self._invalid(f"argument {tensor.name} is {actual}, expected a tensor ({tensor.dtype})")
        expected = DTYPES[tensor.dtype]
        if value.dtype != expected:
            raise self._invalid(f"argument {tensor.name} has dtype {value.dtype}, expected {expected}")
        if value.device.type not in devices:
            raise self._invalid(f"argument {tensor.name} is on {value.device}, expected {self.target}")
        if value.layout != torch.strided:
            raise self._invalid(f"argument {tensor.name} has layout {value.layout}, expected torch.strided")

    def _invalid(self, what: str) -> Invalid:
        return Invalid(what, where=f"program {self.tiles.name}")

    def _bind(self, args: Sequence[Value]) -> Bound:
        sizes = self.sizes_of(*args)
        split = parts_of(self.tiles)
        chosen = self._parts(sizes) if split else {}
        lengths: dict[Dim, int] = {}
        for parts in split:
            count = int(chosen.get(parts.of, 1))
            if count < 1:
                raise Bug(f"{count} parts of {parts.of}")
            sizes[parts] = count
            lengths[parts.of] = max(1, -(-size_of(parts.of, sizes) // count))
        strides = {
            t.name: a.stride()
            for t, a in zip(self.tiles.inputs, args, strict=True)
            if isinstance(a, torch.Tensor)
        }
        steps = tuple(self._step(entry, sizes, lengths, strides) for entry in self.source.entries)
        outputs = tuple(_shape(t, sizes) for t in self.tiles.outputs)
        workspaces = tuple(_shape(t, sizes) for t in self.tiles.workspaces)
        negated = any(a.is_neg() for a in args if isinstance(a, torch.Tensor))
        functions = [step.function for step in steps]
        fresh = [(o.shape, o.strides, o.dtype) for o in outputs]
        spaces = [math.prod(w.shape) * w.dtype.itemsize for w in workspaces]
        alone = self._alone(sizes, chosen)
        call = self._calling(steps)(functions, fresh, spaces, [step.arguments for step in steps], alone)
        return Bound(sizes, outputs, workspaces, steps, alone, negated, call)

    def _calling(self, steps: Sequence[Step]) -> Maker:
        """Makes calls; the same for all signatures."""
        if self._maker is None:
            tensors = [t.role != "scalar" for t in self._tensors]
            kernels = [(len(step.arguments), step.holes) for step in steps]
            count = len(self.tiles.inputs), len(self.tiles.outputs)
            ready = [[passed(a) for a in entry.arguments] for entry in self.source.entries]
            kinds = passed(Argument("pointer", "")), passed(Argument("threads", "threads"))
            self._maker = Maker(self.tiles.name, tensors, *count, kernels, ready, *kinds)
        return self._maker

    def _alone(self, sizes: Mapping[Dim, int], parts: Mapping[Dim, int]) -> tuple[bool, ...]:
        """Which kernels have so little to do that the calling thread does it before another one is awake."""
        kernels, count = self.tiles.kernels, len(self.source.entries)
        if sum(_bytes(t, sizes) for t in (*self.tiles.inputs, *self.tiles.outputs)) > MUCH:
            return (False,) * count
        machine, threads = machine_of("cpu"), max(2, torch.get_num_threads())
        little = machine.gathering * threads / (threads - 1)  # by which all threads would not be faster
        machine = replace(machine, cores=1, launch=0.0, gathering=0.0)
        seconds = [kernel_cost(k, sizes, machine, parts).seconds for k in kernels]
        if count != len(kernels):  # what runs side by side is one function
            seconds = [sum(seconds)] * count
        return tuple(s < little for s in seconds)

    def _parts(self, sizes: Mapping[Dim, int]) -> Mapping[Dim, int]:
        if self.choose is not None:
            return self.choose(self.tiles, sizes)
        return choose_parts(self.tiles, sizes, machine_of("cpu"))

    def _step(
        self,
        entry: Entry,
        sizes: Mapping[Dim, int],
        lengths: Mapping[Dim, int],
        strides: Mapping[str, tuple[int, ...]],
    ) -> Step:
        arguments: list[int] = []
        holes: list[tuple[int, int]] = []
        for place, argument in enumerate(entry.arguments):
            if argument.kind in ("pointer", "scalar"):
                holes.append((place, self._places[argument.tensor]))
                arguments.append(0)
            else:
                arguments.append(_number(argument, sizes, lengths, strides))
        return Step(self._library.bare[entry.function], tuple(arguments), tuple(holes))


def _number(
    argument: Argument,
    sizes: Mapping[Dim, int],
    lengths: Mapping[Dim, int],
    strides: Mapping[str, tuple[int, ...]],
) -> int:
    """The value of an argument that follows from the signature."""
    if argument.kind == "threads":
        return 1
    if argument.kind == "stride":
        return strides[argument.tensor][argument.axis]
    assert argument.dim is not None
    match argument.kind:
        case "size":
            return size_of(argument.dim, sizes)
        case "chunk":
            return lengths[argument.dim]
        case "parts":
            return sizes[Parts(argument.dim)]
        case _:
            raise Bug(f"an argument of kind {argument.kind}")


def _bytes(tensor: Tensor, sizes: Mapping[Dim, int]) -> int:
    return math.prod(size_of(dim, sizes) for group in tensor.layout for dim in group) * width(tensor.dtype)


def _shape(tensor: Tensor, sizes: Mapping[Dim, int]) -> Shape:
    shape = tuple(math.prod(size_of(dim, sizes) for dim in group) for group in tensor.layout)
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.insert(0, step)
        step *= max(1, size)
    return Shape(shape, tuple(strides), DTYPES[tensor.dtype])
