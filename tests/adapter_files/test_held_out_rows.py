"""Rows that a run has not seen are read as its own rows were, and those that cannot be measured are named."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from cohort.adapter_files.held_out_rows import HeldOutRows, read_held_out
from cohort.core.errors import InputError
from cohort.models.tokenizer import load_tokenizer
from tests.adapter_files.runs import base_of
from tests.end_to_end.tiny_tasks import write_inputs

ROWS = [{"prompt": f"{n}+1=", "completion": str(n + 1), "level": n} for n in range(4)]
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_inputs(tmp_path_factory.mktemp("held"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    return load_tokenizer(folder / "model")


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_come_as_their_file_has_them_with_their_answers_trained(
    folder: Path, tokenizer: Any, tmp_path: Path
) -> None:
    file = written(tmp_path / "rows.jsonl", ROWS)
    held = read_held_out(file, base=base_of(folder), tokenizer=tokenizer, context=128)
    assert (held.num_read, held.note) == (4, None)
    assert held.file_hash == hashlib.sha256(file.read_bytes()).hexdigest()
    assert held.rows.prompts == tuple(row["prompt"] for row in ROWS)
    assert held.rows.references == ("1", "2", "3", "4")
    # one token a byte, between the tokens that begin and end a text
    sample = held.rows.sample(0)
    assert sample.trained.tolist() == [False] * 4 + [True] * 2
    assert json.loads(held.rows.columns[3])["level"] == 3


def test_the_context_of_the_model_bounds_rows_and_what_is_left_out_is_told(
    folder: Path, tokenizer: Any, tmp_path: Path
) -> None:
    long = {"prompt": "1" * 40, "completion": "2"}
    file = written(tmp_path / "rows.jsonl", [*ROWS, long])
    base = base_of(folder)

    def read(context: int, **dataset: Any) -> HeldOutRows:
        kept = base_of(folder, task={"dataset": dataset}) if dataset else base
        return read_held_out(file, base=kept, tokenizer=tokenizer, context=context)

    assert (len(read(64).rows), read(64).settings.max_length) == (5, 64)
    short = read(32)
    assert (len(short.rows), short.num_read, short.note) == (4, 5, "left out: 1 longer than dataset.max_length")
    cut = read(32, on_long_rows="truncate")
    assert cut.note is not None
    assert "1" in cut.note
    with pytest.raises(InputError, match=rf"{file}:5: .*max_length"):
        read(32, on_long_rows="error")


def test_settings_of_the_run_are_no_hint(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", [*ROWS, {"prompt": "1+1="}])
    with pytest.raises(InputError, match="no 'completion'") as caught:
        read_held_out(file, base=base_of(folder), tokenizer=tokenizer, context=128)
    # the task of a run does not change any more
    assert "on_bad_rows" not in str(caught.value)


def test_no_usable_row_is_an_error_with_the_reasons(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", [{"prompt": "1" * 100, "completion": "2"}] * 2)
    with pytest.raises(InputError, match=r"no usable row \(too long: 2\).*\(prompt_completion\)"):
        read_held_out(file, base=base_of(folder), tokenizer=tokenizer, context=64)


def test_text_and_conversations_are_not_taken_for_each_other(folder: Path, tokenizer: Any, tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "1+1="}], [{"role": "assistant", "content": "2"}]
    chat = written(tmp_path / "chat.jsonl", [{"prompt": turns[0], "completion": turns[1]}])
    text = written(tmp_path / "text.jsonl", ROWS)
    with pytest.raises(InputError, match=r"prompt and completion as messages; allowed: text, as in the rows of the"):
        read_held_out(chat, base=base_of(folder), tokenizer=tokenizer, context=128)
    with pytest.raises(InputError, match=r"prompt and completion as text; allowed: messages"):
        read_held_out(text, base=base_of(folder, is_chat=True), tokenizer=tokenizer, context=128)
    # where the record does not tell, both are taken
    assert len(read_held_out(text, base=base_of(folder, is_chat=None), tokenizer=tokenizer, context=128).rows) == 4
