"""C++ source to callable functions: the machine's compiler, one call, a shared object, ctypes.

`build(source)` compiles through the cache and returns the functions by name. The compiler is the `compiler`
setting, else `$CXX`, else g++ or clang++. OpenMP's run time is the one that torch has loaded already, as
both bear the same name.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cleave.codegen import source as codegen_source
from cleave.codegen.source import Argument, Source
from cleave.errors import BuildError
from cleave.knobs import knobs
from cleave.runtime import cache
from cleave.runtime.compilers import run_compiler

FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-fopenmp", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-fwrapv", "-fno-tree-sink", "-fno-thread-jumps", "-fPIC", "-shared", "-w",
)  # fmt: skip
"""Nothing is moved into a branch that only needs it there (`-fno-tree-sink`), and no code is made twice for
the two values of a bool (`-fno-thread-jumps`): selects would become control flow, which is not vectorised."""
SANITIZE = ("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
INCLUDE = Path(codegen_source.__file__).parent
SHOWN_LINES = 12

C_TYPES: dict[str, type[ctypes._SimpleCData]] = {  # pyright: ignore[reportPrivateUsage]
    "f64": ctypes.c_double, "f32": ctypes.c_float, "f16": ctypes.c_float, "bf16": ctypes.c_float,
    "i64": ctypes.c_int64, "i32": ctypes.c_int32, "i16": ctypes.c_int16, "i8": ctypes.c_int8,
    "u8": ctypes.c_uint8, "bool": ctypes.c_bool,
}  # fmt: skip

Function = Callable[..., int]


@dataclass(frozen=True, slots=True)
class Library:
    """A built source: its file and its functions by name. Each returns 0, or 1 if memory ran out. `bare` are
    the same functions for arguments that `passed` has made ready, at half the cost of a call."""

    path: Path
    functions: dict[str, Function]
    bare: dict[str, Function]


_LIBRARIES: dict[str, Library] = {}
_LOCK = threading.Lock()


def build(source: Source, *, sanitize: bool = False) -> Library:
    """Compile a C++ source, or take it from the cache, and load it. `sanitize` builds with the address and
    undefined-behaviour sanitizers (the process must run with their libraries loaded).

    Raises `BuildError` if there is no compiler, or if it refuses the source."""
    name, *own = compiler()
    command = [name, *FLAGS, *(SANITIZE if sanitize else ()), *own, f"-I{INCLUDE}"]
    key = cache.key_of(
        {
            "source": source.text,
            "flags": shlex.join(command[:-1]),
            "compiler": compiler_version(name),
            "machine": machine(),
        }
    )
    with _LOCK:
        library = _LIBRARIES.get(key)
    if library is None:
        path = cache.fetch(key, ".so", lambda target: _compile(command, source.text, target))
        library = _load(path, source)
        with _LOCK:
            library = _LIBRARIES.setdefault(key, library)
    return library


def compiler() -> list[str]:
    """The compiler's command, with flags of the user's that go before ours in rank. `BuildError` says what to
    install if there is none."""
    wanted = knobs().compiler or os.environ.get("CXX", "")
    if wanted:
        command = shlex.split(wanted)
        if shutil.which(command[0]) is None:
            raise BuildError(
                f"the C++ compiler {command[0]!r} was not found\n"
                "  hint: CLEAVE_COMPILER or CXX names it; unset both to use g++ or clang++"
            )
        return command
    for name in ("g++", "clang++"):
        if shutil.which(name) is not None:
            return [name]
    raise BuildError(
        "no C++ compiler was found (looked for CLEAVE_COMPILER, CXX, g++, clang++)\n"
        "  hint: install one, such as the package g++ or clang, or name one in CLEAVE_COMPILER"
    )


@functools.cache
def compiler_version(name: str) -> str:
    """What a compiler says of itself."""
    done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


@functools.cache
def machine() -> str:
    """What `-march=native` depends on: the processor's architecture, model and features."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("vendor_id", "cpu family", "model", "model name", "flags", "Features", "CPU part")
    found: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in wanted:
            found.setdefault(name.strip(), value.strip())
    return f"{platform.machine()} {found}"


def _compile(command: list[str], text: str, target: Path) -> None:
    full = [*command, "-x", "c++", "-", "-o", str(target)]
    done = run_compiler(full, text)
    if done.returncode:
        output = (done.stderr or done.stdout).strip().splitlines()
        shown = "\n".join(f"  {line}" for line in output[:SHOWN_LINES])
        more = f"\n  ... {len(output) - SHOWN_LINES} more lines" if len(output) > SHOWN_LINES else ""
        raise BuildError(
            f"the C++ compiler failed with exit code {done.returncode}\n  {shlex.join(full)}\n{shown}{more}"
        )


def _load(path: Path, source: Source) -> Library:
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise BuildError(f"the built kernel cannot be loaded: {error}") from error
    functions: dict[str, Function] = {}
    bare: dict[str, Function] = {entry.function: loaded[entry.function] for entry in source.entries}
    for entry in source.entries:
        function = getattr(loaded, entry.function)
        function.argtypes = [_argument_type(a) for a in entry.arguments]
        function.restype = ctypes.c_int
        functions[entry.function] = function
    return Library(path, functions, bare)


def passed(argument: Argument) -> Callable[[float], Any]:
    """Makes the value of an argument ready for `Library.bare`; what is ready may be passed many times."""
    return _argument_type(argument).from_param


def _argument_type(argument: Argument) -> Any:
    if argument.kind == "pointer":
        return ctypes.c_void_p
    return C_TYPES[argument.dtype] if argument.kind == "scalar" else ctypes.c_int64
