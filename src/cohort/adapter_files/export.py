"""Takes an adapter out of a run: as PEFT and vLLM load it, or merged into the base model's weights."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from cohort.adapter_files.base_model import RunBase, open_base
from cohort.adapter_files.choose import BestSoFar, best_so_far, chosen_adapter
from cohort.adapter_files.convert import BlockTarget, write_as_blocks, write_as_lora
from cohort.adapter_files.export_place import require_place
from cohort.adapter_files.gguf_file import GgufType, require_gguf, write_gguf
from cohort.adapters.peft_files.merge import merge_into_base
from cohort.adapters.peft_files.peft_format import CONFIG_FILE, WEIGHTS_FILE, read_adapter
from cohort.core.durable_files import atomic_directory
from cohort.core.errors import InputError, Problem
from cohort.core.input_values.hub_ids import split_revision
from cohort.models.checkpoint.safetensors_files import read_headers
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.config_file import read_config
from cohort.models.source import find_local_model
from cohort.runs.directory import RunDirectory
from cohort.runs.reader import RunReader
from cohort.runs.task_of_run import read_run_task

__all__ = ["GGUF_FILE", "ExportForm", "Exported", "export_adapter"]

GGUF_FILE = "adapter.gguf"


class ExportForm(StrEnum):
    """What is written."""

    PEFT = "peft"
    """An adapter directory."""
    MERGED = "merged"
    """The base model with the adapter added into its weights."""
    LORA = "lora"
    """An adapter directory with two dense factors, whatever structure the adapter has."""
    BD = "bd"
    """An adapter directory with block-diagonal factors (BD-LoRA)."""
    GGUF = "gguf"
    """A directory with the LoRA file that llama.cpp loads, and the model card."""


@dataclass(frozen=True, kw_only=True)
class Exported:
    """Where an adapter was written.

    Attributes:
        path: The directory.
        so_far: The checkpoint it is from, where the run has not finished.
        note: For the user, about the base model.
        conversion: What the adapter became, and how near that is; None where it is as it was trained.
    """

    path: Path
    so_far: BestSoFar | None = None
    note: str | None = None
    conversion: str | None = None


def export_adapter(
    run_directory: Path,
    *,
    form: ExportForm,
    trial_id: int | None = None,
    output: Path | None = None,
    model: str | None = None,
    blocks: BlockTarget | None = None,
    gguf_type: GgufType = GgufType.F32,
) -> Exported:
    """Write an adapter of a run and return where it is.

    Args:
        trial_id: A trial, kept or not; None: the best one, or of an unfinished run the best so far.
        output: A new or empty directory; ``export-peft`` or ``export-merged`` in the run directory when None, followed
            by trial and step where it is not the run's best.
        model: Where the base model is now, if not where the run has it.
        blocks: What to make of the adapter where the form is BD.
        gguf_type: The number type where the form is GGUF.

    Raises:
        InputError: there is no such adapter, the blocks do not fit it, ``output`` is not empty, or the base model is
            gone or another one.
        StorageFullError: the disk is full; nothing half-written stays.
    """
    if form is ExportForm.GGUF:
        _require_gguf_place(output)
    directory = RunDirectory.open(run_directory)
    so_far = best_so_far(directory) if trial_id is None else None
    # trial and step are in the name, so that exports of one run do not replace each other
    name = f"export-{form.value}" + ("" if trial_id is None else f"-{trial_id:04d}")
    if so_far is not None:
        trial_id = so_far.trial_id
        name += f"-{trial_id:04d}-step-{so_far.step}"
    target = directory.root / name if output is None else output
    require_place(target)
    base, conversion = _base_of(directory, form=form, model=model), None
    step = None if so_far is None else so_far.step
    with chosen_adapter(directory, trial_id=trial_id, step=step, base=base) as source:
        # a checkpoint of an unfinished run may be replaced by the next one, so it is copied and not linked
        if form is ExportForm.PEFT:
            _copy(source, target, base=None if base is None else base.name)
            return Exported(path=target, so_far=so_far, note=None if base is None else base.note)
        assert base is not None, "only adapters as they are need no base"
        if form is ExportForm.MERGED:
            _merge(source, target, base=base.directory)
        elif form is ExportForm.GGUF:
            conversion = _write_gguf(source, target, base=base, kind=gguf_type)
        elif form is ExportForm.LORA:
            conversion = write_as_lora(source, target, base=base)
        else:
            assert blocks is not None, "the form BD says which blocks"
            # the start is near: at the rate of training AdamW leaves it before it learns
            rate = _learning_rate(directory, trial_id=trial_id) / 10
            conversion = write_as_blocks(source, target, base=base, asked=blocks, learning_rate=rate)
    return Exported(path=target, so_far=so_far, note=base.note, conversion=conversion)


def _learning_rate(directory: RunDirectory, *, trial_id: int | None) -> float:
    """Return that of a trial, or of the best one."""
    with RunReader.open(directory.database) as reader:
        facts = reader.facts()
        wanted = facts.best_trial_id if trial_id is None else trial_id
        trial = next((trial for trial in reader.trials() if trial.trial_id == wanted), None)
    settings: dict[str, Any] = {**(facts.task.training or {}), **({} if trial is None else trial.parameters)}
    return float(settings["learning_rate"])


def _base_of(directory: RunDirectory, *, form: ExportForm, model: str | None) -> RunBase | None:
    """Return the base model where the export needs it or it is there anyway; None where it is not on this machine."""
    if form is ExportForm.PEFT and model is None:
        # an adapter is written without its base model, which may be on another machine, or on the hub: nothing is
        # fetched to be compared. One that is here and has changed is refused, since the adapter would name it
        with RunReader.open(directory.database) as reader:
            facts = reader.facts()
        try:
            name = read_run_task(directory, facts=facts).model_name_or_path
        except InputError:
            return None
        if find_local_model(name) is None:
            return None
    return open_base(directory, model=model)


def _copy(source: Path, target: Path, *, base: str | None) -> None:
    with atomic_directory(target) as partial:
        for path in sorted(source.iterdir()):
            # a kept trial's directory also holds its resume state, which is no part of the adapter
            if path.name == WEIGHTS_FILE or path.suffix in _ADAPTER_SUFFIXES:
                shutil.copy2(path, partial / path.name)
        if base is not None:
            _name_base(partial, base)


def _name_base(folder: Path, base: str) -> None:
    """Let an adapter and its card name the base model where it is now."""
    path, card = folder / CONFIG_FILE, folder / "README.md"
    config = json.loads(path.read_text(encoding="utf-8"))
    before = config.get("base_model_name_or_path")
    name, revision = split_revision(base)
    if (before, config.get("revision")) == (name, revision):
        return
    named = {"base_model_name_or_path": name, "revision": revision}
    path.write_text(json.dumps({**config, **named}, indent=2, sort_keys=True) + "\n")
    # a hub id in the card stays true wherever a copy of that model lies
    if before and Path(before).is_absolute() and card.is_file():
        card.write_text(card.read_text(encoding="utf-8").replace(before, base), encoding="utf-8")


def _merge(source: Path, target: Path, *, base: Path) -> None:
    adapter, bridged = read_adapter(source), read_config(base).bridged
    # the base model keeps its division into files, so that its index still fits
    shards = sorted({stored.file for stored in read_headers(base).tensors.values()})
    with atomic_directory(target) as partial:
        is_transposed = bridged is not None and bridged.are_transposed
        experts = () if bridged is None else bridged.expert_parameters
        merge_into_base(
            base,
            adapter,
            partial,
            shards=shards,
            fan_in_fan_out=is_transposed,
            input_first={path: is_first for path, _, _, _, is_first in experts},
        )


def _require_gguf_place(output: Path | None) -> None:
    require_gguf()
    if output is not None and output.suffix == ".gguf":
        hint = f"Write -o {output.with_suffix('')}: the file is {output.with_suffix('') / GGUF_FILE}."
        raise InputError(Problem(where=f"-o {output}", found="a file's name", allowed="a new directory", hint=hint))


def _write_gguf(source: Path, target: Path, *, base: RunBase, kind: GgufType) -> str:
    adapter, config = read_adapter(source), check_checkpoint(base.directory)
    if config.bridged is not None:
        found = f"an adapter of {config.architecture}, which transformers computes"
        hint = "Export it with --to peft, and convert it with llama.cpp's own convert_lora_to_gguf.py."
        raise InputError(Problem(where="--to", found=found, allowed="an adapter of a native family", hint=hint))
    with atomic_directory(target) as partial:
        path = partial / GGUF_FILE
        write_gguf(adapter, path, config=config, base_model=base.name, kind=kind)
        if (source / "README.md").is_file():
            shutil.copy2(source / "README.md", partial / "README.md")
    return f"{GGUF_FILE} in {kind.value}: llama-cli -m BASE.gguf --lora {target / GGUF_FILE}"


# adapter_config.json, the model card and the tokenizer
_ADAPTER_SUFFIXES = {".json", ".md", ".model", ".txt", ".jinja"}
