"""Uploading an exported folder to the hub, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from cohort.core.errors import InputError
from cohort.integrations.hub import HubRepository, PushError


class Client:
    """Keeps what it was asked, or fails as the hub's client does without a network."""

    calls: list[tuple[str, dict[str, Any]]]
    failure: Exception | None = None

    def whoami(self) -> dict[str, str]:
        return self._answer("whoami", {}) or {"name": "me"}

    def create_repo(self, repo_id: str, **options: Any) -> str:
        self._answer("create_repo", {"repo_id": repo_id, **options})
        return f"https://huggingface.co/{repo_id}"

    def upload_folder(self, **options: Any) -> None:
        self._answer("upload_folder", options)

    def _answer(self, name: str, options: dict[str, Any]) -> Any:
        self.calls.append((name, options))
        if self.failure is not None:
            raise self.failure


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> type[Client]:
    monkeypatch.setattr(Client, "calls", [], raising=False)
    monkeypatch.setattr("huggingface_hub.HfApi", Client)
    return Client


@pytest.mark.parametrize("is_public", [False, True])
def test_a_folder_becomes_one_commit_and_private_unless_asked(
    client: type[Client], tmp_path: Path, is_public: bool
) -> None:
    repository = HubRepository(name="me/mine", is_public=is_public)
    repository.check()
    assert repository.push(tmp_path) == "https://huggingface.co/me/mine"
    (_, created), (_, uploaded) = client.calls[1:]
    assert created == {"repo_id": "me/mine", "private": not is_public, "exist_ok": True}
    assert (uploaded["repo_id"], uploaded["folder_path"]) == ("me/mine", tmp_path)


def test_a_name_without_an_owner_and_nobody_logged_in_are_found_before_the_export(
    client: type[Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="OWNER/NAME"):
        HubRepository(name="mine").check()
    assert client.calls == []
    monkeypatch.setattr(client, "failure", OSError("Token is required, but no token found. You must log in."))
    with pytest.raises(InputError, match=r"no token found\); allowed: a login"):
        HubRepository(name="me/mine").check()


def test_a_failed_upload_leaves_the_folder_and_says_how_to_try_again(
    client: type[Client], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(client, "failure", httpx.ConnectError("no route to the host"))
    with pytest.raises(
        PushError, match=f"no route to the host; the folder is whole, and `hf upload me/mine {tmp_path}`"
    ):
        HubRepository(name="me/mine").push(tmp_path)
