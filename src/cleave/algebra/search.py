"""The search: programs equal to the user's for every size, with Folds, costs and conditions (design.md, 3).

Programs are read off flat sums of products (`read`), with stabilising maxima put in where they are missing
(`shifts`); then each index that a last sum or maximum binds may be split (`folds.split_program`). Nothing is
recognised by pattern, and nothing is believed: each candidate's normal form is the user's, or it is dropped.
The user's own program is always the first candidate.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from cleave.algebra import exponents, extremes, share, unions, unneeded
from cleave.algebra.chain import Chain, Law, start
from cleave.algebra.clusters import is_linear
from cleave.algebra.cost import Cost, cost_of, divides, growth_of, products_of
from cleave.algebra.derive import Told, form_name, split, told
from cleave.algebra.equal import Memo, answer
from cleave.algebra.folds import assemblies_of, fold_from, folds_of, refusals_of, split_from, state_dtype
from cleave.algebra.forms import Poly
from cleave.algebra.joined import joined, loops_of
from cleave.algebra.pieces import Assembly
from cleave.algebra.read import OWN, Reader, Reading
from cleave.algebra.shifts import shifted, stabilise
from cleave.algebra.splits import splittable, values_of
from cleave.algebra.stability import Standing, conditions_of, spell, standing_of
from cleave.algebra.verdict import keeps_rounding
from cleave.errors import CleaveError
from cleave.ir.candidate import Candidate, Fold, Refusal, Step
from cleave.ir.ops import Node
from cleave.ir.program import Program

MOST_CHOICES = 48
"""Combinations of readings that are built."""

MOST_DRAFTS = 24
"""Programs that candidates are made of."""

MOST_KEPT = 32
"""Candidates, those that split an index over blocks included."""

MOST_BASES = 8
"""Programs that readings are taken of."""

CHANGES: tuple[tuple[Law, Callable[[Program], Program | None]], ...] = (
    (Law(unions.LAW, "A and B are disjoint and make up A | B"), unions.apart),
    (Law(exponents.LOGS, "b is never negative"), exponents.without_logs),
    (Law(exponents.QUOTIENTS, "no condition: an exponential is never 0"), exponents.without_quotients),
    (Law(extremes.LAW, "f grows or falls everywhere, and there is an x"), extremes.lifted),
)
"""Laws that make programs to take readings of."""

SHIFTED = Law("exp(f) = exp(f - u) * exp(u), u the largest f", "u is finite; else nothing is taken off")
CANCELLED = Law(
    "exp(u) leaves sums and products, cancels in quotients, and log(exp(u) * a) = u + log a",
    "u does not depend on what is summed over",
)
JOINED = Law("reductions over A and over B, put together, are one over A | B", "A and B are disjoint")
UNNEEDED = Law(unneeded.LAW, "f has bounds", keeps=False)

MOST_DROPPED = 16
"""Dropped programs that are told of, each with its proof; `counts` has them all."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A program that was built and not kept: its form and derivation, why, and the proof of that."""

    form: str
    derivation: tuple[Step, ...]
    reason: str
    proof: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found: the candidates, the user's program first, and how many programs were built,
    kept, and dropped for which reason."""

    candidates: tuple[Candidate, ...]
    counts: dict[str, int] = field(default_factory=dict[str, int])
    dropped: tuple[Dropped, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    """Of the candidate with the fewest: which values no Fold computes with those they need, and why."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A program on its way to being a candidate."""

    program: Program
    cost: Cost
    form: str
    cancels: tuple[str, ...] = ()
    steadier: bool = False
    """Whether exponentials that the user has as they are cannot overflow any more."""
    reassociated: bool = False
    base: Program | None = None
    """A program proved equal to the user's, that this one is proved equal to."""
    way: tuple[Reader, dict[Node, Reading]] | None = None
    """What it was read with: one reading after the other leads from the base to it."""
    chain: Chain | None = None
    """The steps to the program that it was read off."""
    like: Program | None = None
    """The program whose operation counts it is compared with, where not the user's: over a union, the others'
    operations run over all of its parts."""


