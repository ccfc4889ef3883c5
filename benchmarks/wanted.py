"""Case files: a program and the forms that must be among the candidates of a search.

    # What it is.
    program NAME(..) { .. }

    form divided last, one pass, split
      out: sum[T](_ * v) / sum[T](_)
      fold T: max[H, S], sum[H, S], sum[H, S, E]
      passes T: 1
      split T

A form is found if one candidate has all its properties (`patterns` says what a pattern is):

- `out: PATTERN`, `out NAME: PATTERN`: the only output, or the one of that name; `some: PATTERN`: a value,
- `fold DIM: STATES`: a Fold over DIM whose state is exactly this, each a kind with its dims, in any order
  and counts left out; a last `...` allows more,
- `passes DIM: N`: so many Folds over DIM; `why DIM: WORD`: one of them gives a reason with this word,
- `split DIM`: split over blocks, `no value [DIMS]`: no value has all these dims, `reassociated`: marked so.

A line `search: numerics fast` before the forms sets options of the search.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.patterns import Pattern, matches, parse
from cleave.algebra.search import Found
from cleave.errors import Invalid
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.ops import Input, Node
from cleave.ir.program import Program, sort_nodes
from cleave.ir.text import parse_program

FOLDER = Path(__file__).parents[1] / "tests" / "cases" / "algebra"


@dataclass(frozen=True, slots=True)
class Output:
    """The value of an output (any name if it is empty) matches."""

    name: str
    pattern: Pattern

    def holds(self, candidate: Candidate) -> bool:
        outputs = [o for o in candidate.program.outputs if self.name in ("", o.name)]
        if len(outputs) != 1:
            names = ", ".join(o.name for o in candidate.program.outputs)
            raise Invalid(f"there is no one output {self.name!r} among {names}")
        return matches(self.pattern, outputs[0].node)


@dataclass(frozen=True, slots=True)
class Some:
    """A value matches."""

    pattern: Pattern

    def holds(self, candidate: Candidate) -> bool:
        return any(matches(self.pattern, n) for n in candidate.program.nodes)


@dataclass(frozen=True, slots=True)
class Streams:
    """A Fold over the dim has exactly these state components (or these and more)."""

    dim: str
    states: tuple[str, ...]
    more: bool

    def holds(self, candidate: Candidate) -> bool:
        wanted = Counter(self.states)
        for fold in over(candidate, self.dim):
            given = Counter(states_of(fold))
            if given == wanted or (self.more and not wanted - given):
                return True
        return False


@dataclass(frozen=True, slots=True)
class Passes:
    """So many Folds are over the dim."""

    dim: str
    count: int

    def holds(self, candidate: Candidate) -> bool:
        return len(over(candidate, self.dim)) == self.count


@dataclass(frozen=True, slots=True)
class Why:
    """A Fold over the dim gives this reason."""

    dim: str
    word: str

    def holds(self, candidate: Candidate) -> bool:
        return any(self.word in fold.reason for fold in over(candidate, self.dim))


@dataclass(frozen=True, slots=True)
class Splits:
    """The candidate is split over the dim, and written out over the parts."""

    dim: str

    def holds(self, candidate: Candidate) -> bool:
        return self.dim in map(str, candidate.splits) and candidate.split_form is not None


@dataclass(frozen=True, slots=True)
class Without:
    """No value but an input has all these dims."""

    dims: tuple[str, ...]

    def holds(self, candidate: Candidate) -> bool:
        values = [n for n in candidate.program.nodes if not isinstance(n.op, Input)]
        return not any(not Counter(self.dims) - Counter(map(str, n.dims)) for n in values)


@dataclass(frozen=True, slots=True)
class Reassociated:
    """The candidate is marked as a change of the operation count class."""

    def holds(self, candidate: Candidate) -> bool:
        return candidate.reassociated


Property = Output | Some | Streams | Passes | Why | Splits | Without | Reassociated


@dataclass(frozen=True, slots=True)
class Form:
    """What one candidate must have: the lines as they are written, and what they say."""

    name: str
    lines: tuple[str, ...]
    properties: tuple[Property, ...]

    def found(self, candidates: Sequence[Candidate]) -> bool:
        """Has one of the candidates all the properties?"""
        return any(all(p.holds(c) for p in self.properties) for c in candidates)

    def missing(self, candidates: Sequence[Candidate]) -> str:
        """For each candidate, the properties that it lacks."""
        texts: list[str] = []
        for c in candidates:
            lacks = [t for t, p in zip(self.lines, self.properties, strict=True) if not p.holds(c)]
            texts.append(f"  {c.form}: lacks {'; '.join(lacks)}")
        return "\n".join([f"form {self.name} is not among {len(candidates)} candidates", *texts])


@dataclass(frozen=True, slots=True)
class Case:
    """A program and what must be found; `numerics` is the option of the search."""

    name: str
    about: str
    program: Program
    forms: tuple[Form, ...]
    numerics: str = "stable"

    def lost(self, found: Found) -> list[Form]:
        """The forms that are not among the candidates."""
        return [form for form in self.forms if not form.found(found.candidates)]


def over(candidate: Candidate, dim: str) -> list[Fold]:
    """The Folds over a dim, by the dim's text."""
    return [fold for fold in candidate.folds if str(fold.over) == dim]


