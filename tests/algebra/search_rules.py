"""The rules of the search that a test can switch off, each with a program of the recall suite that it loses.

A rule is told of in derivations by one or more laws; `LAWS` lists every law that a step of a derivation can
name, as the code has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from cleave.algebra import derive, exponents, extremes, read, share, unions, unneeded
from cleave.algebra import search as searching
from cleave.algebra.chain import Law
from cleave.algebra.read import Reader, Reading

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Rule:
    """How a rule is switched off, a case that has not all its forms without it, and the laws by which
    derivations tell of it. No case: no form asks for what the rule makes."""

    off: Patch
    case: str
    laws: tuple[str, ...]


def _change(law: str) -> Patch:
    """Without one of the rewrites that make programs to read."""
    kept = tuple(change for change in searching.CHANGES if change[0].text != law)
    assert len(kept) == len(searching.CHANGES) - 1
    return lambda patch: patch.setattr(searching, "CHANGES", kept)


def _none(module: object, name: str) -> Patch:
    return lambda patch: patch.setattr(module, name, lambda *_: None)


def _nothing(module: object, name: str) -> Patch:
    return lambda patch: patch.setattr(module, name, lambda *_: [])


def _readings(kept: Callable[[Reading], bool]) -> Patch:
    """Without some of the readings of a cluster."""
    real = Reader.readings

    def off(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(
            Reader,
            "readings",
            lambda reader, node: tuple(r for r in real(reader, node) if r is read.OWN or kept(r)),
        )

    return off


def _plain(reading: Reading) -> bool:
    return reading.opened < 0 and reading.common[0] < 0


def _one_order(patch: pytest.MonkeyPatch) -> None:
    real = read.orders_of
    patch.setattr(read, "orders_of", lambda form: real(form)[:1])


LEAVES, JOINS = "a factor without the bound index leaves the sum", "a factor joins the sum"

RULES = {
    "unions taken apart": Rule(_change(unions.LAW), "concatenated", (unions.LAW,)),
    "logs leave exponents": Rule(_change(exponents.LOGS), "attention_by_log_sum_exp", (exponents.LOGS,)),
    "exponentials leave quotients": Rule(_change(exponents.QUOTIENTS), "silu_other", (exponents.QUOTIENTS,)),
    "maxima lifted": Rule(_change(extremes.LAW), "largest_relu", (extremes.LAW,)),
    "values computed once": Rule(_none(share, "shared"), "softmax_and_log_sum_exp", (share.LAW,)),
    "stabilising maxima": Rule(
        _none(searching, "stabilise"),
        "softmax_naive",
        (searching.SHIFTED.text, searching.CANCELLED.text),
    ),
    "unions joined": Rule(_none(searching, "joined"), "attention_past_apart", (searching.JOINED.text,)),
    "maxima left out": Rule(_none(unneeded, "without_maxima"), "attention_capped", (unneeded.LAW,)),
    "sums of sums": Rule(
        _nothing(Reader, "_distributed"), "lora_merged", (derive.OPENED.text, derive.TERMS.text)
    ),
    "common factors": Rule(_nothing(Reader, "_common"), "lora", (derive.COMMON.text,)),
    "orders of summation": Rule(_one_order, "chain", (derive.COMMUTE.text,)),
    "factors leave": Rule(_readings(lambda r: not _plain(r) or not r.late), "softmax_matmul", (LEAVES,)),
    "factors join": Rule(_readings(lambda r: not _plain(r) or r.late), "linear_scaled_by_rms", (JOINS,)),
    "other operands": Rule(_readings(lambda r: not r.last), "", (derive.OTHER.text,)),
    "regrouping": Rule(_readings(lambda r: not _plain(r)), "chain", (derive.REGROUPED.text,)),
    "splits": Rule(
        _nothing(searching, "splittable"),
        "product",
        (derive.MOVED.text, *(law.text for law in derive.CARRIED.values())),
    ),
}


def laws_in_code() -> Iterator[str]:
    """Every law that the search's modules name."""
    for module in (searching, derive):
        for value in vars(module).values():
            if isinstance(value, Law):
                yield value.text
            if isinstance(value, dict):
                yield from (law.text for law in value.values() if isinstance(law, Law))
    yield from (law.text for law, _ in searching.CHANGES)
