"""The text part of a checkpoint with images: trained, loaded by PEFT and merged; the rest is left as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from cohort.adapters.peft_files.merge import merge_into_base
from cohort.adapters.peft_files.peft_format import read_adapter
from cohort.models.config_file import read_config
from tests.models.bridge.architectures import tiny_config
from tests.models.bridge.comparison import compare
from tests.models.bridge.models_page import require_equal


def gemma3() -> Any:
    return Gemma3ForConditionalGeneration(
        Gemma3Config(
            text_config=tiny_config("gemma3_text").to_dict(),
            vision_config={
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            mm_tokens_per_image=4,
            image_token_index=90,
            boi_token_index=91,
            eoi_token_index=92,
        )
    )


def qwen3_5() -> Any:
    return Qwen3_5ForConditionalGeneration(
        Qwen3_5Config(
            text_config=tiny_config("qwen3_5_text").to_dict(),
            vision_config={
                "depth": 2,
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_heads": 2,
                "out_hidden_size": 64,
                "patch_size": 14,
            },
            image_token_id=90,
            video_token_id=91,
            vision_start_token_id=92,
            vision_end_token_id=93,
        )
    )


@pytest.mark.parametrize(
    ("build", "left_alone"), [(gemma3, ("multi_modal_projector", "vision_tower")), (qwen3_5, ("vision",))]
)
def test_the_text_part_tunes_and_merges(tmp_path: Path, build: Any, left_alone: tuple[str, ...]) -> None:
    torch.manual_seed(0)
    model = build().float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    base, merged = tmp_path / "model", tmp_path / "merged"
    model.save_pretrained(base)
    require_equal(compare(base))
    bridged = read_config(base).bridged
    assert bridged is not None
    assert bridged.left_alone == left_alone
    assert not any("vis" in name for name, _, _ in bridged.linears)
    merged.mkdir()
    # the text part has other paths in the files than in the model that transformers builds
    merge_into_base(base, read_adapter(base / "adapter"), merged, shards=[base / "model.safetensors"])
    before, after = (load_file(folder / "model.safetensors") for folder in (base, merged))
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert len(changed) == len(bridged.linears)
    ids = torch.arange(5, 30)[None]
    plain: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    whole: Any = AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32)
    with torch.no_grad():
        adapted = PeftModel.from_pretrained(plain, base / "adapter").eval()(input_ids=ids).logits
        torch.testing.assert_close(whole(input_ids=ids).logits, adapted, rtol=1e-4, atol=1e-4)
