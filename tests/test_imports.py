"""The order of the packages (docs/tour.md): nothing imports upward, inside functions neither."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "cleave"
LAYERS: list[set[str]] = [
    {"errors", "knobs", "version"},
    {"ir"},
    {"algebra", "schedule"},
    {"fusion"},
    {"codegen"},
    {"runtime"},
    {"pipeline"},
    {"frontend"},
    {"report"},
    {"cli"},
    {"__main__"},
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def package_of(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def imports_of(path: Path) -> list[tuple[int, str]]:
    """Line and first package of every `cleave` import of a file, wherever it stands."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            module = node.module or ""
            names = [f"{module}.{a.name}" for a in node.names] if module == "cleave" else [module]
        else:
            continue
        for name in names:
            parts = name.split(".")
            if parts[0] == "cleave":
                found.append((node.lineno, parts[1] if len(parts) > 1 else ""))
    return found


FILES = sorted(p for p in SOURCE.rglob("*.py") if p != SOURCE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_nothing_imports_upward(path: Path) -> None:
    own = package_of(path)
    assert own in RANK, f"{path} is in no layer: say where it belongs in LAYERS"
    for line, other in imports_of(path):
        assert other in RANK, f"{path}:{line}: import from the package root; take the leaf module"
        same = own == other
        below = RANK[other] < RANK[own]
        beside = RANK[other] == RANK[own] == 0
        assert same or below or beside, f"{path}:{line}: {own} imports {other}"


MOST_LINES = 520
"""Lines of a file: about 500 (CONTRIBUTING.md)."""


def test_files_stay_short() -> None:
    root = SOURCE.parents[1]
    paths = [p for folder in ("src", "tests", "benchmarks") for p in sorted((root / folder).rglob("*.py"))]
    long = {str(p.relative_to(root)): n for p in paths if (n := len(p.read_text().splitlines())) > MOST_LINES}
    assert not long, "split these by concept"
