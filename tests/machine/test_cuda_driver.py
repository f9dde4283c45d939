"""The driver of GPUs starts in a thread, where there may be a GPU, and without torch."""

from __future__ import annotations

import ctypes
import importlib.util
import subprocess
import sys
import threading
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from cohort.machine.cuda_driver import begin_cuda_context, begin_cuda_driver, may_have_gpu


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let there be a driver, and a GPU that nothing hides."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = tmp_path / "version"
    found.touch()
    return found


def test_it_starts_in_a_thread(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int, bool]] = []

    def library(name: str) -> SimpleNamespace:
        def start(flags: int) -> int:
            asked.append((name, flags, threading.current_thread() is threading.main_thread()))
            return 0

        return SimpleNamespace(cuInit=start)

    monkeypatch.setattr(ctypes, "CDLL", library)
    begun = begin_cuda_driver(driver)
    assert begun is not None
    assert begun.result(timeout=30) == 0
    assert asked == [("libcuda.so.1", 0, False)]


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_nothing_starts_where_no_gpu_will_be_found(driver: Path, hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert may_have_gpu(driver)
    assert begin_cuda_driver(driver.with_name("none")) is None
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert begin_cuda_driver(driver) is None


def test_what_goes_wrong_is_left_to_torch(driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise OSError("libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    begun = begin_cuda_driver(driver)
    assert begun is not None
    assert isinstance(begun.exception(timeout=30), OSError)


def test_torch_is_not_imported_for_it(driver: Path) -> None:
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from cohort.machine.cuda_driver import begin_cuda_context, begin_cuda_driver\n"
        # a process must not end in the middle of it
        f"begun = begin_cuda_driver(Path({str(driver)!r}))\nbegun.exception(60)\n"
        "context = begin_cuda_context(begun, is_wanted=lambda: True)\ncontext and context.exception(60)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.fixture
def contexts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The devices whose contexts are made, by a library that stands for the driver; torch was built for GPUs."""
    made: list[int] = []

    def get(device: ctypes.c_int, place: int) -> int:
        ctypes.cast(device, ctypes.POINTER(ctypes.c_int))[0] = 7 + place
        return 0

    def retain(_: object, device: ctypes.c_int) -> int:
        made.append(device.value)
        return 0

    library = SimpleNamespace(cuDeviceGet=get, cuDevicePrimaryCtxRetain=retain)

    def load(name: str) -> SimpleNamespace:
        assert name == "libcuda.so.1"
        # the main thread imports torch meanwhile
        assert threading.current_thread() is not threading.main_thread()
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    torch = tmp_path / "torch"
    (torch / "lib").mkdir(parents=True)
    (torch / "lib" / "libtorch_cuda.so").touch()
    found = SimpleNamespace(origin=str(torch / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name == "torch" else None)
    return made


def started(answer: int) -> Future[int]:
    """What stands for a driver that has started with this answer."""
    future: Future[int] = Future()
    future.set_result(answer)
    return future


def test_the_context_of_the_first_gpu_is_made_where_it_is_wanted(contexts: list[int]) -> None:
    for answer, is_wanted, made in ((0, True, True), (0, False, False), (999, True, False)):
        begun = begin_cuda_context(started(answer), is_wanted=partial(bool, is_wanted))
        assert begun is not None
        assert begun.result(timeout=30) is made
    assert contexts == [7]
    assert begin_cuda_context(None, is_wanted=lambda: True) is None, "there is no driver"


def test_a_task_that_cannot_be_read_makes_no_context(contexts: list[int]) -> None:
    def wrong() -> bool:
        raise ValueError("line 3")

    begun = begin_cuda_context(started(0), is_wanted=wrong)
    assert begun is not None
    assert isinstance(begun.exception(timeout=30), ValueError)
    assert contexts == []


def test_a_torch_that_knows_no_gpu_gets_no_context(contexts: list[int], tmp_path: Path) -> None:
    (tmp_path / "torch" / "lib" / "libtorch_cuda.so").unlink()
    assert begin_cuda_context(started(0), is_wanted=lambda: True) is None
    assert contexts == []
