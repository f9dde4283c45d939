"""Two threads launch one kernel of Triton that neither has loaded."""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("triton")

from cohort.kernels.loading_once import load_kernels_once


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """One that is compiled, and takes a while to load: Triton says first that it can be launched."""
    compiled: Any = importlib.import_module("triton.compiler.compiler").CompiledKernel
    # with nothing to unload
    kind: Any = type("Kernel", (compiled,), {"__del__": lambda _: None})
    found = kind.__new__(kind)
    found.module = found.function = found._run = None

    def load(self: Any) -> None:
        self.loads += 1
        self._run = lambda: "launched"
        time.sleep(0.05)
        if self.fails:
            raise RuntimeError("no memory for it")
        self.module, self.function = object(), 7

    found.loads, found.fails, found.patched = 0, False, compiled
    # another test may have replaced it
    monkeypatch.setattr(compiled, "run", property(_own_run))
    monkeypatch.setattr(compiled, "_init_handles", load)
    load_kernels_once.cache_clear()
    load_kernels_once()
    yield found
    load_kernels_once.cache_clear()


def _own_run(kernel: Any) -> Any:
    """As Triton has it."""
    if kernel._run is None:
        kernel._init_handles()
    return kernel._run


def launched(kernel: Any) -> tuple[bool, Any]:
    """As Triton's launch reads them: first what launches, then the function."""
    return kernel.run is not None, kernel.function


def test_a_launch_waits_for_the_thread_that_loads(kernel: Any) -> None:
    found: list[tuple[bool, Any]] = []
    threads = [threading.Thread(target=lambda: found.append(launched(kernel))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [(True, 7)] * 4
    assert kernel.loads == 1


def test_a_load_that_is_under_way_leaves_the_kernel_whole(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, patched = kernel.patched, kernel.patched.run
    monkeypatch.setattr(compiled, "run", property(_own_run))
    found: list[tuple[bool, Any]] = []
    before = threading.Thread(target=lambda: found.append(launched(kernel)))
    before.start()
    while kernel._run is None:
        time.sleep(0.001)
    monkeypatch.setattr(compiled, "run", patched)
    assert launched(kernel) == (True, 7)
    before.join()
    assert found == [(True, 7)]
    assert launched(kernel) == (True, 7)


def test_asked_for_twice_it_waits_for_nothing(kernel: Any) -> None:
    load_kernels_once.cache_clear()
    load_kernels_once()
    assert launched(kernel) == (True, 7)
    assert kernel.loads == 1


def test_a_kernel_that_could_not_be_loaded_is_tried_again(kernel: Any) -> None:
    kernel.fails = True
    with pytest.raises(RuntimeError, match="no memory"):
        launched(kernel)
    kernel.fails = False
    assert launched(kernel) == (True, 7)


def test_one_that_never_can_be_says_why(kernel: Any) -> None:
    """Triton keeps the error of a kernel that wants more than the GPU has in the place of its launch."""
    why = functools.partial(str, "too much shared memory")
    kernel._run = why
    assert kernel.run is why
    assert kernel.loads == 0
