"""The command line: `cleave compile | explain | prove | bench`.

Exit codes: 0 for success; `prove` exits with 0 (Yes, Yes-if), 1 (No), 2 (Unknown) or, under `--strict`, 3
(Yes-if); `bench` exits with 1 if one of our results is wrong; errors that Cleave raises on purpose and wrong
command lines are printed on one screen and exit with 4. Every command has `--json`. Progress goes to
stderr, and only to a terminal. torch and the compiler are imported by the commands, not with this module.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cleave.errors import CleaveError, Invalid

if TYPE_CHECKING:
    from cleave.algebra.proof import Proof
    from cleave.frontend.files import Loaded
    from cleave.pipeline import Plan

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

FAILED = 4
INTERRUPTED = 130
EXITS = {"yes": 0, "yes-if": 0, "no": 1, "unknown": 2}
UNMET = 3
MOST_LINES = 20
"""Lines of an error that are shown."""


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


class Shown(StrEnum):
    """Which sources `explain` prints."""

    none = "none"
    chosen = "chosen"
    all = "all"


class Dtype(StrEnum):
    """The dtypes of a benchmark."""

    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"


class Phase(StrEnum):
    """The phases of a benchmark."""

    prefill = "prefill"
    decode = "decode"


Where = Annotated[str, typer.Argument(help="FILE.py:FUNCTION of a program file.", metavar="FILE.py:FUNCTION")]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", help="NAME=N, a typical size of a dynamic dim.", metavar="NAME=N"),
]
Json = Annotated[bool, typer.Option("--json", help="Print data instead of text.")]
For = Annotated[Target, typer.Option(help="What to compile for.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cleave {metadata.version('cleave')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A tensor-program compiler: it searches on symbolic shapes, proves what it finds, and emits kernels."""


@app.command("compile")
def compile_(
    where: Where,
    emit_: Annotated[Emit | None, typer.Option("--emit", help="Which stage to print.")] = None,
    target: Annotated[
        Target | None, typer.Option(help="What to compile for; cuda for --emit triton, else cpu.")
    ] = None,
    size: Sizes = None,
    as_json: Json = False,
) -> None:
    """Compile a function and print one stage: by default the generated source."""
    stage, target = _stage(emit_, target)
    loaded = loaded_from(where, as_json)
    if stage is Emit.program:
        from cleave.ir.text import print_program

        show(stage.value, [print_program(loaded.program)], as_json)
        return
    planned = planned_for(loaded, target, size, as_json)
    if stage is Emit.candidates:
        from cleave.ir.text import print_candidate

        show(stage.value, [print_candidate(c) for c in planned.found.candidates], as_json)
    elif stage is Emit.tiles:
        from cleave.schedule.text import print_tiles

        show(stage.value, [print_tiles(v.tiles) for v in planned.variants], as_json)
    else:
        from cleave.pipeline import emit

        show(stage.value, [emit(v.tiles, planned.target).text for v in planned.variants], as_json)


@app.command("explain")
def explain_(
    where: Where,
    target: For = Target.cpu,
    size: Sizes = None,
    source: Annotated[
        Shown, typer.Option(help="Which kernel sources to print: of the chosen variant, of all, or none.")
    ] = Shown.chosen,
    html: Annotated[Path | None, typer.Option(help="Write one self-contained page here as well.")] = None,
    as_json: Json = False,
) -> None:
    """Say what was found, proved, chosen and rejected for a function."""
    planned = planned_for(loaded_from(where, as_json), target, size, as_json)
    from cleave.report.explain import as_data, explain

    if html is not None:
        from cleave.report.html import page

        _write(html, page(planned))
    if as_json:
        print(json.dumps(as_data(planned), indent=1))
    else:
        print(explain(planned, source=source.value), end="")


@app.command("prove")
def prove_(
    left: Where,
    right: Where,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 for a Yes-if.")] = False,
    as_json: Json = False,
) -> None:
    """Are two functions equal, over the finite reals and for every size?"""
    one, two = loaded_from(left, as_json), loaded_from(right, as_json)
    from cleave.algebra.proof import prove

    with progress("proving", as_json):
        proof = prove(one.program, two.program)
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
    dtype: Annotated[list[Dtype] | None, typer.Option("--dtype", help="Only these dtypes.")] = None,
    phase: Annotated[list[Phase] | None, typer.Option("--phase", help="Only these phases.")] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write raw results here.", metavar="FILE")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds of timing per point.")] = 0.5,
) -> None:
    """Run a benchmark suite: check every result against float64, then time it against its peers."""
    root = Path(__file__).parents[2]
    if not (root / "benchmarks" / "run.py").exists():
        raise Invalid("the benchmarks ship with the repository, not with the installed package")
    sys.path.insert(0, str(root))
    _check_bench(suite, target, case)
    from benchmarks.run import run_suite

    wrong = run_suite(
        suite, target=target.value, cases=case, dtypes=dtype, phases=phase, json_file=json_file, budget=budget
    )
    raise typer.Exit(1 if wrong else 0)


# ---------------------------------------------------------------- steps that commands share


def _stage(stage: Emit | None, target: Target | None) -> tuple[Emit, Target]:
    """The stage to print and the target, each from the other where only one is given."""
    if stage is None:
        stage = Emit.triton if target is Target.cuda else Emit.cpp
    own = {Emit.triton: Target.cuda, Emit.cpp: Target.cpu}.get(stage)
    if own is not None and target not in (None, own):
        raise Invalid(f"--emit {stage} is for the target {own}, not {target}", hint="leave out --target")
    return stage, own or target or Target.cpu


