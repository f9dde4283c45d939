"""Calls of models as they come: checked, written to the journal, then begun; after a restart they are begun again."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from cohort.core.errors import CohortError, InputError
from cohort.engine.client_training.client_trainer import TrainerClosedError
from cohort.service.engine_thread import QueueFullError
from cohort.service.tinker.checkpoint_calls import CheckpointCalls
from cohort.service.tinker.checkpoints import CheckpointStore
from cohort.service.tinker.client_sessions import ClientSessions
from cohort.service.tinker.futures import Answer, Promises
from cohort.service.tinker.journal.journal import Journal, JournalFullError
from cohort.service.tinker.journal.records import Record
from cohort.service.tinker.owners import may_know
from cohort.service.tinker.protobuf_messages import PassBody, number_of_pass, read_pass
from cohort.service.tinker.schema import CreateModel, LoadWeights, OptimStep, SaveForSampler, SaveWeights, parse
from cohort.service.tinker.training_calls import CREATION, TrainingCalls, fingerprint_of

__all__ = ["MODEL_CALLS", "ModelCalls", "version_of"]

_log = logging.getLogger(__name__)

MODEL_CALLS = (
    "create_model",
    "forward_backward",
    "forward",
    "optim_step",
    "save_weights",
    "save_weights_for_sampler",
    "load_weights",
)
_PASSES = ("forward_backward", "forward")
_FULL_SECONDS = 1.0

B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call that was read and can be carried out.

    Attributes:
        run: Carries it out.
        register: Makes it known, at once.
        leaves_files: Whether it has done all that it does once it has ended well: nothing of it is in memory.
        body: Of a pass.
    """

    model_id: str
    number: int
    run: Callable[[], Awaitable[Answer]]
    register: Callable[[], None] = lambda: None
    leaves_files: bool = False
    body: PassBody | None = None

    @property
    def request_id(self) -> str:
        return f"{self.model_id}:{self.number}"


