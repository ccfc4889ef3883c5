"""Generated Triton modules: importing them, and compiling them for a GPU that need not be there.

`compile_for` builds every kernel of a source and reports registers, spills, shared memory and matrix
instructions.
"""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from cleave.codegen import triton as emitter
from cleave.codegen.source import Entry, Source
from cleave.errors import BuildError
from cleave.runtime import cache

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


@functools.cache
def mend_interpreter() -> None:
    """Make Triton's interpreter fit for generated modules. It reduces by a function it does not know one
    element at a time, hundreds of times slower than NumPy (whose `max` passes NaN on as ours do); and it
    spreads the scalar result of a comparison over a block as a number of the compared type."""
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

    ReduceOps.generic_reduce = generic_reduce  # pyright: ignore[reportAttributeAccessIssue]
    InterpreterBuilder.create_splat = create_splat  # pyright: ignore[reportAttributeAccessIssue]


def starts_early(capability: tuple[int, int]) -> bool:
    """Whether a kernel may start before the one before it has ended."""
    return capability >= (9, 0)


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
    """Compile every kernel for a GPU of this capability, which need not be there: as a call with dense
    tensors, aligned to 16 bytes, and sizes that are multiples of 16. `BuildError` if Triton refuses."""
    module = load_module(source)
    if is_interpreted(module, source):
        raise BuildError("triton was imported with TRITON_INTERPRET=1 and compiles nothing")
    return tuple(_compiled(getattr(module, entry.function), entry, capability) for entry in source.entries)


_POINTERS = {
    "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "i64": "i64", "i32": "i32", "i16": "i16",
    "i8": "i8", "u8": "u8", "bool": "i1",
}  # fmt: skip


def _compiled(function: Any, entry: Entry, capability: int) -> Report:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    signature, constants, attributes = _signature(function, entry)
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    try:
        kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options_of(entry))
    except (CompilationError, OutOfResources, PTXASError, RuntimeError) as error:
        raise BuildError(f"Triton refuses kernel {entry.kernel}: {error}") from error
    return _report(entry.kernel, kernel)


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
        elif argument.kind == "descriptor":
            signature[name] = f"tensordesc<{_POINTERS[argument.dtype]}{list(argument.block)}>"
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


def _report(name: str, kernel: Any) -> Report:
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(kernel.asm["cubin"])
        usage = _output([str(tools / "cuobjdump"), "-res-usage", str(path)])
        code = _output([str(tools / "nvdisasm"), "-c", str(path)])
    words = dict(
        word.split(":", 1) for word in usage.split() if ":" in word and word.split(":", 1)[1].isdigit()
    )
    return Report(
        name,
        int(words["REG"]),
        int(words["STACK"]) + int(words.get("LOCAL", 0)),
        int(kernel.metadata.shared),
        code.count("HGMMA"),
    )


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{Path(command[0]).name} failed: {done.stderr.strip()}")
    return done.stdout
