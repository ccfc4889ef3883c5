"""The main job, from plain PyTorch to measured kernels on the CPU: `make demo`, or `python examples/demo.py`.

Causal grouped-query attention (with its log-sum-exp) and RMSNorm+Linear are compiled once each. For each it
prints what was captured, the derivation that was found, the proof, the schedule, where the generated C++
lies, and, at two sizes, the error against float64 and the time beside eager and torch.compile.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.harness import Row, compare
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import cleave
from attention import attention
from cleave.algebra.proof import prove
from cleave.ir.candidate import Candidate
from cleave.ir.program import Program
from cleave.ir.text import print_program
from cleave.pipeline import Compiled
from cleave.report.found import derivation_text, folds_text
from cleave.report.schedule import variant_text
from cleave.report.sources import source_of
from cleave.schedule.select import Ranked
from rmsnorm_linear import rmsnorm_linear

SEEDS = 3
"""Input sets per size; times are medians over them in rotation."""
BUDGET = 1.0
"""Seconds of timing per size, a little more if runs are long."""

Tensors = tuple[torch.Tensor, ...]
out = Console(width=min(118, max(80, Console().width)), highlight=False)


@dataclass(frozen=True)
class Job:
    """A function, what its inputs' axes are called, and how inputs are made for given sizes. `length` is the
    longest sum, which the allowed error grows with."""

    title: str
    function: Callable[..., object]
    dynamic: Mapping[str, Sequence[str]]
    sizes: Sequence[Mapping[str, int]]
    make: Callable[[Mapping[str, int]], Tensors]
    length: Callable[[Mapping[str, int]], int]


def attention_inputs(sizes: Mapping[str, int]) -> Tensors:
    rows, keys = sizes["S"], sizes["T"]
    return torch.randn(8, rows, 64), torch.randn(2, keys, 64), torch.randn(2, keys, 64)


def linear_inputs(sizes: Mapping[str, int]) -> Tensors:
    return torch.randn(sizes["N"], 2048), torch.randn(2048), torch.randn(2048, 2048) / math.sqrt(2048)


JOBS = (
    Job(
        "Causal grouped-query attention with its log-sum-exp",
        attention,
        {"q": ("H=8", "S", "D=64"), "k": ("KV=2", "T", "D"), "v": ("KV", "T", "D")},
        ({"S": 1024, "T": 1024}, {"S": 1, "T": 4097}),
        attention_inputs,
        lambda sizes: sizes["T"],
    ),
    Job(
        "RMSNorm and a linear layer",
        rmsnorm_linear,
        {"x": ("N", "K=2048"), "g": ("K",), "w": ("O=2048", "K")},
        ({"N": 256}, {"N": 17}),
        linear_inputs,
        lambda sizes: 2048,
    ),
)


def main() -> int:
    quiet()
    torch.manual_seed(0)
    started = time.perf_counter()
    wrong = sum(run(job) for job in JOBS)
    verdict = "every result within the allowed error" if not wrong else f"{wrong} results are wrong"
    out.print(f"\n[bold]{verdict}[/bold], {time.perf_counter() - started:.0f} s in all")
    return 1 if wrong else 0


def run(job: Job) -> int:
    """Compile, show and measure one function; the number of wrong results of ours."""
    out.rule(f"[bold]{job.title}")
    start = time.perf_counter()
    with busy("capturing, searching, scheduling, building"):
        fast = cleave.compile(job.function, job.make(job.sizes[0]), dynamic=job.dynamic)
        compiled = compiled_of(fast)
    spent = time.perf_counter() - start
    chosen = compiled.plan.variants[0]
    show_program(compiled.plan.program)
    show_search(compiled, chosen, spent)
    show_proof(compiled.plan.program, chosen.candidate)
    heading("Schedule", f"of {len(compiled.plan.variants)} variants the one for these first sizes")
    plain(variant_text(compiled.plan, chosen))
    heading("Generated C++")
    plain("\n".join(str(source_of(launcher)) for launcher in compiled.launchers.values()))
    wrong = 0
    table = times_table()
    for number, sizes in enumerate(job.sizes):
        rows = measure(job, sizes, fast)
        add_rows(table, sizes, rows, number > 0)
        wrong += sum(not row.correct for row in rows if row.implementation == "cleave")
    heading("Measured", f"{torch.get_num_threads()} threads; torch.compile compiles anew for each size")
    out.print(table)
    out.print(f"compiles for both sizes (compile_count): [bold]{fast.compile_count}[/bold]")
    return wrong


def compiled_of(fast: cleave.Jit) -> Compiled:
    """The one compiled program of a function."""
    (kind,) = fast.kinds.values()
    (compiled,) = kind.variants[0].callables
    assert isinstance(compiled, Compiled)
    return compiled


# ---------------------------------------------------------------- what was found


def show_program(program: Program) -> None:
    """Signature, reductions and results; pointwise lines are only counted."""
    lines = print_program(program).splitlines()
    end = next(n for n, line in enumerate(lines) if line.endswith("{")) + 1
    body = lines[end:-1]
    kept = [line for line in body if any(word in line for word in ("contract[", "sum[", "max[", "return "))]
    heading("Program", f"as captured; {len(body) - len(kept)} pointwise lines left out")
    plain("\n".join([*lines[:end], *kept, "}"]))


def show_search(compiled: Compiled, chosen: Ranked, spent: float) -> None:
    plan = compiled.plan
    heading("Derivation", f"candidate '{chosen.candidate.form}', one of {len(plan.found.candidates)} found")
    plain(derivation_text(chosen.candidate))
    heading("Folds", "how each dim is reduced piece by piece, found and proved")
    plain(folds_text(chosen.candidate, most=2))
    out.print(f"captured, searched, scheduled, built and run once in {spent:.1f} s", style="dim")


def show_proof(program: Program, candidate: Candidate) -> None:
    """Ask again whether candidate and program are equal, and say how long the answer takes."""
    start = time.perf_counter()
    proof = prove(program, candidate.program)
    spent = (time.perf_counter() - start) * 1e3
    heading("Proof", "is it equal to the program, over the finite reals and for every size?")
    conditions = f" if {', '.join(proof.conditions)}" if proof.conditions else ""
    plain(f"{proof.answer}{conditions} ({spent:.0f} ms)")


# ---------------------------------------------------------------- measurements


def measure(job: Job, sizes: Mapping[str, int], fast: Callable[..., object]) -> list[Row]:
    """Eager, torch.compile and ours: the error of each against float64, then interleaved times."""
    sets = [job.make(sizes) for _ in range(SEEDS)]
    torch.compiler.reset()
    implementations = {
        "eager": job.function,
        "torch.compile": torch.compile(job.function, dynamic=False),
        "cleave": fast,
    }
    with busy(f"measuring {text_of(sizes)} (torch.compile takes a while)"):
        length = job.length(sizes)
        return compare(
            implementations, job.function, sets, device="cpu", length=length, budget=BUDGET, repeats=15
        )


def times_table() -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("sizes")
    table.add_column("")
    for column in ("error against float64", "allowed", "median ms", "times eager's speed"):
        table.add_column(column, justify="right")
    return table


def add_rows(table: Table, sizes: Mapping[str, int], rows: Sequence[Row], apart: bool) -> None:
    if apart:
        table.add_row()
    eager = rows[0].seconds
    for number, row in enumerate(rows):
        label = text_of(sizes) if not number else ""
        if row.failure:
            table.add_row(label, row.implementation, escape(row.failure))
            continue
        cells = (f"{row.error:.1e}", f"{row.allowed:.1e}", f"{row.seconds * 1e3:.3f}")
        table.add_row(label, row.implementation, *cells, f"{eager / row.seconds:.2f}")


# ---------------------------------------------------------------- printing


def text_of(sizes: Mapping[str, int]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes.items())


def heading(title: str, note: str = "") -> None:
    out.print(f"\n[bold]{title}[/bold]" + (f" [dim]{escape(note)}[/dim]" if note else ""))


def plain(text: str) -> None:
    """Text as it is, indented."""
    for line in text.splitlines():
        out.print(f"  {escape(line)}", soft_wrap=True)


@contextlib.contextmanager
def busy(what: str) -> Iterator[None]:
    """Say what takes time, while it does and if somebody looks."""
    if out.is_terminal:
        with out.status(what):
            yield
    else:
        yield


def quiet() -> None:
    """torch.compile warns of what does not matter here."""
    warnings.filterwarnings("ignore", module="torch")
    logging.getLogger("torch").setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())
