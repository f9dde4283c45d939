from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.source_location import Place
from cohort.data.files.sources import HubSource, SplitName, resolve_sources
from cohort.data.problems import ProblemKind, ProblemLog


def resolved(written: object, *, base: Path, split: SplitName = "train") -> tuple[list[str], list[str]]:
    log = ProblemLog()
    sources = resolve_sources(
        written,  # type: ignore[arg-type]
        split=split,
        base_directory=base,
        where=Place(key=("dataset", split)),
        log=log,
    )
    return [source.shown for source in sources], [problem.found for problem in log.of(ProblemKind.INPUT)]


def touch(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text("{}")


def test_files_are_relative_to_the_task_and_shown_as_written(tmp_path: Path) -> None:
    touch(tmp_path, "data/a.jsonl", "b.csv")
    assert resolved(["data/a.jsonl", Path("b.csv")], base=tmp_path) == (["data/a.jsonl", "b.csv"], [])
    assert resolved(str(tmp_path / "b.csv"), base=Path("/nowhere")) == ([str(tmp_path / "b.csv")], [])


def test_a_directory_gives_its_data_files_in_order(tmp_path: Path) -> None:
    touch(tmp_path, "d/b.jsonl", "d/a.parquet", "d/README.md")
    assert resolved("d", base=tmp_path) == (["d/a.parquet", "d/b.jsonl"], [])


def test_a_directory_with_named_splits_gives_the_one_that_is_meant(tmp_path: Path) -> None:
    touch(tmp_path, "d/train-00000-of-00002.parquet", "d/train-00001-of-00002.parquet", "d/dev.jsonl", "d/test.jsonl")
    assert resolved("d", base=tmp_path)[0] == ["d/train-00000-of-00002.parquet", "d/train-00001-of-00002.parquet"]
    assert resolved("d", base=tmp_path, split="validation")[0] == ["d/dev.jsonl"]


@pytest.mark.parametrize(
    ("text", "name", "config"), [("openai/gsm8k", "openai/gsm8k", None), ("openai/gsm8k:main", "openai/gsm8k", "main")]
)
def test_what_is_no_path_may_be_a_hub_id(tmp_path: Path, text: str, name: str, config: str | None) -> None:
    sources = resolve_sources(text, split="train", base_directory=tmp_path, where=Place(text="w"), log=ProblemLog())
    assert sources == [HubSource(name=name, config=config)]
    assert sources[0].shown == text


def test_everything_missing_is_listed(tmp_path: Path) -> None:
    touch(tmp_path, "train.jsonl", "notes.txt")
    (tmp_path / "empty").mkdir()
    touch(tmp_path, "tests/test.jsonl")
    found = resolved(["trian.jsonl", "notes.txt", "empty", "tests", "./no/such/thing"], base=tmp_path)[1]
    assert found == [
        "'trian.jsonl', which does not exist",
        "'notes.txt'",
        "the directory 'empty' without data",
        "the directory 'tests' without a train file",
        "'./no/such/thing', which does not exist",
    ]
    assert resolved([], base=tmp_path)[1] == ["an empty list"]


def test_a_near_name_is_offered(tmp_path: Path) -> None:
    touch(tmp_path, "train.jsonl")
    log = ProblemLog()
    resolve_sources("trian.jsonl", split="train", base_directory=tmp_path, where=Place(text="w"), log=log)
    assert log.of(ProblemKind.INPUT)[0].hint == "Did you mean 'train.jsonl'?"
