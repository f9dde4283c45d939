"""A tokenizer loads from a checkpoint's own files, or the error says what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.engine.tune import tune
from cohort.models.tokenizer import load_tokenizer
from tests.end_to_end.tiny_tasks import tiny_task, write_inputs
from tests.models.fixtures.tiny_checkpoints import edit_config


def test_a_model_without_a_tokenizer(checkpoint: Path) -> None:
    with pytest.raises(InputError, match="no tokenizer's files"):
        load_tokenizer(checkpoint)
    # where transformers has what reads such a file, it does
    for name in ("tekken.json", "tokenizer.json"):
        (checkpoint / name).write_text("{")
        with pytest.raises(InputError, match="no tokenizer that loads"):
            load_tokenizer(checkpoint)


def test_a_tokenizer_loads(repository: Path) -> None:
    folder = repository.parent / "shared" / "models" / "stories260K" / "hf"
    if not folder.is_dir():
        pytest.skip("the pretrained model stories260K is not on this machine")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.decode(tokenizer("Once upon a time")["input_ids"], skip_special_tokens=True) == "Once upon a time"


def without(folder: Path, *names: str) -> Path:
    """Take special tokens out of a tokenizer's settings."""
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / file
        if path.is_file():
            kept = {key: value for key, value in json.loads(path.read_text()).items() if key not in names}
            path.write_text(json.dumps(kept))
    return folder


def test_without_an_end_token_the_model_s_is_taken(tmp_path: Path) -> None:
    folder = write_inputs(tmp_path) / "model"
    end = load_tokenizer(folder).eos_token
    edit_config(without(folder, "eos_token", "pad_token"), eos_token_id=[2, 3])
    (folder / "generation_config.json").unlink(missing_ok=True)
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == (tokenizer.convert_ids_to_tokens(2), 2)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert load_tokenizer(folder).eos_token_id == 3
    assert end is not None


def test_a_task_needs_no_padding_token(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    without(tmp_path / "model", "pad_token", "eos_token")
    assert load_tokenizer(tmp_path / "model").pad_token_id is None
    sections = {"training": {"max_steps": 2}, "search": {"space": {"r": [2]}}, "early_exit": "none"}
    tune(tiny_task(tmp_path, **sections, evaluation={"metric": "exact_match", "max_new_tokens": 3}), tmp_path / "run")
    assert (tmp_path / "run" / "best" / "adapter_model.safetensors").is_file()


def test_without_any_end_the_message_says_where_to_write_it(tmp_path: Path) -> None:
    write_inputs(tmp_path)
    edit_config(without(tmp_path / "model", "eos_token"), eos_token_id=None)
    (tmp_path / "model" / "generation_config.json").unlink(missing_ok=True)
    with pytest.raises(InputError, match=r"Set eos_token in tokenizer_config\.json"):
        tune(tiny_task(tmp_path), tmp_path / "run")
