"""Attacks on certificates: what is edited must be refused, unless it still proves what it says."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from algebra.equal_forms import CAPS, CONDITIONAL, FORMS
from algebra.equal_rows import ROWS
from algebra.pairs import program, refuted
from cleave.algebra.certificate import certify
from cleave.errors import CleaveError, Invalid
from cleave.ir.certificate import Certificate, Step, parse
from cleave.ir.checker import check
from cleave.ir.implications import LAWS
from cleave.ir.text import parse_program

SOURCE = Path(__file__).parents[1] / "src" / "cleave" / "ir"
TRUSTED = ("checker", "certificate", "meaning", "terms", "identities", "implications")
"""What the checker is made of."""

PAIRS = {**ROWS, **FORMS, **CAPS, **{name: row[:3] for name, row in CONDITIONAL.items()}}
ATTACKED = (
    "safe and unsafe", "divided last", "masked by products", "sigmoid", "row sums of a product",
    "variance in one pass", "one-hot loss", "split of a product", "largest of a scaled row",
    "root of a square", "capture", "a quotient of one value", "a log-sum-exp where nothing may be seen",
)  # fmt: skip
CAPTURE = (
    "a[N, N], b[N]",
    "r[i: N] = sum[j: N](a[i, j])\ny[i: N] = mul(r[i], b[i])\nz = sum[i: N](y[i])\n-> z",
    "c[i: N, j: N] = mul(a[i, j], b[i])\nr[i: N] = sum[j: N](c[i, j])\nz = sum[i: N](r[i])\n-> z",
)


@cache
def certificate(name: str) -> str:
    inputs, one, two = CAPTURE if name == "capture" else PAIRS[name]
    found = certify(program(inputs, one), program(inputs, two))
    assert found.holds, found.reason
    return found.text


def accepted(text: str) -> Certificate | None:
    try:
        return check(text)
    except Invalid:
        return None


def sound(text: str, original: str) -> None:
    """A text that is accepted proves the same as before, or something that no numbers speak against."""
    found, old = accepted(text), parse(original)
    if found is None or text == original:
        return
    same = (found.first, found.second, found.conditions) == (old.first, old.second, old.conditions)
    if not same and not found.conditions:
        assert not refuted(parse_program(found.first), parse_program(found.second)), text


@pytest.mark.parametrize("name", ATTACKED)
def test_what_is_written_is_accepted(name: str) -> None:
    text = certificate(name)
    assert str(check(text)) == text
    assert check(text).steps or name in ("root of a square", "a quotient of one value")


def replaced(found: Certificate, *steps: Step) -> str:
    return str(Certificate(found.first, found.second, found.conditions, steps))


@pytest.mark.parametrize("name", PAIRS)
def test_no_step_can_be_left_out(name: str) -> None:
    """Not one: the writer leaves out what nothing later needs."""
    steps = (found := parse(certificate(name))).steps
    for number in range(len(steps)):
        assert accepted(replaced(found, *steps[:number], *steps[number + 1 :])) is None


@pytest.mark.parametrize("name", ATTACKED)
def test_steps_cannot_be_doubled_swapped_or_altered(name: str) -> None:
    """Neighbours may be swapped only at one place and where neither makes or changes what the other is on."""
    steps = (found := parse(certificate(name))).steps
    for number, step in enumerate(steps):
        before, after = steps[:number], steps[number + 1 :]
        assert accepted(replaced(found, *before, step, step, *after)) is None
        for old, new in ((step.before, step.after), (step.after, step.before), (step.before, "1")):
            changed = Step(step.place, step.law, step.detail, new, old)
            assert changed == step or accepted(replaced(found, *before, changed, *after)) is None
        if after and accepted(replaced(found, *before, after[0], step, *after[1:])) is not None:
            assert after[0].place == step.place and after[0].before not in step.after


@pytest.mark.parametrize("name", ATTACKED)
def test_no_law_can_be_called_another(name: str) -> None:
    found = parse(certificate(name))
    for number, step in enumerate(found.steps):
        for law in (*LAWS, "cross", "axis-union", "ring", ""):
            if law != step.law:
                changed = type(step)(step.place, law, step.detail, step.before, step.after)
                steps = (*found.steps[:number], changed, *found.steps[number + 1 :])
                assert accepted(str(Certificate(found.first, found.second, found.conditions, steps))) is None


@pytest.mark.parametrize("name", ATTACKED)
def test_no_place_can_be_changed(name: str) -> None:
    found = parse(certificate(name))
    names = [f"{side} {n}" for side, text in (("first", found.first), ("second", found.second))
             for n in parse_program(text).names.values()]  # fmt: skip
    for number, step in enumerate(found.steps):
        for place in (*names, "output 1", "output 0", "first", ""):
            if place != step.place:
                changed = type(step)(place, step.law, step.detail, step.before, step.after)
                steps = (*found.steps[:number], changed, *found.steps[number + 1 :])
                sound(str(Certificate(found.first, found.second, found.conditions, steps)), str(found))
    if found.steps:
        moved = (*found.steps[1:], found.steps[0])
        assert moved == found.steps or accepted(
            str(Certificate(found.first, found.second, found.conditions, moved))
        ) is None  # fmt: skip


@pytest.mark.parametrize("name", ATTACKED)
def test_programs_cannot_be_swapped_or_replaced(name: str) -> None:
    found = parse(certificate(name))
    other = parse(certificate("sigmoid" if name != "sigmoid" else "root of a square"))
    if found.steps:
        swapped = Certificate(found.second, found.first, found.conditions, found.steps)
        assert accepted(str(swapped)) is None
    for first, second in ((other.first, found.second), (found.first, other.second)):
        assert accepted(str(Certificate(first, second, found.conditions, found.steps))) is None


@pytest.mark.parametrize("name", ATTACKED)
def test_conditions_are_those_that_are_needed(name: str) -> None:
    found = parse(certificate(name))
    more = (*found.conditions, "for all(N'1: x[N'1, 0]) != 0")
    assert accepted(str(Certificate(found.first, found.second, more, found.steps))) is None
    for number in range(len(found.conditions)):
        fewer = (*found.conditions[:number], *found.conditions[number + 1 :])
        assert accepted(str(Certificate(found.first, found.second, fewer, found.steps))) is None


def test_a_bound_index_cannot_capture_another() -> None:
    text = certificate("capture")
    assert "N'1" in text
    for old, new in (("N'1", "N'2"), ("N'2", "N'1"), ("N.0", "N'1"), ("N~1", "N'1"), ("N'1", "N.0")):
        lines = [line if not line.startswith("  ") else line.replace(old, new) for line in text.split("\n")]
        if "\n".join(lines) != text:
            assert accepted("\n".join(lines)) is None
    # The same in the programs: the inner sum runs over the outer index.
    found = parse(text)
    for old, new in (("b[n]", "b[n1]"), ("a[n, n1]", "a[n, n]"), ("a[n, n1]", "a[n1, n]"), ("r[n]", "r[0]")):
        for first, second in (
            (found.first.replace(old, new), found.second),
            (found.first, found.second.replace(old, new)),
        ):
            if (first, second) != (found.first, found.second):
                changed = str(Certificate(first, second, found.conditions, found.steps))
                assert accepted(changed) is None


OPERATIONS = (
    "add",
    "sub",
    "mul",
    "div",
    "exp",
    "abs",
    "neg",
    "max",
    "min",
    "sum",
    "sqrt",
    "log",
    "le",
    "lt",
    "ge",
)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_programs_cannot_be_changed_under_a_certificate(data: st.DataObject) -> None:
    """An operation, a number or an index of a program is another one."""
    text = certificate(data.draw(st.sampled_from(ATTACKED)))
    found = parse(text)
    words = (*OPERATIONS, "0.0", "1.0", "-inf", "mask", "x", "i", "j", "k", "s", "t", "n", "p", "K", "T", "N")
    second = data.draw(st.booleans())
    old = found.second if second else found.first
    places = [(i, w) for w in words for i in range(len(old)) if old.startswith(w, i)]
    at, word = data.draw(st.sampled_from(places))
    new = old[:at] + data.draw(st.sampled_from(words)) + old[at + len(word) :]
    first, last = (found.first, new) if second else (new, found.second)
    try:
        parse_program(new)
        changed = str(Certificate(first, last, found.conditions, found.steps))
    except CleaveError:
        return
    sound(changed, text)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_letters_cannot_be_changed(data: st.DataObject) -> None:
    """Characters are dropped, doubled, exchanged or taken from elsewhere in the text."""
    text = certificate(data.draw(st.sampled_from(ATTACKED)))
    changed = text
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(changed) - 2))
        how = data.draw(st.integers(0, 3))
        other = changed[data.draw(st.integers(0, len(changed) - 1))]
        new = {0: "", 1: changed[at] * 2, 2: other, 3: changed[at + 1] + changed[at]}[how]
        changed = changed[:at] + new + changed[at + (2 if how == 3 else 1) :]
    sound(changed, text)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_steps_of_others_do_not_help(data: st.DataObject) -> None:
    """The steps of one certificate, under the programs of another."""
    one, two = (parse(certificate(data.draw(st.sampled_from(ATTACKED)))) for _ in range(2))
    mixed = str(Certificate(one.first, two.second, one.conditions, one.steps + two.steps))
    if accepted(mixed) is not None and not one.conditions:
        assert not refuted(parse_program(one.first), parse_program(two.second))


@pytest.mark.parametrize(
    "text", ["", "cleave certificate 1\nend\n", "}\n}\nend", "\x00", "cleave certificate 2\n"]
)
def test_what_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        check(text)


@pytest.mark.parametrize("name", TRUSTED)
def test_the_checker_shares_nothing_with_the_search(name: str) -> None:
    import sys

    tree = ast.parse((SOURCE / f"{name}.py").read_text())
    for node in ast.walk(tree):
        modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        for module in modules:
            ours = module.startswith(("cleave.ir.", "cleave.errors"))
            assert ours or module.split(".")[0] in sys.stdlib_module_names, module


def test_the_checker_is_short() -> None:
    assert len((SOURCE / "checker.py").read_text().splitlines()) <= 300
