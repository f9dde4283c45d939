"""The engine in a thread of its own: an event loop submits requests and receives their tokens as they come."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from cohort.core.errors import CohortError
from cohort.engine.turns.base_turns import BaseTurns
from cohort.scheduling.shares.records import WorkKind
from cohort.service.streams.stream_writer import StreamWriter
from cohort.service.subscription import Listener, Subscription, wake_all
from cohort.serving.adapter_pool import AdapterPool
from cohort.serving.engine import ServingEngine
from cohort.serving.sequence import SequenceRequest
from cohort.serving.step_output import FinishReason, StepOutput
from cohort.training.device_memory import is_out_of_memory, release_cached

__all__ = ["EngineThread", "QueueFullError", "ServerClosingError"]

_log = logging.getLogger(__name__)
_IDLE_SECONDS = 0.05
_WAITING_FOR_ADAPTER_SECONDS = 0.02
_STOP_SECONDS = 30.0
_SWITCH_SECONDS = 0.001


class QueueFullError(CohortError):
    """As many requests as the server accepts are waiting or running."""


class ServerClosingError(CohortError):
    """The server is about to stop."""


class EngineThread:
    """Owns an engine: no other thread touches it.

    Attributes:
        num_open: Sequences that were accepted and are not finished.
        writer: Writes streams in a process of its own; None where there is none.
        on_step: Hears of the outputs of each step, in the engine's thread.
        on_lost: Called in some thread once this server cannot go on.
        lost: Why it cannot, for the user; None while it can.
    """

    def __init__(
        self,
        engine: ServingEngine,
        pool: AdapterPool,
        *,
        max_waiting: int,
        turns: BaseTurns | None = None,
        writer: StreamWriter | None = None,
    ) -> None:
        """Serve with ``engine`` once started.

        Args:
            max_waiting: Most requests that are accepted and not finished.
            turns: Asked before every pass, where other threads use the same base model; None where none does.
            writer: Hears outputs of its streams; it is closed with this.
        """
        self._engine, self._pool, self._max_waiting = engine, pool, max_waiting
        self._turns, self.writer = turns, writer
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._subscribers: dict[int, tuple[Listener, int]] = {}
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._is_closing = False
        # of the last pass: they are handed on while the next one is computed
        self._undelivered: Sequence[StepOutput] = ()
        self.num_open = 0
        self.on_step: Callable[[Sequence[StepOutput]], None] = lambda _: None
        self.on_lost: Callable[[], None] = lambda: None
        self.lost: str | None = None
        self._thread = threading.Thread(target=self._run, name="cohort-engine", daemon=True)

    @property
    def engine(self) -> ServingEngine:
        """For numbers that any thread may read."""
        return self._engine

    @property
    def pool(self) -> AdapterPool:
        return self._pool

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_closing(self) -> bool:
        return self._is_closing

    def start(self) -> None:
        # While a pass is computed, other threads write what the last one gave; the engine must not wait for as long as
        # Python's 5 ms to go on.
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._thread.start()

    def submit(
        self, requests: Sequence[SequenceRequest], *, loop: asyncio.AbstractEventLoop, tenant: str = ""
    ) -> Subscription:
        """Queue the sequences of one HTTP request, all or none.

        Args:
            tenant: Whose share of the base model those use that name none.

        Raises:
            QueueFullError: they are more than there is room for.
            ServerClosingError: the server takes no more requests.
        """
        subscription = Subscription(loop)
        self.submit_to(subscription, requests, tenant=tenant)
        return subscription

    def submit_to(self, listener: Listener, requests: Sequence[SequenceRequest], *, tenant: str = "") -> None:
        """Submit for another kind of listener."""
        with self._lock:
            if self._is_closing:
                raise ServerClosingError("the server is shutting down")
            if self.num_open + len(requests) > self._max_waiting:
                raise QueueFullError(f"{self.num_open} of at most {self._max_waiting} requests are waiting or running")
            self.num_open += len(requests)
        own = [request if request.tenant else replace(request, tenant=tenant) for request in requests]
        self._commands.put(lambda: self._admit(listener, own))

    def cancel(self, listener: Listener) -> None:
        """Forget what is left of a request whose client has its answer or has left."""
        self._commands.put(lambda: self._forget(listener))

    def close(self, *, drain_seconds: float) -> bool:
        """Take no more requests, let those that run finish in time, and stop; return whether all finished."""
        with self._lock:
            self._is_closing = True
        deadline = time.monotonic() + drain_seconds
        while self.num_open and self.is_alive and time.monotonic() < deadline:
            time.sleep(_IDLE_SECONDS)
        has_finished = not self.num_open
        self._stopped.set()
        self._thread.join(timeout=_STOP_SECONDS)
        if self.writer is not None:
            self.writer.close()
        self._pool.close()
        return has_finished

    def lose(self, reason: str) -> None:
        """End for good: a part of the model is gone. Requests fail, and no more are taken."""
        with self._lock:
            self._is_closing, self.lost = True, reason
        _log.error("%s", reason)
        self._stopped.set()
        self.on_lost()

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._take_commands(block=not self._engine.has_work)
            if not self._engine.has_work:
                # what was left has been given up meanwhile
                self._deliver_last()
                continue
            self._undelivered = self._step()
            self._go_on()
        self._deliver_last()
        self._fail_all("the server has stopped")

    def _go_on(self) -> None:
        """Behind a pass: keep nothing back where no other one follows, and wait where only adapters can go on."""
        if not self._engine.has_work:
            self._deliver_last()
        elif not self._undelivered and not self._engine.scheduler.running:
            self._pool.wait_changed(_WAITING_FOR_ADAPTER_SECONDS)

    def _deliver_last(self) -> None:
        """Hand on what the last pass gave."""
        outputs, self._undelivered = self._undelivered, ()
        if outputs:
            self._engine.add_texts()
            self.on_step(outputs)
            self._deliver(outputs)

    def _step(self) -> list[StepOutput]:
        try:
            if self._turns is None:
                return self._engine.step(meanwhile=self._deliver_last, adds_texts=False)
            if self._turns.is_busy:
                # a pass of training may take long
                self._deliver_last()
            with self._turns.turn(WorkKind.SERVING, self._engine.ready_tokens()) as held:
                outputs = self._engine.step(meanwhile=self._deliver_last, adds_texts=False)
                if self._engine.has_work:
                    held.follows = self._turns.ready(WorkKind.SERVING, self._engine.ready_tokens())
                return outputs
        except Exception as error:  # one bad pass must not end the server
            _log.exception("a pass failed")
            reason = "out of memory" if is_out_of_memory(error) else "internal error"
        # outside of the handler, whose traceback keeps the tensors of the pass
        self._deliver_last()
        self._fail_all(f"{reason} while generating; the request was dropped")
        release_cached(self._engine.device)
        return []

    def _take_commands(self, *, block: bool) -> None:
        try:
            self._commands.get(timeout=_IDLE_SECONDS)() if block else self._commands.get_nowait()()
            while True:
                self._commands.get_nowait()()
        except queue.Empty:
            return

    def _admit(self, listener: Listener, requests: Sequence[SequenceRequest]) -> None:
        for place, request in enumerate(requests):
            if listener.is_cancelled:
                self._close_one()
                continue
            try:
                number = self._engine.submit(request)
            except (CohortError, ValueError) as error:
                # requests are checked before: only a pool too small for the prompt is left
                self._close_one()
                failed = StepOutput(number=-1, token=None, finish=FinishReason.FAILED, error=str(error))
                self._wake([listener] if listener.put(place, failed) else [])
                continue
            self._subscribers[number] = (listener, place)
            listener.numbers.add(number)

    def _forget(self, listener: Listener) -> None:
        listener.is_cancelled = True
        for number in listener.numbers:
            if self._engine.abort(number):
                self._close_one()
            self._subscribers.pop(number, None)
        listener.numbers.clear()

    def _deliver(self, outputs: Sequence[StepOutput]) -> None:
        waiting = []
        for output in outputs:
            found = self._subscribers.get(output.number)
            if output.finish is not None:
                self._close_one()
                self._subscribers.pop(output.number, None)
            if found is not None:
                listener, place = found
                if output.finish is not None:
                    listener.numbers.discard(output.number)
                if listener.put(place, output):
                    waiting.append(listener)
        self._wake(waiting)

    def _wake(self, waiting: Sequence[Listener]) -> None:
        if self.writer is not None:
            self.writer.flush()
        by_loop: dict[asyncio.AbstractEventLoop, list[Listener]] = {}
        for listener in waiting:
            by_loop.setdefault(listener.loop, []).append(listener)
        for loop, own in by_loop.items():
            # a loop that has ended has no client either
            if not loop.is_closed():
                loop.call_soon_threadsafe(wake_all, own)

    def _fail_all(self, reason: str) -> None:
        numbers = self._engine.abort_all()
        self._deliver(
            [StepOutput(number=number, token=None, finish=FinishReason.FAILED, error=reason) for number in numbers]
        )

    def _close_one(self) -> None:
        with self._lock:
            self.num_open -= 1
