"""Certificates: which equal programs get one that checks, and that nearly equal ones get none."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from algebra.equal_forms import CAPS, CONDITIONAL, FORMS
from algebra.equal_rows import ROWS
from algebra.near_forms import FORMS as NEAR_FORMS
from algebra.near_rows import ROWS as NEAR_ROWS
from algebra.pairs import program, refuted
from algebra.random_steps import rewritten
from cleave.algebra.certificate import certify, concerns
from cleave.cli import main
from cleave.ir.certificate import parse
from cleave.ir.checker import check
from cleave.ir.ops import Access, Contract, Map, Node, Reduce, make_node
from cleave.ir.program import Program
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite

PAIRS = {**ROWS, **FORMS, **CAPS}
NEAR = {**NEAR_FORMS, **NEAR_ROWS}


@pytest.mark.parametrize("name", PAIRS)
def test_equal_programs_have_certificates(name: str) -> None:
    inputs, one, two = PAIRS[name]
    a, b = program(inputs, one), program(inputs, two)
    found = certify(a, b)
    assert found.holds, found.reason
    assert not found.conditions
    assert concerns(check(found.text), a, b)


@pytest.mark.parametrize("name", CONDITIONAL)
def test_conditions_are_listed(name: str) -> None:
    inputs, one, two, needed = CONDITIONAL[name]
    found = certify(program(inputs, one), program(inputs, two))
    assert found.holds, found.reason
    assert len(found.conditions) == len(needed)
    assert parse(found.text).conditions == found.conditions


@pytest.mark.parametrize("name", NEAR)
def test_near_misses_have_none(name: str) -> None:
    inputs, one, two = NEAR[name]
    found = certify(program(inputs, one), program(inputs, two))
    # One pair of the near misses is equal where something is seen in each part.
    assert not found.holds or (found.conditions and name == "maxima of parts without a guard")
    assert found.holds or found.reason


def test_the_same_programs_give_the_same_bytes() -> None:
    inputs, one, two = PAIRS["masked, split with guarded maxima of parts"]
    texts = {certify(program(inputs, one), program(inputs, two)).text for _ in range(2)}
    assert len(texts) == 1 and texts.pop().count("\nstep ") >= 10


def test_places_and_laws_are_named() -> None:
    inputs, one, two = PAIRS["split of a product"]
    steps = parse(certify(program(inputs, one), program(inputs, two)).text).steps
    assert [(s.place, s.law) for s in steps] == [("second y", "sum-open"), ("second y", "sum-split")]


def test_programs_of_other_inputs_have_none() -> None:
    a = program("x[N]", "y[n: N] = mul(x[n], 1.0)\n-> y[n]")
    b = program("x[N], z[N]", "y[n: N] = mul(x[n], z[n])\n-> y[n]")
    assert "lacks" in certify(a, b).reason
    a = program("x[N, K], y[M, K]", "z[n: N, m: M, k: K] = mul(x[n, k], y[m, k])\n-> z[n, m, k]")
    b = program("x[N, K], y[N, K]", "z[n: N, m: N, k: K] = mul(x[n, k], y[m, k])\n-> z[n, m, k]")
    assert not certify(a, b).holds and certify(b, a).holds


def test_what_is_computed_must_be_read_inside() -> None:
    a = program("x[N]", "i[n: N] = index(n)\nz[n: N] = add(i[n - 1], x[n])\n-> z[n]")
    b = program("x[N]", "i[n: N] = index(n - 1)\nz[n: N] = add(i[n], x[n])\n-> z[n]")
    assert not certify(a, b).holds


def test_what_a_select_drops_need_not_be_defined() -> None:
    safe = "z[n: N] = eq(d[n], 0.0)\nq[n: N] = div(x[n], d[n])\ny[n: N] = select(z[n], 0.0, q[n])\n-> y[n]"
    plain = "q[n: N] = div(x[n], d[n])\n-> q[n]"
    both = [program("x[N], d[N]", body) for body in (safe, plain)]
    assert certify(both[0], both[0]).holds and not certify(both[0], both[0]).conditions
    assert not certify(both[0], both[1]).holds or certify(both[0], both[1]).conditions


def test_masks_that_count_from_both_ends() -> None:
    """Sizes and positions, of several dims, in one predicate."""
    rows = "j[t: T] = index(t)\ng[s: S, t: T] = {}\ny[s: S, t: T] = select(g[s, t], {})\n-> y[s, t]"
    one = "i[s: S] = index(s + T - S)\n" + rows.format("le(j[t], i[s])", "x[s, t], 0.0")
    two = "i[s: S] = index(s + T - S + 1)\n" + rows.format("ge(j[t], i[s])", "0.0, x[s, t]")
    assert certify(program("x[S, T]", one), program("x[S, T]", two)).holds
    off = "i[s: S] = index(s + T - S)\n" + rows.format("ge(j[t], i[s])", "0.0, x[s, t]")
    assert not certify(program("x[S, T]", one), program("x[S, T]", off)).holds


# ---------------------------------------------------------------- random pairs

_WRONG = {
    "add": "sub", "sub": "add", "mul": "add", "max": "min", "min": "max", "lt": "le", "le": "lt", "gt": "ge",
    "ge": "gt", "exp": "abs", "abs": "neg", "sqrt": "abs", "and": "or", "or": "and", "eq": "ne", "div": "mul",
    "sum": "max",
}  # fmt: skip


def _wrong(node: Node) -> Node | None:
    """The node with another operation, its branches exchanged, or a square operand transposed."""
    op = node.op
    if isinstance(op, Map) and op.fn == "select":
        return make_node(Map("select", (op.args[0], op.args[2], op.args[1])), node.axes, node.dtype)
    if isinstance(op, Map) and op.fn in _WRONG and (node.dtype != "bool" or op.fn[0] in "lgeo"):
        return make_node(Map(_WRONG[op.fn], op.args), node.axes, node.dtype)
    if isinstance(op, Reduce) and op.kind in _WRONG:
        return make_node(Reduce(_WRONG[op.kind], op.bound, op.arg), node.axes, node.dtype)
    if isinstance(op, Contract):
        return make_node(Contract(op.bound, tuple(map(_turned, op.args))), node.axes, node.dtype)
    return None


def _turned(access: Access) -> Access:
    dims = access.node.dims
    return Access(access.node, access.terms[::-1]) if len(dims) == 2 and dims[0] == dims[1] else access


def _spoilt(a: Program, rng: random.Random) -> Program:
    """The program with one node made wrong."""
    nodes = [n for n in a.nodes if n not in a.inputs]
    rng.shuffle(nodes)
    for place in nodes:
        new = _wrong(place)
        if new is not None and new is not place:

            def visit(node: Node, replaced: Replaced, place: Node = place, new: Node = new) -> Access:
                return new.read() if node is place else replace_arguments(node, replaced).read()

            return replace_nodes(a, rewrite((o.node for o in a.outputs), visit))
    return a


def _rates(name: str, count: int) -> int:
    """How many of the random pairs of equal programs have a certificate; none may be false."""
    held = 0
    for seed in range(count):
        a, b, laws = rewritten(f"{name} {seed}")
        found = certify(a, b)
        held += found.holds
        if found.holds and not found.conditions:
            assert not refuted(a, b, count=3), (seed, laws)
        spoilt = _spoilt(b, random.Random(f"{name} {seed}"))
        wrong = certify(a, spoilt)
        if wrong.holds and not wrong.conditions:
            assert not refuted(a, spoilt, count=3), (seed, laws)
    return held


def test_random_pairs() -> None:
    assert _rates("certificate", 12) >= 9


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_many_random_pairs(block: int) -> None:
    assert _rates(f"certificates {block}", 150) >= 125


# ---------------------------------------------------------------- the command

FILE = """
import torch, cleave

