"""TensorBoard for real: its own reader finds what was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.integrations.trackers import open_trackers
from tests.integrations.trackers.two_trials import settings_in, step_of, train_two


# protobuf and the standard library deprecate what tensorboard still uses
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_files_can_be_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an optional package")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = open_trackers(["tensorboard"], settings=settings_in(tmp_path))
    train_two(tracker)
    events = EventAccumulator(str(tmp_path / "tensorboard" / "trial-0000"))
    events.Reload()
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("finals/loss")] == [(3, 1.25)]
    assert [scalar.step for scalar in events.Scalars("train/loss")] == [1, 2, 3]
    # a resumed run sends step 3 again: the files of before are dropped from there on
    again = open_trackers(["tensorboard"], settings=settings_in(tmp_path))
    again.log_step(step_of(0, 3))
    again.log_step(step_of(0, 4))
    again.close()
    folders = sorted(folder.name for folder in (tmp_path / "tensorboard").iterdir())
    assert folders == ["trial-0000", "trial-0001"]
    events = EventAccumulator(str(tmp_path / "tensorboard" / "trial-0000"))
    events.Reload()
    assert [(scalar.step, scalar.value) for scalar in events.Scalars("train/loss")] == [
        (1, 2.0),
        (2, 1.0),
        (3, pytest.approx(2 / 3)),
        (4, 0.5),
    ]
    assert [scalar.value for scalar in events.Scalars("eval/exact_match")] == [0.5]
    assert "_hparams_/session_start_info" in events.summary_metadata