def states_of(fold: Fold) -> list[str]:
    """The state's components as kinds with dims; counts, which read no element, are left out."""
    texts: list[str] = []
    elements = {e.name for e in fold.elements}
    for output, stepped in zip(fold.init.outputs, fold.step.outputs, strict=True):
        if _reads(stepped.node) & elements:
            kind = output.name.rstrip("0123456789")
            texts.append(f"{kind}[{', '.join(map(str, output.node.dims))}]")
    return texts


def _reads(node: Node) -> set[str]:
    """The names of the inputs that a value is made from."""
    return {n.op.name for n in sort_nodes([node]) if isinstance(n.op, Input)}


# ---------------------------------------------------------------- reading


def load(path: Path) -> Case:
    """A case from its file; `Invalid` says which line is wrong."""
    text = path.read_text(encoding="utf-8")
    about = " ".join(line[1:].strip() for line in text.splitlines() if line.startswith("#"))
    head, *blocks = re.split(r"^form ", text, flags=re.MULTILINE)
    numerics = "stable"
    lines: list[str] = []
    for line in head.splitlines():
        if line.startswith("search: numerics "):
            numerics = line.split()[-1]
        elif not line.startswith("#"):
            lines.append(line)
    program = parse_program("\n".join(lines))
    return Case(path.stem, about, program, tuple(_form(path, b) for b in blocks), numerics)


def cases(folder: Path = FOLDER) -> list[Case]:
    """Every case of a folder, by name."""
    return [load(path) for path in sorted(folder.glob("*.cleave"))]


def _form(path: Path, block: str) -> Form:
    name, *lines = [line.strip() for line in block.strip().splitlines()]
    if not lines:
        raise Invalid(f"{path.name}: form {name} asks for nothing")
    return Form(name, tuple(lines), tuple(_property(path, line) for line in lines))


def _property(path: Path, line: str) -> Property:
    key, _, rest = line.partition(":")
    word, _, subject = key.strip().partition(" ")
    subject, rest = subject.strip(), rest.strip()
    match word:
        case "out":
            return Output(subject, parse(rest))
        case "some":
            return Some(parse(rest))
        case "fold":
            states = [s.strip() for s in re.split(r",(?![^\[]*\])", rest)]
            return Streams(subject, tuple(s for s in states if s != "..."), "..." in states)
        case "passes":
            return Passes(subject, int(rest))
        case "why":
            return Why(subject, rest)
        case "split":
            return Splits(subject)
        case "no" if match_ := re.fullmatch(r"value \[(.*)\]", subject):
            return Without(tuple(d.strip() for d in match_[1].split(",")))
        case "reassociated":
            return Reassociated()
        case _:
            raise Invalid(f"{path.name}: what is {line!r}?")
