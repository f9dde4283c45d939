"""What a packed training step of each variant of LoRA costs next to plain LoRA of the same rank, on the same tokens.

Weights begin at zero where a variant would decompose the base: the time of a step does not depend on them.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import median_seconds, trial_specs
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import aligned_rank
from cohort.adapters.variants.vera_settings import VectorAdapter
from cohort.data.tokenised import TokenisedRows
from cohort.models.decoder import Decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec, TrialState

R, ADAPTERS = 16, 8

# by name: fields of the adapter, fields of the trial
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "dropout": ({"lora_dropout": 0.05}, {}),
    "loraplus": ({}, {"loraplus_lr_ratio": 4.0}),
    "pissa": ({"init_lora_weights": "pissa"}, {}),
    "patterns": ({"rank_pattern": (("down_proj", 8),), "alpha_pattern": (("v_proj", 8.0),)}, {}),
    "dora": ({"use_dora": True}, {}),
    "vera": ({"use_vera": VectorAdapter()}, {}),
    "dora_dropout": ({"use_dora": True, "lora_dropout": 0.05}, {}),
    "lion": ({}, {"optim": "lion"}),
    "muon": ({}, {"optim": "muon"}),
    "sgd": ({}, {"optim": "sgd"}),
}


def varied(name: str, *, batch_size: int) -> list[TrialSpec]:
    """Return the trials of a pack of one variant."""
    adapter, trial = VARIANTS[name]
    specs = trial_specs([R] * ADAPTERS, batch_size=batch_size)
    return [replace(spec, adapter=replace(spec.adapter, **adapter), **trial) for spec in specs]


def step_seconds(decoder: Decoder, specs: list[TrialSpec], rows: TokenisedRows, *, tokens: int, repeats: int) -> float:
    """Return the median time of a step of ``specs`` in one pack."""
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=rows,
        settings=ExecutorSettings(
            num_slots=len(specs),
            num_rank_rows=sum(aligned_rank(spec.adapter.num_rows) for spec in specs),
            token_budget=tokens,
            evaluation_token_budget=tokens,
        ),
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )
    for spec in specs:
        generator = torch.Generator().manual_seed(spec.trial_id)
        weights_rD = torch.empty(spec.adapter.num_rows - spec.adapter.first_state_row, executor.bank.layout.width)
        # A and B of a usual size, and magnitudes above 0
        weights_rD.normal_(std=0.01, generator=generator).abs_()
        executor.load(spec, TrialState(adapter=AdapterState(weights=weights_rD)))
    return median_seconds(executor.step, repeats=repeats)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=8, help="the cost of a layer does not depend on their number")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    need_gpu(shape=arguments.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(arguments.shape, num_layers=arguments.num_layers)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    decoder = random_decoder(config, device=device, dtype=dtype)
    batch_size = 2
    tokens = ADAPTERS * batch_size * arguments.length
    rows = rows_of_lengths([(1, arguments.length - 1)] * 64, vocab_size=config.vocab_size)
    found: list[dict[str, Any]] = []
    for name in VARIANTS:
        specs = varied(name, batch_size=batch_size)
        seconds = step_seconds(decoder, specs, rows, tokens=tokens, repeats=arguments.repeats)
        if device == "cuda":
            torch.cuda.empty_cache()
        plain = found[0]["step_ms"] if found else seconds * 1e3
        found.append({"variant": name, "step_ms": seconds * 1e3, "against_plain": seconds * 1e3 / plain})
    print_table(found, columns=list(found[0]))
    write_result(
        arguments.out or RESULTS / f"lora_variants_{arguments.shape}.json",
        question="What does a step of each variant of LoRA cost next to plain LoRA?",
        headline={f"variant_{row['variant']}": row["against_plain"] for row in found[1:]},
        rows=found,
        notes={
            "adapters": ADAPTERS,
            "r": R,
            "tokens": tokens,
            "length": arguments.length,
            "shape": arguments.shape,
            "num_layers": config.num_layers,
        },
    )


if __name__ == "__main__":
    main()