def loaded_from(where: str, as_json: bool) -> Loaded:
    """A loaded program file's function. What the file itself raises becomes `Invalid`."""
    with progress(f"reading {where}", as_json):
        from cleave.frontend.files import load
        from cleave.frontend.jit import ORDINARY

        # It prints tracebacks of what is reported here in one line.
        logging.getLogger("torch._subclasses.fake_tensor").disabled = True
        try:
            return load(where)
        except ORDINARY as error:
            line = _line_of(error, where.rpartition(":")[0])
            if not line:
                raise
            raise Invalid(f"{where} raised {type(error).__name__}: {error}", where=line) from error


def _line_of(error: BaseException, file: str) -> str:
    """The innermost line of a file in a traceback; empty if the error comes from Cleave's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or Path(frames[-1].filename).is_relative_to(Path(__file__).parent):
        return ""
    own = [f for f in frames if Path(f.filename).resolve() == Path(file).resolve()]
    return f"{file}:{own[-1].lineno}: {own[-1].line}" if own else ""


def planned_for(loaded: Loaded, target: Target, size: list[str] | None, as_json: bool) -> Plan:
    """The plan of a loaded function."""
    from cleave.pipeline import dims_by_name, plan
    from cleave.report.found import named

    dims = dims_by_name(loaded.program, parsed_sizes(size))
    known = dict(loaded.program.sizes)
    for dim in dims:
        if dim in known:
            raise Invalid(f"--size: {dim} is not dynamic in {loaded.program.name}: it is {known[dim]}")
    with progress(f"compiling {loaded.program.name} for {target}", as_json):
        return plan(named(loaded.program), target=target.value, sizes={**loaded.sizes, **dims})


def parsed_sizes(size: Sequence[str] | None) -> dict[str, int]:
    """`["S=17"]` as `{"S": 17}`."""
    sizes: dict[str, int] = {}
    for item in size or ():
        name, _, value = item.partition("=")
        if not name or not (value.isascii() and value.isdigit()):
            raise Invalid(f"--size {item}: expected NAME=N with N a whole number, such as S=128")
        sizes[name] = int(value)
    return sizes


def _check_bench(suite: str, target: Target, cases: Sequence[str] | None) -> None:
    """`Invalid` for what would run nothing."""
    from benchmarks.suites import SUITES

    if suite not in SUITES:
        raise Invalid(f"there is no suite {suite!r}", hint=f"one of {', '.join(SUITES)}")
    names = [c.name for c in SUITES[suite]]
    for wanted in cases or ():
        if not any(wanted in name for name in names):
            raise Invalid(f"suite {suite} has no case {wanted!r}", hint=f"it has {', '.join(names)}")
    if target is Target.cuda:
        import torch

        if not torch.cuda.is_available():
            raise Invalid("--target cuda: torch finds no GPU here", hint="--target cpu")


@contextmanager
def progress(what: str, quiet: bool) -> Iterator[None]:
    """A line on stderr with the time that passes, while it lasts and if somebody looks."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        shown.add_task(what)
        yield


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(f"{path} cannot be written: {error.strerror}") from error
    print(f"wrote {path}", file=sys.stderr)


def show(stage: str, texts: Sequence[str], as_json: bool) -> None:
    """Print the texts of a stage one after the other, with a comment before each if there are several, or the
    same as JSON."""
    if as_json:
        data: Mapping[str, object] = {stage: texts[0] if stage == Emit.program else list(texts)}
        print(json.dumps(data, indent=1))
        return
    mark = "//" if stage == Emit.cpp else "#"
    word = "candidate" if stage == Emit.candidates else "variant"
    for number, text in enumerate(texts, 1):
        if len(texts) > 1:
            print(f"{mark} {word} {number} of {len(texts)}")
        print(text.rstrip("\n"), end="\n\n" if number < len(texts) else "\n")


def proof_data(proof: Proof) -> dict[str, object]:
    """A proof for `--json`."""
    return {
        "answer": proof.answer,
        "conditions": list(proof.conditions),
        "counterexample": proof.counterexample,
        "steps": [
            {"law": s.law, "place": s.place, "before": s.before, "after": s.after} for s in proof.steps
        ],
    }


def proof_text(proof: Proof) -> str:
    """The answer with its conditions and the laws used, or the counterexample, or what stood in the way."""
    from cleave.report.found import steps_text

    title = {"yes": "Yes", "yes-if": "Yes, if", "no": "No", "unknown": "Unknown"}[proof.answer]
    lines = [title, *(f"  {condition}" for condition in proof.conditions)]
    if proof.counterexample:
        lines.append(f"  {proof.counterexample}")
    if proof.steps and proof.holds:
        lines.append(steps_text(proof.steps))
    return "\n".join(lines)


# ---------------------------------------------------------------- entry

MISUSE: type[Exception] = typer.BadParameter.__mro__[2]
"""The class of all complaints about a command line; typer has no public name for it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: errors raised on purpose fit on one screen. Always raises `SystemExit`."""
    try:
        code = app(args=arguments, prog_name="cleave", standalone_mode=False)
    except CleaveError as error:
        lines = f"cleave: {type(error).__name__}: {error}".splitlines()
        more = [f"  ... {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
        print("\n".join(lines[:MOST_LINES] + more), file=sys.stderr)
        code = FAILED
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except MISUSE as error:
        error.show()  # pyright: ignore[reportAttributeAccessIssue]
        code = FAILED
    raise SystemExit(code or 0)
