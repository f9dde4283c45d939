"""A run warns as it begins where its disk is too small for its checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.engine.disk_room import disk_warning, most_bytes
from cohort.engine.tune import resume, tune
from cohort.training.optimizers import DEFAULT_OPTIMIZER
from tests.end_to_end.tiny_tasks import Interrupting, tiny_task, write_inputs

LAYOUT = AdapterLayout({"q": (8, 16), "down": (32, 8)})
ADAPTERS = [AdapterSpec(r=r, lora_alpha=8.0) for r in (4, 16)]


def test_a_checkpoint_of_all_trials_and_the_best_weights_of_all_need_room() -> None:
    # 20 rank rows of 64 columns: the best weights, and the weights of a checkpoint with two moments
    assert most_bytes(ADAPTERS, layout=LAYOUT, optimizer=DEFAULT_OPTIMIZER) == 20 * 64 * 4 * 4


@pytest.mark.parametrize(("free", "is_said"), [(20480, False), (20479, True), (0, True)])
def test_a_small_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, is_said: bool) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    said = disk_warning(tmp_path, ADAPTERS, layout=LAYOUT, optimizer=DEFAULT_OPTIMIZER)
    assert (said is not None) is is_said
    if said is not None:
        assert said.startswith(f"checkpoints of 2 trials may need up to 20.0 KiB more in {tmp_path}, and ")
        assert f"`cohort resume {tmp_path}`" in said


def test_what_a_run_has_on_its_disk_is_room_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=480))
    (tmp_path / "trials").mkdir()
    (tmp_path / "trials" / "state.safetensors").write_bytes(bytes(20_000))
    assert disk_warning(tmp_path, ADAPTERS, layout=LAYOUT, optimizer=DEFAULT_OPTIMIZER) is None
    (tmp_path / "trials" / "state.safetensors").write_bytes(bytes(19_999))
    said = disk_warning(tmp_path, ADAPTERS, layout=LAYOUT, optimizer=DEFAULT_OPTIMIZER)
    assert said is not None
    assert "481 B more" in said


def test_a_disk_that_does_not_tell_is_not_asked_again(tmp_path: Path) -> None:
    assert disk_warning(tmp_path / "gone", ADAPTERS, layout=LAYOUT, optimizer=DEFAULT_OPTIMIZER) is None


def test_a_run_says_it_once_as_it_begins_and_as_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_inputs(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1))
    begins, goes_on = Interrupting(steps=1), Interrupting()
    with pytest.raises(KeyboardInterrupt):
        tune(tiny_task(tmp_path, training={"max_steps": 2}), tmp_path / "run", watcher=begins)
    resume(tmp_path / "run", watcher=goes_on)
    for watcher in (begins, goes_on):
        (said,) = [note for note in watcher.notes if "checkpoints of" in note]
        assert said.startswith("warning: checkpoints of ")
    assert (tmp_path / "run" / "best").is_dir()
