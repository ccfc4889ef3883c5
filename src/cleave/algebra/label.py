"""Canonical order of bound indices: colour refinement, then bounded individualisation.

The order decides only how a form is *written*, never whether two forms are equal: a text with binders named
by any order stands for the same value. Beyond `BUDGET` individualisations the order is the best one seen,
which can make two equal forms look different (then the answer is Unknown), never two different ones equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from cleave.ir.dims import Index

BUDGET = 48
"""How many complete orders are tried for one binder that refinement cannot separate."""

Render = Callable[[Mapping[Index, str]], str]
"""Text of the bound body, with the bound indices named by the mapping (names may coincide)."""


def order(binders: Sequence[Index], render: Render) -> tuple[Index, ...]:
    """The binders in an order that depends on the structure of the body only, not on their numbers."""
    if len(binders) < 2:
        return tuple(binders)
    colours = {index: str(index.dim) for index in binders}
    ranked = sorted(binders, key=colours.__getitem__)
    if len(set(colours.values())) == len(binders):
        return tuple(ranked)
    search = _Search(render)
    search.visit(_refine(colours, render))
    return search.best


def _refine(colours: dict[Index, str], render: Render) -> dict[Index, str]:
    """Split colour classes by what the body looks like from each index, until nothing changes."""
    while True:
        classes = len(set(colours.values()))
        if classes == len(colours):
            return colours
        count: dict[str, int] = {}
        for colour in colours.values():
            count[colour] = count.get(colour, 0) + 1
        seen = {
            index: (colour, render({**colours, index: "*" + colour}) if count[colour] > 1 else "")
            for index, colour in colours.items()
        }
        rank = {view: f"{number:03d}" for number, view in enumerate(sorted(set(seen.values())))}
        colours = {index: rank[view] for index, view in seen.items()}
        if len(rank) == classes:
            return colours


class _Search:
    """Individualises indices that refinement leaves alike, and keeps the order with the smallest text."""

    def __init__(self, render: Render) -> None:
        self.render = render
        self.left = BUDGET
        self.best: tuple[Index, ...] = ()
        self.text: str | None = None

    def visit(self, colours: dict[Index, str]) -> None:
        alike: dict[str, list[Index]] = {}
        for index, colour in colours.items():
            alike.setdefault(colour, []).append(index)
        tied = sorted((len(group), colour) for colour, group in alike.items() if len(group) > 1)
        if not tied:
            ranked = tuple(sorted(colours, key=colours.__getitem__))
            text = self.render({index: f"@{slot:03d}" for slot, index in enumerate(ranked)})
            if self.text is None or text < self.text:
                self.text, self.best = text, ranked
            self.left -= 1
            return
        chosen = tied[0][1]
        for index in alike[chosen]:
            if self.left <= 0 and self.text is not None:
                return
            self.visit(_refine({**colours, index: chosen + "!"}, self.render))
