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

    found.loads, found.fails = 0, False
    monkeypatch.setattr(compiled, "run", compiled.run)
    monkeypatch.setattr(compiled, "_init_handles", load)
    load_kernels_once.cache_clear()
    load_kernels_once()
    yield found
    load_kernels_once.cache_clear()


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
