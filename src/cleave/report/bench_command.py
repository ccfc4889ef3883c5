"""`cleave bench`: run a benchmark suite of the repository.

`register` adds the command to the application. The choices that other commands share with it, and what finds
the repository's benchmarks and refuses what would run nothing, are here too.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cleave.errors import Invalid
from cleave.report.given import refuse, refuse_other
from cleave.runtime.written import check_writable


class Target(StrEnum):
    """What to compile for."""

    cpu = "cpu"
    cuda = "cuda"


class Dtype(StrEnum):
    """The dtypes of a benchmark."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"


class Phase(StrEnum):
    """The phases of a benchmark."""

    prefill = "prefill"
    decode = "decode"


class Peers(StrEnum):
    """How much is spent on peers: none; those that compile little; all, with their settings swept."""

    none = "none"
    quick = "quick"
    full = "full"


class Ablation(StrEnum):
    """What is left out of ours, or let in, in a row of its own."""

    untuned = "untuned"
    no_algebra = "no-algebra"
    no_iterative_tiling = "no-iterative-tiling"
    no_horizontal = "no-horizontal"
    no_split = "no-split"
    reassociation = "reassociation"


Names = Annotated[list[str] | None, typer.Option("--case", help="Only cases with this in their name.")]
Dtypes = Annotated[list[Dtype] | None, typer.Option("--dtype", help="Only these dtypes.")]
Phases = Annotated[list[Phase] | None, typer.Option("--phase", help="Only these phases.")]
Raw = Annotated[Path | None, typer.Option("--json", help="Write raw results here.", metavar="FILE")]
BUDGET = "Seconds of timing per point (0.5); of the whole of 'cartpole' (235) and 'fusion' (90)."
PEERS = "Which peers: none, quick ones, or full (all, with their own knobs swept)."
FROM = "Take the peers' times from the file of an earlier run on such a device, scaled by eager's time."
ONLY = "Measure this peer alone; its rows of --peers-from stay where there is no new right one. Repeatable."
SWEEP = "Seconds for the settings of one peer at one point (20 with --peers full, else 0)."
JOBS = "Processes that compile while one measures (1: none, all in this one; 0: by target)."
RESUME = "Keep the points that the --json file has; it must be of the same --peer."
AHEAD = "'cartpole': so many of its seconds go into building in all cores first; what is not built is left."
SIZES = "'cartpole': a number of environments; may be given several times (all of the study's)."
LIMIT = "Begin no other point of a suite after so many seconds; --resume goes on."
COLD = "Start with empty caches, so that compile times are of a first compile."
WITHOUT = "Also time ours with this left out (reassociation: let in; untuned: no recipe). Repeatable."

STUDIES = {
    "algebra": ("case", "json_file"),
    "search": ("case", "json_file"),
    "cartpole": ("target", "case", "json_file", "budget", "sizes", "resume", "ahead"),
    "fusion": ("target", "case", "json_file", "budget"),
}
"""Suites that are no cases to be timed against peers, and the options that they take."""
ONLY_CARTPOLE = ("sizes", "ahead")


def register(app: typer.Typer) -> None:
    """Add the command `bench`."""
    app.command("bench")(bench_)


def bench_(
    context: typer.Context,
    suite: Annotated[str, typer.Argument(help="The suite's name, such as 'paper'.")],
    target: Annotated[Target, typer.Option(help="Where to run.")] = Target.cpu,
    case: Names = None,
    dtype: Dtypes = None,
    phase: Phases = None,
    json_file: Raw = None,
    budget: Annotated[float | None, typer.Option(help=BUDGET)] = None,
    peers: Annotated[Peers, typer.Option(help=PEERS)] = Peers.quick,
    peers_from: Annotated[Path | None, typer.Option(help=FROM, metavar="FILE")] = None,
    peer: Annotated[list[str] | None, typer.Option("--peer", help=ONLY)] = None,
    sweep: Annotated[float | None, typer.Option(help=SWEEP, min=0.0)] = None,
    ablation: Annotated[list[Ablation] | None, typer.Option("--ablation", help=WITHOUT)] = None,
    resume: Annotated[bool, typer.Option("--resume", help=RESUME)] = False,
    jobs: Annotated[int, typer.Option(help=JOBS, min=0)] = 0,
    cold: Annotated[bool, typer.Option("--cold", help=COLD)] = False,
    limit: Annotated[float | None, typer.Option(help=LIMIT, min=0.0)] = None,
    sizes: Annotated[list[int] | None, typer.Option("--sizes", help=SIZES, min=1)] = None,
    ahead: Annotated[float, typer.Option(help=AHEAD, min=0.0)] = 0.0,
) -> None:
    """Run a benchmark suite: check every result against float64, then time it against its peers. The
    suite 'algebra' asks the search for what it must find, 'search' measures what that costs, 'cartpole'
    is the study of a simulation loop (docs/cartpole.md)."""
    import_benchmarks()
    _check_options(context, suite)
    if suite in STUDIES:
        failed = _study(suite, target, case, json_file, budget, sizes, resume=resume, ahead=ahead)
        raise typer.Exit(1 if failed else 0)
    check_bench(suite, target, case, phase)
    from benchmarks.run import run_suite

    wrong = run_suite(
        suite,
        target=target.value,
        cases=case,
        dtypes=dtype,
        phases=phase,
        json_file=json_file,
        budget=0.5 if budget is None else budget,
        peers=peers.value,
        peers_from=peers_from,
        sweep=sweep,
        ablations=[a.value for a in ablation or ()],
        only=peer or (),
        resume=resume,
        jobs=jobs,
        cold=cold,
        limit=math.inf if limit is None else limit,
    )
    raise typer.Exit(1 if wrong else 0)


