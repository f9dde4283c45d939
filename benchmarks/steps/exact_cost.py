"""What exact numerics cost: a step against one in fast mode, in turns; and PEFT against itself at two padded lengths.

``python -m benchmarks.steps.exact_cost [--layers 32] [--shape 8b] [--out RESULT.json]``; ``--shape tiny`` tries it out
on any device. PEFT's part trains one adapter twice on the same rows, alone in its batch, padded to two lengths.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.llama_shapes import decoder_config, hf_config, random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, interleaved, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import alternating_medians, build_executor, trial_specs
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.kernels.exact_product import AgreedShapes, exact_product
from cohort.machine.compile_ahead.launches import collect_launches, kinds_of_adapters
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.models.config import DecoderConfig
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import WEIGHT_FORMATS
from cohort.training.cuda_graphs.recorded_shapes import launching_rows, most_recorded_tokens
from cohort.training.executor import Executor

QUESTION = "How long is a step that gives a packed trial the bits it has alone, against one that need not?"
# name: ranks, rows of each trial, tokens of a row, dropout; passes are recorded where a run would record them
PACKS: dict[str, tuple[tuple[int, ...], int, int, float]] = {
    "8192": ((16,) * 8, 2, 512, 0.0),
    "8192_dropout": ((16,) * 8, 2, 512, 0.1),
    "8192_mixed": ((8, 16, 32, 64) * 4, 1, 512, 0.0),
    "1024": ((16,) * 4, 1, 255, 0.0),
    "1024_mixed": ((8, 16, 32, 64), 2, 127, 0.0),
    "4096": ((16,) * 8, 1, 511, 0.0),
    "4096_dropout": ((16,) * 8, 1, 511, 0.1),
    "256": ((16, 32), 1, 127, 0.0),
}
# By least tokens of a pass: steps after which each size is recorded that will be; a small graph has little to lose.
SETTLED = ((2048, 14), (512, 28), (0, 48))
PROFILED, MOST_KERNELS = 3, 24
TINY_PACKS = {"tiny": ((16, 8), 1, 20, 0.0), "tiny_dropout": ((16, 8), 1, 20, 0.1)}


def switch(decoder: Decoder, *, exact: bool) -> None:
    """Let one decoder serve executors of both kinds in turns."""
    decoder.use_exact_products(exact=exact)


def step_rows(
    shape: str, *, layers: int | None, only: list[str], quantization: str, profiled: bool
) -> Iterator[dict[str, Any]]:
    """A step of each pack in both modes, and the least of both."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = decoder_config(shape, num_layers=layers)
    dtype, kept = torch.bfloat16 if device == "cuda" else torch.float32, WEIGHT_FORMATS[quantization]
    decoder = random_decoder(config, device=device, dtype=dtype, weight_format=kept)
    packs = TINY_PACKS if shape == "tiny" else PACKS
    # in the order that was asked for: a run that is cut off has shown the first
    for name in only or packs:
        ranks, batch, length, dropout = packs[name]
        adapters = [AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout) for r in ranks]
        rows = rows_of_lengths([(1, length - 1)] * 64, vocab_size=config.vocab_size)
        steps: dict[str, Callable[[], object]] = {}
        executors: dict[str, Executor] = {}
        for kind in (Numerics.FAST, Numerics.EXACT):
            switch(decoder, exact=kind is Numerics.EXACT)
            if device == "cuda":
                _compile(decoder, adapters, usual=length, tokens=len(ranks) * batch * length, kind=kind)
            executor = build_executor(
                decoder,
                [
                    replace(spec, adapter=a)
                    for spec, a in zip(trial_specs(ranks, batch_size=batch), adapters, strict=True)
                ],
                rows,
                token_budget=16384,
                graph_tokens=_most_recorded(config, kind) if device == "cuda" else 0,
                numerics=kind,
            )

            def step(executor: Any = executor, exact: bool = kind is Numerics.EXACT) -> None:  # noqa: FBT001
                switch(decoder, exact=exact)
                executor.step()

            steps[str(kind)], executors[str(kind)] = step, executor
        # a pass is launched, then replayed as a graph of a quarter more rows, and at last as its own
        tokens = len(ranks) * batch * length
        settled = next(count for least, count in SETTLED if tokens >= least)
        alternating_medians(steps, repeats=0, warmups=settled if device == "cuda" else 3)
        recording = _recording_seconds(executors)
        times = alternating_medians(steps, repeats=9, warmups=0)
        row: dict[str, Any] = {
            "section": "step",
            "quantization": quantization,
            "pack": name,
            "tokens": tokens,
        }
        row |= {f"{kind}_ms": round(1e3 * seconds, 3) for kind, seconds in times.items()}
        row["recorded_while_timed"] = _recording_seconds(executors) > recording
        row["recorded"] = [kind for kind, own in executors.items() if own.captured is not None and own.captured.sizes]
        yield row | {"ratio": times["exact"] / times["fast"]}
        if profiled and device == "cuda":
            yield from _profile_rows(name, steps)
        del steps, step, executor, executors
        if device == "cuda":
            torch.cuda.empty_cache()


