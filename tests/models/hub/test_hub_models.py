"""Models of the hub, from a hub on this machine: revisions, what is fetched, and what to do where one cannot be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from cohort.core.errors import InputError
from cohort.models.source import find_model
from cohort.models.weights import load_decoder
from tests.models.fixtures.tiny_checkpoints import save_checkpoint
from tests.models.hub.fake_hub import FakeHub, fake_hub


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("hub")
    found = {
        "me/single": save_checkpoint(root / "single", "Llama"),
        "me/single@v2": save_checkpoint(root / "second", "Llama", seed=1),
        "me/shards": save_checkpoint(root / "shards", "Llama", max_shard_size="20KB"),
        "me/gated": root / "single",
        "me/bin": root / "bin",
    }
    found["me/bin"].mkdir()
    shutil.copy2(root / "single" / "config.json", found["me/bin"])
    (found["me/bin"] / "pytorch_model.bin").write_bytes(b"0")
    # the same weights again, for other programs
    for copy in ("original/model.safetensors", "consolidated.00.safetensors", "model.gguf"):
        path = found["me/shards"] / copy
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"0" * 100)
    return found


@pytest.fixture
def hub(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    # a process asks once for a model
    find_model_again()
    with fake_hub(FakeHub(models=folders, gated=frozenset({"me/gated"})), tmp_path / "cache", monkeypatch) as found:
        yield found
    find_model_again()


def find_model_again() -> None:
    from cohort.models import source

    source._fetch.cache_clear()


def problem_of(name: str) -> str:
    with pytest.raises(InputError) as caught:
        find_model(name)
    return str(caught.value)


def test_a_model_is_fetched_once_and_then_needs_no_hub(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = find_model("me/single")
    assert folder.parts[-3] == "models--me--single"
    fetched = list(hub.fetched)
    assert "model.safetensors" in fetched
    find_model_again()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert find_model("me/single") == folder
    assert hub.fetched == fetched


def test_a_revision_stands_behind_the_name(hub: FakeHub, folders: dict[str, Path]) -> None:
    first, second = load_decoder("me/single"), load_decoder("me/single@v2")
    expected = load_decoder(folders["me/single@v2"])
    name = next(iter(expected.linears))
    assert torch.equal(second.weight_of(name), expected.weight_of(name))
    assert not torch.equal(first.weight_of(name), expected.weight_of(name))
    # a commit is a revision as well
    commit = find_model("me/single@v2").name
    assert find_model(f"me/single@{commit}") == find_model("me/single@v2")


def test_a_revision_that_is_not_there(hub: FakeHub) -> None:
    said = problem_of("me/single@v3")
    assert "no revision 'v3' of me/single on the hub" in said
    assert "Name a branch, a tag or a commit" in said


def test_shards_are_fetched_without_copies_for_other_programs(hub: FakeHub, folders: dict[str, Path]) -> None:
    decoder, expected = load_decoder("me/shards"), load_decoder(folders["me/single"])
    name = next(iter(expected.linears))
    assert torch.equal(decoder.weight_of(name), expected.weight_of(name))
    assert len([file for file in hub.fetched if file.endswith(".safetensors")]) > 1
    assert not [file for file in hub.fetched if "original" in file or "consolidated" in file or "gguf" in file]


def test_a_gated_model_says_where_its_licence_is(hub: FakeHub) -> None:
    said = problem_of("me/gated")
    assert "a gated hub model" in said
    assert "https://huggingface.co/me/gated" in said
    assert "hf auth login" in said


def test_an_unknown_name(hub: FakeHub) -> None:
    said = problem_of("me/singel")
    assert "no such model on the hub" in said
    assert "if the model is private" in said


def test_a_download_that_ended_halfway_and_no_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = find_model("me/shards")
    next(folder.glob("model-*.safetensors")).unlink()
    find_model_again()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    said = problem_of("me/shards")
    assert "a part of the model in the hub's cache" in said
    assert "hf download me/shards" in said


def test_weights_in_pickles_are_not_read(hub: FakeHub) -> None:
    with pytest.raises(InputError, match=r"no safetensors weights"):
        load_decoder("me/bin")


def test_one_process_has_one_revision(hub: FakeHub, folders: dict[str, Path]) -> None:
    folder = find_model("me/single")
    hub.models = {**folders, "me/single": folders["me/single@v2"]}
    assert find_model("me/single") == folder
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
