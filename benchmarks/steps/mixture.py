"""Steps of many adapters on a mixture of experts: against PEFT and the frozen model, and a block against its floor.

``--form native`` measures the mixture as Cohort's own decoder has it, whose passes are recorded as CUDA graphs (and the
frozen model as well, as one graph), ``--form bridged`` as transformers computes it, ``both`` one after the other.

The floor of a block of experts is its four grouped products alone (two forward, two for the gradient of the input), on
rows that are sorted already. Fewer layers than the model has: adapters on all experts of all layers fit on no GPU for
16 trials, and a layer costs what it costs.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import grouped_mm

from benchmarks.bridged_shapes import (
    SHAPES,
    bridged,
    bridged_config,
    bridged_executor,
    native_config,
    random_model,
)
from benchmarks.llama_shapes import random_decoder, rows_of_lengths
from benchmarks.measure import RESULTS, capture, median_eager, median_replay, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import frozen_step, median_seconds, peft_loop, trial_specs
from cohort.adapters.bank import AdapterBank
from cohort.adapters.layout import AdapterLayout
from cohort.core.numerics import Numerics
from cohort.data.packing import SlotSample, lay_out
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.gated_activation import Activation, gated_activation
from cohort.models.bridge.backbone import BridgedDecoder
from cohort.models.bridge.structure import expert_blocks
from cohort.models.decoder import Decoder
from cohort.models.experts.grouped import grouped_block
from cohort.models.experts.sparse_mlp import SparseMlp
from cohort.models.experts.stacked_weights import StackedWeights
from cohort.training.backward_start import seeded
from cohort.training.cuda_graphs.pass_shape import PassShape
from cohort.training.cuda_graphs.pass_tensors import PassTensors
from cohort.training.cuda_graphs.recorded_shapes import rounded_up
from cohort.training.token_losses import token_losses

QUESTION = "What do adapters on a mixture of experts cost: against PEFT, the frozen model, and its grouped products?"
LENGTH, LONG = 200, 512
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


class Record:
    """What was found so far; written after each number."""

    def __init__(self, options: argparse.Namespace, num_layers: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self.headline: dict[str, float] = {}
        form = "" if options.form == "bridged" else f"_{options.form}"
        self._path = options.out or RESULTS / f"mixture{form}_qwen3_30b_a3b.json"
        self._notes = {
            "r": 16,
            "shape": options.shape,
            "num_layers": num_layers,
            "adapters": options.adapters,
            "numerics": options.numerics,
        }

    def add(self, what: str, seconds: float, *, tokens: int) -> float:
        row = {"what": what, "tokens": tokens, "ms": 1e3 * seconds, "tokens_per_second": tokens / seconds}
        self.rows.append(row)
        print(row, flush=True)
        self.write()
        return seconds

    def write(self) -> None:
        write_result(self._path, question=QUESTION, headline=self.headline, rows=self.rows, notes=self._notes)


def freed() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def milliseconds(work: Callable[[], object]) -> float:
    if torch.cuda.is_available():
        return median_eager(work)
    work()
    begun = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begun)


def silu_gate(gate_up_SN: torch.Tensor) -> torch.Tensor:
    return gated_activation(gate_up_SN, activation=Activation.SILU)


def print_profile(work: Callable[[], object], *, calls: int = 10) -> None:
    """Print the microseconds of each kernel of a call, and those in which the device did nothing."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA if torch.cuda.is_available() else ProfilerActivity.CPU]) as profiled:
        begun = time.perf_counter()
        for _ in range(calls):
            work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        wall = 1e6 * (time.perf_counter() - begun) / calls
    kernels = [own for own in profiled.key_averages() if own.device_type == DeviceType.CUDA]
    for own in sorted(kernels, key=lambda each: -each.self_device_time_total):
        print(f"{own.self_device_time_total / calls:9.1f} us {own.count / calls:6.1f} x {own.key[:110]}")
    busy = sum(own.self_device_time_total for own in kernels) / calls
    print(f"busy {busy:.0f} of {wall:.0f} us", flush=True)


def first_experts(decoder: Decoder) -> tuple[StackedWeights, StackedWeights]:
    """Return the weights of the first block of experts."""
    if not isinstance(decoder, BridgedDecoder):
        block = next(layer.mlp for layer in decoder.layers if isinstance(layer.mlp, SparseMlp)).block
        return block.up, block.down
    assert decoder.config.bridged is not None, "a bridged decoder says what it is"
    path, module = next(iter(expert_blocks(decoder.model, decoder.config.bridged.layers).items()))
    return (
        StackedWeights(f"{path}.up", module.gate_up_proj.detach()),
        StackedWeights(f"{path}.down", module.down_proj.detach()),
    )


