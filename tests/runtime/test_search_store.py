"""A program is searched once: in other processes, at other sizes, and after damage to the store."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cleave import knobs
from cleave.algebra import search as searching
from cleave.errors import CleaveError
from cleave.ir.program import Program
from cleave.ir.text import parse_program, print_candidate, print_program
from cleave.runtime import search_store

SOURCE = Path(search_store.__file__).parents[2]

ROW = """
program row(x: f32[N, T], w: f32[T, M]) where T = 64, M = 8 {
  top[n: N]: f32 = max[t: T](x[n, t])
  s[n: N, t: T]: f32 = sub(x[n, t], top[n])
  e[n: N, t: T]: f32 = exp(s[n, t])
  total[n: N]: f32 = sum[t: T](e[n, t])
  p[n: N, t: T]: f32 = div(e[n, t], total[n])
  out[n: N, m: M]: f32 = contract[t: T](p[n, t], w[t, m])
  return out[n, m]
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    search_store.forget()
    with knobs.scope(cache_dir=tmp_path):
        yield tmp_path
    search_store.forget()


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the programs that are searched, not read back."""
    made: list[str] = []
    real = searching.search

    def counted(program, **settings):
        made.append(program.name)
        return real(program, **settings)

    monkeypatch.setattr(searching, "search", counted)
    return made


def texts(found) -> list[str]:
    return [print_candidate(candidate) for candidate in found.candidates]


def test_what_comes_back_is_what_was_found(searches: list[str]) -> None:
    program = parse_program(ROW)
    first = search_store.search(program)
    in_memory = search_store.search(program)
    search_store.forget()
    from_disk = search_store.search(program)
    assert searches == ["row"]
    assert first == in_memory == from_disk and texts(first) == texts(from_disk)
    assert len(first.candidates) > 2 and first.candidates[0].program is program


def test_it_is_what_a_search_with_these_sizes_finds() -> None:
    program = parse_program(ROW)
    stored, direct = search_store.search(program), searching.search(program)
    assert texts(stored) == texts(direct) and stored == direct


def test_other_sizes_are_not_searched_again(searches: list[str]) -> None:
    found = search_store.search(parse_program(ROW))
    for where in ("T = 4096, M = 512", "T = 1, M = 0", "T = 64"):
        program = parse_program(ROW.replace("T = 64, M = 8", where))
        again = search_store.search(program)
        assert [c.form for c in again.candidates] == [c.form for c in found.candidates]
        assert all(c.program.sizes == program.sizes for c in again.candidates)
        assert all(c.split_form.sizes == program.sizes for c in again.candidates if c.split_form)
    search_store.search(parse_program(ROW.replace(" where T = 64, M = 8", "")))
    assert searches == ["row"]


def test_forms_over_parts_are_unpacked_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program(ROW)
    first = search_store.search(program)
    search_store.forget()
    unpacked: list[object] = []
    real = search_store.unpack
    monkeypatch.setattr(search_store, "unpack", lambda *given: unpacked.append(1) or real(*given))
    again = search_store.search(parse_program(ROW.replace("T = 64", "T = 5")))
    split = [c for c in again.candidates if c.splits]
    assert len(unpacked) == 1 and len(split) > 1
    texts = [print_program(c.split_form) for c in split if c.split_form is not None]
    assert len(unpacked) == 2
    assert [text.replace("T = 5", "T = 64") for text in texts] == [
        print_program(c.split_form) for c in first.candidates if c.split_form is not None
    ]


def test_other_programs_and_settings_are(searches: list[str]) -> None:
    program = parse_program(ROW)
    search_store.search(program)
    search_store.search(program, split=False)
    search_store.search(program, numerics="fast")
    search_store.search(program, reassociate=False)
    search_store.search(parse_program(ROW.replace("row", "line")))
    search_store.search(parse_program(ROW.replace("= max", "= min")))
    names = {node: name for node, name in program.names.items() if name != "p"}
    search_store.search(replace(program, names=names))
    assert len(searches) == 7


def test_the_users_lines_are_not_mixed_up() -> None:
    program = parse_program(ROW)
    lined = replace(program, lines={program.outputs[0].node: "file.py:3: p @ w"})
    search_store.search(lined)
    assert search_store.search(program).candidates[0].program.lines == {}
    assert search_store.search(lined).candidates[0].program.lines == lined.lines


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-7], lambda b: b"\0" + b[1:]])
def test_a_damaged_entry_is_searched_again(damage, folder: Path, searches: list[str]) -> None:
    first = search_store.search(parse_program(ROW))
    (path,) = folder.rglob(f"*{search_store.SUFFIX}")
    path.write_bytes(damage(path.read_bytes()))
    search_store.forget()
    assert search_store.search(parse_program(ROW)) == first
    assert searches == ["row", "row"]


def test_an_error_is_not_kept(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def broken(program, **settings):
        raise CleaveError("no")

    with monkeypatch.context() as patch, pytest.raises(CleaveError):
        patch.setattr(searching, "search", broken)
        search_store.search(parse_program(ROW))
    assert not list(folder.rglob(f"*{search_store.SUFFIX}")) and not list(folder.rglob("tmp-*"))
    assert search_store.search(parse_program(ROW)).candidates


CHILD = """
import sys
from pathlib import Path
from cleave import knobs
from cleave.algebra import search as searching
from cleave.ir.text import parse_program, print_candidate
from cleave.runtime import search_store

real, made = searching.search, []
searching.search = lambda program, **settings: made.append(1) or real(program, **settings)
with knobs.scope(cache_dir=Path(sys.argv[1])):
    found = search_store.search(parse_program(Path(sys.argv[2]).read_text()))
print(len(made))
for candidate in found.candidates:
    print(print_candidate(candidate))
"""


def child(folder: Path, text: str) -> subprocess.Popen[str]:
    program = folder / f"asked{len(list(folder.glob('asked*')))}.txt"
    program.write_text(text)
    code = [sys.executable, "-c", CHILD, str(folder), str(program)]
    return subprocess.Popen(code, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(SOURCE)})


def said(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    count, _, rest = out.partition("\n")
    return int(count), rest


def test_another_process_at_other_sizes_does_not_search(folder: Path) -> None:
    found = search_store.search(parse_program(ROW))
    count, text = said(child(folder, ROW.replace("T = 64", "T = 999")))
    assert count == 0
    assert text.replace("T = 999", "T = 64") == "".join(f"{t}\n" for t in texts(found))


def test_processes_that_search_at_once_find_the_same(folder: Path) -> None:
    children = [child(folder, ROW) for _ in range(3)]
    results = [said(process) for process in children]
    assert len({text for _, text in results}) == 1
    assert said(child(folder, ROW)) == (0, results[0][1])
    assert not list(folder.rglob("tmp-*"))


def test_a_program_prints_the_same_after_it_was_stripped_of_sizes() -> None:
    program = parse_program(ROW)
    free = search_store.without_sizes(program)
    assert print_program(replace(free, sizes=program.sizes)) == print_program(program)


COLUMN = """
program column(x: f32[N, T], c: f32[N]) where C = 1 {
  j[n: N, i: (T | C)]: f32 = cat[i = t | o](x[n, t], c[n])
  e[n: N, i: (T | C)]: f32 = exp(j[n, i])
  l[n: N]: f32 = sum[i: (T | C)](e[n, i])
  return l[n]
}
"""


def test_a_column_of_one_is_seen_through_the_store(searches: list[str]) -> None:
    def reduced(program: Program) -> bool:
        """Is there a form that computes the column without a reduction over it?"""
        found = search_store.search(program)
        assert found.candidates[0].program is program
        return any({str(i.dim) for n in c.program.nodes for i in n.bound} == {"T"} for c in found.candidates)

    assert reduced(parse_program(COLUMN))
    assert not reduced(parse_program(COLUMN.replace("C = 1", "C")))
    assert not reduced(parse_program(COLUMN.replace("C = 1", "C = 3")))
    assert len(searches) == 2
