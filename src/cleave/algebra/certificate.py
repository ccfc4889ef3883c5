"""Certificates: finds the named laws that lead from two programs to one form, as text that can be checked.

The values of both programs are brought into one form by the laws of `ir.identities` and `ir.implications`,
applied wherever they apply; each application is a step. What comes out is checked (`ir.checker`) before it is
handed out: there is a certificate that checks, or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from cleave.algebra.match import match
from cleave.errors import CleaveError, Invalid, Unsupported
from cleave.ir.certificate import Certificate, Step
from cleave.ir.checker import Proof, check, perform
from cleave.ir.dims import Union
from cleave.ir.implications import LAWS
from cleave.ir.program import Program
from cleave.ir.terms import Atom, Mono, Number, Poly, arg, of, of_atom, rewrite, shape, truth
from cleave.ir.text import parse_program, print_program

STEPS = 600
"""More steps are not tried."""

LONG = 60
"""Of a certificate with more steps none is left out."""

ROUNDS = 12
"""How many denominators are multiplied out at an output."""

SUMS = ("sum-union", "sum-part", "sum-open", "sum-size", "one-hot", "sum-split")
BY_HEAD: dict[str, tuple[str, ...]] = {
    "sum": SUMS,
    "some": (*SUMS, "given"),
    "max": ("max-union", "max-flat", "one-hot", "max-split", "max-cap", "max-part", "max-exp", "max-scale"),
    "exp": ("exp-log", "case"),
    "log": ("case", "content", "magnitude"),
    "pow": ("case", "content", "magnitude"),
    "is": ("given", "case"),
    "in": ("given",),
    "size": ("given",),
    "fn": ("case",),
    "": ("excluded", "implied", "edge"),
}
"""Which laws are tried, in which order, on an atom with this head; the last row is for products."""


LAST = {"max": ("max-pair",), "": ("witness",)}
"""Laws that are tried where the others do not suffice."""


@dataclass(frozen=True)
class Certified:
    """A certificate that checks, as text, with the conditions that it lists; or why there is none."""

    text: str = ""
    conditions: tuple[str, ...] = ()
    steps: int = 0
    reason: str = ""

    @property
    def holds(self) -> bool:
        return bool(self.text)


def certify(a: Program, b: Program) -> Certified:
    """A certificate that `b` is equal to `a`, if the laws lead to one."""
    found = match(a, b)
    if found.problem or found.equal:
        sizes = ", ".join(f"|{x}| = |{y}|" for x, y in found.equal)
        return Certified(reason=found.problem or f"the second program needs {sizes}")
    reasons: list[str] = []
    texts = print_program(a), print_program(found.program)
    for eager in (False, True):
        try:
            maker = _Maker(*texts, eager)
            checked = _needed(check(str(maker.certificate())))
            never = [c for c in checked.conditions if "[" not in c and "part(" not in c]
            if never:  # of no input and no partition: it does not hold for every size
                raise Unsupported(f"no certificate without the condition {never[0]}")
            return Certified(str(checked), checked.conditions, len(checked.steps))
        except (CleaveError, RecursionError) as problem:
            reasons.append(getattr(problem, "what", str(problem)))
    return Certified(reason=reasons[0])


def _needed(found: Certificate) -> Certificate:
    """The certificate without steps that it checks without, if it is not too long to find out."""
    number = len(found.steps) if len(found.steps) <= LONG else 0
    while number:
        number -= 1
        fewer = replace(found, steps=(*found.steps[:number], *found.steps[number + 1 :]))
        try:
            found = check(str(fewer))
        except Invalid:
            continue
        number = len(found.steps)  # a step may have been there for this one alone
    return found


def concerns(certificate: Certificate, a: Program, b: Program) -> bool:
    """Are these the programs of a certificate, the dims of the second named as in the first?"""
    found = match(a, b)
    return not found.problem and (certificate.first, certificate.second) == (
        print_program(a),
        print_program(found.program),
    )


class _Maker:
    """Applies laws to both programs, and keeps the steps."""

    def __init__(self, first: str, second: str, eager: bool) -> None:
        self.texts = first, second
        self.programs = parse_program(first), parse_program(second)
        self.proof = Proof(*self.programs)
        self.eager = eager
        self.steps: list[Step] = []
        self.done: dict[str, None] = {}
        self.facts = (0, False)

    def certificate(self) -> Certificate:
        proof = self.proof
        for side, program in zip(("first", "second"), self.programs, strict=True):
            proof.second = side == "second"
            for number, node in enumerate(program.nodes):
                if proof.enter(node):
                    place = f"{side} {program.names.get(node, number)}"
                    proof.forms[node] = tuple(self.settle(place, proof.forms[node], self.eager))
        for number in range(len(self.programs[0].outputs)):
            self.output(number)
        return Certificate(*self.texts, tuple(proof.conditions), tuple(self.steps))

    def output(self, number: int) -> None:
        """Make what must be 0 at an output 0."""
        place = f"output {number + 1}"
        values = self.settle(place, self.proof.goals(number), False, goal=True)
        pairs = False
        for _ in range(ROUNDS):
            if not any(v.terms for v in values):
                return
            union = next(
                (v for x in values for v in sorted(x.free, key=str) if isinstance(v[0], Union)), None
            )
            below = next(_denominators(values), None)
            if union is not None:
                values = self.step(place, "axis-union", of("ix", union).text, values, "parts", True)
            elif below is not None:
                values = self.step(place, "cross", of_atom(below[0]).text, values, str(-below[1]), True)
            elif not pairs:
                pairs = True
            else:
                break
            values = self.settle(place, values, pairs, goal=True)
        if any(v.terms for v in values):
            raise Unsupported(
                f"no certificate: output {number + 1} differs by {next(v.text for v in values if v.terms)}"
            )

    def settle(self, place: str, values: Sequence[Poly], pairs: bool, *, goal: bool = False) -> list[Poly]:
        """The values with laws applied until none applies."""
        found = list(values)
        while True:
            if (len(self.proof.known), pairs) != self.facts:
                self.done.clear()
                self.facts = (len(self.proof.known), pairs)
            redex = self.redex(found, pairs)
            if redex is None:
                return found
            law, before, detail = redex
            found = self.step(place, law, before, found, detail, goal)

    def step(
        self, place: str, law: str, before: str, values: Sequence[Poly], detail: str, goal: bool
    ) -> list[Poly]:
        if len(self.steps) >= STEPS:
            raise Unsupported("no certificate: too many steps")
        after, found = perform(self.proof, law, before, values, detail, goal)
        self.steps.append(Step(place, law, detail, before, after))
        return found

    def redex(self, values: Sequence[Poly], pairs: bool) -> tuple[str, str, str] | None:
        """The innermost place where a law applies, with the law and its detail."""
        seen: dict[str, Poly] = {}

        def visit(x: Poly) -> Poly | None:
            if x.text in self.done:
                return x
            seen.setdefault(x.text, x)
            return None

        for value in values:
            rewrite(value, visit)
        for text, x in reversed(seen.items()):
            mono = x.single[0] if x.single else ()
            head = mono[0][0].head if len(mono) == 1 else ""
            laws = BY_HEAD.get(head, ()) + (LAST.get(head, ()) if pairs else ())
            for law in laws:
                details = _details(self.proof, mono[0]) if law == "content" and mono else ("",)
                for detail in details:
                    after = LAWS[law](self.proof, x, detail)
                    if after is not None and after.text != text:
                        return law, text, detail
            self.done[text] = None
        return None


def _denominators(values: Sequence[Poly]) -> Iterator[tuple[Atom, Number]]:
    """Atoms with negative exponents, the least exponent of each."""
    least: dict[Atom, Number] = {}
    for value in values:
        for m in value.terms:
            for a, e in m:
                if e < 0 and not truth(a):
                    least[a] = min(e, least.get(a, e))
    yield from sorted(least.items(), key=lambda item: (-item[0].height, item[0].text))


def _details(proof: Proof, factor: tuple[Atom, Number]) -> tuple[str, ...]:
    """Which term of a base is taken out of a power or log: the largest in an order that multiplying by a
    monomial does not change, so that equal values get equal bases."""
    a, e = factor
    whole = a.head == "pow" and e.denominator == 1
    terms = list(arg(a).terms.items())
    leaves: list[list[int]] = []
    for m, _ in terms:
        kept = [
            n
            for n, f in enumerate(m)
            if proof.sign(f[0]) == 2 or (whole and proof.holds(of_atom(f[0]), "!= 0"))
        ]
        leaves.append(kept)
    weights = [_weights(tuple(m[n] for n in kept)) for (m, _), kept in zip(terms, leaves, strict=True)]
    best = [k for k, w in enumerate(weights) if all(_compare(w, v) >= 0 for v in weights)]
    best.sort(key=lambda k: (-abs(terms[k][1]), shape(terms[k][0]), k))
    if not best:
        return ()
    first = best[0]
    chosen = [n for n in leaves[first] if all(terms[first][0][n] in terms[k][0] for k in best)]
    return (f"{first}:{','.join(map(str, chosen))}",)


def _weights(m: Mono) -> tuple[dict[str, Fraction], dict[str, Fraction]]:
    exponents: dict[str, Fraction] = {}
    factors: dict[str, Fraction] = {}
    for a, e in m:
        if a.head == "exp":
            for n, c in arg(a).terms.items():
                exponents[shape(n)] = exponents.get(shape(n), Fraction(0)) + c
        else:
            name = shape(((a, 1),))
            factors[name] = factors.get(name, Fraction(0)) + e
    return exponents, factors


def _compare(a: tuple[dict[str, Fraction], ...], b: tuple[dict[str, Fraction], ...]) -> int:
    for one, two in zip(a, b, strict=True):
        for name in sorted({*one, *two}):
            gap = one.get(name, Fraction(0)) - two.get(name, Fraction(0))
            if gap:
                return 1 if gap > 0 else -1
    return 0


__all__ = ["Certified", "Invalid", "certify"]
