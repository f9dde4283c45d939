"""How well is a pass's memory predicted, and does a sweep that fills the card by that prediction ever run out?

Profiles as a run does, then measures held-out packs of mixed ranks, batch sizes, lengths and trial counts against the
prediction (base model and adapter state by arithmetic, the pass by the fit), then trains a sweep whose bank and passes
fill the card, through the same sizes and admission as a run's.

    python -m benchmarks.memory.memory_model --shape 8b          # GPU, four minutes; --part fill or held-out: two each
    python -m benchmarks.memory.memory_model --shape tiny        # CPU: the meter stands in for the allocator
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.llama_shapes import decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from cohort.adapters.bank import AdapterState, aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.memory_records import PassKind
from cohort.core.units import format_bytes
from cohort.data.tokenised import TokenisedRows
from cohort.machine.machine import Machine
from cohort.memory.profile import MemoryProfile, profile_memory
from cohort.memory.size_inputs import SizeInputs, SizeRequest
from cohort.memory.sizes import Sizes, choose_sizes
from cohort.models.decoder import Decoder
from cohort.scheduling.admission import Request, admit
from cohort.scheduling.pass_memory import TERMS, mean_error_percent
from cohort.scheduling.pass_sizes import MARGIN_SHARE
from cohort.training.device_memory import release_cached
from cohort.training.executor import Executor, ExecutorSettings
from cohort.training.trial import TrialSpec, TrialState

RANKS = (8, 16, 32, 64, 128)
MOST_TOKENS = {"8b": 8192, "1b": 16384, "tiny": 2048}
NO_LIMIT = 1 << 50
# of a held-out pack: 8B's take 47 MB each, in addition to a pass
MOST_RANK_ROWS = 1024


def spec_of(trial_id: int, *, r: int, batch_size: int) -> TrialSpec:
    """Return a trial; its seed decides which rows it draws."""
    return TrialSpec(
        trial_id=trial_id,
        seed=trial_id,
        adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
        learning_rate=1e-5,
        batch_size=batch_size,
        num_steps=10_000,
    )


def empty_state(executor: Executor, r: int) -> TrialState:
    """Return zeros for weights: drawing them would take longer than all that is measured here."""
    zeros_rD = torch.zeros(1, 1, device=executor.bank.weights_RD.device).expand(r, executor.bank.layout.width)
    return TrialState(adapter=AdapterState(weights=zeros_rD))


def mixed_rows(rng: np.random.Generator, *, mean: int, count: int, vocabulary: int) -> TokenisedRows:
    """Return rows of log-normal lengths around ``mean``, prompts and answers of any proportion."""
    lengths = np.clip(rng.lognormal(np.log(mean), 0.5, size=count), 8, 8 * mean).astype(int)
    answers = np.maximum(1, (lengths * rng.uniform(0.1, 0.95, size=count)).astype(int))
    pairs = [(int(length - answer), int(answer)) for length, answer in zip(lengths, answers, strict=True)]
    return rows_of_lengths(pairs, vocab_size=vocabulary, seed=int(rng.integers(1 << 30)))


def held_out_point(decoder: Decoder, profile: MemoryProfile, *, seed: int, most_tokens: int) -> dict[str, Any]:
    """Return predicted and measured peak of one step of a random pack."""
    release_cached(decoder.device)
    rng = np.random.default_rng(seed)
    num_trials = int(rng.integers(1, 17))
    ranks = [int(r) for r in rng.choice(RANKS[: int(rng.integers(1, len(RANKS) + 1))], size=num_trials)]
    while sum(aligned_rank(r) for r in ranks) > MOST_RANK_ROWS:
        ranks[ranks.index(max(ranks))] = min(RANKS)
    batch_sizes = [int(size) for size in rng.choice([1, 2, 4, 8], size=num_trials)]
    wanted = int(rng.uniform(most_tokens / 8, most_tokens))
    mean = max(16, wanted // sum(batch_sizes))
    rows = mixed_rows(rng, mean=mean, count=64, vocabulary=decoder.config.vocab_size)
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=num_trials,
            num_rank_rows=sum(aligned_rank(r) for r in ranks),
            token_budget=most_tokens,
            evaluation_token_budget=most_tokens,
        ),
        device=decoder.device,
        compute_dtype=decoder.dtype,
        memory_limit_bytes=NO_LIMIT,
    )
    for trial_id, (r, batch_size) in enumerate(zip(ranks, batch_sizes, strict=True)):
        executor.load(spec_of(trial_id, r=r, batch_size=batch_size), empty_state(executor, r))
    events = executor.step()
    peaks = executor.memory.take_peaks()
    known = decoder.num_bytes + executor.bank.num_bytes
    predicted_pass = max(profile.model.predict(peak.kind, peak.size) for peak in peaks)
    measured_pass = max(peak.num_bytes for peak in peaks)
    measured = executor.memory.highest_bytes + (known if decoder.device.type == "cpu" else 0)
    return {
        "trials": num_trials,
        "widest_rank": max(ranks),
        "mean_length": round(float(rows.lengths.mean()), 1),
        "tokens": sum(event.num_tokens for event in events),
        "micro_batches": len(peaks),
        "regime": peaks[0].size.regime,
        "predicted_bytes": int(known + predicted_pass),
        "measured_bytes": measured,
        "error_percent": 100 * ((known + predicted_pass) / measured - 1),
        "pass_predicted_bytes": int(predicted_pass),
        "pass_measured_bytes": measured_pass,
        "pass_error_percent": 100 * (predicted_pass / measured_pass - 1),
    }


def free_bytes(decoder: Decoder) -> int:
    """Return what the base model leaves free; on a CPU, of a card four times its size."""
    if decoder.device.type == "cpu":
        return 3 * decoder.num_bytes + (64 << 20)
    release_cached(decoder.device)
    return int(torch.cuda.mem_get_info()[0])


def sizes_that_fill(
    decoder: Decoder, profile: MemoryProfile, *, specs: Sequence[TrialSpec], longest: int, free: int
) -> Sizes:
    """Return a run's sizes, but for as many rank rows as fit: here the card is to be filled, not the matrix units."""
    inputs = SizeInputs(
        specs=specs,
        layout=AdapterLayout(dict(decoder.linears)),
        machine=Machine(
            device=decoder.device,
            device_name="benchmark",
            dtype=str(decoder.dtype).removeprefix("torch."),
            threads=torch.get_num_threads(),
            memory_bytes=free,
        ),
        longest_row=longest,
        request=SizeRequest(rank_rows=1 << 30),
        needs=profile.needs(margin_share=MARGIN_SHARE),
    )
    return choose_sizes(inputs, free_bytes=free)


