"""What are adapters trained on a quantised base worth in PEFT, on the published base and on the quantised one?

``python -m benchmarks.sweeps.adapters_on_bases --shared FOLDER``. The sweep of ``format_quality.py`` on two small real
models, one seed: the winner of each format is written as PEFT's files and loaded by PEFT on the base model as published
(float32 and bfloat16) and on one whose linears have the quantised weights; where bitsandbytes is installed and reads
its own weights right, on its nf4 model, too. Losses are over the same validation rows everywhere. No GPU.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.sweeps.bd_quality import tasks
from benchmarks.sweeps.format_quality import LENGTHS, Study, Variant
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    rank_rows_from_peft,
    read_adapter,
    serialised_weights,
)
from cohort.adapters.spec import AdapterSpec
from cohort.data.tokenised import TokenisedRows
from cohort.models.weight_formats import PLAIN, WEIGHT_FORMATS
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.trial import TrialSpec, TrialState

__all__ = ["here_loss", "peft_loss", "published_base", "quantised_base"]

QUESTION = (
    "What are adapters trained on a quantised base worth in PEFT, on the published base and on the quantised one?"
)


def published_base(folder: Path, *, dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return the checkpoint as transformers loads it."""
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model


def quantised_base(folder: Path, weight_format: str) -> nn.Module:
    """Return the checkpoint with its linears rounded to ``weight_format`` and back, in float32."""
    model, decoder = published_base(folder), load_decoder(folder, dtype="float32", weight_format=weight_format)
    with torch.no_grad():
        for name in decoder.linears:
            model.get_submodule(name).weight.copy_(decoder.weight_of(name))  # type: ignore[operator]
    return model


def bitsandbytes_base(folder: Path) -> nn.Module | None:
    """Return the checkpoint as bitsandbytes keeps it in nf4 with double quantisation; None where it cannot say so.

    Without a GPU version 0.50 dequantises linears of some widths (352) to other weights than were quantised.
    """
    dequantised = importlib.import_module("bitsandbytes.functional").dequantize_4bit
    settings = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    model: nn.Module = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=settings, device_map="cpu", dtype=torch.float32
    )
    expected = quantised_base(folder, "nf4")
    for name, module in model.named_modules():
        # its packed products of CPUs take widths of whole blocks alone
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
            own, weight = module.weight, expected.get_submodule(name).weight
            difference = dequantised(own.data, own.quant_state) - weight
            # values halfway between two codes go to either
            if float(difference.norm() / weight.norm()) > 0.01:  # type: ignore[operator]
                return None
    return model


@torch.no_grad()
def peft_loss(base: nn.Module, adapter: Path, rows: TokenisedRows) -> float:
    """Return the mean loss per trained token, in nats, of PEFT's model."""
    model = PeftModel.from_pretrained(base, str(adapter)).eval()
    total, count = 0.0, 0
    for row_id in range(len(rows)):
        sample = rows.sample(row_id)
        tokens, trained = torch.as_tensor(sample.tokens).long(), torch.as_tensor(sample.trained)[1:]
        logits = model(tokens[None]).logits[0, :-1].float()
        total += float(nn.functional.cross_entropy(logits, tokens[1:], reduction="none")[trained].double().sum())
        count += int(trained.sum())
    return total / count


def here_loss(folder: Path, weight_format: str, adapter: Path, rows: TokenisedRows) -> float:
    """Return the same loss of this project's decoder on a base in ``weight_format``."""
    decoder, read = load_decoder(folder, dtype="float32", weight_format=weight_format), read_adapter(adapter)
    settings = ExecutorSettings(num_slots=1, num_rank_rows=64, token_budget=4096, evaluation_token_budget=4096)
    linears = {name: decoder.linears[name] for name in read.modules}
    executor = Executor(decoder, target_linears=linears, train_rows=rows, settings=settings)
    weights = rank_rows_from_peft(executor.bank.layout, read)
    spec = TrialSpec(trial_id=0, seed=0, adapter=read.spec, learning_rate=1e-3, batch_size=1, num_steps=1)
    executor.load(spec, TrialState(adapter=AdapterState(weights=weights)))
    return executor.evaluate([0], rows=rows, row_ids=range(len(rows)))[0].loss


def losses_of(folder: Path, weight_format: str, adapter: Path, rows: TokenisedRows) -> dict[str, float]:
    """Return an adapter's losses on every base."""
    found = {
        "here, quantised": here_loss(folder, weight_format, adapter, rows),
        "here, published": here_loss(folder, PLAIN.name, adapter, rows),
        "PEFT, quantised": peft_loss(quantised_base(folder, weight_format), adapter, rows),
        "PEFT, published": peft_loss(published_base(folder), adapter, rows),
        "PEFT, published in bf16": peft_loss(published_base(folder, dtype=torch.bfloat16), adapter, rows),
    }
    if weight_format == "nf4" and importlib.util.find_spec("bitsandbytes") is not None:
        theirs = bitsandbytes_base(folder)
        if theirs is not None:
            found["PEFT, bitsandbytes"] = peft_loss(theirs, adapter, rows)
    return found


def write_adapter(folder: Path, layout: AdapterLayout, spec: AdapterSpec, weights: torch.Tensor, *, base: Path) -> None:
    """Write PEFT's two files."""
    config = adapter_config(spec, base_model=str(base), target_modules=sorted(layout.linears))
    (folder / CONFIG_FILE).write_text(json.dumps(config))
    (folder / WEIGHTS_FILE).write_bytes(serialised_weights(layout, spec, weights))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shared", type=Path, required=True, help="folder with models/ and data/")
    parser.add_argument("--formats", nargs="+", choices=sorted(WEIGHT_FORMATS), default=["none", "fp8", "int8", "nf4"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tiny", action="store_true", help="two steps, to try the script")
    parser.add_argument("--out", type=Path, default=RESULTS / "adapters_on_bases.json")
    options = parser.parse_args(arguments)
    steps = 2 if options.tiny else options.steps
    rows: list[dict[str, Any]] = []
    for name, task in tasks(options.shared).items():
        study = Study(task, max_length=LENGTHS[name])
        for weight_format in options.formats:
            layout, spec, weights = study.winner(Variant(quantization=weight_format), seed=0, steps=steps)
            with tempfile.TemporaryDirectory() as folder:
                write_adapter(Path(folder), layout, spec, weights, base=study.directory)
                losses = losses_of(study.directory, weight_format, Path(folder), study.validation)
            rows.append({"task": name, "trained on": weight_format, **losses})
            print(rows[-1], flush=True)
            write_result(options.out, question=QUESTION, headline=headline(rows), rows=rows, notes={"steps": steps})
    print_table(rows, columns=list(rows[-1]))


def headline(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """By format, the most that PEFT differs from this project, and what the published base gives over the quantised."""
    found: dict[str, float] = {}
    for weight_format in dict.fromkeys(row["trained on"] for row in rows):
        own = [row for row in rows if row["trained on"] == weight_format]
        found[f"{weight_format}_peft_over_here"] = max(row["PEFT, quantised"] / row["here, quantised"] for row in own)
        found[f"{weight_format}_published_over_quantised"] = max(
            row["PEFT, published in bf16"] / row["PEFT, quantised"] for row in own
        )
    return found


if __name__ == "__main__":
    main()
