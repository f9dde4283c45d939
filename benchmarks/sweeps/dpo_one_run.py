"""The other side of a DPO sweep's price: one configuration over the same pairs, by a loop and by TRL's trainer."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.trl_trainers import clock_of_steps, token_rows
from cohort.data.tokenised import TokenisedRows

__all__ = ["FIRST_STEPS", "peft_run", "seconds_of", "trl_run"]

# steps in which kernels are compiled, of each side
FIRST_STEPS = 3
LORA: dict[str, Any] = {"r": 32, "lora_alpha": 64, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}


def wait() -> None:
    """Let the device finish."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object]) -> float:
    """Return the wall time of ``work``, the device's included."""
    wait()
    begun = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - begun


def untrained_model(config: Mapping[str, Any], device: str) -> Any:
    """Return a transformers model with random weights, in the dtype that the sweep trains on."""
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**config))
    return model.to(torch.bfloat16 if device == "cuda" else torch.float32)


def row_of(side: str, *, taken: float, measured: int, num_steps: int, batch_size: int) -> dict[str, Any]:
    """Return a result's row: the seconds of all steps, from those that were measured."""
    return {
        "side": side,
        "batch_size": batch_size,
        "seconds": taken / measured * num_steps,
        "measured_steps": measured,
    }


def padded(rows: TokenisedRows, pairs: Sequence[int], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and answer masks of pairs, all chosen first, padded to the longest."""
    samples = [rows.sample(2 * pair + side) for side in (0, 1) for pair in pairs]
    longest = max(len(sample.tokens) for sample in samples)
    tokens = torch.zeros(len(samples), longest, dtype=torch.int64)
    mask = torch.zeros(len(samples), longest)
    for place, sample in enumerate(samples):
        tokens[place, : len(sample.tokens)] = torch.from_numpy(sample.tokens.astype(np.int64))
        mask[place, : len(sample.tokens)] = torch.from_numpy(sample.trained).float()
    return tokens.to(device), mask.to(device)


def peft_run(
    rows: TokenisedRows, config: Mapping[str, Any], *, batch_size: int, most_steps: int, device: str
) -> dict[str, Any]:
    """Return what a loop over PEFT takes for an epoch of ``rows``, from at most ``most_steps`` of its steps."""
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(untrained_model(config, device), LoraConfig(**LORA))
    trained = [own for own in model.parameters() if own.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)

    def log_p(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        found = -F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
        return (found.view(len(tokens), -1) * mask[:, 1:]).sum(1)

    def step(pairs: Sequence[int]) -> None:
        tokens, mask = padded(rows, pairs, device)
        with torch.no_grad(), model.disable_adapter():
            reference = log_p(tokens, mask)
        chosen, rejected = (log_p(tokens, mask) - reference).chunk(2)
        optimizer.zero_grad()
        (-F.logsigmoid(0.1 * (chosen - rejected)).mean()).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    order = np.random.default_rng(0).permutation(len(rows) // 2)
    batches = [order[first : first + batch_size].tolist() for first in range(0, len(order), batch_size)]

    def steps(count: int) -> None:
        for pairs in batches[:count]:
            step(pairs)

    steps(FIRST_STEPS)
    measured = min(len(batches), most_steps)
    taken = seconds_of(lambda: steps(measured))
    return row_of("one run, PEFT", taken=taken, measured=measured, num_steps=len(batches), batch_size=batch_size)


def trl_run(
    rows: TokenisedRows, config: Mapping[str, Any], *, batch_size: int, most_steps: int, device: str
) -> dict[str, Any]:
    """Return what TRL's DPOTrainer takes for an epoch of ``rows``, from at most ``most_steps`` of its steps."""
    entries = token_rows(entries_of(rows))
    from peft import LoraConfig
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    class OnTokens(DPOTrainer):
        """Takes token ids as they are: the rows are random tokens."""

        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset

    num_steps = -(-len(entries) // batch_size)
    ends: list[float] = []
    words = Tokenizer(models.WordLevel({"<eos>": 0, "<pad>": 1}, unk_token="<pad>"))
    measured = min(num_steps, most_steps)
    with tempfile.TemporaryDirectory(prefix="dpo-one-run-") as folder:
        OnTokens(
            model=untrained_model(config, device),
            args=DPOConfig(
                output_dir=folder,
                per_device_train_batch_size=batch_size,
                max_steps=measured + FIRST_STEPS,
                gradient_checkpointing=False,
                bf16=device == "cuda",
                use_cpu=device == "cpu",
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
            ),
            train_dataset=entries,
            processing_class=PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>"),
            peft_config=LoraConfig(**LORA),
            callbacks=[clock_of_steps(ends)],
        ).train()
    taken = ends[-1] - ends[FIRST_STEPS - 1]
    return row_of("one run, TRL", taken=taken, measured=measured, num_steps=num_steps, batch_size=batch_size)


def entries_of(rows: TokenisedRows) -> list[dict[str, Any]]:
    """Return pairs as TRL's trainer has them once their text is token ids."""
    entries = []
    for pair in range(len(rows) // 2):
        chosen, rejected = (rows.sample(2 * pair + side) for side in (0, 1))
        start = chosen.answer_start
        entries.append(
            {
                "prompt": "",
                "chosen": "",
                "rejected": "",
                "prompt_ids": chosen.tokens[:start].tolist(),
                "chosen_ids": chosen.tokens[start:].tolist(),
                "rejected_ids": rejected.tokens[start:].tolist(),
            }
        )
    return entries
