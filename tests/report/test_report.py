"""What is told about a compilation: names that can be looked up, formulas, outlines, the page."""

from __future__ import annotations

import html
import re

import pytest
import torch

from cleave.frontend.files import capture_for_proof
from cleave.ir.dims import Atom
from cleave.ir.text import print_program
from cleave.knobs import knobs, scope
from cleave.pipeline import Plan, emit, plan
from cleave.report.explain import as_data, explain
from cleave.report.found import (
    at,
    conditions_text,
    derivation_text,
    folds_text,
    left_out,
    named,
    subjects_of,
)
from cleave.report.html import page
from cleave.report.schedule import amount, bytes_text, facts, outline, tiles_words
from cleave.report.sources import kept
from cleave.schedule.text import parse_tiles
from cleave.schedule.tiles import Tensor


def attention(q, k, v):
    i = torch.arange(q.shape[0])[:, None]
    j = torch.arange(k.shape[0])[None, :]
    scores = ((q @ k.T) / 8).masked_fill(j > i, float("-inf"))
    return torch.softmax(scores, -1) @ v


@pytest.fixture(scope="module")
def attended() -> Plan:
    captured = capture_for_proof(attention, {"q": ("S", 64), "k": ("T", 64), "v": ("T", 64)})
    return plan(named(captured.program), target="cpu")


@pytest.fixture(scope="module")
def story(attended) -> str:
    return explain(attended)


SPLIT = """
tiles summed(x: f32[N, K]) -> (y: f32[N]) where N = 64 split K {
  workspace partial: f32[parts(K), N]
  kernel main(x, partial) grid(p: parts(K) by 1, n: N by 16) warps 1 stages 1 {
    zero[n]: f32 = fill 0.0
    carry total[n]: f32 = zero
    for k: K by 32 from part_start(p) to part_end(p) {
      x1[n, k]: f32 = load x[n, k]
      e[n, k]: f32 = exp(x1)
      s[n]: f32 = reduce sum[k](e)
      t[n]: f32 = add(total, s)
      update total = t
    }
    store partial[p, n] = total
  }
  kernel merge(partial, y) grid(n: N by 16) warps 1 stages 1 {
    zero[n]: f32 = fill 0.0
    carry total[n]: f32 = zero
    for p: parts(K) by 1 from 0 to parts(K) {
      x1[n]: f32 = load partial[p, n]
      t[n]: f32 = add(total, x1)
      update total = t
    }
    store y[n] = total
  }
}
"""


def test_named_programs_are_the_same_programs(attended):
    captured = capture_for_proof(attention, {"q": ("S", 64), "k": ("T", 64), "v": ("T", 64)}).program
    again = named(captured)
    assert again == captured and print_program(again) == print_program(captured)
    inner = {n for n in captured.nodes if n.axes and n not in captured.inputs}
    assert inner <= set(again.names) and "exp1" in again.names.values()


def test_every_name_of_a_fold_is_in_the_program(attended):
    for candidate in attended.candidates:
        printed = print_program(candidate.program)
        for line in folds_text(candidate).splitlines():
            if line.startswith("over T"):
                values = line.split(": ")[1].split(", from the state")[0].split(", ")
                assert len(values) == 3
                assert all(f"  {value}[" in printed for value in values), line


def test_an_online_maximum_is_told_as_a_formula(attended):
    text = folds_text(attended.candidates[0])
    assert re.search(r"piece:  max' = max\(max, max\[part\(\w+\)\] x0\)", text)
    flat = " ".join(text.split())  # an infinite maximum makes the denominator NaN, as it does in PyTorch
    assert re.search(r"result: \w+ = .*sum2 / select\(.*sum \+ \(max - max\)\)", flat)
    assert "is false throughout are skipped" in text


def test_conditions_name_values_of_the_program(attended):
    for candidate in attended.candidates:
        printed = print_program(candidate.program)
        subjects = subjects_of(candidate)
        assert len(subjects) == len(candidate.conditions) == len(conditions_text(candidate).splitlines())
        for subject in subjects:
            assert f"  {subject}[" in printed, subject


