"""The other side of a GRPO sweep's price: one configuration by TRL's GRPOTrainer with transformers' generation."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.forced_answers import drawn_length, even_share
from benchmarks.llama_shapes import hf_config
from benchmarks.sweeps.dpo_one_run import LORA, untrained_model
from benchmarks.trl_trainers import clock_of_steps
from cohort.data.tokenised import TokenisedRows

__all__ = ["trl_run"]

FIRST_STEPS = 1
ANSWERS, PROMPTS = 8, 8


def force_lengths(model: Any, *, end_id: int, median: float, seconds: list[float]) -> None:
    """Let every answer of ``model`` end with ``end_id`` at a length drawn for it; add up what generating takes."""
    generate, calls = model.generate, [0]

    def forced(*args: Any, **named: Any) -> Any:
        from transformers import StoppingCriteriaList

        tokens = named["input_ids"]
        start, most = tokens.shape[1], named["generation_config"].max_new_tokens
        seeds = range(calls[0], calls[0] + len(tokens))
        calls[0] += len(tokens)
        lengths = torch.tensor([drawn_length(seed, most=most, median=median) for seed in seeds], device=tokens.device)

        def end(found: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            del scores
            is_over = found.shape[1] - start >= lengths
            # a random model does not end: its last token becomes the one that ends an answer
            found[:, -1] = torch.where(found.shape[1] - start == lengths, end_id, found[:, -1])
            return is_over

        began = time.perf_counter()
        answer = generate(*args, **named, stopping_criteria=StoppingCriteriaList([end]))
        if tokens.is_cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        return answer

    model.generate = forced


def trl_run(rows: TokenisedRows, tokenizer: Path, options: argparse.Namespace, *, device: str) -> dict[str, Any]:
    """Return what steps of TRL's GRPOTrainer take, the first left out."""
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    ends: list[float] = []
    generating: list[float] = []
    model = untrained_model(hf_config(options.shape, num_layers=options.num_layers), device)
    words = AutoTokenizer.from_pretrained(tokenizer)
    force_lengths(model, end_id=words.eos_token_id, median=options.median, seconds=generating)
    answers = PROMPTS * ANSWERS
    batch = min(options.trl_batch, answers)
    with tempfile.TemporaryDirectory(prefix="grpo-one-run-") as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=even_share,
            args=GRPOConfig(
                output_dir=folder,
                per_device_train_batch_size=batch,
                gradient_accumulation_steps=answers // batch,
                num_generations=ANSWERS,
                max_completion_length=options.longest,
                max_steps=FIRST_STEPS + options.trl_steps,
                gradient_checkpointing=False,
                bf16=device == "cuda",
                use_cpu=device == "cpu",
                report_to="none",
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=Dataset.from_list([{"prompt": text} for text in rows.prompts]),
            processing_class=words,
            peft_config=LoraConfig(**LORA),
            callbacks=[clock_of_steps(ends)],
        )
        trainer.train()
    steps = options.trl_steps
    seconds = ends[-1] - ends[FIRST_STEPS - 1]
    return {
        "side": "one run, TRL",
        "trials": 1,
        "steps": steps,
        "seconds": seconds,
        "seconds_a_step": seconds / steps,
        "decoding_seconds": sum(generating[-steps:]),
        "answers_of_a_pass": batch,
    }
