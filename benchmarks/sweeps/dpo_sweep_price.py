"""The price of a DPO sweep: 40 configurations with early exit against ONE DPO run over the same pairs.

True shapes, random weights, pairs of GSM8K's lengths. The sweep computes the reference once, trains all 40 through a
warm-up, as many at a time as fit, compares them on validation pairs, and trains the best quarter to the end. The
other side is TRL's DPOTrainer with one configuration, at TRL's defaults but for gradient checkpointing, which is off in
its favour: two forward passes (the adapter on and off) and one backward pass over padded pairs. A loop of our own on
PEFT and transformers does the same without TRL's bookkeeping; ``--no-trl`` leaves TRL out where it is not installed.

``price_full`` is what all 40 would cost without early exit, at the speed that they had in their warm-up. Both sides
leave out loading and the first steps, in which kernels are compiled.
"""

from __future__ import annotations

import argparse
import gc
import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, gsm8k_lengths, hf_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, write_result
from benchmarks.requirements import need_gpu
from benchmarks.sweeps.dpo_one_run import FIRST_STEPS, peft_run, seconds_of, trl_run
from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.memory_records import GradientCheckpointing
from cohort.data.tokenised import TokenisedRows
from cohort.memory.size_inputs import rank_row_bytes
from cohort.training.cuda_graphs.recorded_shapes import GRAPH_TOKENS
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives import OBJECTIVES
from cohort.training.reference.reference_logps import answer_log_probs
from cohort.training.trial import TrialSpec, TrialState

QUESTION = "What does a DPO sweep of 40 configurations cost, in runs of one configuration over the same pairs?"
LEARNING_RATES, BETAS, RANKS = (5e-6, 1e-5, 5e-5, 1e-4, 5e-4), (0.03, 0.1, 0.3, 0.5), (8, 32)
KEPT, WARMUP = 0.25, 0.05
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


