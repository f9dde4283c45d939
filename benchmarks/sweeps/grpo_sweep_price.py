"""What a GRPO sweep of 16 configurations costs: together, one by one, and beside ONE run of TRL's GRPOTrainer.

True shapes, random weights, prompts of GSM8K's lengths, 8 prompts x 8 answers a step, answers of forced lengths
(``benchmarks.forced_answers``), at most 256 tokens. Steps of all 16 together, of fewer together, and of trials by
themselves are timed in one process with one bank; the first step of each way, which compiles and records, is left out.

The other side is TRL with transformers' generation at TRL's defaults but for gradient checkpointing, which is off in
its favour: one configuration, the same prompts a step, answers of lengths from the same distribution.

``grpo_sweep_price`` takes the measured seconds of steps with 16, 7 and 3 trials, in a run of 40 steps (320 prompts)
whose trials are compared after 0.1 and 0.2 of it: 7 and 3 of 16 go on, as by default. Each comparison, and the end,
lets the trials that are left answer 64 held-out prompts, at the measured rate of decoding. TRL's run evaluates nothing.
``grpo_sweep_price_full`` trains all 16 to the end.

``sampler_difference`` is how far a token's log-probability in the sampler is from that in the training pass.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.forced_answers import drawn_length, prompt_rows, save_tokenizer
from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.sweeps.grpo_one_run import trl_run
from benchmarks.sweeps.grpo_room import (
    ANSWERS,
    LONGEST,
    PROMPTS,
    RANKS,
    TRIALS,
    answer_tokens,
    compile_kernels,
    rank_row_bytes_of,
)
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.ranks.local_executor import LocalExecutor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.objectives.kinds.grpo import GroupRelativePolicyOptimization
from cohort.training.rollouts import answer_training
from cohort.training.trial import TrialSpec

QUESTION = "What do 16 GRPO configurations cost together, one by one, and in runs of TRL's GRPOTrainer?"
# after which share of the training how many trials go on
GO_ON = ((0.1, 7), (0.2, 3))
# steps of a run; an evaluation draws as many answers of a trial as a step does
STEPS_OF_A_RUN = 40


def trials(count: int = TRIALS, *, longest: int = LONGEST) -> list[TrialSpec]:
    """Return configurations of different ranks and learning rates."""
    return [
        TrialSpec(
            trial_id=number,
            seed=number,
            adapter=AdapterSpec(r=(r := RANKS[number % len(RANKS)]), lora_alpha=2.0 * r),
            learning_rate=1e-5 * 2 ** (number % 4),
            batch_size=PROMPTS,
            num_steps=1000,
            objective=GroupRelativePolicyOptimization(num_generations=ANSWERS, max_completion_length=longest),
        )
        for number in range(count)
    ]


class Timed:
    """A function whose wall seconds are added up; the functions here return what the device has computed."""

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act, self.seconds, self.calls = act, 0.0, 0

    def __call__(self, *args: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return self._act(*args, **named)
        finally:
            self.seconds, self.calls = self.seconds + time.perf_counter() - began, self.calls + 1


class Sweep:
    """One executor with answers of forced lengths, whose parts are timed."""

    def __init__(
        self, decoder: Decoder, rows: TokenisedRows, options: argparse.Namespace, *, numerics: Numerics
    ) -> None:
        self.longest = options.longest
        self.differences: list[np.ndarray] = []
        row_bytes = rank_row_bytes_of(decoder)
        self.executor = LocalExecutor(
            decoder,
            target_linears=decoder.linears,
            train_rows=rows,
            settings=ExecutorSettings(
                num_slots=TRIALS,
                num_rank_rows=TRIALS * max(RANKS),
                token_budget=options.token_budget,
                evaluation_token_budget=2 * options.token_budget,
                answer_tokens=answer_tokens(decoder, self.longest, kept_bytes=TRIALS * max(RANKS) * row_bytes),
                numerics=numerics,
            ),
            device=decoder.device,
            compute_dtype=decoder.dtype,
        )
        rollouts = self.executor._sampled()
        self.decode, self.train = Timed(rollouts.decoding.step), Timed(rollouts._train)
        self.score, self.wait = Timed(rollouts.scorers.submit), Timed(rollouts._take_rewards)
        ask = rollouts.decoding.ask
        rollouts.decoding.ask = lambda own: ask(  # type: ignore[method-assign]
            replace(own, most_tokens=drawn_length(own.seed, most=own.most_tokens, median=options.median))
        )
        rollouts.decoding.step, rollouts._train = self.decode, self.train  # type: ignore[method-assign]
        rollouts.scorers.submit, rollouts._take_rewards = self.score, self.wait  # type: ignore[method-assign]
        # starts the processes of rewards
        self.executor.evaluate_base(rows=rows, row_ids=[0], objective=trials(1, longest=4)[0].objective)

    @property
    def parts(self) -> tuple[Timed, ...]:
        return self.decode, self.train, self.score, self.wait

    def steps(self, specs: Sequence[TrialSpec], *, count: int, warmups: int) -> dict[str, Any]:
        """Take steps of all of ``specs`` together; return the seconds of those behind the first and where they went."""
        executor = self.executor
        self._run(specs, count=warmups)
        for part in self.parts:
            part.seconds, part.calls = 0.0, 0
        self.differences.clear()
        began = time.perf_counter()
        tokens, drawn = self._run(specs, count=count)
        seconds = time.perf_counter() - began
        apart = np.concatenate(self.differences)
        graphs = executor._sampled().decoding._engine
        return {
            "trials": len(specs),
            "steps": count,
            "seconds": seconds,
            "seconds_a_step": seconds / count,
            "tokens": tokens,
            "answer_tokens": drawn,
            "tokens_a_second": tokens / seconds,
            "decoding_seconds": self.decode.seconds,
            "decoding_passes": self.decode.calls,
            "training_seconds": self.train.seconds,
            "rewards_seconds": self.score.seconds + self.wait.seconds,
            "sampler_difference_max": float(apart.max()),
            "sampler_difference_mean": float(apart.mean()),
            "replayed_passes": 0 if graphs is None or graphs.graphs is None else graphs.graphs.num_replays,
        }

    def _run(self, specs: Sequence[TrialSpec], *, count: int) -> tuple[int, float]:
        tokens, drawn = 0, 0.0
        if not count:
            return tokens, drawn
        for spec in specs:
            self.executor.load(spec)
        while self.executor.resident:
            for event in self.executor.step():
                tokens += event.num_tokens
                drawn += event.metrics["answer_length"] * PROMPTS * ANSWERS
                if event.step == count:
                    self.executor.drop(event.trial_id)
        return tokens, drawn

    def close(self) -> None:
        self.executor.close()


def keep_differences(found: list[np.ndarray]) -> Callable[[], None]:
    """Let ``found`` have the difference of each token's log-probability; return what ends it."""
    metrics = answer_training.step_metrics

    def kept(step: Any, *, advantages: Any, trained_logps: Any) -> dict[str, float]:
        drawn = np.concatenate([answer.logps for _, answer in step.pairs()])
        found.append(np.abs(drawn - np.concatenate(list(trained_logps))))
        return metrics(step, advantages=advantages, trained_logps=trained_logps)

    answer_training.step_metrics = kept  # type: ignore[assignment]

    def end() -> None:
        answer_training.step_metrics = metrics

    return end


