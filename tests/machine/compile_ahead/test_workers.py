"""The file that says what has been compiled, and the GPU that workers compile for without having one."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cohort.machine.compile_ahead import workers
from cohort.machine.compile_ahead.kernel_cache import cache_marker
from cohort.machine.compile_ahead.workers import (
    Compiled,
    KernelCompiler,
    NamedGpu,
    end_compiling,
    settle_compiling,
)
from tests.machine.compile_ahead.compiler_jobs import dies_once, fails

JITFunction: Any = pytest.importorskip("triton.runtime.jit").JITFunction


def test_it_lies_in_tritons_cache_and_depends_on_the_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    first = cache_marker("model", (16, 64))
    assert first is not None
    assert first.parent == tmp_path
    assert cache_marker("model", (16, 64)) == first
    assert cache_marker("model", (16, 32)) != first
    monkeypatch.delenv("TRITON_CACHE_DIR")
    at_home = cache_marker("model", (16, 64))
    assert at_home is not None
    assert at_home.parent == Path.home() / ".triton" / "cache"


def test_workers_name_the_gpu_they_compile_for() -> None:
    target = NamedGpu((9, 0)).get_current_target()
    assert (target.backend, target.arch, target.warp_size) == ("cuda", 90, 32)


def test_workers_do_not_run_a_script_without_a_guard_again(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, time\n"
        "from cohort.machine.compile_ahead.workers import KernelCompiler, _import_triton\n"
        "print('the script runs', flush=True)\n"
        "with KernelCompiler(num_workers=1) as compiler:\n"
        "    print('imported before a thread does', 'triton.runtime.driver' in sys.modules)\n"
        "    job, seen = compiler._submit(_import_triton), set()\n"
        "    while not job.done():\n"
        "        seen.add(sys.modules['__main__'].__file__)\n"
        "        time.sleep(0.01)\n"
        "    print('a worker answers', job.result(), flush=True)\n"
        # inspect, and so torch, reads it from other threads
        "print('known meanwhile', seen)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "the script runs",
        "imported before a thread does True",
        "a worker answers None",
        f"known meanwhile {{{str(script)!r}}}",
    ]


@pytest.fixture
def light_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers begin without Triton, which takes seconds to import."""
    for name in ("_build_driver", "_import_triton"):
        monkeypatch.setattr(workers, name, os.getpid)
    # what they are forks of may have been started by another test, with Triton
    monkeypatch.setattr(workers, "PRELOADED", ())


@pytest.mark.usefixtures("light_workers")
def test_nobody_waits_for_the_first_worker_but_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    is_there, threads = threading.Event(), list[threading.Thread]()
    main, names = vars(sys.modules["__main__"]), ("__spec__", "__file__")
    # a process of the test runner may have neither
    before = [main.get(name) for name in names]

    class Slow(ThreadPoolExecutor):
        def submit(self, *arguments: Any, **options: Any) -> Any:
            threads.append(threading.current_thread())
            assert is_there.wait(120)
            return super().submit(*arguments, **options)

    with Slow(max_workers=1) as slow:
        monkeypatch.setattr(KernelCompiler, "_new_workers", lambda _: slow)
        with KernelCompiler() as compiler:
            compiler._compiling[b"job"] = compiler._submit(time.sleep, 0)
            assert not compiler._compiling[b"job"].done()
            is_there.set()
            assert compiler.wait() == Compiled(num_kernels=1, num_failed=0)
    assert threads
    assert threading.current_thread() not in threads
    assert [main.get(name) for name in names] == before


@pytest.mark.usefixtures("light_workers")
def test_what_a_dead_worker_took_with_it_is_compiled_by_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_compile", dies_once)
    with KernelCompiler(num_workers=1) as compiler:
        job = str(tmp_path / "first").encode()
        compiler._compiling[job] = compiler._submit(dies_once, job, (9, 0))
        assert compiler.wait() == Compiled(num_kernels=1, num_failed=0)


@pytest.mark.usefixtures("light_workers")
def test_a_kernel_that_cannot_be_compiled_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_compile", fails)
    with KernelCompiler(num_workers=1) as compiler:
        compiler._compiling[b"kernel"] = compiler._submit(fails, b"kernel", (9, 0))
        assert compiler.wait() == Compiled(num_kernels=0, num_failed=1, first_error="ValueError: no room for kernel")


@pytest.mark.usefixtures("light_workers")
def test_a_compiler_that_hangs_is_not_waited_for() -> None:
    with KernelCompiler(num_workers=2) as compiler:
        compiler._compiling[b"short"] = compiler._submit(time.sleep, 0)
        compiler._compiling[b"short"].result()
        compiler._compiling[b"long"] = compiler._submit(time.sleep, 600)
        processes = list(compiler._workers._processes.values())
        found = compiler.wait(most_seconds=0.2)
    assert found == Compiled(num_kernels=1, num_failed=1, first_error="TimeoutError: the compiler took too long")
    for process in processes:
        # not is_alive: the pool's own thread may have reaped it, which that cannot tell from one that runs
        assert connection.wait([process.sentinel], 120)


