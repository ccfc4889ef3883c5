"""The judge of the hostile tests: ours against eager and against float64, by the rule of the benchmarks.

`judged(f, *args)` calls a compiled function, its original in PyTorch and the original in float64. It demands
eager's tree, shapes and dtypes; no NaN or infinity where eager has none (with `nan=True`: exactly eager's);
an error within `allowed_error`; and that no input was changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.harness import allowed_error, row_error
from torch.utils import _pytree as pytree

from cleave.frontend.jit import Jit

randn = torch.randn
INF, NAN = float("inf"), float("nan")
HALF = (torch.float16, torch.bfloat16)


def widened(fn: Callable[..., Any], args: Any) -> Any:
    """The function in float64 on the same values; `.float()` inside widens too."""
    wide = pytree.tree_map(
        lambda a: a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a, args
    )
    narrow = torch.Tensor.float
    torch.Tensor.float = torch.Tensor.double
    try:
        return fn(*wide)
    finally:
        torch.Tensor.float = narrow


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def judged(f: Jit, *args: Any, length: int = 0, nan: bool = False) -> Any:
    """One call, judged; returns our result. `length` is the longest reduction (else the largest size of an
    input; more where a row of one value can cancel)."""
    before = [(a, a.clone()) for a in tensors(args)]
    ours = f(*args)
    assert all(same(tensor, copy) for tensor, copy in before), "an input was changed"
    eager = f.fn(*args)
    assert pytree.tree_structure(ours) == pytree.tree_structure(eager)
    exact = tensors(widened(f.fn, args))
    length = length or max((max(a.shape, default=1) for a in tensors(args)), default=1)
    for number, (mine, theirs, ref) in enumerate(zip(tensors(ours), tensors(eager), exact, strict=True)):
        close(mine, theirs, ref, length=length, nan=nan, where=f"output {number}")
    return ours


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal, where a NaN equals a NaN."""
    return a.dtype == b.dtype and a.shape == b.shape and bool(((a == b) | ((a != a) & (b != b))).all())


def close(
    mine: torch.Tensor, theirs: torch.Tensor, ref: torch.Tensor, *, length: int, nan: bool, where: str
) -> None:
    """One tensor by the rule of the benchmarks."""
    assert mine.dtype == theirs.dtype, f"{where}: {mine.dtype}, eager {theirs.dtype}"
    assert mine.shape == theirs.shape == ref.shape, f"{where}: {mine.shape}, eager {theirs.shape}"
    if not theirs.is_floating_point():
        assert torch.equal(mine, theirs), f"{where}: {mine} is not {theirs}"
        return
    odd, eagers = ~torch.isfinite(mine), ~torch.isfinite(theirs)
    more = int((odd & ~eagers).sum())
    assert not more, f"{where}: NaN or inf in {more} places where eager has none"
    assert not (mine.isnan() & ~theirs.isnan()).any(), f"{where}: NaN where eager has an infinity"
    assert not (mine.isinf() & theirs.isinf() & (mine != theirs)).any(), f"{where}: sign of inf"
    if nan:
        assert torch.equal(torch.isnan(mine), torch.isnan(theirs)), f"{where}: not eager's NaN"
        assert torch.equal(odd, eagers), f"{where}: not eager's inf"
    if not mine.numel():
        return
    free = eagers | ~torch.isfinite(ref)
    plain = [torch.where(free, torch.zeros_like(t), t) for t in (mine, theirs, ref)]
    error, own = row_error(plain[0], plain[2]), row_error(plain[1], plain[2])
    limit = allowed_error(own, mine.dtype, length)
    assert error <= limit, f"{where}: error {error:.2e}, eager {own:.2e}, allowed {limit:.2e}"


def all_compiled(f: Jit, count: int = 1) -> None:
    """Everything ran compiled, with at most so many compiles."""
    assert f.fallbacks == (), f.fallbacks
    assert 1 <= f.compile_count <= count, f.compile_count
