"""A thread that owns the models of clients: whatever is ready of all of them goes into the next pass."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from cohort.core.errors import CohortError
from cohort.engine.client_training.operations import Operation, OperationLog, Work
from cohort.engine.turns.base_turns import BaseTurns
from cohort.scheduling.shares.records import Turn, WorkKind
from cohort.training.client_training.client_models import ModelState, UnknownModelError
from cohort.training.client_training.request_executor import AdamParameters, PassRequest, RequestExecutor

__all__ = ["ClientTrainer", "TrainerClosedError"]

_log = logging.getLogger(__name__)

GAP_SECONDS = 30.0
_IDLE_SECONDS = 0.25


class TrainerClosedError(CohortError):
    """The server stops and takes no more operations."""


class ClientTrainer:
    """Continuous batching of training: operations of all models arrive at any time, each model's run in order.

    A round takes the heads of all models. Forward and backward passes share packed passes, optimizer steps share one
    launch, and what is left is called one after the other. A model's results do not depend on who else is in a round.

    Attributes:
        on_round: Called in the trainer's thread before each round.
        on_gap: Called with a model and the first and last number that are no longer waited for, before the call
            behind them runs.
    """

    def __init__(
        self,
        executor: RequestExecutor,
        *,
        turns: BaseTurns | None = None,
        window_seconds: float = 0.002,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over ``executor``: from now on only this thread calls it.

        Args:
            turns: Asked before every round, where other threads use the same base model.
            window_seconds: How long a round waits for company once an operation is ready.
            clock: Seconds.
        """
        self.executor = executor
        self._turns, self._window_seconds, self._clock = turns or BaseTurns(), window_seconds, clock
        executor.before_pass = self._turns.give_way
        self._logs: dict[str, OperationLog] = {}
        self._tenants: dict[str, str] = {}
        self._loose: list[Operation] = []
        self.on_round: Callable[[], None] = lambda: None
        self.on_gap: Callable[[str, int, int], None] = lambda *_: None
        self._changed = threading.Condition()
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="cohort-client-trainer", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def open(self, model_id: str, *, first: int = 1, tenant: str = "") -> None:
        """Take operations of a model from number ``first`` on; they use the share of ``tenant``."""
        with self._changed:
            self._logs.setdefault(model_id, OperationLog(model_id, first=first))
            self._tenants[model_id] = tenant

    def forget(self, model_id: str) -> None:
        """Take no more operations of a model; those that wait fail."""
        with self._changed:
            log = self._logs.pop(model_id, None)
            self._tenants.pop(model_id, None)
        for operation in () if log is None else log.waiting:
            _fail(operation, UnknownModelError(f"model {model_id!r} is gone"))

    def submit(self, model_id: str, *, number: int, fingerprint: bytes, work: Work) -> Future[Any]:
        """Queue an operation and return its answer, also that of an earlier call with this number and body.

        Raises:
            InputError: the number was used with another body.
            UnknownModelError: there is no such model.
            TrainerClosedError: the server stops.
        """
        with self._changed:
            if self._is_closing:
                raise TrainerClosedError("the server is shutting down")
            log = self._logs.get(model_id)
            if log is None:
                raise UnknownModelError(f"there is no model {model_id!r}")
            operation = Operation(
                model_id=model_id, number=number, fingerprint=fingerprint, work=work, arrived=self._clock()
            )
            added = log.add(operation)
            self._changed.notify_all()
            return added.answer

    def check(self, model_id: str, number: int) -> None:
        """Check the number of a new call.

        Raises:
            InputError: a later call has run.
        """
        with self._changed:
            if (log := self._logs.get(model_id)) is not None:
                log.check(number)

    def skip(self, model_id: str, first: int, last: int) -> None:
        """Do not wait for the calls of a model that are numbered ``first`` to ``last``; they were refused."""
        with self._changed:
            if (log := self._logs.get(model_id)) is not None:
                log.skip(first, last)
                self._changed.notify_all()

    def read(self, model_id: str) -> Future[tuple[int, ModelState | None]]:
        """Return a model's last call that has run and its state behind it; None for a model that could not be made.

        Raises:
            TrainerClosedError: the server stops.
        """

        def work() -> tuple[int, ModelState | None]:
            # all that the round took has run by now
            with self._changed:
                log = self._logs.get(model_id)
                if log is None:
                    raise UnknownModelError(f"there is no model {model_id!r}")
                number = log.last_taken
            models = self.executor.models
            return number, models.state(model_id) if model_id in models else None

        return self._submit_loose(work)

    def measure(self, request: PassRequest, *, before: Callable[[], None]) -> Future[Any]:
        """Queue a pass that keeps nothing, of a version that no numbered call changes; return its results.

        Args:
            before: Called first, in the trainer's thread.

        Raises:
            TrainerClosedError: the server stops.
        """

        def work() -> Any:
            before()
            return self.executor.run([request])[0]

        return self._submit_loose(work)

    def drop(self, model_id: str) -> None:
        """Forget a model with its state."""
        self.forget(model_id)
        models = self.executor.models

        def work() -> None:
            if model_id in models:
                models.drop(model_id)

        with contextlib.suppress(TrainerClosedError):
            self._submit_loose(work)

    def _submit_loose(self, work: Callable[[], Any]) -> Future[Any]:
        with self._changed:
            if self._is_closing:
                raise TrainerClosedError("the server is shutting down")
            operation = Operation(model_id="", number=0, fingerprint=b"", work=work, arrived=self._clock())
            self._loose.append(operation)
            self._changed.notify_all()
            return operation.answer

    def close(self) -> None:
        """Finish the round that runs, fail what waits, and end the thread."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while (tokens := self._next_round()) is not None:
            self.on_round()
            with self._turns.turn(WorkKind.CLIENT_TRAINING, tokens) as held:
                operations = self._take(held.turn)
                held.tokens = self._tokens(operations)
                self._run_round(operations)
                if following := self._tokens(self._ready()):
                    held.follows = self._turns.ready(WorkKind.CLIENT_TRAINING, following)
        with self._changed:
            waiting = [*self._loose, *(operation for log in self._logs.values() for operation in log.waiting)]
        for operation in waiting:
            _fail(operation, TrainerClosedError("the server is shutting down"))

    def _next_round(self) -> dict[str, int] | None:
        """Wait for operations that may run, and return their tokens by tenant; None once the server stops."""
        with self._changed:
            while not self._heads() and not self._loose:
                if self._is_closing:
                    return None
                self._changed.wait(_IDLE_SECONDS)
            deadline = self._clock() + self._window_seconds
            # company for the pass, unless every model is there already
            while not self._loose and len(self._heads()) < len(self._logs) and (left := deadline - self._clock()) > 0:
                self._changed.wait(left)
            if self._is_closing:
                return None
        return self._tokens(self._ready())

    def _ready(self) -> list[Operation]:
        with self._changed:
            return [*self._heads(), *self._loose]

    def _tokens(self, operations: Sequence[Operation]) -> dict[str, int]:
        """Return the tokens of operations by tenant; 0 for what is no pass."""
        found: dict[str, int] = {}
        for operation in operations:
            tenant = self._tenants.get(operation.model_id, "")
            work = operation.work
            found[tenant] = found.get(tenant, 0) + (work.num_tokens if isinstance(work, PassRequest) else 0)
        return found

    def _heads(self) -> list[Operation]:
        now = self._clock()
        found = (log.head(now=now, gap_seconds=GAP_SECONDS) for log in self._logs.values())
        return sorted((head for head in found if head is not None), key=lambda head: head.arrived)

    def _take(self, turn: Turn) -> list[Operation]:
        """Take heads and passes right behind them, up to the tokens of a pass; the least charged tenants come first.

        Of one tenant the longest wait comes first.
        """
        with self._changed:
            return self._taken(turn)

    def _taken(self, turn: Turn) -> list[Operation]:
        # what reads between calls comes behind those of the round
        taken, num_tokens = list[Operation](), 0
        loose, self._loose = self._loose, []
        most = self._most_tokens(turn)
        for head in self._in_order(self._heads(), turn):
            log = self._logs[head.model_id]
            operation: Operation | None = head
            while operation is not None and num_tokens < most:
                if (lost := log.expects(operation.number)) < operation.number:
                    self.on_gap(head.model_id, lost, operation.number - 1)
                log.take(operation)
                taken.append(operation)
                if not isinstance(operation.work, PassRequest):
                    break
                num_tokens += operation.work.num_tokens
                following = log.head(now=self._clock(), gap_seconds=GAP_SECONDS)
                operation = following if following and isinstance(following.work, PassRequest) else None
        return taken + loose

    def _most_tokens(self, turn: Turn) -> int:
        price = self._turns.seconds_per_token(WorkKind.CLIENT_TRAINING)
        budget = self.executor.token_budget
        # a call longer than that has its passes cut, and requests come between them
        return budget if turn.max_seconds is None or not price else max(1, min(budget, int(turn.max_seconds / price)))

    def _in_order(self, heads: Sequence[Operation], turn: Turn) -> list[Operation]:
        riding = [head for head in heads if self._tenants.get(head.model_id, "") in turn.tenants] or heads
        rows = [(self._tenants.get(head.model_id, ""), self._tokens([head]).popitem()[1]) for head in riding]
        return [riding[number] for number in self._turns.row_order(rows, kind=WorkKind.CLIENT_TRAINING)]

    def _run_round(self, operations: Sequence[Operation]) -> None:
        operations = self._possible(operations)
        passes = [operation for operation in operations if isinstance(operation.work, PassRequest)]
        requests = [operation.work for operation in passes if isinstance(operation.work, PassRequest)]
        steps = [operation for operation in operations if isinstance(operation.work, AdamParameters)]
        numbers = [(each.model_id, each.work) for each in operations if isinstance(each.work, AdamParameters)]
        _answer(passes, lambda: self.executor.run(requests))
        _answer(steps, lambda: self.executor.step(numbers))
        for operation in operations:
            work = operation.work
            if not isinstance(work, (PassRequest, AdamParameters)):
                _answer([operation], lambda work=work: [work()])  # type: ignore[misc]
        for operation in operations:
            # its answer is kept for repeats; with its data a thousand calls would fill the memory
            operation.work = _has_run

    def _possible(self, operations: Sequence[Operation]) -> list[Operation]:
        """Fail passes and steps of models that could not be made: in a shared pass they would fail the others'."""
        found = []
        for operation in operations:
            shares = isinstance(operation.work, (PassRequest, AdamParameters))
            if shares and operation.model_id not in self.executor.models:
                _fail(operation, UnknownModelError(f"model {operation.model_id!r} could not be made"))
            else:
                found.append(operation)
        return found


def _answer(operations: Sequence[Operation], run: Callable[[], Sequence[Any]]) -> None:
    if not operations:
        return
    try:
        found = run()
    except Exception as error:  # one bad round must not end the server
        if not isinstance(error, CohortError):
            _log.exception("a round failed")
        for operation in operations:
            _fail(operation, error)
        return
    for operation, answer in zip(operations, found, strict=True):
        with contextlib.suppress(Exception):
            operation.answer.set_result(answer)


def _has_run() -> None:
    """Stand for the work of an operation that is not run again."""


def _fail(operation: Operation, error: Exception) -> None:
    # a client that has left may have cancelled it
    with contextlib.suppress(Exception):
        operation.answer.set_exception(error)
