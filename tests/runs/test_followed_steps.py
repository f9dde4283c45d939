"""A run that is read on and on comes to the same sums as one that is read at once."""

from __future__ import annotations

from pathlib import Path

from cohort.core.events import StepDone
from cohort.runs.followed_steps import FollowedSteps
from cohort.runs.status import read_status
from tests.runs.small_run import write_small_run


def _step(trial_id: int, step: int) -> StepDone:
    return StepDone(trial_id=trial_id, step=step, loss=0.5 / step, grad_norm=0.5, learning_rate=1e-4, num_tokens=70)


def test_reading_on_equals_reading_all(tmp_path: Path) -> None:
    directory, store, clock = write_small_run(tmp_path / "run")
    followed = FollowedSteps()
    for step in range(1, 5):
        clock.advance(45)
        store.append([_step(3, step)])
        on, all_at_once = read_status(directory, followed=followed), read_status(directory)
        assert repr(on) == repr(all_at_once), "NaN is not equal to itself, but is written alike"
    assert followed.taken[3].tokens == 280
    assert followed.tokens_since(store.seconds - 60) == 140
    store.close()


def test_an_empty_run_has_no_tokens(tmp_path: Path) -> None:
    _, store, _ = write_small_run(tmp_path / "run")
    followed = FollowedSteps()
    assert followed.tokens_since(0) == 0
    followed.read(store.reader)
    assert followed.tokens_since(-1) == store.reader.log.tokens_since(-1) == 700
    store.close()
