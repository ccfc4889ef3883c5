"""XLA's own groups, from dumps of JAX 0.11.2 on an H200, against the plan of `xla` in the epoch X26.

`NAME.before.hlo` is the module before priority fusion, `NAME.after.hlo` the one behind multi-output fusion.
`KNOWN` lists what differs (docs/fusion.md says why); everything else must be the same, group by group.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cleave.errors import ParseError
from cleave.fusion.hlo import (
    PLAIN,
    Computation,
    Module,
    digests_of,
    graph_of_computation,
    groups_in,
    parse_module,
)
from cleave.fusion.planning import plan_fusion
from cleave.fusion.rules import Rules, device_named

FOLDER = Path(__file__).parents[1] / "cases" / "xla"
NAMES = sorted(p.name.removesuffix(".before.hlo") for p in FOLDER.glob("*.before.hlo"))
Groups = set[frozenset[str]]
KNOWN: dict[str, tuple[int, int, int]] = {
    "block main.7": (19, 18, 17),
    "cross_entropy main.10": (5, 5, 3),
    "norm_grad main.12": (7, 5, 3),
}
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
    assert same >= 0.9 * total


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
