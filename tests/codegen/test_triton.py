"""The Triton emitter: every case runs right in Triton's interpreter, compiles for sm_90, and reads well.

The interpreter must be chosen before triton is imported, so all cases run in one process of their own.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import triton_cases as cases
import triton_features

import tile_examples as te
from cleave.codegen.triton import emit
from cleave.codegen.triton_maps import HELPERS, pointwise
from cleave.codegen.triton_text import Line, Names, Nested, prune, render
from cleave.codegen.triton_tiles import Tile, plan_lanes, power_of_two
from cleave.errors import Infeasible, Invalid
from cleave.ir.dims import Index
from cleave.ir.ops import MAPS
from cleave.knobs import scope
from cleave.runtime.triton_build import compile_for
from tile_examples import Example

CASES = tuple(case.name for case in cases.all_cases())


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What went wrong in each case in the interpreter."""
    folder = tmp_path_factory.mktemp("cache")
    env = {**os.environ, "TRITON_INTERPRET": "1", "CLEAVE_CACHE_DIR": str(folder)}
    script = Path(cases.__file__)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", CASES)
def test_case_equals_the_tile_interpreter_when_interpreted(name: str, results: dict[str, str]) -> None:
    assert results[name] == ""


# ---------------------------------------------------------------- compiled, without a GPU


def gpu_examples() -> list[tuple[Example, int, bool]]:
    """Examples at tile sizes that suit a GPU, with warps and whether warp-group products are expected."""
    return [
        (te.softmax_keep(4, 2048), 4, False),
        (te.matmul(128, 128, 64, "bf16"), 4, True),
        (te.norm_linear(64, 128, 64, "f16"), 4, True),
        (te.attention(128, 64, 1, 128, group="one", dtype="bf16"), 8, True),
        (te.attention_split(16, 64, 4, 128, dtype="bf16"), 4, True),
    ]


@pytest.mark.parametrize("example, warps, wgmma", gpu_examples(), ids=lambda v: getattr(v, "name", None))
def test_examples_compile_for_a_gpu_without_spilling(
    example: Example, warps: int, wgmma: bool, tmp_path: Path
) -> None:
    kernels = tuple(replace(kernel, warps=warps) for kernel in example.tiles.kernels)
    with scope(cache_dir=tmp_path):
        reports = compile_for(emit(replace(example.tiles, kernels=kernels)))
    assert [r.kernel for r in reports] == [k.name for k in kernels]
    assert all(r.spills == 0 and 0 < r.registers <= 255 and r.shared <= 227 * 1024 for r in reports)
    assert (reports[0].wgmma > 0) == wgmma


COMPILED = (
    "maps_f32",
    "powers",
    "reductions_f16",
    "lanes",
    "batched_f16",
    "contractions_f32",
    "loops",
    "terms",
)


@pytest.mark.parametrize("name", COMPILED)
def test_what_the_interpreter_runs_compiles_too(name: str, tmp_path: Path) -> None:
    case = next(case for case in cases.own_cases() if case.name == name)
    with scope(cache_dir=tmp_path):
        assert all(report.registers > 0 for report in compile_for(emit(case.tiles)))


# ---------------------------------------------------------------- the text


@functools.cache
def sources() -> dict[str, str]:
    """The text of every tile program, by the name of a case."""
    programs = {case.tiles: case.name for case in cases.all_cases()} | {e.tiles: e.name for e in te.EXAMPLES}
    return {name: emit(tiles).text for tiles, name in programs.items()}


def test_equal_tile_programs_give_equal_text() -> None:
    assert emit(te.attention().tiles) == emit(te.attention().tiles)
    assert emit(te.attention(dtype="f16").tiles) != emit(te.attention(dtype="bf16").tiles)


def test_source_is_valid_and_has_no_dead_code() -> None:
    for name, text in sources().items():
        for function in ast.parse(text).body:
            if isinstance(function, ast.FunctionDef):
                words = re.findall(r"\w+", ast.unparse(function))
                assigned = {
                    node.id for node in ast.walk(function) if isinstance(node, ast.Name | ast.arg)
                    and isinstance(getattr(node, "ctx", None), ast.Store)
                }  # fmt: skip
                unread = [word for word in assigned if words.count(word) < 2]
                assert not unread, f"{name}: {function.name} never reads {unread}"
                unused = [a.arg for a in function.args.args if words.count(a.arg) < 2 and a.arg != "INDEX"]
                assert not unused, f"{name}: {function.name} takes {unused} for nothing"


def test_the_next_kernel_is_let_start_when_all_is_stored() -> None:
    """Blocks that wait for their turn beside those that work slow these down."""
    text = emit(te.attention_split().tiles, overlapped=True).text
    first, last = (part.rstrip().splitlines() for part in text.split("@triton.jit")[-2:])
    assert first[-1].strip().startswith("tl.extra.cuda.gdc_launch_dependents()")
    assert "tl.store(" in "".join(first[:-1]) and not any("gdc_wait" in line for line in first)
    waits = next(n for n, line in enumerate(last) if "gdc_wait" in line)
    assert all("tl.load(" not in line for line in last[:waits])
    assert not any("launch_dependents" in line for line in last)


