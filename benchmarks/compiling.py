"""How a case is compiled for a benchmark: stage by stage with the time of each, and with parts left out.

The stages are those of `cleave.pipeline`, called one by one. `Ablation` names what can be left out with what
the compiler offers from outside:

- `untuned`: nothing, but no recipe: the cost model's first choice, as of the others, which are held to it;
- `no-algebra`: only the user's own program, with its Folds;
- `no-iterative-tiling`: Folds that carry more than plain reductions are dropped, so that what depends on a
  finished reduction runs in a loop or a kernel of its own;
- `no-horizontal`: reductions that need nothing of each other do not share a loop, nor does one with what is
  written elementwise: Folds are cut into parts that share no state;
- `no-split`: tile programs that split a dim over blocks are passed over;
- `reassociation`: rewrites that change the operation count class are let in (this one adds).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.case import Case, Sizes
from cleave import pipeline
from cleave.errors import BuildError, Infeasible, Unsupported
from cleave.frontend.capture import capture
from cleave.ir.candidate import Candidate, Fold
from cleave.ir.dims import Dim
from cleave.ir.ops import Input, Scalar
from cleave.ir.precision import assign
from cleave.ir.program import Output, Program, sort_nodes
from cleave.ir.states import states_apart
from cleave.knobs import knobs, scope
from cleave.pipeline import Compiled, Launched, plain, usable
from cleave.runtime.search_store import search
from cleave.schedule.horizontal import apart
from cleave.schedule.select import Ranked, best

T = TypeVar("T")

ABLATIONS = ("untuned", "no-algebra", "no-iterative-tiling", "no-horizontal", "no-split", "reassociation")
OFFERED, TRIED = 400, 8
"""Tile programs that are ranked to find ones without a split, and of those that are built."""


@dataclass
class Phases:
    """Seconds of each stage of one compile."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    def timed(self, name: str, work: Callable[[], T]) -> T:
        began = time.perf_counter()
        try:
            return work()
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began

    @property
    def total(self) -> float:
        return sum(self.seconds.values())


def captured(case: Case, sizes: Sizes, dtype: torch.dtype) -> Program:
    """The program of a case, as `cleave.compile` captures it with the case's dynamic dims; no memory is
    taken. `Unsupported` where it is not one program."""
    with FakeTensorMode():
        inputs = tuple(torch.empty(case.shape(n, sizes), dtype=case.dtype_of(n, dtype)) for n in case.inputs)
        found = capture(case.function, inputs, {}, dynamic=case.marks)
    if found.whole is not None or found.fallbacks or len(found.programs) != 1:
        known = [str(f) for f in (*found.fallbacks, found.whole) if f is not None]
        reasons = "; ".join(known) or f"{len(found.programs)} programs"
        raise Unsupported(f"{case.name} is not one program: {reasons}")
    return found.program


def compiled(program: Program, target: str, sizes: Mapping[Dim, int], phases: Phases) -> Compiled:
    """What `compile_program` does, with the time of each stage. `build` is the compiler's own part: the
    C++ compiler, or Triton down to machine code; from caches where they have it."""
    now = knobs()
    phases.timed("search", lambda: search(program, reassociate=now.reassociate, numerics=now.numerics))
    made = phases.timed("plan", lambda: pipeline.plan(program, target=target, sizes=sizes))
    whole = Compiled(made, list(made.variants))
    first = made.variants[0]
    phases.timed("emit", lambda: pipeline.emit(first.tiles, target))
    began = time.perf_counter()
    whole.launcher(first)
    phases.seconds["build"] = max(0.0, time.perf_counter() - began - phases.seconds["emit"])
    return whole


