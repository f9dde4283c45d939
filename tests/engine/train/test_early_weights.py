"""Weights that are written ahead are the adapter's; what could not be written is written again by who needs it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import WEIGHTS_FILE, peft_tensors
from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import StorageFullError
from cohort.engine.train import early_weights
from cohort.engine.train.early_weights import LEAST_EARLY, EarlyWeights
from cohort.tuning.decisions import FAILED
from tests.ranks.divided_states.test_divided_rows import Source
from tests.ranks.divided_states.test_divided_rows import rows as divided

LAYOUT = AdapterLayout({"layers.0.q_proj": (6, 5)})
SPEC = AdapterSpec(r=3, lora_alpha=6.0)
WEIGHTS = {trial_id: torch.randn(3, LAYOUT.width) for trial_id in range(8)}


def begun(ahead: EarlyWeights, *, failed: tuple[int, ...] = ()) -> None:
    study: Any = SimpleNamespace(
        leaders=lambda: [SimpleNamespace(trial_id=trial_id) for trial_id in (5, 3, 7, 1, 0, 2)],
        reason=lambda trial_id: FAILED if trial_id in failed else None,
    )
    specs: Any = {trial_id: SimpleNamespace(adapter=SPEC) for trial_id in WEIGHTS}

    def best_of(trial_id: int) -> tuple[Tensor, int] | None:
        return None if trial_id == 7 else (WEIGHTS[trial_id], 1)

    ahead.begin_first(study, specs=specs, best_of=best_of)


def test_the_first_trials_that_get_an_adapter_are_written(tmp_path: Path) -> None:
    with EarlyWeights(LAYOUT, folder_of=lambda trial_id: tmp_path / str(trial_id)) as ahead:
        begun(ahead, failed=(3,))
        written = [trial_id for trial_id in WEIGHTS if ahead.are_written(trial_id)]
        assert written == [0, 1, 5], f"{LEAST_EARLY} of those that did not fail, of which trial 7 has no checkpoint"
        assert not ahead.are_written(5), "told once"
    for trial_id in written:
        file = tmp_path / str(trial_id) / WEIGHTS_FILE
        expected = peft_tensors(LAYOUT, SPEC, WEIGHTS[trial_id])
        found = load_file(file)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_trial_that_completed_is_written_once_and_only_from_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    monkeypatch.setattr(early_weights, "write_adapter_weights", lambda folder, **_: written.append(int(folder.name)))
    monkeypatch.setattr(early_weights, "ready_events", lambda _: {})
    on_gpu: Any = SimpleNamespace(is_cuda=True)
    with EarlyWeights(LAYOUT, folder_of=lambda trial_id: tmp_path / str(trial_id)) as ahead:
        monkeypatch.setattr(ahead, "copies", SimpleNamespace(copied=lambda tensors, _: tensors))
        ahead.begin_completed(5, spec=SPEC, weights_rD=on_gpu)
        # what lies in host memory stays there until the run has ended
        ahead.begin_completed(2, spec=SPEC, weights_rD=WEIGHTS[2])
        begun(ahead)
        assert all(ahead.are_written(trial_id) for trial_id in (1, 3, 5))
        assert not ahead.are_written(2)
    assert sorted(written) == [1, 3, 5]


def test_a_run_that_is_abandoned_writes_what_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    monkeypatch.setattr(early_weights, "write_adapter_weights", lambda folder, **_: written.append(folder))
    ahead = EarlyWeights(LAYOUT, folder_of=lambda trial_id: tmp_path / str(trial_id))
    begun(ahead)
    ahead.close()
    ahead.close()
    assert 1 <= len(written) <= LEAST_EARLY


def test_a_full_disk_is_told_where_weights_are_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(folder: Path, **_: object) -> None:
        raise StorageFullError("no space left") if folder.name == "5" else ValueError("wrong")

    monkeypatch.setattr(early_weights, "write_adapter_weights", full)
    with EarlyWeights(LAYOUT, folder_of=lambda trial_id: tmp_path / str(trial_id)) as ahead:
        begun(ahead)
        assert not ahead.are_written(5)
        with pytest.raises(ValueError, match="wrong"):
            ahead.are_written(3)


def test_weights_in_parts_on_ranks_are_written_as_those_of_a_gpu(tmp_path: Path) -> None:
    source, spec = Source(), AdapterSpec(r=4, lora_alpha=8.0)
    # the shape of the rows that these ranks have
    layout = AdapterLayout({"layers.0.q_proj": (6, 4)})
    with EarlyWeights(layout, folder_of=lambda trial_id: tmp_path / str(trial_id)) as ahead:
        ahead.begin_completed(5, spec=spec, weights_rD=divided(source, [], number=2))
        assert ahead.are_written(5)
    found = load_file(tmp_path / "5" / WEIGHTS_FILE)
    expected = peft_tensors(layout, spec, torch.full((4, 10), 2.0))
    assert all(torch.equal(found[name], own) for name, own in expected.items())
