"""A worker: runs tasks on its device, one or several together, reports to the dispatcher, and stops when asked.

Three threads. The main one trains; a stop reaches it as SIGTERM, which a run takes as a request to save its state at
the next step boundary. One listens to the dispatcher and ends the process when the dispatcher is gone. One sends
heartbeats: what the run last reported and how long nothing has moved, so that a hanging step is noticed although the
process lives.
"""

from __future__ import annotations

import gc
import importlib
import os
import queue
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from cohort.engine.train.watching.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.machine.cluster.local import forget_threads_of_pool
from cohort.machine.cluster.worker_pool import WorkerChannel
from cohort.runs.directory import RunDirectory
from cohort.task_queue.workers.messages import (
    Heartbeat,
    Note,
    Ready,
    RunTask,
    StopTask,
    TaskDone,
    TaskStopped,
    WorkerReport,
    as_message,
    read_message,
)
from cohort.task_queue.workers.run_heartbeat import heartbeat_of
from cohort.task_queue.workers.shared_runs import SharedRuns, error_report
from cohort.tasks.loading import task_from_mapping

__all__ = ["serve"]

# two for every update of what watchers see
HEARTBEAT_SECONDS = 0.25


def serve(channel: WorkerChannel) -> None:
    """Work for the dispatcher until it is gone."""
    forget_threads_of_pool()
    _Worker(channel).work()


