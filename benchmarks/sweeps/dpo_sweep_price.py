"""The price of a DPO sweep: 40 configurations with early exit against ONE DPO run over the same pairs.

True shapes, random weights, pairs of GSM8K's lengths. The sweep computes the reference once, trains all 40 through a
warm-up, as many at a time as fit, compares them on validation pairs, and trains the best quarter to the end. The
other side trains one configuration as TRL's DPOTrainer does without precomputed references: two forward passes (the
adapter on and off) and one backward pass over padded pairs, on PEFT and transformers. TRL itself is used where it is
installed (``--trl``); the loop's loss is the same.

``price_full`` is what all 40 would cost without early exit, at the speed that they had in their warm-up. Both sides
leave out loading and the first steps, in which kernels are compiled.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from benchmarks.llama_shapes import SHAPES, decoder_config, gsm8k_lengths, hf_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, write_result
from benchmarks.requirements import need_gpu
from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.memory_records import GradientCheckpointing
from cohort.data.tokenised import TokenisedRows
from cohort.memory.sizes import rank_row_bytes
from cohort.training.executor import Executor, ExecutorSettings
from cohort.training.objectives import OBJECTIVES
from cohort.training.reference_logps import answer_log_probs
from cohort.training.trial import TrialSpec, TrialState

QUESTION = "What does a DPO sweep of 40 configurations cost, in runs of one configuration over the same pairs?"
LEARNING_RATES, BETAS, RANKS = (5e-6, 1e-5, 5e-5, 1e-4, 5e-4), (0.03, 0.1, 0.3, 0.5), (8, 32)
BATCH_SIZE, KEPT, WARMUP = 4, 0.25, 0.05
# of the free memory, for the bank; passes have the rest
BANK_SHARE = 0.4


def pairs_of(count: int, *, vocab_size: int, shape: str, seed: int = 0) -> TokenisedRows:
    """Return pairs of rows: a prompt with its answer and with that of another row."""
    recorded = gsm8k_lengths()
    chosen = np.random.default_rng(seed).choice(len(recorded), size=count + 1)
    lengths = [recorded[int(index)] for index in chosen]
    if shape == "tiny":
        lengths = [(prompt // 8 + 1, answer // 8 + 1) for prompt, answer in lengths]
    both = [(prompt, side) for (prompt, own), (_, other) in itertools.pairwise(lengths) for side in (own, other)]
    rows = rows_of_lengths(both, vocab_size=vocab_size, seed=seed)
    for pair in range(count):
        prompt = both[2 * pair][0]
        first, second = int(rows.offsets[2 * pair]), int(rows.offsets[2 * pair + 1])
        rows.tokens_T[second : second + prompt] = rows.tokens_T[first : first + prompt]
    return replace(rows, answer_starts=np.array([max(1, prompt) for prompt, _ in both], dtype=np.int64))


def planned(num_pairs: int) -> list[TrialSpec]:
    """Return the 40 configurations, one epoch each."""
    return [
        TrialSpec(
            trial_id=trial_id,
            seed=0,
            adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
            learning_rate=rate,
            batch_size=BATCH_SIZE,
            num_steps=-(-num_pairs // BATCH_SIZE),
            objective=OBJECTIVES["dpo"].with_values({"beta": beta}),
        )
        for trial_id, (rate, beta, r) in enumerate(itertools.product(LEARNING_RATES, BETAS, RANKS))
    ]


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object]) -> float:
    """Return the wall time of ``work``, the device's included."""
    wait()
    begun = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - begun


def waves(specs: Sequence[TrialSpec], *, num_slots: int, rank_rows: int) -> list[list[TrialSpec]]:
    """Return the trials in groups that fit into a bank at once."""
    found: list[list[TrialSpec]] = [[]]
    for spec in specs:
        taken = sum(aligned_rank(own.adapter.r) for own in found[-1])
        if len(found[-1]) == num_slots or taken + aligned_rank(spec.adapter.r) > rank_rows:
            found.append([])
        found[-1].append(spec)
    return found


