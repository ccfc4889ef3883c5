"""`cleave fuse`: plan a function's kernels under a strategy and say what was decided and why.

`register` adds the command to the application; loading program files is handed in, since it belongs to `cli`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from cleave.errors import Invalid
from cleave.report.given import refuse
from cleave.report.terminal import read, write
from cleave.runtime.written import check_writable

if TYPE_CHECKING:
    from cleave.frontend.files import Loaded
    from cleave.fusion.graph import Graph

Load = Callable[[str], "Loaded"]
Where = Annotated[
    str,
    typer.Argument(help="FILE.py:FUNCTION of a program file, or a graph in a .cleave file.", metavar="WHERE"),
]


STRATEGIES = (
    "none, vertical, vertical-dup, merger, multi-output, horizontal, priority, xla, cleave, or joined with +."
)
EXPLAIN = "Two operations, by name or FILE:LINE: why do they not share a kernel?"
SIZE = "NAME=N, the size of a dynamic dim."
DATA = "Write data here, - for stdout."
MOST = 2000
LIMIT = "Decisions, and kernels, in the data; 0 for all of any size."
REPLAY = "Make the plan from the log in this file, that --json wrote, instead of planning."


def register(app: typer.Typer, load: Load, sizes_of: Callable[[list[str] | None], dict[str, int]]) -> None:
    """Add the command `fuse`."""

    @app.command("fuse")
    def fuse_(  # pyright: ignore[reportUnusedFunction]
        context: typer.Context,
        where: Where,
        strategy: Annotated[str, typer.Option(help=STRATEGIES)] = "cleave",
        epoch: Annotated[str, typer.Option(help="Whose rules: X22, X23 or X26.")] = "X26",
        device: Annotated[str, typer.Option(help="a6000, h200 or cpu.")] = "h200",
        explain: Annotated[tuple[str, str] | None, typer.Option(help=EXPLAIN, metavar="A B")] = None,
        size: Annotated[list[str] | None, typer.Option("--size", help=SIZE, metavar="NAME=N")] = None,
        html: Annotated[Path | None, typer.Option(help="Write one page here.", metavar="FILE")] = None,
        json_file: Annotated[Path | None, typer.Option("--json", help=DATA, metavar="FILE")] = None,
        limit: Annotated[int, typer.Option(help=LIMIT)] = MOST,
        replay: Annotated[Path | None, typer.Option(help=REPLAY, metavar="FILE")] = None,
    ) -> None:
        """Which operations share a kernel, and why others do not."""
        if limit < 0:
            raise Invalid(f"--limit {limit} is negative", hint="0 is for all")
        if replay is not None:
            why = "is what --replay reads from the log"
            refuse(context, ("strategy", "epoch", "device"), why, "give one of them")
        if json_file is None:
            refuse(context, ("limit",), "limits the data that --json writes", "--json FILE, or - for stdout")
        for path in (html, json_file):
            if path is not None and str(path) != "-":
                check_writable(path)
        graph = graph_at(where, load, sizes_of(size))
        from cleave.fusion.explaining import explain as explained
        from cleave.fusion.lints import lints
        from cleave.fusion.planning import plan_again, plan_fusion
        from cleave.fusion.rules import Rules, device_named
        from cleave.report.fusion import explanation_text, fusion_data, fusion_page, fusion_text

        if replay is not None:
            plan = plan_again(graph, _logged(replay))
        else:
            plan = plan_fusion(graph, strategy, Rules(epoch, device_named(device)))
        found = lints(graph, plan.rules)
        answer = explained(plan, *explain) if explain is not None else None
        if html is not None:
            write(html, fusion_page(plan, found, answer))
        if json_file is not None:
            text = json.dumps(fusion_data(plan, found, answer, limit), indent=1)
            if str(json_file) == "-":
                print(text)
                return
            write(json_file, text + "\n")
        print(explanation_text(answer) if answer is not None else fusion_text(plan, found), end="")


def graph_at(where: str, load: Load, sizes: dict[str, int]) -> Graph:
    """The planner's graph of a program file's function, or of a text file."""
    if where.endswith(".cleave"):
        from cleave.fusion.notation import parse_graph

        if sizes:
            raise Invalid(f"--size {next(iter(sizes))}: the sizes of a .cleave file stand in it")
        return parse_graph(read(Path(where)), Path(where).stem)
    from cleave.fusion.from_program import graph_of
    from cleave.ir.dims import Atom
    from cleave.report.found import named

    loaded = load(where)
    known = {atom.name for atom in loaded.program.dynamic}
    for name in sizes:
        if name not in known:
            raise Invalid(
                f"--size: {name} is no dynamic dim", hint=f"dynamic: {', '.join(sorted(known)) or 'none'}"
            )
    given: dict[Any, int] = {**loaded.sizes, **{Atom(name): n for name, n in sizes.items()}}
    return graph_of(named(loaded.program), given)


def _logged(path: Path) -> dict[str, object]:
    try:
        data = json.loads(read(path))
    except ValueError as error:
        raise Invalid(f"{path} is no JSON: {error}") from error
    if not isinstance(data, dict):
        raise Invalid(f"{path} holds no plan", hint="cleave fuse --json writes one")
    return cast("dict[str, object]", data)
