"""From a tile program to Triton source: one `@triton.jit` function per kernel, in one Python module.

Every size that the program fixes is a number in the text; the others are parameters, and a function serves
all their values. The grid has one dimension: the program's number is taken apart, the innermost axis first.
`INDEX` is the type of positions, strides and offsets: `tl.int64` where a size passes 2^28 or a tensor's
last element lies 2^31 or more behind its first. The same tile program gives the same text, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cleave.codegen.gluon import emit_kernel
from cleave.codegen.gluon_text import IMPORTS, helpers_for, layouts_for
from cleave.codegen.source import KINDS, Argument, Entry, Source
from cleave.codegen.triton_body import Body
from cleave.codegen.triton_grid import (
    comments_of,
    decode,
    index_names_of,
    longest_last,
    signature,
    takes_index,
    typed_pid,
    typed_strides,
)
from cleave.codegen.triton_maps import HELPERS
from cleave.codegen.triton_merge import close, joined, kept_of
from cleave.codegen.triton_scope import Parameters, Scope
from cleave.codegen.triton_sink import sunk
from cleave.codegen.triton_text import Line, Names, prune, render, words_of
from cleave.codegen.triton_tiles import plan_lanes
from cleave.errors import Invalid
from cleave.schedule.parts import without_borders
from cleave.schedule.tiles import Kernel, TileProgram

PRECISIONS = {"highest": "ieee", "high": "tf32", "medium": "tf32"}
"""`torch.get_float32_matmul_precision()` as the precision of float32 dots."""


def emit(
    tp: TileProgram,
    *,
    precision: str = "highest",
    described: bool = False,
    overlapped: bool = False,
    grouped: bool = False,
    asynchronous: bool | None = None,
) -> Source:
    """The Triton module of a tile program. `precision` is PyTorch's float32 matmul precision: `highest`
    multiplies float32 exactly as float32, `high` and `medium` in TF32. With `described` kernels that ask for
    it load through tensor descriptors, which the caller's tensors must allow; with `overlapped` a kernel's
    blocks start as soon as all of the one before are through their last statement, and wait for its end
    (compute capability 9). Where products are `asynchronous` (if nothing is said, where kernels overlap) a
    tile that something else reads as well is loaded for each. With `grouped` kernels that ask for warp groups
    are written in Gluon (`codegen.gluon`; capability 9 and what descriptors need). Raises `Infeasible` where
    a kernel does not fit Triton's blocks."""
    if precision not in PRECISIONS:
        raise Invalid(f"precision {precision!r}", hint=f"one of {', '.join(PRECISIONS)}")
    functions = Names(HELPERS)
    texts: list[str] = []
    entries: list[Entry] = []
    groups: list[str] = []
    for number, (kernel, closing) in launches_of(tp, grouped and described):
        name = functions.take(kernel.name)
        if grouped and described and kernel.groups:
            text, arguments, goes_on = emit_kernel(tp, kernel, name)
            groups.append(text)
            texts.append(text)
            given = (kernel.name, name, arguments, kernel.grid, 4, kernel.stages)
            uneven = tuple(axis for axis in kernel.grid if axis.index in longest_last(kernel.body))
            entries.append(Entry(*given, groups=kernel.groups, persistent=goes_on, uneven=uneven))
            continue
        early = overlapped and number > 0
        kernel = without_borders(tp, kernel)
        kernel = sunk(kernel) if described and kernel.descriptors else kernel
        manner = _Manner(
            PRECISIONS[precision],
            described and kernel.descriptors,
            early,
            overlapped and number + 1 + (closing is not None) < len(tp.kernels),
            overlapped if asynchronous is None else asynchronous,
        )
        text, arguments = _function(tp, kernel, name, manner, closing)
        texts.append(text)
        warps = 1 << (kernel.warps.bit_length() - 1)  # three groups' twelve are no power of two
        entry = Entry(kernel.name, name, arguments, kernel.grid, warps, kernel.stages, early)
        entries.append(replace(entry, merged=closing is not None))
    return Source("triton", "\n".join([*_preface(tp, texts, groups), *texts]), tuple(entries))


def _preface(tp: TileProgram, texts: Sequence[str], groups: Sequence[str]) -> list[str]:
    """What stands before the kernels of a module: imports, and the functions that they call. `groups` are
    those of the kernels that are written in Gluon."""
    plain = (text for text in texts if text not in groups)
    used = {word for text in plain for line in text.splitlines() for word in words_of(line)}
    helpers = [text for name, text in HELPERS.items() if name in used]
    imports = "import triton\nimport triton.language as tl\n"
    header = f'"""{tp.name}: generated by Cleave from a tile program."""\n\n{imports}'
    if groups:
        header += IMPORTS
        helpers += ["", *layouts_for(groups), *helpers_for(groups)]
    return [header, *helpers]


@dataclass(frozen=True, slots=True)
class _Manner:
    """How a kernel is written: the precision of its float32 dots, whether it loads through descriptors, waits
    for the kernel before, lets the next one start, and whether its products run on (`asynchronous`)."""

    precision: str
    described: bool
    waits: bool
    leads: bool
    asynchronous: bool


def launches_of(tp: TileProgram, grouped: bool) -> Iterator[tuple[int, tuple[Kernel, Kernel | None]]]:
    """The kernels that are launched, by their number, each with the one that is merged into it. Behind a
    kernel with warp groups, where those are `grouped`, there is a launch for what is marked as merged."""
    last = len(tp.kernels) - 1
    merged = [k.merged and not (grouped and tp.kernels[n - 1].groups) for n, k in enumerate(tp.kernels)]
    for number, kernel in enumerate(tp.kernels):
        if not merged[number]:
            follows = number < last and merged[number + 1]
            yield number, (kernel, tp.kernels[number + 1] if follows else None)


def _function(
    tp: TileProgram, kernel: Kernel, name: str, manner: _Manner, closing: Kernel | None
) -> tuple[str, tuple[Argument, ...]]:
    """The text of one kernel with the one that is merged into it, and its parameters."""
    names = Names([*HELPERS, name])
    index_names = index_names_of(kernel, names)
    own, kernel = kernel, joined(kernel, closing)
    params = Parameters(tp, kernel, names)
    params.described = manner.described
    params.asynchronous = manner.asynchronous
    scope = Scope(params, plan_lanes(kernel), index_names, names)
    decode(scope, kernel, kept_of(own, closing))
    if manner.waits:
        scope.lines.append(Line("tl.extra.cuda.gdc_wait()  # for what the kernel before wrote"))
    if closing is None:
        body = Body(manner.precision, kernel.stages - 1, threads=32 * kernel.warps)
        body.write(scope, kernel.body)
    else:
        close(scope, own, closing, manner.precision)
    if manner.leads:  # last: blocks that wait beside this one slow it down
        scope.lines.append(Line("tl.extra.cuda.gdc_launch_dependents()  # the next kernel waits by itself"))
    lines, _ = prune(scope.lines, set())
    body = render(lines)
    words = {word for line in body for word in words_of(line)}
    found = [a for a in params.arguments.values() if a.name in words]
    arguments = tuple(sorted(found, key=lambda a: KINDS.index(a.kind)))
    dynamic = takes_index(arguments)
    body = [*typed_strides(arguments), *typed_pid(body, dynamic, tp)]
    comments = [f"    # {text}" for text in comments_of(kernel, params)]
    head = signature(name, arguments, kernel, params, dynamic)
    return "\n".join(["", *head, *comments, *body, ""]), arguments
