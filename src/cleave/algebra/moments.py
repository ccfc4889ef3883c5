"""What a Fold's state is made of, and the state at one moment (design.md, section 3, Folds).

A component is a maximum (or another lattice reduction), a plain sum, or a sum around running values, as the
reduction that it is of the candidate's own values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from cleave.algebra.bodies import Elem, Factors
from cleave.algebra.frame import Site
from cleave.ir.dims import Index
from cleave.ir.ops import Access, Node, Reduce

LATTICE = {"max": "max", "min": "min", "any": "or", "all": "and", "prod": "mul"}
"""How two parts of a reduction that is not a sum are put together."""


@dataclass(frozen=True, slots=True)
class State:
    """A component: the reduction `definition` (over its own axes), made from a site's monomial."""

    name: str
    kind: str
    dtype: str
    definition: Node
    site: Site
    inside: Factors
    rescaled: bool

    @property
    def reduced(self) -> Access:
        """What a reduction that is not a sum reduces, in its site's indices."""
        return reduced(self.site, self.inside)


def reduced(site: Site, inside: Factors) -> Access:
    """What a reduction that is not a sum reduces: the site's own argument, or what `inside` names."""
    named = inside[0][0] if inside else None
    if isinstance(named, Elem):
        return named.access
    op = site.node.op
    assert isinstance(op, Reduce)
    return op.arg


@dataclass(slots=True)
class Moment:
    """The state at one moment: a node per component, made when asked for, and values computed from it.
    With `part`, an index over the parts of a partition, each part has a state, and it is the first axis."""

    make: Callable[[State], Node]
    part: Index | None = None
    final: bool = False
    """Has everything been seen? Then the folded dim has its whole size."""
    last: bool = False
    """Are the values handed out now? Then they are what the program says where a row is degenerate, too."""
    states: dict[str, Node] = field(default_factory=dict[str, Node])
    values: dict[Node, Node] = field(default_factory=dict[Node, Node])

    @property
    def extra(self) -> tuple[Index, ...]:
        return () if self.part is None else (self.part,)

    def state(self, state: State) -> Node:
        if state.name not in self.states:
            self.states[state.name] = self.make(state)
        return self.states[state.name]