def fill_the_card(
    decoder: Decoder, profile: MemoryProfile, *, seconds: float, most_steps: int, seed: int = 0
) -> dict[str, Any]:
    """Train trials of mixed ranks and batch sizes in a bank as large as the card allows; some leave, others come."""
    rng = np.random.default_rng(seed)
    on_gpu = decoder.device.type == "cuda"
    specs = [
        spec_of(i, r=int(rng.choice((16, 32, 64, 128))), batch_size=int(rng.choice((1, 2, 4, 8)))) for i in range(400)
    ]
    rows = mixed_rows(rng, mean=220, count=512, vocabulary=decoder.config.vocab_size)
    longest, free = int(rows.lengths.max()), free_bytes(decoder)
    sizes = sizes_that_fill(decoder, profile, specs=specs, longest=longest, free=free)
    total = torch.cuda.get_device_properties(0).total_memory if on_gpu else free + decoder.num_bytes
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=sizes.executor,
        device=decoder.device,
        compute_dtype=decoder.dtype,
        memory_limit_bytes=total,
    )
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    trained = train_in_turn(executor, specs, sizes=sizes, seconds=seconds, most_steps=most_steps)
    known = decoder.num_bytes + executor.bank.num_bytes
    highest = executor.memory.highest_bytes + (0 if on_gpu else known)
    return {
        "card_bytes": total,
        "bank_bytes": executor.bank.num_bytes,
        "rank_rows": sizes.executor.num_rank_rows,
        "token_budget": sizes.executor.token_budget,
        **trained,
        "predicted_bytes": int(known + profile.pass_bytes(max(sizes.executor.token_budget, longest))),
        "peak_bytes": highest,
        "fill_percent": 100 * highest / total,
        "reserved_percent": 100 * torch.cuda.max_memory_reserved() / total if on_gpu else 100 * highest / total,
        "largest_pass_bytes": max(
            peak.num_bytes for peak in executor.memory.take_peaks() if peak.kind is PassKind.TRAIN
        ),
        "replayed_passes": 0 if executor.captured is None else executor.captured.num_replays,
    }


def train_in_turn(
    executor: Executor, specs: Sequence[TrialSpec], *, sizes: Sizes, seconds: float, most_steps: int
) -> dict[str, Any]:
    """Step the resident trials, two of which leave after each step; return the outcome."""
    rows = executor.train_rows
    # every rank row is to be used: admission by tokens alone would leave some of the card to trials that wait
    capacity = replace(sizes.capacity, tokens_per_step=1e9)
    requests = {
        spec.trial_id: Request(
            trial_id=spec.trial_id,
            r=aligned_rank(spec.adapter.r),
            batch_size=spec.batch_size,
            mean_length=float(rows.lengths.mean()),
        )
        for spec in specs
    }
    waiting, leaving, vacated = dict(requests), deque[int](), [1]
    begun, steps, tokens, shortages, most_resident = time.perf_counter(), 0, 0, 0, 0
    while steps < most_steps and time.perf_counter() - begun < seconds:
        resident = [requests[trial_id] for trial_id in executor.resident]
        for trial_id in admit(list(waiting.values()), resident, capacity, vacated_batch_sizes=vacated).admitted:
            if executor.fits(specs[trial_id]):
                executor.load(specs[trial_id], empty_state(executor, specs[trial_id].adapter.r))
                del waiting[trial_id]
                leaving.append(trial_id)
        most_resident = max(most_resident, len(executor.resident))
        executor.memory.observe_next(8)
        tokens += sum(event.num_tokens for event in executor.step())
        if steps % 4 == 3:
            executor.evaluate(executor.resident[:8], rows=rows, row_ids=range(16))
        shortages += len(executor.take_shortages())
        gone = [leaving.popleft() for _ in range(2)]
        vacated = [requests[trial_id].batch_size for trial_id in gone]
        for trial_id in gone:
            executor.drop(trial_id)
        steps += 1
    return {
        "most_resident": most_resident,
        "steps": steps,
        "tokens": tokens,
        "seconds": time.perf_counter() - begun,
        "shortages": shortages,
    }


