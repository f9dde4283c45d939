"""The names are those that PEFT itself writes."""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

from cohort.adapters.peft_files.peft_names import LORA_A, LORA_B, MAGNITUDE, PREFIX


class Model(torch.nn.Module):
    """One linear below another module."""

    def __init__(self) -> None:
        super().__init__()
        self.block = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(4, 3)})


def test_a_dora_adapter_of_peft_has_these_names() -> None:
    wrapped = get_peft_model(Model(), LoraConfig(r=2, target_modules=["q_proj"], use_dora=True))
    names = set(get_peft_model_state_dict(wrapped))
    assert names == {f"{PREFIX}block.q_proj{end}" for end in (LORA_A, LORA_B, MAGNITUDE)}
