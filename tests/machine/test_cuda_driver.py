"""The driver of GPUs starts in a thread, where there may be a GPU, and without torch."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from cohort.machine.cuda_driver import begin_cuda_driver, may_have_gpu


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
        "import sys\nfrom pathlib import Path\nfrom cohort.machine.cuda_driver import begin_cuda_driver\n"
        # a process must not end in the middle of it
        f"begin_cuda_driver(Path({str(driver)!r})).exception(60)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
