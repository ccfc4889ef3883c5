"""Generated Triton modules: importing them, and compiling them for a GPU that need not be there.

`compile_for` builds every kernel of a source and reports registers, spills, shared memory and matrix
instructions.
"""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from cleave.codegen import triton as emitter
from cleave.codegen.source import Argument, Entry, Source
from cleave.errors import BuildError, Infeasible, Invalid
from cleave.runtime import cache
from cleave.runtime.cubin import needs

MATRIX = "wgmma.mma_async"
_MODULES: dict[str, ModuleType] = {}


def load_module(source: Source) -> ModuleType:
    """The module of a generated source, imported once per process from a file in the cache."""
    key = cache.key_of({"source": source.text})
    if key not in _MODULES:
        path = cache.fetch(key, ".py", lambda target: _write(target, source.text))
        spec = importlib.util.spec_from_file_location(f"cleave_{key}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _MODULES.setdefault(key, module)
    return _MODULES[key]


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def is_interpreted(module: ModuleType, source: Source) -> bool:
    """Whether the functions of a module run in Triton's interpreter."""
    from triton.runtime.interpreter import InterpretedFunction

    return any(isinstance(getattr(module, e.function), InterpretedFunction) for e in source.entries)


ASSEMBLY: Mapping[str, Callable[[Any], Any]] = {"tanh.approx.f32": np.tanh}
"""What the instructions compute that `codegen.triton_maps` writes in assembly, each of one float32."""


@functools.cache
def mend_interpreter() -> None:
    """Make Triton's interpreter fit for generated modules. It reduces by a function it does not know one
    element at a time, hundreds of times slower than NumPy (whose `max` passes NaN on as ours do); it
    spreads the scalar result of a comparison over a block as a number of the compared type; and it knows no
    assembly, of which generated modules have the instructions in `ASSEMBLY`."""
    from triton.runtime.interpreter import InterpreterBuilder, ReduceOps, TensorHandle

    known = {"larger": np.max, "smaller": np.min, "times": np.prod}
    slow, spread = ReduceOps.generic_reduce, InterpreterBuilder.create_splat

    def generic_reduce(self: Any, values: Any) -> Any:
        quick = known.get(getattr(getattr(self.combine_fn, "fn", None), "__name__", ""))
        if quick is None or len(values) != 1:
            return slow(self, values)
        data = quick(values[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
        return [self.to_tensor(data, values[0].dtype)]

    def create_splat(self: Any, kind: Any, value: Any) -> Any:
        if value.data.dtype != np.bool_:
            return spread(self, kind, value)
        return TensorHandle(np.full(kind.shape, value.data.reshape(-1)[0]), value.dtype.scalar)

    def create_inline_asm(self: Any, text: str, constraints: str, values: Any, *_: Any) -> Any:
        (value,) = values
        with np.errstate(all="ignore"):
            data = ASSEMBLY[text.split()[0]](value.data)
        return SimpleNamespace(get_result=lambda _: TensorHandle(data, value.dtype.scalar))

    InterpreterBuilder.create_inline_asm = create_inline_asm  # pyright: ignore[reportAttributeAccessIssue]
    ReduceOps.generic_reduce = generic_reduce  # pyright: ignore[reportAttributeAccessIssue]
    InterpreterBuilder.create_splat = create_splat  # pyright: ignore[reportAttributeAccessIssue]


def capability_here() -> int:
    """The capability of the GPU at hand, such as 90. `Invalid` if there is none."""
    import torch

    if not torch.cuda.is_available():
        raise Invalid("no NVIDIA GPU is available", hint="target interpret runs the kernels on the CPU")
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor


def starts_early(capability: int) -> bool:
    """Whether a kernel may start before the one before it has ended."""
    return capability >= 90


@functools.cache
def takes_groups(capability: int) -> bool:
    """Whether a GPU, and Triton, take kernels with warp groups."""
    if capability // 10 != 9:
        return False
    return importlib.util.find_spec("triton.experimental.gluon.nvidia.hopper") is not None


def options_of(entry: Entry) -> dict[str, Any]:
    """How Triton compiles a kernel. Products and sums are not fused: `x*c - max(x*c)` is 0 at the maximum."""
    wishes = {"num_warps": entry.warps, "num_stages": entry.stages, "enable_fp_fusion": False}
    return {**wishes, "launch_pdl": True} if entry.early else wishes


@dataclass(frozen=True, slots=True)
class Report:
    """What a kernel compiles to: `registers` per thread, `spills` in bytes of stack per thread, `shared`
    bytes per block, and how many warp-group matrix instructions it has."""

    kernel: str
    registers: int
    spills: int
    shared: int
    wgmma: int


def compile_for(source: Source, capability: int = 90) -> tuple[Report, ...]:
    """What every kernel compiles to for a GPU of this capability (`kernels_for`)."""
    return tuple(report_of(name, kernel) for name, kernel in kernels_for(source, capability))


def kernels_for(source: Source, capability: int = 90) -> list[tuple[str, Any]]:
    """The names of all kernels and Triton's, compiled for a GPU of this capability, which need not be there:
    as a call with dense tensors, aligned to 16 bytes, and sizes that are multiples of 16. `BuildError` if
    Triton refuses."""
    module = load_module(source)
    if is_interpreted(module, source):
        raise BuildError("triton was imported with TRITON_INTERPRET=1 and compiles nothing")
    return [(e.kernel, _compiled(getattr(module, e.function), e, capability)) for e in source.entries]


_POINTERS = {
    "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "i64": "i64", "i32": "i32", "i16": "i16",
    "i8": "i8", "u8": "u8", "bool": "i1",
}  # fmt: skip


def _compiled(function: Any, entry: Entry, capability: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, constants, attributes = _signature(function, entry)
    if entry.groups:
        from triton.experimental.gluon._runtime import GluonASTSource as ASTSource
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    with refusing(entry):
        return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options_of(entry))


FEW_REGISTERS = "Insufficient registers"
"""How the assembler says it."""


@contextmanager
def refusing(entry: Entry) -> Generator[None, None, None]:
    """What Triton refuses is a `BuildError`; `Infeasible` where a block would need more of the device than
    there is, so that another schedule may do."""
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    try:
        yield
    except OutOfResources as error:
        raise Infeasible(f"kernel {entry.kernel}: {error}") from error
    except (CompilationError, PTXASError, RuntimeError) as error:
        if FEW_REGISTERS in str(error):
            raise Infeasible(f"kernel {entry.kernel} needs more registers than threads can have") from error
        raise BuildError(f"Triton refuses kernel {entry.kernel}: {error}") from error


def compile_call(function: Any, entry: Entry, arguments: Sequence[Any], blocks: int) -> Any:
    """Triton's kernel for a call with these arguments, which may be without memory; nothing is started."""
    with refusing(entry):
        kernel = function.warmup(*arguments, grid=(blocks,), **options_of(entry))
    return kernel.result() if hasattr(kernel, "result") else kernel


def _signature(function: Any, entry: Entry) -> tuple[dict[str, str], dict[Any, Any], dict[Any, Any]]:
    """Types, constants and alignment of the parameters in a call with dense, aligned tensors."""
    import triton.language as tl

    last: dict[str, int] = {}
    for argument in entry.arguments:
        if argument.kind == "stride":
            last[argument.tensor] = max(last.get(argument.tensor, 0), argument.axis)
    signature: dict[str, str] = {}
    constants: dict[Any, Any] = {}
    attributes: dict[Any, Any] = {}
    loose = set(function.do_not_specialize or ())
    for place, argument in enumerate(entry.arguments):
        name = argument.name
        typed = function.params[place].annotation_type
        if argument.kind == "pointer":
            signature[name] = "*" + _POINTERS[argument.dtype]
        elif argument.kind == "counter":
            signature[name] = "*i32"
        elif argument.kind == "descriptor":
            layout = f",{shared_layout(argument)}" if entry.groups else ""
            # As Triton writes it for a call: what is compiled here is then found there.
            signature[name] = f"tensordesc<{_POINTERS[argument.dtype]}{list(argument.block)}{layout}>"
            continue
        elif argument.kind == "stride" and not typed and last[argument.tensor] == argument.axis:
            signature[name] = "constexpr"
            constants[(place,)] = 1
        else:
            signature[name] = typed or "i32"
        if signature[name] != "constexpr" and argument.kind != "scalar" and name not in loose:
            attributes[(place,)] = [["tt.divisibility", 16]]
    if emitter.takes_index(entry.arguments):
        signature["INDEX"] = "constexpr"
        constants[(len(entry.arguments),)] = tl.int32
    return signature, constants, attributes


def shared_layout(argument: Argument) -> Any:
    """The layout in shared memory of a descriptor's tiles, for a kernel with warp groups."""
    from triton.experimental.gluon import language as gl

    names = {"f32": gl.float32, "f16": gl.float16, "bf16": gl.bfloat16, "i32": gl.int32, "i16": gl.int16}
    names |= {"i8": gl.int8, "u8": gl.uint8}
    make: Any = gl.NVMMASharedLayout.get_default_for
    return make(list(argument.block), names[argument.dtype])


def report_of(name: str, kernel: Any) -> Report:
    """What Triton's kernel needs."""
    registers, stack = needs(kernel.asm["cubin"]) or _told(kernel)
    return Report(name, registers, stack, int(kernel.metadata.shared), kernel.asm["ptx"].count(MATRIX))


def _told(kernel: Any) -> tuple[int, int]:
    """Registers and stack as NVIDIA's program tells them."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        usage = _output([str(tools / "cuobjdump"), "-res-usage", str(path)])
    words = dict(
        word.split(":", 1) for word in usage.split() if ":" in word and word.split(":", 1)[1].isdigit()
    )
    return int(words["REG"]), int(words["STACK"]) + int(words.get("LOCAL", 0))


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name} failed: {done.stderr.strip()}")
    return done.stdout
