"""A child of `cleave.frontend.tuning` that works out what there is to measure at a point.

python -m cleave.frontend.tuning_worker plan
"""

from __future__ import annotations

from functools import lru_cache

from cleave.frontend.tuning import candidates_of, varied
from cleave.ir.candidate import Candidate
from cleave.ir.parse import parse_program
from cleave.ir.program import Program
from cleave.runtime.recipes import candidate_digest
from cleave.runtime.tune_process import Message
from cleave.runtime.tune_worker import serve
from cleave.schedule.text import print_tiles


@lru_cache(maxsize=2)
def searched(text: str) -> tuple[Program, tuple[Candidate, ...]]:
    """A program and its candidates: the next point is often one of the same program."""
    program = parse_program(text)
    return program, candidates_of(program)


def plan(message: Message) -> Message:
    """The choices of one point."""
    program, candidates = searched(message["program"])
    sizes = program.bind({atom: message["sizes"][atom.name] for atom in program.dynamic})
    chosen = varied(candidates, sizes, message["target"], message["count"])
    return {
        "choices": [
            {
                "tiles": print_tiles(r.tiles),
                "model": r.cost.seconds,
                "candidate": candidate_digest(r.candidate),
                "form": r.candidate.form,
            }
            for r in chosen
        ]
    }


if __name__ == "__main__":
    serve(plan)
