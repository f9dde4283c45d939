"""What a server of clients' models does by itself: ends silent sessions, takes snapshots, drops what is over."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

from cohort.core.errors import CohortError, StorageFullError
from cohort.service.tinker.checkpoints import CheckpointStore
from cohort.service.tinker.client_sessions import ClientSessions, TrainedModel
from cohort.service.tinker.futures import Answer, Promises
from cohort.service.tinker.journal.journal import Journal, JournalFullError
from cohort.service.tinker.journal.records import Record
from cohort.service.tinker.journal.snapshots import ModelSnapshot, SnapshotStore
from cohort.service.tinker.training_calls import CREATION, TrainingCalls
from cohort.training.client_training.client_models import ModelState

__all__ = ["Upkeep"]

_log = logging.getLogger(__name__)

SILENT_SECONDS = 120.0
TICK_SECONDS = 2.0
EXPIRY_SECONDS = 600.0
"""How often checkpoints are looked for whose time is over."""
CALLS_BETWEEN_SNAPSHOTS = 64
WRITING_SHARE = 0.1
"""Most of the time in which snapshots are written: those of a large model take seconds."""
MOST_SEGMENTS = 8
"""With this many segments of the journal, snapshots do not wait for their share of the time."""
KEPT_ANSWERS = 256
KEPT_ANSWER_BYTES = 16 << 20


class Upkeep:
    """Runs next to the routes, in their event loop."""

    def __init__(
        self,
        *,
        training: TrainingCalls,
        sessions: ClientSessions,
        promises: Promises,
        journal: Journal,
        snapshots: SnapshotStore,
        checkpoints: CheckpointStore,
    ) -> None:
        self._checkpoints, self._looked_at = checkpoints, time.monotonic()
        self._training, self._sessions, self._promises = training, sessions, promises
        self._journal, self._snapshots = journal, snapshots
        self._calls_since: Counter[str] = Counter()
        self._numbers: dict[str, int] = {}
        self._writing = asyncio.Lock()
        self._wake = asyncio.Event()
        self._not_before = 0.0

    def restored(self, snapshot: ModelSnapshot) -> None:
        """Know a snapshot that was there at the start."""
        self._numbers[snapshot.model_id] = snapshot.number
        self._journal.settled(snapshot.model_id, snapshot.number)

    def ran(self, model_id: str) -> None:
        """Note that a call of a model has its answer."""
        self._calls_since[model_id] += 1
        if self._calls_since[model_id] >= CALLS_BETWEEN_SNAPSHOTS or self._journal.is_full:
            self._wake.set()

    def end_session(self, session_id: str) -> None:
        """Free what a client that has left held; what it saved stays."""
        if session_id not in self._sessions.sessions:
            return
        try:
            self._journal.append(Record(kind="end", about={"session": session_id}))
        except JournalFullError as error:
            # after a restart it is silent once more
            _log.warning("%s", error)
        self._training.end_session(session_id)

    def dropped(self, model_id: str) -> None:
        """Forget a model that is gone."""
        self._calls_since.pop(model_id, None)
        self._numbers.pop(model_id, None)
        self._journal.settled(model_id, None)
        self._snapshots.remove(model_id)

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            with_work = asyncio.ensure_future(self._wake.wait())
            await asyncio.wait({with_work}, timeout=TICK_SECONDS)
            with_work.cancel()
            self._wake.clear()
            try:
                await self._round()
            except (CohortError, OSError) as error:
                _log.warning("%s", error)
            except Exception:  # the next round may go well
                _log.exception("the upkeep of clients' models failed")

    async def _round(self) -> None:
        # before all that needs room
        await self._remove_expired()
        for silent in self._sessions.silent(seconds=SILENT_SECONDS):
            self.end_session(silent.session_id)
        if self._journal.is_full:
            self._journal.begin(self._sessions.as_json())
        self._settle_gone()
        due = {model for model, calls in self._calls_since.items() if calls >= CALLS_BETWEEN_SNAPSHOTS}
        for model_id in sorted(due | self._journal.behind()):
            is_early = time.monotonic() < self._not_before and self._journal.num_segments < MOST_SEGMENTS
            if not is_early and (model := self._sessions.models.get(model_id)) is not None:
                await self._snapshot(model)
        self._journal.drop_settled()

    async def _remove_expired(self) -> None:
        """Remove checkpoints whose time is over: a client that saves and never lists would fill the disk with them."""
        if time.monotonic() - self._looked_at > EXPIRY_SECONDS:
            self._looked_at = time.monotonic()
            try:
                await asyncio.to_thread(self._checkpoints.remove_expired)
            except OSError as error:
                _log.warning("checkpoints that have expired are removed later: %s", error)

    def _settle_gone(self) -> None:
        """Let segments go that wait for models which never get a snapshot.

        Such a model could not be made of a checkpoint, or was dropped before the last of its calls had an answer.
        """
        for model_id in self._journal.behind() - self._sessions.models.keys():
            # one that is being made of a checkpoint is known once it has its state
            if not self._promises.is_open(f"{model_id}:{CREATION}"):
                self._calls_since.pop(model_id, None)
                self._journal.settled(model_id, None)

    async def _snapshot(self, model: TrainedModel) -> None:
        """Write down where a model is."""
        calls = self._calls_since[model.model_id]
        number, state = await asyncio.wrap_future(self._training.trainer.read(model.model_id))
        if number > self._numbers.get(model.model_id, -1):
            await self._write(model, number, state, own=None)
        if model.model_id in self._calls_since:
            self._calls_since[model.model_id] -= calls

    async def keep_loaded(self, model: TrainedModel, number: int, state: ModelState, answer: Answer) -> None:
        """Write down a model that was given a checkpoint's state, before the call is answered."""
        while True:
            try:
                return await self._write(model, number, state, own=answer)
            except (StorageFullError, OSError) as error:
                # the model has the state already: an answer that says otherwise would be wrong
                _log.warning("%s", error)
                await asyncio.sleep(TICK_SECONDS)

    async def _write(self, model: TrainedModel, number: int, state: ModelState | None, *, own: Answer | None) -> None:
        """Write a snapshot behind a call, with the answers to the calls before it; ``own`` is the call's."""
        model_id = model.model_id
        answers = await self._answers(model_id, number, own=own)
        versions = [(each, self._sessions.samplers[each].weights_rD) for each in model.snapshots]
        about = {**model.as_json(), "answers": answers, "versions": [each for each, _ in versions]}
        snapshot = ModelSnapshot(model_id=model_id, number=number, state=state, about=about)

        def write() -> None:
            for sampler_id, weights_rD in versions:
                if weights_rD is not None:
                    self._snapshots.write_version(model_id, sampler_id, weights_rD)
            self._snapshots.write(snapshot)
            self._snapshots.keep_versions(model_id, [each for each, _ in versions])

        async with self._writing:
            if number < self._numbers.get(model_id, -1):
                return
            began = time.monotonic()
            await asyncio.to_thread(write)
            now = time.monotonic()
            self._not_before = now + (now - began) * (1 / WRITING_SHARE - 1)
            if model_id not in self._sessions.models:
                self._snapshots.remove(model_id)
                return
            self._numbers[model_id] = number
        self._journal.settled(model_id, number)

    async def _answers(self, model_id: str, number: int, *, own: Answer | None) -> list[dict[str, Any]]:
        """Return the answers to a model's last calls up to ``number``, whose own is ``own``."""
        found, num_bytes = [], 0
        for place in dict.fromkeys((*range(number, max(0, number - KEPT_ANSWERS), -1), CREATION)):
            request_id = f"{model_id}:{place}"
            answer = own if place == number and own is not None else await self._promises.ended(request_id)
            mark = self._promises.fingerprint(request_id)
            if answer is None or mark is None:
                continue
            num_bytes += len(answer.message or b"")
            if num_bytes > KEPT_ANSWER_BYTES:
                break
            found.append({"number": place, "mark": mark.hex(), **answer.as_json()})
        return found
