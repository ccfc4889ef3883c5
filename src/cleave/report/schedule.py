"""What the scheduler chose, as text: an outline of a tile program that fits on one screen, its tile maps, its
launches and workspaces, what the cost model says, and how it differs from others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from cleave.ir.dims import Dim, Parts
from cleave.ir.lexis import dim_text
from cleave.pipeline import TARGETS, Plan
from cleave.schedule.cost import SPECIAL, Cost
from cleave.schedule.machine import width
from cleave.schedule.maps import print_maps
from cleave.schedule.select import Ranked, choose_parts
from cleave.schedule.text import KernelText
from cleave.schedule.tiles import (
    Carry,
    Compute,
    ContractTile,
    Kernel,
    Load,
    Loop,
    ReduceTile,
    Statement,
    Store,
    Tensor,
    TileProgram,
)
from cleave.schedule.walks import loops_of

WIDE = 110
"""Columns that a line may take."""


def sizes_text(sizes: Mapping[Dim, int]) -> str:
    """`S=512, T=512`."""
    return ", ".join(f"{dim}={value}" for dim, value in sizes.items())


def dynamic_text(plan: Plan, point: Mapping[Dim, int]) -> str:
    """The sizes of the dynamic dims at a representative point."""
    return sizes_text({a: point[a] for a in plan.program.dynamic}) or "its only sizes"


def points_of(plan: Plan, variant: Ranked) -> list[Mapping[Dim, int]]:
    """The representative sizes at which a variant is the best."""
    pairs = zip(plan.representatives, plan.ranked, strict=True)
    return [point for point, ranked in pairs if ranked[0].tiles == variant.tiles]


def variant_text(plan: Plan, variant: Ranked) -> str:
    """Where a variant comes from, its launches and memory, its modelled cost, and its outline."""
    points = points_of(plan, variant)
    best = "; ".join(dynamic_text(plan, p) for p in points) or "sizes above the limits of the others"
    lines = [f"best of those considered at {best}", *facts(variant.tiles)]
    for dim, count in parts_at(plan, variant):
        lines.append(f"parts of {dim}: {count}")
    for point in points[:1]:
        lines.append(f"modelled at {dynamic_text(plan, point)}: {cost_text(variant.cost)}")
    return "\n".join([*lines, "", outline(variant.tiles)])


def facts(tiles: TileProgram) -> list[str]:
    """Launches, workspace bytes as a formula, limits."""
    launches = len(tiles.kernels)
    lines = [f"{launches} {'launch' if launches == 1 else 'launches'} a call"]
    if tiles.workspaces:
        each = ", ".join(f"{t.name} {bytes_text(t)}" for t in tiles.workspaces)
        lines.append(f"workspace bytes: {each}")
    else:
        lines.append("no workspace")
    if tiles.limits:
        lines.append("only where " + ", ".join(f"{atom.name} <= {limit}" for atom, limit in tiles.limits))
    return lines


def bytes_text(tensor: Tensor) -> str:
    """The bytes of a tensor as a formula in sizes and parts: `4*parts(T)*S`."""
    dims = [dim_text(dim) for group in tensor.layout for dim in group]
    return "*".join([str(width(tensor.dtype)), *(f"({d})" if "+" in d else d for d in dims)])


def parts_at(plan: Plan, variant: Ranked) -> Iterator[tuple[str, str]]:
    """For each split dim, how many parts the launcher would take at each representative size."""
    machine = TARGETS[plan.target]
    for dim in variant.tiles.splits:
        counts = [
            f"{choose_parts(variant.tiles, point, machine).get(dim, 1)} at {dynamic_text(plan, point)}"
            for point in plan.representatives
        ]
        yield dim_text(dim), "; ".join(counts)


def cost_text(cost: Cost) -> str:
    """The cost model's numbers, rounded for reading."""
    text = (
        f"{amount(cost.seconds)}s, {amount(cost.flops)} operations in products, "
        f"{amount(cost.specials)} exponentials and quotients, {amount(cost.vectors)} other operations, "
        f"{amount(cost.memory)}B from memory, {cost.blocks} blocks"
    )
    return text.replace("  ", " ")


def amount(value: float) -> str:
    """Three digits and a unit prefix: `4.34 m`, `313 M`."""
    if not value:
        return "0 "
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m")):
        if value >= scale:
            return f"{value / scale:.3g} {prefix}"
    return f"{value * 1e6:.3g} µ"


# ---------------------------------------------------------------- outline


def outline(tiles: TileProgram) -> str:
    """A tile program without its pointwise statements: kernels, grids, loops, and what is loaded,
    multiplied, reduced, carried and stored at each level."""
    return "\n".join(line for kernel in tiles.kernels for line in _Outline(kernel).lines())


