"""Adapters on the experts of real architectures: training, files and loading as transformers and PEFT have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.peft_files.peft_format import rank_rows_from_peft, read_adapter
from cohort.core.errors import InputError
from cohort.kernels.segments import SegmentTable
from cohort.models.attention import PackedAttention
from cohort.models.checkpoint_layout import adapter_layout, expert_parameters
from cohort.models.config_file import read_config
from cohort.models.weights import load_decoder
from tests.models.bridge.architectures import save_tiny
from tests.models.bridge.comparison import compare

# gpt-oss keeps its experts with the input's axis first, interleaves gate and up, and has biases
MIXTURES = [
    "qwen3_moe",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("gpt_oss", "mixtral", "qwen3_5_moe_text")),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MIXTURES)
def test_training_is_as_with_peft(name: str, tmp_path: Path) -> None:
    found = compare(save_tiny(name, tmp_path), adapts_experts=True)
    assert {"gate_up_proj", "down_proj"} <= set(found.adapted)
    assert found.logits < 1e-5
    assert found.losses < 1e-5
    assert found.weights < 1e-5
    assert found.loaded < 1e-5
    assert found.is_isolated


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny("qwen3_moe", tmp_path_factory.mktemp("qwen3_moe"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("modules", "parameters", "pattern"),
    [
        (["q_proj", "o_proj"], ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"], {}),
        ([], ["mlp.experts.down_proj"], {}),
        (["v_proj"], ["gate_up_proj"], {r".*\.gate_up_proj": 6}),
        ([], ["layers.1.mlp.experts.gate_up_proj", "layers.2.mlp.experts.down_proj"], {}),
    ],
)
def test_an_adapter_of_peft_s_gives_its_logits(
    mixture: Path, tmp_path: Path, modules: list[str], parameters: list[str], pattern: dict[str, int]
) -> None:
    base: Any = AutoModelForCausalLM.from_pretrained(mixture, dtype=torch.float32)
    lora = LoraConfig(
        r=4, lora_alpha=12, target_modules=modules, target_parameters=parameters, rank_pattern=pattern, use_rslora=True
    )
    model = get_peft_model(base, lora)
    torch.manual_seed(3)
    for parameter in model.parameters():
        if parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    tokens = torch.arange(5, 30)
    with torch.no_grad():
        expected = model.eval()(input_ids=tokens[None], use_cache=False).logits[0]

    decoder = load_decoder(mixture, dtype="float32", device="cpu")
    adapter = read_adapter(tmp_path)
    targets = [*adapter.modules]
    experts = expert_parameters(decoder.config)
    layout = adapter_layout(decoder.config, [*(name for name in targets if name in decoder.linears), *experts])
    bank = AdapterBank(layout, num_slots=1, num_rank_rows=16)
    bank.insert(adapter.spec, AdapterState(weights=rank_rows_from_peft(layout, adapter)))
    segments = SegmentTable.from_samples([25], slots=[0], num_slots=1, num_rows=25)
    with torch.no_grad():
        hidden = decoder.forward(
            tokens, positions_T=torch.arange(25), attention=PackedAttention((0, 25)), lora=bank.context(segments)
        )
        found = decoder.logits(hidden)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad(), PeftModel.disable_adapter(model):
        assert (expected - model(input_ids=tokens[None], use_cache=False).logits[0]).abs().max() > 1e-2


@pytest.mark.parametrize(
    ("named", "words"),
    [
        ([], "no such linear in this model"),
        (["mlp.experts.gate_up_proj"], "2 pairs of factors of model.layers.0.mlp.experts"),
        (["mlp.experts.gate_up_proj", "mlp.experts.up_proj"], "up_proj"),
    ],
)
def test_a_file_that_does_not_say_its_parameters_is_refused(
    mixture: Path, tmp_path: Path, named: list[str], words: str
) -> None:
    base: Any = AutoModelForCausalLM.from_pretrained(mixture, dtype=torch.float32)
    lora = LoraConfig(r=4, target_modules=[], target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"])
    get_peft_model(base, lora).save_pretrained(tmp_path)
    path = tmp_path / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "target_parameters": named}))
    config = read_config(mixture)
    with pytest.raises(InputError, match=words):
        rank_rows_from_peft(adapter_layout(config, expert_parameters(config)), read_adapter(tmp_path))
