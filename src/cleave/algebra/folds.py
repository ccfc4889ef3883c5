"""Folds: how each group of reductions over one dim is computed piece by piece (design.md, section 3).

`folds_of` puts the reductions of a program into frames and stages (`frame`), writes their bodies around
running values (`bodies`, `members`), and delivers for each stage one `Fold` whose state holds maxima, plain
sums, and sums that are rescaled whenever a running value changes (`pieces`). `split_program` writes the same
computation out over the parts of a partition.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cleave.algebra.build import Builder
from cleave.algebra.frame import Site, stages
from cleave.algebra.members import Member, member_of
from cleave.algebra.moments import LATTICE, Moment, State
from cleave.algebra.pieces import Assembly
from cleave.algebra.rescaled import rescaled
from cleave.algebra.support import support_of
from cleave.errors import Unsupported
from cleave.ir.candidate import Element, Fold, Refusal, Value
from cleave.ir.dims import Index, Join, Part, Parts, var
from cleave.ir.ops import (
    Access,
    Const,
    Input,
    Node,
    Reduce,
    Scalar,
    const,
    contract_node,
    input_node,
    map_node,
    reduce_node,
)
from cleave.ir.program import Output, Program, sort_nodes
from cleave.ir.rewrite import Replaced, replace_arguments, replace_nodes, rewrite
from cleave.ir.text import parse_program, print_program


def folds_of(program: Program) -> tuple[Fold, ...]:
    """A Fold for every reduction of the program and each of its bound indices, in program order.

    Reductions that one loop can compute share a Fold; one that needs the finished value of another over the
    same dim stands in a Fold of its own, whose `reason` says why."""
    return tuple(fold_from(assembly) for assembly in assemblies_of(program))


def refusals_of(program: Program, assemblies: Sequence[Assembly] | None = None) -> tuple[Refusal, ...]:
    """For each reduction that stands in a loop of its own because no Fold follows the running values of those
    that it needs: which ones, and why. Values are called as the program prints them."""
    found: dict[Refusal, None] = {}
    names: Mapping[Node, str] = {}
    for assembly in assemblies_of(program) if assemblies is None else assemblies:
        for apart in assembly.stage.apart:
            names = names or parse_program(print_program(program)).names
            value, *needs = (names.get(n, "a value") for n in (apart.site.node, *apart.needs))
            found[Refusal(assembly.over, value, tuple(needs), apart.why)] = None
    return tuple(found)


def split_program(program: Program, fold: Fold) -> Program:
    """The program with the values of a Fold computed for each part of a partition of `fold.over` first, and
    then merged: `Parts` and `Part` dims, joined indices."""
    wanted = tuple(v.node for v in fold.values)
    for assembly in assemblies_of(program):
        if assembly.over == fold.over and tuple(assembly.members) == wanted:
            return split_from(program, assembly)
    raise Unsupported(f"the fold over {fold.over} is not one of program {program.name}")


def state_dtype(program: Program) -> str:
    """float64 where a tensor of the program has it, else float32."""
    tensors = [n for n in (*program.inputs, *program.nodes) if not isinstance(n.op, Const | Scalar)]
    return "f64" if any(n.dtype == "f64" for n in tensors) else "f32"


def assemblies_of(program: Program) -> list[Assembly]:
    """The loops of a program with their components: what a Fold and a split form are made from."""
    dtype = state_dtype(program)
    members: dict[tuple[Site, frozenset[Node]], Member] = {}

    def member(site: Site, running: frozenset[Node]) -> Member:
        key = (site, running)
        if key not in members:
            members[key] = member_of(site, running)
        return members[key]

    def rescales(site: Site, running: frozenset[Node]) -> str:
        try:
            member(site, running)
        except Unsupported as problem:
            return problem.what
        return ""

    found: list[Assembly] = []
    for stage in stages(program, rescales):
        inside = {site.node for site in stage.sites}
        each = [
            member(site, frozenset(inside) & read)
            for site, read in zip(stage.sites, stage.reads, strict=True)
        ]
        found.append(Assembly(stage, each, dtype))
    return found


# ---------------------------------------------------------------- the four programs


def fold_from(assembly: Assembly) -> Fold:
    """The Fold of one loop."""
    states = list(assembly.states.values())
    inputs = {p: {s.name: _input(p, s) for s in states} for p in ("", "a_", "b_")}
    old, a, b = (Moment(lambda s, p=p: inputs[p][s.name]) for p in ("", "a_", "b_"))
    new = Moment(lambda s: _stepped(assembly, s, old, new))
    both = Moment(lambda s: _merged(assembly, s, a, b, both))
    stepped = [new.state(s) for s in states]
    merged = [both.state(s) for s in states]
    values = [Value(f"v{n}", node) for n, node in enumerate(assembly.members)]
    last = Moment(lambda s: inputs[""][s.name], last=True)
    finished = [assembly.value(last, v.node) for v in values]
    names = [s.name for s in states]
    mine = tuple(inputs[""].values())
    support, element = support_of(assembly, states)
    elements = tuple(Element(name, access) for access, (name, _) in assembly.elements.items())
    reads = tuple(node for _, node in assembly.elements.values())
    return Fold(
        over=assembly.over,
        values=tuple(values),
        elements=elements,
        init=_program("init", (), names, [_init(s) for s in states]),
        step=_program("step", (*mine, *reads), names, stepped),
        merge=_program("merge", (*inputs["a_"].values(), *inputs["b_"].values()), names, merged),
        finish=_program("finish", mine, [v.name for v in values], finished),
        support=support,
        support_of=element,
        reason="; ".join(assembly.stage.reasons),
    )


def _input(prefix: str, state: State) -> Node:
    return input_node(prefix + state.name, [(d,) for d in state.definition.dims], state.dtype)


def _init(state: State) -> Node:
    first = const(_first(state), state.dtype)
    axes = state.definition.axes
    return map_node("id", axes, [first], state.dtype) if axes else first.node


def _stepped(assembly: Assembly, state: State, old: Moment, new: Moment) -> Node:
    build = Builder(state.dtype)
    piece = assembly.piece(state, new)
    if state.kind in LATTICE:
        return assembly.node(state, build.map(LATTICE[state.kind], assembly.own(state, old), piece))
    before = rescaled(assembly, state, old, new) if state.rescaled else assembly.own(state, old)
    return assembly.node(state, build.map("add", before, piece))


def _merged(assembly: Assembly, state: State, a: Moment, b: Moment, both: Moment) -> Node:
    build = Builder(state.dtype)
    if state.rescaled:
        parts = rescaled(assembly, state, a, both), rescaled(assembly, state, b, both)
    else:
        parts = assembly.own(state, a), assembly.own(state, b)
    return assembly.node(state, build.map(LATTICE.get(state.kind, "add"), *parts))


def _first(state: State) -> bool | int | float:
    """What a component is before anything is seen."""
    kind, dtype = state.kind, state.dtype
    if kind in ("any", "all"):
        return kind == "all"
    if kind in ("sum", "count"):
        return 0 if dtype[0] in "iu" else 0.0
    if kind == "prod":
        return 1 if dtype[0] in "iu" else 1.0
    if dtype == "bool":
        return kind == "min"
    if dtype[0] in "iu":
        bits, signed = int(dtype[1:]), dtype[0] == "i"
        low = -(1 << (bits - 1)) if signed else 0
        return low if kind == "max" else (1 << (bits - signed)) - 1
    return -math.inf if kind == "max" else math.inf


def _program(name: str, inputs: Sequence[Node], names: Sequence[str], nodes: Sequence[Node]) -> Program:
    outputs = tuple(
        Output(n, node, tuple((k,) for k in range(len(node.axes))))
        for n, node in zip(names, nodes, strict=True)
    )
    # Run-time scalars, and values from outside the loop, which merge and finish may read too.
    more = [n for n in sort_nodes(nodes) if isinstance(n.op, Scalar | Input) and n not in inputs]
    return Program(name, (*inputs, *more), outputs)


# ---------------------------------------------------------------- a partition, written out

_CUT = 90_000
"""Numbers of indices that no node has."""


def cut_plainly(program: Program, assembly: Assembly) -> Program:
    """The program with each reduction of one loop as one over parts of one in each part, all values as they
    are: the way to `split_from`, where parts know nothing of each other."""
    dim = assembly.over
    part, within = Index(Parts(dim), _CUT), Index(Part(dim), _CUT + 1)

    def visit(node: Node, replaced: Replaced) -> Access:
        made = replace_arguments(node, replaced)
        member = assembly.members.get(node)
        if member is None:
            return made.read()
        # A member's bound indices are numbered as they were.
        loop = member.site.loop
        where = {loop: var(Join(var(part), var(within)))}
        bound = tuple(within if index == loop else index for index in made.bound)
        args = [access.at(where) for access in made.args]
        axes = (part, *made.axes)
        if isinstance(made.op, Reduce):
            kind, inner = made.op.kind, reduce_node(made.op.kind, axes, bound, args[0], made.dtype)
        else:
            kind, inner = "sum", contract_node(axes, bound, args, made.dtype)
        return reduce_node(kind, made.axes, (part,), inner(*axes), made.dtype).read()

    return replace_nodes(program, rewrite((o.node for o in program.outputs), visit))


def split_from(program: Program, assembly: Assembly) -> Program:
    """The program with one loop written out over the parts of a partition."""
    part = Index(Parts(assembly.over), -1)
    each = Moment(lambda s: assembly.node(s, assembly.piece(s, each), each.extra), part)
    whole = Moment(lambda s: _joined(assembly, s, each, whole), final=True)
    values = {node: assembly.value(whole, node) for node in assembly.members}

    def visit(node: Node, replaced: Replaced) -> Access:
        made = values.get(node)
        return made.read() if made is not None else replace_arguments(node, replaced).read()

    replaced = rewrite((output.node for output in program.outputs), visit)
    return replace(replace_nodes(program, replaced), names=_kept(program, replaced))


def _joined(assembly: Assembly, state: State, each: Moment, whole: Moment) -> Node:
    build = Builder(state.dtype)
    assert each.part is not None
    kind = state.kind if state.kind in LATTICE else "sum"
    own = rescaled(assembly, state, each, whole) if state.rescaled else assembly.own(state, each)
    return assembly.node(state, build.reduce(kind, (each.part,), own))


def _kept(program: Program, replaced: Replaced) -> dict[Node, str]:
    return {replaced[n].node: name for n, name in program.names.items() if n in replaced}
