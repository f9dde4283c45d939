"""A Llama of 16 million parameters pretrained on the corpus of ``study_data.py``: the base of the early-exit study.

The study needs a base model that knows enough for fine-tuning to matter and is small enough for whole grids to be
trained to their end; models of a few hundred thousand parameters are too small for that. transformers' own model and
training in bfloat16: nothing of what is studied takes part. The checkpoint with the lowest held-out loss is written.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.measure import machine, versions

# windows of the held-out text that are looked at, and how often
HELD_OUT_WINDOWS = 64
LOOKS = 12


def build(arguments: argparse.Namespace, *, vocab_size: int, end_id: int) -> Any:
    """Return a freshly initialised LlamaForCausalLM with tied embeddings."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=arguments.hidden_size,
        intermediate_size=int(arguments.hidden_size * 2.75 // 64 * 64),
        num_hidden_layers=arguments.layers,
        num_attention_heads=arguments.hidden_size // 64,
        num_key_value_heads=arguments.hidden_size // 64,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=end_id,
        eos_token_id=end_id,
    )
    torch.manual_seed(arguments.seed)
    return LlamaForCausalLM(config)


def windows(tokens: Tensor, *, length: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Yield batches [batch_size, length] for ever: each epoch cuts the stream at another place and shuffles."""
    random = np.random.default_rng(seed)
    while True:
        first = int(random.integers(length))
        count = (len(tokens) - first) // length
        cut = tokens[first : first + count * length].view(count, length)
        order = torch.from_numpy(random.permutation(count)).to(tokens.device)
        for start in range(0, count - batch_size + 1, batch_size):
            yield cut[order[start : start + batch_size]].long()


def loss_of(model: Any, ids_BL: Tensor, *, device: str) -> Tensor:
    """Return the mean loss of the next token in nats."""
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        logits_BLV = model(input_ids=ids_BL).logits
    return torch.nn.functional.cross_entropy(logits_BLV[:, :-1].flatten(0, 1).float(), ids_BL[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: Any, held_out: Tensor, *, length: int, device: str) -> float:
    """Return the mean loss over the first windows of the held-out text."""
    count = min(HELD_OUT_WINDOWS, len(held_out) // length)
    cut = held_out[: count * length].view(count, length).long()
    return float(torch.stack([loss_of(model, part, device=device) for part in cut.split(16)]).mean())


def pretrain(model: Any, arguments: argparse.Namespace, *, tokens: Tensor, held_out: Tensor) -> list[dict[str, float]]:
    """Train in place, end with the best weights seen; return the held-out losses.

    The learning rate follows a cosine over the share of ``--steps`` or of ``--seconds`` that is used up, whichever is
    larger, so that a slow machine ends in time with a decayed rate.
    """
    matrices = [weight for weight in model.parameters() if weight.dim() == 2]
    others = [weight for weight in model.parameters() if weight.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=arguments.device == "cuda")
    batches = windows(tokens, length=arguments.length, batch_size=arguments.batch_size, seed=arguments.seed)
    begun, done, looks, best, kept = time.perf_counter(), 0, [], math.inf, {}
    share, next_look = 0.0, 1 / LOOKS
    while share < 1:
        rate = arguments.learning_rate * (0.05 + 0.95 * (1 + math.cos(math.pi * share)) / 2) * min(1, (done + 1) / 100)
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss = loss_of(model, next(batches), device=arguments.device)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if done % 20 == 0 or done == arguments.steps:
            train_loss = float(loss.detach())  # waits for the device, so that the seconds count its work
            share = max(done / arguments.steps, (time.perf_counter() - begun) / arguments.seconds)
            if share >= next_look:
                next_look = share + 1 / LOOKS if share + 1 / LOOKS < 1 else 1.0
                watched = held_out_loss(model, held_out, length=arguments.length, device=arguments.device)
                seconds = time.perf_counter() - begun
                looks.append({"step": done, "seconds": seconds, "train_loss": train_loss, "held_out_loss": watched})
                print(f"step {done}, {seconds:.0f} s, train {train_loss:.3f}, held out {watched:.3f}", flush=True)
                if watched < best:
                    best = watched
                    kept = {name: value.detach().clone() for name, value in model.state_dict().items()}
    model.load_state_dict(kept)
    return looks


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prepared", type=Path, required=True, help="folder that study_data.py wrote")
    parser.add_argument("--out", type=Path, required=True, help="directory of the Hugging Face checkpoint")
    parser.add_argument("--hidden-size", type=int, default=512, help="a multiple of 64, the size of a head")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--seconds", type=float, default=100.0, help="end by then, however few steps were done")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args()


def main() -> None:
    """Pretrain, save in bfloat16 with the tokenizer, and describe it in ``pretraining.json`` next to the weights."""
    from transformers import AutoTokenizer

    arguments = _arguments()
    tokenizer = AutoTokenizer.from_pretrained(str(arguments.prepared / "tokenizer"))
    with np.load(arguments.prepared / "corpus.npz") as arrays:
        tokens, held_out = (
            torch.from_numpy(arrays[name].astype(np.int32)).to(arguments.device) for name in ("tokens", "held_out")
        )
    model = build(arguments, vocab_size=len(tokenizer), end_id=tokenizer.eos_token_id).to(arguments.device)
    num_parameters = sum(weight.numel() for weight in model.parameters())
    print(f"{num_parameters:,} parameters, {len(tokens):,} tokens", flush=True)
    looks = pretrain(model, arguments, tokens=tokens, held_out=held_out)
    arguments.out.mkdir(parents=True, exist_ok=True)
    model.to(torch.bfloat16).save_pretrained(arguments.out, max_shard_size="12MB")
    tokenizer.save_pretrained(arguments.out)
    about = {
        "parameters": num_parameters,
        "tokens_of_the_corpus": len(tokens),
        "tokens_seen": looks[-1]["step"] * arguments.batch_size * arguments.length,
        "best_held_out_loss": min(look["held_out_loss"] for look in looks),
        "looks": looks,
        "settings": {key: str(value) for key, value in vars(arguments).items() if key not in ("prepared", "out")},
        "machine": machine(),
        "versions": versions(),
    }
    (arguments.out / "pretraining.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {arguments.out}, held-out loss {about['best_held_out_loss']:.3f}")


if __name__ == "__main__":
    main()
