"""Checks certificates: that two programs are equal, by named laws at named places (design.md, section 3).

Shares nothing with the search but the IR: what nodes mean (`ir.meaning`), arithmetic of terms (`ir.terms`),
and the laws (`ir.identities`, `ir.implications`). Each value of both programs is computed from its arguments,
then the certificate's laws are applied to it, one by one, in order. What a law needs must be derived, hold
wherever the first program is defined, or be listed as a condition. Sizes are at least 1, parts may be empty.
`check` raises `Invalid` for what does not hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from cleave.errors import CleaveError, Invalid, Unsupported
from cleave.ir.certificate import Certificate, Step, parse
from cleave.ir.dims import Extent, Part, Parts, Union
from cleave.ir.identities import united
from cleave.ir.implications import LAWS
from cleave.ir.meaning import Meaning, axis, kind
from cleave.ir.ops import Input, Map, Node, Scalar
from cleave.ir.program import Program
from cleave.ir.terms import (
    ONE,
    Atom,
    Number,
    Poly,
    arg,
    bind,
    const,
    entries,
    may_be_empty,
    occupied,
    of,
    of_atom,
    plus,
    rewrite,
    subst,
    truth,
)
from cleave.ir.text import parse_program

FAULTS = (CleaveError, ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError,
          RecursionError)  # fmt: skip
"""What a text that is no proof may lead to."""


def unguarded(program: Program) -> set[Node]:
    """The nodes that must be defined for the outputs to be: those not only read as the branch of a select."""
    found: set[Node] = set()
    stack = [o.node for o in program.outputs]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            choice = isinstance(node.op, Map) and node.op.fn == "select"
            stack += [a.node for a in node.reads if not (choice and a in node.args[1:])]
    return found


class Proof(Meaning):
    """The values of both programs' nodes so far, and what is known of them."""

    def __init__(self, first: Program, second: Program) -> None:
        super().__init__()
        self.programs = (first, second)
        self.known: set[str] = set()
        self.closures: dict[str, str] = {}
        self.conditions: dict[str, None] = {}
        self.second = False
        self.sure = [unguarded(p) for p in self.programs]
        self.sizes = {s: self.extent(n) if isinstance(n, Extent) else const(n) for s, n in first.sizes}
        inputs = [
            {n.op.name: (n.op, kind(n.dtype)) for n in p.inputs if isinstance(n.op, Input | Scalar)}
            for p in self.programs
        ]
        dims = [
            [[[o.node.axes[n].dim for n in g] for g in o.layout] for o in p.outputs] for p in self.programs
        ]
        if any(inputs[0].get(name) != op for name, op in inputs[1].items()) or dims[0] != dims[1]:
            raise Unsupported("the programs have different inputs or outputs")
        if any(len(names) != len(p.inputs) for names, p in zip(inputs, self.programs, strict=True)):
            raise Unsupported("two inputs of one program have one name")
        if not all(s.name.isidentifier() for p in self.programs for s in p.dims):
            raise Unsupported("a dim whose name is no word")

    def closed(self, value: Poly, rel: str) -> str:
        """`value rel` for all values of its variables, as text."""
        if value.text not in self.closures:
            own = tuple((v, None) for v in sorted(value.free, key=str))
            self.closures[value.text] = bind("for all", own, value).text
        return f"{self.closures[value.text]} {rel}"

    def holds(self, value: Poly, rel: str) -> bool:
        return (
            bool(self.known)
            and not any(may_be_empty(v[0]) for v in value.free)
            and self.closed(value, rel) in self.known
        )

    def need(self, value: Poly, rel: str) -> None:
        """Given by the first program; derived, or a condition, for the second."""
        if rel == "= 1" and value.single and value.single[1] == 1 and value.number is None:
            factors = [of_atom(a) for a, _ in value.single[0] if not self.visited(a)]
        elif rel == "!= 0" and value.single:
            below = [a for a, _ in value.single[0] if self.sign(a) < 2]
            factors = [of_atom(a) for a in below if not occupied(a, self.positive)]
            for a in below:
                if there := occupied(a, self.positive):
                    self.need(there, "= 1")
        else:
            done = value.number == 1 if rel == "= 1" else self.least(value) >= (1 if rel == ">= 0" else 2)
            factors = [] if done else [value]
        for factor in factors:
            no = (ONE - factor).atom
            text = self.closed(of_atom(no), "= 0") if no and rel == "= 1" else self.closed(factor, rel)
            loose = any(may_be_empty(i.dim) for i in (self.node.axes if self.node else ()))
            if self.second and (loose or text not in self.known):
                self.conditions[text] = None
            if self.second or (not loose and self.node in self.sure[0]):  # else it may hold only somewhere
                self.known.add(text)

    def size(self, a: Atom) -> Poly | None:
        """The size that the first program gives a dim."""
        return self.sizes.get(a.args[0]) if len(a.args) == 1 else None  # type: ignore[arg-type, call-overload]

    def enter(self, node: Node) -> bool:
        """Compute a node, if it is new; of one that the first reads only under a select, the needs."""
        if node in self.forms:
            if self.second and node in self.sure[1] and node not in self.sure[0]:
                self.pair(node)
            return False
        self.forms[node] = self.pair(node)
        return True

    def visited(self, a: Atom) -> bool:
        """Is it that a part is not empty, over which an axis of the node at hand runs?"""
        axes = self.node.axes if self.node else ()
        return (
            a.head == "some"
            and arg(a).number == 1
            and all(
                isinstance(v[0], Part)
                and any(i.dim == v[0] for i in axes)
                and [of("ix", axis(i)) for i in axes if i.dim == Parts(v[0].of, v[0].level)] == [owner]
                for v, owner in a.binders
            )
        )

    def positive(self, value: Poly) -> bool:
        return self.least(value) == 2

    def least(self, value: Poly) -> int:
        """2 if the value is known to be positive, 1 if it is known not to be negative, else 0."""
        if self.holds(value, "> 0") or (value.number or 0) > 0:
            return 2
        signs = [
            min([self.sign(a, e) for a, e in m], default=2) if c > 0 else 0 for m, c in value.terms.items()
        ]
        some = max(signs, default=1) if min(signs, default=1) else int(self.holds(value, ">= 0"))
        return 2 if some and self.holds(value, "!= 0") else some

    def sign(self, a: Atom, e: Number = 1) -> int:
        """`least` of a power of an atom."""
        value, some = of_atom(a), 0
        full = not any(may_be_empty(v[0]) for v, _ in a.binders)
        if (
            a.head == "exp"
            or (a.head == "size" and not isinstance(a.args[0], Part))
            or self.holds(value, "> 0")
        ):
            return 2
        if a.head in ("size", "ix", "join") or truth(a) or self.holds(value, ">= 0"):
            some = 1
        elif a.head == "pow" or (a.head == "sum" and full):
            some = self.least(arg(a))
        elif a.head == "sum":
            some = min(self.least(arg(a)), 1)
        elif a.head == "max":
            plain = [
                x
                for x in entries(a)
                if arg(x).number == 1 and not any(may_be_empty(v[0]) for v, _ in x.binders)
            ]
            some = max([self.least(arg(x, 1)) for x in plain], default=0)
            some = max(
                some, int(len(a.args) == len(plain) == 2 and not plus(*(arg(x, 1) for x in plain)).terms)
            )
        if some < 2 and (there := occupied(a, self.positive)):
            some = 2 if there.number == 1 or self.holds(there, "= 1") else some
        even = e.denominator != 1 or e.numerator % 2 == 0
        return (
            2
            if (some or even) and not truth(a) and (self.holds(value, "!= 0") or e < 0)
            else max(some, int(even))
        )

    def apply(
        self, law: str, before: str, values: Sequence[Poly], detail: str = ""
    ) -> tuple[Poly, list[Poly]]:
        """What a law turns the term with this text into, and the values with that done everywhere."""
        if law not in LAWS:
            raise Invalid(f"there is no law {law!r}")
        found: list[Poly] = []

        def change(x: Poly) -> Poly | None:
            if x.text != before:
                return None
            if not found:
                after = LAWS[law](self, x, detail)
                if after is None or after.text == before:
                    raise Invalid(f"{law} does not apply to {before}")
                found.append(after)
            return found[0]

        changed = [rewrite(v, change) for v in values]
        if not found:
            raise Invalid(f"{law}: there is no {before} here")
        return found[0], changed

    def goals(self, number: int) -> list[Poly]:
        """What must be 0 for an output to be the same in both programs: where it is there, and its values."""
        found: list[list[Poly]] = []
        for program in self.programs:
            output = program.outputs[number]
            order = [n for group in output.layout for n in group]
            axes = [output.node.axes[n] for n in order]
            where = {axis(i): of("ix", (i.dim, ".", k)) for k, i in enumerate(axes)}
            found.append([subst(v, where) for v in self.forms[output.node]])
        (g, a), (h, b) = found
        return [g - h, g * (a - b)]


