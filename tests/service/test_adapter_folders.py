"""Adapters as the command line names them: a directory, a folder of them, NAME=DIRECTORY, or the best of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.service.adapter_folders import adapter_folders, recorded_base_hash


def adapter(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    return folder


def test_names_come_from_folders(tmp_path: Path) -> None:
    many = [adapter(tmp_path / "all" / name) for name in ("b", "a")]
    best = adapter(tmp_path / "myrun" / "best")
    found = adapter_folders([str(tmp_path / "all"), str(best), f"mine={many[0]}"])
    assert found == [("a", many[1]), ("b", many[0]), ("myrun", best), ("mine", many[0])]


def test_all_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    one = adapter(tmp_path / "one")
    with pytest.raises(InputError) as caught:
        adapter_folders([str(tmp_path / "empty"), str(tmp_path / "nothing"), str(one), f"one={one}"])
    found = [problem.found for problem in caught.value.problems]
    assert found == ["no adapter", "no such directory", f"a second adapter named 'one', besides {one}"]


def test_a_card_names_the_base_model_or_does_not(tmp_path: Path) -> None:
    assert recorded_base_hash(tmp_path) is None
    card = tmp_path / "README.md"
    for text, expected in ((f"| model hash | `{'0f' * 32}` |", "0f" * 32), ("| model hash | x |", None)):
        card.write_text(f"# Card\n{text}\n")
        assert recorded_base_hash(tmp_path) == expected
    card.write_bytes(b"\xff\xfe\x00")
    assert recorded_base_hash(tmp_path) is None
