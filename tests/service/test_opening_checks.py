"""What a server is refused before it loads: formats and lengths; what it decides where nothing is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from cohort.core.errors import InputError
from cohort.models.weights import load_decoder
from cohort.service.opening_checks import require_context, serving_machine
from cohort.service.settings import ServedSettings
from tests.models.bridge.architectures import save_tiny


def test_the_format_is_the_runs_unless_another_is_asked_for(model: Path) -> None:
    settings = ServedSettings(model=str(model), gpus=0)
    assert serving_machine(settings, model, trained="nf4").quantization == "nf4"
    assert serving_machine(settings, model, trained=None).quantization == "none"
    asked = ServedSettings(model=str(model), gpus=0, quantization="int8")
    assert serving_machine(asked, model, trained="nf4").quantization == "int8"


def test_more_than_the_models_context_is_refused(model: Path) -> None:
    decoder = load_decoder(model)
    require_context(ServedSettings(model=str(model), max_model_len=384), decoder)
    with pytest.raises(InputError, match="found 385; allowed: at most 384, the model's context"):
        require_context(ServedSettings(model=str(model), max_model_len=385), decoder)


def test_a_model_that_transformers_computes_is_not_divided(tmp_path: Path) -> None:
    folder = save_tiny("gpt_neox", tmp_path)
    whole = ServedSettings(model=str(folder), gpus=0)
    assert serving_machine(whole, folder, trained=None).quantization == "none"
    divided = ServedSettings(model=str(folder), gpus=0, tensor_parallel_size=2)
    with pytest.raises(InputError, match="--tensor-parallel-size: found 2 with GPTNeoXForCausalLM"):
        serving_machine(divided, folder, trained=None)
