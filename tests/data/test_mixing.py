"""Several data sets by weight: shares, repeats, what is trained on, and what the fingerprint says."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from cohort.core.errors import InputError
from cohort.data.loading import LoadedDataset, load_dataset
from cohort.data.mixing import rows_by_weight
from cohort.data.settings import DatasetSettings

Write = Callable[..., Path]


@pytest.fixture
def files(write_jsonl: Write) -> list[Path]:
    """A data set of 60 rows and one of 20."""
    return [
        write_jsonl(
            [{"prompt": name, "completion": f" {name}{number}"} for number in range(count)], name=f"{name}.jsonl"
        )
        for name, count in (("a", 60), ("b", 20))
    ]


def load(tokenizer: PreTrainedTokenizerBase, **settings: Any) -> LoadedDataset:
    return load_dataset(DatasetSettings(**settings), tokenizer=tokenizer, use_cache=False)


def times(data: LoadedDataset, name: str) -> Counter[str]:
    """Return how often each row of a file is trained on."""
    return Counter(source for source in data.train.sources if f"{name}.jsonl" in source)


@pytest.mark.parametrize(
    ("weights", "total", "rows"),
    [
        ([0.7, 0.3], 10, [7, 3]),
        ([7, 3], 10, [7, 3]),
        ([1, 1, 1], 10, [4, 3, 3]),
        ([0.1, 0.2, 0.7], 1000, [100, 200, 700]),
        ([1e-300, 1e300], 5, [0, 5]),
    ],
)
def test_rows_add_up(weights: list[float], total: int, rows: list[int]) -> None:
    assert rows_by_weight(weights, total=total) == rows


def test_shares_are_those_of_the_weights(tokenizer: PreTrainedTokenizerBase, files: list[Path]) -> None:
    data = load(tokenizer, train=files, weights=[1, 3], validation=files[0])
    # 80 rows in all: a third of the larger one, each once; the smaller one three times
    assert (times(data, "a").total(), times(data, "b").total()) == (20, 60)
    assert set(times(data, "a").values()) == {1}
    assert set(times(data, "b").values()) == {3}
    assert len(times(data, "b")) == 20
    assert data.report.num_train_rows == 80
    assert [(part.num_usable, part.num_taken, part.share) for part in data.report.mix] == [
        (60, 20, 0.25),
        (20, 60, 0.75),
    ]
    assert "b.jsonl 60 (75 %) from 20 usable, up to 3 times each" in str(data.report.mix_text)
    assert "duplicate" not in data.report.counts, "a repeat that was asked for is no mistake"


def test_the_mix_depends_on_the_seed_alone(tokenizer: PreTrainedTokenizerBase, files: list[Path]) -> None:
    once, again, other = (
        load(tokenizer, train=files, weights=[0.5, 0.5], validation=files[0], seed=seed) for seed in (0, 0, 1)
    )
    assert once.train.sources == again.train.sources
    assert once.train.fingerprint == again.train.fingerprint
    assert times(once, "a") != times(other, "a")


def test_no_validation_row_is_trained_on_or_repeated(tokenizer: PreTrainedTokenizerBase, files: list[Path]) -> None:
    data = load(tokenizer, train=files, weights=[0.2, 0.8], validation=0.25)
    plain = load(tokenizer, train=files, validation=0.25)
    assert data.all_validation.sources == plain.all_validation.sources
    assert len(set(data.all_validation.sources)) == len(data.all_validation) == 20
    assert not set(data.all_validation.sources) & set(data.train.sources)
    assert len(data.train) == len(plain.train)


def test_a_limit_keeps_the_shares(tokenizer: PreTrainedTokenizerBase, files: list[Path]) -> None:
    data = load(tokenizer, train=files, weights=[1, 3], validation=files[0], max_train_samples=20)
    assert (times(data, "a").total(), times(data, "b").total()) == (5, 15)
    assert set(times(data, "b").values()) == {1}, "nothing is repeated in vain"
    assert data.report.num_usable_train_rows == 80


def test_rows_without_weights_keep_their_fingerprint(tokenizer: PreTrainedTokenizerBase, files: list[Path]) -> None:
    settings = DatasetSettings(train=files)
    assert "weights" not in settings.shaping()
    mixed = load(tokenizer, train=files, weights=[3, 1], validation=files[0])
    plain = load(tokenizer, train=files, validation=files[0])
    # the same rows, but of another task
    assert mixed.train.sources == plain.train.sources
    assert mixed.train.fingerprint != plain.train.fingerprint


def test_the_cache_keeps_what_the_mix_took(
    tokenizer: PreTrainedTokenizerBase, files: list[Path], tmp_path: Path
) -> None:
    settings = DatasetSettings(train=files, weights=[1, 3], validation=files[0])
    first, second = (load_dataset(settings, tokenizer=tokenizer, cache_dir=tmp_path / "cache") for _ in range(2))
    assert second.cache_status == "hit"
    assert second.report.mix == first.report.mix
    assert second.train.sources == first.train.sources


def test_a_directory_is_one_data_set(tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, tmp_path: Path) -> None:
    (tmp_path / "both").mkdir()
    for name in ("both/c", "both/d", "e"):
        write_jsonl([{"text": f"{name} {number}"} for number in range(10)], name=f"{name}.jsonl")
    data = load(tokenizer, train=[tmp_path / "both", tmp_path / "e.jsonl"], weights=[1, 1], validation=0.1)
    assert [part.num_usable for part in data.report.mix] != [10, 10]
    assert sum(part.num_usable for part in data.report.mix) == 27
    assert abs(data.report.mix[0].num_taken - data.report.mix[1].num_taken) == 1


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ([1, -1], r"dataset\.weights\[1\].*-1"),
        ([1, 0], r"dataset\.weights\[1\].*above 0"),
        ([1, float("nan")], r"dataset\.weights\[1\].*nan"),
        ([1, float("inf")], r"dataset\.weights\[1\].*inf"),
        ([1, "0.3"], r"0\.3, without quotes"),
        ([1], r"1 weight for 2 data sets"),
        ([], r"one weight for each"),
    ],
)
def test_wrong_weights(files: list[Path], weights: list[Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        DatasetSettings(train=files, weights=weights)


def test_a_data_set_that_gives_nothing_is_named(
    tokenizer: PreTrainedTokenizerBase, files: list[Path], write_jsonl: Write
) -> None:
    with pytest.raises(InputError, match=r"dataset\.train\[1\].*b\.jsonl.*less than one row"):
        load(tokenizer, train=files, weights=[1, 1e-6])
    long = write_jsonl([{"prompt": "p", "completion": "word " * 99}], name="long.jsonl")
    with pytest.raises(InputError, match=r"dataset\.train\[1\].*long\.jsonl.*without a row to train on"):
        load(tokenizer, train=[files[0], long], weights=[1, 1], max_length=32)
    empty = write_jsonl([], name="empty.jsonl")
    with pytest.raises(InputError, match=r"empty\.jsonl: found no rows"):
        load(tokenizer, train=[files[0], empty], weights=[1, 1])
    with pytest.raises(InputError, match=r"dataset\.train\[1\].*which entry 1 has, too"):
        load(tokenizer, train=[files[0], files[0]], weights=[1, 2])


def test_a_hub_data_set_has_a_weight_as_a_file_has(
    tokenizer: PreTrainedTokenizerBase, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load_from_hub(name: str, config: str | None) -> dict[str, list[dict[str, str]]]:
        rows = [{"prompt": f"{name} {config}", "completion": f" {number}"} for number in range(20)]
        return {"train": rows, "validation": [{"prompt": "v", "completion": " v"}]}

    module = ModuleType("datasets")
    module.load_dataset = load_from_hub  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    data = load(tokenizer, train=[files[0], "org/sums", "org/sums:hard"], weights=[2, 1, 1], validation=files[0])
    # 100 rows in all; the same id in another configuration is another data set
    counts = Counter(source.rpartition(":")[0] for source in data.train.sources)
    assert counts == {str(files[0]): 50, "org/sums": 25, "org/sums:hard": 25}
    assert [str(part) for part in data.report.mix] == [
        f"{files[0]} 50 (50 %) from 60 usable",
        "org/sums 25 (25 %) from 20 usable, up to 2 times each",
        "org/sums:hard 25 (25 %) from 20 usable, up to 2 times each",
    ]
    with pytest.raises(InputError, match="'org/sums', which entry 1 has, too"):
        load(tokenizer, train=["org/sums", "org/sums"], weights=[1, 1], validation=files[0])
