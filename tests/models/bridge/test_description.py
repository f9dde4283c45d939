"""What a checkpoint of no native family is, and what cannot be one, said before a weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from cohort.core.errors import InputError, UnsupportedModelError
from cohort.models.bridge import description
from cohort.models.checkpoint_layout import linear_shapes, module_names
from cohort.models.config import DecoderConfig
from cohort.models.config_file import read_config
from cohort.models.counts import count_model, weight_bytes
from cohort.models.weights import load_decoder
from tests.models.bridge.architectures import save_tiny


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny("gpt_oss", tmp_path)


def edited(folder: Path, **settings: Any) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))
    return folder


def test_linears_and_bytes_are_those_of_the_loaded_model(folder: Path) -> None:
    config, decoder = read_config(folder), load_decoder(folder)
    assert linear_shapes(config) == decoder.linears
    found = weight_bytes(config, dtype=torch.float32)
    # rotary tables and what counts steps
    assert found == pytest.approx(decoder.num_bytes, rel=0.01)
    assert config.architecture == "GptOssForCausalLM"
    assert config.num_layers == 4


def test_a_token_passes_some_of_the_experts(folder: Path) -> None:
    config = read_config(folder)
    assert config.bridged is not None
    assert config.bridged.experts_per_token == 2
    counts = count_model(config)
    # two of four experts: the weights of all, the work of half
    assert counts.linear_flops_per_token < 2 * counts.parameters
    assert counts.linear_flops_per_token > 2 * counts.linear_parameters


def test_names_of_other_modules_follow_those_of_the_linears(folder: Path) -> None:
    names = module_names(read_config(folder))
    assert names[0] == "model.layers.0.self_attn.q_proj"
    assert "lm_head" in names


@pytest.mark.parametrize(("name", "factor", "cap"), [("arcee", 1.0, None), ("cohere", 0.0625, None)])
def test_factors_on_the_logits_are_read(tmp_path: Path, name: str, factor: float, cap: float | None) -> None:
    config: DecoderConfig = read_config(save_tiny(name, tmp_path))
    assert config.bridged is not None
    assert config.bridged.head_scale == factor
    assert config.logit_cap == cap


def test_a_class_that_predicts_nothing_is_refused(folder: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"GptOssForTokenClassification, which predicts no next token"):
        read_config(edited(folder, architectures=["GptOssForTokenClassification"]))


def test_an_encoder_with_a_decoder_is_refused(folder: Path) -> None:
    wrong = edited(folder, model_type="t5", architectures=["T5ForConditionalGeneration"], is_encoder_decoder=True)
    with pytest.raises(UnsupportedModelError, match="T5ForConditionalGeneration, an encoder with a decoder"):
        read_config(wrong)


def test_a_model_of_a_newer_transformers_says_which(folder: Path) -> None:
    newer = edited(folder, model_type="quokka", architectures=["QuokkaForCausalLM"], transformers_version="6.1.0")
    with pytest.raises(
        UnsupportedModelError, match=r"QuokkaForCausalLM, which transformers .* does not have; .*6\.1\.0"
    ):
        read_config(newer)


def test_a_model_without_a_linear_in_its_layers_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(description, "plain_linears", lambda *_: [])
    with pytest.raises(InputError, match="GptOssForCausalLM, whose layers have no linear that an adapter could adapt"):
        read_config(edited(folder, note="its linears are of another kind"))


def test_code_from_a_checkpoint_is_not_run(folder: Path) -> None:
    code = {"AutoModelForCausalLM": "modeling_quokka.QuokkaForCausalLM"}
    (folder / "modeling_quokka.py").write_text("raise SystemExit('it was run')\n")
    with pytest.raises(UnsupportedModelError, match=r"runs code of its own \(modeling_quokka\.py\)"):
        read_config(edited(folder, model_type="quokka", architectures=["QuokkaForCausalLM"], auto_map=code))


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_weights_that_are_stored_quantised_are_refused(folder: Path, method: str) -> None:
    with pytest.raises(InputError, match=f"weights stored as {method}.*unquantised checkpoint"):
        read_config(edited(folder, quantization_config={"quant_method": method}))


def test_broken_settings_are_told_in_transformers_words(folder: Path) -> None:
    with pytest.raises(InputError, match=r"config\.json: found .*settings that transformers accepts"):
        read_config(edited(folder, num_attention_heads="four"))


def test_missing_and_misshapen_tensors_are_listed_at_once(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.self_attn.q_proj.weight"]
    tensors["model.norm.weight"] = torch.ones(3)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(InputError) as caught:
        load_decoder(folder)
    said = str(caught.value)
    assert "model.layers.1.self_attn.q_proj.weight: found no such tensor" in said
    assert "model.norm.weight" in said
