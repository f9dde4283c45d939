"""A client of ``cohort service``: tasks submitted, followed, changed and taken home from another machine."""

from __future__ import annotations

import http.client
import io
import json
import os
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from cohort.core.durable_files import atomic_file
from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.source_location import Place
from cohort.tasks.yaml_lines import parse_yaml

__all__ = ["KEY_VARIABLE", "ServiceClient", "ServiceRequestError"]

KEY_VARIABLE = "COHORT_API_KEY"
_SECONDS = 120.0
_REFUSED, _SERVER_ERROR, _STORAGE_FULL = 400, 500, 507
_MAY_BE_DONE = "It may have done what was asked: look before you ask again"
_SPLITS = ("train", "validation", "test")
_ENDED = ("succeeded", "failed", "cancelled")
_CHUNK_BYTES = 1 << 20


class ServiceRequestError(CohortError):
    """A service refused a request, or did not answer.

    Attributes:
        status: The HTTP status; 0 where there was no answer.
        param: The parameter that is wrong, where it is one.
    """

    def __init__(self, message: str, *, status: int, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param = status, param


class ServiceClient:
    """Talks to one service with one key."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        """Take a service's address.

        Args:
            url: Such as ``http://127.0.0.1:8000``; ``/v1`` at its end is understood.
            key: What opens it; None: that of ``$COHORT_API_KEY``.

        Raises:
            InputError: the address does not begin with ``http://`` or ``https://``.
        """
        if not url.lower().startswith(("http://", "https://")):
            hint = f"Write http://{url.rpartition('://')[2]}"
            allowed = "an address that begins with http:// or https://"
            raise InputError(Problem(where="server", found=repr(url)[:120], allowed=allowed, hint=hint))
        self.url = url.rstrip("/").removesuffix("/v1")
        self._key = os.environ.get(KEY_VARIABLE) if key is None else key

    # ---- files and tasks

    def upload(self, path: str | Path) -> str:
        """Upload a file of rows (``.jsonl``) and return its id."""
        path = Path(path)
        boundary = uuid.uuid4().hex
        head = (
            f'--{boundary}\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nfine-tune\r\n'
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{path.name}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        ).encode()
        tail = f"\r\n--{boundary}--\r\n".encode()
        with path.open("rb") as rows:
            body = _Joined(io.BytesIO(head), rows, io.BytesIO(tail))
            headers = {
                "Content-Type": f"multipart/form-data; boundary={boundary}",
                "Content-Length": str(len(head) + path.stat().st_size + len(tail)),
            }
            answer = self._json("POST", "/v1/files", body, headers=headers)
        return str(answer["id"])

    def plan(self, task: str | Path | Mapping[str, Any], *, base: str | None = None) -> dict[str, Any]:
        """Return what a task would take: trials, tokens, seconds and memory. The arguments are those of submit."""
        with self._with_uploads(task, base=base) as (body, _):
            return self._json("POST", "/v1/cohort/plan", {"task": body})

    def submit(
        self,
        task: str | Path | Mapping[str, Any],
        *,
        base: str | None = None,
        suffix: str | None = None,
        idempotency_key: str | None = None,
    ) -> str:
        """Submit a task and return its id.

        Args:
            task: A task file, whose local files of rows are uploaded; or what it would hold, with ids of files.
            base: A base model of the service, in place of the one that the task names.
            suffix: A part of the name of the model that comes out.
            idempotency_key: The same key again is the same task, however often an answer was lost.

        Raises:
            InputError: the task file, or a file of rows, is wrong.
            ServiceRequestError: the service refused the task, and what was uploaded for it is removed; or its answer
                was lost.
        """
        given = {"suffix": suffix, "idempotency_key": idempotency_key}
        more = {name: value for name, value in given.items() if value is not None}
        with self._with_uploads(task, base=base) as (body, uploaded):
            try:
                found = self._json("POST", "/v1/cohort/tasks", {"task": body, **more})
            except BaseException as error:
                refused = isinstance(error, ServiceRequestError) and (
                    _REFUSED <= error.status < _SERVER_ERROR or error.status == _STORAGE_FULL
                )
                if not refused:
                    # the task may be there, and needs its files
                    uploaded.clear()
                raise
            uploaded.clear()
        return str(found["id"])

    def tasks(self) -> list[dict[str, Any]]:
        """Return the latest tasks, the newest first."""
        found: list[dict[str, Any]] = self._json("GET", "/v1/cohort/tasks?limit=100")["data"]
        return found

    def status(self, task_id: str) -> dict[str, Any]:
        """Return where a task stands."""
        return self._json("GET", _path(task_id))

    def wait(self, task_id: str, *, every_seconds: float = 2.0) -> dict[str, Any]:
        """Return a task once it has ended."""
        while (found := self.status(task_id))["status"] not in _ENDED:
            time.sleep(every_seconds)
        return found

    def events(self, task_id: str) -> list[dict[str, Any]]:
        """Return the latest events, the newest first."""
        found: list[dict[str, Any]] = self._json("GET", f"{_path(task_id)}/events?limit=100")["data"]
        return found

    def cancel(self, task_id: str) -> dict[str, Any]:
        """End a task that has not ended, and return it."""
        return self._json("POST", f"{_path(task_id)}/cancel")

    def pause(self, task_id: str) -> dict[str, Any]:
        """Pause a task and return it; one that trains saves its state first."""
        return self._json("POST", f"{_path(task_id)}/pause")

    def resume(self, task_id: str) -> dict[str, Any]:
        """Let a paused task go on where it was, and return it."""
        return self._json("POST", f"{_path(task_id)}/resume")

    # ---- trials and what comes out

    def trials(self, task_id: str) -> dict[str, Any]:
        """Return the trials of a task, best first, with what the sweep cost so far."""
        return self._json("GET", f"{_path(task_id)}/trials")

    def change_trial(
        self,
        task_id: str,
        action: str,
        trial: int | None = None,
        *,
        values: Mapping[str, Any] | None = None,
        warm_start: bool = False,
    ) -> dict[str, Any]:
        """Ask for a change of a running sweep and return what became of it.

        Args:
            action: ``stop``, ``resume``, ``keep``, ``clone`` or ``add``.
            trial: Its number; None for ``add``.
            values: Hyperparameters of a clone or of a new trial.
            warm_start: Whether a clone begins with the weights of the other's best checkpoint.
        """
        body: dict[str, Any] = {"values": dict(values or {}), "warm_start": warm_start}
        end = "" if action == "add" else f"/{trial}/{action}"
        return self._json("POST", f"{_path(task_id)}/trials{end}", body)

    def report(self, task_id: str, path: str | Path) -> Path:
        """Write a task's report, one page of HTML, and return where it is."""
        return self._saved(f"{_path(task_id)}/report", Path(path))

    def export(self, task_id: str, path: str | Path, *, trial: int | None = None) -> Path:
        """Write the best adapter, or a trial's, as a zip of PEFT's files, and return where it is."""
        query = "" if trial is None else f"?trial={trial}"
        return self._saved(f"{_path(task_id)}/export{query}", Path(path))

    # ---- requests

    @contextmanager
    def _with_uploads(
        self, task: str | Path | Mapping[str, Any], *, base: str | None
    ) -> Iterator[tuple[dict[str, Any], list[str]]]:
        """Yield the task as the service takes it, and the ids of the files that were uploaded for it.

        What is left in that list is removed at the end: it would count as the project's.
        """
        uploaded: list[str] = []
        try:
            document = dict(task) if isinstance(task, Mapping) else self._uploaded(Path(task), uploaded)
            # a task file names its model, or the service's name for it
            if base is not None:
                document.pop("base_model", None)
                document["model_name_or_path"] = base
            yield document, uploaded
        finally:
            for file_id in uploaded:
                with suppress(ServiceRequestError):
                    self._json("DELETE", f"/v1/files/{file_id}")

    def _uploaded(self, path: Path, uploaded: list[str]) -> dict[str, Any]:
        """Return the task of a file with the ids of its rows, which are uploaded now and added to ``uploaded``."""
        where = Place(file=str(path))
        try:
            document = parse_yaml(path.read_text(encoding="utf-8-sig"), where=where)
        except OSError as error:
            found = str(error.strerror)
            raise InputError(Problem(where=where, found=found, allowed="a task file", hint="Check the path.")) from None
        data = None if document is None else document.data
        if not isinstance(data, dict) or not isinstance(data.get("dataset"), dict):
            found, hint = "no task with a dataset", "Name a task file."
            raise InputError(Problem(where=where, found=found, allowed="a task file", hint=hint))
        dataset = dict(data["dataset"])
        for split in _SPLITS:
            written = dataset.get(split)
            if isinstance(written, str | list):
                entries = [written] if isinstance(written, str) else written
                place = where.below("dataset", split)
                ids = [self._id_of(path.parent, entry, where=place, uploaded=uploaded) for entry in entries]
                dataset[split] = ids if isinstance(written, list) else ids[0]
        return {**data, "dataset": dataset}

    def _id_of(self, directory: Path, entry: object, *, where: Place, uploaded: list[str]) -> str:
        if isinstance(entry, str) and entry.startswith("file-"):
            return entry
        path = directory / str(entry)
        allowed = "local .jsonl files, or ids of uploaded files"
        found, hint = repr(entry)[:120], "Write the rows as JSON lines: a service reads no other files."
        if not isinstance(entry, str) or path.suffix.lower() != ".jsonl":
            raise InputError(Problem(where=where, found=found, allowed=allowed, hint=hint))
        if not path.is_file():
            hint = f"There is no such file: {path}. Correct the path, which begins at the task file's folder."
            raise InputError(Problem(where=where, found=found, allowed=allowed, hint=hint))
        uploaded.append(self.upload(path))
        return uploaded[-1]

    def _json(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        if isinstance(body, dict):
            body, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        with self._answer(method, path, body, headers or {}) as answer, self._whole(method):
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def _saved(self, path: str, target: Path) -> Path:
        with (
            self._answer("GET", path, None, {}) as answer,
            atomic_file(target) as partial,
            partial.open("wb") as stream,
            self._whole("GET"),
        ):
            while piece := answer.read(_CHUNK_BYTES):
                stream.write(piece)
            # a connection that ends before the last byte is no error to http.client where it reads in pieces
            length = answer.headers.get("Content-Length")
            if not answer.chunked and (length is None or stream.tell() != int(length)):
                of_all = "" if length is None else f" of {length}"
                text = f"{self.url} broke off its answer after {stream.tell()}{of_all} bytes; ask again"
                raise ServiceRequestError(text, status=0)
        return target

    @contextmanager
    def _whole(self, method: str) -> Iterator[None]:
        """Say of an answer that is cut off what it means: the change may have been made."""
        try:
            yield
        except (http.client.HTTPException, ConnectionError, TimeoutError, json.JSONDecodeError) as error:
            then = "ask again" if method == "GET" else _MAY_BE_DONE
            text = f"{self.url} broke off its answer ({error or type(error).__name__}); {then}"
            raise ServiceRequestError(text, status=0) from None

    def _answer(self, method: str, path: str, body: Any, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        known = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(f"{self.url}{path}", data=body, headers={**known, **headers}, method=method)
        try:
            answer: http.client.HTTPResponse = urllib.request.urlopen(request, timeout=_SECONDS)
        except urllib.error.HTTPError as error:
            with error, self._whole(method):
                raise _refused(error.code, error.read()) from None
        except (urllib.error.URLError, http.client.HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or error or type(error).__name__
            text = f"{self.url} does not answer ({reason}); start the service, or correct the address"
            if method != "GET" and not isinstance(reason, ConnectionRefusedError | socket.gaierror):
                text += f". {_MAY_BE_DONE}"
            raise ServiceRequestError(text, status=0) from None
        return answer


class _Joined(io.RawIOBase):
    """Streams read one after the other: a form that is as large as its file is never in memory."""

    def __init__(self, *streams: IO[bytes]) -> None:
        self._streams = list(streams)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while self._streams:
            if piece := self._streams[0].read(size if size > 0 else _CHUNK_BYTES):
                return piece
            self._streams.pop(0)
        return b""


def _path(task_id: str) -> str:
    return f"/v1/cohort/tasks/{urllib.parse.quote(task_id, safe='')}"


def _refused(status: int, content: bytes) -> ServiceRequestError:
    try:
        error = json.loads(content)["error"]
        message, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, param = content[:200].decode(errors="replace") or "no reason", None
    if status == 401:
        message += f" Set ${KEY_VARIABLE} to a key of the service."
    return ServiceRequestError(message, status=status, param=param)
