"""Run generated Triton modules.

`TritonLauncher` calls the kernels of a tile program on torch tensors: on a GPU, or on the CPU in Triton's
interpreter. It launches on the current stream with no synchronisation, and takes results and workspaces from
PyTorch's allocator: calls may be captured in a CUDA graph once a first call has built the kernels. What
follows from shapes, strides and alignment is kept for the next call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from math import prod
from types import ModuleType
from typing import Any

import torch

from cleave.codegen import triton as emitter
from cleave.codegen.source import Argument, Entry, Source
from cleave.codegen.together import together
from cleave.codegen.triton_maps import NARROW_LIMIT
from cleave.codegen.triton_merge import kept_of
from cleave.errors import Infeasible, Invalid, Unsupported
from cleave.ir.dims import Dim, Parts, size_of
from cleave.runtime.counters import counters_of
from cleave.runtime.descriptors import ALIGNMENT, Described, allowed, axes_of
from cleave.runtime.launch import DTYPES, KEPT_SIGNATURES, Choose, Launcher, Value
from cleave.runtime.machines import machine_of
from cleave.runtime.triton_build import (
    Report,
    capability_here,
    compile_call,
    compile_for,
    is_interpreted,
    load_module,
    mend_interpreter,
    options_of,
    report_of,
    shared_layout,
    starts_early,
    takes_groups,
)
from cleave.runtime.triton_call import Kernel as Started
from cleave.runtime.triton_call import start_of, written
from cleave.schedule.beside import independent
from cleave.schedule.merging import joint_of
from cleave.schedule.parts import split_steps
from cleave.schedule.select import choose_parts
from cleave.schedule.shapes import parts_of
from cleave.schedule.tiles import Kernel, Tensor, TileProgram

WIDE = NARROW_LIMIT
"""From this size on positions are 64 bits wide."""
FAR = 1 << 31
"""From this many elements between a tensor's first and last on, offsets are 64 bits wide."""
MOST_BLOCKS = (1 << 31) - 1
SPARED = 16
"""Of so many cores one may be without a block."""
MOST_UNEVEN = 64
"""Tiles of an axis, each longer than the one before, up to which a block per core balances as well as the GPU
does with a block per tile, and a tile's loads start before the one before it has ended."""
SHARED_LIMITS = {80: 163 * 1024, 86: 99 * 1024, 89: 99 * 1024, 90: 227 * 1024, 100: 227 * 1024}
"""Bytes of shared memory that a block may have, by capability."""

# ---------------------------------------------------------------- calls


@dataclass(slots=True)
class _Launch:
    """One kernel in one kind of call: its arguments with holes, which tensor or number (by its place among
    inputs, outputs and workspaces) fills which hole, as it is or `described`. `counter` is the place of the
    numbers on which blocks count, and how many there are."""

    entry: Entry
    function: Any
    blocks: int
    template: list[Any]
    holes: list[tuple[int, int]]
    described: list[tuple[int, int, Described]]
    counter: tuple[int, int] | None = None

    def filled(self, values: Sequence[Value], device: torch.device) -> list[Any]:
        """The arguments with these inputs, outputs and workspaces."""
        arguments: list[Any] = self.template.copy()
        for place, value in self.holes:
            arguments[place] = values[value]
        for place, value, form in self.described:
            arguments[place] = form.of(values[value])
        if self.counter is not None:
            place, count = self.counter
            arguments[place] = counters_of(device, count)
        return arguments


@dataclass(slots=True)
class _Call:
    """A kind of call: shapes, strides and alignment are given; `fast` repeats it."""

    device: torch.device
    outputs: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    workspaces: list[tuple[tuple[int, ...], tuple[int, ...], torch.dtype]]
    launches: list[_Launch]
    fast: Callable[..., tuple[torch.Tensor, ...]] | None = None


