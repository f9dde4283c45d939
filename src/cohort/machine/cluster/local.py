"""Workers as processes of this machine: one per GPU, or per share of the CPU cores.

Each has its own process group, environment and log file, and dies with the dispatcher. Its death is noticed at once,
because its end of the socket closes.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cohort.core.units import counted
from cohort.machine.cluster.line_channel import LineChannel
from cohort.machine.cluster.worker_pool import Message, PoolEvent, Slot, WorkerDied, WorkerMessage

__all__ = ["THREADS_MARK", "LocalPool", "LocalSlot", "cpu_slots", "forget_threads_of_pool", "gpu_slots"]

# the longest a process may take to exit after its end of the socket closed
_EXIT_SECONDS = 5.0
_LOG_TAIL_BYTES = 4000
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
THREADS_MARK = "COHORT_THREADS_OF_POOL"


@dataclass(frozen=True, kw_only=True)
class LocalSlot:
    """A slot of this machine and the environment of its worker."""

    slot: Slot
    environment: Mapping[str, str] = field(default_factory=dict)


def gpu_slots(gpu_names: Sequence[str], *, num_threads: int) -> tuple[LocalSlot, ...]:
    """Return one slot per GPU.

    Args:
        gpu_names: As ``CUDA_VISIBLE_DEVICES`` names them: indices or identifiers.
    """
    return _slots([f"GPU {name}" for name in gpu_names], gpu_names, num_threads)


def cpu_slots(num_workers: int, *, num_threads: int) -> tuple[LocalSlot, ...]:
    """Return ``num_workers`` slots that see no GPU, with ``num_threads`` threads each."""
    threads = f"{counted(num_threads, 'thread')}"
    return _slots([f"CPU worker {index} ({threads})" for index in range(num_workers)], [""] * num_workers, num_threads)


def _slots(devices: Sequence[str], visible: Sequence[str], num_threads: int) -> tuple[LocalSlot, ...]:
    return tuple(
        LocalSlot(
            slot=Slot(slot_id=index, node="local", device=device, is_cpu=not gpu),
            environment={"CUDA_VISIBLE_DEVICES": gpu, **_threads(num_threads)},
        )
        for index, (device, gpu) in enumerate(zip(devices, visible, strict=True))
    )


def _threads(count: int) -> dict[str, str]:
    # a number that the user set stays; the mark tells the worker that this one is not the user's
    if any(name in os.environ for name in _THREAD_VARIABLES):
        return {}
    return {**dict.fromkeys(_THREAD_VARIABLES, str(count)), THREADS_MARK: "1"}


def forget_threads_of_pool() -> None:
    """Remove the pool's number of threads from a worker's environment, once its libraries have read it."""
    # a run takes a number in the environment for a request of its user, and keeps it
    if os.environ.pop(THREADS_MARK, None) is not None:
        for name in _THREAD_VARIABLES:
            os.environ.pop(name, None)


def _together(slots: Sequence[LocalSlot]) -> Mapping[str, str]:
    """Return the environment of a worker that has the devices of several slots, in their order."""
    # the number of threads stays that of one slot: the worker starts a process for each further device
    visible = ",".join(name for slot in slots if (name := slot.environment.get("CUDA_VISIBLE_DEVICES", "")))
    return {**slots[0].environment, "CUDA_VISIBLE_DEVICES": visible}


@dataclass(frozen=True, kw_only=True)
class _Worker:
    process: subprocess.Popen[bytes]
    channel: LineChannel
    log: Path


class LocalPool:
    """Worker processes of this machine. Use it from one thread; the kernel ends workers when that thread ends."""

    can_grow = False

    def __init__(self, slots: Sequence[LocalSlot], *, target: str, log_directory: Path) -> None:
        """Make a pool without workers.

        Args:
            target: ``module:function`` that a worker calls with its channel.
            log_directory: Each slot's workers write what they print to ``slot-N.log`` there.
        """
        self._slots = {local.slot.slot_id: local for local in slots}
        self._target, self._log_directory = target, log_directory
        self._workers: dict[int, _Worker] = {}
        self._unborn: list[WorkerDied] = []
        self._selector = selectors.DefaultSelector()

    def slots(self) -> tuple[Slot, ...]:
        return tuple(local.slot for local in self._slots.values())

    def process_id(self, slot_id: int) -> int | None:
        worker = self._workers.get(slot_id)
        return None if worker is None else worker.process.pid

    def start(self, slot_id: int, *, also: Sequence[int] = ()) -> None:
        if slot_id in self._workers:
            raise RuntimeError(f"slot {slot_id} already has a worker")
        self._log_directory.mkdir(parents=True, exist_ok=True)
        log = self._log_directory / f"slot-{slot_id}.log"
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "cohort.machine.cluster.worker_process"]
        command += [str(theirs.fileno()), str(os.getpid()), self._target]
        try:
            # appended to: what a dead worker printed says why it died
            with log.open("ab") as stream, theirs:
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **_together([self._slots[each] for each in (slot_id, *also)])},
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    pass_fds=[theirs.fileno()],
                    # Ctrl-C in the terminal is for the dispatcher, which asks its workers to stop at a step boundary
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            self._unborn.append(WorkerDied(slot_id=slot_id, reason=f"could not be started: {error}"))
            return
        # a worker that hangs reads nothing: sending to it must not block the dispatcher
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
        worker = _Worker(process=process, channel=LineChannel(ours), log=log)
        self._workers[slot_id] = worker
        self._selector.register(worker.channel, selectors.EVENT_READ, slot_id)

    def send(self, slot_id: int, message: Message) -> None:
        if slot_id in self._workers:
            self._workers[slot_id].channel.send(message)

    def kill(self, slot_id: int) -> None:
        if slot_id in self._workers:
            _kill_group(self._workers[slot_id].process)

    def wait(self, timeout_seconds: float) -> list[PoolEvent]:
        events: list[PoolEvent] = [*self._unborn]
        self._unborn = []
        for key, _ in self._selector.select(0.0 if events else timeout_seconds):
            slot_id: int = key.data
            messages = self._workers[slot_id].channel.receive_available()
            events += [WorkerMessage(slot_id=slot_id, message=message) for message in messages]
        for slot_id, worker in list(self._workers.items()):
            worker.channel.flush()
            # a child of the worker may hold the socket open: the process itself counts as well
            if worker.channel.is_open and not _has_exited(worker.process):
                continue
            events += self._bury(slot_id, worker)
        return events

    def close(self) -> None:
        # all are killed before the first is waited for, so that they end together
        for worker in self._workers.values():
            _kill_group(worker.process)
        for worker in self._workers.values():
            worker.process.wait()
            self._selector.unregister(worker.channel)
            worker.channel.close()
        self._workers = {}
        self._selector.close()

    def _bury(self, slot_id: int, worker: _Worker) -> list[PoolEvent]:
        """Return a dead worker's last messages and its death, and forget it."""
        deadline = time.monotonic() + _EXIT_SECONDS
        while not _has_exited(worker.process) and time.monotonic() < deadline:
            time.sleep(0.005)
        # before the process is reaped, while its number cannot be another process's
        _kill_group(worker.process)
        status = worker.process.wait()
        messages = worker.channel.receive_available()
        self._selector.unregister(worker.channel)
        worker.channel.close()
        del self._workers[slot_id]
        reason = _exit_reason(status, worker.log)
        return [
            *(WorkerMessage(slot_id=slot_id, message=message) for message in messages),
            WorkerDied(slot_id=slot_id, reason=reason),
        ]


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    # a data loader or compiler that the worker started may outlive it
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _has_exited(process: subprocess.Popen[bytes]) -> bool:
    # WNOWAIT leaves the number taken, so that no other process can have it before the group is killed
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _exit_reason(status: int, log: Path) -> str:
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = f"signal {-status}"
        return f"killed by {name}"
    return f"ended with exit code {status}{_last_line(log)}"


def _last_line(log: Path) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
            lines = stream.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last} (see {log})" if last else ""
