"""Reads the text form of candidates that `text` prints (import `parse_candidate` from there).

candidate {
  form "divided last"
  splits T
  program softmax(x: f32[S, T]) { ... }
  fold over T {
    value m = max1                                 # node `max1` of the program is output `m` of `finish`
    element e[s: S, t: part(T)] = x[s, t]          # what `step` reads
    init softmax_init() { ... }                    # and step, merge, finish
  }
  step "law" at "place" from "before" to "after"
  condition "exponent" "e" "<= 0" holds "why"
}
"""

from __future__ import annotations

from cleave.ir.candidate import Candidate, Condition, Element, Fold, Step, Value
from cleave.ir.dims import Dim, Index
from cleave.ir.lexis import Cursor
from cleave.ir.ops import Access
from cleave.ir.parse import Block
from cleave.ir.program import Program

_FOLD_PROGRAMS = ("init", "step", "merge", "finish")


def parse_candidate(text: str) -> Candidate:
    """The candidate that a text describes; `ParseError` otherwise."""
    cursor = Cursor(text)
    cursor.expect("candidate")
    candidate = _CandidateReader(cursor).read()
    cursor.done()
    return candidate


class _CandidateReader:
    """Reads a candidate after the word `candidate`."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.block = Block(cursor, set())
        self.program: Program | None = None
        self.splits: tuple[Dim, ...] = ()
        self.split_form: Program | None = None
        self.form = ""
        self.reassociated = False
        self.cost: list[tuple[str, str]] = []
        self.folds: list[Fold] = []
        self.steps: list[Step] = []
        self.conditions: list[Condition] = []

    def read(self) -> Candidate:
        start = self.cursor.expect("{")
        while not self.cursor.accept("}"):
            self._item()
        if self.program is None:
            raise self.cursor.error("a candidate without a program", start)
        return Candidate(
            self.program, tuple(self.folds), tuple(self.steps), tuple(self.conditions), self.splits,
            self.split_form, self.form, tuple(self.cost), self.reassociated,
        )  # fmt: skip

    def _item(self) -> None:
        cursor = self.cursor
        if cursor.at("program"):
            self.program = self.block.program("program")
        elif cursor.at("split_form"):
            self.split_form = self._nested("split_form")
        elif cursor.accept("form"):
            self.form = cursor.string("a string")
        elif cursor.accept("reassociated"):
            self.reassociated = True
        elif cursor.accept("cost"):
            self.cost.append((cursor.string("a string"), cursor.string("a string")))
        elif cursor.accept("define"):
            cursor.expect("{")
            while not cursor.accept("}"):
                self.block.statement()
        elif cursor.accept("fold"):
            self.folds.append(self._fold())
        elif cursor.accept("step"):
            self.steps.append(self._step())
        elif cursor.accept("condition"):
            self.conditions.append(self._condition())
        elif cursor.accept("splits"):
            self._splits()
        else:
            raise cursor.wrong(
                "an item of a candidate", "program, fold, define, splits, step, condition, ..."
            )

    def _nested(self, word: str) -> Program:
        return Block(self.cursor, set(self.block.atoms)).program(word)

    def _splits(self) -> None:
        # Dims of the program, which is printed later: they are checked there.
        self.block.pending = []
        self.splits = (self.block.dim(),)
        while self.cursor.accept(","):
            self.splits += (self.block.dim(),)
        self.block.pending = None

    def _step(self) -> Step:
        law = self.cursor.string("the law's name")
        place = self._after("at")
        given = self._after("given") if self.cursor.at("given") else ""
        before, after = (self._after(word) for word in ("from", "to"))
        return Step(law, place, before, after, given)

    def _after(self, word: str) -> str:
        self.cursor.expect(word)
        return self.cursor.string("a string")

    def _condition(self) -> Condition:
        kind, subject, bound = (self.cursor.string("a string") for _ in range(3))
        holds = self.cursor.accept("holds")
        if not holds:
            self.cursor.expect("fails")
        return Condition(kind, subject, bound, holds, self.cursor.string("a string"))

    def _fold(self) -> Fold:
        cursor = self.cursor
        start = cursor.expect("over")
        over = self.block.dim()
        values: list[Value] = []
        elements: list[Element] = []
        programs: dict[str, Program] = {}
        support: Access | None = None
        support_of = reason = ""
        cursor.expect("{")
        while not cursor.accept("}"):
            word = cursor.peek().text
            if word in _FOLD_PROGRAMS:
                programs[word] = self._nested(word)
            elif cursor.accept("value"):
                name = cursor.name("the value's name")
                cursor.expect("=")
                values.append(Value(name, self.block.node()))
            elif cursor.accept("element"):
                name, access = self._element()
                if access is None:
                    raise cursor.wrong("`=`")
                elements.append(Element(name, access))
            elif cursor.accept("support"):
                cursor.expect("of")
                support_of, support = self._element()
            elif cursor.accept("reason"):
                reason = cursor.string("a string")
            else:
                raise cursor.wrong("value, element, support, reason, init, step, merge or finish")
        for word in _FOLD_PROGRAMS:
            if word not in programs:
                raise cursor.error(f"a fold without {word}", start)
        init, step, merge, finish = (programs[word] for word in _FOLD_PROGRAMS)
        return Fold(
            over, tuple(values), tuple(elements), init, step, merge, finish, support, support_of, reason
        )

    def _element(self) -> tuple[str, Access | None]:
        """`s[i: S, t: part(T)] = scores[i, t]`, the right side optional."""
        name = self.cursor.name("an element's name")
        indices: dict[str, Index] = {}
        if self.cursor.accept("["):
            self.block.declare(indices)
        return name, self.block.access(indices) if self.cursor.accept("=") else None