def _most_recorded(config: DecoderConfig, numerics: Numerics) -> int:
    return most_recorded_tokens(numerics, launching=launching_rows(config))


def _recording_seconds(executors: Mapping[str, Executor]) -> float:
    return sum(executor.captured.capture_seconds for executor in executors.values() if executor.captured is not None)


def _profile_rows(pack: str, steps: Mapping[str, Callable[[], object]]) -> Iterator[dict[str, Any]]:
    """Yield the kernels whose time in a step differs most between both modes."""
    found: dict[str, dict[str, float]] = {}
    for kind, step in steps.items():
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(PROFILED):
                step()
            torch.cuda.synchronize()
        for event in profiler.key_averages():
            own = found.setdefault(event.key[:100], {"fast": 0.0, "exact": 0.0})
            own[kind] += event.self_device_time_total / 1e3 / PROFILED
    ordered = sorted(found.items(), key=lambda item: -abs(item[1]["exact"] - item[1]["fast"]))
    for name, own in ordered[:MOST_KERNELS]:
        times = {f"{kind}_ms": round(own[kind], 3) for kind in own}
        yield {"section": "kernel", "of": pack, "kernel": name, **times}


def _compile(decoder: Decoder, adapters: Sequence[AdapterSpec], *, usual: int, tokens: int, kind: Numerics) -> None:
    kinds = kinds_of_adapters(adapters)
    with KernelCompiler() as compiler:
        collect_launches(
            decoder, compiler=compiler, target_linears=decoder.linears, adapters=kinds, usual=usual,
            pass_tokens=(tokens,), numerics=kind,
        )  # fmt: skip
        compiler.wait()


def product_rows(shape: str) -> Iterator[dict[str, Any]]:
    """Each frozen product of a layer and of the head: the BLAS's against the exact one, as graphs in turns."""
    # the kernels are in Triton, which a machine without a GPU may lack
    from cohort.kernels.exact_product.triton import write_anywhere

    config = decoder_config(shape, num_layers=1)
    agreed = AgreedShapes()
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes = {
        "qkv": (hidden, config.query_width + 2 * config.kv_width),
        "o": (config.query_width, hidden),
        "gate+up": (hidden, 2 * inner),
        "down": (inner, hidden),
    }
    for name, (num_in, num_out) in shapes.items():
        weight = (torch.randn(num_out, num_in, device="cuda") * num_in**-0.5).bfloat16()
        for rows in (256, 1024, 4096, 8192):
            for forward in (True, False):
                x = torch.randn(rows, num_in if forward else num_out, device="cuda").bfloat16()
                operand = weight.T if forward else weight
                works: dict[str, Callable[[], object]] = {
                    "blas": lambda x=x, operand=operand: torch.mm(x, operand),
                    "exact": lambda x=x, w=weight, forward=forward: exact_product(x, w, forward=forward, agreed=agreed),
                }
                # what a GPU without Hopper's product takes, here
                y = torch.empty(rows, operand.shape[1], device="cuda", dtype=torch.bfloat16)
                works["triton"] = lambda x=x, w=weight, y=y, forward=forward: write_anywhere(x, w, y, forward=forward)
                times = interleaved(works, baseline="blas", rounds=3, block_seconds=0.02)
                row = {"section": "product", "linear": name, "tokens": rows, "forward": forward}
                row |= {"fast_ms": times["blas"][0], "exact_ms": times["exact"][0], "ratio": times["exact"][1]}
                yield row | {"triton_ms": times["triton"][0], "triton_ratio": times["triton"][1]}


