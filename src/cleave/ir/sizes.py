"""From the shapes of the arguments to the sizes of the dims.

An axis of a caller's tensor is a product of dims, and atoms may follow from others (`Program.sizes`), so
this solves small equations: every equation with one unknown is used until nothing more follows. What does
not fit raises `Invalid` with the argument, the axis, the expected and the actual size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from cleave.errors import Invalid
from cleave.ir.dims import Atom, Dim, Extent, Union, atoms_of, size_of
from cleave.ir.ops import Input, Scalar
from cleave.ir.program import Program

MOST_SIZE = 2**40
"""The most elements that an axis may have: no memory holds more, and products of a few would pass 64 bits."""


def check_size(size: int, whose: str) -> None:
    """`Invalid` for a size that a user gives and no axis can have; `whose` begins the message."""
    if size < 0:
        raise Invalid(f"{whose}: the size {_digits(size)} is negative", hint="a size is a count of elements")
    if size > MOST_SIZE:
        hint = f"a size is at most 2^40 = {MOST_SIZE}"
        raise Invalid(f"{whose}: no axis has the size {_digits(size)}", hint=hint)


def read_size(digits: str, whose: str) -> int:
    """The size that a user writes in decimal digits; `Invalid` as of `check_size`."""
    plain = digits.lstrip("0") or "0"
    size = int(plain[:30])  # Python refuses to read thousands of digits; of these many none is a size
    check_size(size, whose)
    return size


def _digits(size: int) -> str:
    return str(size) if abs(size) < 10**24 else f"of more than {10**24}"


def infer_sizes(
    program: Program, shapes: Mapping[str, tuple[int, ...]], known: Mapping[Dim, int] | None = None
) -> dict[Dim, int]:
    """The size of every atom of the program, for the shapes of its tensors by name.

    `known` gives sizes that do not follow from the shapes. Raises `Invalid` if a shape contradicts the
    program, the other shapes or `known`, and if the size of an atom does not follow."""
    solver = _Solver(program)
    for dim, value in (known or {}).items():
        solver.learn(dim, value, "the given sizes")
    for atom, value in program.sizes:
        if isinstance(value, int):
            solver.learn(atom, value, f"program {program.name}")
    solver.axes = _axes(program, shapes)
    while solver.advance():
        pass
    solver.check()
    return solver.sizes


@dataclass(frozen=True, slots=True)
class _Axis:
    """An axis of an argument, and its size in this call."""

    argument: str
    number: int
    group: tuple[Dim, ...]
    size: int

    def __str__(self) -> str:
        return f"argument {self.argument}, axis {self.number}"

    @property
    def product(self) -> str:
        return "*".join(map(str, self.group)) or "1"


def _axes(program: Program, shapes: Mapping[str, tuple[int, ...]]) -> list[_Axis]:
    found: list[_Axis] = []
    for node in program.inputs:
        if not isinstance(node.op, Input):
            continue
        name, layout = node.op.name, node.op.layout
        if name not in shapes:
            raise Invalid(f"there is no value for argument {name}", where=f"program {program.name}")
        shape = shapes[name]
        if len(shape) != len(layout):
            axes = ", ".join("*".join(map(str, group)) or "1" for group in layout)
            what = f"argument {name} has {len(shape)} axes (shape {tuple(shape)}), expected {len(layout)}: "
            raise Invalid(f"{what}[{axes}]", where=f"program {program.name}")
        found += [
            _Axis(name, number, group, int(size))
            for number, (group, size) in enumerate(zip(layout, shape, strict=True))
        ]
    names = {node.op.name for node in program.inputs if isinstance(node.op, Input | Scalar)}
    for name in shapes:
        if name not in names:
            raise Invalid(f"there is no argument {name}; the arguments are {', '.join(sorted(names))}")
    return found


@dataclass(slots=True)
class _Solver:
    """What is known of the sizes so far, and from where."""

    program: Program
    sizes: dict[Dim, int] = field(default_factory=dict[Dim, int])
    origins: dict[Dim, str] = field(default_factory=dict[Dim, str])
    axes: list[_Axis] = field(default_factory=list[_Axis])

    def learn(self, dim: Dim, value: int, origin: str) -> None:
        """Take note of a size; `Invalid` if it is another than is known."""
        if value < 0:
            raise Invalid(f"size {dim} would be {value}", where=origin, hint="the arguments are too small")
        before = self.sizes.setdefault(dim, value)
        self.origins.setdefault(dim, origin)
        if before != value:
            what = f"size {dim} is {value} by {origin}, and {before} by {self.origins[dim]}"
            raise Invalid(what, where=self._place)

    def value(self, dim: Dim) -> int | None:
        """The size of a dim, if it is known."""
        try:
            return size_of(dim, self.sizes)
        except KeyError:
            return None

    def advance(self) -> bool:
        """Use every equation with one unknown; whether something followed."""
        before = len(self.sizes)
        for axis in self.axes:
            self._use_axis(axis)
        for atom, value in self.program.sizes:
            if isinstance(value, Extent):
                self._use_extent(atom, value)
        if len(self.sizes) == before:
            self._use_nothing()
        return len(self.sizes) > before

    def _use_axis(self, axis: _Axis) -> None:
        unknown = [dim for dim in axis.group if self.value(dim) is None]
        known = math.prod(self.value(dim) or 0 for dim in axis.group if dim not in unknown)
        if not unknown or known == 0:
            if axis.size != known:
                raise self._misfit(axis, str(known))
        elif axis.size % known:
            raise self._misfit(axis, f"a multiple of {known}")
        elif len(unknown) == 1:
            self._use_dim(axis, unknown[0], axis.size // known)

    def _use_dim(self, axis: _Axis, dim: Dim, size: int) -> None:
        """A dim of an axis has this size: learn the one atom in it that is not known."""
        if not isinstance(dim, Union):
            self.learn(dim, size, str(axis))
            return
        atoms = atoms_of(dim)
        missing = [a for a in atoms if a not in self.sizes]
        rest = size - sum(self.sizes[a] for a in atoms if a in self.sizes)
        if rest < 0:
            raise self._misfit(axis, f"at least {size - rest}")
        if len(set(missing)) == 1:
            if rest % len(missing):
                raise self._misfit(axis, f"{size - rest} and a multiple of {len(missing)}")
            self.learn(missing[0], rest // len(missing), str(axis))

    def _use_extent(self, atom: Atom, value: Extent) -> None:
        """Solve `0 = value - atom` for the one dim that is not known."""
        equation = value - Extent(0, ((atom, 1),))
        unknown = [(dim, c) for dim, c in equation.terms if self.value(dim) is None]
        rest = equation.const + sum(c * (self.value(dim) or 0) for dim, c in equation.terms)
        origin = f"{atom} = {value}"
        if len(unknown) == 1 and isinstance(unknown[0][0], Atom):
            dim, factor = unknown[0]
            if rest % factor:
                raise Invalid(f"no size {dim} fits {origin}", where=self._place, hint=self._why(equation))
            self.learn(dim, -rest // factor, origin)
        elif not unknown and rest:
            what = f"size {atom} is {self.sizes[atom]}, expected {self.sizes[atom] + rest} by {origin}"
            raise Invalid(what, where=self._place, hint=self._why(equation))

    def _use_nothing(self) -> None:
        """Where a product is 0 whatever a dim in it is, the dim may be anything: take 1."""
        for axis in self.axes:
            for dim in axis.group:
                if self.value(dim) is None and any(self.value(other) == 0 for other in axis.group):
                    for atom in atoms_of(dim):
                        if atom not in self.sizes:
                            self.learn(atom, 1, str(axis))
                            return

    def check(self) -> None:
        """`Invalid` unless every atom of the program has a size."""
        for atom in self.program.dims:
            if atom not in self.sizes:
                shared = [axis for axis in self.axes if atom in [a for d in axis.group for a in atoms_of(d)]]
                hint = f"{shared[0]} only tells {shared[0].product} = {shared[0].size}" if shared else ""
                what = f"the size of {atom} does not follow from the arguments"
                raise Invalid(what, where=self._place, hint=hint)

    def _misfit(self, axis: _Axis, expected: str) -> Invalid:
        what = f"argument {axis.argument} has size {axis.size} on axis {axis.number} ({axis.product}), "
        return Invalid(what + f"expected {expected}", where=self._place, hint=self._why(axis.group))

    def _why(self, dims: Extent | tuple[Dim, ...]) -> str:
        """Where the sizes of some dims come from."""
        listed = tuple(d for d, _ in dims.terms) if isinstance(dims, Extent) else dims
        known = dict.fromkeys(a for dim in listed for a in (dim, *atoms_of(dim)) if a in self.sizes)
        return "; ".join(f"{d} = {self.sizes[d]} by {self.origins[d]}" for d in known)

    @property
    def _place(self) -> str:
        return f"program {self.program.name}"
