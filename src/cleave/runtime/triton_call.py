"""The repeated call of Triton kernels, written out: a few lines of Python made once per kind of call.

Triton starts a kernel through some layers of Python that ask for device, stream, hooks and scratch memory,
and make each tensor descriptor anew. What they find out is the same each time but for addresses, so it is
found out once: `start_of` takes apart how Triton starts a compiled kernel, `written` makes the call. It
goes the long way, `slow`, where the device is another one or somebody watches kernels start.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

from cleave.runtime.caller import deterministic
from cleave.runtime.counters import Counters
from cleave.runtime.descriptors import Described

Call = Callable[..., tuple[torch.Tensor, ...]]
Fresh = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
ROOM_ALIGNMENT = 256
"""Bytes: where a workspace begins; descriptors want 16, whole lines of the L2 128."""
KEPT_MAPS = 256
"""Addresses whose descriptors one argument remembers."""


@dataclass(frozen=True, slots=True)
class Start:
    """How a compiled kernel is started: `launch(blocks, 1, 1, stream, *after, *arguments)`. `flat`: a
    descriptor comes as what it is made of; `metas` say how each of them is encoded (None: not at all)."""

    launch: Callable[..., Any]
    after: tuple[Any, ...]
    flat: bool = False
    metas: tuple[Any, ...] = ()


def start_of(compiled: Any, described: int) -> Start | None:
    """How Triton starts a kernel with so many descriptors; none where this version does it in a way that is
    not known here."""
    try:
        run, function, packed = compiled.run, compiled.function, compiled.packed_metadata
        usual = Start(run, (function, packed, None, None, None))
        if hasattr(run, "arg_annotations") or run.global_scratch_size or run.profile_scratch_size:
            return usual
        launch, metas = run.launch, ()
        if described:
            inner = inspect.getclosurevars(launch).nonlocals
            launch, metas = inner["launcher"], tuple(inner["tensordesc_meta"])
        after = (function, run.launch_cooperative_grid, run.launch_pdl, None, None, packed, None, None, None)
    except (AttributeError, KeyError, TypeError):
        return None
    return Start(launch, after, True, metas) if len(metas) == described else usual


@dataclass(slots=True)
class Maps:
    """The encoded descriptors of one argument, by address."""

    form: Described
    meta: Any
    known: dict[int, Any] = field(default_factory=dict[int, Any])

    def of(self, address: int) -> Any:
        """The descriptor of the tensor at an address."""
        found = self.known.get(address)
        if found is None:
            if len(self.known) >= KEPT_MAPS:
                self.known = {}
            found = self.known[address] = encoded(self.form, self.meta, address)[0]
        return found


@dataclass(frozen=True, slots=True)
class _Address:
    """Stands for a tensor in a descriptor."""

    address: int

    def data_ptr(self) -> int:
        return self.address


def encoded(form: Described, meta: Any, address: int) -> list[Any]:
    """A descriptor as Triton hands it to the launcher: the encoded one, or the address, then numbers."""
    from triton.backends.nvidia import driver

    made: Any = driver.make_tensordesc_arg
    found = made(form.bare(_Address(address)), meta)
    return [v.address if isinstance(v, _Address) else v for v in found]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a call: how it is started, on how many blocks, its arguments with holes, which value (by
    its place among inputs, outputs and workspaces) fills which hole, as it is or described, and which one
    takes how many numbers to count on."""

    start: Start
    blocks: int
    template: Sequence[Any]
    holes: Sequence[tuple[int, int]]
    described: Sequence[tuple[int, int, Described]]
    counter: tuple[int, int] | None = None


def written(
    tensors: Sequence[bool],
    inputs: int,
    fresh: Sequence[Fresh],
    outputs: int,
    kernels: Sequence[Kernel],
    device: int,
    slow: Call,
) -> Call:
    """The call. `tensors` says which values are tensors (the others are numbers); the first `inputs` are
    given, the next ones `fresh`, of which the first `outputs` are returned (by `call.single` the only one as
    it is)."""
    text, scope = _text(tensors, inputs, fresh, outputs, kernels)
    scope |= {
        "device": device,
        "slow": slow,
        "hooked": hooks(),
        "current": torch._C._cuda_getDevice,
        "stream_of": torch._C._cuda_getCurrentRawStream,
        "filled": deterministic,
        "quick": quick_empty,
        "careful": careful_empty(device),
        "counts": Counters.on(device).address,
    }
    exec(text, scope)
    call, single = scope["call"], scope.get("single")
    if single is not None:
        call.single = single
    return call


