"""Tells a running server of an adapter: what ``cohort tune --publish URL`` does when a sweep ends."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.source_location import Place

__all__ = ["KEY_VARIABLE", "AdapterServer", "PublishError"]

KEY_VARIABLE = "COHORT_API_KEY"
"""The environment variable that holds a server's key."""
_SECONDS = 60.0


class PublishError(CohortError):
    """A server did not take an adapter, which is on disk nevertheless."""


@dataclass(frozen=True, kw_only=True)
class AdapterServer:
    """A server with vLLM's ``/v1/load_lora_adapter``.

    Attributes:
        url: Its address, such as ``http://127.0.0.1:8000``; ``/v1`` at its end is understood.
        key: What opens it; None sends none.
    """

    url: str
    key: str | None = None

    @classmethod
    def at(cls, url: str) -> AdapterServer:
        """Return the server at ``url``, with the key that the environment has."""
        return cls(url=url.rstrip("/").removesuffix("/v1"), key=os.environ.get(KEY_VARIABLE))

    def check(self, name: str, directory: Path, *, base_sha256: str | None) -> None:
        """Check that the server will take an adapter at ``directory``, where there is none yet.

        Args:
            base_sha256: What the adapter will be trained on, as
                :func:`cohort.prepare.fingerprints.model_fingerprint` gives it; None where that is not known. Servers
                other than Cohort's do not compare it.

        Raises:
            InputError: it does not answer, wants another key, serves another base model, or does not take adapters
                from there.
        """
        # a path that cannot be there: a server that would read it says so, and changes nothing
        absent = directory.resolve() / "not-there-yet"
        body = _body(name, absent)
        known = {} if base_sha256 is None else {"base_model_sha256": base_sha256}
        status, message = self._post("/v1/load_lora_adapter", body | known)
        if status in (400, 422) and "base_model_sha256" in message:
            # a server that does not know the key
            status, message = self._post("/v1/load_lora_adapter", body)
        if status == 400:
            return
        hints = {
            0: "Start the server, or correct the address.",
            401: f"Set {KEY_VARIABLE} to a key of the server.",
            403: "Start the server with --allow-runtime-lora --lora-root DIR, with the run below DIR.",
            404: "Start it with `cohort serve --allow-runtime-lora`, or correct the address.",
            409: "Choose another name with --publish-as.",
            412: "Name a server of the task's base model, or serve that model.",
        }
        raise InputError(
            Problem(
                where=Place(option="command line --publish", text=self.url),
                found=message if status in (0, 409, 412) else f"status {status}: {message}",
                allowed="the address of a server that loads adapters",
                hint=hints.get(status, "Look at the server's log."),
            )
        )

    def load(self, name: str, directory: Path) -> None:
        """Let the server answer requests for ``name`` with the adapter in ``directory`` from now on.

        Raises:
            PublishError: it refused.
        """
        status, message = self._post("/v1/load_lora_adapter", _body(name, directory.resolve()))
        if status != 200:
            again = json.dumps(_body(name, directory.resolve()))
            raise PublishError(
                f"{self.url} did not take the adapter in {directory}: {message.rstrip('.')}; it is whole, and "
                f"`curl -X POST {self.url}/v1/load_lora_adapter -d '{again}'` tries again"
            )

    def _post(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        """Return the status (0: no answer) and the message."""
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        try:
            request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers, method="POST")
            with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                return int(answer.status), ""
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _message(error.read(10_000))
        except (OSError, ValueError) as error:
            scheme = "; an address begins with http:// or https://" if "://" not in self.url else ""
            return 0, f"no answer ({error}){scheme}"


def _body(name: str, directory: Path) -> dict[str, Any]:
    return {"lora_name": name, "lora_path": str(directory), "load_inplace": True}


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]