def check(text: str) -> Certificate:
    """The certificate, if it proves that its second program equals its first; else `Invalid` says why not."""
    found = parse(text)
    try:
        _check(found)
    except Invalid:
        raise
    except FAULTS as error:
        raise Invalid(f"the certificate cannot be checked: {error}") from error
    return found


def _check(found: Certificate) -> None:
    programs = parse_program(found.first), parse_program(found.second)
    proof, steps = Proof(*programs), list(found.steps)
    for side, program in zip(("first", "second"), programs, strict=True):
        proof.second = side == "second"
        for number, node in enumerate(program.nodes):
            if proof.enter(node):
                place = f"{side} {program.names.get(node, number)}"  # sizes and literals have no names
                proof.forms[node] = tuple(_run(proof, steps, place, proof.forms[node]))
    for number in range(len(programs[0].outputs)):
        if any(v.terms for v in _run(proof, steps, f"output {number + 1}", proof.goals(number))):
            raise Invalid(f"output {number + 1} is not proved equal")
    if steps:
        raise Invalid(f"the step at {steps[0].place} comes too late, or its place does not exist")
    if tuple(proof.conditions) != found.conditions:
        raise Invalid(f"the conditions are {list(proof.conditions)}, listed are {list(found.conditions)}")


def _run(proof: Proof, steps: list[Step], place: str, values: Sequence[Poly]) -> list[Poly]:
    """The values after the steps at this place, each checked against its texts."""
    done = list(values)
    while steps and steps[0].place == place:
        step = steps.pop(0)
        after, done = perform(proof, step.law, step.before, done, step.detail, place.startswith("output"))
        if after != step.after:
            raise Invalid(f"{step.law} at {place} gives {after}, not {step.after}")
    return done


def perform(
    proof: Proof, law: str, before: str, values: Sequence[Poly], detail: str, goal: bool
) -> tuple[str, list[Poly]]:
    """One law on the values at a place. Goals may also be multiplied by what is not 0, as denominators are
    not, and be taken apart by the parts of a union that an axis runs over."""
    if goal and law == "cross":
        for value in values:
            for m in value.terms:
                for a, e in m:
                    times = Fraction(detail)
                    fits = times == -e or (times.denominator == 1 and 0 < times <= 16)
                    if e < 0 and of_atom(a).text == before and not truth(a) and fits:
                        by = Poly({((a, times),): 1})
                        return "1", [v * by for v in values]
        raise Invalid(f"{before} is no denominator")
    if goal and law == "axis-union":
        (v,) = [
            v
            for value in values
            for v in value.free
            if of("ix", v).text == before and isinstance(v[0], Union)
        ][:1]
        return detail, [b for value in values for _, (b,) in united(((v, None),), [value])]
    after, changed = proof.apply(law, before, values, detail)
    return after.text, changed
