from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from cohort.data import loading
from cohort.data.loading import LoadedDataset, load_dataset
from cohort.data.settings import DatasetSettings

Write = Callable[..., Path]
ROWS = [{"prompt": f"Question: {n} é\n", "completion": f"answer {n}"} for n in range(30)]


def load(
    config: DatasetSettings, *, tokenizer: PreTrainedTokenizerBase, cache: Path, evaluation: int | None = 5
) -> LoadedDataset:
    return load_dataset(config, tokenizer=tokenizer, evaluation_max_examples=evaluation, cache_dir=cache)


def same(left: LoadedDataset, right: LoadedDataset) -> bool:
    return left.report == right.report and all(
        np.array_equal(one.tokens_T, two.tokens_T)
        and np.array_equal(one.trained_T, two.trained_T)
        and np.array_equal(one.offsets, two.offsets)
        and (one.prompts, one.references, one.sources, one.fingerprint)
        == (two.prompts, two.references, two.sources, two.fingerprint)
        for one, two in ((left.train, right.train), (left.validation, right.validation))
    )


def cache_file(cache: Path) -> Path:
    (path,) = (cache / "tokenised").iterdir()
    return path


def test_the_second_start_reads_what_the_first_wrote(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = DatasetSettings(train=write_jsonl(ROWS))
    first = load(config, tokenizer=tokenizer, cache=tmp_path / "cache")
    monkeypatch.setattr(loading, "read_examples", None)
    second = load(config, tokenizer=tokenizer, cache=tmp_path / "cache")
    assert (first.cache_status, second.cache_status) == ("written", "hit")
    assert same(first, second)
    assert second.train.tokens_T.dtype == np.int32
    assert [path.suffix for path in (tmp_path / "cache" / "tokenised").iterdir()] == [".npz"]


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"max_length": 900},
        {"completion_only_loss": False},
        {"validation": 0.2},
        {"on_long_rows": "truncate"},
        {"on_bad_rows": "skip"},
        {"format": "prompt_completion"},
        {"prompt_template": "{prompt}!\n"},
        {"columns": {"prompt": "completion", "completion": "prompt"}},
    ],
)
def test_every_setting_has_its_own_file(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, tmp_path: Path, change: dict[str, object]
) -> None:
    config = DatasetSettings(train=write_jsonl(ROWS))
    load(config, tokenizer=tokenizer, cache=tmp_path / "cache")
    other = load(replace(config, **change), tokenizer=tokenizer, cache=tmp_path / "cache")  # type: ignore[arg-type]
    assert other.cache_status == "written"


def test_content_tokenizer_and_evaluation_count(
    make_tokenizer: Callable[..., PreTrainedTokenizerBase], write_jsonl: Write, tmp_path: Path
) -> None:
    config, cache = DatasetSettings(train=write_jsonl(ROWS)), tmp_path / "cache"
    first = load(config, tokenizer=make_tokenizer(), cache=cache)
    assert load(config, tokenizer=make_tokenizer(), cache=cache).cache_status == "hit"
    assert load(config, tokenizer=make_tokenizer(chat_template="x"), cache=cache).cache_status == "written"
    assert load(config, tokenizer=make_tokenizer(adds_bos=False), cache=cache).cache_status == "written"
    assert load(config, tokenizer=make_tokenizer(), cache=cache, evaluation=2).cache_status == "written"
    write_jsonl(ROWS[:-1])
    changed = load(config, tokenizer=make_tokenizer(), cache=cache)
    assert changed.cache_status == "written"
    assert changed.train.fingerprint != first.train.fingerprint
    assert changed.report.data_hash != first.report.data_hash


# no deadline: on a busy machine reading a file takes longer than 200 ms
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 0.999), cut=st.booleans())
def test_a_damaged_file_is_made_again(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, tmp_path: Path, place: float, cut: bool
) -> None:
    config, cache = DatasetSettings(train=write_jsonl(ROWS)), tmp_path / "cache"
    first = load(config, tokenizer=tokenizer, cache=cache)
    path = cache_file(cache)
    content = bytearray(path.read_bytes())
    spot = int(place * len(content))
    if cut:
        del content[spot:]
    else:
        content[spot] ^= 0xFF
    path.write_bytes(content)
    # a flipped bit in the zip's own padding or dates harms nothing: either way the rows are right
    assert same(load(config, tokenizer=tokenizer, cache=cache), first)
    assert load(config, tokenizer=tokenizer, cache=cache).cache_status == "hit"


def test_a_cache_that_cannot_be_written_is_told_and_not_fatal(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, tmp_path: Path
) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("a file where the directory should be")
    data = load(DatasetSettings(train=write_jsonl(ROWS)), tokenizer=tokenizer, cache=blocked)
    assert data.cache_status.startswith("not written: ")


def test_the_cache_does_not_grow_for_ever(
    tokenizer: PreTrainedTokenizerBase, write_jsonl: Write, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    (cache / "tokenised").mkdir(parents=True)
    for number in range(70):
        old = cache / "tokenised" / f"{number}.npz"
        old.touch()
        os.utime(old, (number, number))
    # of a writer that was killed
    partial = cache / "tokenised" / ".0.npz.x1.partial"
    partial.touch()
    os.utime(partial, (0, 0))
    load(DatasetSettings(train=write_jsonl(ROWS)), tokenizer=tokenizer, cache=cache)
    left = {path.name for path in (cache / "tokenised").iterdir()}
    assert len(left) == 64
    assert not {"0.npz", partial.name} & left
    assert "69.npz" in left
