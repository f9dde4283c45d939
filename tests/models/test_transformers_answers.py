"""What transformers said is asked once for each checkpoint and version; a damaged answer is asked for again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cohort.models import transformers_answers
from cohort.models.config_file import read_config
from cohort.models.transformers_answers import answered
from tests.training.small_models import save_llama


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "caches"))
    return tmp_path / "caches"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path / "model"


def counting(answers: list[Any]) -> Callable[[], Any]:
    return lambda: answers.pop(0)


def test_it_is_asked_once_for_each_question_file_and_version(
    caches: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[Any] = [{"a": [1, None]}, "other", "changed", "tokenizer", "newer"]
    for _ in range(2):
        assert answered("first", folder, ask=counting(answers)) == {"a": [1, None]}
    assert answered("second", folder, ask=counting(answers)) == "other"
    (folder / "config.json").write_text('{"x": 1}')
    assert answered("first", folder, ask=counting(answers)) == "changed"
    (folder / "tokenizer_config.json").write_text("{}")
    assert answered("first", folder, ask=counting(answers)) == "tokenizer"
    monkeypatch.setattr(transformers_answers, "version", lambda _name: "999")
    assert answered("first", folder, ask=counting(answers)) == "newer"
    assert not answers


@pytest.mark.parametrize("content", ["", "[]", '{"question": "first"}', "\x00"])
def test_a_damaged_answer_is_asked_for_again(caches: Path, folder: Path, content: str) -> None:
    answered("first", folder, ask=lambda: 1)
    (kept,) = caches.rglob("*.json")
    kept.write_text(content)
    assert answered("first", folder, ask=lambda: 2) == 2
    assert json.loads(kept.read_text())["answer"] == 2


def test_an_error_is_raised_and_not_kept(caches: Path, folder: Path) -> None:
    def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        answered("first", folder, ask=fails)
    assert answered("first", folder, ask=lambda: 3) == 3


def test_a_cache_that_cannot_be_written_costs_only_time(caches: Path, folder: Path) -> None:
    caches.write_text("a file where the folder should be")
    assert answered("first", folder, ask=lambda: 4) == 4


def test_the_second_reading_of_a_configuration_imports_no_models(caches: Path, tmp_path: Path) -> None:
    save_llama(tmp_path / "llama")
    expected = read_config(tmp_path / "llama")
    code = (
        "import sys; from pathlib import Path; from cohort.models.config_file import read_config\n"
        f"print(read_config(Path({str(tmp_path / 'llama')!r})))\n"
        "print([name for name in ('transformers', 'torch._dynamo') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    printed, imported = done.stdout.strip().splitlines()
    assert printed == str(expected)
    assert imported == "[]"