def planned(num_pairs: int, *, batch_size: int) -> list[TrialSpec]:
    """Return the 40 configurations, one epoch each."""
    return [
        TrialSpec(
            trial_id=trial_id,
            seed=0,
            adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
            learning_rate=rate,
            batch_size=batch_size,
            num_steps=-(-num_pairs // batch_size),
            objective=OBJECTIVES["dpo"].with_values({"beta": beta}),
        )
        for trial_id, (rate, beta, r) in enumerate(itertools.product(LEARNING_RATES, BETAS, RANKS))
    ]


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
        self.specs = planned(num_pairs, batch_size=1)
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
                graph_tokens=GRAPH_TOKENS if self.decoder.device.type == "cuda" else 0,
            ),
            device=self.decoder.device,
            compute_dtype=self.decoder.dtype,
        )
        return self.executor

    def forget(self) -> None:
        """Begin again with no trial."""
        self.states.clear()
        for trial_id in tuple(self.executor.resident if self.executor else ()):
            assert self.executor is not None, "it has residents"
            self.executor.drop(trial_id)

    def train(self, specs: Sequence[TrialSpec], *, until: int) -> dict[int, float]:
        """Train each trial from its state to step ``until``; return validation losses."""
        executor = self.executor or self.open()
        losses: dict[int, float] = {}
        wanted = {spec.trial_id for spec in specs}
        for wave in waves(specs, num_slots=self.num_slots, rank_rows=self.rank_rows):
            own = {spec.trial_id for spec in wave}
            for trial_id in set(executor.resident) - own:
                # as in a run: a state leaves the bank where others need its room, and is dropped where its trial ended
                if trial_id in wanted:
                    self.states[trial_id] = executor.unload(trial_id)
                else:
                    executor.drop(trial_id)
            for spec in wave:
                if spec.trial_id not in executor.resident:
                    executor.load(spec, self.states.pop(spec.trial_id, None))
            while executor.steps_of(wave[0].trial_id) < until:
                executor.step()
            found = executor.evaluate(executor.resident, rows=self.validation, row_ids=range(len(self.validation) // 2))
            losses |= {trial_id: found[trial_id].loss for trial_id in own}
        return losses


def packed_side(sweep: Sweep, *, batch_size: int, reference: float) -> dict[str, Any]:
    """Return the seconds of the sweep's parts; ``reference`` are those of its reference, which all sweeps share."""
    sweep.specs, sweep.states = planned(len(sweep.rows) // 2, batch_size=batch_size), {}
    # kernels of packs of all and of those that are kept are compiled here
    sweep.train(sweep.specs, until=FIRST_STEPS)
    sweep.train(sweep.specs[: round(KEPT * len(sweep.specs))], until=2 * FIRST_STEPS)
    sweep.forget()
    num_steps = sweep.specs[0].num_steps
    boundary = max(1, round(WARMUP * num_steps))
    losses: dict[int, float] = {}
    warm = seconds_of(lambda: losses.update(sweep.train(sweep.specs, until=boundary)))
    kept = sorted(sweep.specs, key=lambda spec: losses[spec.trial_id])[: round(KEPT * len(sweep.specs))]
    rest = seconds_of(lambda: sweep.train(kept, until=num_steps))
    sweep.forget()
    return {
        "side": "sweep of 40",
        "batch_size": batch_size,
        "reference_seconds": reference,
        "warmup_seconds": warm,
        "rest_seconds": rest,
        "seconds": reference + warm + rest,
        "full_seconds": reference + warm * num_steps / boundary,
        "trials_at_once": len(waves(sweep.specs, num_slots=sweep.num_slots, rank_rows=sweep.rank_rows)[0]),
        "steps": num_steps,
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--pairs", type=int, default=160)
    parser.add_argument("--token-budget", type=int, default=16384)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4], help="pairs of a step")
    parser.add_argument("--most-steps", type=int, default=30, help="most steps of the one run to time")
    parser.add_argument("--no-trl", action="store_true", help="leave TRL's trainer out")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = hf_config(options.shape, num_layers=options.num_layers)
    sweep = Sweep(
        options.shape, options.num_layers, num_pairs=options.pairs, token_budget=options.token_budget, device=device
    )
    sides = [peft_run] if options.no_trl else [peft_run, trl_run]
    rows: list[dict[str, Any]] = []
    for batch_size, side in itertools.product(options.batch_sizes, sides):
        found = side(sweep.rows, config, batch_size=batch_size, most_steps=options.most_steps, device=device)
        rows.append(found)
        print(rows[-1], flush=True)
        # a trainer and its model name each other
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    reference = sweep.reference()
    for batch_size in options.batch_sizes:
        rows.append(packed_side(sweep, batch_size=batch_size, reference=reference))
        print(rows[-1], flush=True)
        # after every part: what is cut off keeps those it has
        write_result(
            options.out or RESULTS / f"dpo_sweep_price_{options.shape}.json",
            question=QUESTION,
            headline=headline(rows, shape=options.shape),
            rows=rows,
            notes={"pairs": options.pairs, "token_budget": options.token_budget},
        )
    print({name: round(value, 3) for name, value in headline(rows, shape=options.shape).items()})


def headline(rows: Sequence[dict[str, Any]], *, shape: str) -> dict[str, float]:
    """Return the price of each sweep, in runs of each other side at the same batch size."""
    found = {}
    for packed in (row for row in rows if "full_seconds" in row):
        batch_size = packed["batch_size"]
        for row in rows:
            if row is not packed and row["batch_size"] == batch_size:
                name = f"{shape}_{row['side'].rpartition(' ')[2].lower()}_bs{batch_size}"
                found[f"dpo_sweep_price_{name}"] = packed["seconds"] / row["seconds"]
                found[f"dpo_sweep_price_full_{name}"] = packed["full_seconds"] / row["seconds"]
        found[f"dpo_reference_share_{shape}_bs{batch_size}"] = packed["reference_seconds"] / packed["seconds"]
    return found


if __name__ == "__main__":
    main()
