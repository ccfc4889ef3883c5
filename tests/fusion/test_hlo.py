"""XLA's own groups, from dumps of JAX 0.11.2 on an H200, against the plan of `xla` in the epoch X26.

`NAME.before.hlo` is the module before priority fusion, `NAME.after.hlo` the one behind multi-output fusion.
`KNOWN` lists what differs (docs/fusion.md says why); everything else must be the same, group by group.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cleave.errors import ParseError
from cleave.fusion.cost import unit_flops
from cleave.fusion.decisions import apply
from cleave.fusion.hlo import (
    PLAIN,
    Computation,
    Module,
    digests_of,
    graph_of_computation,
    groups_in,
    parse_module,
)
from cleave.fusion.notation import parse_graph
from cleave.fusion.planning import plan_fusion
from cleave.fusion.repeats import bring_again, merge_repeats
from cleave.fusion.rules import Rules, device_named
from cleave.fusion.state import start

FOLDER = Path(__file__).parents[1] / "cases" / "xla"
NAMES = sorted(p.name.removesuffix(".before.hlo") for p in FOLDER.glob("*.before.hlo"))
Groups = set[frozenset[str]]
KNOWN: dict[str, tuple[int, int, int]] = {}
"""For each computation that differs: groups of XLA, groups of ours, groups that are the same."""


def theirs_and_ours(before: Module, after: Module, computation: Computation) -> tuple[Groups, Groups]:
    found = groups_in(after)[computation.name]
    theirs = set(found.groups.values()) | {frozenset([d]) for d in found.alone}
    digests = digests_of(before, computation)
    plan = plan_fusion(graph_of_computation(computation), "xla", Rules("X26", device_named("h200")))
    ours = {
        frozenset(digests[m.name] for m in g.members if m.opcode not in PLAIN and m.name in digests)
        for g in plan.kernels
    }
    return theirs, ours - {frozenset()}


@pytest.mark.parametrize("name", NAMES)
def test_the_priority_plan_has_xlas_groups(name: str) -> None:
    before, after = (parse_module((FOLDER / f"{name}.{w}.hlo").read_text()) for w in ("before", "after"))
    for computation in before.planned():
        theirs, ours = theirs_and_ours(before, after, computation)
        counts = (len(theirs), len(ours), len(theirs & ours))
        assert counts == KNOWN.get(f"{name} {computation.name}", (len(theirs),) * 3)


def test_how_much_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    total = same = 0
    for name in NAMES:
        before, after = (parse_module((FOLDER / f"{name}.{w}.hlo").read_text()) for w in ("before", "after"))
        for computation in before.planned():
            theirs, ours = theirs_and_ours(before, after, computation)
            total, same = total + len(theirs), same + len(theirs & ours)
    with capsys.disabled():
        print(f"\nXLA's groups: {same} of {total} the same")
    assert (same, total) == (100, 100)


def kept_gains(name: str) -> dict[tuple[str, str], tuple[bool, float]]:
    """Verdict and microseconds saved of each edge that priority fusion keyed, in a kept dump."""
    module = parse_module((FOLDER / f"{name}.before.hlo").read_text())
    computation = max(module.planned(), key=lambda c: len(c.instructions))
    plan = plan_fusion(graph_of_computation(computation), "priority", Rules("X26", device_named("h200")))
    return {
        (d.producer, d.consumer): (d.verdict, dict(d.numbers)["saved us"])
        for d in plan.decisions
        if "saved us" in dict(d.numbers)
    }


def test_gains_of_a_tie_are_xlas_own() -> None:
    """XLA's log of `cross_entropy` gives both edges of the negation 1.00875 us, and takes the later one. Of
    `norm_grad` both sums take their negation, though a reader of the negations would save as much."""
    gains = kept_gains("cross_entropy")
    assert gains["negate.1", "div.2.0"] == (True, pytest.approx(1.00875, abs=1e-9))
    assert ("reduce_sum.1.0", "negate.1") not in gains
    gains = kept_gains("norm_grad")
    for edge in (("reduce_sum.84.0", "negate.2"), ("reduce_sum.86.0", "negate.1.0")):
        assert gains[edge] == (True, pytest.approx(1.00875, abs=1e-9))


def test_what_few_blocks_read_again_is_no_faster_than_they_can_ask() -> None:
    """`norm_grad`: a value per row stays outside a sum over 1024 rows, whose 128 blocks would read what it is
    made from 512 times."""
    verdict, saved = kept_gains("norm_grad")["multiply.8.0", "add_any.5.0"]
    assert not verdict and saved == pytest.approx(-0.10375, abs=5e-4)


def test_keys_are_xlas_own() -> None:
    """Of the log of priority fusion for two unrolled steps: an update in place moves what it updates, a
    dynamic slice reads its index once, and computing is divided by whole operations a nanosecond."""
    gains = kept_gains("S3_2_2048")
    for edge, saved in {
        ("concatenate.2.0", "dynamic_update_slice.0.0"): 1.01975,
        ("mul.60.0", "mul.61.0"): 1.01775,
        ("dynamic_slice.7.0", "slice.6.0"): 1.0115,
    }.items():
        assert gains[edge] == (True, pytest.approx(saved, abs=1e-9)), edge


@pytest.mark.parametrize(("parts", "kernels"), [(2, 2), (5, 1)])
def test_a_concatenation_of_few_parts_shares_no_kernel(parts: int, kernels: int) -> None:
    """XLA has a kernel of its own for at most four parts, which has one result (`block`)."""
    names = [f"p{k}: f32[64,8]" for k in range(parts)]
    reads = "".join(f"  %p{k} = f32[64,8]{{1,0}} parameter({k})\n" for k in range(parts))
    body = ""
    for one in ("a", "b"):
        opcode = "negate" if one == "a" else "cosine"
        made = [f"%{one}{k}" for k in range(parts)]
        body += "".join(f"  {m} = f32[64,8]{{1,0}} {opcode}(%p{k})\n" for k, m in enumerate(made))
        body += f"  %{one} = f32[64,{8 * parts}]{{1,0}} concatenate({', '.join(made)}), dimensions={{1}}\n"
    shape = f"f32[64,{8 * parts}]{{1,0}}"
    text = f"HloModule m\nENTRY %main ({', '.join(names)}) -> ({shape}, {shape}) {{\n{reads}{body}"
    text += f"  ROOT %t = ({shape}, {shape}) tuple(%a, %b)\n}}\n"
    module = parse_module(text)
    graph = graph_of_computation(module.computations[module.entry])
    plan = plan_fusion(graph, "xla", Rules("X26", device_named("h200")))
    assert len(plan.kernels) == kernels
    free = Rules("X26", device_named("h200"), concat_kernel=False)
    assert len(plan_fusion(graph, "xla", free).kernels) == 1


def test_what_is_brought_in_twice_counts_until_the_pass_is_over() -> None:
    """Copies of `a` meet in `d`: until they are merged they are computed and emitted twice."""
    graph = parse_graph(
        "p: f32[64] = parameter\na = exp(p)\nb = neg(a)\nc = abs(a)\nd = add(b, c)\nret d", "twice"
    )
    state, rules = start(graph, today=True), Rules("X26", device_named("h200"))
    for producer, consumer in (("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")):
        one, two = state.unit_of(producer), state.unit_of(consumer)
        bring_again(two, one, rules)
        apply(state, "fuse", one, two)
    unit = state.unit_of("d")
    assert unit.repeated == (64 * 79, 1) and not unit.read_again
    once = 64 * (79 + 3 + 3 + 7)
    assert (unit.code()[0], unit_flops(unit, rules)) == (5, once + 64 * 79)
    merge_repeats(unit)
    assert (unit.code()[0], unit_flops(unit, rules)) == (4, once)


TEXT = """HloModule jit_f
%fused (p.0: f32[8], p.1: f32[8]) -> (f32[8], f32[8]) {
  %p.0 = f32[8]{0} parameter(0)
  %p.1 = f32[8]{0} parameter(1)
  %mul.1 = f32[8]{0} multiply(%p.0, %p.1), metadata={op_name="jit(f)/mul" source_line=3}
  %neg.1 = f32[8]{0} negate(%mul.1)
  ROOT %tuple = (f32[8]{0}, f32[8]{0}) tuple(%mul.1, %neg.1)
}
ENTRY %main (x: f32[8], both: (f32[8], f32[8])) -> f32[8] {
  %x = f32[8]{0} parameter(0)
  %both = (f32[8]{0}, f32[8]{0}) parameter(1)
  %fusion = (f32[8]{0}, /*index=1*/f32[8]{0}) fusion(%x, %both#1), kind=kLoop, calls=%fused
  %slice = f32[4]{0} slice(%fusion#0), slice={[0:8:2]}
  ROOT %add = f32[8]{0} add(%fusion#0, %fusion#1)
}
"""


def test_a_small_module_is_read() -> None:
    module = parse_module(TEXT)
    entry = module.computations[module.entry]
    found = groups_in(module)["main"]
    assert [len(g) for g in found.groups.values()] == [2] and len(found.alone) == 2
    graph = graph_of_computation(entry)
    assert [v.opcode for v in graph.vertices].count("get-tuple-element") == 3
    cut = graph.named("slice")
    assert cut.starts == (0,) and cut.strides == (2,) and graph.root is graph.named("add")
    fused = module.computations["fused"]
    assert fused.named()["mul.1"].line == "3" and graph_of_computation(fused).outputs[1].opcode == "neg"
    for text in (
        "HloModule x",
        TEXT.replace("f32[4]", "what[4]"),
        TEXT.replace("tuple(%mul.1, %neg.1)", "tuple(%mul.1"),
    ):
        with pytest.raises(ParseError):
            parse_module(text)
