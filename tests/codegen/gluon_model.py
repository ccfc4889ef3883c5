"""A model of Gluon in NumPy that runs generated kernels with warp groups: their numbers and their barriers.

Each warp function is a thread. Barriers count arrivals and bytes as the machine's do; whoever waits too long
is stuck, and that is an error. A product reads its operands when it is started and again when it is waited
for: where these differ, a slot was freed or filled too early. Its result is of no use before that.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from cleave.codegen.source import Argument, Source
from cleave.codegen.triton_grid import takes_index
from cleave.ir.dims import Dim, size_of
from cleave.schedule.machine import width
from cleave.schedule.tiles import TileProgram

PATIENCE = 20.0
"""Seconds after which a wait is held to be one for ever."""
FLOATS = ("bf16", "f16", "f32")


class Whole(int):
    """An integer of a kernel: division truncates."""

    def to(self, kind: object) -> Whole:
        return self


def _made(name: str) -> Callable[[Whole, Any], Any]:
    plain = getattr(int, name)

    def operation(self: Whole, other: Any) -> Any:
        if not isinstance(other, int):
            return NotImplemented
        if "div" in name or "mod" in name:
            a, b = (int(other), int(self)) if name.startswith("__r") else (int(self), int(other))
            down = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return Whole(down if "div" in name else a - b * down)
        return Whole(plain(self, other))

    return operation


for _name in (
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "floordiv",
    "rfloordiv",
    "mod",
    "rmod",
    "and",
    "xor",
):
    setattr(Whole, f"__{_name}__", _made(f"__{_name}__"))
Whole.__neg__ = lambda self: Whole(-int(self))  # pyright: ignore[reportAttributeAccessIssue]


class Block(np.ndarray):
    """A block in registers: float32 or integers, rounded where it is cast."""

    def to(self, kind: str) -> Block:
        return cast(self, kind)


def block(value: Any) -> Block:
    found = np.asarray(value)
    return found.astype(np.float32 if found.dtype.kind == "f" else found.dtype).view(Block)


def rounded(value: Any, kind: str) -> Any:
    """Numbers as a kind of float has them, in float32."""
    found = np.asarray(value).astype(np.float32)
    if kind == "f16":
        return found.astype(np.float16).astype(np.float32)
    if kind == "bf16":
        bits = np.ascontiguousarray(found).view(np.uint32)
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
        return np.where(np.isnan(found), found, bits.view(np.float32).reshape(found.shape))
    return found


def cast(value: Any, kind: str) -> Any:
    if kind == "INDEX":
        return value
    if kind in FLOATS:
        return block(rounded(value, kind))
    return block(np.asarray(value).astype({"bool": np.bool_}.get(kind, np.int64)))


class Barrier:
    """A barrier in shared memory."""

    def __init__(self) -> None:
        self.count = self.left = self.bytes = self.phase = 0

    def settle(self) -> None:
        assert self.left >= 0, "more arrive at a barrier than it counts"
        if self.left == 0 and self.bytes == 0:
            self.phase, self.left = self.phase + 1, self.count


class Memory:
    """Shared memory: an array, or barriers."""

    def __init__(self, data: Any, kind: str) -> None:
        self.data, self.kind = data, kind

    def index(self, place: int) -> Any:
        if self.kind == "i64" and place < 0:  # no arrival: its condition says so
            return None
        assert 0 <= place < len(self.data)
        found = self.data[int(place)]
        return found if isinstance(found, Barrier) else Memory(found, self.kind)

    def reshape(self, shape: Sequence[int]) -> Memory:
        found = self.data.view()
        found.shape = tuple(shape)
        return Memory(found, self.kind)

    def permute(self, order: Sequence[int]) -> Memory:
        return Memory(self.data.transpose(order), self.kind)

    def reinterpret(self, kind: str, shape: Sequence[int], layout: object) -> Memory:
        assert width(kind) == width(self.kind) and prod(shape) <= self.data.size
        found = self.data.reshape(-1)[: prod(shape)].view()
        found.shape = tuple(shape)
        return Memory(found, kind)

    def slice(self, start: int, length: int, dim: int) -> Memory:
        assert start + length <= self.data.shape[dim]
        return Memory(self.data[(slice(None),) * dim + (slice(start, start + length),)], self.kind)

    def load(self, layout: object) -> Block:
        return block(self.data.copy())

    def store(self, value: Any) -> None:
        assert self.data.shape == np.shape(value), (self.data.shape, np.shape(value))
        self.data[...] = rounded(value, self.kind)


class Running:
    """A product that was started and not waited for."""

    def __init__(self, a: Any, b: Memory, onto: Any, use: bool) -> None:
        self.a, self.b, self.onto, self.use = a, b, onto, use
        self.seen = [_now(a), _now(b)]
        self.done: Block | None = None

    def __array__(self, *_: object, **__: object) -> Any:
        raise AssertionError("a product is read that nobody has waited for")

    def value(self) -> Block:
        if self.done is None:
            for before, now in zip(self.seen, (_now(self.a), _now(self.b)), strict=True):
                assert np.array_equal(before, now, equal_nan=True), "an operand changed under a product"
            onto = self.onto.value() if isinstance(self.onto, Running) else self.onto
            product = self.seen[0].astype(np.float32) @ self.seen[1].astype(np.float32)
            assert product.shape == onto.shape
            self.done = block(product + np.asarray(onto) if self.use else product)
        return self.done


def _now(operand: Any) -> Any:
    return np.array(operand.data if isinstance(operand, Memory) else operand)


class Tiles:
    """A tensor descriptor."""

    layout = None

    def __init__(self, tensor: Any, extents: Sequence[int], kind: str) -> None:
        self.tensor, self.extents, self.kind = tensor, tuple(extents), kind
        self.bytes = int(np.prod(extents)) * width(kind)

    def places(self, starts: Sequence[int]) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
        far, near = [], []
        for start, extent, size in zip(starts, self.extents, self.tensor.shape, strict=True):
            low, high = max(0, int(start)), max(0, min(size, int(start) + extent))
            high = max(low, high)
            far.append(slice(low, high))
            near.append(slice(low - int(start), high - int(start)))
        return tuple(far), tuple(near)


class Pointer:
    """An address, or a block of them."""

    def __init__(self, flat: Any, at: Any) -> None:
        self.flat, self.at = flat, at

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.flat, np.asarray(self.at) + np.asarray(other))


class Model:
    """What a generated module sees as Gluon, for one launch."""

    def __init__(self, blocks: int) -> None:
        self.own = threading.local()
        self.lock = threading.Condition()
        self.blocks = blocks
        self.faults: list[BaseException] = []

    # ------------------------------------------------------------ barriers and copies

    def init(self, barrier: Barrier, count: int) -> None:
        barrier.count = barrier.left = count

    def arrive(self, barrier: Barrier, count: int = 1, pred: Any = True) -> None:
        with self.lock:
            if pred:
                barrier.left -= count
                barrier.settle()
                self.lock.notify_all()

    def expect(self, barrier: Barrier, size: int) -> None:
        with self.lock:
            barrier.bytes += int(size)
            barrier.left -= 1
            barrier.settle()

    def wait(self, barrier: Barrier, phase: int) -> None:
        with self.lock:
            done = self.lock.wait_for(lambda: self.faults or barrier.phase % 2 != int(phase) % 2, PATIENCE)
            assert done, "a wait that nothing ends"
            assert not self.faults, "another warp has failed"

    def copy_in(self, tiles: Tiles, starts: Sequence[int], barrier: Barrier, into: Memory) -> None:
        assert into.data.shape == tiles.extents
        far, near = tiles.places(starts)
        into.data[...] = 0
        into.data[near] = tiles.tensor[far]
        with self.lock:
            barrier.bytes -= tiles.bytes
            barrier.settle()
            self.lock.notify_all()

    def copy_out(self, tiles: Tiles, starts: Sequence[int], source: Memory) -> None:
        far, near = tiles.places(starts)
        tiles.tensor[far] = source.data[near]
        self.own.leaving.append((source, _now(source)))

    def store_wait(self, behind: int) -> None:
        """What leaves must be in its place until somebody waits for it."""
        leaving: list[tuple[Memory, Any]] = self.own.leaving
        while len(leaving) > behind:
            source, before = leaving.pop(0)
            assert np.array_equal(_now(source), before, equal_nan=True), "a result changed on its way out"

    # ------------------------------------------------------------ products

    def product(self, a: Any, b: Memory, onto: Any, use_acc: bool = True, is_async: bool = False) -> Running:
        assert is_async
        found = Running(a, b, onto, use_acc)
        self.own.running.append(found)
        return found

    def await_products(self, behind: int, deps: Sequence[Any]) -> Any:
        running: list[Running] = self.own.running
        while len(running) > behind:
            running.pop(0).value()
        found = [d.done if isinstance(d, Running) and d.done is not None else d for d in deps]
        return found[0] if len(found) == 1 else found

    # ------------------------------------------------------------ the language

    def start(self, workers: Sequence[tuple[Callable[..., None], tuple[Any, ...]]], *_: object) -> None:
        block_number = self.own.block

        def work(function: Callable[..., None], given: tuple[Any, ...]) -> None:
            self.own.block, self.own.running, self.own.leaving = block_number, [], []
            try:
                with np.errstate(all="ignore"):
                    function(*given)
                assert not self.own.running, "a product that nobody waits for"
                assert not self.own.leaving, "a result that nobody waits for"
            except BaseException as fault:  # noqa: BLE001 - raised again by the launch
                with self.lock:
                    self.faults.append(fault)
                    self.lock.notify_all()

        threads = [threading.Thread(target=work, args=w, daemon=True) for w in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.faults:
            raise self.faults[0]

    def allocate(self, kind: str, shape: Sequence[int], layout: object) -> Memory:
        if kind == "i64":
            return Memory([Barrier() for _ in range(shape[0])], kind)
        return Memory(np.full(shape, np.nan, np.float32), kind)

    def assembly(self, text: str, _: str, args: Sequence[Any], **__: object) -> Any:
        if text.startswith("mov"):
            return args[0]
        if text.startswith("copysign"):
            return block(np.copysign(args[1], args[0]))
        if text.startswith("tanh.approx.f32"):
            return block(np.tanh(args[0]))
        return block(np.exp2(args[0])) if text.startswith("ex2") else block(1 / np.asarray(args[0]))

    def store(self, pointer: Pointer, value: Any, mask: Any = True) -> None:
        at, value, mask = np.broadcast_arrays(pointer.at, np.asarray(value), np.asarray(mask))
        pointer.flat[at[mask]] = value[mask]

    def load(self, pointer: Pointer, mask: Any = True, other: Any = 0) -> Block:
        at, mask = np.broadcast_arrays(pointer.at, np.asarray(mask))
        found = np.full(at.shape, other, np.float32)
        found[mask] = pointer.flat[at[mask]]
        return block(found)

    def words(self) -> dict[str, Any]:
        """The names of a generated module."""
        made = lambda f: lambda *args, **_: block(f(*args))  # noqa: E731

        def least(f: Callable[[Any, Any], Any]) -> Callable[..., Any]:
            return lambda a, b, **_: (
                Whole(f(a, b)) if isinstance(a, int) and isinstance(b, int) else block(f(a, b))
            )

        def reduce(value: Any, axis: int, by: Callable[..., Any]) -> Block:
            kinds = {"larger": np.max, "smaller": np.min, "times": np.prod}
            return block(kinds[by.__name__.split("_")[0]](value, axis))

        def where(condition: Any, a: Any, b: Any) -> Any:
            if all(isinstance(x, int) for x in (condition, a, b)):
                return Whole(a if condition else b)
            return block(np.where(condition, a, b).astype(np.result_type(np.asarray(a), np.asarray(b))))

        kinds = {"float32": "f32", "bfloat16": "bf16", "float16": "f16", "int1": "bool", "int64": "i64"}
        gl = SimpleNamespace(
            **kinds, int32="i32", constexpr=lambda value: SimpleNamespace(value=value),
            **dict.fromkeys(("NVMMADistributedLayout", "SliceLayout", "DotOperandLayout"), lambda *_: None),
            **dict.fromkeys(
                ("BlockedLayout", "SwizzledSharedLayout", "DistributedLinearLayout"), lambda *_: None
            ),
            NVMMASharedLayout=SimpleNamespace(get_default_for=lambda *_: None),
            allocate_shared_memory=self.allocate, shared_memory_descriptor=Memory,
            warp_specialize=self.start, static_range=range,
            program_id=lambda _: Whole(self.own.block), num_programs=lambda _: Whole(self.blocks),
            to_tensor=Whole, cast=cast, convert_layout=lambda value, _: value,
            arange=lambda a, b, layout=None: block(np.arange(a, b)),
            cdiv=lambda a, b: Whole(-(-int(a) // int(b))),
            full=lambda shape, value, kind, layout=None: cast(np.full(shape, value), kind),
            zeros_like=made(np.zeros_like), where=where, reduce=reduce, sum=made(np.sum),
            maximum=least(np.maximum), minimum=least(np.minimum), abs=made(np.abs), exp=made(np.exp),
            exp2=made(np.exp2), log=made(np.log), fma=made(lambda a, b, c: a * np.asarray(b) + c),
            inline_asm_elementwise=self.assembly, store=self.store, load=self.load,
        )  # fmt: skip
        barriers = SimpleNamespace(
            MBarrierLayout=lambda: None,
            init=self.init,
            arrive=self.arrive,
            wait=self.wait,
            expect=self.expect,
        )
        tma = SimpleNamespace(async_load=self.copy_in, async_store=self.copy_out, store_wait=self.store_wait)
        jit: Any = lambda function=None, **_: function if function else lambda f: f  # noqa: E731
        tl = SimpleNamespace(PropagateNan=SimpleNamespace(ALL=None), constexpr=None)
        return {
            "gl": gl, "tl": tl, "gluon": SimpleNamespace(jit=jit), "triton": SimpleNamespace(jit=jit),
            "mbarrier": barriers, "tma": tma, "fence_async_shared": lambda: None,
            "warpgroup_mma": self.product, "warpgroup_mma_wait": self.await_products,
        }  # fmt: skip


def launch(tiles: TileProgram, source: Source, tensors: Mapping[str, Any], sizes: Mapping[Dim, int]) -> None:
    """Run the first kernel of a source on dense float32 arrays in the caller's layout; on two cores, if
    its blocks go on from tile to tile. Outputs are written in place."""
    (entry, *_) = source.entries
    known = {dim: size for dim, size in tiles.sizes if isinstance(size, int)} | dict(sizes)
    count = prod(-(-size_of(axis.index.dim, known) // axis.tile) for axis in entry.grid)
    blocks = min(2, count) if entry.persistent else count
    text = re.sub(r"^from triton[^\n]*import \((?:.|\n)*?\)\n", "", source.text, flags=re.M)
    text = re.sub(r"^(from triton|import triton)[^\n]*\n", "", text, flags=re.M)
    model = Model(blocks)
    words = model.words()
    exec(compile(text, "kernel", "exec"), words)
    layouts = {
        t.name: [size_of(d, known) for g in t.layout for d in g] for t in (*tiles.inputs, *tiles.outputs)
    }
    given = [_argument(a, tensors, layouts, known) for a in entry.arguments]
    given += ["INDEX"] if takes_index(entry.arguments) else []
    for number in range(blocks):
        model.own.block = number
        words[entry.function](*given)


def _argument(
    argument: Argument,
    tensors: Mapping[str, Any],
    layouts: Mapping[str, Sequence[int]],
    sizes: Mapping[Dim, int],
) -> Any:
    match argument.kind:
        case "pointer":
            return Pointer(tensors[argument.tensor].reshape(-1), 0)
        case "descriptor":
            array = tensors[argument.tensor].reshape(layouts[argument.tensor])
            return Tiles(array, argument.block, argument.dtype)
        case "stride":
            array = tensors[argument.tensor]
            return Whole(array.strides[argument.axis] // array.itemsize)
        case "size":
            assert argument.dim is not None
            return Whole(size_of(argument.dim, sizes))
        case kind:
            raise AssertionError(f"the model has no {kind}")
