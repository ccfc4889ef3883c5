"""Every rule of the search is needed: without it a recall row is lost; and all laws are registered."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.wanted import FOLDER, load

from algebra.search_rules import RULES, laws_in_code
from cleave.algebra import laws, share
from cleave.algebra import search as searching
from cleave.algebra.search import search


@pytest.mark.parametrize("name", [name for name, rule in RULES.items() if rule.case])
def test_without_a_rule_a_row_is_lost(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = RULES[name]
    case = load(FOLDER / f"{rule.case}.cleave")
    assert not case.lost(search(case.program, numerics=case.numerics))
    rule.off(monkeypatch)
    assert case.lost(search(case.program, numerics=case.numerics))


def test_what_no_form_asks_for_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    rule = RULES["other operands"]
    told = [s.law for c in search(_two_scales()).candidates for s in c.derivation]
    assert set(rule.laws) <= set(told)
    rule.off(monkeypatch)
    assert not any(s.law in rule.laws for c in search(_two_scales()).candidates for s in c.derivation)


def _two_scales():
    from cleave.ir.text import parse_program

    return parse_program("""
    program scales(a: f32[N, K], b: f32[K, O], c: f32[K]) {
      d[n: N, o: O, k: K]: f32 = mul(a[n, k], b[k, o])
      e[n: N, o: O, k: K]: f32 = mul(d[n, o, k], c[k])
      out[n: N, o: O]: f32 = sum[k: K](e[n, o, k])
      return out[n, o]
    }
    """)


def test_every_law_of_a_derivation_belongs_to_a_rule_that_can_be_switched_off() -> None:
    found = set(laws_in_code())
    known = {law for rule in RULES.values() for law in rule.laws}
    # What these are given, or say, is made for the place.
    made = {"a factor without the bound index leaves the sum", "a factor joins the sum", share.LAW}
    assert known - made == found
    assert {law.text for law, _ in searching.CHANGES} <= known


# ---------------------------------------------------------------- the laws of proofs, as the code has them


def switches() -> Iterator[str]:
    """The names of laws and conditions that the code asks whether they are in force."""
    for path in sorted(Path(laws.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == "on":
                names = [a for a in ast.walk(node.args[0]) if isinstance(a, ast.Constant)]
                assert names, f"{path.name}:{node.lineno}: the name of a law is no literal"
                yield from (str(name.value) for name in names)


def test_what_the_code_can_switch_off_is_what_is_registered() -> None:
    """`same` is not a rule: it is how a proof ends."""
    assert set(switches()) == {*laws.LAWS, *laws.CONDITIONS} - {"same"}
