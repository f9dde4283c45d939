"""A task that tunes in a second: a random two-layer model, a byte-level tokenizer, and sums of one digit."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

__all__ = ["TASK", "write_rows", "write_tiny_model", "write_tiny_task"]

TASK = """base_model: model
dataset:
  train: train.jsonl
  validation: 0.25
  max_length: 64
lora: {target_modules: [q_proj, v_proj], lora_alpha: 2r}
training: {max_steps: 6, batch_size: 2}
evaluation: {max_examples: 4}
search:
  space:
    learning_rate: [1e-3, 1e-2]
    r: [2, 4]
early_exit: none
num_gpus: 0
"""


def write_tiny_model(
    folder: Path, *, num_layers: int = 2, max_positions: int = 128, num_heads: int = 4, num_kv_heads: int = 2
) -> Path:
    """Save a random Llama and its tokenizer to ``folder``."""
    # seconds of imports, which processes that only read the model do without
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, **{letter: index + 2 for index, letter in enumerate(alphabet)}}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        max_position_embeddings=max_positions,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def write_rows(path: Path, *, count: int = 24) -> None:
    """Write ``count`` different sums."""
    rng = random.Random(0)
    pairs = rng.sample([(a, b) for a in range(10) for b in range(10)], count)
    rows = ({"prompt": f"{a}+{b}=", "completion": str(a + b)} for a, b in pairs)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_tiny_task(folder: Path) -> Path:
    """Write model, rows and task file to ``folder`` and return the task file."""
    write_tiny_model(folder / "model")
    write_rows(folder / "train.jsonl")
    (folder / "task.yaml").write_text(TASK)
    return folder / "task.yaml"
