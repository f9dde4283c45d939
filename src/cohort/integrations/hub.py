"""Puts an exported adapter or model on the Hugging Face hub, as ``push_to_hub`` of TRL and transformers does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cohort.core.errors import CohortError, InputError, Problem
from cohort.core.input_values.hub_ids import is_hub_id
from cohort.core.source_location import Place

__all__ = ["HubRepository", "PushError"]

_OPTION = Place(option="--push-to-hub")


class PushError(CohortError):
    """The hub did not take a folder, which is on disk nevertheless."""


@dataclass(frozen=True, kw_only=True)
class HubRepository:
    """A model repository on the hub.

    Attributes:
        name: ``OWNER/NAME``.
        is_public: Whether everyone may read it, if it is new; one that exists stays as it is.
    """

    name: str
    is_public: bool = False

    def check(self) -> None:
        """Check the name, and that somebody is logged in; nothing is made.

        Raises:
            InputError: the name is no ``OWNER/NAME``, or the hub knows no user.
        """
        if not is_hub_id(self.name) or "/" not in self.name:
            raise InputError(
                Problem(where=_OPTION, found=repr(self.name), allowed="OWNER/NAME", hint="Write your user name first.")
            )
        try:
            _client().whoami()
        except _failures() as error:
            raise InputError(
                Problem(
                    where=_OPTION,
                    found=f"no user that the hub knows ({_first_line(error)})",
                    allowed="a login with the right to write",
                    hint="Log in with `hf auth login`, or set HF_TOKEN; without network leave the option out.",
                )
            ) from error

    def push(self, folder: Path) -> str:
        """Upload the files of ``folder`` in one commit, into a new repository where there is none; return its address.

        Raises:
            PushError: the hub refused, or could not be reached.
        """
        client = _client()
        try:
            address = client.create_repo(self.name, private=not self.is_public, exist_ok=True)
            client.upload_folder(repo_id=self.name, folder_path=folder, commit_message="Upload from Cohort")
        except _failures() as error:
            raise PushError(
                f"the hub did not take {folder} as {self.name}: {_first_line(error)}; the folder is whole, and "
                f"`hf upload {self.name} {folder}` tries again"
            ) from error
        return str(address)


def _client() -> Any:
    # imported here so that exports to a folder need no hub client
    from huggingface_hub import HfApi

    return HfApi()


def _failures() -> tuple[type[Exception], ...]:
    from huggingface_hub.errors import HfHubHTTPError

    # among its bases is what the client's HTTP library raises where there is no network
    bases = tuple(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception))
    return (*bases, OSError, ValueError, RuntimeError)


def _first_line(error: Exception) -> str:
    # what follows the first sentence is advice for programs that call the client
    return (str(error).strip().splitlines() or [type(error).__name__])[0].split(". ")[0].rstrip(".")
