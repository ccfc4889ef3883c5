"""What the documents show is what the tool does: the example of the README, and the demo on small inputs."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from cleave.knobs import scope

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_cache(tmp_path):
    with scope(cache_dir=tmp_path):
        yield


def test_the_readme_examples_print_what_they_say(capsys):
    """All Python of the README, in order and in one namespace; each block is followed by what it prints."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```\n\nprints\n\n```\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == text.count("```python") and {"cleave.compile(", "@cleave.jit"} <= {
        word for code, _ in blocks for word in ("cleave.compile(", "@cleave.jit") if word in code
    }
    torch.manual_seed(0)
    names = {"__name__": "readme"}
    for code, said in blocks:
        line = text[: text.index(code)].count("\n")
        exec(compile("\n" * line + code, str(ROOT / "README.md"), "exec"), names)
        assert capsys.readouterr().out == said


def test_links_of_the_documents_lead_somewhere():
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([\w./-]+)\)", path.read_text()):
            if "://" not in target:
                assert (path.parent / target).exists(), f"{path.name}: {target}"


def loaded(path: Path, monkeypatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(path.parent))
    spec = importlib.util.spec_from_file_location("demo", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "demo", module)
    spec.loader.exec_module(module)
    return module


def test_the_demo_on_small_inputs(capsys, monkeypatch):
    demo = loaded(ROOT / "examples" / "demo.py", monkeypatch)
    monkeypatch.setattr(demo, "BUDGET", 0.01)
    # The peer costs half a minute of compiling, and is not what is tested here.
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(demo, "quiet", lambda: None)
    job, linear = demo.JOBS
    small = {"S": 64, "T": 64}, {"S": 1, "T": 129}
    assert {tuple(sizes) for sizes in linear.sizes} == {("N",)} and len(job.sizes) == 2
    monkeypatch.setattr(
        demo, "JOBS", (demo.Job(job.title, job.function, job.dynamic, small, job.make, job.length),)
    )
    demo.out.width = 100
    assert demo.main() == 0
    said = capsys.readouterr().out
    for part in (
        "Program",
        "Derivation",
        "Folds",
        "Proof",
        "yes",
        "Schedule",
        "kernel main",
        "Generated C++",
    ):
        assert part in said
    assert "(compile_count): 1" in said and said.count("torch.compile ") >= 2
    path = re.search(r"^\s+(/\S+\.cpp)$", said, re.MULTILINE)
    assert path and 'extern "C"' in Path(path[1]).read_text()
