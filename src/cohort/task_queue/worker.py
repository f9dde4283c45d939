"""A worker: runs one task after the other on its device, tells the head how far it is, and stops when asked.

Three threads. The main one trains; a stop reaches it as SIGTERM, which a run takes as a request to save its state at
the next step boundary. One listens to the head and ends the process when the head is gone. One beats: it tells what
the run last reported and how long nothing has moved, so that a step that hangs is seen though the process lives.
"""

from __future__ import annotations

import gc
import importlib
import os
import queue
import signal
import threading
import time
import traceback
from pathlib import Path

import torch

from cohort.cluster.local import forget_threads_of_pool
from cohort.cluster.worker_pool import WorkerChannel
from cohort.core.errors import CohortError, InputError
from cohort.engine.train.progress import RunProgress
from cohort.engine.tune import RunOptions, resume, tune
from cohort.runs.directory import RunDirectory
from cohort.runs.records import TrialStatus
from cohort.task_queue.messages import (
    Beat,
    Note,
    Ready,
    RunTask,
    StopTask,
    TaskDone,
    TaskFailed,
    TaskStopped,
    WorkerReport,
    as_message,
    read_message,
)
from cohort.tasks.loading import task_from_mapping

__all__ = ["serve"]

BEAT_SECONDS = 0.25


def serve(channel: WorkerChannel) -> None:
    """Work for the head until it is gone."""
    forget_threads_of_pool()
    _Worker(channel).work()


class _Pulse:
    """What the beats tell: written by the run, read by the beating thread."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._beat = Beat()
        self._moved = time.monotonic()

    def set(self, beat: Beat) -> None:
        """Take what the run reports; whatever differs from before is movement."""
        with self._lock:
            if beat != self._beat:
                self._beat, self._moved = beat, time.monotonic()

    def beat_forever(self) -> None:
        while True:
            with self._lock:
                still = time.monotonic() - self._moved
                message = dict(as_message(self._beat)) | {"still_seconds": still}
            self._channel.send(message)
            time.sleep(BEAT_SECONDS)


class _Reporter:
    """Watches one run for the head."""

    def __init__(self, task: str, pulse: _Pulse, channel: WorkerChannel) -> None:
        self.task, self._pulse, self._channel = task, pulse, channel
        self.phase = ""

    def update(self, progress: RunProgress) -> None:
        self.phase = progress.phase
        best = progress.best
        early = sum(progress.count(status) for status in (TrialStatus.STOPPED, TrialStatus.FAILED))
        self._pulse.set(
            Beat(
                task=self.task,
                phase=progress.phase,
                steps_done=sum(trial.steps_done for trial in progress.trials),
                planned_steps=sum(trial.planned_steps for trial in progress.trials),
                seconds_left=progress.seconds_left_at_worst,
                num_trials=len(progress.trials),
                num_ended=early + progress.count(TrialStatus.COMPLETED),
                num_early=early,
                best_value=None if best is None else best.best_value,
                tokens_per_second=progress.tokens_per_second,
            )
        )

    def note(self, text: str) -> None:
        self._channel.send(as_message(Note(task=self.task, text=text)))


class _Worker:
    """One process's work."""

    def __init__(self, channel: WorkerChannel) -> None:
        self._channel = channel
        self._pulse = _Pulse(channel)
        self._tasks: queue.SimpleQueue[RunTask] = queue.SimpleQueue()
        # who stops what: the listening thread must not miss a task that is about to begin
        self._lock = threading.Lock()
        self._reporter: _Reporter | None = None
        self._unwanted: set[str] = set()
        self._threads = torch.get_num_threads()

    def work(self) -> None:
        signal.signal(signal.SIGTERM, self._stop_outside_training)
        for target in (self._listen, self._pulse.beat_forever):
            threading.Thread(target=target, daemon=True).start()
        _warm_up()
        self._tell(Ready(process_id=os.getpid()))
        while True:
            self._tell(self._carry_out(self._tasks.get()))
            self._clean_up()

    def _tell(self, report: WorkerReport) -> None:
        self._channel.send(as_message(report))

    def _listen(self) -> None:
        while (message := self._channel.receive()) is not None:
            match read_message(message):
                case RunTask() as order:
                    self._unwanted.discard(order.task)
                    self._tasks.put(order)
                case StopTask(task=task):
                    with self._lock:
                        is_running = self._reporter is not None and self._reporter.task == task
                        self._unwanted.add(task)
                    if is_running:
                        os.kill(os.getpid(), signal.SIGTERM)
        # the head is gone: leave nothing behind, whatever the main thread hangs in
        os.killpg(0, signal.SIGKILL)

    def _carry_out(self, order: RunTask) -> WorkerReport:
        # a run may have settled on another number than this worker began with; the next one must not inherit it
        torch.set_num_threads(self._threads)
        reporter = _Reporter(order.task, self._pulse, self._channel)
        self._pulse.set(Beat(task=order.task, phase="starting"))
        try:
            with self._lock:
                if order.task in self._unwanted:
                    return TaskStopped(task=order.task)
                self._reporter = reporter
            _run(order, watcher=reporter)
        except KeyboardInterrupt:
            return TaskStopped(task=order.task)
        except InputError as error:
            return TaskFailed(task=order.task, message=str(error), is_input_error=True)
        except CohortError as error:
            return TaskFailed(task=order.task, message=str(error))
        except Exception as error:
            traceback.print_exc()
            return TaskFailed(task=order.task, message=f"{type(error).__name__}: {error}")
        finally:
            self._reporter = None
        return TaskDone(task=order.task)

    def _stop_outside_training(self, _signum: int, _frame: object) -> None:
        """Give a task up while its data or model are read: nothing is lost. Results being written are finished."""
        if self._reporter is not None and not self._reporter.phase.startswith("writing"):
            raise KeyboardInterrupt

    def _clean_up(self) -> None:
        """Give the device's memory back before the next task measures what is free."""
        self._pulse.set(Beat())
        gc.collect()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def _run(order: RunTask, *, watcher: _Reporter) -> None:
    """Begin the task, or go on with it where its run directory holds a run."""
    options = RunOptions(**order.options)
    directory = Path(order.run_directory)
    if RunDirectory.find_problem(directory) is None:
        task = task_from_mapping(order.resolved, base_directory=Path("/"), name=order.source)
        tune(task, directory, watcher=watcher, options=options)
    else:
        resume(directory, watcher=watcher, options=options)


def _warm_up() -> None:
    """Load what every run needs before its first step, so that a worker that is ready begins at once."""
    importlib.import_module("transformers").AutoTokenizer  # noqa: B018 - loads it
    importlib.import_module("transformers").AutoConfig  # noqa: B018
    if torch.cuda.is_available():
        torch.cuda.init()
        torch.zeros(1, device="cuda")