@pytest.mark.usefixtures("light_workers")
def test_jobs_that_come_after_the_death_of_a_worker_are_compiled_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_compile", dies_once)
    with KernelCompiler(num_workers=1) as compiler:
        first, later = (str(tmp_path / name).encode() for name in ("first", "later"))
        (tmp_path / "later").touch()
        compiler._compiling[first] = compiler._submit(dies_once, first, (9, 0))
        assert isinstance(compiler._compiling[first].exception(), BrokenProcessPool)
        compiler._compiling[later] = compiler._submit(dies_once, later, (9, 0))
        assert compiler.wait() == Compiled(num_kernels=2, num_failed=0)


def test_workers_end_with_a_caller_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import os, signal\n"
        "from cohort.machine.compile_ahead.workers import KernelCompiler, _import_triton\n"
        "KernelCompiler(num_workers=1)._submit(_import_triton).result()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    # the output ends once no process has it open
    done = subprocess.run([sys.executable, str(script)], capture_output=True, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("light_workers")
def test_launches_wait_for_their_own_kernel_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From any thread, as a backward pass has one of its own; a kernel that is unknown, or late, is not waited for."""
    found: Any = SimpleNamespace(wait_for=None)

    @contextlib.contextmanager
    def awaited(wait_for: Any) -> Iterator[None]:
        found.wait_for = wait_for
        yield

    monkeypatch.setattr(workers, "awaited_launches", awaited)
    monkeypatch.setattr(workers, "_compile", fails)
    with KernelCompiler(num_workers=1) as compiler:
        released: Future[None] = Future()
        compiler._hand_in("fails", b"kernel")
        compiler._jobs["late"], compiler._compiling[b"late"] = b"late", released
        with compiler.awaited(), ThreadPoolExecutor(1) as thread:
            found.wait_for("fails")
            assert compiler._compiling[b"kernel"].done()
            found.wait_for("unknown")
            waiting = thread.submit(found.wait_for, "late")
            with pytest.raises(FutureTimeoutError):
                waiting.result(timeout=0.2)
            released.set_result(None)
            waiting.result(timeout=30)
        assert compiler.wait() == Compiled(num_kernels=1, num_failed=1, first_error="ValueError: no room for kernel")
        compiler._compiling[b"late"] = Future()
        with compiler.awaited(most_seconds=0.1):
            begun = time.monotonic()
            found.wait_for("late")
            found.wait_for("late")
            assert 0.1 <= time.monotonic() - begun < 30
        # what launches have waited counts
        assert compiler.wait().num_failed == 2


@pytest.mark.usefixtures("light_workers")
def test_the_caller_goes_before_its_workers() -> None:
    with KernelCompiler(num_workers=1) as compiler:
        # it has begun once it answers
        compiler._submit(time.sleep, 0).result()
        (worker,) = compiler._workers._processes
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, worker) == min(19, own + workers.NICENESS)


@pytest.mark.usefixtures("light_workers")
def test_kernels_are_compiled_behind_the_caller_until_all_are_there(tmp_path: Path) -> None:
    ended, job = list[Compiled](), tmp_path / "job"
    own = JITFunction._do_compile
    # a reader of it waits until something is written
    os.mkfifo(job)
    with KernelCompiler(num_workers=1) as compiler:
        compiler._compiling[b"job"] = compiler._submit(job.read_text)  # type: ignore[arg-type]
        compiler.go_on(ended.append)
    # the block has ended, and the workers go on; launches wait meanwhile
    assert JITFunction._do_compile is not own
    assert not ended
    job.write_text("")
    settle_compiling()
    assert ended == [Compiled(num_kernels=1, num_failed=0)]
    assert JITFunction._do_compile is own
    settle_compiling()


@pytest.mark.usefixtures("light_workers")
def test_a_process_that_ends_waits_for_no_kernel_that_was_not_begun() -> None:
    ended = list[Compiled]()
    with KernelCompiler(num_workers=1) as compiler:
        for job in range(40):
            compiler._compiling[b"%d" % job] = compiler._submit(time.sleep, 1.0)
        compiler.go_on(ended.append)
    compiler._compiling[b"0"].result()
    began = time.monotonic()
    end_compiling()
    settle_compiling()
    # the others would take as many seconds
    assert time.monotonic() - began < 20
    assert not ended


@pytest.mark.usefixtures("light_workers")
def test_a_compiler_that_hangs_does_not_hold_up_the_end_of_a_process() -> None:
    with KernelCompiler(num_workers=1) as compiler:
        compiler._compiling[b"short"] = compiler._submit(time.sleep, 0)
        compiler._compiling[b"short"].result()
        compiler._compiling[b"long"] = compiler._submit(time.sleep, 600)
        compiler.go_on(lambda _: None)
    processes = list(compiler._workers._processes.values())
    end_compiling()
    settle_compiling()
    for process in processes:
        assert connection.wait([process.sentinel], 120)


@pytest.mark.usefixtures("light_workers")
def test_ctrl_c_ends_no_worker() -> None:
    with KernelCompiler(num_workers=1) as compiler:
        compiler._compiling[b"first"] = compiler._submit(time.sleep, 0)
        compiler._compiling[b"first"].result()
        (process,) = compiler._workers._processes.values()
        os.kill(process.pid or 0, signal.SIGINT)
        compiler._compiling[b"second"] = compiler._submit(time.sleep, 0)
        assert compiler.wait() == Compiled(num_kernels=2, num_failed=0)
        assert process.is_alive()
