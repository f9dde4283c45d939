"""Where the Triton kernels run in tests: as Python on the CPU everywhere, compiled on the GPU in ``make test-gpu``."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
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


def _patch_the_language_once() -> None:
    """Let the interpreter put its operations into ``triton.language`` once in a process.

    It does so at every launch, and again at every call of one jitted function by another, looking at all members of
    the language each time: a third of what the tests of kernels took. Nothing in a process that interprets needs the
    language as it was.
    """
    from triton import language
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    # newer Tritons return what restores the language
    nothing = getattr(interpreter, "_LangPatchScope", lambda: None)
    visible: dict[int, tuple[bool, ...]] = {}
    patched: set[tuple[bool, ...]] = set()

    def patch_once(function: Any) -> Any:
        names = function.__globals__
        if id(names) not in visible:
            visible[id(names)] = tuple(
                any(value is module for value in names.values()) for module in (language, language.core)
            )
        if visible[id(names)] not in patched:
            patched.add(visible[id(names)])
            patch(function)
        return nothing()

    interpreter._patch_lang = patch_once


def _look_dtypes_up() -> None:
    """Keep NumPy's dtype of each of Triton's: the interpreter makes a table of all of them for every operation."""
    from triton import language
    from triton.runtime import interpreter

    find = interpreter._get_np_dtype
    found: dict[str, Any] = {}

    def looked_up(dtype: Any) -> Any:
        element = dtype.element_ty if isinstance(dtype, language.block_type) else dtype
        if element.name not in found:
            found[element.name] = find(element)
        return found[element.name]

    interpreter._get_np_dtype = looked_up


def _look_block_types_up() -> None:
    """Keep what a block's type and a tensor of it compute of their shape: each operation makes both, some thrice."""
    from triton.language import core

    make_type = core.block_type.__init__
    found: dict[tuple[int, tuple[int, ...]], dict[str, Any]] = {}

    def looked_up(self: Any, element_ty: Any, shape: Any) -> None:
        sizes = tuple([size.value if isinstance(size, core.constexpr) else size for size in shape])
        # the type of the elements is kept as well, so that no other has its id
        kept = found.get((id(element_ty), sizes))
        if kept is None:
            make_type(self, element_ty, shape)
            of_tensors = core.tuple([core.constexpr(size) for size in sizes]), core.constexpr(prod(sizes))
            kept = found[id(element_ty), sizes] = {**vars(self), "of_tensors": of_tensors}
        self.__dict__.update(kept)

    of_scalars = core.tuple([]), core.constexpr(1)

    def make_tensor(self: Any, handle: Any, type: Any) -> None:  # noqa: A002
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = type.of_tensors if type.is_block() else of_scalars

    core.block_type.__init__ = looked_up
    core.tensor.__init__ = make_tensor


def _check_no_overflow() -> None:
    """Leave out what compiled kernels leave out as well: every sum and product of integers a second time in 64 bits."""
    from triton.runtime import interpreter

    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def _sum_products_in_order() -> None:
    """Let a product of the interpreter add up its terms one after the other, as the kernels' sums are defined.

    The interpreter multiplies by NumPy's BLAS. Its order of sums depends on the tile's height and width on some CPUs
    (OpenBLAS without AVX-512), so a test of bits would pass or fail by the BLAS and not by the kernel.
    """
    from triton import language
    from triton.runtime import interpreter

    product = interpreter.InterpreterBuilder.create_dot

    def numbers(factor: Any) -> Any:
        if factor.dtype.primitive_bitwidth == 8 and factor.dtype.is_floating():
            half = interpreter._convert_float(factor.data, factor.dtype, language.float16, None)
            return half.view(np.float16).astype(np.float32)
        return factor.data.astype(np.float32)

    def in_order(self: Any, a: Any, b: Any, d: Any, *options: Any) -> Any:
        if a.data.ndim != 2 or d.data.dtype != np.float32:
            return product(self, a, b, d, *options)
        a_MK, b_KN = numbers(a), numbers(b)
        y_MN, term_MN = np.zeros_like(d.data), np.empty_like(d.data)
        # entries that are not finite stay so, and overflow is the kernels' to handle: as silent as in a BLAS
        with np.errstate(all="ignore"):
            for k in range(a_MK.shape[1]):
                np.multiply(a_MK[:, k, None], b_KN[k], out=term_MN)
                y_MN += term_MN
            y_MN += d.data
        return interpreter.TensorHandle(y_MN, d.dtype.scalar)

    interpreter.InterpreterBuilder.create_dot = in_order


if triton_interprets():
    _let_loop_bounds_be_tensors()
    _patch_the_language_once()
    _look_dtypes_up()
    _look_block_types_up()
    _check_no_overflow()
    _sum_products_in_order()


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def triton_device(request: pytest.FixtureRequest) -> str:
    """A device whose tensors the Triton kernels take; skips where there is none."""
    pytest.importorskip("triton")
    if request.param == "cpu" and not triton_interprets():
        pytest.skip("Triton compiles here (there is a GPU driver): the gpu tests run the kernels")
    return str(request.param)
