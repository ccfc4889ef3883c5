"""Certificates as text: two programs, conditions, and steps, each a law at a place (see `ir.checker`)."""

from __future__ import annotations

from dataclasses import dataclass

from cleave.errors import Invalid

HEADER = (
    "cleave certificate 1",
    "# The second program is equal to the first for all sizes of at least 1 (parts may be empty) and all",
    "# finite inputs where the first is defined, under the conditions listed. `K.0` is the",
    "# index of axis 0, which runs over K; `K'1` is bound inside the term, `K~1` outside of it; `some` is 1",
    "# where its predicate holds for some index; an `entry` of a `max` has indices, a predicate and a value.",
)


@dataclass(frozen=True)
class Step:
    """A law at a place (`first m`, `second m`: a node; `output 1`) with the term before and after."""

    place: str
    law: str
    detail: str
    before: str
    after: str


@dataclass(frozen=True)
class Certificate:
    """Two programs as text, the conditions under which the second is equal to the first, and the steps."""

    first: str
    second: str
    conditions: tuple[str, ...]
    steps: tuple[Step, ...]

    def __str__(self) -> str:
        lines = [*HEADER, *self.first.rstrip().split("\n"), *self.second.rstrip().split("\n")]
        lines += [f"condition {text}" for text in self.conditions]
        for number, s in enumerate(self.steps, 1):
            law = f"{s.law} {s.detail}".rstrip()
            lines += [f"step {number} at {s.place}: {law}", f"  from {s.before}", f"  to   {s.after}"]
        return "\n".join([*lines, "end", ""])


def parse(text: str) -> Certificate:
    """A certificate from its text; `Invalid` if it is not one."""
    lines = text.split("\n")
    try:
        first = lines.index("}") + 1
        second = lines.index("}", first) + 1
        programs = ["\n".join([*lines[a:b], ""]) for a, b in ((len(HEADER), first), (first, second))]
        rest = lines[second:]
        conditions = [line.removeprefix("condition ") for line in rest if line.startswith("condition ")]
        body = rest[len(conditions) : rest.index("end")]
        steps: list[Step] = []
        for k in range(0, len(body), 3):
            place, _, law = body[k].removeprefix(f"step {k // 3 + 1} at ").partition(": ")
            name, _, detail = law.partition(" ")
            steps.append(
                Step(
                    place,
                    name,
                    detail,
                    body[k + 1].removeprefix("  from "),
                    body[k + 2].removeprefix("  to   "),
                )
            )
    except (ValueError, IndexError) as error:
        raise Invalid(f"this is no certificate: {error}") from error
    found = Certificate(programs[0], programs[1], tuple(conditions), tuple(steps))
    if str(found) != text:
        raise Invalid("this is no certificate: it is not written as certificates are")
    return found
