"""Where the Triton kernels run in tests: as Python on the CPU everywhere, compiled on the GPU in ``make test-gpu``."""

from __future__ import annotations

import pytest

from cohort.kernels.backend import triton_interprets


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def triton_device(request: pytest.FixtureRequest) -> str:
    """A device whose tensors the Triton kernels take; skips where there is none."""
    pytest.importorskip("triton")
    if request.param == "cpu" and not triton_interprets():
        pytest.skip("Triton compiles here (there is a GPU driver): the gpu tests run the kernels")
    return str(request.param)