class ModelCalls:
    """Takes the calls of models.

    Attributes:
        on_ran: Hears of the model of each call that has an answer.
    """

    def __init__(
        self,
        *,
        training: TrainingCalls,
        checkpoints: CheckpointCalls,
        sessions: ClientSessions,
        store: CheckpointStore,
        promises: Promises,
        journal: Journal,
        most_open: int,
    ) -> None:
        """Take at most ``most_open`` calls that are not answered."""
        self._training, self._checkpoints, self._sessions = training, checkpoints, sessions
        self._store, self._promises, self._journal, self._most_open = store, promises, journal, most_open
        self._num_open = 0
        self.on_ran: Callable[[str], None] = lambda _: None

    def take(self, path: str, body: bytes, *, asker: str) -> dict[str, Any]:
        """Take a call and return its acknowledgement.

        Raises:
            InputError: the call is wrong. Where its number can be read, calls behind it do not wait for it.
            UnknownSessionError, UnknownCheckpointError: it names what is not there.
            QueueFullError: too many calls are open.
            JournalFullError: there is no room to write it down.
        """
        try:
            call = self._read(path, body, asker)
        except InputError:
            self._skip(path, body, asker)
            raise
        position = 0

        def before() -> None:
            nonlocal position
            if self._num_open >= self._most_open:
                raise QueueFullError(f"{self._most_open} calls wait for their answers")
            about = {"path": path, "model": call.model_id, "number": call.number}
            self._training.trainer.check(call.model_id, call.number)
            position = self._journal.append(Record(kind="call", about=about, body=body))
            call.register()

        def run() -> Awaitable[Answer]:
            return self._carried_out(call, position)

        made = self._begun(call, body, run, before=before)
        return {"request_id": made, "model_id": call.model_id}

    def _begun(
        self,
        call: _Call,
        body: bytes,
        run: Callable[[], Awaitable[Answer]],
        *,
        before: Callable[[], None] | None = None,
    ) -> str:
        async def counted() -> Answer:
            self._num_open += 1
            try:
                return await run()
            finally:
                self._num_open -= 1

        return self._promises.make(call.request_id, fingerprint_of(body), counted, before=before)

    def repeat(
        self, path: str, body: bytes, *, model_id: str, number: int, ended: Answer | None, cleared: bool
    ) -> None:
        """Begin a call again that was taken before a restart.

        Args:
            ended: Its answer, where it need not be carried out again.
            cleared: Whether it was a pass that failed, and the gradients before it with it.
        """
        mark = fingerprint_of(body)
        call = None
        try:
            call = self._read(path, body, self._sessions.owner_of(model_id))
        except CohortError as error:
            ended = ended or Answer.of_error(error)
        if call is not None:
            call.register()
        if call is None or ended is not None:
            answer = ended
            assert answer is not None, "a call that cannot be read has an answer"
            self._promises.keep(f"{model_id}:{number}", mark, answer)
            failed = call.body if call is not None and cleared else None
            self._training.pass_over(model_id, number, failed, fingerprint=mark)
        else:
            found = call
            self._begun(call, body, lambda: self._carried_out(found, 0))

    async def _carried_out(self, call: _Call, position: int) -> Answer:
        """Return a call's answer once a restart would know it as well."""
        cleared = False
        try:
            answer = await call.run()
        except TrainerClosedError:
            # the server stops: the call is carried out when it is back, and until then it has no answer
            await asyncio.Event().wait()
            raise
        except Exception as error:
            if not isinstance(error, CohortError):
                _log.exception("a call failed")
            # a pass that was refused has changed nothing; one that failed has cleared the gradients of its model
            cleared = call.body is not None and not isinstance(error, InputError)
            answer = Answer.of_error(error)
        if answer.is_error or call.leaves_files:
            about = {"model": call.model_id, "number": call.number, "cleared": cleared, **answer.as_json()}
            position = await self._append_patiently(Record(kind="ended", about=about))
        if position:
            kept = self._journal.flushed(position)
            if not kept.done():
                await asyncio.wrap_future(kept)
        self.on_ran(call.model_id)
        return answer

    async def _append_patiently(self, record: Record) -> int:
        """Write what has happened and cannot be refused any more, as soon as there is room."""
        while True:
            try:
                return self._journal.append(record)
            except JournalFullError as error:
                _log.warning("%s", error)
                await asyncio.sleep(_FULL_SECONDS)

    def pass_gap(self, model_id: str, first: int, last: int) -> None:
        """Write down that calls are no longer waited for; the trainer's thread calls it."""
        try:
            self._journal.append(Record(kind="skip", about={"model": model_id, "first": first, "number": last}))
        except CohortError as error:
            _log.warning("%s", error)

    def note_use(self, sampler_id: str) -> None:
        """Write down that a version is the one of its model that was used last."""
        try:
            self._journal.append(Record(kind="used", about={"sampler": sampler_id}))
        except CohortError as error:
            _log.warning("%s", error)

    def _skip(self, path: str, body: bytes, asker: str) -> None:
        """Let the calls of a model not wait for one that was refused, where its number can be read."""
        model_id, number = number_of_pass(body) if path in _PASSES else _number_of(body)
        if number < 1 or model_id not in self._sessions.models:
            return
        if not may_know(asker, self._sessions.owner_of(model_id)):
            return
        self.pass_gap(model_id, number, number)
        self._training.trainer.skip(model_id, number, number)

    # ---- what is asked for

    def _read(self, path: str, body: bytes, asker: str) -> _Call:
        reader: dict[str, Callable[[bytes, str], _Call]] = {
            "create_model": self._create,
            "optim_step": self._step,
            "save_weights": self._save,
            "save_weights_for_sampler": self._save_for_sampler,
            "load_weights": self._load,
        }
        return reader.get(path, self._pass)(body, asker)

    def _create(self, body: bytes, asker: str) -> _Call:
        asked, mark = parse(CreateModel, body), fingerprint_of(body)
        session = self._sessions.session(asked.session_id, asker=asker)
        model_id = f"{session.session_id}:train:{asked.model_seq_id}"
        model = self._sessions.models.get(model_id) or self._training.model_of(asked, model_id=model_id)

        def register() -> None:
            self._sessions.models[model_id] = model
            if model_id not in session.models:
                session.models.append(model_id)

        return _Call(
            model_id=model_id,
            number=CREATION,
            run=lambda: self._training.create(model, fingerprint=mark),
            register=register,
        )

    def _pass(self, body: bytes, asker: str) -> _Call:
        asked, mark = read_pass(body), fingerprint_of(body)
        return self._numbered(
            asked.model_id,
            asked.number,
            lambda: self._training.train(asked, fingerprint=mark),
            asker=asker,
            body=asked,
        )

    def _step(self, body: bytes, asker: str) -> _Call:
        asked, mark = parse(OptimStep, body), fingerprint_of(body)
        return self._numbered(
            asked.model_id, asked.seq_id, lambda: self._training.step(asked, fingerprint=mark), asker=asker
        )

    def _save(self, body: bytes, asker: str) -> _Call:
        asked, mark = parse(SaveWeights, body), fingerprint_of(body)
        run = partial(self._checkpoints.save, asked, fingerprint=mark)
        return self._numbered(asked.model_id, asked.seq_id, run, asker=asker, leaves_files=True)

    def _save_for_sampler(self, body: bytes, asker: str) -> _Call:
        asked, mark = parse(SaveForSampler, body), fingerprint_of(body)
        run = partial(self._checkpoints.save_for_sampler, asked, fingerprint=mark)
        return self._numbered(asked.model_id, asked.seq_id, run, asker=asker, leaves_files=asked.path is not None)

    def _load(self, body: bytes, asker: str) -> _Call:
        asked, mark = parse(LoadWeights, body), fingerprint_of(body)
        self._training.check_base(asked.base_model)
        if asked.model_id is not None:
            into = partial(self._checkpoints.load_into, asked, fingerprint=mark)
            return self._numbered(asked.model_id, asked.seq_id or 1, into, asker=asker)
        session = self._sessions.session(asked.session_id or "", asker=asker)
        self._store.find(asked.path, asker=asker)
        model_id = f"{session.session_id}:train:{asked.model_seq_id}"

        def register() -> None:
            if model_id not in session.models:
                session.models.append(model_id)

        return _Call(
            model_id=model_id,
            number=CREATION,
            run=lambda: self._checkpoints.load_new(asked, model_id=model_id, fingerprint=mark),
            register=register,
        )

    def _numbered(
        self,
        model_id: str,
        number: int,
        run: Callable[[], Awaitable[Answer]],
        *,
        asker: str,
        leaves_files: bool = False,
        body: PassBody | None = None,
    ) -> _Call:
        self._sessions.model(model_id, asker=asker)
        return _Call(model_id=model_id, number=number, run=run, leaves_files=leaves_files, body=body)


def _number_of(body: bytes) -> tuple[str, int]:
    """Return the model and the number of a JSON call that is wrong elsewhere; 0 where they cannot be read."""
    try:
        found = json.loads(body)
        model_id, number = found["model_id"], found["seq_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", 0
    if not isinstance(model_id, str) or type(number) is not int:
        return "", 0
    return model_id, number


def version_of(path: str, body: bytes) -> str | None:
    """Return the sampler that a call makes in memory; None for one that makes none."""
    if path != "save_weights_for_sampler":
        return None
    asked = parse(SaveForSampler, body)
    session_id = asked.model_id.partition(":")[0]
    return None if asked.path is not None else f"{session_id}:sample:{asked.sampling_session_seq_id}"
