"""How much memory does a recomputed pass take, how long, and how long a row fits with it?

One adapter of rank 16 trains rows of growing length, each a pass of its own, keeping its activations and recomputing
them; then a pack of short rows. Both executors begin alike and see the same rows, so weights are compared too.

    python -m benchmarks.memory.gradient_checkpointing --shape 8b      # GPU, under a minute
    python -m benchmarks.memory.gradient_checkpointing --shape tiny    # CPU: the meter stands in for the allocator
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import alternating_medians, trial_specs
from cohort.core.memory_records import GradientCheckpointing, PassKind
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.training.device_memory import release_cached
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings

LENGTHS = {"8b": (2048, 4096, 8192), "1b": (4096, 8192, 16384), "tiny": (64, 128, 256)}
# beyond what the card holds with everything kept: at 8B 3.98 MB a row
LONGEST = {"8b": 40_960, "1b": 81_920, "tiny": 512}
# of each row, so that the loss head does not grow with it
TRAINED = {"8b": 256, "1b": 256, "tiny": 16}
NO_LIMIT = 1 << 50
MODES = {"kept": GradientCheckpointing.NEVER, "recomputed": GradientCheckpointing.ALWAYS}


def executor_for(
    decoder: Decoder, rows: TokenisedRows, mode: GradientCheckpointing, *, batch_size: int, adapters: int
) -> Executor:
    """Return an executor that trains all of ``rows`` in each step, in passes as large as they come."""
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=adapters,
            num_rank_rows=16 * adapters,
            token_budget=1 << 30,
            evaluation_token_budget=1 << 30,
            gradient_checkpointing=mode,
        ),
        device=decoder.device,
        compute_dtype=decoder.dtype,
        memory_limit_bytes=None if decoder.device.type == "cuda" else NO_LIMIT,
    )
    for spec in trial_specs([16] * adapters, batch_size=batch_size):
        executor.load(spec)
    return executor


def step_peak(executor: Executor) -> int:
    """Run a step; return the peak of its pass."""
    executor.memory.take_peaks()
    executor.memory.observe_next(1)
    executor.step()
    return max(peak.num_bytes for peak in executor.memory.take_peaks() if peak.kind is PassKind.TRAIN)


def compared(
    decoder: Decoder, lengths: Sequence[tuple[int, int]], *, adapters: int = 1, repeats: int = 3
) -> dict[str, Any]:
    """Return peaks and seconds of a step over rows of ``lengths`` (prompt, answer) for each of ``adapters``."""
    release_cached(decoder.device)
    rows = rows_of_lengths(list(lengths), vocab_size=decoder.config.vocab_size)
    executors = {
        name: executor_for(decoder, rows, mode, batch_size=len(rows), adapters=adapters) for name, mode in MODES.items()
    }
    peaks = {name: step_peak(executor) for name, executor in executors.items()}
    kept, recomputed = ([each.weights(i) for i in each.resident] for each in executors.values())
    seconds = alternating_medians({name: each.step for name, each in executors.items()}, repeats=repeats, warmups=1)
    return {
        "tokens": adapters * int(rows.lengths.sum()),
        "longest_row": int(rows.lengths.max()),
        "adapters": adapters,
        "kept_bytes": peaks["kept"],
        "recomputed_bytes": peaks["recomputed"],
        "memory_ratio": peaks["recomputed"] / peaks["kept"],
        "kept_seconds": seconds["kept"],
        "recomputed_seconds": seconds["recomputed"],
        "time_ratio": seconds["recomputed"] / seconds["kept"],
        "equal_bits": all(torch.equal(mine, theirs) for mine, theirs in zip(kept, recomputed, strict=True)),
    }


def longest_row(decoder: Decoder, *, tokens: int, trained: int) -> dict[str, Any]:
    """Return the peak and the seconds of a recomputed pass over one row of ``tokens``."""
    release_cached(decoder.device)
    rows = rows_of_lengths([(tokens - trained, trained)], vocab_size=decoder.config.vocab_size)
    executor = executor_for(decoder, rows, GradientCheckpointing.ALWAYS, batch_size=1, adapters=1)
    peak = step_peak(executor)
    seconds = alternating_medians({"recomputed": executor.step}, repeats=1, warmups=0)
    return {
        "tokens": tokens,
        "longest_row": tokens,
        "adapters": 1,
        "recomputed_bytes": peak,
        "recomputed_seconds": seconds["recomputed"],
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b", choices=tuple(LENGTHS))
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    need_gpu(shape=arguments.shape)
    shape, trained = arguments.shape, TRAINED[arguments.shape]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(shape, num_layers=arguments.num_layers)
    decoder = random_decoder(config, device=device, dtype=torch.bfloat16 if device == "cuda" else torch.float32)
    rows = [compared(decoder, [(tokens - trained, trained)], repeats=1) for tokens in LENGTHS[shape]]
    most = LENGTHS[shape][-1]
    short = max(2, most // 64)
    pack = compared(decoder, [(short - short // 2, short // 2)] * 8, adapters=8, repeats=3)
    long = longest_row(decoder, tokens=LONGEST[shape], trained=trained)
    print_table([*rows, pack, long], columns=list(pack))
    first, last = rows[-2], rows[-1]
    headline = {
        f"{name}_{shape}_bytes_per_row": (last[f"{name}_bytes"] - first[f"{name}_bytes"])
        / (last["tokens"] - first["tokens"])
        for name in MODES
    }
    headline |= {
        f"recomputed_{shape}_step_time_ratio": pack["time_ratio"],
        f"recomputed_{shape}_longest_row": long["tokens"],
    }
    print(headline, f"equal bits: {[row['equal_bits'] for row in (*rows, pack)]}")
    write_result(
        arguments.out or RESULTS / f"gradient_checkpointing_{shape}.json",
        question="How much memory does a recomputed pass take, how long, and how long a row fits with it?",
        headline=headline,
        rows=[*rows, pack, long],
        notes={"streams_bytes_per_row": config.num_layers * config.hidden_size * decoder.dtype.itemsize},
    )


if __name__ == "__main__":
    main()
