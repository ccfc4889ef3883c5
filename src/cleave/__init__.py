"""Cleave: a tensor-program compiler. The names below load what they need on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cleave.version import VERSION as __version__

if TYPE_CHECKING:
    from cleave.algebra.proof import Proof
    from cleave.errors import (
        Bug,
        BuildError,
        CallError,
        CleaveError,
        Infeasible,
        Invalid,
        ParseError,
        Unsupported,
    )
    from cleave.frontend.files import load, program
    from cleave.frontend.jit import Jit, compile, jit  # noqa: A004
    from cleave.frontend.proving import prove
    from cleave.frontend.scan import scan
    from cleave.frontend.threefry import threefry2x32, uniform

_WHERE = {
    "jit": "frontend.jit", "compile": "frontend.jit", "Jit": "frontend.jit", "program": "frontend.files",
    "load": "frontend.files", "prove": "frontend.proving", "Proof": "algebra.proof", "scan": "frontend.scan",
    "threefry2x32": "frontend.threefry", "uniform": "frontend.threefry",
    "CleaveError": "errors", "Unsupported": "errors", "Invalid": "errors", "CallError": "errors",
    "ParseError": "errors", "BuildError": "errors", "Infeasible": "errors", "Bug": "errors",
}  # fmt: skip

__all__ = [
    "Bug", "BuildError", "CallError", "CleaveError", "Infeasible", "Invalid", "Jit", "ParseError", "Proof",
    "Unsupported", "__version__", "compile", "jit", "load", "program", "prove", "scan", "threefry2x32",
    "uniform",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'cleave' has no attribute {name!r}")
    return getattr(importlib.import_module(f"cleave.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
