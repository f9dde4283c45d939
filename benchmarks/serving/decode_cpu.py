"""Tokens per CPU second of decoding on a CPU: Cohort, PEFT with transformers' generate, and the frozen products alone.

The quickstart's model and a Llama of 44 million parameters with random weights; one stream of one adapter, and eight
adapters of r 16 with four streams each, which Cohort decodes together and PEFT adapter by adapter. Every answer has the
same length. The floor is one pass of every frozen product over as many rows as there are streams: no attention, no
norm, no adapter. Prompts are short, and their passes count as part of the answers. All ways of a cell take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import RESULTS, print_table, write_result
from benchmarks.steps.packed_vs_peft_cpu import MODELS, RANK, both_models, rate
from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.models.decoder import Decoder
from cohort.serving.generate import GenerateRequest, generate, generation_tokens

PROMPT_TOKENS = 8
# adapters, streams of each
CELLS = ((1, 1), (8, 4))


def prompts(decoder: Decoder, count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    drawn: list[list[int]] = torch.randint(
        3, decoder.config.vocab_size, (count, PROMPT_TOKENS), generator=generator
    ).tolist()
    return drawn


def cohort_way(decoder: Decoder, *, adapters: int, streams: int, new: int) -> Callable[[], int]:
    """Return a call that answers every prompt with every adapter at once, and returns how many tokens it made."""
    layout = AdapterLayout(decoder.linears)
    bank = AdapterBank(layout, num_slots=adapters, num_rank_rows=RANK * adapters, trains=False)
    for index in range(adapters):
        weights = torch.randn(RANK, layout.width, generator=torch.Generator().manual_seed(index)) * 0.01
        bank.insert(AdapterSpec(r=RANK, lora_alpha=2 * RANK), AdapterState(weights=weights))
    requests = [
        GenerateRequest(prompt_tokens=tokens, max_new_tokens=new, slot=slot)
        for slot in range(adapters)
        for tokens in prompts(decoder, streams)
    ]

    def answer() -> int:
        answers = generate(
            decoder,
            requests,
            lora_for=bank.context,
            num_slots=adapters,
            stop_ids=frozenset(),
            token_budget=generation_tokens(decoder),
        )
        return sum(map(len, answers))

    return answer


def peft_way(model: Any, decoder: Decoder, *, adapters: int, streams: int, new: int) -> Callable[[], int]:
    """Return the same by transformers' generate, one adapter after another."""
    from peft import LoraConfig, get_peft_model

    names = [f"adapter_{index}" for index in range(adapters)]
    lora = LoraConfig(
        r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
    )
    tuned = get_peft_model(model, lora, adapter_name=names[0]).eval()
    for name in names[1:]:
        tuned.add_adapter(name, lora)
    tokens = torch.tensor(prompts(decoder, streams))

    def answer() -> int:
        count = 0
        for name in names:
            tuned.set_adapter(name)
            found = tuned.generate(
                input_ids=tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                max_new_tokens=new,
                min_new_tokens=new,
                pad_token_id=0,
            )
            count += found.numel() - tokens.numel()
        return count

    return answer


def products_alone(decoder: Decoder, *, rows: int) -> Callable[[], int]:
    """Return a call of every frozen product over ``rows`` rows, which returns that number."""
    inputs = [torch.randn(rows, product.in_features) for product in decoder.products]

    @torch.no_grad()
    def multiply() -> int:
        for product, x in zip(decoder.products, inputs, strict=True):
            product.forward(x)
        return rows

    return multiply


def measure_cell(ways: dict[str, Callable[[], int]], *, rounds: int, seconds: float) -> dict[str, float]:
    """Return the median rate of each way, and of Cohort's over PEFT's and over the floor in the same round."""
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way()
    for turn in range(rounds):
        for name, way in list(ways.items())[:: -1 if turn % 2 else 1]:
            rates[name].append(rate(way, seconds=seconds))
    found = {f"{name}_tokens_per_second": float(round(statistics.median(own))) for name, own in rates.items()}
    for other in ("peft", "products"):
        ratios = sorted(ours / theirs for ours, theirs in zip(rates["cohort"], rates[other], strict=True))
        found |= {f"cohort_vs_{other}": statistics.median(ratios), f"cohort_vs_{other}_least": ratios[0]}
    return {**found, "load_average": os.getloadavg()[0]}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--new", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU seconds of one way in one round, at least")
    parser.add_argument("--threads", type=int, default=1, help="of torch, for all ways")
    parser.add_argument("--folder", type=Path, default=Path("build"), help="where the random model is written")
    parser.add_argument("--out", type=Path, default=RESULTS / "decode_cpu.json")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    found: list[dict[str, Any]] = []
    headline = {}
    for model in arguments.models:
        decoder, load = both_models(model, arguments.folder)
        for adapters, streams in CELLS:
            size = {"adapters": adapters, "streams": streams, "new": arguments.new}
            ways = {
                "cohort": cohort_way(decoder, **size),
                "peft": peft_way(load(), decoder, **size),
                "products": products_alone(decoder, rows=adapters * streams),
            }
            cell = measure_cell(ways, rounds=arguments.rounds, seconds=arguments.seconds)
            found.append({"model": model, "adapters": adapters, "streams": adapters * streams, **cell})
            print_table(found[-1:], columns=list(found[0]))
            for other in ("peft", "products"):
                headline[f"decode_cpu_{model}_{adapters}_adapters_vs_{other}"] = cell[f"cohort_vs_{other}"]
    print_table(found, columns=list(found[0]))
    write_result(
        arguments.out,
        question="How fast are answers decoded on a CPU, against transformers with PEFT and the products alone?",
        headline=headline,
        rows=found,
        notes={
            "r": RANK,
            "prompt_tokens": PROMPT_TOKENS,
            "new_tokens": arguments.new,
            "clock": "CPU time of the process, all threads together",
            "threads": arguments.threads,
            "peft": "PEFT and transformers' generate, float32, greedy, one adapter after another",
            "products": "all frozen products once over as many rows as there are streams",
        },
    )


if __name__ == "__main__":
    main()
