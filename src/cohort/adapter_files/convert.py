"""An adapter of a run as another kind: BD-LoRA as plain LoRA, exactly; LoRA as BD-LoRA, exactly or nearly."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from cohort.adapter_files.base_model import RunBase
from cohort.adapters.expert_names import parameters_among
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.peft_files.peft_config import adapter_config
from cohort.adapters.peft_files.peft_format import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    PeftAdapter,
    rank_rows_from_peft,
    read_adapter,
    serialised_weights,
)
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_conversion import Conversion, convert_to_blocks, input_blocks, spec_with_blocks
from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL, BlockDiagonal, rank_of_equal_size
from cohort.core.cache_directory import default_cache_directory
from cohort.core.durable_files import atomic_directory
from cohort.core.errors import InputError, Problem
from cohort.core.setting_fields import Refusal
from cohort.core.source_location import Place
from cohort.core.units import counted
from cohort.data.loading import load_dataset
from cohort.data.tokenised import TokenisedRows
from cohort.memory.host_streaming import layers_for_generation
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.config_file import read_config
from cohort.models.decoder import Decoder
from cohort.models.streaming.host_source import host_streaming
from cohort.models.tokenizer import load_tokenizer
from cohort.models.weights import load_decoder
from cohort.prepare.inputs import machine_of
from cohort.training.compression.distillation import distill
from cohort.training.compression.input_grams import input_grams

__all__ = ["BlockTarget", "write_as_blocks", "write_as_lora"]

_BATCH_SIZE = 8
TOKENIZER_SUFFIXES = {".json", ".model", ".txt", ".jinja"}


@dataclass(frozen=True, kw_only=True)
class BlockTarget:
    """The BD-LoRA adapter to make of another adapter.

    Attributes:
        nblocks: Blocks of each block-diagonal factor, at least 2.
        rank: Total rank; None for the one with about as many parameters as the adapter has.
        is_swapped: Give A blocks where the base is column-parallel, and B where it is row-parallel.
        whiten_rows: Rows of the run's training data on which the error is made least; 0 weighs all inputs alike.
        distill_steps: Steps of training on those data to answer as the adapter does.
    """

    nblocks: int
    rank: int | None = None
    is_swapped: bool = False
    whiten_rows: int = 0
    distill_steps: int = 0

    @property
    def blocks(self) -> BlockDiagonal:
        lists = (COLUMN_PARALLEL, ROW_PARALLEL) if self.is_swapped else (ROW_PARALLEL, COLUMN_PARALLEL)
        # an adapter of other linears keeps two dense factors there
        return BlockDiagonal(
            nblocks=self.nblocks, target_modules_bd_a=lists[0], target_modules_bd_b=lists[1], match_strict=False
        )


def write_as_lora(source: Path, target: Path, *, base: RunBase) -> str:
    """Write the adapter in ``source`` with dense factors, which every server of LoRA reads; return a note.

    Raises:
        InputError: the adapter does not fit the base model.
    """
    adapter, layout, weights_rD = _read(source, base=base)
    spec = spec_with_blocks(adapter.spec, None, r=adapter.spec.r)
    kind = "plain LoRA already" if adapter.spec.use_bdlora is None else "the same function, with zeros between blocks"
    if adapter.projections is not None:
        kind = "the same function as VeRA's, its vectors multiplied into the projections"
    _write(source, target, layout=layout, spec=spec, weights_rD=weights_rD, base=base, how=f"Written as LoRA: {kind}.")
    return f"LoRA of rank {spec.r}: {kind}"


def write_as_blocks(source: Path, target: Path, *, base: RunBase, asked: BlockTarget, learning_rate: float) -> str:
    """Write the adapter in ``source`` as BD-LoRA; return a note that says how near it is.

    Args:
        learning_rate: Of the first step of distillation; the trial's own is known to suit the adapter.

    Raises:
        InputError: the blocks fit neither model nor rank, or the run's rows cannot be read.
    """
    adapter, layout, weights_rD = _read(source, base=base)
    blocks, spec = asked.blocks, adapter.spec
    r = rank_of_equal_size(layout.linears, r=spec.r, blocks=blocks) if asked.rank is None else asked.rank
    own = spec.use_bdlora
    if asked.rank is None and own is not None and own.nblocks % asked.nblocks == 0:
        r = spec.r
    if spec.has_patterns:
        what, hint = "an adapter with rank_pattern or alpha_pattern", "Train one with a single rank and alpha."
        raise InputError(Problem(where="--to bd", found=what, allowed="one rank and one alpha", hint=hint))
    _require_fit(blocks, layout, r=r, most=spec.r * asked.nblocks)
    rows = _rows(base) if asked.whiten_rows or asked.distill_steps else None
    if rows is not None and asked.whiten_rows > len(rows):
        hint = f"Write --whiten {len(rows)} for all of them; a few dozen are enough."
        allowed = f"at most {counted(len(rows), 'row')}, those that the run trains on"
        raise InputError(Problem(where="--whiten", found=str(asked.whiten_rows), allowed=allowed, hint=hint))
    decoder = None if rows is None else _decoder(base)
    grams = None
    if rows is not None and decoder is not None and asked.whiten_rows:
        chosen = random.Random(0).sample(range(len(rows)), asked.whiten_rows)
        grams = input_grams(
            decoder,
            layout,
            spec,
            weights_rD,
            input_blocks={name: input_blocks(blocks, name, shape) for name, shape in layout.linears.items()},
            samples=[rows.sample(index) for index in sorted(chosen)],
        )
    found = convert_to_blocks(layout, spec, weights_rD, blocks=blocks, r=r, grams=grams)
    note, weights_RD = _said(found, is_on_inputs=grams is not None), found.weights_RD
    if rows is not None and decoder is not None and asked.distill_steps:
        distilled = distill(
            decoder,
            layout,
            teacher=(spec, weights_rD),
            student=(found.spec, weights_RD),
            rows=rows,
            num_steps=asked.distill_steps,
            batch_size=_BATCH_SIZE,
            learning_rate=learning_rate,
        )
        weights_RD, before, after = distilled.weights_rD, distilled.before, distilled.after
        note += f"; {counted(asked.distill_steps, 'step')} of distillation took the divergence from {before:.3g} to "
        note += f"{after:.3g} nats a token, on {counted(distilled.num_measured, 'training row')}"
        if not distilled.is_nearer:
            note += "; that is no nearer, so the adapter before these steps is written: take more steps"
    _write(source, target, layout=layout, spec=found.spec, weights_rD=weights_RD, base=base, how=f"Converted: {note}.")
    return note


def _said(found: Conversion, *, is_on_inputs: bool) -> str:
    blocks = found.spec.use_bdlora
    assert blocks is not None, "a conversion to blocks has blocks"
    kind = f"BD-LoRA of {blocks.nblocks} blocks and rank {found.spec.r}"
    if found.is_exact:
        return f"{kind}: the same function"
    worst = max(found.errors, key=lambda name: found.errors[name])
    where = " on the inputs of its rows" if is_on_inputs else ""
    return (
        f"{kind}: {100 * found.mean_error:.3g} % of the adapter's change is lost{where} "
        f"({100 * found.errors[worst]:.3g} % in {worst})"
    )


def _read(source: Path, *, base: RunBase) -> tuple[PeftAdapter, AdapterLayout, Tensor]:
    adapter, config = read_adapter(source), check_checkpoint(base.directory)
    known = linear_shapes(config)
    if config.bridged is not None:
        # blocks follow the linears of a layer as the native families have them
        found = f"an adapter of {config.architecture}, which transformers computes"
        hint = "Export it with --to peft or --to merged."
        raise InputError(Problem(where="--to", found=found, allowed="an adapter of a native family", hint=hint))
    if parameters_among(adapter.modules):
        hint = "Export it with --to peft or --to merged."
        found = f"an adapter on experts of {config.architecture}"
        raise InputError(Problem(where="--to", found=found, allowed="an adapter of linear layers alone", hint=hint))
    if adapter.spec.use_dora:
        hint = "Export it with --to peft or --to merged."
        raise InputError(Problem(where="--to", found="a DoRA adapter", allowed="plain LoRA or BD-LoRA", hint=hint))
    if adapter.spec.saved is not None:
        found = f"an adapter with modules_to_save {', '.join(adapter.spec.saved.names)}"
        hint = "Export it with --to peft or --to merged."
        raise InputError(Problem(where="--to", found=found, allowed="an adapter of linear layers alone", hint=hint))
    layout = AdapterLayout({name: shape for name, shape in known.items() if name in adapter.modules})
    return adapter, layout, rank_rows_from_peft(layout, adapter)


def _require_fit(blocks: BlockDiagonal, layout: AdapterLayout, *, r: int, most: int) -> None:
    refusals: list[tuple[str, Refusal]] = [("--nblocks", found) for found in blocks.width_refusals(layout.linears)]
    of_rank = blocks.rank_refusal(r)
    if of_rank is not None:
        refusals.append(("--rank", of_rank))
    if r > most:
        allowed = f"at most {most}, with which nothing is lost"
        refusals.append(("--rank", Refusal(found=str(r), allowed=allowed, hint=f"Write --rank {most}.")))
    if refusals:
        raise InputError([found.problem(Place(option=option)) for option, found in refusals])


def _decoder(base: RunBase) -> Decoder:
    # as for answers: one GPU is enough, whatever number the run trained on, and the weights are kept as it trained; a
    # model that trained through host memory is converted through it as well
    machine = machine_of(base.task, num_gpus="auto" if base.task.num_gpus else 0)
    streamed = layers_for_generation(read_config(base.directory), machine)
    return load_decoder(
        base.directory,
        dtype=machine.dtype,
        device=machine.device,
        streaming=host_streaming(streamed.layers, machine.device),
        weight_format=machine.quantization,
        cache_directory=default_cache_directory(),
        room_bytes=base.task.memory.limit,
    )


def _rows(base: RunBase) -> TokenisedRows:
    return load_dataset(
        base.task.dataset_settings(),
        tokenizer=load_tokenizer(base.directory),
        evaluation_max_examples=1,
        max_problems=20,
    ).train


def _write(
    source: Path,
    target: Path,
    *,
    layout: AdapterLayout,
    spec: AdapterSpec,
    weights_rD: Tensor,
    base: RunBase,
    how: str,
) -> None:
    if not torch.isfinite(weights_rD).all():
        raise InputError(
            Problem(
                where=str(source),
                found="weights that are not finite after the conversion",
                allowed="an adapter with finite weights",
                hint="Choose another trial, or fewer steps of distillation.",
            )
        )
    before = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8"))
    config = adapter_config(
        spec, base_model=base.name, target_modules=before["target_modules"], fan_in_fan_out=before["fan_in_fan_out"]
    )
    with atomic_directory(target) as partial:
        for path in sorted(source.iterdir()):
            if path.suffix in TOKENIZER_SUFFIXES and path.name != CONFIG_FILE:
                shutil.copy2(path, partial / path.name)
        (partial / WEIGHTS_FILE).write_bytes(serialised_weights(layout, spec, weights_rD))
        (partial / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        card = source / "README.md"
        if card.is_file():
            text = card.read_text(encoding="utf-8").rstrip()
            changed = f"\n\n## Changed since training\n\n{how} Its rank is {spec.r} and its scale {spec.scale:.6g}.\n"
            (partial / "README.md").write_text(text + changed, encoding="utf-8")
