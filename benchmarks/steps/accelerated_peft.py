"""A training step of a PEFT model, as it is and after ``accelerate(model)``: in a loop and in TRL's SFTTrainer."""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.llama_shapes import SHAPES, decoder_config, rows_of_lengths
from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import median_seconds, peft_step
from benchmarks.trl_trainers import clock_of_steps, token_rows
from cohort.data.tokenised import TokenisedRows
from cohort.integrations.peft import accelerate

# steps in which kernels are compiled
FIRST_STEPS = 3


def trainer_steps(model: Any, rows: TokenisedRows, *, batch_size: int, steps: int) -> tuple[float, list[float]]:
    """Return the median time of a step of TRL's unmodified SFTTrainer, and the losses of all steps."""
    found = token_rows([{"input_ids": rows.sample(row).tokens.tolist()} for row in range(len(rows))])
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    words = Tokenizer(models.WordLevel({"<eos>": 0, "<pad>": 1}, unk_token="<pad>"))
    ends: list[float] = []
    on_gpu = torch.cuda.is_available()
    with tempfile.TemporaryDirectory(prefix="accelerated-peft-") as folder:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                output_dir=folder,
                per_device_train_batch_size=batch_size,
                max_steps=FIRST_STEPS + steps,
                logging_steps=1,
                gradient_checkpointing=False,
                bf16=on_gpu,
                use_cpu=not on_gpu,
                report_to="none",
                save_strategy="no",
                disable_tqdm=True,
                dataset_kwargs={"skip_prepare_dataset": True},
            ),
            train_dataset=found,
            processing_class=PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", pad_token="<pad>"),
            callbacks=[clock_of_steps(ends)],
        )
        trainer.train()
    times = [end - begun for begun, end in zip(ends[FIRST_STEPS - 1 :], ends[FIRST_STEPS:], strict=False)]
    return statistics.median(times), [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def in_a_trainer(options: argparse.Namespace, rows: TokenisedRows, *, batch_size: int, device: str) -> dict[str, Any]:
    """Return the times of a trainer's steps as PEFT is and accelerated, and how far the losses are apart."""
    seconds: list[float] = []
    losses: list[Sequence[float]] = []
    for is_fast in (False, True):
        # the same weights and adapters both times
        torch.manual_seed(0)
        _, model = peft_step(options.shape, rows, batch_size=batch_size, device=device, num_layers=options.num_layers)
        if is_fast:
            accelerate(model)
        own, lost = trainer_steps(model, rows, batch_size=batch_size, steps=options.repeats)
        seconds.append(own)
        losses.append(lost)
        del model
        # a trainer and its model name each other
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    apart = max(abs(one - other) / abs(one) for one, other in zip(*losses, strict=True))
    return {
        "peft_ms": 1e3 * seconds[0],
        "packed_siblings_ms": 1e3 * seconds[1],
        "speed_up": seconds[0] / seconds[1],
        "losses_apart": apart,
    }


def in_a_loop(options: argparse.Namespace, rows: TokenisedRows, *, batch_size: int, device: str) -> dict[str, Any]:
    """Return the times of a plain loop's steps: as PEFT is, accelerated, and with siblings fused."""
    step, model = peft_step(options.shape, rows, batch_size=batch_size, device=device, num_layers=options.num_layers)
    seconds = {"peft": median_seconds(step, repeats=options.repeats)}
    for name, fuses in (("packed", False), ("packed_siblings", True)):
        accelerate(model, fuse_siblings=fuses)
        seconds[name] = median_seconds(step, repeats=options.repeats)
    del step, model
    if device == "cuda":
        torch.cuda.empty_cache()
    return {
        **{f"{name}_ms": 1e3 * own for name, own in seconds.items()},
        "speed_up": seconds["peft"] / seconds["packed_siblings"],
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="8b")
    parser.add_argument("--num-layers", type=int, default=8, help="the cost of a layer does not depend on their number")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--no-trl", action="store_true", help="leave TRL's trainer out")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(options.shape, num_layers=options.num_layers)
    rows = rows_of_lengths([(1, options.length - 1)] * 64, vocab_size=config.vocab_size)
    sides = {"loop": in_a_loop, **({} if options.no_trl else {"SFTTrainer": in_a_trainer})}
    found: list[dict[str, Any]] = []
    for side, measured in sides.items():
        for batch_size in options.batch_sizes:
            times = measured(options, rows, batch_size=batch_size, device=device)
            found.append({"side": side, "batch_size": batch_size, **times})
            print(found[-1], flush=True)
            names = {"loop": f"accelerate_{options.shape}", "SFTTrainer": f"accelerate_trainer_{options.shape}"}
            # after every part: what is cut off keeps those it has
            write_result(
                options.out or RESULTS / f"accelerated_peft_{options.shape}.json",
                question="How much faster is a step of a PEFT model after accelerate(model)?",
                headline={f"{names[row['side']]}_bs{row['batch_size']}": row["speed_up"] for row in found},
                rows=found,
                notes={"length": options.length, "r": 16, "num_layers": config.num_layers},
            )
    print_table(found, columns=["side", "batch_size", "peft_ms", "packed_siblings_ms", "speed_up"])


if __name__ == "__main__":
    main()
