"""What the command line is timed on: a model with random weights, rows with GSM8K's lengths, and a task file.

Words are drawn by Zipf's law, so that losses fall as trials learn which words are frequent, and early exit has
something to compare.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.llama_shapes import gsm8k_lengths, hf_config
from benchmarks.sweeps.sweep_grid import BATCH_SIZES, LEARNING_RATES, RANKS

__all__ = ["write_inputs", "write_model", "write_task"]

NUM_VALIDATION_ROWS = 64


def write_inputs(folder: Path, *, shape: str, num_layers: int | None, num_rows: int) -> list[tuple[int, int]]:
    """Write model, tokenizer, rows and task file; return (prompt, completion) lengths of the training rows."""
    write_model(folder / "model", hf_config(shape, num_layers=num_layers))
    return write_task(folder, model=Path("model"), shape=shape, num_rows=num_rows)


def write_task(
    folder: Path, *, model: Path, shape: str, num_rows: int, quantization: str = "none"
) -> list[tuple[int, int]]:
    """Write rows and a task of 60 trials, one epoch, with early exit and evaluations as they are by default.

    Args:
        folder: Where to; it is made.
        model: Of the task, from ``folder``.
        shape: The model's; rows of a tiny one are short.
        num_rows: Training rows.
        quantization: The base model's format.

    Returns:
        (prompt, completion) lengths of the training rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recorded = gsm8k_lengths()
    rng = np.random.default_rng(0)
    chosen = [recorded[i] for i in rng.choice(len(recorded), size=num_rows + NUM_VALIDATION_ROWS, replace=False)]
    if shape == "tiny":
        chosen = [(prompt // 8 + 1, completion // 8 + 1) for prompt, completion in chosen]
    for name, pairs in (("train", chosen[:num_rows]), ("validation", chosen[num_rows:])):
        lines = []
        for prompt, completion in pairs:
            # one token a word; the completion's last token is the end of sequence that training adds
            words = [f"w{rank}" for rank in np.minimum(rng.zipf(1.3, size=prompt + completion - 1), 400)]
            lines.append(json.dumps({"prompt": " ".join(words[:prompt]), "completion": " " + " ".join(words[prompt:])}))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    task: dict[str, Any] = {
        "model_name_or_path": str(model),
        "dataset": {"train": "train.jsonl", "validation": "validation.jsonl", "format": "prompt_completion"},
        "training": {"num_train_epochs": 1},
        "search": {
            "space": {
                "learning_rate": list(LEARNING_RATES),
                "r": list(RANKS),
                "lora_alpha": "2r",
                "batch_size": list(BATCH_SIZES),
            }
        },
    }
    if quantization != "none":
        task["quantization"] = quantization
    (folder / "task.yaml").write_text(json.dumps(task, indent=1), encoding="utf-8")
    return chosen[:num_rows]


def write_model(folder: Path, config: dict[str, Any]) -> None:
    """Write a model with random weights, and a tokenizer of one token a word."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {"</s>": 0, "<unk>": 1, **{f"w{index}": index + 2 for index in range(config["vocab_size"] - 2)}}
    backend = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>").save_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**{**config, "bos_token_id": None, "eos_token_id": 0}))
    # files as large as those that published models of 8B have
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="5GB")
    del model
    if device == "cuda":
        torch.cuda.empty_cache()
