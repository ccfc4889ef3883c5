"""The numerical verdict on a candidate: under which setting it may be used, why, and what is promised.

- `strict`: the operations that the user wrote, on the operands that the user wrote; at most the order in
  which the terms of a sum are added is another one, and values in between are kept in a wider dtype. Any two
  orders of adding n numbers differ by at most 2(n - 1)u times the sum of their magnitudes (u: the unit
  roundoff of the dtype they are added in; first order), which is the bound that is stated, sum by sum.
- `stable`: other operations, but no condition on exponents, denominators, differences or ranges that the
  user's program does not meet as well (design.md, "Numerical standing").
- `fast`: some condition is not met, or a stabiliser is left out because a range makes it unneeded.
"""

from __future__ import annotations

from dataclasses import dataclass

from cleave.algebra.stability import spell
from cleave.algebra.unneeded import LAW
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.ops import Contract, Input, Node, Reduce
from cleave.ir.program import Program

LEVELS = ("strict", "stable", "fast")


@dataclass(frozen=True, slots=True)
class Verdict:
    """`level` is the strictest setting that allows the candidate; `bounds` are promises, one a line."""

    level: str
    why: str
    bounds: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "\n".join([f"{self.level}: {self.why}", *(f"  {bound}" for bound in self.bounds)])


def verdict(user: Program, candidate: Candidate) -> Verdict:
    """The verdict on a candidate of a user's program."""
    if keeps_rounding(user, candidate):
        why = "the operations that the user wrote; only the order in which terms are added may be another one"
        return Verdict("strict", why, (*order_bounds(candidate.program), *joint_loops(candidate)))
    failed = [c for c in candidate.conditions if not c.holds]
    if failed:
        why = f"{len(failed)} of {len(candidate.conditions)} conditions not met"
        return Verdict("fast", why, tuple(f"{c.kind} of {c.subject}: {c.why}" for c in failed))
    if any(step.law == LAW for step in candidate.derivation):
        bounds = [
            f"{c.kind} of {c.subject}: {c.bound}"
            for c in candidate.conditions
            if c.why.startswith("its range")
        ]
        return Verdict("fast", "a maximum is left out, which ranges show to be unneeded", tuple(bounds))
    kinds = [(k, sum(c.kind == k for c in candidate.conditions)) for k in KINDS]
    told = (
        ", ".join(
            f"{count} of an {kind}" if kind[0] in "aeiou" else f"{count} of a {kind}"
            for kind, count in kinds
            if count
        )
        or "none is asked for"
    )
    return Verdict("stable", f"every condition holds ({told})")


KINDS = ("exponent", "denominator", "difference", "range")


def keeps_rounding(user: Program, candidate: Candidate) -> bool:
    """Does a candidate compute what the user wrote, step by step, but for the order of sums? A split must go
    through Folds that add or compare and nothing else."""
    mine, theirs = candidate.program.outputs, user.outputs
    if [o.node for o in mine] != [o.node for o in theirs]:
        return False
    return all(is_plain(fold) for fold in candidate.folds if fold.over in candidate.splits)


def is_plain(fold: Fold) -> bool:
    """Whether a Fold's state is the one value itself, handed out as it is: a running sum or maximum."""
    one = len(fold.values) == 1 and len(fold.state) == 1
    return one and all(isinstance(output.node.op, Input) for output in fold.finish.outputs)


def joint_loops(candidate: Candidate) -> tuple[str, ...]:
    """The Folds that `strict` does not use: what they compute in one loop is then had in one loop each."""
    return tuple(
        f"the loop over {fold.over} that has {len(fold.values)} values at once rescales: not under strict"
        for fold in candidate.folds
        if not is_plain(fold)
    )


def order_bounds(program: Program) -> tuple[str, ...]:
    """For each sum, how much another order of its terms may change it."""
    found: dict[str, None] = {}
    for node in program.nodes:
        if is_sum(node):
            sizes = "*".join(f"|{index.dim}|" for index in node.bound)
            name = spell(program, node.read())
            found[f"{name}: changes by at most 2({sizes} - 1)u times the sum of its terms' magnitudes"] = None
    return tuple(found)


def is_sum(node: Node) -> bool:
    return isinstance(node.op, Contract) or (isinstance(node.op, Reduce) and node.op.kind == "sum")
