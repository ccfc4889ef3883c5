"""The search: programs equal to the user's for every size, with Folds, costs and conditions (design.md, 3).

Programs are read off flat sums of products (`read`), with stabilising maxima put in where they are missing
(`shifts`); then each index that a last sum or maximum binds may be split (`folds.split_program`). Nothing is
recognised by pattern, and nothing is believed: each candidate's normal form is the user's, or it is dropped.
The user's own program is always the first candidate.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from cleave.algebra.cost import Cost, cost_of, divides, products_of
from cleave.algebra.derive import describe, form_name
from cleave.algebra.equal import Memo, answer
from cleave.algebra.folds import assemblies_of, fold_from, folds_of, split_from, state_dtype
from cleave.algebra.forms import Poly
from cleave.algebra.pieces import Assembly
from cleave.algebra.read import OWN, Reader, Reading
from cleave.algebra.share import shared
from cleave.algebra.shifts import stabilise
from cleave.algebra.stability import Standing, conditions_of, standing_of
from cleave.errors import CleaveError
from cleave.ir.candidate import Candidate, Fold, Step
from cleave.ir.dims import Part, Parts
from cleave.ir.ops import Node
from cleave.ir.program import Program
from cleave.ir.text import parse_program, print_program

MOST_CHOICES = 48
"""Combinations of readings that are built."""

MOST_KEPT = 24


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: the candidates, the user's program first, and how many programs were built,
    kept, and dropped for which reason."""

    candidates: tuple[Candidate, ...]
    counts: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class Draft:
    """A program on its way to being a candidate."""

    program: Program
    cost: Cost
    steps: tuple[Step, ...]
    form: str
    cancels: tuple[str, ...] = ()
    shifted: bool = False
    """Whether maxima were taken out of exponentials that the user sums as they are."""
    reassociated: bool = False
    base: Program | None = None
    """A program proved equal to the user's, that this one is proved equal to."""


def search(
    program: Program, *, split: bool = True, reassociate: bool = True, numerics: str = "stable"
) -> Found:
    """Candidates equal to `program` for all sizes, the program itself first.

    `split` adds candidates that split an index over blocks; `reassociate` allows those whose operation count
    grows in another way than the user's; `numerics` is `strict` (the user's program only), `stable` (no
    candidate stands worse than the user's program) or `fast` (those that do are kept, and say so)."""
    return _Search(program, split, reassociate, numerics).run()


