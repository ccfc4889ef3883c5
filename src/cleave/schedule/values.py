"""The instance graph: what one kernel computes, before loops are placed and tiles chosen.

A `Value` is a tile over kernel indices and says how it follows from other values; equal values are one
object, so what two nodes share is computed once. A `LoopPlan` is a loop with the states it carries
(`Slot`). Where a value is computed (in which loop, or before all) follows from the indices it depends on
and is found in `placing.py`; tiles are the business of `space.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from cleave.errors import Bug
from cleave.ir.dims import Dim, Extent, Index, Inject, Join, Lookup, Term
from cleave.ir.ops import Number, number_key
from cleave.schedule.tiles import Tensor

T = TypeVar("T")
Work = Generator[Any, Any, T]
"""A computation that yields the computations it needs and is sent their results (see `drive`)."""


def drive(work: Work[T]) -> T:
    """Run a computation that recurses by `yield`, to any depth, without Python's stack."""
    stack: list[Work[Any]] = [work]
    result: Any = None
    while stack:
        try:
            request = stack[-1].send(result)
        except StopIteration as stop:
            stack.pop()
            result = stop.value
        else:
            stack.append(request)
            result = None
    return result


# ---------------------------------------------------------------- what a value is


@dataclass(frozen=True, slots=True)
class LoadOf:
    """Elements of a tensor, one term per dim of its layout; lookups name values by `Value.key`."""

    tensor: Tensor
    terms: tuple[Term, ...]
    guarded: bool


@dataclass(frozen=True, slots=True)
class FillOf:
    """A literal."""

    value: Number


@dataclass(frozen=True, slots=True)
class MeasureOf:
    """A size."""

    extent: Extent


@dataclass(frozen=True, slots=True)
class LocateOf:
    """The position of a term."""

    term: Term


@dataclass(frozen=True, slots=True)
class ComputeOf:
    """A pointwise operation of the arguments."""

    fn: str


@dataclass(frozen=True, slots=True)
class ReduceOf:
    """A reduction of the argument over the current spans of indices."""

    kind: str
    over: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class ContractOf:
    """The sum of the product of the arguments over the current spans of indices."""

    over: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class StateOf:
    """A carried tile, as the body of its loop reads it."""

    slot: int


@dataclass(frozen=True, slots=True)
class ResultOf:
    """A carried tile after its loop."""

    slot: int


ValueOp = LoadOf | FillOf | MeasureOf | LocateOf | ComputeOf | ReduceOf | ContractOf | StateOf | ResultOf


@dataclass(eq=False, slots=True)
class Value:
    """A tile over `axes`. `serial` orders values by creation; `label` is a wish for a name."""

    serial: int
    op: ValueOp
    axes: tuple[Index, ...]
    dtype: str
    args: tuple[Value, ...]
    label: str

    @property
    def key(self) -> str:
        """The name by which terms look this value up before it has one."""
        return f"%{self.serial}"


@dataclass(eq=False, slots=True)
class Slot:
    """One carried tile of a loop: its first value, its value after one more piece, and how others see it."""

    number: int
    loop: LoopPlan
    label: str
    axes: tuple[Index, ...]
    dtype: str
    old: Value
    result: Value
    init: Value | None = None
    step: Value | None = None


@dataclass(eq=False, slots=True)
class LoopPlan:
    """A loop over `index`. `mode` is `whole` (over the full dim), `part` (over the block's part, an index
    over `Parts`), `merge` (over the parts) or `map` (each iteration writes its tile of outputs)."""

    index: Index
    mode: str
    part: Index | None = None
    outer: frozenset[Index] = frozenset()
    slots: list[Slot] = field(default_factory=list[Slot])
    sequential: bool = False
    """Whether it is the loop of a scan: its positions are taken one after the other."""
    supports: list[Value | None] = field(default_factory=list["Value | None"])
    """For each thing the loop accumulates: where it may be skipped, or None if nowhere."""


@dataclass(eq=False, slots=True)
class StorePlan:
    """A value that goes to memory."""

    tensor: Tensor
    terms: tuple[Term, ...]
    value: Value
    axes: tuple[Index, ...]


