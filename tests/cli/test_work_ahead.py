"""What a command begins before it imports torch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest

from cohort.cli import work_ahead
from cohort.core.errors import InputError
from cohort.machine import cuda_driver
from cohort.prepare.rows import ahead

TASK = "model_name_or_path: m\ndataset: {train: t.jsonl, format: text}\n"


@pytest.mark.parametrize(
    ("more", "overrides", "is_wanted"),
    [("", (), True), ("num_gpus: 0\n", (), False), ("num_gpus: 1\n", ("--num_gpus", "0"), False)],
)
def test_a_gpu_is_begun_with_for_a_task_that_trains_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, overrides: tuple[str, ...], is_wanted: bool
) -> None:
    asked: list[tuple[object, bool]] = []
    driver: Future[int] = Future()

    def begin(driver: object, *, is_wanted: Callable[[], bool]) -> None:
        asked.append((driver, is_wanted()))

    monkeypatch.setattr(cuda_driver, "begin_cuda_context", begin)
    monkeypatch.setattr(ahead, "begin_rows_ahead", lambda *_: True)
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "task.yaml").write_text(TASK + more)
    work_ahead.begin_task(tmp_path / "task.yaml", overrides, driver=driver)
    assert asked == [(driver, is_wanted)]


@pytest.mark.parametrize(("goes_on", "is_wanted"), [(False, False), (True, True)])
def test_a_directory_that_is_taken_takes_no_memory_of_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool, is_wanted: bool
) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(cuda_driver, "begin_cuda_context", lambda _, *, is_wanted: asked.append(is_wanted()))
    monkeypatch.setattr(ahead, "begin_rows_ahead", lambda *_: True)
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n')
    (tmp_path / "task.yaml").write_text(TASK)
    taken = tmp_path / "run"
    taken.mkdir()
    (taken / "run.db").touch()
    where = None if goes_on else taken
    work_ahead.begin_task(tmp_path / "task.yaml", (), driver=None, new_directory=where)
    assert asked == [is_wanted]
    work_ahead.begin_task(tmp_path / "task.yaml", (), driver=None, new_directory=tmp_path / "other")
    assert asked == [is_wanted, True]


def test_a_task_that_is_wrong_is_told_of_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def begin(driver: object, *, is_wanted: Callable[[], bool]) -> None:
        # in a thread, whose errors nothing reads
        with pytest.raises(InputError):
            is_wanted()
        asked.append(driver)

    monkeypatch.setattr(cuda_driver, "begin_cuda_context", begin)
    monkeypatch.setattr(ahead, "begin_rows_ahead", lambda *_: False)
    (tmp_path / "task.yaml").write_text(TASK + "num_gpu: 0\n")
    work_ahead.begin_task(tmp_path / "task.yaml", (), driver=None)
    assert asked == [None]
