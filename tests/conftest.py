"""What every test gets: no network, no colours, no accelerator settings left over from the shell."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A busy machine draws slowly; that says nothing about the property. The tests draw the same few examples each time, so
# that a change that has nothing to do with a property does not fail on it; `make soak` draws new ones, and more.
settings.register_profile(
    "same", suppress_health_check=[HealthCheck.too_slow], deadline=None, derandomize=True, max_examples=40
)
settings.register_profile("new", suppress_health_check=[HealthCheck.too_slow], deadline=None)
DRAWS = os.environ.get("COHORT_TEST_DRAWS", "same")
settings.load_profile(DRAWS)


def examples(full: int) -> int:
    """Return how many examples a property draws that needs ``full`` of them in ``make soak``."""
    return full if DRAWS == "new" else max(1, full // 3)


# Set before any test module imports transformers: a test that would reach for the hub must fail at once.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Runs flush what they write to the disk, thousands of times; that takes no time where the disk is memory.
MEMORY_DISK = Path("/dev/shm")
if os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > 4 * 2**30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_DISK))
# no test reads or leaves anything in the user's caches; processes that tests start share the folder
if "COHORT_CACHE_DIR" not in os.environ:
    os.environ["COHORT_CACHE_DIR"] = tempfile.mkdtemp(prefix="cohort-tests-")
    atexit.register(shutil.rmtree, os.environ["COHORT_CACHE_DIR"], ignore_errors=True)
# Threads of torch wait in a loop for the next product: tests of two threads took ten times as long next to other
# processes. Read when torch is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Triton decides once, when it is first imported (transformers does that), whether kernels run as Python: they do where
# there is no GPU driver, so that every kernel is tested everywhere.
if not Path("/dev/nvidiactl").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")

# nohup ignores the one and a shell's background the other, and processes that tests start would go on where a user's
# would be saved
if threading.current_thread() is threading.main_thread():
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).resolve().parent
REPOSITORY = TESTS.parent
# Nothing there waits for anything, so what takes long is a loop that does not end.
PURE_ROOMS, PURE_SECONDS = ("core", "metrics", "scheduling", "tuning"), 60


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from what is loaded once and stays.

    It would walk through torch, transformers and all tests again and again: 40 % of the time that collecting took, and
    a second in each full collection later. Frozen objects are let go at the end, for libraries that count theirs.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """End tests of rooms that only compute early, and skip ``gpu`` tests, with the reason, where there is no device."""
    pure = tuple(TESTS / room for room in PURE_ROOMS)
    for item in items:
        has_own_time = item.get_closest_marker("slow") or item.get_closest_marker("timeout")
        if not has_own_time and any(map(item.path.is_relative_to, pure)):
            item.add_marker(pytest.mark.timeout(PURE_SECONDS))
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if not torch.cuda.is_available():
        for item in gpu_items:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """Leave Cohort's log as it was: a test may run what sends it to standard error as JSON lines."""
    log = logging.getLogger("cohort")
    # what a fixture of a module or another library left must not hide what a test listens for
    log.propagate, log.disabled = True, False
    logging.disable(logging.NOTSET)
    before = log.handlers[:], log.propagate, log.level
    yield
    log.handlers, log.propagate, level = before
    log.setLevel(level)


@pytest.fixture(autouse=True)
def own_draws() -> None:
    """Draw the same from torch whichever tests came before: workers take them from each other in any order.

    A test that is the first to import torch draws what torch begins with, which is also the same each time.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(0)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the source tree."""
    return REPOSITORY


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and models beside the repository; skips where it is absent."""
    folder = REPOSITORY.parent / "shared"
    if not (folder / "data").is_dir():
        pytest.skip("no folder ../shared with real data here")
    return folder