def meta(case: Case, sizes: Sizes, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Tensors of a point's shapes that have no memory."""
    return tuple(torch.empty(case.shape(n, sizes), dtype=dtype, device="meta") for n in case.inputs)


def ablated(program: Program, target: str, sizes: Mapping[Dim, int], what: str) -> Launched:
    """The best that is left at these sizes when something is left out; `Infeasible` if nothing is."""
    with scope(reassociate=what == "reassociation"):
        found = search(program, reassociate=knobs().reassociate, numerics=knobs().numerics)
        chosen = usable(program, found.candidates)
    if what == "no-algebra":
        chosen = chosen[:1]
    candidates: list[Candidate] = [states_apart(assign(c, program)) for c in chosen]
    if what == "no-iterative-tiling":
        candidates = list(dict.fromkeys(plain(c) for c in candidates))
    if what == "no-horizontal":
        candidates = [replace(c, folds=tuple(p for f in c.folds for p in cut(f))) for c in candidates]
    if what == "no-split":
        candidates = [replace(c, splits=()) for c in candidates]
    bound = program.bind(sizes)
    count = OFFERED if what == "no-split" else TRIED
    with apart() if what == "no-horizontal" else nullcontext():
        ranked = best(tuple(dict.fromkeys(candidates)), bound, pipeline.TARGETS[target], count=count)
    if what == "no-split":
        ranked = tuple(r for r in ranked if not r.tiles.splits)
    return _built(ranked[:TRIED], target, what)


def cut(fold: Fold) -> tuple[Fold, ...]:
    """A Fold as Folds that share no state: a joint Fold of independent reductions is one of each."""
    reads: dict[str, set[str]] = {}
    for output in (*fold.step.outputs, *fold.merge.outputs, *fold.finish.outputs):
        names = {n.removeprefix("a_").removeprefix("b_") for n in _read(output)} | _read(output)
        reads.setdefault(output.name, set()).update(names & set(fold.state))
    groups: list[set[str]] = []
    for name in (*fold.state, *(v.name for v in fold.values)):
        group = reads[name] | {name}
        for other in [g for g in groups if g & group]:
            groups.remove(other)
            group |= other
        groups.append(group)
    groups = [g for g in groups if any(v.name in g for v in fold.values)]
    return tuple(_part(fold, g) for g in groups) if len(groups) > 1 else (fold,)


def _read(output: Output) -> set[str]:
    return {n.op.name for n in sort_nodes([output.node]) if isinstance(n.op, Input | Scalar)}


def _part(fold: Fold, names: set[str]) -> Fold:
    """The values and states of these names, and what they read."""
    parts = [
        replace(p, outputs=tuple(o for o in p.outputs if o.name in names))
        for p in (fold.init, fold.step, fold.merge, fold.finish)
    ]
    used = {name for p in parts for o in p.outputs for name in _read(o)}
    states = {s for s in fold.state if s in names}
    used |= states | {f"{side}_{s}" for side in "ab" for s in states}
    init, step, merge, finish = (
        replace(
            p, inputs=tuple(n for n in p.inputs if isinstance(n.op, Input | Scalar) and n.op.name in used)
        )
        for p in parts
    )
    elements = tuple(e for e in fold.elements if e.name in used)
    support = fold.support if fold.support_of in used else None
    return replace(
        fold,
        values=tuple(v for v in fold.values if v.name in names),
        elements=elements,
        init=init,
        step=step,
        merge=merge,
        finish=finish,
        support=support,
        support_of=fold.support_of if support is not None else "",
    )


def _built(ranked: tuple[Ranked, ...], target: str, what: str) -> Launched:
    """The first that builds and spills nothing, else the first that builds."""
    spilling: list[Launched] = []
    reasons: list[str] = []
    for choice in ranked:
        try:
            launcher = pipeline.launcher_for(choice.tiles, target)
        except (BuildError, Infeasible) as error:
            reasons.append(str(error))
            continue
        if not pipeline.spills(launcher):
            return launcher
        spilling.append(launcher)
    if spilling:
        return min(spilling, key=pipeline.spills)
    raise Infeasible(f"{what}: nothing is left that can be scheduled; {'; '.join(reasons[:2])}")
