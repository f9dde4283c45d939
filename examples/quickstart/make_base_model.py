"""Pretrain the quickstart's base model, a Llama of 1.4 million parameters, from nothing but this folder.

    python examples/quickstart/make_base_model.py --out DIR [--seed 0]

draws the corpus of make_corpus.py, trains a byte-level BPE tokenizer on it, pretrains in float32 on the CPU and writes
a Hugging Face model folder with the weights in bfloat16. Corpus, tokenizer and batches depend on the seed alone, the
last bits of the weights also on the machine and the number of threads. README.md has the measured times.

Shapes:  R rows of a batch · L tokens of the longest row
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from make_corpus import documents
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

__all__ = ["BaseModelRecipe", "batch_documents", "build_model", "build_tokenizer", "pretrain", "write_model"]

PAD, BOS, EOS = SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
# the trainer numbers the special tokens first, in their order
PAD_ID, BOS_ID, EOS_ID = range(3)
IGNORED_LABEL = -100


@dataclass(frozen=True, kw_only=True)
class BaseModelRecipe:
    """Everything that decides the base model but the machine."""

    seed: int = 0
    num_documents: int = 220_000
    """Documents in the corpus; training stops at its end, each is seen once at most."""
    vocabulary_size: int = 640
    tokens_per_step: int = 2048
    num_steps: int = 4_800
    warmup_steps: int = 100
    peak_learning_rate: float = 3e-3
    final_learning_rate: float = 1e-4
    """End of the cosine."""
    weight_decay: float = 0.05


def build_tokenizer(recipe: BaseModelRecipe) -> Tokenizer:
    """Train a byte-level BPE on the corpus; any text can be encoded, and <s> opens each one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(20_000, seed=recipe.seed), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, BOS_ID)]
    )
    return tokenizer


def batch_documents(tokenizer: Tokenizer, recipe: BaseModelRecipe) -> list[Tensor]:
    """Return the training batches [R, L] in seeded order: one document a row, between <s> and </s>, padded at the end.

    Documents of like length share a batch, so hardly anything is padding. A document sees only itself: with others
    before it in its row, the model was slower to learn to read from the note.
    """
    texts = list(documents(recipe.num_documents, seed=recipe.seed))
    rows = sorted(([*encoding.ids, EOS_ID] for encoding in tokenizer.encode_batch_fast(texts)), key=len)
    batches: list[list[list[int]]] = [[]]
    for row in rows:
        if len(row) * (len(batches[-1]) + 1) > recipe.tokens_per_step:
            batches.append([])
        batches[-1].append(row)
    Random(f"order {recipe.seed}").shuffle(batches)
    return [
        torch.tensor([row + [PAD_ID] * (len(batch[-1]) - len(row)) for row in batch], dtype=torch.int32)
        for batch in batches
    ]


def build_model(tokenizer: Tokenizer, *, seed: int) -> LlamaForCausalLM:
    """Return a freshly initialised float32 model."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=192,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def _learning_rate(step: int, recipe: BaseModelRecipe) -> float:
    if step < recipe.warmup_steps:
        return recipe.peak_learning_rate * (step + 1) / recipe.warmup_steps
    done = (step - recipe.warmup_steps) / max(1, recipe.num_steps - recipe.warmup_steps)
    cosine = 0.5 * (1 + math.cos(math.pi * done))
    return recipe.final_learning_rate + (recipe.peak_learning_rate - recipe.final_learning_rate) * cosine


def pretrain(model: LlamaForCausalLM, batches: list[Tensor], recipe: BaseModelRecipe) -> list[float]:
    """Train ``model`` in place, a step on each batch, and return each step's loss."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": recipe.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        betas=(0.9, 0.98),
    )
    model.train()
    losses: list[float] = []
    start, start_cpu = time.monotonic(), time.process_time()
    for step, batch in enumerate(batches):
        batch_RL = batch.long()
        # padding is at the end of a row only, so the causal mask alone keeps it from the real tokens
        loss = model(input_ids=batch_RL, labels=batch_RL.masked_fill(batch_RL == PAD_ID, IGNORED_LABEL)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = _learning_rate(step, recipe)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 100 == 99:
            recent = sum(losses[-100:]) / 100
            wall, cpu = time.monotonic() - start, time.process_time() - start_cpu
            print(f"step {step + 1}/{len(batches)}  loss {recent:.4f}  {wall:.0f} s  {cpu:.0f} s of CPU", flush=True)
    return losses


def write_model(folder: Path, model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    """Write a Hugging Face model folder with bfloat16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    model.config.use_cache = True
    model.generation_config = GenerationConfig(
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        pad_token_id=PAD_ID,
        do_sample=False,
    )
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "model_max_length": model.config.max_position_embeddings,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    recipe = BaseModelRecipe()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the model")
    parser.add_argument("--seed", type=int, default=recipe.seed)
    parser.add_argument("--steps", type=int, default=recipe.num_steps)
    parser.add_argument("--documents", type=int, default=recipe.num_documents)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    recipe = BaseModelRecipe(seed=arguments.seed, num_steps=arguments.steps, num_documents=arguments.documents)

    tokenizer = build_tokenizer(recipe)
    batches = batch_documents(tokenizer, recipe)[: recipe.num_steps]
    model = build_model(tokenizer, seed=recipe.seed)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    num_tokens = sum(batch.numel() for batch in batches)
    size = f"{num_parameters:,} parameters, {tokenizer.get_vocab_size()} tokens in the vocabulary"
    print(f"{size}, {num_tokens:,} training tokens", flush=True)
    pretrain(model, batches, recipe)
    write_model(arguments.out, model, tokenizer)


if __name__ == "__main__":
    main()
