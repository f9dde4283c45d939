"""Where the Triton kernels run in tests: as Python on the CPU everywhere, compiled on the GPU in ``make test-gpu``."""

from __future__ import annotations

from typing import Any

import pytest

from cohort.kernels.backend import triton_interprets


def _let_loop_bounds_be_tensors() -> None:
    """Mend the interpreter of Triton 3.6 under NumPy 2.4 and later: ``range`` over a loaded bound asks for an index,
    which it takes from an array of one element, and NumPy no longer allows that. Newer Tritons squeeze it first.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_and_mend(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        index = lambda self: self.handle.data.item()  # noqa: E731
        scope[0].set_attr(tensor, "__index__", index) if scope else setattr(tensor, "__index__", index)

    interpreter._patch_lang_tensor = patch_and_mend


if triton_interprets():
    _let_loop_bounds_be_tensors()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def triton_device(request: pytest.FixtureRequest) -> str:
    """A device whose tensors the Triton kernels take; skips where there is none."""
    pytest.importorskip("triton")
    if request.param == "cpu" and not triton_interprets():
        pytest.skip("Triton compiles here (there is a GPU driver): the gpu tests run the kernels")
    return str(request.param)
