"""Small checkpoints that were trained for seconds, so that their adapters have something to build on."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.end_to_end.tiny_tasks import write_inputs
from tests.models.bridge.architectures import save_tiny

__all__ = ["differences", "pretrain", "write_pretrained"]

# of the tokenizer of tiny tasks
VOCABULARY = 258


def differences() -> list[str]:
    """Return all differences of two digits, of which a model learns digits, signs and where an answer ends."""
    return [f"{a}-{b}={a - b}</s>" for a in range(10) for b in range(10)]


def pretrain(folder: Path, texts: Sequence[str], *, steps: int, batch_size: int, seed: int = 0) -> float:
    """Train all weights of the checkpoint in ``folder`` on texts; return the mean loss of the last ten steps."""
    torch.manual_seed(seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    rows = [torch.tensor(tokenizer(text)["input_ids"]) for text in texts]
    rng, losses = random.Random(seed), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        picked = rng.sample(rows, batch_size)
        tokens = torch.nn.utils.rnn.pad_sequence(picked, batch_first=True, padding_value=1)
        targets = torch.nn.utils.rnn.pad_sequence(picked, batch_first=True, padding_value=-100)
        # causal, and padded behind: what is padding changes nothing before it
        logits = model(input_ids=tokens, use_cache=False).logits
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    model.save_pretrained(folder)
    return sum(losses[-10:]) / 10


def write_pretrained(folder: Path, name: str, *, steps: int, batch_size: int = 16) -> Path:
    """Write rows, tokenizer and a model type's small checkpoint, trained on differences, for tasks about sums."""
    write_inputs(folder)
    (folder / "model" / "model.safetensors").unlink()
    save_tiny(name, folder / "model", vocabulary=VOCABULARY)
    assert pretrain(folder / "model", differences(), steps=steps, batch_size=batch_size) < 2.0, "it has learned little"
    return folder
