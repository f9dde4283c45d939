"""Small decoders with adapters, in a bank and on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import save_file

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_format import rank_rows_from_peft, read_adapter
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.serving.generate import GenerateRequest, generate
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

__all__ = ["RANKS", "STOP", "Served", "serve"]

RANKS = (4, 8, 5)
STOP = 11


@dataclass
class Served:
    """A decoder with adapters in its bank, and where model and adapters are saved."""

    decoder: Decoder
    bank: AdapterBank
    model: Path
    adapters: list[Path]

    def generate(self, requests: Sequence[GenerateRequest], **settings: Any) -> list[list[int]]:
        settings = {"stop_ids": {STOP}, **settings}
        return generate(self.decoder, requests, lora_for=self.bank.context, num_slots=self.bank.num_slots, **settings)


def serve(folder: Path, family: str, **settings: Any) -> Served:
    model = save_checkpoint(folder / "model", family, max_position_embeddings=96, **settings)
    decoder = load_decoder(model)
    layout = AdapterLayout(decoder.linears)
    bank = AdapterBank(layout, num_slots=4, num_rank_rows=64)
    adapters = []
    for index, r in enumerate(RANKS):
        base = transformers.AutoModelForCausalLM.from_pretrained(model)
        config = peft.LoraConfig(r=r, lora_alpha=2 * r, target_modules="all-linear", task_type="CAUSAL_LM")
        adapted = peft.get_peft_model(base, config)
        torch.manual_seed(index)
        tensors = {
            name: torch.randn_like(tensor) * tensor.shape[1] ** -0.5
            for name, tensor in peft.get_peft_model_state_dict(adapted).items()
        }
        path = folder / f"adapter{index}"
        adapted.save_pretrained(path)
        save_file(tensors, path / "adapter_model.safetensors")
        stored = read_adapter(path)
        slot = bank.insert(stored.spec, AdapterState(weights=rank_rows_from_peft(layout, stored)))
        assert slot == index
        adapters.append(path)
    return Served(decoder, bank, model, adapters)