def _text(
    tensors: Sequence[bool], inputs: int, fresh: Sequence[Fresh], outputs: int, kernels: Sequence[Kernel]
) -> tuple[str, dict[str, Any]]:
    """The text of a call, and what its names stand for."""
    names = [f"{'t' if tensor else 'n'}{place}" for place, tensor in enumerate(tensors)]
    given = ", ".join(names[:inputs])
    scope: dict[str, Any] = {}
    body = ["    if current() != device or hooked():", f"        SLOW({given})"]
    if fresh:
        body.append("    empty = careful if filled() else quick")
    own = fresh if any(k.described and not k.start.flat for k in kernels) else fresh[:outputs]
    for n, (shape, strides, dtype) in enumerate(own):
        place = inputs + n
        scope |= {f"s{place}": shape, f"d{place}": strides, f"k{place}": dtype}
        body.append(f"    t{place} = empty(s{place}, d{place}, k{place})")
    used = {v for k in kernels for _, v in k.holes if tensors[v]}
    used |= {v for k in kernels for _, v, _ in k.described if k.start.flat}
    body += [f"    p{place} = t{place}.data_ptr()" for place in sorted(used) if place < inputs + len(own)]
    body += _room(fresh[len(own) :], inputs + len(own), scope)
    body.append("    stream = stream_of(device)")
    for n, kernel in enumerate(kernels):
        scope[f"f{n}"] = kernel.start.launch
        arguments = [*_after(n, kernel, scope), *_arguments(n, kernel, tensors, scope)]
        if kernel.counter is not None:
            body.append(f"    c{n} = counts(stream, {kernel.counter[1]})")
        body.append(f"    f{n}({kernel.blocks}, 1, 1, stream, {', '.join(arguments)})")
    results = [f"t{inputs + n}" for n in range(outputs)]
    returned = f"    return ({' '.join(r + ',' for r in results)})"
    lines = [f"def call({given}):", *(x.replace("SLOW(", "return slow(") for x in body), returned]
    if outputs == 1:
        alone = [x.replace(f"SLOW({given})", f"return slow({given})[0]") for x in body]
        lines += [f"def single({given}):", *alone, f"    return {results[0]}"]
    return "\n".join(lines) + "\n", scope


def _room(workspaces: Sequence[Fresh], place: int, scope: dict[str, Any]) -> list[str]:
    """One piece of memory for all workspaces, from this place among the values on: an allocation costs the
    host a microsecond."""
    if not workspaces:
        return []
    lines, end = ["    room = empty(room_size, (1,), room_kind)", "    base = room.data_ptr()"], 0
    for n, (shape, _, dtype) in enumerate(workspaces):
        lines.append(f"    p{place + n} = base + {end}")
        end += -(-prod(shape) * dtype.itemsize // ROOM_ALIGNMENT) * ROOM_ALIGNMENT
    scope |= {"room_size": (end,), "room_kind": torch.uint8}
    return lines


def _after(n: int, kernel: Kernel, scope: dict[str, Any]) -> list[str]:
    """What comes before a kernel's own arguments."""
    names: list[str] = []
    for place, value in enumerate(kernel.start.after):
        names.append("None" if value is None else f"a{n}_{place}")
        scope[names[-1]] = value
    scope.pop("None", None)
    return names


def _arguments(n: int, kernel: Kernel, tensors: Sequence[bool], scope: dict[str, Any]) -> list[str]:
    """A kernel's own arguments."""
    where = dict(kernel.holes)
    described = {place: (value, form) for place, value, form in kernel.described}
    metas = iter(kernel.start.metas)
    found: list[str] = []
    for place, value in enumerate(kernel.template):
        if kernel.counter is not None and place == kernel.counter[0]:
            found.append(f"c{n}")
        elif place in where:
            found.append(f"{'p' if tensors[where[place]] else 'n'}{where[place]}")
        elif place in described:
            own, form = described[place]
            if not kernel.start.flat:
                scope[f"m{n}_{place}"] = form.of
                found.append(f"m{n}_{place}(t{own})")
                continue
            meta = next(metas)
            first, *rest = encoded(form, meta, 0) if meta is None else (None, *form.shape, *form.strides)
            if meta is not None:
                scope[f"m{n}_{place}"] = Maps(form, meta).of
            found.append(f"p{own}" if first is not None else f"m{n}_{place}(p{own})")
            found += [repr(number) for number in rest]
        elif type(value) in (int, float, bool) or value is None:
            found.append(repr(value))
        else:
            scope[f"c{n}_{place}"] = value
            found.append(f"c{n}_{place}")
    return found


def hooks() -> Callable[[], bool]:
    """Tells whether somebody watches kernels start."""
    try:
        from triton.knobs import runtime
    except ImportError:
        return lambda: True

    def hooked() -> bool:
        return calls(runtime.launch_enter_hook) or calls(runtime.launch_exit_hook)

    return hooked


def calls(hook: Any) -> bool:
    """Whether a hook of Triton's does anything."""
    return hook is not None and bool(getattr(hook, "calls", True))


def careful_empty(device: int) -> Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]:
    """Fresh memory of a device; filled where PyTorch is told to fill it."""
    where = torch.device("cuda", device)

    def empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=where)

    return empty


def _usual_empty(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device="cuda")


_torch: Any = torch._C
_guards = _torch._dynamo.guards
quick_empty: Any = getattr(_guards, "_empty_strided_cuda", _usual_empty)
"""What makes new tensors on the current GPU: what PyTorch's own compiled code uses, half as dear."""
