"""What people ask of a run's trials, on its way from another process to the one that trains.

A request is a file of the folder ``requests/``. The process that trains takes it up at a step boundary, saves its
state, writes the answer next to it and removes the request: a request that was answered is never lost, and one that
was not is taken up after a resume.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from cohort.core.durable_files import write_text
from cohort.core.errors import Problem

__all__ = ["Answer", "RequestKind", "RequestSpool", "TrialRequest", "person_here"]

_REQUEST, _ANSWER = ".request", ".answer"


class RequestKind(StrEnum):
    """What can be asked."""

    STOP = "stop"
    RESUME = "resume"
    KEEP = "keep"
    CLONE = "clone"
    ADD = "add"


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """One request.

    Attributes:
        trial_id: The trial it is about; for a clone, the one to copy; None for a new one.
        values: Hyperparameters of a clone or a new trial that are not the default, as YAML reads them.
        warm_start: Whether a clone begins with the weights of the other trial's best checkpoint.
        who: The person, machine or program that asks.
        at: When, as ISO text in UTC.
    """

    kind: RequestKind
    trial_id: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    warm_start: bool = False
    who: str = ""
    at: str = ""

    @property
    def signature(self) -> str:
        """Who asked and when, as it is recorded."""
        return f"{self.who}, {self.at}"

    @property
    def text(self) -> str:
        """``stop trial 7``."""
        about = "a trial" if self.trial_id is None else f"trial {self.trial_id}"
        return f"{self.kind} {about}"

    @property
    def described(self) -> str:
        """``clone trial 7 with learning_rate 0.0003``."""
        values = ", ".join(f"{name} {value}" for name, value in self.values.items())
        return f"{self.text} with {values}" if values else self.text


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What became of a request: what was done in words, or why it was refused.

    Attributes:
        trial_id: The trial that it was about; the new one for a clone.
    """

    text: str = ""
    trial_id: int | None = None
    problems: tuple[Problem, ...] = ()


class RequestSpool:
    """The folder of requests and answers of one run. Each file is written whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def post(self, request: TrialRequest, *, at: datetime) -> str:
        """Leave a request; return its name."""
        # names sort by time: requests are taken up in the order in which they were made
        name = f"{at:%Y%m%dT%H%M%S%f}-{uuid.uuid4().hex[:8]}"
        write_text(self._folder / f"{name}{_REQUEST}", json.dumps(asdict(request)))
        return name

    def waiting(self) -> list[str]:
        """Return the names of the requests without an answer, in order."""
        try:
            with os.scandir(self._folder) as entries:
                names = [entry.name for entry in entries]
        except FileNotFoundError:
            return []
        # half-written files begin with a dot
        return sorted(name.removesuffix(_REQUEST) for name in names if name.endswith(_REQUEST) and name[0] != ".")

    def read(self, name: str) -> TrialRequest | None:
        """Return a request; None for a file that holds none."""
        try:
            found = json.loads((self._folder / f"{name}{_REQUEST}").read_text(encoding="utf-8"))
            return TrialRequest(**{**found, "kind": RequestKind(found["kind"])})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def answer(self, name: str, answer: Answer) -> None:
        """Answer a request and remove it."""
        # the problem's place is text from here on: the other process only prints it
        body = {
            "text": answer.text,
            "trial_id": answer.trial_id,
            "problems": [
                {"where": str(p.where), "found": p.found, "allowed": p.allowed, "hint": p.hint} for p in answer.problems
            ],
        }
        write_text(self._folder / f"{name}{_ANSWER}", json.dumps(body))
        (self._folder / f"{name}{_REQUEST}").unlink(missing_ok=True)

    def take_answer(self, name: str) -> Answer | None:
        """Return the answer to a request and remove it; None while there is none."""
        path = self._folder / f"{name}{_ANSWER}"
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        path.unlink(missing_ok=True)
        problems = tuple(Problem(**entry) for entry in found["problems"])
        return Answer(text=found["text"], trial_id=found["trial_id"], problems=problems)

    def clear(self) -> None:
        """Remove the answers that were not taken."""
        for path in self._folder.glob(f"*{_ANSWER}"):
            path.unlink(missing_ok=True)


def person_here() -> str:
    """Return the user and the machine of this process, as records name them."""
    try:
        user = getpass.getuser()
    # a container may run under a number that has no name
    except (KeyError, OSError):
        user = f"user {os.getuid()}"
    return f"{user} on {socket.gethostname()}"