@cleave.program(x="f32[N, K]")
def safe(x):
    return torch.softmax(x, -1)

@cleave.program(x="f32[N, K]")
def unsafe(x):
    e = x.exp()
    return e / e.sum(-1, keepdim=True)

@cleave.program(x="f32[N, K]")
def doubled(x):
    return 2 * torch.softmax(x, -1)

@cleave.program(x="f32[N, K]")
def rounded(x):
    return x.cos() - x.cos() + torch.softmax(x, -1)
"""


def _run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as done:
        main(words)
    said = capsys.readouterr()
    assert isinstance(done.value.code, int)
    return done.value.code, said.out, said.err


def test_the_command_writes_and_checks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, proof = tmp_path / "p.py", tmp_path / "proof.txt"
    path.write_text(FILE)
    code, said, _ = _run(capsys, "prove", f"{path}:safe", f"{path}:unsafe", "--certificate", str(proof))
    assert code == 0 and "certificate: 1 step, checked" in said
    code, said, _ = _run(capsys, "prove", "--check", str(proof))
    assert (code, said) == (0, "Yes\ncertificate: 1 step, checked\n")
    assert _run(capsys, "prove", f"{path}:safe", f"{path}:unsafe", "--check", str(proof))[0] == 0
    code, _, said = _run(capsys, "prove", f"{path}:safe", f"{path}:rounded", "--check", str(proof))
    assert code == 4 and "other programs" in said
    proof.write_text(proof.read_text().replace("sum-part", "sum-size"))
    code, _, said = _run(capsys, "prove", "--check", str(proof))
    assert code == 4 and "sum-size does not apply" in said


def test_the_command_without_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, proof = tmp_path / "p.py", tmp_path / "proof.txt"
    path.write_text(FILE)
    code, _, _ = _run(capsys, "prove", f"{path}:safe", f"{path}:doubled", "--certificate", str(proof))
    assert code == 1 and not proof.exists()
    assert _run(capsys, "prove", f"{path}:safe")[0] == 4
    assert _run(capsys, "prove")[0] == 4
    assert _run(capsys, "prove", "--check", str(proof))[0] == 4
    assert _run(capsys, "prove", "--check", str(proof), "--certificate", str(proof))[0] == 4
