"""Options that a command line gives and the command would not look at: refused, never ignored."""

from __future__ import annotations

from collections.abc import Collection

import typer

from cleave.errors import Invalid


def given(context: typer.Context) -> dict[str, str]:
    """The options that stand on the command line, by parameter, as they are written: `--json`."""
    found: dict[str, str] = {}
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE" and parameter.param_type_name == "option":
            found[parameter.name or ""] = max(parameter.opts, key=len)
    return found


def refuse(context: typer.Context, names: Collection[str], why: str, hint: str) -> None:
    """`Invalid` for the first of these options (by parameter) that is given."""
    for name, option in given(context).items():
        if name in names:
            raise Invalid(f"{option} {why}", hint=hint)


def refuse_other(context: typer.Context, names: Collection[str], whose: str) -> None:
    """`Invalid` for the first option that is given and is none of these; `whose` says what takes them."""
    options = {p.name: max(p.opts, key=len) for p in context.command.params if p.name in names}
    for name, option in given(context).items():
        if name not in names:
            raise Invalid(f"{whose} has no use for {option}", hint=f"it takes {', '.join(options.values())}")
