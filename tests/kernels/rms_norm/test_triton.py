"""How the norm's kernels cut a matrix into programs."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from cohort.kernels.rms_norm.triton import row_tile


@pytest.mark.parametrize("width", [1, 5, 128, 3072, 4096, 5120, 16384, 40_000])
def test_a_row_lies_in_one_program(width: int) -> None:
    rows, columns, num_warps = row_tile(width)
    assert width <= columns < 2 * width + 1
    assert rows == 1 or rows * columns <= 4096
    assert num_warps in (1, 2, 4, 8, 16)