def peft_rows(shape: str) -> Iterator[dict[str, Any]]:
    """PEFT with transformers on the same rows, one a batch, padded to two lengths: losses and weights after steps."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    steps, tokens = 10, rows_of_lengths([(20, 130)] * 10, vocab_size=512)

    def train(length: int) -> tuple[list[float], Tensor]:
        torch.manual_seed(0)
        dtype = "bfloat16" if device == "cuda" else "float32"
        config = LlamaConfig(**hf_config(shape, num_layers=2), dtype=dtype)
        config._attn_implementation = "sdpa"
        model = LlamaForCausalLM(config).to(device, getattr(torch, dtype))
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=1e-3)
        losses = []
        for number in range(steps):
            sample = torch.from_numpy(tokens.sample(number).tokens.astype("int64")).to(device)
            ids = torch.nn.functional.pad(sample, (0, length - len(sample)))[None]
            mask = (torch.arange(length, device=device) < len(sample)).long()[None]
            loss = model(input_ids=ids, attention_mask=mask, labels=ids.masked_fill(mask == 0, -100)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            losses.append(loss.item())
        return losses, torch.cat([p.detach().flatten().float() for p in parameters])

    (losses, weights), (again, same), (others, padded) = train(152), train(152), train(256)
    pairs = enumerate(zip(losses, others, strict=True), 1)
    yield {
        "section": "peft",
        "steps": steps,
        "changed_again": float((same != weights).float().mean()) + float(again != losses),
        "changed": float((padded != weights).float().mean()),
        "first_other_loss": next((step for step, (one, other) in pairs if one != other), None),
        "ratio": others[-1] / losses[-1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "exact_cost.json")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--layers", type=int, default=None, help="fewer layers than the shape has")
    parser.add_argument("--packs", nargs="*", default=[], choices=[*PACKS, *TINY_PACKS])
    parser.add_argument("--sections", nargs="*", default=["step", "product", "peft"])
    parser.add_argument("--quantization", default="none", choices=sorted(WEIGHT_FORMATS))
    parser.add_argument("--profile", action="store_true", help="also the kernels that make the difference")
    options = parser.parse_args()
    need_gpu(shape=options.shape)
    found: list[dict[str, Any]] = []
    sections: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
        "step": lambda: step_rows(
            options.shape,
            layers=options.layers,
            only=options.packs,
            quantization=options.quantization,
            profiled=options.profile,
        ),
        "product": lambda: product_rows(options.shape),
        "peft": lambda: peft_rows("tiny" if options.shape == "tiny" else "1b"),
    }
    for name in options.sections:
        try:
            for row in sections[name]():
                found.append(row)
                # a run that is cut off has shown what it found
                print(row, flush=True)
                write_result(options.out, question=QUESTION, headline=_headline(found, options.shape), rows=found)
        except Exception as error:  # the other sections are worth having
            found.append({"section": name, "error": f"{type(error).__name__}: {error}"[:600]})
    write_result(options.out, question=QUESTION, headline=_headline(found, options.shape), rows=found)
    columns = ("section", "pack", "of", "kernel", "linear", "forward", "tokens", "fast_ms", "exact_ms", "ratio")
    columns = (*columns, "triton_ms", "triton_ratio", "changed", "error")
    print_table(found, columns=columns)


def _headline(rows: list[dict[str, Any]], shape: str) -> dict[str, float]:
    found = {}
    for row in rows:
        if "pack" in row:
            kept = "" if row["quantization"] == "none" else f"_{row['quantization']}"
            found[f"exact_cost_{shape}_{row['pack']}{kept}"] = row["ratio"]
    peft = [row["changed"] for row in rows if row["section"] == "peft" and "changed" in row]
    return found | ({"peft_changed_by_padding": peft[0]} if peft else {})


if __name__ == "__main__":
    main()
