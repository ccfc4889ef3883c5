"""Products of few rows, where each way of `cpp_products.h` and `cpp_streams.h` begins and ends."""

from __future__ import annotations

import pytest
from test_cpp import check_example, padded, shifted, transposed

import tile_examples as te

TURNED = [12, 13, 16, 17, 26, 31, 32, 33]
"""Rows around those for which the columns take the place of the rows, with 8, 16 and 32 lanes."""


@pytest.mark.parametrize("depth", [7, 64, 300])
def test_few_rows_times_columns_that_lie_by_themselves(depth: int) -> None:
    """Tails of rows, columns and depth, and sums that go on where a loop has begun them."""
    example = te.matmul(40, 128, 64)
    for rows in TURNED:
        for columns in (2 * rows - 1, 2 * rows, 97, 130):
            check_example(example, {"N": rows, "O": columns, "K": depth}, view=shifted)


def test_a_depth_of_several_panels_in_one_product() -> None:
    for rows in (16, 30):
        check_example(te.matmul(32, 128, 600), {"N": rows, "O": 100, "K": 600}, view=padded)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("columns", [5, 127, 128, 300, 1031])
def test_single_rows_times_lines(dtype: str, columns: int) -> None:
    """Lines shorter and longer than what is asked for ahead, with and without whole vectors."""
    example = te.matmul(4, 2048, 32, dtype)
    for rows in (1, 2, 3, 4):
        check_example(example, {"N": rows, "O": columns, "K": 37}, view=transposed)
