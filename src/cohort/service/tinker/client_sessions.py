"""What the server knows of its clients: their sessions, the models they train, and what they sample from."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from torch import Tensor

from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import CohortError
from cohort.service.tinker.owners import ANYONE, may_know

__all__ = ["ClientSessions", "Sampler", "Session", "TrainedModel", "UnknownSessionError", "measured_name"]

MOST_SNAPSHOTS = 8
_MOST_OWNERS = 10_000

T = TypeVar("T")


def measured_name(sampler_id: str) -> str:
    """Return the name under which passes that measure know a sampler's version."""
    return f"sampler {sampler_id}"


class UnknownSessionError(CohortError):
    """There is no session, model or sampler of this name."""


@dataclass(kw_only=True, eq=False)
class TrainedModel:
    """A model that a client trains.

    Attributes:
        snapshots: Its samplers that were not saved under a name, the least recently used first.
        saving: Held by the call that writes or publishes it.
    """

    model_id: str
    spec: AdapterSpec
    seed: int
    frozen: frozenset[str]
    trains: dict[str, bool]
    metadata: dict[str, Any] | None
    last_call: float = field(default_factory=time.time)
    snapshots: deque[str] = field(default_factory=deque)
    saving: asyncio.Lock = field(default_factory=asyncio.Lock)

    def as_json(self) -> dict[str, Any]:
        """Return what the model was made of."""
        return {
            "model_id": self.model_id,
            "rank": self.spec.r,
            "seed": self.seed,
            "trains": self.trains,
            "metadata": self.metadata,
        }


@dataclass(kw_only=True, eq=False)
class Sampler:
    """A version of a model, or the base model, that a client samples from; it never changes.

    Attributes:
        adapter: Its name in the pool of served adapters; None for the base model.
        weights_rD: Its rank rows, for log-probabilities of prompts.
        model_path: Of the checkpoint it is.
        model_id: Of the model in training that it was taken of without a name.
    """

    sampler_id: str
    adapter: str | None
    model_id: str | None = None
    spec: AdapterSpec | None = None
    weights_rD: Tensor | None = None
    model_path: str | None = None


@dataclass(kw_only=True, eq=False)
class Session:
    """A client that said hello.

    Attributes:
        heard: When it was heard of last, in seconds of a clock that only goes forward.
        owner: Whose key it has, see :mod:`cohort.service.tinker.owners`.
    """

    session_id: str
    heard: float
    owner: str = ANYONE
    models: list[str] = field(default_factory=list)
    samplers: list[str] = field(default_factory=list)


class ClientSessions:
    """Sessions, models and samplers by name. Names of sessions are random, so that none can be guessed.

    Attributes:
        base: What the base model is known by.
        on_used: Hears of a version that has become the one of its model that was used last.
        used_before: Versions that a restart brings back, with when they were used last: places in a sequence of events.
    """

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.models: dict[str, TrainedModel] = {}
        self.samplers: dict[str, Sampler] = {}
        self.base: dict[str, Any] = {}
        self._owners: OrderedDict[str, str] = OrderedDict()
        self.on_used: Callable[[str], None] = lambda _: None
        self.used_before: dict[str, int] = {}

    @staticmethod
    def new_id() -> str:
        return secrets.token_hex(12)

    def begin(self, session_id: str, *, owner: str) -> Session:
        session = Session(session_id=session_id, heard=time.monotonic(), owner=owner)
        self.sessions[session.session_id] = session
        # the answers to its calls are kept for a while after it has ended
        self._owners[session_id] = owner
        while len(self._owners) > _MOST_OWNERS:
            self._owners.popitem(last=False)
        return session

    def owner_of(self, name: str) -> str:
        """Return whose a session is, or a model, a sampler or a call of one."""
        session_id = name.partition(":")[0]
        session = self.sessions.get(session_id)
        return self._owners.get(session_id, ANYONE) if session is None else session.owner

    def as_json(self) -> dict[str, Any]:
        """Return the sessions and what they sample from that is no version of a model in training."""
        opened = [each for each in self.samplers.values() if each.adapter is None or each.model_path is not None]
        return {
            "base": self.base,
            "sessions": [{"session": each.session_id, "owner": each.owner} for each in self.sessions.values()],
            "samplers": [{"sampler": each.sampler_id, "model_path": each.model_path} for each in opened],
        }

    def session(self, session_id: str, *, asker: str) -> Session:
        """Return a session and note that it was heard of.

        Raises:
            UnknownSessionError: there is none, or it is another key's.
        """
        session = self._found(self.sessions, session_id, "session", asker=asker)
        session.heard = time.monotonic()
        return session

    def model(self, model_id: str, *, asker: str) -> TrainedModel:
        """Return a model that a client calls.

        Raises:
            UnknownSessionError: there is none, or it is another key's.
        """
        model = self._found(self.models, model_id, "model", asker=asker)
        model.last_call = time.time()
        # a client that calls is there, also one that sends no heartbeats
        if (session := self.sessions.get(model_id.partition(":")[0])) is not None:
            session.heard = time.monotonic()
        return model

    def known_model(self, model_id: str) -> TrainedModel:
        """Return a model that the server itself asks for.

        Raises:
            UnknownSessionError: there is none.
        """
        return self._found(self.models, model_id, "model", asker=ANYONE)

    def sampler(self, sampler_id: str, *, asker: str) -> Sampler:
        """Return what a sampling session samples from; it is then the one of its model that was used last.

        Raises:
            UnknownSessionError: there is none, or it is another key's.
        """
        sampler = self._found(self.samplers, sampler_id, "sampling session", asker=asker)
        model = self.models.get(sampler.model_id or "")
        if model is not None and sampler_id in model.snapshots and sampler_id != model.snapshots[-1]:
            self.used_before.pop(sampler_id, None)
            self._place(model, sampler_id)
            self.on_used(sampler_id)
        return sampler

    def add_version(self, model: TrainedModel, sampler: Sampler) -> str | None:
        """Know one more version of a model; return the one that makes room for it, if any.

        Versions without a name are for the steps to come, or a reference of all steps: those in use are kept.
        """
        self.samplers[sampler.sampler_id] = sampler
        self._place(model, sampler.sampler_id)
        return model.snapshots.popleft() if len(model.snapshots) > MOST_SNAPSHOTS else None

    def _place(self, model: TrainedModel, sampler_id: str) -> None:
        """Put a version behind those that were used before it."""
        others = [each for each in model.snapshots if each != sampler_id]
        if sampler_id not in self.used_before:
            ordered = [*others, sampler_id]
        else:
            # those that no event is known of are in use since the restart
            ordered = sorted([*others, sampler_id], key=lambda each: self.used_before.get(each, math.inf))
        model.snapshots = deque(ordered)

    def silent(self, *, seconds: float) -> list[Session]:
        """Return sessions that have not been heard of for ``seconds``."""
        now = time.monotonic()
        return [session for session in self.sessions.values() if now - session.heard > seconds]

    def _found(self, known: dict[str, T], name: str, what: str, *, asker: str) -> T:
        if name not in known or not may_know(asker, self.owner_of(name)):
            raise UnknownSessionError(f"there is no {what} {name[:200]!r}; its session may have ended")
        return known[name]
