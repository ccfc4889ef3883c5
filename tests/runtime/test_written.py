"""Files that Cleave leaves: refused in time where they cannot be written, and whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from cleave.errors import Invalid
from cleave.runtime.written import check_writable, write_whole


def test_a_path_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    there = tmp_path / "there.recipe"
    there.write_text("cleave recipe 1\n")
    for path in (there, tmp_path / "new.recipe"):
        check_writable(path, head="cleave recipe")
    check_writable(tmp_path / "a" / "b" / "new.recipe", made=True)
    with pytest.raises(Invalid, match="No such file or directory"):
        check_writable(tmp_path / "a" / "new.recipe")
    check_writable(tmp_path / "a" / "b", folder=True)
    assert [p.name for p in tmp_path.iterdir()] == [
        "there.recipe"
    ] and there.read_text() == "cleave recipe 1\n"


@pytest.mark.parametrize("name", ["taken/x.recipe", "taken/a/b/x.recipe", ".", "x" * 300])
def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(Invalid, match="cannot be written") as caught:
        check_writable(tmp_path / name)
    assert caught.value.hint
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


def test_a_file_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import cleave\n")
    with pytest.raises(Invalid, match="is another file, and would be lost"):
        check_writable(tmp_path / "mine.py", head="cleave recipe")
    check_writable(tmp_path / "mine.py")
    (tmp_path / "empty").touch()
    check_writable(tmp_path / "empty", head="cleave recipe")


def test_a_folder_where_a_file_is_cannot_be_one(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(Invalid, match="cannot be written"):
        check_writable(tmp_path / "taken", folder=True)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a" / "x.recipe"
    write_whole(path, "old")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "new")
    assert path.read_text() == "old" and [p.name for p in path.parent.iterdir()] == ["x.recipe"]