def block_over_floor(decoder: Decoder, record: Record, *, tokens: int, each: int, profiles: bool) -> None:
    """Record forward and backward of the first block of frozen experts, and its grouped products alone."""
    up, down = first_experts(decoder)
    device, dtype = decoder.device, decoder.dtype
    x_TD = torch.randn(tokens, up.in_features, device=device, dtype=dtype, requires_grad=True)
    scores_TE = torch.randn(tokens, up.num_experts, device=device)
    weights_TJ, index_TJ = scores_TE.softmax(dim=1).topk(each, dim=1)
    weights_TJ = weights_TJ.to(dtype)
    dy_TD = torch.randn(tokens, up.in_features, device=device, dtype=dtype)

    def block() -> None:
        y_TD = grouped_block(
            x_TD,
            index_TJ,
            weights_TJ,
            up=up,
            down=down,
            activation=silu_gate,
            lora=None,
        )
        torch.autograd.grad(y_TD, x_TD, dy_TD)

    counts_E = torch.bincount(index_TJ.reshape(-1), minlength=up.num_experts)
    ends_E = counts_E.cumsum(0).to(torch.int32)
    sizes = {"x": up.in_features, "h": up.out_features, "a": down.in_features, "y": down.out_features}
    of = {name: torch.randn(tokens * each, size, device=device, dtype=dtype) for name, size in sizes.items()}

    def floor() -> None:
        grouped_mm(of["x"], up.weight_ENK.transpose(1, 2), offs=ends_E)
        grouped_mm(of["a"], down.weight_ENK.transpose(1, 2), offs=ends_E)
        grouped_mm(of["y"], down.weight_ENK, offs=ends_E)
        grouped_mm(of["h"], up.weight_ENK, offs=ends_E)

    if not isinstance(decoder, BridgedDecoder):
        routed = next(layer.mlp for layer in decoder.layers if isinstance(layer.mlp, SparseMlp))

        def whole() -> None:
            torch.autograd.grad(routed(x_TD, None), x_TD, dy_TD)

        record.add("a block with its router", milliseconds(whole) / 1e3, tokens=tokens)
        if profiles:
            print_profile(whole)
    own = record.add("a block of experts, forward and backward", milliseconds(block) / 1e3, tokens=tokens)
    least = record.add("its grouped products alone", milliseconds(floor) / 1e3, tokens=tokens)
    if profiles:
        print_profile(block)
    record.headline["moe_over_grouped_floor"] = own / least
    if not isinstance(decoder, BridgedDecoder):
        # as a recorded pass runs them
        replayed = median_replay if torch.cuda.is_available() else milliseconds
        own, least = (replayed(work) / 1e3 for work in (block, floor))
        record.add("a block of experts as one graph", own, tokens=tokens)
        record.add("its grouped products as one graph", least, tokens=tokens)
        record.headline["moe_recorded_over_grouped_floor"] = own / least
    record.write()


def recorded_frozen_step(decoder: Decoder, rows: TokenisedRows, row_ids: Sequence[int]) -> Callable[[], object]:
    """Return what ``frozen_step`` does, replayed as one CUDA graph; launched kernel by kernel without a GPU."""
    entries = [SlotSample(slot=-1, sample=rows.sample(row_id)) for row_id in row_ids]
    shape = rounded_up(PassShape.of(entries), padded=False)
    # a bank without an adapter: the tables of a recorded pass want one
    name, widths = next(iter(decoder.linears.items()))
    layout = AdapterLayout({name: widths})
    bank = AdapterBank(layout, num_slots=1, num_rank_rows=16, device=decoder.device, compute_dtype=decoder.dtype)
    slots = bank.slot_table()
    tensors = PassTensors(shape, bank=bank, slots=slots, pads_attention=False)
    stream = lay_out(entries, num_slots=1, num_rows=shape.num_rows)
    tensors.fill(stream, slots=slots, divisors={}, fresh_slots=())
    tensors.weights_T.fill_(1 / shape.num_rows)
    lora = replace(tensors.lora, factors={})

    def step() -> None:
        losses_T = token_losses(decoder, tensors.batch, lora, attention=tensors.attention)
        seeded(losses_T, tensors.weights_T).backward()

    return capture(step).replay if torch.cuda.is_available() else step


def packed(decoder: Decoder, options: argparse.Namespace, *, length: int, adapts_experts: bool) -> float:
    is_native = not isinstance(decoder, BridgedDecoder)
    rows = rows_of_lengths([(1, length - 1)] * 64, vocab_size=decoder.config.vocab_size)
    specs = trial_specs([16] * options.adapters, batch_size=1)
    executor = bridged_executor(
        decoder,
        specs,
        rows,
        token_budget=options.adapters * length,
        targets=ATTENTION,
        adapts_experts=adapts_experts,
        # a pass is recorded with a row more than it has tokens, rounded up
        graph_tokens=options.adapters * length + 256 if is_native and torch.cuda.is_available() else 0,
        numerics=Numerics(options.numerics) if is_native and not adapts_experts else Numerics.FAST,
    )
    # a size is recorded once a pass of it has come
    found = median_seconds(executor.step, repeats=options.repeats, warmups=4)
    if executor.captured is not None:
        print(f"{executor.captured.num_replays} replays", flush=True)
    if options.profile:
        print_profile(executor.step, calls=2)
    del executor
    freed()
    return found