def mape(rows: Sequence[dict[str, Any]], *, of: str) -> float:
    """Return the mean absolute error of ``of``predicted_bytes in percent."""
    return mean_error_percent([(row[f"{of}predicted_bytes"], row[f"{of}measured_bytes"]) for row in rows])


def profiled(decoder: Decoder, *, most_tokens: int) -> MemoryProfile:
    """Profile as a run does, and say what it found."""
    profile = profile_memory(
        decoder,
        layout=AdapterLayout(dict(decoder.linears)),
        ranks=RANKS,
        usual=220,
        longest=1760,
        room_bytes=free_bytes(decoder) * 0.5,
        most_tokens=most_tokens,
        memory_limit_bytes=NO_LIMIT,
    )
    assert profile is not None, "not even the smallest pass fits"
    print(
        f"profile: {profile.num_passes} passes, {profile.seconds:.1f} s, error {profile.fit_error_percent:.2f} %, "
        f"reserve {format_bytes(profile.reserve_bytes)}, largest pass {profile.largest_tokens} tokens"
    )
    for name, halves in lines_of(profile).items():
        for half, terms in halves.items():
            print(f"  {name} {half}: { {term: round(value, 4) for term, value in terms.items() if value} }")
    return profile


def lines_of(profile: MemoryProfile) -> dict[str, dict[str, dict[str, float]]]:
    """Return the fitted coefficients by kind and regime, half and term."""
    return {
        f"{kind.value}, {regime}{', recomputed' if recomputed else ''}": {
            half: dict(zip(TERMS, line.coefficients, strict=True))
            for half, line in zip(("forward", "backward"), lines, strict=True)
        }
        for (kind, regime, recomputed), lines in profile.model.lines.items()
    }


def main() -> None:
    """Profile, hold out, fill, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b", choices=tuple(MOST_TOKENS))
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--part", choices=("both", "held-out", "fill"), default="both", help="where time is short")
    parser.add_argument("--points", type=int, default=36)
    parser.add_argument("--fill-seconds", type=float, default=60.0)
    parser.add_argument("--fill-steps", type=int, default=40)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--fill-out", type=Path, default=None)
    arguments = parser.parse_args()
    need_gpu(shape=arguments.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(arguments.shape, num_layers=arguments.num_layers)
    decoder = random_decoder(config, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    most_tokens = MOST_TOKENS[arguments.shape]
    profile = profiled(decoder, most_tokens=most_tokens)
    if arguments.part != "fill":
        seeds = range(arguments.points)
        rows = [held_out_point(decoder, profile, seed=seed, most_tokens=most_tokens) for seed in seeds]
        print_table(rows, columns=[name for name in rows[0] if "bytes" not in name])
        write_held_out(arguments.out or RESULTS / f"memory_model_{arguments.shape}.json", rows, profile)
    if arguments.part != "held-out":
        fill = fill_the_card(decoder, profile, seconds=arguments.fill_seconds, most_steps=arguments.fill_steps)
        for name, value in fill.items():
            print(f"  {name}: {value if not name.endswith('bytes') else format_bytes(value)}")
        write_fill(arguments.fill_out or RESULTS / f"card_fill_{arguments.shape}.json", fill, profile)


def write_held_out(path: Path, rows: Sequence[dict[str, Any]], profile: MemoryProfile) -> None:
    """Say and write how well held-out packs were predicted."""
    headline = {
        "memory_model_mape_percent": mape(rows, of=""),
        "memory_model_pass_mape_percent": mape(rows, of="pass_"),
        "memory_model_worst_error_percent": max(abs(row["error_percent"]) for row in rows),
        "memory_profile_seconds": profile.seconds,
    }
    print(headline)
    write_result(
        path,
        question="How well is the memory of a pack predicted from a small sweep?",
        headline=headline,
        rows=rows,
        notes={
            "profile_passes": profile.num_passes,
            "profile_error_percent": profile.fit_error_percent,
            "reserve_bytes": profile.reserve_bytes,
            "lines": lines_of(profile),
        },
    )


def write_fill(path: Path, fill: dict[str, Any], profile: MemoryProfile) -> None:
    """Say and write how full the card was."""
    headline = {"card_fill_percent": fill["fill_percent"], "card_fill_shortages": fill["shortages"]}
    print(headline)
    write_result(
        path,
        question="Does a sweep of mixed ranks, batch sizes and lengths that fills the card by prediction ever run out?",
        headline=headline,
        rows=[fill],
        notes={"margin_share": MARGIN_SHARE, "reserve_bytes": profile.reserve_bytes},
    )


if __name__ == "__main__":
    main()