class _Heartbeats:
    """The latest report of each task: written by the runs, sent again and again by a thread of its own."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._latest: dict[str, Heartbeat] = {}
        self._moved_at = time.monotonic()
        self.free_share: Callable[[], float] = lambda: 0.0

    def set(self, beat: Heartbeat) -> None:
        with self._lock:
            assert beat.task is not None, "only a task moves"
            # any difference is progress: a step, an evaluation, a new phase; a task that waits for others moves with
            # them
            if beat != self._latest.get(beat.task):
                self._latest[beat.task], self._moved_at = beat, time.monotonic()

    def drop(self, task: str) -> None:
        """Say no more of a task."""
        with self._lock:
            self._latest.pop(task, None)
            self._moved_at = time.monotonic()

    def send_forever(self) -> None:
        while True:
            with self._lock:
                still, free = time.monotonic() - self._moved_at, self.free_share()
                beats = tuple(self._latest.values()) or (Heartbeat(),)
            for beat in beats:
                self._channel.send(dict(as_message(beat)) | {"still_seconds": still, "free_share": free})
            time.sleep(HEARTBEAT_SECONDS)


class _Reporter:
    """Watches one run for the dispatcher."""

    def __init__(self, task: str, heartbeats: _Heartbeats, channel: WorkerChannel) -> None:
        self.task, self._heartbeats, self._channel = task, heartbeats, channel
        self.phase = ""

    def update(self, progress: RunProgress) -> None:
        self.phase = progress.phase
        self._heartbeats.set(heartbeat_of(self.task, progress))

    def note(self, text: str) -> None:
        self._channel.send(as_message(Note(task=self.task, text=text)))


class _Worker:
    """One process's work."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._heartbeats = _Heartbeats(channel)
        self._tasks: queue.SimpleQueue[RunTask] = queue.SimpleQueue()
        # guards those below: a stop must not fall between the check for one and the start of the run
        self._lock = threading.Lock()
        self._reporter: _Reporter | None = None
        self._unwanted: set[str] = set()
        self._shared: SharedRuns | None = None
        self._reporters: dict[str, _Reporter] = {}
        self._threads = torch.get_num_threads()

    def work(self) -> None:
        # a scheduler that ends a whole job sends one of them to every process
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._stop_outside_training)
        for target in (self._listen, self._heartbeats.send_forever):
            threading.Thread(target=target, daemon=True).start()
        _warm_up()
        self._tell(Ready(process_id=os.getpid()))
        while True:
            order = self._tasks.get()
            if order.is_shared:
                self._carry_out_shared(order)
            else:
                # one task at a time: the dispatcher sends the next one only after this report
                self._end(order.task, self._carry_out(order))
            self._clean_up()

    def _tell(self, report: WorkerReport) -> None:
        self._channel.send(as_message(report))

    def _end(self, task: str, report: WorkerReport) -> None:
        # first: a heartbeat about it would follow the report of its end
        self._heartbeats.drop(task)
        self._reporters.pop(task, None)
        self._tell(report)

    def _listen(self) -> None:
        while (message := self._channel.receive()) is not None:
            match read_message(message):
                case RunTask() as order:
                    with self._lock:
                        self._unwanted.discard(order.task)
                        shared = self._shared
                    # where the last of those that train has just ended, it is the first of others
                    if not (order.is_shared and shared is not None and shared.join(order)):
                        self._tasks.put(order)
                case StopTask(task=task):
                    with self._lock:
                        is_running = self._reporter is not None and self._reporter.task == task
                        shared = self._shared
                        self._unwanted.add(task)
                    has_left = shared is not None and shared.stop(task)
                    if is_running and not has_left:
                        # the signal that a user would send: a stop by the queue and one by hand are one case for a run
                        os.kill(os.getpid(), signal.SIGTERM)
        # the dispatcher is gone: end all processes of this worker, even if the main thread hangs
        os.killpg(0, signal.SIGKILL)

    def _carry_out(self, order: RunTask) -> WorkerReport:
        # the run before may have changed the number of threads, which is part of a run's identity
        torch.set_num_threads(self._threads)
        reporter = _Reporter(order.task, self._heartbeats, self._channel)
        self._heartbeats.set(Heartbeat(task=order.task, phase="starting"))
        try:
            with self._lock:
                if order.task in self._unwanted:
                    return TaskStopped(task=order.task)
                self._reporter = reporter
            _run(order, watcher=reporter)
        except KeyboardInterrupt:
            return TaskStopped(task=order.task)
        except Exception as error:
            return error_report(order.task, error)
        finally:
            self._reporter = None
        return TaskDone(task=order.task)

    def _carry_out_shared(self, order: RunTask) -> None:
        """Train a task, and those that join it, until all have ended."""
        torch.set_num_threads(self._threads)
        self._heartbeats.set(Heartbeat(task=order.task, phase="starting"))
        shared = SharedRuns(order, tell=self._end, watcher_of=self._watcher_of)
        with self._lock:
            if order.task in self._unwanted:
                self._end(order.task, TaskStopped(task=order.task))
                return
            self._reporter = self._watcher_of(order.task)
            self._shared = shared
        self._heartbeats.free_share = lambda: shared.free_share
        try:
            shared.run()
        finally:
            with self._lock:
                self._shared = self._reporter = None
            self._heartbeats.free_share = lambda: 0.0

    def _watcher_of(self, task: str) -> _Reporter:
        reporter = self._reporters.get(task)
        if reporter is None:
            reporter = self._reporters[task] = _Reporter(task, self._heartbeats, self._channel)
            self._heartbeats.set(Heartbeat(task=task, phase="starting"))
        return reporter

    def _stop_outside_training(self, _signum: int, _frame: object) -> None:
        # while data or model are read nothing is lost by stopping; results that are being written are finished first
        reporters: list[_Reporter | None] = [*self._reporters.values()] or [self._reporter]
        if not any(reporter is None or reporter.phase.startswith("writing") for reporter in reporters):
            raise KeyboardInterrupt

    def _clean_up(self) -> None:
        # the next task sizes its bank and passes by the memory that is free when it starts
        gc.collect()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _run(order: RunTask, *, watcher: _Reporter) -> None:
    """Begin the task, or resume it where its run directory holds a run."""
    options = RunOptions(**order.options)
    directory = Path(order.run_directory)
    # the directory alone decides: the worker that had the task before may have died at any moment
    if RunDirectory.find_problem(directory) is None:
        task = task_from_mapping(order.resolved, base_directory=Path("/"), name=order.source)
        tune(task, directory, watcher=watcher, options=options)
    else:
        resume(directory, watcher=watcher, options=options)


def _warm_up() -> None:
    # a plan counts from the moment a worker is ready, so slow imports and CUDA's start come before that; not the Auto
    # classes, which import every model and the compiler: a checkpoint that is known needs none of them
    importlib.import_module("transformers").PreTrainedTokenizerFast  # noqa: B018 - loads it
    if torch.cuda.is_available():
        torch.cuda.init()
        torch.zeros(1, device="cuda")