def measured(
    decoder: Decoder, rows: TokenisedRows, options: argparse.Namespace, *, numerics: Numerics
) -> list[dict[str, Any]]:
    """Return a row for each number of trials together, and the sum of the trials that ran one by one."""
    compile_kernels(decoder, options, numerics=numerics)
    sweep = Sweep(decoder, rows, options, numerics=numerics)
    end, specs, found = keep_differences(sweep.differences), trials(longest=options.longest), list[dict[str, Any]]()
    try:
        for count in options.together:
            own = sweep.steps(specs[:count], count=options.steps, warmups=1)
            found.append({"side": f"{count} together", "numerics": numerics.value, **own})
            print(found[-1], flush=True)
        alone = [
            sweep.steps([spec], count=options.steps, warmups=int(place == 0))
            for place, spec in enumerate(specs[: options.alone])
        ]
        if alone:
            summed = {name: sum(own[name] for own in alone) for name in alone[0]}
            summed["tokens_a_second"] = summed["tokens"] / summed["seconds"]
            summed["sampler_difference_max"] = max(own["sampler_difference_max"] for own in alone)
            summed["sampler_difference_mean"] /= len(alone)
            found.append({"side": "one by one", "numerics": numerics.value, **summed})
            print(found[-1], flush=True)
    finally:
        end()
        sweep.close()
    return found


