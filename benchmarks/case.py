"""What a benchmark case is: a plain PyTorch function, the sizes it runs at, and how its inputs are made.

A case holds nothing of any implementation but how library attention is called for it (`Attention`), so that
suites stay data and every peer sees the same inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

Sizes = Mapping[str, int]
Tensors = tuple[torch.Tensor, ...]
Function = Callable[..., torch.Tensor | Tensors]


@dataclass(frozen=True)
class Attention:
    """How a library that knows only attention computes a case. `arrange` gives (q, k, v) as [batch, heads,
    rows, depth] from the case's inputs; `restore` gives the case's output from [batch, heads, rows, depth].
    `causal` masks are bottom-right; `window` keys (0: all) end at the query's own; `cap` is the soft cap;
    `lse` says that the log-sum-exp over keys, in this base, is a second output; `sinks` names the place of
    the input that adds one score a head. `prologue` says that `arrange` computes: peers compile it. `latent`
    inputs are those of MLA decoding, (q, kv, q_rope, k_rope), which some libraries take as they are."""

    arrange: Callable[..., Tensors]
    restore: Callable[[torch.Tensor], torch.Tensor]
    scale: float | None = None
    causal: bool = False
    window: int = 0
    cap: float = 0.0
    lse: float = 0.0
    sinks: int | None = None
    prologue: bool = False
    latent: bool = False


@dataclass(frozen=True)
class Case:
    """One subgraph. `inputs` maps each argument to its dims; `points` are the sizes it is timed at, by target
    and phase; `dynamic` dims vary over the points of one compile; `peers` are functions of the same
    arguments that a user might pick instead. `integers` are inputs of whole numbers below a dim's size,
    `dtypes` inputs that keep a dtype of their own, `scale` what an input is multiplied by. `bytes` counts
    what must move if that is not all inputs and outputs once. `independent` dims may be cut into as many
    pieces as the smallest has (in the reference, to bound its memory): outputs are then joined along axis
    `joined`.
    `row` is the number in the suite's list."""

    name: str
    function: Function
    inputs: Mapping[str, Sequence[str]]
    dynamic: tuple[str, ...]
    points: Mapping[tuple[str, str], Sequence[Sizes]]
    peers: Mapping[str, Function] = field(default_factory=dict)
    flops: Callable[[Sizes], float] = lambda sizes: 0.0
    scale: Mapping[str, float] = field(default_factory=dict)
    row: str = ""
    attention: Attention | None = None
    integers: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    bytes: Callable[[Sizes, int], float] | None = None
    independent: tuple[str, ...] = ()
    joined: int = 0
    memory: bool = False
    """Whether the most memory in use during a call is reported."""

    def shape(self, name: str, sizes: Sizes) -> list[int]:
        """The shape of an input."""
        return [int(d) if d.isdigit() else sizes[d] for d in self.inputs[name]]

    def dtype_of(self, name: str, dtype: torch.dtype) -> torch.dtype:
        """The dtype of an input where those that have none of their own have this one."""
        return torch.int64 if name in self.integers else self.dtypes.get(name, dtype)

    def make(self, sizes: Sizes, dtype: torch.dtype, device: str, seed: int) -> Tensors:
        """Random inputs, standard normal; weights (named w...) scaled to keep outputs near 1. Made on the
        device they are for, so a seed gives other values on another kind of device."""
        return tuple(self.one(name, sizes, dtype, device, seed) for name in self.inputs)

    def one(self, name: str, sizes: Sizes, dtype: torch.dtype, device: str, seed: int) -> torch.Tensor:
        """One input; it depends on nothing but its own shape, its name and the seed."""
        number = list(self.inputs).index(name)
        generator = torch.Generator(device=device).manual_seed(1000 * seed + number)
        shape = self.shape(name, sizes)
        if name in self.integers:
            most = sizes[self.integers[name]]
            return torch.randint(most, shape, generator=generator, device=device)
        own = self.dtype_of(name, dtype)
        if own == torch.int8:
            return torch.randint(-127, 128, shape, generator=generator, device=device, dtype=own)
        value = torch.randn(shape, generator=generator, device=device)
        factor = self.scale.get(name, 1.0) / (math.sqrt(shape[0]) if name.startswith("w") else 1.0)
        if factor != 1.0:
            value *= factor
        return value.to(own)

    def key(self, sizes: Sizes) -> tuple[tuple[str, int], ...]:
        """The sizes that a compiled function of this case is fixed to."""
        return tuple(sorted((name, size) for name, size in sizes.items() if name not in self.dynamic))

    @property
    def marks(self) -> dict[str, tuple[str | None, ...]]:
        """The dynamic axes of each input, as `cleave.compile` takes them."""
        return {n: tuple(d if d in self.dynamic else None for d in dims) for n, dims in self.inputs.items()}


def pieces(case: Case, sizes: Sizes, inputs: Sequence[torch.Tensor]) -> list[Tensors]:
    """The inputs cut along the case's independent dims."""
    if not case.independent:
        return [tuple(inputs)]
    count = min(sizes[d] for d in case.independent)
    cut: list[Tensors] = []
    for number in range(count):
        piece: list[torch.Tensor] = []
        for dims, tensor in zip(case.inputs.values(), inputs, strict=True):
            for axis, dim in enumerate(dims):
                if dim in case.independent:
                    step = sizes[dim] // count
                    tensor = tensor.narrow(axis, number * step, step)
            piece.append(tensor)
        cut.append(tuple(piece))
    return cut


def grid(base: Sizes, name: str, values: Sequence[int]) -> list[Sizes]:
    """The same sizes with one of them varied."""
    return [{**base, name: value} for value in values]


def points_of(case: Case, target: str, phases: Sequence[str] | None = None) -> list[tuple[str, Sizes]]:
    """The points of a case in the order of a run: the ends of each phase first, so that a run that is cut
    has seen the extremes."""
    lists = [
        [(phase, sizes) for sizes in sorted(chosen, key=lambda s: sum(map(math.log, s.values())))]
        for (kind, phase), chosen in sorted(case.points.items())
        if kind == target and (not phases or phase in phases)
    ]
    ordered: list[tuple[str, Sizes]] = []
    last = True
    while any(lists):
        for each in lists:
            if each:
                ordered.append(each.pop(-1 if last else 0))
        last = not last
    return ordered
