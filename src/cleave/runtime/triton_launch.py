"""Run generated Triton modules.

`TritonLauncher` calls the kernels of a tile program on torch tensors: on a GPU, or on the CPU in Triton's
interpreter. It launches on the current stream with no synchronisation, and takes results and workspaces from
PyTorch's allocator: calls may be captured in a CUDA graph once a first call has built the kernels. What
follows from shapes, strides and alignment is kept for the next call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import ModuleType
from typing import Any

import torch

from cleave.codegen import triton as emitter
from cleave.codegen.source import Argument, Entry, Source
from cleave.codegen.triton_tiles import firsts_of
from cleave.errors import Infeasible, Invalid, Unsupported
from cleave.ir.dims import Dim, Parts, size_of
from cleave.runtime.descriptors import ALIGNMENT, Described, allowed, axes_of
from cleave.runtime.launch import DTYPES, KEPT_SIGNATURES, Choose, Launcher, Value
from cleave.runtime.machines import machine_of
from cleave.runtime.triton_build import (
    Report,
    compile_for,
    is_interpreted,
    load_module,
    mend_interpreter,
    options_of,
    starts_early,
)
from cleave.schedule.select import choose_parts
from cleave.schedule.shapes import parts_of
from cleave.schedule.tiles import Loop, PartBound, Statement, Tensor, TileProgram

WIDE = emitter.NARROW_LIMIT
"""From this size on positions are 64 bits wide."""
FAR = 1 << 31
"""From this many elements between a tensor's first and last on, offsets are 64 bits wide."""
MOST_BLOCKS = (1 << 31) - 1
SHARED_LIMITS = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that a block may have, by capability."""

# ---------------------------------------------------------------- calls


@dataclass(slots=True)
class _Launch:
    """One kernel in one kind of call: its arguments with holes, which tensor or number (by its place among
    inputs, outputs and workspaces) fills which hole, as it is or `described`, and how it is started once
    Triton has compiled it."""

    entry: Entry
    function: Any
    blocks: int
    template: list[Any]
    holes: list[tuple[int, int]]
    described: list[tuple[int, int, Described]]
    start: Callable[..., Any] | None = None


@dataclass(slots=True)
class _Call:
    """A kind of call: shapes, strides and alignment are given."""

    device: torch.device
    outputs: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    workspaces: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    launches: list[_Launch]


class TritonLauncher(Launcher):
    """The kernels of a tile program as a function of torch tensors and numbers, in the order of its inputs;
    it returns fresh tensors, one per output.

    `target` is `cuda`, or `interpret` for Triton's interpreter on CPU tensors (`TRITON_INTERPRET=1` must be
    set before triton is imported). `precision` is PyTorch's float32 matmul precision. For `cuda` all is
    compiled at once: `BuildError` where Triton refuses, `Infeasible` where the device has too little.
    `Invalid` for arguments that do not fit."""

    def __init__(
        self,
        tiles: TileProgram,
        target: str = "cuda",
        *,
        choose: Choose | None = None,
        precision: str = "highest",
    ) -> None:
        if target not in ("cuda", "interpret"):
            raise Invalid(f"target {target!r} for Triton", hint="cuda or interpret")
        self.tiles, self.choose = tiles, choose
        self.interpreted = target == "interpret"
        self.target = "cpu" if self.interpreted else "cuda"
        overlapped = (
            not self.interpreted
            and torch.cuda.is_available()
            and starts_early(torch.cuda.get_device_capability())
        )
        self.emit = functools.partial(emitter.emit, precision=precision, overlapped=overlapped)
        self.source = self.emit(tiles, described=True)
        self.module = load_module(self.source)
        self.plain: tuple[Source, ModuleType] | None = None
        if self.interpreted != is_interpreted(self.module, self.source):
            raise Invalid(
                f"triton was imported {'without' if self.interpreted else 'with'} TRITON_INTERPRET=1",
                hint="set or unset it before the first import of triton",
            )
        self.reports = () if self.interpreted else self._refuse()
        if self.interpreted:
            mend_interpreter()
        self._calls: dict[Any, _Call] = {}

    def _refuse(self) -> tuple[Report, ...]:
        """Compile for the device at hand and hold the kernels to its limits."""
        if not torch.cuda.is_available():
            raise Invalid("no NVIDIA GPU is available", hint="target interpret runs the kernels on the CPU")
        major, minor = torch.cuda.get_device_capability()
        reports = compile_for(self.source, 10 * major + minor)
        limit = SHARED_LIMITS.get(10 * major + minor, SHARED_LIMITS[86])
        for report in reports:
            if report.shared > limit:
                raise Infeasible(
                    f"kernel {report.kernel} of {self.tiles.name} needs {report.shared} bytes of shared "
                    f"memory; the device has {limit} per block"
                )
        return reports

    def __call__(self, *args: Value) -> tuple[torch.Tensor, ...]:
        if any(isinstance(a, torch.Tensor) and a.is_neg() for a in args):
            # Views that are negated when they are read, of which memory knows nothing.
            args = tuple([a.resolve_neg() if isinstance(a, torch.Tensor) else a for a in args])
        return self._go(self._call_for(args), args)

    def prepared(self, *args: Value) -> Callable[..., tuple[torch.Tensor, ...]] | None:
        """What repeats a call with arguments of these shapes, strides, dtypes, devices and alignments without
        looking at them again; none where that takes more than running kernels."""
        if any(isinstance(a, torch.Tensor) and a.is_neg() for a in args):
            return None
        call, go = self._call_for(args), self._go
        return lambda *values: go(call, values)

    def _call_for(self, args: Sequence[Value]) -> _Call:
        key = tuple(
            [
                (a.shape, a.stride(), a.data_ptr() % 16, a.dtype, a.device)
                if isinstance(a, torch.Tensor)
                else type(a)
                for a in args
            ]
        )
        call = self._calls.get(key)
        if call is None:
            call = self._plan(args)
            if len(self._calls) >= KEPT_SIGNATURES:
                self._calls.clear()
            self._calls[key] = call
        return call

    def _go(self, call: _Call, args: Sequence[Value]) -> tuple[torch.Tensor, ...]:
        device, empty = call.device, torch.empty_strided
        outputs = [empty(n, s, dtype=d, device=device) for n, s, d in call.outputs]
        values = (*args, *outputs, *[empty(n, s, dtype=d, device=device) for n, s, d in call.workspaces])
        if device.type == "cuda" and device.index != torch._C._cuda_getDevice():
            with torch.cuda.device(device):
                self._run(call, values)
        else:
            self._run(call, values)
        return tuple(outputs)

    def _run(self, call: _Call, values: Sequence[Value]) -> None:
        # Triton asks the driver about each tensor's memory; of an address it does not.
        given = values
        if not self.interpreted:
            given = [v.data_ptr() if isinstance(v, torch.Tensor) else v for v in values]
        for launch in call.launches:
            start = launch.start
            arguments: list[Any] = launch.template.copy()
            for place, value in launch.holes:
                arguments[place] = values[value] if start is None else given[value]
            for place, value, form in launch.described:
                arguments[place] = form.of(values[value])
            if start is None:
                launch.start = self._first(launch, arguments, call.device)
            else:
                start(*arguments)

    def _first(self, launch: _Launch, arguments: Sequence[Any], device: torch.device) -> Callable[..., Any]:
        """Run a launch through Triton, which compiles if it must; returns how to repeat it cheaply."""
        function = launch.function
        if self.interpreted:
            start = function[(launch.blocks,)]
            start(*arguments)
            return start
        from triton.runtime.errors import OutOfResources

        try:
            compiled = function[(launch.blocks,)](*arguments, **options_of(launch.entry))
        except OutOfResources as error:
            raise Infeasible(f"kernel {launch.entry.kernel} of {self.tiles.name}: {error}") from error
        return starter(compiled, launch.blocks, device.index or 0)

    # ------------------------------------------------------------ once per signature

    def _plan(self, args: Sequence[Value]) -> _Call:
        """Check the arguments of a call and work out everything that does not depend on their values."""
        tiles, sizes = self.tiles, self.sizes_of(*args)
        devices = list(dict.fromkeys(a.device for a in args if isinstance(a, torch.Tensor)))
        if len(devices) > 1:
            where = ", ".join(map(str, devices))
            raise Invalid(f"arguments on {where}; move them to one", where=f"program {tiles.name}")
        lengths = self._split(sizes)
        made = [*tiles.outputs, *tiles.workspaces]
        shapes = {t.name: shape_of(t, sizes) for t in made}
        strides = {name: dense(shape) for name, shape in shapes.items()}
        pairs = zip(tiles.inputs, args, strict=True)
        given = {t.name: a for t, a in pairs if isinstance(a, torch.Tensor)}
        strides |= {name: tuple(a.stride()) for name, a in given.items()}
        far = [reach(a.shape, a.stride()) for a in given.values()]
        far += [prod(shape) for shape in shapes.values()]
        wide = self._wide(sizes, lengths) or max(far, default=0) >= FAR
        offsets = {name: a.data_ptr() % ALIGNMENT for name, a in given.items()}
        source, module = self._sourced(sizes, strides, offsets, wide)
        launches: list[_Launch] = []
        for entry, kernel in zip(source.entries, tiles.kernels, strict=True):
            kept = firsts_of(kernel)
            blocks = prod(
                max(-(-size_of(axis.index.dim, sizes) // axis.tile), int(axis.index in kept))
                for axis in entry.grid
            )
            if blocks > MOST_BLOCKS:
                raise Unsupported(
                    f"kernel {entry.kernel} needs {blocks} blocks; a GPU starts {MOST_BLOCKS} at most",
                    where=f"program {tiles.name}",
                )
            if blocks:
                function = getattr(module, entry.function)
                launches.append(self._launch(entry, function, blocks, sizes, lengths, strides, wide))
        outputs = [(shapes[t.name], strides[t.name], DTYPES[t.dtype]) for t in tiles.outputs]
        workspaces = [(shapes[t.name], strides[t.name], DTYPES[t.dtype]) for t in tiles.workspaces]
        device = devices[0] if devices else torch.empty(0, device=self.target).device
        return _Call(device, outputs, workspaces, launches)

    def _sourced(
        self,
        sizes: Mapping[Dim, int],
        strides: Mapping[str, Sequence[int]],
        offsets: Mapping[str, int],
        wide: bool,
    ) -> tuple[Source, ModuleType]:
        """The source that loads through descriptors if the tensors allow it, else the one that does not."""
        tensors = {t.name: t for t in (*self.tiles.inputs, *self.tiles.outputs, *self.tiles.workspaces)}
        asked = [a for entry in self.source.entries for a in entry.arguments if a.kind == "descriptor"]
        for argument in asked:
            axes = axes_of(tensors[argument.tensor], strides[argument.tensor], sizes)
            if wide or not allowed(argument, *axes, offsets.get(argument.tensor, 0)):
                break
        else:
            return self.source, self.module
        if self.plain is None:
            source = self.emit(self.tiles)
            self.plain = source, load_module(source)
        return self.plain

    def _wide(self, sizes: Mapping[Dim, int], lengths: Mapping[Dim, int]) -> bool:
        """Whether a position may pass what indices of 32 bits are trusted with."""
        largest = max([*sizes.values(), *(lengths[dim] * (sizes[dim] + 1) for dim in lengths)], default=0)
        axes = [dim for t in self.tiles.inputs for group in t.layout for dim in group]
        return max([largest, *(size_of(dim, sizes) for dim in axes)]) >= WIDE

    def _split(self, sizes: dict[Dim, int]) -> dict[Dim, int]:
        """Choose part counts (into `sizes`); returns the length of a part of each split dim."""
        split = parts_of(self.tiles)
        chosen = self._parts(sizes) if split else {}
        steps = split_steps(self.tiles)
        lengths: dict[Dim, int] = {}
        for dim in split:
            sizes[dim] = max(1, int(chosen.get(dim.of, 1)))
            step = steps.get(dim, 1)
            least = -(-size_of(dim.of, sizes) // sizes[dim])
            lengths[dim] = max(1, -(-least // step)) * step
        return lengths

    def _parts(self, sizes: Mapping[Dim, int]) -> Mapping[Dim, int]:
        if self.choose is not None:
            return self.choose(self.tiles, sizes)
        return choose_parts(self.tiles, sizes, machine_of("interpret" if self.interpreted else "cuda"))

    def _launch(
        self,
        entry: Entry,
        function: Any,
        blocks: int,
        sizes: Mapping[Dim, int],
        lengths: Mapping[Dim, int],
        strides: Mapping[str, Sequence[int]],
        wide: bool,
    ) -> _Launch:
        tensors = (*self.tiles.inputs, *self.tiles.outputs, *self.tiles.workspaces)
        places = {tensor.name: place for place, tensor in enumerate(tensors)}
        template: list[Any] = []
        holes: list[tuple[int, int]] = []
        described: list[tuple[int, int, Described]] = []
        for place, argument in enumerate(entry.arguments):
            value = None
            match argument.kind:
                case "pointer" | "scalar":
                    holes.append((place, places[argument.tensor]))
                case "descriptor":
                    own = places[argument.tensor]
                    axes = axes_of(tensors[own], strides[argument.tensor], sizes)
                    described.append((place, own, Described(argument, *axes)))
                case "stride":
                    value = strides[argument.tensor][argument.axis]
                case _:
                    value = number_of(argument, sizes, lengths)
            template.append(value)
        if emitter.takes_index(entry.arguments):
            import triton.language as tl

            template.append(tl.int64 if wide else tl.int32)
        return _Launch(entry, function, blocks, template, holes, described)


def starter(compiled: Any, blocks: int, device: int) -> Callable[..., Any]:
    """How a kernel that Triton has compiled is started again: as Triton does it, without asking for device,
    stream and hooks on the way if there are no hooks."""
    usual = compiled[(blocks, 1, 1)]
    try:
        from triton.knobs import runtime

        run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
        stream_of = torch._C._cuda_getCurrentRawStream
    except (ImportError, AttributeError):  # another version of Triton
        return usual

    def start(*arguments: Any) -> None:
        if calls(runtime.launch_enter_hook) or calls(runtime.launch_exit_hook):
            usual(*arguments)
        else:
            run(blocks, 1, 1, stream_of(device), function, packed, None, None, None, *arguments)

    return start


def calls(hook: Any) -> bool:
    """Whether a hook of Triton's does anything."""
    return hook is not None and bool(getattr(hook, "calls", True))


