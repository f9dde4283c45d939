"""Where a model is looked for, and the message if it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

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
