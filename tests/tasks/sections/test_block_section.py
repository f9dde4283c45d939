"""``lora.use_bdlora``: PEFT's keys, the defaults of Llama's linears, and what is refused with its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal
from cohort.core.errors import InputError
from cohort.tasks.loading import TaskFile, task_from_mapping


def task_with(lora: dict[str, Any], **sections: Any) -> TaskFile:
    data = {"model_name_or_path": "org/name", "dataset": {"train": "org/rows"}, "lora": lora, **sections}
    return task_from_mapping(data, base_directory=Path())


def test_blocks_have_the_lists_of_llama_and_one_block_is_plain_lora() -> None:
    task = task_with({"use_bdlora": {"nblocks": 4}})
    assert task.searchable_defaults()["nblocks"] == 4
    assert task.block_diagonal(4) == BlockDiagonal(
        nblocks=4, target_modules_bd_a=ROW_PARALLEL, target_modules_bd_b=COLUMN_PARALLEL
    )
    assert task.block_diagonal(1) is None
    assert task_with({}).searchable_defaults()["nblocks"] == 1
    # a search needs no section
    searched = task_with({}, search={"space": {"nblocks": [1, 2]}})
    assert searched.block_diagonal(2) == BlockDiagonal(nblocks=2)


def test_a_list_that_is_null_names_no_linear() -> None:
    task = task_with({"use_bdlora": {"nblocks": 2, "target_modules_bd_a": None, "match_strict": False}})
    assert task.block_diagonal(2) == BlockDiagonal(nblocks=2, target_modules_bd_a=(), match_strict=False)


@pytest.mark.parametrize(
    ("lora", "place", "found"),
    [
        ({"use_bdlora": {}}, "lora.use_bdlora", "use_bdlora without nblocks"),
        ({"use_bdlora": True}, "lora.use_bdlora", "True"),
        ({"use_bdlora": {"nblock": 3}}, "lora.use_bdlora.nblock", "the unknown key 'nblock'"),
        ({"use_bdlora": {"nblocks": 0}}, "lora.use_bdlora.nblocks", "0"),
        (
            {"use_bdlora": {"nblocks": 2, "target_modules_bd_a": "o_proj"}},
            "lora.use_bdlora.target_modules_bd_a",
            "'o_proj'",
        ),
        ({"nblocks": 3}, "lora.nblocks", "the unknown key 'nblocks'"),
    ],
)
def test_what_is_wrong_is_named(lora: dict[str, Any], place: str, found: str) -> None:
    with pytest.raises(InputError) as caught:
        task_with(lora)
    assert any(str(p.where).endswith(place) and p.found == found for p in caught.value.problems), str(caught.value)
