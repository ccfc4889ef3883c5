"""A comparison with equality saturation: egglog, on the same laws, with a time limit.

Each row is a pair of programs that are equal. egglog gets the first, the laws, and the second, and runs
rounds of all laws until both are one class, or time or memory is up; Cleave proves the pair by normal forms.
Both run in a process of their own, so that memory is each one's. Indices are names in egglog (it has no
binders); that a term does not depend on an index is a relation that its own rules derive.
`python -m benchmarks.egglog_peer` runs all rows and writes `benchmarks/results/egglog.json` and
docs/egglog.md. See docs/decisions/ for why it is here.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.egglog_rows import CONTROL, ROWS, Row

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "egglog.json"
PAGE = ROOT / "docs" / "egglog.md"
SECONDS = 20.0
"""The time limit of a row."""
GIGABYTES = 4

LAWS = """
a + b = b + a; (a + b) + c = a + (b + c); a*b = b*a; (a*b)*c = a*(b*c); a*(b + c) = a*b + a*c
sum[i] sum[j] f = sum[j] sum[i] f; sum[i](f + g) = sum[i] f + sum[i] g
sum[i](c*f) = c*sum[i] f and sum[i] c = c*sum[i] 1 where c does not depend on i
sum[K] f = sum[parts(K)] sum[part(K)] f
exp(a + b) = exp(a)*exp(b); exp(-a) = 1/exp(a); exp(a)*(1/exp(a)) = 1
1/(a*b) = (1/a)*(1/b); 1/(1/a) = a; a*1 = a; a + 0 = a; a + -a = 0; -(-a) = a
(-a)*b = -(a*b); -(a + b) = -a + -b; sum[i] -f = -sum[i] f
log(a*b) = log a + log b; log(exp(a)) = a; exp(log(a)) = a (logarithms are of positive terms here)
""".strip()


# ---------------------------------------------------------------- one side of one row, in its own process


def _language(eg: Any) -> SimpleNamespace:
    """Sums, products and functions of one number as terms, and the relation that one is free of an index."""

    class E(eg.Expr):
        def __init__(self, name: eg.StringLike) -> None: ...
        def __add__(self, other: E) -> E: ...
        def __mul__(self, other: E) -> E: ...

    @eg.function
    def total(index: eg.StringLike, body: E) -> E: ...
    @eg.function
    def exp(a: E) -> E: ...
    @eg.function
    def inv(a: E) -> E: ...
    @eg.function
    def neg(a: E) -> E: ...
    @eg.function
    def log(a: E) -> E: ...

    free = eg.relation("free_of", E, eg.String)
    return SimpleNamespace(E=E, total=total, exp=exp, inv=inv, neg=neg, log=log, free=free)


def _laws(eg: Any, words: SimpleNamespace) -> Any:
    """What may be rewritten, and what follows about indices."""
    total, exp, inv, neg, log, free = (
        getattr(words, w) for w in ("total", "exp", "inv", "neg", "log", "free")
    )
    one, zero = words.E("1"), words.E("0")
    a, b, c = eg.vars_("a b c", words.E)
    i, j = eg.vars_("i j", eg.String)

    @eg.ruleset
    def laws():
        yield eg.rewrite(a + b).to(b + a)
        yield eg.birewrite((a + b) + c).to(a + (b + c))
        yield eg.rewrite(a * b).to(b * a)
        yield eg.birewrite((a * b) * c).to(a * (b * c))
        yield eg.birewrite(a * (b + c)).to(a * b + a * c)
        yield eg.rewrite(total(i, total(j, a))).to(total(j, total(i, a)))
        yield eg.birewrite(total(i, a + b)).to(total(i, a) + total(i, b))
        yield eg.rewrite(total(i, a * b)).to(a * total(i, b), free(a, i))
        yield eg.rewrite(a * total(i, b)).to(total(i, a * b), free(a, i))
        yield eg.birewrite(exp(a + b)).to(exp(a) * exp(b))
        yield eg.birewrite(exp(neg(a))).to(inv(exp(a)))
        yield eg.birewrite(inv(a * b)).to(inv(a) * inv(b))
        yield eg.rewrite(inv(inv(a))).to(a)
        yield eg.rewrite(exp(a) * inv(exp(a))).to(one)
        yield eg.rewrite(a * one).to(a)
        yield eg.rewrite(total(i, a)).to(a * total(i, one), free(a, i))
        yield eg.birewrite(total(i, neg(a))).to(neg(total(i, a)))
        yield eg.rewrite(neg(neg(a))).to(a)
        yield eg.rewrite(a + zero).to(a)
        yield eg.rewrite(a + neg(a)).to(zero)
        yield eg.birewrite(neg(a) * b).to(neg(a * b))
        yield eg.rewrite(neg(a + b)).to(neg(a) + neg(b))
        yield eg.birewrite(log(a * b)).to(log(a) + log(b))
        yield eg.rewrite(log(exp(a))).to(a)
        yield eg.rewrite(exp(log(a))).to(a)
        yield eg.birewrite(total("t", a)).to(total("pt", total("qt", a)))
        yield eg.rule(free(a, i), free(b, i), e := a * b).then(free(e, i))
        yield eg.rule(free(a, i), free(b, i), e := a + b).then(free(e, i))
        for unary in (exp, inv, neg, log):
            yield eg.rule(free(a, i), e := unary(a)).then(free(e, i))
        yield eg.rule(free(a, i), e := total(j, a)).then(free(e, i))
        yield eg.rule(e := total(i, a)).then(free(e, i))

    return laws


def by_egglog(row: Row) -> dict[str, Any]:
    """Rounds of all laws until both sides are one class."""
    import egglog as eg

    words = _language(eg)
    laws, one, zero = _laws(eg, words), words.E("1"), words.E("0")
    graph = eg.EGraph()
    names = {name: words.E(name) for name in row.leaves}
    known = {"S": words.total, "exp": words.exp, "inv": words.inv, "neg": words.neg, "log": words.log}
    scope = {**names, **known, "one": one}
    every = sorted({letter for indices in row.leaves.values() for letter in indices} | {"r"})
    for letter in [*every, "pt", "qt"]:
        graph.register(words.free(one, letter), words.free(zero, letter))
        for name, term in names.items():
            if not depends(row.leaves[name], letter):
                graph.register(words.free(term, letter))
    left, right = eval(row.one, dict(scope)), eval(row.two, dict(scope))
    graph.register(left, right)
    start = time.perf_counter()
    rounds = 0
    while time.perf_counter() - start < SECONDS:
        changed = graph.run(laws).updated
        rounds += 1
        print(json.dumps({"rounds": rounds}), flush=True)
        if graph.check_bool(left == right):
            return {"answer": "found", "seconds": time.perf_counter() - start, "rounds": rounds}
        if not changed:
            return {"answer": "saturated, no", "seconds": time.perf_counter() - start, "rounds": rounds}
    return {"answer": "not in time", "seconds": time.perf_counter() - start, "rounds": rounds}


def depends(indices: str, index: str) -> bool:
    """Does a leaf with these indices vary with an index? `p` stands for the parts of `t` alone."""
    return index[-1] in indices or ("p" in indices and index in ("t", "pt"))


def by_cleave(row: Row) -> dict[str, Any]:
    """The proof by normal forms; the search is not asked here."""
    from cleave.algebra.proof import prove
    from cleave.ir.text import parse_program

    one, two = parse_program(row.first), parse_program(row.second)
    start = time.perf_counter()
    proof = prove(one, two, points=0)
    seconds = time.perf_counter() - start
    return {"answer": "found" if proof.holds else f"{proof.answer}", "seconds": seconds, "rounds": 0}


SIDES: Mapping[str, Callable[[Row], dict[str, Any]]] = {"egglog": by_egglog, "cleave": by_cleave}


def alone(side: str, name: str) -> None:
    """Run one side of one row and print what came out; memory is what the row added to the process."""
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES << 30, GIGABYTES << 30))
    row = next(r for r in ROWS if r.name == name)
    if side == "egglog":
        import egglog  # noqa: F401
    else:
        import cleave.algebra.proof  # noqa: F401
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    result = SIDES[side](row)
    result["mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    print(json.dumps(result), flush=True)


def measured(side: str, row: Row) -> dict[str, Any]:
    """One side of one row in a process of its own, with hard limits of time and memory."""
    command = [sys.executable, "-m", "benchmarks.egglog_peer", side, row.name]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        out, err = started.communicate(timeout=SECONDS + 15)
        stopped = ""
    except subprocess.TimeoutExpired:
        started.kill()
        out, err = started.communicate()
        stopped = "not in time"
    lines = [json.loads(text) for text in out.splitlines() if text.startswith("{")]
    if lines and "answer" in lines[-1]:
        return lines[-1]
    rounds = max((entry["rounds"] for entry in lines), default=0)
    memory = "memory" in err or "alloc" in err or started.returncode < 0
    answer = stopped or (f"more than {GIGABYTES} GiB" if memory else f"failed: {err.strip()[-200:]}")
    return {"answer": answer, "seconds": None, "rounds": rounds, "mib": None}


def run() -> None:
    """All rows, both sides; the results and the page."""
    rows = []
    for row in ROWS:
        rows.append({"row": row.name, **{side: measured(side, row) for side in SIDES}})
        print(json.dumps(rows[-1]), flush=True)
    data = {"egglog": metadata.version("egglog"), "limit_s": SECONDS, "laws": LAWS, "rows": rows}
    RESULTS.write_text(json.dumps(data, indent=1) + "\n")
    PAGE.write_text(page(data))


# ---------------------------------------------------------------- the page

TITLE = """# Against equality saturation

