"""A run that lost a rank goes on by itself, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.core.errors import RankLostError
from cohort.engine import recovery
from cohort.engine.recovery import train_despite_losses
from cohort.engine.train.open_run import RunOptions
from tests.end_to_end.tiny_tasks import Interrupting

LOST = RankLostError("rank 1 (process 7) ended by SIGKILL; everything up to the last checkpoint is saved")


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> list[RunOptions]:
    """What each resume was asked for."""
    return []


def losing(
    monkeypatch: pytest.MonkeyPatch,
    attempts: list[RunOptions],
    *,
    steps: list[int],
    num_ranks: int | None = 4,
    rank_group: str | None = None,
) -> Callable[[], None]:
    """Return what begins a run that loses a rank after each of ``steps`` recorded steps, then ends."""
    left = list(steps)

    def train() -> None:
        if left:
            raise LOST

    def resume(_: Path, *, options: RunOptions, **__: Any) -> None:
        attempts.append(options)
        train()

    def recorded(_: Path) -> tuple[int, int | None, str | None]:
        return left.pop(0), num_ranks, rank_group

    monkeypatch.setattr(recovery, "resume", resume)
    monkeypatch.setattr(recovery, "_recorded", recorded)
    return train


def test_losses_with_progress_between_them_are_no_reason_to_stop(
    monkeypatch: pytest.MonkeyPatch, attempts: list[RunOptions], tmp_path: Path
) -> None:
    watcher = Interrupting()
    train_despite_losses(losing(monkeypatch, attempts, steps=[5, 9, 12, 20]), tmp_path, watcher=watcher)
    assert [options.num_ranks for options in attempts] == [None] * 4
    assert watcher.notes[0] == (
        "warning: rank 1 (process 7) ended by SIGKILL; going on with 4 ranks from the last checkpoint"
    )


def test_without_progress_there_are_fewer_ranks_and_then_an_end(
    monkeypatch: pytest.MonkeyPatch, attempts: list[RunOptions], tmp_path: Path
) -> None:
    with pytest.raises(RankLostError, match="SIGKILL"):
        train_despite_losses(losing(monkeypatch, attempts, steps=[5, 5, 5]), tmp_path, watcher=Interrupting())
    assert [options.num_ranks for options in attempts] == [None, 3]


def test_shards_go_on_with_half_as_many_ranks(
    monkeypatch: pytest.MonkeyPatch, attempts: list[RunOptions], tmp_path: Path
) -> None:
    begin = losing(monkeypatch, attempts, steps=[5, 5, 5], rank_group="tensor")
    with pytest.raises(RankLostError, match="SIGKILL"):
        train_despite_losses(begin, tmp_path, watcher=Interrupting())
    assert [options.num_ranks for options in attempts] == [None, 2]


def test_a_run_that_never_began_and_a_run_without_losses(
    monkeypatch: pytest.MonkeyPatch, attempts: list[RunOptions], tmp_path: Path
) -> None:
    with pytest.raises(RankLostError):
        train_despite_losses(losing(monkeypatch, attempts, steps=[0], num_ranks=None), tmp_path, watcher=Interrupting())
    train_despite_losses(losing(monkeypatch, attempts, steps=[]), tmp_path, watcher=Interrupting())
    assert not attempts


def test_other_errors_pass(tmp_path: Path) -> None:
    def failing() -> None:
        raise ValueError("another error")

    with pytest.raises(ValueError, match="another error"):
        train_despite_losses(failing, tmp_path, watcher=Interrupting())
    assert recovery._recorded(tmp_path) == (0, None, None)
