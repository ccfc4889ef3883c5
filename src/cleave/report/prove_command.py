"""`cleave prove`: are two functions equal? With a certificate of it, written or verified.

`register` adds the command to the application; loading program files is handed in, since it belongs to `cli`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cleave.errors import Invalid
from cleave.report.terminal import Json, progress, read, write
from cleave.runtime.written import check_writable

if TYPE_CHECKING:
    from cleave.algebra.proof import Proof
    from cleave.frontend.files import Loaded
    from cleave.ir.program import Program

Load = Callable[[str, bool], "Loaded"]
"""A program file's function, by FILE.py:FUNCTION; quietly or with progress shown."""

EXITS = {"yes": 0, "yes-if": 0, "no": 1, "unknown": 2}
UNMET = 3


def register(app: typer.Typer, load: Load) -> None:
    """Add the command `prove`."""

    @app.command("prove")
    def prove_(  # pyright: ignore[reportUnusedFunction]
        left: Annotated[str | None, typer.Argument(help="A function.", metavar="FILE.py:FUNCTION")] = None,
        right: Annotated[str | None, typer.Argument(help="Another.", metavar="FILE.py:FUNCTION")] = None,
        strict: Annotated[bool, typer.Option("--strict", help="Exit with 3 for a Yes-if.")] = False,
        certificate: Annotated[
            Path | None,
            typer.Option(help="Write the proof here, as text that --check verifies.", metavar="FILE"),
        ] = None,
        check: Annotated[
            Path | None,
            typer.Option(help="Verify a certificate (of these functions, if given).", metavar="FILE"),
        ] = None,
        as_json: Json = False,
    ) -> None:
        """Are two functions equal, over the finite reals and for every size?"""
        if check is not None and certificate is not None:
            raise Invalid("--certificate writes a file, --check reads one", hint="give one of them")
        if certificate is not None:
            check_writable(certificate)
        given = [load(where, as_json).program for where in (left, right) if where is not None]
        if len(given) != (0 if check is not None and left is None else 2):
            raise Invalid("prove takes two functions", hint="or --check FILE alone, to verify a certificate")
        if check is not None:
            proof, lines = _checked(check, given)
        else:
            from cleave.algebra.proof import prove

            with progress("proving", as_json):
                proof = prove(*given)
            lines = _certified(certificate, given, proof) if certificate is not None and proof.holds else []
        if as_json:
            print(json.dumps({**proof_data(proof), **({"certificate": lines} if lines else {})}, indent=1))
        else:
            print("\n".join([proof_text(proof), *lines]))
        if lines and not lines[0].startswith("certificate"):
            raise typer.Exit(EXITS["unknown"])
        raise typer.Exit(UNMET if strict and proof.answer == "yes-if" else EXITS[proof.answer])


def _checked(path: Path, given: Sequence[Program]) -> tuple[Proof, list[str]]:
    """What a certificate proves; `Invalid` if it does not, or not of the given programs."""
    from cleave.algebra.certificate import concerns
    from cleave.algebra.proof import Proof
    from cleave.ir.checker import check

    found = check(read(path))
    if given and not concerns(found, given[0], given[1]):
        raise Invalid(f"{path} is a certificate of other programs than these")
    answer = "yes-if" if found.conditions else "yes"
    return Proof(answer, found.conditions), [f"certificate: {_counted(len(found.steps))}, checked"]


def _counted(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _certified(path: Path, given: Sequence[Program], proof: Proof) -> list[str]:
    """Write a certificate, if there is one, and say so."""
    from cleave.algebra.certificate import certify

    found = certify(given[0], given[1])
    if not found.holds:
        return ["Unknown: no certificate", f"  {found.reason}"]
    if found.conditions and proof.answer == "yes":
        listed = [f"  {condition}" for condition in found.conditions]
        return ["Unknown: no certificate without further conditions", *listed]
    write(path, found.text)
    return [f"certificate: {_counted(found.steps)}, checked, in {path}"]


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