def test_lines_are_short_where_they_can_be() -> None:
    lines = [line for text in sources().values() for line in text.splitlines()]
    assert sum(len(line) > 130 for line in lines) < len(lines) / 100


def test_entry_lists_parameters_in_order() -> None:
    source = emit(te.attention_split().tiles)
    functions = {f.name: f for f in ast.parse(source.text).body if isinstance(f, ast.FunctionDef)}
    for entry in source.entries:
        names = [a.arg for a in functions[entry.function].args.args]
        assert names == [a.name for a in entry.arguments] + ["INDEX"]
        kinds = [a.kind for a in entry.arguments]
        assert kinds == sorted(kinds, key=("pointer", "stride", "size", "chunk", "parts", "scalar").index)


def test_known_sizes_are_numbers_and_full_tiles_have_no_mask() -> None:
    text = emit(triton_features.static_case().tiles).text
    parameters = set(re.findall(r"\w+", text.split("def ")[1].split("):")[0]))
    assert "A = 12, B = 20" in text and not parameters & {"A", "B"}
    assert "a_in" not in text and "b_in = b < 20" in text


def test_exact_loop_has_no_mask_and_border_has_one() -> None:
    text = emit(te.matmul().tiles).text
    exact, border = text.split("for k0 in range(")[1:]
    assert "every tile full" in exact and "k_in" not in exact
    assert "k_in[None, :]" in border


def test_product_is_added_by_the_dot() -> None:
    text = emit(te.attention(dtype="f16").tiles).text
    assert re.search(r"acc1 = tl\.dot\(ec, v1, ar\)", text)
    assert re.search(r"acc1 = tl\.dot\(tl\.where\(t_in", text)


def test_precision_decides_how_float32_is_multiplied() -> None:
    assert 'input_precision="ieee"' in emit(te.matmul().tiles).text
    assert 'input_precision="tf32"' in emit(te.matmul().tiles, precision="high").text
    assert "input_precision" not in emit(te.matmul(dtype="bf16").tiles).text
    with pytest.raises(Invalid, match="precision 'low'"):
        emit(te.matmul().tiles, precision="low")


def test_sizes_that_bound_no_last_axis_never_recompile() -> None:
    text = emit(te.attention().tiles).text
    assert re.search(r'do_not_specialize=\["G", "T", "scale"\]', text)


def test_lanes_put_k_between_m_and_n() -> None:
    kernel = te.attention().tiles.kernels[0]
    names = dict(kernel.names)
    order = [[names[i] for i in lane] for lane in plan_lanes(kernel).members]
    assert order.index(["g", "s"]) < order.index(["d"]) < order.index(["t"]) < order.index(["d2"])


def test_dots_have_lanes_of_sixteen_or_more() -> None:
    text = emit(te.matmul(n_tile=4, o_tile=8, k_tile=2).tiles).text
    assert text.count("tl.arange(0, 16)") >= 3 and "tl.arange(0, 4)" not in text


def test_scalar_row_is_a_sum_of_a_product() -> None:
    text = emit(te.matmul(n_tile=1).tiles).text
    assert "tl.dot" not in text and "tl.sum(" in text


def test_block_that_triton_refuses_is_infeasible() -> None:
    with pytest.raises(Infeasible, match="Triton allows 1048576"):
        emit(te.matmul(2048, 1024, 16).tiles)


def test_helpers_come_only_where_called() -> None:
    for name, text in sources().items():
        for helper in HELPERS:
            assert (f"def {helper}(" in text) == bool(re.search(rf"(?<!def )\b{helper}\b[(,)]", text)), name


# ---------------------------------------------------------------- small parts


def test_every_operation_has_an_expression_for_float32() -> None:
    for fn, count in MAPS.items():
        if fn in ("and", "or", "xor", "shl", "shr"):
            continue
        args = [Tile(name, "f32") for name in "abc"[:count]]
        text, _ = pointwise(
            fn, "bool" if fn in ("lt", "eq", "isnan") else "f32", args, [a.text for a in args]
        )
        ast.parse(text)


def test_prune_keeps_what_is_stored_and_what_a_loop_carries() -> None:
    body = (Line("c = a", "c"), Line("d = acc + c", "d"), Line("acc = d", "acc", True))
    lines = [
        Line("a = 1", "a"),
        Line("b = 2", "b"),
        Line("acc = 0", "acc"),
        Nested("for i in range(n):", list(body), ("acc",)),
        Line("store(acc)"),
    ]  # fmt: skip
    kept, needed = prune(lines, set())
    text = render(kept, 0)
    assert text[0] == "a = 1" and "b = 2" not in text and needed >= {"n"}


def test_names_never_clash() -> None:
    names = Names(["x"])
    assert [names.take(w) for w in ("x", "x", "for", "1a", "a.b", "tl")] == [
        "x_2",
        "x_3",
        "_for",
        "_1a",
        "a_b",
        "tl_2",
    ]


def test_power_of_two() -> None:
    assert [power_of_two(n) for n in (1, 2, 3, 16, 17)] == [1, 2, 4, 16, 32]


def test_index_is_scalar_where_its_tile_is_one() -> None:
    text = emit(te.attention(group="one").tiles).text
    assert "g = pid % G" in text and "g_s = " not in text
    assert isinstance(te.attention().tiles.kernels[0].grid[0].index, Index)