class TritonLauncher(Launcher):
    """The kernels of a tile program as a function of torch tensors and numbers, in the order of its inputs;
    it returns fresh tensors, one per output.

    `target` is `cuda`, or `interpret` for Triton's interpreter on CPU tensors (`TRITON_INTERPRET=1` must be
    set before triton is imported). `precision` is PyTorch's float32 matmul precision. For `cuda` all is
    compiled at once, for calls like the `example` (else for dense tensors and sizes that are multiples of
    16): `BuildError` where Triton refuses, `Infeasible` where the device has too little. With `capability`
    it compiles for such a GPU, which need not be there, and starts nothing. `Invalid` for arguments that do
    not fit."""

    def __init__(
        self,
        tiles: TileProgram,
        target: str = "cuda",
        *,
        choose: Choose | None = None,
        precision: str = "highest",
        joined: bool = False,
        example: Sequence[Value] | None = None,
        capability: int = 0,
    ) -> None:
        if target not in ("cuda", "interpret"):
            raise Invalid(f"target {target!r} for Triton", hint="cuda or interpret")
        self.tiles, self.choose = tiles, choose
        self.interpreted = target == "interpret"
        self.target = "cpu" if self.interpreted else "cuda"
        if not self.interpreted and not capability:
            capability = capability_here()
        overlapped = starts_early(capability)
        self.emit = functools.partial(emitter.emit, precision=precision, overlapped=overlapped)
        if joined and len(tiles.kernels) > 1 and independent(tiles):
            alone = functools.partial(emitter.emit, precision=precision, asynchronous=overlapped)
            self.emit = lambda tiles, **_: together(alone(tiles), tiles)
        self.source = self.emit(tiles, described=True, grouped=takes_groups(capability))
        self.module = load_module(self.source)
        self.plain: tuple[Source, ModuleType] | None = None
        self.stand_in: Callable[[Sequence[Value]], TritonLauncher | None] | None = None
        """Makes what serves calls whose tensors kernels with warp groups cannot take, for arguments like
        these. Without it the same tile program does, written without groups."""
        self._other: TritonLauncher | None = None
        if self.interpreted != is_interpreted(self.module, self.source):
            raise Invalid(
                f"triton was imported {'without' if self.interpreted else 'with'} TRITON_INTERPRET=1",
                hint="set or unset it before the first import of triton",
            )
        self._calls: dict[Any, _Call] = {}
        self.reports = () if self.interpreted else self._refuse(example, capability)
        if self.interpreted:
            mend_interpreter()

    def _refuse(self, example: Sequence[Value] | None, capability: int) -> tuple[Report, ...]:
        """Compile for a device and hold the kernels to its limits."""
        if example is None:
            reports = compile_for(self.source, capability)
        else:
            reports = tuple(report_of(name, kernel) for name, kernel in self.ahead(example))
        limit = SHARED_LIMITS.get(capability, SHARED_LIMITS[86])
        for report in reports:
            if report.shared > limit:
                raise Infeasible(
                    f"kernel {report.kernel} of {self.tiles.name} needs {report.shared} bytes of shared "
                    f"memory; the device has {limit} per block"
                )
        return reports

    def ahead(self, args: Sequence[Value]) -> list[tuple[str, Any]]:
        """Compile for a call with arguments like these, which need no memory (device `meta`), all kernels at
        once: their names and Triton's kernels. The call itself then finds them in Triton's cache."""
        call = self._plan(args, ahead=True)
        fresh = [*call.outputs, *call.workspaces]
        values = [*args, *(torch.empty_strided(n, s, dtype=d, device="meta") for n, s, d in fresh)]
        with ThreadPoolExecutor(max(1, len(call.launches))) as pool:
            kernels = pool.map(lambda launch: self._compiled(launch, values), call.launches)
            return [(x.entry.kernel, kernel) for x, kernel in zip(call.launches, kernels, strict=True)]

    def _compiled(self, launch: _Launch, values: Sequence[Value]) -> Any:
        return compile_call(
            launch.function, launch.entry, launch.filled(values, torch.device("meta")), launch.blocks
        )

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
        call = self._call_for(args)
        return call.fast or (lambda *values: self._go(call, values))

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
        return call.fast(*args) if call.fast is not None else self._slow(call, args)

    def _slow(self, call: _Call, args: Sequence[Value]) -> tuple[torch.Tensor, ...]:
        """Through Triton, which compiles if it must."""
        device = call.device
        if device.type == "cuda" and device.index != torch._C._cuda_getDevice():
            with torch.cuda.device(device):
                return self._go(call, args)
        fresh = (*call.outputs, *call.workspaces)
        made = [torch.empty_strided(n, s, dtype=d, device=device) for n, s, d in fresh]
        values = (*args, *made)
        kernels = [self._started(launch, values, device) for launch in call.launches]
        if call.fast is None and not self.interpreted:
            call.fast = self._fast(call, kernels)
        return tuple(made[: len(call.outputs)])

    def _started(self, launch: _Launch, values: Sequence[Value], device: torch.device) -> Any:
        """Start a kernel; returns what Triton made of it."""
        arguments = launch.filled(values, device)
        if self.interpreted:
            return launch.function[(launch.blocks,)](*arguments)
        from triton.runtime.errors import OutOfResources

        try:
            return launch.function[(launch.blocks,)](*arguments, **options_of(launch.entry))
        except OutOfResources as error:
            raise Infeasible(f"kernel {launch.entry.kernel} of {self.tiles.name}: {error}") from error

    def _fast(self, call: _Call, compiled: Sequence[Any]) -> Callable[..., tuple[torch.Tensor, ...]] | None:
        """The call written out, if it is known how these kernels are started."""
        kernels: list[Started] = []
        for launch, kernel in zip(call.launches, compiled, strict=True):
            start = start_of(kernel, len(launch.described))
            if start is None:
                return None
            own = (launch.template, launch.holes, launch.described, launch.counter)
            kernels.append(Started(start, launch.blocks, *own))
        tensors = [
            t.role != "scalar" for t in (*self.tiles.inputs, *self.tiles.outputs, *self.tiles.workspaces)
        ]
        fresh = (*call.outputs, *call.workspaces)
        count = len(self.tiles.inputs), fresh, len(call.outputs)
        return written(tensors, *count, kernels, call.device.index or 0, lambda *args: self._slow(call, args))

    # ------------------------------------------------------------ once per signature

    def _plan(self, args: Sequence[Value], ahead: bool = False) -> _Call:
        """Check the arguments of a call and work out everything that does not depend on their values."""
        tiles, sizes = self.tiles, self.sizes_of(*args, absent=ahead)
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
        described = not wide and self._described(sizes, strides, offsets)
        if not described and self.stand_in is not None:
            self._other = self._other or self.stand_in(args)
            if self._other is not None:
                return self._other._plan(args, ahead)
            self.stand_in = None
        source, module = self._sourced(described)
        launches: list[_Launch] = []
        rest = iter(tiles.kernels)
        for entry in source.entries:
            kernels = list(islice(rest, 1 + entry.beside))
            closing = next(rest) if entry.merged else None
            blocks = sum(blocks_of(kernel, sizes, closing) for kernel in kernels)
            if blocks > MOST_BLOCKS:
                raise Unsupported(
                    f"kernel {entry.kernel} needs {blocks} blocks; a GPU starts {MOST_BLOCKS} at most",
                    where=f"program {tiles.name}",
                )
            if blocks:
                uneven = max((-(-size_of(a.index.dim, sizes) // a.tile) for a in entry.uneven), default=0)
                if entry.persistent and uneven <= MOST_UNEVEN and not ahead:  # there may be no GPU yet
                    blocks = in_rounds(blocks, cores_of(devices[0].index or 0))
                function = getattr(module, entry.function)
                launch = self._launch(entry, function, blocks, sizes, lengths, strides, wide)
                if closing is not None:
                    place = [a.kind for a in entry.arguments].index("counter")
                    launch.counter = place, counts_of(kernels[0], closing, sizes)
                launches.append(launch)
        outputs = [(shapes[t.name], strides[t.name], DTYPES[t.dtype]) for t in tiles.outputs]
        workspaces = [(shapes[t.name], strides[t.name], DTYPES[t.dtype]) for t in tiles.workspaces]
        device = devices[0] if devices else torch.empty(0, device=self.target).device
        return _Call(device, outputs, workspaces, launches)

    def _described(
        self,
        sizes: Mapping[Dim, int],
        strides: Mapping[str, Sequence[int]],
        offsets: Mapping[str, int],
    ) -> bool:
        """Whether tensors can be loaded through the descriptors that the kernels ask for."""
        tensors = {t.name: t for t in (*self.tiles.inputs, *self.tiles.outputs, *self.tiles.workspaces)}
        asked = [a for entry in self.source.entries for a in entry.arguments if a.kind == "descriptor"]
        return all(
            allowed(a, *axes_of(tensors[a.tensor], strides[a.tensor], sizes), offsets.get(a.tensor, 0))
            for a in asked
        )

    def _sourced(self, described: bool) -> tuple[Source, ModuleType]:
        """The source that loads through descriptors, or the one that does not."""
        asks = any(a.kind == "descriptor" for entry in self.source.entries for a in entry.arguments)
        if described or not asks:
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
            # No part starts beyond the end, which kernels rely on: whole tiles may leave some nothing.
            sizes[dim] = max(1, -(-size_of(dim.of, sizes) // lengths[dim]))
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
                    layout = shared_layout(argument) if entry.groups else None
                    described.append((place, own, Described(argument, *axes, layout)))
                case "counter":
                    pass
                case "stride":
                    value = strides[argument.tensor][argument.axis]
                case _:
                    value = number_of(argument, sizes, lengths)
            template.append(value)
        if emitter.takes_index(entry.arguments):
            import triton.language as tl

            template.append(tl.int64 if wide else tl.int32)
        return _Launch(entry, function, blocks, template, holes, described)


def blocks_of(kernel: Kernel, sizes: Mapping[Dim, int], closing: Kernel | None = None) -> int:
    """How many blocks a kernel has, with what is merged into it."""
    kept = kept_of(kernel, closing)
    return prod(
        max(-(-size_of(axis.index.dim, sizes) // axis.tile), int(axis.index in kept)) for axis in kernel.grid
    )


def counts_of(kernel: Kernel, closing: Kernel, sizes: Mapping[Dim, int]) -> int:
    """How many numbers the blocks of a kernel count on for the one that is merged into it."""
    axes = (axis for axis, _ in joint_of(kernel, closing).pairs)
    return prod(max(1, -(-size_of(axis.index.dim, sizes) // axis.tile)) for axis in axes)


def in_rounds(tiles: int, cores: int) -> int:
    """How many blocks do tiles one after another: one a core, or somewhat fewer that all have the same number
    of them. A block more does not end sooner, and one whose core comes late holds nobody up."""
    fewer = -(-tiles // max(1, -(-tiles // cores)))
    return fewer if fewer * SPARED >= cores * (SPARED - 1) else min(tiles, cores)


@functools.cache
def cores_of(device: int) -> int:
    """The number of multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


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
