"""All sources of both splits are read into examples of one format; what is wrong with any of them is noted."""

from __future__ import annotations

from pathlib import Path

from cohort.data.files.reading import find_sources, read_examples
from cohort.data.problems import ProblemLog
from cohort.data.settings import DatasetSettings

PAIR = '{"prompt": "p", "completion": "c"}\n'
CHAT = '{"prompt": [{"role": "user", "content": "p"}], "completion": [{"role": "assistant", "content": "c"}]}\n'


def settings(folder: Path, **keys: object) -> DatasetSettings:
    return DatasetSettings(base_directory=folder, **keys)  # type: ignore[arg-type]


def test_every_file_of_both_splits_is_found_with_its_digest(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.jsonl", "v.jsonl"):
        (tmp_path / name).write_text(PAIR)
    log = ProblemLog()
    found = find_sources(settings(tmp_path, train=["a.jsonl", "b.jsonl"], validation="v.jsonl"), log=log)
    assert [(entry.split, entry.source.shown) for entry in found] == [
        ("train", "a.jsonl"),
        ("train", "b.jsonl"),
        ("validation", "v.jsonl"),
    ]
    assert len({entry.digest for entry in found}) == 1, "equal files have equal digests"
    assert not log.entries


def test_a_share_needs_no_second_file_and_a_missing_file_is_noted(tmp_path: Path) -> None:
    log = ProblemLog()
    assert find_sources(settings(tmp_path, train="nope.jsonl", validation=0.5), log=log) == []
    (entry,) = log.entries
    assert (str(entry.problem.where), entry.problem.found) == ("dataset.train", "'nope.jsonl', which does not exist")


def test_rows_are_counted_by_split_with_the_unreadable_ones(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(PAIR + "broken\n" + PAIR)
    (tmp_path / "v.jsonl").write_text(PAIR)
    config, log = settings(tmp_path, train="a.jsonl", validation="v.jsonl"), ProblemLog()
    parsed = read_examples(find_sources(config, log=log), settings=config, log=log)
    assert (len(parsed.train), len(parsed.validation), parsed.is_chat) == (2, 1, False)
    assert parsed.rows_read == {"train": 3, "validation": 1, "test": 0}


def test_text_and_messages_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(PAIR + CHAT)
    config, log = settings(tmp_path, train="a.jsonl"), ProblemLog()
    read_examples(find_sources(config, log=log), settings=config, log=log)
    (entry,) = log.entries
    assert str(entry.problem.where).endswith("a.jsonl:2")
    assert entry.problem.found == "prompt and completion as messages"
