"""Compiles Triton kernels in processes side by side, before the first pass that needs them.

A cold start meets some 70 variants of kernels, one after the other, each 0.5 to 2 s of one core. Here launches are
collected first: what a pass would compile is handed to workers that know the GPU by name only, and nothing is launched.
They write to Triton's own cache on disk, where the real passes find it.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch

from cohort.machine.compile_ahead.fork_server import PRELOADED
from cohort.machine.compile_ahead.no_main_module import no_main_module
from cohort.machine.compile_ahead.triton_launches import awaited_launches, taken_launches

__all__ = ["Compiled", "KernelCompiler", "NamedGpu", "end_compiling", "settle_compiling"]

MOST_WORKERS = 32
# workers may take every core: the caller launches passes meanwhile and reads weights, and goes first
NICENESS = 5
# all variants of a model take 10 to 30 s; a compiler that hangs must not hold up a run that could compile by itself
MOST_SECONDS = 240.0
# one thread at a time says how a job has ended
_SETTLING = threading.Lock()
# those that go on behind their callers, until each has ended: the process's end and a next collection ask for them
_BEHIND = list["KernelCompiler"]()


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """What workers compiled.

    Attributes:
        first_error: Why a kernel was not compiled; empty where all were.
    """

    num_kernels: int
    num_failed: int
    first_error: str = ""


class KernelCompiler:
    """Workers that compile, and the launches collected for them."""

    def __init__(self, *, num_workers: int | None = None) -> None:
        """Start what the workers are forks of; it imports Triton while the caller goes on."""
        self._count = num_workers or min(MOST_WORKERS, os.cpu_count() or 1)
        self._workers = self._new_workers()
        # the first worker is there once Triton is imported: a thread waits for it, not the caller
        self._handing_over = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compile-ahead")
        self._capability = (0, 0)
        # until when launches wait
        self._end: float | None = None
        self._compiling: dict[bytes, Future[None]] = {}
        # by what launches know a kernel by
        self._jobs: dict[Hashable, bytes] = {}
        self._going_on: threading.Thread | None = None
        self._is_abandoned = False
        # first of all: it takes longest
        self._submit(_build_driver)
        # by this thread, and before a backward pass launches from one of its own: two threads that import parts of
        # Triton for the first time wait for each other's locks
        importlib.import_module("triton.runtime.driver")

    def __enter__(self) -> KernelCompiler:
        return self

    def __exit__(self, *_: object) -> None:
        # those that go on end by themselves
        if self._going_on is None:
            self.end()

    def end(self) -> None:
        """End the workers; what they have not begun is not compiled."""
        self._handing_over.shutdown(wait=False, cancel_futures=True)
        self._workers.shutdown(wait=False, cancel_futures=True)
        # also those that were on their way to a worker
        for given in list(self._compiling.values()):
            _cancel(given)

    def abandon(self) -> None:
        """End the workers at once, with what they are compiling: no pass will need it."""
        self._is_abandoned = True
        processes = [*(self._workers._processes or {}).values()]
        self.end()
        for process in processes:
            process.kill()

    @contextlib.contextmanager
    def collecting(self) -> Iterator[None]:
        """Inside, a launch of a kernel that is not loaded is compiled by a worker, and not launched.

        So tensors hold whatever was in memory: run passes whose results are not read.
        """
        # launches that wait for kernels would be taken as well
        settle_compiling()
        self._capability = torch.cuda.get_device_capability()
        with taken_launches(self._hand_in):
            yield

    @contextlib.contextmanager
    def awaited(self, *, most_seconds: float = MOST_SECONDS) -> Iterator[None]:
        """Inside, a launch waits for its own kernel, where workers have it; others go on being compiled.

        A kernel that they cannot compile, or not in ``most_seconds``, is compiled by the launch. :meth:`wait` is still
        to be called: workers that died are replaced there.
        """
        self._end = end = time.monotonic() + most_seconds

        def wait_for(kernel: Hashable) -> None:
            job = self._jobs.get(kernel)
            if job is not None:
                wait([self._compiling[job]], timeout=max(0.0, end - time.monotonic()))

        with awaited_launches(wait_for):
            yield

    def go_on(self, ended: Callable[[Compiled], None]) -> None:
        """Compile what is left behind the caller: from now on a launch waits for its own kernel, until all are there.

        Args:
            ended: Called by a thread, with what was compiled.
        """
        waiting = contextlib.ExitStack()
        # those that go on for another would stand between Triton and this one
        settle_compiling()
        waiting.enter_context(self.awaited())

        def compile_rest() -> None:
            try:
                # cancelled: the process ends
                with waiting, contextlib.suppress(CancelledError):
                    compiled = self.wait()
                    if not self._is_abandoned:
                        ended(compiled)
            finally:
                self.end()
                _BEHIND.remove(self)

        _BEHIND.append(self)
        # a daemon, which no process that ends has to wait for: `end_compiling` abandons what is left. A program that
        # does not call it compiles the rest before it ends.
        self._going_on = threading.Thread(target=compile_rest, name="cohort-compile-behind", daemon=True)
        self._going_on.start()

    def settle(self) -> None:
        """Wait until what goes on behind the caller is compiled."""
        if self._going_on is not None:
            self._going_on.join()

    def wait(self, *, most_seconds: float = MOST_SECONDS) -> Compiled:
        """Wait for all that was collected; return how many kernels were compiled.

        A kernel that a worker cannot compile is compiled by the pass that needs it, with its error if it has one.
        A worker that dies takes with it what the others had not begun: that is compiled by new workers, once.

        Args:
            most_seconds: What takes longer is left to the passes, and the workers are ended. The time that launches
                have waited counts.
        """
        end = self._end or time.monotonic() + most_seconds
        wait(self._compiling.values(), timeout=max(0.0, end - time.monotonic()))
        lost = [job for job, future in self._compiling.items() if isinstance(_error_of(future), BrokenProcessPool)]
        if lost and not self._is_abandoned:
            self._workers.shutdown(wait=False, cancel_futures=True)
            self._workers = self._new_workers()
            self._compiling |= {job: self._submit(_compile, job, self._capability) for job in lost}
            wait(self._compiling.values(), timeout=max(0.0, end - time.monotonic()))
        errors = [error for future in self._compiling.values() if (error := _error_of(future)) is not None]
        if any(not future.done() for future in self._compiling.values()):
            self._end_workers()
        first = "" if not errors else " ".join(f"{type(errors[0]).__name__}: {errors[0]}".split())
        return Compiled(num_kernels=len(self._compiling) - len(errors), num_failed=len(errors), first_error=first)

    def _end_workers(self) -> None:
        """End workers that hang: Python waits for them at its own end."""
        hanging = [*self._workers._processes.values()]
        self._workers.shutdown(wait=False, cancel_futures=True)
        for process in hanging:
            process.kill()

    def _new_workers(self) -> ProcessPoolExecutor:
        # a process that uses a GPU cannot be forked: workers are forks of a server that has imported Triton and nothing
        # else; 30 workers that import it each take three minutes of processors
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        return ProcessPoolExecutor(
            max_workers=self._count, mp_context=context, initializer=_begin, initargs=(dict(os.environ),)
        )

    def _submit(self, function: Callable[..., None], *arguments: object) -> Future[None]:
        """Have a thread hand a job to a worker; one that is started for it does not run the caller's script again.

        After the death of a worker the job fails as those that were handed in before it did.
        """
        given: Future[None] = Future()
        self._handing_over.submit(self._hand_over, given, function, arguments)
        return given

    def _hand_over(self, given: Future[None], function: Callable[..., None], arguments: tuple[object, ...]) -> None:
        try:
            with no_main_module():
                taken = self._workers.submit(function, *arguments)
        except Exception as error:
            with _SETTLING:
                if not given.done():
                    given.set_exception(error)
        else:
            taken.add_done_callback(lambda done: _pass_on(done, given))

    def _hand_in(self, kernel: Hashable, job: bytes) -> None:
        self._jobs[kernel] = job
        if job not in self._compiling:
            self._compiling[job] = self._submit(_compile, job, self._capability)


def settle_compiling() -> None:
    """Wait for kernels that are compiled behind their callers."""
    for compiler in list(_BEHIND):
        compiler.settle()


def end_compiling() -> None:
    """Compile nothing more behind callers: the process ends."""
    for compiler in list(_BEHIND):
        compiler.abandon()


def _cancel(given: Future[None]) -> None:
    """Cancel a job that has not ended, and tell who waits for it."""
    with _SETTLING:
        if not given.done() and given.cancel():
            given.set_running_or_notify_cancel()


def _pass_on(done: Future[None], given: Future[None]) -> None:
    if done.cancelled():
        _cancel(given)
        return
    error = done.exception()
    with _SETTLING:
        if given.done():
            return
        if error is not None:
            given.set_exception(error)
        else:
            given.set_result(None)


def _error_of(future: Future[None]) -> BaseException | None:
    """Return why a kernel is not there, if it is not."""
    return future.exception() if future.done() else TimeoutError("the compiler took too long")


class NamedGpu:
    """A driver of Triton that knows which GPU to compile for, and has none."""

    def __init__(self, capability: tuple[int, int]) -> None:
        self._capability = capability

    def get_current_device(self) -> int | str:
        return 0

    def get_current_target(self) -> Any:
        compiler: Any = importlib.import_module("triton.backends.compiler")
        return compiler.GPUTarget("cuda", 10 * self._capability[0] + self._capability[1], 32)


def _begin(environment: dict[str, str]) -> None:
    # a worker holds both ends of the pipe it waits at, so it would outlive a caller that is killed
    threading.Thread(target=_end_with_caller, daemon=True).start()
    # Ctrl-C is the caller's, which saves what it has and ends the workers
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)
    # the server has that of its own start
    os.environ.clear()
    os.environ.update(environment)


def _end_with_caller() -> None:
    caller = multiprocessing.parent_process()
    assert caller is not None, "a worker is a child of the process that compiles ahead"
    caller.join()
    os._exit(1)


def _import_triton() -> None:
    # a worker must not take memory of the GPU
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # without the intermediate texts (ttir, ttgir, llir, ptx) a first launch reads only what it needs
    os.environ.setdefault("TRITON_STORE_BINARY_ONLY", "1")
    for module in ("triton", "cohort.kernels.packed_linear.triton", "cohort.kernels.attention.triton"):
        importlib.import_module(module)


def _build_driver() -> None:
    """Have Triton build what it speaks to the driver with, which takes a C compiler some seconds."""
    _import_triton()
    with contextlib.suppress(Exception):
        importlib.import_module("triton.backends.nvidia.driver").CudaUtils()


def _compile(job: bytes, capability: tuple[int, int]) -> None:
    _import_triton()
    module, name, signature, constants, options, attrs = pickle.loads(job)
    driver: Any = importlib.import_module("triton.runtime.driver").driver
    driver.set_active(NamedGpu(capability))
    kernel: Any = importlib.import_module(module)
    for part in name.split("."):
        kernel = getattr(kernel, part)
    # it says for which target, and what makes a source of this kind of kernel
    target = kernel.create_binder()[2]
    compiled = kernel.compile(kernel.ASTSource(kernel, signature, constants, attrs), target=target, options=options)
    # Triton also has a C compiler build what launches it, half a second for each signature; later versions need none
    with contextlib.suppress(Exception):
        importlib.import_module("triton.backends.nvidia.driver").CudaLauncher(compiled.src, compiled.metadata)