Made by `python -m benchmarks.egglog_peer`; do not edit. Each row is a pair of equal programs. egglog
{version} is given both sides and the laws below, and runs rounds of all laws until both are one class.
Cleave compares their normal forms. Time limit {limit:g} s, memory limit {memory} GiB, each in a process
of its own; memory is what the row added. egglog is told which side to look for, and has neither maxima nor
conditions here: this is the easy form of the question.
"""


def page(data: Mapping[str, Any]) -> str:
    """docs/egglog.md."""
    lines = [TITLE.format(version=data["egglog"], limit=data["limit_s"], memory=GIGABYTES)]
    lines += ["```", data["laws"], "```", ""]
    lines += ["| pair | egglog | s | rounds | MiB | Cleave | s | MiB |", "|---|---|---|---|---|---|---|---|"]
    for row in data["rows"]:
        peer, ours = row["egglog"], row["cleave"]
        theirs = [peer["answer"], number(peer["seconds"]), str(peer["rounds"]), number(peer["mib"])]
        cells = [row["row"], *theirs, ours["answer"], number(ours["seconds"]), number(ours["mib"])]
        lines.append(f"| {' | '.join(cells)} |")
    found = [sum(row[side]["answer"] == "found" for row in data["rows"]) for side in ("egglog", "cleave")]
    pairs = sum(row["row"] != CONTROL for row in data["rows"])
    lines += [
        "",
        f"Found: egglog {found[0]}, Cleave {found[1]}, of {pairs}; the control is to be found by neither.",
    ]
    return "\n".join(lines) + "\n"


def number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    if len(sys.argv) == 3:
        alone(sys.argv[1], sys.argv[2])
    else:
        run()
