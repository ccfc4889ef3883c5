"""The command line: `cleave compile | explain | prove | tune | calibrate | bench`.

Exit codes: 0 for success; `prove` exits with 0 (Yes, Yes-if), 1 (No), 2 (Unknown) or, under `--strict`, 3
(Yes-if); `bench` exits with 1 if one of our results is wrong; errors that Cleave raises on purpose and wrong
command lines are printed on one screen and exit with 4. Every command has `--json`. Progress goes to
stderr, and only to a terminal. torch and the compiler are imported by the commands, not with this module.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cleave.errors import CleaveError, Invalid, Unsupported
from cleave.report.bench_command import Dtype, Phase, Target, check_bench, import_benchmarks
from cleave.report.bench_command import register as register_bench
from cleave.report.fusion_command import register as register_fuse
from cleave.report.given import refuse
from cleave.report.prove_command import register as register_prove
from cleave.report.terminal import Json, progress, write
from cleave.runtime.written import check_writable
from cleave.version import VERSION

if TYPE_CHECKING:
    from cleave.frontend.captured import Captured
    from cleave.frontend.files import Loaded
    from cleave.ir.dims import Dim
    from cleave.pipeline import Plan

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)

FAILED = 4
INTERRUPTED = 130
MOST_LINES = 20
"""Lines of an error that are shown."""


class Emit(StrEnum):
    """Where `compile` stops."""

    program = "program"
    candidates = "candidates"
    tiles = "tiles"
    triton = "triton"
    cpp = "cpp"


class Shown(StrEnum):
    """Which sources `explain` prints."""

    none = "none"
    chosen = "chosen"
    all = "all"


Where = Annotated[str, typer.Argument(help="FILE.py:FUNCTION of a program file.", metavar="FILE.py:FUNCTION")]
Sizes = Annotated[
    list[str] | None,
    typer.Option("--size", help="NAME=N, a typical size of a dynamic dim.", metavar="NAME=N"),
]
For = Annotated[Target, typer.Option(help="What to compile for.")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"cleave {VERSION}")
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
    context: typer.Context,
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
    if stage in (Emit.program, Emit.candidates):
        why = f"changes nothing of --emit {stage}: that is the same for all sizes and targets"
        refuse(context, ("size", "target"), why, "leave it out")
    loaded = loaded_from(where, as_json, partly=True)
    captured = loaded.captured
    if captured.whole is not None:
        raise Unsupported(captured.whole.reason, where=captured.whole.where)
    if captured.steps and not captured.programs:
        first = captured.fallbacks[0]
        what = f"nothing of {captured.name} is compiled: {first.op}: {first.reason}"
        raise Unsupported(what, where=first.where)
    if stage is Emit.program:
        from cleave.ir.text import print_program

        texts = [[print_program(program)] for program in captured.programs]
    else:
        texts = [_texts(stage, plan) for plan in plans_for(loaded, target, size, as_json)]
    from cleave.report.pieces import is_whole, steps_lines

    if is_whole(captured):
        show(stage.value, texts[0], as_json)
    else:
        show_pieces(stage.value, captured, texts, steps_lines(captured), as_json)


@app.command("explain")
def explain_(
    context: typer.Context,
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
    if as_json:
        refuse(context, ("source",), "is for text: --json has every source", "leave it out")
    if html is not None:
        check_writable(html)
    loaded = loaded_from(where, as_json, partly=True)
    plans = plans_for(loaded, target, size, as_json)
    from cleave.report.pieces import pieces_data, pieces_page, pieces_text

    if html is not None:
        write(html, pieces_page(loaded.captured, plans, target.value))
    if as_json:
        print(json.dumps(pieces_data(loaded.captured, plans), indent=1))
    else:
        print(pieces_text(loaded.captured, plans, source=source.value), end="")


register_prove(app, lambda where, quiet: loaded_from(where, quiet))
register_bench(app)


@app.command("tune")
def tune_(
    context: typer.Context,
    where: Annotated[
        str | None, typer.Argument(help="FILE.py:FUNCTION of a program file.", metavar="FILE.py:FUNCTION")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Tune all cases of a benchmark suite instead.")] = None,
    target: For = Target.cpu,
    size: Sizes = None,
    budget: Annotated[float, typer.Option(help="Seconds, for everything.", min=0.0)] = 60.0,
    out: Annotated[
        Path | None, typer.Option(help="Where to write the recipe (a file, or a folder with --suite).")
    ] = None,
    case: Annotated[
        list[str] | None, typer.Option("--case", help="Only the suite's cases with this in their name.")
    ] = None,
    dtype: Annotated[list[Dtype] | None, typer.Option("--dtype", help="Only these dtypes.")] = None,
    phase: Annotated[list[Phase] | None, typer.Option("--phase", help="Only these phases.")] = None,
    count: Annotated[int, typer.Option(help="Tile programs per point; 0: by target.", min=0)] = 0,
    jobs: Annotated[int, typer.Option(help="Processes that compile; 0: one a core.", min=0)] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a kernel hangs.", min=0.1)] = 30.0,
    as_json: Json = False,
) -> None:
    """Measure the likeliest tile programs and keep the fastest in a recipe that later compiles use."""
    _check_tuned(context, where, suite)
    out = _recipe_place(out, suite is not None)
    from cleave.frontend.tuning import Wish, tune_all
    from cleave.report import tuned
    from cleave.runtime.tune_point import Limits

    if suite is not None:
        import_benchmarks()
        check_bench(suite, target, case, phase)
        from benchmarks.wishes import wishes

        with progress(f"capturing suite {suite}", as_json):
            wanted = wishes(suite, target.value, case, dtype, phase)
        out.mkdir(parents=True, exist_ok=True)
    else:
        assert where is not None
        loaded = loaded_from(where, as_json)
        wanted = [Wish(loaded.program, tuple(_tuned_sizes(loaded, size)))]
    points = [(w.program, s) for w in wanted for s in w.sizes]
    titles = [" ".join([p.name, *(f"{a.name}={s[a]}" for a in p.dynamic)]) for p, s in points]
    limits = Limits(budget=budget, jobs=jobs, measure_seconds=timeout)
    with tuned.shown(titles, as_json) as watch:
        done = tune_all(wanted, target.value, limits, out=out, watch=watch, count=count)
    print(json.dumps(tuned.as_data(done), indent=1) if as_json else "\n".join(tuned.lines_of(done)))
    raise typer.Exit(0 if all(d.recipe is not None for d in done) else 1)


def _check_tuned(context: typer.Context, where: str | None, suite: str | None) -> None:
    """`Invalid` unless there is one thing to tune, and for options that are for the other."""
    if (where is None) == (suite is None):
        raise Invalid("say what to tune: FILE.py:FUNCTION, or --suite NAME")
    if suite is None:
        why = "picks from a suite, and this is one function"
        hint = "leave it out; the dtypes of a function stand in its file"
        refuse(context, ("case", "dtype", "phase"), why, hint)
    else:
        refuse(context, ("size",), "is for a function: a suite has its own sizes", "--case, --dtype, --phase")


def _recipe_place(out: Path | None, several: bool) -> Path:
    """Where recipes are to go: a file, or a folder, of `several` in any case; by default in the user's data
    folder. `Invalid`, before anything is measured, if none could be written there."""
    from cleave.knobs import knobs

    where = out if out is not None else knobs().data_dir / "recipes"
    if several or where.is_dir() or not where.suffix:
        check_writable(where, folder=True)
    else:
        check_writable(where, head="cleave recipe", made=True)
    return where


def _tuned_sizes(loaded: Loaded, size: Sequence[str] | None) -> list[Mapping[Dim, int]]:
    """The points that `--size` asks for: a name that is given several times has several sizes."""
    from cleave.ir.dims import Atom

    program = loaded.program
    given: dict[str, list[int]] = {}
    for item in size or ():
        for name, value in parsed_sizes([item]).items():
            if value in given.setdefault(name, []):
                raise Invalid(f"--size gives {name}={value} twice", hint="another size, or leave one out")
            given[name].append(value)
    known = {atom.name for atom in program.dynamic}
    for name in given:
        if name not in known:
            hint = f"its dynamic dims are {', '.join(sorted(known)) or 'none'}"
            raise Invalid(f"--size: {program.name} has no dynamic dim {name!r}", hint=hint)
    points: list[dict[Dim, int]] = [{a: loaded.sizes.get(a, 512) for a in program.dynamic}]
    for name, values in given.items():
        points = [{**point, Atom(name): value} for point in points for value in values]
    return list(points)


@app.command("calibrate")
def calibrate_(
    target: For = Target.cpu,
    out: Annotated[Path | None, typer.Option(help="Write here, not to the user's data folder.")] = None,
    budget: Annotated[float, typer.Option(help="Seconds.", min=0.0)] = 60.0,
    as_json: Json = False,
) -> None:
    """Measure what the device can do, and keep it for the cost model."""
    from cleave.frontend.calibrate import calibrate

    with progress(f"measuring the {target} device", as_json):
        found = calibrate(target.value, budget=budget, out=out)
    if as_json:
        print(json.dumps(found.data(), indent=1))
    else:
        print(found.text(), end="")


# ---------------------------------------------------------------- steps that commands share


def _stage(stage: Emit | None, target: Target | None) -> tuple[Emit, Target]:
    """The stage to print and the target, each from the other where only one is given."""
    if stage is None:
        stage = Emit.triton if target is Target.cuda else Emit.cpp
    own = {Emit.triton: Target.cuda, Emit.cpp: Target.cpu}.get(stage)
    if own is not None and target not in (None, own):
        raise Invalid(f"--emit {stage} is for the target {own}, not {target}", hint="leave out --target")
    return stage, own or target or Target.cpu


def loaded_from(where: str, as_json: bool, *, partly: bool = False) -> Loaded:
    """A loaded program file's function; `partly` allows one that is not one program."""
    with progress(f"reading {where}", as_json):
        from cleave.frontend.files import load

        return load(where, partly=partly)


