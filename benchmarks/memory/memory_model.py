"""How well is a pass's memory predicted, and does a sweep that fills the card by that prediction ever run out?

Profiles as a run does, then measures held-out packs of mixed ranks, batch sizes, lengths and trial counts against the
prediction (base model and adapter state by arithmetic, the pass by the fit), then trains a sweep whose bank and passes
fill the card, through the same sizes and admission as a run's.

    python -m benchmarks.memory.memory_model --shape 8b          # GPU, four minutes; --part fill or held-out: two each
    python -m benchmarks.memory.memory_model --shape tiny        # CPU: the meter stands in for the allocator
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.llama_shapes import decoder_config, random_decoder
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.memory.card_fill import fill_the_card, free_bytes, write_fill
from benchmarks.memory.mixed_trials import empty_state, mixed_rows, spec_of
from benchmarks.requirements import need_gpu
from cohort.adapters.bank import aligned_rank
from cohort.adapters.layout import AdapterLayout
from cohort.core.units import format_bytes
from cohort.memory.profile import MemoryProfile, profile_memory
from cohort.models.decoder import Decoder
from cohort.scheduling.pass_memory import TERMS, mean_error_percent
from cohort.training.device_memory import release_cached
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings

RANKS = (8, 16, 32, 64, 128)
MOST_TOKENS = {"8b": 8192, "1b": 16384, "tiny": 2048}
NO_LIMIT = 1 << 50
# of a held-out pack: 8B's take 47 MB each, in addition to a pass
MOST_RANK_ROWS = 1024


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


if __name__ == "__main__":
    main()
