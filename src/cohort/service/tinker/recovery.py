"""After a restart: sessions, models and versions as the journal and the snapshots have them, and the calls to repeat.

A call that is behind its model's snapshot is carried out again from the bytes that the client sent, which gives the
same bits; one that failed fails again, and one that left files has left them.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cohort.core.errors import CohortError, InputError, Problem
from cohort.service.tinker.checkpoints import CheckpointStore
from cohort.service.tinker.client_sessions import ClientSessions
from cohort.service.tinker.futures import Answer, Promises
from cohort.service.tinker.journal.journal import BEGIN, Journal
from cohort.service.tinker.journal.records import Record
from cohort.service.tinker.journal.snapshots import ModelSnapshot, SnapshotStore
from cohort.service.tinker.model_calls import ModelCalls, version_of
from cohort.service.tinker.sampler_versions import SamplerVersions
from cohort.service.tinker.training_calls import TrainingCalls
from cohort.service.tinker.upkeep import Upkeep

__all__ = ["Recovery"]

_log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class _Told:
    """What a journal tells.

    Attributes:
        sessions: By id, what began them.
        samplers: By id, the address of what they sample from; None for the base model.
        calls: By model, then by number.
        answers: Of calls that need not be carried out again, by model and number.
        cleared: Passes among them that took the gradients before them with them.
        skipped: By model, numbers that are not waited for.
        used: By sampler, the place of the event in which it was used last.
    """

    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    samplers: dict[str, str | None] = field(default_factory=dict)
    calls: dict[str, dict[int, Record]] = field(default_factory=lambda: defaultdict(dict))
    answers: dict[tuple[str, int], Answer] = field(default_factory=dict)
    cleared: set[tuple[str, int]] = field(default_factory=set)
    skipped: dict[str, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    dropped: set[str] = field(default_factory=set)
    used: dict[str, int] = field(default_factory=dict)

    def add(self, record: Record, *, place: int) -> None:
        """Hear one more record."""
        about = record.about
        if record.kind == BEGIN and place == 0:
            for each in about["sessions"]:
                self.sessions[each["session"]] = each
            self.samplers = {each["sampler"]: each["model_path"] for each in about["samplers"]}
        elif record.kind == "session":
            self.sessions[about["session"]] = about
        elif record.kind == "end":
            self.sessions.pop(about["session"], None)
        elif record.kind == "sampler":
            self.samplers[about["sampler"]] = about["model_path"]
        elif record.kind == "call":
            # the same call may be taken again once its client has cancelled it
            self.calls[about["model"]].setdefault(about["number"], record)
            if (sampler_id := version_of(about["path"], record.body)) is not None:
                self.used[sampler_id] = place
        elif record.kind == "used":
            self.used[about["sampler"]] = place
        elif record.kind == "ended":
            self.answers[about["model"], about["number"]] = Answer.from_json(about)
            if about["cleared"]:
                self.cleared.add((about["model"], about["number"]))
        elif record.kind == "skip":
            self.skipped[about["model"]].append((about["first"], about["number"]))
        elif record.kind == "drop":
            self.dropped.add(about["model"])

    def lives(self, model_id: str) -> bool:
        return model_id not in self.dropped and model_id.partition(":")[0] in self.sessions


class Recovery:
    """Restores a server's state in two parts: before its threads start, and once its event loop runs."""

    def __init__(
        self,
        *,
        journal: Journal,
        snapshots: SnapshotStore,
        training: TrainingCalls,
        versions: SamplerVersions,
        sessions: ClientSessions,
        store: CheckpointStore,
        promises: Promises,
        upkeep: Upkeep,
    ) -> None:
        self._journal, self._snapshots, self._training, self._versions = journal, snapshots, training, versions
        self._sessions, self._store, self._promises, self._upkeep = sessions, store, promises, upkeep
        self._told = _Told()
        self._found: dict[str, ModelSnapshot] = {}
        # by sampler, the call that makes it once more
        self._coming: dict[str, str] = {}

    def read(self, base: Mapping[str, Any]) -> None:
        """Read what there is, put models and versions where they were, and begin a segment of the journal.

        Args:
            base: What the base model is known by.

        Raises:
            InputError: a file is damaged, or the models were trained on another base.
            JournalFullError: the disk is full.
        """
        self._store.remove_leftovers()
        before: Any = None
        for place, record in enumerate(self._journal.read()):
            before = record.about["base"] if record.kind == BEGIN else before
            self._told.add(record, place=place)
        found = {snapshot.model_id: snapshot for snapshot in self._snapshots.read_all()}
        if found and before is None:
            # taken for a first start, it would give up all of them
            raise InputError(
                Problem(
                    where=str(self._journal.folder),
                    found=f"{len(found)} snapshots of models and no whole segment of the journal",
                    allowed="the folder as the server wrote it",
                    hint="Restore it from a copy of the disk, or remove it: checkpoints that clients saved stay.",
                )
            )
        for model_id in found.keys() | self._told.calls.keys():
            if not self._told.lives(model_id):
                self._journal.settled(model_id, None)
                self._snapshots.remove(model_id)
        self._found = {model_id: snapshot for model_id, snapshot in found.items() if self._told.lives(model_id)}
        if (
            before is not None
            and before != dict(base)
            and (self._found or any(map(self._told.lives, self._told.calls)))
        ):
            raise InputError(
                Problem(
                    where="--tinker",
                    found=f"models in training on {before['name']}, which has other weights or sizes",
                    allowed=f"a folder whose models were trained on {base['name']} as it is now",
                    hint="Start the server with the model that they were trained on, or name another folder.",
                )
            )
        for session_id, begun in self._told.sessions.items():
            self._sessions.begin(session_id, owner=begun["owner"])
        for snapshot in self._found.values():
            versions = snapshot.about["versions"]
            # the least recently used comes first, before all that the journal tells of
            self._sessions.used_before.update({each: place - len(versions) for place, each in enumerate(versions)})
        self._sessions.used_before.update(self._told.used)
        for snapshot in self._found.values():
            self._restore(snapshot)
        self._open_samplers()
        self._sessions.base = dict(base)
        self._journal.begin(self._sessions.as_json())

    @property
    def num_models(self) -> int:
        """How many models are restored, until their calls are repeated."""
        return len(self._found.keys() | {model_id for model_id in self._told.calls if self._told.lives(model_id)})

    def _restore(self, snapshot: ModelSnapshot) -> None:
        model = self._training.described(snapshot.about)
        self._sessions.models[model.model_id] = model
        self._sessions.sessions[model.model_id.partition(":")[0]].models.append(model.model_id)
        if snapshot.state is not None:
            models = self._training.trainer.executor.models
            models.create(model.model_id, model.spec, seed=model.seed, frozen=model.frozen, state=snapshot.state)
        self._training.open(model.model_id, first=snapshot.number + 1)
        for sampler_id in snapshot.about["versions"]:
            weights_rD = self._snapshots.read_version(model.model_id, sampler_id)
            self._versions.publish(model, sampler_id, weights_rD)
            self._versions.keep(model, sampler_id, weights_rD)
        self._upkeep.restored(snapshot)

    def _open_samplers(self) -> None:
        for sampler_id, path in self._told.samplers.items():
            session = self._sessions.sessions.get(sampler_id.partition(":")[0])
            if session is None:
                continue
            try:
                checkpoint = None if path is None else self._store.find(path, asker=session.owner)
                self._sessions.samplers[sampler_id] = self._versions.open(sampler_id, checkpoint)
                session.samplers.append(sampler_id)
            except CohortError as error:
                # its checkpoint was deleted or has expired since
                _log.warning("sampler %s is not restored: %s", sampler_id, error)

    def repeat(self, calls: ModelCalls) -> None:
        """Answer what was answered, and begin the calls behind the snapshots again."""
        for model_id, snapshot in self._found.items():
            for kept in snapshot.about["answers"]:
                mark = bytes.fromhex(kept["mark"])
                self._promises.keep(f"{model_id}:{kept['number']}", mark, Answer.from_json(kept))
        num_calls = 0
        self._coming = {}
        for model_id, records in self._told.calls.items():
            if not self._told.lives(model_id):
                continue
            first = self._found[model_id].number + 1 if model_id in self._found else 0
            self._training.open(model_id, first=first)
            for begin, end in self._told.skipped[model_id]:
                self._training.trainer.skip(model_id, begin, end)
            for number in sorted(number for number in records if number >= first):
                record = records[number]
                if (sampler_id := version_of(record.about["path"], record.body)) is not None:
                    self._coming[sampler_id] = f"{model_id}:{number}"
                calls.repeat(
                    record.about["path"],
                    record.body,
                    model_id=model_id,
                    number=number,
                    ended=self._told.answers.get((model_id, number)),
                    cleared=(model_id, number) in self._told.cleared,
                )
                num_calls += 1
        if self._found or num_calls:
            _log.info("restored %d models; %d calls are carried out again", len(self._found), num_calls)
        self._told, self._found = _Told(), {}

    async def wait_for(self, sampler_id: str) -> None:
        """Wait until a version that was there before the restart is there again."""
        if (request_id := self._coming.get(sampler_id)) is not None:
            await self._promises.ended(request_id)
            self._coming.pop(sampler_id, None)
