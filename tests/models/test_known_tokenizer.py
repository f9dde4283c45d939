"""What a tokenizer said is kept with its files: a second start loads none, and anything that changes loads it again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cohort.core.cache_directory import default_cache_directory
from cohort.data.identity import tokenizer_hash
from cohort.engine.tune import tune
from cohort.models import known_tokenizer as module
from cohort.models.known_tokenizer import KnownTokenizer, answer_of, can_become_known, known_tokenizer, tokenizer_files
from cohort.models.tokenizer import load_tokenizer
from cohort.tasks.loading import load_task
from tests.end_to_end.tiny_tasks import tiny_data, write_inputs


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model with a tokenizer."""
    return write_inputs(tmp_path) / "model"


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Takes the folder of each tokenizer that is loaded."""
    found: list[Path] = []

    def noted(folder: Path) -> Any:
        found.append(folder)
        return load_tokenizer(folder)

    monkeypatch.setattr(module, "load_tokenizer", noted)
    return found


def opened(folder: Path, *, template: str | None = None, is_needed: bool = False) -> KnownTokenizer:
    def prepare(tokenizer: Any) -> None:
        tokenizer.chat_template = template

    return known_tokenizer(folder, prepare=prepare, how=template, is_needed=is_needed)


def test_what_was_asked_and_kept_needs_no_load(folder: Path, loads: list[Path]) -> None:
    first = opened(folder)
    digest, files = tokenizer_hash(first), tokenizer_files(first)
    assert len(loads) == 1
    again = opened(folder)
    assert (tokenizer_hash(again), tokenizer_files(again)) == (digest, files)
    assert (again.eos_token_id, again.is_fast, again.name_or_path) == (first.eos_token_id, True, str(folder))
    assert len(loads) == 1
    # as the tokenizer itself says and saves
    plain = load_tokenizer(folder)
    assert digest == tokenizer_hash(plain)
    assert files == tokenizer_files(plain)
    assert again.eos_token == plain.eos_token


def test_anything_else_loads_it(folder: Path, loads: list[Path]) -> None:
    tokenizer_files(opened(folder))
    again, plain = opened(folder), load_tokenizer(folder)
    assert again("a b")["input_ids"] == plain("a b")["input_ids"]
    assert (len(again), again.vocab_size) == (len(plain), plain.vocab_size)
    assert answer_of(again, "never asked", lambda asked: asked.eos_token) == plain.eos_token
    assert len(loads) == 2
    assert opened(folder, is_needed=True).loaded() is not None
    assert len(loads) == 3


def test_other_files_or_another_template_load_it_again(folder: Path, loads: list[Path]) -> None:
    tokenizer_files(opened(folder))
    other = opened(folder, template="{{ messages }}")
    assert (other.chat_template, len(loads)) == ("{{ messages }}", 2)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": "{{ 1 }}"}))
    opened(folder)
    assert len(loads) == 3


def test_a_tokenizer_that_took_the_place_of_another_is_noticed_by_its_content(folder: Path, loads: list[Path]) -> None:
    first = opened(folder)
    digest = tokenizer_hash(first)
    tokenizer_files(first)
    path = folder / "tokenizer.json"
    before, stat = path.read_text(), path.stat()
    vocabulary = json.loads(before)["model"]["vocab"]
    one, two = sorted(vocabulary)[:2]
    # the same path, size and time: two tokens have changed places
    changed = json.loads(before)
    changed["model"]["vocab"] = vocabulary | {one: vocabulary[two], two: vocabulary[one]}
    path.write_text(json.dumps(changed).ljust(stat.st_size))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    assert tokenizer_hash(opened(folder)) != digest
    assert len(loads) == 2


@pytest.mark.parametrize("content", ["", "{}", "[]"])
def test_damaged_facts_count_as_none(folder: Path, loads: list[Path], content: str) -> None:
    first = opened(folder)
    tokenizer_files(first)
    kept = first._kept
    assert kept is not None
    assert kept.parent == default_cache_directory() / "tokenizers"
    (kept / "facts.json").write_text(content)
    assert tokenizer_files(opened(folder)) == tokenizer_files(first)
    assert len(loads) == 2
    # and a file that was cut
    next(path for path in (kept / "files").iterdir()).write_bytes(b"{")
    assert tokenizer_files(opened(folder)) == tokenizer_files(first)
    assert len(loads) == 3


def test_what_is_asked_later_is_kept_with_the_next_files(folder: Path, loads: list[Path]) -> None:
    tokenizer_files(opened(folder))
    for count in (2, 2):
        later = opened(folder)
        assert answer_of(later, "asked later", lambda asked: asked.eos_token) is not None
        tokenizer_files(later)
        assert len(loads) == count


def test_only_files_of_a_tokenizer_are_read(folder: Path, loads: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer_files(opened(folder))
    (folder / "pytorch_model.bin").write_bytes(b"weights")
    opened(folder)
    assert len(loads) == 1
    # a folder of something else as well: nothing is kept
    monkeypatch.setattr(module, "_MOST_BYTES", 1)
    opened(folder)
    assert len(loads) == 2


def test_it_can_become_known_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert can_become_known(folder, how=None)
    tokenizer_files(opened(folder))
    assert not can_become_known(folder, how=None)
    assert can_become_known(folder, how="{{ messages }}")
    # by another process as well
    kept = opened(folder)._kept
    assert kept is not None
    (kept / "facts.json").unlink()
    assert can_become_known(folder, how=None)
    # nothing would be kept
    with monkeypatch.context() as trusting:
        trusting.setenv("COHORT_TRUST_REMOTE_CODE", str(folder))
        assert not can_become_known(folder, how=None)
    monkeypatch.setattr(module, "_MOST_BYTES", 1)
    assert not can_become_known(folder, how=None)


def test_copies_of_one_that_is_not_there_yet_are_refused() -> None:
    with pytest.raises(AttributeError):
        object.__new__(KnownTokenizer)._lock  # noqa: B018 - as copying asks


def test_code_of_the_model_s_own_keeps_nothing(
    folder: Path, loads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COHORT_TRUST_REMOTE_CODE", str(folder))
    for count in (1, 2):
        tokenizer_files(opened(folder))
        assert len(loads) == count


def test_the_oldest_are_removed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT", 1)
    first, second = opened(folder), opened(folder, template="{{ messages }}")
    for tokenizer in (first, second):
        tokenizer_files(tokenizer)
    assert first._kept is not None
    assert second._kept is not None
    assert [path.name for path in first._kept.parent.iterdir()] == [second._kept.name]


def test_a_second_run_imports_no_transformers(tmp_path: Path, loads: list[Path]) -> None:
    """Nor does a run on conversations, whose template is asked how it ends an answer."""
    write_inputs(tmp_path)
    rows = [
        {"messages": [{"role": "user", "content": f"w{row}"}, {"role": "assistant", "content": "w1"}]}
        for row in range(24)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sections = {"training": {"max_steps": 2}, "search": {"space": {"r": [2]}}, "early_exit": "none"}
    (tmp_path / "task.yaml").write_text(json.dumps(tiny_data(**sections, dataset={"chat_template": "plain"})))
    tune(load_task(tmp_path / "task.yaml"), tmp_path / "first")
    assert loads, "the first run loads the tokenizer of transformers"
    program = (
        "import sys\nfrom cohort.engine.tune import tune\nfrom cohort.tasks.loading import load_task\n"
        "tune(load_task(sys.argv[1]), sys.argv[2])\nprint('transformers' in sys.modules)"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "task.yaml"), str(tmp_path / "second")]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.split()[-1] == "False"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "first" / "best" / name).read_bytes() == (tmp_path / "second" / "best" / name).read_bytes()