class Sweep:
    """The packed side: an executor, the states between the stages, and what each took."""

    def __init__(self, shape: str, num_layers: int | None, *, num_pairs: int, token_budget: int, device: str) -> None:
        """Load a random model and make the rows."""
        config = decoder_config(shape, num_layers=num_layers)
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        self.decoder = random_decoder(config, device=device, dtype=dtype)
        self.rows = pairs_of(num_pairs, vocab_size=config.vocab_size, shape=shape)
        self.validation = pairs_of(max(8, num_pairs // 10), vocab_size=config.vocab_size, shape=shape, seed=1)
        self.specs = planned(num_pairs)
        row_bytes = rank_row_bytes(AdapterLayout(dict(self.decoder.linears)), has_compute_copy=device == "cuda")
        free = torch.cuda.mem_get_info()[0] if device == "cuda" else 4 << 30
        wanted = sum(aligned_rank(spec.adapter.r) for spec in self.specs)
        self.rank_rows = min(wanted, int(BANK_SHARE * free / row_bytes) // 16 * 16)
        self.num_slots, self.token_budget = len(self.specs), token_budget
        self.states: dict[int, TrialState] = {}
        self.executor: Executor | None = None

    def reference(self) -> float:
        """Compute the reference of all rows; return the seconds."""

        def too_large(_: object, words: str) -> Exception:
            return MemoryError(words)

        def compute() -> None:
            for name in ("rows", "validation"):
                rows = getattr(self, name)
                samples = [rows.sample(row) for row in range(len(rows))]
                found = answer_log_probs(self.decoder, samples, token_budget=self.token_budget, too_large=too_large)
                setattr(self, name, replace(rows, reference_logps=np.array(found)))

        return seconds_of(compute)

    def open(self) -> Executor:
        self.executor = Executor(
            self.decoder,
            target_linears=self.decoder.linears,
            train_rows=self.rows,
            settings=ExecutorSettings(
                num_slots=self.num_slots,
                num_rank_rows=self.rank_rows,
                token_budget=self.token_budget,
                evaluation_token_budget=2 * self.token_budget,
                gradient_checkpointing=GradientCheckpointing.AUTO,
            ),
            device=self.decoder.device,
            compute_dtype=self.decoder.dtype,
        )
        return self.executor

    def train(self, specs: Sequence[TrialSpec], *, until: int) -> dict[int, float]:
        """Train each trial from its state to step ``until``; return validation losses."""
        executor = self.executor or self.open()
        losses: dict[int, float] = {}
        for wave in waves(specs, num_slots=self.num_slots, rank_rows=self.rank_rows):
            for spec in wave:
                executor.load(spec, self.states.get(spec.trial_id))
            while executor.steps_of(wave[0].trial_id) < until:
                executor.step()
            found = executor.evaluate(executor.resident, rows=self.validation, row_ids=range(len(self.validation) // 2))
            for trial_id in executor.resident:
                losses[trial_id] = found[trial_id].loss
                self.states[trial_id] = executor.unload(trial_id)
        return losses


def packed_side(sweep: Sweep) -> dict[str, Any]:
    """Return the seconds of the sweep's parts."""
    reference = sweep.reference()
    executor = sweep.open()
    for spec in sweep.specs[:4]:
        executor.load(spec)
    # kernels are compiled here
    for _ in range(2):
        executor.step()
    for trial_id in executor.resident:
        executor.drop(trial_id)
    num_steps = sweep.specs[0].num_steps
    boundary = max(1, round(WARMUP * num_steps))
    losses: dict[int, float] = {}
    warm = seconds_of(lambda: losses.update(sweep.train(sweep.specs, until=boundary)))
    kept = sorted(sweep.specs, key=lambda spec: losses[spec.trial_id])[: round(KEPT * len(sweep.specs))]
    rest = seconds_of(lambda: sweep.train(kept, until=num_steps))
    return {
        "side": "sweep of 40",
        "reference_seconds": reference,
        "warmup_seconds": warm,
        "rest_seconds": rest,
        "seconds": reference + warm + rest,
        "full_seconds": reference + warm * num_steps / boundary,
        "trials_at_once": len(waves(sweep.specs, num_slots=sweep.num_slots, rank_rows=sweep.rank_rows)[0]),
        "steps": num_steps,
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


def one_run(sweep: Sweep, shape: str, num_layers: int | None, *, device: str, most_steps: int) -> dict[str, Any]:
    """Return the seconds of one configuration over the pairs, from at most ``most_steps`` of its steps."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    with torch.device(device):
        base = LlamaForCausalLM(LlamaConfig(**hf_config(shape, num_layers=num_layers))).to(sweep.decoder.dtype)
    model = get_peft_model(base, LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([own for own in model.parameters() if own.requires_grad], lr=1e-5)

    def log_p(tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
        found = -F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten(), reduction="none")
        return (found.view(len(tokens), -1) * mask[:, 1:]).sum(1)

    def step(pairs: Sequence[int]) -> None:
        tokens, mask = padded(sweep.rows, pairs, device)
        with torch.no_grad(), model.disable_adapter():
            reference = log_p(tokens, mask)
        chosen, rejected = (log_p(tokens, mask) - reference).chunk(2)
        optimizer.zero_grad()
        (-F.logsigmoid(0.1 * (chosen - rejected)).mean()).backward()
        torch.nn.utils.clip_grad_norm_([own for own in model.parameters() if own.requires_grad], 1.0)
        optimizer.step()

    order = sweep.specs[0].order(len(sweep.rows) // 2)
    num_steps = sweep.specs[0].num_steps
    for number in range(2):
        step(order.batch(number))
    measured = min(num_steps, most_steps)
    taken = seconds_of(lambda: [step(order.batch(number)) for number in range(measured)])
    return {"side": "one run, PEFT", "seconds": taken / measured * num_steps, "measured_steps": measured}


def trl_run(sweep: Sweep, shape: str, num_layers: int | None, *, device: str, most_steps: int) -> dict[str, Any]:
    """Return the seconds of TRL's DPOTrainer, by its own clock, on pairs that are tokenised already."""
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer, models
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl import DPOConfig, DPOTrainer

    class OnTokens(DPOTrainer):  # type: ignore[misc]
        """Takes token ids as they are: the rows are random tokens."""

        def _prepare_dataset(self, dataset: Any, *_: Any, **__: Any) -> Any:
            return dataset

    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**hf_config(shape, num_layers=num_layers))).to(sweep.decoder.dtype)
    entries = []
    for pair in range(len(sweep.rows) // 2):
        chosen, rejected = (sweep.rows.sample(2 * pair + side) for side in (0, 1))
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
    words = Tokenizer(models.WordLevel({"<eos>": 0, "<pad>": 1}, unk_token="<pad>"))
    num_steps = sweep.specs[0].num_steps
    measured = min(num_steps, most_steps)
    trainer = OnTokens(
        model=model,
        args=DPOConfig(
            output_dir="/tmp/dpo_sweep_price",
            per_device_train_batch_size=BATCH_SIZE,
            max_steps=measured,
            gradient_checkpointing=False,
            bf16=device == "cuda",
            use_cpu=device == "cpu",
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(entries),
        processing_class=PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>"),
        peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    found = trainer.train().metrics["train_runtime"]
    return {"side": "one run, TRL", "seconds": found / measured * num_steps, "measured_steps": measured}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--pairs", type=int, default=160)
    parser.add_argument("--token-budget", type=int, default=16384)
    parser.add_argument("--most-steps", type=int, default=40, help="most steps of the one run to time")
    parser.add_argument("--trl", action="store_true", help="time TRL's trainer as well")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sweep = Sweep(
        options.shape, options.num_layers, num_pairs=options.pairs, token_budget=options.token_budget, device=device
    )
    sides = [one_run] + ([trl_run] if options.trl else [])
    rows = [
        side(sweep, options.shape, options.num_layers, device=device, most_steps=options.most_steps) for side in sides
    ]
    if device == "cuda":
        torch.cuda.empty_cache()
    packed = packed_side(sweep)
    headline = {}
    for row in rows:
        name = row["side"].rpartition(" ")[2].lower()
        headline[f"dpo_sweep_price_{options.shape}_{name}"] = packed["seconds"] / row["seconds"]
        headline[f"dpo_sweep_price_full_{options.shape}_{name}"] = packed["full_seconds"] / row["seconds"]
    headline[f"dpo_reference_share_{options.shape}"] = packed["reference_seconds"] / packed["seconds"]
    out = options.out or RESULTS / f"dpo_sweep_price_{options.shape}.json"
    write_result(out, question=QUESTION, headline=headline, rows=[*rows, packed], notes={"pairs": options.pairs})
    print([*rows, packed])
    print({name: round(value, 3) for name, value in headline.items()})


if __name__ == "__main__":
    main()
