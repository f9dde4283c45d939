"""A snapshot is the model it was taken of; a file that cannot be read is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cohort.adapters.adapter_state import AdapterState
from cohort.core.errors import InputError
from cohort.service.tinker.journal.snapshots import ModelSnapshot, SnapshotStore
from cohort.training.client_training.client_models import ModelState


def a_snapshot(number: int, *, with_state: bool = True) -> ModelSnapshot:
    moments = {"exp_avg": torch.full((2, 3), 0.5), "exp_avg_sq": torch.full((2, 3), 0.25)}
    adapter = AdapterState(weights=torch.full((2, 3), float(number)), moments=moments)
    state = ModelState(adapter=adapter, step=4, gradients=torch.ones(2, 3)) if with_state else None
    return ModelSnapshot(model_id="a1:train:0", number=number, state=state, about={"answers": [], "versions": []})


def test_the_last_snapshot_of_a_model_comes_back(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    for number in (5, 9):
        store.write(a_snapshot(number))
    (tmp_path / "a1-train-0" / ".state.safetensors.x.partial").write_bytes(b"killed")
    (found,) = store.read_all()
    assert (found.model_id, found.number, found.about) == ("a1:train:0", 9, {"answers": [], "versions": []})
    assert found.state is not None
    assert found.state.step == 4
    assert found.state.gradients is not None
    assert torch.equal(found.state.adapter.weights, torch.full((2, 3), 9.0))
    assert sorted(found.state.adapter.moments) == ["exp_avg", "exp_avg_sq"]
    assert not list(tmp_path.glob("*/.*"))
    store.remove("a1:train:0")
    assert list(store.read_all()) == []


def test_a_model_that_could_not_be_made_has_answers_alone(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    store.write(a_snapshot(2, with_state=False))
    (found,) = store.read_all()
    assert (found.number, found.state) == (2, None)


def test_versions_that_are_no_longer_sampled_go(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    for name in ("a1:sample:0", "a1:sample:1"):
        store.write_version("a1:train:0", name, torch.ones(2, 3))
    store.keep_versions("a1:train:0", ["a1:sample:1"])
    assert torch.equal(store.read_version("a1:train:0", "a1:sample:1"), torch.ones(2, 3))
    with pytest.raises(InputError, match=r"a1-sample-0\.version\.safetensors: found no snapshot that can be read"):
        store.read_version("a1:train:0", "a1:sample:0")


def test_a_damaged_snapshot_is_named(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path)
    store.write(a_snapshot(1))
    path = tmp_path / "a1-train-0" / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match=f"{path}: found no snapshot that can be read"):
        list(store.read_all())