def plans_for(loaded: Loaded, target: Target, size: list[str] | None, as_json: bool) -> list[Plan]:
    """The plans of a loaded function's programs, in order."""
    from cleave.ir.dims import Atom
    from cleave.pipeline import plan
    from cleave.report.found import named

    given = parsed_sizes(size)
    programs = loaded.captured.programs
    known = {atom.name for program in programs for atom in program.dims}
    fixed = {atom.name: value for program in programs for atom, value in program.sizes}
    for name in given:
        if name not in known:
            hint = f"it has {', '.join(sorted(known)) or 'none'}"
            raise Invalid(f"--size: {loaded.captured.name} has no dim {name!r}", hint=hint)
        if name in fixed:
            raise Invalid(f"--size: {name} is not dynamic in {loaded.captured.name}: it is {fixed[name]}")
    sizes = {**loaded.sizes, **{Atom(name): value for name, value in given.items()}}
    plans: list[Plan] = []
    for program in programs:
        with progress(f"compiling {program.name} for {target}", as_json):
            own = {dim: value for dim, value in sizes.items() if dim in program.dynamic}
            plans.append(plan(named(program), target=target.value, sizes=own))
    return plans


def _texts(stage: Emit, plan: Plan) -> list[str]:
    """What a stage after capture gives for one program."""
    if stage is Emit.candidates:
        from cleave.ir.text import print_candidate

        return [print_candidate(c) for c in plan.found.candidates]
    if stage is Emit.tiles:
        from cleave.schedule.text import print_tiles

        return [print_tiles(v.tiles) for v in plan.variants]
    from cleave.pipeline import emit

    return [emit(v.tiles, plan.target).text for v in plan.variants]


