"""Index terms inside forms: structural text under names for indices, free indices, sizes of unions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b

from cleave.ir.dims import (
    Dim,
    Extent,
    Gather,
    Index,
    Inject,
    Join,
    Leaf,
    Lookup,
    Term,
    Union,
    extent,
    indices_of,
)  # fmt: skip
from cleave.ir.ops import Input

Env = Mapping[Index, str]
"""Names for indices while a text is made; indices that it lacks are named by dim and number."""


def digest(text: str) -> str:
    """16 bytes of BLAKE2 as hexadecimal text."""
    return blake2b(text.encode(), digest_size=16).hexdigest()


def indices(term: Term) -> frozenset[Index]:
    """The indices in a term."""
    index = term.variable
    return indices_of(term) if index is None else frozenset((index,))


def term_text(term: Term, env: Env) -> str:
    """Structural text of an index term."""
    index = term.variable
    if index is not None:
        return env.get(index) or f"#{index.number}:{index.dim}"
    leaves = sorted(f"{c}*{leaf_text(leaf, env)}" for leaf, c in term.leaves)
    return f"{'+'.join(leaves)}+{term.offset}"


def leaf_text(leaf: Leaf, env: Env) -> str:
    """Structural text of a leaf of an index term."""
    match leaf:
        case Index():
            return env.get(leaf) or f"#{leaf.number}:{leaf.dim}"
        case Gather(access):
            op = access.node.op
            source = f"in {op.name}" if isinstance(op, Input) else access.node.digest
            return f"gather({source}[{','.join(term_text(t, env) for t in access.terms)}])"
        case Lookup(value):
            return f"lookup({value})"
        case Inject(part, inner):
            return f"inject{part}({term_text(inner, env)})"
        case Join(part, within):
            return f"join({term_text(part, env)},{term_text(within, env)})"


def union_parts(dim: Dim) -> tuple[Dim, ...]:
    """The parts of a union, nested unions flattened; a dim that is no union is its own part."""
    if isinstance(dim, Union):
        return tuple(leaf for part in dim.parts for leaf in union_parts(part))
    return (dim,)


def size_extent(dims: Iterable[Dim]) -> Extent:
    """The sum of the sizes of dims, unions taken apart."""
    return extent(0, *((leaf, 1) for dim in dims for leaf in union_parts(dim)))