def number_of(argument: Argument, sizes: Mapping[Dim, int], lengths: Mapping[Dim, int]) -> int:
    """The value of a size, a part's length or a part count."""
    assert argument.dim is not None
    match argument.kind:
        case "size":
            return size_of(argument.dim, sizes)
        case "chunk":
            return lengths[Parts(argument.dim)]
        case _:
            return sizes[Parts(argument.dim)]


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements between the first and the last one of a tensor."""
    return sum((n - 1) * abs(s) for n, s in zip(shape, strides, strict=True) if n)


def shape_of(tensor: Tensor, sizes: Mapping[Dim, int]) -> tuple[int, ...]:
    """The shape of a tensor with the caller's axes."""
    return tuple(prod(size_of(dim, sizes) for dim in group) for group in tensor.layout)


def dense(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a new tensor."""
    return tuple(prod(max(1, n) for n in shape[axis + 1 :]) for axis in range(len(shape)))


def split_steps(tiles: TileProgram) -> dict[Dim, int]:
    """The tile by which a part of each split dim is looped over: parts of whole tiles have no border."""
    found: dict[Dim, int] = {}

    def visit(body: Sequence[Statement]) -> None:
        for statement in body:
            if isinstance(statement, Loop):
                if isinstance(statement.start, PartBound):
                    dim = statement.start.part.dim
                    found[dim] = max(found.get(dim, 1), statement.tile)
                visit(statement.body)

    for kernel in tiles.kernels:
        visit(kernel.body)
    return found
