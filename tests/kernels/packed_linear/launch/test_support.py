"""What launches share: scraps for what is not there, and what tile descriptors ask of a matrix."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from cohort.kernels.packed_linear.launch.support import is_descriptable, precision, sink_of, three


def test_three_repeats_the_last_value() -> None:
    assert three([1]) == (1, 1, 1)
    assert three([1, 2]) == (1, 2, 2)
    assert three([1, 2, 3]) == (1, 2, 3)


def test_float32_is_multiplied_exactly() -> None:
    assert precision(torch.zeros(1)) == "ieee"
    assert precision(torch.zeros(1, dtype=torch.bfloat16)) == "tf32"


@pytest.mark.parametrize(
    ("matrix", "suits"),
    [
        (torch.zeros(4, 8, dtype=torch.float16), True),
        (torch.zeros(4, 12, dtype=torch.float16), False),
        (torch.zeros(8, 8, dtype=torch.float16).t(), False),
        (torch.zeros(4, 16, dtype=torch.float16)[:, 1:9], False),
        (torch.zeros(4, 16, dtype=torch.float16)[:, 8:], True),
    ],
)
def test_descriptors_want_rows_at_multiples_of_16_bytes(matrix: torch.Tensor, suits: bool) -> None:
    assert is_descriptable(matrix) == suits


def test_backward_needs_sinks() -> None:
    with pytest.raises(AssertionError, match="sinks"):
        sink_of(None)