@dataclass(frozen=True, slots=True)
class Base:
    """A program equal to the user's that readings are taken of, with the steps to it; `proved`, if given, is
    what its readings are proved equal to."""

    chain: Chain
    form: str = ""
    steadier: bool = False
    proved: Program | None = None
    like: Program | None = None
    """See `Draft.like`."""

    @property
    def program(self) -> Program:
        return self.chain.program


def search(
    program: Program, *, split: bool = True, reassociate: bool = True, numerics: str = "stable"
) -> Found:
    """Candidates equal to `program` for all sizes, the program itself first.

    `split` adds candidates that split an index over blocks; `reassociate` allows those whose operation count
    grows in another way than the user's; `numerics` is `strict` (the user's operations, the order of sums
    apart), `stable` (no candidate stands worse than the user's program) or `fast` (those that do are kept,
    and say so). See `verdict`."""
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
        self.dropped: list[Dropped] = []
        self.refusals: list[tuple[Refusal, ...]] = []
        self.memo: Memo = {}
        self.forms: dict[Node, Poly] = {}
        self.loops: dict[Fold, Assembly] = {}
        self.start = start(program)
        self.chains: dict[Program, Chain] = {}
        self.told: Told = {}

    def count(self, reason: str, amount: int = 1) -> None:
        self.counts[reason] = self.counts.get(reason, 0) + amount

    def run(self) -> Found:
        try:
            standing = standing_of(self.user, self.forms)
        except CleaveError:
            # A program beyond the normal form is compiled as it is.
            self.counts = {"built": 1, "kept": 1}
            return Found((Candidate(self.user, folds_of(self.user)),), self.counts)
        own = Draft(self.user, cost_of(self.user), "as written")
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
        if self.split:
            made += [s for c in list(made) for s in self._splits(c)]
        if self.numerics == "strict":
            made = [c for c in made if keeps_rounding(self.user, c)]
        kept = tuple(made[:MOST_KEPT])
        self.count("kept", len(kept))
        if len(made) > len(kept):
            self.count("dropped: more than the limit", len(made) - len(kept))
        refusals = min(self.refusals, key=len, default=())
        return Found(kept, dict(sorted(self.counts.items())), tuple(self.dropped), refusals)

    # ------------------------------------------------------------ drafts

    def _drafts(self, own: Draft) -> list[Draft]:
        found: dict[tuple[str, ...], Draft] = {_key(self.user): own}
        for base in self._bases():
            for reader in self._readers(base.program):
                for choice in self._choices(reader, base.program):
                    self._draft(found, base, reader, choice)
        return list(found.values())[1:]

    def _draft(
        self,
        found: dict[tuple[str, ...], Draft],
        base: Base,
        reader: Reader,
        choice: dict[Node, Reading],
    ) -> None:
        new = reader.rebuild(choice)
        self.count("built")
        key = _key(new)
        if key in found:
            self.count("dropped: built before")
            return
        cancels = tuple(spell(base.program, n.read()) for n, r in choice.items() if r.cancels)
        words = ", ".join(n for n in (base.form, form_name(reader, choice)) if n)
        words = words or ("computed once" if base.chain.steps else "as written")
        found[key] = Draft(
            new,
            cost_of(new),
            words,
            cancels,
            base.steadier,
            self._reassociated(new, base.like),
            base.proved or base.program,
            (reader, choice),
            base.chain,
            base.like,
        )

    def _bases(self) -> list[Base]:
        """The programs that readings are taken of: the user's (its values computed once), what other laws
        make of it, and these with stabilising maxima put in."""
        first = Base(self.start)
        once = share.shared(first.program, self.forms)
        if once is not None and self._equal(self.user, once.program):
            # Its readings cost less than the same readings of the user's program.
            law = Law(share.LAW, once.given(self.start.program.names))
            first = Base(self.start.then(law, once.program))
        bases = [first]
        for law, change in CHANGES:
            for base in list(bases):
                made = change(base.program)
                if made is None or len(bases) >= MOST_BASES:
                    continue
                self.count("built")
                if self._equal(base.program, made):
                    steadier = base.steadier or law.text == exponents.QUOTIENTS
                    bases.append(Base(base.chain.then(law, made), base.form or "rewritten", steadier))
        for base in list(bases):
            stable = stabilise(base.program, self.dtype)
            if stable is not None:
                chain = base.chain.then(SHIFTED, shifted(base.program, self.dtype)).then(CANCELLED, stable)
                form = f"{base.form}, shifted" if base.form else "shifted"
                bases.append(Base(chain, form, True, base.program))
        least = min(loops_of(base.program) for base in bases)
        joined = [made for base in bases if (made := self._joined(base, least)) is not None]
        # Last, so that nothing puts the maxima in again.
        return [*bases, *joined, *self._without_maxima(first)]

    def _without_maxima(self, first: Base) -> list[Base]:
        """For `fast`: without the stabilisers that ranges make unneeded."""
        bare = unneeded.without_maxima(first.program) if self.numerics == "fast" else None
        if bare is None or not self._equal(first.program, bare):
            return []
        return [Base(first.chain.then(UNNEEDED, bare), "maxima left out")]

    def _joined(self, base: Base, least: int) -> Base | None:
        """A base with reductions over the parts of a union joined, if it has fewer loops than any base."""
        whole = joined(base.program)
        if whole is None or loops_of(whole) >= least:
            return None
        form = f"{base.form}, joined" if base.form else "joined"
        return Base(base.chain.then(JOINED, whole), form, True, base.proved or base.program, whole)

    def _readers(self, program: Program) -> Iterator[Reader]:
        """What finds the readings of a program; a second one, if sums that several values read may open."""
        first = Reader(program, self.dtype)
        yield first
        second = Reader(program, self.dtype, opens=True)
        if any(
            is_linear(n) and len(first.flat.form(n).bound) < len(second.flat.form(n).bound)
            for n in program.nodes
        ):
            yield second

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
            if n and self._outgrows(draft.program, draft.like):
                self.count("dropped: its operations grow faster than the user's")
                why = growth_of(draft.program, draft.like or self.user)
                self._drop(draft, "its operations grow faster", why)
                continue
            others = ((m, other) for m, other in enumerate(drafts) if m != n)
            better = next((o for m, o in others if n and self._dominates(o, draft, m < n)), None)
            if better is not None:
                self.count("dropped: another one costs no more for all sizes")
                why = better.cost.reasons(draft.cost)
                self._drop(draft, f"'{better.form}' costs no more", why)
                continue
            kept.append(draft)
        return kept[:MOST_DRAFTS]

    def _dominates(self, one: Draft, two: Draft, earlier: bool) -> bool:
        if len(one.cancels) > len(two.cancels) or not one.cost.at_most(two.cost):
            return False
        if one.reassociated and not two.reassociated:
            return False
        if two.steadier and not one.steadier:
            return False
        # Of programs that cost the same for all sizes the first is kept.
        return earlier or not two.cost.at_most(one.cost)

    def _outgrows(self, program: Program, like: Program | None = None) -> bool:
        """Does the operation count grow faster than the user's in some sizes, and no slower in any?"""
        mine, users = products_of(program).leading, products_of(like).leading if like else self.growth
        return mine != users and (
            all(any(divides(u, m) for m in mine) for u in users)
            and all(any(divides(u, m) for u in users) for m in mine)
        )

    def _reassociated(self, program: Program, like: Program | None = None) -> bool:
        return products_of(program).leading != (products_of(like).leading if like else self.growth)

    def _drop(self, draft: Draft, reason: str, proof: tuple[str, ...], chain: Chain | None = None) -> None:
        if len(self.dropped) < MOST_DROPPED:
            steps = (chain or self._told(draft)).steps
            self.dropped.append(Dropped(draft.form, steps, reason, proof))

    def _told(self, draft: Draft) -> Chain:
        """The steps to a draft."""
        return self.start if draft.way is None else told(draft.chain or self.start, *draft.way, self.told)

    # ------------------------------------------------------------ candidates

    def _candidate(self, draft: Draft, standing: Standing, own: bool) -> Candidate | None:
        if draft.reassociated and not self.reassociate:
            self.count("dropped: reassociated")
            why = growth_of(draft.program, draft.like or self.user)
            self._drop(draft, "another operation count class", why)
            return None
        chain = self._told(draft)
        # Conditions call values as the derivation does.
        conditions = conditions_of(chain.program, standing, self.forms, cancels=draft.cancels, own=own)
        if not own and self.numerics != "fast" and not all(c.holds for c in conditions):
            self.count("dropped: stands worse than the user's program")
            failed = tuple(f"{c.kind} of {c.subject}: {c.why}" for c in conditions if not c.holds)
            self._drop(draft, "stands worse than the user's program", failed, chain)
            return None
        if not own and not self._proved(draft):
            return None
        folds: list[Fold] = []
        assemblies = assemblies_of(draft.program)
        for assembly in assemblies:
            fold = fold_from(assembly)
            folds.append(fold)
            self.loops[fold] = assembly
        self.refusals.append(refusals_of(draft.program, assemblies))
        self.chains[draft.program] = chain
        return Candidate(
            program=draft.program if own else chain.program,
            folds=tuple(folds),
            derivation=chain.steps,
            conditions=conditions,
            form=draft.form,
            cost=draft.cost.texts,
            reassociated=draft.reassociated,
        )

    def _proved(self, draft: Draft) -> bool:
        """Is a draft equal to its base: reading by reading, else as a whole?"""
        base = draft.base or self.user
        if draft.way is not None:
            reader, choice = draft.way
            steps = list(choice.items())
            rungs = [base, *(reader.rebuild(dict(steps[:n])) for n in range(len(steps))), draft.program]
            if all(answer(x, y, self.memo) == "yes" for x, y in itertools.pairwise(rungs)):
                return True
        return self._equal(base, draft.program)

    def _equal(self, base: Program, program: Program) -> bool:
        found = answer(base, program, self.memo)
        if found == "yes":
            return True
        self.count(f"dropped: not proved ({found})")
        return False

    def _splits(self, candidate: Candidate) -> list[Candidate]:
        found: list[Candidate] = []
        for folds in splittable(candidate):
            self.count("built")
            written = self._written(candidate.program, folds)
            if written is None:
                continue
            over = folds[0].over
            form = f"split {over}" if candidate.form == "as written" else f"{candidate.form}, split {over}"
            # Of Folds that compute the same values the first is taken: the one to be split.
            first = tuple(sorted(candidate.folds, key=lambda f: f.over != over))
            found.append(
                replace(
                    candidate,
                    folds=first,
                    splits=(over,),
                    written_out=written.program,
                    derivation=written.steps,
                    form=form,
                )
            )
        return found

    def _written(self, program: Program, folds: Sequence[Fold]) -> Chain | None:
        """The steps to the program with some Folds over one dim written out over its parts; None if that is
        not proved."""
        chain = self.chains[program]
        over, loops = folds[0].over, [self.loops[f] for f in folds[:1]]
        for number in range(len(folds)):
            if number:
                # What is written out is over parts now; the next loop is the first over the dim itself.
                loops = [a for a in assemblies_of(chain.program) if a.over == over]
            # The rest of the program reads the loop's values only: what is to be proved is these.
            values = values_of(chain.program, tuple(loops[0].members))
            if not self._equal(values, split_from(values, loops[0])):
                return None
            chain = split(chain, loops[0])
        return chain


def _key(program: Program) -> tuple[str, ...]:
    return tuple(output.node.digest for output in program.outputs)
