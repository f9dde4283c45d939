"""A family is one record: norms after the blocks and GELU, declared here alone, against transformers' Gemma 2 code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.models.gemma2 import modeling_gemma2

from cohort.core.errors import InputError
from cohort.models.families import ModelFamily
from cohort.models.families.family import NORMS_AROUND
from cohort.models.weights import load_decoder
from tests.core.plugin_packages import install
from tests.models.fixtures.gemma2_attention import eager_attention_in_float64
from tests.models.fixtures.streams import packed_logits
from tests.models.fixtures.tiny_checkpoints import SIZES


class ToyConfig(transformers.Gemma2Config):
    model_type = "toy-gelu"


class ToyForCausalLM(transformers.Gemma2ForCausalLM):
    config_class = ToyConfig


TOY = ModelFamily(
    model_type="toy-gelu",
    architecture="ToyForCausalLM",
    qkv_bias=lambda settings: bool(settings.attention_bias),
    output_bias=lambda settings: bool(settings.attention_bias),
    windows=lambda settings: (None,) * settings.num_hidden_layers,
    activation=lambda settings: str(settings.hidden_activation),
    norm_offset=1.0,
    norms=NORMS_AROUND,
    embedding_scale=lambda settings: settings.hidden_size**0.5,
    attention_scale=lambda settings: settings.query_pre_attn_scalar**-0.5,
)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    points = {TOY.model_type: f"{__name__}:TOY"}
    install(monkeypatch, tmp_path / "site", package="toy", group="cohort.model_families", points=points)
    transformers.AutoConfig.register("toy-gelu", ToyConfig)
    transformers.AutoModelForCausalLM.register(ToyConfig, ToyForCausalLM)
    yield
    CONFIG_MAPPING._extra_content.pop("toy-gelu")
    MODEL_FOR_CAUSAL_LM_MAPPING._extra_content.pop(ToyConfig)


def save_toy(folder: Path, **settings: Any) -> Path:
    torch.manual_seed(0)
    sizes = {**SIZES, "head_dim": 8, "query_pre_attn_scalar": 20, "layer_types": ["full_attention"] * 2}
    plain = {"attn_logit_softcapping": None, "final_logit_softcapping": None, "hidden_activation": "gelu"}
    model = ToyForCausalLM(ToyConfig(**{**sizes, **plain, **settings}))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(0.0, 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5)
            if "embed" in name:
                # transformers multiplies the rows by the root of the width
                parameter.mul_(0.5)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("settings", [{}, {"attention_bias": True, "hidden_activation": "gelu_pytorch_tanh"}])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_logits_equal_transformers(
    settings: dict[str, Any], dtype: torch.dtype, tolerance: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if dtype == torch.float64:
        monkeypatch.setattr(modeling_gemma2, "eager_attention_forward", eager_attention_in_float64)
    folder = save_toy(tmp_path, **settings)
    sequences = [torch.arange(length) * 5 % 67 for length in (1, 9, 40, 90)]
    decoder = load_decoder(folder, dtype=str(dtype).removeprefix("torch."))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager")
    with torch.no_grad():
        expected = [model(sequence[None]).logits[0] for sequence in sequences]
    for ours, theirs in zip(packed_logits(decoder, sequences), expected, strict=True):
        assert theirs.abs().max() > 0.5, "logits near zero would hide a mistake"
        torch.testing.assert_close(ours, theirs, rtol=0, atol=tolerance)


def test_what_no_kernel_covers_is_said(tmp_path: Path) -> None:
    config = load_decoder(save_toy(tmp_path)).config
    assert config.slow_paths == (
        "attention, with scores scaled by 0.223607",
        "the activation gelu, outside of the fused feed-forward block",
    )
    assert not config.attention_rule(0).suits_kernels


def test_an_activation_without_code_is_refused(tmp_path: Path) -> None:
    folder = save_toy(tmp_path, hidden_activation="relu2")
    with pytest.raises(InputError, match=r"hidden_activation: found 'relu2'; allowed: 'silu', 'swish', 'gelu'"):
        load_decoder(folder)