class _Search:
    def __init__(self, program: Program, split: bool, reassociate: bool, numerics: str) -> None:
        self.user = program
        self.split = split
        self.reassociate = reassociate
        self.numerics = numerics
        self.dtype = state_dtype(program)
        self.growth = products_of(program).leading
        self.counts: dict[str, int] = {}
        self.memo: Memo = {}
        self.forms: dict[Node, Poly] = {}
        self.loops: dict[Fold, Assembly] = {}
        self.names: Mapping[Node, str] = parse_program(print_program(program)).names

    def count(self, reason: str, amount: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + amount

    def run(self) -> Found:
        try:
            standing = standing_of(self.user, self.forms)
        except CleaveError:
            # A program beyond the normal form is compiled as it is.
            self.counts = {"built": 1, "kept": 1}
            return Found((Candidate(self.user, folds_of(self.user)),), self.counts)
        own = Draft(self.user, cost_of(self.user), (), "as written")
        self.count("built")
        drafts = [own] if self.numerics == "strict" else [own, *self._drafts(own)]
        made: list[Candidate] = []
        for draft in self._front(drafts):
            try:
                candidate = self._candidate(draft, standing, draft is own)
            except CleaveError:
                if draft is own:
                    raise
                self.count("dropped: beyond the normal form")
                continue
            if candidate is not None:
                made.append(candidate)
        if self.split and self.numerics != "strict":
            made += [s for c in list(made) for s in self._splits(c)]
        kept = tuple(made[:MOST_KEPT])
        self.count("kept", len(kept))
        if len(made) > len(kept):
            self.count("dropped: more than the limit", len(made) - len(kept))
        return Found(kept, dict(sorted(self.counts.items())))

    # ------------------------------------------------------------ drafts

    def _drafts(self, own: Draft) -> list[Draft]:
        found: dict[tuple[str, ...], Draft] = {_key(self.user): own}
        start, first = self.user, ()
        once = shared(self.user, self.forms, self.names)
        if once is not None and self._equal(self.user, once[0]):
            # Its readings cost less than the same readings of the user's program.
            start, first = once
        bases: list[tuple[Program, tuple[Step, ...], str]] = [(start, first, "")]
        stable = stabilise(start, self.dtype)
        if stable is not None:
            law = "exp(f) = exp(f - u) * exp(u), u the largest f"
            before, after = "exp(f)", "exp(f - max f), quotients cancel exp(max f), logs add max f"
            step = Step(law, "every summed exponential", before, after)
            bases.append((stable, (*first, step), "shifted"))
        for program, steps, form in bases:
            reader = Reader(program, self.dtype)
            for choice in self._choices(reader, program):
                new = reader.rebuild(choice)
                self.count("built")
                key = _key(new)
                if key in found:
                    self.count("dropped: built before")
                    continue
                more, cancels = describe(reader, self._named(program), choice)
                names = [n for n in (form, form_name(reader, choice)) if n]
                words = ", ".join(names) or ("as written" if start is self.user else "computed once")
                reassociated = self._reassociated(new)
                cost = cost_of(new)
                found[key] = Draft(
                    new, cost, (*steps, *more), words, cancels, bool(form), reassociated, start
                )
        return list(found.values())[1:]

    def _named(self, program: Program) -> Program:
        """The program with the user's values called as the user's program is printed."""
        return replace(program, names={**program.names, **self.names})

    def _choices(self, reader: Reader, program: Program) -> list[dict[Node, Reading]]:
        ways = [(n, self._different(reader, n)) for n in program.nodes]
        ways = [(n, r) for n, r in ways if len(r) > 1]
        total = 1
        for _, readings in ways:
            total *= len(readings)
        found: list[dict[Node, Reading]] = [{}]
        if total <= MOST_CHOICES:
            for combination in itertools.product(*(r for _, r in ways)):
                chosen = zip(ways, combination, strict=True)
                found.append({n: r for (n, _), r in chosen if r is not OWN})
            return found
        singles = [{n: r} for n, readings in ways for r in readings[1:]]
        found += singles
        for a, b in itertools.combinations(singles, 2):
            if a.keys() != b.keys():
                found.append({**a, **b})
            if len(found) >= MOST_CHOICES:
                break
        return found

    def _different(self, reader: Reader, node: Node) -> list[Reading]:
        """The readings of a node that give programs of their own."""
        kept: list[Reading] = []
        seen: set[str] = set()
        for reading in reader.readings(node):
            key = reader.alone(node, reading).node.digest
            self.count("built")
            if key in seen:
                self.count("dropped: built before")
                continue
            seen.add(key)
            kept.append(reading)
        return kept

    def _front(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Drop what another draft dominates for all sizes (the first, the user's own, stays)."""
        kept: list[Draft] = []
        for n, draft in enumerate(drafts):
            if n and self._outgrows(draft.program):
                self.count("dropped: its operations grow faster than the user's")
                continue
            if n and any(self._dominates(other, draft, m < n) for m, other in enumerate(drafts) if m != n):
                self.count("dropped: another one costs no more for all sizes")
                continue
            kept.append(draft)
        return kept[:MOST_KEPT]

    def _dominates(self, one: Draft, two: Draft, earlier: bool) -> bool:
        if len(one.cancels) > len(two.cancels) or not one.cost.at_most(two.cost):
            return False
        if one.reassociated and not two.reassociated:
            return False
        if two.shifted and not one.shifted:
            return False
        # Of programs that cost the same for all sizes the first is kept.
        return earlier or not two.cost.at_most(one.cost)

    def _outgrows(self, program: Program) -> bool:
        """Does the operation count grow faster than the user's in some sizes, and no slower in any?"""
        mine, users = products_of(program).leading, self.growth
        return mine != users and (
            all(any(divides(u, m) for m in mine) for u in users)
            and all(any(divides(u, m) for u in users) for m in mine)
        )

    def _reassociated(self, program: Program) -> bool:
        return products_of(program).leading != self.growth

    # ------------------------------------------------------------ candidates

    def _candidate(self, draft: Draft, standing: Standing, own: bool) -> Candidate | None:
        if draft.reassociated and not self.reassociate:
            self.count("dropped: reassociated")
            return None
        conditions = conditions_of(draft.program, standing, self.forms, cancels=draft.cancels, own=own)
        if not own and self.numerics != "fast" and not all(c.holds for c in conditions):
            self.count("dropped: stands worse than the user's program")
            return None
        if not own and not self._equal(draft.base or self.user, draft.program):
            return None
        folds: list[Fold] = []
        for assembly in assemblies_of(draft.program):
            fold = fold_from(assembly)
            folds.append(fold)
            self.loops[fold] = assembly
        return Candidate(
            program=draft.program,
            folds=tuple(folds),
            derivation=draft.steps,
            conditions=conditions,
            form=draft.form,
            cost=draft.cost.texts,
            reassociated=draft.reassociated,
        )

    def _equal(self, base: Program, program: Program) -> bool:
        found = answer(base, program, self.memo)
        if found == "yes":
            return True
        self.count(f"dropped: not proved ({found})")
        return False

    def _splits(self, candidate: Candidate) -> list[Candidate]:
        found: list[Candidate] = []
        for fold in splittable(candidate):
            self.count("built")
            written = split_from(candidate.program, self.loops[fold])
            if not self._equal(candidate.program, written):
                continue
            law = f"a {_kinds(fold)} over {fold.over} is one over parts of one in each part"
            step = Step(law, str(fold.over), f"[{fold.over}]", f"[parts({fold.over})][part({fold.over})]")
            form = (
                f"split {fold.over}"
                if candidate.form == "as written"
                else f"{candidate.form}, split {fold.over}"
            )
            found.append(
                replace(
                    candidate,
                    splits=(fold.over,),
                    split_form=written,
                    derivation=(*candidate.derivation, step),
                    form=form,
                )
            )
        return found


def splittable(candidate: Candidate) -> list[Fold]:
    """The Folds that may be split over blocks: the dim is no partition itself, no other Fold is over it, and
    what the parts hand over is no larger than the outputs or nothing is reduced after it."""
    program = candidate.program
    reduced_later = _feeding(program)
    found: list[Fold] = []
    for fold in candidate.folds:
        if isinstance(fold.over, Parts | Part):
            continue
        alone = all(f is fold or f.over != fold.over for f in candidate.folds)
        mine = {v.node for v in fold.values}
        last = all(not (reduced_later[v] - mine) for v in mine)
        if alone and (last or _small(program, fold)):
            found.append(fold)
    return found


def _small(program: Program, fold: Fold) -> bool:
    from cleave.algebra.cost import Count, size_count

    def elements(node: Node) -> Count:
        total = Count((((), 1),))
        for dim in node.dims:
            total = total * size_count(dim)
        return total

    available = Count()
    for output in program.outputs:
        available = available + elements(output.node)
    return all(elements(v.node).at_most(available) for v in fold.values)


def _feeding(program: Program) -> dict[Node, set[Node]]:
    """For each node, the reductions that depend on it."""
    above: dict[Node, set[Node]] = {n: set() for n in program.nodes}
    for node in reversed(program.nodes):
        own = above[node] | ({node} if node.bound else set[Node]())
        for access in node.reads:
            above[access.node] |= own
    return above


def _kinds(fold: Fold) -> str:
    kinds = {"max" if s.startswith("max") else "sum" for s in fold.state}
    return " and ".join(sorted(kinds))


def _key(program: Program) -> tuple[str, ...]:
    return tuple(output.node.digest for output in program.outputs)
