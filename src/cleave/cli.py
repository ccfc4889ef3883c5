"""The command line: `cleave compile | explain | prove | bench`.

Errors that Cleave raises on purpose are printed on one screen and exit with 4. `prove` exits with 0 (Yes,
Yes-if), 1 (No), 2 (Unknown) or, under `--strict`, 3 (Yes-if). Every command has `--json`.
"""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from cleave.algebra.proof import Proof
from cleave.errors import CleaveError, Invalid
from cleave.frontend.files import Loaded, load
from cleave.ir.text import print_candidate, print_program
from cleave.pipeline import Plan, dims_by_name, emit, plan
from cleave.report.explain import as_data, explain
from cleave.schedule.text import print_tiles

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
notes = Console(stderr=True)

FAILED = 4
EXITS = {"yes": 0, "yes-if": 0, "no": 1, "unknown": 2}
UNMET = 3


class Emit(StrEnum):
    """Where `compile` stops."""

    program = "program"
    candidates = "candidates"
    tiles = "tiles"
    triton = "triton"
    cpp = "cpp"


class Target(StrEnum):
    """What to compile for."""

    cpu = "cpu"
    cuda = "cuda"


Where = Annotated[str, typer.Argument(help="FILE.py:FUNCTION of a program file.", metavar="FILE.py:FUNCTION")]
Sizes = Annotated[list[str] | None, typer.Option("--size", help="NAME=N, a typical size of a dynamic dim.")]
Json = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]


@app.command("compile")
def compile_(
    where: Where,
    emit_: Annotated[Emit | None, typer.Option("--emit", help="Which stage to print.")] = None,
    target: Annotated[Target, typer.Option(help="What to compile for.")] = Target.cpu,
    size: Sizes = None,
    as_json: Json = False,
) -> None:
    """Compile a function and print one stage: by default the generated source."""
    loaded = load(where)
    stage = emit_ or (Emit.cpp if target is Target.cpu else Emit.triton)
    if stage is Emit.program:
        show({"program": print_program(loaded.program)}, as_json)
        return
    if stage is Emit.triton:
        target = Target.cuda
    if stage is Emit.cpp:
        target = Target.cpu
    planned = planned_for(loaded, target, size)
    if stage is Emit.candidates:
        show({"candidates": [print_candidate(c) for c in planned.found.candidates]}, as_json)
    elif stage is Emit.tiles:
        show({"tiles": [print_tiles(v.tiles) for v in planned.variants]}, as_json)
    else:
        show({stage.value: [emit(v.tiles, planned.target).text for v in planned.variants]}, as_json)


@app.command("explain")
def explain_(
    where: Where,
    target: Annotated[Target, typer.Option(help="What to compile for.")] = Target.cpu,
    size: Sizes = None,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page here as well.")] = None,
    as_json: Json = False,
) -> None:
    """Say what was found, proved, chosen and rejected for a function."""
    planned = planned_for(load(where), target, size)
    if html is not None:
        from cleave.report.html import page

        html.write_text(page(planned))
        notes.print(f"wrote {html}")
    if as_json:
        print(json.dumps(as_data(planned), indent=1))
    else:
        print(explain(planned))


@app.command("prove")
def prove_(
    left: Where,
    right: Where,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 for a Yes-if.")] = False,
    as_json: Json = False,
) -> None:
    """Are two functions equal, over the finite reals and for every size?"""
    from cleave.algebra.proof import prove

    proof = prove(load(left).program, load(right).program)
    if as_json:
        print(json.dumps(proof_data(proof), indent=1))
    else:
        print(proof_text(proof))
    raise typer.Exit(UNMET if strict and proof.answer == "yes-if" else EXITS[proof.answer])


@app.command("bench")
def bench_(
    suite: Annotated[str, typer.Argument(help="The suite's name, such as 'paper'.")],
    target: Annotated[Target, typer.Option(help="Where to run.")] = Target.cpu,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="Only cases with this in their name.")
    ] = None,
    dtype: Annotated[list[str] | None, typer.Option("--dtype", help="f32, f16 or bf16.")] = None,
    phase: Annotated[list[str] | None, typer.Option("--phase", help="prefill or decode.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write raw results here.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds of timing per point.")] = 0.5,
) -> None:
    """Run a benchmark suite: check every result against float64, then time it against its peers."""
    root = Path(__file__).parents[2]
    if not (root / "benchmarks" / "run.py").exists():
        raise Invalid("the benchmarks ship with the repository, not with the installed package")
    sys.path.insert(0, str(root))
    from benchmarks.run import run_suite

    wrong = run_suite(
        suite, target=target.value, cases=case, dtypes=dtype, phases=phase, json_file=json_file, budget=budget
    )
    raise typer.Exit(1 if wrong else 0)


def planned_for(loaded: Loaded, target: Target, size: list[str] | None) -> Plan:
    """The plan of a loaded function, with a line of progress while it is made."""
    sizes = {**loaded.sizes, **dims_by_name(loaded.program, parsed_sizes(size))}
    with notes.status(f"compiling {loaded.program.name} for {target.value}"):
        return plan(loaded.program, target=target.value, sizes=sizes)


def parsed_sizes(size: list[str] | None) -> dict[str, int]:
    """`["S=17"]` as `{"S": 17}`."""
    sizes: dict[str, int] = {}
    for item in size or ():
        name, _, value = item.partition("=")
        if not name or not value.isdigit():
            raise Invalid(f"--size {item}: expected NAME=N with N a whole number, such as S=128")
        sizes[name] = int(value)
    return sizes


def show(data: dict[str, str | list[str]], as_json: bool) -> None:
    """Print texts, or the same as JSON."""
    if as_json:
        print(json.dumps(data, indent=1))
        return
    for value in data.values():
        print("\n".join([value] if isinstance(value, str) else value))


def proof_data(proof: Proof) -> dict[str, object]:
    return {
        "answer": proof.answer,
        "conditions": list(proof.conditions),
        "counterexample": proof.counterexample,
        "steps": [[s.law, s.place, s.before, s.after] for s in proof.steps],
    }


def proof_text(proof: Proof) -> str:
    """The answer, its conditions or counterexample, and the laws used."""
    title = {"yes": "Yes", "yes-if": "Yes, if", "no": "No", "unknown": "Unknown"}[proof.answer]
    lines = [title, *(f"  {condition}" for condition in proof.conditions)]
    if proof.counterexample:
        lines.append(proof.counterexample)
    for number, step in enumerate(proof.steps, 1):
        lines.append(f"{number:2}. {step.law}" + (f", at {step.place}" if step.place else ""))
    return "\n".join(lines)


def main() -> None:
    """The entry point: errors raised on purpose fit on one screen."""
    try:
        app()
    except CleaveError as error:
        print(f"cleave: {type(error).__name__}: {error}", file=sys.stderr)
        raise SystemExit(FAILED) from None
