"""One process that computes rewards, as the training program sees it: called, timed, replaced."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import cohort
from cohort.core.units import format_bytes, format_duration
from cohort.metrics.rewards.plan import PlannedReward, RewardPlan

__all__ = ["IS_WORKER", "CallFailedError", "RefusedError", "WorkerProcess", "worker_environment"]

# what a program needs to start and to write text as its neighbours do; everything else may be a secret
_INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
IS_WORKER = "COHORT_PROCESS_OF_REWARDS"
"""Set in these processes: a module that trains when it is imported would start them without end."""
# a module may import a large library
_LOADING_SECONDS = 120.0
_PROGRAM = "import sys; from cohort.metrics.rewards.worker import main; main(sys.argv[1:])"
ResultT = TypeVar("ResultT")


class CallFailedError(Exception):
    """A call gave no values; the message says what happened, a clause about the function.

    Attributes:
        has_timed_out: Whether it was stopped at its time limit.
        place: Which of the call's answers it is about, where that is known.
    """

    def __init__(self, what: str, *, has_timed_out: bool = False, place: int | None = None) -> None:
        super().__init__(what)
        self.has_timed_out, self.place = has_timed_out, place


class RefusedError(CallFailedError):
    """There is no such function, or it cannot be a reward; the hint says what to do."""

    def __init__(self, what: str, *, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class _ProcessEndedError(Exception):
    """The process is gone, or has no memory left."""


class WorkerProcess:
    """A process with the limits of a plan. It starts with its first call, and again after it was stopped."""

    def __init__(self, plan: RewardPlan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._home = ""
        self._identities: dict[str, str] = {}
        self._num_calls = 0
        self._is_closed = False

    def identity(self, own: PlannedReward) -> str:
        """Import a function, if that is not done yet, and return what its values come from: a digest of its source.

        Raises:
            RefusedError: there is no such function, or it cannot be a reward.
            CallFailedError: its module cannot be imported.
        """
        return self._twice(lambda: self._loaded(own.call()))

    def call(self, message: Mapping[str, Any]) -> list[float | None]:
        """Return the values of a call.

        Raises:
            RefusedError: as :meth:`identity`.
            CallFailedError: it raised, took too long, used too much memory, ended its process or returned no rewards.
        """
        return self._twice(lambda: self._called(message))

    def reply(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a function replies to an answer: ``messages``, or a ``reward``.

        Raises:
            RefusedError, CallFailedError: as :meth:`call`.
        """

        def replied() -> Mapping[str, Any]:
            self._loaded(message)
            found: Mapping[str, Any] = self._exchange(message, limit=self._plan.time_limit, does="for one reply")
            self._num_calls += 1
            return found

        return self._twice(replied)

    def _twice(self, what: Callable[[], ResultT]) -> ResultT:
        """Return what a call gives; a process that ends is replaced, and one that had other calls before is retried."""
        try:
            return what()
        except _ProcessEndedError as error:
            had_calls = self._num_calls > 0
            self._stop()
            if not had_calls or self._is_closed:
                raise CallFailedError(str(error)) from error
        # what earlier calls left in its memory may have been the cause
        try:
            return what()
        except _ProcessEndedError as error:
            self._stop()
            raise CallFailedError(str(error)) from error

    def close(self) -> None:
        """End the process; a call that runs in another thread fails."""
        self._is_closed = True
        self._stop()
        if self._home:
            shutil.rmtree(self._home, ignore_errors=True)

    def _loaded(self, message: Mapping[str, Any]) -> str:
        self._start()
        named = {name: message[name] for name in ("function", "options", "source")}
        key = json.dumps(named)
        if key not in self._identities:
            limit = max(self._plan.time_limit, _LOADING_SECONDS)
            answer = self._exchange(named, limit=limit, does="to import")
            self._identities[key] = str(answer["identity"])
        return self._identities[key]

    def _called(self, message: Mapping[str, Any]) -> list[float | None]:
        self._loaded(message)
        found: list[float | None] = self._exchange(message, limit=self._plan.time_limit, does="for one call")["values"]
        self._num_calls += 1
        return found

    def _exchange(self, message: Mapping[str, Any], *, limit: float, does: str) -> Mapping[str, Any]:
        connection = self._connection
        if connection is None:
            raise CallFailedError("was stopped")
        try:
            connection.send_bytes(json.dumps(message, default=str).encode())
            if not connection.poll(limit):
                self._stop()
                words = f"took longer than {format_duration(limit)} {does} and was stopped"
                raise CallFailedError(words, has_timed_out=True)
            answer: dict[str, Any] = json.loads(connection.recv_bytes())
        except (EOFError, OSError, ValueError) as error:
            raise _ProcessEndedError(self._end_words()) from error
        if answer.get("memory"):
            raise _ProcessEndedError(f"reached its memory limit of {format_bytes(self._plan.memory_limit)}")
        if "refused" in answer:
            raise RefusedError(str(answer["error"]), hint=str(answer["refused"]))
        if "error" in answer:
            raise CallFailedError(str(answer["error"]), place=answer.get("place"))
        return answer

    def _end_words(self) -> str:
        if self._is_closed or self._process is None:
            return "was stopped"
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(timeout=5)
            if code < 0:
                return f"ended its process by the signal {signal.Signals(-code).name}"
            return f"ended its process with exit code {code}"
        return "closed the connection of its process"

    def _start(self) -> None:
        with self._lock:
            if self._process is not None or self._is_closed:
                return
            if IS_WORKER in os.environ:
                hint = "Put the function into a module that trains nothing when it is imported."
                raise RefusedError("a training that the import of a reward began", hint=hint)
            self._home = self._home or tempfile.mkdtemp(prefix="cohort-rewards-")
            ours, theirs = multiprocessing.Pipe()
            with theirs:
                self._process = subprocess.Popen(
                    [
                        # __main__ stays empty, for what a script defines
                        *(self._plan.python or sys.executable, "-P", "-c", _PROGRAM),
                        *(str(theirs.fileno()), str(self._plan.memory_limit)),
                    ],
                    env=worker_environment(self._plan, home=self._home),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    # Ctrl-C is for the training program, which ends this process and what it has started
                    start_new_session=True,
                )
            self._connection, self._num_calls = ours, 0
            self._identities.clear()

    def _stop(self) -> None:
        with self._lock:
            process, connection = self._process, self._connection
            self._process = self._connection = None
        if process is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if connection is not None:
            connection.close()


def worker_environment(plan: RewardPlan, *, home: str) -> dict[str, str]:
    """Return the environment of a process: the variables of the plan, what every program needs, nothing else."""
    inherited = {name: os.environ[name] for name in (*_INHERITED, *plan.environment) if name in os.environ}
    # found as here: the current directory by its name. Another environment has packages of its own, and of ours Cohort.
    path = [str(Path(cohort.__file__).parents[1])] if plan.python else [own or os.getcwd() for own in sys.path]
    return {
        IS_WORKER: "1",
        "HOME": home,
        "TMPDIR": home,
        "PYTHONPATH": os.pathsep.join(path),
        # the order of a set must not change a reward
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
        "TOKENIZERS_PARALLELISM": "false",
        **inherited,
    }