def test_derivations_give_law_place_before_and_after(attended):
    told = [c for c in attended.candidates if c.derivation]
    assert told
    for candidate in told:
        text = derivation_text(candidate)
        assert text.startswith(" 1. ") and ", at " in text
        assert text.count("      from ") == text.count("      to   ") == len(candidate.derivation)
    assert derivation_text(attended.candidates[0]) == "The program is as the user wrote it."


def test_the_story_is_complete_and_not_long(attended, story):
    titles = re.findall(r"^(.+)\n-+$", story, re.M)
    assert titles[0] == "Program" and titles[-1] == "Considered and rejected"
    assert f"of {len(attended.variants)}, from" in story
    assert story.count("Tile program of variant") == story.count("Source of variant") == 1
    for candidate in attended.found.candidates:
        assert candidate.form in story
    assert len(story.splitlines()) < 700
    assert len(explain(attended, source="none").splitlines()) < 300
    assert story.count("Derivation of the next best") == 2 and story.count("Numerical verdict") == 3


def test_what_is_rejected_has_a_reason(attended):
    first, *others = attended.found.candidates
    with scope(numerics="strict"):
        assert "order in which the terms" in left_out(others[0], knobs())
    rejected = explain(attended, source="none").split("Considered and rejected")[1]
    assert "search: built" in rejected and re.search(r"\d\.\d\dx ", rejected)
    assert first.form in rejected


def test_the_outline_has_every_level(attended):
    text = outline(attended.variants[0].tiles)
    assert text.startswith("kernel main: blocks of ") and "blocks in parallel" in text
    assert "multiply " in text and "reduce " in text and "store " in text
    assert "(full tiles, no masks)" in text and "(masked)" in text
    assert len(text.splitlines()) < 40


def test_launches_and_workspaces_of_a_split():
    tiles = parse_tiles(SPLIT)
    assert facts(tiles) == ["2 launches a call", "workspace bytes: partial 4*parts(K)*N"]
    assert tiles_words(tiles) == "grid n:16 loops k:32 then grid n:16 loops p:1, split over K"
    text = outline(tiles)
    assert "parts(K)*ceil(N/16) blocks in parallel" in text
    assert "for k: K by 32 from part_start(p) to part_end(p) (masked)" in text
    assert "compute 2 pointwise, 1 of them" in text


def test_bytes_and_amounts():
    assert bytes_text(Tensor("w", "workspace", "f16", ((Atom("A"),), (Atom("B"),)))) == "2*A*B"
    assert (amount(0.00434), amount(3.1e8), amount(0), amount(12)) == ("4.34 m", "310 M", "0 ", "12 ")


def test_costs_in_numbers():
    sizes = {Atom("A"): 3, Atom("B"): 5}
    assert at("2*A*B + 4*A + 1", sizes) == 43
    assert at("0", sizes) == 0
    assert at("A*C", sizes) is None


def test_the_page_stands_alone(attended):
    text = page(attended)
    assert text.startswith("<!doctype html>") and text.count("<details") == text.count("</details>") > 20
    assert not re.search(r"(src|href)=", text)
    shown = html.unescape(text)
    for candidate in attended.found.candidates:
        assert candidate.form in shown and print_program(candidate.program).strip() in shown
    assert 'extern "C"' in shown and "1.00x" in shown


def test_data_has_what_the_text_has(attended):
    data = as_data(attended)
    assert len(data["candidates"]) == len(attended.found.candidates)
    assert len(data["variants"]) == len(attended.variants)
    assert data["variants"][0]["best_at"][0]["S"] == 512


def test_the_source_lies_in_the_cache(attended, tmp_path):
    text = emit(attended.variants[0].tiles, "cpu").text
    with scope(cache_dir=tmp_path):
        path = kept(text, ".cpp")
        assert path.suffix == ".cpp" and path.is_relative_to(tmp_path)
        assert path.read_text() == text and 'extern "C"' in text
        assert kept(text, ".cpp") == path