def headline(rows: Sequence[dict[str, Any]], *, shape: str) -> dict[str, float]:
    """Return gains, prices, shares and differences of what was measured."""
    found: dict[str, float] = {}
    fast = [row for row in rows if row.get("numerics") == Numerics.FAST.value]
    together = {row["trials"]: row for row in fast if row["side"] != "one by one"}
    alone = next((row for row in fast if row["side"] == "one by one"), None)
    whole = together.get(TRIALS)
    if whole and alone:
        found[f"grpo_packing_gain_{shape}"] = whole["tokens_a_second"] / alone["tokens_a_second"]
    if whole:
        for part in ("decoding", "training", "rewards"):
            found[f"grpo_{part}_share_{shape}"] = whole[f"{part}_seconds"] / whole["seconds"]
    trl = next((row for row in rows if row["side"].endswith("TRL")), None)
    if whole and trl:
        one_run = trl["seconds_a_step"]
        found[f"grpo_sweep_price_full_{shape}"] = whole["seconds_a_step"] / one_run
        parts, count, done = 0.0, TRIALS, 0.0
        for share, left in (*GO_ON, (1.0, 0)):
            nearest = min(together, key=lambda size: (abs(size - count), size))
            of_trials = together[nearest]
            parts += (share - done) * of_trials["seconds_a_step"] * count / nearest
            parts += of_trials["decoding_seconds"] / of_trials["steps"] * count / nearest / STEPS_OF_A_RUN
            count, done = left, share
        found[f"grpo_sweep_price_{shape}"] = parts / one_run
    for row in rows:
        if "sampler_difference_max" in row and row["side"] != "one by one":
            for what in ("max", "mean"):
                name = f"grpo_sampler_difference_{what}_{row['numerics']}_{shape}"
                found[name] = max(found.get(name, 0.0), row[f"sampler_difference_{what}"])
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--together", type=int, nargs="+", default=[16, 7, 3])
    parser.add_argument("--alone", type=int, default=4, help="trials that run one by one")
    parser.add_argument("--exact", type=int, default=2, help="trials of a step in exact numerics; 0 for none")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--trl-steps", type=int, default=3, help="0 leaves TRL out")
    parser.add_argument("--trl-batch", type=int, default=32, help="answers of one of its training passes")
    parser.add_argument("--token-budget", type=int, default=16384)
    parser.add_argument("--longest", type=int, default=LONGEST)
    parser.add_argument("--median", type=float, default=90.0)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[dict[str, Any]] = []

    def write() -> None:
        # after every part: what is cut off keeps those it has
        write_result(
            options.out or RESULTS / f"grpo_sweep_price_{options.shape}.json",
            question=QUESTION,
            headline=headline(rows, shape=options.shape),
            rows=rows,
            notes={
                "step": f"{PROMPTS} prompts x {ANSWERS} answers of at most {options.longest} tokens",
                "answers": "forced lengths, log-normal, median 90 tokens, sigma 0.7 (benchmarks/forced_answers.py)",
                "go_on": "7 of 16 after 0.1 of the training, 3 after 0.2; evaluations at the rate of decoding",
                "model": f"{options.shape} shape, random weights"
                + (f", {options.num_layers} layers" if options.num_layers else ""),
            },
        )

    config = decoder_config(options.shape, num_layers=options.num_layers)
    with tempfile.TemporaryDirectory(prefix="grpo-") as folder:
        tokenizer = save_tokenizer(Path(folder), vocab_size=config.vocab_size)
        prompts = prompt_rows(tokenizer, vocab_size=config.vocab_size, shape=options.shape)
        if options.trl_steps:
            rows.append(trl_run(prompts, tokenizer, options, device=device))
            print(rows[-1], flush=True)
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        decoder = random_decoder(config, device=device, dtype=dtype)
        rows += measured(decoder, prompts, options, numerics=Numerics.FAST)
        write()
        if options.exact:
            few = argparse.Namespace(**{**vars(options), "together": [options.exact], "alone": 0, "steps": 1})
            rows += measured(decoder, prompts, few, numerics=Numerics.EXACT)
            write()
    print_table(rows, columns=["side", "numerics", "seconds_a_step", "tokens_a_second", "decoding_seconds"])
    print({name: round(value, 6) for name, value in headline(rows, shape=options.shape).items()})


if __name__ == "__main__":
    main()
