"""What a job's task becomes on the server that trains it: rows in its folder, keys that the server decides."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cohort.service.jobs.job_folder import JobFolder
from cohort.service.jobs.job_task import BaseForJobs
from cohort.service.jobs.preparation import JobRefusedError, prepare_job
from cohort.service.jobs.row_checks import CheckLimits
from cohort.service.tasks.task_body import planned_job
from cohort.store.enums import JobKind

PLAIN = {"prompt": "a", "completion": "b"}
CHAT = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


def prepared(folder: Path, row: dict[str, Any], *, kind: JobKind, count: int = 20, **asked: Any) -> dict[str, Any]:
    """Return the dataset of the task that a job with such rows becomes, on a base with a template of its own."""
    folder.mkdir()
    base = BaseForJobs(
        name="base", path=str(folder), max_length=64, chat_template="plain", on_cpu=True, quantization=None
    )
    task = {"base_model": "base", "dataset": {"train": "file-a"}}
    job = planned_job(task, base="base")
    if kind is JobKind.FINE_TUNING:
        job = replace(job, kind=kind, request={"model": "base", "training_file": "file-a", **asked})

    def content(file_id: str) -> Iterator[bytes]:
        assert file_id in ("file-a", "file-b")
        yield "".join(json.dumps(row) + "\n" for _ in range(count)).encode()

    own = JobFolder(folder, job.id)
    prepare_job(job, own, base=base, content=content, limits=CheckLimits())
    found = own.task
    assert found is not None
    dataset: dict[str, Any] = found["dataset"]
    return dataset


@pytest.mark.parametrize("kind", list(JobKind))
def test_a_chat_template_goes_with_conversations_and_not_with_plain_text(tmp_path: Path, kind: JobKind) -> None:
    # which refuses one: a template would say nothing there
    assert "chat_template" not in prepared(tmp_path / "plain", PLAIN, kind=kind)
    assert prepared(tmp_path / "chat", CHAT, kind=kind)["chat_template"] == "plain"


@pytest.mark.parametrize(
    ("count", "share", "words"),
    [
        (1, None, "1 row leaves none to compare by: add rows (10 or more), or send validation_file"),
        (5, None, "5 rows leave none to compare by: add rows (10 or more), or send validation_file"),
        (9, 0.05, "9 rows leave none to compare by: add rows (20 or more), or send validation_file"),
        (2, 0.8, "2 rows leave none to train on: add rows (5 or more), or send validation_file"),
    ],
)
def test_too_few_rows_are_a_wrong_file_and_told_how_many_are_enough(
    tmp_path: Path, count: int, share: float | None, words: str
) -> None:
    asked = {} if share is None else {"cohort": {"dataset": {"validation": share}}}
    with pytest.raises(JobRefusedError) as refused:
        prepared(tmp_path / "few", PLAIN, kind=JobKind.FINE_TUNING, count=count, **asked)
    assert (refused.value.code, refused.value.param) == ("invalid_training_file", "training_file")
    assert str(refused.value).endswith(f"file-a: {words}")


def test_few_rows_are_enough_where_others_are_there_to_compare_by(tmp_path: Path) -> None:
    found = prepared(tmp_path / "few", PLAIN, kind=JobKind.FINE_TUNING, count=2, validation_file="file-b")
    assert found["validation"].endswith("validation.jsonl")
    assert prepared(tmp_path / "ten", PLAIN, kind=JobKind.FINE_TUNING, count=10)["validation"] == 0.1
