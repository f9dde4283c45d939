"""Reading config.json: old spellings, and every way in which it can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cohort.core.errors import UnsupportedModelError
from cohort.models.weights import load_decoder
from tests.models.fixtures.tiny_checkpoints import edit_config, problems_of


def test_old_rotary_settings_are_read(checkpoint: Path) -> None:
    path = checkpoint / "config.json"
    settings = json.loads(path.read_text())
    settings.pop("rope_parameters")
    path.write_text(json.dumps({**settings, "rope_theta": 77.0, "rope_scaling": {"type": "linear", "factor": 4.0}}))
    rotary = load_decoder(checkpoint).config.rotary
    assert rotary.rope_type == "linear"
    assert rotary.inverse_frequencies[:2] == pytest.approx((1 / 4, 77.0 ** (-1 / 3) / 4))


def test_stop_tokens_come_from_the_generation_settings(checkpoint: Path) -> None:
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6]}))
    assert load_decoder(checkpoint).config.eos_token_ids == (5, 6)


def test_what_predicts_no_next_token_is_named_and_what_works_is_listed(checkpoint: Path) -> None:
    edit_config(checkpoint, model_type="llama", architectures=["LlamaForSequenceClassification"])
    with pytest.raises(UnsupportedModelError, match=r"LlamaForSequenceClassification.*natively: .*Llama, .*Qwen3,"):
        load_decoder(checkpoint)


def test_unsupported_settings_are_listed_at_once(checkpoint: Path) -> None:
    edit_config(
        checkpoint,
        hidden_act="relu2",
        attention_dropout=0.1,
        quantization_config={"quant_method": "gptq", "bits": 4},
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "factor": 2.0,
            "short_factor": [1.0] * 3,
            "long_factor": [2.0] * 3,
            "original_max_position_embeddings": 64,
        },
    )
    problems = problems_of(checkpoint)
    assert [problem.split(": found")[0].rsplit(" ", 1)[-1] for problem in problems] == [
        "hidden_act",
        "attention_dropout",
        "quantization_config",
        "rope_parameters.rope_type",
    ]


def test_a_broken_config_names_file_and_line(checkpoint: Path) -> None:
    (checkpoint / "config.json").write_text('{"model_type": "llama",\n "hidden_size": }')
    (problem,) = problems_of(checkpoint)
    assert "config.json:2" in problem
    (checkpoint / "config.json").unlink()
    (problem,) = problems_of(checkpoint)
    assert "config.json: found no such file" in problem


def test_sizes_that_contradict_each_other(checkpoint: Path) -> None:
    edit_config(checkpoint, num_key_value_heads=3)
    (problem,) = problems_of(checkpoint)
    assert "num_kv_heads" in problem
    edit_config(checkpoint, num_key_value_heads=2, hidden_size="wide")
    (problem,) = problems_of(checkpoint)
    assert "hidden_size" in problem


@pytest.mark.parametrize("key", ["num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_a_size_of_zero_is_refused(checkpoint: Path, key: str) -> None:
    edit_config(checkpoint, **{key: 0})
    assert len(problems_of(checkpoint)) >= 1
