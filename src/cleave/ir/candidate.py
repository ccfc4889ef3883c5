"""What crosses from algebra to schedule: a candidate program with its Folds, conditions and derivation.

Pure data (design.md, section 3). A *Fold* is how a group of reductions over one dim may be computed piece
by piece: loop over an index, split it over blocks or shard it over devices only through its Fold.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from cleave.ir.dims import Dim
from cleave.ir.later import Later
from cleave.ir.ops import Access, Node
from cleave.ir.program import Program


@dataclass(frozen=True, slots=True)
class Element:
    """What `step` reads of the candidate program for each piece of the folded dim.

    Input `name` of `step`, read at its own axes, is `access` (terms over that input's axes). Axes of the
    step input whose dim is `Part(over)` range over the piece; in `access`, the same index runs over the
    folded dim itself: a term `Index(Part(over), k)` stands for the element's position in the whole."""

    name: str
    access: Access


@dataclass(frozen=True, slots=True)
class Value:
    """A reduction of the candidate program that the Fold computes: output `name` of `finish`, whose axes
    are the node's axes in order."""

    name: str
    node: Node


@dataclass(frozen=True, slots=True)
class Fold:
    """A proved way to reduce over `over` in pieces.

    Four programs share the names of the state (all float32 or wider unless the program says otherwise):

    - `init`: no inputs; outputs: the state before anything is seen,
    - `step`: inputs: the state, then the elements; outputs: the state after one more piece, with the
      piece's indices over `Part(over)`,
    - `merge`: inputs `a_<state>` and `b_<state>`; outputs: the state of both pieces together,
    - `finish`: inputs: the state; outputs: the values.

    Each of them may also read run-time scalars of the candidate's program, as inputs of the same name;
    `merge` and `finish` also elements that do not vary with the piece (values from outside the loop).

    A state's axes, in order, are the axes of its output in `init`. `support`, if given, is a boolean access
    whose terms use the indices of the element named `support_of` (its axes): where it is false, the
    piece's element leaves the state unchanged, so whole pieces may be skipped (proved).
    Proved for every partition, uneven and empty parts included; `merge(init, z) = z`, associative.
    """

    over: Dim
    values: tuple[Value, ...]
    elements: tuple[Element, ...]
    init: Program
    step: Program
    merge: Program
    finish: Program
    support: Access | None = None
    support_of: str = ""
    reason: str = ""
    """How it was found, or, for a Fold that could only be had for some of the values, why not for others."""

    @property
    def state(self) -> tuple[str, ...]:
        """The names of the state, in order."""
        return tuple(output.name for output in self.init.outputs)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no Fold over `over` computes the value called `value` together with the values `needs`: it needs
    them finished, so it takes a loop of its own."""

    over: Dim
    value: str
    needs: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.value} over {self.over} needs {', '.join(self.needs)} first: {self.why}"


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a derivation: a named law, applied at a place, with the texts before and after.

    In the derivation of a candidate, `before` and `after` are the lines of the printed program that go and
    that come: the program after one step is the program before the next, the first is the user's, and a name
    stands for one value throughout. `given` says under which conditions the law holds."""

    law: str
    place: str
    before: str
    after: str
    given: str = ""


@dataclass(frozen=True, slots=True)
class Condition:
    """A numeric condition on a value, or an assumption under which an equality holds.

    `kind` is one of `exponent` (upper bound of an exponent), `denominator` (lower bound), `difference`
    (cancellation), `range` (an operand that will be narrowed), `assumption` (a Yes-if)."""

    kind: str
    subject: str
    bound: str
    holds: bool
    why: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A program equal to the user's for every size, and what is needed to schedule and explain it.

    `program` has the user's inputs, outputs, names of outputs and layouts. `splits` names the dims that the
    candidate asks to be split over blocks (through their Folds); `split_form` is then the same computation
    written out with `Parts` and `Part` dims, the program that the proof of the split was made on. `form` says
    in a word or two what is special (`as written`, `divided last`, ...), made from the derivation, never from
    an operation's name. `cost` maps `operations`, `bytes`, `depth` to texts of polynomials in the sizes.
    `reassociated` marks a change of the operation count class."""

    program: Program
    folds: tuple[Fold, ...]
    derivation: tuple[Step, ...] = ()
    conditions: tuple[Condition, ...] = ()
    splits: tuple[Dim, ...] = ()
    written_out: Program | Later[Program] | None = field(default=None, hash=False)
    """`split_form`, or how to make it: of a candidate that comes from a store, only those who print, run or
    compare it read it."""
    form: str = "as written"
    cost: tuple[tuple[str, str], ...] = ()
    reassociated: bool = False

    @property
    def split_form(self) -> Program | None:
        """The computation written out over the parts of the dim that is split, if one is."""
        return self.written_out() if isinstance(self.written_out, Later) else self.written_out

    @property
    def stable(self) -> bool:
        """No condition fails that holds for the user's program."""
        return all(condition.holds for condition in self.conditions)
