"""Dims, indices and index terms: how a program names the elements of a tensor.

A *dim* is a size that has a name; an *index* is a variable that runs over a dim; a *term* says which
element of an axis is read. All are frozen values with structural equality (design.md, section 2).

A dim is one of

- `Atom("S")`: a size with a symbol of its own (its value, if known, stands in `Program.sizes`),
- `Union((A, B))`: the disjoint union of dims, what a concatenation makes,
- `Parts(K)` and `Part(K)`: a partition of `K`: how many parts there are, and the range inside one part.
  Parts need not be equal and may be empty: the only law is that their sizes add up to `|K|`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cleave.ir.ops import Access


@dataclass(frozen=True, slots=True)
class Atom:
    """A dim with a symbol of its own."""

    name: str

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Union:
    """The disjoint union of dims, in order: position `|A| + b` of `A | B` is element `b` of `B`."""

    parts: tuple[Dim, ...]

    def __str__(self) -> str:
        return "(" + " | ".join(map(str, self.parts)) + ")"


@dataclass(frozen=True, slots=True)
class Parts:
    """The number of parts of a partition of `of`; `level` tells nested or parallel partitions apart."""

    of: Dim
    level: int = 0

    def __str__(self) -> str:
        return f"parts({self.of})" if not self.level else f"parts({self.of}, {self.level})"


@dataclass(frozen=True, slots=True)
class Part:
    """The range inside one part of a partition of `of`; its size depends on the part."""

    of: Dim
    level: int = 0

    def __str__(self) -> str:
        return f"part({self.of})" if not self.level else f"part({self.of}, {self.level})"


Dim = Atom | Union | Parts | Part


def atoms_of(dim: Dim) -> tuple[Atom, ...]:
    """The atoms a dim is made of, in order, with repetitions."""
    match dim:
        case Atom():
            return (dim,)
        case Union(parts):
            return tuple(atom for part in parts for atom in atoms_of(part))
        case Parts(of, _) | Part(of, _):
            return atoms_of(of)


@dataclass(frozen=True, slots=True)
class Index:
    """A variable over a dim. Inside a node, `number` is its axis (bound indices follow the axes);
    inside a tile program, numbers are unique in the kernel."""

    dim: Dim
    number: int

    def __hash__(self) -> int:
        """Numbers nearly always tell indices apart, and indices are looked up all the time."""
        return self.number

    def __str__(self) -> str:
        return f"{self.dim}#{self.number}"


@dataclass(frozen=True, slots=True)
class Extent:
    """A size as a linear expression `const + sum(c * |dim|)`; `terms` is sorted by the dim's text."""

    const: int = 0
    terms: tuple[tuple[Dim, int], ...] = ()

    def __add__(self, other: Extent) -> Extent:
        return extent(self.const + other.const, *self.terms, *other.terms)

    def __mul__(self, factor: int) -> Extent:
        return extent(self.const * factor, *((d, c * factor) for d, c in self.terms))

    def __neg__(self) -> Extent:
        return self * -1

    def __sub__(self, other: Extent) -> Extent:
        return self + -other

    def at(self, sizes: Mapping[Dim, int]) -> int:
        """The value for bound sizes."""
        return self.const + sum(c * size_of(d, sizes) for d, c in self.terms)

    def __str__(self) -> str:
        return join_signed([(c, str(d)) for d, c in self.terms], self.const)


NO_EXTENT = Extent()


def extent(const: int = 0, *terms: tuple[Dim, int]) -> Extent:
    """An `Extent` in canonical form: equal dims collected, zeros dropped, sorted."""
    total: dict[Dim, int] = {}
    for dim, coefficient in terms:
        total[dim] = total.get(dim, 0) + coefficient
    kept = sorted(((d, c) for d, c in total.items() if c), key=lambda item: str(item[0]))
    return Extent(const, tuple(kept))


def size_of(dim: Dim, sizes: Mapping[Dim, int]) -> int:
    """The size of a dim for bound atoms (and bound parts); `KeyError` names what is not bound."""
    if dim in sizes:
        return sizes[dim]
    if isinstance(dim, Union):
        return sum(size_of(part, sizes) for part in dim.parts)
    raise KeyError(f"size of {dim} is not bound")


def join_signed(terms: list[tuple[int, str]], const: int) -> str:
    """Text of a linear expression: `[(1, "i"), (-2, "j")], 3` becomes `i - 2*j + 3`."""
    text = ""
    for coefficient, name in [*terms, (const, "")]:
        if name == "" and const == 0 and text:
            break
        size = abs(coefficient)
        body = str(size) if not name else name if size == 1 else f"{size}*{name}"
        if text:
            text += f" {'-' if coefficient < 0 else '+'} {body}"
        else:
            text = f"{'-' if coefficient < 0 else ''}{body}"
    return text