def parsed_sizes(size: Sequence[str] | None) -> dict[str, int]:
    """`["S=17"]` as `{"S": 17}`."""
    from cleave.ir.sizes import read_size

    sizes: dict[str, int] = {}
    for item in size or ():
        name, _, value = item.partition("=")
        if not name or not (value.isascii() and value.isdigit()):
            raise Invalid(f"--size {item}: expected NAME=N with N a whole number, such as S=128")
        if name in sizes:
            what = f"--size gives {name} twice: {name}={sizes[name]} and {item}"
            raise Invalid(what, hint="one size for each dim (cleave tune takes several)")
        sizes[name] = read_size(value, f"--size {item[:40]}")
    return sizes


def show(stage: str, texts: Sequence[str], as_json: bool) -> None:
    """Print the texts of a stage one after the other, with a comment before each if there are several, or the
    same as JSON."""
    if as_json:
        data: Mapping[str, object] = {stage: texts[0] if stage == Emit.program else list(texts)}
        print(json.dumps(data, indent=1))
        return
    mark = _mark(stage)
    word = "candidate" if stage == Emit.candidates else "variant"
    for number, text in enumerate(texts, 1):
        if len(texts) > 1:
            print(f"{mark} {word} {number} of {len(texts)}")
        print(text.rstrip("\n"), end="\n\n" if number < len(texts) else "\n")


def show_pieces(
    stage: str, captured: Captured, texts: Sequence[Sequence[str]], steps: Sequence[str], as_json: bool
) -> None:
    """The same for a function that is not one program: how its pieces follow on each other, then the texts of
    each piece."""
    if as_json:
        from cleave.report.pieces import rest_data

        names = [program.name for program in captured.programs]
        pieces = [
            {"name": n, stage: t[0] if stage == Emit.program else list(t)}
            for n, t in zip(names, texts, strict=True)
        ]
        print(json.dumps({"pieces": pieces, **rest_data(captured)}, indent=1))
        return
    mark = _mark(stage)
    print("\n".join(f"{mark} {line}" for line in steps))
    for number, piece in enumerate(texts, 1):
        print(f"\n{mark} piece {number} of {len(texts)}: {captured.programs[number - 1].name}")
        show(stage, piece, False)


def _mark(stage: str) -> str:
    """How comments begin in the text of a stage."""
    return "//" if stage == Emit.cpp else "#"


register_fuse(app, lambda where: loaded_from(where, True), parsed_sizes)

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