def main() -> None:
    """Measure, print, write after every number."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name for name in SHAPES if SHAPES[name][0] == "qwen3_moe"]
    parser.add_argument("--shape", choices=names, default="qwen3-30b-a3b")
    parser.add_argument("--num-layers", type=int, default=8)
    parser.add_argument("--adapters", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--form", choices=("native", "bridged", "both"), default="both")
    parser.add_argument("--numerics", choices=[own.value for own in Numerics], default="fast", help="of native steps")
    parser.add_argument("--without-peft", action="store_true", help="leave PEFT's steps out")
    parser.add_argument("--block-alone", action="store_true", help="leave the steps out")
    parser.add_argument("--profile", action="store_true", help="print the kernels of a block and of a step")
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    is_tiny = options.shape.startswith("tiny")
    need_gpu(shape="tiny" if is_tiny else options.shape)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    config = bridged_config(options.shape, num_layers=2 if is_tiny else options.num_layers)
    record, forms = Record(options, config["num_hidden_layers"]), ("bridged", "native")
    own: dict[str, float] = {}
    for form in forms if options.form == "both" else (options.form,):
        decoder = decoder_of(form, config, device=device, dtype=dtype)
        own = measure(decoder, form, record, options, each=config["num_experts_per_tok"])
        del decoder
        freed()
    if options.block_alone:
        return
    if not options.without_peft:
        against_peft(own, config, record, options, device=device, dtype=dtype)
    print_table(record.rows, columns=list(record.rows[0]))
    print(record.headline)


def decoder_of(form: str, config: dict[str, Any], *, device: str, dtype: torch.dtype) -> Decoder:
    if form == "bridged":
        return bridged(config, random_model(config, device=device, dtype=dtype), device=device)
    return random_decoder(native_config(config), device=device, dtype=dtype)


def measure(decoder: Decoder, form: str, record: Record, options: argparse.Namespace, *, each: int) -> dict[str, float]:
    """Record the block, steps and the frozen model of one form; return the seconds of short steps, by what is adapted.

    Headlines of the native form are those of the benchmark, those of the bridged one say so where both are measured.
    """
    count, own = options.adapters, dict[str, float]()
    end = "_bridged" if form == "bridged" and options.form == "both" else ""
    print(form, flush=True)
    block_over_floor(decoder, record, tokens=count * LONG, each=each, profiles=options.profile)
    if end:
        record.headline[f"moe_over_grouped_floor{end}"] = record.headline.pop("moe_over_grouped_floor")
    if options.block_alone:
        return own
    for adapts_experts, name in ((False, "attention"), (True, "attention and experts")):
        own[name] = record.add(
            f"{form}: a step of {count} adapters on {name}",
            packed(decoder, options, length=LENGTH, adapts_experts=adapts_experts),
            tokens=count * LENGTH,
        )
    rows = rows_of_lengths([(1, LONG - 1)] * 64, vocab_size=decoder.config.vocab_size)
    step = frozen_step(decoder, rows, range(count))
    launched = median_seconds(step, repeats=options.repeats)
    frozen = record.add(f"{form}: the frozen model", launched, tokens=count * LONG)
    if form == "native":
        # against the same means: a graph as well
        graph = recorded_frozen_step(decoder, rows, range(count))
        frozen = median_seconds(graph, repeats=options.repeats)
        del graph
        freed()
        record.add(f"{form}: the frozen model as one graph", frozen, tokens=count * LONG)
    for adapts_experts, name in ((False, "attention"), (True, "attention and experts")):
        long = packed(decoder, options, length=LONG, adapts_experts=adapts_experts)
        record.headline[("moe_lora_tax_experts" if adapts_experts else "moe_lora_tax") + end] = long / frozen
        record.add(f"{form}: a step of {count} adapters on {name}", long, tokens=count * LONG)
    return own


def against_peft(
    own: dict[str, float],
    config: dict[str, Any],
    record: Record,
    options: argparse.Namespace,
    *,
    device: str,
    dtype: torch.dtype,
) -> None:
    """Record PEFT's steps, one adapter at a time, over ``own``'s share of one adapter."""
    rows = rows_of_lengths([(1, LENGTH - 1)] * 64, vocab_size=config["vocab_size"])
    for parameters, name in (((), "attention"), (EXPERTS, "attention and experts")):
        model = random_model(config, device=device, dtype=dtype)
        step, _ = peft_loop(model, rows, batch_size=1, device=device, targets=ATTENTION, parameters=parameters)
        peft = median_seconds(step, repeats=options.repeats, warmups=3)
        headline = "moe_packed_vs_peft_experts" if parameters else "moe_packed_vs_peft"
        record.headline[headline] = peft / (own[name] / options.adapters)
        record.add(f"a step of PEFT's on {name}", peft, tokens=LENGTH)
        del model, step
        freed()


if __name__ == "__main__":
    main()
