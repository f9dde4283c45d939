"""Checkpoints appear whole, under names that lead nowhere else, and end when their time is up."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError
from cohort.service.tinker.checkpoints import CheckpointStore, UnknownCheckpointError
from cohort.training.client_training.client_models import ModelState

LAYOUT = AdapterLayout({"model.layers.0.self_attn.q_proj": (6, 4)})
SPEC = AdapterSpec(r=2, lora_alpha=32.0)
WEIGHTS = torch.arange(20, dtype=torch.float32).reshape(2, 10)
STATE = ModelState(
    adapter=AdapterState(weights=WEIGHTS, moments={"exp_avg": WEIGHTS + 1, "exp_avg_sq": WEIGHTS + 2}),
    step=5,
    gradients=WEIGHTS + 3,
)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "tinker", base_model="base", layout=LAYOUT)


def save(store: CheckpointStore, name: str = "one", *, kind: str = "weights", ttl: int | None = None) -> str:
    return store.save("s:train:0", kind, name, spec=SPEC, state=STATE, about={"seed": 1}, ttl_seconds=ttl)


def test_a_state_comes_back_as_it_was(store: CheckpointStore) -> None:
    found = store.find(save(store), asker="")
    whole, weights = store.load(found, optimizer=True), store.load(found, optimizer=False)
    assert whole.step == 5
    assert {name: tensor.tolist() for name, tensor in whole.adapter.tensors.items()} == {
        "weights": WEIGHTS.tolist(), "exp_avg": (WEIGHTS + 1).tolist(), "exp_avg_sq": (WEIGHTS + 2).tolist()
    }  # fmt: skip
    assert whole.gradients is not None
    assert torch.equal(whole.gradients, WEIGHTS + 3)
    assert (weights.step, weights.adapter.moments, weights.gradients) == (0, {}, None)
    assert [each.uri for each in store.of_model("s:train:0", asker="")] == [found.uri]
    assert list(store.models()) == ["s:train:0"]


@pytest.mark.parametrize("name", [None, "", "..", "a/b", ".hidden", "a\\b", "x" * 129, "\u00fc"])
def test_names_that_could_lead_elsewhere_are_refused(store: CheckpointStore, name: str | None) -> None:
    with pytest.raises(InputError, match=r"path: found .*; allowed: up to 128 letters"):
        store.check_name(name)


@pytest.mark.parametrize(
    "uri", ["tinker://s:train:0/weights/two", "tinker://s:train:0/weights/..", "file:///etc", "tinker://../weights/one"]
)
def test_addresses_of_nothing(store: CheckpointStore, uri: str) -> None:
    save(store)
    with pytest.raises(UnknownCheckpointError, match="there is no checkpoint"):
        store.find(uri, asker="")


def test_a_checkpoint_expires(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = save(store, ttl=60)
    assert store.find(uri, asker="").expires_at is not None
    store.set_expiry(store.find(uri, asker=""), ttl_seconds=None)
    now = time.time()
    monkeypatch.setattr("cohort.service.tinker.checkpoints.time.time", lambda: now + 120)
    found = store.find(uri, asker="")
    assert found.expires_at is None
    store.set_expiry(found, ttl_seconds=10)
    monkeypatch.setattr("cohort.service.tinker.checkpoints.time.time", lambda: now + 131)
    with pytest.raises(UnknownCheckpointError):
        store.find(uri, asker="")
    assert not found.folder.exists()


def test_a_kill_while_the_expiry_is_written_loses_nothing(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = save(store)

    def killed(path: Path, content: bytes) -> int:
        with path.open("wb") as file:
            file.write(content[:5])
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", killed)
        patched.setattr(Path, "write_text", lambda path, text, **_: killed(path, text.encode()))
        with pytest.raises(KeyboardInterrupt):
            store.set_expiry(store.find(uri, asker=""), ttl_seconds=60)
    assert store.find(uri, asker="").expires_at is None


def test_a_kill_while_a_checkpoint_is_deleted_leaves_none_in_part(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = store.find(save(store), asker="")

    def killed(folder: Path, **_: object) -> None:
        (folder / "state.safetensors").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("cohort.service.tinker.checkpoints.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            store.delete(found)
    with pytest.raises(UnknownCheckpointError):
        store.find(found.uri, asker="")
    assert store.of_model("s:train:0", asker="") == []
    # the next start removes the rest of it
    assert len(list(found.folder.parent.iterdir())) == 1
    store.remove_leftovers()
    assert list(found.folder.parent.iterdir()) == []
    store.delete(found)


def test_what_has_expired_goes_without_being_read(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [store.find(save(store, name, ttl=ttl), asker="").folder for name, ttl in (("a", 60), ("b", 600))]
    store.remove_expired()
    assert all(folder.exists() for folder in folders)
    now = time.time()
    monkeypatch.setattr("cohort.service.tinker.checkpoints.time.time", lambda: now + 100)
    with store._marked(folders[0]):
        # what is being saved may take its place
        store.remove_expired()
        assert folders[0].exists()
        with pytest.raises(UnknownCheckpointError):
            store.find(store.uri("s:train:0", "weights", "a"), asker="")
    store.remove_expired()
    assert list(folders[0].parent.iterdir()) == [folders[1]]
    # its name is free again
    assert not store.exists("s:train:0", "weights", "a")


def test_another_that_took_its_place_keeps_its_own_description(store: CheckpointStore) -> None:
    found = store.find(save(store), asker="")
    time.sleep(0.01)
    save(store)
    with pytest.raises(UnknownCheckpointError, match="another takes its place"):
        store.set_public(found, public=True)
    assert not store.find(found.uri, asker="").is_public


def test_one_that_was_removed_meanwhile_is_not_described(store: CheckpointStore) -> None:
    found = store.find(save(store), asker="")
    store.delete(found)
    with pytest.raises(UnknownCheckpointError, match="has expired, was removed, or another"):
        store.set_expiry(found, ttl_seconds=60)
    assert list(found.folder.parent.iterdir()) == []


def test_a_checkpoint_that_a_killed_server_was_writing_is_none(store: CheckpointStore) -> None:
    found = store.find(save(store), asker="")
    # all is written, even what describes it; it has no name yet
    partial = found.folder.rename(found.folder.with_name(".two.x1.partial"))
    save(store)
    assert [each.uri for each in store.of_model("s:train:0", asker="")] == [found.uri]
    store.remove_leftovers()
    assert not partial.exists()
    assert store.find(found.uri, asker="").about["step"] == 5


def test_a_checkpoint_of_another_base_model_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    uri = save(store)
    layout = AdapterLayout({"model.layers.0.self_attn.q_proj": (8, 4)})
    other = CheckpointStore(tmp_path / "tinker", base_model="larger", layout=layout)
    with pytest.raises(InputError, match=r"path: found tinker://s:train:0/weights/one, .*; allowed: .* of larger"):
        other.load(other.find(uri, asker=""), optimizer=True)


def test_a_version_for_sampling_has_no_state_to_train_on(store: CheckpointStore) -> None:
    found = store.find(save(store, kind="sampler_weights"), asker="")
    with pytest.raises(UnknownCheckpointError, match="is for sampling"):
        store.load(found, optimizer=False)
    assert found.num_bytes > 0