@dataclass(frozen=True, slots=True)
class Gather:
    """The value of an integer node: `x[ids[i]]` reads `x` at `Gather(ids[i])`."""

    access: Access


@dataclass(frozen=True, slots=True)
class Lookup:
    """The value of an integer tile, by name: a `Gather` inside a tile program."""

    value: str


@dataclass(frozen=True, slots=True)
class Inject:
    """Element `term` of part number `part` of a `Union` axis."""

    part: int
    term: Term


@dataclass(frozen=True, slots=True)
class Join:
    """Element `within` of part `part` of a partitioned axis."""

    part: Term
    within: Term


Leaf = Index | Gather | Lookup | Inject | Join


@dataclass(frozen=True, slots=True)
class Term:
    """Which element of an axis is read: `sum(c * leaf) + offset`. A plain variable is one leaf with
    coefficient 1. `leaves` is in canonical order (see `term`)."""

    leaves: tuple[tuple[Leaf, int], ...] = ()
    offset: Extent = NO_EXTENT

    @property
    def variable(self) -> Index | None:
        """The index, if the term is a plain variable."""
        leaf = self.leaf
        return leaf if isinstance(leaf, Index) else None

    @property
    def leaf(self) -> Leaf | None:
        """The leaf, if the term is nothing but one leaf with coefficient 1."""
        if len(self.leaves) != 1 or self.leaves[0][1] != 1:
            return None
        plain = self.offset is NO_EXTENT or self.offset == NO_EXTENT  # nearly always the one object
        return self.leaves[0][0] if plain else None


def term(*leaves: tuple[Leaf, int], offset: Extent | int = 0) -> Term:
    """A `Term` in canonical form: equal leaves collected, zeros dropped, sorted by structure."""
    total: dict[Leaf, int] = {}
    for leaf, coefficient in leaves:
        total[leaf] = total.get(leaf, 0) + coefficient
    kept = sorted(((x, c) for x, c in total.items() if c), key=lambda item: leaf_key(item[0]))
    return Term(tuple(kept), Extent(offset) if isinstance(offset, int) else offset)


def var(leaf: Leaf) -> Term:
    """The term that is just this leaf."""
    return Term(((leaf, 1),))


def leaf_key(leaf: Leaf) -> str:
    """A structural text of a leaf, for ordering and digests (never `id` or `hash`)."""
    match leaf:
        case Index(dim, number):
            return f"#{number}:{dim}"
        case Gather(access):
            inner = ",".join(map(term_key, access.terms))
            return f"gather({access.node.digest}[{inner}])"
        case Lookup(value):
            return f"lookup({value})"
        case Inject(part, inner):
            return f"in{part}({term_key(inner)})"
        case Join(part, within):
            return f"join({term_key(part)},{term_key(within)})"


def term_key(value: Term) -> str:
    """A structural text of a term."""
    leaves = "+".join(f"{c}*{leaf_key(leaf)}" for leaf, c in value.leaves)
    return f"{leaves}+{value.offset}"


def indices_of(value: Term) -> frozenset[Index]:
    """All indices that occur in a term, those inside gathers and joins too."""
    found: set[Index] = set()
    for leaf, _ in value.leaves:
        match leaf:
            case Index():
                found.add(leaf)
            case Gather(access):
                for inner in access.terms:
                    found |= indices_of(inner)
            case Lookup():
                pass
            case Inject(_, inner):
                found |= indices_of(inner)
            case Join(part, within):
                found |= indices_of(part) | indices_of(within)
    return frozenset(found)


def substitute(value: Term, replacement: Mapping[Index, Term]) -> Term:
    """Replace indices by terms, all at once; indices that are not named stay."""
    if isinstance(value.leaf, Index):  # by far the most common term
        return replacement.get(value.leaf, value)
    leaves: list[tuple[Leaf, int]] = []
    offset = value.offset
    for leaf, coefficient in value.leaves:
        match leaf:
            case Index():
                new = replacement.get(leaf)
                if new is None:
                    leaves.append((leaf, coefficient))
                else:
                    leaves += [(x, c * coefficient) for x, c in new.leaves]
                    offset = offset + new.offset * coefficient
            case Gather(access):
                leaves.append((Gather(access.at(replacement)), coefficient))
            case Lookup():
                leaves.append((leaf, coefficient))
            case Inject(part, inner):
                leaves.append((Inject(part, substitute(inner, replacement)), coefficient))
            case Join(part, within):
                joined = Join(substitute(part, replacement), substitute(within, replacement))
                leaves.append((joined, coefficient))
    return term(*leaves, offset=offset)
