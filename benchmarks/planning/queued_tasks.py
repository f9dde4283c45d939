"""The tasks of ``run_tasks.py``: a random base model, rows of sums, and task files of two kinds and any length."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

__all__ = ["EARLY_EXIT", "SHAPES", "TASKS", "Shape", "TaskKind", "write_model", "write_task"]

# both selections, at known moments; the detectors, which end trials at moments that depend on their losses, are off
EARLY_EXIT = {"warmup_fraction": 0.1, "select_fraction": 0.5, "slope_threshold": 1e6, "gap_threshold": 1e6}
RATES = [1e-4, 3e-4, 1e-3, 3e-3]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What tasks are like but for their length: rows, ranks, examples a step."""

    terms: int
    ranks: tuple[int, ...]
    batch_size: int


# the two kinds of task have steps of different cost; units of time are what they are given
SHAPES = {
    "long rows": Shape(terms=48, ranks=(8, 32), batch_size=2),
    "short rows": Shape(terms=16, ranks=(4, 16), batch_size=4),
}


@dataclass(frozen=True, kw_only=True)
class TaskKind:
    """A task of the instance: its shape, its length in units of time, and its priority."""

    name: str
    shape: str
    units: float
    priority: int = 0


# in the order in which they are submitted
TASKS = (
    TaskKind(name="sums", shape="short rows", units=2.0),
    TaskKind(name="chains", shape="long rows", units=3.0, priority=1),
    TaskKind(name="pairs", shape="short rows", units=2.0),
    TaskKind(name="ledger", shape="long rows", units=2.0),
    TaskKind(name="digits", shape="short rows", units=3.0),
)


def write_model(folder: Path, *, is_small: bool) -> None:
    """Write a random Llama with a byte-level tokenizer: 0.2 billion parameters, or a tiny one for the CPU."""
    import torch

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<s>": 0, "</s>": 1, **{letter: index + 2 for index, letter in enumerate(alphabet)}}
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    width = 64 if is_small else 1024
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=2 if is_small else 16,
        num_attention_heads=width // 16 if is_small else 16,
        num_key_value_heads=width // 32 if is_small else 8,
        max_position_embeddings=1024,
        bos_token_id=0,
        eos_token_id=1,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def _write_rows(path: Path, *, terms: int, seed: int, count: int = 256) -> None:
    rng = random.Random(seed)
    lines = []
    for _ in range(count):
        numbers = [rng.randrange(10) for _ in range(rng.randint(terms // 2, terms))]
        lines.append(json.dumps({"prompt": "+".join(map(str, numbers)) + "=", "completion": str(sum(numbers))}))
    path.write_text("\n".join(lines) + "\n")


def write_task(folder: Path, name: str, shape: Shape, *, steps: int, priority: int = 0, seed: int = 0) -> Path:
    """Write rows and a task file of ``steps`` optimizer steps; return the file."""
    _write_rows(folder / f"{name}.jsonl", terms=shape.terms, seed=seed)
    task = {
        "base_model": "model",
        "dataset": {"train": f"{name}.jsonl", "validation": 0.125, "max_length": 256},
        "training": {"max_steps": steps, "batch_size": shape.batch_size},
        "evaluation": {"max_examples": 16, "every_fraction": 0.1},
        "search": {"space": {"learning_rate": RATES, "r": list(shape.ranks), "lora_alpha": "2r"}},
        "early_exit": EARLY_EXIT,
        "priority": priority,
    }
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(task, indent=1))
    return path