def _check_options(context: typer.Context, suite: str) -> None:
    """`Invalid` for an option that the suite would not look at, and for results that cannot be written."""
    asked = context.params
    if suite in STUDIES:
        refuse_other(context, STUDIES[suite], f"the study {suite}")
    else:
        refuse(context, ONLY_CARTPOLE, "is for the study 'cartpole'", f"leave it out for the suite {suite}")
    if asked["resume"] and asked["json_file"] is None:
        raise Invalid("--resume goes on with a file", hint="--json FILE")
    if asked["peers"] == Peers.none and not asked["peer"]:
        refuse(context, ("sweep",), "is for the settings of peers, and --peers none has none", "--peers full")
    if asked["json_file"] is not None:
        check_writable(Path(asked["json_file"]), made=True)


def _study(
    suite: str,
    target: Target,
    case: list[str] | None,
    json_file: Path | None,
    budget: float | None,
    sizes: list[int] | None,
    *,
    resume: bool,
    ahead: float,
) -> bool:
    """Run one of the `STUDIES`; whether anything in it failed."""
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
    if suite == "algebra":
        from benchmarks.algebra import run_algebra

        return bool(run_algebra(case, json_file))
    if suite == "search":
        from benchmarks.search import run_search

        return bool(run_search(case, json_file))
    check_device(target)
    if suite == "fusion":
        from benchmarks.fusion_suite import run_fusion

        return bool(run_fusion(target.value, cases=case, json_file=json_file, budget=budget))
    from benchmarks.cartpole import run_cartpole

    wrong = run_cartpole(
        target.value,
        json_file=json_file,
        budget=budget,
        sizes=sizes,
        resume=resume,
        only=case or (),
        ahead=ahead,
    )
    return bool(wrong)


def import_benchmarks() -> None:
    """Make the repository's benchmarks importable; `Invalid` where there are none."""
    root = Path(__file__).parents[3]
    if not (root / "benchmarks" / "run.py").exists():
        raise Invalid("the benchmarks ship with the repository, not with the installed package")
    sys.path.insert(0, str(root))


def check_bench(
    suite: str, target: Target, cases: Sequence[str] | None, phases: Sequence[str] | None
) -> None:
    """`Invalid` for what would run nothing."""
    from benchmarks.suites import SUITES

    if suite not in SUITES:
        raise Invalid(
            f"there is no suite {suite!r}",
            hint=f"one of {', '.join([*SUITES, *STUDIES])}",
        )
    names = [c.name for c in SUITES[suite]]
    for wanted in cases or ():
        if not any(wanted in name for name in names):
            raise Invalid(f"suite {suite} has no case {wanted!r}", hint=f"it has {', '.join(names)}")
    chosen = [c for c in SUITES[suite] if not cases or any(wanted in c.name for wanted in cases)]
    there = {phase for c in chosen for (kind, phase), grid in c.points.items() if kind == target and grid}
    if not there.intersection(phases or there):
        what = f"suite {suite} has no {' or '.join(phases or ['point'])} on {target}"
        which = f" in the cases {', '.join(c.name for c in chosen)}" if cases else ""
        raise Invalid(what + which, hint=f"--phase {' or '.join(sorted(there))}" if there else "another case")
    check_device(target)


def check_device(target: Target) -> None:
    """`Invalid` for a GPU that is not there."""
    if target is Target.cuda:
        import torch

        if not torch.cuda.is_available():
            raise Invalid("--target cuda: torch finds no GPU here", hint="--target cpu")
