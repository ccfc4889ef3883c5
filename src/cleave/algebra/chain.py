"""Derivations as chains of programs: each differs from the one before by one law, at one kind of place.

A step is told by the lines of the printed program that it takes away and those that it puts there, so that
a reader with pencil and paper has the whole program after each step. A name stands for one value throughout:
values that stay keep their names, and new ones get names that nothing had before.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from cleave.ir.candidate import Step
from cleave.ir.ops import Node
from cleave.ir.program import Program
from cleave.ir.text import printed


@dataclass(frozen=True, slots=True)
class Law:
    """A law as people read it: what it says, under which conditions, and whether the values that a program
    made by it calls as before are what they were."""

    text: str
    given: str
    keeps: bool = True


@dataclass(frozen=True, slots=True)
class Chain:
    """The program that some steps lead to, every value of it named, and the steps."""

    program: Program
    steps: tuple[Step, ...] = ()
    taken: dict[str, tuple[object, ...]] = field(default_factory=dict[str, tuple[object, ...]])
    """Every name that a program of the chain has, with the dims and dtype of its value."""
    lines: tuple[str, ...] = ()
    """The program as it is printed."""

    def then(self, law: Law, program: Program, place: str = "") -> Chain:
        """The chain with one more step, to `program`, whose names are those of values of this chain. Nothing
        is added if it is the same program."""
        if _results(program) == _results(self.program):
            return self
        called, lines = self._called(program, law.keeps)
        before, after = _without(self.lines, lines), _without(lines, self.lines)
        step = Step(law.text, place or _places(before, after), "\n".join(before), "\n".join(after), law.given)
        return Chain(called, (*self.steps, step), self.taken | _taken(called), lines)

    def _called(self, program: Program, keeps: bool) -> tuple[Program, tuple[str, ...]]:
        """The program with a name for every value, its own where it had one, and its lines."""
        names = {n: t for n in program.nodes if (t := self.program.names.get(n)) is not None}
        used = set(names.values())

        def call(node: Node, name: str) -> None:
            if node not in names and name not in used and self.taken.get(name) == _kind(node):
                names[node] = name
                used.add(name)

        for old, new in zip(self.program.outputs, program.outputs, strict=True):
            call(new.node, self.program.names.get(old.node, ""))
        for node in program.nodes if keeps else ():
            call(node, program.names.get(node, ""))
        return _told(replace(program, names=names), set(self.taken) - used)


def start(program: Program) -> Chain:
    """A chain of no steps: the user's program, its values called as it is printed."""
    called, lines = _told(program, set())
    return Chain(called, (), _taken(called), lines)


def _told(program: Program, taken: set[str]) -> tuple[Program, tuple[str, ...]]:
    """The program with a name for every value, and the lines that print it, without their indentation."""
    called, lines = printed(program, taken)
    return called, tuple(line.strip() for line in lines)


def _results(program: Program) -> tuple[Node, ...]:
    return tuple(output.node for output in program.outputs)


def _kind(node: Node) -> tuple[object, ...]:
    return (*node.dims, node.dtype)


def _taken(program: Program) -> dict[str, tuple[object, ...]]:
    return {name: _kind(node) for node, name in program.names.items()}


def _without(lines: tuple[str, ...], others: tuple[str, ...]) -> list[str]:
    """The lines that are not among the others, in order."""
    left = Counter(others)
    kept: list[str] = []
    for line in lines:
        if left[line]:
            left[line] -= 1
        else:
            kept.append(line)
    return kept


def _places(before: list[str], after: list[str]) -> str:
    """The values that are defined in another way after a step, or else those that are new."""
    old, new = (dict.fromkeys(_defined(line) for line in lines if " = " in line) for lines in (before, after))
    return ", ".join([name for name in new if name in old] or new)


def _defined(line: str) -> str:
    return line.partition(":" if "[" not in line.partition(":")[0] else "[")[0]
