"""A config.json that states everything gives what transformers makes of it; anything open or odd is left to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from cohort.core.errors import InputError
from cohort.models import config_file
from cohort.models.config_file import read_config
from cohort.models.stated_settings import NotStatedError, StatedSettings, stated_tokenizer_class
from tests.models.fixtures.tiny_checkpoints import SIZES, edit_config

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def save_config(folder: Path, family: str, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **settings})
    config.architectures = [f"{family}ForCausalLM"]
    config.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COHORT_CACHE_DIR", str(tmp_path / "caches"))


def asking(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Any:
    """Read the configuration as transformers gives it, or its problems."""

    def nothing_is_stated(_: Any) -> Any:
        raise NotStatedError("anything")

    with monkeypatch.context() as patch:
        patch.setattr(config_file, "_stated", nothing_is_stated)
        return found(folder)


def found(folder: Path) -> Any:
    try:
        return read_config(folder)
    except InputError as error:
        return [str(problem) for problem in error.problems]


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("Llama", {}),
        (
            "Llama",
            {"attention_bias": True, "tie_word_embeddings": True, "rope_parameters": {**LLAMA3, "rope_theta": 7e4}},
        ),
        ("Mistral", {"sliding_window": None}),
        ("Qwen3", {"num_hidden_layers": 3}),
    ],
)
def test_a_saved_configuration_is_read_without_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, settings: dict[str, Any]
) -> None:
    folder = save_config(tmp_path / "model", family, **settings)
    expected = asking(monkeypatch, folder)

    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("transformers was asked")

    monkeypatch.setattr(config_file, "answered", refuse)
    assert read_config(folder) == expected


def test_the_spelling_of_transformers_4_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_config(tmp_path / "model", "Llama")
    path = folder / "config.json"
    settings = json.loads(path.read_text())
    settings.pop("rope_parameters")
    for scaling in (None, LLAMA3):
        path.write_text(json.dumps({**settings, "rope_theta": 500000.0, "rope_scaling": scaling}))
        expected = asking(monkeypatch, folder)
        assert read_config(folder) == expected
        assert expected.rotary.rope_type == ("default" if scaling is None else "llama3")


@pytest.mark.parametrize(
    "changes",
    [
        {"num_key_value_heads": None},
        {"head_dim": None},
        {"hidden_size": "wide"},
        {"hidden_size": True},
        {"num_key_value_heads": 3},
        {"rms_norm_eps": "small"},
        {"eos_token_id": [3, 4]},
        {"eos_token_id": "</s>"},
        {"hidden_act": "relu2"},
        {"attention_dropout": 0.5},
        {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}},
        {"rope_parameters": 3, "rope_theta": 1e4},
    ],
    ids=str,
)
def test_what_is_open_or_odd_is_as_transformers_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    folder = save_config(tmp_path / "model", "Llama")
    edit_config(folder, **changes)
    assert found(folder) == asking(monkeypatch, folder)


def test_a_setting_that_is_not_stated_is_not_replaced_by_a_default() -> None:
    settings: Any = StatedSettings({"hidden_size": 8, "layer_types": ["full_attention"], "num_hidden_layers": 2})
    assert settings.hidden_size == 8
    for name in ("head_dim", "layer_types", "sliding_window", "quantity"):
        with pytest.raises(NotStatedError):
            getattr(settings, name, None)


def test_the_tokenizers_class_is_taken_from_its_settings(tmp_path: Path, repository: Path) -> None:
    folder = save_config(tmp_path / "model", "Llama")
    assert stated_tokenizer_class(folder) is None
    (folder / "tokenizer.json").write_text("{}")
    for settings, expected in (
        ({"tokenizer_class": "TokenizersBackend"}, "TokenizersBackend"),
        ({"tokenizer_class": "PreTrainedTokenizerFast"}, "PreTrainedTokenizerFast"),
        ({"tokenizer_class": "PreTrainedTokenizerFast", "auto_map": {}}, None),
        ({"tokenizer_class": "LlamaTokenizer"}, None),
        ({}, None),
        ([], None),
    ):
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        assert stated_tokenizer_class(folder) == expected
    real = repository.parent / "shared" / "models" / "stories260K" / "hf"
    kind = stated_tokenizer_class(real) if real.is_dir() else None
    if kind is not None:
        own = getattr(transformers, kind).from_pretrained(real)
        theirs = transformers.AutoTokenizer.from_pretrained(real)
        assert type(own) is type(theirs)
        text = "Once upon a time, <s> there\nwas"
        assert own(text)["input_ids"] == theirs(text)["input_ids"]
        assert own.special_tokens_map == theirs.special_tokens_map