class _Outline:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.text = KernelText(kernel.name, dict(kernel.names))

    def lines(self) -> list[str]:
        kernel = self.kernel
        axes = ", ".join(f"{self.text.declare(a.index)} by {a.tile}" for a in kernel.grid) or "one block"
        found = [f"kernel {kernel.name}: blocks of {axes}", f"  {blocks_text(kernel)} blocks in parallel"]
        if kernel.whole:
            whole = ", ".join(f"{self.text.declare(w.index)}" for w in kernel.whole)
            found.append(f"  in full in each block: {whole}")
        return [*found, *(f"  {line}" for line in self.body(kernel.body))]

    def body(self, body: Sequence[Statement]) -> list[str]:
        found: list[str] = []
        for is_loop, group in groupby(body, lambda s: isinstance(s, Loop)):
            statements = list(group)
            if is_loop:
                for loop in statements:
                    assert isinstance(loop, Loop)
                    found += [self.head(loop), *(f"  {line}" for line in self.body(loop.body))]
            else:
                found += self.straight(statements)
        return found

    def head(self, loop: Loop) -> str:
        start, stop = self.text.bound(loop.start), self.text.bound(loop.stop)
        masks = "full tiles, no masks" if loop.exact else "masked"
        return f"for {self.text.declare(loop.index)} by {loop.tile} from {start} to {stop} ({masks})"

    def straight(self, statements: Sequence[Statement]) -> list[str]:
        """A stretch of statements without loops, by kind."""
        kinds: dict[str, list[str]] = {}
        pointwise = special = 0
        for statement in statements:
            match statement:
                case Carry(out, axes):
                    kinds.setdefault("carry", []).append(self.text.axes(out, axes))
                case Load(_, _, _, tensor, terms):
                    kinds.setdefault("load", []).append(f"{tensor}[{self.terms(terms)}]")
                case ContractTile(out, axes, _, over, args):
                    product = " * ".join(args)
                    text = f"{self.text.axes(out, axes)} = sum[{self.indices(over)}] {product}"
                    kinds.setdefault("multiply", []).append(text)
                case ReduceTile(out, axes, _, kind, over, arg):
                    text = f"{self.text.axes(out, axes)} = {kind}[{self.indices(over)}] {arg}"
                    kinds.setdefault("reduce", []).append(text)
                case Store(tensor, terms, value):
                    kinds.setdefault("store", []).append(f"{tensor}[{self.terms(terms)}] = {value}")
                case Compute(_, _, _, fn):
                    pointwise += 1
                    special += fn in SPECIAL
                case _:
                    pass
        found: list[str] = []
        for kind in ("carry", "load", "multiply", "reduce"):
            found += _filled(kind, kinds.get(kind, []))
        if pointwise:
            note = f", {special} of them exp, div or the like" if special else ""
            found.append(f"compute {pointwise} pointwise{note}")
        return [*found, *_filled("store", kinds.get("store", []))]

    def terms(self, terms: Sequence[object]) -> str:
        return ", ".join(self.text.term(t) for t in terms)  # pyright: ignore[reportArgumentType]

    def indices(self, indices: Sequence[object]) -> str:
        return ", ".join(self.text.index(i) for i in indices)  # pyright: ignore[reportArgumentType]


def _filled(word: str, items: Sequence[str]) -> list[str]:
    """Items after a word, on as many lines as they need."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(item) + 2 <= WIDE:
            lines[-1] += f"; {item}"
        else:
            lines.append(f"{word} {item}")
    return lines


def blocks_text(kernel: Kernel) -> str:
    """The number of blocks as a formula: `KV*N*ceil(S/64)`."""
    factors = [
        dim_text(a.index.dim) if a.tile == 1 else f"ceil({dim_text(a.index.dim)}/{a.tile})"
        for a in kernel.grid
    ]
    return "*".join(factors) or "1"


def maps_text(tiles: TileProgram) -> str:
    """The tile maps of all kernels."""
    texts: list[str] = []
    for kernel in tiles.kernels:
        texts.append(f"kernel {kernel.name}\n{print_maps(kernel).rstrip()}")
    return "\n".join(texts)


# ---------------------------------------------------------------- comparisons


def tiles_words(tiles: TileProgram) -> str:
    """What tells a tile program from its neighbours: tiles of the grid and of the loops, splits, limits."""
    words: list[str] = []
    for kernel in tiles.kernels:
        names = dict(kernel.names)
        grid = " ".join(
            f"{names[a.index]}:{a.tile}" for a in kernel.grid if not isinstance(a.index.dim, Parts)
        )
        loops = dict.fromkeys(f"{names[x.index]}:{x.tile}" for x in loops_of(kernel.body))
        words.append(f"grid {grid or '1'}" + (f" loops {' '.join(loops)}" if loops else ""))
    split = [f"split over {dim_text(d)}" for d in tiles.splits]
    limits = [f"{atom.name} <= {limit}" for atom, limit in tiles.limits]
    return ", ".join([" then ".join(words), *split, *limits])


def others_text(plan: Plan) -> str:
    """For each representative size, the tile programs that were considered and their modelled time
    relative to the best one."""
    lines: list[str] = []
    for point, ranked in zip(plan.representatives, plan.ranked, strict=True):
        lines.append(f"at {dynamic_text(plan, point)}:")
        best = ranked[0].cost.seconds
        for number, other in enumerate(ranked):
            ratio = "chosen" if number == 0 else f"{other.cost.seconds / best if best else 1.0:.2f}x"
            lines.append(f"  {ratio:>6} {other.candidate.form}: {tiles_words(other.tiles)}")
    return "\n".join(lines)
