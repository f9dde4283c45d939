"""A disk that is too small for a run's checkpoints is said as the run begins."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.engine.disk_room import disk_warning, most_bytes
from cohort.engine.tune import tune
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
        assert said.startswith(f"checkpoints of 2 trials may take up to 20.0 KiB in {tmp_path}, where ")
        assert "`cohort resume`" in said


def test_a_disk_that_does_not_tell_is_not_asked_again(tmp_path: Path) -> None:
    assert disk_warning(tmp_path / "gone", ADAPTERS, layout=LAYOUT, optimizer=DEFAULT_OPTIMIZER) is None


def test_a_run_says_it_once_and_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_inputs(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    watcher = Interrupting()
    tune(tiny_task(tmp_path, training={"max_steps": 2}), tmp_path / "run", watcher=watcher)
    (said,) = [note for note in watcher.notes if "checkpoints of" in note]
    assert said.startswith("warning: checkpoints of ")
    assert (tmp_path / "run" / "best").is_dir()
