"""Where a model is looked for, and the message if it is not there."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from huggingface_hub.errors import RepositoryNotFoundError

from cohort.core.errors import InputError
from cohort.models.source import find_model_here, refuse_missing_model
from tests.models.fixtures.tiny_checkpoints import problems_of


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere/at/all", "a/b/c", "not a name"])
def test_a_path_that_is_not_there(name: str) -> None:
    (problem,) = problems_of(name)
    assert "no such directory" in problem


def test_a_hub_model_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (problem,) = problems_of("nobody/no-such-model")
    assert "nobody/no-such-model" in problem
    assert "nothing of that name in the hub's cache; the hub is not asked" in problem
    assert "Unset HF_HUB_OFFLINE" in problem


@pytest.mark.parametrize("name", ["./nowhere", "not a name"])
def test_a_path_that_is_not_there_is_missing_without_a_question(name: str) -> None:
    with pytest.raises(InputError, match="no such directory"):
        refuse_missing_model(name)


def test_the_hub_says_whether_a_model_exists_and_silence_says_nothing(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = RepositoryNotFoundError("404", response=httpx.Response(404, request=httpx.Request("GET", "https://hub")))
    answers: list[Exception | None] = [missing, TimeoutError(), None]

    def answer(*_: object, **__: object) -> None:
        if (error := answers.pop(0)) is not None:
            raise error

    def download(*_: object, **__: object) -> None:
        raise missing

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", answer)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    with pytest.raises(InputError, match="no such model on the hub"):
        refuse_missing_model("owner/no-such-model")
    refuse_missing_model("owner/model")
    refuse_missing_model("owner/model")
    # the hub is not asked about a directory
    refuse_missing_model(checkpoint)
    assert not answers


def test_a_model_that_is_here_is_found_without_the_hub(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*_: object, **__: object) -> None:
        raise AssertionError("the hub is asked")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", ask)
    assert find_model_here(checkpoint) == checkpoint
    for absent in ("owner/model", "owner/model@branch", "./nowhere", "not a name", checkpoint / "config.json"):
        assert find_model_here(absent) is None
    revision = "0123456789abcdef0123456789abcdef01234567"
    snapshot = tmp_path / "models--owner--model" / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").touch()
    for name in ("main", "branch"):
        (tmp_path / "models--owner--model" / "refs").mkdir(exist_ok=True)
        (tmp_path / "models--owner--model" / "refs" / name).write_text(revision)
    assert find_model_here("owner/model") == find_model_here("owner/model@branch") == snapshot
    assert find_model_here("owner/model@other") is None


def test_a_file_instead_of_a_directory(checkpoint: Path) -> None:
    (problem,) = problems_of(str(checkpoint / "model.safetensors"))
    assert "found a file" in problem


def test_what_looks_like_a_hub_id_below_a_folder_here_is_more_likely_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "notes").write_text("no folder")
    for name in ("mymodel", "notebooks"):
        (tmp_path / name).mkdir()
    (tmp_path / "mymodel" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hints = {
        "runs/mnie": "Did you mean runs/mine?",
        # a model of an organisation that is called as a folder here
        "runs/zzz": "give the path of a downloaded model. runs is a folder here.",
        "mymodl": "Did you mean mymodel?",
        # no model is in this one
        "notebook": "give the path of a downloaded model.",
        "notes/zzz": "give the path of a downloaded model.",
    }
    for name, hint in hints.items():
        (problem,) = problems_of(name)
        assert problem.endswith(hint), problem