class Graph:
    """All values and loops of a kernel, interned. Deterministic: everything is in order of creation."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.loops: list[LoopPlan] = []
        self.slots: list[Slot] = []
        self.stores: list[StorePlan] = []
        self.whole: dict[Index, None] = {}
        self._known: dict[object, Value] = {}
        self._numbers = 0

    def fresh(self, dim: Dim) -> Index:
        """A new kernel index."""
        index = Index(dim, self._numbers)
        self._numbers += 1
        return index

    def loop_of(self, index: Index) -> LoopPlan | None:
        """The loop that runs over an index, if one does."""
        return next((loop for loop in self.loops if loop.index == index), None)

    def value(
        self,
        op: ValueOp,
        axes: tuple[Index, ...],
        dtype: str,
        args: tuple[Value, ...] = (),
        label: str = "",
    ) -> Value:
        """The value, an existing one if it is known already."""
        literal = number_key(op.value) if isinstance(op, FillOf) else ""
        key = (type(op).__name__, literal or op, frozenset(axes), dtype, tuple(a.serial for a in args))
        found = self._known.get(key)
        if found is None:
            found = Value(len(self.values), op, axes, dtype, args, label)
            self.values.append(found)
            self._known[key] = found
        return found

    def compute(self, fn: str, dtype: str, args: tuple[Value, ...], label: str = "") -> Value:
        """A pointwise operation over the union of its arguments' indices."""
        return self.value(ComputeOf(fn), joined_axes(args), dtype, args, label)

    def slot(self, loop: LoopPlan, label: str, axes: tuple[Index, ...], dtype: str) -> Slot:
        """A new carried tile of a loop; `init` and `step` are set by the caller."""
        number = len(self.slots)
        old = self.value(StateOf(number), axes, dtype, label=label)
        result = self.value(ResultOf(number), axes, dtype, label=label)
        slot = Slot(number, loop, label, axes, dtype, old, result)
        self.slots.append(slot)
        loop.slots.append(slot)
        return slot

    def term_indices(self, value: Term) -> tuple[Index, ...]:
        """The indices a term depends on, in order, those of looked-up values too."""
        found: dict[Index, None] = {}
        for index in ordered_indices(value, lambda key: self.values[int(key[1:])].axes):
            found[index] = None
        return tuple(found)

    def lookups(self, value: Term) -> tuple[Value, ...]:
        """The values that a term looks up, in order."""
        found: dict[Value, None] = {}

        def note(key: str) -> tuple[Index, ...]:
            found[self.values[int(key[1:])]] = None
            return ()

        for _ in ordered_indices(value, note):
            pass
        return tuple(found)


def joined_axes(args: tuple[Value, ...]) -> tuple[Index, ...]:
    """The union of the arguments' indices: in the order of an argument that has them all, else by number."""
    every = {i for a in args for i in a.axes}
    whole = next((a.axes for a in args if len(a.axes) == len(every)), None)
    return whole if whole is not None else tuple(sorted(every, key=lambda i: i.number))


def ordered_indices(value: Term, axes_of: Callable[[str], tuple[Index, ...]]) -> list[Index]:
    """All indices of a term, in order of appearance; `axes_of` gives those of a looked-up value."""
    found: list[Index] = []
    for leaf, _ in value.leaves:
        match leaf:
            case Index():
                found.append(leaf)
            case Lookup(key):
                found += axes_of(key)
            case Inject(_, inner):
                found += ordered_indices(inner, axes_of)
            case Join(part, within):
                found += ordered_indices(part, axes_of) + ordered_indices(within, axes_of)
            case _:
                raise Bug(f"an unresolved term leaf {leaf}")
    return found


def renamed(value: Term, name_of: Callable[[str], str]) -> Term:
    """The term with looked-up values under their final names."""
    from cleave.ir.dims import term

    leaves = [(Lookup(name_of(x.value)) if isinstance(x, Lookup) else x, c) for x, c in value.leaves]
    return term(*leaves, offset=value.offset)
