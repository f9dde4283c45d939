"""Rows given from Python become JSON lines; what cannot is named with its row and column."""

from __future__ import annotations

import datetime
import json
from typing import Any

import numpy as np
import pandas
import pytest

from cohort.core.errors import InputError
from cohort.core.source_location import Place
from cohort.data.files.given_rows import given_rows

WHERE = Place(file="Task", key=("dataset", "train"))


def read(value: object) -> list[Any]:
    rows = given_rows(value, where=WHERE)
    assert rows is not None
    return [json.loads(line) for line in rows.content.splitlines()]


def test_a_list_of_dicts() -> None:
    rows = [{"prompt": "é", "n": np.int64(2), "when": datetime.date(2026, 1, 2)}, {"messages": [{"role": "user"}]}]
    assert read(rows) == [{"prompt": "é", "n": 2, "when": "2026-01-02"}, {"messages": [{"role": "user"}]}]


def test_a_pandas_frame_with_missing_values() -> None:
    frame = pandas.DataFrame(
        {"prompt": ["a", None], "n": [1.5, float("nan")], "at": [pandas.Timestamp("2026-01-02"), pandas.NaT]}
    )
    assert read(frame) == [
        {"prompt": "a", "n": 1.5, "at": "2026-01-02T00:00:00"},
        {"prompt": None, "n": None, "at": None},
    ]


def test_a_data_set_is_read_in_its_plain_form() -> None:
    class Dataset:
        """What ``datasets.Dataset`` offers, since the package is optional."""

        column_names = ("prompt",)

        def __len__(self) -> int:
            return 2

        def with_format(self, kind: None) -> list[dict[str, str]]:
            return [{"prompt": "a"}, {"prompt": "b"}]

    Dataset.__module__ = "datasets.arrow_dataset"
    assert read(Dataset()) == [{"prompt": "a"}, {"prompt": "b"}]


@pytest.mark.parametrize("value", ["train.jsonl", ["a.jsonl", "b.jsonl"], [], 0.1, 5])
def test_what_task_files_can_say_is_left_to_them(value: object) -> None:
    assert given_rows(value, where=WHERE) is None


def test_what_cannot_be_written_is_named() -> None:
    with pytest.raises(InputError) as caught:
        read([{"prompt": "a"}, "b", {"prompt": {"deep": [b"c"]}}])
    told = str(caught.value)
    assert "Task: dataset.train[1]: found a value of type str; allowed: a dict" in told
    assert "Task: dataset.train[2].prompt.deep[0]: found a value of type bytes" in told


@pytest.mark.parametrize("value", [iter([{"prompt": "a"}]), pandas.Series(["a"])])
def test_streams_and_columns_are_refused(value: object) -> None:
    with pytest.raises(InputError, match=r"dataset\.train: found a value of type .*Write list\(rows\)"):
        given_rows(value, where=WHERE)


def test_columns_of_one_name_are_refused() -> None:
    frame = pandas.DataFrame([["a", "b"]], columns=["prompt", "prompt"])
    with pytest.raises(InputError, match="found two columns prompt"):
        given_rows(frame, where=WHERE)


def test_an_array_of_dicts_is_a_list_of_them() -> None:
    rows = [{"text": "a"}, {"text": "b"}]
    assert given_rows(np.array(rows, dtype=object), where=WHERE) == given_rows(rows, where=WHERE)


def test_a_torch_data_set_is_refused() -> None:
    thing = type("Dataset", (), {"__module__": "torch.utils.data"})()
    with pytest.raises(InputError, match="of type Dataset"):
        given_rows(thing, where=WHERE)
